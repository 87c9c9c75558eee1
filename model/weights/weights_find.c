/* Finds the tensors of a model in its files: see weights_parts.h. */
#include "base/numbers.h"
#include "model/weights/weights_parts.h"
#include "quant/types.h"

#include <stdio.h>
#include <string.h>

int spw_find_prefix(struct spw_finder *f)
{
    static const char *const always[] = {"embed_tokens.weight", "layers.0.self_attn.q_proj.weight",
                                         "norm.weight"};
    char name[128];
    for (size_t i = 0; i < sizeof always / sizeof *always * SPW_TENSOR_PREFIXES; i++) {
        const struct spw_tensor_prefix *prefix = &spw_tensor_prefixes[i % SPW_TENSOR_PREFIXES];
        snprintf(name, sizeof name, "%s%s", prefix->decoder, always[i / SPW_TENSOR_PREFIXES]);
        if (spw_tensors_find(f->tensors, name)) {
            f->prefix = prefix;
            return 0;
        }
    }
    return spw_fail(
        f->err, -EINVAL,
        "model weights: no tensor model.embed_tokens.weight; is this a language model of "
        "a supported family?");
}

#define TYPE_NAME(id, name, elements, bytes, align, multiplies) " " #id
static const char auto_and_types[] = SPW_TYPES(TYPE_NAME); /* " AUTO F32 F16 ..." */

static void describe_shape(char out[160], const uint64_t *shape, uint32_t n)
{
    out[0] = 0;
    for (uint32_t i = 0; i < n; i++)
        snprintf(out + strlen(out), 160 - strlen(out), "%s%llu", i ? ", " : "",
                 (unsigned long long)shape[i]);
}

static int check_type(const struct spw_finder *f, const struct spw_tensor *t)
{
    if (t->dtype != SPW_DTYPE_AUTO)
        return 0;
    return spw_fail(f->err, -EINVAL, "%s: tensor %s: dtype %s, expected one of%s", t->file,
                    t->own_name, t->dtype_name, auto_and_types + strlen(" AUTO"));
}

static int check_shape(const struct spw_finder *f, const struct spw_tensor *t,
                       const uint64_t *shape, uint32_t n_dims)
{
    char found[160], expected[160];
    if (t->n_dims == n_dims && !memcmp(t->shape, shape, n_dims * sizeof *shape))
        return 0;
    describe_shape(found, t->shape, t->n_dims);
    describe_shape(expected, shape, n_dims);
    return spw_fail(f->err, -EINVAL, "%s: tensor %s: shape [%s], the config says [%s]", t->file,
                    t->own_name, found, expected);
}

static int find_any(const struct spw_finder *f, const char *name, const struct spw_tensor **out)
{
    char own[SPW_MOST_OWN_NAME];
    *out = spw_tensors_find(f->tensors, name);
    if (!*out) {
        spw_tensors_own_name(f->tensors, name, own);
        return spw_fail(f->err, -EINVAL, "%s%s: found no tensor %s, which the config calls for",
                        spw_tensors_path(f->tensors, 0),
                        spw_tensors_n_files(f->tensors) > 1 ? " and the files beside it" : "", own);
    }
    if (f->found)
        f->found[*out - spw_tensors_at(f->tensors, 0)] = true;
    return 0;
}

static int find_shape(const struct spw_finder *f, const char *name, const uint64_t *shape,
                      uint32_t n_dims, const struct spw_tensor **out)
{
    SPW_TRY(find_any(f, name, out));
    SPW_TRY(check_type(f, *out));
    return check_shape(f, *out, shape, n_dims);
}

/* cols 0: a vector. */
int spw_find_tensor(const struct spw_finder *f, const char *name, uint64_t rows, uint64_t cols,
                    const struct spw_tensor **out)
{
    return find_shape(f, name, (const uint64_t[]){rows, cols}, cols ? 2 : 1, out);
}

int spw_find_in_decoder(const struct spw_finder *f, const char *name, uint64_t n,
                        const struct spw_tensor **out)
{
    char own[SPW_MOST_TENSOR_NAME], full[2 * SPW_MOST_TENSOR_NAME];
    spw_tensor_own_name(f->names, name, own);
    snprintf(full, sizeof full, "%s%s", f->prefix->decoder, own);
    return spw_find_tensor(f, full, n, 0, out);
}

static void name_in_layer(const struct spw_finder *f, uint32_t layer, const char *name,
                          char out[160])
{
    char own[SPW_MOST_TENSOR_NAME];
    spw_tensor_own_name(f->names, name, own);
    snprintf(out, 160, "%slayers.%u.%.100s", f->prefix->decoder, layer, own);
}

int spw_find_in_layer(const struct spw_finder *f, uint32_t layer, const char *name, uint64_t rows,
                      uint64_t cols, const struct spw_tensor **out)
{
    char full[160];
    name_in_layer(f, layer, name, full);
    return spw_find_tensor(f, full, rows, cols, out);
}

int spw_find_stacked(const struct spw_finder *f, uint32_t layer, const char *name, uint64_t n,
                     uint64_t rows, uint64_t cols, const struct spw_tensor **out)
{
    char full[160];
    name_in_layer(f, layer, name, full);
    return find_shape(f, full, (const uint64_t[]){n, rows, cols}, 3, out);
}

int spw_find_bytes(const struct spw_finder *f, uint32_t layer, const char *name,
                   const uint64_t *shape, uint32_t n_dims, const struct spw_tensor **out)
{
    char full[160];
    name_in_layer(f, layer, name, full);
    SPW_TRY(find_any(f, full, out));
    if (strcmp((*out)->dtype_name, "U8") != 0)
        return spw_fail(f->err, -EINVAL, "%s: tensor %s: dtype %s, expected U8", (*out)->file,
                        (*out)->own_name, (*out)->dtype_name);
    return check_shape(f, *out, shape, n_dims);
}

