/* States as a way to store the past: see state_store.h. */
#include "offload/kv/state_store.h"

#include "offload/kv/checkpoint.h"
#include "offload/kv/kv_tile.h"

#include <assert.h>
#include <string.h>

static uint32_t number_of(const struct spw_kv_seq *seq, uint32_t layer)
{
    assert(layer >= seq->kv->states.first);
    return layer - seq->kv->states.first;
}

static struct spw_state_tokens *tokens_of(const struct spw_kv_seq *seq, uint32_t layer)
{
    return &seq->state_tokens[number_of(seq, layer)];
}

/* Where the state lies between the passes of the layer. */
static uint8_t *home(const struct spw_kv_seq *seq, uint32_t layer)
{
    const struct spw_state_options *o = &seq->kv->o.states;
    uint8_t *arena = o->stay ? o->device_arena : o->host_arena;
    return arena + ((uint64_t)seq->place * seq->kv->states.n + number_of(seq, layer)) * o->bytes;
}

/* Where the state of one layer of a sequence is on the device. */
static uint8_t *on_device(const struct spw_kv_seq *seq, uint32_t layer)
{
    const struct spw_state_options *o = &seq->kv->o.states;
    return o->stay ? home(seq, layer) : (uint8_t *)o->device_arena + seq->place * o->bytes;
}

static void *kept(const struct spw_kv_seq *seq, uint32_t layer)
{
    const struct spw_state_options *o = &seq->kv->o.states;
    const uint64_t before = (uint64_t)seq->place * seq->kv->states.n + number_of(seq, layer);
    return (uint8_t *)o->kept_arena + before * o->kept_bytes;
}

static int copy(const struct spw_kv_seq *seq, void *to, const void *from, enum spw_link link)
{
    const struct spw_kv *kv = seq->kv;
    return spw_lane_copy(kv->lane, to, from, kv->o.states.bytes, link, kv->lane->compute);
}

/* ---- a pass ---- */

int spw_kv_state_enter(struct spw_kv_seq *seq, uint32_t layer)
{
    if (seq->kv->o.states.stay || seq->loaded == layer)
        return 0;
    if (tokens_of(seq, layer)->n_applied) /* kernels read no state at position 0 */
        SPW_TRY(copy(seq, on_device(seq, layer), home(seq, layer), SPW_LINK_HOST_TO_DEVICE));
    seq->loaded = layer;
    return 0;
}

float *spw_kv_state(const struct spw_kv_seq *seq, uint32_t layer)
{
    assert(seq->kv->o.states.stay || seq->loaded == layer);
    return (float *)(void *)on_device(seq, layer);
}

void spw_kv_state_keep_rows(struct spw_kv_seq *seq, uint32_t layer, uint64_t to)
{
    struct spw_state_tokens *t = tokens_of(seq, layer);
    assert(t->n_applied == t->n_tokens && to > t->n_tokens);
    t->n_tokens = to;
}

struct spw_kept_rows spw_kv_state_kept_rows(const struct spw_kv_seq *seq, uint32_t layer)
{
    const struct spw_state_tokens *t = tokens_of(seq, layer);
    return (struct spw_kept_rows){t->n_applied, t->n_tokens, kept(seq, layer)};
}

void spw_kv_state_applied(struct spw_kv_seq *seq, uint32_t layer)
{
    struct spw_state_tokens *t = tokens_of(seq, layer);
    t->n_applied = t->n_tokens;
}

int spw_kv_state_leave(struct spw_kv_seq *seq, uint32_t layer)
{
    if (seq->loaded != layer)
        return 0;
    seq->loaded = SPW_KV_NO_LAYER;
    return copy(seq, home(seq, layer), on_device(seq, layer), SPW_LINK_DEVICE_TO_HOST);
}

int spw_kv_state_save(const struct spw_kv_seq *seq, uint32_t layer, void *memory)
{
    assert(seq->loaded == SPW_KV_NO_LAYER || seq->loaded == layer);
    if (!seq->kv->o.states.stay && seq->loaded != layer)
        SPW_TRY(copy(seq, on_device(seq, layer), home(seq, layer), SPW_LINK_HOST_TO_DEVICE));
    return copy(seq, memory, on_device(seq, layer), SPW_LINK_DEVICE_TO_HOST);
}

int spw_kv_state_restore(struct spw_kv_seq *seq, uint32_t layer, const void *memory)
{
    SPW_TRY(copy(seq, on_device(seq, layer), memory, SPW_LINK_HOST_TO_DEVICE));
    seq->loaded = SPW_KV_NO_LAYER;
    if (seq->kv->o.states.stay)
        return 0;
    return copy(seq, home(seq, layer), on_device(seq, layer), SPW_LINK_DEVICE_TO_HOST);
}

/* ---- the operations ---- */

static struct spw_store_need need(const struct spw_residency *r, uint64_t n_tokens)
{
    (void)r, (void)n_tokens;
    return (struct spw_store_need){0}; /* no frames of tiles */
}

static bool begins_at(const struct spw_residency *r, uint64_t n_tokens)
{
    (void)r;
    return !n_tokens;
}

