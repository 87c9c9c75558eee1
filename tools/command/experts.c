/* See experts.h. */
#include "tools/command/experts.h"

#include "tools/command/limits.h"
#include "tools/command/output/report.h"

static const char *const rule_names[SPW_EXPERT_RULES] = {[SPW_EXPERTS_OURS] = "spillway",
                                                         [SPW_EXPERTS_STATIC] = "static",
                                                         [SPW_EXPERTS_RECENT] = "lru",
                                                         [SPW_EXPERTS_BEST] = "best"};

/* ---- counts ---- */

struct spw_expert_counts *cli_experts_counts(const struct cli_options *o)
{
    char path[CLI_PATH_BYTES];
    struct spw_error err = {0};
    struct spw_expert_counts *counts = NULL;
    const char *profile = cli_cache_path(o->expert_profile, "experts.json", path);
    int rc = profile ? spw_expert_counts_read(&counts, o->operand, profile, &err) : -ENODATA;
    if (rc == -EINVAL && *err.text)
        cli_note("%s; experts begin without counts of earlier runs", err.text);
    return counts;
}

void cli_experts_close(struct spw_engine *e, const struct cli_options *o)
{
    char path[CLI_PATH_BYTES];
    struct spw_error err = {0};
    const char *profile = cli_cache_path(o->expert_profile, "experts.json", path);
    if (e && profile && spw_expert_counts_write(e, profile, &err))
        cli_note("%s; the next run begins without the counts of this one", err.text);
    spw_engine_close(e);
}

/* ---- traces ---- */

struct spw_expert_trace *cli_experts_trace(const struct cli_options *o, int *code)
{
    struct spw_expert_trace *t;
    struct spw_error err = {0};
    int rc = spw_expert_trace_read(&t, o->expert_trace, &err);
    *code = rc ? cli_fail_error(rc, &err, true) : 0;
    return t;
}

json_t *cli_experts_bytes_json(const struct spw_expert_bytes *b)
{
    const struct cli_field fields[] = {
        {"least", cli_report_moved(b->least)},
        {"expected", cli_report_moved(b->expected)},
        {"most", cli_report_moved(b->most)},
        CLI_FIELD(b, from_counts),
    };
    return CLI_OBJECT(fields);
}

/* Per token; 0 without tokens. */
static double per_token(const struct spw_expert_replay *r, uint64_t x)
{
    return r->n_tokens ? (double)x / (double)r->n_tokens : 0;
}

static json_t *rule_json(const struct spw_expert_replay *r, enum spw_expert_rule rule)
{
    const struct cli_field fields[] = {
        CLI_FIELD(&r->rules[rule], missed),
        CLI_FIELD(&r->rules[rule], missed_bytes),
        {"missed_a_token", CLI_JSON(per_token(r, r->rules[rule].token_missed))},
        {"missed_bytes_a_token", CLI_JSON(per_token(r, r->rules[rule].token_missed_bytes))},
    };
    return CLI_OBJECT(fields);
}

json_t *cli_experts_replay_json(const struct spw_expert_replay *r)
{
    json_t *rules = json_object();
    for (int i = 0; i < SPW_EXPERT_RULES; i++)
        cli_json_add(&rules, rule_names[i], rule_json(r, (enum spw_expert_rule)i));
    const struct cli_field fields[] = {
        CLI_FIELD(r, n_experts),
        {"n_resident", CLI_JSON(r->n_frames)},
        CLI_FIELD(r, n_tokens),
        CLI_FIELD(r, used),
        {"used_a_token", CLI_JSON(per_token(r, r->token_used))},
        {"moved_bytes", cli_report_moved(r->moved)},
        {"rules", rules},
        CLI_FIELD(r, static_from_earlier_runs),
    };
    return CLI_OBJECT(fields);
}
