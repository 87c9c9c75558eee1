/* Runs kernels: see simt_emulator.h.
 *
 * Every OS thread that runs kernels has a machine: one fiber for each thread of the largest block
 * so far. A fiber lives as long as its machine and runs one thread of a block after another, so
 * that a launch makes nothing. Who may run is a set; whoever has to wait draws the next one from it
 * and switches there directly:
 *
 *     machine -> fiber 17 -> fiber 3 -> ... -> the last one that returns -> machine
 *
 * Where a kernel's block runs ahead of the kernel in front, it has a second machine, on which its
 * fibers wait until the one in front is done; then the two change places.
 *
 * The fiber that completes a barrier or a warp's operation works out everybody's result and puts
 * them all back into the set. When the set is empty and not all have returned, those who wait will
 * wait for ever: that is a fault, and its message says who waits where.
 *
 * AddressSanitizer is told of every switch. ThreadSanitizer is not: what runs on one OS thread is
 * one thread to it, which costs no vector clock a fiber; races are for it to find between streams.
 */
#include "tests/cuda/simt_emulator.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>
#include <sys/mman.h>

#if defined(__has_feature) /* clang's way to say it */
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

enum {
    WARP = 32,
    MOST_THREADS = 1024,
    MOST_SHARED = 64,        /* declarations a kernel comes by */
    MOST_COPIES = 256,       /* a thread has under way */
    STACK_BYTES = 256 << 10, /* address space: only what is touched is memory */
    GUARD_BYTES = 4096,
    STATIC_SHARED_BYTES = 48 << 10,
};

struct copy {
    void *to;
    const void *from; /* NULL: zeros */
    uint64_t group;
    bool early; /* asked for before spw_grid_wait(): `bytes` is what was there */
    unsigned char bytes[16];
};

/* What an OS thread or a fiber needs to be switched away from and back to. */
struct context {
#ifdef __x86_64__
    void *sp;
#else
    ucontext_t saved;
#endif
    void *stack;
    size_t stack_bytes;
    void *fake_stack; /* AddressSanitizer's */
};

struct fiber {
    struct spw_simt_self self; /* first: spw_simt_self points here */
    struct context context;
    struct machine *machine;
    bool waited; /* passed spw_grid_wait(), or stands there */
    /* Where it waits, for messages and to be compared; NULL: it does not. */
    const char *what, *file;
    int line;
    /* Of a warp's operation. */
    uint64_t value, result;
    int argument, width;
    /* Asynchronous copies: those of groups below `group` are committed. */
    struct copy *copies; /* owned [MOST_COPIES], made when first needed */
    int n_copies;
    uint64_t group;
};

/* An operation that some lanes of a warp have arrived at. */
struct gathering {
    enum spw_simt_op op;
    unsigned mask, arrived;
};

struct warp {
    struct gathering gatherings[WARP]; /* their masks are disjoint */
    int n;
};

struct shared_array {
    const void *key;
    char *block, *data; /* owned; inside it */
    size_t bytes;
};

struct machine {
    struct context host;
    struct fiber fibers[MOST_THREADS]; /* side by side, for the sake of caches */
    int n_fibers;                      /* that have a stack */
    uint16_t ready[MOST_THREADS];
    int n_threads, n_ready, n_returned, n_at_barrier;
    struct warp warps[MOST_THREADS / WARP];
    struct shared_array shared[MOST_SHARED];
    int n_shared;
    size_t shared_bytes;
    struct spw_simt_block block;
    const struct spw_simt_launch *launch; /* NULL: none runs */
    uint64_t rng;
    struct machine *other; /* owned by the OS thread, too; NULL: nothing has run ahead so far */
    bool ahead;            /* the kernel in front has not run */
    uint64_t first;        /* the block that runs ahead, or did */
};

__thread struct spw_simt_self *spw_simt_self;
static __thread struct machine *machine_of_thread;

/* splitmix64 */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static struct fiber *current(void)
{
    return (struct fiber *)spw_simt_self;
}

/* ---- faults ---- */

static void print_place(const struct machine *m)
{
    const struct spw_simt_launch *l = m->launch;
    const uint3 *b = &m->block.index;
    fprintf(stderr, "simt: kernel %s (%s:%d), block (%u,%u,%u): ", l->name, l->file, l->line, b->x,
            b->y, b->z);
}

