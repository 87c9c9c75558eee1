/* The fast product of quantized weights with one row of x or two: lanes along a row of W. For
 * AVX-512; AVX2 is as fast by columns.
 *
 * A task walks panels of SIMD_LANES rows of W. For some groups of 256 numbers:
 *
 *   for each row of the panel, for each group
 *     unpack 256 codes into registers; multiply each row of x; keep eight sums     (an octet)
 *   for each group
 *     transpose the octets, so that a lane has a row of W; t, a and y of quant/codes.h
 *
 * So bytes are never transposed, and W is read once, row by row. Small blocks have a sum for each
 * block. Of a large block, whose scales have multiplied the sums, the eight are added. */
#ifndef SPW_MODEL_CPU_LINEAR_ALONG_K_H
#define SPW_MODEL_CPU_LINEAR_ALONG_K_H

#include "base/simd_octets.h"
#include "model/cpu/linear/columns.h"
#include "model/cpu/linear/linear.h"

#if defined(SIMD_OCTETS)

enum {
    FEW_ROWS = 2,    /* of x */
    FEW_GROUPS = 32, /* whose octets are kept */
    NV = SIMD_GROUP_VECTORS,
    FEW_AHEAD = 8 << 10,
    BLOCK_BYTES = 34, /* of a small block, at most */
};

/* For each group and row of W: sums of each row of x; d and m of small blocks, or minima of a large
 * block beside its d and m. */
struct few_sums {
    octet of_x[FEW_ROWS][FEW_GROUPS][SIMD_LANES];
    octet first[FEW_GROUPS][SIMD_LANES], second[FEW_GROUPS][SIMD_LANES];
    float d[FEW_GROUPS][SIMD_LANES], m[FEW_GROUPS][SIMD_LANES];
};

struct few {
    const struct spw_linear_args *a;
    const struct spw_codes *x; /* [m][groups] */
    size_t groups, row_bytes, group_bytes;
    struct few_sums *sums;
    const uint8_t *ahead; /* is fetched while a row is multiplied */
};

/* ---- codes of a row ---- */

/* Nibbles of small blocks: 16 codes in the low halves, the next 16 in the high halves. */
SIMD_FN u32v block_nibbles(const uint8_t *p, size_t stride)
{
    return low_nibbles(simd_twice16(p, stride) >>
                       (u32v){0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4});
}

/* Bit i of the word at p belongs to number i of a block: it becomes bit 4. */
SIMD_FN u32v fifth_bits(const uint8_t *p, size_t stride)
{
    uint32_t a, b;
    memcpy(&a, p, sizeof a);
    memcpy(&b, p + stride, sizeof b);
    return (u32v)_mm512_maskz_set1_epi8((uint64_t)b << 32 | a, 0x10);
}

