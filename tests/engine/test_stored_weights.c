/* Weights as real folders store them: other names, other types, an output matrix beside a tied
 * embedding, FP8 with its factors. A tiny model is written once; its file is then written again in
 * other forms, and what the model computes with is compared with values from elsewhere. */
#include "model/source/safetensors.h"
#include "tests/engine/engine_run.h"

#include <jansson.h>

static const struct tiny_model tied = {TINY("llama", 2, 32, 40, 4, 2, 16, 67, 512), .seed = 1};

/* How a folder's file is written again. */
struct form {
    const char *prefix;          /* instead of "model." */
    bool f64;                    /* all tensors */
    bool own_head, no_embedding; /* lm_head.weight: other values; the embedding's under this name */
    const char *fp8;             /* type of the matrices of layers */
    uint32_t block[2];           /* of the factors; 0: one for a matrix */
    bool no_factors;
};

struct writer {
    FILE *data;
    json_t *header;
    uint64_t offset, seed;
};

static void put(struct writer *w, const char *name, const char *dtype, const uint64_t *shape,
                uint32_t n_dims, const void *data, uint64_t bytes)
{
    json_t *dims = json_array();
    for (uint32_t i = 0; i < n_dims; i++)
        json_array_append_new(dims, json_integer((json_int_t)shape[i]));
    json_object_set_new(w->header, name,
                        json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", dims,
                                  "data_offsets", (json_int_t)w->offset,
                                  (json_int_t)(w->offset + bytes)));
    fwrite(data, 1, bytes, w->data);
    w->offset += bytes;
}

static uint64_t n_elements(const struct spw_tensor *t)
{
    return t->n_dims == 2 ? t->shape[0] * t->shape[1] : t->shape[0];
}

static void put_f64(struct writer *w, const char *name, const struct spw_tensor *t)
{
    uint64_t n = n_elements(t);
    double *wide = malloc(n * sizeof *wide);
    for (uint64_t i = 0; i < n; i++) { /* more digits than a float holds: they are rounded away */
        float f;
        memcpy(&f, (const uint8_t *)t->data + 4 * i, 4);
        wide[i] = (double)f * (1 + 0x1p-30);
    }
    put(w, name, "F64", t->shape, t->n_dims, wide, n * sizeof *wide);
    free(wide);
}

/* Random codes, NaN left out, and factors for them. */
static void put_fp8(struct writer *w, const char *name, const struct spw_tensor *t,
                    const struct form *f)
{
    uint64_t n = n_elements(t), shape[2] = {1, 1};
    for (int i = 0; i < 2 && f->block[0]; i++)
        shape[i] = (t->shape[i] + f->block[i] - 1) / f->block[i];
    uint8_t *codes = malloc(n);
    float *factors = malloc(shape[0] * shape[1] * sizeof *factors);
    for (uint64_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(check_random(&w->seed) & 0xbb); /* neither type's NaN or infinity */
    for (uint64_t i = 0; i < shape[0] * shape[1]; i++)
        factors[i] = (float)(0.5 + (double)(check_random(&w->seed) >> 40) * 0x1p-26);
    put(w, name, f->fp8, t->shape, 2, codes, n);
    char scale[256];
    snprintf(scale, sizeof scale, "%.200s_scale_inv", name);
    if (!f->no_factors)
        put(w, scale, "F32", shape, f->block[0] ? 2 : 0, factors, shape[0] * shape[1] * 4);
    free(codes), free(factors);
}

static void put_tensor(struct writer *w, const struct spw_tensor *t, const struct form *f)
{
    char name[200];
    bool embedding = strcmp(t->name, "model.embed_tokens.weight") == 0;
    snprintf(name, sizeof name, "%s%s", f->prefix, t->name + strlen("model."));
    if (embedding && f->no_embedding)
        strcpy(name, "lm_head.weight");
    if (embedding && f->own_head) {
        float *head = malloc(t->bytes);
        for (uint64_t i = 0; i < t->bytes / 4; i++)
            head[i] = (float)(i % 1013) * 0x1p-10f;
        put(w, "lm_head.weight", "F32", t->shape, 2, head, t->bytes);
        free(head);
    }
    if (f->fp8 && t->n_dims == 2 && strstr(t->name, "layers."))
        put_fp8(w, name, t, f);
    else if (f->f64)
        put_f64(w, name, t);
    else
        put(w, name, "F32", t->shape, t->n_dims, t->data, t->bytes);
}

/* Writes the folder `dir` again, as `f` says, to `to`. */
static void write_again(const char *dir, const char *to, const struct form *f)
{
    struct spw_error err = {0};
    struct spw_tensors *st = NULL;
    char *data = NULL, path[160];
    size_t bytes = 0;
    CHECK_MSG(!spw_safetensors_open(&st, dir, &err), "%s", err.text);
    struct writer w = {.header = json_object(), .seed = 5};
    w.data = open_memstream(&data, &bytes);
    for (size_t i = 0; i < spw_tensors_count(st); i++)
        put_tensor(&w, spw_tensors_at(st, i), f);
    fclose(w.data);
    char *header = json_dumps(w.header, JSON_COMPACT);
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    tiny_file_write(path, header, strlen(header), data, bytes, 0);
    free(header), free(data);
    json_decref(w.header);
    spw_tensors_close(st);
}

/* sign, exponent, fraction: the formula, not the bits. */
static double fp8_value(uint8_t b, bool e4m3)
{
    int fraction_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
    int exponent = (b & 0x7f) >> fraction_bits, fraction = b & ((1 << fraction_bits) - 1);
    double f = exponent ? ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits)
                        : ldexp(fraction, 1 - bias - fraction_bits);
    return b & 0x80 ? -f : f;
}

