/* The prediction of a run, and of what happens to sessions between two steps: see traffic.h. */
#include "runtime/plan/traffic_run.h"

#include <string.h>

uint64_t spw_traffic_flags(const struct spw_plan *p)
{
    return p->quantizes ? sizeof(uint32_t) : 0;
}

uint64_t spw_traffic_open_bytes(const struct spw_plan *p, const struct spw_weights *w)
{
    uint64_t bytes = w->n_small * sizeof(float) + spw_plan_addresses_bytes(p, w);
    for (uint32_t u = 0; u < w->n_blocks + w->n_expert_blocks; u++)
        if (spw_plan_block_resident(p, w, u))
            bytes += spw_plan_block_moved_bytes(p, w, u);
    return bytes;
}

/* ---- a run ---- */

/* A row for each slice. */
static uint32_t rows_by_layer(struct spw_traffic_run *r, struct spw_tiles_row *rows)
{
    const struct spw_model_config *c = r->weights->config;
    for (uint32_t l = 0; l < c->n_layers; l++)
        r->visits[r->n_visits++] = (struct spw_traffic_visit){
            c->first_slices[l], spw_config_layer_slices(c, l), spw_config_stores_kv(c, l),
            spw_config_last_reader(c, c->kv_layers[l]) == l};
    for (uint32_t i = 0; i < c->n_slices; i++)
        rows[i] = (struct spw_tiles_row){c->slice_kinds[i], 1};
    return c->n_slices;
}

/* A row for the layers of a kind whose tiles no other layer reads, and one for each other layer. */
static uint32_t rows_by_kind(struct spw_traffic_run *r, struct spw_tiles_row *rows)
{
    const struct spw_model_config *c = r->weights->config;
    uint32_t n = 0;
    for (uint8_t k = 0; k < SPW_LAYER_KINDS; k++) {
        uint64_t alone = 0;
        for (uint32_t l = 0; l < c->n_kv_layers; l++)
            alone += c->layer_kinds[l] == k && spw_config_last_reader(c, l) == l;
        if (alone) {
            r->visits[r->n_visits++] = (struct spw_traffic_visit){n, 1, true, true};
            rows[n++] = (struct spw_tiles_row){k, alone * c->kv[k].n_slices};
        }
        for (uint32_t l = 0; l < c->n_kv_layers; l++) {
            uint32_t last = spw_config_last_reader(c, l);
            if (c->layer_kinds[l] != k || last == l)
                continue;
            for (uint32_t i = l; i <= last; i++)
                if (c->kv_layers[i] == l)
                    r->visits[r->n_visits++] = (struct spw_traffic_visit){n, 1, i == l, i == last};
            rows[n++] = (struct spw_tiles_row){k, c->kv[k].n_slices};
        }
    }
    return n;
}

static int open_tiles(struct spw_traffic_run *r, bool by_layer)
{
    const struct spw_plan *p = r->plan;
    const struct spw_model_config *c = r->weights->config;
    struct spw_tiles_row *rows = spw_alloc_zero(c->n_slices, sizeof *rows);
    r->visits = spw_alloc_zero(c->n_layers, sizeof *r->visits);
    if (!rows || !r->visits) {
        spw_free(rows);
        return -ENOMEM;
    }
    uint32_t n = by_layer ? rows_by_layer(r, rows) : rows_by_kind(r, rows);
    int rc = spw_tiles_open(&r->tiles, &(struct spw_tiles_options){
                                           .rows = rows,
                                           .n_rows = n,
                                           .n_sessions = p->info.sessions,
                                           .max_tiles = p->max_tiles,
                                           .first_tile = p->quantizes,
                                           .disk = p->n_disk_frames || p->attaches,
                                           .disk_to_device = p->disk_to_device,
                                       });
    spw_free(rows);
    return rc;
}

static int open_account(struct spw_traffic_account *a, const struct spw_plan *p, uint64_t pass_rows)
{
    uint32_t n = p->info.sessions;
    a->pass_spans = spw_alloc_zero(n, sizeof *a->pass_spans);
    a->rest = spw_alloc_zero(n, sizeof *a->rest);
    return a->pass_spans && a->rest ? spw_cut_init(&a->cut, p->chunk, pass_rows, n) : -ENOMEM;
}

static void close_account(struct spw_traffic_account *a)
{
    spw_cut_free(&a->cut);
    spw_free(a->pass_spans);
    spw_free(a->rest);
}

