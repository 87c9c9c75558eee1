/* Free memory: see memory.h. */
#include "runtime/engine/memory.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { FALLBACK_SHIFT = 30 };

static const char *_Atomic group_root = "";

uint64_t spw_memory_of_system(void)
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

void spw_memory_group_root(const char *root)
{
    atomic_store(&group_root, root);
}

void spw_memory_group(struct spw_memory_group *out)
{
    spw_memory_group_read(out, atomic_load(&group_root));
}

uint64_t spw_memory_available(void)
{
    struct spw_memory_group group;
    spw_memory_group(&group);
    return spw_min_u64(spw_memory_of_system(), group.soft.left_bytes);
}

int spw_memory_to_measure(const char *what, uint64_t bytes, struct spw_error *err)
{
    char needed[32], left[32];
    struct spw_memory_group group;
    spw_memory_group(&group);
    if (bytes <= group.hard.left_bytes)
        return 0;
    return spw_fail(err, -ENOMEM,
                    "%s: measuring takes %s of memory, but control group %s leaves only %s; "
                    "measure outside of the group",
                    what, spw_bytes_text(needed, bytes), group.hard.group,
                    spw_bytes_text(left, group.hard.left_bytes));
}

int spw_memory_on_disk(uint64_t *bytes, const char *dir, struct spw_error *err)
{
    static const char advice[] = "name a directory in which files can be created";
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
