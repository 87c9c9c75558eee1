/* The profile of experts: see runtime/experts.h, counts.h, and record_file.h for the format. */
#include "runtime/experts/counts.h"

#include "base/record_file.h"
#include "model/fingerprint.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_CODE = 255, CODES_PER_OCTAVE = 16 };

/* ---- codes ---- */

double spw_expert_counts_encode(uint8_t *codes, const double *counts, uint32_t n)
{
    double largest = 0;
    for (uint32_t e = 0; e < n; e++)
        largest = fmax(largest, counts[e]);
    for (uint32_t e = 0; e < n; e++) {
        double code = counts[e] > 0 ? MOST_CODE + CODES_PER_OCTAVE * log2(counts[e] / largest) : 0;
        codes[e] = (uint8_t)lrint(fmax(code, 0));
    }
    return largest;
}

void spw_expert_counts_decode(double *counts, double largest, const uint8_t *codes, uint32_t n)
{
    for (uint32_t e = 0; e < n; e++)
        counts[e] =
            codes[e] ? largest * exp2((codes[e] - MOST_CODE) / (double)CODES_PER_OCTAVE) : 0;
}

static uint8_t digit(char c)
{
    return (uint8_t)(c >= 'a' ? c - 'a' + 10 : c - '0');
}

void spw_expert_counts_get(const struct spw_expert_counts *c, double *counts)
{
    for (uint32_t e = 0; e < c->n_experts; e++) {
        const uint8_t code = (uint8_t)(digit(c->codes[2 * e]) << 4 | digit(c->codes[2 * e + 1]));
        spw_expert_counts_decode(&counts[e], c->largest, &code, 1);
    }
}

/* ---- the file ---- */

static const struct spw_record_field fields[] = {
    {SPW_RECORD(spw_expert_counts, model), .kind = SPW_RECORD_TEXT, .is_key = true},
    {SPW_RECORD(spw_expert_counts, n_experts), .kind = SPW_RECORD_COUNT, .min = 1,
     .max = SPW_MOST_COUNTED_EXPERTS},
    {SPW_RECORD(spw_expert_counts, largest), .kind = SPW_RECORD_REAL, .min = 0, .max = 1e30},
    {SPW_RECORD(spw_expert_counts, codes), .kind = SPW_RECORD_TEXT},
    {SPW_RECORD(spw_expert_counts, measured_at), .kind = SPW_RECORD_COUNT, .min = 1, .max = 1e12},
};

static const struct spw_record_list list = {.name = "counts",
                                            .fields = fields,
                                            .n_fields = sizeof fields / sizeof *fields,
                                            SPW_RECORD_LIST(spw_expert_profile, models, n),
                                            .date =
                                                offsetof(struct spw_expert_counts, measured_at)};

static const struct spw_record_file file = {.what = "counts of experts",
                                            .key = "spillway_expert_counts",
                                            .version = SPW_EXPERT_PROFILE_VERSION,
                                            .lists = &list,
                                            .n_lists = 1};

int spw_expert_profile_read(struct spw_expert_profile *out, const char *path, struct spw_error *err)
{
    SPW_TRY(spw_record_file_read(&file, out, path, err));
    for (unsigned i = 0; i < out->n; i++) {
        const struct spw_expert_counts *c = &out->models[i];
        const size_t n = 2 * (size_t)c->n_experts;
        if (strspn(c->codes, "0123456789abcdef") == n && !c->codes[n])
            continue;
        out->n = 0;
        return spw_fail(err, -EINVAL, "%s: counts: entry %u: codes: expected %zu digits", path,
                        i + 1, n);
    }
    return 0;
}

int spw_expert_profile_write(const struct spw_expert_profile *p, const char *path,
                             struct spw_error *err)
{
    return spw_record_file_write(&file, p, path, err);
}

void spw_expert_profile_put(struct spw_expert_profile *p, const struct spw_expert_counts *c)
{
    spw_record_put(&list, p, c);
}

/* ---- of a model ---- */

int spw_expert_model_name(char out[65], const struct spw_source *source,
                          const struct spw_tensors *tensors, struct spw_error *err)
{
    uint8_t fingerprint[SPW_FINGERPRINT_BYTES];
    SPW_TRY(spw_fingerprint_take(fingerprint, source, tensors, err));
    spw_fingerprint_text(out, fingerprint);
    return 0;
}

/* The counts of a model with n experts. Its fingerprint takes time, and is needed only if the
 * profile has counts of so many. */
static const struct spw_expert_counts *find(const struct spw_expert_profile *p,
                                            struct spw_source *source, uint32_t n, int *rc,
                                            struct spw_error *err)
{
    struct spw_tensors *tensors = NULL;
    char model[65] = "";
    for (unsigned i = 0; i < p->n && !*rc; i++) {
        if (p->models[i].n_experts != n)
            continue;
        if (!*model)
            *rc = source->ops->tensors(source, &tensors, err);
        if (!*rc && !*model)
            *rc = spw_expert_model_name(model, source, tensors, err);
        if (*rc && *rc != -ENOMEM)
            *rc = -ENODATA; /* of the model, not of the profile */
        if (!*rc && strcmp(p->models[i].model, model) == 0) {
            spw_tensors_close(tensors);
            return &p->models[i];
        }
    }
    spw_tensors_close(tensors);
    *rc = *rc ? *rc : spw_fail(err, -ENODATA, "the profile has no counts of this model");
    return NULL;
}

static int read_for(struct spw_expert_counts **out, struct spw_source *source, const char *profile,
                    struct spw_error *err)
{
    struct spw_model_config config;
    SPW_TRY(source->ops->config(source, &config, err));
    const uint32_t n = config.experts.n * spw_expert_layers(&config);
    spw_config_free(&config);
    if (!n)
        return spw_fail(err, -ENODATA, "the model has no experts");
    struct spw_expert_profile *p = spw_alloc(sizeof *p);
    *out = spw_alloc(sizeof **out);
    int rc = p && *out ? spw_expert_profile_read(p, profile, err)
                       : spw_fail(err, -ENOMEM, "out of memory for the counts of experts");
    if (rc == -ENOENT)
        rc = -ENODATA;
    const struct spw_expert_counts *found = rc ? NULL : find(p, source, n, &rc, err);
    if (found) {
        **out = *found;
    } else {
        spw_free(*out);
        *out = NULL;
    }
    spw_free(p);
    return rc;
}

int spw_expert_counts_read(struct spw_expert_counts **out, const char *model, const char *profile,
                           struct spw_error *err)
{
    struct spw_source *source;
    spw_error_clear(err);
    *out = NULL;
    SPW_TRY(spw_source_open(&source, model, err));
    int rc = read_for(out, source, profile, err);
    spw_source_close(source);
    return rc;
}

void spw_expert_counts_free(struct spw_expert_counts *c)
{
    spw_free(c);
}
