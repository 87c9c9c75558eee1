/* The directory of a prefix store: see store_directory.h.
 *
 * The index needs only names, because a match asks for one name at each step: the chain hash of the
 * next tile. So opening a store of 100,000 tiles costs one readdir, and a match opens only packs
 * that the sequence begins with.
 *
 * Locks are those of flock. They belong to an open file, so they also work between two stores of
 * one process, and they end with the process. A pack in use has a shared lock. A process that
 * removes a pack needs the exclusive lock. A process that has got the shared lock then checks
 * whether the file still has its name. */
#include "offload/store/store_directory.h"

#include "base/grow.h"
#include "offload/store/owner.h"
#include "offload/store/pack_format.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LOCK_TRIES = 2000,             /* one each millisecond */
    STABLE_NANOSECONDS = 50000000, /* clocks of filesystems tick in steps of up to 10 ms */
};

/* ---- names ---- */

void spw_store_directory_name(char name[SPW_STORE_NAME_BYTES], struct spw_pack_id id)
{
    snprintf(name, SPW_STORE_NAME_BYTES, "%016llx%016llx.pack", (unsigned long long)id.high,
             (unsigned long long)id.low);
}

static bool parse_digits(const char *text, uint64_t *out)
{
    *out = 0;
    for (int i = 0; i < 16; i++) {
        char c = text[i];
        if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f'))
            return false;
        *out = *out << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return true;
}

static bool parse_name(const char *name, struct spw_pack_id *id)
{
    return strlen(name) == 37 && strcmp(name + 32, ".pack") == 0 && parse_digits(name, &id->high) &&
           parse_digits(name + 16, &id->low);
}

struct spw_pack_id spw_store_checkpoint_id(struct spw_chain_hash chain)
{
    struct spw_pack_id id = spw_chain_id(chain);
    id.low ^= SPW_PACK_CHECKPOINT;
    return id;
}

static const char *misnamed(const struct spw_pack_info *info, struct spw_pack_id id)
{
    if (!info->n_tokens || info->n_tokens % SPW_TILE_TOKENS)
        return "it ends inside a tile";
    if (spw_pack_same_id(spw_chain_id(info->hashes[0]), id))
        return NULL;
    if (info->checkpoint && info->n_tokens == SPW_TILE_TOKENS &&
        spw_pack_same_id(spw_store_checkpoint_id(info->hashes[0]), id))
        return NULL;
    return "its name does not fit its tokens";
}

/* ---- open ---- */

int spw_store_directory_open(struct spw_store_directory *d, const char *path, bool make,
                             struct spw_error *err)
{
    *d = (struct spw_store_directory){.fd = -1};
    if (make && mkdir(path, 0700) && errno != EEXIST)
        return spw_fail(err, -errno,
                        "prefix cache: %s: cannot be created: %s; name a directory that can be "
                        "written",
                        path, strerror(errno));
    d->path = spw_strdup(path);
    if (!d->path)
        return spw_fail(err, -ENOMEM, "prefix cache: %s: no memory to open it", path);
    struct stat st;
    d->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->fd >= 0 && !fstat(d->fd, &st)) {
        d->owner = st.st_uid;
        return 0;
    }
    int rc = -errno;
    spw_store_directory_close(d);
    return spw_fail(err, rc, "prefix cache: %s: %s", path, strerror(-rc));
}

void spw_store_directory_close(struct spw_store_directory *d)
{
    if (d->fd >= 0)
        close(d->fd);
    spw_free(d->path);
    spw_free(d->items);
    spw_free(d->slots);
    *d = (struct spw_store_directory){.fd = -1};
}

int spw_store_directory_check_owner(const struct spw_store_directory *d, struct spw_error *err)
{
    char why[SPW_OWNER_TEXT];
    if (d->trusts_others || spw_owner_is_exclusive(d->fd, geteuid(), why))
        return 0;
    return spw_fail(err, -EPERM,
                    "prefix cache: %s: %s; other users' data would become part of answers: name a "
                    "directory that only you can write to (options.prefix_cache_trusts_others uses "
                    "this one all the same)",
                    d->path, why);
}

/* ---- packs ---- */

int spw_store_directory_open_pack(const struct spw_store_directory *d, struct spw_pack_id id,
                                  const uint8_t *fingerprint, struct spw_pack **out,
                                  struct spw_error *err)
{
    char path[4096], name[SPW_STORE_NAME_BYTES], why[SPW_OWNER_TEXT];
    *out = NULL;
    spw_store_directory_name(name, id);
    if ((size_t)snprintf(path, sizeof path, "%s/%s", d->path, name) >= sizeof path)
        return spw_fail(err, -ENAMETOOLONG, "prefix cache: %s: the name is too long", d->path);
    SPW_TRY(spw_pack_open_in(out, d->fd, name, path, fingerprint, err));
    int rc = 0;
    const char *wrong = misnamed(spw_pack_info(*out), id);
    if (!d->trusts_others && !spw_owner_is_exclusive(spw_pack_fd(*out), d->owner, why))
        rc = spw_fail(err, -EPERM, "%s: %s; it is not used", path, why);
    else if (wrong)
        rc = spw_fail(err, -EBADMSG, "%s: %s; it is damaged", path, wrong);
    if (rc) {
        spw_pack_close(*out);
        *out = NULL;
    }
    return rc;
}

