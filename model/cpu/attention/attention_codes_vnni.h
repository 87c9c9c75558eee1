/* The inner loops of attention on codes with vpdpbusd: see attention_codes.h. The instruction adds
 * four products of an unsigned and a signed byte to each of 16 lanes.
 *
 * The factors of the codes (a query's 64 channels, a tile's 128 weights) become 16-bit integers n =
 * 256 h + l of two signed bytes each. The largest magnitude becomes 127 * 256. The error is at most
 * 2^-16 of the largest magnitude; a bf16 query has an error of 2^-9 of each number. The sums are
 * exact, because 2 * 128 * 255 * 32512 < 2^31,
 *
 *   sum n (u - 127.5) = (2 sum n u - 255 sum n) / 2
 *
 * and the same with 7.5 and 15 for 4-bit codes. So chains may run in any order. */

enum { LARGEST = 127 * 256 };

SIMD_FN void store_bytes(signed char *p, i32v x)
{
    typedef signed char i8v __attribute__((vector_size(SIMD_LANES)));
    i8v bytes = __builtin_convertvector(x, i8v);
    memcpy(p, &bytes, sizeof bytes);
}

/* n (at most 128) numbers as two bytes each. Numbers all below 2^-100 count as 0. If a
 * number is NaN or infinite, all bytes are 0 and the unit is NaN or infinite: the product of the
 * two is NaN. Magnitudes are compared as integers: the bits of a NaN are above those of infinity.
 */
SIMD_FN struct limbs limbs_of(const float *x, uint32_t n, signed char *high, signed char *low)
{
    i32v most = {0}, sum = {0};
    for (uint32_t i = 0; i < n; i += SIMD_LANES)
        most = simd_max_i32(simd_magnitude(simd_load(x + i)), most);
    int32_t bits = simd_highest_i32(most);
    float top;
    memcpy(&top, &bits, sizeof top);
    const int32_t counts = top >= 0x1p-100f && top < INFINITY ? -1 : 0;
    const float factor = (float)LARGEST / top;
    for (uint32_t i = 0; i < n; i += SIMD_LANES) {
        i32v y = simd_round_i32(simd_load(x + i) * factor) & counts;
        i32v h = (y + 128) >> 8;
        sum += y;
        store_bytes(high + i, h);
        store_bytes(low + i, y - (h << 8));
    }
    return (struct limbs){top / (2 * LARGEST), simd_sum_i32(sum)};
}

/* The two bytes of every channel of a rotated query, group by group. */
static void split_query(struct batch *b, uint32_t item)
{
    const float *q = b->turned + item * b->out_stride;
    signed char *high = b->q_bytes + 2 * item * b->out_stride, *low = high + b->out_stride;
    uint32_t n = (uint32_t)b->out_stride, groups = spw_qtile_groups(b->a->head_dim);
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t c = g * SPW_QTILE_GROUP;
        b->q_limbs[item * groups + g] =
            limbs_of(q + c, lesser(n - c, SPW_QTILE_GROUP), high + c, low + c);
    }
}

SIMD_FN i32v four_bytes(const signed char *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return (i32v){0} + four;
}

/* One octet of channels (or positions) into four chains. */
SIMD_FN void add_octet(i32v sums[4], const u32v four[2], const signed char *high,
                       const signed char *low)
{
    sums[0] = simd_dot_bytes(sums[0], four[0], four_bytes(high));
    sums[1] = simd_dot_bytes(sums[1], four[1], four_bytes(high + 4));
    sums[2] = simd_dot_bytes(sums[2], four[0], four_bytes(low));
    sums[3] = simd_dot_bytes(sums[3], four[1], four_bytes(low + 4));
}

/* The sum of the chains minus the middle of the codes, as a float. */
SIMD_FN struct vec finish_sums(const i32v sums[4], struct limbs n, bool fine)
{
    i32v all = ((sums[0] + sums[1]) << 8) + sums[2] + sums[3];
    all = (all << 1) - n.sum * (fine ? 255 : 15);
    return (struct vec){{__builtin_convertvector(all, f32v) * n.unit}};
}