static float f32_at(const void *data, uint64_t i)
{
    float f;
    memcpy(&f, (const uint8_t *)data + 4 * i, 4);
    return f;
}

/* Element (row, col) of a layer's matrix, from the file. */
static float from_file(const struct spw_tensors *st, const char *name, uint64_t row, uint64_t col,
                       const struct form *f)
{
    char scale_name[200];
    const struct spw_tensor *t = spw_tensors_find(st, name);
    uint64_t i = row * t->shape[1] + col;
    if (t->dtype == SPW_DTYPE_F64) {
        double wide;
        memcpy(&wide, (const uint8_t *)t->data + 8 * i, 8);
        return (float)wide;
    }
    if (!f->fp8)
        return f32_at(t->data, i);
    snprintf(scale_name, sizeof scale_name, "%s_scale_inv", name);
    const struct spw_tensor *s = spw_tensors_find(st, scale_name);
    uint64_t at = f->block[0] ? row / f->block[0] * s->shape[1] + col / f->block[1] : 0;
    double value = fp8_value(((const uint8_t *)t->data)[i], t->dtype == SPW_DTYPE_F8_E4M3);
    return (float)value * f32_at(s->data, at);
}

static void check_values(const struct spw_model *m, const struct form *f)
{
    static const char *const names[] = {"self_attn.q_proj", "mlp.down_proj"};
    for (int k = 0; k < 2; k++) {
        char name[200];
        snprintf(name, sizeof name, "%slayers.1.%s.weight", f->prefix, names[k]);
        const struct spw_tensor *t = spw_tensors_find(m->tensors, name);
        uint8_t *packed = malloc(m->weights->blocks[1].bytes);
        struct spw_layer_weights layer;
        uint64_t wrong = 0;
        spw_weights_pack(m->weights, 1, packed);
        spw_weights_operands(m->weights, 1, packed, &layer);
        const uint8_t *matrix = layer.of[k ? SPW_MATRIX_DOWN : SPW_MATRIX_Q].w;
        for (uint64_t i = 0; i < n_elements(t); i++)
            wrong += f32_at(matrix, i) !=
                     from_file(m->tensors, name, i / t->shape[1], i % t->shape[1], f);
        CHECK_MSG(!wrong, "%s: %llu wrong", name, (unsigned long long)wrong);
        free(packed);
    }
}

static void check_ends(const struct spw_model *m, const struct form *f)
{
    const char *head = f->own_head || f->no_embedding ? "lm_head.weight" : NULL;
    char embedding[200];
    snprintf(embedding, sizeof embedding, "%sembed_tokens.weight", f->prefix);
    const struct spw_tensor *e = spw_tensors_find(m->tensors, f->no_embedding ? head : embedding);
    CHECK(m->weights->embedding.tensor == e);
    uint32_t u = m->config.n_layers;
    uint8_t *packed = malloc(m->weights->blocks[u].bytes);
    spw_weights_pack(m->weights, u, packed);
    const struct form plain = {0};
    CHECK(f32_at(packed, 5) == from_file(m->tensors, head ? head : e->name, 0, 5, &plain));
    free(packed);
}

/* What config.json has to say of FP8, as text. */
static const char *quantization(const struct form *f, char *out, size_t bytes)
{
    char block[40] = "null";
    if (!f->fp8)
        return NULL;
    if (f->block[0])
        snprintf(block, sizeof block, "[%u, %u]", f->block[0], f->block[1]);
    snprintf(out, bytes,
             ",\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": %s}",
             block);
    return out;
}

static void check_form(const char *dir, const struct form *f, const char *refused)
{
    char to[128], more[200];
    struct tiny_model tiny = tied;
    tiny.more = quantization(f, more, sizeof more);
    run_folder(to, &tiny, "again");
    write_again(dir, to, f);
    struct spw_options o = {.compute = SPW_DTYPE_F32};
    struct spw_model m;
    struct spw_error err = {0};
    int rc = spw_model_open(&m, to, &o, &err);
    CHECK_MSG(rc == (refused ? -EINVAL : 0) && (!refused || strstr(err.text, refused)), "%s",
              err.text);
    if (!rc) {
        CHECK_MSG(spw_weights_prepare(m.weights, &err) == 0, "%s", err.text);
        check_values(&m, f);
        check_ends(&m, f);
        spw_model_close(&m);
    }
    tiny_model_remove(to);
}

