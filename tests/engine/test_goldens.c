/* Logits against transformers (fp32, eager attention) on tiny models of every family, and against
 * an independent reference on a really trained one. With arguments: on those folders and no others
 * (tests/oracle/random_models.py makes some). Relative to the largest logit of the row: two
 * float32 implementations that add in other orders differ by a few ulp of the terms, not of the
 * sum. */
#include "model/quantize.h"
#include "tests/engine/engine_run.h"

#include <dirent.h>
#include <sys/stat.h>

#define TOLERANCE 1e-5

static double compare(const float *got, const float *expected, uint32_t vocab)
{
    double largest = 0, worst = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        largest = fmax(largest, fabs((double)expected[i]));
        worst = fmax(worst, fabs((double)got[i] - (double)expected[i]));
        if (!isfinite(got[i]))
            return INFINITY;
    }
    return worst / largest;
}

/* ---- the MTP layer ---- */

struct mtp_seen {
    const float *expected; /* of one row, [vocab] */
    uint32_t vocab;
    double worst;
};

static int see_mtp(void *context, uint32_t span, uint64_t position, const float *logits)
{
    struct mtp_seen *seen = context;
    (void)span;
    (void)position;
    seen->worst = fmax(seen->worst, compare(logits, seen->expected, seen->vocab));
    seen->expected += seen->vocab;
    return 0;
}

/* At each position, then for drafts after it, which are known: in one session that goes on, and is
 * cut back to before the drafts each time. model: the folder, or a file. */
static void run_mtp(const char *dir, const char *model, double tolerance, const json_t *golden,
                    const int32_t *ids)
{
    const json_t *mtp = json_object_get(golden, "mtp");
    const size_t chain = (size_t)json_integer_value(json_object_get(mtp, "chain"));
    char path[1024];
    struct spw_error err = {0};
    struct spw_engine *e = NULL;
    struct spw_session *s = NULL;
    const struct spw_options o = {.backend = TEST_BACKEND,
                                  .compute = SPW_DTYPE_F32,
                                  .context = 200,
                                  .drafts = SPW_DRAFTS_MTP,
                                  .threads = 2};
    size_t n;
    int32_t *positions = model_ids(json_object_get(mtp, "positions"), &n);
    CHECK_MSG(!spw_engine_open(&e, model, &o, &err), "%s: %s", model, err.text);
    struct mtp_seen seen = {.vocab = e ? spw_engine_config(e)->vocab : 0};
    snprintf(path, sizeof path, "%s/golden_mtp_logits.f32", dir);
    float *expected = model_floats(path, n * chain * seen.vocab);
    seen.expected = expected;
    CHECK(e && !spw_session_open(&s, e, &err));
    for (size_t i = 0; s && i < n; i++) {
        const size_t at = (size_t)positions[i];
        const struct spw_span held = {s, ids, at, 1};
        CHECK_MSG(!spw_sync(e, &held, 1, NULL, NULL, &err), "%s", err.text);
        CHECK(spw_session_can_draft(s, at + 1));
        for (size_t k = 0; k < chain; k++) {
            const struct spw_span draft = {s, ids, at + k + 1, 1};
            CHECK(!spw_engine_draft(e, &draft, 1, !k, see_mtp, &seen));
        }
    }
    CHECK_MSG(seen.worst <= tolerance, "%s: MTP: %.3g relative", model, seen.worst);
    fprintf(stderr, "%-44s %.2e\n", "  its MTP layer", seen.worst);
    spw_session_close(s);
    spw_engine_close(e);
    free(positions);
    free(expected);
}

