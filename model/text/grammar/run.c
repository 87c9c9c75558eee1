/* See run.h. */
#include "model/text/grammar/nodes.h"
#include "model/text/grammar/vocabulary.h"

#include "base/grow.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define UNKNOWN UINT32_MAX /* what follows was not computed yet */
enum {
    DEAD = 0,         /* the set of no stacks */
    ROOT = 0,         /* the frame around all */
    MOST_SETS = 4096, /* then all but the present one are forgotten */
    MOST_MASKS = 256,
    MOST_TOPS = 1 << 14,      /* of a set; more: the grammar is too ambiguous */
    MOST_WORK = 1 << 22,      /* frames that a mask looks at; some 100 ms */
    BYTES_OF_SETS = 16 << 20, /* then all sets but the present one are forgotten, too */
    MOST_BYTES_OF_SETS = 64 << 20,
    DEEPEST_CALL = 8192,
};

struct frame {
    uint32_t up, node, value; /* value: SEQUENCE: the child in progress; REPEAT: how often it was */
    uint32_t depth;           /* objects and lists around it */
    uint32_t top_mark, left_mark; /* rounds in which it was found */
};

struct set {
    uint32_t at, n; /* tops[at .. at + n) */
    bool may_end;
    uint32_t *next;    /* [256], owned */
    uint64_t *allowed; /* [vocab] bits, owned; NULL: not known */
};

struct table { /* numbers by their hash; 0: free */
    uint32_t *slots;
    size_t n, n_slots;
};

struct spw_grammar_run {
    const struct spw_grammar *g;
    const struct spw_vocabulary *v;
    struct frame *frames;
    struct set *sets;
    uint32_t *tops; /* of all sets */
    size_t n_frames, n_sets, n_tops, frames_capacity, sets_capacity, tops_capacity;
    struct table by_frame, by_set;
    uint32_t *found; /* [n_found]: the tops of the set that is being made */
    size_t n_found, found_capacity;
    bool found_end;
    uint32_t round, n_masks, now; /* now: the present set */
    uint32_t work;                /* of the present call */
    uint32_t *walk;               /* [longest + 1] sets */
    int rc;
};

/* ---- tables ---- */

/* Numbers are entered with 1 added. */
static int enlarge(struct table *t, uint64_t (*hash)(const struct spw_grammar_run *, uint32_t),
                   const struct spw_grammar_run *r)
{
    const size_t n = t->n_slots ? 2 * t->n_slots : 256;
    uint32_t *slots = spw_alloc_zero(n, sizeof *slots);
    if (!slots)
        return -ENOMEM;
    for (size_t i = 0; i < t->n_slots; i++)
        if (t->slots[i]) {
            size_t at = hash(r, t->slots[i] - 1) & (n - 1);
            while (slots[at])
                at = (at + 1) & (n - 1);
            slots[at] = t->slots[i];
        }
    spw_free(t->slots);
    t->slots = slots;
    t->n_slots = n;
    return 0;
}

static uint64_t hash_of_frame(uint32_t up, uint32_t node, uint32_t value)
{
    const uint32_t key[] = {up, node, value};
    return XXH3_64bits(key, sizeof key);
}

static uint64_t hash_frame(const struct spw_grammar_run *r, uint32_t i)
{
    return hash_of_frame(r->frames[i].up, r->frames[i].node, r->frames[i].value);
}

static uint64_t hash_of_set(const uint32_t *tops, size_t n, bool may_end)
{
    return XXH3_64bits_withSeed(tops, n * sizeof *tops, may_end);
}

static uint64_t hash_set(const struct spw_grammar_run *r, uint32_t i)
{
    const struct set *s = &r->sets[i];
    return hash_of_set(r->tops + s->at, s->n, s->may_end);
}

