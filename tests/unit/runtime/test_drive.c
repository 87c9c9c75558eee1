/* The drive's profile: stored values are read back, and all others are refused. Names of drives
 * from a made-up /sys, the choice of the queue depth as a pure function, and a small probe on real
 * directories. */
#include "runtime/measure/drive.h"
#include "runtime/measure/profile.h"
#include "tests/check.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <time.h>

/* While the machine is busy, two of three looks at the clock, drawn at random, take 100 seconds:
 * more than the work between two looks on any machine. */
static atomic_bool is_busy;
static atomic_long busy_seconds, n_looks;

int clock_gettime(clockid_t clock, struct timespec *t)
{
    const int rc = (int)syscall(SYS_clock_gettime, clock, t);
    if (is_busy) {
        const uint32_t draw = (uint32_t)++n_looks * 2654435761u;
        t->tv_sec += busy_seconds += (draw >> 8) % 3 ? 100 : 0;
    }
    return rc;
}

static char folder[64];

static char *in_folder(const char *name)
{
    static char paths[4][256];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

__attribute__((format(printf, 1, 2))) static int sh(const char *format, ...)
{
    char line[1024];
    int n = snprintf(line, sizeof line, "cd %s && { ", folder);
    va_list args;
    va_start(args, format);
    n += vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    va_end(args);
    snprintf(line + n, sizeof line - (size_t)n, "\n} 2>/dev/null");
    return system(line);
}

static struct spw_drive made_up(const char *device, int64_t date)
{
    struct spw_drive d = {.filesystem = "ext4",
                          .io = SPW_IO_THREADS,
                          .engine = "16 threads",
                          .direct = true,
                          .request_bytes = 1 << 20,
                          .queue_depth = 8,
                          .read_bytes_per_second = 1.8e9 + 1.0 / 3,
                          .write_bytes_per_second = 3e9,
                          .latency_seconds = 1.1e-3,
                          .small_request_bytes = 1 << 16,
                          .small_read_bytes_per_second = 7e8,
                          .measured_at = date};
    snprintf(d.device, sizeof d.device, "%s", device);
    return d;
}

static struct spw_machine made_up_machine(uint32_t threads)
{
    return (struct spw_machine){.cpu = "Some \"CPU\" \\ 3",
                                .isa = "avx2",
                                .threads = threads,
                                .cores = 4,
                                .read_bytes_per_second = 5e10,
                                .copy_bytes_per_second = 1e10,
                                .host_bytes_per_second = threads % 2 ? 3e10 : 0,
                                .few_flops = {1e10, 2e10, 5e10, 1e9},
                                .many_flops = {5e11, 1e12, 2e12, 1e10},
                                .measured_at = 1000};
}

static bool same(const struct spw_drive *a, const struct spw_drive *b)
{
    return !strcmp(a->device, b->device) && !strcmp(a->filesystem, b->filesystem) &&
           a->io == b->io && !strcmp(a->engine, b->engine) && a->direct == b->direct &&
           a->request_bytes == b->request_bytes && a->queue_depth == b->queue_depth &&
           a->read_bytes_per_second == b->read_bytes_per_second &&
           a->write_bytes_per_second == b->write_bytes_per_second &&
           a->latency_seconds == b->latency_seconds &&
           a->small_request_bytes == b->small_request_bytes &&
           a->small_read_bytes_per_second == b->small_read_bytes_per_second &&
           a->measured_at == b->measured_at;
}

/* ---- the file ---- */

static struct spw_profile in, out;
static const struct spw_record_list *const drives = &spw_profile_lists[SPW_PROFILE_DRIVES],
                                           *const machines =
                                               &spw_profile_lists[SPW_PROFILE_MACHINES];

static int read_back(const char *name, struct spw_error *err)
{
    err->text[0] = 0;
    int rc = spw_record_file_read(&spw_profile_file, &out, in_folder(name), err);
    CHECK(rc == 0 || (out.n_drives == 0 && out.n_machines == 0));
    return rc;
}

static void test_round_trip(void)
{
    struct spw_error err;
    struct spw_drive a = made_up("A 1 100 sectors", 5), b = a;
    CHECK(read_back("none.json", &err) == -ENOENT);
    memset(&in, 0, sizeof in);
    spw_record_put(drives, &in, &a);
    for (uint32_t i = 1; i <= SPW_PROFILE_MOST; i++) {
        struct spw_machine m = made_up_machine(i);
        spw_record_put(machines, &in, &m);
    }
    CHECK(spw_record_file_write(&spw_profile_file, &in, in_folder("new/er/p.json"), &err) ==
          0); /* folders are made */
    CHECK(read_back("new/er/p.json", &err) == 0);
    CHECK(out.n_drives == 1 && same(&out.drives[0], &a));
    CHECK(out.n_machines == SPW_PROFILE_MOST);
    struct spw_machine m = made_up_machine(7), key = m;
    key.read_bytes_per_second = 0;
    const struct spw_machine *known = spw_record_find(machines, &out, &key);
    CHECK(known && memcmp(known, &m, sizeof m) == 0);
    key.threads = 99;
    CHECK(!spw_record_find(machines, &out, &key));
    CHECK(sh("ls new/er | wc -l | grep -qx 1") == 0); /* no temporary file is left */

    /* An entry with another drive, filesystem or kind of I/O does not match. */
    const struct spw_drive *found = spw_record_find(drives, &out, &a);
    CHECK(found && same(found, &a));
    snprintf(b.device, sizeof b.device, "A 2 100 sectors");
    CHECK(!spw_record_find(drives, &out, &b));
    b = a;
    snprintf(b.filesystem, sizeof b.filesystem, "xfs");
    CHECK(!spw_record_find(drives, &out, &b));
    b = a;
    b.io = SPW_IO_URING;
    CHECK(!spw_record_find(drives, &out, &b));
}

/* A full profile drops its oldest entry; an entry with the same key is replaced. */
static void test_full(void)
{
    char name[32];
    memset(&in, 0, sizeof in);
    for (int i = 0; i < SPW_PROFILE_MOST; i++) {
        snprintf(name, sizeof name, "D%d", i);
        struct spw_drive d = made_up(name, i == 3 ? 1 : 100 + i);
        spw_record_put(drives, &in, &d);
    }
    struct spw_drive again = made_up("D5", 500), fresh = made_up("new", 501),
                     oldest = made_up("D3", 0);
    spw_record_put(drives, &in, &again);
    CHECK(in.n_drives == SPW_PROFILE_MOST && spw_record_find(drives, &in, &oldest));
    const struct spw_drive *found = spw_record_find(drives, &in, &again);
    CHECK(found->measured_at == 500);
    spw_record_put(drives, &in, &fresh);
    CHECK(in.n_drives == SPW_PROFILE_MOST && !spw_record_find(drives, &in, &oldest));
    CHECK(spw_record_find(drives, &in, &fresh) && spw_record_find(drives, &in, &again));
}

/* Like write_root, but with a correct checksum, made by the library: the check of a field must find
 * a value that is out of range. */
static void write_out_of_range(const struct spw_drive *d)
{
    struct spw_error err = {0};
    memset(&in, 0, sizeof in);
    in.drives[in.n_drives++] = *d;
    CHECK(spw_record_file_write(&spw_profile_file, &in, in_folder("bad.json"), &err) == 0);
}

static void test_ranges(void)
{
    struct spw_error err;
    struct spw_drive good = made_up("A", 5), d = good;
    write_out_of_range(&d);
    CHECK(read_back("bad.json", &err) == 0);
    d.read_bytes_per_second = -1;
    write_out_of_range(&d);
    CHECK(read_back("bad.json", &err) == -EINVAL && strstr(err.text, "read_bytes_per_second"));
    d = good;
    d.queue_depth = 0;
    write_out_of_range(&d);
    CHECK(read_back("bad.json", &err) == -EINVAL && strstr(err.text, "queue_depth"));
    d = good;
    d.latency_seconds = 1e9;
    write_out_of_range(&d);
    CHECK(read_back("bad.json", &err) == -EINVAL && strstr(err.text, "latency_seconds"));
    d = good;
    d.request_bytes = (uint64_t)1 << 40;
    write_out_of_range(&d);
    CHECK(read_back("bad.json", &err) == -EINVAL && strstr(err.text, "request_bytes"));
}

/* Changes every byte of the file, and cuts it to every length: the file is refused, or (white
 * space, the last digits of a number) gives the same profile. */
static void test_corrupt(void)
{
    static char text[1 << 14], changed[1 << 14];
    struct spw_error err;
    struct spw_drive a = made_up("A 1 100 sectors", 5);
    uint64_t random = check_seed();
    memset(&in, 0, sizeof in);
    spw_record_put(drives, &in, &a);
    CHECK(spw_record_file_write(&spw_profile_file, &in, in_folder("good.json"), &err) == 0);
    FILE *file = fopen(in_folder("good.json"), "rb");
    CHECK(file != NULL);
    size_t n = file ? fread(text, 1, sizeof text, file) : 0;
    if (file)
        fclose(file);
    CHECK(n > 100 && n < sizeof text);
    unsigned refused = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(changed, text, n);
        size_t length = i % 3 ? n : i;
        changed[i] = (char)(changed[i] ^ (char)(1 << check_range(&random, 0, 6)));
        file = fopen(in_folder("changed.json"), "wb");
        CHECK(file && fwrite(changed, 1, length, file) == length);
        if (file)
            fclose(file);
        int rc = read_back("changed.json", &err);
        CHECK_MSG(rc == -EINVAL || (rc == 0 && out.n_drives == 1 && same(&out.drives[0], &a)),
                  "byte %zu: %d", i, rc);
        refused += rc != 0;
    }
    CHECK(refused > n / 2);

    CHECK(sh("sed 's/\"spillway_profile\": [0-9]*/\"spillway_profile\": 2/' good.json "
             ">version.json") == 0);
    CHECK(read_back("version.json", &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "found version 2"), "%s", err.text);
    CHECK(sh(": >empty.json; echo '[]' >list.json; mkdir dir.json; mkfifo pipe.json; "
             "head -c 2000000 /dev/zero >long.json") == 0);
    CHECK(read_back("empty.json", &err) == -EINVAL && *err.text);
    CHECK(read_back("list.json", &err) == -EINVAL && *err.text);
    CHECK(read_back("dir.json", &err) == -EINVAL && *err.text);
    CHECK(read_back("pipe.json", &err) == -EINVAL && *err.text);
    CHECK(read_back("long.json", &err) == -EINVAL && *err.text);
    /* Something that is not a file stays: root would turn /dev/null into a file. */
    spw_error_clear(&err);
    CHECK(spw_record_file_write(&spw_profile_file, &in, in_folder("pipe.json"), &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "pipe.json: is not a regular file"), "%s", err.text);
    CHECK(sh("test -p pipe.json && ! ls pipe.json.*") == 0);
}

