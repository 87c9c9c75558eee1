/* The encoder of quant/codec.h.
 *
 * Numbers are divided by 2^24 when they are loaded: then sums of the largest f32 stay finite. This
 * is exact (a number that becomes 0 lies 2^24 below the least step). A vector holds positions where
 * K is encoded and channels where V is encoded, as in the exact tile. The two planes are written in
 * lanes of 4 bytes. Every sum has one order:
 *
 *   mean      sixteen chains over the blocks of 16 positions, folded 8, 4, 2, 1
 *   rotation  the stages of quant/hadamard.h
 *   code      t = x * (1 / step) + 128 in two roundings, clamped to [0, 255], truncated
 *
 * A number (of 8 heads of 128 channels, bf16, one Zen 5 core beside other work, 21 Nov 2026) takes
 * 0.45 ns with AVX-512, 0.6 with AVX2, 1.4 in plain C. */
#include <assert.h>
#include <float.h>

#include "base/simd.h"
#include "quant/codec.h"
#include "quant/hadamard.h"

enum {
    STRIPS = SPW_TILE_BLOCK / SIMD_LANES, /* of a block of positions */
    MOST_CHANNELS = 1024,
    /* A V row's padding, and the most that a strip's last vectors reach past its channels. */
    PAD = 16,
};

static const float SHRINK = 0x1p-24f, GROW = 0x1p24f;
static const int32_t INFINITE = 0x7f800000;

struct half {
    const char *exact;         /* this head's K or V in the exact tile */
    float *means;              /* K only */
    uint16_t *steps;           /* [groups][128] */
    unsigned char *high, *low; /* the planes; low is NULL where the format has none */
    uint32_t head_dim, block;  /* block: of the rotation */
};

/* ---- steps and codes ---- */

/* The step for magnitudes up to `most` (divided by 2^24, as bits), and the factor of a number. */
SIMD_FN u32v steps_of(i32v most, f32v *inverse)
{
    f32v step = (f32v)most * (GROW / 128), least = simd_set1(0x1p-100f);
    step = simd_max(least, step);
    u32v bits = ((u32v)step + 0xffffu) & 0xffff0000u;
    i32v some = most != 0;
    *inverse = (f32v)((i32v)(GROW / (f32v)bits) & some);
    return (bits >> 16) & (u32v)some;
}

SIMD_FN u32v codes_of(f32v x, f32v inverse)
{
    f32v t = simd_min(simd_set1(255.0f), x * inverse + 128.0f);
    return (u32v) __builtin_convertvector(simd_max(simd_set1(0.0f), t), i32v);
}

/* Two times four codes a lane, as n lanes of the high plane and of the low one. */
SIMD_FN void store_planes(const struct half *h, size_t at, uint32_t n, u32v first, u32v second)
{
    const uint32_t low_half = 0x0f0f0f0fu, high_half = 0xf0f0f0f0u;
    u32v high = (first >> 4 & low_half) | (second & high_half);
    u32v low = (first & low_half) | (second << 4 & high_half);
    size_t bytes = n < SIMD_LANES ? n * sizeof(uint32_t) : sizeof high;
    memcpy(h->high + at, &high, bytes);
    if (h->low)
        memcpy(h->low + at, &low, bytes);
}

/* ---- keys: lanes are positions ---- */

/* Channels c and c + 1 (c is even) of SIMD_LANES positions. */
SIMD_FN void load_keys(const struct half *h, uint32_t block, uint32_t strip, uint32_t c, f32v *even,
                       f32v *odd, enum spw_dtype t)
{
    size_t lane = (size_t)strip * SIMD_LANES, row = (size_t)block * h->head_dim + c;
    if (t != SPW_DTYPE_F32) {
        simd_load_pairs_as(h->exact + (row * SPW_TILE_BLOCK + lane * 2) * 2, even, odd, t);
        return;
    }
    *even = simd_load(h->exact + (row * SPW_TILE_BLOCK + lane) * 4);
    *odd = simd_load(h->exact + ((row + 1) * SPW_TILE_BLOCK + lane) * 4);
}

static float fold(float *sums)
{
    for (int n = SPW_TILE_BLOCK / 2; n; n /= 2)
        for (int l = 0; l < n; l++)
            sums[l] += sums[l + n];
    return sums[0];
}

