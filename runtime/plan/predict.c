/* How long a step must take, from bytes and measured limits: see spillway.h.
 *
 * Computation, copies and the drive work at the same time, each on its own bytes. The slowest of
 * them sets the pace. Work that cannot overlap is added where it is known.
 *
 * Computation reads weights as fast as the kernel for one row does with weights of their type and
 * with rows of about their length, and each product takes some time beside its bytes. Norms,
 * rotations and sums take some time each, and some for each number. Computation reads KV as fast as
 * memory gives it, unless attention takes longer. Attention takes some time for each byte, more if
 * codes must be taken apart, and some time for each product. The more queries share a key, the more
 * products there are.
 *
 * On the CPU all three share the cores and the memory. A copy takes a core from the team, and reads
 * and writes memory that kernels read at the same time. How fast both are side by side is measured
 * (read_beside, copy_beside). They run side by side until one of them is done; then the other one
 * has the machine alone. Other threads take core-seconds too, and a second has only `cores` of
 * them. On a GPU copies and the drive cost computation nothing, and the link's two directions do
 * not disturb each other.
 *
 * KV from the drive comes in slots of a ring. A slot goes round:
 *
 *     asked for --latency of its bytes--> landed --> queued --> computed --> free --> asked for ...
 *                                                '-------------- handover --------------'
 *
 * The handover goes from thread to thread. The compute stream wakes when the host has seen that a
 * read is complete. The stream that asks for reads wakes when the kernel is done. (The time in
 * which the drive's own thread and the thread that waits for it wake is part of the measured
 * latency.) If a slot takes t seconds to go round, a ring of n slots brings at most n / t slots a
 * second (Little's law), however fast the link or the drive is. A ring of large slots, or of many,
 * is not limited by that. Threads wake, and look for work for a while before they sleep: that also
 * costs core time for each slot. (A slot that the host holds is copied in a few microseconds, and
 * no thread sleeps.) A drive is slower with small requests than with large ones: two measured sizes
 * say what a request costs beside its bytes.
 *
 * Where experts move, each layer's choice goes to the host and back: a handover, too. Then the
 * layer asks for the experts that it misses; their requests and their arrival wake threads once
 * more. Beside these reads only those of its experts compute that lie on the device or have come
 * already, and nothing else. The requests of a layer are a burst, which a drive serves slower than
 * requests that follow each other without a pause. Two measured bursts say what a burst costs
 * beside its bytes.
 *
 * A token begins when the host has seen the logits of the token before it: one more handover.
 *
 * Several rows: products were measured with some numbers of rows. Between and beyond these their
 * time is a straight line. Where they were not measured, they are as fast as the matrix peak:
 * that is a lower bound. Each row takes the time of the numbers of its norms and rotations.
 *
 * A prompt: passes of many rows. Attention is as fast as it was measured for many rows.
 *
 * While a layer's weights are used, nobody takes slots from the ring. When the ring is full, the
 * drive stands still until the layer's attention comes.
 *
 * Nothing here is fitted to runs. Where kernels do not reach the machine's limit, prediction and
 * measurement differ. */
#include "runtime/measure.h"
#include "quant/types.h"
#include "runtime/plan_query.h"

#include <math.h>

/* The work of a step or a prompt. */
struct work {
    double compute_seconds; /* by all threads, nothing beside it */
    /* CPU: how much longer computation and copies take beside each other than alone. */
    double compute_beside, copy_beside;
    double link_seconds, disk_seconds; /* alone */
    double core_seconds;               /* of threads that neither compute nor copy */
    struct missed_experts {
        double link_seconds, disk_seconds; /* of their bytes */
        double alone_seconds;              /* in which nothing computes beside them */
        double handover_seconds;           /* from the routers to the host and back */
    } missed;
};

/* ---- computation of one token ---- */

static double attention_seconds(const struct spw_machine *m, enum spw_kv_precision form,
                                double bytes, double products)
{
    double own =
        bytes * m->attention[form].byte_seconds + products * m->attention[form].product_seconds;
    return fmax(own, bytes / m->read_bytes_per_second);
}

/* By the index of the number of rows. Weights in f32 are multiplied as f32, whatever the row is. */
static const struct spw_product_speed *speeds_of(const struct spw_plan_info *p,
                                                 const struct spw_machine *m, enum spw_dtype type)
{
    const bool as_f32 = p->compute == SPW_DTYPE_F32 || type == SPW_DTYPE_F32;
    return as_f32 ? m->f32_products[type] : m->bf16_products[type];
}

