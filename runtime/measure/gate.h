/* The gate's parts: what was measured of a model, where it is kept, and what is asked of it. The
 * gate itself, spw_gate_check, is in spillway.h.
 *
 * A record is a fact about one model, kept in a file of records; the verdict is made of it anew
 * each time. One thread. */
#ifndef SPW_RUNTIME_MEASURE_GATE_H
#define SPW_RUNTIME_MEASURE_GATE_H

#include "model/fingerprint.h"
#include "runtime/measure.h"

#define SPW_GATE_VERSION                                                                           \
    1 /* of the file; raised also when what is measured is measured otherwise */

enum {
    SPW_GATE_RECORDS = 96, /* 32 models in three formats */
    SPW_GATE_TOKENS = 2048,
    SPW_GATE_WINDOW = 128, /* see gate_measure.c */
};

/* What a record is of. */
struct spw_gate_key {
    char model[2 * SPW_FINGERPRINT_BYTES + 1];
    char text[17];                   /* of the calibration: spw_calibration_name */
    enum spw_kv_precision precision; /* of old KV */
    enum spw_dtype compute, kv;      /* kv: of exact KV */
    uint32_t window;                 /* tokens that were exact in the check */
    uint32_t numeric_version;
};

struct spw_gate_record {
    struct spw_gate_key key;
    struct spw_gate_result result; /* but `passes` and `note`, which are not kept */
};

struct spw_gate_records {
    struct spw_gate_record items[SPW_GATE_RECORDS];
    unsigned n;
};

/* As spw_record_file_read and _write. */
int spw_gate_records_read(struct spw_gate_records *out, const char *path, struct spw_error *err);
int spw_gate_records_write(const struct spw_gate_records *r, const char *path,
                           struct spw_error *err);
const struct spw_gate_record *spw_gate_records_find(const struct spw_gate_records *r,
                                                    const struct spw_gate_key *key);
/* Instead of the record of the same key, or of the oldest where there is no room. */
void spw_gate_records_put(struct spw_gate_records *r, const struct spw_gate_record *record);

/* Runs the calibration text through exact and quantized caches side by side: fills everything of
 * results[n] but `passes`, `known`, `measured_at` and `note`. `precision` is given. */
int spw_gate_measure(struct spw_gate_result *results, size_t n, const char *model_dir,
                     const struct spw_options *o, struct spw_error *err);

/* Whether the measures of `r` are good enough; what is not is said in r->note. */
bool spw_gate_judge(struct spw_gate_result *r);

/* The tokens that stay exact in a check for a run with this window, in tokens. */
uint32_t spw_gate_window(uint64_t residual_window);

#endif
