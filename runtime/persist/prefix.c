/* Finds prefixes in the store, attaches them to sessions, and publishes new ones: see prefix.h.
 *
 *   match      [part | part | part ............]     tiles that begin as the span does
 *                              ^ checkpoint          the last one within the match
 *   session    [attached, attached ...][read  ]      old tiles; the exact tiles of the checkpoint
 *
 * Attached tiles are loaded beside the computation (offload/kv/kv_load.c). The exact tiles of a
 * checkpoint are read before it, one piece after the other; where all KV is exact there are none.
 * At 32,768 tokens in int8 they are 7 % of the bytes of an 8B Llama and 30 % of those of a 4B
 * Gemma 3. A third of this time goes into checksums and copies between the reads (26 MB in 49 ms,
 * 34 of them reading; two cores of a Xeon under load 7, 2026-11-22). So the first token takes 3 %
 * and 13 % longer than the drive needs; 15 % is the limit.
 *
 * In a model with an encoder the store has sources: their tiles, the last one of which is filled up
 * with NO_TOKEN and whatever follows the source in the session. A session begins with a whole
 * source, and writes to a copy of that tile. Where KV is quantized, the source ends with a
 * checkpoint, and its last tile is read as one of the exact tiles.
 *
 * The packs of a match stay locked while any of their tiles is in use: every attachment counts. */
#include "runtime/persist/prefix.h"

#include "offload/kv/checkpoint.h"
#include "offload/kv/kv_attach.h"
#include "offload/store/prefix_store.h"
#include "runtime/persist/snapshot.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_BYTES ((uint64_t)16 << 30)

/* Sequences whose keys were rotated by one table. The fingerprint has the number of the table, so
 * several stores can share a directory, as those of several processes do. */
struct keys {
    uint64_t rope_table;                             /* 0: the model has no such table */
    struct spw_store *store;                         /* owned */
    uint8_t fingerprint[SPW_PACK_FINGERPRINT_BYTES]; /* of the open store */
};

enum { N_TABLES = 2 }; /* longrope has two */

#define NO_TOKEN INT32_MIN /* after a source, up to the end of its last tile: in no vocabulary */

struct spw_prefix {
    struct keys keys[N_TABLES];
    struct spw_prefix_stats stats;
    int last_refusal; /* the error of the last publish that failed */
};

/* Records that were attached with one call. */
struct attachment {
    struct use *use;
    struct spw_pack *pack;
    uint32_t layer, first_tile;
};

/* The match of the span of the running sync, over at most `max` of its tokens. */
struct spw_prefix_found {
    const struct keys *keys;
    uint64_t max;
    struct spw_store_match match;
};

/* One match in use. */
struct use {
    const struct keys *keys;
    struct spw_store_match match;
    uint32_t refs;  /* attachments with tiles in use, and one while the match is attached */
    uint64_t bytes; /* attached and read */
};

/* ---- open, close ---- */

/* One tile of all layers: the least that the cache can store. */
static uint64_t min_cache_bytes(const struct spw_plan *p)
{
    return spw_plan_n_full(p) * p->tile_bytes + spw_plan_n_windowed(p) * p->exact_tile_bytes;
}

static int open_store(struct spw_engine *e, struct keys *k, struct spw_error *err)
{
    const struct spw_options *o = &e->options;
    uint64_t min = min_cache_bytes(&e->plan);
    struct spw_store_options s = {.directory = e->dry ? NULL : o->prefix_cache_dir,
                                  .limit_bytes =
                                      spw_engine_budget(o->prefix_cache_bytes, DEFAULT_BYTES),
                                  .trusts_others = o->prefix_cache_trusts_others,
                                  .fingerprint = k->fingerprint,
                                  .on_damage = spw_engine_report_note,
                                  .context = e};
    if (s.limit_bytes < min)
        return spw_fail(err, -EINVAL,
                        "prefix cache size: found %llu bytes, expected at least %llu, the size of "
                        "one tile of %d tokens",
                        (unsigned long long)s.limit_bytes, (unsigned long long)min,
                        SPW_TILE_TOKENS);
    spw_snapshot_fingerprint(k->fingerprint, e, k->rope_table);
    return spw_store_open(&k->store, &s, err);
}

