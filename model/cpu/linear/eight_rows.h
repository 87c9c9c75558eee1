/* The fast product of quantized weights with a few rows of x, with AVX2: eight rows of W side by
 * side.
 *
 * A task divides its part of W into eight pieces and walks a row of each. So a core reads eight
 * long streams, which its own prefetchers follow. A register has sixteen codes of row r in its low
 * half and sixteen of row r + 4 in its high half; sixteen codes of x, in both halves, multiply
 * them:
 *
 *   for each eight rows of W, for each group of 256 numbers
 *     unpack the scales, with a row in each lane
 *     for each r < 4, for each part: unpack its codes, multiply them          rows r and r + 4
 *     add what the lanes of each four have: a row of W in each lane; then t and a of quant/codes.h
 *
 * Bytes are not transposed, and codes of W are not stored. Scales of large blocks multiply the sums
 * of two products, so a large block has one sum for each row. For large blocks the codes of x are
 * stored twice, as a register needs them: an operand in memory takes no instruction of its own. */
#ifndef SPW_MODEL_CPU_LINEAR_EIGHT_ROWS_H
#define SPW_MODEL_CPU_LINEAR_EIGHT_ROWS_H

#include "base/simd_fours.h"
#include "model/cpu/linear/columns.h"
#include "model/cpu/linear/linear.h"

#include <stdatomic.h>

enum {
    FEW_ROWS = SPW_LINEAR_FEW_ROWS, /* of x */
    FEW_SUMS = 4,                   /* rows of x whose sums registers hold */
    PAIRS = 4,                      /* of rows of W */
    CODES = 8,                      /* registers of codes of a pair that are multiplied at once */
    PAGE = 4096,
    AHEAD = 512,    /* bytes from a group to what is fetched meanwhile */
    DISTANCE = 256, /* bytes: enough from stream to stream in a page */
};

/* Codes of a group of a row of x. Each sixteen of them lie here twice, as an instruction takes them
 * from memory. */
struct few_twice {
    int8_t codes[2 * SPW_CODES_GROUP];
};

struct few {
    const struct spw_linear_args *a;
    const struct spw_codes *codes; /* of rows of x, which are multiplied at once */
    size_t rows, groups, row_bytes;
    float *y;                /* [m][SPW_LINEAR_FEW_COLS] */
    struct few_twice *twice; /* [groups][rows], large blocks only */
    uint8_t *edge;           /* room for a group of the last rows of W */
};

/* A group of eight rows of W. Scales and minima are those of a large block. */
struct eight {
    struct packed p;
    f32v d, m;
    u32v scales[SPW_BLOCK_PARTS / 4][2]; /* int16, of four parts: rows 0, 1, 4 and 5, the others */
    i32v parts[SPW_BLOCK_PARTS];         /* in place of these, where sums do not fit 16 bits */
    u32v pairs[SPW_BLOCK_PARTS / 2];     /* int16, of two parts: minima, or scales */
};

/* A group of a few rows of x. */
struct few_x {
    const struct spw_codes *codes; /* of the first row */
    size_t groups;                 /* from row to row */
    const struct few_twice *twice; /* of each row */
};

/* Rows of x up to which this is faster than panels by columns (measured, SPEED.md). Small blocks
 * need sums across lanes for each row of x; a panel does not, and unpacks a block once. */
static size_t few_rows(enum spw_dtype t)
{
    return largest_code(t) > (is_small(t) ? 127 : 7) ? FEW_ROWS : FEW_SUMS;
}

/* Small blocks with more rows go in two sets. The second one reads W from the caches. */
static size_t rows_at_once(enum spw_dtype t, size_t m)
{
    return is_small(t) && m > FEW_SUMS ? (m + 1) / 2 : m;
}

SIMD_FN size_t few_workspace(size_t k)
{
    return FEW_ROWS * (SPW_LINEAR_FEW_COLS * sizeof(float) +
                       spw_codes_groups(k) * sizeof(struct few_twice)) +
           SIMD_LANES * 34 * SMALL_BLOCKS;
}

SIMD_FN const struct spw_codes *codes_of_row(const struct few_x *x, int r)
{
    return x->codes + (size_t)r * x->groups;
}

