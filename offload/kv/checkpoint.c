/* Checkpoints of sequences: see checkpoint.h. */
#include "offload/kv/checkpoint.h"

#include "offload/kv/kv_tile.h"
#include "offload/kv/state_store.h"

#include <assert.h>
#include <string.h>

/* ---- which one goes ---- */

/* Without checkpoint i a cut to a position after it computes up to the distance between its
 * neighbours again. That may grow with the age. */
double spw_checkpoint_loss(const uint64_t *positions, uint32_t i, uint32_t n, uint64_t n_tokens)
{
    const uint64_t before = i ? positions[i - 1] : 0;
    const uint64_t after = i + 1 < n ? positions[i + 1] : n_tokens;
    return (double)(after - before) / (double)(n_tokens - positions[i] + SPW_CHECKPOINT_TOKENS);
}

/* ---- the list of a sequence, in the order of positions ---- */

static struct spw_checkpoint *at(const struct spw_kv_seq *seq, uint32_t i)
{
    return &seq->kv->states.checkpoints[seq->checkpoints[i]];
}

/* The number in the list of the checkpoint at n tokens, or of the one before. n_checkpoints: there
 * is none. */
static uint32_t find(const struct spw_kv_seq *seq, uint64_t n)
{
    uint32_t i = seq->n_checkpoints;
    while (i && at(seq, i - 1)->n_tokens > n)
        i--;
    return i ? i - 1 : seq->n_checkpoints;
}

/* The same, of those that are complete. Those that are being made come after them. */
static uint32_t find_complete(const struct spw_kv_seq *seq, uint64_t n)
{
    uint32_t i = find(seq, n);
    if (i < seq->n_checkpoints && at(seq, i)->begun) {
        while (i && at(seq, i)->begun)
            i--;
        i = at(seq, i)->begun ? seq->n_checkpoints : i;
    }
    return i;
}

uint64_t spw_kv_last_checkpoint(const struct spw_kv_seq *seq, uint64_t n)
{
    const uint32_t i = find_complete(seq, n);
    return i < seq->n_checkpoints ? at(seq, i)->n_tokens : 0;
}

/* Gives the first n frames back, but not those that were retired. */
static void put_frames(struct spw_kv *kv, const struct spw_checkpoint *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (c->frames[i] != SPW_DISK_NONE)
            spw_disk_put(kv->o.states.disk, c->frames[i]);
}

/* Gives up the room of a checkpoint that nobody has any more. */
static void release(struct spw_kv *kv, struct spw_checkpoint *c)
{
    if (--c->refs)
        return;
    c->memory = SPW_NO_MEMORY;
    c->begun = false;
    if (c->on_disk)
        put_frames(kv, c, kv->states.n);
    kv->states.n_on_disk -= c->on_disk;
    c->on_disk = false;
}

static void drop(struct spw_kv_seq *seq, uint32_t i)
{
    release(seq->kv, at(seq, i));
    memmove(&seq->checkpoints[i], &seq->checkpoints[i + 1],
            (--seq->n_checkpoints - i) * sizeof *seq->checkpoints);
}

void spw_kv_checkpoint_drop(struct spw_kv_seq *seq, uint64_t n)
{
    if (n && spw_kv_last_checkpoint(seq, n) == n)
        drop(seq, find(seq, n));
}

static void insert(struct spw_kv_seq *seq, uint32_t checkpoint)
{
    const uint64_t n = seq->kv->states.checkpoints[checkpoint].n_tokens;
    uint32_t i = seq->n_checkpoints++;
    for (; i && at(seq, i - 1)->n_tokens > n; i--)
        seq->checkpoints[i] = seq->checkpoints[i - 1];
    seq->checkpoints[i] = checkpoint;
}

void spw_kv_checkpoints_cut(struct spw_kv_seq *seq, uint64_t n)
{
    while (seq->n_checkpoints && at(seq, seq->n_checkpoints - 1)->n_tokens > n)
        drop(seq, seq->n_checkpoints - 1);
}

void spw_kv_checkpoints_share(struct spw_kv_seq *to, const struct spw_kv_seq *from)
{
    assert(!to->n_checkpoints);
    for (uint32_t i = 0; i < from->n_checkpoints && !at(from, i)->begun; i++) {
        to->checkpoints[to->n_checkpoints++] = from->checkpoints[i];
        at(from, i)->refs++;
    }
}

/* ---- host memory ---- */

static uint8_t *memory_of(const struct spw_kv *kv, const struct spw_checkpoint *c, uint32_t layer)
{
    const uint64_t before = (uint64_t)c->memory * kv->states.n + (layer - kv->states.first);
    return (uint8_t *)kv->o.states.checkpoint_arena + before * kv->o.states.bytes;
}