/* With weights of one type, those of experts or all others. */
static double type_seconds(const struct spw_plan_info *p, enum spw_dtype t, bool of_experts,
                           const struct spw_product_speed *speed)
{
    const struct spw_decode_products *of = &p->decode_products_of[t];
    const uint64_t bytes = of_experts ? of->experts.bytes : of->dense.bytes;
    const uint64_t shorts = of_experts ? of->experts.short_bytes : of->dense.short_bytes;
    const uint64_t n = of_experts ? of->experts.n : of->dense.n;
    double seconds = (double)n * speed->product_seconds;
    if (bytes > shorts)
        seconds += (double)(bytes - shorts) * speed->byte_seconds;
    if (shorts)
        seconds += (double)shorts * speed->short_byte_seconds;
    return seconds;
}

/* The products of spw_row_counts[count] rows. */
static double count_seconds(const struct spw_plan_info *p, const struct spw_machine *m,
                            bool of_experts, int count)
{
    double seconds = 0;
    for (enum spw_dtype t = SPW_DTYPE_F32; t < SPW_WEIGHT_TYPES; t++)
        seconds += type_seconds(p, t, of_experts, &speeds_of(p, m, t)[count]);
    return seconds;
}

/* The products of one row. */
static double products_seconds(const struct spw_plan_info *p, const struct spw_machine *m,
                               bool of_experts)
{
    return count_seconds(p, m, of_experts, 0);
}

/* The products of n rows: a straight line between the next measured counts. */
static double rows_seconds(const struct spw_plan_info *p, const struct spw_machine *m,
                           bool of_experts, double n)
{
    double from, to = products_seconds(p, m, of_experts);
    int i = 0;
    do {
        from = to;
        to = fmax(from, count_seconds(p, m, of_experts, ++i));
    } while (i < SPW_ROW_COUNTS - 1 && spw_row_counts[i] < n);
    const double before = spw_row_counts[i - 1];
    return from + (to - from) * (n - before) / (spw_row_counts[i] - before);
}

/* The multiplications and additions of a row. *measured: products of several rows were, with all
 * types of weights. */
static double row_flops(const struct spw_plan_info *p, const struct spw_machine *m, bool *measured)
{
    double flops = 0;
    *measured = true;
    for (enum spw_dtype t = SPW_DTYPE_F32; t < SPW_WEIGHT_TYPES; t++) {
        const struct spw_decode_products *of = &p->decode_products_of[t];
        const struct spw_type type = spw_type_of(t);
        const double bytes = (double)(of->dense.bytes + of->experts.bytes);
        flops += 2.0 * bytes * type.elements / fmax(type.bytes, 1);
        *measured &= bytes <= 0 || speeds_of(p, m, t)[1].byte_seconds > 0;
    }
    return flops;
}

/* The experts that n rows use, as a multiple of those of one row, if each is chosen equally often.
 */
static double experts_of_rows(const struct spw_plan_info *p, double n)
{
    if (!p->n_expert_layers)
        return 0;
    const double all = (double)p->n_experts / p->n_expert_layers, kept = p->n_experts_kept;
    return all / kept * (1 - pow(1 - kept / all, n));
}

/* The products of a pass of n rows. An expert has the rows that choose it. */
static double pass_seconds(const struct spw_plan_info *p, const struct spw_machine *m, double n)
{
    const double experts = experts_of_rows(p, n);
    const double dense = rows_seconds(p, m, false, n);
    return experts > 0 ? dense + experts * rows_seconds(p, m, true, n / experts) : dense;
}

/* Each weight is read once for all rows of a step. */
static double weights_seconds(const struct spw_plan_info *p, const struct spw_machine *m)
{
    bool measured;
    const double n = fmax(p->decode_rows, 1), flops = row_flops(p, m, &measured);
    if (n == 1)
        return products_seconds(p, m, false) + products_seconds(p, m, true);
    if (measured)
        return pass_seconds(p, m, n);
    const double peak = spw_machine_peak(m, p->compute, p->int8_activations);
    const double first =
        products_seconds(p, m, false) + experts_of_rows(p, n) * products_seconds(p, m, true);
    return peak > 0 ? fmax(first, n * flops / peak) : first;
}

static double row_seconds(const struct spw_plan_info *p, const struct spw_machine *m)
{
    return (double)p->decode_row_operations * m->row_operation_seconds +
           (double)p->decode_row_numbers * m->row_number_seconds;
}

