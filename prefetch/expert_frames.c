/* Frames of experts, and a heap of those that may leave: see expert_frames.h. */
#include "prefetch/expert_frames.h"

#include <stdlib.h>
#include <string.h>

/* The tables, one after the other in `memory`. Returns their bytes. */
static uint64_t lay_out(struct spw_expert_frames *f, void *memory)
{
    uint64_t end = 0;
    f->values = spw_expert_take(memory, &end, f->n_experts * sizeof *f->values);
    f->frames = spw_expert_take(memory, &end, f->n_experts * sizeof *f->frames);
    f->experts = spw_expert_take(memory, &end, f->n_frames * sizeof *f->experts);
    f->heap = spw_expert_take(memory, &end, f->n_frames * sizeof *f->heap);
    f->places = spw_expert_take(memory, &end, f->n_frames * sizeof *f->places);
    return end;
}

uint64_t spw_expert_frames_bytes(uint32_t n_experts, uint32_t n_frames)
{
    return lay_out(&(struct spw_expert_frames){.n_experts = n_experts, .n_frames = n_frames}, NULL);
}

int spw_expert_frames_init(struct spw_expert_frames *f, uint32_t n_experts, uint32_t n_frames,
                           void *memory)
{
    *f = (struct spw_expert_frames){.n_experts = n_experts, .n_frames = n_frames};
    if (!memory)
        memory = f->owned = spw_alloc(lay_out(f, NULL));
    if (!memory)
        return -ENOMEM;
    lay_out(f, memory);
    memset(f->values, 0, n_experts * sizeof *f->values);
    spw_expert_frames_clear(f);
    return 0;
}

void spw_expert_frames_free(struct spw_expert_frames *f)
{
    spw_free(f->owned);
    *f = (struct spw_expert_frames){0};
}

void spw_expert_frames_clear(struct spw_expert_frames *f)
{
    memset(f->frames, 0xff, f->n_experts * sizeof *f->frames);
    memset(f->experts, 0xff, f->n_frames * sizeof *f->experts);
    f->n_heap = f->n_in_use = 0;
}

/* ---- the heap ---- */

/* Whether the expert in frame a leaves before the one in frame b. */
static bool leaves_before(const struct spw_expert_frames *f, uint32_t a, uint32_t b)
{
    const uint32_t x = f->experts[a], y = f->experts[b];
    if (f->values[x] != f->values[y])
        return f->values[x] < f->values[y];
    return x < y;
}

static void put(struct spw_expert_frames *f, uint32_t place, uint32_t frame)
{
    f->heap[place] = frame;
    f->places[frame] = place;
}

static void sift_up(struct spw_expert_frames *f, uint32_t place, uint32_t frame)
{
    for (; place && leaves_before(f, frame, f->heap[(place - 1) / 2]); place = (place - 1) / 2)
        put(f, place, f->heap[(place - 1) / 2]);
    put(f, place, frame);
}

static void sift_down(struct spw_expert_frames *f, uint32_t place, uint32_t frame)
{
    for (uint32_t child; (child = 2 * place + 1) < f->n_heap; place = child) {
        child += child + 1 < f->n_heap && leaves_before(f, f->heap[child + 1], f->heap[child]);
        if (!leaves_before(f, f->heap[child], frame))
            break;
        put(f, place, f->heap[child]);
    }
    put(f, place, frame);
}

/* The frame is in use from now on. */
static void take(struct spw_expert_frames *f, uint32_t frame)
{
    const uint32_t place = f->places[frame], last = f->heap[--f->n_heap];
    if (last != frame) {
        sift_down(f, place, last);
        sift_up(f, f->places[last], last);
    }
    f->places[frame] = SPW_NO_FRAME;
    f->heap[f->n_frames - ++f->n_in_use] = frame;
}

