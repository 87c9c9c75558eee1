/* Drafts: tokens that may follow an answer, computed in one step with its next token.
 *
 *   tokens of the span     ... a b | x  y  z        x y z: drafts, behind the answer's tokens
 *   rows of logits               0   1  2  3        row 0 picks the next token: x? y? z?
 *
 * The group picks a token from each row in turn, as it would after as many steps. The first pick
 * that is not the draft ends the acceptance, and the session gives the rest back. A row's bits
 * never depend on other rows, and a draw depends on the position only: so drafts change no result.
 *
 * A draft ends where the next tile begins, where a tile becomes old, where a window leaves a tile,
 * and where the rope table changes (spw_engine_alike_until). So nothing that a session stores is
 * dropped or quantized because of a token that may be rejected. A state is updated by the accepted
 * rows before the next step (runtime/step/executor_states.c). */
#include "runtime/batch/batch_parts.h"
#include "runtime/rules/logits_row.h"

/* ---- what is proposed ---- */

static uint32_t propose_text(struct spw_batch_entry *x, int32_t *out, uint32_t most,
                             uint32_t *match)
{
    const struct spw_answer *a = &x->answer;
    return spw_draft_text_propose(&x->drafts.text, a->tokens, a->n_tokens, out, most, match);
}

static uint32_t propose_nothing(struct spw_batch_entry *x, int32_t *out, uint32_t most,
                                uint32_t *match)
{
    (void)x;
    (void)out;
    (void)most;
    *match = 0;
    return 0;
}

/* Of a dry run, whose tokens are all 0: as many drafts as the run had, and as many stay. */
static uint32_t propose_known(struct spw_batch_entry *x, int32_t *out, uint32_t most,
                              uint32_t *match)
{
    const uint8_t *rows = x->drafts.step_rows;
    const size_t at = x->answer.result.n_tokens;
    const uint32_t n =
        rows ? spw_min_u32((uint32_t)spw_sub_u64(rows[at] % SPW_STEP_BY_MTP, 1), most) : 0;
    bool stays = true;
    *match = 0;
    for (uint32_t i = 0; i < n; i++) {
        stays &= at + 1 + i < x->drafts.n_known && !rows[at + 1 + i];
        out[i] = !stays;
    }
    return n;
}

void spw_batch_choose_drafts(struct spw_batch *b)
{
    const struct spw_engine *e = b->engine;
    const enum spw_drafts how = e->options.drafts;
    b->mtp = e->model.config.mtp;
    b->layer_share = spw_batch_layer_share(e->model.weights);
    b->propose = e->dry                            ? propose_known
                 : how == SPW_DRAFTS_OFF           ? NULL
                 : e->model.config.n_source_layers ? NULL /* an answer is no text of its source */
                 : how == SPW_DRAFTS_MTP || how == SPW_DRAFTS_MODEL ? propose_nothing
                                                                    : propose_text;
    b->drafts_all = e->dry || !spw_drafts_are_optional(&e->options);
}

void spw_batch_end_drafts(struct spw_batch_entry *x)
{
    spw_session_close(x->drafts.session);
    x->drafts.session = NULL;
}

int spw_batch_open_drafts(const struct spw_batch *b, struct spw_batch_entry *x)
{
    const struct spw_request *r = &x->answer.request;
    if (!b->propose)
        return 0;
    x->answer.result.step_rows = spw_alloc_zero(r->max_new_tokens, 1);
    if (!x->answer.result.step_rows)
        return -ENOMEM;
    return b->propose == propose_text
               ? spw_draft_text_open(&x->drafts.text, r->n_prompt + r->max_new_tokens)
               : 0;
}

/* ---- how many there may be ---- */

/* Whether the step computes nothing of x but its next token, and what it computes after that can be
 * taken back. */
static bool may_draft(const struct spw_batch_entry *x)
{
    const struct spw_session *s = x->session;
    return s->cached && !x->group.together && !spw_batch_needs_prompt(x) &&
           s->n_tokens + 1 == x->answer.n_tokens;
}

/* The most tokens of a draft, if n_rows rows of logits are free. by_mtp: of the MTP layer, which
 * goes on behind the tokens of the session. */
