/* linear in plain C: a tile of 2 rows x 4 columns of 8 lanes.
 *
 * A multiply-add is a rounded product and a rounded sum, the same on every machine. */
#include "model/cpu/linear/linear.h"

#define ISA portable
#define LANES 8
#define TILE_ROWS 2
#define TILE_COLS 4

/* Vectors of four are what every 64-bit machine has; the compiler splits them where it has not. */
typedef float f32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef uint16_t u16x4 __attribute__((vector_size(8)));

struct lanes {
    f32x4 low, high;
};
#define vec struct lanes
#define raw struct lanes

ALWAYS_INLINE size_t raw_channels(enum kind kind)
{
    (void)kind;
    return LANES;
}

/* A f16 has 5 bits of exponent: scaling by 2^112 gives its f32, the subnormal ones included; what
 * was infinite or a NaN gets the largest exponent. */
ALWAYS_INLINE f32x4 widen_f16(u32x4 h)
{
    const u32x4 rest = (h & 0x7fff) << 13, infinite = (u32x4)(rest >= 0x0f800000) & 0x7f800000;
    const f32x4 scaled = (f32x4)rest * 0x1p112f;
    return (f32x4)((u32x4)scaled | infinite | (h & 0x8000) << 16);
}

ALWAYS_INLINE f32x4 widen(const char *p, enum spw_dtype dtype)
{
    f32x4 f;
    u16x4 h;
    if (dtype == SPW_DTYPE_F32) {
        memcpy(&f, p, sizeof f);
        return f;
    }
    memcpy(&h, p, sizeof h);
    u32x4 wide = __builtin_convertvector(h, u32x4);
    return dtype == SPW_DTYPE_F16 ? widen_f16(wide) : (f32x4)(wide << 16);
}

ALWAYS_INLINE raw widen_both(const char *p, enum spw_dtype dtype)
{
    return (raw){widen(p, dtype), widen(p + 4 * spw_dtype_bytes(dtype), dtype)};
}

ALWAYS_INLINE enum spw_dtype x_dtype(enum kind kind)
{
    return kind == KIND_BF16 ? SPW_DTYPE_BF16 : SPW_DTYPE_F32;
}

ALWAYS_INLINE enum spw_dtype w_dtype(enum kind kind)
{
    return kind == KIND_F32 ? SPW_DTYPE_F32 : kind == KIND_F32_F16 ? SPW_DTYPE_F16 : SPW_DTYPE_BF16;
}

ALWAYS_INLINE raw load_x(enum kind kind, const void *p)
{
    return widen_both(p, x_dtype(kind));
}

ALWAYS_INLINE raw load_w(enum kind kind, const void *p)
{
    return widen_both(p, w_dtype(kind));
}

/* The few channels go through a zeroed copy. */
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
    return (vec){acc.low + x.low * w.low, acc.high + x.high * w.high};
}

ALWAYS_INLINE vec vec_zero(void)
{
    return (vec){{0}, {0}};
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
    const f32x4 four = v.low + v.high;
    return (four[0] + four[2]) + (four[1] + four[3]);
}

ALWAYS_INLINE void vec_sums(vec a, vec b, vec c, vec d, float *out)
{
    out[0] = lane_sum(a);
    out[1] = lane_sum(b);
    out[2] = lane_sum(c);
    out[3] = lane_sum(d);
}

#include "model/cpu/linear/linear_tile.h"
