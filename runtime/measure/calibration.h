/* The tokens that a model is checked on: a short text of our own, given twice.
 *
 * The second time a model that can look back continues the text from what it read the first time,
 * a thousand tokens earlier: it is sure of its tokens, and only old keys and values make it so. A
 * text that is given once asks them little, and would find little. Nothing is kept. */
#ifndef SPW_RUNTIME_MEASURE_CALIBRATION_H
#define SPW_RUNTIME_MEASURE_CALIBRATION_H

#include "model/source/source.h"

/* Fills `tokens` [n], n even: what the tokenizer of the model makes of the text, cut to n / 2 (or
 * repeated to it), twice. Without a tokenizer: seeded random ids. -ENOMEM; -EINVAL and the like
 * where tokenizer.json is there and cannot be read. */
int spw_calibration_fill(int32_t *tokens, size_t n, const struct spw_source *source,
                         const struct spw_model_config *config, struct spw_error *err);
/* What decides those tokens, in 16 digits: the text and the model's tokenizer. */
int spw_calibration_name(char out[17], const struct spw_source *source, struct spw_error *err);

#endif
