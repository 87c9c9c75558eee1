/* The encoder of quant/codec.h, for the instruction set of the including file, which defines
 * KERNEL.
 *
 * Numbers are shrunk by 2^24 on the way in, which is exact (what falls below the least f32 lies
 * 2^24 below the least step), so that sums of the largest f32 stay finite. A vector holds positions
 * where K is encoded and channels where V is, as they lie in the exact tile; the two planes are
 * written a 4-byte lane at a time. Every sum has one order:
 *
 *   mean      sixteen chains over the blocks of 16 positions, folded 8, 4, 2, 1
 *   rotation  the stages of quant/hadamard.h
 *   code      fma-free: t = x * (1 / step) + 128, held in [0, 255], cut off to an integer
 *
 * A number (of 8 heads of 128 channels, bf16, one Zen 5 core beside other work, 21 Nov 2026) takes
 * 0.45 ns with AVX-512, 0.6 with AVX2, 1.4 in plain C. */
#include <assert.h>
#include <float.h>

#include "quant/codec.h"
#include "quant/codec_lanes.h"
#include "quant/hadamard.h"

enum {
    STRIPS = SPW_TILE_BLOCK / LANES, /* of a block of positions */
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

/* The step for magnitudes up to `most` (shrunk, as bits), and what a number is multiplied by. */
LANES_FN lanes_u steps_of(lanes_i most, lanes_f *inverse)
{
    lanes_f step = (lanes_f)most * (GROW / 128), least = lanes_set(0x1p-100f);
    step = lanes_select(step < least, least, step);
    lanes_u bits = ((lanes_u)step + 0xffffu) & 0xffff0000u;
    lanes_i some = most != 0;
    *inverse = (lanes_f)((lanes_i)(GROW / (lanes_f)bits) & some);
    return (bits >> 16) & (lanes_u)some;
}

LANES_FN lanes_u codes_of(lanes_f x, lanes_f inverse)
{
    lanes_f t = x * inverse + 128.0f, most = lanes_set(255.0f), none = lanes_set(0.0f);
    t = lanes_select(t > most, most, t);
    t = lanes_select(t < none, none, t);
    return (lanes_u) __builtin_convertvector(t, lanes_i);
}

/* Two times four codes a lane, as n lanes of the high plane and of the low one. */
LANES_FN void store_planes(const struct half *h, size_t at, uint32_t n, lanes_u first,
                           lanes_u second)
{
    const uint32_t low_half = 0x0f0f0f0fu, high_half = 0xf0f0f0f0u;
    lanes_u high = (first >> 4 & low_half) | (second & high_half);
    lanes_u low = (first & low_half) | (second << 4 & high_half);
    size_t bytes = n < LANES ? n * sizeof(uint32_t) : sizeof high;
    memcpy(h->high + at, &high, bytes);
    if (h->low)
        memcpy(h->low + at, &low, bytes);
}

/* ---- keys: lanes are positions ---- */

/* Channels c and c + 1 (c is even) of LANES positions. */
LANES_FN void load_keys(const struct half *h, uint32_t block, uint32_t strip, uint32_t c,
                        lanes_f *even, lanes_f *odd, enum spw_dtype t)
{
    size_t lane = (size_t)strip * LANES, row = (size_t)block * h->head_dim + c;
    if (t != SPW_DTYPE_F32) {
        lanes_load_pairs(h->exact + (row * SPW_TILE_BLOCK + lane * 2) * 2, even, odd, t);
        return;
    }
    *even = lanes_load(h->exact + (row * SPW_TILE_BLOCK + lane) * 4);
    *odd = lanes_load(h->exact + ((row + 1) * SPW_TILE_BLOCK + lane) * 4);
}

static float fold(float *sums)
{
    for (int n = SPW_TILE_BLOCK / 2; n; n /= 2)
        for (int l = 0; l < n; l++)
            sums[l] += sums[l + n];
    return sums[0];
}

/* The shrunk mean of every channel; false where K is not finite. */
LANES_FN bool find_means(const struct half *h, float *means, enum spw_dtype t)
{
    const float part = SHRINK / SPW_TILE_TOKENS;
    float sums[2][SPW_TILE_BLOCK];
    lanes_i most = {0};
    for (uint32_t c = 0; c < h->head_dim; c += 2) {
        for (uint32_t strip = 0; strip < STRIPS; strip++) {
            lanes_f even = {0}, odd = {0}, x, y;
            for (uint32_t block = 0; block < SPW_TILE_TOKENS / SPW_TILE_BLOCK; block++) {
                load_keys(h, block, strip, c, &x, &y, t);
                most = lanes_max(most, lanes_max(lanes_magnitude(x), lanes_magnitude(y)));
                even += x * part;
                odd += y * part;
            }
            lanes_store(sums[0] + strip * LANES, even);
            lanes_store(sums[1] + strip * LANES, odd);
        }
        means[c] = fold(sums[0]);
        means[c + 1] = fold(sums[1]);
    }
    return lanes_highest(most) < INFINITE;
}

/* Where every channel of a tile holds numbers near the largest, a rotated mean may be larger. */
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
LANES_FN void rotate_across(lanes_f *x, uint32_t n, uint32_t block)
{
    for (uint32_t h = 1; h < block; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t c = i; c < i + h; c++) {
                lanes_f a = x[c], b = x[c + h];
                x[c] = a + b;
                x[c + h] = a - b;
            }
}

LANES_FN void load_strip(const struct half *h, uint32_t block, uint32_t strip, const float *means,
                         lanes_f *x, enum spw_dtype t)
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
        x[c] = (lanes_f){0};
}

