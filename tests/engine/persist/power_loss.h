/* A disk that loses its power. This layer stands between the library and libc (the program's own
 * definitions win over libc's), keeps a log of all that changes the files of one folder, and makes
 * every kind of folder that a power cut may leave:
 *
 *   - A write is on the disk once its file was synced after it. Until then any of its sectors may
 *     be there, without those before it. The same holds for a file's length.
 *   - A name (new, renamed, removed) is on the disk once the folder was synced after it. Until then
 *     it may be there, without names before it and without the data of its file.
 *
 * A cut directly before each sync, or directly after the program was told that its data is safe,
 * stands for cuts at all other moments: what has not been issued by then is what was not written.
 *
 *   power_watch(folder)     from here on the log is kept
 *   power_tell(n)           the program was told that version n is safe
 *   power_stop()            ends the log, and checks that no change went around this layer
 *   power_cut(...)          calls back for each folder that may be left
 *   power_forget()          frees the log
 *
 * Calls: pwrite, write, fallocate, ftruncate, fdatasync, fsync, renameat2, renameat, rename,
 * unlinkat, unlink. Whoever writes by other means (stdio, io_uring, mmap) fails power_stop. */
#ifndef SPW_TESTS_ENGINE_PERSIST_POWER_LOSS_H
#define SPW_TESTS_ENGINE_PERSIST_POWER_LOSS_H

#include "tests/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum power_kind { POWER_WRITE, POWER_LENGTH, POWER_SYNC, POWER_NAME, POWER_SYNC_NAMES, POWER_TOLD };

enum { POWER_NAME_BYTES = 256, POWER_MOST_FILES = 256, POWER_SECTOR = 512 };

struct power_op {
    enum power_kind kind;
    int file;       /* whose it is; NAME: what `to` names, -1: nothing */
    uint64_t at, n; /* WRITE: place and bytes; LENGTH: at; TOLD: n */
    uint8_t *data;  /* [n], owned */
    char from[POWER_NAME_BYTES], to[POWER_NAME_BYTES]; /* NAME; from "": none */
};

struct power_file {
    dev_t dev;
    ino_t ino;     /* 0: has no name any more */
    uint8_t *data; /* [bytes] when the log began, owned */
    uint64_t bytes;
    char name[POWER_NAME_BYTES]; /* when the log began; "": came later */
};

static struct {
    pthread_mutex_t lock;
    bool on;
    char folder[POWER_NAME_BYTES];
    struct stat st; /* of the folder */
    struct power_op *ops;
    size_t n_ops;
    struct power_file files[POWER_MOST_FILES];
    int n_files;
} power = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the log ---- */

static inline struct power_op *power_log(enum power_kind kind, int file)
{
    power.ops = realloc(power.ops, (power.n_ops + 1) * sizeof *power.ops);
    struct power_op *op = &power.ops[power.n_ops++];
    *op = (struct power_op){.kind = kind, .file = file};
    return op;
}

static inline void power_copy_name(char to[POWER_NAME_BYTES], const char *from)
{
    snprintf(to, POWER_NAME_BYTES, "%s", from);
}

static inline int power_add_file(const struct stat *st)
{
    CHECK(power.n_files < POWER_MOST_FILES);
    power.files[power.n_files] = (struct power_file){.dev = st->st_dev, .ino = st->st_ino};
    return power.n_files++;
}

static inline int power_find(const struct stat *st)
{
    for (int i = 0; i < power.n_files; i++)
        if (power.files[i].ino == st->st_ino && power.files[i].dev == st->st_dev)
            return i;
    return -1;
}

static inline bool power_is_folder(const struct stat *st)
{
    return st->st_ino == power.st.st_ino && st->st_dev == power.st.st_dev;
}

