/* Beam search: see beams.h. Sums of log-probabilities are f32, as in transformers; scores of
 * answers are double. */
#include "runtime/rules/beams.h"
#include "runtime/rules/logits_row.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float never = -1e9F; /* is added to what must not be chosen */

/* An answer that the search has found. In a search without groups, `answers` has n_beams of them
 * from the start, and those that are not finished come after all that are. */
struct answer {
    double score;
    bool is_finished;
    uint64_t n;
    int32_t *tokens; /* [most_tokens], owned */
};

/* What may follow: beam and token, with the sum of log-probabilities. */
struct candidate {
    float score;
    uint32_t beam;
    int32_t token;
    bool ends;
    bool is_answer;   /* it ends, and is good enough for an answer */
    double as_answer; /* its score as an answer */
};

struct spw_beams {
    struct spw_beam_options o;
    uint64_t n;                    /* steps so far */
    float *scores;                 /* [n_beams], the sum of log-probabilities */
    int32_t *runs, *next_runs;     /* [n_beams][most_tokens] */
    struct answer *answers, *next; /* [n_beams], with tokens [most_tokens] each */
    struct candidate *best;        /* [most_candidates] */
    int32_t *chosen;               /* [n_beams]: by earlier groups of the step */
    struct spw_beam_move *moves;   /* [n_beams], borrowed: of the step */
    uint32_t *n_answers;           /* [n_groups]: how many a group has */
    bool *is_done;                 /* [n_groups] */
    bool has_ended;
};

static uint32_t most_candidates(const struct spw_beam_options *o, uint32_t n_beams)
{
    return spw_max_u32(2, 1 + o->n_eos) * n_beams;
}

static bool make_answers(struct answer **out, const struct spw_beam_options *o)
{
    struct answer *a = *out = spw_alloc_zero(o->n_beams, sizeof *a);
    bool all = a;
    for (uint32_t i = 0; all && i < o->n_beams; i++) {
        a[i].tokens = spw_alloc_zero(o->most_tokens, sizeof *a[i].tokens);
        a[i].score = -INFINITY;
        all = a[i].tokens;
    }
    return all;
}

static void free_answers(struct answer *a, uint32_t n)
{
    for (uint32_t i = 0; a && i < n; i++)
        spw_free(a[i].tokens);
    spw_free(a);
}

int spw_beams_open(struct spw_beams **out, const struct spw_beam_options *o)
{
    struct spw_beams *s = *out = spw_alloc_zero(1, sizeof *s);
    const uint64_t n_run = o->n_beams * o->most_tokens;
    if (!s)
        return -ENOMEM;
    s->o = *o;
    s->scores = spw_alloc_zero(o->n_beams, sizeof *s->scores);
    s->runs = spw_alloc_zero(n_run, sizeof *s->runs);
    s->next_runs = spw_alloc_zero(n_run, sizeof *s->next_runs);
    s->best = spw_alloc_zero(most_candidates(o, o->n_beams), sizeof *s->best);
    s->chosen = spw_alloc_zero(o->n_beams, sizeof *s->chosen);
    s->n_answers = spw_alloc_zero(o->n_groups, sizeof *s->n_answers);
    s->is_done = spw_alloc_zero(o->n_groups, sizeof *s->is_done);
    const bool all = make_answers(&s->answers, o) && make_answers(&s->next, o);
    if (!all || !s->scores || !s->runs || !s->next_runs || !s->best || !s->chosen ||
        !s->n_answers || !s->is_done) {
        spw_beams_close(s);
        *out = NULL;
        return -ENOMEM;
    }
    const uint32_t size = o->n_beams / o->n_groups;
    for (uint32_t i = 0; i < o->n_beams; i++)
        s->scores[i] = i % size ? never : 0;
    return 0;
}

void spw_beams_close(struct spw_beams *s)
{
    if (!s)
        return;
    free_answers(s->answers, s->o.n_beams);
    free_answers(s->next, s->o.n_beams);
    spw_free(s->scores);
    spw_free(s->runs);
    spw_free(s->next_runs);
    spw_free(s->best);
    spw_free(s->chosen);
    spw_free(s->n_answers);
    spw_free(s->is_done);
    spw_free(s);
}

