/* Prompts that begin alike: see shared_prompt.h. */
#include "runtime/batch/shared_prompt.h"

#include "runtime/persist/snapshot.h"

#include <string.h>

uint64_t spw_common_prefix(const int32_t *a, const int32_t *b, uint64_t n)
{
    enum { BLOCK = 1024 }; /* a whole book is compared for each token of an answer */
    uint64_t i = 0;
    while (i + BLOCK <= n && !memcmp(a + i, b + i, BLOCK * sizeof *a))
        i += BLOCK;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* Tokens that `taker` can begin with if it is forked from `donor`. */
static uint64_t can_share(const struct spw_plan *p, const struct spw_prompt *donor,
                          const struct spw_prompt *taker)
{
    if (donor->is_alone || taker->is_alone || !donor->tokens || !taker->tokens)
        return 0;
    uint64_t n = spw_common_prefix(donor->tokens, taker->tokens,
                                   spw_min_u64(donor->n_tokens, taker->n_tokens - 1));
    n -= n % SPW_TILE_TOKENS;
    if (donor->n_held > n && spw_snapshot_needs_checkpoint(p))
        return 0; /* a window has moved on, or tiles were quantized: the fork cannot be cut back */
    return n <= donor->n_held || n >= p->chunk ? n : 0;
}

uint64_t spw_shared_prompt(const struct spw_plan *p, const struct spw_prompt *prompts, uint32_t n,
                           uint32_t taker, uint32_t *donor)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i == taker || (!prompts[i].is_open && i > taker))
            continue;
        uint64_t shared = can_share(p, &prompts[i], &prompts[taker]);
        if (shared > most) {
            most = shared;
            *donor = i;
        }
        if (most + SPW_TILE_TOKENS >= prompts[taker].n_tokens)
            break; /* nobody shares more */
    }
    return most;
}

uint64_t spw_shared_span_end(const struct spw_plan *p, uint64_t before, uint64_t shared)
{
    bool least = before && spw_snapshot_needs_checkpoint(p);
    return least ? spw_min_u64(before, shared) : spw_max_u64(before, shared);
}
