/* Writes packs: see pack.h for the contract, pack_format.h for the layout and for why a file
 * survives a kill.
 *
 * A new pack is written under a temporary name. The writer locks the file, and gives it its full
 * size at the start. So every process that counts the bytes of the directory counts this file, no
 * later write finds the filesystem full, and a temporary file without a lock belongs to a dead
 * writer. (A file without a name, O_TMPFILE, would leave nothing behind after a kill. But no other
 * process would count it, and it cannot replace a name.) */
#include "offload/store/pack_format.h"

#include "base/file.h"
#include "base/xxh3.h"

#include <fcntl.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

struct spw_pack_writer {
    int fd, directory;  /* owned */
    char *path;         /* owned */
    const char *name;   /* its last part */
    char temporary[40]; /* create only; "" after the file has its final name */
    int *locked_fd;     /* borrowed from the spec */
    bool replace, sealed;
    bool blank; /* `fd` is memory, and has no records */
    struct spw_pack_head head;
    uint32_t slot;                     /* which commit record will be written */
    struct spw_pack_section *sections; /* [n_sections], owned; those of the spec, with offsets */
    uint64_t *first_record;            /* [n_sections], owned */
    uint8_t *table;                    /* [table_bytes with max_state_bytes], owned */
    uint64_t *sums;                    /* inside `table` */
    uint64_t data_end;                 /* end of the last record in the file */
    bool *written;                     /* [n_records], owned */
    uint64_t n_left, written_bytes;
    uint32_t max_state_bytes;
    /* Append: the size of the file before, and the size that the current commit needs. */
    uint64_t old_size, min_bytes;
};

/* ---- the spec ---- */

static const char *check_spec(const struct spw_pack_spec *s)
{
    const uint64_t max = UINT64_C(1) << 32;
    if (s->first_token % SPW_TILE_TOKENS || s->first_token > max || s->n_tokens > max)
        return "tokens out of range";
    if (s->n_sections > SPW_PACK_MAX_SECTIONS)
        return "too many sections";
    if (s->max_state_bytes > SPW_PACK_STATE_BYTES)
        return "the state is too large";
    for (uint32_t i = 0; i < s->n_sections; i++)
        if (!s->sections[i].n_tiles || !s->sections[i].record_bytes ||
            s->sections[i].record_bytes % SPW_PACK_ALIGN)
            return "a section has no records, or records of a wrong size";
    return NULL;
}

/* Only for a spec that passed check_spec. */
static uint64_t count_records(const struct spw_pack_spec *s)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->n_sections; i++)
        n += s->sections[i].n_tiles;
    return n;
}

static uint64_t max_table_bytes(const struct spw_pack_spec *s)
{
    return spw_pack_table_bytes(s->n_tokens, s->n_sections, count_records(s), s->max_state_bytes);
}

uint64_t spw_pack_bytes(const struct spw_pack_spec *s)
{
    uint64_t total = SPW_PACK_DATA_OFFSET, bytes;
    if (check_spec(s))
        return UINT64_MAX;
    for (uint32_t i = 0; i < s->n_sections; i++)
        if (!spw_mul_u64(s->sections[i].n_tiles, s->sections[i].record_bytes, &bytes) ||
            !spw_add_u64(total, bytes, &total))
            return UINT64_MAX;
    return spw_add_u64(total, max_table_bytes(s), &total) ? total : UINT64_MAX;
}

uint64_t spw_pack_overhead_bytes(uint64_t n_tokens, uint64_t n_sections, uint64_t n_records,
                                 uint64_t state_bytes)
{
    return spw_pack_table_bytes(n_tokens, n_sections, n_records, state_bytes) +
           sizeof(struct spw_pack_head);
}

uint64_t spw_pack_write_bytes(const struct spw_pack_spec *s)
{
    uint64_t total =
        spw_pack_overhead_bytes(s->n_tokens, s->n_sections, count_records(s), s->max_state_bytes);
    for (uint32_t i = 0; i < s->n_sections; i++)
        total += s->sections[i].offset ? 0 : s->sections[i].n_tiles * s->sections[i].record_bytes;
    return total;
}

