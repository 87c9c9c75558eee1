/* Blocks of weights: a packed copy holds every matrix in its place, converted by an independent
 * rounding; where the file can be computed from, the mapped matrices are the same bytes; advice
 * about pages changes no byte; embeddings are rows of the file; a block that is read from its
 * ranges of the file has its matrices where they are said to lie. */
#include "base/numbers.h"
#include "model/weights/tensor_names.h"
#include "tests/engine/engine_run.h"

#include <fcntl.h>

#include <math.h>

static float stored(const struct spw_tensor *t, uint64_t i)
{
    uint32_t bits = 0;
    float f;
    if (t->dtype == SPW_DTYPE_F32)
        memcpy(&bits, (const uint8_t *)t->data + 4 * i, 4);
    else /* bf16: tiny models know no f16 */
        memcpy((uint8_t *)&bits + 2, (const uint8_t *)t->data + 2 * i, 2);
    memcpy(&f, &bits, 4);
    return f;
}

/* Whether the bytes at `p` are v in this type; bf16 by distance, not by the bits of a rounding. */
static bool is_value(const uint8_t *p, enum spw_dtype dtype, float v)
{
    uint32_t bits = 0;
    float f;
    memcpy((uint8_t *)&bits + (dtype == SPW_DTYPE_F32 ? 0 : 2), p, dtype == SPW_DTYPE_F32 ? 4 : 2);
    memcpy(&f, &bits, 4);
    return dtype == SPW_DTYPE_F32 ? f == v : fabsf(f - v) <= fabsf(v) * 0x1p-8f;
}

/* The same after some roundings. */
static bool is_close(const uint8_t *p, enum spw_dtype dtype, float v)
{
    uint32_t bits = 0;
    float f;
    memcpy((uint8_t *)&bits + (dtype == SPW_DTYPE_F32 ? 0 : 2), p, dtype == SPW_DTYPE_F32 ? 4 : 2);
    memcpy(&f, &bits, 4);
    return fabsf(f - v) <= fabsf(v) * (dtype == SPW_DTYPE_F32 ? 0x1p-22f : 0x1p-6f);
}

static const struct spw_tensor *matrix(const struct spw_model *m, uint32_t layer, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "model.layers.%u.%s.weight", layer, name);
    const struct spw_tensor *t = spw_tensors_find(m->tensors, full);
    CHECK_MSG(t, "%s", full);
    return t;
}

/* The rows of all layers. */
static const struct spw_tensor *inputs(const struct spw_model *m)
{
    return spw_tensors_find(m->tensors, "model.per_layer_model_projection.weight");
}

static uint64_t check_matrix(const struct spw_tensor *t, uint64_t first,
                             const struct spw_operand *o, const uint8_t *mapped)
{
    enum spw_dtype dtype = o->type;
    const uint8_t *packed = o->w;
    uint64_t n = o->n * o->k;
    uint64_t bytes = spw_dtype_bytes(dtype), wrong = 0;
    for (uint64_t i = 0; i < n; i++)
        wrong += !is_value(packed + i * bytes, dtype, stored(t, first + i));
    CHECK_MSG(!wrong, "%s: %llu wrong", t->name, (unsigned long long)wrong);
    CHECK_MSG(!mapped || memcmp(packed, mapped, n * bytes) == 0, "%s", t->name);
    return n * bytes;
}

/* What the names of the mlp's matrices in this block begin with. Of the tiny models, only that of
 * Llama 4 has names of its own. */
static void name_mlp(const struct spw_model *m, uint32_t u, char out[32])
{
    const struct spw_weights *w = m->weights;
    uint32_t layer = w->blocks[u].layer;
    const char *mlp = strcmp(m->config.model_type, "llama4_text") ? "mlp" : "feed_forward";
    if (u >= w->n_blocks)
        snprintf(out, 32, "%s.experts.%u", mlp, u - w->layer_experts[layer]);
    else
        snprintf(out, 32, "%s%s", mlp, m->config.has_experts[layer] ? ".shared_expert" : "");
}

