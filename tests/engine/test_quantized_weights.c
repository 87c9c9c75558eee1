/* Models with quantized matrices, of each type and of mixed types: computed in f32 they give the
 * bits of the same numbers stored in f32; with int8 activations they give nearly the same logits. A
 * file has the same bytes on every tier: nothing is expanded. test_engine has their placement. */
#include "tests/engine/engine_run.h"

enum { VOCAB = 67, N_TOKENS = 40 };

static char dir[] = "/tmp/spw_quantized_XXXXXX";

struct files {
    char folder[64], packed[80], rounded[80];
    int32_t ids[N_TOKENS];
};

static float *run(const struct files *f, const char *model, enum spw_dtype compute)
{
    const struct spw_options o = {.backend = TEST_BACKEND,
                                  .compute = compute,
                                  .context = N_TOKENS,
                                  .past_positions = true,
                                  .threads = 2};
    uint32_t vocab = 0;
    float *rows = model_all_logits(model, &o, f->ids, N_TOKENS, &vocab);
    CHECK(rows && vocab == VOCAB);
    return rows;
}

/* 1 - cos of the angle between all logits of two runs. */
static double angle(const float *a, const float *b)
{
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < (size_t)N_TOKENS * VOCAB; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return 1 - ab / sqrt(aa * bb);
}

static uint64_t stored_bytes(const struct spw_weights *w)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < w->n_matrices; i++)
        bytes += w->matrices[i].n * spw_row_bytes(w->matrices[i].tensor->dtype, w->matrices[i].k);
    return bytes;
}

/* The blocks of the model are as large as in the file, and so is what streams. */
static void check_bytes(const struct files *f, enum spw_dtype compute)
{
    struct spw_options o = {.backend = TEST_BACKEND, .compute = compute, .context = N_TOKENS};
    struct spw_model m;
    struct spw_error err = {0};
    uint64_t bytes = 0;
    CHECK_MSG(!spw_model_open(&m, f->packed, &o, &err), "%s", err.text);
    for (uint32_t b = 0; b < m.weights->n_blocks; b++) {
        CHECK(m.weights->blocks[b].as_stored);
        bytes += m.weights->blocks[b].matrix_bytes;
    }
    CHECK(bytes == stored_bytes(m.weights));
    spw_model_close(&m);
}

/* matrices AUTO: each matrix has a type of its own. */
static void check_type(const struct files *f, enum spw_dtype matrices, uint64_t seed)
{
    const struct gguf_way way = {.matrices = matrices, .seed = seed};
    struct gguf_way plain = way;
    plain.rounded = true;
    gguf_from_folder(f->folder, f->packed, &way);
    gguf_from_folder(f->folder, f->rounded, &plain);
    float *packed = run(f, f->packed, SPW_DTYPE_F32), *same = run(f, f->rounded, SPW_DTYPE_F32);
    float *fast = run(f, f->packed, SPW_DTYPE_AUTO);
    CHECK_MSG(!memcmp(packed, same, sizeof(float) * N_TOKENS * VOCAB), "%s in f32",
              spw_dtype_name(matrices));
    CHECK_MSG(memcmp(packed, fast, sizeof(float) * N_TOKENS * VOCAB) && angle(packed, fast) < 0.01,
              "%s with int8 activations: 1 - cos %g", spw_dtype_name(matrices),
              angle(packed, fast));
    check_bytes(f, SPW_DTYPE_F32);
    check_bytes(f, SPW_DTYPE_BF16);
    free(packed), free(same), free(fast);
}

int main(int argc, char **argv)
{
    static const struct tiny_model models[] = {
        {.family = "llama",
         .layers = 2,
         .hidden = 256,
         .intermediate = 512,
         .heads = 4,
         .kv_heads = 2,
         .head_dim = 64,
         .vocab = VOCAB,
         .positions = 512,
         .untied = true,
         .seed = 31},
        {.family = "qwen2",
         .layers = 2,
         .hidden = 64,
         .intermediate = 96,
         .heads = 2,
         .kv_heads = 2,
         .head_dim = 32,
         .vocab = VOCAB,
         .positions = 512,
         .bias = true,
         .seed = 32},
    };
    uint64_t seed = check_seed();
    struct files f;
    (void)argc, (void)argv;
    if (!run_is_there())
        return CHECK_SKIP;
    if (!mkdtemp(dir))
        return 1;
    snprintf(f.folder, sizeof f.folder, "%s/folder", dir);
    snprintf(f.packed, sizeof f.packed, "%s/packed.gguf", dir);
    snprintf(f.rounded, sizeof f.rounded, "%s/rounded.gguf", dir);
    run_ids(f.ids, N_TOKENS, VOCAB, seed);
    tiny_model_write(&models[0], f.folder);
    for (int i = 0; !TEST_GPU && i < GGUF_BLOCK_KINDS; i++)
        check_type(&f, gguf_block_kinds[i].type, check_random(&seed) | 1);
    for (int i = 0; i < (TEST_GPU ? 1 : 6); i++) {
        tiny_model_write(&models[i % 2], f.folder);
        check_type(&f, SPW_DTYPE_AUTO, check_random(&seed) | 1);
    }
    tiny_model_remove(f.folder);
    remove(f.packed);
    remove(f.rounded);
    rmdir(dir);
    return check_done();
}