/* ---- candidates ---- */

static bool is_end(const struct spw_beams *s, int32_t token)
{
    for (uint32_t i = 0; i < s->o.n_eos; i++)
        if (s->o.eos[i] == token)
            return true;
    return false;
}

/* Puts the candidate into the n best ones, at most `most`, which are sorted: the best one first, of
 * equals the one that came earlier. */
static uint32_t add_candidate(struct spw_beams *s, uint32_t n, uint32_t most, struct candidate c)
{
    if (n == most && !(c.score > s->best[n - 1].score))
        return n;
    uint32_t at = n < most ? n++ : n - 1;
    for (; at && c.score > s->best[at - 1].score; at--)
        s->best[at] = s->best[at - 1];
    c.ends = is_end(s, c.token);
    s->best[at] = c;
    return n;
}

/* Adds what may follow beam i, in the order of tokens. Few blocks of a row have a candidate: the
 * sum with a number is not above the sum with a larger one. */
static uint32_t add_row(struct spw_beams *s, uint32_t n, uint32_t most, uint32_t i,
                        const float *row)
{
    enum { BLOCK = 512 };
    for (uint32_t first = 0, end; first < s->o.vocab; first = end) {
        end = spw_min_u32(first + BLOCK, s->o.vocab);
        if (n == most &&
            !(s->scores[i] + spw_row_top(row + first, end - first) > s->best[n - 1].score))
            continue;
        for (uint32_t t = first; t < end; t++)
            n = add_candidate(
                s, n, most,
                (struct candidate){.score = s->scores[i] + row[t], .beam = i, .token = (int32_t)t});
    }
    return n;
}

/* The best candidates of beams [first, first + size); *n: how many. -EDOM. -ENODATA: the rules
 * forbid all of them. */
static int find_best(struct spw_beams *s, const struct spw_beam_rows *rows, uint32_t first,
                     uint32_t size, uint32_t *n)
{
    *n = 0;
    for (uint32_t i = first; i < first + size; i++) {
        const float *row = rows->row(rows->context, i, s->chosen, first);
        if (!row)
            return -EDOM;
        *n = add_row(s, *n, most_candidates(&s->o, size), i, row);
    }
    return s->best[0].score == -INFINITY ? -ENODATA : 0;
}

static int32_t *run_of(int32_t *runs, const struct spw_beams *s, uint32_t i)
{
    return runs + i * s->o.most_tokens;
}

/* Beam `to` of the next step: a child of the candidate's beam. */
static void move_beam(struct spw_beams *s, uint32_t to, const struct candidate *c, float score)
{
    int32_t *run = run_of(s->next_runs, s, to);
    memcpy(run, run_of(s->runs, s, c->beam), s->n * sizeof *run);
    run[s->n] = c->token;
    s->moves[to] = (struct spw_beam_move){c->beam, c->token};
    s->chosen[to] = c->token;
    s->scores[to] = score;
}

static void swap_runs(struct spw_beams *s)
{
    int32_t *runs = s->runs;
    s->runs = s->next_runs;
    s->next_runs = runs;
    s->n++;
}

/* ---- without groups ---- */

static double length_factor(const struct spw_beams *s, uint64_t n)
{
    return pow((double)n, (double)s->o.length_penalty);
}

/* The length at which the score of the best beam is compared with those of the answers, to see
 * whether the beam can still become better: its own length n, or the longest possible one. */
static uint64_t hoped_length(const struct spw_beams *s, uint64_t n)
{
    return s->o.never_early && s->o.length_penalty > 0 ? s->o.most_tokens : n;
}

static bool all_finished(const struct spw_beams *s)
{
    bool all = true;
    for (uint32_t i = 0; i < s->o.n_beams; i++)
        all &= s->answers[i].is_finished;
    return all;
}

