/* Available memory: see memory.h. */
#include "runtime/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { FALLBACK_SHIFT = 30 };

/* A file that holds one number; "max" or no file: UINT64_MAX. */
static uint64_t read_number(const char *path)
{
    uint64_t value = UINT64_MAX;
    FILE *f = fopen(path, "re");
    if (!f)
        return value;
    if (fscanf(f, "%" SCNu64, &value) != 1)
        value = UINT64_MAX;
    fclose(f);
    return value;
}

static uint64_t system_available(void)
{
    char line[256];
    uint64_t kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f)
        return (uint64_t)1 << FALLBACK_SHIFT;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
            break;
    fclose(f);
    return kib ? kib * 1024 : (uint64_t)1 << FALLBACK_SHIFT;
}

/* Of what a control group has in use, the pages of files, which the system takes back when it needs
 * memory: after a model was read they are most of it. */
static uint64_t group_file_pages(void)
{
    char line[256];
    uint64_t bytes, sum = 0;
    FILE *f = fopen("/sys/fs/cgroup/memory.stat", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "inactive_file %" SCNu64, &bytes) == 1 ||
            sscanf(line, "active_file %" SCNu64, &bytes) == 1)
            sum += bytes;
    if (f)
        fclose(f);
    return sum;
}

uint64_t spw_memory_available(void)
{
    uint64_t system = system_available();
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max");
    uint64_t used = read_number("/sys/fs/cgroup/memory.current");
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return system;
    used = spw_sub_u64(used, group_file_pages());
    return spw_min_u64(system, spw_sub_u64(limit, used));
}

int spw_memory_on_disk(uint64_t *bytes, const char *dir, struct spw_error *err)
{
    static const char advice[] = "expected a directory that files can be made in; name another one";
    struct stat st;
    struct statvfs fs;
    int rc = 0;
    if (stat(dir, &st) || statvfs(dir, &fs))
        rc = -errno;
    else if (!S_ISDIR(st.st_mode))
        rc = -ENOTDIR;
    else if (fs.f_flag & ST_RDONLY)
        rc = -EROFS;
    else if (access(dir, W_OK | X_OK))
        rc = -errno;
    if (rc)
        return spw_fail(err, rc, "disk directory %.500s: %s; %s", dir, strerror(-rc), advice);
    *bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return 0;
}