/* The shrunk mean of every channel; false where K is not finite. */
SIMD_FN bool find_means(const struct half *h, float *means, enum spw_dtype t)
{
    const float part = SHRINK / SPW_TILE_TOKENS;
    float sums[2][SPW_TILE_BLOCK];
    i32v most = {0};
    for (uint32_t c = 0; c < h->head_dim; c += 2) {
        for (uint32_t strip = 0; strip < STRIPS; strip++) {
            f32v even = {0}, odd = {0}, x, y;
            for (uint32_t block = 0; block < SPW_TILE_TOKENS / SPW_TILE_BLOCK; block++) {
                load_keys(h, block, strip, c, &x, &y, t);
                most = simd_max_i32(most, simd_max_i32(simd_magnitude(x), simd_magnitude(y)));
                even += x * part;
                odd += y * part;
            }
            simd_store(sums[0] + strip * SIMD_LANES, even);
            simd_store(sums[1] + strip * SIMD_LANES, odd);
        }
        means[c] = fold(sums[0]);
        means[c + 1] = fold(sums[1]);
    }
    return simd_highest_i32(most) < INFINITE;
}

/* A rotated mean may exceed the largest f32 where all channels hold numbers near it. */
static void rotate_means(const struct half *h, float *means)
{
    const float most = FLT_MAX * SHRINK;
    spw_hadamard_rotate(means, h->head_dim, h->block);
    for (uint32_t c = 0; c < h->head_dim; c++) {
        means[c] = means[c] > most ? most : means[c] < -most ? -most : means[c];
        h->means[c] = means[c] * GROW;
    }
}

/* Lane by lane, over n vectors in blocks of `block`. */
SIMD_FN void rotate_across(f32v *x, uint32_t n, uint32_t block)
{
    for (uint32_t h = 1; h < block; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t c = i; c < i + h; c++) {
                f32v a = x[c], b = x[c + h];
                x[c] = a + b;
                x[c + h] = a - b;
            }
}

SIMD_FN void load_strip(const struct half *h, uint32_t block, uint32_t strip, const float *means,
                        f32v *x, enum spw_dtype t)
{
    const float factor = spw_hadamard_factor(h->block) * SHRINK;
    for (uint32_t c = 0; c < h->head_dim; c += 2) {
        load_keys(h, block, strip, c, &x[c], &x[c + 1], t);
        x[c] *= factor;
        x[c + 1] *= factor;
    }
    rotate_across(x, h->head_dim, h->block);
    for (uint32_t c = 0; c < h->head_dim; c++)
        x[c] -= means[c];
    for (uint32_t c = h->head_dim; c < spw_qtile_k_channels(h->head_dim); c++)
        x[c] = (f32v){0};
}

/* One strip of positions, from its exact channels to its two planes. x: scratch. */
SIMD_FN void encode_strip(const struct half *h, uint32_t block, uint32_t strip, const float *means,
                          f32v *x, enum spw_dtype t)
{
    uint32_t n = spw_qtile_k_channels(h->head_dim),
             at = block * SPW_TILE_BLOCK + strip * SIMD_LANES;
    load_strip(h, block, strip, means, x, t);
    for (uint32_t g = 0, c = 0; c < n; g++) {
        uint32_t end = c + SPW_QTILE_GROUP < n ? c + SPW_QTILE_GROUP : n;
        i32v most = {0};
        for (uint32_t i = c; i < end; i++)
            most = simd_max_i32(most, simd_magnitude(x[i]));
        f32v inverse;
        u16v steps = __builtin_convertvector(steps_of(most, &inverse), u16v);
        memcpy(h->steps + g * SPW_TILE_TOKENS + at, &steps, sizeof steps);
        for (; c < end; c += 8) {
            u32v four[2] = {{0}};
            for (uint32_t i = 0; i < 8; i++)
                four[i / 4] |= codes_of(x[c + i], inverse) << 8 * (i % 4);
            store_planes(h, spw_qtile_k_index(h->head_dim, at, c), SIMD_LANES, four[0], four[1]);
        }
    }
}

