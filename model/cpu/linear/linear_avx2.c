/* linear on AVX2 with FMA and F16C: a tile of 3 rows x 4 columns, 12 chains, which with three x and
 * one W are all sixteen registers. Everything is widened to f32 while it is loaded. */
#include "model/cpu/linear/linear.h"

#include <immintrin.h>

#define ISA avx2
#define LANES 8
#define TILE_ROWS 3
#define TILE_COLS 4

typedef __m256 vec;
typedef __m256 raw;

ALWAYS_INLINE size_t raw_channels(enum kind kind)
{
    (void)kind;
    return LANES;
}

ALWAYS_INLINE raw widen_bf16(__m128i v)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

ALWAYS_INLINE raw load_x(enum kind kind, const void *p)
{
    return kind == KIND_BF16 ? widen_bf16(_mm_loadu_si128(p)) : _mm256_loadu_ps(p);
}

ALWAYS_INLINE raw load_w(enum kind kind, const void *p)
{
    if (kind == KIND_F32_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128(p));
    return kind == KIND_F32 ? _mm256_loadu_ps(p) : widen_bf16(_mm_loadu_si128(p));
}

/* There are no masked loads of 16-bit channels: the few bytes go through a zeroed copy. */
ALWAYS_INLINE raw load_x_part(enum kind kind, const void *p, size_t count)
{
    char full[sizeof(raw)] = {0};
    memcpy(full, p, count * kind_x_bytes(kind));
    return load_x(kind, full);
}

ALWAYS_INLINE raw load_w_part(enum kind kind, const void *p, size_t count)
{
    char full[sizeof(raw)] = {0};
    memcpy(full, p, count * kind_w_bytes(kind));
    return load_w(kind, full);
}

ALWAYS_INLINE vec multiply_add(enum kind kind, vec acc, raw x, raw w)
{
    (void)kind;
    return _mm256_fmadd_ps(x, w, acc);
}

ALWAYS_INLINE vec vec_zero(void)
{
    return _mm256_setzero_ps();
}

ALWAYS_INLINE vec vec_load(const float *p)
{
    return _mm256_load_ps(p);
}

ALWAYS_INLINE void vec_store(float *p, vec v)
{
    _mm256_store_ps(p, v);
}

/* Neighbours, then neighbouring pairs, then the halves. */
ALWAYS_INLINE void vec_sums(vec a, vec b, vec c, vec d, float *out)
{
    __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
}

#include "model/cpu/linear/linear_tile.h"