void spw_simt_fault(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (machine_of_thread && machine_of_thread->launch)
        print_place(machine_of_thread);
    else
        fprintf(stderr, "simt: ");
    if (spw_simt_self)
        fprintf(stderr, "thread (%u,%u,%u): ", spw_simt_self->index.x, spw_simt_self->index.y,
                spw_simt_self->index.z);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    abort();
}

/* Nobody can go on: says how many wait where. */
__attribute__((noreturn)) static void fault_stuck(struct machine *m)
{
    print_place(m);
    fprintf(stderr,
            "a barrier or warp operation that not all its threads reach: %d of %d threads "
            "have returned",
            m->n_returned, m->n_threads);
    for (int i = 0; i < m->n_threads; i++) {
        struct fiber *f = &m->fibers[i];
        if (!f->what)
            continue;
        int n = 0;
        for (int j = i; j < m->n_threads; j++) {
            struct fiber *g = &m->fibers[j];
            if (g->what == f->what && g->line == f->line && (n++, j != i))
                g->what = NULL; /* counted */
        }
        fprintf(stderr, ", %d from thread %d on wait in %s at %s:%d", n, i, f->what, f->file,
                f->line);
        f->what = NULL;
    }
    fputc('\n', stderr);
    abort();
}

/* ---- fibers ---- */

#ifdef __x86_64__
/* Saves what a called function must keep, and the place, on the old stack; goes on with the new. */
extern "C" void spw_simt_swap(void **save, void *to);
__asm__(".text\n"
        ".globl spw_simt_swap\n"
        ".type spw_simt_swap, @function\n"
        "spw_simt_swap:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size spw_simt_swap, . - spw_simt_swap\n");
#endif

static void switch_to(struct context *from, struct context *to)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
#ifdef __x86_64__
    spw_simt_swap(&from->sp, to->sp);
#else
    swapcontext(&from->saved, &to->saved);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
#endif
}

/* Whoever is drawn from those who can go on. */
static void switch_away(struct machine *m, struct context *from)
{
    if (!m->n_ready && m->n_returned < m->n_threads && !m->ahead)
        fault_stuck(m);
    struct context *to = &m->host;
    spw_simt_self = NULL;
    if (m->n_ready) {
        int i = (int)((draw(&m->rng) >> 32) * (uint64_t)m->n_ready >> 32);
        struct fiber *f = &m->fibers[m->ready[i]];
        m->ready[i] = m->ready[--m->n_ready];
        spw_simt_self = &f->self;
        to = &f->context;
    }
    if (to != from)
        switch_to(from, to);
}

static void make_ready(struct machine *m, int i)
{
    m->fibers[i].what = NULL;
    m->ready[m->n_ready++] = (uint16_t)i;
}

static void fiber_returns(struct fiber *f)
{
    struct machine *m = f->machine;
    if (f->n_copies)
        spw_simt_fault("returns with %d asynchronous copies it has not waited for", f->n_copies);
    if (!f->waited)
        spw_simt_fault("returns without spw_grid_wait()");
    m->n_returned++;
    switch_away(m, &f->context);
}

/* A fiber begins here, in the middle of somebody's switch to it. */
static void fiber_loop(void)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
    struct fiber *f = current();
    for (;;) {
        f->machine->launch->run(f->machine->launch->closure);
        fiber_returns(f);
    }
}

