/* Errors and counted allocation: see base.h. */
#include "base/base.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Number of allocations until one fails; negative: none fails. */
static _Atomic int64_t fail_countdown = -1;
static _Atomic int64_t outstanding;

int spw_fail(struct spw_error *err, int code, const char *format, ...)
{
    if (err && !err->text[0]) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return code;
}

void spw_error_clear(struct spw_error *err)
{
    if (!err)
        return;
    err->text[0] = 0;
    err->refuses_budgets = false;
}

const char *spw_kv_precision_name(enum spw_kv_precision precision)
{
    static const char *const names[] = {[SPW_KV_EXACT] = "exact",
                                        [SPW_KV_INT8] = "int8",
                                        [SPW_KV_INT8_INT4] = "int8:int4",
                                        [SPW_KV_INT4] = "int4"};
    return names[precision];
}

const char *spw_bytes_text(char buffer[32], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    uint64_t one = 1;
    for (; unit < 5 && bytes / one >= 1024; unit++)
        one *= 1024;
    uint64_t hundredths = bytes % one ? spw_div_up(bytes % one * 100, one) : 0;
    uint64_t whole = bytes / one + hundredths / 100;
    hundredths %= 100;
    if (unit)
        snprintf(buffer, 32, "%llu.%02llu%s", (unsigned long long)whole,
                 (unsigned long long)hundredths, units[unit]);
    else
        snprintf(buffer, 32, "%lluB", (unsigned long long)bytes);
    return buffer;
}

double spw_now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int spw_check_replaceable(const struct stat *st, const char *name, struct spw_error *err)
{
    if (S_ISDIR(st->st_mode))
        return spw_fail(err, -EINVAL, "%s: found a directory, expected a file", name);
    if (S_ISLNK(st->st_mode))
        return spw_fail(err, -EINVAL,
                        "%s: found a symbolic link, expected a file or a name that is free", name);
    if (!S_ISREG(st->st_mode)) /* a device such as /dev/null must not be replaced by a file */
        return spw_fail(err, -EINVAL, "%s: is not a regular file; give a name that is free", name);
    if (st->st_uid != geteuid())
        return spw_fail(err, -EPERM, "%s: belongs to another user; give a name that is free", name);
    return 0;
}

bool spw_is_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

void spw_alloc_fail_nth(int64_t n)
{
    atomic_store(&fail_countdown, n);
}

bool spw_alloc_fails(void)
{
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) < 0)
        return false;
    return atomic_fetch_sub(&fail_countdown, 1) == 0;
}

int64_t spw_alloc_outstanding(void)
{
    return atomic_load(&outstanding);
}

static void *count(void *p)
{
    if (p)
        atomic_fetch_add_explicit(&outstanding, 1, memory_order_relaxed);
    return p;
}

void *spw_alloc(size_t bytes)
{
    if (spw_alloc_fails())
        return NULL;
    return count(malloc(bytes ? bytes : 1));
}

void *spw_alloc_zero(size_t n, size_t bytes)
{
    if (spw_alloc_fails())
        return NULL;
    return count(calloc(n ? n : 1, bytes ? bytes : 1));
}

void *spw_realloc(void *p, size_t bytes)
{
    if (!p)
        return spw_alloc(bytes);
    if (spw_alloc_fails())
        return NULL;
    return realloc(p, bytes ? bytes : 1);
}

char *spw_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = spw_alloc(bytes);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

void spw_free(void *p)
{
    if (!p)
        return;
    atomic_fetch_sub_explicit(&outstanding, 1, memory_order_relaxed);
    free(p);
}
