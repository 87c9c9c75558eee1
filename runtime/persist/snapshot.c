/* Writes and reads the sections of a session: see snapshot.h. */
#include "runtime/persist/snapshot.h"

#include "offload/kv/kv_attach.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* ---- the fingerprint ---- */

/* Hashed as bytes: the struct has no padding. */
struct identity {
    uint8_t model[SPW_FINGERPRINT_BYTES];
    uint32_t version, compute, kv, precision;
    uint64_t residual_tiles;
    char backend[SPW_SNAPSHOT_BACKEND_BYTES];
};

/* "cuda:1 NVIDIA ..." becomes "cuda NVIDIA ...": another GPU of the same kind gives the same bits.
 */
void spw_snapshot_backend(char out[SPW_SNAPSHOT_BACKEND_BYTES], const struct spw_engine *e)
{
    const char *name = e->backend.name, *number = strchr(name, ':'), *space = strchr(name, ' ');
    if (number && space && number < space)
        snprintf(out, SPW_SNAPSHOT_BACKEND_BYTES, "%.*s%s", (int)(number - name), name, space);
    else
        snprintf(out, SPW_SNAPSHOT_BACKEND_BYTES, "%s", name);
}

void spw_snapshot_fingerprint(uint8_t out[SPW_PACK_FINGERPRINT_BYTES], const struct spw_engine *e,
                              uint64_t rope_table)
{
    const uint64_t keys = 2 * (rope_table - SPW_ROPE_SHARED); /* rotated by another table */
    const struct spw_plan *p = &e->plan;
    struct identity id;
    memset(&id, 0, sizeof id);
    memcpy(id.model, e->model_fingerprint, sizeof id.model);
    id.version = SPW_NUMERIC_VERSION | (uint32_t)e->model.config.mtp
                                           << 31; /* it has one layer more */
    id.compute = (uint32_t)p->info.compute;
    id.kv = (uint32_t)p->info.kv;
    id.precision = (uint32_t)p->info.precision;
    id.residual_tiles = p->quantizes ? p->residency[p->full_kind].residual_tiles : 0;
    spw_snapshot_backend(id.backend, e);
    for (uint64_t seed = 0; seed < 2; seed++) {
        XXH128_canonical_t half;
        XXH128_canonicalFromHash(&half, XXH3_128bits_withSeed(&id, sizeof id, keys + seed));
        memcpy(out + seed * sizeof half, &half, sizeof half);
    }
}

/* ---- which tiles ---- */

/* The tiles of a section. A session that was cut back may hold fewer exact tiles than the rule
 * says. */
static struct spw_snapshot_tiles tiles_of(const struct spw_session *s, enum spw_snapshot_kind kind,
                                          uint32_t slice, uint64_t from, uint64_t to)
{
    const struct spw_engine *e = s->engine;
    const struct spw_residency *r = spw_engine_residency(e, slice);
    struct spw_snapshot_tiles t = spw_plan_snapshot_tiles(r, kind, from, to);
    if (kind == SPW_SNAPSHOT_RECENT && t.first < t.end && s->seq.kv)
        t.first = spw_max_u32(t.first, spw_kv_exact_first(s->seq.kv, slice));
    return t;
}

/* Whether records of this kind do not move between tiers as tiles do: exact tiles beside quantized
 * ones, and states. */
static bool stays(const struct spw_engine *e, enum spw_snapshot_kind kind, uint32_t slice)
{
    return (e->plan.quantizes && kind != SPW_SNAPSHOT_OLD) ||
           spw_engine_residency(e, slice)->store == SPW_STORE_STATE;
}

static uint64_t record_bytes(const struct spw_engine *e, enum spw_snapshot_kind kind,
                             uint32_t slice)
{
    return spw_plan_record_bytes(&e->plan, e->model.config.slice_kinds[slice], kind);
}

static uint64_t logits_bytes(const struct spw_session *s)
{
    return s->engine->model.config.vocab * sizeof *s->logits;
}

