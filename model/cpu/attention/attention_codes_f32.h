/* The inner loops of attention on codes in f32 arithmetic: see attention_codes.h. */

/* f32 arithmetic needs the rotated query only. */
static void split_query(struct batch *b, uint32_t item)
{
    (void)b, (void)item;
}

/* Sixteen positions from j on, one block of a plane. */
SIMD_FN void score_codes_block(struct batch *b, uint32_t item, uint32_t j, const struct codes *t,
                               const float *offsets, float *scores, const uint32_t items,
                               const bool fine)
{
    uint32_t n = spw_qtile_k_channels(b->a->head_dim);
    size_t at = spw_qtile_k_index(b->a->head_dim, j, 0);
    const float *q = b->turned + item * b->out_stride;
    const struct vec scale = vec_set1(b->a->scale), width = vec_set1(fine ? 1.0f : 16.0f);
    struct vec total[GROUP_ITEMS], even[GROUP_ITEMS], odd[GROUP_ITEMS], x[8];
    for (uint32_t i = 0; i < items; i++)
        total[i] = vec_set1(offsets[i]);
    for (uint32_t g = 0, c = 0; c < n; g++) {
        uint32_t end = lesser(c + SPW_QTILE_GROUP, n);
        for (uint32_t i = 0; i < items; i++)
            even[i] = odd[i] = vec_set1(0);
        for (; c < end; c += 8, at += 64) {
            vec_load_codes(t->k_high + at, fine ? t->k_low + at : NULL, x);
            if (item == 0)
                fetch_code_lines(b, fine ? 2 : 1);
            for (uint32_t i = 0; i < items; i++)
                for (uint32_t r = 0; r < 4; r++) {
                    const float *factors = q + i * b->out_stride + c + r;
                    even[i] = vec_fma(vec_set1(factors[0]), x[r], even[i]);
                    odd[i] = vec_fma(vec_set1(factors[4]), x[4 + r], odd[i]);
                }
        }
        const char *steps = t->k_steps + ((size_t)g * SPW_TILE_TOKENS + j) * sizeof(uint16_t);
        struct vec step = vec_mul(vec_load_bf16(steps), width);
        for (uint32_t i = 0; i < items; i++)
            total[i] = vec_fma(vec_add(even[i], odd[i]), step, total[i]);
    }
    for (uint32_t i = 0; i < items; i++)
        vec_store(scores + (size_t)i * SPW_SPLIT_TOKENS, vec_mul(total[i], scale));
}

/* The weights of a tile, p * step, for the 64 channels of a group. */
struct weights {
    float w[SPW_TILE_TOKENS];
};

static void split_weights(const float *w, struct weights *to)
{
    memcpy(to->w, w, sizeof to->w);
}

/* Sixteen (or the last n) channels from c on. */
SIMD_FN void value_codes_run(struct batch *b, uint32_t item, const struct codes *t, uint32_t c,
                             const struct weights *w, const uint32_t items, const bool fine)
{
    uint32_t d = b->a->head_dim, n = lesser(d - c, VEC_LANES);
    float *out = b->out_turned + item * b->out_stride + c;
    struct vec even[GROUP_ITEMS], odd[GROUP_ITEMS], x[8];
    for (uint32_t i = 0; i < items; i++)
        even[i] = odd[i] = vec_set1(0);
    for (uint32_t j = 0; j < SPW_TILE_TOKENS; j += SPW_QTILE_OCTET) {
        size_t at = spw_qtile_v_index(d, j, c);
        const char *high = t->v_high + at, *low = fine ? t->v_low + at : NULL;
        char staged[2][VEC_LANES * 4] = {{0}};
        if (n < VEC_LANES) {
            high = memcpy(staged[0], high, (size_t)n * 4);
            low = fine ? memcpy(staged[1], low, (size_t)n * 4) : NULL;
        }
        vec_load_codes(high, low, x);
        if (item == 0)
            fetch_code_lines(b, fine ? 2 : 1);
        for (uint32_t i = 0; i < items; i++)
            for (uint32_t r = 0; r < 4; r++) {
                const float *factors = w[i].w + j + r;
                even[i] = vec_fma(vec_set1(factors[0]), x[r], even[i]);
                odd[i] = vec_fma(vec_set1(factors[4]), x[4 + r], odd[i]);
            }
    }
    for (uint32_t i = 0; i < items; i++) {
        struct vec *to = (void *)(out + i * b->out_stride);
        vec_store(to, vec_add(vec_load(to), vec_add(even[i], odd[i])));
    }
}