static void *map_stack(void)
{
    char *p = (char *)mmap(NULL, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (p == MAP_FAILED || mprotect(p, GUARD_BYTES, PROT_NONE))
        spw_simt_fault("out of memory for the stacks of threads");
    return p + GUARD_BYTES;
}

static void fiber_init(struct machine *m, struct fiber *f)
{
    struct context *c = &f->context;
    f->machine = m;
    c->stack = map_stack();
    c->stack_bytes = STACK_BYTES;
#ifdef __x86_64__
    /* As spw_simt_swap leaves a stack: six registers, then where to return to, which must lie at a
     * multiple of 16 as if it had been called. */
    void **top = (void **)((char *)c->stack + STACK_BYTES);
    top[-2] = (void *)fiber_loop;
    c->sp = top - 8;
#else
    getcontext(&c->saved);
    c->saved.uc_stack.ss_sp = c->stack;
    c->saved.uc_stack.ss_size = STACK_BYTES;
    makecontext(&c->saved, fiber_loop, 0);
#endif
}

static void fiber_free(struct fiber *f)
{
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(f->context.stack, STACK_BYTES);
#endif
    munmap((char *)f->context.stack - GUARD_BYTES, STACK_BYTES + GUARD_BYTES);
    delete[] f->copies;
}

/* ---- the machine of an OS thread ---- */

static pthread_key_t machine_key;
static pthread_once_t machine_key_once = PTHREAD_ONCE_INIT;

static void machine_free(void *p)
{
    struct machine *m = (struct machine *)p;
    if (m->other) {
        m->other->other = NULL;
        machine_free(m->other);
    }
    for (int i = 0; i < m->n_fibers; i++)
        fiber_free(&m->fibers[i]);
    delete m;
}

static void make_machine_key(void)
{
    pthread_key_create(&machine_key, machine_free);
}

static struct machine *machine_make(void)
{
    struct machine *m = new machine();
    pthread_attr_t attr;
    pthread_getattr_np(pthread_self(), &attr);
    pthread_attr_getstack(&attr, &m->host.stack, &m->host.stack_bytes);
    pthread_attr_destroy(&attr);
    return m;
}

static struct machine *machine_get(void)
{
    if (machine_of_thread)
        return machine_of_thread;
    pthread_once(&machine_key_once, make_machine_key);
    machine_of_thread = machine_make();
    pthread_setspecific(machine_key, machine_of_thread);
    return machine_of_thread;
}

static void change_places(struct machine *m)
{
    if (!m->other) {
        m->other = machine_make();
        m->other->other = m;
    }
    machine_of_thread = m->other;
}

/* ---- shared memory ---- */

/* Aligned to what was asked and to no more: what a GPU does not promise must not hold here. The
 * bytes before it are closed to AddressSanitizer. */
static void *shared_add(struct machine *m, const void *key, size_t bytes, size_t align)
{
    if (m->n_shared == MOST_SHARED)
        spw_simt_fault("more than %d shared arrays", MOST_SHARED);
    size_t before = align < 16 ? 8 + align % 8 : 0, whole = align < 16 ? 16 : align;
    struct shared_array *s = &m->shared[m->n_shared++];
    void *p = NULL;
    if (posix_memalign(&p, whole, before + bytes))
        spw_simt_fault("out of memory for shared memory");
    *s = {key, (char *)p, (char *)p + before, bytes};
    memset(p, 0xff, before + bytes);
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(p, before);
#endif
    m->shared_bytes += (bytes + align - 1) / align * align;
    if (m->shared_bytes > m->launch->shared_most)
        spw_simt_fault("asks for %zu bytes of shared memory, a block has %zu", m->shared_bytes,
                       m->launch->shared_most);
    return s->data;
}

static void shared_free(struct machine *m)
{
    for (int i = 0; i < m->n_shared; i++) {
#if defined(__SANITIZE_ADDRESS__)
        size_t before = (size_t)(m->shared[i].data - m->shared[i].block);
        __asan_unpoison_memory_region(m->shared[i].block, before);
#endif
        free(m->shared[i].block);
    }
    m->n_shared = 0;
    m->shared_bytes = 0;
}

void *spw_simt_shared(const void *key, size_t bytes, size_t align)
{
    struct machine *m = current()->machine;
    for (int i = 0; i < m->n_shared; i++)
        if (m->shared[i].key == key)
            return m->shared[i].data;
    size_t fixed = m->shared_bytes - m->launch->shared_bytes + bytes;
    if (fixed > STATIC_SHARED_BYTES)
        spw_simt_fault("declares %zu bytes of shared memory, at most %d can be", fixed,
                       (int)STATIC_SHARED_BYTES);
    return shared_add(m, key, bytes, align);
}

void *spw_simt_shared_dynamic(void)
{
    return current()->machine->shared[0].data;
}

/* ---- barriers ---- */

static bool same_place(const struct fiber *a, const struct fiber *b)
{
    return a->line == b->line && (a->file == b->file || !strcmp(a->file, b->file));
}

static void arrive(struct fiber *f, const char *what, const char *file, int line)
{
    f->what = what;
    f->file = file;
    f->line = line;
}

void __syncthreads(const char *file, int line)
{
    struct fiber *f = current();
    struct machine *m = f->machine;
    arrive(f, "__syncthreads", file, line);
    if (++m->n_at_barrier == m->n_threads) {
        m->n_at_barrier = 0;
        for (int i = 0; i < m->n_threads; i++) {
            if (!same_place(f, &m->fibers[i]))
                spw_simt_fault("is at the barrier at %s:%d, thread %d at the one at %s:%d", file,
                               line, i, m->fibers[i].file, m->fibers[i].line);
            make_ready(m, i);
        }
    }
    switch_away(m, &f->context);
}

/* ---- operations of a warp ---- */

/* The lane that lane `lane` reads from. */
static int source_lane(enum spw_simt_op op, int lane, int argument, int width)
{
    int first = lane & ~(width - 1), end = first + width, from = lane;
    if (op == SPW_SIMT_SHUFFLE)
        return first + (argument & (width - 1));
    if (op == SPW_SIMT_UP)
        from = lane - argument < first ? lane : lane - argument;
    else if (op == SPW_SIMT_DOWN)
        from = lane + argument >= end ? lane : lane + argument;
    else if (op == SPW_SIMT_XOR)
        from = (lane ^ argument) >= end ? lane : lane ^ argument;
    return from;
}

static float widen_bf16(uint32_t pair, int which)
{
    return __uint_as_float(which ? pair & 0xffff0000u : pair << 16);
}

/* d[16][8] += a[16][16] b[16][8] */
static inline __attribute__((always_inline)) void product(float (*d)[8], const float (*a)[16],
                                                          const float (*b)[8])
{
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++)
                d[i][j] = __builtin_fmaf(a[i][k], b[k][j], d[i][j]);
}

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static void product_fma(float (*d)[8], const float (*a)[16],
                                                            const float (*b)[8])
{
    product(d, a, b);
}
#endif