/* ---- space in the file ---- */

struct extent {
    uint64_t begin, end;
};

/* The used parts of a file. After map_join they are sorted and disjoint, and the first begins at 0.
 */
struct map {
    struct extent *items; /* owned */
    size_t n;
};

static int by_begin(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static void map_add(struct map *m, uint64_t begin, uint64_t bytes)
{
    uint64_t end = spw_align_up(begin + bytes, SPW_PACK_ALIGN);
    m->items[m->n++] = (struct extent){begin, end};
}

static void map_add_commit(struct map *m, const struct spw_pack *p)
{
    map_add(m, p->head.table_offset, p->head.table_bytes);
    for (uint32_t i = 0; i < p->info.n_sections; i++)
        map_add(m, p->sections[i].offset, p->sections[i].n_tiles * p->sections[i].record_bytes);
}

static int map_init(struct map *m, size_t capacity)
{
    m->items = spw_alloc_zero(capacity, sizeof *m->items);
    m->n = 0;
    if (!m->items)
        return -ENOMEM;
    map_add(m, 0, SPW_PACK_DATA_OFFSET);
    return 0;
}

/* Sorts the parts and joins those that touch or overlap. Two commits name many records both. */
static void map_join(struct map *m)
{
    size_t last = 0;
    qsort(m->items, m->n, sizeof *m->items, by_begin);
    for (size_t i = 1; i < m->n; i++) {
        if (m->items[i].begin <= m->items[last].end)
            m->items[last].end = spw_max_u64(m->items[last].end, m->items[i].end);
        else
            m->items[++last] = m->items[i];
    }
    m->n = last + 1;
}

/* Takes the first gap that is large enough, else the end of the file. Returns its offset. */
static uint64_t map_take(struct map *m, uint64_t bytes)
{
    size_t i = 0;
    bytes = spw_align_up(bytes, SPW_PACK_ALIGN);
    while (i + 1 < m->n && m->items[i + 1].begin - m->items[i].end < bytes)
        i++;
    uint64_t begin = m->items[i].end;
    m->items[i].end += bytes; /* the part may touch the next one now: the gap has 0 bytes */
    return begin;
}

/* ---- a writer ---- */

static int writer_alloc(struct spw_pack_writer **out, const char *path,
                        const struct spw_pack_spec *s, struct spw_error *err)
{
    struct spw_pack_writer *w = *out = spw_alloc_zero(1, sizeof *w);
    if (!w)
        return spw_fail(err, -ENOMEM, "%s: no memory to write it", path);
    w->fd = w->directory = -1;
    const char *wrong = check_spec(s);
    if (wrong)
        return spw_fail(err, -EINVAL, "%s: %s", path, wrong);
    if (spw_pack_bytes(s) > INT64_MAX || max_table_bytes(s) > SPW_PACK_MAX_TABLE_BYTES)
        return spw_fail(err, -EFBIG, "%s: would be too large", path);
    uint64_t n_records = count_records(s);
    w->path = spw_strdup(path);
    w->sections = spw_alloc_zero(s->n_sections + 1, sizeof *w->sections);
    w->first_record = spw_alloc_zero(s->n_sections + 1, sizeof *w->first_record);
    w->table = spw_alloc_zero(1, max_table_bytes(s));
    w->written = spw_alloc_zero(n_records + 1, sizeof *w->written);
    if (!w->path || !w->sections || !w->first_record || !w->table || !w->written)
        return spw_fail(err, -ENOMEM, "%s: no memory to write it", path);
    w->n_left = n_records;
    w->max_state_bytes = s->max_state_bytes;
    w->locked_fd = s->locked_fd;
    w->head = (struct spw_pack_head){.magic = SPW_PACK_MAGIC,
                                     .version = SPW_PACK_VERSION,
                                     .flags = s->checkpoint ? SPW_PACK_CHECKPOINT : 0,
                                     .sequence = 1,
                                     .first_token = s->first_token,
                                     .n_tokens = s->n_tokens,
                                     .parent = s->parent,
                                     .previous = s->previous,
                                     .n_records = n_records,
                                     .n_sections = s->n_sections};
    memcpy(w->head.fingerprint, s->fingerprint, sizeof w->head.fingerprint);
    return 0;
}

static int open_directory(struct spw_pack_writer *w, struct spw_error *err)
{
    char *slash = strrchr(w->path, '/');
    w->name = slash ? slash + 1 : w->path;
    if (slash == w->path)
        w->directory = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    else if (!slash)
        w->directory = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    else {
        *slash = 0;
        w->directory = open(w->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        *slash = '/';
    }
    if (w->directory < 0)
        return spw_fail(err, -errno, "%s: its directory: %s", w->path, strerror(errno));
    return 0;
}

/* Gives an offset to every new section, in the order of the spec, and to the table. */
static void place(struct spw_pack_writer *w, const struct spw_pack_spec *s, struct map *m)
{
    uint64_t n = 0;
    uint8_t *at = w->table + spw_pack_token_bytes(s->n_tokens);
    struct spw_pack_row *rows = (void *)at;
    w->sums = (void *)(at + s->n_sections * sizeof *rows);
    if (s->n_tokens)
        memcpy(w->table, s->tokens, s->n_tokens * sizeof *s->tokens);
    for (uint32_t i = 0; i < s->n_sections; i++) {
        struct spw_pack_section *to = &w->sections[i];
        *to = s->sections[i];
        to->sums = w->sums + n;
        w->first_record[i] = n;
        if (!to->offset)
            to->offset = map_take(m, to->n_tiles * to->record_bytes);
        rows[i] = (struct spw_pack_row){to->kind,    to->layer,        to->first_tile,
                                        to->n_tiles, to->record_bytes, to->offset};
        n += to->n_tiles;
        w->data_end = spw_max_u64(w->data_end, to->offset + to->n_tiles * to->record_bytes);
    }
    w->head.table_offset = map_take(m, max_table_bytes(s));
    w->head.table_bytes = max_table_bytes(s);
    w->head.file_bytes = spw_max_u64(w->data_end, w->head.table_offset + w->head.table_bytes);
}

/* Applies the checks of a reader, so that nothing is written that a reader would refuse. */
static int check_placed(struct spw_pack_writer *w, struct spw_error *err)
{
    size_t bytes = w->head.n_sections * sizeof *w->sections;
    struct spw_pack_section *copy = spw_alloc(bytes + 1);
    if (!copy)
        return spw_fail(err, -ENOMEM, "%s: no memory to write it", w->path);
    memcpy(copy, w->sections, bytes);
    const char *wrong = spw_pack_check(copy, &w->head);
    spw_free(copy);
    return wrong ? spw_fail(err, -EINVAL, "%s: %s", w->path, wrong) : 0;
}

static int reserve_space(struct spw_pack_writer *w, struct spw_error *err)
{
    int rc;
    do
        rc = fallocate(w->fd, 0, 0, (off_t)w->head.file_bytes) ? -errno : 0;
    while (rc == -EINTR);
    if (rc == -EOPNOTSUPP || rc == -ENOSYS)
        rc = ftruncate(w->fd, (off_t)w->head.file_bytes) ? -errno : 0;
    if (rc)
        return spw_fail(err, rc, "%s: a file of %.1f MiB: %s", w->path,
                        (double)w->head.file_bytes / (1 << 20), strerror(-rc));
    return 0;
}

/* ---- create ---- */

/* A writer has an exclusive lock on its file. This test takes a shared lock: the file may get its
 * final name between open and flock, and a reader must then be able to lock it, too. */
void spw_pack_remove_abandoned(int directory, const char *name)
{
    struct stat st;
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        !flock(fd, LOCK_SH | LOCK_NB))
        unlinkat(directory, name, 0);
    if (fd >= 0)
        close(fd);
}

/* The first part of the temporary name. In a user's directory it contains a hash of the name that
 * the file will replace. */
static int temporary_prefix(const struct spw_pack_writer *w, char *out, size_t bytes)
{
    if (!w->replace)
        return snprintf(out, bytes, SPW_PACK_TEMPORARY);
    return snprintf(out, bytes, SPW_PACK_TEMPORARY "%08x-", XXH32(w->name, strlen(w->name), 0));
}

/* Removes the temporary files that killed writers of this file left. */
static void remove_abandoned(const struct spw_pack_writer *w)
{
    char prefix[sizeof w->temporary];
    size_t bytes = (size_t)temporary_prefix(w, prefix, sizeof prefix);
    int fd = openat(w->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    if (!names) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(names));)
        if (strncmp(entry->d_name, prefix, bytes) == 0)
            spw_pack_remove_abandoned(w->directory, entry->d_name);
    closedir(names);
}

