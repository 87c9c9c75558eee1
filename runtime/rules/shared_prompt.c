/* Prompts that begin alike: see shared_prompt.h. */
#include "runtime/rules/shared_prompt.h"

#include "model/config/config.h"
#include "quant/residual.h"

#include <string.h>

uint64_t spw_common_prefix(const int32_t *a, uint64_t n_a, const int32_t *b, uint64_t n_b)
{
    enum { BLOCK = 1024 }; /* a whole book is compared for each token of an answer */
    const uint64_t n = spw_min_u64(n_a, n_b);
    uint64_t i = 0;
    while (i + BLOCK <= n && !memcmp(a + i, b + i, BLOCK * sizeof *a))
        i += BLOCK;
    while (i < n && a[i] == b[i])
        i++;
    const bool in_source = (i < n_a && a[i] < 0) || (i < n_b && b[i] < 0);
    return in_source ? 0 : i;
}

/* Tokens that `taker` can begin with if its session is made from that of `donor`. */
static uint64_t can_share(struct spw_sharing by, const struct spw_prompt *donor,
                          const struct spw_prompt *taker)
{
    if (donor->is_alone || taker->is_alone || !donor->tokens || !taker->tokens)
        return 0;
    uint64_t n = spw_common_prefix(donor->tokens, donor->n_tokens, taker->tokens, taker->n_tokens);
    n = spw_min_u64(n, taker->n_tokens - 1);
    if (donor->n_held > n && by.needs_checkpoint)
        return 0; /* a window has moved on, or tiles were quantized: it cannot be cut back */
    const uint64_t missing = spw_sub_u64(n, donor->n_held);
    if (missing && missing < by.chunk && donor->n_held >= spw_source_length(taker->tokens, n))
        n = donor->n_held; /* the rest is not worth a step of the donor, as a source is */
    return n < SPW_TILE_TOKENS ? 0 : n;
}

/* The most that prompt `taker` can share with another one, as spw_shared_prompt. Of the prompts
 * without a session, those before `end` count. */
static uint64_t most_shared(struct spw_sharing by, const struct spw_prompt *prompts, uint32_t n,
                            uint32_t taker, uint32_t end, uint32_t *donor)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i == taker || (!prompts[i].is_open && i >= end))
            continue;
        uint64_t shared = can_share(by, &prompts[i], &prompts[taker]);
        if (shared > most) {
            most = shared;
            *donor = i;
        }
        if (most + 1 >= prompts[taker].n_tokens)
            break; /* nobody shares more */
    }
    return most;
}

uint64_t spw_shared_prompt(struct spw_sharing by, const struct spw_prompt *prompts, uint32_t n,
                           uint32_t taker, uint32_t *donor)
{
    return most_shared(by, prompts, n, taker, taker, donor);
}

uint64_t spw_shared_tiles(struct spw_sharing by, const struct spw_prompt *prompts, uint32_t n,
                          uint32_t taker, uint32_t *donor)
{
    uint64_t shared = by.needs_checkpoint ? 0 : spw_shared_prompt(by, prompts, n, taker, donor);
    if (shared && !(prompts[*donor].is_open && prompts[*donor].n_held >= shared))
        shared = spw_max_u64(spw_sub_u64(shared, by.chunk - 1),
                             spw_source_length(prompts[taker].tokens, shared));
    return shared / SPW_TILE_TOKENS;
}

/* The prompt without a session whose n_held, which it would keep, is the highest; n: none has any.
 */
static uint32_t next_taker(const struct spw_prompt *prompts, uint32_t n)
{
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++)
        if (!prompts[i].is_open && prompts[i].n_held > (best < n ? prompts[best].n_held : 0))
            best = i;
    return best;
}

void spw_take_over_prompts(struct spw_sharing by, struct spw_prompt *prompts,
                           const struct spw_prompt *ended, uint32_t n)
{
    uint32_t i, donor;
    for (i = 0; i < n; i++)
        if (!prompts[i].is_open)
            prompts[i].n_held = can_share(by, &ended[i], &prompts[i]);
    while ((i = next_taker(prompts, n)) < n) { /* who keeps most comes first: others fork from it */
        prompts[i].is_open = most_shared(by, prompts, n, i, 0, &donor) <= prompts[i].n_held;
        if (!prompts[i].is_open)
            prompts[i].n_held = 0;
    }
}

uint64_t spw_shared_span_end(struct spw_sharing by, uint64_t before, uint64_t shared)
{
    bool least = before && by.needs_checkpoint;
    return least ? spw_min_u64(before, shared) : spw_max_u64(before, shared);
}
