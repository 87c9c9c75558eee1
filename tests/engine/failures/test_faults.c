/* Faults: the n-th allocation fails, for n = 0, 1, ... until nothing fails any more; then the n-th
 * command of the device does. Each time a clean error with a text or the right answer, no leak, and
 * never an abort. An allocation fails once, so the call that met it must work when it is repeated:
 * nothing half made may have stayed behind. So with exact KV, and with old KV that is quantized and
 * streams.
 *
 *   test_faults [stride]    of the device's commands; default 41 under TSan, 7 under ASan, else 3
 */
#include "tests/batch_run.h"
#include "tests/engine/oracle.h"

enum {
    STRIDE = TEST_GPU         ? 61
             : RUN_UNDER_TSAN ? 41
             : RUN_UNDER_ASAN ? 7
                              : 3,
    ALLOCATION_STRIDE = TEST_GPU         ? 17
                        : RUN_UNDER_TSAN ? 5
                                         : 1,
    QUICK = RUN_UNDER_ASAN ? 5 : 1, /* allocations, where the run is not a full one */
    GENERATION_STRIDE = TEST_GPU         ? 41
                        : RUN_UNDER_TSAN ? 61
                                         : 15,
    QUANTIZED_STRIDES = TEST_GPU ? 9 : 7,
};
enum { N_MORE = 5, N_GENERATED = 4, MOST_VOCAB = 128 };

/* What is run, and how much of it: a prompt of so many tokens, with room for 100 more. */
static const struct setting {
    struct tiny_model model;
    bool reads_host_memory; /* else there are packed copies of weight blocks */
    enum spw_kv_precision precision;
    size_t n_prompt;
    int stride_factor;
    bool from_files; /* the smallest budgets: experts move, and come from the model's files */
} settings[] = {
    {{TINY("llama", 2, 32, 48, 2, 1, 16, 67, 512), .untied = true, .seed = 61},
     true,
     SPW_KV_EXACT,
     300,
     1,
     false},
    {{TINY("gemma3_text", 2, 32, 64, 2, 1, 16, 67, 512),
      .more = ",\"sliding_window\":150,\"sliding_window_pattern\":2,\"query_pre_attn_scalar\":16,"
              "\"hidden_activation\":\"gelu_pytorch_tanh\"",
      .qk_norm = true, .sandwich = true, .stored = TINY_BF16, .seed = 62},
     false,
     SPW_KV_EXACT,
     300,
     1,
     false},
    {{TINY("llama", 2, 32, 32, 2, 1, 32, 67, 2048), .untied = true, .stored = TINY_BF16,
      .seed = 63},
     false,
     SPW_KV_INT8,
     1100,
     QUANTIZED_STRIDES,
     false},
    {{TINY("qwen3_moe", 2, 32, 32, 2, 1, 16, 67, 512),
      .more = ",\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32",
      .qk_norm = true, .untied = true, .seed = 64, .experts = 8, .expert_width = 32},
     false,
     SPW_KV_EXACT,
     60,
     2,
     true},
    {{TINY("qwen3_5_text", 2, 32, 48, 2, 1, 16, 67, 512), /* a state, which moves */
      .qk_norm = true, .untied = true, .seed = 65, .mixer = TINY_DELTA, .interval = 2, .taps = 3,
      .state_heads = 2, .state_key_heads = 1, .state_key_dim = 16, .state_dim = 16},
     false,
     SPW_KV_EXACT,
     300,
     2,
     false},
};

static char sums_file[64];

struct run {
    const struct setting *is;
    struct spw_backend b;
    struct subject s;
    const char *dir;
    const int32_t *ids;
    struct spw_options o;
};

struct answer {
    float prompt[MOST_VOCAB], parent[MOST_VOCAB], child[MOST_VOCAB];
    int32_t generated[N_GENERATED];
    uint64_t hash;
};