/* Vector i of the codes of the group at p, as operands of simd_dot: codes plus code_offset. */
SIMD_FN u32v codes_along_k(enum spw_dtype t, const uint8_t *p, unsigned i)
{
    const unsigned part = 2 * i, half = part / 4, j = part % 4;
    u32v x;
    switch (t) {
    case SPW_DTYPE_Q8_0:
        x = simd_load32(p + 34 * part + 2, 34);
        return SIMD_DOT_OFFSET ? x ^ 0x80808080u : x;
    case SPW_DTYPE_Q4_0:
        return block_nibbles(p + 18 * part + 2, 18);
    case SPW_DTYPE_Q4_1:
        return block_nibbles(p + 20 * part + 4, 20);
    case SPW_DTYPE_Q5_0:
        return block_nibbles(p + 22 * part + 6, 22) | fifth_bits(p + 22 * part + 2, 22);
    case SPW_DTYPE_Q5_1:
        return block_nibbles(p + 24 * part + 8, 24) | fifth_bits(p + 24 * part + 4, 24);
    case SPW_DTYPE_IQ4_NL:
        return simd_lookup(iq4_values, block_nibbles(p + 18 * part + 2, 18));
    case SPW_DTYPE_MXFP4:
        return simd_lookup(mxfp4_values, block_nibbles(p + 17 * part + 1, 17));
    case SPW_DTYPE_IQ4_XS:
        return simd_lookup(iq4_values, block_nibbles(p + 8 + 16 * part, 16));
    case SPW_DTYPE_Q4_K:
        return low_nibbles(simd_shift_parts(simd_twice32(p + 16 + 32 * i), 0, 4));
    case SPW_DTYPE_Q5_K:
        x = low_nibbles(simd_shift_parts(simd_twice32(p + 48 + 32 * i), 0, 4));
        return x | (simd_shift_parts(simd_twice32(p + 16), part, 1) & 0x01010101u) << 4;
    case SPW_DTYPE_Q6_K:
        x = low_nibbles(simd_load32(p + 64 * half, 32) >> 2 * j);
        return x | (simd_shift_parts(simd_twice32(p + 128 + 32 * half), 2 * j, 2) & 0x03030303u)
                       << 4;
    case SPW_DTYPE_Q2_K:
        return simd_shift_parts(simd_twice32(p + 16 + 32 * half), 2 * j, 2) & 0x03030303u;
    case SPW_DTYPE_Q3_K:
        x = simd_shift_parts(simd_twice32(p + 32 + 32 * half), 2 * j, 2) & 0x03030303u;
        return x | (simd_shift_parts(simd_twice32(p), part, 1) & 0x01010101u) << 2;
    default:
        return (u32v){0};
    }
}

SIMD_FN i32v multiply(u32v w, const struct spw_codes *x, int i)
{
    return simd_dot((i32v){0}, w, (u32v)simd_load(x->codes + (size_t)i * sizeof(u32v)));
}

/* ---- a group of small blocks ---- */

/* Codes of at most 31: the sum of eight products with codes of x is below 2^15. */
SIMD_FN bool has_small_codes(enum spw_dtype t)
{
    return t != SPW_DTYPE_Q8_0 && t != SPW_DTYPE_IQ4_NL;
}

SIMD_FN octet scales_of_mxfp4(const uint8_t *p)
{
    octet e = {p[0], p[17], p[34], p[51], p[68], p[85], p[102], p[119]};
    octet subnormal = e < 2;
    return (subnormal & (0x200000 << (e & 1))) | (~subnormal & (e - 1) << 23); /* 2^(e - 128) */
}

SIMD_FN void sum_small(enum spw_dtype t, const struct few *f, const uint8_t *p, size_t group,
                       size_t g, size_t row)
{
    const size_t bytes = spw_type_of(t).bytes;
    struct few_sums *s = f->sums;
    u32v w[NV];
    i32v products[NV];
#pragma GCC unroll 4
    for (int i = 0; i < NV; i++)
        w[i] = codes_along_k(t, p, (unsigned)i);
    s->first[g][row] = t == SPW_DTYPE_MXFP4 ? scales_of_mxfp4(p) : simd_octet_of_f16(p, bytes);
    if (has_minima(t))
        s->second[g][row] = simd_octet_of_f16(p + 2, bytes);
    for (size_t r = 0; r < f->a->m; r++) {
        const struct spw_codes *x = f->x + r * f->groups + group;
#pragma GCC unroll 4
        for (int i = 0; i < NV; i++)
            products[i] = multiply(w[i], x, i);
        s->of_x[r][g][row] = simd_part_sums(products, has_small_codes(t));
    }
}

/* ---- a group that is one large block ---- */

