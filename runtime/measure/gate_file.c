/* The file of the gate's records: see gate.h and record_file.h. */
#include "runtime/measure/gate.h"
#include "base/record_file.h"

#include <assert.h>

#define RATE .kind = SPW_RECORD_REAL, .min = 0, .max = 1
#define COUNT(most) .kind = SPW_RECORD_COUNT, .min = 0, .max = (most)

static const struct spw_record_field fields[] = {
    {SPW_RECORD(spw_gate_record, key.model), .kind = SPW_RECORD_TEXT, .is_key = true},
    {SPW_RECORD(spw_gate_record, key.text), .kind = SPW_RECORD_TEXT, .is_key = true},
    {SPW_RECORD(spw_gate_record, key.precision), COUNT(SPW_KV_INT4), .is_key = true},
    {SPW_RECORD(spw_gate_record, key.compute), COUNT(SPW_DTYPE_BF16), .is_key = true},
    {SPW_RECORD(spw_gate_record, key.kv), COUNT(SPW_DTYPE_BF16), .is_key = true},
    {SPW_RECORD(spw_gate_record, key.window), COUNT(1 << 20), .is_key = true},
    {SPW_RECORD(spw_gate_record, key.numeric_version), COUNT(1 << 30), .is_key = true},
    {SPW_RECORD(spw_gate_record, result.n_positions), COUNT(1 << 20)},
    {SPW_RECORD(spw_gate_record, result.n_sure), COUNT(1 << 20)},
    {SPW_RECORD(spw_gate_record, result.n_sharpened), COUNT(1 << 20)},
    {SPW_RECORD(spw_gate_record, result.kl_median), .kind = SPW_RECORD_REAL, .min = 0, .max = 1e9},
    {SPW_RECORD(spw_gate_record, result.kl_p999), .kind = SPW_RECORD_REAL, .min = 0, .max = 1e9},
    {SPW_RECORD(spw_gate_record, result.same_top), RATE},
    {SPW_RECORD(spw_gate_record, result.same_sure), RATE},
    {SPW_RECORD(spw_gate_record, result.bytes_per_token), COUNT(1e12)},
    {SPW_RECORD(spw_gate_record, result.exact_bytes_per_token), COUNT(1e12)},
    {SPW_RECORD(spw_gate_record, result.measured_at), .kind = SPW_RECORD_COUNT, .min = 1,
     .max = 1e12},
};

static const struct spw_record_list list = {
    .name = "checks",
    .fields = fields,
    .n_fields = sizeof fields / sizeof *fields,
    SPW_RECORD_LIST(spw_gate_records, items, n),
    .date = offsetof(struct spw_gate_record, result.measured_at)};

static const struct spw_record_file file = {.what = "checks of quantized KV",
                                            .key = "spillway_kv_checks",
                                            .version = SPW_GATE_VERSION,
                                            .lists = &list,
                                            .n_lists = 1};

int spw_gate_records_read(struct spw_gate_records *out, const char *path, struct spw_error *err)
{
    int rc = spw_record_file_read(&file, out, path, err);
    for (unsigned i = 0; i < out->n; i++)
        out->items[i].result.precision = out->items[i].key.precision;
    return rc;
}

int spw_gate_records_write(const struct spw_gate_records *r, const char *path,
                           struct spw_error *err)
{
    return spw_record_file_write(&file, r, path, err);
}

const struct spw_gate_record *spw_gate_records_find(const struct spw_gate_records *r,
                                                    const struct spw_gate_key *key)
{
    static_assert(offsetof(struct spw_gate_record, key) == 0, "a key begins its record");
    return spw_record_find(&list, r, key);
}

void spw_gate_records_put(struct spw_gate_records *r, const struct spw_gate_record *record)
{
    spw_record_put(&list, r, record);
}
