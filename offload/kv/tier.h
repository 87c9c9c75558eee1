/* A tier: equal frames, one tile each. Frames have numbers; frames in memory also have addresses.
 *
 * A caller that takes frames one after the other names the previous frame, and gets the next one if
 * it is free. A new series starts where `run` adjacent frames are free. So tiles that are moved
 * together tend to be adjacent, and become one copy or one read.
 *
 * Borrows the arena. -ENOMEM means that the tier is full, which is normal control flow. O(1), one
 * thread, no allocation after init. */
#ifndef SPW_OFFLOAD_KV_TIER_H
#define SPW_OFFLOAD_KV_TIER_H

#include "base/base.h"

/* A set of numbers less than a limit. */
struct spw_tier_set {
    uint32_t n;
    uint32_t *items, *place; /* items[place[i]] == i for every i inside; owned */
};

/* No frame. */
#define SPW_TIER_NONE UINT32_MAX

/* Which frames are free. */
struct spw_tier_frames {
    uint32_t n_frames, run;
    struct spw_tier_set free_frames;
    struct spw_tier_set free_runs; /* aligned runs in which every frame is free */
    uint32_t *n_taken;             /* [n_frames / run], frames taken of each run; owned */
};

/* run: at least 1. */
int spw_tier_frames_init(struct spw_tier_frames *f, uint32_t n_frames, uint32_t run);
void spw_tier_frames_free(struct spw_tier_frames *f);
/* Takes a frame. `after`: the frame that the new one should follow, or SPW_TIER_NONE. */
int spw_tier_frames_take(struct spw_tier_frames *f, uint32_t after, uint32_t *out);
/* Takes this frame; false: it is not free. */
bool spw_tier_frames_claim(struct spw_tier_frames *f, uint32_t frame);
void spw_tier_frames_put(struct spw_tier_frames *f, uint32_t frame);

/* Frames in memory. */
struct spw_tier {
    uint8_t *arena; /* [n_frames][frame_bytes], borrowed */
    uint64_t frame_bytes;
    struct spw_tier_frames frames;
};

int spw_tier_init(struct spw_tier *t, void *arena, uint64_t frame_bytes, uint32_t n_frames,
                  uint32_t run);
void spw_tier_free(struct spw_tier *t);
/* Takes a frame. `after`: the frame that the new one should follow in memory, or NULL. */
int spw_tier_take(struct spw_tier *t, const void *after, void **out);
void spw_tier_put(struct spw_tier *t, void *frame); /* NULL is fine */
bool spw_tier_has(const struct spw_tier *t, const void *frame);
uint32_t spw_tier_number(const struct spw_tier *t, const void *frame); /* of a frame of this tier */

static inline uint32_t spw_tier_n_free(const struct spw_tier *t)
{
    return t->frames.free_frames.n;
}

#endif
