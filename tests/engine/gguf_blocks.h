/* Random blocks of the quantized types, whose numbers have the size of weights. */
#ifndef SPW_TESTS_ENGINE_GGUF_BLOCKS_H
#define SPW_TESTS_ENGINE_GGUF_BLOCKS_H

#include "quant/type_facts.h"
#include "tests/check.h"

#include <math.h>
#include <string.h>

/* How large the numbers of a block are if d is 1 and all codes and scales are random: their mean is
 * moved to zero by m. */
struct gguf_block_kind {
    enum spw_dtype type;
    double size;   /* about the standard deviation */
    double center; /* m = -center d, or center d if the minimum is subtracted */
};

static const struct gguf_block_kind gguf_block_kinds[] = {
    {SPW_DTYPE_Q8_0, 74, 0},   {SPW_DTYPE_Q4_0, 4.6, 0},     {SPW_DTYPE_Q4_1, 4.6, -7.5},
    {SPW_DTYPE_Q5_0, 9.2, 0},  {SPW_DTYPE_Q5_1, 9.2, -15.5}, {SPW_DTYPE_Q2_K, 12, 1.5},
    {SPW_DTYPE_Q3_K, 42, 0},   {SPW_DTYPE_Q4_K, 220, 7.5},   {SPW_DTYPE_Q5_K, 440, 15.5},
    {SPW_DTYPE_Q6_K, 1360, 0}, {SPW_DTYPE_IQ4_NL, 70, 0},    {SPW_DTYPE_IQ4_XS, 1300, 0},
    {SPW_DTYPE_MXFP4, 3, 0},
};
enum { GGUF_BLOCK_KINDS = sizeof gguf_block_kinds / sizeof *gguf_block_kinds };

/* A type whose blocks fit rows of `cols` numbers, a multiple of 32. */
static inline enum spw_dtype gguf_draw_type(uint64_t cols, uint64_t *seed)
{
    if (cols % 32) {
        CHECK_MSG(false, "no type has blocks that fit its rows");
        return SPW_DTYPE_F32;
    }
    for (;;) {
        enum spw_dtype t = gguf_block_kinds[check_random(seed) % GGUF_BLOCK_KINDS].type;
        if (cols % spw_type_of(t).elements == 0)
            return t;
    }
}

/* A positive number as f16, cut. */
static inline uint16_t gguf_cut_f16(double x)
{
    int exponent;
    double m = frexp(x, &exponent); /* x = m 2^exponent, m in [0.5, 1) */
    if (exponent < -13)
        return (uint16_t)(x * 0x1p24);
    return (uint16_t)((exponent + 14) * 1024 + (long)(m * 2048) - 1024);
}

/* n numbers of a matrix with rows of `cols` numbers. */
static inline void gguf_draw_blocks(uint8_t *out, enum spw_dtype t, size_t n, uint64_t cols,
                                    uint64_t *seed)
{
    const struct spw_type type = spw_type_of(t);
    const struct spw_type_facts facts = SPW_FACTS(t);
    const struct gguf_block_kind *kind = gguf_block_kinds;
    while (kind->type != t)
        kind++;
    for (size_t i = 0; i < n / type.elements; i++, out += type.bytes) {
        const double u = (double)check_range(seed, 500, 1500) / 1000; /* blocks differ */
        const double d = u / sqrt((double)cols) / kind->size;
        for (uint32_t b = 0; b < type.bytes; b++)
            out[b] = (uint8_t)check_random(seed);
        if (facts.form == SPW_SCALE_POWER) {
            out[0] = (uint8_t)(127 + lrint(log2(d)));
            continue;
        }
        uint16_t half = gguf_cut_f16(d);
        memcpy(out + facts.d_at, &half, 2);
        half = (uint16_t)(gguf_cut_f16(d * fabs(kind->center)) | (kind->center < 0 ? 0x8000 : 0));
        if (facts.has_minima)
            memcpy(out + facts.d_at + 2, &half, 2);
    }
}

#endif
