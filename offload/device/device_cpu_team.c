/* The worker team of the CPU device: see device_cpu_team.h.
 *
 * A kernel is one job. Worker 0 opens the job, takes tasks, closes the job, and waits for the
 * workers that have joined:
 *
 *     worker 0   write job, open ---> take tasks ... none left ---> close ---> wait for the joined
 *     others     wake ---> join if open ---> take tasks ... none left ---> leave
 *
 * A worker that wakes too late finds the job closed and does not join. So worker 0 never waits
 * for a thread that is still asleep or has lost its core to a copy: a kernel of a few
 * microseconds ends before a sleeper could wake. A worker that stands aside for a copy leaves
 * the job between two tasks, and joins it again when the copy ends. */
#include "offload/device/device_cpu_team.h"

#include "offload/device/placement.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

/* How long a worker spins before it sleeps: longer than the gap between two kernels of a step,
 * much shorter than a time slice of the scheduler. */
#define TEAM_SPIN_NS 30000

/* The stack of every thread, whatever `ulimit -s` says: attention alone needs 228 KiB. */
enum { STACK_BYTES = 2 << 20 };

enum {
    JOB_OPEN = 1,
    JOB_JOINED = 2
}; /* job state: a flag, and above it the number of workers that have joined */

struct worker {
    struct spw_team *team;
    pthread_t thread;
    unsigned index;
};

struct spw_team {
    unsigned threads, started; /* started: number of workers[], without worker 0 */
    unsigned cores;
    const struct spw_placement *placement;
    pthread_mutex_t turn; /* locked during a whole kernel: scratch is private to a worker index */
    struct worker *workers;

    const struct spw_kernel *kernel;
    const void *args;
    size_t n_tasks;
    bool stop;
    uint64_t joined; /* since open; `left` reaches this number */

    /* Padding: all workers write `next`, which must not share a cache line with polled fields. */
    char apart0[64];
    _Atomic size_t next;
    char apart1[64];
    _Atomic unsigned state, copies;        /* copies: number of threads that copy now */
    struct spw_counter jobs, left, copied; /* copied: how often a copy has ended */
};

int spw_counter_init(struct spw_counter *c)
{
    atomic_init(&c->value, 0);
    atomic_init(&c->wake_at, UINT64_MAX);
    if (pthread_mutex_init(&c->lock, NULL))
        return -ENOMEM;
    if (!pthread_cond_init(&c->grown, NULL))
        return 0;
    pthread_mutex_destroy(&c->lock);
    return -ENOMEM;
}

void spw_counter_free(struct spw_counter *c)
{
    pthread_cond_destroy(&c->grown);
    pthread_mutex_destroy(&c->lock);
}

/* This function adds, then reads `wake_at`. A waiter writes `wake_at`, then reads `value`. All
 * four are sequentially consistent, so at least one side sees the other. A thread that waits for
 * a larger number is not woken. */
void spw_counter_add(struct spw_counter *c, uint64_t n)
{
    uint64_t value = atomic_fetch_add(&c->value, n) + n;
    if (value < atomic_load(&c->wake_at))
        return;
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->wake_at, UINT64_MAX); /* threads that must sleep on write it again */
    pthread_cond_broadcast(&c->grown);
    pthread_mutex_unlock(&c->lock);
}

static inline void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool spw_counter_spin(struct spw_counter *c, uint64_t at_least, uint64_t spin_ns)
{
    if (spw_counter_get(c) >= at_least)
        return true;
    uint64_t end = now_ns() + spin_ns;
    do {
        for (int i = 0; i < 32; i++) {
            if (spw_counter_get(c) >= at_least)
                return true;
            pause_core();
        }
    } while (now_ns() < end);
    return false;
}

