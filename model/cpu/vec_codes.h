/* Codes of a quantized tile (quant/qtile.h) as vectors of f32. Lane operations, exact. */
#ifndef SPW_MODEL_CPU_VEC_CODES_H
#define SPW_MODEL_CPU_VEC_CODES_H

#include "model/cpu/vec.h"

/* Loads SIMD_LANES lanes of both fours of a plane's bytes, four codes in a lane: 8 bits each if
 * there is a low plane, else 4 bits. */
SIMD_FN void simd_load_codes(const char *high, const char *low, u32v four[2])
{
    const uint32_t halves = 0x0f0f0f0fu;
    u32v coarse = (u32v)simd_load(high);
    four[0] = coarse & halves;
    four[1] = coarse >> 4 & halves;
    if (low) {
        u32v fine = (u32v)simd_load(low);
        four[0] = four[0] << 4 | (fine & halves);
        four[1] = four[1] << 4 | (fine >> 4 & halves);
    }
}

/* A code as f32, in steps from the middle of the range: u - 127.5 if there is a low plane, else h -
 * 7.5, whose step is 16 times as large. */
SIMD_FN f32v simd_widen_code(const u32v four[2], int i, float middle)
{
    u32v code = four[i / 4] >> 8 * (i % 4) & 255u;
    return __builtin_convertvector((i32v)code, f32v) - middle;
}

/* VEC_LANES lanes of the eight codes. */
SIMD_FN void vec_load_codes(const char *high, const char *low, struct vec x[8])
{
    const float middle = low ? 127.5f : 7.5f;
    u32v four[VEC_REGISTERS][2];
    VEC_EACH(simd_load_codes(high + VEC_AT(i) * 4, low ? low + VEC_AT(i) * 4 : NULL, four[i]));
    for (int code = 0; code < 8; code++)
        VEC_EACH(x[code].v[i] = simd_widen_code(four[i], code, middle));
}

#endif