/* A file that was made since the log began is seen when it is first touched. */
static inline int power_file_of(int fd)
{
    struct stat st;
    char link[64], path[2 * POWER_NAME_BYTES];
    if (!power.on || fstat(fd, &st) || !S_ISREG(st.st_mode))
        return -1;
    int file = power_find(&st);
    if (file >= 0)
        return file;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    size_t folder = strlen(power.folder);
    if (n <= 0)
        return -1;
    path[n] = 0;
    if (strncmp(path, power.folder, folder) != 0 || path[folder] != '/' ||
        strchr(path + folder + 1, '/'))
        return -1;
    file = power_add_file(&st);
    power_copy_name(power_log(POWER_NAME, file)->to, path + folder + 1);
    return file;
}

/* The last part of a path that lies in the folder; NULL: it lies elsewhere. */
static inline const char *power_name_of(int dir, const char *path)
{
    struct stat st;
    const char *slash = strrchr(path, '/');
    char before[4096];
    if (!power.on)
        return NULL;
    snprintf(before, sizeof before, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (slash == path || fstatat(dir, before, &st, 0) || !power_is_folder(&st))
        return NULL;
    return slash ? slash + 1 : path;
}

static inline void power_log_write(int file, const void *from, uint64_t n, uint64_t at)
{
    if (file < 0 || !n)
        return;
    struct power_op *op = power_log(POWER_WRITE, file);
    op->at = at;
    op->n = n;
    op->data = malloc(n);
    memcpy(op->data, from, n);
}

static inline void power_log_length(int file, uint64_t bytes)
{
    if (file >= 0)
        power_log(POWER_LENGTH, file)->at = bytes;
}

static inline void power_log_sync(int fd, int file)
{
    struct stat st;
    if (file >= 0)
        power_log(POWER_SYNC, file);
    else if (power.on && !fstat(fd, &st) && power_is_folder(&st))
        power_log(POWER_SYNC_NAMES, -1);
}

static inline void power_log_unlink(const char *name, const struct stat *st)
{
    int file = power_find(st);
    if (file < 0)
        return;
    power.files[file].ino = 0; /* the number will be used again */
    power_copy_name(power_log(POWER_NAME, -1)->to, name);
}

static inline void power_log_rename(const char *from, const char *to, const struct stat *replaced)
{
    struct stat st;
    char path[3 * POWER_NAME_BYTES];
    snprintf(path, sizeof path, "%s/%s", power.folder, to);
    int file = lstat(path, &st) ? -1 : power_find(&st), old = replaced ? power_find(replaced) : -1;
    if (old >= 0)
        power.files[old].ino = 0;
    struct power_op *op = power_log(POWER_NAME, file);
    CHECK_MSG(file >= 0, "%s was renamed to %s and never written", from, to);
    power_copy_name(op->from, from);
    power_copy_name(op->to, to);
}

/* ---- between the library and libc ---- */

/* One call at a time while the log is kept: its order is the order of what happened. */
static inline void power_enter(void)
{
    pthread_mutex_lock(&power.lock);
}

static inline void power_leave(void)
{
    int error = errno;
    pthread_mutex_unlock(&power.lock);
    errno = error;
}

ssize_t pwrite(int fd, const void *from, size_t n, off_t at)
{
    power_enter();
    int file = power_file_of(fd);
    ssize_t done = syscall(SYS_pwrite64, fd, from, n, at);
    power_log_write(file, from, done > 0 ? (uint64_t)done : 0, (uint64_t)at);
    power_leave();
    return done;
}

ssize_t write(int fd, const void *from, size_t n)
{
    power_enter();
    int file = power_file_of(fd);
    ssize_t done = syscall(SYS_write, fd, from, n);
    if (file >= 0 && done > 0)
        power_log_write(file, from, (uint64_t)done, (uint64_t)(lseek(fd, 0, SEEK_CUR) - done));
    power_leave();
    return done;
}

int fallocate(int fd, int mode, off_t at, off_t n)
{
    struct stat st = {0};
    power_enter();
    int file = power_file_of(fd);
    int rc = (int)syscall(SYS_fallocate, fd, mode, at, n);
    if (!rc && !fstat(fd, &st) && !mode)
        power_log_length(file, (uint64_t)st.st_size);
    CHECK(file < 0 || !mode);
    power_leave();
    return rc;
}

int ftruncate(int fd, off_t n)
{
    power_enter();
    int file = power_file_of(fd);
    int rc = (int)syscall(SYS_ftruncate, fd, n);
    if (!rc)
        power_log_length(file, (uint64_t)n);
    power_leave();
    return rc;
}

static inline int power_sync(int fd, long call)
{
    power_enter();
    int file = power_file_of(fd), rc = (int)syscall(call, fd);
    if (!rc)
        power_log_sync(fd, file);
    power_leave();
    return rc;
}

int fdatasync(int fd)
{
    return power_sync(fd, SYS_fdatasync);
}

int fsync(int fd)
{
    return power_sync(fd, SYS_fsync);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    struct stat st;
    power_enter();
    const char *name = power_name_of(from_fd, from), *to_name = power_name_of(to_fd, to);
    bool replaces = to_name && !fstatat(to_fd, to, &st, AT_SYMLINK_NOFOLLOW);
    int rc = (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    if (!rc && name && to_name)
        power_log_rename(name, to_name, replaces ? &st : NULL);
    power_leave();
    return rc;
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return renameat2(from_fd, from, to_fd, to, 0);
}

int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlinkat(int dir, const char *path, int flags)
{
    struct stat st;
    power_enter();
    const char *name = power_name_of(dir, path);
    bool there = name && !fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW);
    int rc = (int)syscall(SYS_unlinkat, dir, path, flags);
    if (!rc && there)
        power_log_unlink(name, &st);
    power_leave();
    return rc;
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

/* ---- what a cut leaves ---- */

/* Which of the changes that no sync has made safe are on the disk. */
struct power_luck {
    enum { POWER_NONE, POWER_ALL, POWER_ONLY, POWER_ALL_BUT, POWER_RANDOM } kind;
    size_t op;     /* ONLY, ALL_BUT */
    uint64_t seed; /* RANDOM: a quarter of writes is torn */
};

static inline bool power_lucky(const struct power_luck *luck, size_t op, uint64_t sector)
{
    uint64_t state = luck->seed + op * 1000003, of_op = check_random(&state) % 4;
    switch (luck->kind) {
    case POWER_ALL:
        return true;
    case POWER_ONLY:
        return op == luck->op;
    case POWER_ALL_BUT:
        return op != luck->op;
    case POWER_RANDOM:
        state += sector;
        return of_op == 0 || (of_op == 1 && check_random(&state) % 2);
    case POWER_NONE:
        break;
    }
    return false;
}

struct power_image {
    uint8_t *data;
    uint64_t bytes;
    char name[POWER_NAME_BYTES]; /* "": has none */
};

static inline void power_set_length(struct power_image *i, uint64_t bytes)
{
    i->data = realloc(i->data, bytes + 1);
    if (bytes > i->bytes)
        memset(i->data + i->bytes, 0, bytes - i->bytes);
    i->bytes = bytes;
}

static inline void power_apply(struct power_image *images, size_t k, const struct power_luck *luck)
{
    const struct power_op *op = &power.ops[k];
    struct power_image *i = op->file >= 0 ? &images[op->file] : NULL;
    if (op->kind == POWER_LENGTH && power_lucky(luck, k, 0))
        power_set_length(i, op->at);
    for (uint64_t at = op->at, end = op->at + op->n, next; op->kind == POWER_WRITE && at < end;
         at = next) {
        next = at - at % POWER_SECTOR + POWER_SECTOR;
        next = next < end ? next : end;
        if (!power_lucky(luck, k, at / POWER_SECTOR))
            continue;
        if (i->bytes < next)
            power_set_length(i, next);
        memcpy(i->data + at, op->data + (at - op->at), next - at);
    }
    if (op->kind != POWER_NAME || !power_lucky(luck, k, 0))
        return;
    for (int f = 0; f < power.n_files; f++)
        if (!strcmp(images[f].name, op->to) || (*op->from && !strcmp(images[f].name, op->from)))
            *images[f].name = 0;
    if (i)
        power_copy_name(i->name, op->to);
}

/* Whether a sync before the cut has made it safe. `ignored`: a sync that did nothing. */
static inline bool power_is_safe(size_t k, size_t cut, size_t ignored)
{
    const struct power_op *op = &power.ops[k];
    for (size_t s = k + 1; s < cut; s++)
        if (s != ignored && (op->kind == POWER_NAME ? power.ops[s].kind == POWER_SYNC_NAMES
                                                    : power.ops[s].kind == POWER_SYNC &&
                                                          power.ops[s].file == op->file))
            return true;
    return false;
}

static inline struct power_image *power_images(size_t cut, size_t ignored,
                                               const struct power_luck *luck)
{
    const struct power_luck safe = {.kind = POWER_ALL};
    struct power_image *images = calloc(POWER_MOST_FILES, sizeof *images);
    for (int f = 0; f < power.n_files; f++) {
        power_set_length(&images[f], power.files[f].bytes);
        if (power.files[f].bytes)
            memcpy(images[f].data, power.files[f].data, power.files[f].bytes);
        power_copy_name(images[f].name, power.files[f].name);
    }
    for (size_t k = 0; k < cut; k++)
        power_apply(images, k, power_is_safe(k, cut, ignored) ? &safe : luck);
    return images;
}

static inline void power_free_images(struct power_image *images)
{
    for (int f = 0; f < power.n_files; f++)
        free(images[f].data);
    free(images);
}

static inline void power_empty(const char *folder)
{
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
}

static inline void power_make(const char *folder, const struct power_image *images)
{
    power_empty(folder);
    for (int f = 0; f < power.n_files; f++) {
        char path[2 * POWER_NAME_BYTES + 8];
        if (!*images[f].name)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, images[f].name);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        CHECK(fd >= 0 &&
              syscall(SYS_write, fd, images[f].data, images[f].bytes) == (ssize_t)images[f].bytes);
        close(fd);
    }
}

/* ---- for tests ---- */

static inline void power_watch(const char *folder)
{
    DIR *d = opendir(folder);
    CHECK(d && realpath(folder, power.folder) && !stat(folder, &power.st));
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode)) {
            struct power_file *f = &power.files[power_add_file(&st)];
            f->bytes = (uint64_t)st.st_size;
            f->data = malloc(f->bytes + 1);
            CHECK(read(fd, f->data, f->bytes) == st.st_size);
            power_copy_name(f->name, e->d_name);
        }
        if (fd >= 0)
            close(fd);
    }
    closedir(d);
    power_enter();
    power.on = true;
    power_leave();
}

