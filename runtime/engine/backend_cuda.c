/* The CUDA backend: the launchers of model/cuda/ops_cuda.h as one table. Without the toolkit
 * there is only the refusal. */
#include "runtime/engine/backend.h"

#include <stdio.h>

/* Two events and a launch take about 5 us; a link of 16 lanes moves 25 GB/s. This is an
 * estimate, not measured. It only decides the size of a slot. */
enum { TRANSFER_COST_BYTES = 125000 };

/* Device memory of 500 GB/s to 4 TB/s, links of 12 to 50 GB/s: also an estimate. */
enum { READS_PER_LINK_BYTE = 60 };

/* The kernels use only shared memory. */
static size_t no_workspace(size_t k, enum spw_dtype x, enum spw_dtype w)
{
    (void)k, (void)x, (void)w;
    return 0;
}

static void set_facts(struct spw_backend *out)
{
    out->linear_workspace = no_workspace;
    out->transfer_cost_bytes = TRANSFER_COST_BYTES;
    out->reads_per_link_byte = READS_PER_LINK_BYTE;
    out->host_lane = true;
}

void spw_backend_cuda_dry(struct spw_backend *out, struct spw_ops *ops,
                          const struct spw_device_likeness *like)
{
    *ops = (struct spw_ops){.attention_tiles = SPW_ATTENTION_TILES};
    *out = (struct spw_backend){.device_ops = &spw_device_dry, .ops = ops, .context = like};
    set_facts(out);
    snprintf(out->name, sizeof out->name, "simulated GPU");
}

#ifdef SPW_CUDA
#include "model/cuda/ops_cuda.h"
#include "model/cuda/probe_cuda.h"
#include "model/weights/weights.h"

/* A launch may have many tiles, so that all splits of a long context run in parallel. */
static const struct spw_ops cuda_ops = {
    .norm = spw_norm_cuda,
    .linear = spw_linear_cuda,
    .gated_linear = spw_gated_linear_cuda,
    .gated = spw_gated_cuda,
    .rope_append = spw_rope_append_cuda,
    .kv_quantize = spw_codec_encode_cuda,
    .attention = spw_attention_cuda,
    .softcap = spw_softcap_cuda,
    .each = spw_each_cuda,
    .route = spw_route_cuda,
    .gather = spw_gather_cuda,
    .combine = spw_combine_cuda,
    .conv = spw_conv_cuda,
    .recur = spw_recur_cuda,
    .gated_norm = spw_gated_norm_cuda,
    .attention_tiles = SPW_ATTENTION_TILES,
};

int spw_backend_cuda(struct spw_backend *out, uint32_t index, struct spw_error *err)
{
    char gpu[64];
    *out = (struct spw_backend){0};
    SPW_TRY(spw_device_cuda_probe((int)index, gpu, sizeof gpu, err));
    *out = (struct spw_backend){
        .device_ops = &spw_device_cuda,
        .ops = &cuda_ops,
        .read = spw_probe_read_cuda,
        .index = index,
        .embed = spw_weights_embed,
    };
    set_facts(out);
    snprintf(out->name, sizeof out->name, "cuda:%u %s", index, gpu);
    return spw_backend_check(out, err);
}
#else
#include <unistd.h>

int spw_backend_cuda(struct spw_backend *out, uint32_t index, struct spw_error *err)
{
    *out = (struct spw_backend){0};
    if (!access("/proc/driver/nvidia/version", F_OK)) /* a GPU would not be used, in silence */
        return spw_fail(err, -ENODEV,
                        "device cuda:%u: this machine has an NVIDIA driver, but this spillway was "
                        "built without CUDA; put nvcc on the PATH and build it again with "
                        "SPILLWAY_CUDA=ON, as docs/install.md shows, or use options.backend cpu",
                        index);
    return spw_fail(err, -ENOTSUP,
                    "device cuda:%u: this spillway was built without CUDA; build it where nvcc is "
                    "found, or use options.backend cpu",
                    index);
}
#endif
