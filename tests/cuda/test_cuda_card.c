/* The engine on CUDA: what auto takes, what the command line may ask for, a card that is smaller
 * than was asked for or that somebody else fills meanwhile, memory that cannot be pinned, and the
 * answers of the CPU within what two orders of summation may differ by. */
#define TEST_BACKEND SPW_BACKEND_CUDA
#include "quant/types.h"
#include "runtime/measure/machine.h"
#include "tests/engine/engine_run.h"

#define MIB ((uint64_t)1 << 20)

static const struct tiny_model model = {TINY("llama", 3, 64, 96, 4, 2, 16, 101, 1 << 20),
                                        .untied = true, .seed = 71};
enum { N_TOKENS = 300, LONG = 400000 };

static float *logits_of(const char *dir, const struct spw_options *o, const int32_t *ids)
{
    uint32_t vocab;
    return model_all_logits(dir, o, ids, N_TOKENS, &vocab);
}

/* ---- against the CPU ---- */

static void check_against_cpu(const char *dir, const int32_t *ids, enum spw_dtype compute,
                              double tolerance)
{
    struct spw_options cuda = {
        .backend = SPW_BACKEND_CUDA, .compute = compute, .context = N_TOKENS};
    struct spw_options cpu = cuda;
    cpu.backend = SPW_BACKEND_CPU;
    float *a = logits_of(dir, &cuda, ids), *b = logits_of(dir, &cpu, ids);
    double sum = 0, error = 0;
    for (size_t i = 0; a && b && i < (size_t)N_TOKENS * model.vocab; i++) {
        sum += (double)b[i] * b[i];
        error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    }
    double relative = sqrt(error / sum);
    CHECK_MSG(relative <= tolerance, "compute %s: %.3g", spw_dtype_name(compute), relative);
    fprintf(stderr, "CUDA against the CPU, %s: %.2e\n", spw_dtype_name(compute), relative);
    free(a);
    free(b);
}

/* ---- which device ---- */

static void check_choice(const char *dir)
{
    struct spw_options o = {.context = N_TOKENS};
    struct spw_error err = {0};
    struct spw_engine *e = NULL;
    CHECK_MSG(spw_engine_open(&e, dir, &o, &err) == 0, "%s", err.text);
    CHECK_MSG(!strncmp(spw_engine_backend(e), "cuda:0 ", 7), "%s", spw_engine_backend(e));
    CHECK(!*spw_engine_note(e));
    spw_engine_close(e);
    o.backend = SPW_BACKEND_CUDA;
    o.device_index = 4321;
    e = NULL;
    CHECK(spw_engine_open(&e, dir, &o, &err) == -ENODEV && !e && strstr(err.text, "cuda:4321"));
    o.device_index = 0;
    o.device_bytes = (uint64_t)1 << 50;
    spw_error_clear(&err);
    CHECK(spw_engine_open(&e, dir, &o, &err) == -ENOMEM && !e);
    CHECK_MSG(strstr(err.text, "free; lower options.device_bytes"), "%s", err.text);
}

#ifdef SPW_SIMT_EMULATOR

/* A GPU that does not work is passed over, and the note says why; but without a driver there is no
 * GPU to speak of. */
static void check_auto_falls_back(const char *dir)
{
    const struct spw_simt_options machines[] = {
        {.driver = -1}, {.n_devices = -1}, {.capability = 61}, {.driver = 11080}, {.code = 209}};
    const char *why[] = {"no NVIDIA driver", "finds no GPU", "capability 6.1", "up to 11.8",
                         "no code for sm_80"};
    for (size_t i = 0; i < sizeof why / sizeof *why; i++) {
        spw_simt_set(&machines[i]);
        struct spw_options o = {.context = 300};
        struct spw_error err = {0};
        struct spw_engine *e = NULL;
        CHECK_MSG(spw_engine_open(&e, dir, &o, &err) == 0, "%s", err.text);
        CHECK(!strncmp(spw_engine_backend(e), "cpu ", 4));
        const char *note = spw_engine_note(e);
        CHECK_MSG(i ? strstr(note, why[i]) != NULL : !*note, "%s", note);
        spw_engine_close(e);
        o.backend = SPW_BACKEND_CUDA;
        CHECK(spw_engine_open(&e, dir, &o, &err) == (i ? -ENODEV : -ENOTSUP) &&
              strstr(err.text, why[i]));
    }
    spw_simt_set(NULL);
}

/* The device's share of the card: what is left when others have taken the rest. */
static void card_with(uint64_t left)
{
    spw_simt_set(&(struct spw_simt_options){.card_bytes = 8192 * MIB});
    spw_simt_others_take(8192 * MIB - left);
}

/* Default budget: what is free less the margin, so that a full card is refused with the smallest
 * budget, and a card with a little room is spilled from. */