uint32_t spw_snapshot_sections(const struct spw_session *s, const struct spw_snapshot_range *range,
                               struct spw_pack_section *out)
{
    const uint32_t n_slices = s->engine->model.config.n_slices;
    const uint32_t last = range->tail         ? SPW_SNAPSHOT_TAIL
                          : range->checkpoint ? SPW_SNAPSHOT_WINDOW
                                              : SPW_SNAPSHOT_OLD;
    uint32_t n = 0;
    for (uint32_t kind = SPW_SNAPSHOT_OLD; kind <= last; kind++)
        for (uint32_t slice = 0; slice < n_slices; slice++) {
            struct spw_snapshot_tiles t = tiles_of(s, kind, slice, range->from, range->to);
            if (t.first < t.end)
                out[n++] =
                    (struct spw_pack_section){.kind = kind,
                                              .layer = slice,
                                              .first_tile = t.first,
                                              .n_tiles = t.end - t.first,
                                              .record_bytes = record_bytes(s->engine, kind, slice)};
        }
    if (range->tail && range->to == s->n_tokens && s->has_logits)
        out[n++] = (struct spw_pack_section){.kind = SPW_SNAPSHOT_LOGITS,
                                             .n_tiles = 1,
                                             .record_bytes =
                                                 spw_align_up(logits_bytes(s), SPW_PACK_ALIGN)};
    return n;
}

/* ---- the write limit ---- */

int spw_snapshot_check_limit(const struct spw_engine *e, uint64_t bytes, const char *what,
                             struct spw_error *err)
{
    uint64_t left = spw_sub_u64(e->files.limit_bytes, e->files.written_bytes);
    if (bytes <= left)
        return 0;
    return spw_fail(err, -EDQUOT,
                    "%s: %llu bytes to write, but the write limit leaves only %llu beside the "
                    "bytes that KV on disk may need; raise options.disk_write_limit",
                    what, (unsigned long long)bytes, (unsigned long long)left);
}

void spw_snapshot_count_write(struct spw_engine *e, int rc, uint64_t written)
{
    e->files.written_bytes += written;
    if (rc)
        e->unpredicted = true;
}

/* ---- writing ---- */

static uint8_t *piece_of(const struct spw_session *s)
{
    return s->engine->lane.host_arena + s->engine->plan.host.piece;
}

static uint32_t piece_records(const struct spw_session *s, uint64_t bytes)
{
    assert(s->engine->plan.piece_bytes >= bytes);
    return (uint32_t)(s->engine->plan.piece_bytes / bytes);
}

int spw_snapshot_write(struct spw_session *s, const struct spw_pack_section *sections, uint32_t n,
                       struct spw_pack_writer *w)
{
    uint8_t *piece = piece_of(s);
    spw_kv_finish_writes(s->engine->kv);
    for (uint32_t i = 0; i < n; i++) {
        const struct spw_pack_section *x = &sections[i];
        uint32_t end = x->first_tile + x->n_tiles, max = piece_records(s, x->record_bytes);
        if (x->offset)
            continue;
        if (x->kind == SPW_SNAPSHOT_LOGITS) {
            memset(piece, 0, x->record_bytes);
            if (s->logits)
                memcpy(piece, s->logits, logits_bytes(s));
            SPW_TRY(spw_pack_write(w, i, 0, 1, piece));
            continue;
        }
        for (uint32_t t = x->first_tile; t < end;) {
            uint32_t next = t + spw_min_u32(end - t, max);
            SPW_TRY(spw_kv_export(s->seq.kv, x->layer, x->kind, t, next, piece));
            SPW_TRY(spw_pack_write(w, i, t, next - t, piece));
            t = next;
        }
    }
    return 0;
}

/* ---- reading ---- */

/* Lowers *n to the number of tiles that may lie on the device, and spills older tiles to make room
 * for them. Each spilled tile goes to the tier where it will lie when the session has `to` tokens.
 */
static int make_room(struct spw_session *s, uint32_t kind, uint32_t slice, uint64_t to, uint32_t *n)
{
    const struct spw_engine *e = s->engine;
    const struct spw_residency *r = &s->residency[e->model.config.slice_kinds[slice]];
    struct spw_kv_seq *seq = s->seq.kv;
    if (stays(e, kind, slice))
        return 0;
    *n = spw_min_u32(*n, r->resident);
    uint32_t end = spw_kv_end(seq, slice) + *n;
    if (end <= r->resident + spw_kv_begin(seq, slice))
        return 0;
    uint32_t disk_end = spw_waterline_disk_end(r, spw_waterline_begin(r, to));
    return spw_kv_spill(seq, slice, end - r->resident, spw_min_u32(disk_end, end - r->resident));
}

