/* From tensors in a file to units on a device: see weights.h.
 *
 * A source is one tensor and its place in its unit; it becomes one piece. Layers come first, each
 * in the order q k v o gate up down, then the rows of the output matrix cut into blocks. */
#include "model/weights.h"

#include "base/numbers.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct spw_weight_source {
    const struct spw_tensor *tensor;
    const struct spw_tensor *scale; /* of an FP8 matrix: factors of its blocks; NULL: none */
    uint64_t first, n;              /* elements of the tensor */
    uint64_t offset;                /* in the unit, bytes */
};

enum { LAYER_SOURCES = 7, UNIT_ALIGN = 64 };

static const uint8_t *source_data(const struct spw_weight_source *s)
{
    return (const uint8_t *)s->tensor->data + s->first * spw_dtype_bytes(s->tensor->dtype);
}

static uint64_t source_bytes(const struct spw_weight_source *s)
{
    return s->n * spw_dtype_bytes(s->tensor->dtype);
}

/* ---- finding tensors ---- */

struct finder {
    const struct spw_safetensors *file;
    const char *prefix; /* "model.", or what a multimodal wrapper puts in front */
    bool *found;        /* by tensor of the file; may be NULL */
    struct spw_error *err;
};

/* The decoder's tensors carry one of these in front, by age of the writer; none where the decoder
 * was saved without its head. */
static const char *const prefixes[] = {"model.", "language_model.model.", "model.language_model.",
                                       ""};
/* Where the output matrix stands. */
static const char *const heads[] = {"lm_head.weight", "language_model.lm_head.weight"};
enum { N_PREFIXES = sizeof prefixes / sizeof *prefixes, N_HEADS = sizeof heads / sizeof *heads };

static int find_prefix(struct finder *f)
{
    static const char *const always[] = {"embed_tokens.weight", "norm.weight"};
    char name[128];
    for (size_t i = 0; i < 2 * N_PREFIXES; i++) {
        snprintf(name, sizeof name, "%s%s", prefixes[i % N_PREFIXES], always[i / N_PREFIXES]);
        if (spw_safetensors_find(f->file, name)) {
            f->prefix = prefixes[i % N_PREFIXES];
            return 0;
        }
    }
    return spw_fail(f->err, -EINVAL,
                    "model weights: no tensor model.embed_tokens.weight; is this a language model "
                    "folder of a supported family?");
}

static int check_shape(const struct finder *f, const struct spw_tensor *t, uint64_t rows,
                       uint64_t cols)
{
    bool matrix = cols > 0;
    if (t->dtype == SPW_DTYPE_AUTO)
        return spw_fail(f->err, -EINVAL,
                        "%s: tensor %s: dtype %s, expected F64, F32, F16, BF16, F8_E4M3 or F8_E5M2",
                        t->file, t->name, t->dtype_name);
    if (t->n_dims == (matrix ? 2 : 1) && t->shape[0] == rows && (!matrix || t->shape[1] == cols))
        return 0;
    char found[160] = "";
    for (uint32_t i = 0; i < t->n_dims; i++)
        snprintf(found + strlen(found), sizeof found - strlen(found), "%s%llu", i ? ", " : "",
                 (unsigned long long)t->shape[i]);
    char expected[64];
    if (matrix)
        snprintf(expected, sizeof expected, "%llu, %llu", (unsigned long long)rows,
                 (unsigned long long)cols);
    else
        snprintf(expected, sizeof expected, "%llu", (unsigned long long)rows);
    return spw_fail(f->err, -EINVAL, "%s: tensor %s: shape [%s], config.json says [%s]", t->file,
                    t->name, found, expected);
}

/* cols 0: a vector. */
static int find(const struct finder *f, const char *name, uint64_t rows, uint64_t cols,
                const struct spw_tensor **out)
{
    *out = spw_safetensors_find(f->file, name);
    if (!*out)
        return spw_fail(f->err, -EINVAL, "model weights: no tensor %s, which config.json calls for",
                        name);
    if (f->found)
        f->found[*out - spw_safetensors_at(f->file, 0)] = true;
    return check_shape(f, *out, rows, cols);
}

