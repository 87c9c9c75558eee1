/* Which model this is, in 32 bytes. Results of one model are never used with another model.
 *
 *   bytes 0-15   the text of config.json; of each file of weights its name, its size and its
 *                whole header (names, types, shapes, places of all tensors)
 *   bytes 16-31  samples of every tensor: up to 4 KiB at its start, and one more in each of 1 to
 *                7 equal parts (by size), at a place that depends on the tensor's name
 *
 * Not covered: weights between the samples, so an edit of single weights may stay unseen (training
 * changes nearly all weights). Also not covered: tokenizer, chat template,
 * generation_config.json and an MTP layer in a file of its own, which do not change the logits of
 * given tokens. Two XXH3-128 protect
 * against accidents, not against an attacker. A folder in the page cache takes milliseconds (8B:
 * about 900 samples); other pages are requested all at once. Any thread. */
#ifndef SPW_MODEL_FINGERPRINT_H
#define SPW_MODEL_FINGERPRINT_H

#include "model/source/source.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum { SPW_FINGERPRINT_BYTES = 32 };

/* Raise this number with every change of a bit that layers, kernels or codecs compute. Files with
 * results of another number are then not used. */
#define SPW_NUMERIC_VERSION 5

/* Computes the fingerprint. `weights`: the tensors of the source. Fails with -ENOENT, -EINVAL,
 * -ENOMEM or the system's error for config.json. */
int spw_fingerprint_take(uint8_t out[SPW_FINGERPRINT_BYTES], const struct spw_source *source,
                         const struct spw_tensors *weights, struct spw_error *err);
/* 64 hexadecimal digits and a NUL. */
void spw_fingerprint_text(char out[2 * SPW_FINGERPRINT_BYTES + 1],
                          const uint8_t fingerprint[SPW_FINGERPRINT_BYTES]);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