/* A reader of a pack. The piece holds bytes [offset, offset + bytes) of the file: adjacent records
 * of kinds up to `last`, of any layers, come with one read. Unless the pack goes on after the
 * tokens that are read: then each section has tiles that nobody needs, and comes with reads of its
 * own. */
struct reader {
    struct spw_session *s;
    const struct spw_pack *pack;
    enum spw_snapshot_kind last;
    bool is_whole; /* the pack does not go on */
    uint64_t offset, bytes;
    uint64_t used, fetched; /* bytes of tiles taken over; bytes read from the file */
};

/* Finds *n records of the section from `tile` on, and checks them. Lowers *n to what the piece has.
 */
static int fetch(struct reader *f, const struct spw_pack_section *x, uint32_t tile, uint32_t *n,
                 const uint8_t **out, struct spw_error *err)
{
    uint64_t offset = x->offset + (tile - x->first_tile) * x->record_bytes;
    if (offset < f->offset || offset >= f->offset + f->bytes) {
        f->offset = offset;
        f->bytes = 0;
        uint64_t bytes = *n * x->record_bytes;
        if (f->is_whole)
            bytes = spw_pack_run_bytes(f->pack, x, tile, f->last, f->s->engine->plan.piece_bytes);
        SPW_TRY(spw_pack_fetch(f->pack, offset, bytes, piece_of(f->s), err));
        f->bytes = bytes;
        f->fetched += bytes;
    }
    uint64_t in_piece = (f->offset + f->bytes - offset) / x->record_bytes;
    *n = (uint32_t)spw_min_u64(*n, in_piece);
    *out = piece_of(f->s) + (offset - f->offset);
    return spw_pack_check_records(f->pack, x, tile, *n, *out, err);
}

/* Reads the next tiles of [*first, end) and moves *first on. `to`: the tokens of the session. */
static int read_some(struct reader *f, enum spw_snapshot_kind kind, uint32_t slice, uint32_t *first,
                     uint32_t end, uint64_t to, struct spw_error *err)
{
    struct spw_session *s = f->s;
    const uint8_t *records;
    uint64_t bytes = record_bytes(s->engine, kind, slice);
    const struct spw_pack_section *x = spw_pack_find(f->pack, kind, slice, *first);
    if (!x || x->record_bytes != bytes)
        return spw_fail(err, -EBADMSG, "%s: layer %u, tile %u is missing; the file is damaged",
                        spw_pack_path(f->pack), s->engine->model.config.slice_layers[slice],
                        *first);
    uint32_t n = spw_min_u32(x->first_tile + x->n_tiles, end) - *first;
    n = spw_min_u32(n, piece_records(s, bytes));
    SPW_TRY(make_room(s, kind, slice, to, &n));
    SPW_TRY(fetch(f, x, *first, &n, &records, err));
    SPW_TRY(spw_kv_import(s->seq.kv, slice, kind, *first,
                          spw_min_u64(to, (uint64_t)(*first + n) * SPW_TILE_TOKENS), records));
    f->used += n * bytes;
    *first += n;
    return 0;
}

/* The first exact tile that the pack has. A session that was cut back before it was saved may have
 * fewer of them than the rule says, and so may a checkpoint after these n tokens, or one that a
 * session with a state had before its end. No prediction knows that. */
static uint32_t first_in_pack(const struct spw_session *s, const struct spw_pack *p, uint32_t slice,
                              struct spw_snapshot_tiles t, uint64_t n)
{
    const uint32_t from = t.first, needed = spw_waterline_old_end(s->engine->plan.residency, n);
    while (t.first < needed && !spw_pack_find(p, SPW_SNAPSHOT_RECENT, slice, t.first))
        t.first++;
    s->engine->unpredicted |= t.first > from;
    return t.first;
}