/* The store of sequences with this number of tokens; NULL: there is none. */
static const struct keys *keys_of(const struct spw_engine *e, uint64_t rope_table)
{
    for (int i = 0; i < N_TABLES && e->above.prefix; i++)
        if (e->above.prefix->keys[i].store && e->above.prefix->keys[i].rope_table == rope_table)
            return &e->above.prefix->keys[i];
    return NULL;
}

/* A plan may have another precision of KV, which means other tiles: another store. */
static int open_stores(struct spw_engine *e, struct spw_error *err)
{
    uint8_t fingerprint[SPW_PACK_FINGERPRINT_BYTES];
    if (!e->options.prefix_cache_dir)
        return 0;
    if (!e->above.prefix) {
        e->above.prefix = spw_alloc_zero(1, sizeof *e->above.prefix);
        if (!e->above.prefix)
            return spw_fail(err, -ENOMEM, "out of memory for the prefix cache");
        e->above.prefix->keys[0].rope_table = SPW_ROPE_SHARED;
        if (e->model.config.rope[e->model.config.full_kind].kind == SPW_ROPE_LONG)
            e->above.prefix->keys[1].rope_table = spw_engine_rope_table(e, UINT64_MAX);
    }
    for (int i = 0; i < N_TABLES; i++) {
        struct keys *k = &e->above.prefix->keys[i];
        if (!k->rope_table)
            continue;
        spw_snapshot_fingerprint(fingerprint, e, k->rope_table);
        if (k->store && !memcmp(fingerprint, k->fingerprint, sizeof fingerprint))
            continue;
        spw_store_close(k->store);
        k->store = NULL;
        SPW_TRY(open_store(e, k, err));
    }
    return 0;
}

static void close_prefix(struct spw_engine *e)
{
    if (!e->above.prefix)
        return;
    for (int i = 0; i < N_TABLES; i++)
        spw_store_close(e->above.prefix->keys[i].store);
    spw_free(e->above.prefix);
    e->above.prefix = NULL;
}

void spw_engine_prefix(const struct spw_engine *e, struct spw_prefix_stats *out)
{
    *out = e->above.prefix ? e->above.prefix->stats : (struct spw_prefix_stats){0};
}

/* ---- decisions ---- */

enum {
    WORTH_SHARE = 8,   /* new tokens must be at least 1 / 8 of those that the session holds */
    BRANCH_TILES = 16, /* fewer tiles are computed again: an extra step reads all weights */
};

bool spw_prefix_is_useful(uint64_t held, uint64_t found)
{
    return found >= held + SPW_TILE_TOKENS && (found - held) * WORTH_SHARE > held;
}

/* The least position at which a checkpoint is worth a step of its own, if the last checkpoint is at
 * `after`. */
static uint64_t min_branch(uint64_t after)
{
    return after + BRANCH_TILES * SPW_TILE_TOKENS;
}

/* Whether a session with n tokens has dropped tiles of windows without which the same n tokens, of
 * which the last one must be computed, cannot begin at their last tile border. Then n is a tile
 * border, or a window is no multiple of a tile. */
static bool window_passed(const struct spw_plan *p, uint64_t n)
{
    uint64_t whole = (n - 1) - (n - 1) % SPW_TILE_TOKENS;
    bool moves = p->n_states; /* a state has passed every border */
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        moves |= spw_waterline_first_visible(&p->residency[k], n) >
                 spw_waterline_first_visible(&p->residency[k], whole);
    return moves;
}

/* How many of the first n tokens of a sequence a store can have: the source, or else the tokens of
 * whole tiles. */
static uint64_t storable(const int32_t *tokens, uint64_t n)
{
    const uint64_t n_source = spw_source_length(tokens, n);
    return n_source ? n_source : n - n % SPW_TILE_TOKENS;
}

/* These n tokens as a store has them, in whole tiles. *filled: for spw_free. NULL: no memory. */
static const int32_t *fill_tiles(const int32_t *tokens, uint64_t n, int32_t **filled)
{
    const uint64_t end = spw_align_up(n, SPW_TILE_TOKENS);
    *filled = NULL;
    if (n == end)
        return tokens;
    *filled = spw_alloc(end * sizeof **filled);
    for (uint64_t i = 0; *filled && i < end; i++)
        (*filled)[i] = i < n ? tokens[i] : NO_TOKEN;
    return *filled;
}

/* The tokens of the span that may come from files. Tokens whose logits are asked for, at least one,
 * must be computed; they follow a source. */
