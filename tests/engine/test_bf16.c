/* The bf16 mode: its greedy tokens are those of transformers in bf16 wherever the margin exceeds
 * the rounding, and its loss over 2,000 tokens of text is the f32 mode's within 0.5 %.
 *
 * What "exceeds the rounding" means: golden.json records how far transformers' own bf16 logits lie
 * from its f32 ones, d. Two computations that each lie within d of the same f32 logits can order
 * two tokens differently only if these are within 4 d in either (each of the two tokens moves by up
 * to d in each). So the tokens must agree where the margin is above 4 d, and our own distance from
 * f32 must not exceed d, which is checked first. */
#include "tests/engine/model_run.h"

#include <dirent.h>

#define LOSS_TOLERANCE 0.005
enum { WINDOW = 512, N_WINDOWS = 4 };

static double largest_difference(const float *a, const float *b, uint32_t n)
{
    double most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

/* logits: of all positions; those of a source have no argmax. */
static void check_tokens(const char *dir, const float *logits, size_t n_all, uint32_t vocab,
                         const json_t *bf16)
{
    const json_t *argmax = json_object_get(bf16, "argmax"),
                 *margin = json_object_get(bf16, "margin");
    double d = json_real_value(json_object_get(bf16, "max_abs_difference_to_f32"));
    size_t n = json_array_size(argmax), clear = 0;
    logits += (n_all - n) * vocab;
    for (size_t i = 0; i < n; i++) {
        if (json_number_value(json_array_get(margin, i)) <= 4 * d)
            continue;
        clear++;
        CHECK_MSG(model_argmax(logits + i * vocab, vocab) ==
                      json_integer_value(json_array_get(argmax, i)),
                  "%s: position %zu", dir, i);
    }
    CHECK_MSG(clear > n / 3, "%s: only %zu of %zu positions are clear", dir, clear, n);
    fprintf(stderr, "%-44s %zu of %zu positions clear\n", dir, clear, n);
}

static void run_case(const char *dir, const json_t *golden)
{
    char path[1024];
    uint32_t vocab = 0;
    size_t n, n_positions;
    const json_t *bf16 = json_object_get(golden, "bf16");
    int32_t *ids = model_ids(json_object_get(golden, "ids"), &n);
    int32_t *positions = model_ids(json_object_get(golden, "positions"), &n_positions);
    struct spw_options o = {.backend = TEST_BACKEND,
                            .compute = SPW_DTYPE_BF16,
                            .context = n,
                            .past_positions = true,
                            .threads = 2};
    float *logits = model_all_logits(dir, &o, ids, n, &vocab);
    if (logits) {
        double d = json_real_value(json_object_get(bf16, "max_abs_difference_to_f32")), most = 0;
        snprintf(path, sizeof path, "%s/golden_logits.f32", dir);
        float *exact = model_floats(path, n_positions * vocab);
        for (size_t i = 0; i < n_positions; i++)
            most = fmax(most, largest_difference(logits + (size_t)positions[i] * vocab,
                                                 exact + i * vocab, vocab));
        CHECK_MSG(most <= d, "%s: %.4f from f32, transformers %.4f", dir, most, d);
        fprintf(stderr, "%-44s %.4f from f32 (transformers %.4f)\n", dir, most, d);
        check_tokens(dir, logits, n, vocab, bf16);
        free(exact);
    }
    free(logits);
    free(ids);
    free(positions);
}

static void run_goldens(void)
{
    DIR *d = opendir("tests/golden");
    int n = 0;
    for (struct dirent *entry; d && (entry = readdir(d));) {
        char dir[400], path[512];
        snprintf(dir, sizeof dir, "tests/golden/%s", entry->d_name);
        snprintf(path, sizeof path, "%s/golden.json", dir);
        json_t *golden = json_load_file(path, 0, NULL);
        if (json_object_get(golden, "bf16")) {
            run_case(dir, golden);
            n++;
        }
        json_decref(golden);
    }
    if (d)
        closedir(d);
    CHECK_MSG(n >= 5, "%d cases", n);
}

/* ---- loss ---- */

static double nll(const float *logits, uint32_t vocab, int32_t token)
{
    double largest = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        largest = fmax(largest, (double)logits[i]);
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - largest);
    return largest + log(sum) - (double)logits[token];
}

/* Mean over windows of WINDOW tokens, each from nothing. */
static double mean_loss(const char *dir, enum spw_dtype compute, const int32_t *ids)
{
    double sum = 0;
    for (int w = 0; w < N_WINDOWS; w++) {
        struct spw_options o = {
            .backend = TEST_BACKEND, .compute = compute, .context = WINDOW, .threads = 2};
        const int32_t *window = ids + w * WINDOW;
        uint32_t vocab;
        float *logits = model_all_logits(dir, &o, window, WINDOW, &vocab);
        for (int i = 0; logits && i + 1 < WINDOW; i++)
            sum += nll(logits + (size_t)i * vocab, vocab, window[i + 1]);
        free(logits);
    }
    return sum / (N_WINDOWS * (WINDOW - 1));
}

static void run_loss(const char *data)
{
    static char text[20000];
    char dir[1000], path[1100];
    struct spw_error err = {0};
    struct spw_tokenizer *t = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/texts/tinyshakespeare.txt", data);
    FILE *f = fopen(path, "rb");
    size_t bytes = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    snprintf(dir, sizeof dir, "%s/models/stories260K", data);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    if (!bytes || access(path, R_OK)) {
        fprintf(stderr, "no stories260K here: the loss is not compared\n");
        return;
    }
    CHECK_MSG(spw_tokenizer_open_folder(&t, dir, &err) == 0, "%s", err.text);
    CHECK_MSG(t && spw_tokenizer_encode(t, text, bytes, true, &ids, &n, &err) == 0, "%s", err.text);
    CHECK(n >= WINDOW * N_WINDOWS);
    if (n >= WINDOW * N_WINDOWS) {
        double f32 = mean_loss(dir, SPW_DTYPE_F32, ids), bf16 = mean_loss(dir, SPW_DTYPE_BF16, ids);
        fprintf(stderr, "mean loss over %d tokens: f32 %.5f, bf16 %.5f (%+.3f %%)\n",
                N_WINDOWS * (WINDOW - 1), f32, bf16, 100 * (bf16 / f32 - 1));
        CHECK(isfinite(f32) && fabs(bf16 / f32 - 1) <= LOSS_TOLERANCE);
    }
    spw_free(ids);
    spw_tokenizer_close(t);
}

int main(void)
{
    const char *data = getenv("SPW_DATA");
    run_goldens();
    if (data)
        run_loss(data);
    return check_done();
}