SIMD_FN bool encode_keys(const struct half *h, enum spw_dtype t)
{
    float means[MOST_CHANNELS];
    f32v x[MOST_CHANNELS];
    if (!find_means(h, means, t))
        return false;
    rotate_means(h, means);
    for (uint32_t block = 0; block < SPW_TILE_TOKENS / SPW_TILE_BLOCK; block++)
        for (uint32_t strip = 0; strip < STRIPS; strip++)
            encode_strip(h, block, strip, means, x, t);
    return true;
}

/* ---- values: lanes are channels ---- */

/* Positions j and j + 1 (j is even) of the n <= SIMD_LANES channels from c on; other lanes are 0.
 */
SIMD_FN void load_values(const struct half *h, uint32_t j, uint32_t c, uint32_t n, f32v *even,
                         f32v *odd, enum spw_dtype t)
{
    size_t at = ((size_t)(t == SPW_DTYPE_F32 ? j : j / 2) * h->head_dim + c) * 4;
    const char *p = h->exact + at, *q = p + (t == SPW_DTYPE_F32 ? (size_t)h->head_dim * 4 : 0);
    float staged[2][SIMD_LANES] = {{0}};
    if (n < SIMD_LANES) {
        p = memcpy(staged[0], p, n * sizeof(float));
        q = memcpy(staged[1], q, n * sizeof(float));
    }
    if (t != SPW_DTYPE_F32) {
        simd_load_pairs_as(p, even, odd, t);
        return;
    }
    *even = simd_load(p);
    *odd = simd_load(q);
}

/* An octet's positions, shrunk and multiplied by the rotation's factor; false where V is not
 * finite. rows: [8][stride vectors] */
SIMD_FN bool load_octet(const struct half *h, uint32_t octet, f32v *rows, uint32_t stride,
                        enum spw_dtype t)
{
    const float factor = spw_hadamard_factor(h->block) * SHRINK;
    i32v most = {0};
    for (uint32_t j = 0; j < SPW_QTILE_OCTET; j += 2)
        for (uint32_t c = 0; c < h->head_dim; c += SIMD_LANES) {
            uint32_t left = h->head_dim - c, n = left < SIMD_LANES ? left : SIMD_LANES;
            f32v x, y;
            load_values(h, octet * SPW_QTILE_OCTET + j, c, n, &x, &y, t);
            most = simd_max_i32(most, simd_max_i32(simd_magnitude(x), simd_magnitude(y)));
            rows[j * stride + c / SIMD_LANES] = x * factor;
            rows[(j + 1) * stride + c / SIMD_LANES] = y * factor;
        }
    return simd_highest_i32(most) < INFINITE;
}

/* The stage of distance h inside a register: lane l becomes x[l] + x[l ^ h], or x[l ^ h] - x[l]
 * where bit h of l is set. */
SIMD_FN f32v rotate_lanes(f32v x, int h)
{
    u32v sign = (u32v)((simd_iota() & (uint32_t)h) != 0) & 0x80000000u;
    return simd_swap(x, h) + (f32v)((u32v)x ^ sign);
}

/* All blocks of a row, whose padding is 0. */
SIMD_FN void rotate_row(f32v *row, uint32_t vectors, uint32_t block)
{
    for (uint32_t i = 0; i < vectors; i++)
#pragma GCC unroll 4
        for (int h = 1; h < SIMD_LANES; h *= 2)
            if ((uint32_t)h < block)
                row[i] = rotate_lanes(row[i], h);
    if (block > SIMD_LANES)
        rotate_across(row, vectors, block / SIMD_LANES);
}

/* The steps of a row's groups; inverse[] gets the factors of the numbers. */
SIMD_FN void row_steps(const struct half *h, uint32_t j, const f32v *row, uint32_t vectors,
                       float *inverse)
{
    const uint32_t wide = SPW_QTILE_GROUP / SIMD_LANES;
    for (uint32_t g = 0; g * wide < vectors; g++) {
        i32v most = {0};
        for (uint32_t i = g * wide; i < vectors && i < (g + 1) * wide; i++)
            most = simd_max_i32(most, simd_magnitude(row[i]));
        f32v each;
        i32v highest = (i32v){0} + simd_highest_i32(most);
        h->steps[g * SPW_TILE_TOKENS + j] = (uint16_t)steps_of(highest, &each)[0];
        inverse[g] = each[0];
    }
}

