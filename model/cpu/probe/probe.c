/* Measures memory and arithmetic limits: see probe.h. */
#include "model/cpu/probe/probe.h"
#include "model/cpu/probe/probe_loops.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

enum { MAX_THREADS = 256, ROUNDS = 4, HUGE_PAGE = 2 << 20 };
/* Several times any L3 of a desktop. */
static const size_t ARRAY_BYTES = (size_t)256 << 20;
static const double READ_SECONDS = 0.01, PEAK_SECONDS = 0.003;

struct probe;

/* What one thread does in one round; returns how much that was (bytes, FLOP). */
typedef double probe_fn(const struct probe *p, unsigned thread);

struct probe {
    probe_fn *run;
    const struct spw_probe_loops *loops;
    double (*flops)(uint64_t rounds);
    uint64_t repeat; /* per round */
    char *array;     /* [n_threads][part_bytes] */
    size_t part_bytes;
    unsigned n_threads;
};

enum gate { GATE_SHUT, GATE_OPEN, GATE_ABANDONED };

struct probe_thread {
    const struct probe *p;
    atomic_int *gate; /* opened when all threads are there */
    unsigned index;
    double done, begin_seconds, end_seconds;
    pthread_t thread;
};

static void *thread_main(void *arg)
{
    struct probe_thread *t = arg;
    int gate;
    while ((gate = atomic_load(t->gate)) == GATE_SHUT)
        sched_yield();
    if (gate == GATE_ABANDONED)
        return NULL;
    t->begin_seconds = spw_now_seconds();
    t->done = t->p->run(t->p, t->index);
    t->end_seconds = spw_now_seconds();
    return NULL;
}

/* One round on threads of its own; false when they could not be had. */
static bool run_round(const struct probe *p, struct probe_thread *threads)
{
    atomic_int gate = GATE_SHUT;
    unsigned n = 0;
    for (; n < p->n_threads; n++) {
        threads[n] = (struct probe_thread){.p = p, .gate = &gate, .index = n};
        if (pthread_create(&threads[n].thread, NULL, thread_main, &threads[n]))
            break;
    }
    bool complete = n == p->n_threads;
    atomic_store(&gate, complete ? GATE_OPEN : GATE_ABANDONED);
    for (unsigned i = 0; i < n; i++)
        pthread_join(threads[i].thread, NULL);
    return complete;
}

/* Work per second from the first start to the last end; 0: no threads. */
static double round_rate(const struct probe *p, struct probe_thread *threads)
{
    double done = 0, begin = INFINITY, end = 0;
    if (!run_round(p, threads))
        return 0;
    for (unsigned i = 0; i < p->n_threads; i++) {
        done += threads[i].done;
        begin = fmin(begin, threads[i].begin_seconds);
        end = fmax(end, threads[i].end_seconds);
    }
    return end > begin ? done / (end - begin) : 0;
}

/* A first round, which is not counted, warms up. The fastest round so far gives the number of
 * repetitions: after a slow moment alone they would be too few, and their time that of threads. */
static bool run_rounds(struct spw_rounds *out, struct probe *p, double round_seconds)
{
    struct probe_thread *threads = spw_alloc_zero(p->n_threads, sizeof *threads);
    double fastest = 0;
    bool ok = threads != NULL;
    p->repeat = 1;
    for (int round = -1; ok && round < ROUNDS; round++) {
        const double rate = round_rate(p, threads);
        ok = rate > 0;
        if (!ok)
            break;
        if (round >= 0)
            spw_rounds_add(out, 1 / rate);
        fastest = fmax(fastest, rate);
        const double one = threads[0].done * p->n_threads / (double)p->repeat;
        p->repeat = 1 + (uint64_t)(round_seconds * fastest / one);
    }
    spw_free(threads);
    return ok;
}

static double run_read(const struct probe *p, unsigned thread)
{
    uint64_t any = 0;
    for (uint64_t i = 0; i < p->repeat; i++)
        any |= p->loops->read(p->array + thread * p->part_bytes, p->part_bytes);
    spw_probe_keep(&any);
    return (double)p->repeat * (double)p->part_bytes;
}

