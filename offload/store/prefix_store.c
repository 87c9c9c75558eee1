/* The prefix store: see prefix_store.h, and store_directory.c for its directory.
 *
 *   chain    root(fingerprint) -> h0 -> h1 -> h2 -> h3 -> h4 ...      one hash per tile
 *   packs                        [h0   h1   h2] [h3 | h4 ...]         named by their first tile
 *                                     \-> [h2' h3' ...]               branches off after tile 1
 *
 * A match walks from the root. It opens the pack with the name of the next hash and compares the
 * tokens. Where they end or differ, it continues with the next hash. The first token of a pack, its
 * parent hash and its name must fit the position of the walk. The parent is a whole chain hash: the
 * SHA-256 of all tokens before the pack. A file name has only half of a hash. If two chains share a
 * name, one of them loses its pack, but no answer changes.
 *
 * Checkpoints: a model with sliding layers or quantized tiles can continue a sequence only where a
 * pack has the exact tiles near the end. If a sequence needs a checkpoint inside a pack, a separate
 * pack makes it. That pack has the last tile before the checkpoint again, without its quantized
 * records. */
#include "offload/store/prefix_store.h"

#include "offload/store/pack_format.h"
#include "offload/store/store_directory.h"

#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* An open and locked pack. All matches that contain it share it. */
struct open_pack {
    struct open_pack *next;
    struct spw_pack *pack; /* owned */
    struct spw_pack_id id;
    uint32_t refs;
    bool damaged; /* new matches do not use it */
};

struct spw_store {
    struct spw_store_options o; /* the directory is in `d`, the fingerprint below */
    uint8_t fingerprint[SPW_PACK_FINGERPRINT_BYTES];
    struct spw_store_directory d;
    struct open_pack *open; /* owned */
    struct spw_store_stats stats;
};

struct spw_store_writer {
    struct spw_store *store;
    struct spw_pack_writer *pack;
    struct spw_pack_id id;
    struct spw_store_match match; /* keeps the packs before it locked */
};

/* ---- damage ---- */

static void remove_damaged(struct spw_store *s, struct spw_pack_id id, const char *text)
{
    struct spw_store_item *item = spw_store_directory_find(&s->d, id);
    s->stats.n_damaged++;
    if (s->o.on_damage)
        s->o.on_damage(s->o.context, text);
    if (item)
        item->damaged = !spw_store_directory_remove(&s->d, item, true);
}

void spw_store_remove_damaged(struct spw_store *s, struct spw_pack *pack, const char *text)
{
    for (struct open_pack *p = s->open; p; p = p->next) {
        if (p->pack == pack && !p->damaged) {
            p->damaged = true;
            remove_damaged(s, p->id, text);
        }
    }
}

/* ---- packs in use ---- */

static struct spw_pack *reuse_pack(struct spw_store *s, struct spw_pack_id id)
{
    for (struct open_pack *p = s->open; p; p = p->next) {
        if (spw_pack_same_id(p->id, id) && !p->damaged) {
            p->refs++;
            return p->pack;
        }
    }
    return NULL;
}

static void put_pack(struct spw_store *s, struct spw_pack *pack)
{
    for (struct open_pack **at = &s->open, *p; (p = *at); at = &p->next) {
        if (p->pack != pack)
            continue;
        if (--p->refs == 0) {
            *at = p->next;
            spw_pack_close(p->pack);
            spw_free(p);
        }
        return;
    }
}

/* False: another process has removed the file, or is removing it. */
static bool lock_shared(int fd)
{
    struct stat st;
    return !flock(fd, LOCK_SH | LOCK_NB) && !fstat(fd, &st) && st.st_nlink;
}

