/* A file system that is really full: a tmpfs of a few MiB, mounted for this process alone, as the
 * disk directory. What does not fit is refused at open, with the room there is; what fits is
 * preallocated, so that filling up the rest does not touch the run; and tmpfs refuses O_DIRECT, so
 * that all of it goes the buffered way. Skipped where mounting is not allowed. */
#include "tests/engine/oracle.h"

#include <sched.h>
#include <sys/mount.h>

enum { N_TOKENS = 900, CONTEXT = 1024 };

static bool mount_small(const char *dir, const char *size)
{
    char options[64];
    snprintf(options, sizeof options, "size=%s", size);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return false;
    return mount("none", dir, "tmpfs", 0, options) == 0;
}

/* Takes every byte that is left. */
static void fill(const char *path)
{
    static char block[4096];
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    while (f && fwrite(block, 1, sizeof block, f) == sizeof block && !fflush(f))
        ;
    if (f)
        fclose(f);
}

int main(void)
{
    static const struct tiny_model model = {TINY("llama", 3, 32, 48, 2, 1, 16, 67, 2048),
                                            .untied = true, .stored = TINY_BF16, .seed = 93};
    static struct subject subject;
    const char *dir = subject.dir;
    char scratch[160], ballast[200];
    struct spw_error err = {0};
    struct spw_engine *e = NULL;
    struct spw_options o = {.context = CONTEXT, .threads = 2};
    subject_open(&subject, &model, "disk_full", N_TOKENS, &(struct spw_options){0});
    snprintf(scratch, sizeof scratch, "%.120s/scratch", dir);
    snprintf(ballast, sizeof ballast, "%s/ballast", scratch);
    CHECK(mkdir(scratch, 0700) == 0);
    if (!mount_small(scratch, "256k")) {
        fprintf(stderr, "mounting is not allowed here: skipped\n");
        rmdir(scratch);
        subject_close(&subject);
        return CHECK_SKIP;
    }
    o.disk_dir = scratch;
    o.disk_bytes = 200 << 10;
    run_tight(dir, &o, 0);
    run_to_disk(dir, &o);

    fill(ballast);
    int rc = spw_engine_open(&e, dir, &o, &err);
    CHECK_MSG(rc == -ENOSPC, "%d: %s", rc, err.text);
    CHECK_MSG(strstr(err.text, scratch) && !strchr(err.text, '\n'), "%s", err.text);
    fprintf(stderr, "%s\n", err.text);
    unlink(ballast);

    e = run_open(dir, &o);
    fill(ballast);
    struct spw_session *s = run_session(e);
    const int32_t *ids = subject.ids[0];
    CHECK(oracle_same(&subject, ids, N_TOKENS, run_to(s, e, ids, N_TOKENS)));
    struct spw_stats stats;
    spw_engine_stats(e, &stats);
    CHECK(stats.moved_bytes[SPW_MOVED_DISK_TO_HOST] > 0);
    run_check_peaks(e, &o, "on a full file system");
    fprintf(stderr, "%s\n", spw_engine_io(e));
    spw_session_close(s);
    spw_engine_close(e);
    unlink(ballast);
    CHECK(umount2(scratch, MNT_DETACH) == 0); /* rings give files back a little later */
    CHECK(rmdir(scratch) == 0);
    subject_close(&subject);
    return check_done();
}
