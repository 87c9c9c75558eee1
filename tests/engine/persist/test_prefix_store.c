/* The prefix store: the longest match, checkpoints, pins, what goes first, the limit, damage, and
 * many processes that read and write one directory while some of them are killed.
 *
 *   test_prefix_store [kills [corruptions]]   default 40 and 200, under sanitizers 10 kills */
#include "offload/store/prefix_store.h"

#include "offload/store/store_directory.h"
#include "offload/store/store_info.h"
#include "tests/children.h"
#include "tests/file_faults.h"
#include "tests/engine/persist/pack_run.h"

#include <sys/file.h>
#include <xxhash.h>

enum { MOST_TILES = 256, KIND = 1, RECENT = 2, LAYERS = 2, RECORD = 4096 };

static char dir[128];
static char damage[1024];
static int n_damage;

static void on_damage(void *context, const char *text)
{
    (void)context;
    n_damage++;
    snprintf(damage, sizeof damage, "%s", text);
}

static bool trusts_others;

static struct spw_store *open_store(uint64_t limit)
{
    struct spw_store *s = NULL;
    struct spw_error err = {0};
    struct spw_store_options o = {.directory = dir,
                                  .limit_bytes = limit,
                                  .trusts_others = trusts_others,
                                  .fingerprint = pack_fingerprint,
                                  .on_damage = on_damage};
    int rc = spw_store_open(&s, &o, &err);
    CHECK_MSG(rc == 0, "%s", err.text);
    return s;
}

static void fill(struct spw_store_writer *w, const struct spw_pack_section *sections, uint32_t n,
                 const int32_t *tokens)
{
    uint8_t record[RECORD];
    for (uint32_t i = 0; i < n; i++) {
        struct spw_chain_hash chain = spw_chain_root(pack_fingerprint);
        for (uint32_t t = 0; t < sections[i].first_tile + sections[i].n_tiles; t++) {
            chain = spw_chain_next(chain, tokens + t * 128);
            if (t < sections[i].first_tile)
                continue;
            pack_fill(record, RECORD, chain, &sections[i], t);
            CHECK(spw_pack_write(spw_store_writer_pack(w), i, t, 1, record) == 0);
        }
    }
}

static int begin(struct spw_store_writer **w, struct spw_store *s, const int32_t *tokens,
                 uint32_t first, uint32_t end, bool checkpoint, struct spw_error *err)
{
    struct spw_pack_section sections[LAYERS + 1];
    uint32_t n = 0;
    for (uint32_t l = 0; l < LAYERS && end > first; l++)
        sections[n++] = (struct spw_pack_section){.kind = KIND,
                                                  .layer = l,
                                                  .first_tile = first,
                                                  .n_tiles = end - first,
                                                  .record_bytes = RECORD};
    if (checkpoint)
        sections[n++] = (struct spw_pack_section){
            .kind = RECENT, .first_tile = end - 1, .n_tiles = 1, .record_bytes = RECORD};
    struct spw_store_addition a = {.tokens = tokens,
                                   .first_tile = first,
                                   .n_tiles = end,
                                   .checkpoint = checkpoint,
                                   .sections = sections,
                                   .n_sections = n};
    SPW_TRY(spw_store_begin(w, s, &a, err));
    fill(*w, sections, n, tokens);
    return 0;
}

/* Tiles [first, end) of the chain that these tokens make. */
static int add(struct spw_store *s, const int32_t *tokens, uint32_t first, uint32_t end,
               bool checkpoint)
{
    struct spw_store_writer *w;
    SPW_TRY(begin(&w, s, tokens, first, end, checkpoint, NULL));
    return spw_store_commit(w, NULL, NULL);
}

static bool has_next; /* the latest match has a checkpoint one tile after it */

/* Tiles of the longest match; *checkpoint: of the last checkpoint. Everything that is matched must
 * be right.
 */
static uint32_t match(struct spw_store *s, const int32_t *tokens, uint32_t n_tiles,
                      uint32_t *checkpoint)
{
    struct spw_store_match m;
    CHECK(spw_store_match(s, tokens, n_tiles * UINT64_C(128) + 5, &m) == 0);
    uint32_t at = 0, n = m.n_tiles;
    for (uint32_t i = 0; i < m.n_parts; i++) {
        const struct spw_pack_info *info = spw_pack_info(m.parts[i].pack);
        CHECK(m.parts[i].first_tile == at && info->first_token == at * UINT64_C(128));
        CHECK(memcmp(info->tokens, tokens + info->first_token,
                     m.parts[i].n_tiles * UINT64_C(512)) == 0);
        at += m.parts[i].n_tiles;
    }
    CHECK(at == n && !m.checkpoint == !m.checkpoint_tiles && m.checkpoint_tiles <= n);
    if (m.checkpoint) {
        const struct spw_pack_info *info = spw_pack_info(m.checkpoint);
        CHECK(info->first_token + info->n_tokens == m.checkpoint_tiles * UINT64_C(128));
        CHECK(spw_pack_find(m.checkpoint, RECENT, 0, m.checkpoint_tiles - 1) &&
              pack_is_right(m.checkpoint, tokens));
    }
    if (m.next_checkpoint) { /* it belongs to a chain that has the same tiles before */
        const struct spw_pack_info *info = spw_pack_info(m.next_checkpoint);
        CHECK(info->first_token + info->n_tokens == (n + 1) * UINT64_C(128));
        CHECK(spw_pack_find(m.next_checkpoint, RECENT, 0, n));
        CHECK(memcmp(info->tokens, tokens + info->first_token,
                     spw_sub_u64(n * UINT64_C(128), info->first_token) * 4) == 0);
    }
    has_next = m.next_checkpoint != NULL;
    if (checkpoint)
        *checkpoint = m.checkpoint_tiles;
    spw_store_release(s, &m);
    return n;
}

