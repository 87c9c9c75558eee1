/* Every session has a share of the frames of each tier (runtime/plan/shares.h). When a session has
 * opened or closed, the shares of the others change, and their tiles move. See engine.h. */
#include "runtime/engine/engine.h"

#include <string.h>

/* Whole tiles of session s that a session before it has, too. */
static uint32_t shared_tiles(const struct spw_engine *e, const struct spw_session *s, bool stay)
{
    uint32_t most = 0;
    for (struct spw_session *other = NULL; (other = spw_engine_next(e, other)) != s;) {
        if (!other->of_batch || (stay && other->leaves))
            continue;
        uint64_t whole = spw_min_u64(s->n_tokens, other->n_tokens) / SPW_TILE_TOKENS;
        uint32_t both = spw_kv_shared_end(s->seq.kv, other->seq.kv, 0);
        most = spw_max_u32(most, (uint32_t)spw_min_u64(both, whole));
    }
    return most;
}

/* The tiles of sessions that another session has, too, and that count there: sessions that were
 * forked from each other form a tree. With windows or quantized tiles, each session has frames of
 * its own for exact tiles, and all its tiles count. */
static uint64_t count_shared(const struct spw_engine *e, bool stay)
{
    uint64_t n = 0;
    if (!e->executor || spw_plan_sharing(&e->plan).needs_checkpoint)
        return 0;
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));)
        n += s->of_batch && !(stay && s->leaves) ? shared_tiles(e, s, stay) : 0;
    return n;
}

/* Of all sessions, as if none shared anything. */
static uint64_t most_tiles(const struct spw_engine *e, bool stay)
{
    uint64_t n = 0;
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));)
        n += stay && s->leaves ? 0 : spw_waterline_tiles(s->most_tokens);
    return n;
}

uint64_t spw_engine_open_tiles(const struct spw_engine *e, bool stay)
{
    return most_tiles(e, stay) - count_shared(e, stay);
}

bool spw_engine_lost_shared(const struct spw_engine *e)
{
    return e->sharing.over || (e->sharing.n_shared && count_shared(e, false) < e->sharing.n_shared);
}

bool spw_engine_compute_shares(struct spw_engine *e)
{
    bool changed = false;
    for (uint32_t i = 0; i < e->plan.info.sessions; i++)
        e->sharing.shares[i].most_tokens = e->sessions[i] ? e->sessions[i]->most_tokens : 0;
    e->sharing.n_shared = count_shared(e, false);
    e->sharing.over = !spw_share_fits(&e->plan, most_tiles(e, false) - e->sharing.n_shared);
    spw_share_frames(&e->plan, e->sharing.shares, e->plan.info.sessions, e->sharing.n_shared);
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));) {
        const struct spw_residency *share = e->sharing.shares[s->slot].residency;
        changed |= spw_session_cached(s) && spw_share_differs(s->residency, share);
        memcpy(s->residency, share, sizeof s->residency);
        s->has_share = true;
    }
    e->sharing.is_old = false;
    return changed;
}

/* Calls `move` for every session. */
static int move_each(struct spw_engine *e, int (*move)(struct spw_residency_moves *m,
                                                       const struct spw_sequence *seq, uint64_t n))
{
    struct spw_residency_moves m = {.config = &e->model.config, .prefetch = e->prefetch};
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));)
        SPW_TRY(move(&m, &s->seq, spw_session_cached(s)));
    return 0;
}

int spw_engine_leave_frames(struct spw_engine *e)
{
    SPW_TRY(move_each(e, spw_residency_make_copies_fit));
    return move_each(e, spw_residency_leave);
}

/* Takes the frames that the others have left. A session whose tiles are lost is cut back. */
static int take_frames(struct spw_session *s)
{
    const uint64_t n_tokens = s->n_tokens;
    const bool had_logits = s->has_logits;
    uint64_t held = n_tokens;
    if (!s->cached)
        return 0;
    SPW_TRY(spw_recover_cut_back(s, &held));
    for (uint32_t i = 0; i < s->engine->model.config.n_slices; i++)
        spw_kv_drop_copies(s->seq.kv, i, 0); /* no share counts copies of tiles on the device */
    s->has_logits = had_logits && held == n_tokens;
    return 0;
}

static int move_tiles(struct spw_engine *e)
{
    SPW_TRY(spw_prefetch_forget(e->prefetch));
    int rc = spw_engine_leave_frames(e);
    if (rc == -ENOMEM) { /* tiles of other layers, which go the opposite way, hold host frames */
        SPW_TRY(move_each(e, spw_residency_load_back));
        rc = move_each(e, spw_residency_leave);
    }
    SPW_TRY(rc);
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));)
        SPW_TRY(take_frames(s));
    return 0;
}

/* The sessions keep their tokens, and the next step computes them again. */
static void empty_caches(struct spw_engine *e)
{
    struct spw_kv_loss loss;
    spw_lane_sync_all(&e->lane);
    spw_kv_finish_writes(e->kv);
    spw_kv_take_write_failure(e->kv);
    while (spw_kv_take_loss(e->kv, &loss))
        ;
    e->unpredicted = true;
    for (struct spw_session *s = NULL; (s = spw_engine_next(e, s));) {
        s->cached = s->has_logits = s->mixed = false;
        spw_kv_truncate(s->seq.kv, e->plan.residency, 0);
    }
}

void spw_engine_share(struct spw_engine *e)
{
    if (!e->sharing.is_old)
        return;
    if (!spw_engine_compute_shares(e))
        return;
    int rc = move_tiles(e);
    bool full = rc == -ENOSPC || rc == -EDQUOT;
    if (rc && !(full && !spw_engine_shrink_disk(e, rc, NULL)))
        empty_caches(e);
}