/* The layer in a file of its own beside that of the model. */
static void run_mtp_beside(const char *dir, const json_t *golden, const int32_t *ids)
{
    char folder[64], model[128], file[128];
    snprintf(folder, sizeof folder, "/tmp/spw_goldens_%d", (int)getpid());
    snprintf(model, sizeof model, "%s/model.gguf", folder);
    snprintf(file, sizeof file, "%s/mtp-model.gguf", folder);
    CHECK(!mkdir(folder, 0700));
    CHECK(gguf_from_folder(
        dir, model, &(struct gguf_way){.matrices = SPW_DTYPE_F32, .mtp = GGUF_MTP_LEFT_OUT}));
    CHECK(gguf_from_folder(
        dir, file, &(struct gguf_way){.matrices = SPW_DTYPE_F32, .mtp = GGUF_MTP_WITH_COPIES}));
    run_mtp(dir, model, TOLERANCE, golden, ids);
    CHECK(!unlink(model) && !unlink(file) && !rmdir(folder));
}

/* The folder; a file of the same numbers, as the common converter writes it, for some families; and
 * a quantized file, whose tensors have their places and names by our own writer. */
static void run_mtp_forms(const char *dir, const json_t *golden, const int32_t *ids)
{
    enum {
        ROUNDED_TO = 20
    }; /* a 20th of the largest logit: other tensors in a place give all of it */
    char file[128];
    struct spw_error err = {0};
    snprintf(file, sizeof file, "/tmp/spw_goldens_%d.gguf", (int)getpid());
    run_mtp(dir, dir, TOLERANCE, golden, ids);
    if (strstr(dir, "/qwen3")) {
        CHECK(gguf_from_folder(dir, file, &(struct gguf_way){.matrices = SPW_DTYPE_F32}));
        run_mtp(dir, file, TOLERANCE, golden, ids);
        run_mtp_beside(dir, golden, ids);
    }
    const struct spw_quantize_options o = {.type = SPW_DTYPE_Q8_0, .to = fopen(file, "wb")};
    CHECK_MSG(!spw_quantize(dir, &o, &err), "%s", err.text);
    CHECK(!fclose(o.to));
    run_mtp(dir, file, 1.0 / ROUNDED_TO, golden, ids);
    unlink(file);
}

static void run_case(const char *dir)
{
    char path[1024];
    json_error_t json_err;
    uint32_t vocab = 0;
    size_t n, n_positions;
    snprintf(path, sizeof path, "%s/golden.json", dir);
    json_t *golden = json_load_file(path, 0, &json_err);
    CHECK_MSG(golden, "%s: %s", path, json_err.text);
    if (!golden)
        return;
    int32_t *ids = model_ids(json_object_get(golden, "ids"), &n);
    int32_t *positions = model_ids(json_object_get(golden, "positions"), &n_positions);
    struct spw_options o = {.backend = TEST_BACKEND,
                            .compute = SPW_DTYPE_F32,
                            .context = n,
                            .past_positions = true,
                            .threads = 2};
    float *logits = model_all_logits(dir, &o, ids, n, &vocab);
    if (logits) {
        snprintf(path, sizeof path, "%s/golden_logits.f32", dir);
        float *expected = model_floats(path, n_positions * vocab);
        double worst = 0, logs = 0;
        for (size_t i = 0; i < n_positions; i++) {
            const double its =
                compare(logits + (size_t)positions[i] * vocab, expected + i * vocab, vocab);
            worst = fmax(worst, its);
            logs += log(fmax(its, 1e-12));
        }
        const json_t *own = json_object_get(golden, "tolerance");
        CHECK_MSG(worst <= (own ? json_real_value(own) : TOLERANCE), "%s: %.3g relative", dir,
                  worst);
        /* the largest of a row, and the geometric mean of rows */
        fprintf(stderr, "%-44s %.2e %.2e\n", dir, worst, exp(logs / (double)n_positions));
        free(expected);
    }
    if (json_object_get(golden, "mtp"))
        run_mtp_forms(dir, golden, ids);
    free(logits);
    free(ids);
    free(positions);
    json_decref(golden);
}