static int open_run(struct spw_traffic_run *r, bool by_layer, const double *expert_counts,
                    void *expert_tables)
{
    const struct spw_plan *p = r->plan;
    uint32_t n = p->info.sessions;
    r->shares = spw_alloc_zero(n, sizeof *r->shares);
    r->ahead = spw_alloc_zero(n, sizeof *r->ahead);
    r->expected = spw_alloc_zero(n, sizeof *r->expected);
    if (!r->shares || !r->ahead || !r->expected)
        return -ENOMEM;
    spw_share_frames(p, r->shares, n, 0);
    SPW_TRY(open_tiles(r, by_layer));
    SPW_TRY(open_account(&r->accounts[0], p, spw_min_u64(p->pass_rows, n * p->info.context)));
    if (p->rows_beside)
        SPW_TRY(open_account(&r->accounts[1], p, p->rows_beside));
    r->now = &r->accounts[0];
    const struct spw_expert_shape shape = spw_plan_expert_shape(r->weights);
    if (p->n_expert_frames)
        SPW_TRY(spw_expert_residency_init(&r->experts, &shape, p->n_expert_frames, expert_counts,
                                          expert_tables));
    r->parts = spw_alloc_zero(spw_max_u32(r->now->cut.most_parts, r->accounts[1].cut.most_parts),
                              sizeof *r->parts);
    return r->parts ? 0 : -ENOMEM;
}

