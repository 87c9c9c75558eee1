/* A step of prompts that is paused: it stops between two chunks of a layer while other
 * sessions decode (as chunked prefill elsewhere, but a layer's weights still move once a pass).
 *
 *   spw_engine_sync(prompts)  -EAGAIN    the step is paused: its sessions have the tokens that
 *                                        have passed all layers
 *   spw_engine_sync(others)              runs in between
 *   spw_engine_sync(prompts)             the same spans: the step continues
 *
 * Everything else that needs a session of the step, another plan or other shares of the frames
 * drops the step: its sessions are cut back to the tokens that have passed all layers. */
#include "runtime/engine/engine.h"

#include <string.h>

/* No step is paused any more: it continues, or was dropped. */
static void forget(struct spw_engine *e)
{
    for (uint32_t i = 0; i < e->paused.n; i++)
        e->paused.sessions[i]->is_paused = false;
    e->paused.n = 0;
}

void spw_engine_pause(struct spw_engine *e)
{
    for (uint32_t i = 0; i < e->step.n; i++) {
        struct spw_session *s = e->step.sessions[i];
        const struct spw_executor_item *x = &e->step.items[i];
        /* the rest of its tokens, to compare with what the next call asks for */
        memcpy(s->tokens + s->n_tokens, x->tokens + s->n_tokens,
               (x->span.to - s->n_tokens) * sizeof *s->tokens);
        s->has_logits = false;
        s->paused_span = x->span;
        s->is_paused = true;
        e->paused.sessions[i] = s;
    }
    e->paused.n = e->step.n;
}

void spw_engine_continue_paused(struct spw_engine *e)
{
    if (e->step.sessions[0]->is_paused)
        forget(e);
}

bool spw_engine_continues_paused(const struct spw_engine *e, const struct spw_span *spans, size_t n)
{
    bool same = e->paused.n && n == e->paused.n;
    for (size_t i = 0; i < n && same; i++) {
        const struct spw_session *s = e->paused.sessions[i];
        uint64_t to = s->paused_span.to;
        same = spans[i].session == s && spans[i].n_tokens == s->asked &&
               spans[i].n_logits == s->asked_logits &&
               !memcmp(s->tokens, spans[i].tokens, to * sizeof *s->tokens);
    }
    return same;
}

/* Sessions that cannot be cut back are empty afterwards. */
void spw_engine_drop_paused(struct spw_engine *e)
{
    uint32_t n = e->paused.n;
    if (!n)
        return;
    forget(e);
    if (!e->executor)
        return; /* the caches are gone, and the sessions have their tokens */
    spw_executor_drop_paused(e->executor);
    if (!spw_recover_step(e, e->paused.sessions, n))
        return;
    e->unpredicted = true;
    for (uint32_t i = 0; i < n; i++)
        spw_session_empty(e->paused.sessions[i]);
}