/* The number of the frame; ROOT after a failure. */
static uint32_t frame_of(struct spw_grammar_run *r, uint32_t up, uint32_t node, uint32_t value)
{
    if (!r->rc && r->by_frame.n * 2 >= r->by_frame.n_slots)
        r->rc = enlarge(&r->by_frame, hash_frame, r);
    if (!r->rc)
        r->rc = spw_grow(&r->frames, &r->frames_capacity, r->n_frames + 1, sizeof *r->frames);
    if (r->rc)
        return ROOT;
    size_t at = hash_of_frame(up, node, value) & (r->by_frame.n_slots - 1);
    for (; r->by_frame.slots[at]; at = (at + 1) & (r->by_frame.n_slots - 1)) {
        const struct frame *f = &r->frames[r->by_frame.slots[at] - 1];
        if (f->up == up && f->node == node && f->value == value)
            return r->by_frame.slots[at] - 1;
    }
    const uint32_t depth = r->frames[up].depth + r->g->nodes[node].nests;
    r->frames[r->n_frames] = (struct frame){.up = up, .node = node, .value = value, .depth = depth};
    r->by_frame.n++;
    r->by_frame.slots[at] = (uint32_t)++r->n_frames;
    return (uint32_t)r->n_frames - 1;
}

/* ---- what follows ---- */

static void leave(struct spw_grammar_run *r, uint32_t frame, int calls);

static void count_work(struct spw_grammar_run *r, int calls)
{
    if (!r->rc && (calls > DEEPEST_CALL || ++r->work > MOST_WORK))
        r->rc = -E2BIG;
}

static void add_top(struct spw_grammar_run *r, uint32_t frame)
{
    if (r->rc || r->frames[frame].top_mark == r->round)
        return;
    r->frames[frame].top_mark = r->round;
    if (r->n_found == MOST_TOPS)
        r->rc = -E2BIG;
    if (r->rc)
        return;
    r->rc = spw_grow(&r->found, &r->found_capacity, r->n_found + 1, sizeof *r->found);
    if (!r->rc)
        r->found[r->n_found++] = frame;
}

/* The text may go on with this node, inside of the frame `up`. */
static void enter(struct spw_grammar_run *r, uint32_t node, uint32_t up, int calls)
{
    const struct spw_node *x = &r->g->nodes[node];
    const uint32_t *links = r->g->links + x->at;
    count_work(r, calls);
    if (r->rc || r->frames[up].depth + x->least > SPW_GRAMMAR_DEEPEST)
        return;
    switch (x->kind) {
    case SPW_NODE_SET:
        add_top(r, frame_of(r, up, node, 0));
        break;
    case SPW_NODE_SEQUENCE:
        if (!x->n)
            leave(r, up, calls + 1);
        else
            enter(r, links[0], x->n > 1 || x->nests ? frame_of(r, up, node, 0) : up, calls + 1);
        break;
    case SPW_NODE_CHOICE:
        for (uint32_t i = 0; i < x->n; i++)
            enter(r, links[i], up, calls + 1);
        break;
    case SPW_NODE_REPEAT:
        if (x->max)
            enter(r, links[0], frame_of(r, up, node, 0), calls + 1);
        if (!x->min)
            leave(r, up, calls + 1);
        break;
    }
}

/* The child of this frame that was in progress is complete. */
static void leave(struct spw_grammar_run *r, uint32_t frame, int calls)
{
    count_work(r, calls);
    if (r->rc || r->frames[frame].left_mark == r->round)
        return;
    r->frames[frame].left_mark = r->round;
    if (frame == ROOT) {
        r->found_end = true;
        return;
    }
    const struct frame f = r->frames[frame];
    const struct spw_node *x = &r->g->nodes[f.node];
    const uint32_t done = f.value + 1;
    if (x->kind == SPW_NODE_SEQUENCE) {
        if (done == x->n)
            leave(r, f.up, calls + 1);
        else
            enter(r, r->g->links[x->at + done],
                  done + 1 == x->n && !x->nests ? f.up : frame_of(r, f.up, f.node, done),
                  calls + 1);
        return;
    }
    if (done >= x->min)
        leave(r, f.up, calls + 1);
    if (done < x->max) { /* without an upper limit nobody counts further than the lower one */
        const uint32_t value = x->max == SPW_REPEAT_ANY && done > x->min ? x->min : done;
        enter(r, r->g->links[x->at], frame_of(r, f.up, f.node, value), calls + 1);
    }
}

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void begin_set(struct spw_grammar_run *r)
{
    r->round++;
    r->n_found = 0;
    r->found_end = false;
}