/* Creates the temporary file and locks it. Another process may see the file before it is locked,
 * and remove it because its writer seems dead. Then another name is tried. */
static int open_temporary(struct spw_pack_writer *w)
{
    for (int tries = 0; tries < 100; tries++) {
        unsigned char random[8];
        struct stat st;
        if (getrandom(random, sizeof random, 0) != sizeof random)
            return -EIO;
        int n = temporary_prefix(w, w->temporary, sizeof w->temporary);
        for (size_t i = 0; i < sizeof random; i++)
            n += snprintf(w->temporary + n, sizeof w->temporary - (size_t)n, "%02x", random[i]);
        w->fd = openat(w->directory, w->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (w->fd < 0 && errno != EEXIST) {
            w->temporary[0] = 0;
            return -errno;
        }
        if (w->fd >= 0 && !flock(w->fd, LOCK_EX | LOCK_NB) && !fstat(w->fd, &st) && st.st_nlink)
            return 0;
        if (w->fd >= 0)
            close(w->fd);
        w->fd = -1;
        w->temporary[0] = 0;
    }
    return -EEXIST;
}

static int place_all(struct spw_pack_writer *w, const struct spw_pack_spec *s,
                     struct spw_error *err)
{
    struct map m;
    for (uint32_t i = 0; i < s->n_sections; i++)
        if (s->sections[i].offset)
            return spw_fail(err, -EINVAL, "%s: a new file has no old records", w->path);
    if (map_init(&m, 1))
        return spw_fail(err, -ENOMEM, "%s: no memory to write it", w->path);
    place(w, s, &m);
    spw_free(m.items);
    return check_placed(w, err);
}

/* `replace`: nobody else removes abandoned files from a user's directory. */
static int create(struct spw_pack_writer *w, const struct spw_pack_spec *s, struct spw_error *err)
{
    SPW_TRY(open_directory(w, err));
    if (w->replace)
        remove_abandoned(w);
    SPW_TRY(place_all(w, s, err));
    int rc = open_temporary(w);
    if (rc)
        return spw_fail(err, rc, "%s: cannot be written: %s", w->path, strerror(-rc));
    return reserve_space(w, err);
}

/* ---- append ---- */

/* Checks that the committed file has the old records of the spec, and copies their checksums. */
static int take_old_records(struct spw_pack_writer *w, const struct spw_pack *p,
                            const struct spw_pack_spec *s, struct spw_error *err)
{
    for (uint32_t i = 0; i < s->n_sections; i++) {
        const struct spw_pack_section *k = &s->sections[i];
        if (!k->offset)
            continue;
        const struct spw_pack_section *has = spw_pack_find(p, k->kind, k->layer, k->first_tile);
        uint32_t skipped = has ? k->first_tile - has->first_tile : 0;
        if (!has || k->n_tiles > has->n_tiles - skipped || k->record_bytes != has->record_bytes ||
            k->offset != has->offset + skipped * has->record_bytes ||
            memcmp(k->sums, has->sums + skipped, k->n_tiles * sizeof *k->sums) != 0)
            return spw_fail(err, -ESTALE,
                            "%s: the file has no layer %u, tile %u any more; save to a new file",
                            w->path, k->layer, k->first_tile);
        uint64_t first = w->first_record[i];
        memcpy(w->sums + first, has->sums + skipped, k->n_tiles * sizeof *w->sums);
        memset(w->written + first, true, k->n_tiles);
        w->n_left -= k->n_tiles;
    }
    return 0;
}

/* Places new data in the gaps that neither of the last two commits uses. */
static int place_beside(struct spw_pack_writer *w, const struct spw_pack *newest,
                        const struct spw_pack *older, const struct spw_pack_spec *s,
                        struct spw_error *err)
{
    struct map m;
    if (map_init(&m, 3 + (size_t)newest->info.n_sections + older->info.n_sections))
        return spw_fail(err, -ENOMEM, "%s: no memory to write it", w->path);
    map_add_commit(&m, newest);
    if (older->table)
        map_add_commit(&m, older);
    map_join(&m);
    place(w, s, &m);
    spw_free(m.items);
    SPW_TRY(check_placed(w, err));
    return take_old_records(w, newest, s, err);
}

/* Opens and locks the file, and checks that the file still has its name. */
static int open_locked(struct spw_pack_writer *w, struct stat *st, struct spw_error *err)
{
    struct stat named;
    w->fd = w->locked_fd ? fcntl(*w->locked_fd, F_DUPFD_CLOEXEC, 0)
                         : open(w->path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
    if (w->fd < 0 || fstat(w->fd, st))
        return spw_fail(err, -errno, "%s: %s", w->path, strerror(errno));
    if (!S_ISREG(st->st_mode))
        return spw_fail(err, -EBADMSG, "%s: is not a regular file", w->path);
    if (flock(w->fd, LOCK_EX | LOCK_NB))
        return spw_fail(err, errno == EWOULDBLOCK ? -EBUSY : -errno,
                        "%s: another process has it locked; save to another file", w->path);
    bool missing = lstat(w->path, &named) != 0;
    if (missing && errno == ENOENT)
        return spw_fail(err, -ENOENT, "%s: was just removed", w->path);
    if (missing || fstat(w->fd, st) || !spw_is_same_file(&named, st))
        return spw_fail(err, -EBUSY, "%s: was just replaced by another process", w->path);
    return 0;
}

static int append(struct spw_pack_writer *w, const struct spw_pack_spec *s, struct spw_error *err)
{
    struct spw_pack_heads h;
    struct stat st;
    SPW_TRY(open_locked(w, &st, err));
    SPW_TRY(spw_pack_read_heads(w->fd, w->path, s->fingerprint, &h, err));
    const int newest = h.newest;
    struct spw_pack commits[2];
    for (int i = 0; i < 2; i++)
        commits[i] = (struct spw_pack){.fd = w->fd, .path = w->path, .head = h.head[i]};
    int rc = spw_pack_load(&commits[newest], (uint64_t)st.st_size, err);
    if (!rc && h.intact[!newest]) /* the space of a damaged older commit is free */
        rc = spw_pack_load(&commits[!newest], (uint64_t)st.st_size, NULL) == -ENOMEM ? -ENOMEM : 0;
    if (!rc) {
        w->slot = !newest;
        w->head.sequence = h.head[newest].sequence + 1;
        w->old_size = (uint64_t)st.st_size;
        w->min_bytes = h.head[newest].file_bytes;
        rc = place_beside(w, &commits[newest], &commits[!newest], s, err);
    }
    spw_pack_unload(&commits[0]);
    spw_pack_unload(&commits[1]);
    return rc ? rc : reserve_space(w, err);
}

/* ---- open ---- */

static int open_writer(struct spw_pack_writer **out, const char *path, bool is_new, bool replace,
                       const struct spw_pack_spec *s, struct spw_error *err)
{
    int rc = writer_alloc(out, path, s, err);
    if (!rc) {
        (*out)->replace = replace;
        rc = is_new ? create(*out, s, err) : append(*out, s, err);
    }
    if (rc) {
        spw_pack_abort(*out);
        *out = NULL;
    }
    return rc;
}

int spw_pack_create(struct spw_pack_writer **out, const char *path, bool replace,
                    const struct spw_pack_spec *s, struct spw_error *err)
{
    return open_writer(out, path, true, replace, s, err);
}

int spw_pack_append(struct spw_pack_writer **out, const char *path, const struct spw_pack_spec *s,
                    struct spw_error *err)
{
    return open_writer(out, path, false, false, s, err);
}

int spw_pack_create_blank(struct spw_pack_writer **out, const struct spw_pack_spec *s,
                          struct spw_error *err)
{
    int rc = writer_alloc(out, "blank pack", s, err);
    if (!rc) {
        (*out)->blank = true;
        (*out)->fd = memfd_create("spillway", MFD_CLOEXEC);
        rc = (*out)->fd < 0 ? spw_fail(err, -errno, "no memory for a pack") : 0;
    }
    if (!rc)
        rc = place_all(*out, s, err);
    if (rc) {
        spw_pack_abort(*out);
        *out = NULL;
    }
    return rc;
}

/* ---- records and commit ---- */

static int write_all(struct spw_pack_writer *w, const void *from, uint64_t bytes, uint64_t offset)
{
    size_t n;
    const int rc = spw_write_at(w->fd, from, bytes, offset, &n);
    w->written_bytes += n;
    return rc;
}

int spw_pack_write(struct spw_pack_writer *w, uint32_t section, uint32_t first_tile,
                   uint32_t n_tiles, const void *records)
{
    if (section >= w->head.n_sections)
        return -EINVAL;
    const struct spw_pack_section *s = &w->sections[section];
    uint32_t at = first_tile - s->first_tile;
    if (first_tile < s->first_tile || n_tiles > s->n_tiles || at > s->n_tiles - n_tiles)
        return -EINVAL;
    uint64_t first = w->first_record[section] + at;
    for (uint32_t i = 0; i < n_tiles; i++)
        if (w->written[first + i])
            return -EINVAL;
    if (w->blank)
        w->written_bytes += n_tiles * s->record_bytes;
    else
        SPW_TRY(write_all(w, records, n_tiles * s->record_bytes, s->offset + at * s->record_bytes));
    for (uint32_t i = 0; i < n_tiles; i++) {
        if (!w->blank)
            w->sums[first + i] =
                XXH3_64bits((const uint8_t *)records + i * s->record_bytes, s->record_bytes);
        w->written[first + i] = true;
    }
    w->n_left -= n_tiles;
    return 0;
}

/* Writes the table, and makes records and table durable. */
static int write_data(struct spw_pack_writer *w, const void *state, uint32_t state_bytes)
{
    struct spw_pack_head *h = &w->head;
    h->state_bytes = state_bytes;
    h->table_bytes = spw_pack_table_bytes(h->n_tokens, h->n_sections, h->n_records, state_bytes);
    if (state_bytes)
        memcpy(w->sums + h->n_records, state, state_bytes);
    h->table_sum = XXH3_64bits(w->table, h->table_bytes);
    h->file_bytes = spw_max_u64(w->data_end, h->table_offset + h->table_bytes);
    SPW_TRY(write_all(w, w->table, h->table_bytes, h->table_offset));
    if (ftruncate(w->fd, (off_t)spw_max_u64(h->file_bytes, w->min_bytes)))
        return -errno;
    return fdatasync(w->fd) ? -errno : 0;
}

static int write_head(struct spw_pack_writer *w)
{
    struct spw_pack_head *h = &w->head;
    h->sum = XXH3_64bits(h, offsetof(struct spw_pack_head, sum));
    SPW_TRY(write_all(w, h, sizeof *h, w->slot * sizeof *h));
    return fdatasync(w->fd) ? -errno : 0;
}

/* Some filesystems do not support RENAME_NOREPLACE. There this looks for the name first. A process
 * that creates the file between the two calls writes the same content. */
static int take_name(struct spw_pack_writer *w)
{
    int rc = renameat2(w->directory, w->temporary, w->directory, w->name,
                       w->replace ? 0 : RENAME_NOREPLACE)
                 ? -errno
                 : 0;
    if (rc == -EINVAL && !w->replace) {
        if (!faccessat(w->directory, w->name, F_OK, AT_SYMLINK_NOFOLLOW))
            return -EEXIST;
        rc = renameat(w->directory, w->temporary, w->directory, w->name) ? -errno : 0;
    }
    SPW_TRY(rc);
    w->temporary[0] = 0;
    return fsync(w->directory) ? -errno : 0;
}

int spw_pack_seal(struct spw_pack_writer *w, const void *state, uint32_t state_bytes,
                  struct spw_error *err)
{
    if (w->n_left || state_bytes > w->max_state_bytes)
        return spw_fail(err, -EINVAL, "%s: %llu records were not written; the state has %u bytes",
                        w->path, (unsigned long long)w->n_left, state_bytes);
    int rc = write_data(w, state, state_bytes);
    if (!rc) {
        w->sealed = true; /* from here on abort must not shorten the file */
        rc = write_head(w);
    }
    return rc ? spw_fail(err, rc, "%s: cannot be written: %s", w->path, strerror(-rc)) : 0;
}

int spw_pack_publish(struct spw_pack_writer *w, struct spw_error *err)
{
    bool is_new = w->temporary[0];
    int rc = is_new ? take_name(w) : 0;
    if (is_new && !w->temporary[0] && w->locked_fd) { /* the caller gets the new file */
        int before = *w->locked_fd;
        *w->locked_fd = w->fd;
        w->fd = before;
    }
    return rc ? spw_fail(err, rc, "%s: cannot be written: %s", w->path, strerror(-rc)) : 0;
}

int spw_pack_commit(struct spw_pack_writer *w, const void *state, uint32_t state_bytes,
                    uint64_t *written_bytes, struct spw_error *err)
{
    int rc = spw_pack_seal(w, state, state_bytes, err);
    if (!rc)
        rc = spw_pack_publish(w, err);
    if (written_bytes)
        *written_bytes = w->written_bytes;
    spw_pack_abort(w);
    return rc;
}

int spw_pack_open_blank(struct spw_pack **out, struct spw_pack_writer *w, const void *state,
                        uint32_t state_bytes, uint64_t *written_bytes, struct spw_error *err)
{
    w->n_left = 0;
    int rc = spw_pack_seal(w, state, state_bytes, err);
    if (written_bytes)
        *written_bytes = w->written_bytes;
    if (!rc)
        rc = spw_pack_open_memory(out, w->fd, err);
    spw_pack_abort(w);
    return rc;
}

void spw_pack_abort(struct spw_pack_writer *w)
{
    if (!w)
        return;
    if (w->temporary[0])
        unlinkat(w->directory, w->temporary, 0);
    else if (w->old_size && !w->sealed) {
        int rc = ftruncate(w->fd, (off_t)w->old_size);
        (void)rc; /* a longer file does no harm */
    }
    if (w->fd >= 0)
        close(w->fd);
    if (w->directory >= 0)
        close(w->directory);
    spw_free(w->path);
    spw_free(w->sections);
    spw_free(w->first_record);
    spw_free(w->table);
    spw_free(w->written);
    spw_free(w);
}

uint64_t spw_pack_written_bytes(const struct spw_pack_writer *w)
{
    return w->written_bytes;
}
