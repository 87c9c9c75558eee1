/* The fast product of quantized weights on AMX: quant/codes.h has the expression, panels.h the
 * order of the work. Intel's AVX-512 kernel takes fewer than 96 rows of x.
 *
 * tdpbssd multiplies A[16][64] with B[16 fours][16][4]. A is x, 16 rows of codes as they lie in
 * memory. B is a vector of columns of the panel, as unpack_columns makes it:
 *
 *     C[16 rows of x][16 columns] += x[16][64 codes] * panel[16 fours][16 columns][4]
 *
 * So lanes are columns, as in the AVX-512 kernel, and C goes through the L1 cache to the same f32
 * operations. Every tile of C must be stored, loaded and converted, so few are better:
 *
 * - Blocks of 32: a tile for each block, of products with half of the depth.
 * - Blocks of 256: a tile for 128 numbers. Codes of the panel are multiplied by the scales of their
 *   parts. In Q2_K and Q3_K the products fit a byte; other types have two tiles, of the low and of
 *   the high bytes of the products.
 *
 * The tiles of a half are multiplied before the f32 operations of the half before: neither waits
 * for the other.
 *
 * Tested on an emulation of the tiles (tests/unit/kernels/emulated_codes.c), never measured: there
 * was no processor with AMX. The estimate: on a processor of this kind whose AMX is hidden (Emerald
 * Rapids, 2026-11-27, one thread, 384 rows, k = 2,048) this source ran with loads and stores of the
 * same bytes in place of those of tiles, and without products. Cycles for 16 rows, 16 columns, 128
 * numbers; products of tiles take 16 cycles each. The gain: one after the other, and side by side.
 *
 *     type                          AVX-512 VNNI   without products   products   gain
 *     Q8_0 Q4_0 Q5_0 IQ4_NL MXFP4   440            240                64         1.45 .. 1.85
 *     Q4_1 Q5_1                     455            295                64         1.25 .. 1.55
 *     Q2_K                          415            165                32         2.1 .. 2.5
 *     Q3_K                          405            150                32         2.2 .. 2.7
 *     Q4_K Q5_K                     460            207                64         1.7 .. 2.2
 *     IQ4_XS                        455            194                64         1.75 .. 2.35
 *     Q6_K                          555            196                64         2.1 .. 2.8
 *
 * With 96 rows 1.07 .. 1.25 (Q4_1, Q5_1) and 1.2 .. 2.2 (others). With fewer the gain ends, because
 * unpacking takes as long for few rows as for many. */
#include "model/cpu/amx.h"
#include "model/cpu/kernels.h"
#include "model/cpu/linear/panels.h"

enum {
    MANY_ROWS = 96, /* of x */
    HALF_FOURS = FOURS / SPW_CODES_HALVES,
    HALF_BLOCKS = SMALL_BLOCKS / SPW_CODES_HALVES,
};

/* Tiles of C, for each vector of columns: of each small block, or of low and of high bytes. */
typedef i32v tiles[VECTORS][HALF_BLOCKS][AMX_TILE];

/* The rows of the task with a group of the panel. */
struct rows {
    const struct spw_codes *x; /* of the first row */
    size_t groups;             /* from row to row */
    size_t n, of_tile;
    const struct columns *w; /* [VECTORS] */
    u32v (*high)[FOURS];     /* [VECTORS]: codes times scales are 256 * high + low */
    float *sums, *y;         /* [n][COLS]: of the partition, of the partitions before */
    bool first, last;        /* of the groups of a partition */
    bool begins;             /* the first partition */
    const struct work *work;
    size_t col, ahead, bytes_ahead; /* of the next panel: from where on, for each row */
};

/* ---- operands ---- */

/* The offset of unsigned codes goes. Blocks after the end of a row have no d and no m. */
static void make_signed(enum spw_dtype t, size_t blocks, struct columns *w)
{
    const uint32_t offset = (uint32_t)code_offset(t);
    const u8v offsets = (u8v)simd_set1_u32(offset * 0x01010101u);
    for (size_t i = 0; offset && i < FOURS; i++)
        w->codes[i] = (u32v)((u8v)w->codes[i] - offsets);
    for (size_t b = blocks; b < SMALL_BLOCKS; b++)
        w->scales.d[b] = w->scales.m[b] = simd_set1(0);
}