static void product_any(float (*d)[8], const float (*a)[16], const float (*b)[8])
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        product_fma(d, a, b);
        return;
    }
#endif
    product(d, a, b);
}

/* The registers' places: quant/cuda.cuh. */
static void warp_mma(struct fiber *lanes)
{
    float a[16][16], b[16][8], d[16][8];
    for (int lane = 0; lane < WARP; lane++) {
        const struct spw_simt_mma *m = (const struct spw_simt_mma *)(uintptr_t)lanes[lane].value;
        int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 2; i++) {
            for (int r = 0; r < 4; r++)
                a[g + r % 2 * 8][2 * t + r / 2 * 8 + i] = widen_bf16(m->a[r], i);
            for (int r = 0; r < 2; r++) {
                b[2 * t + r * 8 + i][g] = widen_bf16(m->b[r], i);
                d[g + r * 8][2 * t + i] = m->d[2 * r + i];
            }
        }
    }
    product_any(d, a, b);
    for (int lane = 0; lane < WARP; lane++) {
        const struct spw_simt_mma *m = (const struct spw_simt_mma *)(uintptr_t)lanes[lane].value;
        for (int r = 0; r < 4; r++)
            m->d[r] = d[lane / 4 + r / 2 * 8][lane % 4 * 2 + r % 2];
    }
}

static void warp_mma_s8(struct fiber *lanes)
{
    int8_t a[16][32], b[8][32];
    for (int lane = 0; lane < WARP; lane++) {
        const auto *m = (const struct spw_simt_mma_s8 *)(uintptr_t)lanes[lane].value;
        int g = lane / 4, t = lane % 4;
        for (int r = 0; r < 4; r++)
            memcpy(&a[g + r % 2 * 8][4 * t + r / 2 * 16], &m->a[r], 4);
        for (int r = 0; r < 2; r++)
            memcpy(&b[g][4 * t + r * 16], &m->b[r], 4);
    }
    for (int lane = 0; lane < WARP; lane++) {
        const auto *m = (const struct spw_simt_mma_s8 *)(uintptr_t)lanes[lane].value;
        for (int r = 0; r < 4; r++) {
            const int8_t *row = a[lane / 4 + r / 2 * 8], *col = b[lane % 4 * 2 + r % 2];
            for (int k = 0; k < 32; k++)
                m->d[r] += row[k] * col[k];
        }
    }
}

static void warp_results(struct fiber *lanes, const struct gathering *g)
{
    uint64_t ballot = 0;
    if (g->op == SPW_SIMT_MMA)
        warp_mma(lanes);
    if (g->op == SPW_SIMT_MMA_S8)
        warp_mma_s8(lanes);
    for (int lane = 0; lane < WARP; lane++)
        if (g->op == SPW_SIMT_BALLOT && g->mask >> lane & 1)
            ballot |= lanes[lane].value << lane;
    for (int lane = 0; lane < WARP; lane++) {
        if (!(g->mask >> lane & 1))
            continue;
        struct fiber *f = &lanes[lane];
        f->result = ballot;
        if (g->op < SPW_SIMT_SHUFFLE || g->op > SPW_SIMT_XOR)
            continue;
        int from = source_lane(g->op, lane, f->argument, f->width);
        if (from < 0 || from >= WARP || !(g->mask >> from & 1))
            spw_simt_fault("%s at %s:%d: lane %d reads from lane %d, which does not take part",
                           f->what, f->file, f->line, lane, from);
        f->result = lanes[from].value;
    }
}

