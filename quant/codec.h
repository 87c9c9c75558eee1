/* From an exact tile (quant/tile.h) to a quantized one (quant/qtile.h), and back.
 *
 * K is rotated over the head, and the mean of each rotated channel over the tile is subtracted. V
 * is rotated in blocks of at most 64. Then each position has one step for each 64 channels, a bf16:
 * the largest magnitude / 128, rounded up. So no code is clamped, and |error| <= step / 2 in 8
 * bits, 8 step in 4 bits (in the rotated channels; f32 rounding aside). A step is at least 2^-100,
 * or 0 where all numbers are 0 or below 2^-120: they come back as 0. Every finite f32 is accepted.
 *
 * Encoding is a CPU kernel for each instruction set and a CUDA kernel, all with the same bits. No
 * state, any thread. */
#ifndef SPW_QUANT_CODEC_H
#define SPW_QUANT_CODEC_H

#include "quant/qtile.h"

struct spw_codec_args {
    const void *tile; /* all 128 positions written; 4-byte aligned */
    void *qtile;      /* spw_qtile_bytes(...), 64-byte aligned */
    uint32_t n_kv_heads;
    struct spw_tile_widths widths;
    enum spw_dtype dtype;
    enum spw_qformat format;
    /* A task writes 1 if its K or V holds a NaN or an infinity, else nothing. The bytes of that
     * head's K or V are then unspecified. Read it after the last task. */
    uint32_t *not_finite;
};

/* A task is K or V of one head; without V (widths.v 0) it is K of one head. */
extern const struct spw_kernel spw_codec_encode_kernel_portable;
extern const struct spw_kernel spw_codec_encode_kernel_avx2;
extern const struct spw_kernel spw_codec_encode_kernel_avx512;
extern const struct spw_kernel spw_codec_encode_kernel_avx512bf16;

/* The same on a GPU, where all pointers are its memory. Queued on `s`; -EINVAL: a shape or an
 * alignment that it does not take. Linked where the kernels of model/cuda/ops_cuda.h are. */
#ifdef __cplusplus
extern "C" {
#endif
int spw_codec_encode_cuda(const struct spw_codec_args *a, spw_stream s);
#ifdef __cplusplus
}
#endif

#endif