static double kv_bytes(const struct spw_plan_info *p)
{
    return (double)spw_sub_u64(p->decode_read_bytes, p->decode_weights_bytes);
}

static double kv_seconds(const struct spw_plan_info *p, const struct spw_machine *m)
{
    double old = (double)p->decode_old_kv_bytes, exact = kv_bytes(p) - old;
    return attention_seconds(m, SPW_KV_EXACT, exact, (double)p->decode_products) +
           attention_seconds(m, p->precision, old, (double)p->decode_old_products);
}

/* ---- copies ---- */

static double link_seconds(const uint64_t *moved, const struct spw_machine *m)
{
    double up = (double)moved[SPW_MOVED_HOST_TO_DEVICE];
    double down = (double)moved[SPW_MOVED_DEVICE_TO_HOST];
    return (*m->gpu ? fmax(up, down) : up + down) / m->copy_bytes_per_second;
}

/* ---- the ring ---- */

struct ring {
    double n_slots;
    double slot_bytes;  /* that come into one, on the average */
    double use_seconds; /* from having landed to being asked for again */
};

/* Reads land in slots of the device, or in bounce buffers before it. A bounce buffer is free again
 * when it has been copied to its slot. */
static struct ring ring_of(const struct spw_plan_info *p, const struct spw_machine *m)
{
    struct ring r = {.n_slots = p->prefetch_slots};
    if (!p->decode_slots || !p->prefetch_slots)
        return (struct ring){0};
    double slots = (double)p->device.kv_slots, staging = (double)p->host.disk_staging;
    bool bounces = staging > 0;
    r.slot_bytes = (double)p->decode_slot_bytes / (double)p->decode_slots;
    if (bounces && staging < slots)
        r.n_slots *= staging / slots;
    double use = bounces ? r.slot_bytes / m->copy_bytes_per_second
                         : kv_seconds(p, m) * r.slot_bytes / fmax(kv_bytes(p), 1);
    r.use_seconds = m->handover_seconds + use;
    return r;
}

/* A straight line through the measured times of small and of large requests: a part for each
 * request, and a part for each byte. */
static double by_size(const struct spw_drive *d, double small, double large, double bytes)
{
    double from = (double)d->small_request_bytes, to = (double)d->request_bytes;
    if (from <= 0 || from >= to)
        return large * bytes / to;
    return small + (large - small) * (bytes - from) / (to - from);
}

/* Bytes a second of KV that comes through the ring. A slot that is larger than a request has
 * several of them. */
static double disk_rate(const struct ring *r, const struct spw_drive *d)
{
    double full = d->read_bytes_per_second, request = (double)d->request_bytes;
    if (r->n_slots <= 0)
        return full;
    double bytes = fmin(r->slot_bytes, request);
    double small = (double)d->small_request_bytes / d->small_read_bytes_per_second;
    double busy = fmax(by_size(d, small, request / full, bytes), bytes / full);
    double alone = by_size(d, d->small_latency_seconds, d->latency_seconds, bytes);
    double latency = fmax(alone, busy) + (r->slot_bytes - bytes) / full;
    return fmin(bytes / busy, r->n_slots * r->slot_bytes / (latency + r->use_seconds));
}

/* Core-seconds of the I/O threads for each byte. */
static double io_cost(const struct ring *r, const struct spw_drive *d)
{
    double request = (double)d->request_bytes, bytes = fmin(r->slot_bytes, request);
    double small = (double)d->small_request_bytes * d->small_cpu_seconds_per_byte;
    if (r->n_slots <= 0)
        return d->cpu_seconds_per_byte;
    return fmax(by_size(d, small, request * d->cpu_seconds_per_byte, bytes) / bytes,
                d->cpu_seconds_per_byte);
}

/* ---- all together ---- */

/* Computation and copies share cores and memory, side by side until one of them is done. */
static void run_beside(struct spw_prediction *out, const struct work *w,
                       const struct spw_machine *m)
{
    double compute = w->compute_seconds * w->compute_beside;
    double copies = w->link_seconds * w->copy_beside;
    double both = fmin(compute, copies);
    out->compute_seconds = out->link_seconds = both;
    if (compute > both)
        out->compute_seconds += w->compute_seconds * (1 - both / compute);
    if (copies > both)
        out->link_seconds += w->link_seconds * (1 - both / copies);
    double cores = fmax(m->cores, 1), threads = fmin(m->threads, cores);
    double busy = both * fmin(threads + 1, cores) + threads * (out->compute_seconds - both) +
                  (out->link_seconds - both);
    out->compute_seconds = fmax(out->compute_seconds, (busy + w->core_seconds) / cores);
}