static uint32_t most_drafts(const struct spw_batch *b, const struct spw_batch_entry *x,
                            uint32_t n_rows, bool by_mtp)
{
    const struct spw_answer *a = &x->answer;
    const uint64_t left = spw_sub_u64(a->request.max_new_tokens, a->result.n_tokens + 1);
    const uint64_t rows = spw_min_u64(spw_sub_u64(n_rows, 1), SPW_DRAFT_MOST);
    const uint64_t from = by_mtp ? x->session->n_tokens : a->n_tokens;
    const uint64_t room = spw_sub_u64(spw_engine_alike_until(b->engine, from), a->n_tokens);
    if (!may_draft(x) || (by_mtp && !(b->mtp && spw_session_can_draft(x->session, a->n_tokens))))
        return 0;
    return (uint32_t)spw_min_u64(spw_min_u64(left, rows), room);
}

/* ---- the draft model ---- */

/* The draft model computes the first n tokens of x, and with `wants` the logits after them. If it
 * fails, for example because it does not know a token, it makes no more drafts for x. If the caller
 * has interrupted it, the interrupt is raised again, for the step of the answers that follows. */
static int compute_by_model(struct spw_batch *b, struct spw_batch_entry *x, uint64_t n, bool wants)
{
    struct spw_batch_drafts *d = &x->drafts;
    const uint64_t most = spw_batch_most_tokens(&x->answer.request);
    int rc = d->session ? 0 : spw_session_open_for(&d->session, b->engine->drafter, most, NULL);
    const struct spw_span span = {d->session, x->answer.tokens, n, wants};
    if (!rc)
        rc = spw_sync(b->engine->drafter, &span, 1, NULL, NULL, NULL);
    if (rc == -ECANCELED && b->engine->options.interrupt)
        spw_interrupt_raise(b->engine->options.interrupt);
    d->no_model |= rc && rc != -ECANCELED;
    return rc;
}

/* Lets the draft model compute the tokens of x that it does not have yet. The answers wait for
 * this, so a call computes as many tokens as take about as long as one step of the answers. It
 * computes nothing if drafts cannot save this time in the rest of the answer, nor, with AUTO, if
 * the time is more than drafts may lose. Returns true if the model has all tokens but a few: it can
 * draft now. */
static bool model_reads(struct spw_batch *b, struct spw_batch_entry *x, struct spw_draft_step *step)
{
    enum { FEW = 32 }; /* rows that take about as long as one */
    struct spw_batch_drafts *d = &x->drafts;
    const struct spw_answer *a = &x->answer;
    const struct spw_draft_costs *c = &b->costs;
    const uint64_t lacks = a->n_tokens - d->n_read;
    const uint64_t left = a->request.max_new_tokens - a->result.n_tokens;
    const bool is_auto = b->engine->options.drafts == SPW_DRAFTS_AUTO;
    const double takes = c->read_seconds > 0 ? (double)lacks * c->read_seconds : c->seconds;
    if (!b->engine->drafter || d->no_model || lacks <= FEW)
        return b->engine->drafter && !d->no_model;
    if (step->seconds >= c->seconds || takes > (double)left * c->seconds ||
        (is_auto && takes > spw_draft_costs_bearable(c)))
        return false;
    const double start = spw_now_seconds();
    const double part = c->read_seconds > 0 ? c->seconds / c->read_seconds : FEW;
    const uint64_t n = spw_min_u64(lacks, spw_max_u64((uint64_t)part, FEW));
    if (compute_by_model(b, x, d->n_read + n, false))
        return false;
    d->n_read += n;
    const double seconds = spw_now_seconds() - start;
    spw_draft_costs_note_read(&b->costs, n, seconds);
    if (is_auto)
        spw_draft_costs_note_model(&b->costs, 0, seconds);
    step->seconds += seconds;
    return false; /* the next step drafts */
}

static uint32_t propose_by_model(struct spw_batch *b, struct spw_batch_entry *x, int32_t *out,
                                 uint32_t most, struct spw_draft_step *step)
{
    const double start = spw_now_seconds();
    const uint32_t vocab = spw_min_u32(spw_engine_config(b->engine)->vocab,
                                       spw_engine_config(b->engine->drafter)->vocab);
    uint32_t n = 0;
    x->drafts.n_read = x->answer.n_tokens;
    while (n < most && !compute_by_model(b, x, x->answer.n_tokens + n, true)) {
        const int32_t id = spw_row_best(spw_session_logits(x->drafts.session), vocab);
        if (id < 0)
            break;
        out[n++] = id;
    }
    const double seconds = spw_now_seconds() - start;
    spw_draft_costs_note_model(&b->costs, n, seconds);
    step->seconds += seconds;
    return n;
}