static uint64_t max_tokens(const struct spw_span *span)
{
    const uint64_t n_source = spw_source_length(span->tokens, span->n_tokens);
    const uint64_t n = spw_sub_u64(span->n_tokens, spw_max_u64(span->n_logits, 1));
    return storable(span->tokens, spw_max_u64(n_source, n));
}

/* The border of a chunk is a checkpoint that no file needs to have. max: what was searched for. */
static uint64_t usable(const struct spw_engine *e, const struct spw_store_match *m, uint64_t max)
{
    const uint64_t all = spw_min_u64((uint64_t)m->n_tiles * SPW_TILE_TOKENS, max);
    if (!spw_plan_sharing(&e->plan).needs_checkpoint)
        return all;
    return spw_max_u64(spw_min_u64((uint64_t)m->checkpoint_tiles * SPW_TILE_TOKENS, all),
                       spw_kv_border(e->plan.residency, all));
}

/* The longest match in the store. A checkpoint one tile after it will do if it has all exact tiles
 * that a session needs at the end of the match. */
static int search(struct spw_engine *e, const struct keys *k, const int32_t *tokens, uint64_t n,
                  struct spw_store_match *m)
{
    int32_t *filled;
    n = storable(tokens, n);
    tokens = fill_tiles(tokens, n, &filled);
    const int rc =
        tokens ? spw_store_match(k->store, tokens, spw_align_up(n, SPW_TILE_TOKENS), m) : -ENOMEM;
    spw_free(filled);
    SPW_TRY(rc);
    struct spw_pack *next = m->next_checkpoint;
    if (next && m->checkpoint_tiles < m->n_tiles &&
        spw_snapshot_continues(e, next, (uint64_t)m->n_tiles * SPW_TILE_TOKENS)) {
        m->next_checkpoint = m->checkpoint;
        m->checkpoint = next;
        m->checkpoint_tiles = m->n_tiles;
    }
    return 0;
}

static void release_match(struct spw_session *s)
{
    if (s->found)
        spw_store_release(s->found->keys->store, &s->found->match);
    spw_free(s->found);
    s->found = NULL;
}

/* The match of the span. A sync asks up to twice, the store searches once. NULL: no memory. */
static struct spw_prefix_found *find_match(struct spw_session *s, const struct keys *k,
                                           const struct spw_span *span)
{
    uint64_t max = max_tokens(span);
    if (s->found && s->found->max == max && s->found->keys == k)
        return s->found;
    release_match(s);
    struct spw_prefix_found *f = spw_alloc(sizeof *f);
    if (!f || search(s->engine, k, span->tokens, max, &f->match)) {
        spw_free(f);
        return NULL;
    }
    f->keys = k;
    f->max = max;
    return s->found = f;
}

/* The keys for the span. NULL: there are none, or a session that passes the border between two
 * tables computes all its tokens again: a plan cannot know what it would find there. */
static const struct keys *keys_for(const struct spw_session *s, const struct spw_span *span)
{
    const uint64_t table = spw_engine_rope_table(s->engine, span->n_tokens);
    const bool passes = s->n_tokens && s->rope_table != table && table != SPW_ROPE_SHARED;
    return passes ? NULL : keys_of(s->engine, table);
}

static uint64_t branch(struct spw_session *s, const struct spw_span *span)
{
    struct spw_engine *e = s->engine;
    uint64_t max = max_tokens(span);
    const struct keys *k = keys_for(s, span);
    /* turns that are short alone may be long together, and a state has passed all their tiles */
    const uint64_t held = e->plan.n_states ? 0 : s->n_tokens;
    if (!k || !spw_plan_sharing(&e->plan).needs_checkpoint || max <= s->n_tokens ||
        max < min_branch(held))
        return 0;
    const struct spw_prefix_found *f = find_match(s, k, span);
    if (!f)
        return 0;
    const uint64_t all = (uint64_t)f->match.n_tiles * SPW_TILE_TOKENS,
                   found = usable(e, &f->match, max);
    e->unpredicted |= all > found; /* tokens that this session does not begin with */
    if (all >= min_branch(found) && all > s->n_tokens)
        return all;
    if (window_passed(&e->plan, span->n_tokens) && max >= min_branch(found))
        return max;
    return 0;
}

/* ---- attachments ---- */

static void put_use(struct use *u)
{
    if (--u->refs)
        return;
    spw_store_release(u->keys->store, &u->match);
    spw_free(u);
}