static size_t bytes_of_sets(const struct spw_grammar_run *r)
{
    return r->n_sets * (sizeof(struct set) + 1024) + r->n_tops * sizeof *r->tops +
           r->n_frames * sizeof *r->frames;
}

/* The number of the set that was found; DEAD after a failure. */
static uint32_t end_set(struct spw_grammar_run *r)
{
    if (!r->rc && bytes_of_sets(r) > MOST_BYTES_OF_SETS)
        r->rc = -E2BIG;
    if (!r->rc && r->by_set.n * 2 >= r->by_set.n_slots)
        r->rc = enlarge(&r->by_set, hash_set, r);
    if (!r->rc)
        r->rc = spw_grow(&r->sets, &r->sets_capacity, r->n_sets + 1, sizeof *r->sets);
    if (!r->rc)
        r->rc = spw_grow(&r->tops, &r->tops_capacity, r->n_tops + r->n_found, sizeof *r->tops);
    if (r->rc)
        return DEAD;
    if (r->n_found)
        qsort(r->found, r->n_found, sizeof *r->found, by_number);
    size_t at = hash_of_set(r->found, r->n_found, r->found_end) & (r->by_set.n_slots - 1);
    for (; r->by_set.slots[at]; at = (at + 1) & (r->by_set.n_slots - 1)) {
        const struct set *s = &r->sets[r->by_set.slots[at] - 1];
        if (s->n == r->n_found && s->may_end == r->found_end &&
            (!s->n || !memcmp(r->tops + s->at, r->found, s->n * sizeof *r->tops)))
            return r->by_set.slots[at] - 1;
    }
    uint32_t *next = spw_alloc(256 * sizeof *next);
    if (!next) {
        r->rc = -ENOMEM;
        return DEAD;
    }
    memset(next, 0xFF, 256 * sizeof *next);
    if (r->n_found)
        memcpy(r->tops + r->n_tops, r->found, r->n_found * sizeof *r->tops);
    r->sets[r->n_sets] = (struct set){.at = (uint32_t)r->n_tops,
                                      .n = (uint32_t)r->n_found,
                                      .may_end = r->found_end,
                                      .next = next};
    r->n_tops += r->n_found;
    r->by_set.n++;
    r->by_set.slots[at] = (uint32_t)++r->n_sets;
    return (uint32_t)r->n_sets - 1;
}

static bool has_byte(const struct spw_byte_set *s, unsigned char byte)
{
    return s->bits[byte / 64] >> byte % 64 & 1;
}

static uint32_t next_set(struct spw_grammar_run *r, uint32_t set, unsigned char byte)
{
    if (r->sets[set].next[byte] != UNKNOWN)
        return r->sets[set].next[byte];
    const uint32_t at = r->sets[set].at, n = r->sets[set].n;
    begin_set(r);
    r->work += n / 8; /* to look at a top takes less */
    for (uint32_t i = 0; i < n; i++) {
        const struct frame *f = &r->frames[r->tops[at + i]];
        const struct spw_byte_set *bytes = &r->g->sets[r->g->nodes[f->node].at];
        if (has_byte(bytes, byte))
            leave(r, f->up, 0);
    }
    const uint32_t found = end_set(r);
    if (!r->rc)
        r->sets[set].next[byte] = found;
    return found;
}

/* ---- open, close ---- */

static void forget(struct spw_grammar_run *r)
{
    for (size_t i = 0; i < r->n_sets; i++) {
        spw_free(r->sets[i].next);
        spw_free(r->sets[i].allowed);
    }
    spw_free(r->sets);
    spw_free(r->frames);
    spw_free(r->tops);
    spw_free(r->by_frame.slots);
    spw_free(r->by_set.slots);
    r->sets = NULL;
    r->frames = NULL;
    r->tops = NULL;
    r->by_frame = r->by_set = (struct table){0};
    r->n_sets = r->n_frames = r->n_tops = 0;
    r->sets_capacity = r->frames_capacity = r->tops_capacity = 0;
    r->n_masks = 0;
}

