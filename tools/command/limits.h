/* The operations of a prompt, and the limits of a machine, also as JSON. */
#ifndef SPW_TOOLS_COMMAND_LIMITS_H
#define SPW_TOOLS_COMMAND_LIMITS_H

#include "tools/command/common.h"

/* The multiplications and additions of a prompt of `n` tokens: two for each token and weight; the
 * head once, because only the last token needs logits; and attention, whose scores and sums take 4
 * * heads * head_dim for each pair of a query and a key that it sees. */
struct spw_prompt_work cli_prompt_work(const struct spw_plan_info *plan,
                                       const struct spw_model_config *config, uint64_t n);
/* NULL when out of memory. */
json_t *cli_machine_json(const struct spw_machine *machine);
json_t *cli_drive_json(const struct spw_drive *drive);
/* The path of a file of the command: `given`, else the name in $XDG_CACHE_HOME/spillway or
 * ~/.cache/spillway. NULL without any of them. `buffer` has CLI_PATH_BYTES. */
#define CLI_PATH_BYTES 4096
const char *cli_cache_path(const char *given, const char *name, char *buffer);
#define CLI_DRIVES "drives.json"
/* The numbers that plans and predictions use: the limits of the machine and, with a disk, those of
 * the drive. They come from the profile, or are measured and stored there. */
struct cli_limits {
    struct spw_machine machine;
    struct spw_drive drive;
    bool has_machine, has_drive;
    struct spw_error why; /* which limits are missing and how to get them; "" if none */
};
/* spw_drive_probe and spw_machine_recall. If the drive or the machine must be measured, a note on
 * stderr says so before. */
int cli_measure_drive(struct spw_drive *out, struct spw_drive_options *o, struct spw_error *err);
int cli_measure_machine(struct spw_machine *out, const struct spw_options *o, const char *profile,
                        enum spw_probe_mode mode, struct spw_error *err);
/* Prints on stderr whether the profile could not be used or not be written. */
void cli_say_profile(const struct spw_drive *drive, const struct spw_machine *machine);
/* Reads the limits and puts them into the options, which then borrow from `out`. Prints notes about
 * the profile on stderr, but not `why`. */
void cli_limits_read(struct cli_limits *out, const struct cli_options *o,
                     struct spw_options *options, enum spw_probe_mode mode);
/* The same for a run of the model o->operand. Measures nothing if the budgets would be refused.
 * Measures no drive if the plan uses none, or if --disk-write-limit is given. */
void cli_limits_read_for(struct cli_limits *out, const struct cli_options *o,
                         struct spw_options *options);
/* Whether all limits that `plan` needs are known. */
bool cli_limits_suffice(const struct cli_limits *l, const struct spw_plan_info *plan);
static inline const struct spw_drive *cli_limits_drive(const struct cli_limits *l)
{
    return l->has_drive ? &l->drive : NULL;
}
json_t *cli_prediction_json(const struct spw_prediction *prediction);
/* "2026-11-21 04:05 UTC" */
const char *cli_format_date(char buffer[32], int64_t seconds);
#endif
