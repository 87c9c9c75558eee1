/* The assertions of the test programs. A failed CHECK prints its place and expression, and the
 * program continues; check_done() gives the exit status. Property tests print their seed with
 * check_seed().
 *
 * The size of a test: with SPW_FULL in the environment (tools/test.sh --full) all of it; without it
 * draws for two seconds (check_draws_of), a quarter of a count (check_amount) and every eighth step
 * of a sweep (check_stride). */
#ifndef SPW_TESTS_CHECK_H
#define SPW_TESTS_CHECK_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CHECK_SKIP 77

/* Whether a sanitizer is active: tests then do less. */
#if defined(__SANITIZE_THREAD__)
#define RUN_UNDER_TSAN 1
#endif
#if defined(__SANITIZE_ADDRESS__)
#define RUN_UNDER_ASAN 1
#endif
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RUN_UNDER_TSAN 1
#endif
#if __has_feature(address_sanitizer)
#define RUN_UNDER_ASAN 1
#endif
#endif
#ifndef RUN_UNDER_TSAN
#define RUN_UNDER_TSAN 0
#endif
#ifndef RUN_UNDER_ASAN
#define RUN_UNDER_ASAN 0
#endif

static int check_count_, check_failed_;

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        check_count_++;                                                                            \
        if (!(cond)) {                                                                             \
            check_failed_++;                                                                       \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond);                     \
        }                                                                                          \
    } while (0)

#define CHECK_MSG(cond, ...)                                                                       \
    do {                                                                                           \
        check_count_++;                                                                            \
        if (!(cond)) {                                                                             \
            check_failed_++;                                                                       \
            fprintf(stderr, "%s:%d: failed: %s: ", __FILE__, __LINE__, #cond);                     \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
        }                                                                                          \
    } while (0)

/* A test without checks has failed. */
static inline int check_done(void)
{
    fprintf(stderr, "%d checks, %d failed\n", check_count_, check_failed_);
    return check_failed_ || !check_count_;
}

/* SPW_SEED repeats a run; else every run has a new seed. */
static inline uint64_t check_seed(void)
{
    const char *given = getenv("SPW_SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed =
        given ? strtoull(given, NULL, 0)
              : (uint64_t)now.tv_nsec * 1000003u ^ (uint64_t)now.tv_sec ^ (uint64_t)getpid() << 32;
    fprintf(stderr, "SPW_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static inline bool check_full(void)
{
    return getenv("SPW_FULL");
}

/* `all` in a full run, else a quarter. */
static inline int check_amount(int all)
{
    return check_full() ? all : (all + 3) / 4;
}

/* Draws of a property test: `struct check_draws d = check_draws_of(argc, argv, 80);`, then
 * `while (check_another(&d))` makes argv[1] draws where that is given, 80 in a full run, and
 * otherwise as many as begin in the first seconds, at least an eighth of 80. `done` counts them. */
struct check_draws {
    int done, least, most;
    double until;
};

#define CHECK_DRAW_SECONDS 2

static inline double check_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline struct check_draws check_draws_of(int argc, char **argv, int most)
{
    struct check_draws d = {0, 0, argc > 1 ? atoi(argv[1]) : most, 0};
    d.least = argc > 1 || check_full() ? d.most : (most + 7) / 8;
    d.until = check_seconds() + CHECK_DRAW_SECONDS;
    return d;
}

static inline bool check_another(struct check_draws *d)
{
    bool more = d->done < d->least || (d->done < d->most && check_seconds() < d->until);
    d->done += more;
    return more;
}

/* kill(-1) would end every process of the user, and a child that was never started has this
 * number. */
static inline void check_kill(pid_t child, int number)
{
    CHECK(child > 0);
    if (child > 0)
        kill(child, number);
}

/* The step of a sweep that fails the n-th operation, for n = 0, stride, 2 stride, ... */
static inline int check_stride(int argc, char **argv, int stride)
{
    return argc > 1 ? atoi(argv[1]) : check_full() ? stride : 8 * stride;
}

/* splitmix64 */
static inline uint64_t check_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [low, high]. */
static inline uint64_t check_range(uint64_t *state, uint64_t low, uint64_t high)
{
    return low + check_random(state) % (high - low + 1);
}

#endif
