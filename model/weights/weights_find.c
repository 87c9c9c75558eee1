/* Finds the tensors of a model in its files: see weights_parts.h. */
#include "base/numbers.h"
#include "model/weights/weights_parts.h"
#include "quant/types.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct spw_named {
    char name[SPW_MOST_TENSOR_NAME];
    const struct spw_tensor *tensor;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct spw_named *)a)->name, ((const struct spw_named *)b)->name);
}

/* The usual name of a tensor that the model reads. */
static bool usual_name(const struct spw_finder *f, const struct spw_model_config *c,
                       const char *name, char out[SPW_MOST_TENSOR_NAME])
{
    if (c->n_source_layers)
        return spw_tensor_stack_name(f->tensors, f->prefix, name, c, out);
    return (c->mtp && spw_tensor_mtp_name(name, c->n_layers - 1, out)) ||
           spw_tensor_usual_name(f->prefix, name, out);
}

int spw_finder_open(struct spw_finder *f, const struct spw_model_config *c)
{
    const size_t n = spw_tensors_count(f->tensors);
    f->config = c;
    f->prefix = spw_tensor_prefix(f->tensors);
    if (!f->prefix)
        return spw_fail(f->err, -EINVAL,
                        "model weights: no tensor model.embed_tokens.weight; is this a language "
                        "model of a supported family?");
    f->named = spw_alloc(n * sizeof *f->named);
    if (!f->named)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        struct spw_named *named = &f->named[f->n];
        named->tensor = spw_tensors_at(f->tensors, i);
        f->n += usual_name(f, c, named->tensor->name, named->name);
    }
    qsort(f->named, f->n, sizeof *f->named, compare_names);
    if (!c->mtp || spw_tensors_have_mtp(f->tensors, c->n_layers - 1))
        return 0;
    return spw_fail(f->err, -EINVAL,
                    "%s: found no layer that predicts further tokens (MTP) and could propose "
                    "drafts; expected other options.drafts",
                    spw_tensors_path(f->tensors, 0));
}

