/* Which model this is, in 32 bytes: what was computed with one model is not used with another.
 *
 *   bytes 0-15   config.json as it is written; of each file of weights its name, its size and its
 *                whole header (names, types, shapes, places of all tensors)
 *   bytes 16-31  samples of every tensor: up to 4 KiB at its start, one more in each of 1 to 7
 * equal parts (by size), at a place that its name decides
 *
 * Not covered: weights between the samples, so that an edit of single weights may pass (training
 * changes nearly all of them); tokenizer, chat template and generation_config.json, which change no
 * logits of given tokens. Two XXH3-128: against accidents, not against an attacker. A warm folder
 * takes milliseconds (8B: about 900 samples); what is not in memory is asked for all at once. Any
 * thread. */
#ifndef SPW_MODEL_FINGERPRINT_H
#define SPW_MODEL_FINGERPRINT_H

#include "model/source/source.h"

enum { SPW_FINGERPRINT_BYTES = 32 };

/* Raised by whoever changes a bit of what the layers, kernels or codecs compute: what was computed
 * before and kept in a file is then not used. */
#define SPW_NUMERIC_VERSION 1

/* `weights` are the tensors of the source. -ENOENT, -EINVAL, -ENOMEM and what the system says of
 * config.json.
 */
int spw_fingerprint_take(uint8_t out[SPW_FINGERPRINT_BYTES], const struct spw_source *source,
                         const struct spw_tensors *weights, struct spw_error *err);
/* 64 hexadecimal digits and a NUL. */
void spw_fingerprint_text(char out[2 * SPW_FINGERPRINT_BYTES + 1],
                          const uint8_t fingerprint[SPW_FINGERPRINT_BYTES]);

#endif
