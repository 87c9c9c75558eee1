/* What the files of summarize share: summarize.c (the command and its items), summarize_document.c
 * (one document: its strategy, its requests), summarize_budget.c (what fits), summarize_result.c
 * (lines and files). */
#ifndef SPW_TOOLS_COMMAND_JOB_SUMMARIZE_SUMMARIZE_PARTS_H
#define SPW_TOOLS_COMMAND_JOB_SUMMARIZE_SUMMARIZE_PARTS_H

#include "tools/command/job/summarize/document.h"
#include "tools/command/job/summarize/instructions.h"
#include "tools/command/request/record.h"
#include "tools/command/request/reader.h"
#include "tools/command/job/run.h"
#include "tools/command/job/job.h"
#include "tools/command/job/summarize/summarize_plan.h"

enum job_strategy { JOB_AUTO, JOB_ALL_AT_ONCE, JOB_MAP_REDUCE }; /* as in the table of options */

/* The lengths that are known to fit the budgets, and not to fit. */
struct job_budget {
    uint64_t fits, fails;
};

/* One request of a document: a part, a merge, or the whole document. */
struct job_node {
    size_t level, index; /* level 0: parts of the document */
    size_t begin, end;   /* level 0: bytes of the text; above: summaries of the level below */
    json_t *record;      /* owned; its line; NULL: it has not ended */
};

struct job_work {
    const struct job_document *document;
    uint64_t digest;
    char *text; /* owned; NULL once all parts were handed out */
    size_t bytes;
    struct request_prompt whole; /* owned; the whole document as one prompt, if it is wanted */
    bool is_whole;
    char why[256];
    struct job_window window;
    struct job_node *nodes; /* owned, [n_nodes]: level after level */
    size_t n_nodes, level_begin, n_given, n_running, n_left; /* n_left: of the last level */
    bool has_failed;
    double began;
    struct job_work *next;
};

/* An item of the run. The loop of the job knows only the beginning. */
struct job_summary {
    struct request item;
    struct job_work *work;
    size_t node;
    double began;
};

struct job_summarize {
    const struct cli_options *o;
    struct cli_model model;
    struct request_reader reader;
    bool has_template;
    struct job_instructions instructions;
    struct job_documents documents;
    struct job_shard shard;
    struct job_store *store;
    struct request_names names;
    char output[4096];
    bool made_folder;              /* of --out-dir */
    uint64_t words, answer, limit; /* limit: of the model */
    uint64_t most_source;          /* the most tokens that its encoder reads; 0: it has none */
    uint64_t window;               /* tokens of a request of a map-reduce; 0: not known yet */
    struct job_budget budget;
    struct job_work *works; /* owned: documents that have begun; the oldest first */
    size_t next_document;
    uint64_t n_total, n_new;
    /* For the time left: bytes of texts that have to be read, and of those that were handed out.
     * The text of a document that has not begun counts as long as its file. */
    uint64_t new_bytes, given_bytes;
};

/* ---- summarize_document.c: 0, or -errno with a refusal of this document ---- */

int job_work_begin(struct job_summarize *s, struct job_work *w, struct request_refusal *why);
void job_work_free(struct job_work *w);
/* Makes the item of the next node that has none, with its prompt. */
int job_work_item(struct job_summarize *s, struct job_work *w, struct job_summary **out,
                  struct request_refusal *why);
/* A node has its record; takes the reference. Begins the next level after the last node of one. */
int job_work_record(const struct job_summarize *s, struct job_work *w, size_t node, json_t *record,
                    struct request_refusal *why);
/* The summary of a node that has its record, without blanks around it; borrowed. */
void job_node_text(const struct job_node *node, const char **text, size_t *bytes);
static inline bool job_work_has_ended(const struct job_work *w)
{
    return w->n_left == 0 && w->n_nodes - w->level_begin == 1;
}

/* ---- summarize_budget.c ---- */

/* Whether one request of `tokens` fits the model and the budgets. 1, 0, -errno. */
int job_budget_fits(struct job_summarize *s, uint64_t tokens, struct spw_error *err);
/* -E2BIG, with the text of why the budgets do not hold the request; else 0 or -errno. */
int job_budget_refuse(const struct job_summarize *s, uint64_t tokens, struct spw_error *err);
/* Finds `window`, as long as the budgets hold. An encoder gets as much as it reads: budgets change
 * no part. -E2BIG: they hold none. */
int job_budget_window(struct job_summarize *s, struct spw_error *err);

/* ---- summarize_result.c: NULL means out of memory ---- */

json_t *job_summary_record(const struct job_summarize *s, const struct job_summary *x);
/* The line of the document. *text: the summary, borrowed from the line. */
json_t *job_work_line(const struct job_summarize *s, const struct job_work *w);
/* Writes the text file of --out-dir. 0 or an exit code. */
int job_work_write(const struct job_summarize *s, const struct job_work *w, const json_t *line);

#endif
