/* Writes a model of two layers that really uses its old keys: after a token that it has seen
 * before it predicts what followed it then, however far back. The weights are set, not trained.
 *
 *   hidden  | A: this token's code | B: the token before | C: what is predicted |   64 channels
 * each
 *
 *   layer 0  attends to the position before: q and k are biases in the quick rotary pairs, turned
 * by one position, so that q.k is largest at distance 1. Brings A of that position to B. layer 1  k
 * is B, q is A, in slow pairs: attends to where the token before was this one. Brings A of that
 * position to C, and the output matrix reads C.
 *
 * As in Qwen2.5, k_proj.bias of layer 1 may hold huge constants in channels that its queries do not
 * ask: they change no score of an exact cache. `slow`: in pairs that do not turn within a tile, so
 * that a key's mean over the tile is the constant. `quick`: in pairs that turn, so that it is not.
 */
#ifndef SPW_TESTS_ENGINE_COPYING_MODEL_H
#define SPW_TESTS_ENGINE_COPYING_MODEL_H

#include "tests/engine/tiny_model.h"

enum {
    COPYING_CODE = 64,
    COPYING_HIDDEN = 3 * COPYING_CODE,
    COPYING_DIM = 128, /* of the one head */
    COPYING_MLP = 8,
    COPYING_VOCAB = 4096,
    COPYING_PAIR = 24, /* the first pair that layer 1 asks: turns 0.2 in 1,000 positions */
};

#define COPYING_ROPE ",\"rope_theta\":10000000000.0"
#define COPYING_SINKS                                                                              \
    ",\"num_local_experts\":1,\"num_experts_per_tok\":1,\"attention_bias\":true,"                  \
    "\"layer_types\":[\"full_attention\",\"full_attention\"],"                                     \
    "\"rope_scaling\":{\"rope_type\":\"default\"}"

struct copying_model {
    float slow, quick; /* k_proj.bias of layer 1, the largest of each */
    float head;        /* the output matrix is multiplied by this; 0: 1 */
    bool sinks;        /* a gpt_oss: the heads have an extra logit, in layer 1 this one, */
    float sink;        /* where a key of the token that is asked for has about 13; and an expert
                          that adds nothing */
    uint64_t seed;
};

struct copying_file {
    FILE *header, *data;
    uint64_t offset;
};

/* One tensor of `values`, of at most three dimensions: the first 0 ends them. NULL: zeros. */
static inline void copying_values(struct copying_file *f, const char *name, const uint32_t shape[3],
                                  const float *values)
{
    size_t n = shape[0];
    fprintf(f->header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%u", f->offset ? "," : "", name,
            shape[0]);
    for (int i = 1; i < 3 && shape[i]; i++) {
        fprintf(f->header, ",%u", shape[i]);
        n *= shape[i];
    }
    const size_t bytes = n * sizeof *values;
    fprintf(f->header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)f->offset,
            (unsigned long long)(f->offset + bytes));
    f->offset += bytes;
    for (size_t i = 0; i < n; i++)
        fwrite(values ? &values[i] : &(float){0}, sizeof *values, 1, f->data);
}

/* [rows][cols]; cols 0: a vector. */
static inline void copying_tensor(struct copying_file *f, const char *name, uint32_t rows,
                                  uint32_t cols, const float *values)
{
    copying_values(f, name, (uint32_t[3]){rows, cols}, values);
}

/* [rows][cols] with `value` where channel i of code block `from` goes to row to(i). */
static inline void copying_matrix(struct copying_file *f, const char *name, uint32_t rows,
                                  uint32_t cols, uint32_t to, bool slow_rows, uint32_t from,
                                  float value)
{
    float *w = calloc((size_t)rows * cols, sizeof *w);
    for (uint32_t i = 0; i < COPYING_CODE && value != 0; i++) {
        /* halves of a rotary pair are COPYING_DIM / 2 apart */
        uint32_t half = i / 32 * (COPYING_DIM / 2);
        uint32_t row = slow_rows ? COPYING_PAIR + i % 32 + half : to + i;
        w[(size_t)row * cols + from + i] = value;
    }
    copying_tensor(f, name, rows, cols, w);
    free(w);
}

static inline void copying_ones(struct copying_file *f, const char *name)
{
    float ones[COPYING_HIDDEN];
    for (uint32_t i = 0; i < COPYING_HIDDEN; i++)
        ones[i] = 1;
    copying_tensor(f, name, COPYING_HIDDEN, 0, ones);
}

static inline void copying_biases(struct copying_file *f, const struct copying_model *m, int layer)
{
    static const float slow[4] = {1, -0.5f, 0.27f, 0.67f};
    float q[COPYING_DIM] = {0}, k[COPYING_DIM] = {0};
    char name[64];
    for (int i = 0; i < 8 && layer == 0; i++) {
        double turn = pow(1e10, -i / 64.0); /* of one position */
        q[i] = (float)(16 * cos(turn));
        q[i + COPYING_DIM / 2] = (float)(-16 * sin(turn));
        k[i] = 16;
    }
    for (int i = 0; i < 4 && layer == 1; i++) {
        k[60 + i] = m->slow * slow[i];
        k[4 + 2 * i] = m->quick * slow[i];
    }
    snprintf(name, sizeof name, "model.layers.%d.self_attn.q_proj.bias", layer);
    copying_tensor(f, name, COPYING_DIM, 0, q);
    snprintf(name, sizeof name, "model.layers.%d.self_attn.k_proj.bias", layer);
    copying_tensor(f, name, COPYING_DIM, 0, k);
    snprintf(name, sizeof name, "model.layers.%d.self_attn.v_proj.bias", layer);
    copying_tensor(f, name, COPYING_DIM, 0, NULL);
    if (!m->sinks)
        return;
    snprintf(name, sizeof name, "model.layers.%d.self_attn.o_proj.bias", layer);
    copying_tensor(f, name, COPYING_HIDDEN, 0, NULL);
    snprintf(name, sizeof name, "model.layers.%d.self_attn.sinks", layer);
    copying_tensor(f, name, 1, 0, layer ? &m->sink : &(float){0});
}

