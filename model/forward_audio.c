/* The convolutions before an encoder of audio, each followed by the activation, as products: see
 * forward.h. They have SPW_CONV_TAPS taps, one tap after the other in a row of their matrices
 * (SPW_FORM_TAPS). */
#include "model/forward_parts.h"
#include "quant/types.h"

/* y = act(x W^T + bias). */
static int convolve(const struct spw_forward *f, const struct spw_operand *m, uint64_t bias,
                    const void *x, void *y, size_t rows)
{
    SPW_TRY(spw_forward_linear(f, m, 1, bias, x, NULL, y, m->n, rows));
    return f->ops->each(
        &(struct spw_each_args){
            .x = y, .n = rows * m->n, .act = f->weights->config->act, .dtype = f->dtype},
        f->stream);
}

/* y = x times the vector, plus the residual. */
static int scale(const struct spw_forward *f, uint64_t vector, const void *x, const void *residual,
                 void *y, size_t rows)
{
    return spw_forward_norm(f, SPW_NORM_NONE, 0, vector, x, residual, SPW_SMALL_NONE, y, rows);
}

int spw_forward_audio(const struct spw_forward *f, const struct spw_layer_weights *m,
                      const void *inputs, size_t rows)
{
    return convolve(f, &m->of[SPW_MATRIX_SOURCE_CONV1], f->weights->source_conv_bias[0], inputs,
                    f->b.qkv, rows * SPW_CONV_TAPS);
}

int spw_forward_no_frame(const struct spw_forward *f, size_t row)
{
    const uint64_t at = row * SPW_CONV_TAPS * f->weights->config->hidden;
    void *x = (uint8_t *)f->b.qkv + spw_row_bytes(f->dtype, at);
    return scale(f, f->weights->no_frame, x, NULL, x, 1);
}

int spw_forward_audio_added(const struct spw_forward *f, const struct spw_layer_weights *m, void *h,
                            size_t rows)
{
    SPW_TRY(convolve(f, &m->of[SPW_MATRIX_SOURCE_CONV2], f->weights->source_conv_bias[1], f->b.qkv,
                     f->b.x, rows));
    return scale(f, SPW_SMALL_NONE, f->b.x, h, h, rows);
}
