/* The parts of the gate: measuring a model, storing the results, judging them. spw_gate_check,
 * the gate itself, is in measure.h.
 *
 * A record is a measured fact about one model. Records are stored in a file. The verdict is
 * computed from the record each time. One thread. */
#ifndef SPW_RUNTIME_MEASURE_GATE_H
#define SPW_RUNTIME_MEASURE_GATE_H

#include "model/fingerprint.h"
#include "runtime/measure.h"

#define SPW_GATE_VERSION 1 /* of the file; also raised when the measurement changes */

enum {
    SPW_GATE_RECORDS = 96, /* 32 models in three formats */
    SPW_GATE_TOKENS = 2048,
    SPW_GATE_WINDOW = 128, /* see gate_measure.c */
};

/* What a record is about. */
struct spw_gate_key {
    char model[2 * SPW_FINGERPRINT_BYTES + 1];
    char text[17];                   /* of the calibration tokens: spw_calibration_name */
    enum spw_kv_precision precision; /* of old KV */
    enum spw_dtype compute, kv;      /* kv: of exact KV */
    uint32_t window;                 /* tokens that stayed exact in the check */
    uint32_t numeric_version;
};

struct spw_gate_record {
    struct spw_gate_key key;
    struct spw_gate_result result; /* the file does not have `passes`, `note`, `unstored` */
};

struct spw_gate_records {
    struct spw_gate_record items[SPW_GATE_RECORDS];
    unsigned n;
};

/* As spw_record_file_read and spw_record_file_write. */
int spw_gate_records_read(struct spw_gate_records *out, const char *path, struct spw_error *err);
int spw_gate_records_write(const struct spw_gate_records *r, const char *path,
                           struct spw_error *err);
const struct spw_gate_record *spw_gate_records_find(const struct spw_gate_records *r,
                                                    const struct spw_gate_key *key);
/* Replaces the record with the same key; if there is none and no room, the oldest. */
void spw_gate_records_put(struct spw_gate_records *r, const struct spw_gate_record *record);

/* Runs the calibration tokens through an exact cache and through quantized ones. The caller sets
 * `precision` of each result. Fills all other fields of results[n] but `passes`, `known`,
 * `measured_at`, `note` and `unstored`. */
int spw_gate_measure(struct spw_gate_result *results, size_t n, const char *model_dir,
                     const struct spw_options *o, struct spw_error *err);

/* Whether the measured values of `r` are good enough; if not, r->note says why. */
bool spw_gate_judge(struct spw_gate_result *r);

/* The tokens that stay exact in a check for a run with this residual window. */
uint32_t spw_gate_window(uint64_t residual_window);

#endif
