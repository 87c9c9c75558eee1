/* Frames of one tier: see tier.h. */
#include "offload/kv/tier.h"

#include <assert.h>

/* ---- sets ---- */

#define OUTSIDE UINT32_MAX

/* Initializes a full set; the lowest number is taken first. */
static int set_init(struct spw_tier_set *s, uint32_t n)
{
    s->items = spw_alloc_zero(n, sizeof *s->items);
    s->place = spw_alloc_zero(n, sizeof *s->place);
    if (!s->items || !s->place)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        s->items[i] = n - 1 - i;
        s->place[n - 1 - i] = i;
    }
    s->n = n;
    return 0;
}

static void set_free(struct spw_tier_set *s)
{
    spw_free(s->items);
    spw_free(s->place);
}

static bool set_has(const struct spw_tier_set *s, uint32_t i)
{
    return s->place[i] != OUTSIDE;
}

static void set_add(struct spw_tier_set *s, uint32_t i)
{
    assert(!set_has(s, i));
    s->place[i] = s->n;
    s->items[s->n++] = i;
}

static void set_remove(struct spw_tier_set *s, uint32_t i)
{
    assert(set_has(s, i));
    uint32_t last = s->items[--s->n];
    s->items[s->place[i]] = last;
    s->place[last] = s->place[i];
    s->place[i] = OUTSIDE;
}

/* ---- frames ---- */

int spw_tier_frames_init(struct spw_tier_frames *f, uint32_t n_frames, uint32_t run)
{
    *f = (struct spw_tier_frames){.n_frames = n_frames, .run = run};
    int rc = set_init(&f->free_frames, n_frames);
    if (!rc)
        rc = set_init(&f->free_runs, n_frames / run);
    if (!rc)
        f->n_taken = spw_alloc_zero(n_frames / run, sizeof *f->n_taken);
    if (rc || !f->n_taken) {
        spw_tier_frames_free(f);
        return -ENOMEM;
    }
    return 0;
}

void spw_tier_frames_free(struct spw_tier_frames *f)
{
    set_free(&f->free_frames);
    set_free(&f->free_runs);
    spw_free(f->n_taken);
    *f = (struct spw_tier_frames){0};
}

/* The first choice is the frame after `after`, the second one a frame with free frames after it.
 * The lowest number is taken first, so a short sequence touches few pages. */
static uint32_t choose(const struct spw_tier_frames *f, uint32_t after)
{
    if (after != SPW_TIER_NONE && after + 1 < f->n_frames && set_has(&f->free_frames, after + 1))
        return after + 1;
    if (f->free_runs.n)
        return f->free_runs.items[f->free_runs.n - 1] * f->run;
    return f->free_frames.items[f->free_frames.n - 1];
}

int spw_tier_frames_take(struct spw_tier_frames *f, uint32_t after, uint32_t *out)
{
    if (!f->free_frames.n)
        return -ENOMEM;
    *out = choose(f, after);
    spw_tier_frames_claim(f, *out);
    return 0;
}

bool spw_tier_frames_claim(struct spw_tier_frames *f, uint32_t frame)
{
    uint32_t run = frame / f->run;
    if (!set_has(&f->free_frames, frame))
        return false;
    set_remove(&f->free_frames, frame);
    if (run < f->n_frames / f->run && !f->n_taken[run]++) /* the last run may be incomplete */
        set_remove(&f->free_runs, run);
    return true;
}

void spw_tier_frames_put(struct spw_tier_frames *f, uint32_t frame)
{
    uint32_t run = frame / f->run;
    set_add(&f->free_frames, frame);
    if (run < f->n_frames / f->run && !--f->n_taken[run])
        set_add(&f->free_runs, run);
}

/* ---- in memory ---- */

int spw_tier_init(struct spw_tier *t, void *arena, uint64_t frame_bytes, uint32_t n_frames,
                  uint32_t run)
{
    *t = (struct spw_tier){.arena = arena, .frame_bytes = frame_bytes};
    return spw_tier_frames_init(&t->frames, n_frames, run);
}

void spw_tier_free(struct spw_tier *t)
{
    spw_tier_frames_free(&t->frames);
}

bool spw_tier_has(const struct spw_tier *t, const void *frame)
{
    uintptr_t at = (uintptr_t)frame, from = (uintptr_t)t->arena;
    return at >= from && at - from < t->frames.n_frames * t->frame_bytes;
}

uint32_t spw_tier_number(const struct spw_tier *t, const void *frame)
{
    assert(spw_tier_has(t, frame));
    uint64_t offset = (uint64_t)((const uint8_t *)frame - t->arena);
    assert(offset % t->frame_bytes == 0);
    return (uint32_t)(offset / t->frame_bytes);
}

int spw_tier_take(struct spw_tier *t, const void *after, void **out)
{
    uint32_t frame;
    SPW_TRY(spw_tier_frames_take(&t->frames, after ? spw_tier_number(t, after) : SPW_TIER_NONE,
                                 &frame));
    *out = t->arena + frame * t->frame_bytes;
    return 0;
}

void spw_tier_put(struct spw_tier *t, void *frame)
{
    if (frame)
        spw_tier_frames_put(&t->frames, spw_tier_number(t, frame));
}