/* The frame around all, and the set of no stacks. */
static void begin(struct spw_grammar_run *r)
{
    r->rc = spw_grow(&r->frames, &r->frames_capacity, 1, sizeof *r->frames);
    if (r->rc)
        return;
    r->frames[r->n_frames++] = (struct frame){0};
    begin_set(r);
    end_set(r);
}

int spw_grammar_run_open(struct spw_grammar_run **out, const struct spw_grammar *g,
                         const struct spw_vocabulary *v, bool breaks)
{
    struct spw_grammar_run *r = spw_alloc_zero(1, sizeof *r);
    *out = r;
    if (!r)
        return -ENOMEM;
    r->g = g;
    r->v = v;
    r->walk = spw_alloc_zero(v ? v->longest + 1 : 1, sizeof *r->walk);
    begin(r);
    if (!r->rc && !r->walk)
        r->rc = -ENOMEM;
    if (!r->rc) {
        begin_set(r);
        enter(r, breaks ? g->root_after : g->root, ROOT, 0);
        r->now = end_set(r);
    }
    const int rc = r->rc;
    if (rc) {
        spw_grammar_run_close(r);
        *out = NULL;
    }
    return rc;
}

void spw_grammar_run_close(struct spw_grammar_run *r)
{
    if (!r)
        return;
    forget(r);
    spw_free(r->found);
    spw_free(r->walk);
    spw_free(r);
}

/* A frame of `from`, and all around it, in *r. */
static uint32_t copy_frame(struct spw_grammar_run *r, const struct spw_grammar_run *from,
                           uint32_t frame)
{
    if (frame == ROOT)
        return ROOT;
    const struct frame *f = &from->frames[frame];
    return frame_of(r, copy_frame(r, from, f->up), f->node, f->value);
}

/* Forgets all sets but the present one. */
static void compact(struct spw_grammar_run *r)
{
    struct spw_grammar_run old = *r;
    const struct set now = old.sets[old.now];
    r->sets = NULL, r->frames = NULL, r->tops = NULL;
    r->by_frame = r->by_set = (struct table){0};
    r->n_sets = r->n_frames = r->n_tops = 0;
    r->sets_capacity = r->frames_capacity = r->tops_capacity = 0;
    r->n_masks = 0;
    begin(r);
    begin_set(r);
    for (uint32_t i = 0; i < now.n; i++)
        add_top(r, copy_frame(r, &old, old.tops[now.at + i]));
    r->found_end = now.may_end;
    r->now = end_set(r);
    forget(&old);
}

static void begin_call(struct spw_grammar_run *r)
{
    r->work = 0;
    if (!r->rc &&
        (r->n_sets > MOST_SETS || r->n_masks > MOST_MASKS || bytes_of_sets(r) > BYTES_OF_SETS))
        compact(r);
}

/* ---- the text ---- */

int spw_grammar_run_push(struct spw_grammar_run *r, const char *bytes, size_t n)
{
    begin_call(r);
    for (size_t i = 0; i < n && !r->rc; i++)
        r->now = next_set(r, r->now, (unsigned char)bytes[i]);
    if (r->rc)
        return r->rc;
    return r->sets[r->now].n || r->sets[r->now].may_end ? 0 : -EINVAL;
}

int spw_grammar_run_token(struct spw_grammar_run *r, int32_t token)
{
    const uint32_t place = token >= 0 && (uint32_t)token < r->v->vocab ? r->v->place[token] : 0;
    const struct spw_vocabulary_token *t = place ? &r->v->tokens[place - 1] : NULL;
    if (t)
        return spw_grammar_run_push(r, t->text, t->bytes);
    r->now = DEAD;
    return -EINVAL;
}

bool spw_grammar_run_may_end(const struct spw_grammar_run *r)
{
    return !r->rc && r->sets[r->now].may_end;
}

/* ---- the tokens that may follow ---- */

