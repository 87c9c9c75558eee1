/* The gate: whether a model may run with quantized KV.
 *
 * The conditions for a format (over all positions that read quantized tiles):
 *
 *   median KL      <= 0.01 nats   the distribution at a typical position hardly changes
 *   99.9 % KL      <= 5 nats      at most one position in a thousand loses its token: 5 nats are a
 *                                 factor of 150 in the probability of a token that was certain
 *   same token     >= 98 %        of the positions where the exact model is sure
 *
 * Measurements on this text (November 2026; window 128; 2,048 tokens, stories260K 512; "plain" is
 * int4 with a step and a zero for each token and 64 channels; KL median, 99.9 %, same token in
 * percent):
 *
 *                         int8                    int4                    plain int4
 *   records               8.5e-5   0.14    99.9   2.0e-3   2.1    99.0    2.4e-3   4.4    98.2
 *   stories260K           5.8e-9   6e-6   100     5.4e-6   0.006 100      1.5e-6   0.001 100
 *   copying model         1.2e-8   0.01   100     6.6e-6   1.9    99.9    8.0e-9   3.0    99.8
 *   constant keys, slow   1.2e-8   0.01   100     6.6e-6   1.9    99.9    1.2     14      90.8
 *   constant keys, quick  1.3e-8   0.67   100     4.4e-5  19      91.4   12       50      39.3
 *
 * (tests/engine/copying_model.h; its keys have constants of 300 and of 100.) Good formats have 2 to
 * 3 nats and 99 %; bad ones have 14 nats and 91 % or worse. No single measure separates all good
 * formats from all bad ones. records must pass: with int4 it answers one question of 144 less than
 * with exact KV (tools/bench/kv_formats.py). The text is meant to be harder than normal use: it is
 * given twice, and half of it can be predicted from old keys alone. A model with random weights of
 * the shape of Qwen2.5-0.5B, whose rows are all sharpened, has medians of 4.5e-4 and 1.6e-2. */
#include "runtime/measure/gate.h"

#include "runtime/measure/calibration.h"
#include "runtime/engine/engine.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const double max_median = 0.01, max_p999 = 5, min_same = 0.98;

bool spw_gate_judge(struct spw_gate_result *r)
{
    char *note = r->note;
    size_t bytes = sizeof r->note;
    if (r->n_positions == 0)
        snprintf(note, bytes, "the model's context is too short to be checked");
    else if (!(r->kl_median <= max_median))
        snprintf(note, bytes, "median KL %.2g, at most %g passes", r->kl_median, max_median);
    else if (!(r->kl_p999 <= max_p999))
        snprintf(note, bytes, "99.9 %% KL %.2g, at most %g passes", r->kl_p999, max_p999);
    else if (!(r->same_sure >= min_same))
        snprintf(note, bytes, "same token %.2f %% where sure, at least %g %% passes",
                 100 * r->same_sure, 100 * min_same);
    else
        return true;
    return false;
}

/* ---- known results ---- */

static int make_key(struct spw_gate_key *out, const char *model_dir, const struct spw_options *o,
                    struct spw_error *err)
{
    struct spw_model m;
    uint8_t fingerprint[SPW_FINGERPRINT_BYTES];
    *out = (struct spw_gate_key){.numeric_version = SPW_NUMERIC_VERSION,
                                 .window = spw_gate_window(o->residual_window)};
    SPW_TRY(spw_model_open(&m, model_dir, o, err));
    out->compute = m.compute;
    out->kv = m.cache.kv;
    int rc = m.config.n_source_layers
                 ? spw_fail(err, -ENOTSUP,
                            "%s: the check reads a text, and the encoder of this model (%s) would "
                            "read all of it; expected a model without an encoder",
                            model_dir, m.config.model_type)
                 : spw_fingerprint_take(fingerprint, m.source, m.tensors, err);
    if (!rc)
        rc = spw_calibration_name(out->text, m.source, err);
    spw_model_close(&m);
    spw_fingerprint_text(out->model, fingerprint);
    return rc;
}

/* Fills the results that the file has. Returns how many are missing. */
static size_t find_known(struct spw_gate_result *results, size_t n,
                         const struct spw_gate_records *r, struct spw_gate_key *key)
{
    size_t n_unknown = 0;
    for (size_t i = 0; i < n; i++) {
        key->precision = results[i].precision;
        const struct spw_gate_record *record = r ? spw_gate_records_find(r, key) : NULL;
        if (record)
            results[i] = record->result;
        results[i].known = record != NULL;
        n_unknown += !record;
    }
    return n_unknown;
}

