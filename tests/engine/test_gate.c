/* The gate: what it measures, what it lets pass, and what it keeps. */
#include "quant/residual.h"
#include "runtime/measure/calibration.h"
#include "runtime/measure/divergence.h"
#include "runtime/measure/gate.h"
#include "tests/source_config.h"
#include "tests/engine/copying_model.h"
#include "tests/engine/engine_run.h"

static char dir[64], file[96];

/* ---- the verdict ---- */

static void test_judge(void)
{
    const struct spw_gate_result good = {
        .n_positions = 1000, .kl_median = 0.01, .kl_p999 = 5, .same_sure = 0.98};
    struct spw_gate_result r = good;
    CHECK(spw_gate_judge(&r));
    r = good;
    r.kl_median = 0.011;
    CHECK(!spw_gate_judge(&r) && strstr(r.note, "median KL 0.011"));
    r = good;
    r.kl_p999 = 5.1;
    CHECK(!spw_gate_judge(&r) && strstr(r.note, "99.9 % KL 5.1"));
    r = good;
    r.same_sure = 0.979;
    CHECK(!spw_gate_judge(&r) && strstr(r.note, "97.90 %"));
    r = good;
    r.n_positions = 0;
    CHECK(!spw_gate_judge(&r) && strstr(r.note, "too short"));
    r = good;
    r.kl_median = NAN;
    CHECK(!spw_gate_judge(&r));
}

/* ---- the file ---- */

static struct spw_gate_record made_up(int i)
{
    struct spw_gate_record r = {.key = {.precision = SPW_KV_INT4,
                                        .compute = SPW_DTYPE_F32,
                                        .kv = SPW_DTYPE_BF16,
                                        .window = 128,
                                        .numeric_version = 3},
                                .result = {.precision = SPW_KV_INT4,
                                           .n_positions = 10,
                                           .n_sure = 5,
                                           .n_sharpened = 1,
                                           .kl_median = 0.1 * i,
                                           .kl_p999 = 1e9,
                                           .same_top = 0.5,
                                           .same_sure = 1,
                                           .bytes_per_token = 7,
                                           .exact_bytes_per_token = 16,
                                           .measured_at = 100 + i}};
    snprintf(r.key.model, sizeof r.key.model, "%064d", i);
    snprintf(r.key.text, sizeof r.key.text, "%016d", 5);
    return r;
}

static void test_file(void)
{
    static struct spw_gate_records in, out;
    struct spw_error err = {0};
    CHECK(spw_gate_records_read(&out, file, &err) == -ENOENT && out.n == 0);
    for (int i = 0; i < SPW_GATE_RECORDS; i++) {
        struct spw_gate_record r = made_up(i);
        spw_gate_records_put(&in, &r);
    }
    CHECK(in.n == SPW_GATE_RECORDS && spw_gate_records_write(&in, file, &err) == 0);
    CHECK(spw_gate_records_read(&out, file, &err) == 0 && out.n == SPW_GATE_RECORDS);
    CHECK(memcmp(out.items, in.items, sizeof in.items) == 0);
    struct spw_gate_record r = made_up(7), fresh = made_up(200), oldest = made_up(0);
    const struct spw_gate_record *found = spw_gate_records_find(&out, &r.key);
    CHECK(found && found->result.kl_median == r.result.kl_median);
    spw_gate_records_put(&out, &fresh);
    CHECK(spw_gate_records_find(&out, &fresh.key) && !spw_gate_records_find(&out, &oldest.key));
    /* Each part of the key counts. */
    struct spw_gate_key keys[7];
    for (int i = 0; i < 7; i++)
        keys[i] = r.key;
    keys[0].model[0]++;
    keys[1].text[0]++;
    keys[2].precision = SPW_KV_INT8;
    keys[3].compute = SPW_DTYPE_BF16;
    keys[4].kv = SPW_DTYPE_F16;
    keys[5].window = 0;
    keys[6].numeric_version++;
    for (int i = 0; i < 7; i++)
        CHECK_MSG(!spw_gate_records_find(&in, &keys[i]), "%d", i);
    unlink(file);
}

/* ---- the calibration ---- */