static int find_in_layer(const struct finder *f, uint32_t layer, const char *name, uint64_t rows,
                         uint64_t cols, const struct spw_tensor **out)
{
    char full[160];
    snprintf(full, sizeof full, "%slayers.%u.%s", f->prefix, layer, name);
    return find(f, full, rows, cols, out);
}

/* ---- matrices ---- */

static const char *const matrix_names[LAYER_SOURCES] = {
    "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
    "self_attn.o_proj.weight", "mlp.gate_proj.weight",    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
};

static void matrix_shapes(const struct spw_model_config *c, uint64_t shapes[LAYER_SOURCES][2])
{
    uint64_t q = (uint64_t)c->n_heads * c->head_dim, kv = (uint64_t)c->n_kv_heads * c->head_dim;
    uint64_t all[LAYER_SOURCES][2] = {
        {q, c->hidden},
        {kv, c->hidden},
        {kv, c->hidden},
        {c->hidden, q},
        {c->intermediate, c->hidden},
        {c->intermediate, c->hidden},
        {c->hidden, c->intermediate},
    };
    memcpy(shapes, all, sizeof all);
}

/* The factors of an FP8 matrix's blocks, where config.json says that there are some. */
static int find_scale(const struct finder *f, const struct spw_model_config *c,
                      const struct spw_tensor *t, const struct spw_tensor **out)
{
    char name[192];
    bool fp8 = t->dtype == SPW_DTYPE_F8_E4M3 || t->dtype == SPW_DTYPE_F8_E5M2;
    *out = NULL;
    if (!c->fp8_scaled || !fp8)
        return 0;
    snprintf(name, sizeof name, "%.160s_scale_inv", t->name);
    const struct spw_tensor *scale = spw_safetensors_find(f->file, name);
    *out = scale;
    if (scale && !c->fp8_block[0] && scale->n_dims < 2) { /* one factor for all, of any shape */
        if (f->found)
            f->found[scale - spw_safetensors_at(f->file, 0)] = true;
        if (scale->dtype != SPW_DTYPE_AUTO && scale->bytes == spw_dtype_bytes(scale->dtype))
            return 0;
    }
    return find(f, name, c->fp8_block[0] ? spw_div_up(t->shape[0], c->fp8_block[0]) : 1,
                c->fp8_block[1] ? spw_div_up(t->shape[1], c->fp8_block[1]) : 1, out);
}

/* The output matrix and the embedding. Where the file has both, both are used, whatever
 * tie_word_embeddings says: if they are equal that gives the same logits, and if not it is what
 * transformers does. */
static int find_ends(struct spw_weights *w, const struct finder *f, const struct spw_tensor **head)
{
    const struct spw_model_config *c = w->config;
    char embedding[160];
    const char *name = heads[!strncmp(f->prefix, "language_model.", 15)];
    snprintf(embedding, sizeof embedding, "%sembed_tokens.weight", f->prefix);
    for (size_t i = 0; i < N_HEADS; i++)
        if (spw_safetensors_find(f->file, heads[i]))
            name = heads[i];
    bool has_embedding = spw_safetensors_find(f->file, embedding);
    bool has_head = spw_safetensors_find(f->file, name);
    bool tied = c->tied_embeddings;
    SPW_TRY(find(f, tied && !has_embedding && has_head ? name : embedding, c->vocab, c->hidden,
                 &w->embedding));
    if (c->fp8_scaled && spw_dtype_bytes(w->embedding->dtype) == 1)
        return spw_fail(f->err, -EINVAL,
                        "%s: tensor %s: dtype %s, expected an embedding of 16 bits or more: only "
                        "products have factors for FP8",
                        w->embedding->file, w->embedding->name, w->embedding->dtype_name);
    return find(f, tied && !has_head ? embedding : name, c->vocab, c->hidden, head);
}

