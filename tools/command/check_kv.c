/* `spillway check-kv`: how much quantized KV changes a model's predictions, and which formats pass.
 */
#include "tools/command/check_kv.h"

#include "tools/command/engine.h"
#include "tools/command/output/output.h"

#include <string.h>

/* Everything that is shown. */
struct checks {
    const struct cli_options *o;
    const char *profile;
    struct spw_gate_result results[SPW_GATE_FORMATS];
    size_t n;
};

/* Why the profile does not have every result; or "". */
static const char *unstored(const struct checks *c)
{
    const char *why = "";
    for (size_t i = 0; i < c->n && !*why; i++)
        why = c->results[i].unstored;
    return why;
}

static json_t *result_json(const struct spw_gate_result *r)
{
    const struct cli_field fields[] = {
        {"kv_dtype", CLI_JSON(spw_kv_precision_name(r->precision))},
        CLI_FIELD(r, passes),
        CLI_FIELD(r, bytes_per_token),
        CLI_FIELD(r, exact_bytes_per_token),
        CLI_FIELD(r, kl_median),
        CLI_FIELD(r, kl_p999),
        CLI_FIELD(r, same_top),
        {"same_top_where_sure", CLI_JSON(r->same_sure)},
        CLI_FIELD(r, n_positions),
        CLI_FIELD(r, n_sure),
        CLI_FIELD(r, n_sharpened),
        CLI_FIELD(r, measured_at),
        CLI_FIELD(r, known),
        {*r->note ? "note" : NULL, CLI_JSON(r->note)},
    };
    return CLI_OBJECT(fields);
}

static json_t *checks_json(const struct checks *c)
{
    json_t *list = json_array();
    for (size_t i = 0; i < c->n; i++)
        cli_json_append(&list, result_json(&c->results[i]));
    const struct cli_field fields[] = {
        {"model", CLI_JSON(c->o->operand)},
        {"profile", CLI_OR_NULL(c->profile && !*unstored(c), CLI_JSON(c->profile))},
        {"formats", list},
    };
    return CLI_OBJECT(fields);
}

/* Chooses all formats, or the format of --kv-dtype. */
static size_t choose(struct spw_gate_result *results, const struct spw_options *options)
{
    static const enum spw_kv_precision all[SPW_GATE_FORMATS] = {SPW_KV_INT8, SPW_KV_INT8_INT4,
                                                                SPW_KV_INT4};
    size_t n = options->precision == SPW_KV_EXACT ? SPW_GATE_FORMATS : 1;
    for (size_t i = 0; i < n; i++)
        results[i] = (struct spw_gate_result){.precision = n == 1 ? options->precision : all[i]};
    return n;
}

/* A check takes seconds without output. A note says so before, if the model can be opened. */
static int measure(struct checks *c, const struct spw_options *options,
                   struct spw_gate_options *gate, struct spw_error *err)
{
    const enum spw_probe_mode mode = gate->mode;
    gate->mode = SPW_PROBE_NEVER;
    int rc = spw_gate_check(c->results, c->n, c->o->operand, options, gate, err);
    if (rc != -ENODATA && (rc || mode != SPW_PROBE_AGAIN))
        return rc;
    cli_note("checking %zu format%s: the model reads some 2,000 tokens with exact KV and with each "
             "format",
             c->n, cli_plural(c->n));
    gate->mode = mode;
    return spw_gate_check(c->results, c->n, c->o->operand, options, gate, err);
}