static void add_experts(struct spw_prediction *out, const struct missed_experts *e)
{
    out->link_seconds += e->link_seconds;
    out->disk_seconds += e->disk_seconds;
    if (e->alone_seconds > out->seconds)
        out->bound = e->disk_seconds > e->link_seconds ? SPW_BOUND_DISK : SPW_BOUND_LINK;
    out->seconds += e->alone_seconds + e->handover_seconds;
}

static void predict(struct spw_prediction *out, const struct work *w, const struct spw_machine *m)
{
    *out = (struct spw_prediction){.compute_seconds = w->compute_seconds,
                                   .link_seconds = w->link_seconds,
                                   .disk_seconds = w->disk_seconds};
    if (!*m->gpu)
        run_beside(out, w, m);
    out->seconds = out->compute_seconds;
    out->bound = SPW_BOUND_COMPUTE;
    if (out->link_seconds > out->seconds) {
        out->seconds = out->link_seconds;
        out->bound = SPW_BOUND_LINK;
    }
    if (out->disk_seconds > out->seconds) {
        out->seconds = out->disk_seconds;
        out->bound = SPW_BOUND_DISK;
    }
    add_experts(out, &w->missed);
}

/* ---- missed experts ---- */

/* A straight line through the measured times of a small and of a large burst. */
static double burst_seconds(const struct spw_drive *d, double bytes)
{
    const double few = SPW_DRIVE_FEW * (double)d->request_bytes;
    const double many = SPW_DRIVE_MANY * (double)d->request_bytes;
    const double rest = fmax(d->many_seconds - d->few_seconds, 0) * (bytes - few) / (many - few);
    return fmax(d->few_seconds + rest, d->small_latency_seconds);
}

/* Each expert of a row is missed with the same chance, so the number of missed ones in a layer is
 * binomial. They arrive one after the other, and each computes when it is there. A layer waits as
 * long as none of its experts computes. */
static struct missed_experts missed_experts(const struct spw_plan_info *p,
                                            const struct spw_machine *m, const struct spw_drive *d)
{
    const double disk = d ? (double)p->decode_expert_disk_bytes : 0;
    const double host = (double)p->decode_expert_host_bytes;
    const double layers = p->n_expert_layers, kept = p->n_experts_kept;
    struct missed_experts e = {.link_seconds = host / m->copy_bytes_per_second};
    if (p->n_experts_resident < p->n_experts)
        e.handover_seconds = layers * m->handover_seconds;
    if (disk + host <= 0)
        return e;
    const double missed = fmin(1, (disk + host) / (double)p->decode_expert_bytes);
    const double all = missed * layers * kept; /* in a token */
    const double compute = products_seconds(p, m, true) / (layers * kept);
    double ways = kept, first = 0; /* first: until an expert is there that is missed alone */
    for (double n = 1; n <= kept; n++) {
        const double often = layers * ways * pow(missed, n) * pow(1 - missed, kept - n);
        const double burst = disk > 0 ? burst_seconds(d, n * disk / all) : 0;
        const double last = burst + n * e.link_seconds / all;
        first = n > 1 ? first : last;
        const double done = fmax(first + n * compute, last + compute);
        e.alone_seconds += often * fmax(0, done - kept * compute);
        e.disk_seconds += often * burst;
        e.handover_seconds += often * m->handover_seconds;
        ways *= (kept - n) / (n + 1);
    }
    return e;
}

/* ---- a step ---- */

/* How long the drive stands still in a step. One slot of the ring is in use by computation. */
static double still_seconds(const struct spw_plan_info *p, const struct spw_machine *m,
                            const struct ring *r, double rate)
{
    double weights = fmax(weights_seconds(p, m), link_seconds(p->decode_moved_bytes, m));
    return fmax(0, weights - p->n_layers * (r->n_slots - 1) * r->slot_bytes / rate);
}