static void test_calibration(void)
{
    struct spw_error err = {0};
    struct spw_model_config config = {.vocab = 100};
    int32_t a[400], b[400];
    char before[17], after[17];
    struct spw_source *source;
    mkdir(dir, 0700);
    CHECK(spw_source_open(&source, dir, &err) == 0);
    CHECK(spw_calibration_fill(a, 400, source, &config, &err) == 0);
    CHECK(memcmp(a, a + 200, 200 * sizeof *a) == 0 && memcmp(a, a + 100, 100 * sizeof *a) != 0);
    uint64_t seen[2] = {0};
    for (int i = 0; i < 400; i++) {
        CHECK(a[i] >= 3 && a[i] < 100);
        seen[a[i] / 64] |= (uint64_t)1 << a[i] % 64;
    }
    CHECK(__builtin_popcountll(seen[0]) + __builtin_popcountll(seen[1]) > 70);
    CHECK(spw_calibration_fill(b, 400, source, &config, &err) == 0 && memcmp(a, b, sizeof a) == 0);
    CHECK(spw_calibration_name(before, source, &err) == 0 && strlen(before) == 16);
    char path[96];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "w");
    fputs("{}", f);
    fclose(f);
    CHECK(spw_calibration_name(after, source, &err) == 0 && strcmp(before, after) != 0);
    CHECK(spw_calibration_fill(b, 400, source, &config, &err) == -EINVAL);
    CHECK(strstr(err.text, "tokenizer.json"));
    spw_source_close(source);
    unlink(path);
    rmdir(dir);
}

/* The text as the bundled model's tokenizer cuts it: given twice, of many kinds of token. */
static void test_text(void)
{
    struct spw_error err = {0};
    struct spw_model_config config;
    static int32_t ids[SPW_GATE_TOKENS];
    enum { HALF = SPW_GATE_TOKENS / 2 };
    if (source_config(&config, "models/records", &err))
        return;
    struct spw_source *source;
    CHECK(spw_source_open(&source, "models/records", &err) == 0);
    CHECK(spw_calibration_fill(ids, SPW_GATE_TOKENS, source, &config, &err) == 0);
    CHECK(memcmp(ids, ids + HALF, HALF * sizeof *ids) == 0);
    struct spw_tokenizer *t = NULL;
    char *text = NULL;
    size_t bytes = 0;
    CHECK(spw_tokenizer_open_folder(&t, "models/records", &err) == 0);
    CHECK(spw_tokenizer_decode(t, ids, HALF, true, &text, &bytes) == 0);
    CHECK_MSG(text && strstr(text, "The mill at Harrow Ford"), "%s", text);
    spw_free(text);
    spw_tokenizer_close(t);
    spw_source_close(source);
    spw_config_free(&config);
}

/* ---- models ---- */

static const struct spw_options in_f32 = {.compute = SPW_DTYPE_F32, .threads = 2};
static const struct spw_gate_options nothing_kept = {0};

/* int8, int8:int4, int4 */
static void check_all(struct spw_gate_result r[SPW_GATE_FORMATS], const struct spw_options *o,
                      const struct spw_gate_options *g)
{
    struct spw_error err = {0};
    for (int i = 0; i < SPW_GATE_FORMATS; i++)
        r[i] = (struct spw_gate_result){.precision = (enum spw_kv_precision)(SPW_KV_INT8 + i)};
    int rc = spw_gate_check(r, SPW_GATE_FORMATS, dir, o, g, &err);
    CHECK_MSG(rc == 0, "%s", err.text);
}

static void show(const char *what, const struct spw_gate_result *r)
{
    fprintf(stderr, "%-22s %-9s median %.2g, 99.9 %% %.2g, same %.2f %%, if sure %.2f %%: %s\n",
            what, spw_kv_precision_name(r->precision), r->kl_median, r->kl_p999, 100 * r->same_top,
            100 * r->same_sure, r->passes ? "passes" : r->note);
}

/* Whether old KV in this format passes. */
static bool passes(const struct copying_model *m, enum spw_kv_precision precision, const char *what)
{
    struct spw_gate_result r = {.precision = precision};
    struct spw_error err = {0};
    copying_model_write(m, dir);
    CHECK_MSG(spw_gate_check(&r, 1, dir, &in_f32, &nothing_kept, &err) == 0, "%s", err.text);
    CHECK(r.n_positions == SPW_GATE_TOKENS - 3 * SPW_TILE_TOKENS);
    show(what, &r);
    tiny_model_remove(dir);
    return r.passes;
}