static void check_layer(const struct spw_model *m, uint32_t u, const uint8_t *packed, bool maps)
{
    static const char *const names[SPW_LAYER_MATRICES] = {
        [SPW_MATRIX_Q] = "self_attn.q_proj",
        [SPW_MATRIX_K] = "self_attn.k_proj",
        [SPW_MATRIX_V] = "self_attn.v_proj",
        [SPW_MATRIX_O] = "self_attn.o_proj",
        [SPW_MATRIX_IN] = "linear_attn.in_proj",
        [SPW_MATRIX_IN_GATE] = "linear_attn.in_proj_z",
        [SPW_MATRIX_IN_BETA] = "linear_attn.in_proj_b",
        [SPW_MATRIX_IN_RATE] = "linear_attn.in_proj_a",
        [SPW_MATRIX_OUT] = "linear_attn.out_proj",
        [SPW_MATRIX_GATE] = "gate_proj",
        [SPW_MATRIX_UP] = "up_proj",
        [SPW_MATRIX_DOWN] = "down_proj",
        [SPW_MATRIX_INPUT_GATE] = "per_layer_input_gate",
        [SPW_MATRIX_INPUT_OUT] = "per_layer_projection",
    };
    struct spw_layer_weights p, f = {0};
    const bool expert = u >= m->weights->n_blocks;
    uint64_t sum = 0;
    char mlp[32], name[64];
    name_mlp(m, u, mlp);
    spw_weights_operands(m->weights, u, packed, &p);
    if (maps)
        spw_weights_operands(m->weights, u, NULL, &f);
    for (int i = expert ? SPW_MATRIX_GATE : 0; i < SPW_LAYER_MATRICES; i++) {
        const bool of_mlp = i >= SPW_MATRIX_GATE && i <= SPW_MATRIX_DOWN;
        const uint32_t layer = m->weights->blocks[u].layer;
        if (!p.of[i].n) /* the layer has no such matrix */
            continue;
        const bool qkv = i == SPW_MATRIX_IN && m->config.mixer.kind == SPW_MIXER_DELTA;
        snprintf(name, sizeof name, "%s%s%s%s", of_mlp ? mlp : "", of_mlp ? "." : "", names[i],
                 qkv ? "_qkv" : "");
        const struct spw_tensor *t = i == SPW_MATRIX_INPUT ? inputs(m) : matrix(m, layer, name);
        const uint64_t rows = i == SPW_MATRIX_INPUT ? m->config.layer_inputs : t->shape[0];
        const uint64_t before = i == SPW_MATRIX_INPUT ? layer * rows * t->shape[1] : 0;
        CHECK(p.of[i].n == rows && p.of[i].k == t->shape[1]);
        sum += check_matrix(t, before, &p.of[i], f.of[i].w);
    }
    const struct spw_operand *first = &p.of[expert ? SPW_MATRIX_GATE : SPW_MATRIX_Q];
    CHECK(!first[1].n ||
          first[1].w == first->w + first->n * first->k * spw_dtype_bytes(first->type));
    CHECK(sum == m->weights->blocks[u].matrix_bytes);
    CHECK(sum <= m->weights->blocks[u].bytes);
}

/* What direct I/O would leave in a slot. */
static uint8_t *read_ranges(const struct spw_model *m, const struct spw_file_range *ranges,
                            uint32_t n)
{
    uint8_t *slot = malloc(spw_file_ranges_bytes(ranges, n));
    for (uint32_t i = 0; i < n; i++) {
        const struct spw_file_range *r = &ranges[i];
        int fd = open(spw_tensors_path(m->tensors, r->file), O_RDONLY);
        ssize_t read = pread(fd, slot + r->slot_offset, r->bytes, (off_t)r->offset);
        CHECK(fd >= 0 && read >= (ssize_t)r->least_bytes);
        close(fd);
    }
    return slot;
}

/* Every piece of the block, byte for byte as it is mapped; and, where kernels can read it there, as
 * the layer or the head block is used. */
