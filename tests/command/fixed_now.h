/* The time that templates are told in tests: Friday, 26 July 2024, 12:34:56. */
#ifndef SPW_TESTS_COMMAND_FIXED_NOW_H
#define SPW_TESTS_COMMAND_FIXED_NOW_H

#include <time.h>

static const struct tm fixed_now = {.tm_year = 124,
                                    .tm_mon = 6,
                                    .tm_mday = 26,
                                    .tm_hour = 12,
                                    .tm_min = 34,
                                    .tm_sec = 56,
                                    .tm_wday = 5,
                                    .tm_yday = 207};

#endif