static void on_released(void *context)
{
    struct attachment *a = context;
    put_use(a->use);
    spw_free(a);
}

static int report_damage(struct use *u, struct spw_pack *pack, uint32_t layer, uint32_t tile)
{
    struct spw_error text = {0};
    spw_fail(&text, -EBADMSG,
             "prefix cache: %.500s: layer %u, tile %u is damaged; the file is removed",
             spw_pack_path(pack), layer, tile);
    spw_store_remove_damaged(u->keys->store, pack, text.text);
    return -EBADMSG;
}

static void on_damaged(void *context, uint32_t i)
{
    const struct attachment *p = context;
    report_damage(p->use, p->pack, p->layer, p->first_tile + i);
}

/* Attaches the adjacent tiles of the pack from *first on, up to `end`, and moves *first on. */
static int attach_run(struct use *u, struct spw_session *s, struct spw_pack *pack, uint32_t kind,
                      uint32_t slice, uint32_t *first, uint32_t end)
{
    struct spw_engine *e = s->engine;
    const uint32_t layer = e->model.config.slice_layers[slice];
    const struct spw_pack_section *x = spw_pack_find(pack, kind, slice, *first);
    if (!x || x->record_bytes != e->plan.tile_bytes)
        return report_damage(u, pack, layer, *first);
    uint32_t frame, n = spw_min_u32(x->first_tile + x->n_tiles, end) - *first;
    struct spw_pack_section part = spw_pack_part(x, *first, n);
    struct attachment *p = spw_alloc(sizeof *p);
    if (!p)
        return -ENOMEM;
    *p = (struct attachment){u, pack, layer, *first};
    struct spw_disk_attachment a = {.fd = spw_pack_fd(pack),
                                    .offset = part.offset,
                                    .n = n,
                                    .sums = part.sums,
                                    .released = on_released,
                                    .damaged = on_damaged,
                                    .context = p};
    int rc = spw_disk_attach(e->disk, &a, &frame);
    if (rc) {
        spw_free(p);
        return rc;
    }
    u->refs++;
    rc = spw_kv_attach(s->seq.kv, slice, *first, frame, n);
    for (uint32_t i = 0; rc && i < n; i++)
        spw_disk_put(e->disk, frame + i);
    SPW_TRY(rc);
    u->bytes += n * x->record_bytes;
    *first += n;
    return 0;
}

/* Attaches the old tiles of a slice without a window, part by part. Tiles of a pack after its part
 * belong to another sequence. */
static int attach_old(struct use *u, struct spw_session *s, uint32_t slice, uint64_t n)
{
    const struct spw_residency *r = spw_engine_residency(s->engine, slice);
    uint32_t first = spw_waterline_first_tiered(r), all = spw_waterline_end(r, n);
    for (uint32_t i = 0; i < u->match.n_parts; i++) {
        const struct spw_store_part *part = &u->match.parts[i];
        uint64_t to = (uint64_t)(part->first_tile + part->n_tiles) * SPW_TILE_TOKENS;
        uint32_t end = spw_waterline_end(r, spw_min_u64(to, n));
        while (first < end)
            SPW_TRY(attach_run(u, s, part->pack, SPW_SNAPSHOT_OLD, slice, &first, end));
    }
    return first < all ? -EBADMSG : 0;
}

/* Attaches the window of a slice whose tiles move between tiers. */
static int attach_window(struct use *u, struct spw_session *s, uint32_t slice, uint64_t n)
{
    uint32_t first = spw_waterline_first_visible(spw_engine_residency(s->engine, slice), n);
    uint32_t end = (uint32_t)(n / SPW_TILE_TOKENS);
    if (first >= end) { /* the next tile still follows the last token */
        return spw_kv_import(s->seq.kv, slice, SPW_SNAPSHOT_WINDOW, end,
                             (uint64_t)end * SPW_TILE_TOKENS, NULL);
    }
    while (first < end)
        SPW_TRY(attach_run(u, s, u->match.checkpoint, SPW_SNAPSHOT_WINDOW, slice, &first, end));
    return 0;
}