/* One record, whose number is that of the tile with the last token. */
static struct spw_snapshot_tiles snapshot(const struct spw_residency *r,
                                          enum spw_snapshot_kind kind, uint64_t from, uint64_t to)
{
    const uint32_t end = spw_waterline_tiles(to);
    (void)r, (void)from;
    return kind == SPW_SNAPSHOT_WINDOW ? (struct spw_snapshot_tiles){end - (to > 0), end}
                                       : (struct spw_snapshot_tiles){0, 0};
}

static int grow(struct spw_kv_seq *seq, uint32_t layer, uint64_t from, uint64_t to)
{
    struct spw_state_tokens *t = tokens_of(seq, layer);
    assert(t->n_tokens == from && t->n_applied == from);
    (void)from;
    *t = (struct spw_state_tokens){to, to};
    return 0;
}

static int share(struct spw_kv_seq *to, const struct spw_kv_seq *from, uint32_t layer)
{
    const struct spw_lane *lane = from->kv->lane;
    const bool stay = from->kv->o.states.stay;
    const struct spw_state_tokens t = *tokens_of(to, layer) = *tokens_of(from, layer);
    if (t.n_tokens > t.n_applied)
        SPW_TRY(spw_lane_copy(lane, kept(to, layer), kept(from, layer),
                              from->kv->o.states.kept_bytes, SPW_LINK_DEVICE_TO_DEVICE,
                              lane->compute));
    if (!t.n_applied)
        return 0;
    SPW_TRY(copy(to, on_device(to, layer), home(from, layer),
                 stay ? SPW_LINK_DEVICE_TO_DEVICE : SPW_LINK_HOST_TO_DEVICE));
    return stay ? 0 : copy(to, home(to, layer), on_device(to, layer), SPW_LINK_DEVICE_TO_HOST);
}

static void retain(struct spw_kv_seq *seq, uint32_t layer)
{
    (void)seq, (void)layer; /* checkpoints do that, for all layers together */
}

static bool can_cut(const struct spw_kv_seq *seq, uint32_t layer, const struct spw_residency *r,
                    uint64_t n_tokens)
{
    (void)r;
    return !n_tokens || spw_kv_state_reaches(tokens_of(seq, layer), n_tokens) ||
           spw_kv_last_checkpoint(seq, n_tokens) == n_tokens;
}

static int cut(struct spw_kv_seq *seq, uint32_t layer, const struct spw_residency *r,
               uint64_t n_tokens)
{
    struct spw_state_tokens *t = tokens_of(seq, layer);
    const bool reaches = spw_kv_state_reaches(t, n_tokens);
    (void)r;
    t->n_tokens = n_tokens;
    if (reaches) /* a pass may have ended in the layer, after rows were applied */
        return spw_kv_state_leave(seq, layer);
    t->n_applied = n_tokens;
    if (seq->loaded == layer)
        seq->loaded = SPW_KV_NO_LAYER;
    return n_tokens ? spw_kv_checkpoint_restore(seq, n_tokens, layer) : 0;
}

static void release(struct spw_kv_seq *seq, uint32_t layer)
{
    *tokens_of(seq, layer) = (struct spw_state_tokens){0};
}

/* The state as it is now, or the checkpoint at the end of an earlier tile. Kept rows end
 * no tile: they come after the state that is asked for. */
static int export_section(struct spw_kv_seq *seq, uint32_t layer, enum spw_snapshot_kind kind,
                          uint32_t begin, uint32_t end, void *memory)
{
    assert(kind == SPW_SNAPSHOT_WINDOW && end == begin + 1);
    (void)kind, (void)begin;
    const uint64_t border = (uint64_t)end * SPW_TILE_TOKENS;
    if (spw_waterline_tiles(tokens_of(seq, layer)->n_applied) != end) {
        SPW_TRY(spw_kv_checkpoint_fetch(seq, border));
        return spw_kv_checkpoint_read(seq, border, layer, memory);
    }
    SPW_TRY(spw_kv_state_save(seq, layer, memory));
    return spw_lane_stream_sync(seq->kv->lane, seq->kv->lane->compute);
}

static int import_section(struct spw_kv_seq *seq, uint32_t layer, enum spw_snapshot_kind kind,
                          uint32_t first, uint64_t to, const void *memory)
{
    (void)kind, (void)first;
    SPW_TRY(spw_kv_state_restore(seq, layer, memory));
    *tokens_of(seq, layer) = (struct spw_state_tokens){to, to};
    return spw_lane_stream_sync(seq->kv->lane, seq->kv->lane->compute);
}

const struct spw_layer_store_ops spw_state_store = {
    .need = need,
    .begins_at = begins_at,
    .snapshot = snapshot,
    .grow = grow,
    .share = share,
    .retain = retain,
    .can_cut = can_cut,
    .cut = cut,
    .release = release,
    .export_section = export_section,
    .import_section = import_section,
};

/* ---- layers that store nothing: the cache has no layer of them ---- */

static bool begins_anywhere(const struct spw_residency *r, uint64_t n_tokens)
{
    (void)r, (void)n_tokens;
    return true;
}

static struct spw_snapshot_tiles
no_snapshot(const struct spw_residency *r, enum spw_snapshot_kind kind, uint64_t from, uint64_t to)
{
    (void)r, (void)kind, (void)from, (void)to;
    return (struct spw_snapshot_tiles){0, 0};
}

const struct spw_layer_store_ops spw_nothing_store = {
    .need = need,
    .begins_at = begins_anywhere,
    .snapshot = no_snapshot,
};
