/* Tables of tiles as numbers: see traffic_tiles.h. */
#include "runtime/plan/traffic_tiles.h"

#include <assert.h>
#include <string.h>

#define NO_TILE UINT32_MAX

struct tile {
    uint32_t refs, device_refs; /* refs: also the link of the free list */
    bool host, disk;            /* where its copy below is */
};

/* As struct spw_kv_table. */
struct layer {
    uint32_t first, begin, end, disk_end;
    uint32_t retained, retained_end;
    uint32_t *ids; /* [max_tiles] */
    bool shares;   /* since it was empty, another session has had tiles of it */
};

struct spw_tiles {
    struct spw_tiles_options o;
    struct spw_tiles_row *rows; /* owned, as what follows */
    struct tile *tiles;         /* [n_sessions * n_rows * max_tiles]: more cannot be retained */
    uint32_t *ids;              /* the same */
    struct layer *layers;       /* [n_sessions][n_rows] */
    uint32_t n_used;            /* tiles before it were used; memory of the others is not touched */
    uint32_t free_tile;         /* the latest of them that is free again; NO_TILE: none */
};

static struct layer *layer_of(const struct spw_tiles *t, uint32_t session, uint32_t row)
{
    return &t->layers[(size_t)session * t->o.n_rows + row];
}

static struct tile *tile_of(const struct spw_tiles *t, const struct layer *l, uint32_t i)
{
    return &t->tiles[l->ids[i]];
}

/* ---- open, close ---- */

static void start_layers(struct spw_tiles *t)
{
    uint32_t n = t->o.n_sessions * t->o.n_rows, first = t->o.first_tile;
    for (uint32_t i = 0; i < n; i++)
        t->layers[i] = (struct layer){.first = first,
                                      .begin = first,
                                      .end = first,
                                      .ids = t->ids + (size_t)i * t->o.max_tiles};
}

int spw_tiles_open(struct spw_tiles **out, const struct spw_tiles_options *o)
{
    struct spw_tiles *t = spw_alloc_zero(1, sizeof *t);
    uint64_t n_layers = (uint64_t)o->n_sessions * o->n_rows, n = n_layers * o->max_tiles;
    if (!t || n >= UINT32_MAX) {
        spw_free(t);
        return -ENOMEM;
    }
    t->o = *o;
    t->free_tile = NO_TILE;
    t->rows = spw_alloc_zero(o->n_rows, sizeof *t->rows);
    t->tiles = spw_alloc_zero((size_t)n, sizeof *t->tiles);
    t->ids = spw_alloc_zero((size_t)n, sizeof *t->ids);
    t->layers = spw_alloc_zero((size_t)n_layers, sizeof *t->layers);
    if (!t->rows || !t->tiles || !t->ids || !t->layers) {
        spw_tiles_close(t);
        return -ENOMEM;
    }
    memcpy(t->rows, o->rows, o->n_rows * sizeof *t->rows);
    start_layers(t);
    *out = t;
    return 0;
}

void spw_tiles_close(struct spw_tiles *t)
{
    if (!t)
        return;
    spw_free(t->rows);
    spw_free(t->tiles);
    spw_free(t->ids);
    spw_free(t->layers);
    spw_free(t);
}

const struct spw_tiles_row *spw_tiles_rows(const struct spw_tiles *t, uint32_t *n)
{
    *n = t->o.n_rows;
    return t->rows;
}

uint32_t spw_tiles_disk_end(const struct spw_tiles *t, uint32_t session, uint32_t row)
{
    return layer_of(t, session, row)->disk_end;
}

uint32_t spw_tiles_begin(const struct spw_tiles *t, uint32_t session, uint32_t row)
{
    return layer_of(t, session, row)->begin;
}

uint32_t spw_tiles_first(const struct spw_tiles *t, uint32_t session, uint32_t row)
{
    return layer_of(t, session, row)->first;
}

uint32_t spw_tiles_shared_end(const struct spw_tiles *t, uint32_t a, uint32_t b, uint32_t row)
{
    const struct layer *x = layer_of(t, a, row), *y = layer_of(t, b, row);
    uint32_t first = spw_max_u32(x->first, y->first), end = spw_min_u32(x->end, y->end), i = first;
    while (i < end && x->ids[i] == y->ids[i])
        i++;
    return i > first ? i : 0;
}

