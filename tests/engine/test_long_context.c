/* Promise 1: a context that is bounded by no tier alone. 50,000 tokens and some decode steps
 * through a tiny bf16 model with a few MiB of device memory, compared with memcmp to the run
 * without limits; bytes and peaks are what the plan says, to the byte.
 *
 *   test_long_context [tokens]    default 50000, 100000 in a full run; under sanitizers skipped
 *                                 unless given */
#include "tests/engine/engine_run.h"

#include <time.h>

enum { DEVICE_MIB = 3, N_DECODE = 6, PROMPT_ROWS = 40, VOCAB = 64 };

static const struct tiny_model model = {
    "llama", 2,     16,    16,   1,    1, 16, VOCAB, 262144, ",\"rope_theta\":500000.0",
    false,   false, false, true, true, 91};

struct rows {
    float logits[PROMPT_ROWS + N_DECODE][VOCAB];
    size_t n;
};

static void keep(void *context, size_t span, size_t position, const float *logits)
{
    struct rows *r = context;
    (void)span;
    (void)position;
    memcpy(r->logits[r->n++], logits, sizeof r->logits[0]);
}

static void run(const char *dir, const struct spw_options *o, const int32_t *ids, size_t n_prompt,
                struct rows *r)
{
    struct spw_error err = {{0}};
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    struct spw_engine *e = run_open(dir, o);
    struct spw_session *s = run_session(e);
    const struct spw_plan_info *plan = spw_engine_plan(e);
    for (size_t i = 0; i <= N_DECODE; i++) {
        struct spw_span span = {s, ids, n_prompt + i, i ? 1 : PROMPT_ROWS};
        CHECK_MSG(spw_sync(e, &span, 1, keep, r, &err) == 0, "%s", err.text);
        CHECK(i == 0 || spw_session_reused(s) == n_prompt + i - 1);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    struct spw_stats stats;
    struct spw_waterlines w;
    spw_engine_stats(e, &stats);
    spw_session_waterlines(s, &w);
    run_check_account(e, o, "long context");
    CHECK(stats.device_peak_bytes == plan->device.total);
    CHECK(stats.host_peak_bytes == plan->host.total);
    CHECK(!o->device_bytes || w.host_end > n_prompt / 2); /* most of the context left the device */
    CHECK(w.n_tokens == plan->waterlines.n_tokens && w.host_end == plan->waterlines.host_end);
    fprintf(stderr,
            "%zu tokens, %llu of them below: %.1f MiB of device and %.1f MiB of host memory, "
            "%.1f MiB up, %.1f MiB down, %ld s\n",
            n_prompt + N_DECODE, (unsigned long long)w.host_end,
            (double)stats.device_peak_bytes / 0x1p20, (double)stats.host_peak_bytes / 0x1p20,
            (double)stats.moved_bytes[SPW_MOVED_HOST_TO_DEVICE] / 0x1p20,
            (double)stats.moved_bytes[SPW_MOVED_DEVICE_TO_HOST] / 0x1p20,
            (long)(to.tv_sec - from.tv_sec));
    spw_session_close(s);
    spw_engine_close(e);
}

int main(int argc, char **argv)
{
    static struct rows unlimited, small;
    if (argc < 2 && (RUN_UNDER_TSAN || RUN_UNDER_ASAN))
        return CHECK_SKIP;
    size_t n_prompt = argc > 1 ? strtoul(argv[1], NULL, 0) : check_full() ? 100000 : 50000;
    char dir[128];
    run_folder(dir, &model, "long");
    int32_t *ids = calloc(n_prompt + N_DECODE, sizeof *ids);
    run_ids(ids, n_prompt + N_DECODE, VOCAB, 17);
    struct spw_options o = {.backend = TEST_BACKEND, .context = n_prompt + N_DECODE, .threads = 2};
    run(dir, &o, ids, n_prompt, &unlimited);
    o.device_bytes = DEVICE_MIB << 20;
    o.host_bytes = (uint64_t)1 << 30;
    run(dir, &o, ids, n_prompt, &small);
    CHECK(unlimited.n == PROMPT_ROWS + N_DECODE && small.n == unlimited.n);
    CHECK(memcmp(&unlimited, &small, sizeof small) == 0);
    free(ids);
    tiny_model_remove(dir);
    return check_done();
}