const struct spw_tensor *spw_find_by_layer(const struct spw_finder *f, uint32_t layer,
                                           const char *name)
{
    char full[160];
    name_in_layer(f, layer, name, full);
    return spw_tensors_find(f->tensors, full);
}

static bool is_fp8(const struct spw_tensor *t)
{
    return t->dtype == SPW_DTYPE_F8_E4M3 || t->dtype == SPW_DTYPE_F8_E5M2;
}

/* The factors of an FP8 matrix, if config.json says that there are some. */
int spw_find_scale(const struct spw_finder *f, const struct spw_model_config *c,
                   const struct spw_tensor *t, const struct spw_tensor **out)
{
    char name[192];
    *out = NULL;
    if (!c->fp8_scaled || !is_fp8(t))
        return 0;
    snprintf(name, sizeof name, "%.160s_scale_inv", t->name);
    const struct spw_tensor *scale = spw_tensors_find(f->tensors, name);
    *out = scale;
    if (scale && !c->fp8_block[0] && scale->n_dims < 2) { /* one factor for all, of any shape */
        if (f->found)
            f->found[scale - spw_tensors_at(f->tensors, 0)] = true;
        if (scale->dtype != SPW_DTYPE_AUTO && scale->bytes == spw_dtype_bytes(scale->dtype))
            return 0;
    }
    return spw_find_tensor(f, name, c->fp8_block[0] ? spw_div_up(t->shape[0], c->fp8_block[0]) : 1,
                           c->fp8_block[1] ? spw_div_up(t->shape[1], c->fp8_block[1]) : 1, out);
}

int spw_find_table_type(const struct spw_finder *f, const struct spw_model_config *c,
                        const struct spw_tensor *t)
{
    if (!c->fp8_scaled || !is_fp8(t))
        return 0;
    return spw_fail(f->err, -EINVAL,
                    "%s: tensor %s: dtype %s, expected an embedding of 16 bits or more: only "
                    "products have factors for FP8",
                    t->file, t->own_name, t->dtype_name);
}

/* The output matrix and the embedding. If the file has both, both are used, whatever
 * tie_word_embeddings says: equal matrices give the same logits, and for different ones
 * transformers does the same. */
int spw_find_ends(const struct spw_finder *f, const struct spw_model_config *c,
                  const struct spw_tensor **embedding, const struct spw_tensor **head)
{
    char embedding_name[160], name[64], other[64];
    snprintf(embedding_name, sizeof embedding_name, "%sembed_tokens.weight", f->prefix->decoder);
    snprintf(name, sizeof name, "%sweight", f->prefix->head);
    for (size_t i = 0; i < SPW_TENSOR_PREFIXES; i++) {
        snprintf(other, sizeof other, "%sweight", spw_tensor_prefixes[i].head);
        if (spw_tensors_find(f->tensors, other))
            memcpy(name, other, sizeof name);
    }
    bool has_embedding = spw_tensors_find(f->tensors, embedding_name);
    bool has_head = spw_tensors_find(f->tensors, name);
    bool tied = c->tied_embeddings;
    SPW_TRY(spw_find_tensor(f, tied && !has_embedding && has_head ? name : embedding_name, c->vocab,
                            c->hidden, embedding));
    SPW_TRY(spw_find_table_type(f, c, *embedding));
    return spw_find_tensor(f, tied && !has_head ? embedding_name : name, c->vocab, c->hidden, head);
}

/* Files also have these of layers that read the keys and values of another layer. transformers
 * ignores them, too. */
static bool is_unused_kv(const char *name)
{
    static const char *const unused[] = {"self_attn.k_proj.", "self_attn.v_proj.",
                                         "self_attn.k_norm."};
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++)
        if (!strncmp(name, unused[i], strlen(unused[i])))
            return true;
    return false;
}

/* A tensor of the decoder that nothing reads may be a bias, a norm or a layer that the config does
 * not mention: without it the answer would be that of another model. Exceptions are tensors that
 * old writers stored beside the weights, and scales of FP8 activations, which are not quantized
 * here. */
static bool must_be_read(const struct spw_finder *f, const struct spw_model_config *c,
                         const char *name)
{
    const char *head = strstr(name, "lm_head.");
    if (head && (head == name || strncmp(name, "language_model.", 15) == 0))
        return true;
    if (c->fp8_scaled && strstr(name, ".activation_scale"))
        return false;
    const char *prefix = f->prefix->decoder;
    if (strncmp(name, prefix, strlen(prefix)) != 0 || strstr(name, "rotary_emb."))
        return false;
    if (c->n_more_layers && !strncmp(name + strlen(prefix), "mtp_", 4))
        return false;
    unsigned layer;
    int end = 0;
    if (sscanf(name + strlen(prefix), "layers.%5u.%n", &layer, &end) != 1)
        return true;
    if (layer >= c->n_layers)
        return layer - c->n_layers >= c->n_more_layers;
    return spw_config_stores_kv(c, layer) || !is_unused_kv(name + strlen(prefix) + end);
}

int spw_find_check_all(const struct spw_finder *f, const struct spw_model_config *c)
{
    for (size_t i = 0; i < spw_tensors_count(f->tensors); i++) {
        const struct spw_tensor *t = spw_tensors_at(f->tensors, i);
        if (!f->found[i] && must_be_read(f, c, t->name))
            return spw_fail(f->err, -EINVAL,
                            "%s: tensor %s: found it, but the config (model_type %s, %u layers) "
                            "does not call for it; expected the config of these weights",
                            t->file, t->own_name, c->model_type, c->n_layers);
    }
    return 0;
}