/* Memory that no checkpoint has. */
static uint32_t free_memory(const struct spw_kv *kv)
{
    for (uint32_t m = 0; m < kv->o.states.n_checkpoints; m++) {
        uint32_t i = 0;
        while (i < kv->states.n_all && kv->states.checkpoints[i].memory != m)
            i++;
        if (i == kv->states.n_all)
            return m;
    }
    return SPW_NO_MEMORY;
}

/* A checkpoint that needs room. */
struct wish {
    const struct spw_kv_seq *seq;
    uint64_t n_tokens;
    bool begun;                           /* it is being made */
    const struct spw_checkpoint *fetched; /* it is on disk; else NULL */
};

/* Whether checkpoint i of the sequence is its newest one, complete or not, which another wish does
 * not push out. One of the same sequence takes its place. */
static bool is_newest(const struct spw_kv_seq *s, uint32_t i, const struct wish *w)
{
    const bool begun = at(s, i)->begun;
    const bool is_last = i + 1 == s->n_checkpoints || at(s, i + 1)->begun != begun;
    return is_last && !(s == w->seq && begun == w->begun);
}

/* What the checkpoints are worth to the sequence, and which of them stay; newest: the newest ones
 * of other sequences need not. */
static void find_worth_to(const struct spw_kv_seq *s, const struct wish *w, bool newest)
{
    uint64_t *positions = s->kv->states.positions;
    uint64_t n = spw_max_u64(s->state_tokens[0].n_tokens, s == w->seq ? w->n_tokens : 0);
    for (uint32_t i = 0; i < s->n_checkpoints; i++) {
        positions[i] = at(s, i)->n_tokens;
        n = spw_max_u64(n, positions[i]);
    }
    for (uint32_t i = 0; i < s->n_checkpoints; i++) {
        struct spw_checkpoint *c = at(s, i);
        const double loss = spw_checkpoint_loss(positions, i, s->n_checkpoints, n);
        c->worth = c->worth > loss ? c->worth : loss;
        c->stays |= is_newest(s, i, w) && (s == w->seq || !newest);
    }
}

/* From all sequences. */
static void drop_everywhere(struct spw_kv *kv, const struct spw_checkpoint *c)
{
    for (struct spw_kv_seq *s = kv->seqs; s; s = s->next)
        for (uint32_t i = s->n_checkpoints; i-- > 0;)
            if (at(s, i) == c)
                drop(s, i);
}

/* Drops the checkpoint that is needed least, of all, or of those in memory. What a shared one is
 * worth says the sequence that needs it most. False: there is none. */
static bool drop_one(struct spw_kv *kv, const struct wish *w, bool in_memory, bool newest)
{
    const struct spw_checkpoint *best = NULL;
    for (uint32_t i = 0; i < kv->states.n_all; i++) {
        kv->states.checkpoints[i].worth = 0;
        kv->states.checkpoints[i].stays = false;
    }
    for (const struct spw_kv_seq *s = kv->seqs; s; s = s->next)
        find_worth_to(s, w, newest);
    for (uint32_t i = 0; i < kv->states.n_all; i++) {
        const struct spw_checkpoint *c = &kv->states.checkpoints[i];
        if (c->refs && !c->stays && c != w->fetched && (!in_memory || c->memory != SPW_NO_MEMORY) &&
            (!best || c->worth < best->worth))
            best = c;
    }
    if (best)
        drop_everywhere(kv, best);
    return best;
}

/* The newest ones of other sequences go last. */
static bool drop_any(struct spw_kv *kv, const struct wish *w, bool in_memory)
{
    return drop_one(kv, w, in_memory, false) || drop_one(kv, w, in_memory, true);
}

/* ---- the disk ---- */

/* Writes or reads all states of a checkpoint that has memory and frames. The drive fails: its frame
 * is retired. */
static int transfer(struct spw_kv *kv, struct spw_checkpoint *c, bool write)
{
    struct spw_disk *disk = kv->o.states.disk;
    for (uint32_t i = 0; i < kv->states.n; i++) {
        struct spw_disk_job job;
        spw_disk_prepare(disk, &job, write, c->frames[i], 1,
                         memory_of(kv, c, kv->states.first + i));
        const int rc = spw_disk_run(&job);
        if (rc) {
            spw_disk_retire(disk, c->frames[i]);
            c->frames[i] = SPW_DISK_NONE;
            return rc;
        }
    }
    return 0;
}