static const struct spw_tensor *look_up(const struct spw_finder *f, const char *name)
{
    struct spw_named key;
    snprintf(key.name, sizeof key.name, "%s", name);
    const struct spw_named *found =
        f->n ? bsearch(&key, f->named, f->n, sizeof key, compare_names) : NULL;
    return found ? found->tensor : NULL;
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
    *out = look_up(f, name);
    if (!*out) {
        if (f->config->n_source_layers)
            spw_tensor_stack_own_name(f->tensors, f->prefix, name, f->config, own);
        else
            spw_tensor_own_name(f->tensors, f->prefix, name, own);
        return spw_fail(f->err, -EINVAL, "%s%s: found no tensor %s, which the config calls for",
                        spw_tensors_path(f->tensors, 0),
                        spw_tensors_n_files(f->tensors) > 1 ? " and the files beside it" : "", own);
    }
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

static void name_in_layer(uint32_t layer, const char *name, char out[SPW_MOST_TENSOR_NAME])
{
    snprintf(out, SPW_MOST_TENSOR_NAME, "model.layers.%u.%s", layer, name);
}

int spw_find_in_layer(const struct spw_finder *f, uint32_t layer, const char *name, uint64_t rows,
                      uint64_t cols, const struct spw_tensor **out)
{
    char full[SPW_MOST_TENSOR_NAME];
    name_in_layer(layer, name, full);
    return spw_find_tensor(f, full, rows, cols, out);
}

int spw_find_stacked(const struct spw_finder *f, uint32_t layer, const char *name, uint64_t n,
                     uint64_t rows, uint64_t cols, const struct spw_tensor **out)
{
    char full[SPW_MOST_TENSOR_NAME];
    name_in_layer(layer, name, full);
    return find_shape(f, full, (const uint64_t[]){n, rows, cols}, 3, out);
}

int spw_find_bytes(const struct spw_finder *f, uint32_t layer, const char *name,
                   const uint64_t *shape, uint32_t n_dims, const struct spw_tensor **out)
{
    char full[SPW_MOST_TENSOR_NAME];
    name_in_layer(layer, name, full);
    SPW_TRY(find_any(f, full, out));
    if (strcmp((*out)->dtype_name, "U8") != 0)
        return spw_fail(f->err, -EINVAL, "%s: tensor %s: dtype %s, expected U8", (*out)->file,
                        (*out)->own_name, (*out)->dtype_name);
    return check_shape(f, *out, shape, n_dims);
}

const struct spw_tensor *spw_find_by_name(const struct spw_finder *f, const char *name)
{
    return look_up(f, name);
}

const struct spw_tensor *spw_find_by_layer(const struct spw_finder *f, uint32_t layer,
                                           const char *name)
{
    char full[SPW_MOST_TENSOR_NAME];
    name_in_layer(layer, name, full);
    return look_up(f, full);
}

static bool is_fp8(const struct spw_tensor *t)
{
    return t->dtype == SPW_DTYPE_F8_E4M3 || t->dtype == SPW_DTYPE_F8_E5M2;
}

/* The factors of an FP8 matrix, if config.json says that there are some. */
int spw_find_scale(const struct spw_finder *f, const struct spw_model_config *c,
                   const struct spw_tensor *t, const struct spw_tensor **out)
{
    char own[192], name[SPW_MOST_TENSOR_NAME];
    *out = NULL;
    if (!c->fp8_scaled || !is_fp8(t))
        return 0;
    snprintf(own, sizeof own, "%.160s_scale_inv", t->name);
    usual_name(f, c, own, name);
    const struct spw_tensor *scale = look_up(f, name);
    *out = scale;
    if (scale && !c->fp8_block[0] && scale->n_dims < 2) { /* one factor for all, of any shape */
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
    const char *first = "model.embed_tokens.weight", *last = "lm_head.weight";
    const bool tied = c->tied_embeddings, has_head = look_up(f, last);
    SPW_TRY(spw_find_tensor(f, tied && has_head && !look_up(f, first) ? last : first, c->vocab,
                            c->hidden, embedding));
    SPW_TRY(spw_find_table_type(f, c, *embedding));
    return spw_find_tensor(f, tied && !has_head ? first : last, c->vocab, c->hidden, head);
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

/* Copies of the embedding and of the head, which some files have for the MTP layer. */
static bool is_mtp_copy(const char *name)
{
    return !strcmp(name, "embed_tokens.weight") || !strcmp(name, "shared_head.head.weight");
}

/* A tensor of the decoder that nothing reads may be a bias, a norm or a layer that the config does
 * not mention: without it the answer would be that of another model. Exceptions are tensors that
 * old writers stored beside the weights (of rope, of positions), and scales of FP8 activations,
 * which are not quantized here. */
static bool must_be_read(const struct spw_model_config *c, const char *name)
{
    unsigned layer;
    int end = 0;
    if ((c->fp8_scaled && strstr(name, ".activation_scale")) || strstr(name, "rotary_emb.") ||
        (c->positions == SPW_POSITIONS_SINES_F32 && strstr(name, "positions.")) ||
        (c->n_more_layers && !strncmp(name, "model.mtp", 9)))
        return false;
    if (sscanf(name, "model.layers.%5u.%n", &layer, &end) != 1)
        return true;
    if (layer >= c->n_layers)
        return layer - c->n_layers >= c->n_more_layers;
    if (spw_config_is_mtp(c, layer) && is_mtp_copy(name + end))
        return false;
    return spw_config_stores_kv(c, layer) || !is_unused_kv(name + end);
}

int spw_find_check_all(const struct spw_finder *f, const struct spw_model_config *c)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct spw_tensor *t = f->named[i].tensor;
        if (!f->found[t - spw_tensors_at(f->tensors, 0)] && must_be_read(c, f->named[i].name))
            return spw_fail(f->err, -EINVAL,
                            "%s: tensor %s: found it, but the config (model_type %s, %u layers) "
                            "does not call for it; expected the config of these weights",
                            t->file, t->own_name, c->model_type, c->n_layers);
    }
    return 0;
}