int cli_check_kv(const struct cli_options *o)
{
    char path[CLI_PATH_BYTES];
    struct spw_options options = cli_engine_options(o, 0, 1);
    struct checks c = {.o = o, .profile = cli_cache_path(o->kv_profile, "kv-checks.json", path)};
    struct spw_gate_options gate = {.profile = c.profile,
                                    .mode = o->redo ? SPW_PROBE_AGAIN : SPW_PROBE_UNKNOWN};
    struct spw_error err = {0};
    c.n = choose(c.results, &options);
    int rc = measure(&c, &options, &gate, &err);
    if (rc < 0)
        return cli_fail_error(rc, &err, true);
    if (*unstored(&c))
        cli_fail(0, "%s", unstored(&c));
    int code = o->report ? cli_write_json(o->report, checks_json(&c)) : 0;
    if (code)
        return code;
    return cli_show(o, checks_json(&c));
}

void cli_check_kv_warn(const struct cli_options *o, const struct spw_options *options)
{
    char path[CLI_PATH_BYTES];
    struct spw_gate_options gate = {
        .profile = cli_cache_path(o->kv_profile, "kv-checks.json", path), .mode = SPW_PROBE_NEVER};
    struct spw_gate_result r = {.precision = options->precision};
    if (r.precision == SPW_KV_EXACT || !o->kv_gate || !gate.profile)
        return;
    if (spw_gate_check(&r, 1, o->operand, options, &gate, NULL) == 0 && !r.passes)
        cli_fail(0,
                 "--kv-dtype %s: this model did not pass the check: %s; 'spillway check-kv %s' "
                 "shows which formats pass",
                 spw_kv_precision_name(r.precision), r.note, o->operand);
}

/* ---- the gate ---- */

/* A command that only plans runs no check: it assumes that the model passes, and says so. */
static void take_to_pass(const struct cli_options *o, enum spw_kv_precision precision)
{
    cli_fail(0,
             "%s KV: this model was not checked yet; the plan assumes that it passes "
             "('spillway check-kv %s' checks it)",
             spw_kv_precision_name(precision), o->operand);
}

enum { WHY_BYTES = 320 };

/* `why`: "" if the model passes. */
static void ask(const struct cli_options *o, enum spw_kv_precision precision, char why[WHY_BYTES])
{
    char path[CLI_PATH_BYTES];
    bool only_plans = (o->command->bit & (CLI_PLAN | CLI_INSPECT)) != 0;
    struct spw_options options = cli_engine_options(o, 0, 1);
    options.interrupt = NULL; /* an interrupted check would be no result */
    struct spw_gate_options gate = {.profile =
                                        cli_cache_path(o->kv_profile, "kv-checks.json", path),
                                    .mode = only_plans ? SPW_PROBE_NEVER : SPW_PROBE_UNKNOWN};
    struct spw_gate_result r = {.precision = precision};
    struct spw_error err = {0};
    int rc = spw_gate_check(&r, 1, o->operand, &options, &gate, &err);
    if (rc == -ENODATA)
        take_to_pass(o, precision);
    else if (rc == -ENOMEM) /* the check has two caches */
        snprintf(why, WHY_BYTES,
                 "this model is not checked yet: run 'spillway check-kv %.200s' once", o->operand);
    else if (rc < 0)
        snprintf(why, WHY_BYTES, "this model cannot be checked: %.280s", err.text);
    else if (!r.passes)
        snprintf(why, WHY_BYTES, "this model does not pass its check: %.270s", r.note);
    else if (!r.known)
        cli_note("%s KV: this model passes its check: median KL %.2g in %llu positions",
                 spw_kv_precision_name(precision), r.kl_median, (unsigned long long)r.n_positions);
    if (rc == 0 && *r.unstored)
        cli_note("%s", r.unstored);
}

/* A run plans more than once. Each format is checked and reported once. */
const char *cli_check_kv_gate(void *context, enum spw_kv_precision precision)
{
    static struct {
        bool asked;
        char why[WHY_BYTES];
    } formats[SPW_KV_INT4 + 1];
    const struct cli_options *o = context;
    if (!o->kv_gate)
        return NULL;
    if (!formats[precision].asked)
        ask(o, precision, formats[precision].why);
    formats[precision].asked = true;
    return *formats[precision].why ? formats[precision].why : NULL;
}
