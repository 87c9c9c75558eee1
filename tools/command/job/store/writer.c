/* See writer.h. */
#include "tools/command/job/store/writer.h"

#include "base/grow.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WRITE_AFTER_NS = 500000000, SECOND_NS = 1000000000 };

/* Waits for half a second, or until the job ends. Called with the lock. */
static void wait_for_more(struct job_writer *w)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += WRITE_AFTER_NS;
    if (until.tv_nsec >= SECOND_NS) {
        until.tv_sec++;
        until.tv_nsec -= SECOND_NS;
    }
    while (!w->ends && pthread_cond_timedwait(&w->changed, &w->lock, &until) != ETIMEDOUT)
        ;
}

static int sync_log(const struct job_log *l)
{
    return fdatasync(l->fd) ? -errno : 0;
}

/* Writes the texts. *path: the file that has failed. */
static int write_texts(struct job_writer *w, uint64_t state_end, const struct job_text *texts,
                       const char **path)
{
    *path = w->state->path;
    SPW_TRY(job_log_check(w->state, state_end, true));
    SPW_TRY(sync_log(w->state));
    for (int i = 0; i < JOB_N_OUTS; i++) {
        struct job_log *out = &w->outs[i];
        *path = out->path;
        SPW_TRY(job_log_check(out, out->end, false));
        if (!texts[i].n)
            continue;
        SPW_TRY(job_log_append(out, texts[i].text, texts[i].n));
        SPW_TRY(sync_log(out));
    }
    return 0;
}

/* Called with the lock, which it gives away meanwhile. */
static void write_some(struct job_writer *w)
{
    struct job_text texts[JOB_N_OUTS];
    const uint64_t state_end = w->state_end;
    const char *path;
    memcpy(texts, w->texts, sizeof texts);
    memset(w->texts, 0, sizeof w->texts);
    w->is_dirty = false;
    pthread_mutex_unlock(&w->lock);
    int rc = write_texts(w, state_end, texts, &path);
    for (int i = 0; i < JOB_N_OUTS; i++)
        spw_free(texts[i].text);
    pthread_mutex_lock(&w->lock);
    w->rc = rc;
    w->path = path;
}

/* The last look finds files that were changed while nothing was written. */
static void *write_lines(void *context)
{
    struct job_writer *w = context;
    bool is_last = false;
    pthread_mutex_lock(&w->lock);
    while (!is_last && !w->rc) {
        while (!w->is_dirty && !w->ends)
            pthread_cond_wait(&w->changed, &w->lock);
        wait_for_more(w);
        is_last = w->ends;
        write_some(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int job_writer_start(struct job_writer *w, struct job_log *state, struct job_log *outs)
{
    pthread_condattr_t monotonic;
    sigset_t all, before;
    *w = (struct job_writer){
        .state = state, .outs = outs, .state_end = state->end, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all); /* signals belong to the other threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&w->thread, NULL, write_lines, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc)
        pthread_cond_destroy(&w->changed);
    return -rc;
}

static int add_text(struct job_text *t, const char *text, size_t bytes)
{
    SPW_TRY(spw_grow(&t->text, &t->capacity, t->n + bytes, 1));
    memcpy(t->text + t->n, text, bytes);
    t->n += bytes;
    return 0;
}

int job_writer_add(struct job_writer *w, int out, const char *text, size_t bytes)
{
    pthread_mutex_lock(&w->lock);
    if (!w->rc && out >= 0) {
        w->rc = add_text(&w->texts[out], text, bytes);
        w->path = w->outs[out].path;
    }
    const int rc = w->rc;
    w->state_end = w->state->end;
    w->is_dirty = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return rc;
}

int job_writer_end(struct job_writer *w)
{
    pthread_mutex_lock(&w->lock);
    w->ends = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    for (int i = 0; i < JOB_N_OUTS; i++)
        spw_free(w->texts[i].text);
    return w->rc;
}
