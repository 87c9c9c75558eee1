/* Reads packs: see pack.h for the contract, pack_format.h for the layout of the file. */
#include "offload/store/pack_format.h"

#include "base/file.h"
#include "base/xxh3.h"

#include <fcntl.h>
#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- chain ---- */

struct spw_chain_hash spw_chain_root(const uint8_t *fingerprint)
{
    const uint32_t version = SPW_PACK_VERSION;
    struct spw_chain_hash root;
    struct sha256_ctx sha;
    sha256_init(&sha);
    sha256_update(&sha, sizeof version, (const void *)&version);
    sha256_update(&sha, SPW_PACK_FINGERPRINT_BYTES, fingerprint);
    sha256_digest(&sha, sizeof root.bytes, root.bytes);
    return root;
}

struct spw_chain_hash spw_chain_next(struct spw_chain_hash before, const int32_t *tokens)
{
    struct spw_chain_hash next;
    struct sha256_ctx sha;
    sha256_init(&sha);
    sha256_update(&sha, sizeof before.bytes, before.bytes);
    sha256_update(&sha, SPW_TILE_TOKENS * sizeof *tokens, (const void *)tokens);
    sha256_digest(&sha, sizeof next.bytes, next.bytes);
    return next;
}

struct spw_pack_section spw_pack_part(const struct spw_pack_section *s, uint32_t first_tile,
                                      uint32_t n_tiles)
{
    struct spw_pack_section part = *s;
    uint32_t skipped = first_tile - s->first_tile;
    part.first_tile = first_tile;
    part.n_tiles = n_tiles;
    part.offset += skipped * s->record_bytes;
    part.sums += skipped;
    return part;
}

/* ---- commit records ---- */

int spw_pack_pread(int fd, void *to, uint64_t bytes, uint64_t offset)
{
    size_t n;
    SPW_TRY(spw_read_at(fd, to, bytes, offset, &n));
    return n < bytes ? -ENODATA : 0;
}

int spw_pack_read_heads(int fd, const char *path, const uint8_t *fingerprint,
                        struct spw_pack_heads *out, struct spw_error *err)
{
    struct spw_pack_head *h = out->head;
    int rc = spw_pack_pread(fd, h, sizeof out->head, 0);
    if (rc && rc != -ENODATA) /* a file that is too short has no commit record */
        return spw_fail(err, rc, "%s: %s", path, strerror(-rc));
    for (int i = 0; i < 2; i++)
        out->intact[i] = !rc && memcmp(h[i].magic, SPW_PACK_MAGIC, sizeof h[i].magic) == 0 &&
                         XXH3_64bits(&h[i], offsetof(struct spw_pack_head, sum)) == h[i].sum;
    if (!out->intact[0] && !out->intact[1])
        return spw_fail(err, -EBADMSG,
                        "%s: found no saved session and no file of a prefix cache; the file is "
                        "damaged, or is not a file of spillway",
                        path);
    out->newest = !out->intact[0] || (out->intact[1] && h[1].sequence > h[0].sequence);
    h += out->newest;
    if (h->version != SPW_PACK_VERSION)
        return spw_fail(err, -ESTALE,
                        "%s: was written by a version of spillway with another format", path);
    if (fingerprint && memcmp(h->fingerprint, fingerprint, sizeof h->fingerprint) != 0)
        return spw_fail(err, -ESTALE, "%s: belongs to another model, KV precision or build", path);
    return 0;
}

/* ---- sections ---- */