/* On the emulated GPU a run that is not a full one leaves out half of the models, drawn. */
static bool leaves_out(uint64_t *seed)
{
#ifdef SPW_SIMT_EMULATOR
    return !check_full() && check_random(seed) % 2;
#else
    (void)seed;
    return false;
#endif
}

static void run_families(void)
{
    DIR *d = opendir("tests/golden");
    uint64_t seed = check_seed();
    int n = 0;
    CHECK(d != NULL);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "tests/golden/%s/golden_logits.f32", entry->d_name);
        if (access(path, R_OK))
            continue;
        n++;
        if (leaves_out(&seed))
            continue;
        snprintf(path, sizeof path, "tests/golden/%s", entry->d_name);
        run_case(path);
    }
    if (d)
        closedir(d);
    CHECK_MSG(n >= 25, "%d cases", n);
}

/* Greedy: one token after another from the kept session. */
static void run_greedy(const char *dir, const int32_t *expected, size_t n_prompt, size_t n)
{
    struct spw_error err = {0};
    struct spw_engine *e = NULL;
    struct spw_session *s = NULL;
    struct spw_options o = {.backend = TEST_BACKEND, .compute = SPW_DTYPE_F32, .threads = 2};
    int32_t ids[512];
    CHECK_MSG(spw_engine_open(&e, dir, &o, &err) == 0, "%s", err.text);
    CHECK(spw_session_open(&s, e, &err) == 0);
    memcpy(ids, expected, n_prompt * sizeof *ids);
    for (size_t i = n_prompt; i < n; i++) {
        struct spw_span span = {s, ids, i, 1};
        CHECK_MSG(spw_sync(e, &span, 1, NULL, NULL, &err) == 0, "%s", err.text);
        ids[i] = model_argmax(spw_session_logits(s), spw_engine_config(e)->vocab);
        CHECK(i == n_prompt || spw_session_reused(s) == i - 1);
    }
    CHECK(memcmp(ids, expected, n * sizeof *ids) == 0);
    spw_session_close(s);
    spw_engine_close(e);
}

static void run_stories(const char *data)
{
    char dir[1024], path[1200];
    snprintf(dir, sizeof dir, "%s/models/stories260K", data);
    snprintf(path, sizeof path, "%s/golden.json", dir);
    json_t *golden = json_load_file(path, 0, NULL), *c;
    size_t i;
    if (!golden) {
        fprintf(stderr, "no stories260K here: that part is skipped\n");
        return;
    }
    json_array_foreach(json_object_get(golden, "cases"), i, c)
    {
        size_t n, n_greedy;
        uint32_t vocab = 0;
        int32_t *ids = model_ids(json_object_get(c, "ids"), &n);
        int32_t *greedy = model_ids(json_object_get(c, "greedy_ids"), &n_greedy);
        struct spw_options o = {.backend = TEST_BACKEND, .compute = SPW_DTYPE_F32, .context = 512};
        float *logits = model_all_logits(dir, &o, ids, n, &vocab);
        snprintf(path, sizeof path, "%s/%s", dir,
                 json_string_value(json_object_get(c, "logits_file")));
        float *expected = model_floats(path, n * vocab);
        for (size_t k = 0; logits && k < n; k++) {
            double worst = compare(logits + k * vocab, expected + k * vocab, vocab);
            CHECK_MSG(worst <= TOLERANCE, "stories case %zu position %zu: %.3g", i, k, worst);
        }
        run_greedy(dir, greedy, n, n_greedy);
        free(logits);
        free(expected);
        free(ids);
        free(greedy);
    }
    json_decref(golden);
}

int main(int argc, char **argv)
{
    const char *data = getenv("SPW_DATA");
    if (!run_is_there())
        return CHECK_SKIP;
    for (int i = 1; i < argc; i++)
        run_case(argv[i]);
    if (argc > 1)
        return check_done();
    run_families();
    if (data)
        run_stories(data);
    return check_done();
}