/* ---- who and how many ---- */

static void test_names(void)
{
    char name[192];
    CHECK(sh("mkdir -p sys/dev/block sys/d/nvme0n1/device sys/d/nvme0n1/nvme0n1p2 sys/d/vda && "
             "cd sys/dev/block && ln -s ../../d/nvme0n1 259:0 && ln -s ../../d/vda 254:0 && "
             "ln -s ../../d/nvme0n1/nvme0n1p2 259:2 && cd ../../d && "
             "printf 'Some  Drive 2TB   \\n' >nvme0n1/device/model && "
             "printf 'S5\\t77\\001\\n' >nvme0n1/device/serial && echo 4000 >nvme0n1/size && "
             "echo 1 >nvme0n1/nvme0n1p2/partition && echo 300 >nvme0n1/nvme0n1p2/size && "
             "echo 500 >vda/size && : >vda/serial") == 0);
    spw_drive_name(name, sizeof name, in_folder("sys"), 259, 0);
    CHECK_MSG(!strcmp(name, "Some Drive 2TB S5 77? 4000 sectors"), "%s", name);
    spw_drive_name(name, sizeof name, in_folder("sys"), 259,
                   2); /* a partition has the name of its disk */
    CHECK_MSG(!strcmp(name, "Some Drive 2TB S5 77? 4000 sectors"), "%s", name);
    spw_drive_name(name, sizeof name, in_folder("sys"), 254, 0);
    CHECK_MSG(!strcmp(name, "vda 254:0 500 sectors"), "%s", name);
    spw_drive_name(name, sizeof name, in_folder("sys"), 8, 1); /* /sys has no entry for it */
    CHECK_MSG(!strcmp(name, "8:1"), "%s", name);
    spw_drive_name(name, 12, in_folder("sys"), 259, 0);
    CHECK(strlen(name) < 12);
}

