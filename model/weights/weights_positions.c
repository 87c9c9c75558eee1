/* What models with absolute positions add to the rows of their embedding: rows of a table in the
 * files, or sines and cosines of the position, which the host computes for every backend
 * (enum spw_position_kind). A row that a stored table of sines lacks is computed, too. */
#include "base/numbers.h"
#include "model/weights/weights_parts.h"
#include "quant/types.h"

#include <math.h>

static const double longest = 10000; /* times 2 pi: the longest wave */

int spw_positions_open(struct spw_weights *w, const struct spw_finder *f)
{
    static const char *const names[] = {"model.source_positions.weight", "model.positions.weight"};
    const struct spw_model_config *c = w->config;
    const bool stored = c->positions == SPW_POSITIONS_STORED;
    for (int i = 0; i < 2; i++) {
        const uint64_t rows = !stored ? c->max_positions / 2
                              : i     ? c->stack_positions
                                      : spw_config_most_source(c);
        if (stored || (c->positions == SPW_POSITIONS_SINES && spw_find_by_name(f, names[i])))
            SPW_TRY(spw_find_tensor(f, names[i], rows + c->position_offset, c->hidden,
                                    &w->positions[i]));
    }
    return 0;
}

/* The numbers i and hidden / 2 + i of a row. */
static void compute(const struct spw_model_config *c, uint64_t row, uint32_t i, float out[2])
{
    const uint32_t half = c->hidden / 2;
    if (c->positions == SPW_POSITIONS_SINES) {
        const double angle = (double)row / pow(longest, (double)i / half);
        out[0] = (float)sin(angle);
        out[1] = (float)cos(angle);
    } else {
        const float step = (float)-(log(longest) / (half - 1));
        const float angle = (float)row * expf((float)i * step);
        out[0] = sinf(angle);
        out[1] = cosf(angle);
    }
}

static void add(enum spw_dtype type, void *row, uint64_t i, float x)
{
    float *wide = row;
    uint16_t *narrow = row;
    if (type == SPW_DTYPE_F32)
        wide[i] += x;
    else
        narrow[i] =
            spw_f32_to_bf16(spw_bf16_to_f32(narrow[i]) + spw_bf16_to_f32(spw_f32_to_bf16(x)));
}

static void add_stored(const struct spw_tensor *t, uint64_t from, enum spw_dtype type, void *row)
{
    enum { AT_ONCE = 256 };
    const uint8_t *data = (const uint8_t *)t->data + from * spw_row_bytes(t->dtype, t->shape[1]);
    float values[AT_ONCE];
    for (uint64_t done = 0; done < t->shape[1]; done += AT_ONCE) {
        const size_t n = (size_t)spw_min_u64(t->shape[1] - done, AT_ONCE);
        spw_type_read(t->dtype, data, done, n, values);
        for (size_t i = 0; i < n; i++)
            add(type, row, done + i, values[i]);
    }
}

static void add_computed(const struct spw_model_config *c, uint64_t from, enum spw_dtype type,
                         void *row)
{
    for (uint32_t i = 0; i < c->hidden / 2; i++) {
        float x[2];
        compute(c, from, i, x);
        add(type, row, i, x[0]);
        add(type, row, c->hidden / 2 + i, x[1]);
    }
}

/* To M2M-100 the token in front of the first position is a pad, which has no position. */
static bool is_pad(const struct spw_model_config *c, int32_t token)
{
    return c->positions == SPW_POSITIONS_SINES_F32 &&
           (uint32_t)spw_plain_token(token) + 1 == c->position_offset;
}

void spw_positions_add(const struct spw_weights *w, const struct spw_embed_args *a)
{
    const struct spw_model_config *c = w->config;
    const struct spw_tensor *t = w->positions[a->n && a->tokens[0] >= 0];
    for (size_t i = 0; i < a->n; i++) {
        const uint64_t from = a->position + i + c->position_offset;
        void *row = (uint8_t *)a->rows + i * spw_row_bytes(a->compute, c->hidden);
        if (is_pad(c, a->tokens[i]))
            continue;
        if (t && from < t->shape[0])
            add_stored(t, from, a->compute, row);
        else
            add_computed(c, from, a->compute, row);
    }
    if (t)
        spw_tensors_release(t->data, t->bytes);
}