static void add_disk(struct work *w, const struct spw_plan_info *p, const struct spw_machine *m,
                     const struct spw_drive *d)
{
    const uint64_t *moved = p->decode_moved_bytes;
    double weights = (double)p->weights_disk_bytes,
           kv = (double)moved[SPW_MOVED_DISK_TO_HOST] - weights;
    double written = (double)moved[SPW_MOVED_HOST_TO_DISK];
    struct ring r = ring_of(p, m);
    double rate = disk_rate(&r, d);
    w->disk_seconds =
        kv / rate + weights / d->read_bytes_per_second + written / d->write_bytes_per_second;
    w->core_seconds = kv * io_cost(&r, d) + (weights + written) * d->cpu_seconds_per_byte;
    if (kv > 0 && r.n_slots > 0) {
        w->disk_seconds += still_seconds(p, m, &r, rate);
        w->core_seconds += kv / r.slot_bytes * m->handover_core_seconds;
    }
}

void spw_predict_step(struct spw_prediction *out, const struct spw_plan_info *p,
                      const struct spw_machine *m, const struct spw_drive *d)
{
    struct work w = {
        .compute_seconds = weights_seconds(p, m) + row_seconds(p, m) + kv_seconds(p, m),
        .compute_beside = m->read_bytes_per_second / m->read_beside_bytes_per_second,
        .copy_beside = m->copy_bytes_per_second / m->copy_beside_bytes_per_second,
        .link_seconds = link_seconds(p->decode_moved_bytes, m),
        .missed = missed_experts(p, m, d),
    };
    if (d)
        add_disk(&w, p, m, d);
    predict(out, &w, m);
    out->seconds += m->handover_seconds; /* of the logits to the host, and back */
}

/* ---- a prompt ---- */

/* Attention does not multiply int8 numbers. How fast it is was measured in bf16 only. */
static double prompt_attention_seconds(const struct spw_prompt_work *work,
                                       const struct spw_plan_info *p, const struct spw_machine *m)
{
    double flops = spw_machine_peak(m, p->compute, false);
    if (p->compute != SPW_DTYPE_F32 && m->attention_flops > 0)
        flops = m->attention_flops;
    return flops > 0 ? work->attention_flops / flops : 0;
}

/* Without cuBLASLt there is no peak. */
static double prompt_products_seconds(const struct spw_prompt_work *work,
                                      const struct spw_plan_info *p, const struct spw_machine *m)
{
    bool measured;
    const double peak = spw_machine_peak(m, p->compute, p->int8_activations);
    const double flops = row_flops(p, m, &measured);
    if (flops <= 0 || !measured) /* the weights are read at least once */
        return fmax(peak > 0 ? work->product_flops / peak : 0,
                    (double)p->weights_bytes / m->read_bytes_per_second);
    const double passes = ceil(work->tokens / fmax(p->prefill_chunk, 1));
    const double rows = fmax(work->tokens / passes, 1);
    const double threads = fmax(fmin(m->threads, m->cores), 1);
    const double experts = experts_of_rows(p, rows);
    const double first = products_seconds(p, m, false) + experts * products_seconds(p, m, true);
    /* Only the last token needs logits. */
    const double others = work->product_flops / (work->tokens * flops);
    return passes * (first + fmax(pass_seconds(p, m, rows) - first, 0) * others) +
           work->tokens * (double)p->decode_row_numbers * m->row_number_seconds / threads;
}

/* Products need few bytes a second: a copy only takes a core from them. */
void spw_predict_prompt(struct spw_prediction *out, const struct spw_plan_info *p,
                        const struct spw_prompt_work *work, const struct spw_machine *m,
                        const struct spw_drive *d)
{
    const double products = prompt_products_seconds(work, p, m);
    double cores = fmax(m->cores, 1), threads = fmax(fmin(m->threads, cores), 1);
    const uint64_t *moved = p->prefill_moved_bytes;
    struct work w = {.compute_seconds = products + prompt_attention_seconds(work, p, m),
                     .compute_beside = threads / fmax(fmin(threads, cores - 1), 0.5),
                     .copy_beside = cores > 1 ? 1 : 2,
                     .link_seconds = link_seconds(moved, m)};
    if (d) {
        double from = (double)moved[SPW_MOVED_DISK_TO_HOST];
        double to = (double)moved[SPW_MOVED_HOST_TO_DISK];
        struct ring r = ring_of(p, m);
        w.disk_seconds = from / disk_rate(&r, d) + to / d->write_bytes_per_second;
        w.core_seconds = from * io_cost(&r, d) + to * d->cpu_seconds_per_byte;
    }
    predict(out, &w, m);
}

const char *spw_bound_name(enum spw_bound bound)
{
    static const char *const names[] = {[SPW_BOUND_COMPUTE] = "computation",
                                        [SPW_BOUND_LINK] = "host link",
                                        [SPW_BOUND_DISK] = "disk"};
    return names[bound];
}
