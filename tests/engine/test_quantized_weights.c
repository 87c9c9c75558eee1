/* Models with quantized matrices, of each type and of mixed types: computed in f32 they give the
 * bits of the same numbers stored in f32; with int8 activations they give nearly the same logits. A
 * file has the same bytes on every tier: nothing is expanded. test_engine has their placement.
 *
 * Every instruction set of this processor runs whole engines. One table gives the same bits for any
 * threads and chunks. Products with int8 activations give the same bits with every table: portable
 * kernels with the products of a table give what portable kernels give. Where two tables share all
 * other kernels, the tables as they are do so, too. */
#include "model/cpu/ops_cpu.h"
#include "quant/types.h"
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

/* ---- instruction sets ---- */

enum { LAST = 4 }; /* tokens that are computed one by one */

/* Logits of the last tokens with these kernels. */
static void run_table(const struct files *f, const struct spw_cpu_kernels *k, uint32_t threads,
                      uint32_t chunk, float logits[LAST][VOCAB])
{
    const struct spw_options o = {.context = N_TOKENS, .threads = threads, .prefill_chunk = chunk};
    struct spw_backend b;
    spw_backend_cpu_with(&b, k);
    struct spw_engine *e = run_open_on(&b, f->packed, &o);
    struct spw_session *s = run_session(e);
    for (size_t i = 0; i < LAST; i++) {
        const float *row = run_to(s, e, f->ids, N_TOKENS - LAST + 1 + i);
        memset(logits[i], 0, sizeof logits[i]);
        if (row)
            memcpy(logits[i], row, sizeof logits[i]);
    }
    spw_session_close(s);
    spw_engine_close(e);
}

/* Enough for the kernels of any table. */
static size_t workspace_of_any(size_t k, enum spw_dtype x, enum spw_dtype w)
{
    size_t most = 0;
    for (int isa = 0; isa < SPW_ISA_COUNT; isa++) {
        const struct spw_cpu_kernels *t = spw_cpu_kernels_get((enum spw_isa)isa);
        if (t)
            most = (size_t)spw_max_u64(most, t->linear_workspace(k, x, w));
    }
    return most;
}

static struct spw_cpu_kernels portable_with_products_of(const struct spw_cpu_kernels *table)
{
    struct spw_cpu_kernels mixed = *spw_cpu_kernels_get(SPW_ISA_PORTABLE);
    mixed.encode = table->encode;
    mixed.linear_codes = table->linear_codes;
    mixed.linear_workspace = workspace_of_any;
    return mixed;
}

/* The first table with all of its kernels but those of products, or itself. */
static const struct spw_cpu_kernels *relative_of(const struct spw_cpu_kernels *table)
{
    const struct spw_cpu_kernels *t = NULL;
    for (int isa = 0; !t || t->norm != table->norm; isa++)
        t = spw_cpu_kernels_get((enum spw_isa)isa);
    return t;
}

static void check_tables(const struct files *f, uint64_t *seed)
{
    static float portable[LAST][VOCAB], first[LAST][VOCAB], logits[LAST][VOCAB];
    const uint32_t chunk = (uint32_t)check_range(seed, 1, N_TOKENS);
    run_table(f, spw_cpu_kernels_get(SPW_ISA_PORTABLE), 1, 0, portable);
    CHECK(portable[0][0] != 0);
    for (int isa = 0; isa < SPW_ISA_COUNT; isa++) {
        const struct spw_cpu_kernels *table = spw_cpu_kernels_get((enum spw_isa)isa);
        if (!table)
            continue;
        const struct spw_cpu_kernels mixed = portable_with_products_of(table);
        run_table(f, &mixed, 2, chunk, logits);
        CHECK_MSG(!memcmp(logits, portable, sizeof logits), "products of set %d (%s), chunk %u",
                  isa, spw_isa_name(table->isa), chunk);
        run_table(f, relative_of(table), 1, 0, first);
        run_table(f, table, 3, chunk, logits);
        CHECK_MSG(!memcmp(logits, first, sizeof logits), "set %d (%s), chunk %u", isa,
                  spw_isa_name(table->isa), chunk);
    }
}

int main(int argc, char **argv)
{
    static const struct tiny_model models[] = {
        {TINY("llama", 2, 256, 512, 4, 2, 64, VOCAB, 512), .untied = true, .seed = 31},
        {TINY("qwen2", 2, 64, 96, 2, 2, 32, VOCAB, 512), .bias = true, .seed = 32},
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
        if (!TEST_GPU)
            check_tables(&f, &seed);
    }
    tiny_model_remove(f.folder);
    remove(f.packed);
    remove(f.rounded);
    rmdir(dir);
    return check_done();
}