/* Int4 of each token and 64 channels, with a step and a zero: the plain format. f32 tile. */
static void quantize_plainly(float *tile)
{
    for (int half = 0; half < 2; half++, tile += SPW_TILE_TOKENS * COPYING_DIM)
        for (uint32_t j = 0; j < SPW_TILE_TOKENS; j++)
            for (uint32_t g = 0; g < COPYING_DIM; g += 64) {
                float low = INFINITY, high = -INFINITY, *at[64];
                for (uint32_t c = 0; c < 64; c++) {
                    at[c] = tile + (half ? spw_tile_v_index(COPYING_DIM, SPW_DTYPE_F32, j, g + c)
                                         : spw_tile_k_index(COPYING_DIM, SPW_DTYPE_F32, j, g + c));
                    low = fminf(low, *at[c]);
                    high = fmaxf(high, *at[c]);
                }
                float step = fmaxf((high - low) / 15, 1e-30f);
                for (uint32_t c = 0; c < 64; c++)
                    *at[c] = roundf((*at[c] - low) / step) * step + low;
            }
}

struct rows {
    float *logits;
    size_t first;
};

static void keep_row(void *context, size_t span, size_t position, const float *logits)
{
    struct rows *r = context;
    (void)span;
    memcpy(r->logits + (position - r->first) * COPYING_VOCAB, logits,
           COPYING_VOCAB * sizeof *logits);
}

/* The gate's measure of the plain format: an exact cache whose tiles are overwritten, before the
 * block that would read them quantized, by what int4 codes stand for. */
static void measure_plainly(struct spw_gate_result *out)
{
    static int32_t ids[SPW_GATE_TOKENS];
    struct spw_error err = {0};
    struct spw_engine *e[2];
    struct spw_session *s[2];
    struct rows rows[2];
    double *kl = calloc(SPW_GATE_TOKENS, sizeof *kl);
    struct spw_divergence d = {.kl = kl, .capacity = SPW_GATE_TOKENS};
    struct spw_divergence_summary sum;
    for (int i = 0; i < 2; i++) {
        e[i] = run_open(dir, &in_f32);
        s[i] = run_session(e[i]);
        rows[i].logits = calloc((size_t)SPW_TILE_TOKENS * COPYING_VOCAB, sizeof(float));
    }
    struct spw_source *source;
    CHECK(spw_source_open(&source, dir, &err) == 0);
    CHECK(spw_calibration_fill(ids, SPW_GATE_TOKENS, source, spw_engine_config(e[0]), &err) == 0);
    spw_source_close(source);
    uint64_t old = 1;
    for (uint64_t block = 0; block < SPW_GATE_TOKENS / SPW_TILE_TOKENS; block++) {
        uint64_t end = spw_residual_end(block, 1);
        for (; old < end; old++)
            for (uint32_t layer = 0; layer < 2; layer++)
                quantize_plainly(spw_kv_exact_tile(s[1]->seq.kv, layer, (uint32_t)old));
        for (int i = 0; i < 2; i++) {
            rows[i].first = block * SPW_TILE_TOKENS;
            struct spw_span span = {s[i], ids, rows[i].first + SPW_TILE_TOKENS, SPW_TILE_TOKENS};
            CHECK(spw_sync(e[i], &span, 1, keep_row, &rows[i], &err) == 0);
        }
        for (size_t j = 0; end > 1 && j < SPW_TILE_TOKENS; j++)
            spw_divergence_add(&d, rows[0].logits + j * COPYING_VOCAB,
                               rows[1].logits + j * COPYING_VOCAB, COPYING_VOCAB);
    }
    spw_divergence_summarize(&d, &sum);
    *out = (struct spw_gate_result){.n_positions = sum.n,
                                    .n_sure = sum.n_decided,
                                    .kl_median = sum.kl_median,
                                    .kl_p999 = sum.kl_p999,
                                    .same_top = sum.same_top,
                                    .same_sure = sum.same_decided};
    for (int i = 0; i < 2; i++) {
        spw_session_close(s[i]);
        spw_engine_close(e[i]);
        free(rows[i].logits);
    }
    free(kl);
}

/* Huge constants in keys, as in Qwen2.5: the plain format wrecks the model, this one does not. */
static void test_constant_keys(void)
{
    const struct copying_model m = {.slow = 300, .seed = 5};
    struct spw_gate_result plain;
    CHECK(passes(&m, SPW_KV_INT4, "constant keys"));
    copying_model_write(&m, dir);
    measure_plainly(&plain);
    plain.passes = spw_gate_judge(&plain);
    show("the same, plain int4", &plain);
    CHECK(plain.n_positions == SPW_GATE_TOKENS - 3 * SPW_TILE_TOKENS && plain.n_sure > 1000);
    CHECK(!plain.passes && plain.kl_median > 0.1 && plain.same_sure < 0.95);
    tiny_model_remove(dir);
}

