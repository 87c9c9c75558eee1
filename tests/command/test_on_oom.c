/* Fallbacks for a budget that is too small for the context, decided before anything is loaded: each
 * choice of --on-oom, with and without a gate, at budgets between the needs of exact KV and of
 * quantized KV. A run whose old KV lost precision has the same bits as a run that asks for that
 * precision; every fallback is reported. */
#include "tests/engine/engine_run.h"

enum { N_TOKENS = 1500, CONTEXT = 1536 };

struct gate {
    enum spw_kv_precision most; /* from this precision on the gate fails; 0: it never fails */
    int n_asked;
    enum spw_kv_precision asked[8];
};

static const char *passes(void *context, enum spw_kv_precision precision)
{
    struct gate *g = context;
    if (g->n_asked < 8)
        g->asked[g->n_asked] = precision;
    g->n_asked++;
    return !g->most || precision < g->most ? NULL : "it is too coarse";
}

/* The least host memory with which the smallest device memory holds the context at this
 * precision. */
static void smallest(const char *dir, const struct spw_options *base,
                     enum spw_kv_precision precision, struct spw_plan_info *out)
{
    struct spw_options o = *base;
    struct spw_error err = {0};
    o.precision = precision;
    CHECK_MSG(!spw_plan_query(out, dir, &o, &err), "%s", err.text);
}

static void logits_of(const char *dir, const struct spw_options *o, const int32_t *ids,
                      uint32_t vocab, float *out)
{
    struct spw_engine *e = run_open(dir, o);
    struct spw_session *s = run_session(e);
    const float *logits = run_to(s, e, ids, N_TOKENS);
    if (logits)
        memcpy(out, logits, vocab * sizeof *logits);
    run_check_peaks(e, o, "on oom");
    spw_session_close(s);
    spw_engine_close(e);
}

/* A fallback before the first token: the logits are exact up to the token that it names, and differ
 * from there on. */
static void check_lossy_from(const char *dir, const struct spw_options *o, const int32_t *ids,
                             uint32_t vocab, enum spw_kv_precision precision, uint64_t from)
{
    struct spw_options exact = {.backend = TEST_BACKEND, .context = CONTEXT, .threads = 1};
    struct spw_options lossy = exact;
    lossy.residual_window = o->residual_window;
    lossy.precision = precision;
    struct spw_engine *a = run_open(dir, &exact), *b = run_open(dir, &lossy);
    struct spw_session *s = run_session(a), *t = run_session(b);
    CHECK_MSG(from > 0 && from < N_TOKENS, "%llu", (unsigned long long)from);
    for (uint64_t n = from; n <= from + 1 && n < N_TOKENS; n++)
        CHECK_MSG(run_same(run_to(s, a, ids, n), run_to(t, b, ids, n), vocab) == (n == from),
                  "%llu tokens, lossy from %llu", (unsigned long long)n, (unsigned long long)from);
    spw_session_close(t);
    spw_session_close(s);
    spw_engine_close(b);
    spw_engine_close(a);
}

/* At this budget the engine takes `expected`, reports it once, and computes the results of that
 * precision. */
static void check_taken(const char *dir, struct spw_options *o, const int32_t *ids, uint32_t vocab,
                        enum spw_kv_precision expected, float plain[][128])
{
    struct spw_fallback told = {0};
    float got[128];
    struct spw_engine *e = run_open(dir, o);
    CHECK_MSG(spw_engine_plan(e)->precision == expected, "%s, not %s",
              spw_kv_precision_name(spw_engine_plan(e)->precision),
              spw_kv_precision_name(expected));
    const int n = run_fallbacks(e, &told);
    CHECK(n == (expected != SPW_KV_EXACT) && e->events.n_fallbacks == (uint64_t)n);
    if (n) {
        const char *name = spw_kv_precision_name(expected);
        CHECK(!strncmp(spw_fallback_name(told.kind), name, strlen(name)));
        CHECK(told.position == 0 && told.bytes_freed > 0 && told.bytes_asked > told.bytes_freed &&
              !told.n_recomputed);
        CHECK(!strcmp(told.failed, "device budget"));
    }
    spw_engine_close(e);
    logits_of(dir, o, ids, vocab, got);
    CHECK(run_same(got, plain[expected], vocab));
    if (n)
        check_lossy_from(dir, o, ids, vocab, expected, told.lossy_from);
}