/* Products with the other sign fit int8: they are -128 .. 124. */
static void negate_scaled(enum spw_dtype t, struct columns *w)
{
    const u8v offset = (u8v)simd_set1_u32((uint32_t)panel_offset(t) * 0x01010101u);
    for (size_t i = 0; i < FOURS; i++)
        w->codes[i] = (u32v)(offset - (u8v)w->codes[i]);
    w->scales.d[0] = -w->scales.d[0];
}

/* Products are within 4096 of 0: low bytes have no sign. */
static void multiply_codes(enum spw_dtype t, struct columns *w, u32v high[FOURS])
{
    const size_t parts = SPW_CODES_GROUP / part_of(t);
    const __mmask64 odd_bytes = 0xaaaaaaaaaaaaaaaau;
    for (size_t j = 0; j < parts; j++) {
        const i32v part = w->scales.parts[j], none = part * code_offset(t);
        const u32v scale = both(part & 0xff, part & 0xff);
        const __m512i less = (__m512i)both(none, none);
        for (size_t i = j * FOURS / parts; i < (j + 1) * FOURS / parts; i++) {
            const __m512i codes = (__m512i)w->codes[i];
            __m512i even = _mm512_maddubs_epi16(codes, (__m512i)scale);
            __m512i odd = _mm512_maddubs_epi16(codes, (__m512i)(scale << 8));
            even = _mm512_sub_epi16(even, less);
            odd = _mm512_sub_epi16(odd, less);
            w->codes[i] = (u32v)_mm512_mask_blend_epi8(odd_bytes, even, _mm512_slli_epi16(odd, 8));
            high[i] = (u32v)_mm512_mask_blend_epi8(odd_bytes, _mm512_srli_epi16(even, 8), odd);
        }
    }
}

static void prepare(enum spw_dtype t, size_t blocks, struct columns *w, u32v high[FOURS])
{
    if (is_small(t))
        make_signed(t, blocks, w);
    else if (!is_scaled(t))
        multiply_codes(t, w, high);
    else if (code_offset(t))
        negate_scaled(t, w);
}

/* ---- tiles ---- */

/* Tiles 0 - 3 are C, 4 and 5 x, 6 and 7 the two vectors of the panel. */
static void configure(enum spw_dtype t, size_t rows)
{
    struct amx_config config = {.palette = 1};
    for (size_t i = 0; i < 8; i++) {
        config.rows[i] = (uint8_t)rows;
        config.row_bytes[i] = sizeof(i32v);
    }
    for (size_t i = 0; i < 2; i++) {
        config.row_bytes[4 + i] = is_small(t) ? SMALL : AMX_TILE_BYTES;
        config.rows[6 + i] = (uint8_t)(config.row_bytes[4 + i] / 4);
    }
    amx_configure(&config);
}

/* Fours of both vectors. */
#define LOAD_FOURS(vector_0, vector_1, i)                                                          \
    do {                                                                                           \
        _tile_loadd(6, (vector_0) + (i), sizeof(u32v));                                            \
        _tile_loadd(7, (vector_1) + (i), sizeof(u32v));                                            \
    } while (0)

/* Two blocks. */
SIMD_FN void small_tiles(const int8_t *x, size_t x_bytes, const struct columns *w, size_t i,
                         i32v to[VECTORS][HALF_BLOCKS][AMX_TILE], size_t b)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, x, x_bytes);
    LOAD_FOURS(w[0].codes, w[1].codes, i);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_loadd(5, x + SMALL, x_bytes);
    LOAD_FOURS(w[0].codes, w[1].codes, i + SMALL / 4);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
    _tile_stored(0, to[0][b], sizeof(i32v));
    _tile_stored(1, to[1][b], sizeof(i32v));
    _tile_stored(2, to[0][b + 1], sizeof(i32v));
    _tile_stored(3, to[1][b + 1], sizeof(i32v));
}