static int find_matrices(struct spw_weights *w, const struct finder *f,
                         const struct spw_tensor **head)
{
    const struct spw_model_config *c = w->config;
    uint64_t shapes[LAYER_SOURCES][2];
    matrix_shapes(c, shapes);
    for (uint32_t l = 0; l < c->n_layers; l++)
        for (int i = 0; i < LAYER_SOURCES; i++) {
            struct spw_weight_source *s = &w->sources[l * LAYER_SOURCES + (uint32_t)i];
            SPW_TRY(find_in_layer(f, l, matrix_names[i], shapes[i][0], shapes[i][1], &s->tensor));
            s->n = shapes[i][0] * shapes[i][1];
            SPW_TRY(find_scale(f, c, s->tensor, &s->scale));
        }
    return find_ends(w, f, head);
}

/* One type for all matrices: bf16 computes with bf16; f32 takes what the file has, if it is one. */
static enum spw_dtype choose_dtype(const struct spw_weights *w, const struct spw_tensor *head,
                                   enum spw_dtype compute)
{
    if (compute == SPW_DTYPE_BF16)
        return SPW_DTYPE_BF16;
    for (uint32_t i = 0; i < w->config->n_layers * LAYER_SOURCES; i++)
        if (w->sources[i].tensor->dtype != head->dtype)
            return SPW_DTYPE_F32;
    return head->dtype >= SPW_DTYPE_F64 ? SPW_DTYPE_F32 : head->dtype;
}

static void lay_out_layer(struct spw_weights *w)
{
    uint64_t shapes[LAYER_SOURCES][2], at[LAYER_SOURCES], end = 0;
    matrix_shapes(w->config, shapes);
    for (int i = 0; i < LAYER_SOURCES; i++) {
        bool joined = i == 1 || i == 2 || i == 5; /* k and v follow q, up follows gate */
        at[i] = joined ? end : spw_align_up(end, UNIT_ALIGN);
        end = at[i] + shapes[i][0] * shapes[i][1] * spw_dtype_bytes(w->dtype);
    }
    w->layer_bytes = end;
    for (uint32_t i = 0; i < w->config->n_layers * LAYER_SOURCES; i++)
        w->sources[i].offset = at[i % LAYER_SOURCES];
}

static uint64_t head_row_bytes(const struct spw_weights *w)
{
    return (uint64_t)w->config->hidden * spw_dtype_bytes(w->dtype);
}

/* Rows of one head block: a layer's worth, in whole kernel tiles where there are that many. */
static uint32_t head_block_rows(const struct spw_weights *w)
{
    uint64_t rows = w->layer_bytes / head_row_bytes(w);
    if (rows > 64)
        rows -= rows % 64;
    return (uint32_t)spw_min_u64(spw_max_u64(rows, 1), w->config->vocab);
}

static void cut_head(struct spw_weights *w, const struct spw_tensor *head,
                     const struct spw_tensor *scale)
{
    uint32_t n_layer_sources = w->config->n_layers * LAYER_SOURCES;
    for (uint32_t b = 0; b < w->n_units - w->config->n_layers; b++) {
        uint32_t row = b * w->head_block_rows, left = w->config->vocab - row;
        uint32_t rows = left < w->head_block_rows ? left : w->head_block_rows;
        w->sources[n_layer_sources + b] = (struct spw_weight_source){
            .tensor = head,
            .scale = scale,
            .first = (uint64_t)row * w->config->hidden,
            .n = (uint64_t)rows * w->config->hidden,
        };
    }
}

static int open_matrices(struct spw_weights *w, const struct finder *f, enum spw_dtype compute)
{
    const struct spw_model_config *c = w->config;
    const struct spw_tensor *head, *scale;
    /* A head block holds at least one row, so this many sources are always enough. */
    uint32_t n_layer_sources = c->n_layers * LAYER_SOURCES;
    w->sources = spw_alloc_zero(n_layer_sources + c->vocab, sizeof *w->sources);
    if (!w->sources)
        return -ENOMEM;
    SPW_TRY(find_matrices(w, f, &head));
    SPW_TRY(find_scale(f, c, head, &scale));
    w->dtype = choose_dtype(w, head, compute);
    lay_out_layer(w);
    w->head_block_rows = head_block_rows(w);
    w->n_units = c->n_layers + (uint32_t)spw_div_up(c->vocab, w->head_block_rows);
    w->n_sources = n_layer_sources + w->n_units - c->n_layers;
    cut_head(w, head, scale);
    w->pieces = spw_alloc_zero(w->n_sources, sizeof *w->pieces);
    w->unit_pieces = spw_alloc_zero(w->n_units + 1, sizeof *w->unit_pieces);
    w->mapped = spw_alloc_zero(w->n_units, sizeof *w->mapped);
    if (!w->pieces || !w->unit_pieces || !w->mapped)
        return -ENOMEM;
    for (uint32_t i = 0; i < w->n_sources; i++) /* means nothing where the type is another */
        w->pieces[i] = (struct spw_piece){
            .from = source_data(&w->sources[i]),
            .offset = w->sources[i].offset,
            .bytes = w->sources[i].n * spw_dtype_bytes(w->dtype),
        };
    for (uint32_t u = 0; u <= w->n_units; u++)
        w->unit_pieces[u] =
            u <= c->n_layers ? u * LAYER_SOURCES : n_layer_sources + (u - c->n_layers);
    return 0;
}

