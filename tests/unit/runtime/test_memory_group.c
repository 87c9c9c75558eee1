/* The limits of control groups, on made-up trees: v1, v2, nested groups, containers that show a
 * part of the tree, names with escape codes, wrong or missing files. */
#include "runtime/engine/memory.h"
#include "tests/check.h"

#include <string.h>

#define MIB ((uint64_t)1 << 20)

static char root[64];

/* Creates the folders of the path; $ in the text is the end of a line. */
static void put(const char *path, const char *text)
{
    char command[1024];
    snprintf(command, sizeof command,
             "mkdir -p \"$(dirname '%s/%s')\" && printf '%%s' '%s' | tr '$' '\\n' >'%s/%s'", root,
             path, text, root, path);
    CHECK(system(command) == 0);
}

static void clear(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    CHECK(system(command) == 0);
}

static struct spw_memory_group read_all(void)
{
    struct spw_memory_group g;
    spw_memory_group_read(&g, root);
    return g;
}

#define NONE UINT64_MAX
#define CHECK_LIMIT(l, left, limit, name)                                                          \
    CHECK_MSG((l).left_bytes == (left) && (l).limit_bytes == (limit) && !strcmp((l).group, name),  \
              "left %llu of %llu, group '%s'", (unsigned long long)(l).left_bytes,                 \
              (unsigned long long)(l).limit_bytes, (l).group)

static const char v1_mount[] =
    "23 1 0:1 / / rw - ext4 /dev/vda rw$"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu$"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory$";
static const char v2_mount[] = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw$";

static void check_nothing(void)
{
    struct spw_memory_group g = read_all(); /* no files at all */
    CHECK_LIMIT(g.hard, NONE, NONE, "");
    put("proc/self/cgroup", "0::/a$");
    put("proc/self/mountinfo", v2_mount);
    g = read_all(); /* a group without the memory controller */
    CHECK_LIMIT(g.hard, NONE, NONE, "");
    put("sys/fs/cgroup/a/memory.max", "max$");
    put("sys/fs/cgroup/a/memory.current", "4096$");
    g = read_all();
    CHECK_LIMIT(g.soft, NONE, NONE, "");
    put("proc/self/mountinfo", "nonsense - $ - cgroup2$1 2 3 - cgroup2 a b$");
    put("proc/self/cgroup", "$nonsense$:$::$");
    g = read_all();
    CHECK_LIMIT(g.hard, NONE, NONE, "");
    clear();
}

/* The middle one of three levels leaves the least. Used memory counts, pages of files do not. */
static void check_v1(void)
{
    put("proc/self/cgroup", "5:memory,other:/a/b$4:cpu:/$0::/$");
    put("proc/self/mountinfo", v1_mount);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712$");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "999$");
    put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "41943040$");
    put("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "31457280$");
    put("sys/fs/cgroup/memory/a/memory.stat",
        "inactive_file 1$active_file 1$total_inactive_file 8388608$total_active_file 2097152$");
    put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "62914560$");
    put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "31457280$");
    struct spw_memory_group g = read_all();
    CHECK_LIMIT(g.hard, 20 * MIB, 40 * MIB, "/a");
    CHECK_LIMIT(g.soft, 20 * MIB, 40 * MIB, "/a");
    put("sys/fs/cgroup/memory/a/b/memory.memsw.limit_in_bytes", "62914560$");
    put("sys/fs/cgroup/memory/a/b/memory.memsw.usage_in_bytes", "61865984$"); /* swapped out */
    g = read_all();
    CHECK_LIMIT(g.hard, 1 * MIB, 60 * MIB, "/a/b");
    clear();
}

static void check_v2(void)
{
    put("proc/self/cgroup", "0::/user.slice/run-1.scope$");
    put("proc/self/mountinfo", v2_mount);
    put("sys/fs/cgroup/user.slice/memory.max", "41943040$");
    put("sys/fs/cgroup/user.slice/memory.current", "10485760$");
    put("sys/fs/cgroup/user.slice/memory.high", "max$");
    put("sys/fs/cgroup/user.slice/memory.stat",
        "anon 5$inactive_file 1048576$active_file 1048576$slab_reclaimable 1048576$");
    put("sys/fs/cgroup/user.slice/run-1.scope/memory.max", "max$");
    put("sys/fs/cgroup/user.slice/run-1.scope/memory.high", "25165824$");
    put("sys/fs/cgroup/user.slice/run-1.scope/memory.current", "4194304$");
    struct spw_memory_group g = read_all();
    CHECK_LIMIT(g.hard, 33 * MIB, 40 * MIB, "/user.slice");
    CHECK_LIMIT(g.soft, 20 * MIB, 24 * MIB, "/user.slice/run-1.scope");
    put("sys/fs/cgroup/user.slice/memory.current", "83886080$"); /* more than the limit */
    g = read_all();
    CHECK_LIMIT(g.hard, 0, 40 * MIB, "/user.slice");
    clear();
}

/* A container's mount shows the tree from the container's own group on. If it shows another part,
 * the mount stands for the group itself. With two mounts, the one that shows the group counts. */
static void check_containers(void)
{
    put("proc/self/cgroup", "0::/docker/77/in side$");
    put("proc/self/mountinfo",
        "1 2 0:3 /other /elsewhere rw - cgroup2 cgroup2 rw$"
        "31 23 0:28 /docker/77 /my\\040groups rw,relatime - cgroup2 cgroup2 rw$");
    put("my groups/in side/memory.max", "10485760$");
    put("my groups/in side/memory.current", "0$");
    put("my groups/memory.max", "5242880$");
    put("my groups/memory.current", "0$");
    put("elsewhere/memory.max", "1$");
    struct spw_memory_group g = read_all();
    CHECK_LIMIT(g.hard, 5 * MIB, 5 * MIB, "/");
    put("my groups/memory.max", "max$");
    g = read_all();
    CHECK_LIMIT(g.hard, 10 * MIB, 10 * MIB, "/in side");
    put("proc/self/cgroup", "0::/../../docker/88$"); /* outside of the namespace */
    put("proc/self/mountinfo", "31 23 0:28 / /my\\040groups rw - cgroup2 cgroup2 rw$");
    put("my groups/memory.max", "3145728$");
    g = read_all();
    CHECK_LIMIT(g.hard, 3 * MIB, 3 * MIB, "/");
    clear();
}

/* v1 for memory and v2 for the rest, like systemd's hybrid mode; and the reverse. */
static void check_hybrid(void)
{
    char both[1024];
    snprintf(both, sizeof both, "%s%s", v1_mount,
             "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw$");
    put("proc/self/cgroup", "4:memory:/m$0::/u$");
    put("proc/self/mountinfo", both);
    put("sys/fs/cgroup/memory/m/memory.limit_in_bytes", "25165824$");
    put("sys/fs/cgroup/memory/m/memory.usage_in_bytes", "0$");
    put("sys/fs/cgroup/unified/u/cgroup.procs", "1$");
    struct spw_memory_group g = read_all();
    CHECK_LIMIT(g.hard, 24 * MIB, 24 * MIB, "/m");
    put("sys/fs/cgroup/unified/u/memory.max", "1048576$");
    g = read_all();
    CHECK_LIMIT(g.hard, 1 * MIB, 1 * MIB, "/u");
    clear();
}

int main(void)
{
    snprintf(root, sizeof root, "/tmp/spw_memory_group_%d", (int)getpid());
    clear();
    check_nothing();
    check_v1();
    check_v2();
    check_containers();
    check_hybrid();
    return check_done();
}
