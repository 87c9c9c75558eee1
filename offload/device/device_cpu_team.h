/* Threads of the CPU device: a counter to wait on, and the team that shares the tasks of a
 * kernel.
 *
 * A counter only grows. Any thread may wait until it has reached a number. A team has `threads`
 * workers: the caller of spw_team_run is worker 0, the others sleep between kernels. Several
 * callers take turns. If copies need more cores than the workers leave free, some workers take no
 * tasks, so that each copy has a core: a worker that shared its core with a copy would be slow, and
 * all other workers of the kernel would wait for it. Only open and init can fail (-ENOMEM; a thread
 * counts as an allocation). */
#ifndef SPW_OFFLOAD_DEVICE_DEVICE_CPU_TEAM_H
#define SPW_OFFLOAD_DEVICE_DEVICE_CPU_TEAM_H

#include "base/base.h"

#include <pthread.h>
#include <stdatomic.h>

struct spw_placement;

struct spw_counter {
    _Atomic uint64_t value;
    _Atomic uint64_t wake_at; /* the least number that a sleeping thread waits for; UINT64_MAX: no
                                 thread sleeps */
    pthread_mutex_t lock;
    pthread_cond_t grown;
};

int spw_counter_init(struct spw_counter *c);
void spw_counter_free(struct spw_counter *c); /* no thread waits or adds any more */
void spw_counter_add(struct spw_counter *c, uint64_t n);
/* Returns when value >= at_least: spins for `spin_ns`, then sleeps. Data written before the add
 * is visible then. */
void spw_counter_wait(struct spw_counter *c, uint64_t at_least, uint64_t spin_ns);

/* Only spins. Returns whether the value was reached. */
bool spw_counter_spin(struct spw_counter *c, uint64_t at_least, uint64_t spin_ns);

static inline uint64_t spw_counter_get(const struct spw_counter *c)
{
    return atomic_load_explicit(&c->value, memory_order_acquire);
}

/* Starts a thread that gets no signals of the program. */
int spw_thread_start(pthread_t *out, const char *name, void *(*fn)(void *), void *argument);

struct spw_team;

/* Worker i runs where the placement (borrowed) puts compute thread i. `cores`: usable by this
 * process. */
int spw_team_open(struct spw_team **out, unsigned threads, unsigned cores,
                  const struct spw_placement *placement);
void spw_team_close(struct spw_team *t);
unsigned spw_team_threads(const struct spw_team *t);
/* Runs every task of the kernel once and returns when all are done. */
void spw_team_run(struct spw_team *t, const struct spw_kernel *kernel, const void *args);
/* begin: the calling thread copies from now on and needs a core. end: no more. Any thread. */
void spw_team_copy_begin(struct spw_team *t);
void spw_team_copy_end(struct spw_team *t);

#endif
