/* The fast product of quantized weights: quant/codes.h has the expression. Columns of y lie in
 * lanes; panels.h has the order of the work. For a group of a panel:
 *
 *   for each tile of rows, for each half: a += s * (d * S + m * M); blocks of 32: a += d s * S + m
 * * s M
 *
 * One to eight rows of x, for which reading memory takes most of the time: along_k.h,
 * side_by_side.h.
 */
#include "model/cpu/kernels.h"
#include "model/cpu/linear/panels.h"
#if SIMD_LANES == 16
#include "model/cpu/linear/along_k.h"
#elif SIMD_LANES == 8
#include "model/cpu/linear/side_by_side.h"
#endif

#if SIMD_LANES == 16
#define TILE_ROWS 6 /* x 2 vectors of columns: 12 integer sums and 12 of f32 */
#else
#define TILE_ROWS 3
#endif

/* One group of a few rows. */
struct tile {
    const struct spw_codes *x; /* of the first row */
    size_t groups;             /* from row to row */
    const struct columns *w;   /* [VECTORS] */
    float *sums, *y;           /* [rows][COLS]: of the partition, of the partitions before */
    bool first, last;          /* of the groups of a partition */
    bool begins;               /* the first partition */
    size_t blocks;             /* small ones */
    int offset;                /* of the codes in w */
};

/* A sum for each vector of each row. */
typedef i32v integers[TILE_ROWS][VECTORS];
typedef f32v numbers[TILE_ROWS][VECTORS];

/* Loops over the rows r, and the vectors of columns c, of a tile. They must be unrolled: a compiler
 * keeps the sums in registers only where every index is a constant. */
#define EACH_ROW _Pragma("GCC unroll 6") for (int r = 0; r < rows; r++)
#define EACH_SUM EACH_ROW _Pragma("GCC unroll 2") for (int c = 0; c < VECTORS; c++)

SIMD_FN const struct spw_codes *row_of(const struct tile *t, int r)
{
    return t->x + (size_t)r * t->groups;
}

/* The codes in w are t->offset too large. So the sum of products of a part is too large by offset
 * times the sum of the codes of x. This is the negative of that: sums begin with it. */
SIMD_FN void corrections(int rows, const int parts, const struct tile *t,
                         int32_t to[TILE_ROWS][SPW_BLOCK_PARTS])
{
    EACH_ROW
    for (int j = 0; j < parts; j += 8) {
        const struct spw_codes *x = row_of(t, r);
        eight sums;
        load_sums(parts == 8 ? x->sums32 : x->sums + j, &sums);
        sums *= -t->offset;
        memcpy(to[r] + j, &sums, sizeof sums);
    }
}

#if SIMD_PAIRS

/* How many sums of two products fit 16 bits, of at most eight: codes of x are at most 127. */
SIMD_FN size_t pairs_in_16_bits(enum spw_dtype type)
{
    size_t n = 8;
    while (n > 1 && n * 2 * 127 * (size_t)largest_code(type) > INT16_MAX)
        n /= 2;
    return n;
}

/* As add_products, of magnitudes and signs. gcc keeps all sums in registers where a product is
 * added at once. */
SIMD_FN void add_magnitudes(int rows, const struct tile *t, size_t first, const size_t fours,
                            const u32v scale[VECTORS], integers sums)
{
#pragma GCC unroll 8
    for (size_t j = 0; j < fours; j++) {
        const size_t i = first + j;
        const u32v w[VECTORS] = {simd_in_order(t->w[0].codes[i]), simd_in_order(t->w[1].codes[i])};
        EACH_ROW
        {
            const u32v x = simd_set1_bytes(row_of(t, r)->codes + 4 * i);
#pragma GCC unroll 2
            for (int c = 0; c < VECTORS; c++) {
                const i16v pairs = simd_pairs(w[c], x ^ t->w[c].signs[i]);
                const i32v sum = simd_dot_pairs(sums[r][c], (u32v)pairs, scale[c]);
                sums[r][c] = (i32v)simd_in_order((u32v)sum);
            }
        }
    }
}