static void check_refused(const char *dir, const struct spw_options *o, const char *says)
{
    struct spw_engine *e = NULL;
    struct spw_error err = {0};
    int rc = spw_engine_open(&e, dir, o, &err);
    CHECK_MSG(rc == -ENOMEM && strstr(err.text, says) && !strchr(err.text, '\n'), "%d: %s", rc,
              err.text);
    if (!rc)
        spw_engine_close(e);
}

/* Under smaller and smaller budgets: a lower precision is advised only if it needs less memory;
 * texts show sizes with units. */
static void check_hints(const char *dir, const struct spw_options *given)
{
    static const char hint[] = "with old KV as int4: options.device_bytes ";
    struct spw_options o = *given;
    struct spw_plan_info exact;
    struct spw_error err;
    for (int i = 0; i < 24; i++, o.host_bytes = o.host_bytes * 3 / 4) {
        if (!spw_plan_query(&exact, dir, &o, &err))
            continue;
        const char *at = strstr(err.text, hint), *unit;
        if (!at)
            continue;
        double mib = strtod(at + strlen(hint), (char **)&unit);
        mib /= *unit == 'K' ? 1024 : 1;
        CHECK_MSG(*unit == 'K' || *unit == 'M', "%s", err.text);
        CHECK_MSG(mib * 1048576 <= (double)exact.smallest_device_bytes + 16384, "%s", err.text);
    }
}

static void run_model(const struct tiny_model *m)
{
    char dir[128];
    int32_t ids[N_TOKENS];
    float plain[4][128];
    struct gate gate = {0};
    struct spw_plan_info exact, int8, int4;
    struct spw_options o = {
        .backend = TEST_BACKEND, .context = CONTEXT, .threads = 1, .residual_window = 128};
    run_folder(dir, m, "on_oom");
    run_ids(ids, N_TOKENS, m->vocab, m->seed);
    for (int p = SPW_KV_EXACT; p <= SPW_KV_INT4; p++) {
        o.precision = (enum spw_kv_precision)p;
        logits_of(dir, &o, ids, m->vocab, plain[p]);
    }
    CHECK(!run_same(plain[SPW_KV_EXACT], plain[SPW_KV_INT8], m->vocab) &&
          !run_same(plain[SPW_KV_INT8], plain[SPW_KV_INT4], m->vocab));
    /* All KV on the device: the precisions need very different amounts of it. */
    o.on_oom = SPW_ON_OOM_QUANTIZE;
    smallest(dir, &o, SPW_KV_EXACT, &exact);
    smallest(dir, &o, SPW_KV_INT8, &int8);
    smallest(dir, &o, SPW_KV_INT4, &int4);
    CHECK(int4.smallest_device_bytes < int8.smallest_device_bytes &&
          int8.smallest_device_bytes < exact.smallest_device_bytes);
    o.precision = SPW_KV_EXACT;
    o.gate_context = &gate;
    o.gate = passes;
    o.device_bytes =
        exact.smallest_device_bytes; /* no fallback is needed, and the gate is not asked */
    check_taken(dir, &o, ids, m->vocab, SPW_KV_EXACT, plain);
    CHECK(!gate.n_asked);
    o.device_bytes = exact.smallest_device_bytes - 4096;
    check_taken(dir, &o, ids, m->vocab, SPW_KV_INT8, plain);
    CHECK(gate.n_asked == 2 && gate.asked[0] == SPW_KV_INT8 && gate.asked[1] == SPW_KV_INT8);
    o.device_bytes = int4.smallest_device_bytes;
    check_taken(dir, &o, ids, m->vocab, SPW_KV_INT4, plain);
    CHECK(gate.asked[2] ==
          SPW_KV_INT4); /* the gate is not asked for a precision that does not fit */
    o.device_bytes -= 4096;
    check_refused(dir, &o, "with old KV as int4: options.device_bytes");
    check_hints(dir, &o);
    gate.most = SPW_KV_INT4;
    o.device_bytes += 4096;
    check_refused(dir, &o, " (would fit with old KV as int4; it is too coarse)");
    o.gate = NULL;
    check_refused(dir, &o, "options.device_bytes");
    o.gate = passes;
    gate.most = 0;
    o.kv = SPW_DTYPE_F32; /* a named type never changes */
    check_refused(dir, &o, "options.device_bytes");
    o.kv = SPW_DTYPE_AUTO;
    o.precision = SPW_KV_INT8;
    check_refused(dir, &o, "options.device_bytes");
    o.precision = SPW_KV_EXACT;
    o.on_oom = SPW_ON_OOM_FAIL;
    check_refused(dir, &o, "options.device_bytes");
    o.on_oom = 0; /* the host has room: no bit changes, and the gate is not asked */
    gate.n_asked = 0;
    check_taken(dir, &o, ids, m->vocab, SPW_KV_EXACT, plain);
    o.on_oom = SPW_ON_OOM_SPILL;
    check_taken(dir, &o, ids, m->vocab, SPW_KV_EXACT, plain);
    CHECK(!gate.n_asked);
    tiny_model_remove(dir);
}