static void test_depth(void)
{
    static const struct spw_drive_point early[] = {{4, 970}, {8, 1000}, {16, 990}},
                                        late[] = {{4, 500}, {8, 900}, {16, 960}, {32, 1000}},
                                        worse[] = {{4, 1000}, {8, 700}, {16, 600}};
    /* 1000 bytes a second x latency / 100 bytes a request = requests in flight */
    CHECK(spw_drive_choose_depth(early, 3, 0.1, 100) == 4);
    CHECK(spw_drive_choose_depth(early, 3, 0.7, 100) == 8); /* 7 in flight: 4 are too few */
    CHECK(spw_drive_choose_depth(late, 4, 0.1, 100) == 16);
    CHECK(spw_drive_choose_depth(late, 4, 1.7, 100) == 32);
    CHECK(spw_drive_choose_depth(worse, 3, 5, 100) == 4); /* no depth that is enough is fast */
    CHECK(spw_drive_choose_depth(late, 1, 9, 100) == 4);
}

/* ---- the probe ---- */

static int probe(struct spw_drive *d, const char *directory, const char *profile, bool redo,
                 struct spw_error *err)
{
    struct spw_drive_options o = {.directory = directory,
                                  .profile = profile,
                                  .mode = redo ? SPW_PROBE_AGAIN : SPW_PROBE_UNKNOWN,
                                  .io = SPW_IO_THREADS,
                                  .write_limit_bytes = 10 << 20};
    err->text[0] = 0;
    return spw_drive_probe(d, &o, err);
}