/* Sixteen positions from j on, one block of a plane. */
SIMD_FN void score_codes_block(struct batch *b, uint32_t item, uint32_t j, const struct codes *t,
                               const float *offsets, float *scores, const uint32_t items,
                               const bool fine)
{
    uint32_t n = spw_qtile_k_channels(b->a->head_dim), groups = spw_qtile_groups(b->a->head_dim);
    size_t at = spw_qtile_k_index(b->a->head_dim, j, 0), stride = b->out_stride;
    const signed char *q = b->q_bytes + 2 * item * stride;
    const struct vec scale = vec_set1(b->a->scale), width = vec_set1(fine ? 1.0f : 16.0f);
    struct vec total[GROUP_ITEMS];
    for (uint32_t i = 0; i < items; i++)
        total[i] = vec_set1(offsets[i]);
    for (uint32_t g = 0, c = 0; c < n; g++) {
        uint32_t end = lesser(c + SPW_QTILE_GROUP, n);
        i32v sums[GROUP_ITEMS][4];
        for (uint32_t i = 0; i < items; i++)
            for (uint32_t k = 0; k < 4; k++)
                sums[i][k] = (i32v){0};
        for (; c < end; c += 8, at += 64) {
            u32v four[2];
            simd_load_codes(t->k_high + at, fine ? t->k_low + at : NULL, four);
            if (item == 0)
                fetch_code_lines(b, fine ? 2 : 1);
            for (uint32_t i = 0; i < items; i++)
                add_octet(sums[i], four, q + 2 * i * stride + c, q + (2 * i + 1) * stride + c);
        }
        const char *steps = t->k_steps + ((size_t)g * SPW_TILE_TOKENS + j) * sizeof(uint16_t);
        struct vec step = vec_mul(vec_load_bf16(steps), width);
        for (uint32_t i = 0; i < items; i++)
            total[i] = vec_fma(finish_sums(sums[i], b->q_limbs[(item + i) * groups + g], fine),
                               step, total[i]);
    }
    for (uint32_t i = 0; i < items; i++)
        vec_store(scores + (size_t)i * SPW_SPLIT_TOKENS, vec_mul(total[i], scale));
}

/* The weights of a tile, p * step, for the 64 channels of a group. */
struct weights {
    struct limbs limbs;
    signed char high[SPW_TILE_TOKENS], low[SPW_TILE_TOKENS];
};

static void split_weights(const float *w, struct weights *to)
{
    to->limbs = limbs_of(w, SPW_TILE_TOKENS, to->high, to->low);
}

/* Sixteen (or the last n) channels from c on. */
SIMD_FN void value_codes_run(struct batch *b, uint32_t item, const struct codes *t, uint32_t c,
                             const struct weights *w, const uint32_t items, const bool fine)
{
    uint32_t d = b->a->head_dim, n = lesser(d - c, VEC_LANES);
    float *out = b->out_turned + item * b->out_stride + c;
    i32v sums[GROUP_ITEMS][4];
    for (uint32_t i = 0; i < items; i++)
        for (uint32_t k = 0; k < 4; k++)
            sums[i][k] = (i32v){0};
    for (uint32_t j = 0; j < SPW_TILE_TOKENS; j += SPW_QTILE_OCTET) {
        size_t at = spw_qtile_v_index(d, j, c);
        const char *high = t->v_high + at, *low = fine ? t->v_low + at : NULL;
        char staged[2][VEC_LANES * 4] = {{0}};
        if (n < VEC_LANES) {
            high = memcpy(staged[0], high, (size_t)n * 4);
            low = fine ? memcpy(staged[1], low, (size_t)n * 4) : NULL;
        }
        u32v four[2];
        simd_load_codes(high, low, four);
        if (item == 0)
            fetch_code_lines(b, fine ? 2 : 1);
        for (uint32_t i = 0; i < items; i++)
            add_octet(sums[i], four, w[i].high + j, w[i].low + j);
    }
    for (uint32_t i = 0; i < items; i++) {
        struct vec *to = (void *)(out + i * b->out_stride);
        vec_store(to, vec_add(vec_load(to), finish_sums(sums[i], w[i].limbs, fine)));
    }
}
