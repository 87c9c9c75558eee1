/* Sessions are opened, forked and closed: see spillway.h. sync.c computes their tokens. */
#include "offload/kv/checkpoint.h"

#include "base/grow.h"
#include "runtime/engine/engine.h"

#include <string.h>

static int find_slot(const struct spw_engine *e, uint32_t *slot)
{
    for (*slot = 0; *slot < e->plan.info.sessions; ++*slot)
        if (!e->sessions[*slot])
            return 0;
    return -ENOMEM;
}

int spw_session_open(struct spw_session **out, struct spw_engine *e, struct spw_error *err)
{
    return spw_session_open_for(out, e, e->plan.info.context, err);
}

static bool has_room(const struct spw_engine *e, uint64_t tiles)
{
    return spw_share_fits(&e->plan, spw_engine_open_tiles(e, false) + tiles);
}

/* Refuses a session whose tiles have no room beside those of the open ones. */
static int check_room(const struct spw_engine *e, uint64_t most_tokens, uint64_t tiles,
                      struct spw_error *err)
{
    if (has_room(e, tiles))
        return 0;
    return spw_fail(
        err, -ENOMEM,
        "a session of %llu tokens: there is memory for %llu tokens of all sessions, "
        "and the open ones may hold %llu; close some, or open the engine with more full_sessions",
        (unsigned long long)most_tokens,
        (unsigned long long)spw_share_most_tiles(&e->plan) * SPW_TILE_TOKENS,
        (unsigned long long)spw_engine_open_tiles(e, false) * SPW_TILE_TOKENS);
}

/* A session of at most `most_tokens` tokens, which needs room for `tiles`. */
static int open_session(struct spw_session **out, struct spw_engine *e, uint64_t most_tokens,
                        uint64_t tiles, struct spw_error *err)
{
    spw_error_clear(err);
    *out = NULL;
    uint32_t slot;
    if (e->above.batch && (find_slot(e, &slot) || !has_room(e, tiles)))
        e->above.batch_hooks->close_ended(e->above.batch);
    if (find_slot(e, &slot))
        return spw_fail(
            err, -ENOMEM,
            "%u sessions are open, as many as the engine was planned for; close one, or "
            "open the engine with more sessions",
            e->plan.info.sessions);
    SPW_TRY(check_room(e, most_tokens, tiles, err));
    SPW_TRY(spw_engine_need_memory(e, err));
    struct spw_session *s = spw_alloc_zero(1, sizeof *s);
    if (!s)
        return spw_fail(err, -ENOMEM, "out of memory for a session");
    s->engine = e;
    s->slot = slot;
    s->most_tokens = most_tokens;
    s->tokens = spw_alloc(most_tokens * sizeof *s->tokens);
    if (!s->tokens || spw_engine_open_sequence(e, s)) {
        spw_free(s->tokens);
        spw_free(s);
        return spw_fail(err, -ENOMEM, "out of memory for a session's tables");
    }
    e->sessions[slot] = s;
    e->sharing.is_old = true;
    *out = s;
    return 0;
}

int spw_session_open_for(struct spw_session **out, struct spw_engine *e, uint64_t most_tokens,
                         struct spw_error *err)
{
    return open_session(out, e, most_tokens, spw_waterline_tiles(most_tokens), err);
}

int spw_session_fork(struct spw_session **out, struct spw_session *from, struct spw_error *err)
{
    return spw_session_fork_for(out, from, from->n_tokens, from->most_tokens, err);
}

void spw_session_set_audio(struct spw_session *s, const float *audio)
{
    s->audio = audio;
}

int spw_session_cut(struct spw_session *s, const struct spw_residency *residency, uint64_t *n)
{
    const uint64_t n_source = spw_source_length(s->tokens, s->n_tokens);
    int rc;
    do { /* a damaged checkpoint is gone then */
        *n = spw_kv_reach(s->seq.kv, residency, *n);
        *n = *n < n_source ? 0 : *n; /* its rows are computed together */
        rc = spw_kv_truncate(s->seq.kv, residency, *n);
        s->engine->unpredicted |= rc != 0;
    } while (rc == -EBADMSG);
    s->seq.kept_to = spw_min_u64(s->seq.kept_to, *n);
    return rc;
}