/* Opens and locks the pack of this name. *out is NULL if there is none. -ENOMEM. */
static int get_pack(struct spw_store *s, struct spw_pack_id id, struct spw_pack **out)
{
    struct spw_error err = {0};
    *out = reuse_pack(s, id);
    if (*out || !spw_store_directory_find(&s->d, id))
        return 0;
    struct open_pack *p = spw_alloc_zero(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    int rc = spw_store_directory_open_pack(&s->d, id, s->fingerprint, &p->pack, &err);
    if (!rc && !lock_shared(spw_pack_fd(p->pack)))
        rc = -ENOENT;
    if (rc) {
        spw_pack_close(p->pack);
        spw_free(p);
        if (rc == -ESTALE || spw_store_directory_is_unusable(&s->d, rc))
            remove_damaged(s, id, err.text);
        return rc == -ENOMEM ? rc : 0;
    }
    p->id = id;
    p->refs = 1;
    p->next = s->open;
    s->open = p;
    *out = p->pack;
    return 0;
}

/* ---- match ---- */

static uint32_t equal_tiles(const struct spw_pack_info *info, const int32_t *tokens,
                            uint64_t n_tiles)
{
    const uint64_t most = spw_min_u64(n_tiles, info->n_tokens / SPW_TILE_TOKENS);
    uint32_t n = 0;
    while (n < most &&
           memcmp(info->tokens + (size_t)n * SPW_TILE_TOKENS, tokens + (size_t)n * SPW_TILE_TOKENS,
                  SPW_TILE_TOKENS * sizeof *tokens) == 0)
        n++;
    return n;
}

/* How many tiles of this pack match `tokens`, which follow `tile` tiles. 0 also if the pack does
 * not continue the chain there. */
static uint32_t tiles_from(const struct spw_pack *pack, uint32_t tile, struct spw_chain_hash before,
                           const int32_t *tokens, uint64_t n_tiles)
{
    const struct spw_pack_info *info = spw_pack_info(pack);
    if (info->first_token != (uint64_t)tile * SPW_TILE_TOKENS ||
        !spw_chain_equal(info->parent, before))
        return 0;
    return equal_tiles(info, tokens, n_tiles);
}

/* The pack has the right name but other content: it was made up, or is of another chain. */
static int reject_pack(struct spw_store *s, struct spw_pack *pack)
{
    struct spw_error err = {0};
    spw_fail(&err, -EBADMSG, "%s: has other tokens than its name says", spw_pack_path(pack));
    spw_store_remove_damaged(s, pack, err.text);
    put_pack(s, pack);
    return 0;
}

static struct spw_chain_hash begin_of(const struct spw_store *s, const int32_t *tokens,
                                      uint64_t n_tiles)
{
    struct spw_chain_hash hash = spw_chain_root(s->fingerprint);
    for (uint64_t t = 0; t < n_tiles && tokens[0] < 0; t++)
        hash = spw_chain_next(hash, tokens + t * SPW_TILE_TOKENS);
    return hash;
}

static int walk(struct spw_store *s, const int32_t *tokens, uint64_t n_tiles,
                struct spw_store_match *m)
{
    struct spw_chain_hash hash = begin_of(s, tokens, n_tiles);
    while (m->n_tiles < n_tiles && m->n_parts < SPW_STORE_MAX_PACKS) {
        struct spw_pack *pack;
        const int32_t *next = tokens + (size_t)m->n_tiles * SPW_TILE_TOKENS;
        SPW_TRY(get_pack(s, spw_chain_id(spw_chain_next(hash, next)), &pack));
        if (!pack)
            return 0;
        uint32_t n = tiles_from(pack, m->n_tiles, hash, next, n_tiles - m->n_tiles);
        if (!n || (*tokens < 0 && n < n_tiles)) /* a part of a source is of no use */
            return reject_pack(s, pack);
        hash = spw_pack_info(pack)->hashes[n - 1];
        m->parts[m->n_parts++] = (struct spw_store_part){pack, m->n_tiles, n};
        m->n_tiles += n;
    }
    return 0;
}

/* The pack that makes a checkpoint after tile t of the part's pack: this pack, or a separate one.
 */
static int find_checkpoint(struct spw_store *s, const struct spw_store_part *part, uint32_t t,
                           struct spw_pack **out)
{
    const struct spw_pack_info *info = spw_pack_info(part->pack);
    if (info->checkpoint && (t + 1) * UINT64_C(128) == info->n_tokens) {
        *out = reuse_pack(s, spw_chain_id(info->hashes[0]));
        return 0;
    }
    SPW_TRY(get_pack(s, spw_store_checkpoint_id(info->hashes[t]), out));
    struct spw_pack *pack = *out;
    if (!pack || tiles_from(pack, part->first_tile + t, t ? info->hashes[t - 1] : info->parent,
                            info->tokens + (size_t)t * SPW_TILE_TOKENS, 1) == 1)
        return 0;
    *out = NULL;
    return reject_pack(s, pack);
}

/* Finds the last checkpoint within the match, and one that is one tile after it. */
static int walk_checkpoints(struct spw_store *s, struct spw_store_match *m)
{
    if (!m->n_parts)
        return 0;
    const struct spw_store_part *last = &m->parts[m->n_parts - 1];
    if (last->n_tiles < spw_pack_info(last->pack)->n_tokens / SPW_TILE_TOKENS)
        SPW_TRY(find_checkpoint(s, last, last->n_tiles, &m->next_checkpoint));
    for (uint32_t i = m->n_parts; i-- > 0;) {
        const struct spw_store_part *part = &m->parts[i];
        for (uint32_t t = part->n_tiles; t-- > 0;) {
            m->checkpoint_tiles = part->first_tile + t + 1;
            SPW_TRY(find_checkpoint(s, part, t, &m->checkpoint));
            if (m->checkpoint)
                return 0;
        }
    }
    m->checkpoint_tiles = 0;
    return 0;
}

/* Sets the time of last use. A match touches all packs of its chain. */
static void touch(const struct spw_store *s, const struct spw_pack *pack)
{
    if (!s->o.directory)
        return;
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
    int rc = futimens(spw_pack_fd(pack), times);
    (void)rc; /* after a failure (another owner, read-only) the pack only seems older than it is */
}

int spw_store_match(struct spw_store *s, const int32_t *tokens, uint64_t n,
                    struct spw_store_match *out)
{
    *out = (struct spw_store_match){0};
    int rc = s->o.directory ? spw_store_directory_refresh(&s->d) : 0;
    if (!rc)
        rc = walk(s, tokens, spw_min_u64(n / SPW_TILE_TOKENS, UINT32_MAX), out);
    if (!rc)
        rc = walk_checkpoints(s, out);
    for (uint32_t i = 0; !rc && i < out->n_parts; i++)
        touch(s, out->parts[i].pack);
    if (!rc && out->checkpoint)
        touch(s, out->checkpoint);
    if (!rc && out->next_checkpoint)
        touch(s, out->next_checkpoint);
    if (rc)
        spw_store_release(s, out);
    return rc == -ENOMEM ? rc : 0;
}

void spw_store_release(struct spw_store *s, struct spw_store_match *m)
{
    for (uint32_t i = 0; i < m->n_parts; i++)
        put_pack(s, m->parts[i].pack);
    if (m->checkpoint)
        put_pack(s, m->checkpoint);
    if (m->next_checkpoint)
        put_pack(s, m->next_checkpoint);
    *m = (struct spw_store_match){0};
}

/* ---- open ---- */

static int open_directory(struct spw_store *s, const struct spw_store_options *o,
                          struct spw_error *err)
{
    int rc = spw_store_directory_open(&s->d, o->directory, true, err);
    s->d.trusts_others = o->trusts_others;
    if (!rc)
        rc = spw_store_directory_check_owner(&s->d, err);
    if (!rc) {
        rc = spw_store_directory_scan(&s->d, false);
        if (rc)
            spw_fail(err, rc, "prefix cache: %s: cannot be read: %s", o->directory, strerror(-rc));
    }
    return rc;
}

int spw_store_open(struct spw_store **out, const struct spw_store_options *o, struct spw_error *err)
{
    *out = NULL;
    struct spw_store *s = spw_alloc_zero(1, sizeof *s);
    if (!s)
        return spw_fail(err, -ENOMEM, "prefix cache: no memory to open it");
    s->o = *o;
    s->d.fd = -1;
    memcpy(s->fingerprint, o->fingerprint, sizeof s->fingerprint);
    int rc = o->directory ? open_directory(s, o, err) : 0;
    if (rc) {
        spw_store_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void spw_store_close(struct spw_store *s)
{
    if (!s)
        return;
    while (!s->o.directory && s->open)
        put_pack(s, s->open->pack);
    spw_store_directory_close(&s->d);
    spw_free(s);
}

void spw_store_stats(struct spw_store *s, struct spw_store_stats *out)
{
    int rc = spw_store_directory_scan(&s->d, true);
    (void)rc; /* after a failure the numbers are those of the last scan */
    *out = s->stats;
    out->n_packs = s->d.n;
    out->bytes = s->d.bytes;
}

/* ---- adding ---- */

/* Searches the store, and checks that the new pack continues the chain that it has. */
static int check_place(struct spw_store *s, const struct spw_store_addition *a,
                       struct spw_store_match *m, struct spw_error *err)
{
    if (a->first_tile > a->n_tiles || !a->n_tiles ||
        (a->first_tile == a->n_tiles && !a->checkpoint))
        return spw_fail(err, -EINVAL, "prefix cache: a pack has no tiles and makes no checkpoint");
    if (a->found) {
        *m = *a->found;
        *a->found = (struct spw_store_match){0};
    } else if (spw_store_match(s, a->tokens, (uint64_t)a->n_tiles * SPW_TILE_TOKENS, m))
        return spw_fail(err, -ENOMEM, "prefix cache: no memory to search it");
    bool exists = a->first_tile < a->n_tiles ? m->n_tiles > a->first_tile
                                             : m->checkpoint && m->checkpoint_tiles == a->n_tiles;
    if (exists)
        return spw_fail(err, -EEXIST, "prefix cache: these tiles are in it already");
    if (m->n_parts == SPW_STORE_MAX_PACKS)
        return spw_fail(err, -EMLINK, "prefix cache: the chain has %u packs already", m->n_parts);
    if (m->n_tiles < a->first_tile)
        return spw_fail(err, -ENOENT, "prefix cache: the tiles before are not in it any more");
    return 0;
}

/* The first tile of the new pack. A pack that only makes a checkpoint has the last tile again. */
static uint32_t first_of_pack(const struct spw_store_addition *a)
{
    return a->first_tile - (a->first_tile == a->n_tiles);
}

static struct spw_pack_spec make_spec(const struct spw_store_addition *a)
{
    uint64_t first = (uint64_t)first_of_pack(a) * SPW_TILE_TOKENS;
    return (struct spw_pack_spec){.first_token = first,
                                  .n_tokens = (uint64_t)a->n_tiles * SPW_TILE_TOKENS - first,
                                  .tokens = a->tokens + first,
                                  .checkpoint = a->checkpoint,
                                  .sections = a->sections,
                                  .n_sections = a->n_sections};
}

uint64_t spw_store_write_bytes(const struct spw_store_addition *a)
{
    struct spw_pack_spec spec = make_spec(a);
    return spw_pack_write_bytes(&spec);
}

/* Sets where in the chain the pack lies. Returns the id of the pack. */
static struct spw_pack_id find_place(const struct spw_store *s, const struct spw_store_addition *a,
                                     const struct spw_store_match *m, struct spw_pack_spec *spec)
{
    uint32_t first = first_of_pack(a);
    spec->fingerprint = s->fingerprint;
    spec->parent = begin_of(s, a->tokens, a->n_tiles);
    for (uint32_t t = 0; t < first; t++)
        spec->parent = spw_chain_next(spec->parent, a->tokens + (size_t)t * SPW_TILE_TOKENS);
    if (m->n_parts)
        spec->previous = spw_chain_id(spw_pack_info(m->parts[m->n_parts - 1].pack)->hashes[0]);
    struct spw_chain_hash hash = spw_chain_next(spec->parent, spec->tokens);
    return a->first_tile == a->n_tiles ? spw_store_checkpoint_id(hash) : spw_chain_id(hash);
}

/* The directory is locked: counts its bytes, makes room, and creates the temporary file, which
 * other processes count, too. */
static int make_room(struct spw_store_writer *w, const char *path, const struct spw_pack_spec *spec,
                     struct spw_error *err)
{
    struct spw_store *s = w->store;
    uint64_t bytes = spw_pack_bytes(spec);
    double mib = (double)bytes / (1 << 20), most = (double)s->o.limit_bytes / (1 << 20);
    if (bytes > s->o.limit_bytes)
        return spw_fail(err, -ENOSPC,
                        "prefix cache: %s: a pack of %.1f MiB was not stored, the limit is %.1f "
                        "MiB; raise options.prefix_cache_bytes",
                        s->d.path, mib, most);
    int rc = spw_store_directory_scan(&s->d, true);
    if (!rc)
        rc = spw_store_directory_shrink(&s->d, s->o.limit_bytes - bytes, &s->stats.n_evicted,
                                        &s->stats.evicted_bytes);
    if (rc)
        return spw_fail(err, rc, "prefix cache: %s: no room for %.1f MiB of at most %.1f: %s",
                        s->d.path, mib, most,
                        rc == -ENOSPC ? "all packs are in use" : strerror(-rc));
    return spw_pack_create(&w->pack, path, false, spec, err);
}

static int begin(struct spw_store_writer *w, const struct spw_store_addition *a,
                 struct spw_error *err)
{
    struct spw_store *s = w->store;
    char path[4096], name[SPW_STORE_NAME_BYTES];
    SPW_TRY(check_place(s, a, &w->match, err));
    struct spw_pack_spec spec = make_spec(a);
    w->id = find_place(s, a, &w->match, &spec);
    if (!s->o.directory)
        return spw_pack_create_blank(&w->pack, &spec, err);
    spw_store_directory_name(name, w->id);
    if ((size_t)snprintf(path, sizeof path, "%s/%s", s->d.path, name) >= sizeof path)
        return spw_fail(err, -ENAMETOOLONG, "prefix cache: %s: the name is too long", s->d.path);
    int lock = spw_store_directory_lock(&s->d);
    if (lock < 0)
        return spw_fail(err, lock, "prefix cache: %s: cannot be locked: %s", s->d.path,
                        strerror(-lock));
    int rc = make_room(w, path, &spec, err);
    close(lock);
    return rc;
}

int spw_store_begin(struct spw_store_writer **out, struct spw_store *s,
                    const struct spw_store_addition *a, struct spw_error *err)
{
    *out = NULL;
    struct spw_store_writer *w = spw_alloc_zero(1, sizeof *w);
    if (!w)
        return spw_fail(err, -ENOMEM, "prefix cache: no memory to write");
    w->store = s;
    int rc = begin(w, a, err);
    if (rc) {
        spw_store_abort(w);
        return rc;
    }
    *out = w;
    return 0;
}

struct spw_pack_writer *spw_store_writer_pack(struct spw_store_writer *w)
{
    return w->pack;
}

/* The file gets its final name under the lock, so that a process that counts bytes counts the file
 * once. */
static int publish(struct spw_store_writer *w, struct spw_error *err)
{
    int lock = spw_store_directory_lock(&w->store->d);
    if (lock < 0)
        return spw_fail(err, lock, "prefix cache: %s: cannot be locked: %s", w->store->d.path,
                        strerror(-lock));
    int rc = spw_pack_publish(w->pack, err);
    close(lock);
    return rc;
}

/* The store has the blank pack open until it is closed. */
static int keep_blank(struct spw_store_writer *w, uint64_t *written_bytes, struct spw_error *err)
{
    struct spw_store *s = w->store;
    struct open_pack *p = spw_alloc_zero(1, sizeof *p);
    if (!p)
        return spw_fail(err, -ENOMEM, "prefix cache: no memory to write");
    int rc = spw_pack_open_blank(&p->pack, w->pack, NULL, 0, written_bytes, err);
    w->pack = NULL;
    if (rc) {
        spw_free(p);
        return rc;
    }
    p->id = w->id;
    p->refs = 1;
    p->next = s->open;
    s->open = p;
    return 0;
}

static int commit(struct spw_store_writer *w, uint64_t *written_bytes, struct spw_error *err)
{
    int rc = spw_pack_seal(w->pack, NULL, 0, err);
    if (written_bytes)
        *written_bytes = spw_pack_written_bytes(w->pack);
    return rc ? rc : publish(w, err);
}

int spw_store_commit(struct spw_store_writer *w, uint64_t *written_bytes, struct spw_error *err)
{
    int rc =
        w->store->o.directory ? commit(w, written_bytes, err) : keep_blank(w, written_bytes, err);
    spw_store_abort(w);
    return rc;
}

void spw_store_abort(struct spw_store_writer *w)
{
    if (!w)
        return;
    spw_pack_abort(w->pack);
    spw_store_release(w->store, &w->match);
    spw_free(w);
}