bool spw_store_directory_is_unusable(const struct spw_store_directory *d, int rc)
{
    return rc == -EBADMSG || ((rc == -EPERM || rc == -EACCES) && !d->trusts_others);
}

/* ---- index ---- */

/* The slot of this id, or the free slot where it would go. Ids are hashes already. */
static uint32_t *find_slot(const struct spw_store_directory *d, struct spw_pack_id id)
{
    uint32_t at = (uint32_t)id.low & (d->n_slots - 1);
    while (d->slots[at] && !spw_pack_same_id(d->items[d->slots[at] - 1].id, id))
        at = (at + 1) & (d->n_slots - 1);
    return &d->slots[at];
}

struct spw_store_item *spw_store_directory_find(const struct spw_store_directory *d,
                                                struct spw_pack_id id)
{
    uint32_t at = d->n_slots ? *find_slot(d, id) : 0;
    if (!at || d->items[at - 1].damaged || d->items[at - 1].removed)
        return NULL;
    return &d->items[at - 1];
}

static int add(struct spw_store_directory *d, const struct spw_store_item *item)
{
    SPW_TRY(spw_grow(&d->items, &d->capacity, (size_t)d->n + 1, sizeof *d->items));
    d->items[d->n++] = *item;
    return 0;
}

/* The table is at most half full. readdir may return a name twice, before and after a rename; the
 * second one is dropped. */
static int build_slots(struct spw_store_directory *d)
{
    uint32_t n_slots = 64;
    while (n_slots < 2 * d->n)
        n_slots *= 2;
    d->slots = spw_alloc_zero(n_slots, sizeof *d->slots);
    if (!d->slots)
        return -ENOMEM;
    d->n_slots = n_slots;
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t *slot = find_slot(d, d->items[i].id);
        if (!*slot) {
            *slot = i + 1;
        } else {
            d->items[i].removed = true;
            d->bytes -= d->items[i].bytes;
        }
    }
    return 0;
}

/* ---- scan ---- */

static int read_size(const struct spw_store_directory *d, const char *name,
                     struct spw_store_item *item)
{
    struct stat st;
    if (fstatat(d->fd, name, &st, AT_SYMLINK_NOFOLLOW))
        return -errno;
    item->bytes = (uint64_t)st.st_size;
    item->used = st.st_mtim;
    return 0;
}

static int scan_entry(struct spw_store_directory *to, const struct spw_store_directory *old,
                      const char *name, bool with_sizes)
{
    struct spw_store_item item = {0};
    if (spw_pack_is_temporary(name)) {
        spw_pack_remove_abandoned(to->fd, name);
        if (!read_size(to, name, &item))
            to->writing_bytes += item.bytes;
        return 0;
    }
    if (!parse_name(name, &item.id))
        return 0;
    uint32_t known = old->n_slots ? *find_slot(old, item.id) : 0;
    if (known && !old->items[known - 1].removed)
        item = old->items[known - 1];
    if (with_sizes && read_size(to, name, &item))
        return 0; /* it was removed meanwhile */
    to->bytes += item.bytes;
    return add(to, &item);
}