/* An empty session gets the first n tokens of another one, with their tiles and states. */
static int share_tokens(struct spw_session *s, const struct spw_session *from, uint64_t n)
{
    memcpy(s->residency, from->residency, sizeof s->residency);
    int rc = spw_kv_seq_fork(s->seq.kv, from->seq.kv);
    uint64_t kept = from->cached ? n : 0;
    if (!rc && n < from->n_tokens)
        rc = spw_session_cut(s, s->residency, &kept);
    n = from->cached ? kept : n;
    if (rc)
        return rc;
    memcpy(s->tokens, from->tokens, n * sizeof *s->tokens);
    s->n_tokens = s->reused = n;
    s->n_attached = spw_min_u64(from->n_attached, n);
    s->rope_table = from->rope_table;
    s->has_logits = from->has_logits && n == from->n_tokens;
    s->cached = from->cached;
    s->mixed = from->mixed;
    if (s->logits && s->has_logits)
        memcpy(s->logits, from->logits, from->engine->model.config.vocab * sizeof *s->logits);
    return 0;
}

int spw_session_fork_for(struct spw_session **out, struct spw_session *from, uint64_t n,
                         uint64_t most_tokens, struct spw_error *err)
{
    spw_error_clear(err);
    if (from->is_paused)
        spw_engine_drop_paused(from->engine);
    n = spw_min_u64(n, from->n_tokens); /* a dropped step has left fewer */
    bool once =
        from->of_batch && from->cached && !spw_plan_sharing(&from->engine->plan).needs_checkpoint;
    uint64_t shared = once ? n / SPW_TILE_TOKENS : 0;
    SPW_TRY(open_session(out, from->engine, most_tokens,
                         spw_sub_u64(spw_waterline_tiles(most_tokens), shared), err));
    (*out)->of_batch = from->of_batch;
    const int rc = share_tokens(*out, from, n);
    if (rc) {
        spw_session_close(*out);
        *out = NULL;
        return spw_fail(err, rc, "the device failed when a session was copied");
    }
    return 0;
}

int spw_session_become(struct spw_session *s, const struct spw_session *from)
{
    SPW_TRY(spw_prefetch_forget(s->engine->prefetch));
    spw_session_empty(s);
    s->engine->sharing.is_old = true;
    SPW_TRY(share_tokens(s, from, from->n_tokens));
    s->has_logits = false;
    return 0;
}

int spw_session_take_over(struct spw_session *s, uint64_t n, uint64_t most_tokens)
{
    struct spw_engine *e = s->engine;
    SPW_TRY(spw_prefetch_forget(e->prefetch));
    /* it keeps its tokens where the cut fails */
    SPW_TRY(spw_resize(&s->tokens, spw_max_u64(most_tokens, s->n_tokens), sizeof *s->tokens));
    if (n < s->n_tokens) {
        SPW_TRY(spw_session_cut(s, s->residency, &n));
        s->has_logits = false;
    }
    s->most_tokens = most_tokens;
    s->n_tokens = s->reused = n;
    s->n_attached = spw_min_u64(s->n_attached, n);
    s->leaves = s->has_share = false; /* the share that it has is for fewer tokens */
    e->sharing.is_old = true;
    return 0;
}

uint64_t spw_engine_alike_until(const struct spw_engine *e, uint64_t n)
{
    const struct spw_model_config *c = &e->model.config;
    uint64_t until = spw_rope_shared_until(&c->rope[c->full_kind], c->max_positions);
    if (n % SPW_TILE_TOKENS == 0)
        return n; /* the next token begins a tile */
    until = spw_min_u64(until, spw_align_up(n, SPW_TILE_TOKENS) - 1);
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        until = spw_min_u64(until, spw_waterline_visible_until(&e->plan.residency[k], n));
    return spw_max_u64(until, n);
}

