/* Mapped files that may lose their pages: see file_map.h. systemd's sigbus.c does the same for its
 * journals. */
#include "model/source/file_map.h"

#include "base/file.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- data of the handler: no locks, and no memory that is ever freed ---- */

enum { MOST_MAPS = 4096 };

static struct range {
    _Atomic uintptr_t begin; /* 0: a free slot */
    _Atomic uint64_t bytes;  /* whole pages */
    atomic_bool damaged;
} ranges[MOST_MAPS];

static struct sigaction before;
static uintptr_t page_bytes;

/* Replaces all pages from the lost page to the end of the range. A file that ends before this page
 * ends before all later pages, too, so a large file costs one call instead of one call for each
 * page. */
static bool replace_lost_pages(uintptr_t at)
{
    for (int i = 0; i < MOST_MAPS; i++) {
        uintptr_t begin = atomic_load(&ranges[i].begin);
        uint64_t bytes = atomic_load(&ranges[i].bytes);
        if (!begin || at < begin || at - begin >= bytes)
            continue;
        uintptr_t page = at & ~(page_bytes - 1);
        void *zeros = mmap((void *)page, begin + bytes - page, PROT_READ,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        if (zeros == MAP_FAILED)
            return false;
        atomic_store(&ranges[i].damaged, true);
        return true;
    }
    return false;
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    int saved = errno;
    bool ours = info->si_code > 0 && replace_lost_pages((uintptr_t)info->si_addr);
    errno = saved;
    if (ours)
        return;
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);
    else
        sigaction(SIGBUS, &before,
                  NULL); /* the access is repeated and ends as without our handler */
}

static void install(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &before);
}

/* Returns a free slot, or -ENFILE. */
static int guard(const void *base, uint64_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int slot = -ENFILE;
    pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_MAPS && slot < 0; i++)
        if (!atomic_load(&ranges[i].begin))
            slot = i;
    if (slot >= 0) {
        atomic_store(&ranges[slot].damaged, false);
        atomic_store(&ranges[slot].bytes, spw_align_up(bytes, page_bytes));
        atomic_store(&ranges[slot].begin, (uintptr_t)base);
    }
    pthread_mutex_unlock(&lock);
    return slot;
}

/* ---- open, close, check ---- */

static int map_file(struct spw_file_map *map, const char *path, uint64_t least,
                    struct spw_error *err)
{
    struct stat info;
    if (map->bytes < least)
        return spw_fail(err, -EINVAL, "%s: found %llu bytes, expected a file of at least %llu",
                        path, (unsigned long long)map->bytes, (unsigned long long)least);
    if (fstat(map->fd, &info) < 0)
        return spw_fail(err, -errno, "%s: cannot be examined: %s", path, strerror(errno));
    map->written = info.st_mtim;
    void *base = spw_alloc_fails()
                     ? (errno = ENOMEM, MAP_FAILED)
                     : mmap(NULL, (size_t)map->bytes, PROT_READ, MAP_SHARED, map->fd, 0);
    if (base == MAP_FAILED)
        return spw_fail(err, -errno, "%s: mapping %llu bytes: %s", path,
                        (unsigned long long)map->bytes, strerror(errno));
    map->base = base;
    map->slot = guard(base, map->bytes);
    return map->slot < 0
               ? spw_fail(err, map->slot, "%s: %d files are mapped already", path, MOST_MAPS)
               : 0;
}

int spw_file_map_open(struct spw_file_map *map, const char *path, uint64_t least,
                      struct spw_error *err)
{
    map->slot = -1;
    map->fd = spw_file_open(path, &map->bytes, err);
    if (map->fd < 0)
        return map->fd;
    int rc = map_file(map, path, least, err);
    if (rc && !map->base)
        close(map->fd);
    if (rc)
        spw_file_map_close(map);
    return rc;
}

void spw_file_map_close(struct spw_file_map *map)
{
    if (!map->base)
        return;
    if (map->slot >= 0)
        atomic_store(&ranges[map->slot].begin, 0);
    munmap((void *)(uintptr_t)map->base, (size_t)map->bytes);
    close(map->fd);
    map->base = NULL;
}

bool spw_file_map_damaged(const struct spw_file_map *map)
{
    return atomic_load(&ranges[map->slot].damaged);
}

int spw_file_map_check(const struct spw_file_map *map, const char *path, struct spw_error *err)
{
    struct stat now;
    if (fstat(map->fd, &now) < 0)
        return spw_fail(err, -EIO, "%s: cannot be examined: %s", path, strerror(errno));
    if ((uint64_t)now.st_size != map->bytes)
        return spw_fail(err, -EIO,
                        "%s: the file had %llu bytes when it was opened and has %lld now; do not "
                        "write to a model's files while they are in use",
                        path, (unsigned long long)map->bytes, (long long)now.st_size);
    if (now.st_mtim.tv_sec != map->written.tv_sec || now.st_mtim.tv_nsec != map->written.tv_nsec)
        return spw_fail(err, -EIO,
                        "%s: the file was written to after it was opened; do not write to a "
                        "model's files while they are in use",
                        path);
    if (spw_file_map_damaged(map))
        return spw_fail(err, -EIO,
                        "%s: a part of the file could not be read; the drive may be failing, or "
                        "the file was shorter for a moment",
                        path);
    return 0;
}