bool spw_tiles_is_shared(const struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t tile)
{
    return tile_of(t, layer_of(t, session, row), tile)->refs > 1;
}

/* ---- tiles ---- */

static uint32_t new_tile(struct spw_tiles *t, bool on_device)
{
    uint32_t id = t->free_tile;
    if (id == NO_TILE)
        id = t->n_used++;
    else
        t->free_tile = t->tiles[id].refs;
    t->tiles[id] = (struct tile){.refs = 1, .device_refs = on_device, .disk = !on_device};
    return id;
}

static void put_tile(struct spw_tiles *t, uint32_t id, bool counted_on_device)
{
    struct tile *x = &t->tiles[id];
    x->device_refs -= counted_on_device;
    if (--x->refs) { /* the others may have no host frames for a copy */
        x->host = x->host && x->refs != x->device_refs;
        return;
    }
    x->refs = t->free_tile;
    t->free_tile = id;
}

static void forget(struct spw_tiles *t, const struct layer *l, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        put_tile(t, l->ids[i], i >= l->begin);
}

static void let_go(struct spw_tiles *t, struct layer *l)
{
    for (uint32_t i = l->retained; i < spw_min_u32(l->first, l->retained_end); i++)
        put_tile(t, l->ids[i], true);
    l->retained = l->retained_end = 0;
}

/* ---- sessions ---- */

void spw_tiles_clear(struct spw_tiles *t, uint32_t session)
{
    for (uint32_t r = 0; r < t->o.n_rows; r++) {
        struct layer *l = layer_of(t, session, r);
        let_go(t, l);
        forget(t, l, l->first, l->end);
        *l = (struct layer){.first = t->o.first_tile,
                            .begin = t->o.first_tile,
                            .end = t->o.first_tile,
                            .ids = l->ids};
    }
}

void spw_tiles_fork(struct spw_tiles *t, uint32_t to, uint32_t from)
{
    for (uint32_t r = 0; r < t->o.n_rows; r++) {
        struct layer *f = layer_of(t, from, r), *l = layer_of(t, to, r);
        uint32_t *ids = l->ids;
        assert(l->first == l->end);
        f->shares = true;
        *l = (struct layer){f->first, f->begin, f->end, f->disk_end, 0, 0, ids, true};
        for (uint32_t i = f->first; i < f->end; i++) {
            struct tile *x = tile_of(t, f, i);
            ids[i] = f->ids[i];
            x->refs++;
            x->device_refs += i >= f->begin;
        }
    }
}

void spw_tiles_grow(struct spw_tiles *t, uint32_t session, uint32_t row, uint64_t from, uint64_t to)
{
    struct layer *l = layer_of(t, session, row);
    uint32_t end = spw_waterline_tiles(to);
    assert(end <= t->o.max_tiles);
    if (from % SPW_TILE_TOKENS && to > from) { /* the tail becomes its own, without a copy below */
        struct tile *tail = tile_of(t, l, l->end - 1);
        if (tail->refs > 1) {
            uint32_t id = new_tile(t, true);
            put_tile(t, l->ids[l->end - 1], true);
            l->ids[l->end - 1] = id;
        } else {
            tail->host = tail->disk = false;
        }
    }
    while (l->end < end)
        l->ids[l->end++] = new_tile(t, true);
}

/* ---- waterlines ---- */

/* Whether the tile, which lies below the device for good or is about to, gets a copy there. */
static void write_down(const struct spw_tiles *t, struct tile *x, bool deep, uint64_t times,
                       struct spw_tiles_moved *m)
{
    m->to_host += deep && t->o.disk_to_device ? 0 : times;
    m->to_disk += deep ? times : 0;
    x->host = !deep;
    x->disk = deep;
}

/* Tiles [from, to) of a spill to these waterlines. */
static void spill_tiles(const struct spw_tiles *t, const struct layer *l, uint64_t times,
                        uint32_t from, uint32_t to, uint32_t begin, uint32_t disk_end,
                        struct spw_tiles_moved *m)
{
    for (uint32_t i = from; i < to; i++) {
        struct tile *x = tile_of(t, l, i);
        bool leaves = i >= l->begin && i < begin, deep = i < disk_end;
        if (leaves && !x->host && !x->disk) {
            write_down(t, x, deep, times, m);
        } else if (deep && x->host) {
            m->to_disk += times;
            x->host = false;
            x->disk = true;
        }
        x->device_refs -= leaves;
    }
}