float *spw_draft_logits(const struct spw_engine *e, uint64_t i)
{
    return e->dry ? NULL
                  : (float *)(e->lane.host_arena + e->plan.host.draft_logits) +
                        i * e->model.config.vocab;
}

void spw_session_end_drafts(struct spw_session *s)
{
    s->has_logits &= !s->n_drafts;
    s->n_drafts = 0;
}

int spw_session_settle(struct spw_session *s, uint64_t n, const float *logits)
{
    uint64_t reached = n;
    s->n_drafts = 0;
    if (n < s->n_tokens)
        SPW_TRY(spw_session_cut(s, s->residency, &reached));
    s->n_tokens = reached;
    s->has_logits = reached == n;
    if (s->logits && s->has_logits)
        memcpy(s->logits, logits, s->engine->model.config.vocab * sizeof *logits);
    return 0;
}

void spw_session_close(struct spw_session *s)
{
    if (!s)
        return;
    if (s->is_paused)
        spw_engine_drop_paused(s->engine);
    /* Copies ahead of the computation may still read tiles that are about to be given back. */
    if (s->engine->prefetch)
        spw_prefetch_forget(s->engine->prefetch);
    s->engine->sessions[s->slot] = NULL;
    s->engine->sharing.n_departures += !s->leaves;
    s->engine->sharing.is_old = true;
    s->engine->above.persist->close_session(s);
    spw_kv_seq_close(s->seq.kv);
    spw_free(s->tokens);
    spw_free(s);
}

int spw_session_skip(struct spw_session *s, uint64_t n)
{
    const uint64_t from = s->n_tokens, to = from + n;
    for (uint32_t i = 0; i < s->engine->model.config.n_slices; i++)
        SPW_TRY(spw_kv_grow(s->seq.kv, i, from, to));
    memset(s->tokens + from, 0, n * sizeof *s->tokens);
    s->n_tokens = to;
    return 0;
}

int spw_session_apply_kept_rows(struct spw_session *s)
{
    return s->engine->executor ? spw_executor_apply_kept_rows(s->engine->executor, s->seq.kv) : 0;
}

int spw_session_checkpoint(struct spw_session *s)
{
    if (!s->cached || s->is_paused)
        return 0;
    SPW_TRY(spw_session_apply_kept_rows(s));
    return spw_kv_checkpoint(s->seq.kv, s->n_tokens);
}

size_t spw_session_n_tokens(const struct spw_session *s)
{
    return s->n_tokens;
}

size_t spw_session_reused(const struct spw_session *s)
{
    return s->reused;
}

void spw_session_waterlines(const struct spw_session *s, struct spw_waterlines *out)
{
    const struct spw_model_config *c = &s->engine->model.config;
    *out = (struct spw_waterlines){.n_tokens = s->n_tokens};
    for (uint32_t i = 0; s->cached && i < c->n_slices; i++) {
        const struct spw_residency *r = &s->engine->plan.residency[c->slice_kinds[i]];
        if (!r->window.tokens) {
            uint32_t begin = spw_kv_begin(s->seq.kv, i);
            uint32_t disk_end = spw_kv_disk_end(s->seq.kv, i);
            if (begin > spw_waterline_first_tiered(r))
                out->host_end = spw_min_u64((uint64_t)begin * SPW_TILE_TOKENS, s->n_tokens);
            if (disk_end > spw_waterline_first_tiered(r))
                out->disk_end = spw_min_u64((uint64_t)disk_end * SPW_TILE_TOKENS, out->host_end);
            break;
        }
    }
}

size_t spw_session_from_store(const struct spw_session *s)
{
    return s->from_store;
}

const float *spw_session_logits(const struct spw_session *s)
{
    return s->has_logits ? s->logits : NULL;
}