/* The operation with this mask, found or begun. */
static struct gathering *gather(struct warp *w, enum spw_simt_op op, unsigned mask)
{
    for (int i = 0; i < w->n; i++) {
        struct gathering *g = &w->gatherings[i];
        if (g->mask == mask)
            return g;
        if (g->mask & mask)
            spw_simt_fault("names lanes %08x, others of its warp wait for lanes %08x", mask,
                           g->mask);
    }
    w->gatherings[w->n] = {op, mask, 0};
    return &w->gatherings[w->n++];
}

uint64_t spw_simt_warp(enum spw_simt_op op, const char *name, unsigned mask, uint64_t value,
                       int argument, int width, const char *file, int line)
{
    struct fiber *f = current();
    struct machine *m = f->machine;
    const uint3 *at = &f->self.index;
    const dim3 *dim = &m->block.dim;
    int index = (int)((at->z * dim->y + at->y) * dim->x + at->x), lane = index % WARP;
    struct fiber *lanes = m->fibers + index - lane;
    if (!(mask >> lane & 1))
        spw_simt_fault("%s at %s:%d: lane %d is not in its own mask %08x", name, file, line, lane,
                       mask);
    if (width < 1 || width > WARP || width & (width - 1))
        spw_simt_fault("%s at %s:%d: width %d", name, file, line, width);
    arrive(f, name, file, line);
    f->value = value;
    f->argument = argument;
    f->width = width;
    struct warp *w = &m->warps[index / WARP];
    struct gathering *g = gather(w, op, mask);
    if (g->arrived) {
        const struct fiber *other = &lanes[__builtin_ctz(g->arrived)];
        if (g->op != op || !same_place(f, other))
            spw_simt_fault("is in %s at %s:%d, others of its warp are in %s at %s:%d", name, file,
                           line, other->what, other->file, other->line);
    }
    g->arrived |= 1u << lane;
    if (g->arrived == mask) {
        warp_results(lanes, g);
        *g = w->gatherings[--w->n];
        for (int i = 0; i < WARP; i++)
            if (mask >> i & 1)
                make_ready(m, index - lane + i);
    }
    switch_away(m, &f->context);
    return f->result;
}

/* ---- asynchronous copies ---- */

void spw_copy16_async(void *shared, const void *from, bool take, const char *file, int line)
{
    struct fiber *f = current();
    struct machine *m = f->machine;
    if ((uintptr_t)shared % 16 || (uintptr_t)from % 16)
        spw_simt_fault("misaligned asynchronous copy to %p from %p at %s:%d", shared, from, file,
                       line);
    bool inside = false;
    for (int i = 0; i < m->n_shared; i++) {
        const struct shared_array *s = &m->shared[i];
        inside |= (char *)shared >= s->data && (char *)shared + 16 <= s->data + s->bytes;
    }
    if (!inside)
        spw_simt_fault("asynchronous copy at %s:%d to %p, which is not in shared memory", file,
                       line, shared);
    if (!f->copies)
        f->copies = new copy[MOST_COPIES];
    if (f->n_copies == MOST_COPIES)
        spw_simt_fault("more than %d asynchronous copies under way at %s:%d", MOST_COPIES, file,
                       line);
    memset(shared, 0xff, 16); /* until the wait it may hold anything */
    if (take) {               /* an access out of bounds shows here rather than at the wait */
        (void)*(const volatile char *)from;
        (void)*((const volatile char *)from + 15);
    }
    struct copy *c = &f->copies[f->n_copies++];
    c->to = shared;
    c->from = take ? from : NULL;
    c->group = f->group;
    c->early = !f->waited;
    if (take && c->early) /* what the copy finds if it is made at once */
        memcpy(c->bytes, from, 16);
}

void spw_copy_async_commit(void)
{
    current()->group++;
}

void spw_simt_copy_wait(uint64_t newest)
{
    struct fiber *f = current();
    int kept = 0;
    for (int i = 0; i < f->n_copies; i++) {
        struct copy *c = &f->copies[i];
        if (c->group + newest >= f->group)
            f->copies[kept++] = *c;
        else if (c->from)
            memcpy(c->to, c->early ? c->bytes : c->from, 16);
        else
            memset(c->to, 0, 16);
    }
    f->n_copies = kept;
}