/* Adds the products of the numbers of `fours` lanes of bytes. `scale`: their factor, as a pair. */
SIMD_FN void add_products(int rows, enum spw_dtype type, const struct tile *t, size_t first,
                          const size_t fours, const u32v scale[VECTORS], integers sums)
{
    const size_t most = pairs_in_16_bits(type), n = most < fours ? most : fours;
    if (has_signs(type)) {
        add_magnitudes(rows, t, first, fours, scale, sums);
        return;
    }
#pragma GCC unroll 8
    for (size_t begin = 0; begin < fours; begin += n) {
        i16v pairs[TILE_ROWS][VECTORS];
#pragma GCC unroll 8
        for (size_t j = 0; j < n; j++) {
            const size_t i = first + begin + j;
            const u32v w[VECTORS] = {t->w[0].codes[i], t->w[1].codes[i]};
            EACH_ROW
            {
                const u32v x = simd_set1_bytes(row_of(t, r)->codes + 4 * i);
#pragma GCC unroll 2
                for (int c = 0; c < VECTORS; c++) {
                    const i16v p = simd_pairs(w[c], x);
                    pairs[r][c] = (i16v)simd_in_order((u32v)(j ? pairs[r][c] + p : p));
                }
            }
        }
        EACH_SUM
        {
            const i32v sum = simd_dot_pairs(sums[r][c], (u32v)pairs[r][c], scale[c]);
            sums[r][c] = (i32v)simd_in_order((u32v)sum);
        }
    }
}

#else

/* Adds the products of the numbers of `fours` lanes of bytes. */
SIMD_FN void add_products(int rows, const struct tile *t, size_t first, const size_t fours,
                          integers sums)
{
#pragma GCC unroll 8
    for (size_t j = 0; j < fours; j++) {
        const size_t i = first + j;
        const u32v w[VECTORS] = {t->w[0].codes[i], t->w[1].codes[i]};
        EACH_ROW
        {
            const u32v x = simd_set1_bytes(row_of(t, r)->codes + 4 * i);
#pragma GCC unroll 2
            for (int c = 0; c < VECTORS; c++)
                sums[r][c] = simd_dot(sums[r][c], w[c], x);
        }
    }
}

#endif

/* Stores a; after the end of a partition y = y + a. */
SIMD_FN void store_sums(int rows, const struct tile *t, bool end, numbers a)
{
    if (end)
        EACH_SUM
        {
            float *y = t->y + r * COLS + c * SIMD_LANES;
            simd_store(y, (t->begins ? simd_set1(0) : simd_load(y)) + a[r][c]);
        }
    else
        EACH_SUM simd_store(t->sums + r * COLS + c * SIMD_LANES, a[r][c]);
}

/* a = fma(s, t, a) */
SIMD_FN void add_half(int rows, const struct tile *t, int half, numbers sums)
{
    if (t->first && half == 0)
        EACH_SUM sums[r][c] =
            simd_fused(simd_set1(row_of(t, r)->scales[half]), sums[r][c], simd_set1(0));
    else
        EACH_SUM sums[r][c] = simd_fused(simd_set1(row_of(t, r)->scales[half]), sums[r][c],
                                         simd_load(t->sums + r * COLS + c * SIMD_LANES));
    store_sums(rows, t, t->last && half + 1 == SPW_CODES_HALVES, sums);
}