/* ---- new results ---- */

/* Checks all formats together, so that the exact cache runs once. If memory does not suffice for
 * all at the same time, checks one after the other. */
static int measure_all(struct spw_gate_result *r, size_t n, const char *model_dir,
                       const struct spw_options *o, struct spw_error *err)
{
    struct spw_error why = {0};
    int rc = spw_gate_measure(r, n, model_dir, o, &why);
    if (n == 1 || rc != -ENOMEM)
        return rc ? spw_fail(err, rc, "%s", why.text) : 0;
    for (size_t i = 0; i < n; i++)
        SPW_TRY(spw_gate_measure(&r[i], 1, model_dir, o, err));
    return 0;
}

static int measure(struct spw_gate_result *results, size_t n, const char *model_dir,
                   const struct spw_options *o, struct spw_error *err)
{
    struct spw_gate_result unknown[SPW_GATE_FORMATS];
    size_t n_unknown = 0, next = 0;
    for (size_t i = 0; i < n; i++)
        if (!results[i].known)
            unknown[n_unknown++] = (struct spw_gate_result){.precision = results[i].precision};
    SPW_TRY(measure_all(unknown, n_unknown, model_dir, o, err));
    for (size_t i = 0; i < n; i++)
        if (!results[i].known) {
            results[i] = unknown[next++];
            results[i].measured_at = (int64_t)time(NULL);
        }
    return 0;
}

static int store(const struct spw_gate_result *results, size_t n, struct spw_gate_records *r,
                 struct spw_gate_key *key, const char *path, struct spw_error *err)
{
    for (size_t i = 0; i < n; i++) {
        key->precision = results[i].precision;
        struct spw_gate_record record = {*key, results[i]};
        if (!results[i].known)
            spw_gate_records_put(r, &record);
    }
    return spw_gate_records_write(r, path, err);
}

/* ---- the check ---- */

static int check(struct spw_gate_result *results, size_t n, const char *model_dir,
                 const struct spw_options *o, const struct spw_gate_options *g,
                 struct spw_gate_records *r, struct spw_error *err)
{
    struct spw_gate_key key;
    struct spw_error why = {0};
    if (g->profile)
        spw_gate_records_read(r, g->profile, &why); /* a file that cannot be used counts as empty */
    SPW_TRY(make_key(&key, model_dir, o, err));
    size_t n_unknown = find_known(results, n, g->mode == SPW_PROBE_AGAIN ? NULL : r, &key);
    if (n_unknown && g->mode == SPW_PROBE_NEVER)
        return spw_fail(err, -ENODATA,
                        "%s: quantized KV has not been checked on this model; run 'spillway "
                        "check-kv %s' once",
                        model_dir, model_dir);
    if (n_unknown)
        SPW_TRY(measure(results, n, model_dir, o, err));
    why.text[0] = 0;
    if (n_unknown && g->profile)
        store(results, n, r, &key, g->profile, &why);
    for (size_t i = 0; i < n; i++) {
        struct spw_gate_result *to = &results[i];
        to->note[0] = to->unstored[0] = 0;
        to->passes = spw_gate_judge(to);
        if (!to->known && *why.text)
            snprintf(to->unstored, sizeof to->unstored, "%.200s, so it will be checked again",
                     why.text);
    }
    return 0;
}

int spw_gate_check(struct spw_gate_result *results, size_t n, const char *model_dir,
                   const struct spw_options *o, const struct spw_gate_options *g,
                   struct spw_error *err)
{
    spw_error_clear(err);
    for (size_t i = 0; i < n; i++)
        if (results[i].precision <= SPW_KV_EXACT || results[i].precision > SPW_KV_INT4 ||
            n > SPW_GATE_FORMATS)
            return spw_fail(err, -EINVAL,
                            "found a check of %zu formats, expected int8, int8:int4 "
                            "or int4, each once",
                            n);
    struct spw_gate_records *r = spw_alloc_zero(1, sizeof *r);
    if (!r)
        return spw_fail(err, -ENOMEM, "%s: no memory to check quantized KV", model_dir);
    int rc = check(results, n, model_dir, o, g, r, err);
    spw_free(r);
    return rc;
}
