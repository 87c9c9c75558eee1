/* Free memory, and control groups: see memory.h. The functions of control groups read files only;
 * any thread.
 *
 *     /proc/self/cgroup      4:memory:/a/b            0::/a/b
 *     /proc/self/mountinfo   ... /  /sys/fs/cgroup/memory ... - cgroup cgroup rw,memory
 *                            ... /a /sys/fs/cgroup        ... - cgroup2 cgroup2 rw
 *
 * A mount shows the tree from its root (4th field) on. So the group /a/b lies in the folder
 * MOUNT/b of the second mount. Each folder from there up to MOUNT is a level with its own
 * limits. */
#include "runtime/engine/memory.h"

#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- control groups: files ---- */

enum { PATH_BYTES = PATH_MAX, LINE_BYTES = 2 * PATH_MAX };

/* The file names of one version. */
struct version {
    const char *limit, *high, *used; /* high: NULL if the version has none */
    const char *reclaimable[3];      /* lines of memory.stat */
};

static const struct version v2 = {
    .limit = "memory.max",
    .high = "memory.high",
    .used = "memory.current",
    .reclaimable = {"inactive_file", "active_file", "slab_reclaimable"}};
static const struct version v1 = {.limit = "memory.limit_in_bytes",
                                  .used = "memory.usage_in_bytes",
                                  .reclaimable = {"total_inactive_file", "total_active_file"}};
/* Memory and swap together. This leaves less than v1's own limit only while something is swapped
 * out. */
static const struct version v1_swap = {.limit = "memory.memsw.limit_in_bytes",
                                       .used = "memory.memsw.usage_in_bytes",
                                       .reclaimable = {"total_inactive_file", "total_active_file"}};

/* ---- files ---- */

static FILE *open_in(const char *folder, const char *name)
{
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
}

/* Reads a file with one number. UINT64_MAX for "max", for a missing file, and for v1's largest
 * number. */
static uint64_t read_number(const char *folder, const char *name)
{
    uint64_t value = UINT64_MAX;
    FILE *f = open_in(folder, name);
    if (!f)
        return value;
    if (fscanf(f, "%" SCNu64, &value) != 1 || value >= (uint64_t)1 << 62)
        value = UINT64_MAX;
    fclose(f);
    return value;
}

/* Memory that the system frees when the group needs it. After a model was read, most memory of a
 * group is pages of its files. */
static uint64_t read_reclaimable(const char *folder, const struct version *v)
{
    char line[256], name[64];
    uint64_t bytes, sum = 0;
    FILE *f = open_in(folder, "memory.stat");
    while (f && fgets(line, sizeof line, f))
        for (int i = 0; i < 3 && v->reclaimable[i]; i++)
            if (sscanf(line, "%63s %" SCNu64, name, &bytes) == 2 &&
                strcmp(name, v->reclaimable[i]) == 0)
                sum += bytes;
    if (f)
        fclose(f);
    return sum;
}

/* ---- one level ---- */

static void take_least(struct spw_memory_limit *out, uint64_t limit, uint64_t used,
                       const char *group)
{
    if (limit == UINT64_MAX || spw_sub_u64(limit, used) >= out->left_bytes)
        return;
    out->left_bytes = spw_sub_u64(limit, used);
    out->limit_bytes = limit;
    out->used_bytes = used;
    snprintf(out->group, sizeof out->group, "%s", *group ? group : "/");
}

static void read_level(struct spw_memory_group *out, const char *folder, const char *group,
                       const struct version *v)
{
    uint64_t limit = read_number(folder, v->limit);
    uint64_t high = v->high ? read_number(folder, v->high) : UINT64_MAX;
    if (limit == UINT64_MAX && high == UINT64_MAX)
        return;
    uint64_t used = read_number(folder, v->used);
    used = used == UINT64_MAX ? 0 : spw_sub_u64(used, read_reclaimable(folder, v));
    take_least(&out->hard, limit, used, group);
    take_least(&out->soft, limit, used, group);
    take_least(&out->soft, high, used, group);
}

/* ---- where the group is ---- */

/* Whether a comma-separated list has this word. */
static bool has_word(const char *words, const char *word)
{
    size_t bytes = strlen(word);
    for (const char *at = words; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (!strncmp(at, word, bytes) && (at[bytes] == ',' || !at[bytes]))
            return true;
    }
    return false;
}

