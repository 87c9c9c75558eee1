/* The byte account of the plan against the counters of a real engine: a prompt of `context` tokens
 * from nothing, then its last token once more; and of a batch of requests of which only the
 * lengths are known. As integers, for random budgets, chunks and slots.
 *
 *   test_traffic [draws] */
#include "tests/batch_run.h"
#include "tests/engine/engine_run.h"

static int n_with_disk, n_with_three, n_with_old, n_generations_on_disk, n_shared;

struct moved {
    uint64_t bytes[SPW_MOVED_COUNT];
};

static struct moved moved_so_far(struct spw_engine *e)
{
    struct spw_stats s;
    struct moved m;
    spw_engine_stats(e, &s);
    memcpy(m.bytes, s.moved_bytes, sizeof m.bytes);
    return m;
}

static void compare(const char *what, const uint64_t *plan, const struct moved *before,
                    const struct moved *after, const struct spw_options *o)
{
    for (int i = 0; i < SPW_MOVED_COUNT; i++) {
        uint64_t counted = after->bytes[i] - before->bytes[i];
        CHECK_MSG(counted == plan[i],
                  "%s, link %d: planned %llu, counted %llu (context %llu, device %llu, host %llu, "
                  "disk %llu, chunk %u, slots %u of %u)",
                  what, i, (unsigned long long)plan[i], (unsigned long long)counted,
                  (unsigned long long)o->context, (unsigned long long)o->device_bytes,
                  (unsigned long long)o->host_bytes, (unsigned long long)o->disk_bytes,
                  o->prefill_chunk, o->prefetch_slots, o->prefetch_splits);
    }
}

/* Device memory from the smallest to all (with a disk not so much that it stays empty); then of
 * host and disk the least that works beside that, or more. */
static void draw_budgets(struct spw_options *o, const struct spw_backend *b, const char *dir,
                         uint64_t *seed)
{
    struct spw_error err = {0};
    struct spw_plan_info all, least;
    bool on_disk = check_random(seed) % 2;
    if (on_disk)
        o->disk_dir = dir;
    CHECK_MSG(spw_plan_query_on(&all, b, dir, o, &err) == 0, "%s", err.text);
    o->device_bytes = all.smallest_device_bytes;
    if (check_random(seed) % 3 && all.device.total > o->device_bytes)
        o->device_bytes +=
            check_range(seed, 0, (all.device.total - o->device_bytes) / (on_disk ? 4 : 1));
    if (on_disk && check_random(seed) % 3 == 0) {
        run_to_disk_on(b, dir, o);
        return;
    }
    o->host_bytes = (uint64_t)1 << 30;
    CHECK_MSG(spw_plan_query_on(&least, b, dir, o, &err) == 0, "%s", err.text);
    uint64_t host = least.smallest_host_bytes;
    if (check_random(seed) % 2 || on_disk)
        o->host_bytes = host + (on_disk ? check_range(seed, 0, least.host.kv) : 0);
    if (!o->host_bytes)
        o->host_bytes = SPW_BYTES_NONE;
    CHECK_MSG(spw_plan_query_on(&least, b, dir, o, &err) == 0, "%s", err.text);
    if (on_disk && least.smallest_disk_bytes && check_random(seed) % 2)
        o->disk_bytes = least.smallest_disk_bytes;
}

static void run_draw(const char *dir, uint32_t vocab, uint64_t *seed)
{
    static int32_t ids[1500];
    static const uint32_t chunks[] = {0, 0, 16, 50, 128, 200};
    static const uint64_t windows[] = {SPW_BYTES_NONE, 128, 400, 0};
    struct spw_options o = {.backend = TEST_BACKEND,
                            .threads = 2,
                            .context = check_range(seed, 1, 1500),
                            .prefill_chunk = chunks[check_random(seed) % 6],
                            .prefetch_slots = check_random(seed) % 2 ? 0 : 2,
                            .prefetch_splits = check_random(seed) % 2 ? 0 : 2,
                            .precision = (enum spw_kv_precision)(check_random(seed) % 4),
                            .residual_window = windows[check_random(seed) % 4]};
    struct spw_backend b = run_backend(check_random(seed) % 2);
    draw_budgets(&o, &b, dir, seed);
    run_ids(ids, o.context, vocab, *seed);
    struct spw_engine *e = run_open_on(&b, dir, &o);
    struct spw_session *s = run_session(e);
    s->ends = true; /* nothing is fetched for a step that does not come */
    const struct spw_plan_info *plan = spw_engine_plan(e);
    struct moved opened = moved_so_far(e), prompt, decode;
    run_to(s, e, ids, o.context);
    prompt = moved_so_far(e);
    compare("prefill", plan->prefill_moved_bytes, &opened, &prompt, &o);
    struct spw_waterlines w;
    spw_session_waterlines(s, &w);
    CHECK(w.n_tokens == plan->waterlines.n_tokens && w.host_end == plan->waterlines.host_end &&
          w.disk_end == plan->waterlines.disk_end);
    spw_session_close(s);
    if (o.context > 1) { /* the state of context - 1 tokens, as a generation would have left it */
        s = run_session(e);
        s->ends = true;
        run_to(s, e, ids, o.context - 1);
        opened = moved_so_far(e);
        run_to(s, e, ids, o.context);
        decode = moved_so_far(e);
        CHECK(spw_session_reused(s) == o.context - 1);
        compare("decode", plan->decode_moved_bytes, &opened, &decode, &o);
        spw_session_close(s);
    }
    CHECK(plan->device.total <= plan->device_budget_bytes);
    CHECK(plan->host.total <= plan->host_budget_bytes);
    struct spw_stats stats;
    spw_engine_stats(e, &stats);
    CHECK(stats.device_peak_bytes == plan->device.total);
    CHECK(stats.host_peak_bytes == plan->host.total);
    CHECK(stats.disk_peak_bytes == plan->disk.total &&
          stats.disk_peak_bytes <= plan->disk_budget_bytes);
    n_with_disk += plan->disk.total > 0;
    n_with_three += plan->disk.total > 0 && plan->host.kv > 0;
    n_with_old += plan->precision && plan->waterlines.host_end > 0;
    spw_engine_close(e);
}