/* Neither device nor host hold exact KV. */
static void run_both_tiers(const struct tiny_model *m)
{
    char dir[128];
    struct gate gate = {0};
    struct spw_plan_info info, quantized;
    struct spw_error err = {0};
    struct spw_options o = {.backend = TEST_BACKEND,
                            .context = CONTEXT,
                            .threads = 1,
                            .residual_window = 128,
                            .host_bytes = 1 << 20,
                            .gate = passes,
                            .gate_context = &gate};
    run_folder(dir, m, "on_oom_tiers");
    CHECK_MSG(!spw_plan_query(&info, dir, &o, &err), "%s", err.text);
    o.device_bytes = info.smallest_device_bytes - 4096;
    CHECK_MSG(!spw_plan_query(&quantized, dir, &o, &err), "%s", err.text);
    CHECK(quantized.precision != SPW_KV_EXACT && quantized.fallback.failed && gate.n_asked == 1);
    CHECK(quantized.smallest_device_bytes <= o.device_bytes);
    o.on_oom = SPW_ON_OOM_SPILL;
    CHECK(spw_plan_query(&quantized, dir, &o, &err) == -ENOMEM && !quantized.fallback.failed);
    CHECK(quantized.smallest_device_bytes == info.smallest_device_bytes);
    /* In a context without old tiles a lower precision gains nothing. */
    o.on_oom = 0;
    o.residual_window = CONTEXT;
    o.device_bytes = 4096;
    spw_error_clear(&err);
    CHECK(spw_plan_query(&quantized, dir, &o, &err) == -ENOMEM && !strstr(err.text, "old KV"));
    tiny_model_remove(dir);
}

int main(void)
{
    static const struct tiny_model models[] = {
        {TINY("llama", 3, 64, 96, 4, 2, 32, 67, 2048), .untied = true, .seed = 161},
        {TINY("gemma3_text", 4, 64, 96, 4, 2, 32, 67, 2048),
         .more =
             ",\"sliding_window\":150,\"sliding_window_pattern\":2,\"query_pre_attn_scalar\":16,"
             "\"hidden_activation\":\"gelu_pytorch_tanh\"",
         .qk_norm = true, .sandwich = true, .stored = TINY_BF16, .seed = 162},
    };
    if (!run_is_there())
        return CHECK_SKIP;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        run_model(&models[i]);
    run_both_tiers(&models[0]);
    return check_done();
}