/* Finds the process's path in the tree of v2, or in that of v1's memory controller. */
static bool find_group(char path[PATH_BYTES], const char *root, bool is_v2)
{
    char line[LINE_BYTES];
    bool found = false;
    FILE *f = open_in(root, "proc/self/cgroup");
    while (f && !found && fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':');
        char *at = controllers ? strchr(++controllers, ':') : NULL;
        if (!at)
            continue;
        *at++ = 0;
        at[strcspn(at, "\n")] = 0;
        found = is_v2 ? !*controllers : has_word(controllers, "memory");
        found = found && snprintf(path, PATH_BYTES, "%s", at) < PATH_BYTES;
    }
    if (f)
        fclose(f);
    return found;
}

/* "\040" stands for a space. */
static void decode(char *text)
{
    char *to = text;
    unsigned code;
    for (const char *at = text; *at; to++) {
        bool is_code = *at == '\\' && sscanf(at + 1, "%3o", &code) == 1;
        *to = is_code ? (char)code : *at;
        at += is_code ? 4 : 1;
    }
    *to = 0;
}

/* The rest of the path below a mount's root; NULL: the mount does not show the group. */
static const char *below(const char *path, const char *mount_root)
{
    size_t bytes = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    bool inside = !strncmp(path, mount_root, bytes) && (path[bytes] == '/' || !path[bytes]);
    return inside && !strstr(path + bytes, "/..") ? path + bytes : NULL;
}

/* Whether a line of mountinfo is of this kind of tree. Then sets the mount's root and folder. */
static bool parse_mount(char *line, bool is_v2, char **mount_root, char **folder)
{
    char *fields[6], *rest = NULL, *dash = strstr(line, " - ");
    if (!dash)
        return false;
    *dash = 0;
    fields[0] = strtok_r(line, " ", &rest);
    for (int i = 1; i < 6; i++)
        fields[i] = fields[i - 1] ? strtok_r(NULL, " ", &rest) : NULL;
    char *type = strtok_r(dash + 3, " \n", &rest), *source = strtok_r(NULL, " \n", &rest);
    char *options = strtok_r(NULL, " \n", &rest);
    *mount_root = fields[3];
    *folder = fields[4];
    if (!fields[4] || !source || !options)
        return false;
    decode(*mount_root);
    decode(*folder);
    return is_v2 ? !strcmp(type, "cgroup2")
                 : !strcmp(type, "cgroup") && has_word(options, "memory");
}

/* Finds the folder of the group (`folder`); its first *n_mount bytes are the mount. If a mount
 * does not show the group, as in some containers, the mount itself counts as the group. */
static bool find_folder(char folder[PATH_BYTES], size_t *n_mount, const char *root,
                        const char *path, bool is_v2)
{
    char line[LINE_BYTES], *mount_root, *mount;
    bool found = false, shown = false;
    FILE *f = open_in(root, "proc/self/mountinfo");
    while (f && !shown && fgets(line, sizeof line, f)) {
        if (!parse_mount(line, is_v2, &mount_root, &mount))
            continue;
        const char *rest = below(path, mount_root);
        int n = snprintf(folder, PATH_BYTES, "%s%s", root, mount);
        *n_mount = (size_t)n;
        found = n < PATH_BYTES;
        shown = found && rest;
        if (shown && snprintf(folder + n, PATH_BYTES - (size_t)n, "%s", rest) >= PATH_BYTES - n)
            found = false;
    }
    if (f)
        fclose(f);
    return found;
}

static void read_tree(struct spw_memory_group *out, const char *root, bool is_v2)
{
    char path[PATH_BYTES], folder[PATH_BYTES];
    size_t n_mount;
    if (!find_group(path, root, is_v2) || !find_folder(folder, &n_mount, root, path, is_v2))
        return;
    for (;;) {
        read_level(out, folder, folder + n_mount, is_v2 ? &v2 : &v1);
        if (!is_v2)
            read_level(out, folder, folder + n_mount, &v1_swap);
        char *slash = strrchr(folder + n_mount, '/');
        if (!slash)
            return;
        *slash = 0;
    }
}

void spw_memory_group_read(struct spw_memory_group *out, const char *root)
{
    const struct spw_memory_limit none = {.left_bytes = UINT64_MAX, .limit_bytes = UINT64_MAX};
    *out = (struct spw_memory_group){.hard = none, .soft = none};
    read_tree(out, root, true);
    read_tree(out, root, false);
}

/* ---- memory that is free ---- */

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