static inline void power_tell(uint64_t n)
{
    power_enter();
    power_log(POWER_TOLD, -1)->n = n;
    power_leave();
}

/* The log says of each file what the file is. */
static inline void power_stop(void)
{
    power_enter();
    power.on = false;
    power_leave();
    struct power_image *images =
        power_images(power.n_ops, SIZE_MAX, &(struct power_luck){.kind = POWER_ALL});
    int n = 0;
    DIR *d = opendir(power.folder);
    for (int f = 0; f < power.n_files; f++)
        n += *images[f].name != 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), f = 0;
        if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size) {
            uint8_t *data = malloc((size_t)st.st_size);
            CHECK(read(fd, data, (size_t)st.st_size) == st.st_size);
            while (f < power.n_files && strcmp(images[f].name, e->d_name) != 0)
                f++;
            CHECK_MSG(f < power.n_files && images[f].bytes == (uint64_t)st.st_size &&
                          !memcmp(images[f].data, data, images[f].bytes),
                      "%s: was changed by a call that the test does not see", e->d_name);
            free(data);
            n--;
        }
        if (fd >= 0)
            close(fd);
    }
    closedir(d);
    CHECK_MSG(n == 0, "%d files of the log are not there", n);
    power_free_images(images);
}

static inline void power_forget(void)
{
    for (size_t k = 0; k < power.n_ops; k++)
        free(power.ops[k].data);
    for (int f = 0; f < power.n_files; f++)
        free(power.files[f].data);
    free(power.ops);
    power.ops = NULL;
    power.n_ops = 0;
    power.n_files = 0;
}