SIMD_FN void large_tiles(bool two, const int8_t *x, size_t x_bytes, const struct columns *w,
                         u32v (*high)[FOURS], size_t i, i32v to[VECTORS][HALF_BLOCKS][AMX_TILE])
{
    const size_t next = i + AMX_TILE;
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(4, x, x_bytes);
    _tile_loadd(5, x + AMX_TILE_BYTES, x_bytes);
    LOAD_FOURS(w[0].codes, w[1].codes, i);
    if (two) {
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        LOAD_FOURS(w[0].codes, w[1].codes, next);
        _tile_dpbsud(0, 5, 6);
        _tile_dpbsud(1, 5, 7);
        _tile_zero(2);
        _tile_zero(3);
        LOAD_FOURS(high[0], high[1], i);
        _tile_dpbssd(2, 4, 6);
        _tile_dpbssd(3, 4, 7);
        LOAD_FOURS(high[0], high[1], next);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
        _tile_stored(2, to[0][1], sizeof(i32v));
        _tile_stored(3, to[1][1], sizeof(i32v));
    } else {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        LOAD_FOURS(w[0].codes, w[1].codes, next);
        _tile_dpbssd(0, 5, 6);
        _tile_dpbssd(1, 5, 7);
    }
    _tile_stored(0, to[0][0], sizeof(i32v));
    _tile_stored(1, to[1][0], sizeof(i32v));
}

#undef LOAD_FOURS

/* The first row of a tile. The last tile is full, too: it has rows of the tile before. */
SIMD_FN size_t first_row(const struct rows *rows, size_t tile)
{
    return (size_t)spw_min_u64(tile * AMX_TILE, rows->n - rows->of_tile);
}

/* Whether codes times scales have high bytes. */
SIMD_FN bool has_high(enum spw_dtype form)
{
    return !is_small(form) && !is_scaled(form);
}

SIMD_FN void multiply_half(enum spw_dtype form, const struct rows *rows, size_t tile,
                           const size_t half, tiles to)
{
    const size_t x_bytes = rows->groups * sizeof *rows->x;
    const int8_t *x = rows->x[first_row(rows, tile) * rows->groups].codes + half * SPW_CODES_HALF;
    amx_memory_barrier();
    if (is_small(form))
        for (size_t b = 0; b < HALF_BLOCKS; b += 2)
            small_tiles(x + b * SMALL, x_bytes, rows->w, half * HALF_FOURS + b * SMALL / 4, to, b);
    else
        large_tiles(has_high(form), x, x_bytes, rows->w, rows->high, half * HALF_FOURS, to);
    amx_memory_barrier();
}

/* ---- the f32 part: a row, a vector of columns ---- */

/* What multiplies the sums of a half, in registers: stores of sums might change memory. */
struct factors {
    f32v d[HALF_BLOCKS], m[HALF_BLOCKS]; /* of each block; of the one block */
    u32v minima[HALF_BLOCKS];            /* large blocks: of two parts each, as int16 */
};

/* Numbers of `minima`. */
SIMD_FN size_t pairs_of(enum spw_dtype form)
{
    return is_small(form) || !has_minima(form) ? 0 : SPW_CODES_HALF / part_of(form) / 2;
}

SIMD_FN void load_factors(enum spw_dtype form, const struct scales *s, const size_t half,
                          struct factors *to)
{
    const size_t n = is_small(form) ? HALF_BLOCKS : 1, from = is_small(form) ? half * n : 0;
    for (size_t i = 0; i < n; i++)
        to->d[i] = s->d[from + i];
    for (size_t i = 0; i < n && has_minima(form); i++)
        to->m[i] = s->m[from + i];
    for (size_t i = 0; i < pairs_of(form); i++)
        to->minima[i] = s->minima[half * pairs_of(form) + i];
}

/* t of quant/codes.h after the blocks of a half. */
SIMD_FN f32v small_blocks(enum spw_dtype form, const struct factors *f, const float *scales_of_x,
                          const float *sums_of_x, i32v sums[HALF_BLOCKS][AMX_TILE], size_t row,
                          f32v t)
{
#pragma GCC unroll 4
    for (size_t i = 0; i < HALF_BLOCKS; i++) {
        t = simd_fused(f->d[i] * simd_set1(scales_of_x[i]), simd_from_i32(sums[i][row]), t);
        if (has_minima(form))
            t = simd_fused(f->m[i], simd_set1(sums_of_x[i]), t);
    }
    return t;
}