/* The beams of the next step: the best candidates that do not end. If there are too few, candidates
 * that end follow; their score becomes so low that nothing chooses them later. */
static void choose_beams(struct spw_beams *s, uint32_t n_best)
{
    uint32_t n = 0;
    for (int ends = 0; ends < 2; ends++)
        for (uint32_t j = 0; j < n_best && n < s->o.n_beams; j++)
            if (s->best[j].ends == (ends == 1))
                move_beam(s, n++, &s->best[j], s->best[j].score + (ends ? never : 0));
}

/* Whether `c` comes before an answer or candidate with this score: answers come first. */
static bool is_better(const struct candidate *c, bool is_answer, double score)
{
    return c->is_answer != is_answer ? c->is_answer : c->as_answer > score;
}

/* Scores the candidates as answers, and sorts them by that. */
static void score_answers(struct spw_beams *s, uint32_t n_best)
{
    const double factor = length_factor(s, s->n + 1);
    for (uint32_t j = 0; j < n_best; j++) {
        struct candidate c = s->best[j];
        uint32_t at = j;
        c.is_answer = c.ends && j < s->o.n_beams;
        c.as_answer = (double)c.score / factor;
        for (; at && is_better(&c, s->best[at - 1].is_answer, s->best[at - 1].as_answer); at--)
            s->best[at] = s->best[at - 1];
        s->best[at] = c;
    }
}

static void keep_answer(struct answer *to, const struct answer *old)
{
    to->score = old->score;
    to->is_finished = old->is_finished;
    to->n = old->n;
    memcpy(to->tokens, old->tokens, old->n * sizeof *to->tokens);
}

static void make_answer(const struct spw_beams *s, struct answer *to, const struct candidate *c)
{
    to->score = c->as_answer;
    to->is_finished = c->is_answer;
    to->n = s->n + 1;
    memcpy(to->tokens, run_of(s->runs, s, c->beam), s->n * sizeof *to->tokens);
    to->tokens[s->n] = c->token;
}

/* The best of the answers and of the candidates, both sorted; of equals the answers. */
static void choose_answers(struct spw_beams *s, uint32_t n_best)
{
    uint32_t i = 0, j = 0;
    for (uint32_t at = 0; at < s->o.n_beams; at++) {
        const struct answer *old = &s->answers[i];
        if (j == n_best || !is_better(&s->best[j], old->is_finished, old->score)) {
            keep_answer(&s->next[at], old);
            i++;
        } else {
            make_answer(s, &s->next[at], &s->best[j++]);
        }
    }
    struct answer *answers = s->answers;
    s->answers = s->next;
    s->next = answers;
}

/* Whether an answer is still missing, or the best beam may become better than the worst answer. */
static bool may_improve(const struct spw_beams *s)
{
    double worst = INFINITY;
    for (uint32_t i = 0; i < s->o.n_beams; i++)
        worst = fmin(worst, s->answers[i].score);
    return !all_finished(s) ||
           (double)s->scores[0] / length_factor(s, hoped_length(s, s->n)) > worst;
}

static int step_alone(struct spw_beams *s, const struct spw_beam_rows *rows)
{
    uint32_t n = 0;
    bool all_end = true;
    SPW_TRY(find_best(s, rows, 0, s->o.n_beams, &n));
    for (uint32_t j = 0; j < n; j++) {
        s->best[j].ends |= s->n + 1 >= s->o.most_tokens;
        all_end &= s->best[j].ends;
    }
    choose_beams(s, n);
    score_answers(s, n);
    choose_answers(s, n);
    swap_runs(s);
    return !may_improve(s) || (s->o.stops_early && all_finished(s)) || all_end;
}

/* ---- diverse groups ---- */

/* Adds an answer, the first `n` tokens of a run, to those of the group, if it is among the best. */
static void add_answer(struct spw_beams *s, uint32_t group, const int32_t *run, uint64_t n,
                       double score)
{
    const uint32_t size = s->o.n_beams / s->o.n_groups;
    struct answer *all = s->answers + group * size, *at = &all[s->n_answers[group]];
    if (s->n_answers[group] == size) {
        at = all;
        for (uint32_t i = 1; i < size; i++)
            at = all[i].score < at->score ? &all[i] : at;
        if (!(score > at->score))
            return;
    } else {
        s->n_answers[group]++;
    }
    at->score = score;
    at->n = n;
    at->is_finished = true;
    memcpy(at->tokens, run, n * sizeof *run);
}