static void check_ranges(struct spw_model *m, uint32_t u, bool maps)
{
    struct spw_weights *w = m->weights;
    struct spw_file_range ranges[SPW_FILE_PARTS];
    uint64_t lands[SPW_FILE_PARTS];
    uint32_t n = spw_weights_ranges(w, u, ranges, lands), first = w->blocks[u].first;
    uint8_t *slot = read_ranges(m, ranges, n);
    CHECK(n && spw_file_ranges_bytes(ranges, n) == w->blocks[u].read_bytes);
    for (uint32_t i = first; i < first + w->blocks[u].n; i++)
        if (w->blocks[u].as_stored)
            CHECK(!memcmp(slot + lands[i - first], w->pieces[i].from, w->pieces[i].bytes));
    if (maps)
        spw_weights_place_as_in_file(w, u);
    if (maps && w->blocks[u].layer != SPW_NO_LAYER) {
        struct spw_layer_weights a, b;
        spw_weights_operands(m->weights, u, slot, &a);
        spw_weights_operands(m->weights, u, NULL, &b);
        for (uint32_t i = first; i < first + w->blocks[u].n; i++) {
            const enum spw_matrix_role role = w->matrices[i].role;
            CHECK(!memcmp(a.of[role].w, b.of[role].w, w->pieces[i].bytes));
        }
    } else if (maps) {
        CHECK(!memcmp(spw_weights_head(w, u, slot).w, spw_weights_head(w, u, NULL).w,
                      w->pieces[first].bytes));
    }
    free(slot);
}

static void check_block(struct spw_model *m, const struct tiny_model *tiny, uint32_t u)
{
    const struct spw_weights *w = m->weights;
    bool as_stored = (tiny->stored == TINY_BF16) == (w->matrices[0].type == SPW_DTYPE_BF16);
    bool maps = as_stored && tiny->seed % 3; /* else at odd addresses: see tiny_model.h */
    uint8_t *packed = malloc(w->blocks[u].bytes);
    CHECK(w->blocks[u].as_stored == as_stored);
    CHECK(w->blocks[u].mappable == maps);
    spw_weights_populate(w, u);
    spw_weights_pack(w, u, packed); /* gives the pages back */
    if (w->blocks[u].layer != SPW_NO_LAYER) {
        check_layer(m, u, packed, maps);
    } else {
        const char *name = tiny->untied ? "lm_head.weight" : "model.embed_tokens.weight";
        const struct spw_tensor *t = spw_tensors_find(m->tensors, name);
        uint64_t first = (uint64_t)(u - m->config.n_layers) * w->head_rows;
        uint64_t rows = spw_min_u64(w->head_rows, m->config.vocab - first);
        const struct spw_operand head = spw_weights_head(w, u, packed);
        CHECK(head.w == packed && head.n == rows && head.k == m->config.hidden);
        uint64_t bytes = check_matrix(t, first * m->config.hidden, &head,
                                      maps ? spw_weights_head(w, u, NULL).w : NULL);
        CHECK(bytes == w->blocks[u].bytes && bytes == w->blocks[u].matrix_bytes);
    }
    free(packed);
    check_ranges(m, u, maps);
}

/* Few rows and many, with and without blocks that stay mapped. */
static void check_embeddings(struct spw_model *m, uint64_t *seed)
{
    enum { MOST = 40 };
    uint32_t hidden = m->config.hidden, own = m->config.n_layers * m->config.layer_inputs;
    uint64_t bytes = spw_dtype_bytes(m->compute), wrong = 0;
    uint8_t *out = malloc(MOST * hidden * bytes), *inputs = malloc(MOST * own * bytes);
    for (int round = 0; round < 20; round++) {
        int32_t ids[MOST];
        size_t n = check_range(seed, 1, MOST);
        for (size_t i = 0; i < n; i++)
            ids[i] = (int32_t)(check_random(seed) % m->config.vocab);
        spw_weights_embed(
            m->weights,
            &(struct spw_embed_args){
                .tokens = ids, .n = n, .compute = m->compute, .rows = out, .inputs = inputs});
        for (size_t i = 0; i < n && m->config.embedding_scale == 1.0f; i++)
            for (uint32_t c = 0; c < hidden; c++)
                wrong +=
                    !is_value(out + (i * hidden + c) * bytes, m->compute,
                              stored(m->weights->embedding.tensor, (uint64_t)ids[i] * hidden + c));
        for (size_t i = 0; i < n * own; i++) /* times sqrt(8), rounded */
            wrong += !is_close(
                inputs + i * bytes, m->compute,
                stored(m->weights->inputs.tensor, (uint64_t)ids[i / own] * own + i % own) *
                    sqrtf((float)m->config.layer_inputs));
        uint32_t u = (uint32_t)check_range(seed, 0, m->weights->n_blocks - 1);
        if (m->weights->blocks[u].mappable)
            spw_weights_map(m->weights, u);
    }
    CHECK(!wrong);
    free(out);
    free(inputs);
}