/* ---- codes ---- */

/* Moves bit `from` of each byte, and the bits after it, to bit `to`. The bits of `mask` stay. */
SIMD_FN u32v move_bits(u32v x, unsigned from, unsigned to, uint32_t mask)
{
    return (from < to ? x << (to - from) : x >> (from - to)) & mask << to;
}

/* The low or the high nibbles of sixteen bytes of both rows. */
SIMD_FN u32v nibbles_at(const uint8_t *p, size_t fours, bool high)
{
    const u32v x = simd_load_four(p, fours);
    return high ? high_nibbles(x) : low_nibbles(x);
}

/* Codes 16 i .. 16 i + 15 of part j, which has 32 codes, as an operand. `fours`: bytes from row r
 * to row r + 4. */
SIMD_FN u32v codes_of_32(enum spw_dtype t, const uint8_t *p, size_t fours, unsigned j, unsigned i)
{
    const uint8_t *block = p + (is_small(t) ? j * block_bytes(t) : 0);
    const uint8_t *low = block + SPW_FACTS(t).low_at, *high = block + SPW_FACTS(t).high_at;
    if (SPW_FACTS(t).low_bits == 8)
        return simd_load_four(low + 16 * i, fours) ^ (SIMD_DOT_OFFSET ? 0x80808080u : 0u);
    if (SPW_FACTS(t).run == 16)
        low += is_small(t) ? 0 : 16 * j;
    else
        low += 32 * (j / 2) + 16 * i;
    const u32v x = nibbles_at(low, fours, SPW_FACTS(t).run == 16 ? i : j % 2);
    if (has_high_bits(t, 1) && is_small(t))
        return x | simd_bytes_of_bits(simd_load_four(high, fours), 2 * (int)i, 0x10);
    if (has_high_bits(t, 1))
        return x | move_bits(simd_load_four(high + 16 * i, fours), j, 4, 0x01010101u);
    return values_of(t, x);
}

/* The same of part j, which has 16 codes. */
SIMD_FN u32v codes_of_16(enum spw_dtype t, const uint8_t *p, size_t fours, unsigned j)
{
    const unsigned half = j / 8, two = j % 8 / 2, i = j % 2;
    const unsigned at = 32 * half + 16 * i;
    const uint8_t *low = p + SPW_FACTS(t).low_at, *high = p + SPW_FACTS(t).high_at;
    if (SPW_FACTS(t).low_bits == 4)
        return nibbles_at(low + 64 * half + 32 * (two % 2) + 16 * i, fours, two / 2) |
               move_bits(simd_load_four(high + at, fours), 2 * two, 4, 0x03030303u);
    const u32v x = move_bits(simd_load_four(low + at, fours), 2 * two, 0, 0x03030303u);
    if (!has_high_bits(t, 1))
        return x;
    return x | move_bits(simd_load_four(high + 16 * i, fours), 4 * half + two, 2, 0x01010101u);
}

/* ---- fetches ---- */

/* The prefetchers of the core follow streams whose lines come in order (measured, SPEED.md). The
 * scales of some types are read first and lie last. So this asks for all lines of the group. */
SIMD_FN void fetch_group(enum spw_dtype t, const struct packed *p)
{
#pragma GCC unroll 8
    for (size_t l = 0; l < SIMD_LANES; l++)
#pragma GCC unroll 8
        for (size_t i = 0; i < group_bytes(t); i += LINE)
            __builtin_prefetch(p->at + l / 4 * p->fours + l % 4 * p->stride + i, 0, 3);
}

/* The prefetchers stop at the end of a page. So each part of the work on a group also asks for a
 * later group of one row or of two, which starts at p + AHEAD. */
SIMD_FN void fetch_row(enum spw_dtype t, const uint8_t *p)
{
#pragma GCC unroll 8
    for (size_t i = 0; i < group_bytes(t); i += LINE)
        __builtin_prefetch(p + AHEAD + i, 0, 3);
}

/* ---- products ---- */