/* Takes frames for all states, and writes them. */
static int write_down(struct spw_kv *kv, struct spw_checkpoint *c)
{
    uint32_t n = 0, last = SPW_DISK_NONE;
    int rc = 0;
    while (n < kv->states.n && !(rc = spw_disk_take(kv->o.states.disk, last, &c->frames[n])))
        last = c->frames[n++];
    if (!rc)
        rc = transfer(kv, c, true);
    if (rc)
        put_frames(kv, c, n);
    return rc;
}

/* Moves a checkpoint from memory to disk. False: it could not be written. */
static bool move_down(struct spw_kv *kv, struct spw_checkpoint *c)
{
    int rc = spw_lane_stream_sync(kv->lane, kv->lane->compute); /* which has filled the memory */
    if (!rc && !c->on_disk) {
        rc = write_down(kv, c);
        kv->states.n_on_disk += !rc;
        c->on_disk = !rc;
    }
    if (rc)
        kv->write_failure = rc;
    else
        c->memory = SPW_NO_MEMORY;
    return !rc;
}

/* The oldest complete checkpoint in memory; NULL: there is none. */
static struct spw_checkpoint *oldest_in_memory(const struct spw_kv *kv)
{
    struct spw_checkpoint *oldest = NULL;
    for (const struct spw_kv_seq *s = kv->seqs; s; s = s->next)
        for (uint32_t i = 0; i < s->n_checkpoints; i++)
            if (at(s, i)->memory != SPW_NO_MEMORY && !at(s, i)->begun &&
                (!oldest || at(s, i)->n_tokens < oldest->n_tokens))
                oldest = at(s, i);
    return oldest;
}

/* Memory for one more checkpoint; SPW_NO_MEMORY: there is none. */
static uint32_t take_memory(struct spw_kv *kv, const struct wish *w)
{
    uint32_t m;
    while ((m = free_memory(kv)) == SPW_NO_MEMORY) {
        struct spw_checkpoint *c = oldest_in_memory(kv);
        const bool room =
            c && (c->on_disk || kv->states.n_on_disk < kv->o.states.n_disk_checkpoints);
        if (room && move_down(kv, c))
            continue;
        if (!drop_any(kv, w, room || !c)) /* room on the disk is of no use there */
            return SPW_NO_MEMORY;
    }
    return m;
}

int spw_kv_checkpoint_fetch(struct spw_kv_seq *seq, uint64_t n)
{
    struct spw_kv *kv = seq->kv;
    struct spw_checkpoint *c = at(seq, find(seq, n));
    if (c->memory != SPW_NO_MEMORY)
        return 0;
    const uint32_t memory =
        take_memory(kv, &(struct wish){.seq = seq, .n_tokens = n, .fetched = c});
    SPW_TRY(spw_lane_stream_sync(kv->lane, kv->lane->compute)); /* which may read that memory yet */
    c->memory = memory;
    if (memory != SPW_NO_MEMORY && !transfer(kv, c, false))
        return 0;
    drop_everywhere(kv, c);
    return -EBADMSG;
}

int spw_kv_checkpoint_fetch_for_cut(struct spw_kv_seq *seq, uint64_t n)
{
    bool needed = false;
    for (uint32_t i = 0; i < seq->kv->states.n && n; i++)
        needed |= !spw_kv_state_reaches(&seq->state_tokens[i], n);
    return needed ? spw_kv_checkpoint_fetch(seq, n) : 0;
}

/* ---- a checkpoint ---- */

/* One that is not in use. There is one where memory is free: the others have memory or frames. */
static uint32_t find_free(const struct spw_kv *kv)
{
    uint32_t i = 0;
    while (kv->states.checkpoints[i].refs)
        i++;
    assert(i < kv->states.n_all);
    return i;
}

/* Whether there is room for a checkpoint; it is being made then. */
static bool begin(struct spw_kv_seq *seq, const struct wish *w)
{
    struct spw_kv *kv = seq->kv;
    uint32_t memory;
    if (!w->n_tokens || !kv->o.states.n_checkpoints ||
        spw_kv_last_checkpoint(seq, w->n_tokens) == w->n_tokens ||
        (memory = take_memory(kv, w)) == SPW_NO_MEMORY)
        return false;
    const uint32_t i = find_free(kv);
    struct spw_checkpoint *c = &kv->states.checkpoints[i];
    c->n_tokens = w->n_tokens;
    c->refs = 1;
    c->begun = true;
    c->memory = memory;
    insert(seq, i);
    return true;
}

void spw_kv_checkpoint_begin(struct spw_kv_seq *seq, uint64_t n)
{
    begin(seq, &(struct wish){.seq = seq, .n_tokens = n, .begun = true});
}