static int attach_layers(struct use *u, struct spw_session *s, uint64_t n, struct spw_error *err)
{
    const struct spw_engine *e = s->engine;
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < e->model.config.n_slices; l++)
        if (!spw_engine_residency(e, l)->window.tokens)
            SPW_TRY(attach_old(u, s, l, n)); /* a state has no tiles */
        else if (!spw_engine_residency(e, l)->fixed)
            SPW_TRY(attach_window(u, s, l, n));
    if (e->plan.quantizes || e->plan.n_states)
        SPW_TRY(spw_snapshot_read_exact(s, u->match.checkpoint, n, &bytes, err));
    u->bytes += bytes;
    return 0;
}

/* ---- beginning with a match ---- */

/* Takes over the match. */
static struct use *new_use(const struct keys *k, struct spw_store_match *m)
{
    struct use *u = spw_alloc(sizeof *u);
    if (!u)
        return NULL;
    *u = (struct use){.keys = k, .match = *m, .refs = 1};
    *m = (struct spw_store_match){0};
    return u;
}

/* Empties the session and gives it the first *n tokens of the match. *n becomes 0 if the last tile
 * of a source was damaged. */
static int begin_with(struct use *u, struct spw_session *s, const int32_t *tokens, uint64_t *n)
{
    struct spw_engine *e = s->engine;
    struct spw_error err = {0};
    uint64_t nothing = 0;
    SPW_TRY(spw_recover_cut_back(s, &nothing));
    int rc = attach_layers(u, s, *n, &err);
    if (rc && rc != -ENOMEM && *err.text) { /* the checkpoint's file is damaged */
        spw_store_remove_damaged(u->keys->store, u->match.checkpoint, err.text);
        rc = -EBADMSG;
    }
    if (rc) {
        spw_kv_truncate(s->seq.kv, e->plan.residency, 0);
        return rc;
    }
    assert(spw_kv_can_truncate(s->seq.kv, e->plan.residency, *n));
    memcpy(s->tokens, tokens, *n * sizeof *tokens);
    s->n_tokens = *n;
    s->cached = true;
    s->rope_table = u->keys->rope_table;
    s->n_attached = *n;
    return *n % SPW_TILE_TOKENS ? spw_recover_cut_back(s, n) : 0;
}

static void report_reuse(struct spw_session *s, const struct use *u, const struct spw_span *span)
{
    struct spw_prefix *p = s->engine->above.prefix;
    const struct spw_engine_event event = {.kind = SPW_ENGINE_REUSE,
                                           .reuse = {s->n_tokens, span->n_tokens, u->bytes}};
    p->stats.n_reused += s->n_tokens;
    p->stats.reused_bytes += u->bytes;
    s->from_store = s->n_tokens;
    spw_engine_report(s->engine, &event);
}

static int attach(struct spw_session *s, const struct spw_span *span, uint64_t *n_reused)
{
    struct spw_engine *e = s->engine;
    s->from_store = 0;
    const struct keys *k = keys_for(s, span);
    if (!k || !spw_prefix_is_useful(*n_reused, max_tokens(span)))
        return 0;
    struct spw_prefix_found *f = find_match(s, k, span);
    uint64_t n = f ? usable(e, &f->match, f->max) : 0;
    struct use *u = spw_prefix_is_useful(*n_reused, n) ? new_use(k, &f->match) : NULL;
    release_match(s);
    if (!u)
        return 0; /* the tokens are computed */
    int rc = begin_with(u, s, span->tokens, &n);
    *n_reused = rc ? 0 : n;
    if (*n_reused)
        report_reuse(s, u, span);
    put_use(u);
    return rc == -EIO ? rc : 0; /* after damage or without memory for tables, tokens are computed */
}

static void remove_nan(const struct keys *k, struct spw_pack *pack)
{
    struct spw_error text = {0};
    spw_fail(
        &text, -EDOM,
        "prefix cache: %.500s: logits computed with this file are not numbers (NaN); the file is "
        "removed, and its tokens are computed",
        spw_pack_path(pack));
    spw_store_remove_damaged(k->store, pack, text.text);
}

static bool distrust(struct spw_session *s)
{
    const struct keys *k = keys_of(s->engine, s->rope_table);
    struct spw_store_match m;
    if (!s->n_attached)
        return false;
    if (k && !search(s->engine, k, s->tokens, s->n_tokens, &m)) {
        for (uint32_t i = 0; i < m.n_parts; i++)
            remove_nan(k, m.parts[i].pack);
        if (m.checkpoint)
            remove_nan(k, m.checkpoint);
        spw_store_release(k->store, &m);
    }
    s->n_attached = s->n_tokens = s->from_store = s->reused = 0;
    return true;
}