static int read_tiles(struct reader *f, enum spw_snapshot_kind kind, uint32_t slice, uint64_t n,
                      struct spw_error *err)
{
    struct spw_snapshot_tiles t = tiles_of(f->s, kind, slice, 0, n);
    if (kind == SPW_SNAPSHOT_RECENT && t.first < t.end)
        t.first = first_in_pack(f->s, f->pack, slice, t, n);
    /* If no exact tile is needed, the next exact tile still follows the last token. */
    if ((kind == SPW_SNAPSHOT_RECENT || kind == SPW_SNAPSHOT_WINDOW) && t.end && t.first >= t.end)
        return spw_kv_import(f->s->seq.kv, slice, kind, t.end, (uint64_t)t.end * SPW_TILE_TOKENS,
                             NULL);
    while (t.first < t.end)
        SPW_TRY(read_some(f, kind, slice, &t.first, t.end, n, err));
    return 0;
}

/* Reads in the order in which the file has the sections; all, or those that stay. */
static int read_kinds(struct spw_session *s, const struct spw_pack *p, enum spw_snapshot_kind first,
                      enum spw_snapshot_kind last, bool all, uint64_t n, uint64_t *read_bytes,
                      struct spw_error *err)
{
    const struct spw_pack_info *info = spw_pack_info(p);
    struct reader f = {
        .s = s, .pack = p, .last = last, .is_whole = info->first_token + info->n_tokens == n};
    int rc = 0;
    for (enum spw_snapshot_kind kind = first; kind <= last; kind++)
        for (uint32_t i = 0; i < s->engine->model.config.n_slices && !rc; i++)
            if (all || stays(s->engine, kind, i))
                rc = read_tiles(&f, kind, i, n, err);
    *read_bytes = f.used;
    s->engine->files.read_bytes += f.fetched;
    if (rc)
        s->engine->unpredicted = true;
    return rc;
}

bool spw_snapshot_continues(const struct spw_engine *e, const struct spw_pack *p, uint64_t n)
{
    bool has_all = true;
    for (uint32_t i = 0; i < e->model.config.n_slices; i++) {
        const struct spw_residency *r = spw_engine_residency(e, i);
        uint32_t first = spw_waterline_first_read_exact(r, n);
        uint32_t kind = r->quantizes ? SPW_SNAPSHOT_RECENT : SPW_SNAPSHOT_WINDOW;
        if ((r->quantizes || r->window.tokens) && first < n / SPW_TILE_TOKENS)
            has_all &= spw_pack_find(p, kind, i, first) != NULL;
        if (r->store == SPW_STORE_STATE)
            has_all &= spw_pack_find(p, kind, i, spw_waterline_tiles(n) - 1) != NULL;
    }
    return has_all;
}

int spw_snapshot_read_exact(struct spw_session *s, const struct spw_pack *p, uint64_t n,
                            uint64_t *read_bytes, struct spw_error *err)
{
    const enum spw_snapshot_kind last =
        n % SPW_TILE_TOKENS ? SPW_SNAPSHOT_TAIL : SPW_SNAPSHOT_WINDOW;
    return read_kinds(s, p, SPW_SNAPSHOT_SINK, last, false, n, read_bytes, err);
}

int spw_snapshot_read(struct spw_session *s, const struct spw_pack *p, uint64_t n,
                      struct spw_error *err)
{
    struct spw_engine *e = s->engine;
    uint64_t read_bytes;
    int rc = read_kinds(s, p, SPW_SNAPSHOT_OLD, SPW_SNAPSHOT_TAIL, true, n, &read_bytes, err);
    if (!rc)
        rc = spw_residency_apply(&e->executor->residency, &s->seq, n);
    if (rc) {
        e->unpredicted = true;
        spw_kv_truncate(s->seq.kv, e->plan.residency, 0);
        return spw_fail(err, rc, "%s: the session could not be read: %s", spw_pack_path(p),
                        strerror(-rc));
    }
    return 0;
}

int spw_snapshot_read_logits(struct spw_session *s, const struct spw_pack *p, struct spw_error *err)
{
    const struct spw_pack_section *x = spw_pack_find(p, SPW_SNAPSHOT_LOGITS, 0, 0);
    if (!x)
        return -ENOENT;
    if (x->record_bytes != spw_align_up(logits_bytes(s), SPW_PACK_ALIGN))
        return spw_fail(err, -EBADMSG, "%s: its logits have another vocabulary", spw_pack_path(p));
    SPW_TRY(spw_pack_read(p, x, 0, 1, piece_of(s), err));
    s->engine->files.read_bytes += x->record_bytes;
    if (s->logits)
        memcpy(s->logits, piece_of(s), logits_bytes(s));
    return 0;
}
