/* Repeats a step of a batch on an engine that computes nothing (struct spw_backend.counts). */
#ifndef SPW_RUNTIME_BATCH_BATCH_REPEAT_H
#define SPW_RUNTIME_BATCH_BATCH_REPEAT_H

#include "runtime/spillway.h"

/* Call it after each step. *n: how many of the next steps, at most `most`, would move the same
 * bytes as this one. They are made: each running request has *n tokens more. -ENOMEM. */
int spw_batch_repeat(struct spw_batch *b, uint64_t most, uint64_t *n);

#endif
