/* Which drive a directory is on: see drive.h.
 *
 * statx gives the number of the mount; /proc/self/mountinfo gives its filesystem and source. The
 * block device is the one of the directory's files. Some filesystems (btrfs) make up a device
 * number; then it is the source of the mount. A filesystem with neither (tmpfs, overlay, network)
 * has the name of its source. Device numbers may change at each start of the machine, so a drive is
 * identified by model, serial number and size, if /sys has them. */
#include "runtime/measure/drive.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Appends a word of printable characters, with one space before it. */
static void append(char *out, size_t bytes, const char *text)
{
    size_t n = strlen(out);
    bool space = n > 0;
    for (; *text && n + 2 < bytes; text++) {
        unsigned char c = (unsigned char)*text;
        if (isspace(c)) {
            space = n > 0;
            continue;
        }
        if (space)
            out[n++] = ' ';
        space = false;
        out[n++] = c > ' ' && c < 0x7f ? (char)c : '?';
    }
    out[n] = 0;
}

/* Appends the first of these files below `folder` that is not empty. */
static bool append_first(char *out, size_t bytes, const char *folder, const char *const *names)
{
    for (; *names; names++) {
        char path[512], line[128];
        snprintf(path, sizeof path, "%s/%s", folder, *names);
        FILE *file = fopen(path, "re");
        bool found = file && fgets(line, sizeof line, file) && line[strspn(line, " \t\n")];
        if (file)
            fclose(file);
        if (found) {
            append(out, bytes, line);
            return true;
        }
    }
    return false;
}

/* "../../devices/.../block/vda" gives "vda". */
static void read_link_name(char *out, size_t bytes, const char *path)
{
    char target[512];
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    const char *slash = strrchr(target, '/');
    snprintf(out, bytes, "%.64s", slash ? slash + 1 : target);
}

void spw_drive_name(char *out, size_t bytes, const char *sys, unsigned major, unsigned minor)
{
    static const char *const models[] = {"device/model", "dm/name", "md/level", NULL};
    static const char *const serials[] = {"serial",  "device/serial", "wwid", "device/wwid",
                                          "dm/uuid", "md/uuid",       NULL};
    static const char *const sizes[] = {"size", NULL};
    char folder[256], disk[320], path[384], name[80], number[32];
    snprintf(folder, sizeof folder, "%s/dev/block/%u:%u", sys, major, minor);
    snprintf(path, sizeof path, "%s/partition", folder);
    snprintf(disk, sizeof disk, "%s%s", folder, access(path, F_OK) == 0 ? "/.." : "");
    out[0] = 0;
    if (!append_first(out, bytes, disk, models)) {
        read_link_name(name, sizeof name, folder);
        append(out, bytes, name);
    }
    if (!append_first(out, bytes, disk, serials)) {
        snprintf(number, sizeof number, "%u:%u", major, minor);
        append(out, bytes, number);
    }
    if (append_first(out, bytes, disk, sizes))
        append(out, bytes, "sectors");
}

/* ---- mounts ---- */

struct mount {
    char filesystem[32], source[128];
};

/* A line is: number parent major:minor root point options tag... - filesystem source options */
static bool parse_mount(const char *line, uint64_t number, dev_t device, struct mount *out)
{
    unsigned long long n;
    unsigned major, minor;
    const char *dash = strstr(line, " - ");
    if (!dash || sscanf(line, "%llu %*u %u:%u", &n, &major, &minor) != 3)
        return false;
    if (number ? n != number : makedev(major, minor) != device)
        return false;
    return sscanf(dash, " - %31s %127s", out->filesystem, out->source) == 2;
}

/* `number` 0: unknown; the device is compared instead. */
static void find_mount(uint64_t number, dev_t device, struct mount *out)
{
    char line[4096];
    *out = (struct mount){.filesystem = "unknown", .source = "unknown"};
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (!file)
        return;
    while (fgets(line, sizeof line, file))
        if (parse_mount(line, number, device, out))
            break;
    fclose(file);
}

int spw_drive_identify(struct spw_drive *out, const char *directory, struct spw_error *err)
{
    struct statx x;
    struct stat source;
    struct mount mount;
    if (statx(AT_FDCWD, directory, 0, STATX_BASIC_STATS | STATX_MNT_ID, &x) != 0)
        return spw_fail(err, -errno, "%s: %s", directory, strerror(errno));
    if (!S_ISDIR(x.stx_mode))
        return spw_fail(err, -ENOTDIR, "%s: found a file, expected a directory", directory);
    dev_t device = makedev(x.stx_dev_major, x.stx_dev_minor);
    find_mount(x.stx_mask & STATX_MNT_ID ? x.stx_mnt_id : 0, device, &mount);
    if (major(device) == 0 && stat(mount.source, &source) == 0 && S_ISBLK(source.st_mode))
        device = source.st_rdev;
    out->filesystem[0] = out->device[0] = 0;
    append(out->filesystem, sizeof out->filesystem, mount.filesystem);
    if (major(device) != 0) {
        spw_drive_name(out->device, sizeof out->device, "/sys", major(device), minor(device));
        return 0;
    }
    append(out->device, sizeof out->device, mount.filesystem);
    append(out->device, sizeof out->device, mount.source);
    return 0;
}