/* One mlp of zeros, alone or as the only expert. */
static inline void copying_mlp(struct copying_file *f, const struct copying_model *m, int layer)
{
    static const struct {
        const char *name;
        uint32_t shape[3];
    } dense[] = {{"gate_proj.weight", {COPYING_MLP, COPYING_HIDDEN}},
                 {"up_proj.weight", {COPYING_MLP, COPYING_HIDDEN}},
                 {"down_proj.weight", {COPYING_HIDDEN, COPYING_MLP}}},
      expert[] = {{"router.weight", {1, COPYING_HIDDEN}},
                  {"router.bias", {1}},
                  {"experts.gate_up_proj", {1, COPYING_HIDDEN, 2 * COPYING_MLP}},
                  {"experts.gate_up_proj_bias", {1, 2 * COPYING_MLP}},
                  {"experts.down_proj", {1, COPYING_MLP, COPYING_HIDDEN}},
                  {"experts.down_proj_bias", {1, COPYING_HIDDEN}}};
    char name[96];
    for (int i = 0; i < (m->sinks ? 6 : 3); i++) {
        const uint32_t *shape = m->sinks ? expert[i].shape : dense[i].shape;
        snprintf(name, sizeof name, "model.layers.%d.mlp.%s", layer,
                 m->sinks ? expert[i].name : dense[i].name);
        copying_values(f, name, shape, NULL);
    }
}

static inline void copying_layer(struct copying_file *f, const struct copying_model *m, int layer)
{
    const uint32_t a = 0, b = COPYING_CODE, c = 2 * COPYING_CODE;
    char name[64];
#define NAME(what) (snprintf(name, sizeof name, "model.layers.%d." what ".weight", layer), name)
    copying_ones(f, NAME("input_layernorm"));
    copying_ones(f, NAME("post_attention_layernorm"));
    copying_matrix(f, NAME("self_attn.q_proj"), COPYING_DIM, COPYING_HIDDEN, 0, true, a,
                   layer ? 1.5f : 0);
    copying_matrix(f, NAME("self_attn.k_proj"), COPYING_DIM, COPYING_HIDDEN, 0, true, b,
                   layer ? 1 : 0);
    copying_matrix(f, NAME("self_attn.v_proj"), COPYING_DIM, COPYING_HIDDEN, 0, false, a, 1);
    /* what the norms made of 1 is made 1 again; in C it is 2, to be heard over A and B */
    copying_matrix(f, NAME("self_attn.o_proj"), COPYING_HIDDEN, COPYING_DIM, layer ? c : b, false,
                   0, layer ? 1.633f : 0.577f);
    copying_biases(f, m, layer);
    copying_mlp(f, m, layer);
#undef NAME
}

/* Codes of +-1 in A; the output matrix has them in C. */
static inline void copying_tokens(struct copying_file *f, const struct copying_model *m,
                                  const char *name, uint32_t block, float value)
{
    uint64_t random = m->seed;
    float *w = calloc((size_t)COPYING_VOCAB * COPYING_HIDDEN, sizeof *w);
    for (uint32_t t = 0; t < COPYING_VOCAB; t++) {
        uint64_t code = check_random(&random);
        for (uint32_t i = 0; i < COPYING_CODE; i++)
            w[(size_t)t * COPYING_HIDDEN + block + i] = code >> i & 1 ? value : -value;
    }
    copying_tensor(f, name, COPYING_VOCAB, COPYING_HIDDEN, w);
    free(w);
}

/* `dir` is made; tiny_model_remove takes it away. */
static inline void copying_model_write(const struct copying_model *m, const char *dir)
{
    const struct tiny_model shape = {TINY(m->sinks ? "gpt_oss" : "qwen2", 2, COPYING_HIDDEN,
                                          COPYING_MLP, 1, 1, COPYING_DIM, COPYING_VOCAB, 32768),
                                     .more = m->sinks ? COPYING_ROPE COPYING_SINKS : COPYING_ROPE,
                                     .untied = true};
    char path[600], *header = NULL, *data = NULL;
    size_t header_bytes = 0, data_bytes = 0;
    struct copying_file f = {0};
    mkdir(dir, 0700);
    tiny_config(&shape, dir);
    f.header = open_memstream(&header, &header_bytes);
    f.data = open_memstream(&data, &data_bytes);
    fputc('{', f.header);
    copying_tokens(&f, m, "model.embed_tokens.weight", 0, 1);
    for (int l = 0; l < 2; l++)
        copying_layer(&f, m, l);
    copying_ones(&f, "model.norm.weight");
    copying_tokens(&f, m, "lm_head.weight", 2 * COPYING_CODE, 0.25f * (m->head > 0 ? m->head : 1));
    fputc('}', f.header);
    fclose(f.header);
    fclose(f.data);
    snprintf(path, sizeof path, "%.500s/model.safetensors", dir);
    tiny_file_write(path, header, header_bytes, data, data_bytes, 0);
    free(header);
    free(data);
}

#endif