static int by_offset(const void *a, const void *b)
{
    const struct spw_pack_section *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* By kind, layer, first tile. */
static int by_tile(const void *a, const void *b)
{
    const struct spw_pack_section *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return x->first_tile < y->first_tile ? -1 : x->first_tile > y->first_tile;
}

static const char *check_section(const struct spw_pack_section *s, const struct spw_pack_head *h)
{
    uint64_t end_token = h->first_token + h->n_tokens, bytes, end;
    if (!s->n_tiles || !s->record_bytes || s->record_bytes % SPW_PACK_ALIGN)
        return "a section has no records, or records of a wrong size";
    if ((uint64_t)s->first_tile + s->n_tiles > spw_div_up(end_token, SPW_TILE_TOKENS))
        return "a section has tiles after the last token";
    if (s->offset % SPW_PACK_ALIGN || s->offset < SPW_PACK_DATA_OFFSET ||
        !spw_mul_u64(s->n_tiles, s->record_bytes, &bytes) || !spw_add_u64(s->offset, bytes, &end) ||
        end > h->file_bytes)
        return "a section lies outside the file";
    if (s->offset < h->table_offset + h->table_bytes && end > h->table_offset)
        return "a section overlaps the table";
    return NULL;
}

const char *spw_pack_check(struct spw_pack_section *sections, const struct spw_pack_head *h)
{
    uint64_t n_records = 0;
    for (uint32_t i = 0; i < h->n_sections; i++) {
        const char *wrong = check_section(&sections[i], h);
        if (wrong)
            return wrong;
        n_records += sections[i].n_tiles;
    }
    if (n_records != h->n_records)
        return "its sections and its commit record count different records";
    if (!h->n_sections)
        return NULL;
    qsort(sections, h->n_sections, sizeof *sections, by_offset);
    for (uint32_t i = 1; i < h->n_sections; i++) {
        const struct spw_pack_section *s = &sections[i - 1];
        if (s->offset + s->n_tiles * s->record_bytes > sections[i].offset)
            return "two sections overlap in the file";
    }
    qsort(sections, h->n_sections, sizeof *sections, by_tile);
    for (uint32_t i = 1; i < h->n_sections; i++) {
        const struct spw_pack_section *s = &sections[i - 1], *next = &sections[i];
        if (s->kind == next->kind && s->layer == next->layer &&
            s->first_tile + s->n_tiles > next->first_tile)
            return "two sections have the same tile";
    }
    return NULL;
}

/* ---- one commit ---- */

static const char *check_numbers(const struct spw_pack_head *h, uint64_t size)
{
    const uint64_t max = UINT64_C(1) << 32; /* tile numbers fit 32 bits with room to spare */
    uint64_t end;
    if (h->flags & ~(uint32_t)SPW_PACK_CHECKPOINT || !h->sequence)
        return "a number in the commit record is out of range";
    if (h->first_token % SPW_TILE_TOKENS || h->first_token > max || h->n_tokens > max)
        return "its tokens are out of range";
    if (h->n_sections > SPW_PACK_MAX_SECTIONS || h->n_records > max ||
        h->state_bytes > SPW_PACK_STATE_BYTES)
        return "its table is too large";
    if (h->table_bytes > SPW_PACK_MAX_TABLE_BYTES ||
        h->table_bytes !=
            spw_pack_table_bytes(h->n_tokens, h->n_sections, h->n_records, h->state_bytes))
        return "the size of its table contradicts its numbers";
    if (h->table_offset % SPW_PACK_ALIGN || h->table_offset < SPW_PACK_DATA_OFFSET ||
        !spw_add_u64(h->table_offset, h->table_bytes, &end) || end > h->file_bytes)
        return "its table lies outside the file";
    if (h->file_bytes > size)
        return "it is shorter than its commit record says";
    return NULL;
}

static const char *read_table(struct spw_pack *p, int *rc)
{
    const struct spw_pack_head *h = &p->head;
    *rc = -ENOMEM;
    p->table = spw_alloc(h->table_bytes + 1);
    p->sections = spw_alloc_zero(h->n_sections + 1, sizeof *p->sections);
    p->hashes = spw_alloc_zero(h->n_tokens / SPW_TILE_TOKENS + 1, sizeof *p->hashes);
    if (!p->table || !p->sections || !p->hashes)
        return "no memory for its table";
    *rc = spw_pack_pread(p->fd, p->table, h->table_bytes, h->table_offset);
    if (*rc == -ENODATA)
        *rc = -EBADMSG;
    if (*rc)
        return "its table cannot be read";
    *rc = -EBADMSG;
    return XXH3_64bits(p->table, h->table_bytes) == h->table_sum
               ? NULL
               : "its table does not have its checksum";
}

static void parse_table(struct spw_pack *p)
{
    const struct spw_pack_head *h = &p->head;
    const uint8_t *at = p->table + spw_pack_token_bytes(h->n_tokens);
    const struct spw_pack_row *rows = (const void *)at;
    const uint64_t *sums = (const void *)(at + h->n_sections * sizeof *rows);
    p->info = (struct spw_pack_info){.sequence = h->sequence,
                                     .first_token = h->first_token,
                                     .n_tokens = h->n_tokens,
                                     .tokens = (const void *)p->table,
                                     .parent = h->parent,
                                     .hashes = p->hashes,
                                     .previous = h->previous,
                                     .checkpoint = h->flags & SPW_PACK_CHECKPOINT,
                                     .n_sections = h->n_sections,
                                     .sections = p->sections,
                                     .n_records = h->n_records,
                                     .state = sums + h->n_records,
                                     .state_bytes = h->state_bytes,
                                     .file_bytes = h->file_bytes};
    memcpy(p->info.fingerprint, h->fingerprint, sizeof p->info.fingerprint);
    uint64_t n = 0;
    for (uint32_t i = 0; i < h->n_sections && n <= h->n_records; i++) {
        p->sections[i] = (struct spw_pack_section){.kind = rows[i].kind,
                                                   .layer = rows[i].layer,
                                                   .first_tile = rows[i].first_tile,
                                                   .n_tiles = rows[i].n_tiles,
                                                   .record_bytes = rows[i].record_bytes,
                                                   .offset = rows[i].offset,
                                                   .sums = sums + n};
        n += rows[i].n_tiles; /* spw_pack_check compares the sum with n_records */
    }
    struct spw_chain_hash hash = h->parent;
    for (uint64_t t = 0; t < h->n_tokens / SPW_TILE_TOKENS; t++)
        hash = p->hashes[t] = spw_chain_next(hash, p->info.tokens + t * SPW_TILE_TOKENS);
}

int spw_pack_load(struct spw_pack *p, uint64_t size, struct spw_error *err)
{
    int rc = -EBADMSG;
    const char *wrong = check_numbers(&p->head, size);
    if (!wrong)
        wrong = read_table(p, &rc);
    if (!wrong) {
        parse_table(p);
        wrong = spw_pack_check(p->sections, &p->head);
    }
    /* the chain of a source begins with the hash of its tokens: prefix_store.h */
    const bool has_source = !wrong && p->head.n_tokens && p->info.tokens[0] < 0;
    if (!wrong && !p->head.first_token && !has_source &&
        !spw_chain_equal(p->head.parent, spw_chain_root(p->head.fingerprint)))
        wrong = "its chain does not begin with the hash of its fingerprint";
    if (!wrong)
        return 0;
    spw_pack_unload(p);
    return spw_fail(err, rc, "%s: %s; %s", p->path, wrong,
                    rc == -EBADMSG ? "it is damaged" : strerror(-rc));
}

void spw_pack_unload(struct spw_pack *p)
{
    spw_free(p->table);
    spw_free(p->sections);
    spw_free(p->hashes);
    p->table = NULL;
    p->sections = NULL;
    p->hashes = NULL;
    p->info = (struct spw_pack_info){0};
}

/* ---- open ---- */

/* fcntl fails on a filesystem without direct I/O; reads are then buffered. */
static void use_direct_io(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0)
        fcntl(fd, F_SETFL, flags | O_DIRECT);
}