/* Two ranges: lower tiles that go on to the disk, and tiles that lie on the device. Most spills
 * have few of both: tiles between them are not visited. */
void spw_tiles_spill(struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t begin,
                     uint32_t disk_end, struct spw_tiles_moved *m)
{
    struct layer *l = layer_of(t, session, row);
    const uint64_t times = t->rows[row].times;
    begin = spw_max_u32(begin, l->begin);
    disk_end = t->o.disk ? spw_max_u32(spw_min_u32(disk_end, l->end), l->disk_end) : l->disk_end;
    spill_tiles(t, l, times, spw_max_u32(l->first, l->disk_end), spw_min_u32(l->begin, disk_end),
                begin, disk_end, m);
    spill_tiles(t, l, times, l->begin, spw_max_u32(begin, disk_end), begin, disk_end, m);
    l->begin = begin;
    l->disk_end = disk_end;
}

/* A tile that another session has on the device is there already. */
static void come_up(const struct tile *x, uint64_t times, struct spw_tiles_moved *m)
{
    m->from_host += x->host ? times : 0;
    m->from_disk += x->host ? 0 : times;
}

void spw_tiles_load(struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t begin,
                    struct spw_tiles_moved *m)
{
    struct layer *l = layer_of(t, session, row);
    for (uint32_t i = begin; i < l->begin; i++) {
        struct tile *x = tile_of(t, l, i);
        if (!x->device_refs++)
            come_up(x, t->rows[row].times, m);
    }
    l->begin = spw_min_u32(begin, l->begin);
}

void spw_tiles_drop(struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t first)
{
    struct layer *l = layer_of(t, session, row);
    first = spw_min_u32(first, l->end);
    if (first <= l->first)
        return;
    if (l->begin > l->first)
        let_go(t, l);
    forget(t, l, spw_max_u32(l->first, spw_min_u32(l->retained_end, first)), first);
    l->first = first;
    l->begin = spw_max_u32(l->begin, first);
}

void spw_tiles_stream(const struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t first,
                      uint32_t end, struct spw_tiles_moved *m)
{
    const struct layer *l = layer_of(t, session, row);
    const uint64_t times = t->rows[row].times;
    if (first < end && !(t->o.disk && l->shares)) { /* the waterline says where all copies lie */
        const uint32_t on_host = spw_max_u32(first, spw_min_u32(end, l->disk_end));
        m->from_disk += (on_host - first) * times;
        m->from_host += (end - on_host) * times;
        return;
    }
    for (uint32_t i = first; i < end; i++)
        come_up(tile_of(t, l, i), times, m);
}

/* ---- cutting back ---- */

void spw_tiles_retain(struct spw_tiles *t, uint32_t session)
{
    for (uint32_t r = 0; r < t->o.n_rows; r++) {
        struct layer *l = layer_of(t, session, r);
        let_go(t, l);
        l->retained = l->first;
        l->retained_end = l->end;
    }
}

/* The row holds again its retained tiles. */
static void take_back(struct spw_tiles *t, struct layer *l)
{
    if (l->retained_end && l->first > l->retained) {
        assert(l->begin == l->first);
        forget(t, l, spw_max_u32(l->first, l->retained_end), l->end);
        l->end = l->retained_end;
        l->first = l->begin = l->retained;
    }
    l->retained = l->retained_end = 0;
}

void spw_tiles_truncate(struct spw_tiles *t, uint32_t session, uint64_t n_tokens)
{
    n_tokens = spw_max_u64(n_tokens, (uint64_t)t->o.first_tile * SPW_TILE_TOKENS);
    uint32_t end = spw_waterline_tiles(n_tokens);
    for (uint32_t r = 0; r < t->o.n_rows; r++) {
        struct layer *l = layer_of(t, session, r);
        if (end <= l->retained_end)
            take_back(t, l);
        else
            let_go(t, l);
        if (end < l->end) {
            forget(t, l, spw_max_u32(end, l->first), l->end);
            l->end = end;
        }
        l->first = spw_min_u32(l->first, l->end);
        l->begin = spw_min_u32(l->begin, l->end);
        l->disk_end = spw_min_u32(l->disk_end, (uint32_t)(n_tokens / SPW_TILE_TOKENS));
    }
}

