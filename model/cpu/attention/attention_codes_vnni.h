/* The inner loops of attention on codes with vpdpbusd, which adds four products of a byte without a
 * sign and one with to each of 16 lanes: see attention_codes.h.
 *
 * What a code is multiplied by (a query's 64 channels, a tile's 128 weights) becomes 16-bit
 * integers n = 256 h + l of two signed bytes each, |n| <= 127 * 256 being the largest magnitude
 * there is: an error of at most 2^-16 of that, where a bf16 query carries 2^-9 of each. The sums
 * are exact, for 2 * 128 * 255 * 32512 < 2^31,
 *
 *   sum n (u - 127.5) = (2 sum n u - 255 sum n) / 2
 *
 * and the same with 7.5 and 15 for 4-bit codes, so that chains may run in any order. */

enum { LARGEST = 127 * 256 };

/* n (at most 128) numbers as two bytes each. Numbers all below 2^-100 count as 0. If a
 * number is NaN or infinite, all bytes are 0 and the unit is NaN or infinite: the product of the
 * two is NaN. Magnitudes are compared as integers: the bits of a NaN are above those of infinity.
 */
VEC_FN struct limbs limbs_of(const float *x, uint32_t n, signed char *high, signed char *low)
{
    __m512i most = _mm512_setzero_si512(), sum = most;
    for (uint32_t i = 0; i < n; i += VEC_LANES)
        most = _mm512_max_epu32(_mm512_castps_si512(_mm512_abs_ps(vec_load(x + i).v)), most);
    uint32_t bits = _mm512_reduce_max_epu32(most);
    float top;
    memcpy(&top, &bits, sizeof top);
    const __mmask16 counts = top >= 0x1p-100f && top < INFINITY ? 0xffff : 0;
    __m512 factor = _mm512_set1_ps((float)LARGEST / top);
    for (uint32_t i = 0; i < n; i += VEC_LANES) {
        __m512i y = _mm512_maskz_cvtps_epi32(counts, _mm512_mul_ps(vec_load(x + i).v, factor));
        __m512i h = _mm512_srai_epi32(_mm512_add_epi32(y, _mm512_set1_epi32(128)), 8);
        __m512i l = _mm512_sub_epi32(y, _mm512_slli_epi32(h, 8));
        sum = _mm512_add_epi32(sum, y);
        _mm_storeu_si128((void *)(high + i), _mm512_cvtepi32_epi8(h));
        _mm_storeu_si128((void *)(low + i), _mm512_cvtepi32_epi8(l));
    }
    return (struct limbs){top / (2 * LARGEST), _mm512_reduce_add_epi32(sum)};
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

VEC_FN __m512i four_bytes(const signed char *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

/* One octet of channels (or positions) into four chains. */
VEC_FN void add_octet(__m512i sums[4], const codes_u four[2], const signed char *high,
                      const signed char *low)
{
    sums[0] = _mm512_dpbusd_epi32(sums[0], (__m512i)four[0], four_bytes(high));
    sums[1] = _mm512_dpbusd_epi32(sums[1], (__m512i)four[1], four_bytes(high + 4));
    sums[2] = _mm512_dpbusd_epi32(sums[2], (__m512i)four[0], four_bytes(low));
    sums[3] = _mm512_dpbusd_epi32(sums[3], (__m512i)four[1], four_bytes(low + 4));
}

/* The chains' sum with the middle of the codes taken out, as a number. */
VEC_FN struct vec finish_sums(const __m512i sums[4], struct limbs n, bool fine)
{
    __m512i all = _mm512_slli_epi32(_mm512_add_epi32(sums[0], sums[1]), 8);
    all = _mm512_add_epi32(all, _mm512_add_epi32(sums[2], sums[3]));
    __m512i middle = _mm512_set1_epi32(n.sum * (fine ? 255 : 15));
    all = _mm512_sub_epi32(_mm512_slli_epi32(all, 1), middle);
    return (struct vec){_mm512_mul_ps(_mm512_cvtepi32_ps(all), _mm512_set1_ps(n.unit))};
}

/* Sixteen positions from j on, one block of a plane. */
VEC_FN void score_codes_block(struct batch *b, uint32_t item, uint32_t j, const struct codes *t,
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
        __m512i sums[GROUP_ITEMS][4];
        for (uint32_t i = 0; i < items; i++)
            for (uint32_t k = 0; k < 4; k++)
                sums[i][k] = _mm512_setzero_si512();
        for (; c < end; c += 8, at += 64) {
            codes_u four[2];
            codes_load(t->k_high + at, fine ? t->k_low + at : NULL, four);
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
VEC_FN void value_codes_run(struct batch *b, uint32_t item, const struct codes *t, uint32_t c,
                            const struct weights *w, const uint32_t items, const bool fine)
{
    uint32_t d = b->a->head_dim, n = lesser(d - c, VEC_LANES);
    float *out = b->out_turned + item * b->out_stride + c;
    __m512i sums[GROUP_ITEMS][4];
    for (uint32_t i = 0; i < items; i++)
        for (uint32_t k = 0; k < 4; k++)
            sums[i][k] = _mm512_setzero_si512();
    for (uint32_t j = 0; j < SPW_TILE_TOKENS; j += SPW_QTILE_OCTET) {
        size_t at = spw_qtile_v_index(d, j, c);
        const char *high = t->v_high + at, *low = fine ? t->v_low + at : NULL;
        char staged[2][VEC_LANES * 4] = {{0}};
        if (n < VEC_LANES) {
            high = memcpy(staged[0], high, (size_t)n * 4);
            low = fine ? memcpy(staged[1], low, (size_t)n * 4) : NULL;
        }
        codes_u four[2];
        codes_load(high, low, four);
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
