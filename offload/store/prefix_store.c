/* The prefix store: see prefix_store.h, and store_directory.c for its directory.
 *
 *   chain    root(fingerprint) -> h0 -> h1 -> h2 -> h3 -> h4 ...      a hash a tile
 *   packs                        [h0   h1   h2] [h3 | h4 ...]         named after their first tile
 *                                     \-> [h2' h3' ...]               another sequence, from tile 2
 * on
 *
 * A match walks from the root: the pack named after the next hash is opened, its tokens are
 * compared, and where they end or differ the walk goes on with the next hash. What a pack says of
 * itself must be where the walk stands: first token, hash of what comes before, name. The tokens
 * that are compared are those of each pack; what joins two packs is the whole chain hash, the
 * SHA-256 of all tokens before. Names have half of it: two chains that share a name cost the one or
 * the other its pack, and never the answer.
 *
 * Points: sequences of models with sliding layers or quantized tiles can go on only where a pack
 * has what is near its end. Where a sequence needs a checkpoint inside another one's pack, a pack
 * of its own makes it: it covers the last tile before the checkpoint once more, without its records
 * of old tiles. */
#include "offload/store/prefix_store.h"

#include "offload/store/pack_format.h"
#include "offload/store/store_directory.h"

#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* A pack that is open and pinned, for every match that has it. */
struct open_pack {
    struct open_pack *next;
    struct spw_pack *pack; /* owned */
    struct spw_pack_id id;
    uint32_t refs;
    bool damaged; /* not for new matches */
};

struct spw_store {
    struct spw_store_options o; /* strings and fingerprint are in d and below */
    uint8_t fingerprint[SPW_PACK_FINGERPRINT_BYTES];
    struct spw_store_directory d;
    struct open_pack *open; /* owned */
    struct spw_store_stats stats;
};

struct spw_store_writer {
    struct spw_store *store;
    struct spw_pack_writer *pack;
    struct spw_store_match match; /* what it extends stays pinned */
};

/* ---- damage ---- */

static void set_aside(struct spw_store *s, struct spw_pack_id id, const char *text)
{
    struct spw_store_item *item = spw_store_directory_find(&s->d, id);
    s->stats.n_damaged++;
    if (s->o.on_damage)
        s->o.on_damage(s->o.context, text);
    if (item)
        item->damaged = !spw_store_directory_remove(&s->d, item, true);
}

void spw_store_damaged(struct spw_store *s, struct spw_pack *pack, const char *text)
{
    for (struct open_pack *p = s->open; p; p = p->next) {
        if (p->pack == pack && !p->damaged) {
            p->damaged = true;
            set_aside(s, p->id, text);
        }
    }
}

/* ---- pins ---- */

static struct spw_pack *known_pack(struct spw_store *s, struct spw_pack_id id)
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

/* Locked before anybody removes it, or not there. */
static bool pin(int fd)
{
    struct stat st;
    return !flock(fd, LOCK_SH | LOCK_NB) && !fstat(fd, &st) && st.st_nlink;
}