int spw_traffic_run_open(struct spw_traffic_run **out, const struct spw_plan *p,
                         const struct spw_weights *w, bool by_layer, const double *expert_counts,
                         void *expert_tables)
{
    struct spw_traffic_run *r = spw_alloc_zero(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    r->plan = p;
    r->weights = w;
    int rc = open_run(r, by_layer, expert_counts, expert_tables);
    if (rc) {
        spw_traffic_run_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

void spw_traffic_run_close(struct spw_traffic_run *r)
{
    if (!r)
        return;
    spw_tiles_close(r->tiles);
    spw_free(r->visits);
    close_account(&r->accounts[0]);
    close_account(&r->accounts[1]);
    spw_expert_residency_free(&r->experts);
    spw_free(r->shares);
    spw_free(r->parts);
    spw_free(r->ahead);
    spw_free(r->expected);
    spw_free(r);
}

void spw_traffic_add(struct spw_traffic_run *r, enum spw_moved link, uint64_t bytes)
{
    if (r)
        r->moved.bytes[link] += bytes;
}

struct spw_tiles *spw_traffic_tiles(struct spw_traffic_run *r)
{
    return r->tiles;
}

void spw_traffic_add_tiles(struct spw_traffic *t, const struct spw_plan *p,
                           const struct spw_tiles_moved *m)
{
    uint64_t up = m->from_host + (p->disk_to_device ? 0 : m->from_disk - m->in_bounce);
    t->bytes[SPW_MOVED_HOST_TO_DEVICE] += up * p->tile_bytes;
    t->bytes[SPW_MOVED_DEVICE_TO_HOST] += m->to_host * p->tile_bytes;
    t->bytes[SPW_MOVED_HOST_TO_DISK] += m->to_disk * p->tile_bytes;
    t->bytes[SPW_MOVED_DISK_TO_HOST] += m->from_disk * p->tile_bytes;
}

/* ---- waterlines ---- */

const struct spw_residency *spw_traffic_residency(const struct spw_traffic_run *r, uint32_t session,
                                                  uint32_t row)
{
    uint32_t n_rows;
    return &r->shares[session].residency[spw_tiles_rows(r->tiles, &n_rows)[row].kind];
}

bool spw_traffic_is_fixed(const struct spw_traffic_run *r, uint32_t row)
{
    return spw_traffic_residency(r, 0, row)->fixed;
}

void spw_traffic_spill(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t begin,
                       struct spw_tiles_moved *m)
{
    if (begin > spw_tiles_begin(r->tiles, session, row))
        spw_tiles_spill(r->tiles, session, row, begin,
                        spw_waterline_disk_end(spw_traffic_residency(r, session, row), begin), m);
}

uint32_t spw_traffic_n_rows(const struct spw_traffic_run *r)
{
    uint32_t n_rows;
    spw_tiles_rows(r->tiles, &n_rows);
    return n_rows;
}

void spw_traffic_apply(struct spw_traffic_run *r, uint32_t session, uint64_t n,
                       struct spw_tiles_moved *m)
{
    for (uint32_t i = 0; i < spw_traffic_n_rows(r); i++) {
        const struct spw_residency *at = spw_traffic_residency(r, session, i);
        uint32_t begin = spw_waterline_begin(at, n);
        if (at->fixed)
            continue;
        spw_tiles_drop(r->tiles, session, i, spw_waterline_first_visible(at, n));
        spw_traffic_spill(r, session, i, begin, m);
        spw_tiles_load(r->tiles, session, i, begin, m);
    }
}

/* Of n tokens, those that the tables are about: the old ones, where old tiles are kept apart. */
static uint64_t tokens_in_tables(const struct spw_plan *p, uint64_t n)
{
    return p->quantizes ? (uint64_t)spw_waterline_old_end(p->residency, n) * SPW_TILE_TOKENS : n;
}

void spw_traffic_truncate(struct spw_traffic_run *r, uint32_t session, uint64_t n)
{
    if (r)
        spw_tiles_truncate(r->tiles, session, tokens_in_tables(r->plan, n));
}

void spw_traffic_cut_back(struct spw_traffic_run *r, uint32_t session, uint64_t n)
{
    struct spw_tiles_moved m = {0};
    if (!r)
        return;
    spw_traffic_truncate(r, session, n);
    spw_traffic_apply(r, session, n, &m);
    spw_traffic_add_tiles(&r->moved, r->plan, &m);
}

/* ---- other shares of the frames ---- */

static void take_shares(struct spw_traffic_run *r, const struct spw_share *shares)
{
    memcpy(r->shares, shares, r->plan->info.sessions * sizeof *shares);
}

/* As spw_residency_make_copies_fit. */
static void make_copies_fit(struct spw_traffic_run *r, uint32_t session, uint64_t n,
                            struct spw_tiles_moved *m)
{
    for (uint32_t i = 0; i < spw_traffic_n_rows(r); i++) {
        const struct spw_residency *at = spw_traffic_residency(r, session, i);
        uint32_t begin = spw_waterline_begin(at, n);
        if (at->fixed)
            continue;
        spw_tiles_drop_copies(r->tiles, session, i, begin);
        spw_tiles_spill(r->tiles, session, i, 0, spw_waterline_disk_end(at, begin), m);
    }
}

/* As spw_engine_leave_frames. */
static void leave_frames(struct spw_traffic_run *r, const uint64_t *n_tokens,
                         struct spw_tiles_moved *m)
{
    uint32_t n = r->plan->info.sessions;
    for (uint32_t i = 0; i < n; i++)
        make_copies_fit(r, i, n_tokens[i], m);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < spw_traffic_n_rows(r); k++)
            if (!spw_traffic_is_fixed(r, k))
                spw_traffic_spill(
                    r, i, k, spw_waterline_begin(spw_traffic_residency(r, i, k), n_tokens[i]), m);
}

void spw_traffic_drop_copies(struct spw_traffic_run *r, uint32_t session)
{
    for (uint32_t k = 0; r && k < spw_traffic_n_rows(r); k++)
        spw_tiles_drop_copies(r->tiles, session, k, 0);
}

bool spw_traffic_share(struct spw_traffic_run *r, const struct spw_share *shares,
                       const uint64_t *n_tokens)
{
    struct spw_tiles_moved m = {0};
    bool moves = false;
    if (!r)
        return false;
    for (uint32_t i = 0; i < r->plan->info.sessions; i++)
        moves |= n_tokens[i] && spw_share_differs(r->shares[i].residency, shares[i].residency);
    take_shares(r, shares);
    if (moves)
        leave_frames(r, n_tokens, &m);
    spw_traffic_add_tiles(&r->moved, r->plan, &m);
    return moves;
}

/* ---- another plan ---- */

/* Exact tiles leave the tables: they lie on the device from now on. */
static void split(struct spw_traffic_run *r, const struct spw_plan *from, const uint64_t *n_tokens,
                  struct spw_tiles_moved *m)
{
    for (uint32_t i = 0; i < from->info.sessions; i++)
        for (uint32_t k = 0; k < spw_traffic_n_rows(r); k++) {
            const struct spw_residency *at = spw_traffic_residency(r, i, k);
            uint32_t first = at->fixed ? spw_tiles_first(r->tiles, i, k)
                                       : spw_waterline_first_exact(at, n_tokens[i]);
            spw_tiles_load(r->tiles, i, k, first, m);
        }
    for (uint32_t i = 0; i < from->info.sessions; i++) {
        spw_tiles_truncate(r->tiles, i, tokens_in_tables(r->plan, n_tokens[i]));
        spw_tiles_split(r->tiles, i, m);
    }
}

/* Tiles below the device get their new form, each copy on its own. */
static void convert(struct spw_traffic_run *r, const struct spw_plan *from)
{
    const struct spw_plan *to = r->plan;
    bool quantized = from->format == SPW_QFORMAT_EXACT && to->format != SPW_QFORMAT_EXACT;
    uint64_t on_host, on_disk;
    spw_tiles_count_below(r->tiles, &on_host, &on_disk);
    if (to->tile_bytes == from->tile_bytes)
        return;
    uint64_t by_device = quantized ? on_host + (to->disk_to_device ? 0 : on_disk) : 0;
    spw_traffic_add(r, SPW_MOVED_DISK_TO_HOST, on_disk * from->tile_bytes);
    spw_traffic_add(r, SPW_MOVED_HOST_TO_DISK, on_disk * to->tile_bytes);
    spw_traffic_add(r, SPW_MOVED_HOST_TO_DEVICE, by_device * from->tile_bytes);
    spw_traffic_add(r, SPW_MOVED_DEVICE_TO_HOST, by_device * to->tile_bytes);
}

void spw_traffic_replan(struct spw_traffic_run *r, const struct spw_plan *from,
                        const struct spw_share *shares, const uint64_t *n_tokens,
                        uint64_t n_renumbered)
{
    struct spw_tiles_moved before = {0}, after = {0};
    if (!r)
        return;
    const struct spw_plan *to = r->plan;
    uint32_t n = from->info.sessions;
    take_shares(r, shares);
    bool apart = to->quantizes && !from->quantizes;
    for (uint32_t i = 0; i < n; i++)
        spw_tiles_truncate(r->tiles, i, tokens_in_tables(from, n_tokens[i]));
    if (apart)
        split(r, from, n_tokens, &before);
    spw_traffic_add_tiles(&r->moved, from, &before);
    convert(r, from);
    if (apart)
        spw_tiles_end_split(r->tiles);
    leave_frames(r, n_tokens, &after);
    for (uint32_t i = 0; i < n; i++)
        spw_traffic_apply(r, i, n_tokens[i], &after);
    for (uint32_t i = 0; i < n; i++)
        spw_traffic_drop_copies(r, i);
    spw_traffic_add_tiles(&r->moved, to, &after);
    spw_traffic_add(r, SPW_MOVED_DISK_TO_HOST, n_renumbered * to->tile_bytes);
    spw_traffic_add(r, SPW_MOVED_HOST_TO_DISK, n_renumbered * to->tile_bytes);
}

bool spw_traffic_shares(const struct spw_traffic_run *r, uint32_t session, uint32_t row,
                        uint32_t tile)
{
    return r && spw_tiles_is_shared(r->tiles, session, row, tile);
}

void spw_traffic_fork(struct spw_traffic_run *r, uint32_t to, uint32_t from, uint64_t n_tokens)
{
    if (!r)
        return;
    spw_tiles_fork(r->tiles, to, from);
    spw_traffic_truncate(r, to, n_tokens);
    r->shares[to] = r->shares[from];
}

void spw_traffic_close(struct spw_traffic_run *r, uint32_t session)
{
    if (r)
        spw_tiles_clear(r->tiles, session);
}

void spw_traffic_attach(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t first,
                        uint32_t end)
{
    if (r)
        spw_tiles_attach(r->tiles, session, row, first, end);
}

void spw_traffic_import(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t first,
                        uint32_t end, bool exact)
{
    uint32_t n_rows;
    if (!r || first > end)
        return;
    const struct spw_plan *p = r->plan;
    const struct spw_tiles_row *at = &spw_tiles_rows(r->tiles, &n_rows)[row];
    if (first == end && !p->residency[at->kind].window.tokens)
        return; /* an empty window moves on to `first` */
    bool apart = p->quantizes && exact;
    uint64_t n = (end - first) * at->times;
    uint64_t bytes = n * (apart ? p->exact_tile_bytes : p->tile_bytes);
    spw_traffic_add(r, SPW_MOVED_DISK_TO_HOST, bytes);
    spw_traffic_add(r, SPW_MOVED_HOST_TO_DEVICE, bytes);
    if (!apart)
        spw_tiles_import(r->tiles, session, row, first, end);
}

void spw_traffic_export(struct spw_traffic_run *r, uint32_t session, uint32_t row, uint32_t first,
                        uint32_t end)
{
    uint64_t from_device = 0, from_disk = 0;
    if (!r)
        return;
    spw_tiles_export(r->tiles, session, row, first, end, &from_device, &from_disk);
    spw_traffic_add(r, SPW_MOVED_DEVICE_TO_HOST, from_device * r->plan->tile_bytes);
    spw_traffic_add(r, SPW_MOVED_DISK_TO_HOST, from_disk * r->plan->tile_bytes);
}