/* Sixteen codes of x, in both halves: number i from x on, in codes or in few_twice. */
SIMD_FN u32v codes_of_x(enum spw_dtype t, const int8_t *x, size_t i)
{
    return is_small(t) ? simd_same_four(x + 16 * i) : (u32v)simd_load(x + i * sizeof(u32v));
}

/* Whether 16 bits hold sums of two products. The scale of a part then multiplies them and adds
 * them by one instruction or by two. */
SIMD_FN bool has_pairs(enum spw_dtype t)
{
    return SIMD_PAIRS || (!is_small(t) && largest_code(t) <= 127);
}

SIMD_FN i16v pairs_with(enum spw_dtype t, u32v w, u32v x)
{
#if SIMD_PAIRS
    return largest_code(t) > 127 ? simd_signed_pairs(w, x) : simd_pairs(w, x);
#else
    (void)t;
    return simd_pairs(w, x);
#endif
}

/* sum + the products of a part times `scale`: an int32, or an int16 twice. Small blocks: times
 * one. */
SIMD_FN i32v add_part(enum spw_dtype t, i32v sum, const u32v w[2], const int8_t *x, u32v scale)
{
    if (has_pairs(t)) {
        i16v pairs = pairs_with(t, w[0], codes_of_x(t, x, 0));
        if (part_of(t) == 32) {
            const i16v more = pairs_with(t, w[1], codes_of_x(t, x, 1));
            if (4 * largest_code(t) * 127 <= INT16_MAX)
                pairs += more;
            else
                sum = simd_dot_pairs(sum, (u32v)more, scale);
        }
        return simd_dot_pairs(sum, (u32v)pairs, scale);
    }
    i32v part = simd_dot((i32v){0}, w[0], codes_of_x(t, x, 0));
    part = simd_dot(part, w[1], codes_of_x(t, x, 1));
    return sum + (is_small(t) ? part : (i32v)scale * part);
}

/* Each block of a row of x has the sum of its codes. With minima this sum is used times the scale.
 * Without minima it takes the offset of the codes of W out of the integer sum of products. */
union of_blocks {
    int32_t integers[SMALL_BLOCKS];
    float numbers[SMALL_BLOCKS];
};

SIMD_FN void sums_of_blocks(enum spw_dtype t, const struct spw_codes *x, union of_blocks *to)
{
    for (int b = 0; b < SMALL_BLOCKS; b++)
        if (has_minima(t))
            to->numbers[b] = x->block_scales[b] * (float)x->sums32[b];
        else
            to->integers[b] = -code_offset(t) * x->sums32[b];
}