/* Calls once, and a second time if the first met the fault. Returns the second's result. */
#define TWICE(call)                                                                                \
    do {                                                                                           \
        struct spw_error err = {0};                                                                \
        int rc = (call);                                                                           \
        if (rc) {                                                                                  \
            faults++;                                                                              \
            CHECK_MSG(rc == -ENOMEM, #call ": %d", rc);                                            \
            CHECK_MSG(err.text[0] && !strchr(err.text, '\n'), #call ": no line of text");          \
            spw_error_clear(&err);                                                                 \
            rc = (call);                                                                           \
            CHECK_MSG(rc == 0, #call " again: %s", err.text);                                      \
        }                                                                                          \
        if (rc)                                                                                    \
            goto done;                                                                             \
    } while (0)

/* A request that fails alone is a failure here. */
static int generate(struct spw_engine *e, const struct spw_request *request,
                    struct spw_result *result, struct spw_error *err)
{
    int rc = batch_run(e, NULL, request, 1, result, NULL, err);
    return !rc && result->finish == SPW_FINISH_FAILED ? -ENOMEM : rc;
}

/* The whole of the API once. Returns how many calls failed. */
static int run_api(const struct run *u, struct answer *a)
{
    const size_t n_prompt = u->is->n_prompt;
    struct spw_plan_info info;
    struct spw_engine *e = NULL;
    struct spw_session *s = NULL, *fork = NULL;
    struct spw_result result = {0};
    struct spw_request request = {
        .prompt = u->ids + 7, .n_prompt = 40, .max_new_tokens = N_GENERATED, .ignore_eos = true};
    struct spw_span span, both[2];
    size_t bytes;
    int faults = 0;
    TWICE(spw_plan_query_on(&info, &u->b, u->dir, &u->o, &err));
    TWICE(spw_engine_open_on(&e, &u->b, u->dir, &u->o, &err));
    bytes = spw_engine_config(e)->vocab * sizeof(float);
    TWICE(spw_session_open(&s, e, &err));
    span = (struct spw_span){s, u->ids, n_prompt, 1};
    TWICE(spw_sync(e, &span, 1, NULL, NULL, &err));
    memcpy(a->prompt, spw_session_logits(s), bytes);
    TWICE(spw_session_fork(&fork, s, &err));
    both[0] = (struct spw_span){s, u->ids, n_prompt + 1, 1};
    both[1] = (struct spw_span){fork, u->ids, n_prompt + N_MORE, 1};
    TWICE(spw_sync(e, both, 2, NULL, NULL, &err));
    memcpy(a->parent, spw_session_logits(s), bytes);
    memcpy(a->child, spw_session_logits(fork), bytes);
    spw_session_close(s);
    s = NULL;
    TWICE((spw_result_free(&result), generate(e, &request, &result, &err)));
    memcpy(a->generated, result.tokens, sizeof a->generated);
    a->hash = result.logits_hash;
done:
    spw_result_free(&result);
    spw_session_close(fork);
    spw_session_close(s);
    spw_engine_close(e);
    return faults;
}

static void fail_allocations(const struct run *u)
{
    const int stride = ALLOCATION_STRIDE * (check_full() ? 1 : QUICK * u->is->stride_factor);
    static struct answer expected, got;
    int64_t outstanding = spw_alloc_outstanding();
    int n = 0;
    bool met;
    CHECK(run_api(u, &expected) == 0);
    CHECK(spw_alloc_outstanding() == outstanding);
    do {
        memset(&got, 0, sizeof got);
        spw_alloc_fail_nth(n);
        n += stride;
        run_api(u, &got);
        met = run_alloc_failed(); /* a tier that refused an arena may have been planned around */
        CHECK_MSG(memcmp(&got, &expected, sizeof got) == 0, "allocation %d: another answer",
                  n - stride);
        CHECK_MSG(spw_alloc_outstanding() == outstanding, "allocation %d: %lld blocks lost",
                  n - stride, (long long)(spw_alloc_outstanding() - outstanding));
    } while (met);
    CHECK(n > 40);
    fprintf(stderr, "%s: allocations 0, %d, ... %d failed\n", u->dir, stride, n - 2 * stride);
}

/* ---- the device ---- */

/* A step that ends in an error leaves its sessions empty; one that does not is right. */
static int run_step(struct run *u, struct spw_engine *e, const struct spw_span *spans, size_t n,
                    int64_t nth)
{
    struct spw_error err = {0};
    int rc = spw_sync(e, spans, n, NULL, NULL, &err);
    CHECK_MSG(rc == 0 || rc == -EIO, "command %lld: %d", (long long)nth, rc);
    for (size_t i = 0; i < n; i++) {
        if (rc)
            CHECK_MSG(spw_session_n_tokens(spans[i].session) == 0, "command %lld", (long long)nth);
        else
            CHECK_MSG(
                oracle_same(&u->s, u->ids, spans[i].n_tokens, spw_session_logits(spans[i].session)),
                "command %lld: another answer", (long long)nth);
    }
    if (rc)
        CHECK_MSG(err.text[0] && !strchr(err.text, '\n'), "command %lld: no text", (long long)nth);
    return rc;
}

/* Returns whether the fault was met. */
static bool run_device(struct run *u, int64_t nth)
{
    const size_t n_prompt = u->is->n_prompt;
    struct spw_engine *e = run_open_on(&u->b, u->dir, &u->o);
    struct spw_session *s = run_session(e), *fork = NULL;
    struct spw_error err = {0};
    run_lose_device(e, nth);
    struct spw_span spans[2] = {{s, u->ids, n_prompt, 1}};
    int rc = run_step(u, e, spans, 1, nth);
    if (!rc) {
        CHECK_MSG(spw_session_fork(&fork, s, &err) == 0, "%s", err.text);
        spans[0].n_tokens = n_prompt + 1;
        spans[1] = (struct spw_span){fork, u->ids, n_prompt + N_MORE, 1};
        rc = run_step(u, e, spans, 2, nth);
    }
    if (!rc) { /* back: cutting moves tiles too */
        spans[0].n_tokens = n_prompt / 2;
        rc = run_step(u, e, spans, 1, nth);
    }
    if (rc)
        CHECK(spw_sync(e, spans, 1, NULL, NULL, &err) == -EIO && err.text[0]);
    bool met = spw_lane_stream_sync(&e->lane, e->lane.compute) != 0;
    spw_session_close(fork);
    spw_session_close(s);
    spw_engine_close(e);
    run_restore_device();
    return met || rc;
}

static void fail_commands(struct run *u, int64_t stride)
{
    int64_t outstanding = spw_alloc_outstanding(), n = 0;
    oracle_rows(&u->s, u->ids, u->s.n_tokens, u->s.n_tokens); /* before the device fails */
    while (run_device(u, n)) {
        CHECK_MSG(spw_alloc_outstanding() == outstanding, "command %lld: blocks lost",
                  (long long)n);
        n += stride;
    }
    CHECK(n > 100);
    fprintf(stderr, "%s: commands 0, %lld, ... %lld of the device failed\n", u->dir,
            (long long)stride, (long long)n);
}

static int fail_event(struct spw_device *d, spw_event *out)
{
    (void)d;
    *out = NULL;
    return -EIO;
}

/* A device that fails while the engine opens is not memory that ran out. */
static void fail_open(const struct run *u)
{
    struct spw_backend b = u->b;
    struct spw_device_ops ops = *b.device_ops;
    struct spw_engine *e;
    struct spw_error err = {0};
    ops.event_open = fail_event;
    b.device_ops = &ops;
    CHECK(spw_engine_open_on(&e, &b, u->dir, &u->o, &err) == -EIO && !e);
    CHECK_MSG(strstr(err.text, strerror(EIO)) && !strstr(err.text, "out of memory"), "%s",
              err.text);
}

/* ---- generation ---- */

enum { N_NEW = 6 };

/* What was generated before the device failed is the beginning of what would have been. */
static void fail_generation(const struct run *u, int64_t stride)
{
    struct spw_request r = {
        .prompt = u->ids, .n_prompt = u->is->n_prompt, .max_new_tokens = N_NEW, .ignore_eos = true};
    struct spw_result expected, result;
    struct spw_error err = {0};
    struct spw_engine *e = run_open_on(&u->b, u->dir, &u->o);
    CHECK_MSG(!batch_run(e, NULL, &r, 1, &expected, NULL, &err), "%s", err.text);
    spw_engine_close(e);
    CHECK(expected.n_tokens == N_NEW && expected.finish == SPW_FINISH_LENGTH);
    bool seen[N_NEW + 1] = {false}, part = false;
    int rc = -EIO;
    for (int64_t n = 0; rc; n += stride) {
        e = run_open_on(&u->b, u->dir, &u->o);
        run_lose_device(e, n);
        rc = batch_run(e, NULL, &r, 1, &result, NULL, &err);
        CHECK_MSG(rc == 0 || rc == -EIO, "command %lld: %d", (long long)n, rc);
        CHECK(result.finish == (rc ? SPW_FINISH_FAILED : SPW_FINISH_LENGTH));
        CHECK(result.n_tokens <= N_NEW && (rc || result.n_tokens == N_NEW));
        CHECK(!result.n_tokens ||
              !memcmp(result.tokens, expected.tokens, result.n_tokens * sizeof *result.tokens));
        seen[result.n_tokens] = true;
        part = part || (result.n_tokens && result.n_tokens < N_NEW);
        spw_result_free(&result);
        spw_engine_close(e);
        run_restore_device();
    }
    CHECK(seen[0] && part && seen[N_NEW]);
    spw_result_free(&expected);
}

static void begin(struct run *u, const struct setting *setting)
{
    *u = (struct run){.is = setting, .b = run_backend(setting->reads_host_memory)};
    subject_open(
        &u->s, &setting->model, "faults", setting->n_prompt + 100,
        &(struct spw_options){.precision = setting->precision, .residual_window = SPW_NONE});
    u->dir = u->s.dir;
    u->ids = u->s.ids[0];
    u->o = u->s.o;
    u->o.sessions = 2;
    u->o.threads = 1;
    u->o.prefill_chunk = 100;
    run_tight_on(&u->b, u->dir, &u->o, 0);
    if (!setting->from_files)
        return;
    u->o.weight_checksums = sums_file;
    u->o.host_bytes = run_plan_on(&u->b, u->dir, &u->o).smallest_host_bytes;
}

/* Where KV is quantized when it is old, old KV streams; and experts move where they shall. */
static void check_plan(const struct run *u)
{
    struct spw_plan_info info;
    CHECK(spw_plan_query_on(&info, &u->b, u->dir, &u->o, NULL) == 0);
    CHECK(info.precision == u->is->precision);
    CHECK(info.precision == SPW_KV_EXACT || (info.device.kv_slots && info.host.kv));
    CHECK(!u->is->from_files ||
          (info.n_experts_resident < info.n_experts && info.n_experts_from_disk));
}

int main(int argc, char **argv)
{
    static struct run u;
    if (!run_is_there())
        return CHECK_SKIP;
    int64_t stride = check_stride(argc, argv, STRIDE);
    snprintf(sums_file, sizeof sums_file, "/tmp/spw_faults_sums_%d", (int)getpid());
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        begin(&u, &settings[i]);
        check_plan(&u);
        fail_open(&u);
        fail_allocations(&u);
        if (run_can_lose_device()) {
            fail_commands(&u, stride * u.is->stride_factor);
            if (u.is->precision == SPW_KV_EXACT) /* no other way through the same steps */
                fail_generation(&u, GENERATION_STRIDE);
        }
        subject_close(&u.s);
    }
    unlink(sums_file);
    return check_done();
}
