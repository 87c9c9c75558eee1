/* What `spillway bench` measures, and showing it. */
#ifndef SPW_TOOLS_COMMAND_BENCH_BENCH_H
#define SPW_TOOLS_COMMAND_BENCH_BENCH_H

#include "tools/command/input/input.h"
#include "tools/command/limits.h"

enum measure {
    PREFILL_SECONDS,
    DECODE_SECONDS, /* a token */
    FIRST_SECONDS,
    WEIGHTS_SECONDS,
    WAIT_SECONDS,     /* of a decoded token: not hidden behind computation */
    PREFILL_FRACTION, /* of the limits of that run */
    DECODE_FRACTION,
    READ_LIMIT, /* around decode */
    COPY_LIMIT,
    PREDICTED,    /* seconds of a decoded token, with the limits around it */
    PREDICTION,   /* that / what it took */
    MATRIX_LIMIT, /* around the prompt, for the type that is computed with */
    MEASURES,
};

/* Two probes that differ by more are both shown. */
#define MUCH 1.1

struct bench_case {
    uint64_t context, budget;
    struct spw_plan_info plan; /* for `context` + half the decoded tokens */
    double *samples[MEASURES]; /* owned, [repeat] each; n_runs of them are there, in any order */
    size_t n_runs;             /* that are complete */
    double median[MEASURES];
    uint64_t device_peak_bytes, host_peak_bytes;
    uint64_t moved_bytes;             /* a decoded token, both ways */
    uint64_t card_bytes;              /* GPU: what the driver says is gone, at the end */
    struct spw_machine before, after; /* decode of the run in which they differ most */
    double drift;                     /* larger over smaller, the most of reads and copies */
};

/* What tiles attention is timed on, alone. */
enum { BENCH_EXACT, BENCH_INT8, BENCH_INT4, BENCH_FORMS };

struct bench {
    const struct cli_options *o;
    struct cli_model model;
    struct spw_machine machine; /* probed last */
    struct cli_limits limits;   /* what plans with a disk are made with */
    char backend[80];
    int32_t *tokens;          /* owned: of the longest prompt and what is decoded */
    struct bench_case *cases; /* owned */
    size_t n_cases;
    /* Owned, [n_cases][BENCH_FORMS]: alone, of a context's first case; GPU only. */
    struct spw_attention_speed *attention;
    double *samples; /* owned: of all cases */
};

/* How many cases share a context: they lie side by side, the first budget first. */
static inline size_t bench_n_budgets(const struct bench *b)
{
    return b->o->budgets.n ? b->o->budgets.n : 1;
}

/* [n] random tokens; NULL when out of memory. The caller frees. */
int32_t *bench_random_tokens(uint32_t vocab, uint64_t seed, size_t n);
/* One step that brings a session to these tokens, timed. -ECANCELED: interrupted. */
int bench_sync(struct spw_engine *e, struct spw_session *s, const int32_t *tokens, size_t n,
               double *seconds, struct spw_error *err);
double bench_median(double *values, size_t n); /* sorts them */

/* `spillway bench --io`: see bench_io.c. */
int bench_io(const struct cli_options *o);
/* `spillway bench --prefix`: see bench_prefix.c. */
int bench_prefix(const struct cli_options *o);

/* Prints the cases that have a complete run to stdout, as a table or as CSV. */
void bench_print(const struct bench *b);
/* The same as CSV and JSON to the files that the options name. An exit code. */
int bench_write(const struct bench *b);

#endif
