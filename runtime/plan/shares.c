/* Frames of a plan, shared by sessions: see shares.h. */
#include "runtime/plan/shares.h"

#include "runtime/plan/plan_parts.h"

void spw_share_fairly(struct spw_share *shares, uint32_t n, uint64_t total)
{
    uint64_t level, n_short = n, before;
    for (uint32_t i = 0; i < n; i++)
        shares[i].part = UINT64_MAX;
    do { /* who wants no more than an equal part gets that, and the part of the others grows */
        before = n_short;
        level = n_short ? total / n_short : 0;
        for (uint32_t i = 0; i < n; i++)
            if (shares[i].part == UINT64_MAX && shares[i].want <= level) {
                shares[i].part = shares[i].want;
                total -= shares[i].want;
                n_short--;
            }
    } while (n_short != before);
    for (uint32_t i = 0; i < n; i++)
        if (shares[i].part == UINT64_MAX)
            shares[i].part = level;
}

/* ---- one session ---- */

/* Slices whose windows stream: only where nothing is quantized. */
static uint64_t n_sliding(const struct spw_plan *p)
{
    return p->quantizes ? 0 : spw_plan_n_windowed(p);
}

struct spw_session_tiles spw_session_tiles(const struct spw_plan *p, uint64_t most_tokens)
{
    const struct spw_store_need window = spw_plan_slice_need(p, p->window_kind, most_tokens);
    return (struct spw_session_tiles){
        .full = spw_plan_slice_need(p, p->full_kind, most_tokens).moving,
        .window = window.moving,
        .retained = window.moving ? window.retained : 0,
    };
}

uint64_t spw_session_frames(const struct spw_plan *p, const struct spw_session_tiles *t)
{
    uint64_t window = t->window + (p->retains ? t->retained : 0);
    return n_sliding(p) * window + spw_plan_n_full(p) * t->full;
}

void spw_session_divide(struct spw_residency kinds[SPW_LAYER_KINDS], const struct spw_plan *p,
                        const struct spw_session_tiles *t, uint64_t frames)
{
    uint64_t full = spw_plan_n_full(p), sliding = n_sliding(p);
    uint64_t passing = p->n_full_growing; /* the other slices wait */
    struct spw_residency *r = &kinds[p->full_kind];
    frames -= p->retains ? sliding * t->retained : 0;
    uint64_t slide = sliding ? spw_min_u64((frames - full) / sliding, t->window) : 0;
    uint64_t left = frames - sliding * slide; /* of the full layers, at least one each */
    /* While windows are not whole, waiting layers keep one tile: see spw_lower_of. */
    bool whole = !sliding || slide == t->window;
    if (sliding)
        spw_residency_fix(&kinds[p->window_kind], slide);
    spw_residency_fix(r, 1);
    if (!full)
        return;
    r->resident = (uint32_t)spw_max_u64(spw_min_u64(left / full, t->full), 1);
    uint64_t waiting =
        full > passing ? spw_sub_u64(left, passing * t->full) / (full - passing) : r->resident;
    waiting = whole ? spw_max_u64(spw_min_u64(waiting, r->resident), 1) : 1;
    r->resident_pass = (uint32_t)waiting;
    uint64_t pass = (left - (full - passing) * waiting) / passing;
    r->pass = (uint32_t)spw_max_u64(spw_min_u64(pass, t->full), 1);
}

/* ---- all sessions ---- */

/* Sessions that do not fit whole leave frames for the tiles that a chunk adds, and each gets frames
 * for tiles that it shares. */
static void share_device(const struct spw_plan *p, struct spw_share *shares, uint32_t n,
                         uint64_t n_shared)
{
    uint64_t all = 0, beside = n_sliding(p) ? p->new_frames : 0;
    for (uint32_t i = 0; i < n; i++) {
        shares[i].want = shares[i].most_tokens ? spw_session_frames(p, &shares[i].tiles) : 0;
        all += shares[i].want;
    }
    if (all - n_shared * spw_plan_n_full(p) + beside <= p->n_device_frames)
        spw_share_fairly(shares, n, all);
    else
        spw_share_fairly(shares, n, p->n_device_frames - p->new_frames);
    for (uint32_t i = 0; i < n; i++)
        if (shares[i].want)
            spw_session_divide(shares[i].residency, p, &shares[i].tiles, shares[i].part);
}

static void count_lower(struct spw_lower *b, const struct spw_plan *p, const struct spw_share *s)
{
    spw_lower_of(b, p, s->residency, s->tiles.full, s->tiles.window, s->most_tokens > p->chunk,
                 p->info.sessions > 1);
}

/* The newest copies of each session; or all, if the host has room for every tile that they share.
 */
static void share_host(const struct spw_plan *p, struct spw_share *shares, uint32_t n,
                       uint64_t n_shared)
{
    struct spw_lower b;
    uint64_t all = 0, tiles = 0, room = p->n_host_frames - p->n_transit;
    for (uint32_t i = 0; i < n; i++) {
        count_lower(&b, p, &shares[i]);
        shares[i].want = shares[i].most_tokens ? spw_lower_host_frames(&b, p, b.all) : 0;
        all += shares[i].want;
        tiles += shares[i].most_tokens ? shares[i].tiles.full : 0;
    }
    const bool fit = n_shared && (tiles - n_shared) * spw_plan_n_full(p) <= room;
    spw_share_fairly(shares, n, fit ? spw_max_u64(all, room) : room);
    for (uint32_t i = 0; i < n; i++) {
        if (!shares[i].most_tokens)
            continue;
        count_lower(&b, p, &shares[i]);
        spw_lower_set_host(shares[i].residency, p, &b, spw_lower_most_ranks(&b, p, shares[i].part));
    }
}

bool spw_share_differs(const struct spw_residency a[SPW_LAYER_KINDS],
                       const struct spw_residency b[SPW_LAYER_KINDS])
{
    bool differs = false;
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        differs |= a[k].resident != b[k].resident || a[k].resident_pass != b[k].resident_pass ||
                   a[k].pass != b[k].pass || a[k].host != b[k].host;
    return differs;
}

void spw_share_frames(const struct spw_plan *p, struct spw_share *shares, uint32_t n,
                      uint64_t n_shared)
{
    for (uint32_t i = 0; i < n; i++) {
        for (int k = 0; k < SPW_LAYER_KINDS; k++)
            shares[i].residency[k] = p->residency[k];
        shares[i].tiles = spw_session_tiles(p, shares[i].most_tokens);
    }
    share_device(p, shares, n, n_shared);
    share_host(p, shares, n, n_shared);
}
