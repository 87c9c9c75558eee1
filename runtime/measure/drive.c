/* A drive and its profile: see drive.h and measure.h.
 *
 * The block device is the one of the directory's files. Device numbers may change at each start of
 * the machine, so a drive is identified by model, serial number and size, if /sys has them. A
 * filesystem without a block device (tmpfs, overlay, network) or with a made-up device number
 * (btrfs) is identified by its own id. */
#include "runtime/measure/drive.h"
#include "offload/kv/tier_disk.h"
#include "runtime/measure/profile.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* ---- which drive ---- */

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

int spw_drive_identify(struct spw_drive *out, const char *directory, struct spw_error *err)
{
    struct stat st;
    struct statvfs v;
    if (stat(directory, &st) != 0)
        return spw_fail(err, -errno, "%s: %s", directory, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return spw_fail(err, -ENOTDIR, "%s: found a file, expected a directory", directory);
    snprintf(out->filesystem, sizeof out->filesystem, "%s", spw_disk_filesystem(directory));
    if (major(st.st_dev) != 0)
        spw_drive_name(out->device, sizeof out->device, "/sys", major(st.st_dev), minor(st.st_dev));
    else
        snprintf(out->device, sizeof out->device, "%s %llx", out->filesystem,
                 statvfs(directory, &v) == 0 ? (unsigned long long)v.f_fsid : 0);
    return 0;
}

/* ---- the profile ---- */

static int measure(void *options, void *drive, struct spw_error *err)
{
    return spw_drive_measure(drive, options, err);
}

int spw_drive_probe(struct spw_drive *out, const struct spw_drive_options *o, struct spw_error *err)
{
    spw_error_clear(err);
    *out = (struct spw_drive){.io = o->io};
    SPW_TRY(spw_drive_identify(out, o->directory, err));
    const struct spw_recall r = {.list = &spw_profile_lists[SPW_PROFILE_DRIVES],
                                 .what = "drive",
                                 .path = o->profile,
                                 .mode = o->mode,
                                 .measure = measure,
                                 .context = (void *)(uintptr_t)o,
                                 .note = &out->note,
                                 .unstored = &out->unstored};
    const int rc = spw_profile_recall(out, &r, err);
    return rc == -ENODATA
               ? spw_fail(err, rc,
                          "%s: its drive has not been measured; run 'spillway probe %s' once",
                          o->directory, o->directory)
               : rc;
}