/* ---- another division ---- */

void spw_tiles_drop_copies(struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t first)
{
    const struct layer *l = layer_of(t, session, row);
    for (uint32_t i = spw_max_u32(first, l->begin); i < l->end; i++) {
        struct tile *x = tile_of(t, l, i);
        if (x->host && x->refs == x->device_refs)
            x->host = false;
    }
}

/* A session before this one has the tile, too; then at the same place. */
static bool had_before(const struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t tile)
{
    uint32_t id = layer_of(t, session, row)->ids[tile];
    for (uint32_t s = 0; s < session; s++) {
        const struct layer *l = layer_of(t, s, row);
        if (tile >= l->first && tile < l->end && l->ids[tile] == id)
            return true;
    }
    return false;
}

void spw_tiles_count_below(const struct spw_tiles *t, uint64_t *on_host, uint64_t *on_disk)
{
    *on_host = *on_disk = 0;
    for (uint32_t s = 0; s < t->o.n_sessions; s++)
        for (uint32_t r = 0; r < t->o.n_rows; r++) {
            const struct layer *l = layer_of(t, s, r);
            for (uint32_t i = l->first; i < l->end; i++) {
                const struct tile *x = tile_of(t, l, i);
                if (had_before(t, s, r, i))
                    continue;
                *on_host += x->host ? t->rows[r].times : 0;
                *on_disk += x->disk ? t->rows[r].times : 0;
            }
        }
}

static bool quantizes(const struct spw_tiles *t, uint32_t row)
{
    return !spw_layer_has_window((enum spw_layer_kind)t->rows[row].kind);
}

static bool sink_is_below(const struct spw_tiles *t, const struct layer *l, uint32_t row)
{
    return quantizes(t, row) && !l->first && l->end && !tile_of(t, l, 0)->device_refs;
}

static void begin_behind_sink(struct spw_tiles *t, uint32_t session, uint32_t row)
{
    struct layer *l = layer_of(t, session, row);
    spw_tiles_drop(t, session, row, quantizes(t, row) ? 1 : l->end);
    if (!quantizes(t, row) || l->end <= 1)
        *l = (struct layer){.first = 1, .begin = 1, .end = 1, .ids = l->ids};
}

void spw_tiles_split(struct spw_tiles *t, uint32_t session, struct spw_tiles_moved *m)
{
    for (uint32_t r = 0; r < t->o.n_rows; r++) {
        const struct layer *l = layer_of(t, session, r);
        if (!sink_is_below(t, l, r)) {
            begin_behind_sink(t, session, r);
            continue;
        }
        uint64_t times = t->rows[r].times, read = tile_of(t, l, 0)->disk ? times : 0;
        m->from_host += times; /* by way of the host, wherever the disk reads to */
        m->from_disk += read;
        m->in_bounce += read;
    }
}

void spw_tiles_end_split(struct spw_tiles *t)
{
    for (uint32_t s = 0; s < t->o.n_sessions; s++)
        for (uint32_t r = 0; r < t->o.n_rows; r++)
            begin_behind_sink(t, s, r);
    t->o.first_tile = 1;
}

/* ---- files ---- */

void spw_tiles_attach(struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t first,
                      uint32_t end)
{
    struct layer *l = layer_of(t, session, row);
    if (l->first == l->end)
        l->first = l->end = first;
    assert(l->end == first && end <= t->o.max_tiles);
    while (l->end < end)
        l->ids[l->end++] = new_tile(t, false);
    l->begin = l->disk_end = l->end;
}

void spw_tiles_import(struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t first,
                      uint32_t end)
{
    struct layer *l = layer_of(t, session, row);
    if (l->first == l->end)
        l->first = l->begin = l->end = first;
    assert(l->end == first && end <= t->o.max_tiles);
    while (l->end < end)
        l->ids[l->end++] = new_tile(t, true);
}

void spw_tiles_export(const struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t first,
                      uint32_t end, uint64_t *from_device, uint64_t *from_disk)
{
    const struct layer *l = layer_of(t, session, row);
    for (uint32_t i = first; i < end; i++) {
        const struct tile *x = tile_of(t, l, i);
        *from_device += x->device_refs ? t->rows[row].times : 0;
        *from_disk += x->device_refs || x->host ? 0 : t->rows[row].times;
    }
}