SIMD_FN void store_octet(const struct half *h, uint32_t octet, const f32v *rows, uint32_t stride,
                         float inverse[][MOST_CHANNELS / SPW_QTILE_GROUP])
{
    for (uint32_t c = 0; c < h->head_dim; c += SIMD_LANES) {
        uint32_t left = h->head_dim - c;
        size_t at = spw_qtile_v_index(h->head_dim, octet * SPW_QTILE_OCTET, c);
        u32v four[2] = {{0}};
        for (uint32_t j = 0; j < SPW_QTILE_OCTET; j++) {
            f32v factor = simd_set1(inverse[j][c / SPW_QTILE_GROUP]);
            four[j / 4] |= codes_of(rows[j * stride + c / SIMD_LANES], factor) << 8 * (j % 4);
        }
        store_planes(h, at, left, four[0], four[1]);
    }
}

SIMD_FN bool encode_values(const struct half *h, enum spw_dtype t)
{
    f32v rows[SPW_QTILE_OCTET * (MOST_CHANNELS + PAD) / SIMD_LANES];
    float inverse[SPW_QTILE_OCTET][MOST_CHANNELS / SPW_QTILE_GROUP];
    uint32_t vectors = (uint32_t)spw_div_up(h->head_dim, SIMD_LANES);
    for (uint32_t octet = 0; octet < SPW_TILE_TOKENS / SPW_QTILE_OCTET; octet++) {
        if (!load_octet(h, octet, rows, vectors, t))
            return false;
        for (uint32_t j = 0; j < SPW_QTILE_OCTET; j++) {
            rotate_row(rows + j * vectors, vectors, h->block);
            row_steps(h, octet * SPW_QTILE_OCTET + j, rows + j * vectors, vectors, inverse[j]);
        }
        store_octet(h, octet, rows, vectors, inverse);
    }
    return true;
}

/* ---- tasks: K of every head, then V of every head ---- */

static size_t encode_tasks(const void *args)
{
    const struct spw_codec_args *a = args;
    return (a->widths.v ? 2 : 1) * (size_t)a->n_kv_heads;
}

static struct half half_of(const struct spw_codec_args *a, uint32_t head, bool values)
{
    struct spw_qtile_head at = spw_qtile_locate(a->n_kv_heads, a->widths, head);
    const uint32_t width = values ? a->widths.v : a->widths.k;
    unsigned char *to = a->qtile;
    bool low = a->format == SPW_QFORMAT_INT8 || (a->format == SPW_QFORMAT_INT8_INT4 && !values);
    size_t exact = spw_tile_head_at(a->n_kv_heads, a->widths, a->dtype, head, values);
    struct half h = {.exact = (const char *)a->tile + exact, .head_dim = width};
    h.means = (float *)(to + at.k_means);
    h.steps = (uint16_t *)(to + (values ? at.v_steps : at.k_steps));
    h.high = to + (values ? at.v_high : at.k_high);
    h.low = low ? to + (values ? at.v_low : at.k_low) : NULL;
    h.block = values ? spw_hadamard_v_block(width) : spw_hadamard_k_block(width);
    return h;
}

SIMD_FN bool encode_half(const struct half *h, bool values, enum spw_dtype t)
{
    return values ? encode_values(h, t) : encode_keys(h, t);
}

static void encode_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_codec_args *a = args;
    bool values = task >= a->n_kv_heads, finite;
    struct half h = half_of(a, (uint32_t)(task % a->n_kv_heads), values);
    (void)worker;
    assert(h.head_dim % 2 == 0 && h.head_dim <= MOST_CHANNELS && a->format < SPW_QFORMAT_EXACT);
    if (!values) /* the padding of the means is part of the tile's bytes */
        memset(h.means, 0, spw_qtile_means_bytes(a->widths.k));
    if (a->dtype == SPW_DTYPE_F32)
        finite = encode_half(&h, values, SPW_DTYPE_F32);
    else if (a->dtype == SPW_DTYPE_F16)
        finite = encode_half(&h, values, SPW_DTYPE_F16);
    else
        finite = encode_half(&h, values, SPW_DTYPE_BF16);
    if (!finite)
        __atomic_store_n(a->not_finite, 1, __ATOMIC_RELAXED);
}

const struct spw_kernel SIMD_NAME(spw_codec_encode_kernel) = {"codec_encode", encode_tasks,
                                                              encode_run};
