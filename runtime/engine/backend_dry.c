/* The dry backend: the dry device (offload/device/device_dry.c) with operations that do
 * nothing. What a plan asks of a backend is as in the backend that it stands for. */
#include "runtime/engine/backend.h"

/* An operation that does nothing. */
#define NOTHING(op)                                                                                \
    static int no_##op(const struct spw_##op##_args *a, spw_stream s)                              \
    {                                                                                              \
        (void)a, (void)s;                                                                          \
        return 0;                                                                                  \
    }

NOTHING(norm)
NOTHING(linear)
NOTHING(gated_linear)
NOTHING(gated)
NOTHING(rope_append)
NOTHING(codec)
NOTHING(attention)
NOTHING(softcap)
NOTHING(each)
NOTHING(route)
NOTHING(gather)
NOTHING(combine)
NOTHING(conv)
NOTHING(recur)
NOTHING(gated_norm)

static void no_embed(const struct spw_weights *w, const struct spw_embed_args *a)
{
    (void)w, (void)a;
}

void spw_backend_dry(struct spw_dry_backend *out, const struct spw_backend *of,
                     const struct spw_lane *lane)
{
    *out = (struct spw_dry_backend){.backend = *of,
                                    .ops = {.norm = no_norm,
                                            .linear = no_linear,
                                            .gated_linear = no_gated_linear,
                                            .gated = no_gated,
                                            .rope_append = no_rope_append,
                                            .kv_quantize = no_codec,
                                            .attention = no_attention,
                                            .softcap = no_softcap,
                                            .each = no_each,
                                            .route = no_route,
                                            .gather = no_gather,
                                            .combine = no_combine,
                                            .conv = no_conv,
                                            .recur = no_recur,
                                            .gated_norm = no_gated_norm,
                                            .attention_tiles = of->ops->attention_tiles,
                                            .gated_scratch = of->ops->gated_scratch},
                                    .like = {.workers = lane->ops->workers(lane->device),
                                             .available = lane->ops->available(lane->device)}};
    out->backend.device_ops = &spw_device_dry;
    out->backend.ops = &out->ops;
    out->backend.context = &out->like;
    out->backend.embed = no_embed;
    out->backend.io_fault = NULL;
}
