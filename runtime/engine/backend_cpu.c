/* The CPU backend: each launcher queues the kernel of the chosen instruction set. */
#include "runtime/engine/backend.h"

#include "model/cpu/ops_cpu.h"
#include "model/cpu/probe.h"
#include "model/weights/weights.h"
#include "quant/codes.h"

#include <stdio.h>

/* On the CPU a transfer is a copy by one thread. To hand a command to another thread takes 1 us, in
 * which a thread copies 20,000 bytes (20 GB/s; 2 cores of an EPYC, 2026-11-20). */
enum { TRANSFER_COST_BYTES = 20000 };

/* Kernels, with all cores, read 50 to 90 GB/s on that machine: about 3 times as much. */
enum { READS_PER_LINK_BYTE = 3 };

static const struct spw_cpu_kernels *kernels(spw_stream s)
{
    return spw_device_cpu_context(s);
}

static int launch(spw_stream s, const struct spw_kernel *k, const void *args, size_t bytes)
{
    return spw_device_cpu_launch(spw_device_cpu_of(s), s, k, args, bytes);
}

/* An operation of one kernel of the same name. */
#define LAUNCH(op, arguments)                                                                      \
    static int launch_##op(const struct arguments *a, spw_stream s)                                \
    {                                                                                              \
        return launch(s, kernels(s)->op, a, sizeof *a);                                            \
    }

LAUNCH(norm, spw_norm_args)
LAUNCH(gated, spw_gated_args)
LAUNCH(rope_append, spw_rope_append_args)
LAUNCH(kv_quantize, spw_codec_args)
LAUNCH(softcap, spw_softcap_args)
LAUNCH(each, spw_each_args)
LAUNCH(gather, spw_gather_args)
LAUNCH(combine, spw_combine_args)
LAUNCH(gated_norm, spw_gated_norm_args)

/* ---- products with the matrices of experts: each row is a product of its own ---- */

struct chosen_args {
    const struct spw_kernel *product;
    struct spw_linear_args a;
};

static struct spw_linear_args product_of_row(const struct spw_linear_args *a, size_t row)
{
    const uint32_t expert = a->choices[row].expert;
    const size_t at = spw_row_bytes(a->y_dtype, row * a->y_stride);
    struct spw_linear_args own = *a;
    own.choices = NULL;
    own.m = 1;
    own.w = a->matrices[expert];
    own.bias = a->bias ? a->bias + expert * a->bias_step : NULL;
    own.x = (const uint8_t *)a->x + spw_row_bytes(a->x_dtype, row * a->x_stride);
    own.y = (uint8_t *)a->y + at;
    own.residual = a->residual ? (const uint8_t *)a->residual + at : NULL;
    own.codes = (struct spw_codes *)a->codes + (a->x_stride ? row * spw_codes_groups(a->k) : 0);
    return own;
}

static size_t tasks_of_row(const struct chosen_args *c)
{
    struct spw_linear_args own = c->a;
    own.m = 1;
    return c->product->n_tasks(&own);
}

static size_t chosen_tasks(const void *args)
{
    const struct chosen_args *c = args;
    return c->a.m * tasks_of_row(c);
}

static void chosen_run(const void *args, size_t task, unsigned worker)
{
    const struct chosen_args *c = args;
    const size_t each = tasks_of_row(c);
    const struct spw_linear_args own = product_of_row(&c->a, task / each);
    c->product->run(&own, task % each, worker);
}

static const struct spw_kernel chosen_kernel = {"chosen", chosen_tasks, chosen_run};

static int launch_product(const struct spw_kernel *k, const struct spw_linear_args *a, spw_stream s)
{
    const struct chosen_args chosen = {k, *a};
    return a->choices ? launch(s, &chosen_kernel, &chosen, sizeof chosen)
                      : launch(s, k, a, sizeof *a);
}

static int launch_linear(const struct spw_linear_args *a, spw_stream s)
{
    if (a->x_dtype != SPW_DTYPE_BF16 || !spw_type_is_quantized(a->w_dtype))
        return launch_product(kernels(s)->linear, a, s);
    struct spw_linear_args rows = *a;
    if (a->choices && !a->x_stride) /* all rows are the same one */
        rows.m = 1;
    if (!a->has_codes)
        SPW_TRY(launch(s, kernels(s)->encode, &rows, sizeof rows));
    return launch_product(kernels(s)->linear_codes, a, s);
}

/* One product if up follows gate in memory and has its type. The bits of an output do not depend on
 * this. */