/* One strip of positions, from its exact channels to its two planes. x: scratch. */
LANES_FN void encode_strip(const struct half *h, uint32_t block, uint32_t strip, const float *means,
                           lanes_f *x, enum spw_dtype t)
{
    uint32_t n = spw_qtile_k_channels(h->head_dim), at = block * SPW_TILE_BLOCK + strip * LANES;
    load_strip(h, block, strip, means, x, t);
    for (uint32_t g = 0, c = 0; c < n; g++) {
        uint32_t end = c + SPW_QTILE_GROUP < n ? c + SPW_QTILE_GROUP : n;
        lanes_i most = {0};
        for (uint32_t i = c; i < end; i++)
            most = lanes_max(most, lanes_magnitude(x[i]));
        lanes_f inverse;
        lanes_h steps = __builtin_convertvector(steps_of(most, &inverse), lanes_h);
        memcpy(h->steps + g * SPW_TILE_TOKENS + at, &steps, sizeof steps);
        for (; c < end; c += 8) {
            lanes_u four[2] = {{0}};
            for (uint32_t i = 0; i < 8; i++)
                four[i / 4] |= codes_of(x[c + i], inverse) << 8 * (i % 4);
            store_planes(h, spw_qtile_k_index(h->head_dim, at, c), LANES, four[0], four[1]);
        }
    }
}

LANES_FN bool encode_keys(const struct half *h, enum spw_dtype t)
{
    float means[MOST_CHANNELS];
    lanes_f x[MOST_CHANNELS];
    if (!find_means(h, means, t))
        return false;
    rotate_means(h, means);
    for (uint32_t block = 0; block < SPW_TILE_TOKENS / SPW_TILE_BLOCK; block++)
        for (uint32_t strip = 0; strip < STRIPS; strip++)
            encode_strip(h, block, strip, means, x, t);
    return true;
}

/* ---- values: lanes are channels ---- */

/* Positions j and j + 1 (j is even) of the n <= LANES channels from c on; other lanes are 0. */
LANES_FN void load_values(const struct half *h, uint32_t j, uint32_t c, uint32_t n, lanes_f *even,
                          lanes_f *odd, enum spw_dtype t)
{
    size_t at = ((size_t)(t == SPW_DTYPE_F32 ? j : j / 2) * h->head_dim + c) * 4;
    const char *p = h->exact + at, *q = p + (t == SPW_DTYPE_F32 ? (size_t)h->head_dim * 4 : 0);
    float staged[2][LANES] = {{0}};
    if (n < LANES) {
        p = memcpy(staged[0], p, n * sizeof(float));
        q = memcpy(staged[1], q, n * sizeof(float));
    }
    if (t != SPW_DTYPE_F32) {
        lanes_load_pairs(p, even, odd, t);
        return;
    }
    *even = lanes_load(p);
    *odd = lanes_load(q);
}

/* An octet's positions, shrunk and multiplied by the rotation's factor; false where V is not
 * finite. rows: [8][stride vectors] */
LANES_FN bool load_octet(const struct half *h, uint32_t octet, lanes_f *rows, uint32_t stride,
                         enum spw_dtype t)
{
    const float factor = spw_hadamard_factor(h->block) * SHRINK;
    lanes_i most = {0};
    for (uint32_t j = 0; j < SPW_QTILE_OCTET; j += 2)
        for (uint32_t c = 0; c < h->head_dim; c += LANES) {
            uint32_t left = h->head_dim - c, n = left < LANES ? left : LANES;
            lanes_f x, y;
            load_values(h, octet * SPW_QTILE_OCTET + j, c, n, &x, &y, t);
            most = lanes_max(most, lanes_max(lanes_magnitude(x), lanes_magnitude(y)));
            rows[j * stride + c / LANES] = x * factor;
            rows[(j + 1) * stride + c / LANES] = y * factor;
        }
    return lanes_highest(most) < INFINITE;
}

