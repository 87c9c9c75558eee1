/* What differs between the names of tensors in model folders. Pure. */
#ifndef SPW_MODEL_WEIGHTS_TENSOR_NAMES_H
#define SPW_MODEL_WEIGHTS_TENSOR_NAMES_H

#include "model/config/config.h"

enum { SPW_TENSOR_PREFIXES = 5, SPW_MOST_TENSOR_NAME = 160 };

/* What the names of the decoder's tensors begin with, and the output matrix: those of multimodal
 * wrappers, then those of a text model. A decoder that was saved without its head has no prefix. */
struct spw_tensor_prefix {
    const char *decoder, *head;
};
extern const struct spw_tensor_prefix spw_tensor_prefixes[SPW_TENSOR_PREFIXES];

/* The name, after prefix and layer, that files of the family have for the usual one. */
void spw_tensor_own_name(const struct spw_tensor_name *names, const char *usual,
                         char out[SPW_MOST_TENSOR_NAME]);
/* The name that a tensor of the decoder or its head would have in a folder of a text model of a
 * family with usual names, if its prefix is this one. False: it has another prefix. */
bool spw_tensor_usual_name(const struct spw_tensor_name *names,
                           const struct spw_tensor_prefix *prefix, const char *name,
                           char out[SPW_MOST_TENSOR_NAME]);

#endif
