/* Prefixes and own names of tensors: see tensor_names.h. */
#include "model/weights/tensor_names.h"

#include <stdio.h>
#include <string.h>

const struct spw_tensor_prefix spw_tensor_prefixes[SPW_TENSOR_PREFIXES] = {
    {"language_model.model.", "language_model.lm_head."},
    {"model.language_model.", "lm_head."},
    {"model.text_model.", "lm_head."},
    {"model.", "lm_head."},
    {"", "lm_head."},
};

/* What follows the part, if the name begins with it; else NULL. */
static const char *after(const char *name, const char *part)
{
    const size_t n = strlen(part);
    return !strncmp(name, part, n) && (name[n] == '.' || !name[n]) ? name + n : NULL;
}

void spw_tensor_own_name(const struct spw_tensor_name *names, const char *usual,
                         char out[SPW_MOST_TENSOR_NAME])
{
    snprintf(out, SPW_MOST_TENSOR_NAME, "%s", usual);
    for (; names && names->usual; names++) {
        const char *end = after(usual, names->usual);
        if (end)
            snprintf(out, SPW_MOST_TENSOR_NAME, "%s%s", names->own, end);
    }
}

bool spw_tensor_usual_name(const struct spw_tensor_name *names,
                           const struct spw_tensor_prefix *prefix, const char *name,
                           char out[SPW_MOST_TENSOR_NAME])
{
    unsigned layer;
    int in_layer = 0;
    if (!strncmp(name, prefix->head, strlen(prefix->head))) {
        snprintf(out, SPW_MOST_TENSOR_NAME, "lm_head.%s", name + strlen(prefix->head));
        return true;
    }
    if (strncmp(name, prefix->decoder, strlen(prefix->decoder)) != 0)
        return false;
    name += strlen(prefix->decoder);
    snprintf(out, SPW_MOST_TENSOR_NAME, "model.%s", name);
    sscanf(name, "layers.%5u.%n", &layer, &in_layer);
    for (; names && names->usual; names++) {
        const char *end = after(name + in_layer, names->own);
        if (end)
            snprintf(out, SPW_MOST_TENSOR_NAME, "model.%.*s%s%s", in_layer, name, names->usual,
                     end);
    }
    return true;
}