/* Constants in pairs that turn within a tile, which no mean takes out: int4 is refused; larger by
 * far, int8 too. A flat distribution hides neither. */
static void test_refused(void)
{
    const struct copying_model turning = {.quick = 200, .seed = 5};
    const struct copying_model far = {.quick = 20000, .seed = 5};
    const struct copying_model flat = {.quick = 200, .head = 0.001f, .seed = 5};
    CHECK(passes(&turning, SPW_KV_INT8, "turning keys"));
    CHECK(!passes(&turning, SPW_KV_INT4, "turning keys"));
    CHECK(!passes(&far, SPW_KV_INT8, "far turning keys"));
    CHECK(passes(&flat, SPW_KV_INT8, "turning keys, flat"));
    CHECK(!passes(&flat, SPW_KV_INT4, "turning keys, flat"));
}

/* Extra logits (attention sinks), which are part of what is measured. Old keys of this model are
 * good enough in int4 as long as they are compared with each other. Where they are compared with an
 * extra logit of about the same size, the answers depend on what int4 loses. */
static void test_sinks(void)
{
    const struct copying_model constant = {.slow = 300, .sinks = true, .sink = 10, .seed = 5};
    const struct copying_model without = {.quick = 20, .sinks = true, .sink = -50, .seed = 5};
    const struct copying_model against = {.quick = 20, .sinks = true, .sink = 15, .seed = 5};
    CHECK(passes(&constant, SPW_KV_INT4, "sinks, constant keys"));
    CHECK(passes(&without, SPW_KV_INT4, "sinks of no weight"));
    CHECK(!passes(&against, SPW_KV_INT4, "sinks"));
    CHECK(passes(&against, SPW_KV_INT8, "sinks"));
}

/* ---- known ---- */

/* A short context, so that a check takes no time. */
static void write_short(uint64_t positions)
{
    struct tiny_model m = tiny_models[0];
    m.positions = (uint32_t)positions;
    tiny_model_write(&m, dir);
}

static void turn_first_weight(void)
{
    char path[96];
    uint64_t header = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "r+b");
    CHECK(fread(&header, sizeof header, 1, f) == 1);
    fseek(f, (long)(sizeof header + header), SEEK_SET);
    int byte = fgetc(f) ^ 1;
    fseek(f, -1, SEEK_CUR);
    fputc(byte, f);
    fclose(f);
}

static bool known(const struct spw_options *o, enum spw_probe_mode mode)
{
    struct spw_gate_result r[SPW_GATE_FORMATS];
    struct spw_gate_options g = {file, mode};
    check_all(r, o, &g);
    CHECK(r[0].known == r[1].known && r[1].known == r[2].known);
    return r[0].known;
}

static void test_known(void)
{
    struct spw_error err = {0};
    struct spw_options none = in_f32, half = in_f32;
    struct spw_gate_result r = {.precision = SPW_KV_INT8}, again = r;
    struct spw_gate_options g = {file, SPW_PROBE_NEVER};
    none.residual_window = SPW_NONE;
    half.compute = SPW_DTYPE_BF16;
    write_short(512);
    CHECK(spw_gate_check(&r, 1, dir, &in_f32, &g, &err) == -ENODATA);
    CHECK_MSG(strstr(err.text, "spillway check-kv"), "%s", err.text);
    CHECK(!known(&in_f32, SPW_PROBE_UNKNOWN) && known(&in_f32, SPW_PROBE_UNKNOWN));
    CHECK(spw_gate_check(&r, 1, dir, &in_f32, &g, &err) == 0 && r.known && r.n_positions == 128);
    CHECK(!known(&in_f32, SPW_PROBE_AGAIN));
    CHECK(spw_gate_check(&again, 1, dir, &in_f32, &g, &err) == 0 &&
          again.kl_median == r.kl_median && again.kl_p999 == r.kl_p999);
    CHECK(!known(&none, SPW_PROBE_UNKNOWN) && known(&none, SPW_PROBE_UNKNOWN));
    CHECK(spw_gate_check(&r, 1, dir, &none, &g, &err) == 0 && r.n_positions == 256);
    CHECK(!known(&half, SPW_PROBE_UNKNOWN) && known(&in_f32, SPW_PROBE_UNKNOWN));
    turn_first_weight(); /* another model */
    CHECK(!known(&in_f32, SPW_PROBE_UNKNOWN));
    turn_first_weight();
    CHECK(known(&in_f32, SPW_PROBE_UNKNOWN));
    CHECK(truncate(file, 100) == 0); /* a broken file is none */
    CHECK(!known(&in_f32, SPW_PROBE_UNKNOWN) && known(&in_f32, SPW_PROBE_UNKNOWN));
    unlink(file);
    write_short(383); /* nothing reads a quantized tile */
    g.mode = SPW_PROBE_UNKNOWN;
    CHECK(spw_gate_check(&r, 1, dir, &in_f32, &g, &err) == 0 && !r.passes && r.n_positions == 0);
    unlink(file);
    r.precision = SPW_KV_EXACT;
    CHECK(spw_gate_check(&r, 1, dir, &in_f32, &g, &err) == -EINVAL);
    tiny_model_remove(dir);
}

