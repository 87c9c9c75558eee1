/* Passes over a row of logits, several values at a time: what the sampler does once for each of a
 * vocabulary's tokens. A row has a whole number of SPW_ROW_LANES values; after its last token
 * stands minus infinity, whose weight is 0. Every instruction set gives the same bits. Nothing here
 * fails. */
#ifndef SPW_RUNTIME_RULES_LOGITS_ROW_H
#define SPW_RUNTIME_RULES_LOGITS_ROW_H

#include "model/cpu/ops_cpu.h"

enum { SPW_ROW_LANES = 16 };

/* The largest of n logits as they come from a model; NaN if one of them is NaN; minus infinity if n
 * is 0. */
float spw_row_top(const float *logits, size_t n);
/* The first of them from `from` on that is at least `floor`; n where none is. */
size_t spw_row_find(const float *logits, size_t from, size_t n, float floor);

/* The first of the largest ones, as a sampler with temperature 0 picks it; -1 if one is NaN. */
int32_t spw_row_best(const float *logits, size_t n);

/* Copies n_tokens logits into a row. */
void spw_row_fill(float *row, const float *logits, size_t n_tokens);
/* How many are at least `floor`. */
size_t spw_row_count(const float *row, size_t n, float floor);
/* exp((logit - top) / temperature), logit <= top: 1 at the top, within 1e-11 of itself, and 0 below
 * 1e-299. */
double spw_row_weight(float logit, float top, double temperature);
/* The same of n values, to w, if w is not NULL; their sum. */
double spw_row_weights(double *w, const float *row, size_t n, float top, double temperature);
/* log(sum of exp(logit - top)) of n logits as they come from a model; top: the largest, finite. */
double spw_row_log_sum(const float *logits, size_t n, float top);
/* The sum of those that are at least `floor`. */
double spw_row_sum(const double *w, size_t n, double floor);

/* The passes of one instruction set. All of them are exact, but for `weights`. */
struct spw_row_kernels {
    float (*top)(const float *logits, size_t n);
    size_t (*find)(const float *logits, size_t from, size_t n, float floor);
    size_t (*count)(const float *row, size_t n, float floor);
    double (*weight)(float logit, float top, double temperature);
    double (*weights)(double *w, const float *row, size_t n, float top, double temperature);
    double (*sum)(const double *w, size_t n, double floor);
};

/* Those that a processor with this set runs. */
const struct spw_row_kernels *spw_row_kernels_of(enum spw_isa isa);

#endif