static void check_plausible(const struct spw_drive *d)
{
    CHECK(d->queue_depth >= 4 && d->queue_depth <= 64 && d->request_bytes == 1 << 20);
    CHECK(isfinite(d->read_bytes_per_second) && d->read_bytes_per_second > 1e5);
    CHECK(isfinite(d->write_bytes_per_second) && d->write_bytes_per_second > 1e5);
    CHECK(d->latency_seconds > 0 && d->latency_seconds < 10);
    CHECK(d->small_request_bytes == 64 << 10);
    CHECK(isfinite(d->small_read_bytes_per_second) && d->small_read_bytes_per_second > 1e5);
    CHECK(*d->device && *d->filesystem && *d->engine && d->measured_at > 0);
}

static void test_probe(const char *directory, bool whole)
{
    struct spw_drive first, second;
    struct spw_error err;
    const char *profile = in_folder("probe/p.json");
    sh("rm -rf probe");
    CHECK_MSG(probe(&first, directory, profile, false, &err) == 0, "%s: %s", directory, err.text);
    check_plausible(&first);
    CHECK(first.written_bytes >= 8 << 20 && first.written_bytes <= 10 << 20 && !*first.note);
    CHECK(probe(&second, directory, profile, false, &err) ==
          0); /* known now: the probe writes nothing */
    CHECK(same(&first, &second) && second.written_bytes == 0 && !*second.note);
    if (!whole)
        return;
    CHECK(probe(&second, directory, profile, true, &err) == 0 && second.written_bytes > 0);
    CHECK(sh("echo nonsense >probe/other.json") == 0);
    CHECK(probe(&second, directory, in_folder("probe/other.json"), false, &err) == 0);
    CHECK_MSG(strstr(second.unstored, "found another kind of file, which is not replaced"), "%s",
              second.unstored);
    CHECK(sh("test \"$(cat probe/other.json)\" = nonsense") == 0);
    /* The last one is what a power cut leaves. */
    static const char *const damage[] = {
        "sed -i 's/checksum/checksun/' probe/p.json",
        "sed -i 's/_profile\": [0-9]*/_profile\": 1/' probe/p.json",
        "printf Damage | dd of=probe/p.json conv=notrunc", "head -c 5000 /dev/zero >probe/p.json"};
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        struct spw_drive_options never = {
            .directory = directory, .profile = profile, .mode = SPW_PROBE_NEVER};
        CHECK(sh("%s", damage[i]) == 0);
        CHECK(spw_drive_probe(&second, &never, &err) == -ENODATA && !*second.note);
        CHECK(probe(&second, directory, profile, false, &err) == 0 && second.written_bytes > 0);
        CHECK_MSG(strstr(second.note, "p.json") && strstr(second.note, "was measured again"), "%s",
                  second.note);
        CHECK(probe(&second, directory, profile, false, &err) == 0 && second.written_bytes == 0 &&
              !*second.note);
    }
    CHECK(spw_alloc_outstanding() == 0);
}

