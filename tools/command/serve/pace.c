/* See pace.h. */
#include "tools/command/serve/pace.h"

#include "base/base.h"

#include <math.h>

/* Steps of a decode that prompts may take between two of them. */
#define SHARE 24
/* Passes are at least so many decode steps long. */
#define LEAST_PASS 20

void serve_pace_init(struct serve_pace *p, const struct spw_plan_info *plan, double max_gap)
{
    *p = (struct serve_pace){.max_gap = max_gap,
                             .chunk_tokens = spw_max_u64(plan->prefill_chunk, 1),
                             .streams = plan->n_layers_resident < plan->n_layers,
                             .chunks = 1};
    p->pass_tokens = p->streams ? UINT64_MAX : p->chunk_tokens;
}

/* Half of the way from what was measured before: times of one step vary. */
static void measure(double *known, double value)
{
    *known = *known > 0 ? (*known + value) / 2 : value;
}

static double bound(double x, double least, double most)
{
    return x < least ? least : x > most ? most : x;
}

void serve_pace_begin(struct serve_pace *p, double now)
{
    p->began = now;
}

/* Seconds of the chunks of a step such that the next decode step is in time, too. */
static double most_seconds(const struct serve_pace *p)
{
    return 0.9 * p->max_gap - 1.2 * p->decode_seconds;
}

bool serve_pace_is_late(const struct serve_pace *p, double now)
{
    return now - p->began + 2 * p->chunk_seconds > most_seconds(p) + p->decode_seconds;
}

/* Both numbers at most double each time: the first chunks of a prompt are the shortest. */
static uint32_t choose_chunks(const struct serve_pace *p, bool decodes)
{
    const double d = p->decode_seconds;
    double seconds = decodes ? fmin(most_seconds(p), SHARE * d) : p->max_gap / 2;
    if (p->chunk_seconds <= 0)
        return 1;
    return (uint32_t)bound(seconds / p->chunk_seconds, 1, fmin(2.0 * p->chunks, 1e6));
}

static uint64_t choose_pass(const struct serve_pace *p)
{
    const double d = p->decode_seconds;
    if (p->tokens_a_second <= 0 || (p->streams && d <= 0))
        return p->pass_tokens;
    const double seconds = fmax(p->max_gap, LEAST_PASS * d);
    const double most = p->pass_tokens == UINT64_MAX ? 1e15 : 2.0 * (double)p->pass_tokens;
    return (uint64_t)bound(seconds * p->tokens_a_second, (double)p->chunk_tokens, most);
}

void serve_pace_update(struct serve_pace *p, const struct spw_batch_times *times, bool decodes)
{
    const struct spw_batch_times *seen = &p->seen;
    const double prefill = times->prefill_seconds - seen->prefill_seconds;
    const uint64_t n_tokens = times->n_prompt_tokens - seen->n_prompt_tokens;
    if (times->n_decode_steps > seen->n_decode_steps)
        measure(&p->decode_seconds, (times->decode_seconds - seen->decode_seconds) /
                                        (double)(times->n_decode_steps - seen->n_decode_steps));
    if (times->n_pauses > seen->n_pauses && times->n_chunks > seen->n_chunks)
        measure(&p->chunk_seconds, prefill / (double)(times->n_chunks - seen->n_chunks));
    p->pass_seconds += prefill;
    if (n_tokens) {
        p->tokens_a_second = (double)n_tokens / fmax(p->pass_seconds, 1e-6);
        p->pass_seconds = 0;
    }
    p->seen = *times;
    p->chunks = choose_chunks(p, decodes);
    p->pass_tokens = choose_pass(p);
}