/* ---- kernels that overlap ---- */

static const char GRID_WAIT[] = "spw_grid_wait";

void spw_grid_wait(const char *file, int line)
{
    struct fiber *f = current();
    f->waited = true;
    if (!f->machine->ahead)
        return;
    arrive(f, GRID_WAIT, file, line);
    switch_away(f->machine, &f->context);
}

void spw_grid_next(const char *file, int line)
{
    if (!current()->waited)
        spw_simt_fault("calls spw_grid_next() before spw_grid_wait() at %s:%d", file, line);
}

/* ---- blocks and grids ---- */

static void block_begin(struct machine *m, uint64_t at)
{
    const dim3 *dim = &m->block.dim, *grid = &m->block.grid;
    m->block.index = {(unsigned)(at % grid->x), (unsigned)(at / grid->x % grid->y),
                      (unsigned)(at / grid->x / grid->y)};
    m->n_returned = m->n_at_barrier = m->n_ready = 0;
    for (int i = 0; i < m->n_threads; i++) {
        if (i == m->n_fibers)
            fiber_init(m, &m->fibers[m->n_fibers++]);
        struct fiber *f = &m->fibers[i];
        unsigned u = (unsigned)i;
        f->self.index = {u % dim->x, u / dim->x % dim->y, u / dim->x / dim->y};
        f->self.block = &m->block;
        f->waited = false;
        f->group = 0;
        make_ready(m, i);
    }
    shared_add(m, NULL, m->launch->shared_bytes, 16); /* the dynamic one is the first */
}

/* A block's threads run until all have returned or, of a block ahead, nobody can go on. */
static void block_run(struct machine *m)
{
    switch_away(m, &m->host);
    if (!m->ahead)
        shared_free(m);
}

/* Blocks go up or down, from the first one on. */
static void grid_begin(struct machine *m, const struct spw_simt_launch *l, uint64_t seed)
{
    m->launch = l;
    m->rng = seed;
    m->block.dim = l->block;
    m->block.grid = l->grid;
    m->n_threads = (int)(l->block.x * l->block.y * l->block.z);
    m->first = draw(&m->rng) % ((uint64_t)l->grid.x * l->grid.y * l->grid.z);
}

void spw_simt_run_ahead(const struct spw_simt_launch *l, uint64_t seed)
{
    change_places(machine_get());
    struct machine *m = machine_of_thread;
    grid_begin(m, l, seed);
    m->ahead = true;
    block_begin(m, m->first);
    block_run(m);
    change_places(m);
}

bool spw_simt_is_ahead(const struct spw_simt_launch *l)
{
    return machine_get()->launch == l;
}

void spw_simt_run(const struct spw_simt_launch *l, uint64_t seed)
{
    struct machine *m = machine_get();
    uint64_t n = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
    if (spw_simt_is_ahead(l)) {
        m->ahead = false;
        for (int i = 0; i < m->n_threads; i++)
            if (m->fibers[i].what == GRID_WAIT)
                make_ready(m, i);
    } else {
        grid_begin(m, l, seed);
        block_begin(m, m->first);
    }
    block_run(m);
    uint64_t step = draw(&m->rng) & 1 ? 1 : n - 1;
    for (uint64_t i = 1; i < n; i++) {
        block_begin(m, (m->first + i * step) % n);
        block_run(m);
    }
    m->launch = NULL;
    if (m->other && m->other->launch)
        change_places(m);
}

/* ---- f16 ---- */

float __half2float(__half h)
{
    int e = h.bits >> 10 & 31, fraction = h.bits & 1023;
    float size = e == 31 ? (fraction ? NAN : INFINITY)
                 : e     ? ldexpf((float)(1024 + fraction), e - 25)
                         : ldexpf((float)fraction, -24);
    return h.bits & 0x8000 ? -size : size;
}

/* To nearest, halves to even. */
__half __float2half_rn(float f)
{
    uint32_t u = __float_as_uint(f), sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
    uint32_t code;
    if (size > 0x7f800000u)
        return {0x7fff};
    if (size >= 0x477ff000u) /* 65520: halfway to the first that does not fit */
        code = 0x7c00;
    else if (size < 0x38800000u) /* below 2^-14: steps of 2^-24 */
        code = (uint32_t)nearbyintf(ldexpf(__uint_as_float(size), 24));
    else
        code = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    return {(unsigned short)(sign | code)};
}