/* ---- the small block ---- */

static float element(const struct spw_tensor *t, uint64_t i)
{
    float f;
    uint16_t half;
    double wide;
    switch (t->dtype) {
    case SPW_DTYPE_F32:
        memcpy(&f, (const uint8_t *)t->data + 4 * i, sizeof f);
        return f;
    case SPW_DTYPE_F64:
        memcpy(&wide, (const uint8_t *)t->data + 8 * i, sizeof wide);
        return (float)wide;
    case SPW_DTYPE_F8_E4M3:
        return spw_f8_e4m3_to_f32(((const uint8_t *)t->data)[i]);
    case SPW_DTYPE_F8_E5M2:
        return spw_f8_e5m2_to_f32(((const uint8_t *)t->data)[i]);
    default:
        break;
    }
    memcpy(&half, (const uint8_t *)t->data + 2 * i, sizeof half);
    return t->dtype == SPW_DTYPE_BF16 ? spw_bf16_to_f32(half) : spw_f16_to_f32(half);
}

/* A vector of the small block: gets its place at open, is read in prepare. */
static int small_tensor(struct spw_weights *w, const struct spw_tensor *t, uint64_t *at)
{
    if (*at == SPW_SMALL_NONE) {
        *at = w->n_small;
        w->n_small += t->shape[0];
    }
    if (!w->small)
        return 0;
    for (uint64_t i = 0; i < t->shape[0]; i++)
        w->small[*at + i] = element(t, i);
    spw_safetensors_release(t->data, t->bytes);
    return 0;
}

static int small_vector(struct spw_weights *w, const struct finder *f, uint32_t layer,
                        const char *name, uint64_t n, uint64_t *at)
{
    const struct spw_tensor *t;
    SPW_TRY(find_in_layer(f, layer, name, n, 0, &t));
    return small_tensor(w, t, at);
}

/* Several tensors that lie side by side: a bias of a joined product. */
static int small_joined(struct spw_weights *w, const struct finder *f, uint32_t layer,
                        const char *const names[], const uint64_t sizes[], int count, uint64_t *at)
{
    uint64_t start = *at == SPW_SMALL_NONE ? w->n_small : *at, next = start;
    for (int i = 0; i < count; i++) {
        uint64_t here = *at == SPW_SMALL_NONE ? SPW_SMALL_NONE : next;
        SPW_TRY(small_vector(w, f, layer, names[i], sizes[i], &here));
        next += sizes[i];
    }
    *at = start;
    return 0;
}