struct cut_in_step {
    const char *path;
    int n;
};

/* Asked after each chunk of a layer: the file is cut short in the middle of the step. */
static bool cut_now(void *context)
{
    struct cut_in_step *c = context;
    if (c->n++ == 1)
        CHECK(!truncate(c->path, 100));
    return false;
}

/* Threads of the library are who meets the pages that are gone. */
static void check_cut_in_step(void)
{
    char dir[128], path[160];
    struct cut_in_step cut = {path, 0};
    struct tiny_model large = tied;
    large.layers = 8;
    large.hidden = 256;
    struct spw_options o = {
        .backend = TEST_BACKEND,
        .compute = SPW_DTYPE_F32,
        .threads = 2,
        .prefill_chunk = 16,
    };
    struct spw_error err = {0};
    struct spw_engine *e = NULL;
    struct spw_session *s = NULL;
    int32_t ids[64];
    run_folder(dir, &large, "cut");
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    run_ids(ids, 64, tied.vocab, 3);
    CHECK_MSG(!spw_engine_open(&e, dir, &o, &err), "%s", err.text);
    e->look.is_time = cut_now;
    e->look.context = &cut;
    CHECK(!spw_session_open(&s, e, &err));
    struct spw_span span = {s, ids, 64, 1};
    CHECK(spw_sync(e, &span, 1, NULL, NULL, &err) == -EIO && cut.n > 2);
    CHECK_MSG(strstr(err.text, "has 100 now"), "%s", err.text);
    CHECK(spw_session_n_tokens(s) == 0);
    spw_session_close(s);
    spw_engine_close(e);
    tiny_model_remove(dir);
}

/* The weights are cut short, or written to, while an engine has them: the next step fails with the
 * file's name, and the session holds what it held. */
static void check_changed_file(bool cut)
{
    char dir[128], path[160];
    struct spw_options o = {.backend = TEST_BACKEND, .compute = SPW_DTYPE_F32, .threads = 1};
    struct spw_error err = {0};
    struct spw_engine *e = NULL;
    struct spw_session *s = NULL;
    int32_t ids[40];
    run_folder(dir, &tied, "changed");
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    run_ids(ids, 40, tied.vocab, 3);
    CHECK_MSG(!spw_engine_open(&e, dir, &o, &err), "%s", err.text);
    CHECK(!spw_session_open(&s, e, &err));
    struct spw_span span = {s, ids, 20, 1};
    CHECK_MSG(!spw_sync(e, &span, 1, NULL, NULL, &err), "%s", err.text);
    FILE *file = fopen(path, "r+b");
    if (cut)
        CHECK(file && !ftruncate(fileno(file), 100));
    else
        CHECK(file && !fseek(file, -1, SEEK_END) && fputc(1, file) == 1);
    fclose(file);
    span.n_tokens = 40;
    CHECK(spw_sync(e, &span, 1, NULL, NULL, &err) == -EIO);
    CHECK_MSG(strstr(err.text, "model.safetensors: the file ") &&
                  strstr(err.text, cut ? "has 100 now" : "was written to"),
              "%s", err.text);
    CHECK(spw_session_n_tokens(s) == 20);
    spw_session_close(s);
    spw_engine_close(e);
    tiny_model_remove(dir);
}

int main(void)
{
    static const struct {
        struct form form;
        const char *refused;
    } cases[] = {
        {{.prefix = "model."}, NULL},
        {{.prefix = ""}, NULL},
        {{.prefix = "", .own_head = true}, NULL},
        {{.prefix = "language_model.model.", .own_head = true}, NULL},
        {{.prefix = "model.language_model.", .no_embedding = true}, NULL},
        {{.prefix = "model.", .own_head = true, .f64 = true}, NULL},
        {{.prefix = "", .no_embedding = true, .f64 = true}, NULL},
        {{.prefix = "model.", .fp8 = "F8_E4M3", .block = {16, 8}}, NULL},
        {{.prefix = "model.", .fp8 = "F8_E4M3", .block = {24, 128}}, NULL},
        {{.prefix = "model.", .fp8 = "F8_E4M3"}, NULL},
        {{.prefix = "model.", .fp8 = "F8_E5M2", .block = {7, 9}}, NULL},
        {{.prefix = "model.", .fp8 = "F8_E4M3", .no_factors = true}, "q_proj.weight_scale_inv"},
        {{.prefix = "decoder."}, "no tensor model.embed_tokens.weight"},
    };
    char dir[128];
    run_folder(dir, &tied, "stored");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_form(dir, &cases[i].form, cases[i].refused);
    tiny_model_remove(dir);
    check_changed_file(true);
    check_changed_file(false);
    check_cut_in_step();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
