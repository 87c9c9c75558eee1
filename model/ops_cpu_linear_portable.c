/* linear in plain C: a tile of 2 rows x 4 columns of 8 lanes.
 *
 * A multiply-add is a rounded product and a rounded sum, the same on every machine. */
#include "model/ops_cpu_linear.h"

#define ISA portable
#define LANES 8
#define TILE_ROWS 2
#define TILE_COLS 4

struct lanes {
    float f[LANES];
};
#define vec struct lanes
#define raw struct lanes

ALWAYS_INLINE size_t raw_channels(enum kind kind)
{
    (void)kind;
    return LANES;
}

ALWAYS_INLINE float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* A f16 has 5 bits of exponent: scaling by 2^112 gives its f32, the subnormal ones included. */
ALWAYS_INLINE float widen_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
    float f = from_bits(rest) * from_bits(0x77800000);
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (rest >= 0x0f800000) /* infinity or NaN */
        bits = rest | 0x7f800000;
    return from_bits(bits | sign);
}

ALWAYS_INLINE raw widen_part(const char *p, size_t count, enum spw_dtype dtype)
{
    raw v = {{0}};
    for (size_t i = 0; i < count; i++) {
        uint16_t h;
        if (dtype == SPW_DTYPE_F32) {
            memcpy(&v.f[i], p + i * sizeof(float), sizeof(float));
        } else {
            memcpy(&h, p + i * sizeof h, sizeof h);
            v.f[i] = dtype == SPW_DTYPE_F16 ? widen_f16(h) : from_bits((uint32_t)h << 16);
        }
    }
    return v;
}

ALWAYS_INLINE raw load_x_part(enum kind kind, const void *p, size_t count)
{
    return widen_part(p, count, kind == KIND_BF16 ? SPW_DTYPE_BF16 : SPW_DTYPE_F32);
}

ALWAYS_INLINE raw load_w_part(enum kind kind, const void *p, size_t count)
{
    return widen_part(p, count,
                      kind == KIND_F32       ? SPW_DTYPE_F32
                      : kind == KIND_F32_F16 ? SPW_DTYPE_F16
                                             : SPW_DTYPE_BF16);
}

ALWAYS_INLINE raw load_x(enum kind kind, const void *p)
{
    return load_x_part(kind, p, LANES);
}

ALWAYS_INLINE raw load_w(enum kind kind, const void *p)
{
    return load_w_part(kind, p, LANES);
}

ALWAYS_INLINE vec multiply_add(enum kind kind, vec acc, raw x, raw w)
{
    (void)kind;
    for (int i = 0; i < LANES; i++)
        acc.f[i] += x.f[i] * w.f[i];
    return acc;
}

ALWAYS_INLINE vec vec_zero(void)
{
    return (vec){{0}};
}

ALWAYS_INLINE vec vec_load(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

ALWAYS_INLINE void vec_store(float *p, vec v)
{
    memcpy(p, &v, sizeof v);
}

ALWAYS_INLINE float lane_sum(vec v)
{
    return ((v.f[0] + v.f[4]) + (v.f[2] + v.f[6])) + ((v.f[1] + v.f[5]) + (v.f[3] + v.f[7]));
}

ALWAYS_INLINE void vec_sums(vec a, vec b, vec c, vec d, float *out)
{
    out[0] = lane_sum(a);
    out[1] = lane_sum(b);
    out[2] = lane_sum(c);
    out[3] = lane_sum(d);
}

#include "model/ops_cpu_linear_tile.h"
