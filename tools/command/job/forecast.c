/* The time of a job's work: see forecast.h.
 *
 * A plan has the bytes of one decode step of one session at the full context, and those of a prompt
 * of the full context. Here they become the bytes of n requests of any length. Then
 * spw_predict_step and spw_predict_prompt know the time.
 *
 * Requests share frames. KV that fits into the frames of a tier stays there, and the rest streams.
 * All requests of a step read each weight once. So, for n requests that hold T tokens together:
 *
 *     KV that is read          the plan's KV * T / context
 *     KV that streams          KV that is read, less the frames of the device
 *     KV from the disk         the same, less the frames of the host
 *     weights                  as in the plan, multiplied with n rows
 *     logits, tiles downward   the plan's bytes * n
 *
 * The result is an estimate, from the typical figures of the machine. */
#include "tools/command/job/forecast.h"
#include "runtime/plan_query.h"

#include <math.h>

static uint64_t scaled(uint64_t bytes, double factor)
{
    return (uint64_t)fmin((double)bytes * factor, 9e18);
}

static uint64_t kv_bytes(const struct spw_plan_info *p)
{
    return spw_sub_u64(p->decode_read_bytes, p->decode_weights_bytes);
}

/* ---- the two parts of the bytes in the plan's decode step ---- */

static uint64_t kv_from_disk(const struct spw_plan_info *p)
{
    return spw_sub_u64(p->decode_moved_bytes[SPW_MOVED_DISK_TO_HOST], p->weights_disk_bytes);
}

/* KV from the disk crosses the host link only if it lands in buffers of the host. */
static uint64_t kv_over_link(uint64_t streamed, uint64_t from_disk, const struct spw_plan_info *p)
{
    return spw_sub_u64(streamed, p->host.disk_staging > 0 ? 0 : from_disk);
}

static uint64_t weights_over_link(const struct spw_plan_info *p)
{
    return spw_sub_u64(p->decode_moved_bytes[SPW_MOVED_HOST_TO_DEVICE],
                       kv_over_link(p->decode_slot_bytes, kv_from_disk(p), p));
}

/* ---- decode ---- */

static void share_frames(struct spw_plan_info *out, const struct spw_plan_info *p, double n,
                         double contexts)
{
    uint64_t kv = scaled(kv_bytes(p), contexts), streamed = 0, from_disk = 0;
    if (p->decode_slot_bytes)
        streamed = spw_sub_u64(kv, p->device.kv_resident);
    if (kv_from_disk(p))
        from_disk = spw_sub_u64(streamed, p->host.kv);
    uint64_t *moved = out->decode_moved_bytes;
    moved[SPW_MOVED_HOST_TO_DEVICE] = weights_over_link(p) + kv_over_link(streamed, from_disk, p);
    moved[SPW_MOVED_DISK_TO_HOST] =
        p->decode_moved_bytes[SPW_MOVED_DISK_TO_HOST] - kv_from_disk(p) + from_disk;
    moved[SPW_MOVED_DEVICE_TO_HOST] = scaled(p->decode_moved_bytes[SPW_MOVED_DEVICE_TO_HOST], n);
    moved[SPW_MOVED_HOST_TO_DISK] = scaled(p->decode_moved_bytes[SPW_MOVED_HOST_TO_DISK], n);
    out->decode_rows = (uint32_t)n;
    out->decode_read_bytes = p->decode_read_bytes - kv_bytes(p) + kv;
    out->decode_old_kv_bytes = scaled(p->decode_old_kv_bytes, contexts);
    out->decode_products = scaled(p->decode_products, contexts);
}

double job_step_seconds(const struct job_forecast *f, uint64_t n, uint64_t n_held)
{
    struct spw_plan_info p = *f->plan;
    struct spw_prediction step;
    share_frames(&p, f->plan, (double)n, (double)n_held / (double)p.context);
    spw_predict_step(&step, &p, &f->limits->machine, cli_limits_drive(f->limits));
    return step.seconds;
}

uint64_t job_running(const struct spw_plan_info *plan, uint64_t n_held)
{
    uint64_t room = plan->full_sessions * plan->context / n_held;
    return spw_min_u64(plan->sessions, spw_max_u64(room, 1));
}

double job_rate(const struct job_forecast *f, uint64_t n_held)
{
    uint64_t n = job_running(f->plan, n_held);
    return (double)n / job_step_seconds(f, n, n * n_held);
}

/* ---- prompts ---- */

/* The part of the KV of `contexts` contexts that does not fit into `frames`, relative to the same
 * part in the plan. */
