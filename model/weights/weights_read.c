/* Reading the matrices of the mapped files: packed copies, rows of the embedding, advice about
 * pages. See weights.h. */
#include "model/weights/weights_parts.h"

#include "base/numbers.h"
#include "quant/types.h"

#include <math.h>
#include <string.h>

/* The bytes of one expert in a tensor of all. */
static uint64_t expert_bytes(const struct spw_tensor *t)
{
    return t->bytes / t->shape[0];
}

const uint8_t *spw_matrix_data(const struct spw_matrix *m)
{
    const struct spw_tensor *t = m->tensor;
    const uint8_t *data = t->data;
    return m->form == SPW_FORM_ROWS ? data + m->first_row * spw_row_bytes(t->dtype, m->k)
                                    : data + m->first_row / t->shape[1] * expert_bytes(t);
}

uint64_t spw_matrix_bytes(const struct spw_matrix *m)
{
    if (m->form == SPW_FORM_BLOCKS || m->form == SPW_FORM_TAPS)
        return m->tensor->bytes;
    return m->form == SPW_FORM_ROWS ? m->n * spw_row_bytes(m->tensor->dtype, m->k)
                                    : expert_bytes(m->tensor);
}

/* The number of values that are read and converted at a time: whole blocks of any type. */
enum { READ_AT_ONCE = 256 };

/* ---- packed copies ---- */

/* Multiplies values[0 .. n) of a row, from column `first` on, by the factors of their blocks. block
 * 0: the whole matrix has one factor. */
static void apply_scale(const struct spw_matrix *m, const uint32_t block[2], uint64_t row,
                        uint64_t first, size_t n, float *values)
{
    const uint64_t width = block[0] ? block[1] : m->k;
    const uint64_t row_of_factors = block[0] ? row / block[0] * spw_div_up(m->k, width) : 0;
    for (uint64_t col = first; col < first + n;) {
        const uint64_t end = spw_min_u64((col / width + 1) * width, first + n);
        float factor;
        spw_type_read(m->scale->dtype, m->scale->data, row_of_factors + col / width, 1, &factor);
        for (; col < end; col++)
            values[col - first] *= factor;
    }
}

static void convert_row(const struct spw_matrix *m, const uint32_t block[2], uint64_t row,
                        uint8_t *to)
{
    const uint8_t *from = spw_matrix_data(m) + row * spw_row_bytes(m->tensor->dtype, m->k);
    float values[READ_AT_ONCE];
    for (uint64_t done = 0; done < m->k; done += READ_AT_ONCE) {
        size_t n = (size_t)spw_min_u64(m->k - done, READ_AT_ONCE);
        spw_type_read(m->tensor->dtype, from, done, n, values);
        if (m->scale)
            apply_scale(m, block, m->first_row + row, done, n, values);
        for (size_t i = 0; m->type != SPW_DTYPE_F32 && i < n; i++)
            ((uint16_t *)to)[done + i] = spw_f32_to_bf16(values[i]);
        if (m->type == SPW_DTYPE_F32)
            memcpy(to + done * sizeof *values, values, n * sizeof *values);
    }
}

/* Where number i of a row lies in a tensor that has no rows. */
static uint64_t place_of(const struct spw_matrix *m, uint64_t row, uint64_t i)
{
    const uint64_t columns = m->tensor->shape[m->tensor->n_dims - 1], in_block = row % m->k;
    if (m->form == SPW_FORM_TAPS) {
        const uint64_t channels = m->k / columns;
        return row * m->k + i % channels * columns + i / channels;
    }
    return m->form == SPW_FORM_BLOCKS
               ? (row - in_block + i) * columns + in_block
               : (m->first_row + i) * columns + m->first_column + row * m->step;
}

static void gather_row(const struct spw_matrix *m, uint64_t row, uint8_t *to)
{
    const struct spw_tensor *t = m->tensor;
    for (uint64_t i = 0; i < m->k; i++) {
        const uint64_t at = place_of(m, row, i);
        float value;
        spw_type_read(t->dtype, t->data, at, 1, &value);
        if (m->type == SPW_DTYPE_F32)
            memcpy(to + i * sizeof value, &value, sizeof value);
        else if (m->type == SPW_DTYPE_BF16)
            ((uint16_t *)to)[i] = spw_f32_to_bf16(value);
        else
            memcpy(to + i * 2, (const uint8_t *)t->data + at * 2, 2); /* F16 */
    }
}