/* All blocks of a row, whose padding is 0. */
LANES_FN void rotate_row(lanes_f *row, uint32_t vectors, uint32_t block)
{
    for (uint32_t i = 0; i < vectors; i++)
        row[i] = lanes_rotate(row[i], block);
    if (block > LANES)
        rotate_across(row, vectors, block / LANES);
}

/* The steps of a row's groups; rows[...] keeps the numbers, inverse[] what they are multiplied by.
 */
LANES_FN void row_steps(const struct half *h, uint32_t j, const lanes_f *row, uint32_t vectors,
                        float *inverse)
{
    const uint32_t wide = SPW_QTILE_GROUP / LANES;
    for (uint32_t g = 0; g * wide < vectors; g++) {
        lanes_i most = {0};
        for (uint32_t i = g * wide; i < vectors && i < (g + 1) * wide; i++)
            most = lanes_max(most, lanes_magnitude(row[i]));
        lanes_f each;
        lanes_i highest = (lanes_i){0} + lanes_highest(most);
        h->steps[g * SPW_TILE_TOKENS + j] = (uint16_t)steps_of(highest, &each)[0];
        inverse[g] = each[0];
    }
}

LANES_FN void store_octet(const struct half *h, uint32_t octet, const lanes_f *rows,
                          uint32_t stride, float inverse[][MOST_CHANNELS / SPW_QTILE_GROUP])
{
    for (uint32_t c = 0; c < h->head_dim; c += LANES) {
        uint32_t left = h->head_dim - c;
        size_t at = spw_qtile_v_index(h->head_dim, octet * SPW_QTILE_OCTET, c);
        lanes_u four[2] = {{0}};
        for (uint32_t j = 0; j < SPW_QTILE_OCTET; j++) {
            lanes_f factor = lanes_set(inverse[j][c / SPW_QTILE_GROUP]);
            four[j / 4] |= codes_of(rows[j * stride + c / LANES], factor) << 8 * (j % 4);
        }
        store_planes(h, at, left, four[0], four[1]);
    }
}

LANES_FN bool encode_values(const struct half *h, enum spw_dtype t)
{
    lanes_f rows[SPW_QTILE_OCTET * (MOST_CHANNELS + PAD) / LANES];
    float inverse[SPW_QTILE_OCTET][MOST_CHANNELS / SPW_QTILE_GROUP];
    uint32_t vectors = (uint32_t)spw_div_up(h->head_dim, LANES);
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
    return 2 * (size_t)((const struct spw_codec_args *)args)->n_kv_heads;
}

static struct half half_of(const struct spw_codec_args *a, uint32_t head, bool values)
{
    struct spw_qtile_head at = spw_qtile_locate(a->n_kv_heads, a->head_dim, head);
    unsigned char *to = a->qtile;
    bool low = a->format == SPW_QFORMAT_INT8 || (a->format == SPW_QFORMAT_INT8_INT4 && !values);
    size_t exact =
        ((values ? a->n_kv_heads : 0) + head) * spw_tile_head_bytes(a->head_dim, a->dtype);
    struct half h = {.exact = (const char *)a->tile + exact, .head_dim = a->head_dim};
    h.means = (float *)(to + at.k_means);
    h.steps = (uint16_t *)(to + (values ? at.v_steps : at.k_steps));
    h.high = to + (values ? at.v_high : at.k_high);
    h.low = low ? to + (values ? at.v_low : at.k_low) : NULL;
    h.block = values ? spw_hadamard_v_block(a->head_dim) : spw_hadamard_k_block(a->head_dim);
    return h;
}

LANES_FN bool encode_half(const struct half *h, bool values, enum spw_dtype t)
{
    return values ? encode_values(h, t) : encode_keys(h, t);
}

static void encode_run(const void *args, size_t task, unsigned worker)
{
    const struct spw_codec_args *a = args;
    bool values = task >= a->n_kv_heads, finite;
    struct half h = half_of(a, (uint32_t)(task % a->n_kv_heads), values);
    (void)worker;
    assert(a->head_dim % 2 == 0 && a->head_dim <= MOST_CHANNELS && a->format < SPW_QFORMAT_EXACT);
    if (!values) /* the padding of the means is part of the tile's bytes */
        memset(h.means, 0, spw_qtile_means_bytes(a->head_dim));
    if (a->dtype == SPW_DTYPE_F32)
        finite = encode_half(&h, values, SPW_DTYPE_F32);
    else if (a->dtype == SPW_DTYPE_F16)
        finite = encode_half(&h, values, SPW_DTYPE_F16);
    else
        finite = encode_half(&h, values, SPW_DTYPE_BF16);
    if (!finite)
        __atomic_store_n(a->not_finite, 1, __ATOMIC_RELAXED);
}

const struct spw_kernel KERNEL(codec_encode) = {"codec_encode", encode_tasks, encode_run};