#if defined(__x86_64__)
static void evict_in_order(const char *p, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64)
        _mm_clflush(p + at);
}

/* 30 times as fast. */
__attribute__((target("clflushopt"))) static void evict_at_once(const char *p, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64)
        _mm_clflushopt((void *)(uintptr_t)(p + at));
}

static bool evicts_at_once(void)
{
    uint32_t eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ebx & bit_CLFLUSHOPT);
}
#endif

void spw_probe_evict(const void *memory, size_t bytes)
{
#if defined(__x86_64__)
    if (evicts_at_once())
        evict_at_once(memory, bytes);
    else
        evict_in_order(memory, bytes);
    _mm_mfence();
#else
    (void)memory;
    (void)bytes;
#endif
}

static double run_flops(const struct probe *p, unsigned thread)
{
    (void)thread;
    double flop = 0;
    for (uint64_t i = 0; i < p->repeat; i++)
        flop += p->flops(1 << 16);
    return flop;
}

static const struct spw_probe_loops *loops_of(enum spw_isa isa)
{
    if (!spw_isa_runs(isa))
        return NULL;
    switch (isa) {
#if defined(SPW_X86_KERNELS)
    case SPW_ISA_AMX:
        return &spw_probe_loops_amx;
    case SPW_ISA_AVX512HALF:
    case SPW_ISA_AVX512BF16:
        return &spw_probe_loops_avx512bf16;
    case SPW_ISA_AVX512INTEL: /* f32 is faster there than dot products of bf16 */
    case SPW_ISA_AVX512VNNI:
        return &spw_probe_loops_avx512vnni;
    case SPW_ISA_AVX512:
        return &spw_probe_loops_avx512;
    case SPW_ISA_AVX2VNNI:
        return &spw_probe_loops_avx2vnni;
    case SPW_ISA_AVX2:
        return &spw_probe_loops_avx2;
#endif
    case SPW_ISA_PORTABLE:
        return &spw_probe_loops_portable;
    default:
        return NULL;
    }
}

/* Those of the best set that has a loop to read with. */
static const struct spw_probe_loops *reading_loops(void)
{
    int isa = (int)spw_isa_best();
    while (!loops_of((enum spw_isa)isa) || !loops_of((enum spw_isa)isa)->read)
        isa--; /* the portable one has */
    return loops_of((enum spw_isa)isa);
}

bool spw_probe_read(struct spw_rounds *out, unsigned threads)
{
    struct probe p = {.run = run_read, .loops = reading_loops(), .n_threads = threads};
    char *block = threads && threads <= MAX_THREADS ? spw_alloc(ARRAY_BYTES + HUGE_PAGE) : NULL;
    if (!block)
        return false;
    p.array = block + (HUGE_PAGE - (uintptr_t)block % HUGE_PAGE) % HUGE_PAGE;
    p.part_bytes = ARRAY_BYTES / threads / SPW_PROBE_READ_BYTES * SPW_PROBE_READ_BYTES;
    madvise(p.array, ARRAY_BYTES, MADV_HUGEPAGE);
    memset(p.array, 1, ARRAY_BYTES);
    const bool ok = run_rounds(out, &p, READ_SECONDS);
    spw_free(block);
    return ok;
}

/* A set without a loop of its own for a type has that of the set below. */
bool spw_probe_matrix_peak(struct spw_rounds *out, enum spw_isa isa, enum spw_dtype t,
                           unsigned threads)
{
    if (threads == 0 || threads > MAX_THREADS || !spw_isa_runs(isa) ||
        (t != SPW_DTYPE_F32 && t != SPW_DTYPE_BF16 && t != SPW_DTYPE_Q8_0))
        return false;
    struct probe p = {.run = run_flops, .n_threads = threads};
    for (int i = (int)isa; i >= 0 && !p.flops; i--) {
        const struct spw_probe_loops *loops = loops_of((enum spw_isa)i);
        if (loops)
            p.flops = t == SPW_DTYPE_F32    ? loops->f32
                      : t == SPW_DTYPE_BF16 ? loops->bf16
                                            : loops->int8;
    }
    return p.flops && run_rounds(out, &p, PEAK_SECONDS);
}