static int launch_gated_linear(const struct spw_gated_linear_args *a, spw_stream s)
{
    const size_t gate_bytes = a->n * spw_row_bytes(a->gate_dtype, a->k);
    const bool joined = !a->choices && a->gate_dtype == a->up_dtype &&
                        (const uint8_t *)a->w_gate + gate_bytes == a->w_up;
    struct spw_linear_args product = {.x = a->x,
                                      .w = a->w_gate,
                                      .bias = a->bias,
                                      .y = a->scratch,
                                      .m = a->m,
                                      .n = joined ? 2 * a->n : a->n,
                                      .k = a->k,
                                      .x_stride = a->x_stride,
                                      .y_stride = 2 * a->n,
                                      .x_dtype = a->dtype,
                                      .w_dtype = a->gate_dtype,
                                      .y_dtype = a->dtype,
                                      .workspace = a->workspace,
                                      .codes = a->codes,
                                      .has_codes = a->has_codes,
                                      .choices = a->choices,
                                      .matrices = a->gates,
                                      .bias_step = 2 * a->n};
    SPW_TRY(launch_linear(&product, s));
    if (!joined) {
        if (spw_type_is_quantized(a->gate_dtype))
            product.has_codes = spw_codes_shared(a->gate_dtype, a->up_dtype);
        product.w = a->w_up;
        product.matrices = a->ups;
        product.w_dtype = a->up_dtype;
        product.bias = a->bias ? a->bias + a->n : NULL;
        product.y = (uint8_t *)a->scratch + spw_row_bytes(a->dtype, a->n);
        SPW_TRY(launch_linear(&product, s));
    }
    const struct spw_gated_args gated = {.gate = a->scratch,
                                         .up =
                                             (uint8_t *)a->scratch + spw_row_bytes(a->dtype, a->n),
                                         .y = a->y,
                                         .rows = a->m,
                                         .cols = a->n,
                                         .gate_stride = 2 * a->n,
                                         .up_stride = 2 * a->n,
                                         .act = a->act,
                                         .dtype = a->dtype};
    return launch_gated(&gated, s);
}

/* The most tiles of one call: their addresses must fit into the arguments of a command. */
enum { ATTENTION_TILES = 32 };

/* Few query rows give few tasks. Then the splits of the call run in parallel. */
static int launch_attention(const struct spw_attention_args *a, spw_stream s)
{
    size_t bytes = offsetof(struct spw_attention_args, tiles) + a->n_tiles * sizeof a->tiles[0];
    const struct spw_cpu_kernels *k = kernels(s);
    unsigned threads = spw_device_cpu_threads(spw_device_cpu_of(s));
    if (!a->split_states || k->attention->n_tasks(a) >= 2 * threads)
        return launch(s, k->attention, a, bytes);
    SPW_TRY(launch(s, k->attention_splits, a, bytes));
    return launch(s, k->attention_merge, a, bytes);
}

static int launch_route(const struct spw_route_args *a, spw_stream s)
{
    SPW_TRY(launch(s, kernels(s)->route_scores, a, sizeof *a));
    return launch(s, kernels(s)->route, a, sizeof *a);
}

/* The largest ones, with all their parts. */
_Static_assert(sizeof(struct spw_conv_args) <= SPW_CPU_ARGS_BYTES, "see offload/device/device.h");
_Static_assert(sizeof(struct spw_recur_args) <= SPW_CPU_ARGS_BYTES, "see offload/device/device.h");

static int launch_conv(const struct spw_conv_args *a, spw_stream s)
{
    const size_t parts = a->n_parts * sizeof a->parts[0];
    return launch(s, kernels(s)->conv, a, offsetof(struct spw_conv_args, parts) + parts);
}

static int launch_recur(const struct spw_recur_args *a, spw_stream s)
{
    const size_t parts = a->n_parts * sizeof a->parts[0];
    return launch(s, kernels(s)->recur, a, offsetof(struct spw_recur_args, parts) + parts);
}

static int launch_read(const void *from, uint64_t bytes, void *sink, spw_stream s)
{
    const struct spw_read_args a = {from, bytes};
    (void)sink;
    return launch(s, &spw_read_kernel, &a, sizeof a);
}

static const struct spw_ops cpu_ops = {
    .norm = launch_norm,
    .linear = launch_linear,
    .gated_linear = launch_gated_linear,
    .gated = launch_gated,
    .rope_append = launch_rope_append,
    .kv_quantize = launch_kv_quantize,
    .attention = launch_attention,
    .softcap = launch_softcap,
    .each = launch_each,
    .route = launch_route,
    .gather = launch_gather,
    .combine = launch_combine,
    .conv = launch_conv,
    .recur = launch_recur,
    .gated_norm = launch_gated_norm,
    .attention_tiles = ATTENTION_TILES,
    .gated_scratch = true,
};

void spw_backend_cpu_with(struct spw_backend *out, const struct spw_cpu_kernels *k)
{
    *out = (struct spw_backend){
        .device_ops = &spw_device_cpu,
        .ops = &cpu_ops,
        .context = k,
        .linear_workspace = k->linear_workspace,
        .embed = spw_weights_embed,
        .transfer_cost_bytes = TRANSFER_COST_BYTES,
        .reads_per_link_byte = READS_PER_LINK_BYTE,
        .reads_host_memory = true,
        .read = launch_read,
    };
    snprintf(out->name, sizeof out->name, "cpu %s", spw_isa_name(k->isa));
}

void spw_backend_cpu(struct spw_backend *out)
{
    spw_backend_cpu_with(out, spw_cpu_kernels_get(spw_isa_best()));
}

/* ---- any backend ---- */

static bool ops_complete(const struct spw_ops *o)
{
    return o->norm && o->linear && o->gated_linear && o->gated && o->rope_append &&
           o->kv_quantize && o->attention && o->softcap && o->each && o->route && o->gather &&
           o->combine && o->conv && o->recur && o->gated_norm && o->attention_tiles;
}

int spw_backend_check(const struct spw_backend *b, struct spw_error *err)
{
    bool in_place = !b->reads_host_memory || (b->device_ops && b->device_ops->charge);
    if (b->device_ops && b->ops && b->linear_workspace && b->embed && in_place &&
        ops_complete(b->ops))
        return 0;
    return spw_fail(err, -EINVAL,
                    "backend %s: an operation is missing from its table; build spillway again, or "
                    "use options.backend cpu",
                    b->name);
}
