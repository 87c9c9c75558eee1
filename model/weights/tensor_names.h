/* The names of tensors in model folders, which differ by family and by wrapper, as usual names:
 * those of a Llama folder, "model.layers.0.mlp.up_proj.weight". Pure. */
#ifndef SPW_MODEL_WEIGHTS_TENSOR_NAMES_H
#define SPW_MODEL_WEIGHTS_TENSOR_NAMES_H

#include "model/config/config.h"
#include "model/source/tensors.h"

enum { SPW_MOST_TENSOR_NAME = 160 };

/* What the names of the decoder's tensors begin with: multimodal wrappers and decoders that were
 * saved without their head have other prefixes than "model.". NULL: this is no language model. */
const char *spw_tensor_prefix(const struct spw_tensors *tensors);
/* False: the tensor is of another part than the decoder and its head. */
bool spw_tensor_usual_name(const char *prefix, const char *name, char out[SPW_MOST_TENSOR_NAME]);
/* The same for a tensor of the MTP layer that lies outside of the decoder ("mtp.fc.weight"); with
 * this number of the layer. False: it is none of them. */
bool spw_tensor_mtp_name(const char *name, uint32_t layer, char out[SPW_MOST_TENSOR_NAME]);
/* The same for a model with an encoder. False: a tensor that is not used. */
bool spw_tensor_stack_name(const struct spw_tensors *tensors, const char *prefix, const char *name,
                           const struct spw_model_config *c, char out[SPW_MOST_TENSOR_NAME]);
/* Whether the files have an MTP layer with this number. */
bool spw_tensors_have_mtp(const struct spw_tensors *tensors, uint32_t layer);
/* The inverse, for messages: the name that a tensor which is missing would have in these files. */
void spw_tensor_own_name(const struct spw_tensors *tensors, const char *prefix, const char *usual,
                         char out[SPW_MOST_OWN_NAME]);
/* The same for a model with an encoder. */
void spw_tensor_stack_own_name(const struct spw_tensors *tensors, const char *prefix,
                               const char *usual, const struct spw_model_config *c,
                               char out[SPW_MOST_OWN_NAME]);

#endif
