/* Codes of a quantized tile (quant/qtile.h) as vectors of f32. Lane operations, exact. */
#ifndef SPW_MODEL_CPU_VEC_CODES_H
#define SPW_MODEL_CPU_VEC_CODES_H

#include "model/cpu/vec.h"

#if defined(__AVX512F__)
enum { CODE_LANES = 16 };
#elif defined(__AVX2__)
enum { CODE_LANES = 8 };
#else
enum { CODE_LANES = 4 };
#endif

typedef float codes_f __attribute__((vector_size(4 * CODE_LANES)));
typedef int32_t codes_i __attribute__((vector_size(4 * CODE_LANES)));
typedef uint32_t codes_u __attribute__((vector_size(4 * CODE_LANES)));

/* CODE_LANES lanes times the two fours of a plane's bytes, four codes in a lane: 8 bits each where
 * there is a low plane, else 4. */
VEC_FN void codes_load(const char *high, const char *low, codes_u four[2])
{
    const uint32_t halves = 0x0f0f0f0fu;
    codes_u coarse, fine;
    memcpy(&coarse, high, sizeof coarse);
    four[0] = coarse & halves;
    four[1] = coarse >> 4 & halves;
    if (low) {
        memcpy(&fine, low, sizeof fine);
        four[0] = four[0] << 4 | (fine & halves);
        four[1] = four[1] << 4 | (fine >> 4 & halves);
    }
}

/* Sixteen lanes of them, one by one, in steps from the middle of the range: u - 127.5 where there
 * is a low plane, else h - 7.5, whose step is 16 times as wide. */
VEC_FN void vec_load_codes(const char *high, const char *low, struct vec x[8])
{
    const float middle = low ? 127.5f : 7.5f;
    for (size_t at = 0; at < VEC_LANES * 4; at += sizeof(codes_u)) {
        codes_u four[2];
        codes_load(high + at, low ? low + at : NULL, four);
        for (int i = 0; i < 8; i++) {
            codes_u code = four[i / 4] >> 8 * (i % 4) & 255u;
            codes_f y = __builtin_convertvector((codes_i)code, codes_f) - middle;
            memcpy((char *)&x[i] + at, &y, sizeof y);
        }
    }
}

#endif
