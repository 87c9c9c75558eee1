/* The products of the linear kernel: what tiles.h (many rows) and thin.h (few rows) share.
 *
 * Each output y[row][col] is ONE chain of vector accumulators along k: lane l adds the products of
 * channels l, l + VEC_LANES, l + 2 VEC_LANES, ... in that order, and at the end the lanes are added
 * in a fixed tree, then the bias. Numbers are widened to f32. Where there is a dot product of bf16,
 * a lane takes a pair of channels of bf16 x bf16 in place of one channel. The tile says how many
 * such chains run side by side, to share loads and to hide the latency of a multiply-add. So the
 * tile, the number of rows and the division into tasks do not change a result. A partial last
 * vector is filled up with zeros. */
#ifndef SPW_MODEL_CPU_LINEAR_CHAINS_H
#define SPW_MODEL_CPU_LINEAR_CHAINS_H

#if defined(__AVX512F__)
#define VEC_LANES 16
#define TILE_ROWS 6 /* x 4 columns: 24 chains */
#elif defined(__AVX2__)
#define VEC_LANES 8
#define TILE_ROWS 3 /* 12 chains, which with three x and one W are all sixteen registers */
#else
#define VEC_LANES 8
#define TILE_ROWS 2
#endif
#define TILE_COLS 4

#include "model/cpu/kernels.h"
#include "model/cpu/linear/linear.h"
#include "model/cpu/vec.h"

/* One task. */
struct work {
    const struct spw_linear_args *a;
    struct spw_linear_part part;
    enum kind kind;
    bool is_intel; /* with a dot product of bf16: a processor on which it is slow */
    float *workspace;
};

/* Whether a lane takes a pair of channels. */
SIMD_FN bool takes_pairs(enum kind kind)
{
    return SIMD_DOT_BF16 && kind == KIND_BF16;
}

/* Channels of a step: those of one vector. */
SIMD_FN size_t step_channels(enum kind kind)
{
    return takes_pairs(kind) ? 2 * VEC_LANES : VEC_LANES;
}

/* The channels of a step, in the form of the product. `part`: only these first ones, then zeros; 0
 * means all. */
SIMD_FN struct vec load(enum kind kind, enum spw_dtype t, const char *p, size_t part)
{
    char full[SIMD_PART_BYTES];
    if (part)
        p = simd_copy_part(full, p, part * spw_dtype_bytes(t));
    return takes_pairs(kind) ? vec_load(p) : vec_load_full_as(p, t);
}

SIMD_FN struct vec multiply_add(enum kind kind, struct vec acc, struct vec x, struct vec w)
{
#if SIMD_DOT_BF16
    if (takes_pairs(kind))
        return (struct vec){{simd_dot_bf16(acc.v[0], (u32v)x.v[0], (u32v)w.v[0])}};
#endif
    (void)kind;
    return vec_fma(x, w, acc);
}

#endif