/* Tokens are in the order of their bytes: those that begin like one that has failed fail. */
static void walk(struct spw_grammar_run *r, const struct spw_vocabulary_token *tokens, uint32_t n,
                 uint64_t *allowed)
{
    uint32_t failed = UINT32_MAX; /* bytes that the latest token has in common with a failed one */
    r->walk[0] = r->now;
    for (uint32_t i = 0; i < n && !r->rc; i = failed == 1 ? tokens[i].next : i + 1) {
        const struct spw_vocabulary_token *t = &tokens[i];
        if (t->shared >= failed)
            continue;
        failed = UINT32_MAX;
        for (uint32_t k = t->shared; k < t->bytes && failed == UINT32_MAX; k++) {
            r->walk[k + 1] = next_set(r, r->walk[k], (unsigned char)t->text[k]);
            if (!r->sets[r->walk[k + 1]].n && !r->sets[r->walk[k + 1]].may_end)
                failed = k + 1;
        }
        if (failed == UINT32_MAX)
            allowed[t->id / 64] |= UINT64_C(1) << t->id % 64;
    }
}

/* The innermost repetition of characters that this top is in; ROOT: there is none. */
static uint32_t text_around(const struct spw_grammar_run *r, uint32_t top)
{
    enum { MOST_LEVELS = 8 }; /* of the bytes of a character */
    uint32_t up = r->frames[top].up;
    for (int i = 0; i < MOST_LEVELS && up != ROOT; i++, up = r->frames[up].up) {
        const struct spw_node *x = &r->g->nodes[r->frames[up].node];
        if (x->kind == SPW_NODE_REPEAT)
            return r->g->nodes[r->g->links[x->at]].is_plain ? up : ROOT;
    }
    return ROOT;
}

/* How many plain characters may follow, whichever they are, at most SPW_MOST_PLAIN; 0: that is not
 * known. More than these may not follow, unless the result is SPW_MOST_PLAIN. A character that may
 * be any plain one begins where a byte may be '#', which stands in no escape. */
static uint32_t free_characters(const struct spw_grammar_run *r)
{
    const struct set *s = &r->sets[r->now];
    uint32_t most = 0;
    bool is_alone = true;
    for (uint32_t i = 0; i < s->n; i++) {
        const uint32_t top = r->tops[s->at + i], around = text_around(r, top);
        const struct spw_byte_set *bytes = &r->g->sets[r->g->nodes[r->frames[top].node].at];
        const struct spw_node *x = &r->g->nodes[r->frames[around].node];
        if (around && has_byte(bytes, '#'))
            most = spw_max_u32(most, x->max - r->frames[around].value);
        struct spw_byte_set more = *bytes; /* a plain token can begin here */
        more.bits['"' / 64] &= ~(UINT64_C(1) << '"' % 64);
        more.bits['\\' / 64] &= ~(UINT64_C(1) << '\\' % 64);
        const bool begins = more.bits[0] | more.bits[1] | more.bits[2] | more.bits[3];
        is_alone &= !begins || (around && x->is_quoted);
    }
    return most >= SPW_MOST_PLAIN ? SPW_MOST_PLAIN : is_alone ? most : 0;
}

static void find_allowed(struct spw_grammar_run *r, uint64_t *allowed)
{
    const size_t words = (r->v->vocab + 63) / 64;
    const uint32_t n_free = free_characters(r);
    if (!n_free) {
        walk(r, r->v->tokens, r->v->n, allowed);
        return;
    }
    memcpy(allowed, r->v->plain + (n_free - 1) * words, words * sizeof *allowed);
    walk(r, r->v->others, r->v->n_others, allowed);
}

int spw_grammar_run_allowed(struct spw_grammar_run *r, const uint64_t **out)
{
    *out = NULL;
    begin_call(r);
    if (!r->rc && !r->sets[r->now].allowed) {
        uint64_t *allowed = spw_alloc_zero((r->v->vocab + 63) / 64, sizeof *allowed);
        if (!allowed)
            return r->rc = -ENOMEM;
        find_allowed(r, allowed);
        r->sets[r->now].allowed = allowed;
        r->n_masks++;
    }
    if (!r->rc)
        *out = r->sets[r->now].allowed;
    return r->rc;
}