/* The small array is read once more, with the frequencies of the latest length. */
static void check_small(struct spw_weights *w)
{
    struct spw_error err = {0};
    const size_t n_rope = (w->n_small - w->first_rope) * sizeof(float);
    float *before = spw_alloc(w->n_small * sizeof *before);
    CHECK(before && spw_weights_rope(w, w->config->max_positions, &err) == 0);
    memcpy(before, w->small, w->n_small * sizeof *before);
    memcpy(before + w->first_rope, w->rope, n_rope);
    spw_weights_forget_small(w);
    CHECK(!w->small && spw_weights_prepare(w, &err) == 0);
    CHECK(memcmp(before, w->small, w->n_small * sizeof *before) == 0);
    spw_free(before);
}

/* A usual name of a tensor in a model with an encoder leads back to the tensor's own name. */
static void check_names(const char *folder)
{
    struct spw_options o = {0};
    struct spw_model m;
    struct spw_error err = {0};
    char dir[128];
    snprintf(dir, sizeof dir, "tests/golden/%s", folder);
    CHECK_MSG(spw_model_open(&m, dir, &o, &err) == 0, "%s", err.text);
    const char *prefix = spw_tensor_prefix(m.tensors);
    for (size_t i = 0; i < spw_tensors_count(m.tensors); i++) {
        const char *own = spw_tensors_at(m.tensors, i)->name;
        char usual[SPW_MOST_TENSOR_NAME], again[SPW_MOST_OWN_NAME];
        const bool is_used = spw_tensor_stack_name(m.tensors, prefix, own, &m.config, usual);
        if (!is_used || strncmp(usual, "model.", 6) != 0)
            continue;
        spw_tensor_stack_own_name(m.tensors, prefix, usual, &m.config, again);
        CHECK_MSG(!strcmp(own, again), "%s: %s, then %s, then %s", folder, own, usual, again);
    }
    spw_model_close(&m);
}

/* M2M-100: a token has another row at another position, but the pad has not. */
static void check_pad(void)
{
    enum { PAD = 1, HIDDEN = 32 };
    const struct spw_options o = {.compute = SPW_DTYPE_F32};
    struct spw_model m;
    struct spw_error err = {0};
    float rows[2][HIDDEN];
    CHECK_MSG(!spw_model_open(&m, "tests/golden/m2m_100_plain", &o, &err), "%s", err.text);
    CHECK(m.config.hidden == HIDDEN);
    for (int32_t id = 0; id < 3; id++) {
        for (uint64_t at = 0; at < 2; at++)
            spw_weights_embed(m.weights, &(struct spw_embed_args){.tokens = &id,
                                                                  .n = 1,
                                                                  .position = 3 + at,
                                                                  .compute = SPW_DTYPE_F32,
                                                                  .rows = rows[at]});
        CHECK(!memcmp(rows[0], rows[1], sizeof rows[0]) == (id == PAD));
    }
    spw_model_close(&m);
}

int main(void)
{
    static const char *const encoders[] = {"t5_relu",        "t5_gated",    "umt5_buckets",
                                           "bart_plain",     "bart_bare",   "marian_apart",
                                           "pegasus_stored", "mbart_plain", "whisper_plain"};
    static const enum spw_dtype computes[] = {SPW_DTYPE_AUTO, SPW_DTYPE_F32, SPW_DTYPE_BF16};
    uint64_t seed = check_seed();
    int64_t outstanding = spw_alloc_outstanding();
    for (int i = 0; i < N_TINY_MODELS; i++) {
        char dir[128];
        run_folder(dir, &tiny_models[i], "weights");
        for (int k = 0; k < 3; k++) {
            struct spw_options o = {.compute = computes[k]};
            struct spw_model m;
            struct spw_error err = {0};
            CHECK_MSG(spw_model_open(&m, dir, &o, &err) == 0, "%s", err.text);
            CHECK_MSG(spw_weights_prepare(m.weights, &err) == 0, "%s", err.text);
            for (uint32_t u = 0; u < m.weights->n_blocks + m.weights->n_expert_blocks; u++)
                check_block(&m, &tiny_models[i], u);
            check_embeddings(&m, &seed);
            check_small(m.weights);
            spw_model_close(&m);
        }
        tiny_model_remove(dir);
    }
    for (size_t i = 0; i < sizeof encoders / sizeof *encoders; i++)
        check_names(encoders[i]);
    check_pad();
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
