/* The test programs' own assertions. A failed CHECK prints where and what, and the program goes on;
 * check_done() gives the exit status. Property tests print their seed with check_seed(). */
#ifndef SPW_TESTS_CHECK_H
#define SPW_TESTS_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CHECK_SKIP 77

/* Whether a sanitizer is at work, under which tests do less. */
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

/* A test that checked nothing has failed. */
static inline int check_done(void)
{
    fprintf(stderr, "%d checks, %d failed\n", check_count_, check_failed_);
    return check_failed_ || !check_count_;
}

/* SPW_SEED repeats a run; otherwise every run draws afresh. */
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