int spw_kv_checkpoint_layer(struct spw_kv_seq *seq, uint64_t n, uint32_t layer)
{
    const uint32_t i = find(seq, n);
    if (i == seq->n_checkpoints || at(seq, i)->n_tokens != n || !at(seq, i)->begun)
        return 0;
    assert(seq->state_tokens[layer - seq->kv->states.first].n_applied == n);
    return spw_kv_state_save(seq, layer, memory_of(seq->kv, at(seq, i), layer));
}

void spw_kv_checkpoints_end(struct spw_kv_seq *seq, bool complete)
{
    for (uint32_t i = seq->n_checkpoints; i-- > 0 && at(seq, i)->begun;)
        if (complete)
            at(seq, i)->begun = false;
        else
            drop(seq, i);
}

int spw_kv_checkpoint(struct spw_kv_seq *seq, uint64_t n)
{
    const struct spw_states *s = &seq->kv->states;
    int rc = 0;
    if (!s->n || !begin(seq, &(struct wish){.seq = seq, .n_tokens = n}))
        return 0;
    for (uint32_t layer = s->first; layer < s->first + s->n && !rc; layer++)
        rc = spw_kv_checkpoint_layer(seq, n, layer);
    spw_kv_checkpoints_end(seq, !rc);
    return rc;
}

int spw_kv_checkpoint_restore(struct spw_kv_seq *seq, uint64_t n, uint32_t layer)
{
    const uint32_t i = find(seq, n);
    assert(i < seq->n_checkpoints && at(seq, i)->n_tokens == n);
    return spw_kv_state_restore(seq, layer, memory_of(seq->kv, at(seq, i), layer));
}

int spw_kv_checkpoint_read(const struct spw_kv_seq *seq, uint64_t n, uint32_t layer, void *memory)
{
    const struct spw_lane *lane = seq->kv->lane;
    const uint32_t i = find(seq, n);
    assert(i < seq->n_checkpoints && at(seq, i)->n_tokens == n);
    SPW_TRY(spw_lane_stream_sync(lane, lane->compute)); /* which has written it */
    memcpy(memory, memory_of(seq->kv, at(seq, i), layer), seq->kv->o.states.bytes);
    return 0;
}

/* ---- open, close ---- */

int spw_states_open(struct spw_states *s, const struct spw_kv_options *o)
{
    *s = (struct spw_states){.first = o->n_layers};
    while (s->first &&
           spw_layer_kinds[o->kinds[s->first - 1]].store == SPW_STORE_STATE) { /* they come last */
        s->first--;
        s->n++;
    }
    if (!s->n)
        return 0;
    s->n_all = o->states.n_checkpoints + (o->states.disk ? o->states.n_disk_checkpoints : 0);
    s->taken = spw_alloc_zero(o->states.n_sequences, sizeof *s->taken);
    s->checkpoints = spw_alloc_zero(s->n_all + 1, sizeof *s->checkpoints);
    s->positions = spw_alloc_zero(s->n_all + 1, sizeof *s->positions);
    s->frames = spw_alloc_zero((uint64_t)s->n_all * s->n + 1, sizeof *s->frames);
    if (!s->taken || !s->checkpoints || !s->positions || !s->frames)
        return -ENOMEM;
    for (uint32_t i = 0; i < s->n_all; i++) {
        s->checkpoints[i].memory = SPW_NO_MEMORY;
        s->checkpoints[i].frames = s->frames + (uint64_t)i * s->n;
    }
    return 0;
}

void spw_states_close(struct spw_states *s)
{
    spw_free(s->taken);
    spw_free(s->frames);
    spw_free(s->checkpoints);
    spw_free(s->positions);
}

int spw_states_open_seq(struct spw_kv_seq *seq)
{
    struct spw_states *s = &seq->kv->states;
    const struct spw_state_options *o = &seq->kv->o.states;
    seq->loaded = SPW_KV_NO_LAYER;
    if (!s->n)
        return 0;
    while (seq->place < o->n_sequences && s->taken[seq->place])
        seq->place++;
    assert(seq->place < o->n_sequences);
    seq->state_tokens = spw_alloc_zero(s->n, sizeof *seq->state_tokens);
    seq->checkpoints = spw_alloc_zero(s->n_all + 1, sizeof *seq->checkpoints);
    if (!seq->state_tokens || !seq->checkpoints)
        return -ENOMEM;
    s->taken[seq->place] = true;
    return 0;
}

void spw_states_close_seq(struct spw_kv_seq *seq)
{
    if (!seq->kv->states.n)
        return;
    spw_kv_checkpoints_cut(seq, 0);
    if (seq->state_tokens && seq->checkpoints)
        seq->kv->states.taken[seq->place] = false;
    spw_free(seq->state_tokens);
    spw_free(seq->checkpoints);
}
