/* What a model asks of a machine and what the machine gives: operations of a prompt, bytes of the
 * weight files, and the machine's own limits as JSON. */
#ifndef SPW_TOOLS_COMMAND_LIMITS_H
#define SPW_TOOLS_COMMAND_LIMITS_H

#include "tools/command/common.h"

/* Multiplications and additions of a prompt of `n` tokens: two for each weight of the layers and
 * token, the head once (only the last token needs logits), and attention, whose scores and sums
 * take 4 * heads * head_dim for each pair of a query and a key it sees. */
double cli_prefill_flops(const struct spw_model_config *config, uint64_t n);
/* Weights that one token is multiplied with in the layers, and in the head. */
uint64_t cli_layer_parameters(const struct spw_model_config *config);
uint64_t cli_head_parameters(const struct spw_model_config *config);
/* The machine's peak of the kind of matrix product that `compute` uses. */
double cli_matrix_peak(const struct spw_machine *machine, enum spw_dtype compute);
/* NULL when out of memory. */
json_t *cli_machine_json(const struct spw_machine *machine);
json_t *cli_drive_json(const struct spw_drive *drive);
/* --drive-profile, else drives.json in $XDG_CACHE_HOME/spillway or ~/.cache/spillway. NULL where
 * there is none of them. `buffer` has CLI_PATH_BYTES. */
#define CLI_PATH_BYTES 4096
const char *cli_profile_path(const struct cli_options *o, char *buffer);
/* The same of --kv-profile and kv-checks.json. */
const char *cli_kv_profile_path(const struct cli_options *o, char *buffer);
/* What plans and predictions are made with: the machine's limits and, where there is a disk, the
 * drive's; from the profile, or measured and kept there. */
struct cli_limits {
    struct spw_machine machine;
    struct spw_drive drive;
    bool has_machine, has_drive;
    struct spw_error why; /* what could not be had, and what would do; "" if nothing */
};
/* spw_drive_probe and spw_machine_recall. Where the drive or the machine must be measured, a note
 * on stderr says so first. */
int cli_measure_drive(struct spw_drive *out, struct spw_drive_options *o, struct spw_error *err);
int cli_measure_machine(struct spw_machine *out, const struct spw_options *o, const char *profile,
                        enum spw_probe_mode mode, struct spw_error *err);
/* Also puts them into the options, which then borrow from `out`. Says on stderr what the user
 * should know, except `why`. */
void cli_limits_read(struct cli_limits *out, const struct cli_options *o,
                     struct spw_options *options, enum spw_probe_mode mode);
/* The same for a run of the model o->operand: nothing is done for budgets that would be refused,
 * the drive is left alone where the plan leaves it alone, and where writes are limited nothing is
 * written for this. */
void cli_limits_read_for(struct cli_limits *out, const struct cli_options *o,
                         struct spw_options *options);
/* Whether both are there that `plan` needs. */
bool cli_limits_suffice(const struct cli_limits *l, const struct spw_plan_info *plan);
static inline const struct spw_drive *cli_limits_drive(const struct cli_limits *l)
{
    return l->has_drive ? &l->drive : NULL;
}
json_t *cli_prediction_json(const struct spw_prediction *prediction);
/* "2026-11-21 04:05 UTC" */
const char *cli_format_date(char buffer[32], int64_t seconds);
/* Reads every byte of the folder's weight files once with read calls, `threads` at a time, and says
 * how long that took: the page cache's own limit. 0 or -errno. */
int cli_read_weights(const char *folder, uint32_t threads, double *seconds, uint64_t *bytes);

#endif
