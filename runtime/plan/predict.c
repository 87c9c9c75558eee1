/* How long a step must take, from bytes and measured limits: see measure.h.
 *
 * A roofline (Williams, Waterman and Patterson, 2009): computation takes as long as reading its
 * bytes, or as long as its multiplications, whichever is longer. Computation, copies and the drive
 * work at the same time, each on its own bytes. The slowest of them sets the pace. Work that cannot
 * overlap is added where it is known:
 *
 * - On a CPU a copy takes a core from the computation. On a GPU copies cost computation nothing,
 *   and the two directions of the link do not disturb each other.
 * - While a layer's weights are used, nobody takes KV from the ring. When the ring is full, the
 *   drive stands still until the layer's attention comes.
 * - Nothing computes while a layer waits for the experts that it misses. Where the host multiplies
 *   these, it takes their bytes at its own rate. The device multiplies the resident experts of the
 *   layer at the same time; their time is added all the same, because it is part of that of all
 *   products. It is short: few of the chosen experts are resident where many are missed.
 * - Where the host multiplies the matrices of a layer, the device waits for it.
 *
 * Products of several rows read each weight once. They take the time of one row, or that of many
 * rows in proportion, whichever is longer. An expert has the rows that choose it.
 *
 * Norms, rotations, launches and the time in which threads wake are not part of this, and all
 * quantized types count as the one that was measured. So a time may be wrong by 30 %, and by more
 * where a token takes less than some milliseconds. Nothing here is fitted to runs. */
#include "runtime/measure.h"
#include "runtime/plan_query.h"

#include <math.h>

/* ---- computation ---- */

/* The products of one pass of n rows with all weights that a row uses: the multiplications. */
static double flop_seconds(const struct spw_plan_info *p, const struct spw_machine *m, double n)
{
    const uint64_t weights[2] = {spw_sub_u64(p->decode_weights, p->decode_quantized_weights),
                                 p->decode_quantized_weights};
    double seconds = 0;
    for (int quantized = 0; quantized < 2; quantized++) {
        const enum spw_product product =
            spw_product_of(p->compute, quantized != 0, p->int8_activations);
        const double few = m->few_flops[product], many = m->many_flops[product];
        seconds +=
            2.0 * (double)weights[quantized] * fmax(few > 0 ? 1 / few : 0, many > 0 ? n / many : 0);
    }
    return seconds;
}

/* The host's products of layers take its own rate in place of the device's. */
static double host_layers_seconds(const struct spw_plan_info *p, const struct spw_machine *m,
                                  double n)
{
    if (n > p->host_layer_rows || m->host_bytes_per_second <= 0)
        return 0;
    return (double)p->host_layers_bytes *
           fmax(n / m->host_bytes_per_second - 1 / m->read_bytes_per_second, 0);
}

static double rows_seconds(const struct spw_plan_info *p, const struct spw_machine *m, double n)
{
    return fmax((double)p->decode_weights_bytes / m->read_bytes_per_second, flop_seconds(p, m, n));
}

/* The experts that n rows use, as a multiple of those of one row, if each is chosen equally often.
 */
static double experts_of_rows(const struct spw_plan_info *p, double n)
{
    const double all = (double)p->n_experts / p->n_expert_layers, kept = p->n_experts_kept;
    return all / kept * (1 - pow(1 - kept / all, n));
}

static double products_seconds(const struct spw_plan_info *p, const struct spw_machine *m, double n)
{
    if (!p->n_expert_layers || !p->decode_expert_bytes)
        return rows_seconds(p, m, n);
    const double share = (double)p->decode_expert_bytes / (double)p->decode_weights_bytes;
    const double experts = experts_of_rows(p, n);
    return (1 - share) * rows_seconds(p, m, n) + share * experts * rows_seconds(p, m, n / experts);
}

/* Attention multiplies the type of the activations, and no int8 numbers. */
static double attention_seconds(const struct spw_plan_info *p, const struct spw_machine *m,
                                double flops)
{
    const double rate = m->many_flops[spw_product_of(p->compute, false, false)];
    return rate > 0 ? flops / rate : 0;
}

static double kv_bytes(const struct spw_plan_info *p)
{
    return (double)spw_sub_u64(p->decode_read_bytes, p->decode_weights_bytes);
}

/* On a CPU, taking codes apart takes about the time of the bytes that they save: a quantized number
 * takes the time of two bytes. A product of a query and a key is followed by one of the sum of
 * values. */
static double kv_seconds(const struct spw_plan_info *p, const struct spw_machine *m)
{
    static const double number_bytes[SPW_KV_PRECISIONS] = {
        [SPW_KV_EXACT] = 2, [SPW_KV_INT8] = 1, [SPW_KV_INT8_INT4] = 0.75, [SPW_KV_INT4] = 0.5};
    const double old = (double)p->decode_old_kv_bytes;
    const double slower = *m->gpu ? 1 : 2 / number_bytes[p->precision];
    return fmax((kv_bytes(p) + (slower - 1) * old) / m->read_bytes_per_second,
                attention_seconds(p, m, 4.0 * (double)p->decode_products));
}

/* ---- copies and the drive ---- */

static double link_seconds(const uint64_t *moved, const struct spw_machine *m)
{
    double up = (double)moved[SPW_MOVED_HOST_TO_DEVICE];
    double down = (double)moved[SPW_MOVED_DEVICE_TO_HOST];
    return (*m->gpu ? fmax(up, down) : up + down) / m->copy_bytes_per_second;
}

/* The bytes of a slot of the ring; 0: there is none. */
static double slot_bytes(const struct spw_plan_info *p)
{
    return p->prefetch_slots ? (double)p->device.kv_slots / p->prefetch_slots : 0;
}