static double share_outside(const struct spw_plan_info *p, double contexts, uint64_t frames,
                            uint64_t in_plan)
{
    double kv = (double)kv_bytes(p);
    double outside = fmax(0, kv * contexts - (double)frames) / contexts;
    return in_plan ? fmin(outside / (double)in_plan, 1) : 0;
}

/* Seconds of a step that computes this part of prompts. They hold `n_held` tokens then. */
static double prompt_seconds(const struct job_forecast *f, const struct spw_prompt_work *work,
                             double n_held)
{
    struct spw_plan_info p = *f->plan;
    struct spw_prediction prompt;
    double contexts = n_held / (double)p.context;
    uint64_t *moved = p.prefill_moved_bytes;
    /* Weights come once, for all prompts of the step. */
    uint64_t weights = spw_min_u64(weights_over_link(&p), moved[SPW_MOVED_HOST_TO_DEVICE]);
    uint64_t from_files = spw_min_u64(p.weights_disk_bytes, moved[SPW_MOVED_DISK_TO_HOST]);
    double link = contexts * share_outside(&p, contexts, p.device.kv_resident, p.decode_slot_bytes);
    double disk =
        contexts * share_outside(&p, contexts, p.device.kv_resident + p.host.kv, kv_from_disk(&p));
    moved[SPW_MOVED_HOST_TO_DEVICE] =
        weights + scaled(moved[SPW_MOVED_HOST_TO_DEVICE] - weights, link);
    moved[SPW_MOVED_DEVICE_TO_HOST] = scaled(moved[SPW_MOVED_DEVICE_TO_HOST], link);
    moved[SPW_MOVED_DISK_TO_HOST] =
        from_files + scaled(moved[SPW_MOVED_DISK_TO_HOST] - from_files, disk);
    moved[SPW_MOVED_HOST_TO_DISK] = scaled(moved[SPW_MOVED_HOST_TO_DISK], disk);
    spw_predict_prompt(&prompt, &p, work, &f->limits->machine, cli_limits_drive(f->limits));
    return prompt.seconds;
}

/* ---- a run ---- */

/* The tokens of a prompt that were computed before count in both terms. */
static void add_prompt(struct spw_prompt_work *work, const struct job_forecast *f,
                       const struct spw_plan_span *span)
{
    const struct spw_prompt_work all = cli_prompt_work(f->plan, f->config, span->to);
    const struct spw_prompt_work before = cli_prompt_work(f->plan, f->config, span->from);
    work->tokens += all.tokens - before.tokens;
    work->product_flops += all.product_flops - (span->from ? before.product_flops : 0);
    work->attention_flops += all.attention_flops - before.attention_flops;
}

static void count_step(struct job_times *out, size_t n, double seconds, uint64_t times)
{
    out->n_decode_steps += times;
    if (n > out->most_sessions) {
        out->most_sessions = n;
        out->fullest_seconds = 0;
        out->n_fullest_steps = 0;
    }
    if (n < out->most_sessions)
        return;
    out->fullest_seconds += seconds;
    out->n_fullest_steps += times;
}

/* Answers in a step with prompts take the time that they add to a step of one of them. Where
 * positions get other rotations, an answer computes all its tokens again, as a prompt. */
void job_add_steps(struct job_times *out, const struct job_forecast *f,
                   const struct spw_plan_span *spans, size_t n, uint64_t times)
{
    struct spw_prompt_work work = {0};
    uint64_t n_answers = 0, n_held = 0, n_in_prompts = 0;
    bool has_prompt = false;
    for (size_t i = 0; i < n; i++) {
        has_prompt |= spans[i].is_prompt;
        if (spans[i].is_prompt || spans[i].to - spans[i].from > 1) {
            add_prompt(&work, f, &spans[i]);
            n_in_prompts += spans[i].to;
        } else {
            n_held += spans[i].to;
            n_answers++;
        }
    }
    n_held += n_answers * (times - 1) / 2; /* the mean of all steps */
    double seconds = n_answers ? job_step_seconds(f, n_answers, n_held) : 0;
    if (n_answers && work.tokens > 0)
        seconds -= job_step_seconds(f, 1, 0);
    if (work.tokens > 0)
        seconds += prompt_seconds(f, &work, (double)n_in_prompts);
    *(has_prompt ? &out->prefill_seconds : &out->decode_seconds) += (double)times * seconds;
    if (!has_prompt)
        count_step(out, n, (double)times * seconds, times);
}