static bool group_is_done(const struct spw_beams *s, uint32_t group, double best)
{
    const uint32_t size = s->o.n_beams / s->o.n_groups;
    double worst = INFINITY;
    if (s->n_answers[group] < size)
        return false;
    for (uint32_t i = 0; i < size; i++)
        worst = fmin(worst, s->answers[group * size + i].score);
    return s->o.stops_early || worst >= best / length_factor(s, hoped_length(s, s->n + 1));
}

static int step_group(struct spw_beams *s, const struct spw_beam_rows *rows, uint32_t group)
{
    const uint32_t size = s->o.n_beams / s->o.n_groups, first = group * size;
    uint32_t n = 0, n_beams = 0;
    if (s->is_done[group]) {
        for (uint32_t i = first; i < first + size; i++)
            move_beam(s, i, &(struct candidate){.beam = first, .token = s->o.pad}, 0);
        return 0;
    }
    SPW_TRY(find_best(s, rows, first, size, &n));
    for (uint32_t j = 0; j < n && n_beams < size; j++) {
        const struct candidate *c = &s->best[j];
        if (!c->ends)
            move_beam(s, first + n_beams++, c, c->score);
        else if (j < size)
            add_answer(s, group, run_of(s->runs, s, c->beam), s->n,
                       (double)c->score / length_factor(s, s->n + 1));
    }
    s->is_done[group] = group_is_done(s, group, (double)s->best[0].score);
    return 0;
}

static int compare_answers(const void *a, const void *b)
{
    const struct answer *x = a, *y = b;
    return (x->score < y->score) - (x->score > y->score);
}

/* Makes answers of the beams of groups that have not ended, and sorts all answers. */
static void finish_groups(struct spw_beams *s)
{
    const uint32_t size = s->o.n_beams / s->o.n_groups;
    for (uint32_t i = 0; i < s->o.n_beams; i++)
        if (!s->is_done[i / size])
            add_answer(s, i / size, run_of(s->runs, s, i), s->n,
                       (double)s->scores[i] / length_factor(s, s->n));
    qsort(s->answers, s->o.n_beams, sizeof *s->answers, compare_answers);
    for (uint32_t i = 0; i < s->o.n_beams; i++)
        if (s->answers[i].n < s->o.most_tokens && s->o.n_eos)
            s->answers[i].tokens[s->answers[i].n++] = s->o.eos[0];
}

static int step_groups(struct spw_beams *s, const struct spw_beam_rows *rows)
{
    bool all = true;
    for (uint32_t g = 0; g < s->o.n_groups; g++) {
        SPW_TRY(step_group(s, rows, g));
        all &= s->is_done[g];
    }
    swap_runs(s);
    if (!all && s->n < s->o.most_tokens)
        return 0;
    finish_groups(s);
    return 1;
}

int spw_beams_step(struct spw_beams *s, const struct spw_beam_rows *rows,
                   struct spw_beam_move *moves)
{
    s->moves = moves;
    const int rc = s->o.n_groups > 1 ? step_groups(s, rows) : step_alone(s, rows);
    s->has_ended = rc == 1;
    return rc < 0 ? rc : 0;
}

bool spw_beams_has_ended(const struct spw_beams *s)
{
    return s->has_ended;
}

const int32_t *spw_beams_tokens(const struct spw_beams *s, uint32_t i, uint64_t *n)
{
    *n = s->n;
    return run_of(s->runs, s, i);
}

const int32_t *spw_beams_answer(const struct spw_beams *s, uint32_t k, uint64_t *n, double *score)
{
    *n = s->answers[k].n;
    *score = s->answers[k].score;
    return s->answers[k].tokens;
}
