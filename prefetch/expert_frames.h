/* Which experts lie in which frames of the device, and who leaves when another one must come.
 *
 * Each expert has a value, which its owner sets. Of the experts that a visit does not use, the one
 * with the least value leaves first; of equal values, the lower number. A heap holds the frames of
 * these experts. A pure function of values and visits. One thread. */
#ifndef SPW_PREFETCH_EXPERT_FRAMES_H
#define SPW_PREFETCH_EXPERT_FRAMES_H

#include "base/base.h"

#define SPW_NO_FRAME UINT32_MAX
#define SPW_NO_EXPERT UINT32_MAX

struct spw_expert_frames {
    uint32_t n_experts, n_frames; /* of all layers */
    void *owned;                  /* the memory of the tables, if nobody gave it */
    double *values;               /* [n_experts] */
    uint32_t *frames;             /* [n_experts]: where each lies, or SPW_NO_FRAME */
    uint32_t *experts;            /* [n_frames]: which lies in each, or SPW_NO_EXPERT */
    uint32_t *heap;   /* [n_frames]: frames, the least value first; those in use, from the end of
                         the array on */
    uint32_t *places; /* [n_frames]: of each frame in the heap; SPW_NO_FRAME: in use */
    uint32_t n_heap, n_in_use; /* frames that are neither are empty: those from the sum on */
};

/* Takes `bytes` of memory that begins at a multiple of 8; NULL: only counts them in *end. */
static inline void *spw_expert_take(void *memory, uint64_t *end, uint64_t bytes)
{
    const uint64_t at = *end;
    *end += spw_align_up(bytes, 8);
    return memory ? (uint8_t *)memory + at : NULL;
}

uint64_t spw_expert_frames_bytes(uint32_t n_experts, uint32_t n_frames);
/* All frames are empty, and all values 0. memory: [bytes], borrowed; NULL: the tables are
 * allocated. -ENOMEM. */
int spw_expert_frames_init(struct spw_expert_frames *f, uint32_t n_experts, uint32_t n_frames,
                           void *memory);
void spw_expert_frames_free(struct spw_expert_frames *f);
/* All frames are empty; values stay. */
void spw_expert_frames_clear(struct spw_expert_frames *f);
void spw_expert_frames_set(struct spw_expert_frames *f, uint32_t expert, double value);

/* An expert of a visit. */
struct spw_expert_visit {
    uint32_t expert, n_rows; /* given: the rows that chose it */
    uint32_t frame;          /* where it lies, or will lie; SPW_NO_FRAME: it gets none */
    bool missed;
};

/* A visit of n different experts has two halves. find: says which lie in frames; these frames are
 * in use until the second half. fill: gives frames to the others, by the values that experts have
 * then. A missed expert takes the frame of an expert of the same visit only if all frames have such
 * experts: first of one that was not missed, or was missed before. margin 0: each missed expert
 * gets a frame. Else no frame is in use any more in the second half, and missed experts, those that
 * are worth the most first, get frames that are empty, or that have an expert of which `margin`
 * times the value is less. */
void spw_expert_frames_find(struct spw_expert_frames *f, struct spw_expert_visit *v, uint32_t n);
void spw_expert_frames_fill(struct spw_expert_frames *f, struct spw_expert_visit *v, uint32_t n,
                            double margin);

/* Makes a list of n experts, which the caller frees: the largest value first; of equal values, the
 * lower number. -ENOMEM. */
int spw_expert_order(uint32_t **order, const double *values, uint32_t n);

#endif
