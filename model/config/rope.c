/* Rotary frequencies: see rope.h. The formulas are those of transformers' modeling_rope_utils.py,
 * evaluated like torch: an operation of two Python scalars is done in double, an operation of a
 * scalar and a tensor in float, and `scalar / tensor` is `reciprocal(tensor) * scalar`. */
#include "model/config/rope.h"

#include <math.h>

/* 1 / base^(2i / dim) */
static float plain_frequency(float base, uint32_t pair, uint32_t dim)
{
    return 1.0f / powf(base, (float)(2 * pair) / (float)dim);
}

/* The base of the dynamic kind. Up to max_positions it is theta, which transformers computes in
 * double. After that the length is a tensor, and everything is computed in float. */
static float dynamic_base(const struct spw_rope_config *rope, uint32_t dim, uint64_t length,
                          uint64_t max_positions)
{
    double exponent = (double)dim / (double)(dim - 2);
    if (length <= max_positions) {
        double limit = (double)max_positions;
        double growth = rope->factor * limit / limit - (rope->factor - 1);
        return (float)(rope->theta * pow(growth, exponent));
    }
    float growth = (float)length * (float)rope->factor / (float)max_positions;
    growth -= (float)(rope->factor - 1);
    /* torch raises a tensor to a scalar exponent in double and rounds once */
    return (float)pow(growth, exponent) * (float)rope->theta;
}

static float llama3_frequency(const struct spw_rope_config *rope, float frequency)
{
    float original = (float)rope->original_max_positions;
    float longest = (float)((double)rope->original_max_positions / rope->low_freq_factor);
    float shortest = (float)((double)rope->original_max_positions / rope->high_freq_factor);
    float factor = (float)rope->factor;
    float wavelength = 1.0f / frequency * (float)(2 * M_PI);
    if (wavelength < shortest)
        return frequency;
    if (wavelength > longest)
        return frequency / factor;
    double ramp = rope->high_freq_factor - rope->low_freq_factor;
    if (ramp == 0) /* no ramp between the two, and this wavelength is exactly the border */
        return frequency;
    float smooth = (1.0f / wavelength * original - (float)rope->low_freq_factor) / (float)ramp;
    return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

/* The pair index whose channel turns `rotations` times within the original length (YaRN, Peng et
 * al. 2023, section 3.2). */
static double yarn_correction(const struct spw_rope_config *rope, double rotations, uint32_t dim)
{
    double turns = (double)rope->original_max_positions / (rotations * 2 * M_PI);
    return (double)dim * log(turns) / (2 * log(rope->theta));
}

struct yarn_ramp {
    float low;
    float width;
};

static struct yarn_ramp yarn_ramp(const struct spw_rope_config *rope, uint32_t dim)
{
    double low = yarn_correction(rope, rope->beta_fast, dim);
    double high = yarn_correction(rope, rope->beta_slow, dim);
    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)dim - 1);
    if (low == high)
        high += 0.001; /* no division by zero: transformers' own value */
    return (struct yarn_ramp){.low = (float)low, .width = (float)(high - low)};
}

static float yarn_frequency(const struct spw_rope_config *rope, struct yarn_ramp ramp,
                            uint32_t pair, uint32_t dim)
{
    float period = powf((float)rope->theta, (float)(2 * pair) / (float)dim);
    float kept = 1.0f / period;
    float stretched = 1.0f / (period * (float)rope->factor);
    float at = ((float)pair - ramp.low) / ramp.width;
    at = at < 0 ? 0 : at > 1 ? 1 : at;
    float keep = 1.0f - at;
    return stretched * (1.0f - keep) + kept * keep;
}

static float long_frequency(const struct spw_rope_config *rope, uint64_t length, float base,
                            uint32_t pair, uint32_t dim)
{
    const float *factors =
        length > rope->original_max_positions ? rope->long_factors : rope->short_factors;
    float factor = factors ? factors[pair] : 1.0f;
    return 1.0f / (factor * powf(base, (float)(2 * pair) / (float)dim));
}

int spw_rope_frequencies(const struct spw_rope_config *rope, uint32_t rotary_dim,
                         uint64_t current_len, uint64_t max_positions, float *inv_freq,
                         float *attention_scaling)
{
    if (rotary_dim < 2 || rotary_dim % 2 || !max_positions ||
        (rope->kind == SPW_ROPE_DYNAMIC && rotary_dim == 2))
        return -EINVAL;
    float base = (float)rope->theta;
    if (rope->kind == SPW_ROPE_DYNAMIC)
        base = dynamic_base(rope, rotary_dim, current_len, max_positions);
    struct yarn_ramp ramp = {0};
    if (rope->kind == SPW_ROPE_YARN)
        ramp = yarn_ramp(rope, rotary_dim);
    for (uint32_t pair = 0; pair < rotary_dim / 2; pair++) {
        float frequency = plain_frequency(base, pair, rotary_dim);
        if (rope->kind == SPW_ROPE_PROPORTIONAL && pair >= rope->n_turned)
            frequency = 0;
        if (rope->kind == SPW_ROPE_LINEAR || rope->kind == SPW_ROPE_PROPORTIONAL)
            frequency /= (float)rope->factor;
        else if (rope->kind == SPW_ROPE_LLAMA3)
            frequency = llama3_frequency(rope, frequency);
        else if (rope->kind == SPW_ROPE_YARN)
            frequency = yarn_frequency(rope, ramp, pair, rotary_dim);
        else if (rope->kind == SPW_ROPE_LONG)
            frequency = long_frequency(rope, current_len, base, pair, rotary_dim);
        if (!isfinite(frequency))
            return -EINVAL;
        inv_freq[pair] = frequency;
    }
    bool scales = rope->kind == SPW_ROPE_YARN || rope->kind == SPW_ROPE_LONG;
    *attention_scaling = scales ? (float)rope->attention_factor : 1.0f;
    return 0;
}

uint64_t spw_rope_shared_until(const struct spw_rope_config *rope, uint64_t max_positions)
{
    return rope->kind == SPW_ROPE_LONG      ? rope->original_max_positions
           : rope->kind == SPW_ROPE_DYNAMIC ? max_positions
                                            : UINT64_MAX;
}

uint64_t spw_rope_table(const struct spw_rope_config *rope, uint64_t max_positions,
                        uint64_t n_tokens)
{
    const uint64_t shared_until = spw_rope_shared_until(rope, max_positions);
    if (n_tokens <= shared_until)
        return SPW_ROPE_SHARED;
    return rope->kind == SPW_ROPE_LONG ? shared_until + 1 : n_tokens;
}
