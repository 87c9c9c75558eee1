/* Drafts by the MTP layer of the model: all requests of a step draft together.
 *
 *   round 0   the newest tokens of each answer pass the layer: its first draft
 *   round i   draft i - 1 of each answer that wants more passes: draft i
 *
 * With SPW_DRAFTS_MTP, how many drafts an answer wants depends on how many were accepted so far,
 * and not on measured times: a second run makes the same drafts. */
#include "runtime/batch/batch_parts.h"
#include "runtime/rules/logits_row.h"

#include <math.h>

uint32_t spw_batch_likely_drafts(const struct spw_batch_entry *x, uint32_t most)
{
    static const double least = 0.4; /* odds that the last draft stays */
    const double odds = spw_draft_odds_of(&x->drafts.odds, SPW_DRAFT_BY_MODEL);
    double stays = odds;
    uint32_t n = most > 0; /* one at least: else nobody learns of better odds */
    for (; n < most && (stays *= odds) >= least;)
        n++;
    return n;
}

double spw_batch_layer_share(const struct spw_weights *w)
{
    const struct spw_experts_config *e = &w->config->experts;
    double all = 0, layer = 0;
    for (uint32_t u = 0; w->config->mtp && u < w->n_blocks + w->n_expert_blocks; u++) {
        const struct spw_weight_block *b = &w->blocks[u];
        const double used = u < w->n_blocks ? 1 : (double)e->n_kept / e->n;
        const bool is_layer = spw_config_is_mtp(w->config, b->layer);
        all += is_layer ? 0 : used * (double)b->matrix_bytes;
        layer += is_layer || b->layer == SPW_NO_LAYER ? used * (double)b->matrix_bytes : 0;
    }
    return all > 0 ? layer / all : 0;
}

/* The most likely token becomes the draft. If the row is not a number, any token does. */
static int take(void *context, uint32_t span, uint64_t position, const float *logits)
{
    const struct spw_batch *b = context;
    if (b->engine->dry)
        return 0; /* the drafts are known */
    const int32_t best = spw_row_best(logits, spw_engine_config(b->engine)->vocab);
    b->deciding[span]->answer.tokens[position + 1] = best < 0 ? 0 : best;
    return 0;
}

/* The requests that want more drafts of the layer than `round`. */
static uint32_t list_round(struct spw_batch *b, uint32_t n, uint32_t round)
{
    uint32_t n_asking = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct spw_batch_entry *x = b->stepping[i];
        if (!x->drafts.by_mtp || x->drafts.n <= round)
            continue;
        b->deciding[n_asking] = x;
        b->draft_spans[n_asking++] = (struct spw_span){.session = x->session,
                                                       .tokens = x->answer.tokens,
                                                       .n_tokens = x->answer.n_tokens + round};
    }
    return n_asking;
}

int spw_batch_fill_drafts(struct spw_batch *b, uint32_t n)
{
    uint32_t n_asking;
    for (uint32_t round = 0; (n_asking = list_round(b, n, round)); round++)
        SPW_TRY(spw_engine_draft(b->engine, b->draft_spans, n_asking, !round, take, b));
    return 0;
}