/* ---- publishing ---- */

/* Whether the session still has the exact tiles of a checkpoint at n tokens. */
static bool has_exact(const struct spw_session *s, uint64_t n)
{
    bool has = true;
    for (uint32_t i = 0; i < s->engine->model.config.n_slices; i++)
        has &= spw_kv_exact_first(s->seq.kv, i) <=
               spw_waterline_first_read_exact(spw_engine_residency(s->engine, i), n);
    return has;
}

/* The whole tiles of the session that can be published, in tokens: all, where a sequence could
 * begin after them; else those before a checkpoint that ends with a tile, or with a source. 0:
 * none. */
static uint64_t publishable(const struct spw_session *s)
{
    const struct spw_engine *e = s->engine;
    const uint64_t n_source = spw_source_length(s->tokens, s->n_tokens);
    if (n_source && spw_plan_sharing(&e->plan).needs_checkpoint)
        return has_exact(s, n_source) ? n_source : 0;
    const uint64_t whole = spw_align_up(storable(s->tokens, s->n_tokens), SPW_TILE_TOKENS);
    if (!spw_plan_sharing(&e->plan).needs_checkpoint ||
        spw_kv_can_truncate(s->seq.kv, e->plan.residency, whole))
        return whole;
    for (uint64_t n = whole; (n = spw_kv_last_checkpoint(s->seq.kv, n)); n--)
        if (n % SPW_TILE_TOKENS == 0 && spw_kv_can_truncate(s->seq.kv, e->plan.residency, n))
            return n;
    return 0; /* a window that is no multiple of a tile has dropped tiles */
}

/* Finds which of the session's complete tiles the store lacks. False: it has all of them, or they
 * cannot be published. */
static bool find_new(struct spw_session *s, const struct keys *k, struct spw_snapshot_range *range,
                     struct spw_store_match *found)
{
    const struct spw_engine *e = s->engine;
    *range = (struct spw_snapshot_range){.to = publishable(s),
                                         .checkpoint = spw_plan_sharing(&e->plan).needs_checkpoint};
    range->tail = range->to % SPW_TILE_TOKENS;
    if (!range->to)
        return false;
    if (search(s->engine, k, s->tokens, spw_min_u64(range->to, s->n_tokens), found))
        return false;
    range->from = (uint64_t)found->n_tiles * SPW_TILE_TOKENS;
    const uint64_t own = spw_min_u64(range->from, storable(s->tokens, s->n_tokens));
    if (own > spw_max_u64(s->n_attached, s->n_published)) /* of an earlier run */
        s->engine->unpredicted = true;
    bool all =
        range->from >= range->to &&
        (!range->checkpoint || (uint64_t)found->checkpoint_tiles * SPW_TILE_TOKENS >= range->to);
    if (all)
        spw_store_release(k->store, found);
    return !all;
}

static uint64_t bytes_of(const struct spw_pack_section *sections, uint32_t n)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += sections[i].n_tiles * sections[i].record_bytes;
    return bytes;
}

static int write_pack(struct spw_session *s, const struct keys *k,
                      const struct spw_store_addition *a, struct spw_error *err)
{
    struct spw_prefix *p = s->engine->above.prefix;
    struct spw_store_writer *w;
    uint64_t bytes = spw_store_write_bytes(a), written;
    SPW_TRY(spw_snapshot_check_limit(s->engine, bytes, "prefix cache", err));
    SPW_TRY(spw_store_begin(&w, k->store, a, err));
    int rc = spw_snapshot_write(s, a->sections, a->n_sections, spw_store_writer_pack(w));
    if (rc) {
        written = spw_pack_written_bytes(spw_store_writer_pack(w));
        spw_store_abort(w);
        spw_fail(err, rc, "prefix cache: tiles could not be stored: %s", strerror(-rc));
    } else {
        rc = spw_store_commit(w, &written, err);
    }
    spw_snapshot_count_write(s->engine, rc, written);
    p->stats.written_bytes += written;
    return rc;
}