/* A chain: the first `common` tiles of `from`, then its own. */
static void make_chain(int32_t *tokens, const int32_t *from, uint32_t common, uint64_t seed)
{
    if (common)
        memcpy(tokens, from, common * 512u);
    pack_tokens(tokens + common * 128, (MOST_TILES - common) * 128, seed);
}

/* ---- match ---- */

static void test_match(void)
{
    static int32_t a[MOST_TILES * 128], b[MOST_TILES * 128], c[MOST_TILES * 128];
    uint32_t checkpoint;
    struct spw_store *s = open_store(1 << 30), *other = open_store(1 << 30);
    make_chain(a, NULL, 0, 1);
    make_chain(b, a, 7, 2);
    make_chain(c, NULL, 0, 3);
    CHECK(match(s, a, 50, &checkpoint) == 0 && !checkpoint);
    CHECK(add(s, a, 0, 10, false) == 0);
    CHECK(match(s, a, 50, &checkpoint) == 10 && !checkpoint && match(s, a, 4, NULL) == 4);
    CHECK(match(other, a, 50, NULL) == 10); /* what was added since it opened */
    CHECK(match(s, b, 50, NULL) == 7 && match(s, c, 50, NULL) == 0);
    CHECK(match(s, a, 0, NULL) == 0);

    CHECK(add(other, a, 10, 20, true) == 0);
    CHECK(match(s, a, 50, &checkpoint) == 20 && checkpoint == 20);
    CHECK(!has_next && match(s, a, 19, &checkpoint) == 19 && !checkpoint && has_next);
    CHECK(match(s, a, 18, NULL) == 18 && !has_next);
    CHECK(add(s, b, 7, 9, true) == 0); /* a branch inside a pack */
    CHECK(match(other, b, 50, &checkpoint) == 9 && checkpoint == 9);
    make_chain(c, b, 8, 4); /* other tokens in the tile before the checkpoint */
    CHECK(match(other, c, 50, &checkpoint) == 8 && !checkpoint && has_next);
    make_chain(c, NULL, 0, 3);
    CHECK(match(other, a, 50, &checkpoint) == 20 && checkpoint == 20);

    /* checkpoints of their own, where a pack has none */
    CHECK(add(s, a, 5, 5, true) == 0 && add(s, a, 15, 15, true) == 0);
    CHECK(match(other, a, 50, &checkpoint) == 20 && checkpoint == 20);
    CHECK(match(other, a, 19, &checkpoint) == 19 && checkpoint == 15);
    CHECK(match(other, a, 12, &checkpoint) == 12 && checkpoint == 5);
    CHECK(match(other, b, 6, &checkpoint) == 6 && checkpoint == 5);
    CHECK(match(other, b, 4, &checkpoint) == 4 && !checkpoint);
    CHECK(has_next); /* after tile 5, in a pack of its own */

    struct spw_error err = {0};
    struct spw_store_writer *w;
    CHECK(begin(&w, s, a, 0, 30, false, NULL) == -EEXIST &&
          begin(&w, s, a, 19, 30, false, NULL) == -EEXIST);
    CHECK(add(s, a, 15, 15, true) == -EEXIST && add(s, a, 20, 20, true) == -EEXIST);
    CHECK(begin(&w, s, a, 21, 30, false, NULL) == -ENOENT &&
          begin(&w, s, c, 1, 3, false, NULL) == -ENOENT);
    CHECK(begin(&w, s, c, 3, 3, false, &err) == -EINVAL && strstr(err.text, "prefix cache: "));
    CHECK(!w && n_damage == 0);

    /* two at a time: the slower one is dropped */
    struct spw_store_writer *w2;
    CHECK(begin(&w, s, c, 0, 4, false, NULL) == 0 && begin(&w2, other, c, 0, 6, false, NULL) == 0);
    CHECK(match(s, c, 9, NULL) == 0); /* nothing is there before it is whole */
    CHECK(spw_store_commit(w2, NULL, NULL) == 0 && spw_store_commit(w, NULL, NULL) == -EEXIST);
    CHECK(match(s, c, 9, NULL) == 6);
    spw_store_close(s);
    spw_store_close(other);

    /* another model finds nothing, and a new process everything */
    const uint8_t foreign[32] = {4};
    struct spw_store_options o = {
        .directory = dir, .limit_bytes = 1 << 30, .fingerprint = foreign, .on_damage = on_damage};
    CHECK(spw_store_open(&s, &o, NULL) == 0 && match(s, a, 50, NULL) == 0 && n_damage == 0);
    spw_store_close(s);
    s = open_store(1 << 30);
    CHECK(match(s, a, 50, &checkpoint) == 20 && checkpoint == 20 && match(s, b, 50, NULL) == 9);
    spw_store_close(s);
    pack_remove_folder(dir);
    CHECK(spw_alloc_outstanding() == 0);
}