SIMD_FN uint64_t join(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

/* Scales and minima of the 8 or 16 parts. */
SIMD_FN void read_large_scales(enum spw_dtype t, const uint8_t *p, octet scales[2], octet minima[2])
{
    const uint64_t nibbles = 0x0f0f0f0f0f0f0f0fu;
    uint32_t s[3];
    uint64_t wide[2];
    switch (t) {
    case SPW_DTYPE_Q4_K:
    case SPW_DTYPE_Q5_K:
        memcpy(s, p + 4, sizeof s);
        scales[0] = simd_octet_of_u8(
            join(s[0] & 0x3f3f3f3fu, (s[2] & 0x0f0f0f0fu) | (s[0] >> 2 & 0x30303030u)));
        minima[0] = simd_octet_of_u8(
            join(s[1] & 0x3f3f3f3fu, (s[2] >> 4 & 0x0f0f0f0fu) | (s[1] >> 2 & 0x30303030u)));
        break;
    case SPW_DTYPE_Q2_K:
        memcpy(wide, p, sizeof wide);
        for (int i = 0; i < 2; i++) {
            scales[i] = simd_octet_of_u8(wide[i] & nibbles);
            minima[i] = simd_octet_of_u8(wide[i] >> 4 & nibbles);
        }
        break;
    case SPW_DTYPE_Q3_K:
        memcpy(s, p + 96, sizeof s);
        for (int i = 0; i < 2; i++)
            scales[i] = simd_octet_of_u8(
                            (join(s[0], s[1]) >> 4 * i & nibbles) |
                            (join(s[2] >> 4 * i, s[2] >> (4 * i + 2)) & 0x0303030303030303u) << 4) -
                        32;
        break;
    case SPW_DTYPE_Q6_K:
        scales[0] = simd_octet_of_i8(p + 192);
        scales[1] = simd_octet_of_i8(p + 200);
        break;
    case SPW_DTYPE_IQ4_XS:
        memcpy(s, p, 2 * sizeof *s);
        scales[0] =
            ((((octet){0} + (int32_t)s[1]) >> (octet){0, 4, 8, 12, 16, 20, 24, 28}) & 15) - 32;
        scales[0] +=
            ((((octet){0} + (int32_t)(s[0] >> 16)) >> (octet){0, 2, 4, 6, 8, 10, 12, 14}) & 3) << 4;
        break;
    default:
        break;
    }
}

/* What the offset of the codes has added to the sums: it is taken away, times the scales. */
SIMD_FN octet without_offset(enum spw_dtype t, const octet scales[2], const struct spw_codes *x)
{
    const int32_t offset = -code_offset(t);
    if (part_of(t) == 32)
        return scales[0] * (simd_octet_of_i16(x->sums32) * offset);
    return scales[0] * (simd_octet_of_i16(x->sums) * offset) +
           scales[1] * (simd_octet_of_i16(x->sums + 8) * offset);
}

/* The offset of d in a large block; m follows d. */
SIMD_FN size_t place_of_d(enum spw_dtype t)
{
    return t == SPW_DTYPE_Q2_K ? 80 : t == SPW_DTYPE_Q3_K ? 108 : t == SPW_DTYPE_Q6_K ? 208 : 0;
}

SIMD_FN void sum_large(enum spw_dtype t, const struct few *f, const uint8_t *p, size_t group,
                       size_t g, size_t row)
{
    struct few_sums *s = f->sums;
    octet scales[2] = {{0}}, minima[2] = {{0}};
    u32v w[NV];
    i32v spread[NV];
    read_large_scales(t, p, scales, minima);
#pragma GCC unroll 4
    for (int i = 0; i < NV; i++) {
        w[i] = codes_along_k(t, p, (unsigned)i);
        spread[i] = part_of(t) == 32 ? simd_spread(scales[0], i) : simd_spread_halves(scales, i);
    }
    s->d[g][row] = simd_one_f16(p + place_of_d(t));
    if (has_minima(t)) {
        s->m[g][row] = -simd_one_f16(p + place_of_d(t) + 2);
        s->first[g][row] = minima[0];
        s->second[g][row] = minima[1];
    }
    for (size_t r = 0; r < f->a->m; r++) {
        const struct spw_codes *x = f->x + r * f->groups + group;
        i32v total = {0};
#pragma GCC unroll 4
        for (int i = 0; i < NV; i++)
            total += multiply(w[i], x, i) * spread[i];
        octet sums = simd_fold(total);
        if (code_offset(t))
            sums += without_offset(t, scales, x);
        s->of_x[r][g][row] = sums;
    }
}

/* ---- rows ---- */

/* Groups [begin, end) of a row of W. */
SIMD_FN void sum_row(enum spw_dtype t, const struct few *f, const uint8_t *row_at, size_t begin,
                     size_t end, size_t row)
{
    for (size_t group = begin; group < end; group++) {
        const uint8_t *p = row_at + group * f->group_bytes;
        uint8_t rest[BLOCK_BYTES * SMALL_BLOCKS];
        const size_t left = f->row_bytes - group * f->group_bytes;
        for (size_t i = 0; i < f->group_bytes; i += 64)
            __builtin_prefetch(f->ahead + (group - begin) * f->group_bytes + i, 0, 2);
        if (spw_type_of(t).elements == SMALL && left < f->group_bytes) {
            memset(rest, 0, sizeof rest);
            memcpy(rest, p, left);
            p = rest;
        }
        if (spw_type_of(t).elements == SMALL)
            sum_small(t, f, p, group, group - begin, row);
        else
            sum_large(t, f, p, group, group - begin, row);
    }
}

static void sum_any_row(const struct few *f, const uint8_t *row_at, size_t begin, size_t end,
                        size_t row)
{
    switch (f->a->w_dtype) {
#define CASE(t)                                                                                    \
    case SPW_DTYPE_##t:                                                                            \
        sum_row(SPW_DTYPE_##t, f, row_at, begin, end, row);                                        \
        break;
        CASE(Q8_0)
        CASE(Q4_0)
        CASE(Q4_1)
        CASE(Q5_0)
        CASE(Q5_1)
        CASE(Q2_K)
        CASE(Q3_K)
        CASE(Q4_K)
        CASE(Q5_K)
        CASE(Q6_K)
        CASE(IQ4_NL)
        CASE(IQ4_XS)
        CASE(MXFP4)
#undef CASE
    default:
        break;
    }
}

/* ---- the f32 part: a row of W in each lane ---- */

SIMD_FN f32v from_i32(u32v x)
{
    return simd_from_i32((i32v)x);
}

static void end_small(const struct few *f, size_t group, size_t g, f32v a[FEW_ROWS])
{
    const struct few_sums *s = f->sums;
    const size_t left = (size_t)spw_min_u64(f->a->k - group * SPW_CODES_GROUP, SPW_CODES_GROUP);
    const int offset =
        spw_type_of(f->a->w_dtype).elements == SMALL ? code_offset(f->a->w_dtype) : 0;
    const bool minima = has_minima(f->a->w_dtype);
    u32v d[8], m[8], sums[8];
    simd_transpose(s->first[g], d);
    if (minima)
        simd_transpose(s->second[g], m);
    for (size_t r = 0; r < f->a->m; r++) {
        const struct spw_codes *x = f->x + r * f->groups + group;
        f32v t = {0};
        simd_transpose(s->of_x[r][g], sums);
        for (size_t b = 0; b < left / SMALL; b++) {
            i32v sum = (i32v)sums[b] - offset * x->sums32[b];
            t = simd_fused((f32v)d[b], simd_from_i32(sum), t);
            if (minima)
                t = simd_fused((f32v)m[b], simd_set1(x->sums32[b]), t);
        }
        a[r] = simd_fused(simd_set1(x->scale), t, a[r]);
    }
}

static void end_large(const struct few *f, size_t group, size_t g, f32v a[FEW_ROWS])
{
    const struct few_sums *s = f->sums;
    const bool minima = has_minima(f->a->w_dtype), halves = part_of(f->a->w_dtype) == 16;
    u32v first[8], second[8], sums[8];
    if (minima)
        simd_transpose(s->first[g], first);
    if (minima && halves)
        simd_transpose(s->second[g], second);
    for (size_t r = 0; r < f->a->m; r++) {
        const struct spw_codes *x = f->x + r * f->groups + group;
        u32v total = {0};
        simd_transpose(s->of_x[r][g], sums);
        for (int i = 0; i < 8; i++)
            total += sums[i];
        f32v t = simd_fused(simd_load(s->d[g]), from_i32(total), simd_set1(0));
        if (minima) {
            i32v low = {0};
            for (int i = 0; i < 8; i++)
                low += (i32v)first[i] * (halves ? x->sums[i] : x->sums32[i]);
            for (int i = 0; halves && i < 8; i++)
                low += (i32v)second[i] * x->sums[8 + i];
            t = simd_fused(simd_load(s->m[g]), simd_from_i32(low), t);
        }
        a[r] = simd_fused(simd_set1(x->scale), t, a[r]);
    }
}

/* ---- panels ---- */

/* What is read after groups [begin, end) of some more rows: rows of this panel, then its next
 * groups, then the next panel. Some 8 KiB ahead, by measurement. */
static const uint8_t *ahead_of(const struct few *f, size_t col, size_t row, size_t begin,
                               size_t end)
{
    const uint8_t *w = f->a->w;
    const size_t later = spw_min_u64(FEW_AHEAD / ((end - begin) * f->group_bytes), SIMD_LANES);
    row += later;
    if (row >= SIMD_LANES && end < f->groups) {
        row -= SIMD_LANES;
        begin = end;
    } else if (row >= SIMD_LANES)
        begin = 0;
    if (col + row >= f->a->n)
        return w;
    return w + (col + row) * f->row_bytes + begin * f->group_bytes;
}

/* Groups [begin, end) of a panel of rows from `col` on. The rows after the last one are copies of
 * it. */
static void sum_panel(struct few *f, size_t col, size_t begin, size_t end)
{
    const uint8_t *w = f->a->w, *last = w + (f->a->n - 1) * f->row_bytes;
    for (size_t row = 0; row < SIMD_LANES; row++) {
        const uint8_t *at = w + (col + row) * f->row_bytes;
        f->ahead = ahead_of(f, col, row, begin, end);
        sum_any_row(f, at < last ? at : last, begin, end, row);
    }
}

static void run_few_panel(struct few *f, size_t col, size_t col_end)
{
    const bool small = spw_type_of(f->a->w_dtype).elements == SMALL;
    f32v y[FEW_ROWS] = {0}, a[FEW_ROWS] = {0};
    size_t end, slice = 0;
    for (size_t begin = 0; begin < f->groups; begin = end) {
        end = (size_t)spw_min_u64(begin + FEW_GROUPS, f->groups);
        sum_panel(f, col, begin, end);
        for (size_t group = begin; group < end; group++) {
            if (small)
                end_small(f, group, group - begin, a);
            else
                end_large(f, group, group - begin, a);
            while (slice < SPW_CODES_SLICES && spw_codes_slice(f->groups, slice + 1) <= group)
                slice++; /* without groups */
            if (spw_codes_slice(f->groups, slice + 1) > group + 1)
                continue;
            for (size_t r = 0; r < f->a->m; r++) {
                y[r] += a[r];
                a[r] = (f32v){0};
            }
        }
    }
    for (size_t r = 0; r < f->a->m; r++) {
        float sums[SIMD_LANES];
        simd_store(sums, y[r]);
        for (size_t i = 0; i < SIMD_LANES; i++)
            sums[i] = sums[i] == sums[i] ? sums[i] : NAN;
        spw_linear_store(f->a, r, col, sums, (size_t)spw_min_u64(col_end - col, SIMD_LANES));
    }
}

static void run_few(const struct spw_linear_args *a, struct spw_linear_part part, void *space)
{
    struct few f = {
        .a = a,
        .x = a->codes,
        .groups = spw_codes_groups(a->k),
        .row_bytes = (size_t)spw_row_bytes(a->w_dtype, a->k),
        .group_bytes = (size_t)spw_row_bytes(a->w_dtype, SPW_CODES_GROUP),
        .sums = space,
    };
    for (size_t col = part.col; col < part.col_end; col += SIMD_LANES)
        run_few_panel(&f, col, part.col_end);
}

#endif
#endif
