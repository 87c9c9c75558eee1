/* See progress.h. */
#include "runtime/step/progress.h"

int spw_progress_init(struct spw_progress_marks *m)
{
    for (int i = 0; (m->report || m->interrupted) && i < 2; i++)
        SPW_TRY(spw_lane_event_open(m->lane, &m->events[i]));
    return 0;
}

void spw_progress_free(struct spw_progress_marks *m)
{
    for (int i = 0; i < 2; i++)
        spw_lane_event_close(m->lane, m->events[i]);
    m->events[0] = m->events[1] = NULL;
}

void spw_progress_begin(struct spw_progress_marks *m, uint64_t n_new_tokens, uint32_t n_layers,
                        bool prefill)
{
    m->wanted = (m->report || m->interrupted) && prefill;
    m->n_marks = 0;
    m->now = (struct spw_progress){.total = n_new_tokens * n_layers, .n_new_tokens = n_new_tokens};
}

int spw_progress_ask(const struct spw_progress_marks *m)
{
    return m->interrupted && m->interrupted(m->interrupt_context) ? -ECANCELED : 0;
}

int spw_progress_mark(struct spw_progress_marks *m, uint64_t rows)
{
    if (!m->wanted)
        return spw_progress_ask(m);
    uint64_t i = m->n_marks++ % 2;
    if (m->n_marks > 2) { /* the mark before the last one */
        SPW_TRY(spw_lane_event_sync(m->lane, m->events[i]));
        m->now.done += m->rows[i];
        if (m->report)
            m->report(m->context, &m->now);
    }
    m->rows[i] = rows;
    SPW_TRY(spw_lane_event_record(m->lane, m->events[i], m->lane->compute));
    return spw_progress_ask(m);
}

void spw_progress_end(struct spw_progress_marks *m)
{
    if (!m->report)
        return;
    m->now.done = m->now.total;
    m->report(m->context, &m->now);
}
