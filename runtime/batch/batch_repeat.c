/* Steps of a batch that move the same bytes: see batch_repeat.h.
 *
 * Between two borders of tiles, steps that give each request a token differ in nothing but the
 * token's place in its tile. Where nothing is computed, one of them stands for all. */
#include "runtime/batch/batch_repeat.h"

#include "runtime/batch/batch_parts.h"

enum { ALIKE_STEPS = 3 }; /* the first of them has moved what the border of a tile moves */

static bool has_shared_table(const struct spw_batch *b, uint64_t n_tokens)
{
    const struct spw_model_config *c = spw_engine_config(b->engine);
    return spw_rope_table(&c->rope[c->full_kind], c->max_positions, n_tokens) == SPW_ROPE_SHARED;
}

/* Whether the lengths [from, to] lie inside one tile, their windows begin in one tile, and they
 * have the same rope, as the length after them, for which tiles are fetched. */
static bool are_alike(const struct spw_batch *b, uint64_t from, uint64_t to)
{
    bool same = from % SPW_TILE_TOKENS && from / SPW_TILE_TOKENS == to / SPW_TILE_TOKENS &&
                has_shared_table(b, from) && has_shared_table(b, to + 1);
    for (int k = 0; k < SPW_LAYER_KINDS; k++) {
        const struct spw_residency *r = &b->engine->plan.residency[k];
        same &= spw_waterline_first_visible(r, from) == spw_waterline_first_visible(r, to);
    }
    return same;
}

/* How many of the next steps of this request move the same bytes as the last ones; at most n. */
static uint64_t count_alike(const struct spw_batch *b, const struct spw_batch_entry *x, uint64_t n)
{
    const struct spw_answer *a = &x->answer;
    const uint64_t held = x->session ? x->session->n_tokens : 0;
    if (!x->session || a->result.n_tokens - a->request.n_given < ALIKE_STEPS ||
        held < ALIKE_STEPS || held != a->n_tokens - 1)
        return 0;
    n = spw_min_u64(n, SPW_TILE_TOKENS - 1 - held % SPW_TILE_TOKENS);
    n = spw_min_u64(n, a->request.max_new_tokens - a->result.n_tokens - 1); /* the last ends it */
    while (n && !are_alike(b, held + 1 - ALIKE_STEPS, held + n))
        n /= 2;
    return n;
}

static int skip(struct spw_batch_entry *x, uint64_t n)
{
    SPW_TRY(spw_session_skip(x->session, n));
    for (uint64_t i = 0; i < n; i++)
        SPW_TRY(spw_answer_push(&x->answer, 0, NULL));
    return 0;
}

int spw_batch_repeat(struct spw_batch *b, uint64_t most, uint64_t *n)
{
    uint32_t n_running = 0;
    *n = spw_min_u64(most, SPW_TILE_TOKENS);
    for (uint32_t i = 0; i < b->max_running; i++)
        if (b->running[i]) {
            *n = *n ? count_alike(b, b->running[i], *n) : 0;
            n_running++;
        }
    b->n_alike = n_running == b->n_were_running && !b->n_ended ? b->n_alike + 1 : 0;
    b->n_were_running = n_running;
    if (!n_running || b->n_alike < ALIKE_STEPS)
        *n = 0;
    for (uint32_t i = 0; i < b->max_running && *n; i++)
        if (b->running[i])
            SPW_TRY(skip(b->running[i], *n));
    return 0;
}
