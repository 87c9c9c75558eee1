/* Says what a test was at when a signal ended it, or when it runs for long. */
#ifndef SPW_TESTS_DOING_H
#define SPW_TESTS_DOING_H

#include "tests/check.h"

#include <string.h>

enum { CHECK_SLOW_SECONDS = 90 };
static const char *check_doing_;

static inline void check_tell_(int number)
{
    const char *what = number == SIGALRM ? "still at: " : "a signal ended: ";
    ssize_t n = write(2, what, strlen(what)) + write(2, check_doing_, strlen(check_doing_)) +
                write(2, "\n", 1);
    (void)n;
}

/* From now on the program prints `doing`, which may change, before a signal ends it, and once if it
 * runs for long: a test that ctest ends for its time cannot print anything then. */
static inline void check_doing(const char *doing)
{
    static const int signals[] = {SIGALRM, SIGABRT, SIGSEGV, SIGBUS, SIGFPE};
    const bool sanitized = RUN_UNDER_ASAN || RUN_UNDER_TSAN; /* which report crashes themselves */
    struct sigaction a = {.sa_handler = check_tell_, .sa_flags = SA_RESTART};
    check_doing_ = doing;
    for (size_t i = 0; i < sizeof signals / sizeof *signals && (i < 2 || !sanitized); i++) {
        a.sa_flags = i ? (int)SA_RESETHAND : SA_RESTART; /* then the signal comes again */
        sigaction(signals[i], &a, NULL);
    }
    alarm(CHECK_SLOW_SECONDS);
}

#endif
