/* Recovers from failures of the disk: see recover.h. */
#include "runtime/engine/recover.h"

static void report(struct spw_engine *e, const struct spw_kv_loss *loss, uint64_t n_recomputed)
{
    const struct spw_lost_tile lost = {.error = loss->rc,
                                       .layer = e->model.config.slice_layers[loss->layer],
                                       .position = (uint64_t)loss->tile * SPW_TILE_TOKENS,
                                       .n_recomputed = n_recomputed};
    spw_engine_report_lost_tile(e, &lost);
}

/* The tile may be shared. */
static bool holds(const struct spw_session *s, const struct spw_kv_loss *loss)
{
    return loss->tile >= spw_kv_first(s->seq.kv, loss->layer) &&
           loss->tile < spw_kv_shared_end(s->seq.kv, loss->seq, loss->layer);
}

/* Lowers cut_to[i] of each session that has lost tiles. Takes all losses that were reported.
 * False: there were none. */
static bool lower_cuts(struct spw_engine *e, struct spw_session *const *sessions, uint64_t *cut_to,
                       uint32_t n)
{
    struct spw_kv_loss loss;
    bool any = false;
    while (spw_kv_take_loss(e->kv, &loss))
        for (uint32_t i = 0; i < n; i++)
            if (holds(sessions[i], &loss)) {
                uint64_t before = cut_to[i];
                cut_to[i] = spw_min_u64(before, (uint64_t)loss.tile * SPW_TILE_TOKENS);
                cut_to[i] = spw_kv_reach(sessions[i]->seq.kv, e->plan.residency, cut_to[i]);
                report(e, &loss, before - cut_to[i]);
                if (e->sharing.n_shared)
                    e->sharing.is_old = true;
                any = true;
            }
    return any;
}

int spw_recover_cut_back(struct spw_session *s, uint64_t *cut_to)
{
    struct spw_engine *e = s->engine;
    for (int i = 0; i < SPW_RECOVER_TRIES; i++) {
        *cut_to = spw_kv_reach(s->seq.kv, e->plan.residency, *cut_to);
        SPW_TRY(spw_prefetch_forget(e->prefetch));
        if (s->cached)
            s->n_tokens = *cut_to;
        s->n_attached = spw_min_u64(s->n_attached, *cut_to);
        s->has_logits = false;
        s->mixed &= spw_waterline_old_end(e->plan.residency, *cut_to) > 1;
        spw_kv_truncate(s->seq.kv, e->plan.residency, *cut_to);
        int rc = spw_executor_apply_residency(e->executor, &s->seq, *cut_to);
        e->unpredicted |= rc != 0;
        if (rc != -EBADMSG)
            return rc;
        if (!lower_cuts(e, &s, cut_to, 1))
            break;
    }
    return -EBADMSG;
}

/* Tiles that the drive still does not take stay where they are: the next sync writes them again. */
static int recover_session(struct spw_session *s, uint64_t *cut_to)
{
    int rc = spw_recover_cut_back(s, cut_to);
    return rc == -EBADMSG || (rc && spw_lane_sync_all(&s->engine->lane)) ? rc : 0;
}

int spw_recover_step(struct spw_engine *e, struct spw_session *const *sessions, uint32_t n)
{
    e->unpredicted = true;
    SPW_TRY(spw_lane_sync_all(&e->lane));
    spw_kv_finish_writes(e->kv);
    spw_kv_take_write_failure(e->kv); /* it belongs to the failed step */
    for (uint32_t i = 0; i < n; i++)  /* less than span.from, if an earlier try has failed */
        e->sharing.n_tokens[i] = sessions[i]->cached ? sessions[i]->n_tokens : 0;
    lower_cuts(e, sessions, e->sharing.n_tokens, n);
    for (uint32_t i = 0; i < n; i++)
        SPW_TRY(recover_session(sessions[i], &e->sharing.n_tokens[i]));
    return 0;
}
