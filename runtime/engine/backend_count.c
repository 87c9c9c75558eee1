/* The counting backend: the counting device (offload/device/device_count.c) with operations that do
 * nothing. What a plan asks of a backend is as in the backend that it stands for. */
#include "runtime/engine/backend.h"

static int no_norm(const struct spw_norm_args *a, spw_stream s)
{
    (void)a, (void)s;
    return 0;
}

static int no_linear(const struct spw_linear_args *a, spw_stream s)
{
    (void)a, (void)s;
    return 0;
}

static int no_gated_linear(const struct spw_gated_linear_args *a, spw_stream s)
{
    (void)a, (void)s;
    return 0;
}

static int no_gated(const struct spw_gated_args *a, spw_stream s)
{
    (void)a, (void)s;
    return 0;
}

static int no_rope_append(const struct spw_rope_append_args *a, spw_stream s)
{
    (void)a, (void)s;
    return 0;
}

static int no_kv_quantize(const struct spw_codec_args *a, spw_stream s)
{
    (void)a, (void)s;
    return 0;
}

static int no_attention(const struct spw_attention_args *a, spw_stream s)
{
    (void)a, (void)s;
    return 0;
}

static int no_softcap(const struct spw_softcap_args *a, spw_stream s)
{
    (void)a, (void)s;
    return 0;
}

static int no_each(const struct spw_each_args *a, spw_stream s)
{
    (void)a, (void)s;
    return 0;
}

static int no_route(const struct spw_route_args *a, spw_stream s)
{
    (void)a, (void)s;
    return 0;
}

static int no_gather(const struct spw_gather_args *a, spw_stream s)
{
    (void)a, (void)s;
    return 0;
}

static int no_combine(const struct spw_combine_args *a, spw_stream s)
{
    (void)a, (void)s;
    return 0;
}

static void no_embed(const struct spw_weights *w, const int32_t *tokens, size_t n,
                     enum spw_dtype compute, void *rows, void *inputs)
{
    (void)w, (void)tokens, (void)n, (void)compute, (void)rows, (void)inputs;
}

void spw_backend_count(struct spw_counting_backend *out, const struct spw_backend *of,
                       const struct spw_lane *lane)
{
    *out = (struct spw_counting_backend){.backend = *of,
                                         .ops = {.norm = no_norm,
                                                 .linear = no_linear,
                                                 .gated_linear = no_gated_linear,
                                                 .gated = no_gated,
                                                 .rope_append = no_rope_append,
                                                 .kv_quantize = no_kv_quantize,
                                                 .attention = no_attention,
                                                 .softcap = no_softcap,
                                                 .each = no_each,
                                                 .route = no_route,
                                                 .gather = no_gather,
                                                 .combine = no_combine,
                                                 .attention_tiles = of->ops->attention_tiles,
                                                 .gated_scratch = of->ops->gated_scratch},
                                         .like = {.workers = lane->ops->workers(lane->device),
                                                  .available = lane->ops->available(lane->device)}};
    out->backend.device_ops = &spw_device_count;
    out->backend.ops = &out->ops;
    out->backend.context = &out->like;
    out->backend.embed = no_embed;
    out->backend.io_fault = NULL;
    out->backend.counts = true;
}
