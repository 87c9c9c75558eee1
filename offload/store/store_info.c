/* Lists and prunes a prefix store: see store_info.h. */
#include "offload/store/store_info.h"

#include "offload/store/store_directory.h"
#include "quant/tile.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_use(const void *a, const void *b)
{
    const struct spw_store_entry *x = a, *y = b;
    if (x->used_at != y->used_at)
        return x->used_at < y->used_at ? -1 : 1;
    if (x->used_at_nanoseconds != y->used_at_nanoseconds)
        return x->used_at_nanoseconds < y->used_at_nanoseconds ? -1 : 1;
    return x->first_token > y->first_token ? -1 : x->first_token < y->first_token;
}

static int read_pack(struct spw_store_entry *e, const struct spw_pack *p, bool records)
{
    const struct spw_pack_info *info = spw_pack_info(p);
    e->first_token = info->first_token;
    e->n_tokens = info->n_tokens;
    e->n_tiles = info->n_tokens / SPW_TILE_TOKENS;
    e->n_records = info->n_records;
    e->checkpoint = info->checkpoint;
    memcpy(e->fingerprint, info->fingerprint, sizeof e->fingerprint);
    return records ? spw_pack_verify(p, &e->reason) : 0;
}

/* False: the pack was removed meanwhile. */
static bool read_entry(struct spw_store_entry *e, const struct spw_store_directory *d,
                       const struct spw_store_item *item, bool records)
{
    struct spw_pack *p;
    *e = (struct spw_store_entry){.bytes = item->bytes,
                                  .used_at = item->used.tv_sec,
                                  .used_at_nanoseconds = (uint32_t)item->used.tv_nsec};
    spw_store_directory_name(e->name, item->id);
    e->error = spw_store_directory_open_pack(d, item->id, NULL, &p, &e->reason);
    if (e->error == -ENOENT)
        return false;
    if (!e->error)
        e->error = read_pack(e, p, records);
    spw_pack_close(p);
    return true;
}

static int list(struct spw_store_entry **out, size_t *n, struct spw_store_directory *d,
                bool records, struct spw_error *err)
{
    int rc = spw_store_directory_scan(d, true);
    if (rc)
        return spw_fail(err, rc, "prefix cache: %s: cannot be read: %s", d->path, strerror(-rc));
    *out = spw_alloc_zero((size_t)d->n + 1, sizeof **out);
    if (!*out)
        return spw_fail(err, -ENOMEM, "prefix cache: %s: no memory to list it", d->path);
    for (uint32_t i = 0; i < d->n; i++)
        *n += read_entry(&(*out)[*n], d, &d->items[i], records);
    qsort(*out, *n, sizeof **out, by_use);
    return 0;
}

int spw_store_list(struct spw_store_entry **out, size_t *n, const char *directory, bool records,
                   struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_store_directory d;
    *out = NULL;
    *n = 0;
    SPW_TRY(spw_store_directory_open(&d, directory, false, err));
    int rc = list(out, n, &d, records, err);
    spw_store_directory_close(&d);
    return rc;
}

/* ---- prune ---- */

static void prune_damaged(struct spw_store_directory *d, struct spw_store_pruned *out)
{
    struct spw_store_entry e;
    for (uint32_t i = 0; i < d->n; i++) {
        if (!read_entry(&e, d, &d->items[i], false) ||
            !spw_store_directory_is_unusable(d, e.error) ||
            !spw_store_directory_remove(d, &d->items[i], true))
            continue;
        out->n_packs++;
        out->bytes += e.bytes;
    }
}

static int prune(struct spw_store_pruned *out, struct spw_store_directory *d, uint64_t bytes)
{
    SPW_TRY(spw_store_directory_scan(d, true));
    prune_damaged(d, out);
    int rc = spw_store_directory_shrink(d, bytes, &out->n_packs, &out->bytes);
    return rc == -ENOSPC ? 0 : rc; /* the packs that are left are in use */
}

int spw_store_prune(struct spw_store_pruned *out, const char *directory, uint64_t bytes,
                    struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_store_directory d;
    *out = (struct spw_store_pruned){0};
    SPW_TRY(spw_store_directory_open(&d, directory, false, err));
    int rc = spw_store_directory_lock(&d);
    if (rc >= 0) {
        int lock = rc;
        rc = prune(out, &d, bytes);
        close(lock);
    }
    if (rc)
        spw_fail(err, rc, "prefix cache: %s: cannot be pruned: %s", directory, strerror(-rc));
    for (uint32_t i = 0; i < d.n; i++)
        out->n_left += !d.items[i].removed;
    out->left_bytes = d.bytes;
    spw_store_directory_close(&d);
    return rc;
}