/* ---- a step ---- */

/* Drafts that options.drafts demands, or that a dry run knows, are computed at any cost. */
static uint32_t draft_all(struct spw_batch *b, struct spw_batch_entry *x, int32_t *out,
                          uint32_t n_rows)
{
    struct spw_batch_drafts *d = &x->drafts;
    const uint8_t *known = d->step_rows;
    if (b->engine->dry)
        d->by_mtp = known && known[x->answer.result.n_tokens] >= SPW_STEP_BY_MTP;
    else
        d->by_mtp = b->engine->options.drafts == SPW_DRAFTS_MTP;
    const uint32_t most = most_drafts(b, x, n_rows, d->by_mtp);
    if (b->engine->dry || !d->by_mtp)
        return b->propose(x, out, most, &d->match);
    d->match = SPW_DRAFT_BY_MODEL;
    return spw_batch_likely_drafts(x, most);
}

/* The seconds in which the model proposes a token. Before the MTP layer was measured: twice the
 * seconds that follow from its size. */
static double model_seconds(const struct spw_batch *b)
{
    const struct spw_draft_costs *c = &b->costs;
    return c->model_seconds > 0 ? c->model_seconds : 2 * b->layer_share * c->seconds;
}

/* Fills `out` with drafts, and returns how many; those of the MTP layer are filled in later. The
 * sources: the text; and a model, which is the draft model or the MTP layer. */
static uint32_t draft(struct spw_batch *b, struct spw_batch_entry *x, int32_t *out, uint32_t n_rows,
                      struct spw_draft_step *step)
{
    enum { TEXT, A_MODEL, SOURCES };
    struct spw_batch_drafts *d = &x->drafts;
    struct spw_draft_offer offers[SOURCES];
    uint32_t source;
    d->by_mtp = false;
    d->next = -1;
    if (b->drafts_all)
        return draft_all(b, x, out, n_rows);
    const uint32_t most = most_drafts(b, x, n_rows, false);
    const uint32_t n = b->propose(x, out, most, &d->match);
    const bool has_model = b->mtp || b->engine->drafter;
    d->next = n ? out[0] : -1;
    offers[TEXT] = (struct spw_draft_offer){spw_draft_odds_of(&d->odds, d->match), 0, n};
    offers[A_MODEL] =
        (struct spw_draft_offer){spw_draft_odds_of(&d->odds, SPW_DRAFT_BY_MODEL), model_seconds(b),
                                 b->mtp ? most_drafts(b, x, n_rows, true) : most};
    const uint32_t length =
        spw_draft_length(&b->costs, step, offers, has_model ? SOURCES : TEXT + 1, &source);
    if (source == TEXT)
        return length;
    if (!b->mtp && !model_reads(b, x, step))
        return spw_draft_length(&b->costs, step, offers, TEXT + 1, &source);
    d->by_mtp = b->mtp;
    d->match = SPW_DRAFT_BY_MODEL;
    d->next = -1;
    return b->mtp ? length : propose_by_model(b, x, out, length, step);
}

/* Adds drafts to a span. *n_rows: rows of logits that are free. */
static void add_drafts(struct spw_batch *b, struct spw_batch_entry *x, struct spw_span *span,
                       struct spw_draft_step *step, uint32_t *n_rows)
{
    struct spw_batch_drafts *d = &x->drafts;
    int32_t *out = x->answer.tokens + x->answer.n_tokens;
    if (!d->knows_odds)
        d->odds = b->odds;
    d->knows_odds = true;
    d->n = draft(b, x, out, *n_rows, step);
    d->row = 0;
    d->first_row = b->engine->plan.draft_rows - *n_rows;
    span->session->n_drafts = d->n;
    span->session->first_draft_row = d->first_row;
    if (!d->n)
        return;
    span->n_tokens += d->n;
    span->n_logits += d->n;
    *n_rows -= d->n + 1;
    step->n_beside += d->n;
}

/* How many rows of logits the drafts of a step of n sessions may have. In a model with states, the
 * kept rows of a span are those of one chunk: all rows of the step must fit into one. */