static int publish_range(struct spw_session *s, const struct keys *k,
                         const struct spw_snapshot_range *range, struct spw_store_match *found,
                         struct spw_error *err)
{
    struct spw_prefix *p = s->engine->above.prefix;
    struct spw_pack_section *sections =
        spw_alloc(spw_snapshot_max_sections(s->engine) * sizeof *sections);
    int32_t *filled;
    const int32_t *tokens = fill_tiles(s->tokens, storable(s->tokens, s->n_tokens), &filled);
    if (!sections || !tokens) {
        spw_free(sections);
        spw_free(filled);
        return spw_fail(err, -ENOMEM, "prefix cache: no memory to store a session");
    }
    struct spw_store_addition a = {.tokens = tokens,
                                   .first_tile = (uint32_t)(range->from / SPW_TILE_TOKENS),
                                   .n_tiles = spw_waterline_tiles(range->to),
                                   .checkpoint = range->checkpoint,
                                   .sections = sections,
                                   .n_sections = spw_snapshot_sections(s, range, sections),
                                   .found = found};
    int rc = write_pack(s, k, &a, err);
    if (!rc) {
        s->n_published = range->to;
        p->stats.n_published += range->to - range->from;
        p->stats.published_bytes += bytes_of(sections, a.n_sections);
    }
    spw_free(sections);
    spw_free(filled);
    return rc;
}

/* Adds the tiles of the range that the store lacks. */
static int assume_range(struct spw_engine *e, const struct keys *k, const int32_t *tokens,
                        struct spw_snapshot_range *range, struct spw_pack_section *sections,
                        struct spw_store_match *found, struct spw_error *err)
{
    range->from = (uint64_t)found->n_tiles * SPW_TILE_TOKENS;
    struct spw_store_addition a = {
        .tokens = tokens,
        .first_tile = found->n_tiles,
        .n_tiles = (uint32_t)(range->to / SPW_TILE_TOKENS),
        .checkpoint = range->checkpoint,
        .sections = sections,
        .n_sections = spw_snapshot_sections(&(struct spw_session){.engine = e}, range, sections),
        .found = found};
    struct spw_store_writer *w;
    if (range->from == range->to && !range->checkpoint)
        return 0;
    int rc = spw_store_begin(&w, k->store, &a, err);
    if (!rc)
        rc = spw_store_commit(w, NULL, err);
    return rc == -EEXIST ? 0 : rc;
}

int spw_prefix_assume(struct spw_engine *e, const int32_t *tokens, uint64_t n_tokens, uint64_t n,
                      struct spw_error *err)
{
    const struct keys *k = keys_of(e, spw_engine_rope_table(e, n_tokens));
    struct spw_store_match found;
    struct spw_snapshot_range range = {.to = n - n % SPW_TILE_TOKENS,
                                       .checkpoint = spw_plan_sharing(&e->plan).needs_checkpoint};
    if (!k || !range.to || e->model.config.n_source_layers) /* n does not say which source */
        return 0;
    struct spw_pack_section *sections = spw_alloc(spw_snapshot_max_sections(e) * sizeof *sections);
    int rc = sections ? search(e, k, tokens, range.to, &found) : -ENOMEM;
    if (!rc) {
        rc = assume_range(e, k, tokens, &range, sections, &found, err);
        spw_store_release(k->store, &found); /* empty if the writer took it over */
    }
    spw_free(sections);
    return rc;
}

int spw_session_publish(struct spw_session *s, struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_engine *e = s->engine;
    struct spw_snapshot_range range;
    struct spw_store_match found;
    struct spw_error why = {0};
    const struct keys *k = keys_of(e, s->rope_table);
    if (!k || !s->cached || s->mixed || s->is_paused || !find_new(s, k, &range, &found))
        return 0;
    int rc = publish_range(s, k, &range, &found, &why);
    spw_store_release(k->store, &found); /* empty if the writer took it over */
    if (!rc || rc == -EEXIST)            /* another process has stored it meanwhile */
        return 0;
    if (rc != e->above.prefix->last_refusal) /* once, not after each answer */
        spw_engine_report_note(e, why.text);
    e->above.prefix->last_refusal = rc;
    return spw_fail(err, rc, "%s", why.text);
}

/* If it cannot, nothing is lost. */
static void publish(struct spw_session *s)
{
    spw_session_publish(s, NULL);
}

const struct spw_persist_hooks spw_prefix_hooks = {
    .open = open_stores,
    .close = close_prefix,
    .branch = branch,
    .attach = attach,
    .distrust = distrust,
    .publish = publish,
    .end_sync = release_match,
    .close_session = spw_save_file_release,
};
