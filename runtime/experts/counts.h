/* Counts of choices in few bytes, for the profile and for traces: see runtime/experts.h.
 *
 * Code 255 is the largest count; each code below is 2^(1/16) less; 0 is a count of 0, or one of
 * less than a 2^16th of the largest. Encoding what was decoded gives the same codes. */
#ifndef SPW_RUNTIME_EXPERTS_COUNTS_H
#define SPW_RUNTIME_EXPERTS_COUNTS_H

#include "model/source/source.h"
#include "runtime/experts.h"

enum { SPW_MOST_COUNTED_EXPERTS = 32768, SPW_EXPERT_PROFILE_MODELS = 7 };
#define SPW_EXPERT_PROFILE_VERSION 1

struct spw_expert_counts {
    char model[65];     /* the fingerprint of the model, as text */
    uint32_t n_experts; /* of all layers */
    double largest;
    char codes[2 * SPW_MOST_COUNTED_EXPERTS + 1]; /* two hexadecimal digits for each expert */
    int64_t measured_at;                          /* seconds since 1970 */
};

/* counts, codes: [n]. Returns the largest count. */
double spw_expert_counts_encode(uint8_t *codes, const double *counts, uint32_t n);
void spw_expert_counts_decode(double *counts, double largest, const uint8_t *codes, uint32_t n);
/* counts: [c->n_experts] */
void spw_expert_counts_get(const struct spw_expert_counts *c, double *counts);

/* The fingerprint of a model, as text. */
int spw_expert_model_name(char out[65], const struct spw_source *source,
                          const struct spw_tensors *tensors, struct spw_error *err);

/* The file, without a model. The list is empty after a failure, as in record_file.h. */
struct spw_expert_profile {
    struct spw_expert_counts models[SPW_EXPERT_PROFILE_MODELS];
    unsigned n;
};
int spw_expert_profile_read(struct spw_expert_profile *out, const char *path,
                            struct spw_error *err);
int spw_expert_profile_write(const struct spw_expert_profile *p, const char *path,
                             struct spw_error *err);
/* Replaces the counts of the same model; if there are none and no room, the oldest. */
void spw_expert_profile_put(struct spw_expert_profile *p, const struct spw_expert_counts *c);

#endif
