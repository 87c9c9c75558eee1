/* The file of the gate's records: see gate.h and record_file.h. */
#include "runtime/measure/gate.h"
#include "base/record_file.h"

#include <string.h>

#define RATE .kind = SPW_RECORD_REAL, .min = 0, .max = 1
#define COUNT(most) .kind = SPW_RECORD_COUNT, .min = 0, .max = (most)

static const struct spw_record_field fields[] = {
    {SPW_RECORD(spw_gate_record, key.model), .kind = SPW_RECORD_TEXT},
    {SPW_RECORD(spw_gate_record, key.text), .kind = SPW_RECORD_TEXT},
    {SPW_RECORD(spw_gate_record, key.precision), COUNT(SPW_KV_INT4)},
    {SPW_RECORD(spw_gate_record, key.compute), COUNT(SPW_DTYPE_BF16)},
    {SPW_RECORD(spw_gate_record, key.kv), COUNT(SPW_DTYPE_BF16)},
    {SPW_RECORD(spw_gate_record, key.window), COUNT(1 << 20)},
    {SPW_RECORD(spw_gate_record, key.numeric_version), COUNT(1 << 30)},
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

struct file {
    struct spw_record_list list;
    struct spw_record_file file;
};

static const struct spw_record_file *file_of(struct file *f, struct spw_gate_records *r)
{
    f->list =
        (struct spw_record_list){.name = "checks",
                                 .fields = fields,
                                 .n_fields = sizeof fields / sizeof *fields,
                                 .entries = r->items,
                                 .entry_bytes = sizeof *r->items,
                                 .n = &r->n,
                                 .max = SPW_GATE_RECORDS,
                                 .date = offsetof(struct spw_gate_record, result.measured_at)};
    f->file = (struct spw_record_file){.what = "checks of quantized KV",
                                       .key = "spillway_kv_checks",
                                       .version = SPW_GATE_VERSION,
                                       .lists = &f->list,
                                       .n_lists = 1};
    return &f->file;
}

int spw_gate_records_read(struct spw_gate_records *out, const char *path, struct spw_error *err)
{
    struct file f;
    int rc = spw_record_file_read(file_of(&f, out), path, err);
    for (unsigned i = 0; i < out->n; i++)
        out->items[i].result.precision = out->items[i].key.precision;
    return rc;
}

int spw_gate_records_write(const struct spw_gate_records *r, const char *path,
                           struct spw_error *err)
{
    struct file f;
    return spw_record_file_write(file_of(&f, (struct spw_gate_records *)r), path, err);
}

static bool is_same(const struct spw_gate_key *a, const struct spw_gate_key *b)
{
    return strcmp(a->model, b->model) == 0 && strcmp(a->text, b->text) == 0 &&
           a->precision == b->precision && a->compute == b->compute && a->kv == b->kv &&
           a->window == b->window && a->numeric_version == b->numeric_version;
}

const struct spw_gate_record *spw_gate_records_find(const struct spw_gate_records *r,
                                                    const struct spw_gate_key *key)
{
    for (unsigned i = 0; i < r->n; i++)
        if (is_same(&r->items[i].key, key))
            return &r->items[i];
    return NULL;
}

void spw_gate_records_put(struct spw_gate_records *r, const struct spw_gate_record *record)
{
    struct file f;
    struct spw_gate_record *to =
        spw_record_place(&file_of(&f, r)->lists[0], spw_gate_records_find(r, &record->key));
    *to = *record;
}
