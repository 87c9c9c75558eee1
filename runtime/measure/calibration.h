/* The tokens that check a model: a short text, given twice.
 *
 * In the second copy, a model that can look back continues the text from what it read a thousand
 * tokens earlier. It is sure of its tokens, and only because of old keys and values. A text that is
 * given once would use old keys little, and the check would find little. This module keeps no
 * state. */
#ifndef SPW_RUNTIME_MEASURE_CALIBRATION_H
#define SPW_RUNTIME_MEASURE_CALIBRATION_H

#include "model/source/source.h"

/* Fills `tokens` [n], n even: the text as tokens of this model, cut (or repeated) to n / 2,
 * twice. Without a tokenizer: pseudo-random ids. -ENOMEM; -EINVAL and others if tokenizer.json
 * cannot be read. */
int spw_calibration_fill(int32_t *tokens, size_t n, const struct spw_source *source,
                         const struct spw_model_config *config, struct spw_error *err);
/* A name for these tokens, in 16 digits: a hash of the text and the model's tokenizer. */
int spw_calibration_name(char out[17], const struct spw_source *source, struct spw_error *err);

#endif