static void test_long_chain(void)
{
    static int32_t a[MOST_TILES * 128];
    struct spw_store *s = open_store(1 << 30);
    struct spw_store_writer *w;
    make_chain(a, NULL, 0, 11);
    for (uint32_t t = 0; t < SPW_STORE_MAX_PACKS; t++) {
        CHECK(begin(&w, s, a, t, t + 1, false, NULL) == 0);
        CHECK(spw_store_commit(w, NULL, NULL) == 0);
    }
    CHECK(begin(&w, s, a, SPW_STORE_MAX_PACKS, 200, false, NULL) == -EMLINK);
    CHECK(match(s, a, MOST_TILES, NULL) == SPW_STORE_MAX_PACKS);
    spw_store_close(s);
    pack_remove_folder(dir);
}

/* ---- tiles that somebody made equal ---- */

/* Two tiles of which the XXH3-128 of any 16 bytes and the tile is the same, found by reducing a
 * lattice of 7 dimensions: what version 1 of the format took for the hash of a chain. */
static void make_colliding(int32_t *t, int32_t *u)
{
    static const int32_t tile[128] = {
        30, 75, 69, 16, 47,  77, 60, 80, 74, 8,  77, 1,  39, 70, 70, 29, 24, 91, 60, 69, 70, 60,
        50, 81, 19, 29, 81,  19, 0,  54, 94, 1,  85, 99, 8,  20, 97, 75, 5,  38, 99, 3,  34, 60,
        9,  17, 49, 91, 100, 54, 50, 93, 73, 56, 17, 46, 12, 4,  17, 63, 13, 44, 86, 55, 99, 80,
        38, 53, 64, 49, 73,  44, 68, 74, 52, 74, 76, 93, 87, 3,  35, 77, 85, 89, 20, 89, 41, 69,
        73, 72, 13, 91, 68,  47, 81, 73, 34, 36, 15, 8,  61, 81, 61, 11, 44, 8,  52, 19, 4,  53,
        54, 98, 53, 15, 5,   77, 78, 97, 5,  48, 91, 75, 42, 70, 35, 64, 30, 4};
    static const int32_t changes[][2] = {{13, 81}, {29, 79}, {45, 60}, {61, 2},
                                         {77, 89}, {93, 25}, {109, 42}};
    memcpy(t, tile, sizeof tile);
    memcpy(u, tile, sizeof tile);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        u[changes[i][0]] = changes[i][1];
}

/* U R1 R2 must not go on in the pack that holds R2 after T R1. */
static void test_collision(void)
{
    static int32_t t[MOST_TILES * 128], u[MOST_TILES * 128];
    uint8_t text[2][16 + 512] = {{7}, {7}};
    uint32_t checkpoint;
    make_chain(t, NULL, 0, 71);
    memcpy(u, t, sizeof t);
    make_colliding(t, u);
    memcpy(text[0] + 16, t, 512);
    memcpy(text[1] + 16, u, 512);
    CHECK(memcmp(text[0], text[1], sizeof *text) != 0);
    CHECK(XXH128_isEqual(XXH3_128bits(text[0], sizeof *text), XXH3_128bits(text[1], sizeof *text)));

    struct spw_store *s = open_store(1 << 30);
    CHECK(add(s, t, 0, 2, true) == 0 && add(s, t, 2, 3, true) == 0);
    CHECK(match(s, u, 5, &checkpoint) == 0 && !checkpoint);
    CHECK(add(s, u, 0, 2, true) == 0);
    CHECK(match(s, u, 5, &checkpoint) == 2 && checkpoint == 2);
    CHECK(match(s, t, 5, &checkpoint) == 3 && checkpoint == 3 && n_damage == 0);
    spw_store_close(s);
    pack_remove_folder(dir);
}

/* ---- room ---- */

static uint64_t pack_bytes_of(uint32_t n_tiles)
{
    struct spw_pack_section sections[LAYERS];
    for (uint32_t l = 0; l < LAYERS; l++)
        sections[l] = (struct spw_pack_section){.n_tiles = n_tiles, .record_bytes = RECORD};
    return spw_pack_bytes(&(struct spw_pack_spec){
        .n_tokens = n_tiles * UINT64_C(128), .sections = sections, .n_sections = LAYERS});
}

static void name_of(char name[64], const int32_t *tokens, uint32_t tile)
{
    struct spw_chain_hash h = spw_chain_root(pack_fingerprint);
    for (uint32_t t = 0; t <= tile; t++)
        h = spw_chain_next(h, tokens + t * 128);
    spw_store_directory_name(name, spw_chain_id(h));
}