static void test_refusals(void)
{
    struct spw_drive d;
    struct spw_error err;
    CHECK(probe(&d, in_folder("missing"), NULL, false, &err) == -ENOENT);
    CHECK(strstr(err.text, "missing"));
    CHECK(sh(": >file") == 0 && probe(&d, in_folder("file"), NULL, false, &err) == -ENOTDIR);
    struct spw_drive_options o = {.directory = folder, .write_limit_bytes = 1 << 20};
    CHECK(spw_drive_probe(&d, &o, &err) == -EDQUOT);
    o.mode = SPW_PROBE_NEVER;
    o.profile = in_folder("none.json");
    err.text[0] = 0;
    CHECK(spw_drive_probe(&d, &o, &err) == -ENODATA && strstr(err.text, "spillway probe"));
    /* A profile that cannot be written gives a note; the measured values are used. */
    CHECK(probe(&d, folder, in_folder("file/p.json"), false, &err) == 0 && d.written_bytes > 0);
    CHECK_MSG(strstr(d.unstored, "cannot be written"), "%s", d.unstored);
    if (geteuid() != 0) { /* root may write everywhere */
        CHECK(sh("mkdir locked && chmod 555 locked") == 0);
        CHECK(probe(&d, in_folder("locked"), NULL, false, &err) == -EACCES);
    }
    int rc = probe(&d, "/proc", NULL, false, &err); /* no filesystem to write to */
    CHECK_MSG(rc < 0 && *err.text, "%d", rc);
    CHECK(spw_alloc_outstanding() == 0);
}

/* Speeds that change much while they are measured are used, said to be so, and not stored. */
static void test_busy(void)
{
    struct spw_options o = {.backend = SPW_BACKEND_CPU, .threads = 1};
    struct spw_machine m;
    struct spw_error err = {0};
    const char *profile = in_folder("busy.json");
    is_busy = true;
    int rc = spw_machine_recall(&m, &o, profile, SPW_PROBE_UNKNOWN, &err);
    is_busy = false;
    CHECK_MSG(rc == 0 && m.read_bytes_per_second > 0, "%s", err.text);
    CHECK_MSG(m.spread > 3 && strstr(m.unstored, "as if other programs ran"), "%g: %s", m.spread,
              m.unstored);
    CHECK(spw_machine_recall(&m, &o, profile, SPW_PROBE_NEVER, &err) == -ENODATA);
    CHECK(access(profile, F_OK) != 0);
}

/* Any allocation may fail: an error with text, and no leak. Outside of full runs every third
 * allocation fails in turn, because most of them fail after a slow probe. */
static void test_no_memory(void)
{
    struct spw_error err;
    struct spw_drive d;
    for (int n = 0; n < 200; n += check_full() ? 1 : 3) {
        sh("rm -rf probe");
        spw_alloc_fail_nth(n);
        int rc = probe(&d, folder, in_folder("probe/p.json"), false, &err);
        spw_alloc_fail_nth(-1);
        CHECK(spw_alloc_outstanding() == 0);
        if (rc == 0 && !*d.note && !*d.unstored)
            return;
        CHECK_MSG(rc == 0 || (rc == -ENOMEM && *err.text), "allocation %d: %d", n, rc);
    }
    CHECK(!"the probe never succeeded");
}

int main(void)
{
    struct statfs shm;
    snprintf(folder, sizeof folder, "/tmp/spw_drive_%d", (int)getpid());
    CHECK(mkdir(folder, 0700) == 0);
    test_round_trip();
    test_full();
    test_ranges();
    test_corrupt();
    test_names();
    test_depth();
    test_probe(folder, true);
    if (statfs("/dev/shm", &shm) == 0 && shm.f_bavail * (uint64_t)shm.f_bsize > 64 << 20 &&
        access("/dev/shm", W_OK) == 0)
        test_probe("/dev/shm", false);
    test_refusals();
    test_no_memory();
    test_busy();
    char line[256];
    snprintf(line, sizeof line, "chmod -R u+w %s; rm -rf %s", folder, folder);
    CHECK(system(line) == 0);
    return check_done();
}