static int small_biases(struct spw_weights *w, const struct finder *f, uint32_t layer,
                        struct spw_layer_small *s)
{
    const struct spw_model_config *c = w->config;
    uint64_t q = (uint64_t)c->n_heads * c->head_dim, kv = (uint64_t)c->n_kv_heads * c->head_dim;
    if (c->qkv_bias)
        SPW_TRY(small_joined(w, f, layer,
                             (const char *const[]){"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                                   "self_attn.v_proj.bias"},
                             (const uint64_t[]){q, kv, kv}, 3, &s->qkv_bias));
    if (c->o_bias)
        SPW_TRY(small_vector(w, f, layer, "self_attn.o_proj.bias", c->hidden, &s->o_bias));
    if (c->mlp_bias) {
        SPW_TRY(small_joined(
            w, f, layer, (const char *const[]){"mlp.gate_proj.bias", "mlp.up_proj.bias"},
            (const uint64_t[]){c->intermediate, c->intermediate}, 2, &s->gate_up_bias));
        SPW_TRY(small_vector(w, f, layer, "mlp.down_proj.bias", c->hidden, &s->down_bias));
    }
    return 0;
}

static int small_layer(struct spw_weights *w, const struct finder *f, uint32_t layer)
{
    const struct spw_model_config *c = w->config;
    struct spw_layer_small *s = &w->small_layers[layer];
    SPW_TRY(small_vector(w, f, layer, "input_layernorm.weight", c->hidden, &s->attention_norm));
    SPW_TRY(small_vector(w, f, layer,
                         c->sandwich ? "pre_feedforward_layernorm.weight"
                                     : "post_attention_layernorm.weight",
                         c->hidden, &s->mlp_norm));
    if (c->sandwich) {
        SPW_TRY(small_vector(w, f, layer, "post_attention_layernorm.weight", c->hidden,
                             &s->after_attention_norm));
        SPW_TRY(small_vector(w, f, layer, "post_feedforward_layernorm.weight", c->hidden,
                             &s->after_mlp_norm));
    }
    if (c->qk_norm) {
        SPW_TRY(small_vector(w, f, layer, "self_attn.q_norm.weight", c->head_dim, &s->q_norm));
        SPW_TRY(small_vector(w, f, layer, "self_attn.k_norm.weight", c->head_dim, &s->k_norm));
    }
    return small_biases(w, f, layer, s);
}

/* Walks all small tensors: the first time it checks and lays out, the second time it reads. */
static int walk_small(struct spw_weights *w, const struct finder *f)
{
    const struct spw_tensor *norm;
    char name[160];
    for (uint32_t l = 0; l < w->config->n_layers; l++)
        SPW_TRY(small_layer(w, f, l));
    snprintf(name, sizeof name, "%snorm.weight", f->prefix);
    SPW_TRY(find(f, name, w->config->hidden, 0, &norm));
    SPW_TRY(small_tensor(w, norm, &w->final_norm));
    for (int k = 0; k < SPW_LAYER_KINDS && !w->small; k++) {
        w->inv_freq[k] = w->n_small;
        w->n_small += w->config->rope[k].rotary_dim / 2;
    }
    return 0;
}

static int open_small(struct spw_weights *w, const struct finder *f)
{
    uint32_t n = w->config->n_layers;
    w->small_layers = spw_alloc(n * sizeof *w->small_layers);
    if (!w->small_layers)
        return -ENOMEM;
    memset(w->small_layers, 0xff, n * sizeof *w->small_layers); /* all SPW_SMALL_NONE */
    w->final_norm = SPW_SMALL_NONE;
    return walk_small(w, f);
}

/* ---- nothing is passed over ---- */

/* A tensor of the decoder that nothing reads is a bias, a norm or a layer that config.json does not
 * own up to: the answer without it would be another model's. What old writers kept beside the
 * weights is none, nor are the scales for activations in FP8, which are not quantized here. */
static bool must_be_read(const struct spw_weights *w, const struct finder *f, const char *name)
{
    const char *head = strstr(name, "lm_head.");
    if (head && (head == name || strncmp(name, "language_model.", 15) == 0))
        return true;
    if (w->config->fp8_scaled && strstr(name, ".activation_scale"))
        return false;
    return strncmp(name, f->prefix, strlen(f->prefix)) == 0 && !strstr(name, "rotary_emb.");
}

static int check_all_read(const struct spw_weights *w, const struct finder *f)
{
    for (size_t i = 0; i < spw_safetensors_count(f->file); i++) {
        const struct spw_tensor *t = spw_safetensors_at(f->file, i);
        if (!f->found[i] && must_be_read(w, f, t->name))
            return spw_fail(f->err, -EINVAL,
                            "%s: tensor %s: found it, but config.json (model_type %s, %u layers) "
                            "does not call for it; expected the config of these weights",
                            t->file, t->name, w->config->model_type, w->config->n_layers);
    }
    return 0;
}

/* ---- open, prepare ---- */

int spw_weights_open(struct spw_weights **out, const struct spw_model_config *config,
                     const struct spw_safetensors *file, enum spw_dtype compute,
                     struct spw_error *err)
{
    struct spw_weights *w = spw_alloc_zero(1, sizeof *w);
    if (!w)
        return spw_fail(err, -ENOMEM, "out of memory for the table of weights");
    w->config = config;
    w->file = file;
    struct finder f = {.file = file, .err = err};
    f.found = spw_alloc_zero(spw_safetensors_count(file), sizeof *f.found);
    int rc = f.found ? find_prefix(&f) : -ENOMEM;
    if (!rc)
        rc = open_matrices(w, &f, compute);
    if (!rc)
        rc = open_small(w, &f);
    if (!rc)
        rc = check_all_read(w, &f);
    spw_free(f.found);
    if (rc) {
        spw_weights_close(w);
        return spw_fail(err, rc, "out of memory for the table of weights");
    }
    *out = w;
    return 0;
}

void spw_weights_close(struct spw_weights *w)
{
    if (!w)
        return;
    spw_free(w->sources);
    spw_free(w->pieces);
    spw_free(w->unit_pieces);
    spw_free(w->mapped);
    spw_free(w->small_layers);
    spw_free(w->small);
    spw_free(w);
}

/* The factor of the block that the element lies in; block 0: there is one for the whole matrix. */
static float scale_of(const struct spw_weight_source *s, const uint32_t block[2], uint64_t i)
{
    uint64_t cols = s->tensor->shape[1];
    if (!block[0])
        return element(s->scale, 0);
    return element(s->scale,
                   i / cols / block[0] * spw_div_up(cols, block[1]) + i % cols / block[1]);
}

static void convert(const struct spw_weight_source *s, const uint32_t block[2], enum spw_dtype to,
                    void *out)
{
    float *f32 = out;
    uint16_t *bf16 = out;
    for (uint64_t i = 0; i < s->n; i++) {
        float value = element(s->tensor, s->first + i);
        if (s->scale)
            value *= scale_of(s, block, s->first + i);
        if (to == SPW_DTYPE_F32)
            f32[i] = value;
        else
            bf16[i] = spw_f32_to_bf16(value);
    }
}

int spw_weights_prepare(struct spw_weights *w, struct spw_error *err)
{
    struct finder f = {.file = w->file, .err = err};
    SPW_TRY(find_prefix(&f));
    w->small = spw_alloc_zero(w->n_small, sizeof *w->small);
    if (!w->small)
        return spw_fail(err, -ENOMEM, "out of memory for norms and biases");
    SPW_TRY(walk_small(w, &f));
    return spw_weights_rope(w, 1, err);
}

/* ---- units ---- */

/* [first, end) of w->sources. */
struct span {
    uint32_t first, end;
};

static struct span unit_sources(const struct spw_weights *w, uint32_t unit)
{
    return (struct span){w->unit_pieces[unit], w->unit_pieces[unit + 1]};
}

uint64_t spw_weights_unit_bytes(const struct spw_weights *w, uint32_t unit)
{
    if (unit < w->config->n_layers)
        return w->layer_bytes;
    return w->pieces[w->unit_pieces[unit]].bytes;
}

uint64_t spw_weights_unit_stored_bytes(const struct spw_weights *w, uint32_t unit)
{
    struct span s = unit_sources(w, unit);
    uint64_t n = 0;
    for (uint32_t i = s.first; i < s.end; i++)
        n += w->pieces[i].bytes;
    return n;
}

bool spw_weights_unit_as_stored(const struct spw_weights *w, uint32_t unit)
{
    struct span s = unit_sources(w, unit);
    for (uint32_t i = s.first; i < s.end; i++)
        if (w->sources[i].tensor->dtype != w->dtype)
            return false;
    return true;
}

void spw_weights_map_unit(struct spw_weights *w, uint32_t unit)
{
    assert(spw_weights_unit_mappable(w, unit));
    w->mapped[unit] = true;
}

bool spw_weights_unit_mappable(const struct spw_weights *w, uint32_t unit)
{
    struct span s = unit_sources(w, unit);
    for (uint32_t i = s.first; i < s.end; i++)
        if ((uintptr_t)w->pieces[i].from % spw_dtype_bytes(w->dtype))
            return false;
    return spw_weights_unit_as_stored(w, unit);
}

uint32_t spw_weights_unit_ranges(const struct spw_weights *w, uint32_t unit,
                                 struct spw_file_range out[SPW_FILE_PARTS],
                                 uint64_t lands[SPW_FILE_PARTS])
{
    struct span s = unit_sources(w, unit);
    struct spw_file_part parts[SPW_FILE_PARTS];
    static_assert((int)LAYER_SOURCES <= (int)SPW_FILE_PARTS, "each matrix of a layer is a part");
    for (uint32_t i = s.first; i < s.end; i++) {
        const struct spw_weight_source *from = &w->sources[i];
        uint64_t at =
            from->tensor->file_offset + from->first * spw_dtype_bytes(from->tensor->dtype);
        parts[i - s.first] =
            (struct spw_file_part){from->tensor->file_index, at, source_bytes(from)};
    }
    return spw_file_ranges(parts, s.end - s.first, out, lands);
}

uint64_t spw_weights_unit_read_bytes(const struct spw_weights *w, uint32_t unit)
{
    struct spw_file_range ranges[SPW_FILE_PARTS];
    uint64_t lands[SPW_FILE_PARTS];
    return spw_file_ranges_bytes(ranges, spw_weights_unit_ranges(w, unit, ranges, lands));
}

void spw_weights_place_unit_as_in_file(struct spw_weights *w, uint32_t unit)
{
    struct span s = unit_sources(w, unit);
    struct spw_file_range ranges[SPW_FILE_PARTS];
    uint64_t lands[SPW_FILE_PARTS];
    assert(spw_weights_unit_mappable(w, unit));
    spw_weights_unit_ranges(w, unit, ranges, lands);
    for (uint32_t i = s.first; i < s.end; i++)
        w->pieces[i].offset = lands[i - s.first];
}

void spw_weights_place_packed(struct spw_weights *w)
{
    for (uint32_t i = 0; i < w->n_sources; i++)
        w->pieces[i].offset = w->sources[i].offset;
    memset(w->mapped, 0, w->n_units * sizeof *w->mapped);
}

void spw_weights_fill_image(const struct spw_weights *w, uint32_t unit, void *image)
{
    struct span s = unit_sources(w, unit);
    for (uint32_t i = s.first; i < s.end; i++) {
        uint8_t *to = (uint8_t *)image + w->sources[i].offset;
        if (w->sources[i].tensor->dtype == w->dtype)
            memcpy(to, w->pieces[i].from, w->pieces[i].bytes);
        else
            convert(&w->sources[i], w->config->fp8_block, w->dtype, to);
    }
    spw_weights_release_unit(w, unit);
}

void spw_weights_populate_unit(const struct spw_weights *w, uint32_t unit)
{
    struct span s = unit_sources(w, unit);
    for (uint32_t i = s.first; i < s.end; i++)
        spw_safetensors_populate(source_data(&w->sources[i]), source_bytes(&w->sources[i]));
}

void spw_weights_release_unit(const struct spw_weights *w, uint32_t unit)
{
    struct span s = unit_sources(w, unit);
    for (uint32_t i = s.first; i < s.end; i++)
        spw_safetensors_release(source_data(&w->sources[i]), source_bytes(&w->sources[i]));
}

void spw_weights_layer(const struct spw_weights *w, uint32_t layer, const uint8_t *packed,
                       struct spw_layer_weights *out)
{
    const struct spw_piece *p = w->pieces + w->unit_pieces[layer];
    const uint8_t *at[LAYER_SOURCES];
    for (int i = 0; i < LAYER_SOURCES; i++)
        at[i] = packed ? packed + p[i].offset : p[i].from;
    *out = (struct spw_layer_weights){at[0], at[1], at[2], at[3], at[4], at[5], at[6]};
}

const uint8_t *spw_weights_head(const struct spw_weights *w, uint32_t unit, const uint8_t *packed)
{
    const struct spw_piece *p = &w->pieces[w->unit_pieces[unit]];
    return packed ? packed + p->offset : p->from;
}

/* ---- use ---- */

int spw_weights_rope(struct spw_weights *w, uint64_t length, struct spw_error *err)
{
    for (int k = 0; k < SPW_LAYER_KINDS; k++) {
        const struct spw_rope_config *r = &w->config->rope[k];
        int rc = spw_rope_frequencies(r, r->rotary_dim, length, w->config->max_positions,
                                      w->small + w->inv_freq[k], &w->rope_scaling[k]);
        if (rc)
            return spw_fail(err, rc, "config.json: rope: a frequency is not finite at length %llu",
                            (unsigned long long)length);
    }
    return 0;
}

/* From this many rows on, one call for all pages; below, one for the pages around each row, as far
 * as the system may have mapped them at once. */
enum { MANY_ROWS = 16, AROUND_BYTES = 2 << 20 };

/* The rows of the embedding that lie in one unit of a tied output matrix, or all. */
static struct span rows_of_unit(const struct spw_weights *w, uint32_t row, bool *mapped)
{
    uint32_t unit = w->config->n_layers + row / w->head_block_rows;
    *mapped = false;
    if (w->sources[w->unit_pieces[unit]].tensor != w->embedding)
        return (struct span){0, w->config->vocab};
    *mapped = w->mapped[unit];
    uint32_t first = row / w->head_block_rows * w->head_block_rows;
    uint32_t left = w->config->vocab - first;
    return (struct span){first, first + (left < w->head_block_rows ? left : w->head_block_rows)};
}

static void release_rows(const struct spw_weights *w, const int32_t *tokens, size_t n)
{
    const uint8_t *data = w->embedding->data;
    uint64_t row_bytes = w->config->hidden * spw_dtype_bytes(w->embedding->dtype);
    bool mapped;
    for (uint32_t row = 0; n >= MANY_ROWS && row < w->config->vocab;) {
        struct span rows = rows_of_unit(w, row, &mapped);
        if (!mapped)
            spw_safetensors_release(data + rows.first * row_bytes,
                                    (rows.end - rows.first) * row_bytes);
        row = rows.end;
    }
    for (size_t i = 0; n < MANY_ROWS && i < n; i++) {
        struct span rows = rows_of_unit(w, (uint32_t)tokens[i], &mapped);
        uint64_t at = (uint32_t)tokens[i] * row_bytes;
        uint64_t begin = spw_max_u64(at / AROUND_BYTES * AROUND_BYTES, rows.first * row_bytes);
        uint64_t end =
            spw_min_u64(spw_align_up(at + row_bytes, AROUND_BYTES), rows.end * row_bytes);
        if (!mapped)
            spw_safetensors_release(data + begin, end - begin);
    }
}

void spw_weights_embed(const struct spw_weights *w, const int32_t *tokens, size_t n,
                       enum spw_dtype compute, void *out)
{
    uint32_t hidden = w->config->hidden;
    float scale = w->config->embedding_scale;
    if (compute == SPW_DTYPE_BF16)
        scale = spw_bf16_to_f32(spw_f32_to_bf16(scale));
    bool as_stored = w->embedding->dtype == compute && scale == 1.0f;
    size_t row_bytes = hidden * spw_dtype_bytes(compute);
    for (size_t i = 0; i < n; i++) {
        uint64_t row = (uint64_t)(uint32_t)tokens[i] * hidden;
        if (as_stored) {
            memcpy((uint8_t *)out + i * row_bytes,
                   (const uint8_t *)w->embedding->data + (uint32_t)tokens[i] * row_bytes,
                   row_bytes);
            continue;
        }
        for (uint32_t c = 0; c < hidden; c++) {
            float value = element(w->embedding, row + c);
            if (compute == SPW_DTYPE_F32)
                ((float *)out)[i * hidden + c] = value * scale;
            else /* the row is rounded before it is scaled, as a bf16 model's lookup is */
                ((uint16_t *)out)[i * hidden + c] =
                    spw_f32_to_bf16(spw_bf16_to_f32(spw_f32_to_bf16(value)) * scale);
        }
    }
    release_rows(w, tokens, n);
}
