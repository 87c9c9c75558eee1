/* How the files of a model store its weights: the type of their numbers, factors of FP8, and
 * whether the output matrix is one of its own. */
#include "model/config/config_parts.h"

#include <stdio.h>
#include <string.h>

/* torch_dtype (old) and dtype (new), beside the decoder's keys or at the top of the file. */
static int read_dtype(struct spw_model_config *out, const struct spw_config_source *source)
{
    static const struct {
        const char *name;
        enum spw_dtype dtype;
    } names[] = {{"auto", SPW_DTYPE_AUTO},
                 {"float64", SPW_DTYPE_F32}, /* weights may have it; nothing computes with it */
                 {"float32", SPW_DTYPE_F32},
                 {"float16", SPW_DTYPE_F16},
                 {"bfloat16", SPW_DTYPE_BF16}};
    const struct spw_keys *places[] = {&source->text, &source->top};
    for (size_t i = 0; i < 4; i++) {
        const struct spw_keys *keys = places[i / 2];
        const char *key = i % 2 ? "torch_dtype" : "dtype", *name = NULL;
        SPW_TRY(SPW_OR_NULL(spw_keys_string, keys, key, &name));
        if (!name)
            continue;
        if (!strncmp(name, "torch.", 6))
            name += 6;
        for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
            if (!strcmp(name, names[n].name)) {
                out->dtype = names[n].dtype;
                return 0;
            }
        }
        return spw_keys_refuse(keys, key, "float64, float32, float16 or bfloat16");
    }
    return 0;
}

/* FP8 weights have one factor for each block, or one for each matrix. Reading multiplies the
 * weights by their factors. The key of a wrapper wins over that of its text model. */
static int read_quantization(struct spw_model_config *out, const struct spw_config_source *source)
{
    const char *name = "quantization_config", *method = NULL;
    const struct spw_keys *place = spw_keys_has(&source->top, name) ? &source->top : &source->text;
    const json_t *object = NULL;
    char prefix[64];
    SPW_TRY(spw_keys_object(place, name, &object));
    if (!object)
        return 0;
    snprintf(prefix, sizeof prefix, "%s%s.", place->prefix, name);
    struct spw_keys keys = {
        .file = place->file, .prefix = prefix, .object = object, .err = place->err};
    SPW_TRY(SPW_OR_NULL(spw_keys_string, &keys, "quant_method", &method));
    const bool has_mxfp4 = source->family->experts.transposed;
    if (method && !strcmp(method, "mxfp4") && has_mxfp4)
        return 0; /* the names of the tensors tell which ones */
    if (!method || strcmp(method, "fp8") != 0)
        return spw_keys_refuse(&keys, "quant_method",
                               has_mxfp4 ? "mxfp4, fp8, or no quantization_config"
                                         : "fp8, or no quantization_config: weights in float64, "
                                           "float32, float16 or bfloat16");
    out->fp8_scaled = true;
    if (spw_keys_is_null(&keys, "weight_block_size"))
        return 0;
    const json_t *block = json_object_get(object, "weight_block_size");
    for (size_t i = 0; i < 2; i++) {
        json_int_t n = block ? json_integer_value(json_array_get(block, i)) : 128;
        if (n < 1 || n > MAX_WIDTH || (block && json_array_size(block) != 2))
            return spw_keys_refuse(&keys, "weight_block_size", "a list of two sizes, or null");
        out->fp8_block[i] = (uint32_t)n;
    }
    return 0;
}

/* The key of a wrapper wins over that of its text model, unless the wrapper's is false by default.
 */
static int read_tied(struct spw_model_config *out, const struct spw_config_source *source)
{
    const char *key = "tie_word_embeddings";
    bool tied = source->gguf ? !source->gguf->head : source->family->tied;
    bool whole = source->wrapper_tied;
    SPW_TRY(SPW_OR_NULL(spw_keys_bool, &source->text, key, &tied));
    if (source->family->tied_key)
        SPW_TRY(SPW_OR_NULL(spw_keys_bool, &source->text, source->family->tied_key, &tied));
    SPW_TRY(SPW_OR_NULL(spw_keys_bool, &source->top, key, &whole));
    out->tied_embeddings = source->wrapper ? whole || (tied && !source->wrapper_tied) : tied;
    return 0;
}

int spw_config_read_stored(struct spw_model_config *out, const struct spw_config_source *source)
{
    SPW_TRY(read_tied(out, source));
    SPW_TRY(read_quantization(out, source));
    return read_dtype(out, source);
}