/* A file that cannot be written is said, and the result is there. */
static void test_not_kept(void)
{
    struct spw_error err = {0};
    struct copying_model m = {.seed = 5};
    struct spw_gate_result r = {.precision = SPW_KV_INT8};
    struct spw_gate_options g = {"/dev/null/checks.json", SPW_PROBE_UNKNOWN};
    copying_model_write(&m, dir);
    CHECK(spw_gate_check(&r, 1, dir, &in_f32, &g, &err) == 0 && r.passes && !r.known);
    CHECK_MSG(strstr(r.unstored, "checked again") && !*r.note, "%s", r.unstored);
    tiny_model_remove(dir);
}

/* Small budgets change no bit of a result; smaller ones are refused with what would do. */
static void test_budgets(void)
{
    struct spw_error err = {0};
    struct spw_gate_result wide[SPW_GATE_FORMATS], tight[SPW_GATE_FORMATS];
    struct spw_options o = in_f32;
    struct spw_plan_info info;
    write_short(1024);
    check_all(wide, &o, &nothing_kept);
    o.context = 1024;
    o.precision = SPW_KV_INT8;
    CHECK(spw_plan_query(&info, dir, &o, &err) == 0);
    o.device_bytes = 2 * info.smallest_device_bytes + (256 << 10);
    o.host_bytes = 64 << 20;
    check_all(tight, &o, &nothing_kept);
    for (int i = 0; i < SPW_GATE_FORMATS; i++)
        CHECK_MSG(tight[i].kl_median == wide[i].kl_median && tight[i].kl_p999 == wide[i].kl_p999 &&
                      tight[i].n_positions == 640,
                  "%d: %g %g, not %g %g", i, tight[i].kl_median, tight[i].kl_p999,
                  wide[i].kl_median, wide[i].kl_p999);
    o.device_bytes = info.smallest_device_bytes;
    struct spw_gate_result r = {.precision = SPW_KV_INT8};
    CHECK(spw_gate_check(&r, 1, dir, &o, &nothing_kept, &err) == -ENOMEM);
    CHECK_MSG(strstr(err.text, "device memory"), "%s", err.text);
    tiny_model_remove(dir);
}

/* Every 5th allocation in turn fails: an error, and nothing is lost. */
static void test_faults(void)
{
    write_short(384 + 8);
    int rc = -ENOMEM, n = 0;
    for (; rc && n < 10000; n += 5) {
        struct spw_error err = {0};
        struct spw_gate_result r = {.precision = SPW_KV_INT4};
        spw_alloc_fail_nth(n);
        rc = spw_gate_check(&r, 1, dir, &in_f32, &nothing_kept, &err);
        spw_alloc_fail_nth(-1);
        CHECK_MSG(rc == 0 || *err.text, "%d: %d", n, rc);
        CHECK_MSG(spw_alloc_outstanding() == 0, "%d: %lld", n, (long long)spw_alloc_outstanding());
    }
    CHECK_MSG(rc == 0 && n > 50, "%d", n);
    tiny_model_remove(dir);
}

int main(void)
{
    snprintf(dir, sizeof dir, "/tmp/spw_gate_%d", (int)getpid());
    snprintf(file, sizeof file, "/tmp/spw_gate_%d.json", (int)getpid());
    test_judge();
    test_file();
    test_calibration();
    test_text();
    test_known();
    test_not_kept();
    test_budgets();
    test_faults();
    if (!RUN_UNDER_TSAN)
        test_constant_keys();
    if (!RUN_UNDER_TSAN && !RUN_UNDER_ASAN) { /* the same code on other numbers, for a minute */
        test_refused();
        test_sinks();
    }
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