/* What a cut may leave in the folder `scratch`. */
struct power_left {
    const char *scratch;
    uint64_t told; /* the last version that the program was told is safe; 0: none */
    uint64_t next; /* the one that was under way; 0: none */
};

struct power_counts {
    uint64_t n, n_wrong;
};

static inline void power_look(struct power_counts *c, const struct power_left *left, size_t cut,
                              size_t ignored, const struct power_luck *luck,
                              bool (*is_right)(void *context, const struct power_left *left),
                              void *context)
{
    struct power_image *images = power_images(cut, ignored, luck);
    power_make(left->scratch, images);
    power_free_images(images);
    c->n++;
    c->n_wrong += !is_right(context, left);
}

/* Cuts before syncs, and after what was told; the others are among their states. */
static inline bool power_matters(size_t cut)
{
    return cut == power.n_ops || power.ops[cut].kind == POWER_SYNC ||
           power.ops[cut].kind == POWER_SYNC_NAMES ||
           (cut && power.ops[cut - 1].kind == POWER_TOLD);
}

static inline void power_cut_at(struct power_counts *c, const struct power_left *left, size_t cut,
                                size_t ignored, int n_random, uint64_t *seed,
                                bool (*is_right)(void *context, const struct power_left *left),
                                void *context)
{
    struct power_luck luck = {.kind = POWER_NONE};
    power_look(c, left, cut, ignored, &luck, is_right, context);
    luck.kind = POWER_ALL;
    power_look(c, left, cut, ignored, &luck, is_right, context);
    for (luck.op = 0; luck.op < cut && !c->n_wrong; luck.op++) {
        enum power_kind kind = power.ops[luck.op].kind;
        if ((kind != POWER_WRITE && kind != POWER_LENGTH && kind != POWER_NAME) ||
            power_is_safe(luck.op, cut, ignored))
            continue;
        luck.kind = POWER_ONLY;
        power_look(c, left, cut, ignored, &luck, is_right, context);
        luck.kind = POWER_ALL_BUT;
        power_look(c, left, cut, ignored, &luck, is_right, context);
    }
    luck.kind = POWER_RANDOM;
    for (int i = 0; i < n_random && !c->n_wrong; i++) {
        luck.seed = check_random(seed);
        power_look(c, left, cut, ignored, &luck, is_right, context);
    }
}

/* All cuts, each with n_random drawn states beside the systematic ones, up to the first state that
 * is wrong. `ignored`: a sync of the log that does nothing, and then only the cuts from there up to
 * the next version; SIZE_MAX: none. */
static inline struct power_counts
power_cut(const char *scratch, size_t ignored, int n_random, uint64_t *seed,
          bool (*is_right)(void *context, const struct power_left *left), void *context)
{
    struct power_left left = {.scratch = scratch};
    struct power_counts c = {0};
    bool ends = false;
    for (size_t cut = 0; cut <= power.n_ops && !c.n_wrong && !ends; cut++) {
        if (cut && power.ops[cut - 1].kind == POWER_TOLD) {
            left.told = power.ops[cut - 1].n;
            ends = cut > ignored;
        }
        if (!power_matters(cut) || (ignored != SIZE_MAX && cut <= ignored))
            continue;
        left.next = 0;
        for (size_t k = cut; k < power.n_ops && !left.next; k++)
            left.next = power.ops[k].kind == POWER_TOLD ? power.ops[k].n : 0;
        power_cut_at(&c, &left, cut, ignored, n_random, seed, is_right, context);
    }
    return c;
}

#endif
