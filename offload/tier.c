/* Frames of one tier: see tier.h. */
#include "offload/tier.h"

#include <assert.h>

/* ---- sets ---- */

#define OUTSIDE UINT32_MAX

/* Full, the lowest number last. */
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

int spw_tier_init(struct spw_tier *t, void *arena, uint64_t frame_bytes, uint32_t n_frames,
                  uint32_t run)
{
    *t = (struct spw_tier){
        .arena = arena, .frame_bytes = frame_bytes, .n_frames = n_frames, .run = run};
    int rc = set_init(&t->free_frames, n_frames);
    if (!rc)
        rc = set_init(&t->free_runs, n_frames / run);
    if (!rc)
        t->n_taken = spw_alloc_zero(n_frames / run, sizeof *t->n_taken);
    if (rc || !t->n_taken) {
        spw_tier_free(t);
        return -ENOMEM;
    }
    return 0;
}

void spw_tier_free(struct spw_tier *t)
{
    set_free(&t->free_frames);
    set_free(&t->free_runs);
    spw_free(t->n_taken);
    *t = (struct spw_tier){0};
}

static uint32_t number(const struct spw_tier *t, const void *frame)
{
    uint64_t offset = (uint64_t)((const uint8_t *)frame - t->arena);
    assert(offset % t->frame_bytes == 0 && offset / t->frame_bytes < t->n_frames);
    return (uint32_t)(offset / t->frame_bytes);
}

/* The first choice is the frame behind `after`, the second one with free frames behind it. The
 * lowest address was put in last: a short sequence touches few pages. */
static uint32_t choose(const struct spw_tier *t, const void *after)
{
    if (after) {
        uint32_t next = number(t, after) + 1;
        if (next < t->n_frames && set_has(&t->free_frames, next))
            return next;
    }
    if (t->free_runs.n)
        return t->free_runs.items[t->free_runs.n - 1] * t->run;
    return t->free_frames.items[t->free_frames.n - 1];
}

int spw_tier_take(struct spw_tier *t, const void *after, void **out)
{
    if (!t->free_frames.n)
        return -ENOMEM;
    uint32_t frame = choose(t, after), run = frame / t->run;
    set_remove(&t->free_frames, frame);
    if (run < t->n_frames / t->run && !t->n_taken[run]++) /* the last run may be incomplete */
        set_remove(&t->free_runs, run);
    *out = t->arena + (uint64_t)frame * t->frame_bytes;
    return 0;
}

void spw_tier_put(struct spw_tier *t, void *frame)
{
    if (!frame)
        return;
    uint32_t i = number(t, frame), run = i / t->run;
    set_add(&t->free_frames, i);
    if (run < t->n_frames / t->run && !--t->n_taken[run])
        set_add(&t->free_runs, run);
}