/* Whether the pack that begins there is; does not count as a use. */
static bool there(const int32_t *tokens, uint32_t tile)
{
    char name[64], path[256];
    name_of(name, tokens, tile);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

/* Longer than a tick of the clock that files get their times from. */
static uint32_t use(struct spw_store *s, const int32_t *tokens, uint32_t n_tiles)
{
    usleep(12000);
    return match(s, tokens, n_tiles, NULL);
}

static void test_eviction(void)
{
    static int32_t a[MOST_TILES * 128], b[MOST_TILES * 128], c[MOST_TILES * 128],
        d[MOST_TILES * 128];
    const uint64_t limit = 4 * pack_bytes_of(8);
    struct spw_store *s = open_store(limit), *other = open_store(limit);
    struct spw_store_match m;
    struct spw_store_stats stats;
    char name[64], path[256];
    make_chain(a, NULL, 0, 21);
    make_chain(b, NULL, 0, 22);
    make_chain(c, NULL, 0, 23);
    make_chain(d, a, 4, 24);
    CHECK(add(s, a, 0, 8, false) == 0 && add(s, a, 8, 16, false) == 0);
    CHECK(add(s, b, 0, 8, false) == 0 && add(s, c, 0, 8, false) == 0);
    CHECK(use(s, a, 16) == 16 && use(s, c, 8) == 8 && use(s, b, 8) == 8);
    usleep(12000);
    /* the end of a goes; its beginning is what d extends */
    CHECK(add(s, d, 4, 12, false) == 0);
    CHECK(there(a, 0) && !there(a, 8) && there(b, 0) && there(c, 0) && there(d, 4));

    CHECK(spw_store_match(s, c, 8 * 128, &m) == 0 && m.n_tiles == 8); /* pinned, and the oldest */
    CHECK(use(s, b, 8) == 8 && use(s, d, 12) == 12);
    CHECK(add(s, a, 8, 16, false) == 0);
    CHECK(!there(b, 0) && there(c, 0) && there(a, 8) && there(d, 4));
    CHECK(use(other, a, 16) == 16);
    CHECK(add(other, b, 0, 8, false) == 0); /* pins hold between stores */
    CHECK(!there(d, 4) && there(c, 0) && there(a, 0) && there(a, 8));
    spw_store_release(s, &m);
    CHECK(use(s, b, 8) == 8 && add(s, d, 4, 12, false) == 0);
    CHECK(!there(c, 0) && there(b, 0) && there(a, 8));
    spw_store_stats(s, &stats);
    CHECK(stats.n_evicted == 3 && stats.evicted_bytes > 0 && stats.n_damaged == 0);

    /* clocks that jump: still nothing before what extends it */
    const struct timespec old[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    name_of(name, a, 0);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    CHECK(utimensat(AT_FDCWD, path, old, 0) == 0);
    CHECK(add(s, c, 0, 8, false) == 0 && there(a, 0) && there(c, 0));

    /* what can never fit changes nothing */
    struct spw_store_writer *w;
    struct spw_error err = {0};
    int n = pack_count(dir, NULL, NULL);
    CHECK(begin(&w, s, d, 12, 200, false, &err) == -ENOSPC &&
          strstr(err.text, "raise options.prefix_cache_bytes"));
    CHECK(pack_count(dir, NULL, NULL) == n && !w);
    /* and what only pins keep out is refused until they are gone */
    CHECK(spw_store_match(s, c, 8 * 128, &m) == 0 && m.n_tiles == 8);
    make_chain(d, NULL, 0, 25);
    spw_error_clear(&err);
    CHECK(begin(&w, s, d, 0, 28, false, &err) == -ENOSPC && there(c, 0));
    CHECK_MSG(strstr(err.text, "no room") && strstr(err.text, "in use"), "%s", err.text);
    spw_store_release(s, &m);
    CHECK(add(s, d, 0, 28, false) == 0 && match(s, d, 99, NULL) == 28 && !there(c, 0));
    spw_store_close(other);
    spw_store_close(s);

    /* a smaller limit is kept from the next pack on */
    uint64_t bytes;
    s = open_store(limit / 2);
    CHECK(add(s, b, 0, 1, false) == 0);
    CHECK(pack_count(dir, NULL, &bytes) == 2 && bytes < limit / 2); /* and the lock file */
    spw_store_close(s);
    pack_remove_folder(dir);
    CHECK(spw_alloc_outstanding() == 0);
}

static void write_to_the_limit(void *limit, struct child *self)
{
    static int32_t a[MOST_TILES * 128];
    struct spw_store *s = open_store(*(const uint64_t *)limit);
    for (int k = 0; k < 40; k++) {
        make_chain(a, NULL, 0, check_random(&self->seed));
        uint32_t n = (uint32_t)check_range(&self->seed, 1, 8);
        int rc = add(s, a, 0, n, false);
        CHECK_MSG(rc == 0 || rc == -ENOSPC, "%d", rc); /* the other one's is in the way */
        if (!rc)
            rc = add(s, a, n, n + 2, true);
        CHECK_MSG(rc == 0 || rc == -ENOSPC || rc == -ENOENT, "%d", rc);
    }
    child_tell(self, "", 1);
    spw_store_close(s);
}

/* Two processes write, this one adds up what lies there. */
static void test_limit(uint64_t *seed)
{
    uint64_t limit = 6 * pack_bytes_of(6), most = 0, bytes;
    struct children writers;
    char done;
    spw_store_close(open_store(limit)); /* makes the folder */
    children_start(&writers, 2, write_to_the_limit, &limit, seed);
    CHECK(fcntl(writers.told, F_SETFL, O_NONBLOCK) == 0);
    for (int n_done = 0; n_done < 2;) {
        pack_count(dir, NULL, &bytes);
        most = spw_max_u64(most, bytes);
        n_done += children_told(&writers, &done, 1);
    }
    CHECK(children_kill(&writers) <= 2); /* or they have ended well */
    children_close(&writers);
    fprintf(stderr, "limit %llu, most bytes seen %llu\n", (unsigned long long)limit,
            (unsigned long long)most);
    CHECK(most <= limit && most > limit / 2);
    pack_remove_folder(dir);
}

/* ---- damage ---- */

static void corrupt(const char *name, off_t at)
{
    char path[256];
    uint8_t byte;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x10;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

static void test_damage(void)
{
    static int32_t a[MOST_TILES * 128], b[MOST_TILES * 128];
    char name[64], from[256], to[256];
    struct spw_store *s = open_store(1 << 30), *other = open_store(1 << 30);
    make_chain(a, NULL, 0, 31);
    make_chain(b, NULL, 0, 32);
    CHECK(add(s, a, 0, 5, false) == 0 && add(s, a, 5, 10, false) == 0);
    CHECK(add(s, a, 10, 15, true) == 0 && add(s, b, 0, 5, false) == 0);
    name_of(name, a, 5);
    corrupt(name, 100); /* the commit record */
    CHECK(match(s, a, 20, NULL) == 5 && n_damage == 1 && strstr(damage, name));
    CHECK(match(s, a, 20, NULL) == 5 && match(other, a, 20, NULL) == 5 && n_damage == 1);
    CHECK(add(s, a, 5, 10, false) == 0); /* what came after it is found again */
    CHECK(match(other, a, 20, NULL) == 15);

    /* the table, while another process has it open */
    struct spw_store_match m;
    CHECK(spw_store_match(other, a, 20 * 128, &m) == 0 && m.n_parts == 3);
    corrupt(name, 8192 + 5 * LAYERS * RECORD + 10);
    CHECK(match(s, a, 20, NULL) == 5 && n_damage == 2 && pack_count(dir, name, NULL) == 0);
    CHECK(pack_is_right(m.parts[1].pack, a)); /* its table was read before */
    spw_store_release(other, &m);

    /* a record, found by who streams it */
    name_of(name, a, 0);
    corrupt(name, 8192 + 3 * RECORD);
    CHECK(spw_store_match(s, a, 20 * 128, &m) == 0 && m.n_tiles == 5);
    CHECK(spw_pack_verify(m.parts[0].pack, NULL) == -EBADMSG);
    spw_store_remove_damaged(s, m.parts[0].pack, "a record is bad");
    spw_store_remove_damaged(s, m.parts[0].pack, "a record is bad");
    CHECK(n_damage == 3 && !strcmp(damage, "a record is bad") && match(s, a, 20, NULL) == 0);
    CHECK(add(s, a, 0, 5, false) == 0 && match(s, a, 20, NULL) == 5); /* beside the bad one */
    spw_store_release(s, &m);
    CHECK(match(s, a, 20, NULL) == 5 && match(other, a, 20, NULL) == 5);

    /* under another's name; another's file; no file */
    name_of(name, b, 0);
    snprintf(from, sizeof from, "%s/%s", dir, name);
    name_of(name, a, 5);
    snprintf(to, sizeof to, "%s/%s", dir, name);
    CHECK(rename(from, to) == 0);
    CHECK(match(s, a, 20, NULL) == 5 && n_damage == 4 &&
          strstr(damage, "its name does not fit its tokens"));
    CHECK(mkdir(to, 0700) == 0 && match(s, a, 20, NULL) == 5 && n_damage == 5);
    CHECK(match(s, a, 20, NULL) == 5 && n_damage == 5 && access(to, F_OK) != 0);
    CHECK(match(s, b, 20, NULL) == 0 && n_damage == 5);
    struct spw_store_stats stats;
    spw_store_stats(s, &stats);
    CHECK(stats.n_damaged == 5);
    spw_store_close(s);
    spw_store_close(other);
    pack_remove_folder(dir);
    n_damage = 0;
    CHECK(spw_alloc_outstanding() == 0);
}

/* What is no file, under the name of a pack: it keeps nobody from the name for good. */
enum obstacle { A_DIRECTORY, A_FULL_DIRECTORY, A_LINK_TO_NOTHING, A_LINK_TO_A_PACK, N_OBSTACLES };

static void put_obstacle(enum obstacle what, const char *path, const char *other)
{
    char inside[600];
    snprintf(inside, sizeof inside, "%s/file", path);
    CHECK(what > A_FULL_DIRECTORY || mkdir(path, 0700) == 0);
    if (what == A_FULL_DIRECTORY)
        CHECK(close(open(inside, O_WRONLY | O_CREAT, 0600)) == 0);
    if (what > A_FULL_DIRECTORY)
        CHECK(symlink(what == A_LINK_TO_A_PACK ? other : "/nowhere", path) == 0);
}

static void test_obstacles(void)
{
    static int32_t a[MOST_TILES * 128];
    char name[64], path[512], other[256], aside[256];
    struct stat st;
    make_chain(a, NULL, 0, 81);
    for (int how = 0; how < 2; how++)
        for (enum obstacle what = 0; what < N_OBSTACLES; what++) {
            struct spw_store *s = open_store(1 << 30);
            struct spw_store_pruned pruned;
            n_damage = 0;
            name_of(name, a, 0);
            snprintf(path, sizeof path, "%s/%s", dir, name);
            snprintf(other, sizeof other, "%s_other", dir);
            snprintf(aside, sizeof aside, "%s/not-a-pack-%s", dir, name);
            CHECK(add(s, a, 0, 2, false) == 0 && rename(path, other) == 0);
            put_obstacle(what, path, other);
            if (how)
                CHECK(spw_store_prune(&pruned, dir, UINT64_MAX, NULL) == 0 && pruned.n_packs == 1 &&
                      pruned.n_left == 0);
            else
                CHECK(match(s, a, 5, NULL) == 0 && n_damage == 1);
            CHECK_MSG(lstat(path, &st) != 0, "%d is still there", what);
            CHECK(!access(aside, F_OK) == (what == A_FULL_DIRECTORY) && !access(other, F_OK));
            CHECK(add(s, a, 0, 2, false) == 0 && match(s, a, 5, NULL) == 2);
            spw_store_close(s);
            if (what == A_FULL_DIRECTORY) {
                snprintf(path, sizeof path, "%s/file", aside);
                CHECK(unlink(path) == 0 && rmdir(aside) == 0);
            }
            CHECK(unlink(other) == 0);
            pack_remove_folder(dir);
        }
    n_damage = 0;
}

/* ---- what others could have written ---- */

/* By `chmod`, or by giving it to another user where this one may. */
static void make_foreign(const char *path, bool by_owner)
{
    struct stat st;
    CHECK(stat(path, &st) == 0);
    CHECK((by_owner ? chown(path, 12345, 12345) : chmod(path, st.st_mode | 020)) == 0);
}

static void check_foreign(bool by_owner)
{
    static int32_t a[MOST_TILES * 128];
    char name[64], path[256];
    struct spw_error err = {0};
    struct spw_store_entry *entries;
    struct spw_store_pruned pruned;
    struct spw_store_options o = {
        .directory = dir, .limit_bytes = 1 << 30, .fingerprint = pack_fingerprint};
    size_t n;
    struct spw_store *s = open_store(1 << 30);
    make_chain(a, NULL, 0, 91);
    name_of(name, a, 2);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    CHECK(add(s, a, 0, 2, false) == 0 && add(s, a, 2, 4, false) == 0);
    make_foreign(path, by_owner);
    trusts_others = true;
    struct spw_store *trusting = open_store(1 << 30);
    CHECK(match(trusting, a, 9, NULL) == 4 && n_damage == 0);
    CHECK(spw_store_list(&entries, &n, dir, true, NULL) == 0 && n == 2 && !entries[0].error);
    CHECK(entries[1].error == -EPERM && strstr(entries[1].reason.text, "it is not used"));
    spw_free(entries);
    CHECK(match(s, a, 9, NULL) == 2 && n_damage == 1 && strstr(damage, name));
    CHECK(add(s, a, 2, 4, false) == 0 && match(s, a, 9, NULL) == 4);
    make_foreign(path, by_owner);
    CHECK(spw_store_prune(&pruned, dir, UINT64_MAX, NULL) == 0 && pruned.n_packs == 1);
    CHECK(add(s, a, 2, 4, false) == 0 && n_damage == 1);
    spw_store_close(s);

    make_foreign(dir, by_owner);
    CHECK(spw_store_open(&s, &o, &err) == -EPERM && !s);
    CHECK_MSG(strstr(err.text, by_owner ? "user 12345" : "other users"), "%s", err.text);
    CHECK(match(trusting, a, 9, NULL) == 4 && n_damage == 1);
    spw_store_close(trusting);
    trusting = open_store(1 << 30);
    CHECK(match(trusting, a, 9, NULL) == 4 && n_damage == 1);
    spw_store_close(trusting);
    trusts_others = false;
    pack_remove_folder(dir);
    n_damage = 0;
    CHECK(spw_alloc_outstanding() == 0);
}

static void test_foreign(void)
{
    check_foreign(false);
    if (geteuid() == 0)
        check_foreign(true);
}

/* Any byte of any pack: a miss, a record whose checksum says so, or nothing. */
static void test_corruption(uint64_t *seed, int times)
{
    static int32_t a[MOST_TILES * 128];
    uint32_t least[3] = {0, 4, 8};
    make_chain(a, NULL, 0, 41);
    for (int i = 0; i < times; i++) {
        struct spw_store *s = open_store(1 << 30);
        for (uint32_t p = 0; p < 3; p++) /* those that are missing */
            if (match(s, a, 12, NULL) == 4 * p)
                CHECK(add(s, a, 4 * p, 4 * p + 4, p == 2) == 0);
        CHECK(match(s, a, 12, NULL) == 12);
        spw_store_close(s);
        char name[64];
        uint32_t hit = (uint32_t)check_range(seed, 0, 2);
        name_of(name, a, 4 * hit);
        uint64_t size;
        CHECK(pack_count(dir, name, &size) == 1);
        corrupt(name, (off_t)check_range(seed, 0, i % 2 ? size - 1 : 8191));
        s = open_store(1 << 30);
        struct spw_store_match m;
        n_damage = 0;
        CHECK(spw_store_match(s, a, 12 * 128, &m) == 0);
        CHECK(m.n_tiles == 12 ? n_damage == 0 : m.n_tiles == least[hit] && n_damage == 1);
        for (uint32_t p = 0; p < m.n_parts; p++) {
            struct spw_error err = {0};
            struct spw_pack *pack = m.parts[p].pack;
            bool whole = spw_pack_verify(pack, &err) == 0;
            CHECK(whole == pack_is_right(pack, a) && (whole || p == hit));
            if (!whole)
                spw_store_remove_damaged(s, pack, err.text);
        }
        spw_store_release(s, &m);
        spw_store_close(s);
    }
    pack_remove_folder(dir);
    n_damage = 0;
    CHECK(spw_alloc_outstanding() == 0);
}

/* The n-th call that changes a file fails: nothing of it is there, and nothing else is gone. */
static void test_failing_calls(void)
{
    static int32_t a[MOST_TILES * 128];
    struct spw_store *s = open_store(1 << 30);
    make_chain(a, NULL, 0, 51);
    CHECK(add(s, a, 0, 4, false) == 0);
    bool succeeded = false;
    int failed = 0;
    for (int64_t n = 0; !succeeded; n++) {
        struct spw_store_writer *w = NULL;
        struct spw_pack_section section = {
            .kind = KIND, .first_tile = 4, .n_tiles = 2, .record_bytes = RECORD};
        struct spw_store_addition a2 = {
            .tokens = a, .first_tile = 4, .n_tiles = 6, .sections = &section, .n_sections = 1};
        uint8_t records[2 * RECORD] = {0};
        file_fault_nth(n, ENOSPC);
        int rc = spw_store_begin(&w, s, &a2, NULL);
        if (!rc && (rc = spw_pack_write(spw_store_writer_pack(w), 0, 4, 2, records)))
            spw_store_abort(w);
        else if (!rc)
            rc = spw_store_commit(w, NULL, NULL);
        file_fault_nth(-1, 0);
        succeeded = rc == 0;
        failed += rc == -ENOSPC;
        CHECK(rc == 0 || rc == -ENOSPC);
        uint32_t found = match(s, a, 9, NULL);
        CHECK_MSG(found == (succeeded ? 6 : 4) || found == 6, "call %lld: %u", (long long)n, found);
        if (!succeeded && found == 6) /* the sync of the directory alone failed */
            break;
        CHECK(pack_count(dir, SPW_PACK_TEMPORARY, NULL) == 0);
    }
    CHECK(failed > 6 && n_damage == 0);
    spw_store_close(s);
    for (int64_t n = 0; n < 60; n++) {
        struct spw_store_options o = {
            .directory = dir, .limit_bytes = 1 << 20, .fingerprint = pack_fingerprint};
        spw_alloc_fail_nth(n);
        if (!spw_store_open(&s, &o, NULL)) {
            struct spw_store_match m;
            int rc = spw_store_match(s, a, 9 * 128, &m);
            CHECK(rc == -ENOMEM || m.n_tiles == 6);
            spw_store_release(s, &m);
        }
        spw_alloc_fail_nth(-1);
        spw_store_close(s);
        CHECK(spw_alloc_outstanding() == 0);
    }
    pack_remove_folder(dir);
}

/* A dead writer's file goes while somebody else looks at it, too; a living one's stays. */
static void test_sweeping(void)
{
    char name[64], path[256];
    snprintf(name, sizeof name, "%s00", SPW_PACK_TEMPORARY);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    spw_store_close(open_store(1 << 30));
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    spw_store_close(open_store(1 << 30));
    CHECK(pack_count(dir, SPW_PACK_TEMPORARY, NULL) == 1);
    CHECK(flock(fd, LOCK_SH) == 0);
    spw_store_close(open_store(1 << 30));
    CHECK(pack_count(dir, SPW_PACK_TEMPORARY, NULL) == 0);
    close(fd);
    pack_remove_folder(dir);
}

/* ---- many processes, some of them killed ---- */

enum { FAMILIES = 6, GENERATIONS = 10 }; /* chains that grow by packs of 2 tiles */

static void chain_of(int32_t *tokens, uint64_t family)
{
    make_chain(tokens, NULL, 0, 1000 + family / 2);
    pack_tokens(tokens + 128 * 4, (MOST_TILES - 4) * 128, 2000 + family); /* pairs share 4 tiles */
}

/* Adds to random chains for ever; tells what was committed. */
static void write_for_ever(void *context, struct child *self)
{
    static int32_t a[MOST_TILES * 128];
    struct spw_store *s = open_store(UINT64_C(1) << 30);
    (void)context;
    while (!check_failed_) {
        uint64_t family = check_range(&self->seed, 0, FAMILIES - 1);
        chain_of(a, family);
        uint32_t has = match(s, a, 2 * GENERATIONS, NULL);
        if (has % 2 || has >= 2 * GENERATIONS)
            continue;
        int rc = add(s, a, has, has + 2, check_range(&self->seed, 0, 1));
        uint32_t told[2] = {(uint32_t)family, has + 2};
        CHECK_MSG(!rc || rc == -EEXIST, "%d (%s)", rc, strerror(-rc));
        child_tell(self, told, sizeof told);
    }
}

/* Reads all that it finds until it is told to end. */
static void read_for_ever(void *context, struct child *self)
{
    static int32_t a[MOST_TILES * 128];
    struct spw_store *s = open_store(UINT64_C(1) << 30);
    uint64_t n = 0;
    (void)context;
    for (; child_goes_on(self); n++) {
        struct spw_store_match m;
        chain_of(a, check_range(&self->seed, 0, FAMILIES - 1));
        CHECK(spw_store_match(s, a, 2 * GENERATIONS * 128, &m) == 0);
        for (uint32_t i = 0; i < m.n_parts; i++)
            CHECK(pack_is_right(m.parts[i].pack, a));
        spw_store_release(s, &m);
    }
    spw_store_close(s);
    fprintf(stderr, "a reader matched %llu times\n", (unsigned long long)n);
    CHECK(!n_damage);
}

static void test_kills(int times, uint64_t *seed)
{
    static int32_t a[MOST_TILES * 128];
    uint32_t committed[FAMILIES] = {0}, told[2], total = 0;
    int left = 0, rounds = 0;
    struct children reader, writers;
    spw_store_close(open_store(UINT64_C(1) << 30));
    children_start(&reader, 1, read_for_ever, NULL, seed);
    for (int i = 0; i < times; i++) {
        children_start(&writers, 2, write_for_ever, NULL, seed);
        usleep((useconds_t)check_range(seed, 500, 30000));
        CHECK(children_kill(&writers) == 2);
        while (children_told(&writers, told, sizeof told))
            committed[told[0]] = told[1] > committed[told[0]] ? told[1] : committed[told[0]];
        children_close(&writers);
        left += pack_count(dir, SPW_PACK_TEMPORARY, NULL);
        struct spw_store *s = open_store(UINT64_C(1) << 30);
        CHECK(pack_count(dir, SPW_PACK_TEMPORARY, NULL) == 0);
        total = 0;
        for (uint32_t f = 0; f < FAMILIES; f++) {
            chain_of(a, f);
            uint32_t found = match(s, a, 2 * GENERATIONS, NULL);
            CHECK_MSG(found >= committed[f], "%u tiles, told %u", found, committed[f]);
            total += found;
        }
        make_chain(a, NULL, 0, check_random(seed)); /* no lock is stuck */
        CHECK(add(s, a, 0, 1, false) == 0);
        spw_store_close(s);
        if (total == FAMILIES * 2 * GENERATIONS) { /* full: from the start again */
            memset(committed, 0, sizeof committed);
            rounds++;
            struct spw_store_pruned pruned;
            CHECK(spw_store_prune(&pruned, dir, 0, NULL) == 0);
        }
    }
    children_end(&reader);
    children_close(&reader);
    fprintf(stderr, "%d writers killed, %d temporary files found, filled %d times, %u tiles\n",
            2 * times, left, rounds, total);
    CHECK(total > 0 || rounds > 0);
    pack_remove_folder(dir);
}

/* ---- for the owner ---- */

static void test_info(void)
{
    static int32_t a[MOST_TILES * 128], b[MOST_TILES * 128];
    struct spw_store_entry *entries;
    struct spw_store_pruned pruned;
    struct spw_error err = {0};
    size_t n;
    char name[64];
    struct spw_store *s = open_store(1 << 30);
    make_chain(a, NULL, 0, 61);
    make_chain(b, NULL, 0, 62);
    CHECK(add(s, a, 0, 5, false) == 0 && add(s, a, 5, 6, true) == 0);
    usleep(12000);
    CHECK(add(s, b, 0, 3, false) == 0);
    CHECK(spw_store_list(&entries, &n, dir, true, &err) == 0 && n == 3);
    CHECK(entries[n - 1].n_tokens == 3 * 128 && entries[n - 1].n_records == 3 * LAYERS);
    for (size_t i = 0; i < n; i++) {
        CHECK(!entries[i].error && !memcmp(entries[i].fingerprint, pack_fingerprint, 32));
        CHECK(entries[i].checkpoint == (entries[i].first_token > 0) && entries[i].bytes > 4096);
    }
    spw_free(entries);
    name_of(name, b, 0);
    corrupt(name, 8192);
    CHECK(spw_store_list(&entries, &n, dir, false, &err) == 0 && n == 3 && !entries[2].error);
    spw_free(entries);
    CHECK(spw_store_list(&entries, &n, dir, true, &err) == 0 && entries[2].error == -EBADMSG);
    CHECK(strstr(entries[2].reason.text, "1 of 6 records"));
    spw_free(entries);
    corrupt(name, 8);
    struct spw_store_match m;
    CHECK(spw_store_match(s, a, 5 * 128, &m) == 0 && m.n_tiles == 5);
    CHECK(spw_store_prune(&pruned, dir, UINT64_MAX, &err) == 0);
    CHECK(pruned.n_packs == 1 && pruned.n_left == 2 && pruned.bytes > 0);
    CHECK(spw_store_prune(&pruned, dir, 0, &err) == 0);
    CHECK(pruned.n_packs == 1 && pruned.n_left == 1 && pruned.left_bytes > 0); /* one is in use */
    spw_store_release(s, &m);
    CHECK(spw_store_prune(&pruned, dir, 0, &err) == 0 && !pruned.n_left && !pruned.left_bytes);
    CHECK(spw_store_list(&entries, &n, "/nowhere", true, &err) == -ENOENT && !entries);
    CHECK(strstr(err.text, "/nowhere"));
    spw_store_close(s);
    pack_remove_folder(dir);
    CHECK(spw_alloc_outstanding() == 0 && n_damage == 0);
}

int main(int argc, char **argv)
{
    uint64_t seed = check_seed();
    int kills = argc > 1 ? atoi(argv[1]) : check_amount(RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 10 : 40);
    int corruptions = argc > 2 ? atoi(argv[2]) : check_amount(200);
    alarm(3600);
    snprintf(dir, sizeof dir, "/tmp/spw_prefix_store_%d", (int)getpid());
    test_match();
    test_long_chain();
    test_collision();
    test_eviction();
    test_limit(&seed);
    test_damage();
    test_obstacles();
    test_foreign();
    test_corruption(&seed, corruptions);
    test_failing_calls();
    test_sweeping();
    test_kills(kills, &seed);
    test_info();
    return check_done();
}
