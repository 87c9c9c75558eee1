/* Control groups: see memory_group.h.
 *
 *     /proc/self/cgroup      4:memory:/a/b            0::/a/b
 *     /proc/self/mountinfo   ... /  /sys/fs/cgroup/memory ... - cgroup cgroup rw,memory
 *                            ... /a /sys/fs/cgroup        ... - cgroup2 cgroup2 rw
 *
 * A mount shows the tree from its root (4th field) on. So the group /a/b lies in the folder
 * MOUNT/b of the second mount. Each folder from there up to MOUNT is a level with its own
 * limits. */
#include "runtime/engine/memory_group.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

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
