/* linear on AVX-512: a tile of 6 rows x 4 columns, 24 chains. Everything is widened to f32 while it
 * is loaded. */
#include "model/cpu/linear/linear_avx512.h"

#define ISA avx512
#define LANES 16
#define TILE_ROWS 6
#define TILE_COLS 4

typedef __m512 vec;
typedef __m512 raw;

ALWAYS_INLINE size_t raw_channels(enum kind kind)
{
    (void)kind;
    return LANES;
}

ALWAYS_INLINE raw load_x(enum kind kind, const void *p)
{
    return kind == KIND_BF16 ? load_bf16(p) : load_f32(p);
}

ALWAYS_INLINE raw load_w(enum kind kind, const void *p)
{
    if (kind == KIND_F32_F16)
        return load_f16(p);
    return kind == KIND_F32 ? load_f32(p) : load_bf16(p);
}

ALWAYS_INLINE raw load_x_part(enum kind kind, const void *p, size_t count)
{
    return kind == KIND_BF16 ? widen_bf16(load_16bit_part(p, count)) : load_f32_part(p, count);
}

ALWAYS_INLINE raw load_w_part(enum kind kind, const void *p, size_t count)
{
    if (kind == KIND_F32_F16)
        return _mm512_cvtph_ps(load_16bit_part(p, count));
    return kind == KIND_F32 ? load_f32_part(p, count) : widen_bf16(load_16bit_part(p, count));
}

ALWAYS_INLINE vec multiply_add(enum kind kind, vec acc, raw x, raw w)
{
    (void)kind;
    return _mm512_fmadd_ps(x, w, acc);
}

ALWAYS_INLINE vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

ALWAYS_INLINE vec vec_load(const float *p)
{
    return _mm512_load_ps(p);
}

ALWAYS_INLINE void vec_store(float *p, vec v)
{
    _mm512_store_ps(p, v);
}

ALWAYS_INLINE void vec_sums(vec a, vec b, vec c, vec d, float *out)
{
    sums_f32x16(a, b, c, d, out);
}

#include "model/cpu/linear/linear_tile.h"
