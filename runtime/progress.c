/* See progress.h. */
#include "runtime/progress.h"

int spw_progress_init(struct spw_progress_marks *m)
{
    for (int i = 0; m->report && i < 2; i++)
        SPW_TRY(m->ops->event_open(m->device, &m->events[i]));
    return 0;
}

void spw_progress_free(struct spw_progress_marks *m)
{
    for (int i = 0; i < 2; i++)
        if (m->events[i])
            m->ops->event_close(m->device, m->events[i]);
    m->events[0] = m->events[1] = NULL;
}

void spw_progress_begin(struct spw_progress_marks *m, uint64_t n_new_tokens, uint32_t n_layers,
                        bool prefill)
{
    m->wanted = m->report && prefill;
    m->n_marks = 0;
    m->now = (struct spw_progress){.total = n_new_tokens * n_layers, .n_new_tokens = n_new_tokens};
}

int spw_progress_mark(struct spw_progress_marks *m, uint64_t rows)
{
    if (!m->wanted)
        return 0;
    uint64_t i = m->n_marks++ % 2;
    if (m->n_marks > 2) { /* the mark before the last one */
        SPW_TRY(m->ops->event_sync(m->device, m->events[i]));
        m->now.done += m->rows[i];
        m->report(m->context, &m->now);
    }
    m->rows[i] = rows;
    return m->ops->event_record(m->device, m->events[i], m->compute);
}

void spw_progress_end(struct spw_progress_marks *m)
{
    if (!m->report)
        return;
    m->now.done = m->now.total;
    m->report(m->context, &m->now);
}
