/* Rotary embedding frequencies, as transformers computes them, with the same order of operations in
 * float32. So angles agree also at positions where the last bit of a frequency matters.
 *
 * Pure functions: no memory, no state, any thread. The angle of pair i at position p is (float)p *
 * inv_freq[i]. Its cos and sin are multiplied by the attention scaling in f32; enum
 * spw_rope_rounding says what is rounded. Pair i is channels i and i + rotary_dim / 2. */
#ifndef SPW_MODEL_CONFIG_ROPE_H
#define SPW_MODEL_CONFIG_ROPE_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum spw_rope_kind {
    SPW_ROPE_DEFAULT,
    SPW_ROPE_LINEAR,  /* frequencies divided by the factor */
    SPW_ROPE_DYNAMIC, /* NTK: the base grows with the length, past max_positions */
    SPW_ROPE_LLAMA3,  /* long wavelengths divided, short ones kept, a ramp between */
    SPW_ROPE_YARN,    /* like llama3, by numbers of rotations; also scales cos and sin */
    SPW_ROPE_LONG, /* each divided by a factor: long sequences have other factors than short ones */
    SPW_ROPE_PROPORTIONAL, /* only the first pairs turn; divided by the factor */
    SPW_ROPE_FACTORS,      /* each divided by a number that the model stores; here as DEFAULT */
};

struct spw_rope_config {
    enum spw_rope_kind kind;
    uint32_t rotary_dim; /* channels that rotate, from the first; even */
    double theta;
    double factor; /* at least 1; for all kinds except default */
    double low_freq_factor;
    double high_freq_factor;         /* llama3 only, as low_freq_factor */
    uint64_t original_max_positions; /* llama3, yarn; longrope: sequences up to it are short */
    double beta_fast;                /* yarn, as the next two */
    double beta_slow;
    bool truncate;           /* the ramp's ends are whole pair indices */
    double attention_factor; /* the factor of cos and sin; 1 except for yarn and longrope */
    /* longrope, [rotary_dim / 2] each, borrowed; NULL: the model stores them, here as DEFAULT */
    const float *short_factors, *long_factors;
    uint32_t n_turned; /* proportional: pairs */
};

/* Writes inv_freq [rotary_dim / 2]. `current_len`: the length of the sequence, the newest position
 * + 1; only the dynamic kind and longrope use it. -EINVAL if a frequency is not finite. */
int spw_rope_frequencies(const struct spw_rope_config *rope, uint32_t rotary_dim,
                         uint64_t current_len, uint64_t max_positions, float *inv_freq,
                         float *attention_scaling);

/* Only the frequencies of two kinds depend on the length of the sequence. Dynamic: lengths up to
 * max_positions share one table, and each longer length has its own table. Longrope: all longer
 * lengths than original_max_positions share a second table. Returns the number of the table for a
 * sequence of n_tokens. The number is also a length that uses the table. */
enum { SPW_ROPE_SHARED = 1 };
uint64_t spw_rope_table(const struct spw_rope_config *rope, uint64_t max_positions,
                        uint64_t n_tokens);
/* The longest sequence that uses the shared table; UINT64_MAX: all do. */
uint64_t spw_rope_shared_until(const struct spw_rope_config *rope, uint64_t max_positions);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