/* The pack of this name, pinned; NULL in *out is a miss. -ENOMEM. */
static int get_pack(struct spw_store *s, struct spw_pack_id id, struct spw_pack **out)
{
    struct spw_error err = {0};
    *out = known_pack(s, id);
    if (*out || !spw_store_directory_find(&s->d, id))
        return 0;
    struct open_pack *p = spw_alloc_zero(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    int rc = spw_store_directory_open_pack(&s->d, id, s->fingerprint, &p->pack, &err);
    if (!rc && !pin(spw_pack_fd(p->pack)))
        rc = -ENOENT;
    if (rc) {
        spw_pack_close(p->pack);
        spw_free(p);
        if (rc == -ESTALE || spw_store_directory_is_useless(&s->d, rc))
            set_aside(s, id, err.text);
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

/* Tiles of a pack that go on where the walk stands. */
static uint32_t tiles_from(const struct spw_pack *pack, uint32_t tile, struct spw_chain_hash before,
                           const int32_t *tokens, uint64_t n_tiles)
{
    const struct spw_pack_info *info = spw_pack_info(pack);
    if (info->first_token != (uint64_t)tile * SPW_TILE_TOKENS ||
        !spw_chain_equal(info->parent, before))
        return 0;
    return equal_tiles(info, tokens + (size_t)tile * SPW_TILE_TOKENS, n_tiles - tile);
}

/* It has the right name, and is not what it must be: made up, or of another chain. */
static int misplaced(struct spw_store *s, struct spw_pack *pack)
{
    struct spw_error err = {0};
    spw_fail(&err, -EBADMSG, "%s: has other tokens than its name says", spw_pack_path(pack));
    spw_store_damaged(s, pack, err.text);
    put_pack(s, pack);
    return 0;
}

static int walk(struct spw_store *s, const int32_t *tokens, uint64_t n_tiles,
                struct spw_store_match *m)
{
    struct spw_chain_hash hash = spw_chain_root(s->fingerprint);
    while (m->n_tiles < n_tiles && m->n_parts < SPW_STORE_MOST_PACKS) {
        struct spw_pack *pack;
        const int32_t *next = tokens + (size_t)m->n_tiles * SPW_TILE_TOKENS;
        SPW_TRY(get_pack(s, spw_chain_id(spw_chain_next(hash, next)), &pack));
        if (!pack)
            return 0;
        uint32_t n = tiles_from(pack, m->n_tiles, hash, tokens, n_tiles);
        if (!n)
            return misplaced(s, pack);
        hash = spw_pack_info(pack)->hashes[n - 1];
        m->parts[m->n_parts++] = (struct spw_store_part){pack, m->n_tiles, n};
        m->n_tiles += n;
    }
    return 0;
}

/* A pack that only makes a checkpoint behind tile `last`, whose own hash is `hash`. */
static int find_checkpoint(struct spw_store *s, const int32_t *tokens, uint32_t last,
                           struct spw_chain_hash hash, struct spw_chain_hash before,
                           struct spw_pack **out)
{
    SPW_TRY(get_pack(s, spw_store_checkpoint_id(hash), out));
    struct spw_pack *pack = *out;
    if (!pack || tiles_from(pack, last, before, tokens, (uint64_t)last + 1) == 1)
        return 0;
    *out = NULL;
    return misplaced(s, pack);
}

/* The last checkpoint within the match: the end of a part, or a pack of its own. */
static int walk_checkpoints(struct spw_store *s, const int32_t *tokens, struct spw_store_match *m)
{
    for (uint32_t i = m->n_parts; i-- > 0;) {
        const struct spw_store_part *part = &m->parts[i];
        const struct spw_pack_info *info = spw_pack_info(part->pack);
        for (uint32_t t = part->n_tiles; t-- > 0;) {
            m->checkpoint_tiles = part->first_tile + t + 1;
            if (info->checkpoint && (t + 1) * UINT64_C(128) == info->n_tokens) {
                m->checkpoint = known_pack(s, spw_chain_id(info->hashes[0]));
                return 0;
            }
            SPW_TRY(find_checkpoint(s, tokens, part->first_tile + t, info->hashes[t],
                                    t ? info->hashes[t - 1] : info->parent, &m->checkpoint));
            if (m->checkpoint)
                return 0;
        }
    }
    m->checkpoint_tiles = 0;
    return 0;
}

/* What is used now is used from its beginning to its end. */
static void touch(const struct spw_pack *pack)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
    int rc = futimens(spw_pack_fd(pack), times);
    (void)rc; /* of another owner, or read-only: it only looks older than it is */
}

int spw_store_match(struct spw_store *s, const int32_t *tokens, uint64_t n,
                    struct spw_store_match *out)
{
    *out = (struct spw_store_match){0};
    int rc = spw_store_directory_refresh(&s->d);
    if (!rc)
        rc = walk(s, tokens, spw_min_u64(n / SPW_TILE_TOKENS, UINT32_MAX), out);
    if (!rc)
        rc = walk_checkpoints(s, tokens, out);
    for (uint32_t i = 0; !rc && i < out->n_parts; i++)
        touch(out->parts[i].pack);
    if (!rc && out->checkpoint)
        touch(out->checkpoint);
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
    *m = (struct spw_store_match){0};
}

/* ---- open ---- */

int spw_store_open(struct spw_store **out, const struct spw_store_options *o, struct spw_error *err)
{
    *out = NULL;
    struct spw_store *s = spw_alloc_zero(1, sizeof *s);
    if (!s)
        return spw_fail(err, -ENOMEM, "prefix cache: %s: no memory to open it", o->directory);
    s->o = *o;
    memcpy(s->fingerprint, o->fingerprint, sizeof s->fingerprint);
    int rc = spw_store_directory_open(&s->d, o->directory, true, err);
    s->d.trusts_others = o->trusts_others;
    if (!rc)
        rc = spw_store_directory_check_owner(&s->d, err);
    if (!rc) {
        rc = spw_store_directory_scan(&s->d, false);
        if (rc)
            spw_fail(err, rc, "prefix cache: %s: cannot be read: %s", o->directory, strerror(-rc));
    }
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
    spw_store_directory_close(&s->d);
    spw_free(s);
}

void spw_store_stats(struct spw_store *s, struct spw_store_stats *out)
{
    int rc = spw_store_directory_scan(&s->d, true);
    (void)rc; /* then as last seen */
    *out = s->stats;
    out->n_packs = s->d.n;
    out->bytes = s->d.bytes;
}

/* ---- adding ---- */

/* Looks what is there, and whether the new pack goes on at its end. */
static int check_place(struct spw_store *s, const struct spw_store_addition *a,
                       struct spw_store_match *m, struct spw_error *err)
{
    if (a->first_tile > a->n_tiles || !a->n_tiles ||
        (a->first_tile == a->n_tiles && !a->checkpoint))
        return spw_fail(err, -EINVAL, "prefix cache: a pack of no tiles that makes no checkpoint");
    if (a->found) {
        *m = *a->found;
        *a->found = (struct spw_store_match){0};
    } else if (spw_store_match(s, a->tokens, (uint64_t)a->n_tiles * SPW_TILE_TOKENS, m))
        return spw_fail(err, -ENOMEM, "prefix cache: no memory to look");
    bool there = a->first_tile < a->n_tiles ? m->n_tiles > a->first_tile
                                            : m->checkpoint && m->checkpoint_tiles == a->n_tiles;
    if (there)
        return spw_fail(err, -EEXIST, "prefix cache: it is there already");
    if (m->n_parts == SPW_STORE_MOST_PACKS)
        return spw_fail(err, -EMLINK, "prefix cache: %d packs come before", m->n_parts);
    if (m->n_tiles < a->first_tile)
        return spw_fail(err, -ENOENT, "prefix cache: what comes before is no longer there");
    return 0;
}

struct place {
    struct spw_chain_hash parent;
    struct spw_pack_id id, before;
    uint32_t first_tile; /* that the pack covers */
};

/* A pack that only makes a checkpoint covers the last tile once more. */
static uint32_t first_covered(const struct spw_store_addition *a)
{
    return a->first_tile - (a->first_tile == a->n_tiles);
}

static struct spw_pack_spec make_spec(const struct spw_store_addition *a)
{
    uint64_t first = (uint64_t)first_covered(a) * SPW_TILE_TOKENS;
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

static void find_place(const struct spw_store *s, const struct spw_store_addition *a,
                       const struct spw_store_match *m, struct place *p)
{
    struct spw_chain_hash hash = spw_chain_root(s->fingerprint);
    p->first_tile = first_covered(a);
    for (uint32_t t = 0; t < p->first_tile; t++)
        hash = spw_chain_next(hash, a->tokens + (size_t)t * SPW_TILE_TOKENS);
    p->parent = hash;
    hash = spw_chain_next(hash, a->tokens + (size_t)p->first_tile * SPW_TILE_TOKENS);
    p->id = a->first_tile == a->n_tiles ? spw_store_checkpoint_id(hash) : spw_chain_id(hash);
    p->before = (struct spw_pack_id){0};
    if (m->n_parts)
        p->before = spw_chain_id(spw_pack_info(m->parts[m->n_parts - 1].pack)->hashes[0]);
}

/* Locked: counts, makes room, and takes it under a temporary name that others count too. */
static int make_room(struct spw_store_writer *w, const char *path, const struct spw_pack_spec *spec,
                     struct spw_error *err)
{
    struct spw_store *s = w->store;
    uint64_t bytes = spw_pack_bytes(spec);
    double mib = (double)bytes / (1 << 20), most = (double)s->o.limit_bytes / (1 << 20);
    if (bytes > s->o.limit_bytes)
        return spw_fail(err, -ENOSPC,
                        "prefix cache: %s: not kept: %.1f MiB, of at most %.1f; raise "
                        "options.prefix_cache_bytes",
                        s->d.path, mib, most);
    int rc = spw_store_directory_scan(&s->d, true);
    if (!rc)
        rc = spw_store_directory_shrink(&s->d, s->o.limit_bytes - bytes, &s->stats.n_evicted,
                                        &s->stats.evicted_bytes);
    if (rc)
        return spw_fail(err, rc, "prefix cache: %s: no room for %.1f MiB of at most %.1f: %s",
                        s->d.path, mib, most,
                        rc == -ENOSPC ? "what is there is in use" : strerror(-rc));
    return spw_pack_create(&w->pack, path, false, spec, err);
}

static int begin(struct spw_store_writer *w, const struct spw_store_addition *a,
                 struct spw_error *err)
{
    struct spw_store *s = w->store;
    struct place p;
    char path[4096], name[SPW_STORE_NAME_BYTES];
    SPW_TRY(check_place(s, a, &w->match, err));
    find_place(s, a, &w->match, &p);
    spw_store_directory_name(name, p.id);
    if ((size_t)snprintf(path, sizeof path, "%s/%s", s->d.path, name) >= sizeof path)
        return spw_fail(err, -ENAMETOOLONG, "prefix cache: %s: too long a name", s->d.path);
    struct spw_pack_spec spec = make_spec(a);
    spec.fingerprint = s->fingerprint;
    spec.parent = p.parent;
    spec.before = p.before;
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

int spw_store_write(struct spw_store_writer *w, uint32_t section, uint32_t first_tile,
                    uint32_t n_tiles, const void *records)
{
    return spw_pack_write(w->pack, section, first_tile, n_tiles, records);
}

/* The name appears under the lock: who counts bytes sees the one name or the other. */
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

int spw_store_commit(struct spw_store_writer *w, uint64_t *written_bytes, struct spw_error *err)
{
    int rc = spw_pack_seal(w->pack, NULL, 0, err);
    if (written_bytes)
        *written_bytes = spw_pack_written_bytes(w->pack);
    if (!rc)
        rc = publish(w, err);
    spw_store_abort(w);
    return rc;
}

uint64_t spw_store_written_bytes(const struct spw_store_writer *w)
{
    return spw_pack_written_bytes(w->pack);
}

void spw_store_abort(struct spw_store_writer *w)
{
    if (!w)
        return;
    spw_pack_abort(w->pack);
    spw_store_release(w->store, &w->match);
    spw_free(w);
}