/* 256 * high + low is rounded once, like the integer. */
SIMD_FN f32v large_block(enum spw_dtype form, const struct factors *f, const struct spw_codes *x,
                         const size_t half, i32v sums[HALF_BLOCKS][AMX_TILE], size_t row)
{
    const int16_t *sums_of_x = part_of(form) == 16 ? x->sums : x->sums32;
    i32v m = {0};
    f32v sum = simd_from_i32(sums[0][row]);
    if (has_high(form))
        sum = simd_fused(simd_set1(256), simd_from_i32(sums[1][row]), sum);
    const f32v t = simd_fused(f->d[0], sum, simd_set1(0));
    if (!has_minima(form))
        return t;
#pragma GCC unroll 4
    for (size_t i = 0; i < pairs_of(form); i++)
        m = simd_dot_pairs(m, f->minima[i],
                           simd_set1_bytes(sums_of_x + 2 * (half * pairs_of(form) + i)));
    return simd_fused(f->m[0], simd_from_i32(m), t);
}

/* Where a half, or a group of small blocks, lies in its partition. */
enum place { FIRST, INNER, LAST, ONLY };

/* t of small blocks between the halves of a group. */
typedef f32v half_sums[AMX_TILE][VECTORS];

/* What a half of the next tile reads of row r of x, 16 rows later: x lies in the L2. */
SIMD_FN void fetch_row(const struct rows *rows, size_t r, const size_t half)
{
    const size_t next = (size_t)spw_min_u64(r + AMX_TILE, rows->n - 1);
    const char *x = (const char *)(rows->x + next * rows->groups);
    for (size_t i = half * SPW_CODES_HALF; i < (half ? sizeof *rows->x : SPW_CODES_HALF); i += 64)
        __builtin_prefetch(x + i);
}

/* a and y: of the rows of a tile that no other tile has. */
SIMD_FN void finish_rows(enum spw_dtype form, const struct rows *rows, size_t tile,
                         const size_t half, const enum place place, tiles from, half_sums so_far)
{
    const size_t first = first_row(rows, tile);
    const struct spw_codes *x = rows->x + first * rows->groups;
    float *sums = rows->sums + tile * AMX_TILE * COLS, *y = rows->y + tile * AMX_TILE * COLS;
    struct factors f[VECTORS];
    for (size_t v = 0; v < VECTORS; v++)
        load_factors(form, &rows->w[v].scales, half, &f[v]);
    float of_blocks[AMX_TILE][SMALL_BLOCKS]; /* in a loop of their own: in memory */
    for (size_t r = 0; is_small(form) && has_minima(form) && r < rows->of_tile; r++)
        scaled_sums(x + r * rows->groups, of_blocks[r]);
    for (size_t r = tile * AMX_TILE - first; r < rows->of_tile; r++) {
        const struct spw_codes *of_row = x + r * rows->groups;
        fetch_row(rows, first + r, half);
#pragma GCC unroll 2
        for (size_t v = 0; v < VECTORS; v++, sums += SIMD_LANES, y += SIMD_LANES) {
            f32v t, a = place == FIRST || place == ONLY ? simd_set1(0) : simd_load(sums);
            if (is_small(form)) {
                t = small_blocks(form, &f[v], of_row->block_scales + half * HALF_BLOCKS,
                                 of_blocks[r] + half * HALF_BLOCKS, from[v], r,
                                 half ? so_far[r][v] : simd_set1(0));
                if (half == 0) {
                    so_far[r][v] = t;
                    continue;
                }
                a += t;
            } else {
                t = large_block(form, &f[v], of_row, half, from[v], r);
                a = simd_fused(simd_set1(of_row->scales[half]), t, a);
            }
            if (place == LAST || place == ONLY)
                simd_store(y, (rows->begins ? simd_set1(0) : simd_load(y)) + a);
            else
                simd_store(sums, a);
        }
    }
}

SIMD_FN void finish_half(enum spw_dtype form, const struct rows *rows, size_t tile,
                         const size_t half, tiles from, half_sums so_far)
{
    const bool first = rows->first && half == (is_small(form) ? 1 : 0);
    const bool last = rows->last && half == 1;
    if (is_small(form) && first && last)
        finish_rows(form, rows, tile, half, ONLY, from, so_far);
    else if (first)
        finish_rows(form, rows, tile, half, FIRST, from, so_far);
    else if (last)
        finish_rows(form, rows, tile, half, LAST, from, so_far);
    else
        finish_rows(form, rows, tile, half, INNER, from, so_far);
}