/* A row in parts: a byte has two neighbours there, and channels i and i + 16 of a group here. */
static void join_row(const struct spw_matrix *m, uint64_t row, uint8_t *to)
{
    enum { HALF = SPW_MXFP4_GROUP / 2 };
    const uint64_t groups = m->k / SPW_MXFP4_GROUP, at = m->first_row + row * m->step;
    const uint8_t *blocks = (const uint8_t *)m->tensor->data + at * groups * HALF;
    const uint8_t *scales = (const uint8_t *)m->scale->data + at * groups;
    for (uint64_t g = 0; g < groups; g++, to += 1 + HALF, blocks += HALF) {
        to[0] = scales[g];
        for (int i = 0; i < HALF; i++) {
            const int low = blocks[i / 2] >> i % 2 * 4,
                      high = blocks[HALF / 2 + i / 2] >> i % 2 * 4;
            to[1 + i] = (uint8_t)((low & 15) | (high & 15) << 4);
        }
    }
}

void spw_weights_pack_row(const struct spw_weights *w, const struct spw_matrix *m, uint64_t row,
                          uint8_t *to)
{
    const uint64_t bytes = spw_row_bytes(m->type, m->k);
    if (m->form == SPW_FORM_ROWS && m->tensor->dtype == m->type)
        memcpy(to, spw_matrix_data(m) + row * bytes, bytes);
    else if (m->form == SPW_FORM_COLUMNS || m->form == SPW_FORM_BLOCKS || m->form == SPW_FORM_TAPS)
        gather_row(m, row, to);
    else if (m->form == SPW_FORM_PARTS)
        join_row(m, row, to);
    else
        convert_row(m, w->config->fp8_block, row, to);
}

void spw_weights_pack(const struct spw_weights *w, uint32_t b, void *copy)
{
    const struct spw_matrix *m = &w->matrices[w->blocks[b].first];
    for (uint32_t i = 0; i < w->blocks[b].n; i++) {
        uint8_t *to = (uint8_t *)copy + m[i].offset;
        if (m[i].tensor->dtype == m[i].type && m[i].form == SPW_FORM_ROWS)
            spw_tensors_copy(to, spw_matrix_data(&m[i]), spw_matrix_bytes(&m[i]));
        else
            for (uint64_t row = 0; row < m[i].n; row++)
                spw_weights_pack_row(w, &m[i], row, to + row * spw_row_bytes(m[i].type, m[i].k));
    }
    spw_weights_release(w, b);
}

/* ---- pages ---- */

void spw_weights_populate(const struct spw_weights *w, uint32_t b)
{
    const struct spw_matrix *m = &w->matrices[w->blocks[b].first];
    for (uint32_t i = 0; i < w->blocks[b].n; i++)
        spw_tensors_populate(spw_matrix_data(&m[i]), spw_matrix_bytes(&m[i]));
}

void spw_weights_release(const struct spw_weights *w, uint32_t b)
{
    const struct spw_matrix *m = &w->matrices[w->blocks[b].first];
    for (uint32_t i = 0; i < w->blocks[b].n; i++)
        spw_tensors_release(spw_matrix_data(&m[i]), spw_matrix_bytes(&m[i]));
}

/* ---- the embedding ---- */

/* From this many rows on, one call releases all pages. With fewer rows, one call releases the pages
 * around each row, as far as the system may have mapped them at once: a head that is copied from
 * the same pages in each step keeps the others. (Releasing all of them took 1.3 x the time of a
 * token, EPYC, 2026-11-29.) */
enum { MANY_ROWS = 16, AROUND_BYTES = 2 << 20 };

/* Rows [first, end). */
struct rows {
    uint64_t first, end;
};

/* The pages around a row of the table, inside `rows`. */
static void release_around(const struct spw_matrix *m, uint64_t row, struct rows rows)
{
    const uint64_t row_bytes = spw_row_bytes(m->type, m->k), at = row * row_bytes;
    uint64_t begin = spw_max_u64(at / AROUND_BYTES * AROUND_BYTES, rows.first * row_bytes);
    uint64_t end = spw_min_u64(spw_align_up(at + row_bytes, AROUND_BYTES), rows.end * row_bytes);
    spw_tensors_release(spw_matrix_data(m) + begin, end - begin);
}

/* The rows of the embedding in one block of a tied head, or all rows. *mapped: the block is
 * computed from the mapped file, so its pages stay. */
static struct rows rows_of_block(const struct spw_weights *w, uint64_t row, bool *mapped)
{
    const struct spw_weight_block *b = &w->blocks[w->config->n_layers + row / w->head_rows];
    const struct spw_matrix *m = &w->matrices[b->first];
    const bool tied = m->tensor == w->embedding.tensor;
    *mapped = tied && b->mapped;
    return tied ? (struct rows){m->first_row, m->first_row + m->n}
                : (struct rows){0, w->embedding.n};
}

