/* The contents of --report and --json, as JSON. json.h explains how failures are handled. The
 * caller owns the returned objects. */
#ifndef SPW_TOOLS_COMMAND_OUTPUT_REPORT_H
#define SPW_TOOLS_COMMAND_OUTPUT_REPORT_H

#include "tools/command/events.h"

/* The fields of every run: model, backend, budgets, peaks, moved bytes, and what was predicted of
 * them (NULL: nothing), waiting time that computation did not hide. */
json_t *cli_report_engine(const char *model, struct spw_engine *e, const struct cli_events *events,
                          const uint64_t *predicted);
/* Adds n_prompt, n_generated, finish, logits_hash, waterlines, tokens; logprobs and top_logprobs if
 * the result has them. */
void cli_report_result(json_t **into, size_t n_prompt, const struct spw_result *r);
/* Adds `prefix`: which part of the prompts was not computed, and where it came from. seconds_saved
 * is an estimate, at the speed of what was computed of these prompts. */
struct cli_reuse {
    uint64_t n_prompt, n_reused, n_from_store;
    double prefill_seconds;
};
void cli_report_prefix(json_t **into, const struct spw_engine *e, const struct cli_reuse *r);
json_t *cli_report_waterlines(const struct spw_waterlines *w);
/* {"device": ..., "host": ..., "disk": ...} */
json_t *cli_report_tiers(uint64_t device, uint64_t host, uint64_t disk);
/* {"host_to_device": ...} */
json_t *cli_report_moved(const uint64_t moved[SPW_MOVED_COUNT]);
json_t *cli_report_tokens(const int32_t *tokens, size_t n);
/* Their texts in the tokenizer; null: it has none, or there is no tokenizer. */
json_t *cli_report_names(const struct spw_tokenizer *t, const int32_t *tokens, size_t n);
/* How a plan computes, in tables: "bf16", "bf16 with int8 activations". */
const char *cli_report_compute(const struct spw_plan_info *p);
json_t *cli_report_plan(const char *model, const struct spw_plan_info *p, const uint64_t *run);

#endif