/* Blocks of 32: a product with d, and the scale of x, for each. */
SIMD_FN void tile_small(int rows, enum spw_dtype type, const struct tile *t)
{
    const bool minima = has_minima(type), offset = !minima && code_offset(type) != 0;
    int32_t correction[TILE_ROWS][SPW_BLOCK_PARTS];
    float of_x[TILE_ROWS][SMALL_BLOCKS];
    numbers all = {0};
    if (offset)
        corrections(rows, SMALL_BLOCKS, t, correction);
    if (minima)
        EACH_ROW scaled_sums(row_of(t, r), of_x[r]);
    for (size_t b = 0; b < t->blocks; b++) {
        integers sums;
        EACH_SUM sums[r][c] = has_signs(type) ? t->w[c].negatives[b]
                              : offset        ? correction[r][b] + (i32v){0}
                                              : (i32v){0};
#if SIMD_PAIRS
        const u32v ones = simd_set1_u32(0x10001u), factor[VECTORS] = {ones, ones};
        add_products(rows, type, t, 8 * b, 8, factor, sums);
#else
        add_products(rows, t, 8 * b, 8, sums);
#endif
        EACH_ROW
        {
            const f32v scale = simd_set1(row_of(t, r)->block_scales[b]);
#pragma GCC unroll 2
            for (int c = 0; c < VECTORS; c++)
                all[r][c] =
                    simd_fused(t->w[c].scales.d[b] * scale, simd_from_i32(sums[r][c]), all[r][c]);
        }
        if (minima)
            EACH_SUM all[r][c] = simd_fused(t->w[c].scales.m[b], simd_set1(of_x[r][b]), all[r][c]);
    }
    if (!t->first)
        EACH_SUM all[r][c] = simd_load(t->sums + r * COLS + c * SIMD_LANES) + all[r][c];
    store_sums(rows, t, t->last, all);
}

/* d and m of half a block of 256. */
SIMD_FN void add_large(int rows, enum spw_dtype type, const struct tile *t, int half, numbers total)
{
    const int parts = SPW_CODES_GROUP / (int)part_of(type);
    numbers all;
    EACH_SUM
    {
        const struct scales *s = &t->w[c].scales;
        all[r][c] = simd_fused(s->d[0], total[r][c], simd_set1(0));
        if (has_minima(type)) {
            const i32v m = dot_with_sums(s->minima, row_of(t, r), parts, half);
            all[r][c] = simd_fused(s->m[0], simd_from_i32(m), all[r][c]);
        }
    }
    add_half(rows, t, half, all);
}

#if SIMD_PAIRS

/* One block of 256: the scales of its parts multiply the sums in 16 bits. */
SIMD_FN void tile_large(int rows, enum spw_dtype type, const struct tile *t)
{
    const size_t parts = SPW_CODES_GROUP / part_of(type), fours = FOURS / parts;
    size_t j = 0;
#pragma GCC unroll 2
    for (int half = 0; half < SPW_CODES_HALVES; half++) {
        integers total;
        EACH_SUM total[r][c] = has_signs(type) ? t->w[c].negatives[half] : (i32v){0};
        for (const size_t end = j + parts / 2; j < end; j++) {
            const u32v scale[VECTORS] = {(u32v)t->w[0].scales.parts[j],
                                         (u32v)t->w[1].scales.parts[j]};
            add_products(rows, type, t, fours * j, fours, scale, total);
        }
        numbers all;
        EACH_SUM
        {
            if (!has_minima(type) && code_offset(type) != 0)
                total[r][c] += dot_with_sums(t->w[c].scales.minima, row_of(t, r), (int)parts, half);
            all[r][c] = simd_from_i32(total[r][c]);
        }
        add_large(rows, type, t, half, all);
    }
}

#else

/* Whether sums of products and scales of half a block stay below 2^24, so that f32 holds them. */
SIMD_FN bool fits_f32(enum spw_dtype type)
{
    return SPW_FACTS(type).form == SPW_SCALES_6_6 &&
           SPW_CODES_HALF * largest_code(type) * 127 * 63 < 1 << 24;
}

/* One block of 256: the scales of its parts multiply the sums of products. In f32 that takes an
 * instruction less than in integers on Intel's processors, whose 32-bit products are two. */