/* ---- types ---- */

/* `rows` is a copy, which no store changes. */
SIMD_FN void multiply_form(enum spw_dtype form, const struct rows rows)
{
    const size_t n = (size_t)spw_div_up(rows.n, AMX_TILE);
    tiles of_half[SPW_CODES_HALVES];
    half_sums so_far;
    multiply_half(form, &rows, 0, 0, of_half[0]);
    for (size_t tile = 0, bytes = AMX_TILE * rows.bytes_ahead; tile < n; tile++) {
        fetch_ahead(rows.work, rows.col, rows.ahead + tile * bytes,
                    rows.ahead + (tile + 1) * bytes);
        multiply_half(form, &rows, tile, 1, of_half[1]);
        finish_half(form, &rows, tile, 0, of_half[0], so_far);
        if (tile + 1 < n)
            multiply_half(form, &rows, tile + 1, 0, of_half[0]);
        finish_half(form, &rows, tile, 1, of_half[1], so_far);
    }
}

/* The types with code of their own, and the type whose code does for another. */
#define FORMS(F) F(Q4_0) F(Q4_1) F(Q2_K) F(Q3_K) F(Q4_K) F(Q6_K)

static enum spw_dtype form_of(enum spw_dtype t)
{
    if (is_small(t))
        return has_minima(t) ? SPW_DTYPE_Q4_1 : SPW_DTYPE_Q4_0;
    return t == SPW_DTYPE_Q5_K ? SPW_DTYPE_Q4_K : t == SPW_DTYPE_IQ4_XS ? SPW_DTYPE_Q6_K : t;
}

#define DEFINE(name)                                                                               \
    SIMD_APART void multiply_##name(const struct rows *rows)                                       \
    {                                                                                              \
        multiply_form(SPW_DTYPE_##name, *rows);                                                    \
    }
FORMS(DEFINE)
#undef DEFINE

static void multiply_group(const struct work *w, size_t col, size_t group, size_t begin, size_t end)
{
    const enum spw_dtype t = w->a->w_dtype;
    const size_t n = w->part.row_end - w->part.row, step = ROW_PARTS * w->ahead;
    u32v high[VECTORS][FOURS];
    const struct rows rows = {.x = w->x + w->part.row * w->groups + group,
                              .groups = w->groups,
                              .n = n,
                              .of_tile = (size_t)spw_min_u64(n, AMX_TILE),
                              .w = w->panel,
                              .high = high,
                              .sums = w->sums,
                              .y = w->y,
                              .first = group == begin,
                              .last = group + 1 == end,
                              .begins = begin == 0,
                              .work = w,
                              .col = col,
                              .ahead = fetched_by_rows(w, group),
                              .bytes_ahead = step};
    for (size_t v = 0; v < VECTORS; v++)
        prepare(t, numbers_of(w, group) / SMALL, &w->panel[v], high[v]);
    switch (form_of(t)) {
#define CASE(name)                                                                                 \
    case SPW_DTYPE_##name:                                                                         \
        multiply_##name(&rows);                                                                    \
        break;
        FORMS(CASE)
#undef CASE
    default:
        break;
    }
}

/* ---- tasks ---- */

static void run_many(const void *args, size_t task, unsigned worker)
{
    const struct spw_linear_args *a = args;
    const struct spw_linear_part part = spw_linear_part(a, task);
    uint8_t *space = (uint8_t *)a->workspace + worker * spw_linear_codes_workspace_avx512vnni(a->k);
    configure(a->w_dtype, (size_t)spw_min_u64(part.row_end - part.row, AMX_TILE));
    run_panels(a, task, space, multiply_group);
    _tile_release();
}

static size_t n_tasks(const void *args)
{
    const struct spw_linear_args *a = args;
    return a->m < MANY_ROWS ? spw_linear_codes_kernel_avx512intel.n_tasks(a) : spw_linear_tasks(a);
}

static void run(const void *args, size_t task, unsigned worker)
{
    const struct spw_linear_args *a = args;
    if (a->m < MANY_ROWS)
        spw_linear_codes_kernel_avx512intel.run(a, task, worker);
    else
        run_many(a, task, worker);
}

const struct spw_kernel spw_linear_codes_kernel_amx = {
    .name = "linear_codes",
    .n_tasks = n_tasks,
    .run = run,
};