/* Bytes a second of KV that comes through the ring. A drive is slower with small requests: two
 * measured sizes say what a request costs beside its bytes. */
static double kv_rate(const struct spw_plan_info *p, const struct spw_drive *d)
{
    const double full = d->read_bytes_per_second, bytes = slot_bytes(p);
    const double from = (double)d->small_request_bytes, to = (double)d->request_bytes;
    if (bytes <= 0 || bytes >= to || from <= 0 || from >= to)
        return full;
    const double small = from / d->small_read_bytes_per_second, large = to / full;
    const double seconds = small + (large - small) * (bytes - from) / (to - from);
    return fmin(full, bytes / fmax(seconds, bytes / full));
}

/* `weights`: seconds of a step in which nobody takes KV from the ring. */
static double disk_seconds(const struct spw_plan_info *p, double weights, const struct spw_drive *d)
{
    const uint64_t *moved = p->decode_moved_bytes;
    const double of_weights = (double)p->weights_disk_bytes;
    const double kv = (double)moved[SPW_MOVED_DISK_TO_HOST] - of_weights, rate = kv_rate(p, d);
    const double ring = p->n_layers * ((double)p->device.kv_slots - slot_bytes(p));
    const double still = kv > 0 ? fmax(0, weights - ring / rate) : 0;
    return kv / rate + of_weights / d->read_bytes_per_second +
           (double)moved[SPW_MOVED_HOST_TO_DISK] / d->write_bytes_per_second + still;
}

/* ---- all together ---- */

static void predict(struct spw_prediction *out, const struct spw_machine *m)
{
    if (!*m->gpu)
        out->compute_seconds += out->link_seconds / fmax(m->cores, 1);
    out->seconds = fmax(out->compute_seconds, fmax(out->link_seconds, out->disk_seconds));
    out->bound = out->seconds == out->compute_seconds ? SPW_BOUND_COMPUTE
                 : out->seconds == out->link_seconds  ? SPW_BOUND_LINK
                                                      : SPW_BOUND_DISK;
}

/* Each layer with experts waits for the drive once, if it misses any there. For a GPU, experts from
 * the drive come into host memory; they cross the link or are multiplied like those that lay there.
 */
static void add_experts(struct spw_prediction *out, const struct spw_plan_info *p,
                        const struct spw_machine *m, const struct spw_drive *d)
{
    const bool on_host = fmax(p->decode_rows, 1) <= p->host_rows && m->host_bytes_per_second > 0;
    const double bytes = (double)p->decode_expert_disk_bytes;
    const double link = ((double)p->decode_expert_host_bytes + (*m->gpu ? bytes : 0)) /
                        (on_host ? m->host_bytes_per_second : m->copy_bytes_per_second);
    const double disk =
        d && bytes > 0 ? bytes / d->read_bytes_per_second + p->n_expert_layers * d->latency_seconds
                       : 0;
    if (fmax(link, disk) > out->seconds)
        out->bound = disk > link ? SPW_BOUND_DISK : on_host ? SPW_BOUND_COMPUTE : SPW_BOUND_LINK;
    *(on_host ? &out->compute_seconds : &out->link_seconds) += link;
    out->disk_seconds += disk;
    out->seconds += fmax(link, disk);
}

void spw_predict_step(struct spw_prediction *out, const struct spw_plan_info *p,
                      const struct spw_machine *m, const struct spw_drive *d)
{
    const double rows = fmax(p->decode_rows, 1), products = products_seconds(p, m, rows);
    const double link = link_seconds(p->decode_moved_bytes, m);
    *out = (struct spw_prediction){
        .compute_seconds = products + kv_seconds(p, m) + host_layers_seconds(p, m, rows),
        .link_seconds = link,
        .disk_seconds = d ? disk_seconds(p, fmax(products, link), d) : 0};
    predict(out, m);
    add_experts(out, p, m, d);
}

/* Only the last token needs logits, so the products may be fewer than those of decode steps. */
static double prompt_products_seconds(const struct spw_prompt_work *work,
                                      const struct spw_plan_info *p, const struct spw_machine *m)
{
    const double passes = ceil(work->tokens / fmax(p->prefill_chunk, 1));
    const double rows = fmax(work->tokens / passes, 1);
    const double all = 2.0 * work->tokens * (double)p->decode_weights;
    const double part = all > 0 ? fmin(work->product_flops / all, 1) : 0;
    return passes * fmax(part * products_seconds(p, m, rows), rows_seconds(p, m, 1));
}

void spw_predict_prompt(struct spw_prediction *out, const struct spw_plan_info *p,
                        const struct spw_prompt_work *work, const struct spw_machine *m,
                        const struct spw_drive *d)
{
    const uint64_t *moved = p->prefill_moved_bytes;
    *out =
        (struct spw_prediction){.compute_seconds = prompt_products_seconds(work, p, m) +
                                                   attention_seconds(p, m, work->attention_flops),
                                .link_seconds = link_seconds(moved, m)};
    if (d)
        out->disk_seconds = (double)moved[SPW_MOVED_DISK_TO_HOST] / kv_rate(p, d) +
                            (double)moved[SPW_MOVED_HOST_TO_DISK] / d->write_bytes_per_second;
    predict(out, m);
}

const char *spw_bound_name(enum spw_bound bound)
{
    static const char *const names[] = {[SPW_BOUND_COMPUTE] = "computation",
                                        [SPW_BOUND_LINK] = "host link",
                                        [SPW_BOUND_DISK] = "disk"};
    return names[bound];
}