void spw_expert_frames_set(struct spw_expert_frames *f, uint32_t expert, double value)
{
    const uint32_t frame = f->frames[expert];
    f->values[expert] = value;
    if (frame == SPW_NO_FRAME || f->places[frame] == SPW_NO_FRAME)
        return;
    sift_down(f, f->places[frame], frame);
    sift_up(f, f->places[frame], frame);
}

/* ---- a visit ---- */

void spw_expert_frames_find(struct spw_expert_frames *f, struct spw_expert_visit *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        v[i].frame = f->frames[v[i].expert];
        v[i].missed = v[i].frame == SPW_NO_FRAME;
        if (!v[i].missed)
            take(f, v[i].frame);
    }
}

/* The frame whose expert leaves: it is in use then. */
static uint32_t choose(struct spw_expert_frames *f)
{
    const uint32_t n_filled = f->n_heap + f->n_in_use;
    if (n_filled < f->n_frames) {
        f->heap[f->n_frames - ++f->n_in_use] = n_filled;
        f->places[n_filled] = SPW_NO_FRAME;
        return n_filled;
    }
    if (f->n_heap) {
        const uint32_t frame = f->heap[0];
        take(f, frame);
        return frame;
    }
    uint32_t best = f->heap[0];
    for (uint32_t i = 1; i < f->n_frames; i++)
        if (leaves_before(f, f->heap[i], best))
            best = f->heap[i];
    return best;
}

static void end_use(struct spw_expert_frames *f)
{
    for (; f->n_in_use; f->n_in_use--) {
        const uint32_t frame = f->heap[f->n_frames - f->n_in_use];
        sift_up(f, f->n_heap++, frame);
    }
}

/* Whether a frame is empty, or `margin` times the value of its expert is less than this one's. */
static bool is_worth_a_frame(const struct spw_expert_frames *f, uint32_t expert, double margin)
{
    if (f->n_heap + f->n_in_use < f->n_frames)
        return true;
    return f->n_heap && margin * f->values[f->experts[f->heap[0]]] < f->values[expert];
}

static void give_frame(struct spw_expert_frames *f, struct spw_expert_visit *v)
{
    const uint32_t frame = choose(f), old = f->experts[frame];
    if (old != SPW_NO_EXPERT)
        f->frames[old] = SPW_NO_FRAME;
    f->experts[frame] = v->expert;
    f->frames[v->expert] = frame;
    v->frame = frame;
}

/* Of those without a frame, the one that is worth the most; NULL: there is none. */
static struct spw_expert_visit *best_missed(const struct spw_expert_frames *f,
                                            struct spw_expert_visit *v, uint32_t n)
{
    struct spw_expert_visit *best = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (v[i].frame == SPW_NO_FRAME &&
            (!best || f->values[v[i].expert] > f->values[best->expert]))
            best = &v[i];
    return best;
}

void spw_expert_frames_fill(struct spw_expert_frames *f, struct spw_expert_visit *v, uint32_t n,
                            double margin)
{
    if (margin > 0)
        end_use(f);
    for (uint32_t i = 0; i < n && margin <= 0; i++)
        if (v[i].missed)
            give_frame(f, &v[i]);
    for (struct spw_expert_visit *best;
         margin > 0 && (best = best_missed(f, v, n)) && is_worth_a_frame(f, best->expert, margin);)
        give_frame(f, best);
    end_use(f);
}

/* ---- all experts ---- */

static int compare_values(const void *a, const void *b, void *values)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const double vx = ((const double *)values)[x], vy = ((const double *)values)[y];
    return vx != vy ? (vx < vy) - (vx > vy) : (x > y) - (x < y);
}

int spw_expert_order(uint32_t **order, const double *values, uint32_t n)
{
    *order = spw_alloc(n * sizeof **order);
    if (!*order)
        return -ENOMEM;
    for (uint32_t e = 0; e < n; e++)
        (*order)[e] = e;
    qsort_r(*order, n, sizeof **order, compare_values, (void *)(uintptr_t)values);
    return 0;
}