static void check_small_card(const char *dir, const int32_t *ids, const float *expected)
{
    struct spw_options o = {.backend = SPW_BACKEND_CUDA, .context = N_TOKENS};
    struct spw_plan_info info;
    struct spw_error err = {0};
    struct spw_engine *e = NULL;
    CHECK_MSG(spw_plan_query(&info, dir, &o, &err) == 0, "%s", err.text);
    card_with(256 * MIB + info.smallest_device_bytes - 4096);
    CHECK(spw_engine_open(&e, dir, &o, &err) == -ENOMEM && !e);
    CHECK_MSG(strstr(err.text, "needs at least"), "%s", err.text);
    card_with(256 * MIB + info.smallest_device_bytes);
    float *logits = logits_of(dir, &o, ids);
    CHECK(logits && !memcmp(logits, expected, sizeof *logits * N_TOKENS * model.vocab));
    free(logits);
    spw_simt_set(NULL);
}

/* The card is taken between the question what is free and the allocation. With a host budget the
 * plan is made again and spills; without one it is refused with the budget that would do. */
static void check_taken_meanwhile(const char *dir, const int32_t *ids, const float *expected)
{
    struct spw_options o = {.backend = SPW_BACKEND_CUDA, .context = LONG};
    struct spw_plan_info info;
    struct spw_error err = {0};
    struct spw_engine *e = NULL;
    CHECK_MSG(spw_plan_query(&info, dir, &o, &err) == 0, "%s", err.text);
    uint64_t left = 256 * MIB + 8 * MIB;
    CHECK(info.smallest_device_bytes < 8 * MIB && info.device.total > left);
    spw_simt_set(&(struct spw_simt_options){.card_bytes = 8192 * MIB});
    spw_simt_others_take_late(8192 * MIB - left);
    CHECK_MSG(spw_engine_open(&e, dir, &o, &err) == 0, "%s", err.text);
    if (e) {
        struct spw_fallback told = {0};
        CHECK(run_fallbacks(e, &told) == 1 && told.kind == SPW_FALLBACK_HOST && told.bytes_freed);
        CHECK(told.bytes_asked > left && !strcmp(told.failed, "device memory"));
        CHECK(spw_engine_plan(e)->device_budget_bytes <= 8 * MIB);
        CHECK(spw_engine_plan(e)->host.kv > 256 * MIB);
        struct spw_session *s = run_session(e);
        const float *logits = run_to(s, e, ids, N_TOKENS);
        CHECK(run_same(logits, expected + (size_t)(N_TOKENS - 1) * model.vocab, model.vocab));
        spw_session_close(s);
        spw_engine_close(e);
    }
    e = NULL;
    o.host_bytes = 4 * MIB;
    spw_simt_set(&(struct spw_simt_options){.card_bytes = 8192 * MIB});
    spw_simt_others_take_late(8192 * MIB - left);
    CHECK(spw_engine_open(&e, dir, &o, &err) == -ENOMEM && !e);
    CHECK_MSG(strstr(err.text, "needs at least"), "%s", err.text);
    spw_simt_set(NULL);
}

/* The same answer, and a line that says what it costs. */
static void check_pageable(const char *dir, const int32_t *ids, const float *expected)
{
    struct spw_options o = {.backend = SPW_BACKEND_CUDA, .context = N_TOKENS};
    run_tight(dir, &o, 0);
    spw_simt_fail_register_nth(0);
    struct spw_engine *e = run_open(dir, &o);
    CHECK_MSG(strstr(spw_engine_note(e), "refused to pin"), "%s", spw_engine_note(e));
    struct spw_session *s = run_session(e);
    const float *logits = run_to(s, e, ids, N_TOKENS);
    CHECK(run_same(logits, expected + (size_t)(N_TOKENS - 1) * model.vocab, model.vocab));
    run_check_peaks(e, &o, "pageable");
    spw_session_close(s);
    spw_engine_close(e);
    spw_simt_set(NULL);
}

static void check_nothing_left(void)
{
    struct spw_simt_usage u;
    spw_simt_usage_get(&u);
    CHECK(u.device_bytes == 0 && u.registered_bytes == 0 && u.n_streams == 0 && u.n_events == 0);
}
#endif

int main(void)
{
    char dir[128];
    int32_t ids[N_TOKENS];
    if (!run_is_there())
        return CHECK_SKIP;
    int64_t outstanding = spw_alloc_outstanding();
    run_folder(dir, &model, "cuda_engine");
    run_ids(ids, N_TOKENS, model.vocab, 5);
    struct spw_options o = {.backend = SPW_BACKEND_CUDA, .context = N_TOKENS};
    float *expected = logits_of(dir, &o, ids);
    /* f32: other orders of the same sums. bf16: a rounding to 8 bits may fall to the other side. */
    check_against_cpu(dir, ids, SPW_DTYPE_F32, 1e-5);
    check_against_cpu(dir, ids, SPW_DTYPE_BF16, 2e-2);
    check_choice(dir);
#ifdef SPW_SIMT_EMULATOR
    check_auto_falls_back(dir);
    check_small_card(dir, ids, expected);
    check_taken_meanwhile(dir, ids, expected);
    check_pageable(dir, ids, expected);
    check_nothing_left();
#endif
    free(expected);
    tiny_model_remove(dir);
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
