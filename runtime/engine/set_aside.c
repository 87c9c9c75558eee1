/* A step of prompts that is set aside: it is paused between two chunks of a layer while other
 * sessions decode (as chunked prefill elsewhere, but a layer's weights still move once a pass).
 *
 *   spw_engine_sync(prompts)  -EAGAIN    the step is set aside: its sessions have the tokens that
 *                                        have passed all layers
 *   spw_engine_sync(others)              runs in between
 *   spw_engine_sync(prompts)             the same spans: the step continues
 *
 * Everything else that needs a session of the step, another plan or other shares of the frames
 * drops the step: its sessions are cut back to the tokens that have passed all layers. */
#include "runtime/engine/engine.h"

#include <string.h>

/* No step is set aside any more: it continues, or was dropped. */
static void forget(struct spw_engine *e)
{
    for (uint32_t i = 0; i < e->aside.n; i++)
        e->aside.sessions[i]->is_aside = false;
    e->aside.n = 0;
}

void spw_engine_set_aside(struct spw_engine *e)
{
    for (uint32_t i = 0; i < e->step.n; i++) {
        struct spw_session *s = e->step.sessions[i];
        const struct spw_executor_item *x = &e->step.items[i];
        /* the rest of its tokens, to compare with what the next call asks for */
        memcpy(s->tokens + s->n_tokens, x->tokens + s->n_tokens,
               (x->span.to - s->n_tokens) * sizeof *s->tokens);
        s->has_logits = false;
        s->aside_span = x->span;
        s->is_aside = true;
        e->aside.sessions[i] = s;
    }
    e->aside.n = e->step.n;
}

void spw_engine_continue_aside(struct spw_engine *e)
{
    if (e->step.sessions[0]->is_aside)
        forget(e);
}

bool spw_engine_continues_aside(const struct spw_engine *e, const struct spw_span *spans, size_t n)
{
    bool same = e->aside.n && n == e->aside.n;
    for (size_t i = 0; i < n && same; i++) {
        const struct spw_session *s = e->aside.sessions[i];
        uint64_t to = s->aside_span.to;
        same = spans[i].session == s && spans[i].n_tokens == s->asked &&
               spans[i].n_logits == s->asked_logits &&
               !memcmp(s->tokens, spans[i].tokens, to * sizeof *s->tokens);
    }
    return same;
}

/* Sessions that cannot be cut back are empty afterwards. */
void spw_engine_drop_aside(struct spw_engine *e)
{
    uint32_t n = e->aside.n;
    if (!n)
        return;
    forget(e);
    if (!e->executor)
        return; /* the caches are gone, and the sessions have their tokens */
    spw_executor_drop_aside(e->executor);
    if (!spw_recover_step(e, e->aside.sessions, n))
        return;
    e->unpredicted = true;
    for (uint32_t i = 0; i < n; i++)
        spw_session_empty(e->aside.sessions[i]);
}