static void release_embedding(const struct spw_weights *w, const int32_t *tokens, size_t n)
{
    const struct spw_matrix *m = &w->embedding;
    const uint64_t row_bytes = spw_row_bytes(m->type, m->k);
    bool mapped;
    for (uint64_t row = 0; n >= MANY_ROWS && row < m->n;) {
        const struct rows rows = rows_of_block(w, row, &mapped);
        if (!mapped)
            spw_tensors_release(spw_matrix_data(m) + rows.first * row_bytes,
                                (rows.end - rows.first) * row_bytes);
        row = rows.end;
    }
    for (size_t i = 0; n < MANY_ROWS && i < n; i++) {
        const struct rows rows = rows_of_block(w, (uint32_t)spw_plain_token(tokens[i]), &mapped);
        if (!mapped)
            release_around(m, (uint32_t)spw_plain_token(tokens[i]), rows);
    }
}

/* A row is rounded before it is scaled, like the lookup of a bf16 model. */
static void embed_row(const struct spw_matrix *m, uint64_t row, float scale, enum spw_dtype compute,
                      uint8_t *out)
{
    const uint8_t *from = spw_matrix_data(m) + row * spw_row_bytes(m->type, m->k);
    float values[READ_AT_ONCE];
    for (uint64_t done = 0; done < m->k; done += READ_AT_ONCE) {
        size_t n = (size_t)spw_min_u64(m->k - done, READ_AT_ONCE);
        spw_type_read(m->type, from, done, n, values);
        for (size_t i = 0; i < n; i++)
            if (compute == SPW_DTYPE_F32)
                ((float *)out)[done + i] = values[i] * scale;
            else
                ((uint16_t *)out)[done + i] =
                    spw_f32_to_bf16(spw_bf16_to_f32(spw_f32_to_bf16(values[i])) * scale);
    }
}

/* A norm without weights. The host computes it for every backend. */
static void norm_row(void *row, size_t n, float eps, enum spw_dtype type)
{
    float *wide = row;
    uint16_t *narrow = row;
    double squares = 0;
    for (size_t i = 0; i < n; i++) {
        const double x =
            type == SPW_DTYPE_F32 ? (double)wide[i] : (double)spw_bf16_to_f32(narrow[i]);
        squares += x * x;
    }
    const float factor = (float)(1 / sqrt(squares / (double)n + (double)eps));
    for (size_t i = 0; i < n; i++)
        if (type == SPW_DTYPE_F32)
            wide[i] *= factor;
        else
            narrow[i] = spw_f32_to_bf16(spw_bf16_to_f32(narrow[i]) * factor);
}

/* Rows of a table, scaled. */
static void embed(const struct spw_matrix *m, float scale, const int32_t *tokens, size_t n,
                  enum spw_dtype compute, void *out)
{
    const uint64_t row_bytes = spw_row_bytes(compute, m->k);
    if (compute == SPW_DTYPE_BF16)
        scale = spw_bf16_to_f32(spw_f32_to_bf16(scale));
    for (size_t i = 0; i < n; i++) {
        uint8_t *to = (uint8_t *)out + i * row_bytes;
        if (m->type == compute && scale == 1.0f)
            memcpy(to, spw_matrix_data(m) + (uint32_t)spw_plain_token(tokens[i]) * row_bytes,
                   row_bytes);
        else
            embed_row(m, (uint32_t)spw_plain_token(tokens[i]), scale, compute, to);
    }
}

/* The table of inputs may be larger than all memory: none of its pages stays, either. */
void spw_weights_embed(const struct spw_weights *w, const struct spw_embed_args *a)
{
    const size_t row_bytes = spw_row_bytes(a->compute, w->embedding.k);
    if (w->config->n_mels && a->n && a->tokens[0] < 0) {
        spw_audio_embed(w, a);
        return;
    }
    const bool own = w->config->own_source_rows && a->n && a->tokens[0] < 0;
    embed(own ? &w->source_embedding : &w->embedding, w->config->embedding_scale, a->tokens, a->n,
          a->compute, a->rows);
    for (size_t i = 0; w->config->normed_rows && i < a->n; i++)
        norm_row((uint8_t *)a->rows + i * row_bytes, w->embedding.k, w->config->rms_eps,
                 a->compute);
    if (own)
        spw_tensors_release(spw_matrix_data(&w->source_embedding),
                            spw_matrix_bytes(&w->source_embedding));
    else
        release_embedding(w, a->tokens, a->n);
    if (w->config->positions)
        spw_positions_add(w, a);
    if (!w->config->layer_inputs)
        return;
    embed(&w->inputs, sqrtf((float)w->config->layer_inputs), a->tokens, a->n, a->compute,
          a->inputs);
    if (a->n >= MANY_ROWS)
        spw_tensors_release(spw_matrix_data(&w->inputs), spw_matrix_bytes(&w->inputs));
    for (size_t i = 0; a->n < MANY_ROWS && i < a->n; i++)
        release_around(&w->inputs, (uint32_t)spw_plain_token(a->tokens[i]),
                       (struct rows){0, w->inputs.n});
}