SIMD_FN void tile_parts(int rows, enum spw_dtype type, const struct tile *t)
{
    const int parts = SPW_CODES_GROUP / (int)part_of(type);
    int32_t correction[TILE_ROWS][SPW_BLOCK_PARTS];
    int j = 0;
    if (!has_minima(type))
        corrections(rows, parts, t, correction);
#pragma GCC unroll 2
    for (int half = 0; half < SPW_CODES_HALVES; half++) {
        integers total = {0};
        numbers all = {0};
        for (const int end = j + parts / 2; j < end; j++) {
            integers sums;
            EACH_SUM sums[r][c] = has_minima(type) ? (i32v){0} : correction[r][j] + (i32v){0};
            add_products(rows, t, (size_t)(FOURS / parts * j), (size_t)(FOURS / parts), sums);
            EACH_SUM
            {
                const i32v scale = t->w[c].scales.parts[j];
                if (fits_f32(type))
                    all[r][c] =
                        simd_fused(simd_from_i32(scale), simd_from_i32(sums[r][c]), all[r][c]);
                else
                    total[r][c] += scale * sums[r][c];
            }
        }
        if (!fits_f32(type))
            EACH_SUM all[r][c] = simd_from_i32(total[r][c]);
        add_large(rows, type, t, half, all);
    }
}

/* One block of 256 whose codes have been multiplied by the scales of their parts. */
SIMD_FN void tile_whole(int rows, enum spw_dtype type, const struct tile *t)
{
    size_t i = 0;
#pragma GCC unroll 2
    for (int half = 0; half < SPW_CODES_HALVES; half++) {
        integers total = {0};
        for (const size_t end = i + FOURS / 2; i < end; i += 8)
            add_products(rows, t, i, 8, total);
        if (!has_minima(type))
            EACH_ROW
            {
                const int16_t *s = row_of(t, r)->sums32 + half * SMALL_BLOCKS / 2;
                const int32_t sum = s[0] + s[1] + s[2] + s[3];
                for (int c = 0; c < VECTORS; c++)
                    total[r][c] -= t->offset * sum;
            }
        numbers all;
        EACH_SUM all[r][c] = simd_from_i32(total[r][c]);
        add_large(rows, type, t, half, all);
    }
}

SIMD_FN void tile_large(int rows, enum spw_dtype type, const struct tile *t)
{
    if (is_scaled(type))
        tile_whole(rows, type, t);
    else
        tile_parts(rows, type, t);
}

#endif

/* The types with code of their own, and the type whose code does for another. */
#if SIMD_PAIRS
#define FORMS(F)                                                                                   \
    F(Q8_0) F(Q4_0) F(Q4_1) F(Q5_0) F(Q5_1) F(Q2_K) F(Q3_K) F(Q4_K) F(Q5_K) F(Q6_K) F(IQ4_XS)

static enum spw_dtype form_of(enum spw_dtype t)
{
    return t == SPW_DTYPE_IQ4_NL ? SPW_DTYPE_Q8_0 : t == SPW_DTYPE_MXFP4 ? SPW_DTYPE_Q5_0 : t;
}
#else
#define FORMS(F) F(Q4_0) F(Q4_1) F(Q2_K) F(Q3_K) F(Q4_K) F(Q5_K) F(Q6_K) F(IQ4_XS)

static enum spw_dtype form_of(enum spw_dtype t)
{
    return !is_small(t) ? t : has_minima(t) ? SPW_DTYPE_Q4_1 : SPW_DTYPE_Q4_0;
}
#endif

SIMD_FN void tile_form(const int rows, enum spw_dtype form, const struct tile *t)
{
    if (is_small(form))
        tile_small(rows, form, t);
    else
        tile_large(rows, form, t);
}

SIMD_FN void tile_rows(size_t rows, enum spw_dtype form, const struct tile *t)
{
    switch (rows) {
#define CASE(r)                                                                                    \
    case r:                                                                                        \
        tile_form(r, form, t);                                                                     \
        break
        CASE(1);
        CASE(2);
        CASE(3);
#if TILE_ROWS > 3
        CASE(4);
        CASE(5);
        CASE(6);
#endif
#undef CASE
    }
}