static int read_names(struct spw_store_directory *to, const struct spw_store_directory *old,
                      bool with_sizes)
{
    struct timespec now;
    struct stat st;
    int fd = openat(to->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    if (!names || fstat(fd, &st)) {
        int rc = -errno;
        if (names)
            closedir(names);
        else if (fd >= 0)
            close(fd);
        return rc;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    to->changed = st.st_mtim;
    to->is_stable =
        (now.tv_sec - st.st_mtim.tv_sec) * INT64_C(1000000000) + now.tv_nsec - st.st_mtim.tv_nsec >
        STABLE_NANOSECONDS;
    int rc = 0;
    for (struct dirent *entry; !rc && (entry = readdir(names));)
        rc = scan_entry(to, old, entry->d_name, with_sizes);
    closedir(names);
    return rc;
}

int spw_store_directory_scan(struct spw_store_directory *d, bool with_sizes)
{
    struct spw_store_directory next = {
        .fd = d->fd, .path = d->path, .owner = d->owner, .trusts_others = d->trusts_others};
    int rc = read_names(&next, d, with_sizes);
    if (!rc)
        rc = build_slots(&next);
    if (rc) {
        spw_free(next.items);
        spw_free(next.slots);
        return rc;
    }
    spw_free(d->items);
    spw_free(d->slots);
    *d = next;
    return 0;
}

int spw_store_directory_refresh(struct spw_store_directory *d)
{
    struct stat st;
    if (fstat(d->fd, &st))
        return -errno;
    if (d->is_stable && st.st_mtim.tv_sec == d->changed.tv_sec &&
        st.st_mtim.tv_nsec == d->changed.tv_nsec)
        return 0;
    return spw_store_directory_scan(d, false);
}

/* ---- removing packs ---- */

int spw_store_directory_lock(struct spw_store_directory *d)
{
    int fd = openat(d->fd, ".lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    for (int tries = 0; flock(fd, LOCK_EX | LOCK_NB); tries++) {
        int rc = errno == EWOULDBLOCK ? -EBUSY : -errno;
        if (rc != -EBUSY || tries == LOCK_TRIES) {
            close(fd);
            return rc;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return fd;
}

/* Reads which pack this one extends. A pack without an intact commit record, or of another version,
 * gets the oldest time of use, so that it is removed first. */
static void read_link(const struct spw_store_directory *d, struct spw_store_item *item)
{
    char name[SPW_STORE_NAME_BYTES];
    struct spw_pack_heads h;
    spw_store_directory_name(name, item->id);
    int fd = openat(d->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return;
    int rc = spw_pack_read_heads(fd, name, NULL, &h, NULL);
    close(fd);
    if (rc) {
        item->used = (struct timespec){0};
        return;
    }
    item->previous = h.head[h.newest].previous;
    item->first_token = h.head[h.newest].first_token;
    item->linked = true;
}

static struct spw_store_item *previous_item(const struct spw_store_directory *d,
                                            const struct spw_store_item *item)
{
    uint32_t at = item->linked ? *find_slot(d, item->previous) : 0;
    return at && !d->items[at - 1].removed ? &d->items[at - 1] : NULL;
}

/* Removes or renames the file or directory of this name. */
static bool free_name(const struct spw_store_directory *d, const char *name)
{
    char aside[SPW_STORE_NAME_BYTES + 16];
    snprintf(aside, sizeof aside, "not-a-pack-%s", name);
    return !unlinkat(d->fd, name, 0) || errno == ENOENT || !unlinkat(d->fd, name, AT_REMOVEDIR) ||
           !renameat(d->fd, name, d->fd, aside);
}

bool spw_store_directory_remove(struct spw_store_directory *d, struct spw_store_item *item,
                                bool also_in_use)
{
    char name[SPW_STORE_NAME_BYTES];
    spw_store_directory_name(name, item->id);
    int fd = openat(d->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool removed = fd < 0 && errno == ENOENT, is_link = fd < 0 && errno == ELOOP;
    if (also_in_use || is_link || (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB)))
        removed = free_name(d, name);
    if (fd >= 0)
        close(fd);
    if (!removed)
        return false;
    item->removed = true;
    d->bytes -= spw_min_u64(item->bytes, d->bytes);
    return true;
}

/* The least recently used first. Of packs with the same time, the later one of a chain. */
static int by_use(const void *a, const void *b)
{
    const struct spw_store_item *x = *(struct spw_store_item *const *)a;
    const struct spw_store_item *y = *(struct spw_store_item *const *)b;
    if (x->used.tv_sec != y->used.tv_sec)
        return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    if (x->used.tv_nsec != y->used.tv_nsec)
        return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
    return x->first_token > y->first_token ? -1 : x->first_token < y->first_token;
}

static struct spw_store_item **sort_by_use(struct spw_store_directory *d)
{
    struct spw_store_item **order = spw_alloc_zero(d->n + 1, sizeof *order);
    if (!order)
        return NULL;
    for (uint32_t i = 0; i < d->n; i++) {
        d->items[i].n_children = 0;
        if (!d->items[i].linked)
            read_link(d, &d->items[i]);
        order[i] = &d->items[i];
    }
    for (uint32_t i = 0; i < d->n; i++) {
        struct spw_store_item *before = previous_item(d, &d->items[i]);
        if (before && !d->items[i].removed)
            before->n_children++;
    }
    qsort(order, d->n, sizeof(struct spw_store_item *), by_use);
    return order;
}

int spw_store_directory_shrink(struct spw_store_directory *d, uint64_t bytes, uint64_t *n_removed,
                               uint64_t *bytes_removed)
{
    if (d->bytes + d->writing_bytes <= bytes)
        return 0;
    struct spw_store_item **order = sort_by_use(d);
    if (!order)
        return -ENOMEM;
    /* A match touches a chain from its beginning to its end, so one pass over the packs is enough.
     * The loop is for clocks that have jumped. */
    for (bool progress = true; progress && d->bytes + d->writing_bytes > bytes;) {
        progress = false;
        for (uint32_t i = 0; i < d->n && d->bytes + d->writing_bytes > bytes; i++) {
            struct spw_store_item *item = order[i];
            if (item->removed || item->n_children || !spw_store_directory_remove(d, item, false))
                continue;
            struct spw_store_item *before = previous_item(d, item);
            if (before)
                before->n_children--;
            progress = true;
            ++*n_removed;
            *bytes_removed += item->bytes;
        }
    }
    spw_free(order);
    return d->bytes + d->writing_bytes <= bytes ? 0 : -ENOSPC;
}
