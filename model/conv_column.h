/* Which column of x a channel of a convolution comes from. */
#ifndef SPW_MODEL_CONV_COLUMN_H
#define SPW_MODEL_CONV_COLUMN_H

#include "model/ops.h"

/* *together gets how many channels lie side by side from this one on. */
SPW_INLINE size_t spw_conv_column(const struct spw_conv_args *a, uint32_t channel,
                                  uint32_t *together)
{
    uint32_t run = 0, channels = a->runs[0].n_heads * a->runs[0].columns.width;
    while (channel >= channels) {
        channel -= channels;
        run++;
        channels = a->runs[run].n_heads * a->runs[run].columns.width;
    }
    const struct spw_head_columns *c = &a->runs[run].columns;
    const uint32_t group = c->per_group * c->width, left = group - channel % group;
    *together = left < channels - channel ? left : channels - channel;
    return spw_head_column(c, channel / c->width) + channel % c->width;
}

#endif