#define DEFINE(name)                                                                               \
    SIMD_APART void tile_##name(size_t rows, const struct tile *t)                                 \
    {                                                                                              \
        tile_rows(rows, SPW_DTYPE_##name, t);                                                      \
    }
FORMS(DEFINE)
#undef DEFINE

static void tile_run(enum spw_dtype form, size_t rows, const struct tile *t)
{
    switch (form) {
#define CASE(name)                                                                                 \
    case SPW_DTYPE_##name:                                                                         \
        tile_##name(rows, t);                                                                      \
        break;
        FORMS(CASE)
#undef CASE
    default:
        break;
    }
}

/* ---- tasks ---- */

/* All rows of the task, one group of a panel. */
static void multiply_panel(const struct work *w, size_t col, size_t group, size_t begin, size_t end)
{
    const struct spw_linear_args *a = w->a;
    const enum spw_dtype form = form_of(a->w_dtype);
    struct tile t = {.x = w->x + w->part.row * w->groups + group,
                     .groups = w->groups,
                     .w = w->panel,
                     .sums = w->sums,
                     .y = w->y,
                     .first = group == begin,
                     .last = group + 1 == end,
                     .begins = begin == 0,
                     .blocks = numbers_of(w, group) / SMALL,
                     .offset = panel_offset(a->w_dtype)};
    const size_t step = ROW_PARTS * w->ahead;
    size_t rows, ahead = fetched_by_rows(w, group);
    for (size_t row = w->part.row; row < w->part.row_end; row += rows) {
        rows = spw_linear_next_rows(w->part.row_end - row, TILE_ROWS);
        fetch_ahead(w, col, ahead, ahead + rows * step);
        ahead += rows * step;
        tile_run(form, rows, &t);
        t.x += rows * t.groups;
        t.sums += rows * COLS;
        t.y += rows * COLS;
    }
}

size_t SIMD_NAME(spw_linear_codes_workspace)(size_t k)
{
#if SIMD_LANES == 16
    return (size_t)spw_align_up(spw_max_u64(PANELS_BYTES, along_workspace(k)), 64);
#elif SIMD_LANES == 8
    return (size_t)spw_align_up(spw_max_u64(PANELS_BYTES, few_workspace(k)), 64);
#else
    (void)k;
    return PANELS_BYTES;
#endif
}

static uint8_t *space_of(const struct spw_linear_args *a, unsigned worker)
{
    return (uint8_t *)a->workspace + worker * SIMD_NAME(spw_linear_codes_workspace)(a->k);
}

void SIMD_NAME(spw_linear_codes_panels)(const struct spw_linear_args *a, size_t task,
                                        unsigned worker)
{
    run_panels(a, task, space_of(a, worker), multiply_panel);
}

/* Rows of x up to which rows of W side by side are faster than panels (measured, SPEED.md). With
 * AVX2 small blocks need sums across lanes for each row of x; a panel does not. */
SIMD_FN size_t few_rows(enum spw_dtype t)
{
    if (SIMD_LANES == 16)
        return part_of(t) == 16 ? 4 : SPW_LINEAR_FEW_ROWS;
    return largest_code(t) > (is_small(t) ? 127 : 7) ? SPW_LINEAR_FEW_ROWS : 4;
}

static void run(const void *args, size_t task, unsigned worker)
{
    const struct spw_linear_args *a = args;
#if SIMD_LANES == 16
    if (a->m == 1) {
        run_along(a, spw_linear_part(a, task), space_of(a, worker));
        return;
    }
    if (a->m <= few_rows(a->w_dtype)) {
        SIMD_NAME(spw_linear_codes_few)(a, task, worker);
        return;
    }
#elif SIMD_LANES == 8
    if (a->m <= few_rows(a->w_dtype)) {
        run_few(a, spw_linear_part(a, task), space_of(a, worker));
        return;
    }
#endif
    SIMD_NAME(spw_linear_codes_panels)(a, task, worker);
}

const struct spw_kernel SIMD_NAME(spw_linear_codes_kernel) = {
    .name = "linear_codes",
    .n_tasks = spw_linear_tasks,
    .run = run,
};