/* ---- the whole of a generation, by somebody who does not see it ---- */

enum { MOST_REQUESTS = 6 };

/* As spillway.h says it: requests of random lengths, more of them than sessions. */
static void run_generation(const char *dir, uint32_t vocab, uint64_t *seed)
{
    static int32_t ids[MOST_REQUESTS][1500];
    static const uint32_t chunks[] = {0, 0, 16, 50, 128, 200};
    static const uint64_t windows[] = {SPW_BYTES_NONE, 128, 400, 0};
    struct spw_options o = {.backend = TEST_BACKEND,
                            .threads = 2,
                            .sessions = (uint32_t)check_range(seed, 1, 4),
                            .prefill_chunk = chunks[check_random(seed) % 6],
                            .prefetch_slots = check_random(seed) % 2 ? 0 : 2,
                            .prefetch_splits = check_random(seed) % 2 ? 0 : 2,
                            .precision = (enum spw_kv_precision)(check_random(seed) % 4),
                            .residual_window = windows[check_random(seed) % 4]};
    struct spw_backend b = run_backend(check_random(seed) % 2);
    struct spw_request requests[MOST_REQUESTS] = {{0}};
    struct spw_plan_request lengths[MOST_REQUESTS] = {{0}};
    struct spw_result results[MOST_REQUESTS];
    size_t n = (size_t)check_range(seed, 1, MOST_REQUESTS);
    uint64_t moved[SPW_MOVED_COUNT];
    struct spw_error err = {0};
    for (size_t i = 0; i < n; i++) {
        lengths[i] = (struct spw_plan_request){.n_prompt = check_range(seed, 1, 700),
                                               .max_new_tokens = check_random(seed) % 140};
        run_ids(ids[i], lengths[i].n_prompt, vocab, *seed);
        if (i && check_random(seed) % 2) { /* it begins as the one before */
            memcpy(ids[i], ids[i - 1],
                   check_range(seed, 0, spw_min_u64(lengths[i].n_prompt, lengths[i - 1].n_prompt)) *
                       sizeof ids[i][0]);
        }
        lengths[i].prompt = ids[i];
        requests[i] = (struct spw_request){.prompt = ids[i],
                                           .n_prompt = lengths[i].n_prompt,
                                           .max_new_tokens = lengths[i].max_new_tokens,
                                           .ignore_eos = true};
        o.context = spw_max_u64(o.context, lengths[i].n_prompt + lengths[i].max_new_tokens);
    }
    draw_budgets(&o, &b, dir, seed);
    CHECK_MSG(spw_plan_moved_on(moved, &b, dir, &o, lengths, n, &err) == 0, "%s", err.text);
    struct spw_engine *e = run_open_on(&b, dir, &o);
    CHECK_MSG(batch_run(e, NULL, requests, n, results, NULL, &err) == 0, "%s", err.text);
    struct spw_stats s;
    spw_engine_stats(e, &s);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        CHECK_MSG(s.moved_bytes[i] == moved[i],
                  "generation, link %d: planned %llu, counted %llu (%zu requests, the first %llu + "
                  "%llu, context %llu, device %llu, host %llu, disk %llu, chunk %u)",
                  i, (unsigned long long)moved[i], (unsigned long long)s.moved_bytes[i], n,
                  (unsigned long long)lengths[0].n_prompt,
                  (unsigned long long)lengths[0].max_new_tokens, (unsigned long long)o.context,
                  (unsigned long long)o.device_bytes, (unsigned long long)o.host_bytes,
                  (unsigned long long)o.disk_bytes, o.prefill_chunk);
    n_with_old += o.precision && results[0].waterlines.host_end > 0;
    for (size_t i = 0; i < n; i++)
        n_shared += results[i].n_reused > 0;
    n_generations_on_disk += s.moved_bytes[SPW_MOVED_DISK_TO_HOST] > 0;
    for (size_t i = 0; i < n; i++)
        spw_result_free(&results[i]);
    spw_engine_close(e);
}

int main(int argc, char **argv)
{
    int draws =
        argc > 1 ? atoi(argv[1]) : check_amount(RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 40 : 150);
    uint64_t seed = check_seed();
    for (int i = 0; i < N_TINY_MODELS; i++) {
        char dir[128];
        run_folder(dir, &tiny_models[i], "traffic");
        for (int k = 0; k < draws / N_TINY_MODELS; k++)
            run_draw(dir, tiny_models[i].vocab, &seed);
        for (int k = 0; k < draws / N_TINY_MODELS; k++)
            run_generation(dir, tiny_models[i].vocab, &seed);
        tiny_model_remove(dir);
    }
    printf("%d engines with tiles on disk, %d of them with some on the host too; %d with quantized "
           "ones below the device; %d generations that read from disk, %d requests that "
           "shared tokens\n",
           n_with_disk, n_with_three, n_with_old, n_generations_on_disk, n_shared);
    CHECK(draws < 100 || (n_with_disk > 0 && n_with_three > 0 && n_with_old > 0 &&
                          n_generations_on_disk > 0 && n_shared > 0));
    return check_done();
}