/* Block b of eight rows of W with each row of x: a row of W in each lane. */
SIMD_FN void multiply_block(enum spw_dtype t, const int rows, const struct packed *p, unsigned b,
                            const struct few_x *x, i32v to[FEW_ROWS])
{
    i32v sums[FEW_ROWS][PAIRS];
#pragma GCC unroll 4
    for (size_t i = 0; i < PAIRS; i++) {
        const uint8_t *at = p->at + i * p->stride;
        const u32v w[2] = {codes_of_32(t, at, p->fours, b, 0), codes_of_32(t, at, p->fours, b, 1)};
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            sums[r][i] = add_part(t, (i32v){0}, w, codes_of_row(x, r)->codes + SMALL * b,
                                  simd_set1_u32(0x10001u));
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        to[r] = simd_sums_of_fours(sums[r], 8 * largest_code(t) * 127);
}

/* a = fma(s, t, a) of quant/codes.h. */
SIMD_FN void add_half_of_few(const int rows, const struct few_x *x, unsigned half, f32v t[FEW_ROWS],
                             f32v a[FEW_ROWS])
{
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        a[r] = simd_fused(simd_set1(codes_of_row(x, r)->scales[half]), t[r], a[r]);
}

SIMD_FN void multiply_small(enum spw_dtype t, const int rows, const struct packed *p,
                            const struct few_x *x, f32v a[FEW_ROWS])
{
    const unsigned blocks = (unsigned)p->blocks;
    union of_blocks of_x[FEW_ROWS];
    f32v to[FEW_ROWS] = {0};
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        if (has_minima(t) || code_offset(t))
            sums_of_blocks(t, codes_of_row(x, r), &of_x[r]);
    for (unsigned b = 0; b < blocks; b++) {
        f32v d, m;
        i32v sums[FEW_ROWS];
        fetch_row(t, p->at + b % 4 * p->stride + b / 4 * p->fours);
        multiply_block(t, rows, p, b, x, sums);
        atomic_signal_fence(memory_order_seq_cst); /* codes are read before scales: SPEED.md */
        unpack_small_scale(t, p, b, &d, &m);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            if (!has_minima(t) && code_offset(t))
                sums[r] += of_x[r].integers[b];
            const f32v scale = simd_set1(codes_of_row(x, r)->block_scales[b]);
            to[r] = simd_fused(d * scale, simd_from_i32(sums[r]), to[r]);
            if (has_minima(t))
                to[r] = simd_fused(m, simd_set1(of_x[r].numbers[b]), to[r]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        a[r] += to[r];
}

/* Half of rows i and i + 4 of W with each row of x: `at_once` registers of codes of W after
 * another. Where `rows` is a constant, sums are in registers. */
SIMD_FN void multiply_pair(enum spw_dtype t, const int rows, const unsigned at_once,
                           const struct eight *w, unsigned half, size_t i, const struct few_x *x,
                           i32v sums[FEW_ROWS][PAIRS])
{
    const uint8_t *p = w->p.at + i * w->p.stride;
    const unsigned n = part_of(t) == 32 ? 2 : 1; /* registers of a part */
    const unsigned begin = half * SPW_CODES_HALF / 16, end = begin + SPW_CODES_HALF / 16;
#pragma GCC unroll 8
    for (unsigned first = begin; first < end; first += at_once) {
        u32v codes[CODES], scale[CODES];
#pragma GCC unroll 8
        for (unsigned c = 0; c < at_once; c++) {
            const unsigned j = (first + c) / n; /* the part */
            codes[c] =
                n == 1 ? codes_of_16(t, p, w->p.fours, j) : codes_of_32(t, p, w->p.fours, j, c % 2);
            scale[c] = has_pairs(t)
                           ? simd_word_of_four(w->scales[j / 4][i / 2], 4 * (i % 2) + j % 4)
                           : (u32v)simd_lane_of_four((f32v)w->parts[j], i);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            i32v sum = first > begin ? sums[r][i] : (i32v){0};
#pragma GCC unroll 8
            for (unsigned c = 0; c < at_once; c += n)
                sum = add_part(t, sum, codes + c, x->twice[r].codes + (first + c) * sizeof *codes,
                               scale[c]);
            sums[r][i] = sum;
        }
    }
}

/* Rows i and i + 4 of W with each row of x. */
SIMD_FN void multiply_both(enum spw_dtype t, const int rows, const unsigned at_once,
                           const struct eight *w, size_t i, const struct few_x *x,
                           i32v sums[SPW_CODES_HALVES][FEW_ROWS][PAIRS])
{
    fetch_row(t, w->p.at + i * w->p.stride);
    fetch_row(t, w->p.at + i * w->p.stride + w->p.fours);
#pragma GCC unroll 2
    for (unsigned half = 0; half < SPW_CODES_HALVES; half++)
        multiply_pair(t, rows, at_once, w, half, i, x, sums[half]);
}

SIMD_FN void multiply_large(enum spw_dtype t, const int rows, const struct eight *w,
                            const struct few_x *x, f32v a[FEW_ROWS])
{
    const int parts = SPW_CODES_GROUP / (int)part_of(t);
    i32v sums[SPW_CODES_HALVES][FEW_ROWS][PAIRS];
    const unsigned at_once = !__builtin_constant_p(rows) ? CODES : part_of(t) == 32 ? 2 : 1;
    if (__builtin_constant_p(rows) && rows == 1) { /* more rows would take 100 KB of code */
#pragma GCC unroll 4
        for (size_t i = 0; i < PAIRS; i++)
            multiply_both(t, rows, at_once, w, i, x, sums);
    } else
        for (size_t i = 0; i < PAIRS; i++)
            multiply_both(t, rows, at_once, w, i, x, sums);
#pragma GCC unroll 2
    for (unsigned half = 0; half < SPW_CODES_HALVES; half++) {
        f32v to[FEW_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            i32v sum = simd_sums_of_fours(sums[half][r], INT32_MAX / 4), more = {0};
            if (has_minima(t) || code_offset(t))
                more = dot_with_sums(w->pairs, codes_of_row(x, r), parts, (int)half);
            if (!has_minima(t))
                sum -= code_offset(t) * more;
            to[r] = simd_fused(w->d, simd_from_i32(sum), simd_set1(0));
            if (has_minima(t))
                to[r] = simd_fused(w->m, simd_from_i32(more), to[r]);
        }
        add_half_of_few(rows, x, half, to, a);
    }
}

SIMD_FN void multiply_rows(enum spw_dtype t, const int rows, const struct eight *w,
                           const struct few_x *x, f32v a[FEW_ROWS])
{
    if (is_small(t))
        multiply_small(t, rows, &w->p, x, a);
    else
        multiply_large(t, rows, w, x, a);
}

/* ---- rows of W ---- */

SIMD_FN void unpack_eight(enum spw_dtype t, struct eight *w)
{
    const size_t parts = SPW_CODES_GROUP / part_of(t);
    struct scale_bytes bytes;
    unpack_scale_bytes(t, &w->p, &w->d, &w->m, &bytes);
    for (size_t j = 0; j < parts / 4; j++)
        simd_widen_fours(bytes.scales[j], w->scales[j]);
    for (size_t j = 0; j < parts; j++)
        w->parts[j] = byte_of(bytes.scales[j / 4], j % 4);
    for (size_t j = 0; j < parts / 2; j++)
        w->pairs[j] = simd_widen_two((has_minima(t) ? bytes.minima : bytes.scales)[j / 2], j % 2);
}

/* Adds group g of rows first, first + step, ... of W to a. `n` of the eight exist. Where `rows` is
 * a constant, a is in registers. */
SIMD_FN void multiply_group(enum spw_dtype t, const int rows, const struct few *f, size_t first,
                            size_t step, size_t n, size_t g, f32v *a)
{
    const size_t begin = g * group_bytes(t);
    const size_t bytes = (size_t)spw_min_u64(f->row_bytes - begin, group_bytes(t));
    const struct few_x x = {f->codes + g, f->groups, f->twice + g * (size_t)rows};
    struct eight w;
    w.p = (struct packed){(const uint8_t *)f->a->w + first * f->row_bytes + begin,
                          step * f->row_bytes, 4 * step * f->row_bytes, bytes / block_bytes(t)};
    if (n < SIMD_LANES)
        copy_edge(&w.p, n, bytes, f->edge);
    fetch_group(t, &w.p);
    if (!is_small(t))
        unpack_eight(t, &w);
    multiply_rows(t, rows, &w, &x, a);
}

/* y of these rows: at y[at], y[at + step], ... */
SIMD_FN void run_eight(enum spw_dtype t, const int rows, const struct few *f, size_t first,
                       size_t step, size_t n, size_t at)
{
    f32v y[FEW_ROWS], a[FEW_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        y[r] = simd_set1(0);
    for (size_t partition = 0; partition < SPW_CODES_PARTITIONS; partition++) {
        const size_t end = spw_codes_partition(f->groups, partition + 1);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            a[r] = simd_set1(0);
        for (size_t g = spw_codes_partition(f->groups, partition); g < end; g++)
            multiply_group(t, rows, f, first, step, n, g, a);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            y[r] += a[r];
    }
    float lanes[SIMD_LANES];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        simd_store(lanes, y[r]);
        for (size_t l = 0; l < n; l++)
            f->y[(size_t)r * SPW_LINEAR_FEW_COLS + at + l * step] =
                lanes[l] == lanes[l] ? lanes[l] : NAN;
    }
}

SIMD_FN void run_sets(enum spw_dtype t, const struct few *f, size_t first, size_t step, size_t n,
                      size_t at)
{
    struct few set = *f;
    for (size_t row = 0; row < f->a->m; row += f->rows) {
        set.codes = f->codes + row * f->groups;
        set.rows = (size_t)spw_min_u64(f->rows, f->a->m - row);
        set.y = f->y + row * SPW_LINEAR_FEW_COLS;
        switch (set.rows) {
#define CASE(rows)                                                                                 \
    case rows:                                                                                     \
        run_eight(t, rows, &set, first, step, n, at);                                              \
        break
            CASE(1);
            CASE(2);
            CASE(3);
            CASE(4);
#undef CASE
        default:
            if (!is_small(t))
                run_eight(t, (int)set.rows, &set, first, step, n, at);
        }
    }
}

/* The least distance of two of the eight streams within a page. Streams that are near each other
 * there use the same sets of the caches. */
static size_t distance_of_streams(size_t stride)
{
    size_t least = PAGE;
    for (size_t i = 1; i < SIMD_LANES; i++) {
        const size_t at = i * stride % PAGE;
        least = (size_t)spw_min_u64(least, spw_min_u64(at, PAGE - at));
    }
    return least;
}

/* Rows of W from one stream to the next, for n rows: the most, n / 8, or up to a quarter less, so
 * that the streams are DISTANCE apart in a page. The rest of the rows needs eight new streams. */
static size_t best_step(size_t n, size_t row_bytes)
{
    const size_t most = n / SIMD_LANES;
    size_t best = most;
    for (size_t step = most; step > most - most / 4; step--) {
        if (distance_of_streams(best * row_bytes) >= DISTANCE)
            break;
        if (distance_of_streams(step * row_bytes) > distance_of_streams(best * row_bytes))
            best = step;
    }
    return best;
}

SIMD_FN void run_type(enum spw_dtype t, const struct few *f, size_t col, size_t n)
{
    size_t step;
    for (size_t at = 0; at < n; at += SIMD_LANES * step) {
        const size_t lanes = (size_t)spw_min_u64(n - at, SIMD_LANES);
        step = lanes < SIMD_LANES ? 1 : best_step(n - at, f->row_bytes);
        for (size_t i = 0; i < step; i++)
            run_sets(t, f, col + at + i, step, lanes, at + i);
    }
}

#define DEFINE(t, ...)                                                                             \
    SIMD_APART void run_##t(const struct few *f, size_t col, size_t n)                             \
    {                                                                                              \
        run_type(SPW_DTYPE_##t, f, col, n);                                                        \
    }
SPW_QUANTIZED_TYPES(DEFINE)
#undef DEFINE

static void write_twice(const struct few *f)
{
    for (size_t r = 0; r < f->rows; r++)
        for (size_t g = 0; g < f->groups; g++)
            for (size_t i = 0; i < SPW_CODES_GROUP / 16; i++) {
                const u32v twice = simd_same_four(f->codes[r * f->groups + g].codes + 16 * i);
                simd_store(f->twice[g * f->rows + r].codes + i * sizeof twice, (f32v)twice);
            }
}

static void run_few(const struct spw_linear_args *a, struct spw_linear_part part, uint8_t *space)
{
    struct few f = {.a = a,
                    .codes = a->codes,
                    .rows = rows_at_once(a->w_dtype, a->m),
                    .groups = spw_codes_groups(a->k),
                    .row_bytes = (size_t)spw_row_bytes(a->w_dtype, a->k),
                    .y = (float *)(void *)space};
    const size_t n = part.col_end - part.col;
    f.twice = (struct few_twice *)(void *)(f.y + FEW_ROWS * SPW_LINEAR_FEW_COLS);
    f.edge = (uint8_t *)(f.twice + a->m * f.groups);
    if (!is_small(a->w_dtype))
        write_twice(&f);
    switch (a->w_dtype) {
#define CASE(t, ...)                                                                               \
    case SPW_DTYPE_##t:                                                                            \
        run_##t(&f, part.col, n);                                                                  \
        break;
        SPW_QUANTIZED_TYPES(CASE)
#undef CASE
    default:
        break;
    }
    for (size_t r = 0; r < a->m; r++)
        spw_linear_store(a, r, part.col, f.y + r * SPW_LINEAR_FEW_COLS, n);
}

#endif
