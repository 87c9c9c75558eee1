/* What an engine reports to its caller, and how a caller ends a step: see runtime/events.h.
 *
 * The queue is a ring inside the engine, so that no event allocates. A full queue drops its oldest
 * event, and the next event that is read says how many were dropped. */
#include "runtime/engine/engine.h"

#include <stdio.h>

/* ---- events ---- */

void spw_engine_report(struct spw_engine *e, const struct spw_engine_event *event)
{
    struct spw_event_queue *q = &e->events;
    if (q->n_added - q->n_read == SPW_ENGINE_EVENTS_KEPT) {
        q->n_read++;
        q->n_missed++;
    }
    q->list[q->n_added++ % SPW_ENGINE_EVENTS_KEPT] = *event;
    q->n_fallbacks += event->kind == SPW_ENGINE_FALLBACK;
    q->n_lost_tiles += event->kind == SPW_ENGINE_LOST_TILE;
}

bool spw_engine_event(struct spw_engine *e, struct spw_engine_event *out)
{
    struct spw_event_queue *q = &e->events;
    if (q->n_read == q->n_added)
        return false;
    *out = q->list[q->n_read++ % SPW_ENGINE_EVENTS_KEPT];
    out->n_missed = q->n_missed;
    q->n_missed = 0;
    return true;
}

void spw_engine_report_note(void *engine, const char *text)
{
    struct spw_engine_event event = {.kind = SPW_ENGINE_NOTE};
    snprintf(event.text, sizeof event.text, "%s", text);
    spw_engine_report(engine, &event);
}

const char *spw_fallback_name(enum spw_fallback_kind kind)
{
    static const char *const names[] = {[SPW_FALLBACK_BUDGETS] = "less spare memory",
                                        [SPW_FALLBACK_CHUNK] = "a smaller prefill chunk",
                                        [SPW_FALLBACK_SLOTS] = "fewer prefetch slots",
                                        [SPW_FALLBACK_WEIGHTS] = "fewer layers on the device",
                                        [SPW_FALLBACK_HOST] = "more KV on the host",
                                        [SPW_FALLBACK_DISK] = "more KV on disk",
                                        [SPW_FALLBACK_INT8] = "int8 for old KV",
                                        [SPW_FALLBACK_INT8_INT4] = "int8:int4 for old KV",
                                        [SPW_FALLBACK_INT4] = "int4 for old KV",
                                        [SPW_FALLBACK_UP] = "more precision for old KV"};
    return names[kind];
}

/* ---- interrupts ---- */

void spw_interrupt_raise(struct spw_interrupt *i)
{
    __atomic_store_n(&i->raised, 1, __ATOMIC_SEQ_CST); /* no lock: allowed in a signal handler */
}

bool spw_interrupt_clear(struct spw_interrupt *i)
{
    return i && __atomic_exchange_n(&i->raised, 0, __ATOMIC_SEQ_CST);
}

bool spw_interrupt_is_raised(const struct spw_interrupt *i)
{
    return i && __atomic_load_n(&i->raised, __ATOMIC_SEQ_CST);
}

/* The step looks, and only spw_sync clears, once the step has ended with -ECANCELED: a step that
 * fails in another way leaves the interrupt to the next step. */
bool spw_engine_is_interrupted(void *engine)
{
    struct spw_engine *e = engine;
    return spw_interrupt_is_raised(e->options.interrupt) ||
           (e->look.is_time && e->look.is_time(e->look.context)) || spw_engine_memory_is_short(e);
}

bool spw_engine_is_hurried(void *engine)
{
    const struct spw_above *above = &((struct spw_engine *)engine)->above;
    return above->batch && above->batch_hooks->is_woken(above->batch);
}
