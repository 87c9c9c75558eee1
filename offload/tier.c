/* Frames of one tier: see tier.h. */
#include "offload/tier.h"

#include <assert.h>

int spw_tier_init(struct spw_tier *t, void *arena, uint64_t frame_bytes, uint32_t n_frames)
{
    *t = (struct spw_tier){.arena = arena, .frame_bytes = frame_bytes, .n_frames = n_frames};
    t->free_frames = spw_alloc_zero(n_frames, sizeof *t->free_frames);
    if (!t->free_frames)
        return -ENOMEM;
    /* The lowest address is taken first: a short sequence touches few pages. */
    for (uint32_t i = 0; i < n_frames; i++)
        t->free_frames[i] = n_frames - 1 - i;
    t->n_free = n_frames;
    return 0;
}

void spw_tier_free(struct spw_tier *t)
{
    spw_free(t->free_frames);
    *t = (struct spw_tier){0};
}

int spw_tier_take(struct spw_tier *t, void **out)
{
    if (!t->n_free)
        return -ENOMEM;
    *out = t->arena + (uint64_t)t->free_frames[--t->n_free] * t->frame_bytes;
    return 0;
}

void spw_tier_put(struct spw_tier *t, void *frame)
{
    if (!frame)
        return;
    uint64_t offset = (uint64_t)((uint8_t *)frame - t->arena);
    assert(offset % t->frame_bytes == 0 && offset / t->frame_bytes < t->n_frames);
    assert(t->n_free < t->n_frames);
    t->free_frames[t->n_free++] = (uint32_t)(offset / t->frame_bytes);
}
