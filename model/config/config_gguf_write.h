/* A config as the keys of a GGUF file: the inverse of config_gguf.h. Inside model/ only. */
#ifndef SPW_MODEL_CONFIG_CONFIG_GGUF_WRITE_H
#define SPW_MODEL_CONFIG_CONFIG_GGUF_WRITE_H

#include "model/config/config_gguf.h"
#include "model/source/gguf_write.h"

/* Adds general.architecture and the keys of the architecture. `name`: of the model, for texts.
 * -ENOTSUP: a file with these keys would be another model. */
int spw_config_write_gguf(struct spw_gguf_writer *w, const struct spw_model_config *config,
                          const struct spw_gguf_architecture *a, const char *name,
                          struct spw_gguf_notes *notes, struct spw_error *err);
/* The i-th tensor of numbers that divide the frequencies of layers without a window; NULL: there
 * are no more. A folder has none of them. */
const char *spw_config_rope_tensor(const struct spw_model_config *config, uint32_t i);
/* Its numbers: out [rotary_dim / 2]. */
void spw_config_rope_factors(const struct spw_model_config *config, const char *tensor, float *out);

#endif