void spw_counter_wait(struct spw_counter *c, uint64_t at_least, uint64_t spin_ns)
{
    if (spw_counter_spin(c, at_least, spin_ns))
        return;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        atomic_store(&c->wake_at, spw_min_u64(atomic_load(&c->wake_at), at_least));
        if (atomic_load(&c->value) >= at_least)
            break; /* `wake_at` stays: this costs one needless broadcast */
        pthread_cond_wait(&c->grown, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
}

int spw_thread_start(pthread_t *out, const char *name, void *(*fn)(void *), void *argument)
{
    if (spw_alloc_fails()) /* a thread takes memory for its stack */
        return -ENOMEM;
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(
        &all,
        SIGBUS); /* if it were blocked, a page that a mapped file has lost would end the process */
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the new thread inherits it */
    pthread_attr_t attributes;
    int rc = pthread_attr_init(&attributes);
    if (!rc) {
        pthread_attr_setstacksize(&attributes, STACK_BYTES);
        rc = pthread_create(out, &attributes, fn, argument);
        pthread_attr_destroy(&attributes);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc)
        return -ENOMEM; /* EAGAIN: no memory or no thread is left */
    char shown[16];     /* the limit of the kernel */
    snprintf(shown, sizeof shown, "%s", name);
    pthread_setname_np(*out, shown);
    return 0;
}

/* Worker 0 never stands aside. */
static bool leaves_core(const struct spw_team *t, unsigned worker)
{
    unsigned copies = atomic_load_explicit(&t->copies, memory_order_relaxed);
    return worker && copies && worker + copies >= t->cores;
}

/* Takes tasks one by one in rising order, so that neighbours in memory run at the same time. */
static void take_tasks(struct spw_team *t, unsigned worker)
{
    while (!leaves_core(t, worker)) {
        size_t task = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
        if (task >= t->n_tasks)
            return;
        t->kernel->run(t->args, task, worker);
    }
}

static bool join(struct spw_team *t)
{
    unsigned state = atomic_load(&t->state);
    while (state & JOB_OPEN)
        if (atomic_compare_exchange_weak(&t->state, &state, state + JOB_JOINED))
            return true;
    return false;
}

static void *worker_main(void *argument)
{
    struct worker *w = argument;
    struct spw_team *t = w->team;
    spw_placement_bind(t->placement, SPW_ROLE_COMPUTE, w->index);
    for (;;) {
        /* Read before joining: if a job opens in between, the worker sees it twice, and never
         * misses it. */
        uint64_t seen = spw_counter_get(&t->jobs), copied = spw_counter_get(&t->copied);
        if (leaves_core(t, w->index)) {
            spw_counter_wait(&t->copied, copied + 1, 0); /* no spinning: the core is needed */
            continue;
        }
        if (join(t)) {
            bool stop = t->stop;
            if (!stop)
                take_tasks(t, w->index);
            spw_counter_add(&t->left, 1);
            if (stop)
                return NULL;
        }
        spw_counter_wait(&t->jobs, seen + 1, TEAM_SPIN_NS);
    }
}

static void job_open(struct spw_team *t)
{
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    atomic_store(&t->state, JOB_OPEN); /* workers that join see the job */
    spw_counter_add(&t->jobs, 1);
}

void spw_team_run(struct spw_team *t, const struct spw_kernel *kernel, const void *args)
{
    size_t n_tasks = kernel->n_tasks(args);
    pthread_mutex_lock(&t->turn);
    if (n_tasks <= 1 || t->threads == 1) { /* waking a worker would not pay */
        for (size_t i = 0; i < n_tasks; i++)
            kernel->run(args, i, 0);
    } else {
        t->kernel = kernel;
        t->args = args;
        t->n_tasks = n_tasks;
        job_open(t);
        take_tasks(t, 0);
        t->joined += atomic_exchange(&t->state, 0) / JOB_JOINED;
        spw_counter_wait(&t->left, t->joined, TEAM_SPIN_NS);
    }
    pthread_mutex_unlock(&t->turn);
}

void spw_team_copy_begin(struct spw_team *t)
{
    atomic_fetch_add_explicit(&t->copies, 1, memory_order_relaxed);
}

void spw_team_copy_end(struct spw_team *t)
{
    atomic_fetch_sub(&t->copies, 1);
    spw_counter_add(&t->copied, 1);
}

/* The last job stays open until every worker has joined and left it. No thread copies any more. */
static void workers_stop(struct spw_team *t)
{
    t->stop = true;
    job_open(t);
    for (unsigned i = 0; i < t->started; i++)
        pthread_join(t->workers[i].thread, NULL);
}

static int workers_start(struct spw_team *t)
{
    for (; t->started < t->threads - 1; t->started++) {
        struct worker *w = &t->workers[t->started];
        *w = (struct worker){.team = t, .index = t->started + 1};
        char name[16];
        snprintf(name, sizeof name, "spw-team-%u", w->index % 100000);
        SPW_TRY(spw_thread_start(&w->thread, name, worker_main, w));
    }
    return 0;
}

int spw_team_open(struct spw_team **out, unsigned threads, unsigned cores,
                  const struct spw_placement *placement)
{
    struct spw_team *t = spw_alloc_zero(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->threads = threads;
    t->cores = cores;
    t->placement = placement;
    t->workers = spw_alloc_zero(threads, sizeof *t->workers);
    if (!t->workers)
        goto fail_team;
    if (pthread_mutex_init(&t->turn, NULL))
        goto fail_workers;
    if (spw_counter_init(&t->jobs))
        goto fail_turn;
    if (spw_counter_init(&t->left))
        goto fail_jobs;
    if (spw_counter_init(&t->copied))
        goto fail_left;
    if (workers_start(t))
        goto fail_copied;
    *out = t;
    return 0;

fail_copied:
    workers_stop(t);
    spw_counter_free(&t->copied);
fail_left:
    spw_counter_free(&t->left);
fail_jobs:
    spw_counter_free(&t->jobs);
fail_turn:
    pthread_mutex_destroy(&t->turn);
fail_workers:
    spw_free(t->workers);
fail_team:
    spw_free(t);
    return -ENOMEM;
}

void spw_team_close(struct spw_team *t)
{
    if (!t)
        return;
    workers_stop(t);
    spw_counter_free(&t->copied);
    spw_counter_free(&t->left);
    spw_counter_free(&t->jobs);
    pthread_mutex_destroy(&t->turn);
    spw_free(t->workers);
    spw_free(t);
}

unsigned spw_team_threads(const struct spw_team *t)
{
    return t->threads;
}
