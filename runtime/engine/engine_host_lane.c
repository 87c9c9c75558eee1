/* The second lane of an engine whose kernels do not read host memory: the CPU's device and
 * operations, for products that go to the data (runtime/step/host_products.h). It has no memory of
 * its own: its buffers are the plan's. */
#include "runtime/engine/engine.h"

#include "quant/types.h"

/* Only products with quantized weights, and rows as codes, have the same bits on every processor.
 */
static bool multiplies_experts(const struct spw_engine *e)
{
    const struct spw_weights *w = e->model.weights;
    bool all = w->n_expert_blocks && (!w->experts_stored || w->experts_mappable);
    for (uint32_t u = w->n_blocks; u < w->n_blocks + w->n_expert_blocks; u++)
        for (uint32_t i = w->blocks[u].first; i < w->blocks[u].first + w->blocks[u].n; i++)
            all &= spw_type_is_quantized(w->matrices[i].type);
    return all;
}

static bool multiplies_layers(const struct spw_engine *e)
{
    bool any = false;
    for (uint32_t u = 0; u < spw_config_main_layers(&e->model.config); u++)
        any |= e->model.weights->blocks[u].quantized;
    return any;
}

int spw_engine_open_host_lane(struct spw_engine *e, const struct spw_options *o,
                              struct spw_error *err)
{
    struct spw_lane *lane = &e->host.lane;
    if (!e->backend.host_lane || o->host_compute == SPW_HOST_COMPUTE_OFF ||
        e->model.compute != SPW_DTYPE_BF16 || (!multiplies_experts(e) && !multiplies_layers(e)))
        return 0;
    spw_backend_cpu(&e->host.backend);
    const struct spw_device_options x = {.threads = (int)o->threads,
                                         .beside_device = true,
                                         .delay_seed = o->delay_seed,
                                         .context = e->host.backend.context};
    lane->ops = e->host.backend.device_ops;
    SPW_TRY(lane->ops->open(&lane->device, &x, err));
    int rc = lane->ops->stream_open(lane->device, "compute", &lane->compute);
    return rc ? spw_fail(err, rc, "the thread of the host's products could not be started") : 0;
}

void spw_engine_close_host_lane(struct spw_engine *e)
{
    struct spw_lane *lane = &e->host.lane;
    if (!lane->device)
        return;
    spw_lane_close_streams(lane);
    lane->ops->close(lane->device);
}

void spw_engine_plan_host_lane(struct spw_plan_input *in, const struct spw_engine *e,
                               const struct spw_options *o)
{
    const struct spw_lane *lane = &e->host.lane;
    const struct spw_weights *w = e->model.weights;
    const struct spw_experts_config *c = &w->config->experts;
    uint64_t bytes = 0;
    if (!lane->device)
        return;
    for (uint32_t i = 0; i < w->n_matrices; i++)
        if (spw_type_is_quantized(w->matrices[i].type))
            bytes = spw_max_u64(bytes, e->host.backend.linear_workspace(
                                           w->matrices[i].k, in->compute, w->matrices[i].type));
    in->host_workspace_bytes = lane->ops->workers(lane->device) * spw_align_up(bytes, 64);
    if (o->machine)
        in->host_rates = (struct spw_host_rates){.host = o->machine->host_bytes_per_second,
                                                 .link = o->machine->copy_bytes_per_second,
                                                 .device = o->machine->read_bytes_per_second};
    in->host_rows = multiplies_experts(e) ? spw_host_rows(&in->host_rates, c->n, c->n_kept) : 0;
    in->host_layer_rows = multiplies_layers(e) ? spw_host_rows(&in->host_rates, 1, 1) : 0;
}