/* Loads the newest commit. If p->fd is negative, openat has failed with errno. */
static int open_newest(struct spw_pack *p, const uint8_t *fingerprint, struct spw_error *err)
{
    struct spw_pack_heads heads;
    struct stat st;
    if (p->fd < 0 && errno == ELOOP)
        return spw_fail(err, -EBADMSG, "%s: is a symbolic link, expected a file", p->path);
    if (p->fd < 0 || fstat(p->fd, &st))
        return spw_fail(err, -errno, "%s: %s", p->path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return spw_fail(err, -EBADMSG, "%s: is not a regular file", p->path);
    if (!st.st_size)
        return spw_fail(err, -EBADMSG, "%s: is empty, nothing was saved to it yet", p->path);
    SPW_TRY(spw_pack_read_heads(p->fd, p->path, fingerprint, &heads, err));
    p->head = heads.head[heads.newest];
    SPW_TRY(spw_pack_load(p, (uint64_t)st.st_size, err));
    use_direct_io(p->fd);
    return 0;
}

int spw_pack_open_in(struct spw_pack **out, int directory, const char *name, const char *path,
                     const uint8_t *fingerprint, struct spw_error *err)
{
    const int nofollow = directory == AT_FDCWD ? 0 : O_NOFOLLOW;
    *out = NULL;
    struct spw_pack *p = spw_alloc_zero(1, sizeof *p);
    char *copy = spw_strdup(path);
    if (!p || !copy) {
        spw_free(p);
        spw_free(copy);
        return spw_fail(err, -ENOMEM, "%s: no memory to open it", path);
    }
    p->path = copy;
    /* O_NONBLOCK: opening a pipe or a device must not wait */
    p->fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | nofollow);
    int rc = open_newest(p, fingerprint, err);
    if (rc) {
        spw_pack_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

int spw_pack_open(struct spw_pack **out, const char *path, const uint8_t *fingerprint,
                  struct spw_error *err)
{
    return spw_pack_open_in(out, AT_FDCWD, path, path, fingerprint, err);
}

void spw_pack_close(struct spw_pack *p)
{
    if (!p)
        return;
    spw_pack_unload(p);
    if (p->fd >= 0)
        close(p->fd);
    spw_free(p->path);
    spw_free(p);
}

int spw_pack_open_memory(struct spw_pack **out, int fd, struct spw_error *err)
{
    *out = NULL;
    struct spw_pack *p = spw_alloc_zero(1, sizeof *p);
    if (!p)
        return spw_fail(err, -ENOMEM, "no memory for a pack");
    p->fd = dup(fd);
    p->path = spw_strdup("blank pack");
    p->blank = true;
    int rc = p->path ? open_newest(p, NULL, err) : -ENOMEM;
    if (rc) {
        spw_pack_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

bool spw_pack_has_magic(int fd)
{
    char magic[sizeof((struct spw_pack_head){0}.magic)];
    for (uint64_t i = 0; i < 2; i++)
        if (!spw_pack_pread(fd, magic, sizeof magic, i * sizeof(struct spw_pack_head)) &&
            memcmp(magic, SPW_PACK_MAGIC, sizeof magic) == 0)
            return true;
    return false;
}

const struct spw_pack_info *spw_pack_info(const struct spw_pack *p)
{
    return &p->info;
}

int spw_pack_fd(const struct spw_pack *p)
{
    return p->fd;
}

bool spw_pack_is_blank(const struct spw_pack *p)
{
    return p->blank;
}

const char *spw_pack_path(const struct spw_pack *p)
{
    return p->path;
}

const struct spw_pack_section *spw_pack_find(const struct spw_pack *p, uint32_t kind,
                                             uint32_t layer, uint32_t tile)
{
    struct spw_pack_section key = {.kind = kind, .layer = layer, .first_tile = tile};
    uint32_t low = 0, high = p->info.n_sections; /* finds the last section not after the key */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (by_tile(&p->sections[middle], &key) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low)
        return NULL;
    const struct spw_pack_section *s = &p->sections[low - 1];
    bool has = s->kind == kind && s->layer == layer && tile - s->first_tile < s->n_tiles;
    return has ? s : NULL;
}

/* ---- records ---- */

static int record_failed(const struct spw_pack *p, const struct spw_pack_section *s, uint32_t i,
                         int rc, struct spw_error *err)
{
    return spw_fail(err, rc, "%s: the record of layer %u, tile %u, kind %u%s%s", p->path, s->layer,
                    s->first_tile + i, s->kind, rc == -EBADMSG ? " " : ": ",
                    rc == -EBADMSG ? "does not have its checksum" : strerror(-rc));
}

uint64_t spw_pack_run_bytes(const struct spw_pack *p, const struct spw_pack_section *s,
                            uint32_t tile, uint32_t last_kind, uint64_t max)
{
    uint32_t at = tile - s->first_tile;
    uint64_t bytes = 0, end = s->offset + at * s->record_bytes;
    for (; s < p->sections + p->info.n_sections && s->kind <= last_kind; s++, at = 0) {
        if (s->offset + at * s->record_bytes != end)
            break;
        uint64_t n = spw_min_u64(s->n_tiles - at, (max - bytes) / s->record_bytes);
        bytes += n * s->record_bytes;
        end += n * s->record_bytes;
        if (n < s->n_tiles - at)
            break;
    }
    return bytes;
}

/* One pread for everything: the kernel splits direct I/O into requests that run in parallel. */
int spw_pack_fetch(const struct spw_pack *p, uint64_t offset, uint64_t bytes, void *records,
                   struct spw_error *err)
{
    int rc = p->blank ? 0 : spw_pack_pread(p->fd, records, bytes, offset);
    rc = rc == -ENODATA ? -EBADMSG : rc;
    return rc ? spw_fail(err, rc, "%s: %llu bytes at %llu could not be read: %s", p->path,
                         (unsigned long long)bytes, (unsigned long long)offset,
                         rc == -EBADMSG ? "the file is shorter than it was" : strerror(-rc))
              : 0;
}

int spw_pack_check_records(const struct spw_pack *p, const struct spw_pack_section *s,
                           uint32_t first_tile, uint32_t n_tiles, const void *records,
                           struct spw_error *err)
{
    uint32_t at = first_tile - s->first_tile;
    for (uint32_t i = 0; i < n_tiles && !p->blank; i++)
        if (XXH3_64bits((const uint8_t *)records + i * s->record_bytes, s->record_bytes) !=
            s->sums[at + i])
            return record_failed(p, s, at + i, -EBADMSG, err);
    return 0;
}

int spw_pack_read(const struct spw_pack *p, const struct spw_pack_section *s, uint32_t first_tile,
                  uint32_t n_tiles, void *records, struct spw_error *err)
{
    SPW_TRY(spw_pack_fetch(p, s->offset + (first_tile - s->first_tile) * s->record_bytes,
                           n_tiles * s->record_bytes, records, err));
    return spw_pack_check_records(p, s, first_tile, n_tiles, records, err);
}

/* Reads and checks the records of a section one by one. Returns how many are bad, and the failure
 * of the first one in *first. `buffer`: aligned, for one record. */
static uint64_t count_bad(const struct spw_pack *p, const struct spw_pack_section *s, void *buffer,
                          int *worst, struct spw_error *first)
{
    uint64_t n_bad = 0;
    for (uint32_t i = 0; i < s->n_tiles; i++) {
        int rc = spw_pack_read(p, s, s->first_tile + i, 1, buffer, first);
        n_bad += rc != 0;
        *worst = *worst ? *worst : rc;
    }
    return n_bad;
}

int spw_pack_verify(const struct spw_pack *p, struct spw_error *err)
{
    struct spw_error first = {0};
    uint64_t n_bad = 0, largest = 0;
    int worst = 0;
    for (uint32_t k = 0; k < p->info.n_sections; k++)
        largest = spw_max_u64(largest, p->sections[k].record_bytes);
    void *taken = spw_alloc(largest + SPW_PACK_ALIGN);
    if (!taken)
        return spw_fail(err, -ENOMEM, "%s: no memory to read it", p->path);
    void *buffer = (void *)spw_align_up((uintptr_t)taken, SPW_PACK_ALIGN);
    for (uint32_t k = 0; k < p->info.n_sections; k++)
        n_bad += count_bad(p, &p->sections[k], buffer, &worst, &first);
    spw_free(taken);
    return n_bad ? spw_fail(err, worst, "%s; %llu of %llu records are bad", first.text,
                            (unsigned long long)n_bad, (unsigned long long)p->info.n_records)
                 : 0;
}