static uint32_t free_rows(const struct spw_batch *b, uint32_t n)
{
    const struct spw_plan *p = &b->engine->plan;
    return p->n_states ? (uint32_t)spw_min_u64(p->draft_rows, spw_sub_u64(p->chunk + 1, n))
                       : p->draft_rows;
}

/* The MTP layer drafts. Returns the seconds that it took. */
static double fill(struct spw_batch *b, uint32_t n)
{
    const double start = spw_now_seconds();
    uint32_t n_drafts = 0;
    for (uint32_t i = 0; i < n; i++)
        n_drafts += b->stepping[i]->drafts.by_mtp ? b->stepping[i]->drafts.n : 0;
    if (!n_drafts)
        return 0;
    if (spw_batch_fill_drafts(b, n))
        spw_batch_drop_drafts(b, n);
    const double seconds = spw_now_seconds() - start;
    spw_draft_costs_note_model(&b->costs, n_drafts, seconds);
    return seconds;
}

void spw_batch_add_drafts(struct spw_batch *b, uint32_t n)
{
    uint32_t n_rows = free_rows(b, n);
    struct spw_draft_step step = {.n_sessions = n, .n_tokens = n - 1};
    for (uint32_t i = 0; i < n && b->propose; i++)
        if (b->spans[i].n_logits)
            add_drafts(b, b->stepping[i], &b->spans[i], &step, &n_rows);
    b->rows_beside = step.n_beside;
    step.seconds += fill(b, n);
    b->times.decode_seconds += step.seconds;
    b->times.draft_seconds += step.seconds;
}

const float *spw_batch_row(const struct spw_batch *b, const struct spw_batch_entry *x)
{
    return x->drafts.n ? spw_draft_logits(b->engine, x->drafts.first_row + x->drafts.row)
                       : spw_session_logits(x->session);
}

bool spw_batch_takes_draft(struct spw_batch_entry *x, int32_t token)
{
    const struct spw_answer *a = &x->answer;
    const struct spw_batch_drafts *d = &x->drafts;
    if (a->result.step_rows)
        a->result.step_rows[a->result.n_tokens] =
            d->row ? 0 : (uint8_t)(1 + d->n + (d->n && d->by_mtp ? SPW_STEP_BY_MTP : 0));
    return d->row < d->n && token == a->tokens[a->n_tokens];
}

void spw_batch_drop_drafts(struct spw_batch *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct spw_batch_drafts *d = &b->stepping[i]->drafts;
        b->spans[i].n_tokens -= d->n;
        b->spans[i].n_logits -= d->n;
        b->rows_beside -= d->n;
        d->n = 0;
        spw_session_end_drafts(b->spans[i].session);
    }
}

/* Corrects the odds of a request, and those with which later requests begin: `n` drafts were
 * accepted, and then, with `ended`, one was rejected. */
static void note_odds(struct spw_batch *b, struct spw_batch_drafts *d, uint32_t n, bool ended)
{
    spw_draft_odds_note(&d->odds, d->match, n, ended);
    spw_draft_odds_note(&b->odds, d->match, n, ended);
}

int spw_batch_settle(struct spw_batch *b, struct spw_batch_entry *x)
{
    struct spw_batch_drafts *d = &x->drafts;
    const uint32_t n_left = d->n - d->row;
    const float *logits = spw_batch_row(b, x);
    if (!d->n && d->next >= 0) {
        const bool stays = x->answer.tokens[x->answer.n_tokens - 1] == d->next;
        note_odds(b, d, stays, !stays);
    }
    d->next = -1;
    if (!d->n)
        return 0;
    note_odds(b, d, d->row, n_left);
    spw_draft_costs_note_stayed(&b->costs, d->row);
    b->times.n_drafted += d->n;
    b->times.n_accepted += d->row;
    d->n = d->row = 0;
    return spw_session_settle(x->session, x->session->n_tokens - n_left, logits);
}

void spw_batch_note_costs(struct spw_batch *b, uint32_t n, uint64_t n_prompt, double seconds)
{
    const bool has_experts = spw_engine_config(b->engine)->experts.n; /* each row has its own */
    if (!n_prompt) {
        spw_draft_costs_note(&b->costs, n, b->rows_beside, seconds);
        return;
    }
    b->costs.spent += seconds;
    b->costs.row_seconds = has_experts ? 0 : seconds / (double)n_prompt;
}
