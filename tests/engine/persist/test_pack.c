/* Packs: what is written is read; damage of every byte is found or harms nobody; a file that is
 * saved again and again is readable after a kill or a failed call at any moment.
 *
 *   test_pack [kills]    default 40, under sanitizers 10 */
#include "tests/file_faults.h"
#include "tests/children.h"
#include "tests/engine/persist/pack_run.h"

#include <xxhash.h>

enum { MOST_TOKENS = 4096, MOST_SECTIONS = 512, LAYERS = 3, OLD = 1, RECENT = 7 };

static char dir[128], path[160];
static int32_t tokens[MOST_TOKENS];

/* ---- create ---- */

/* Old tiles of every layer, recent ones of two. */
static struct spw_pack_spec make_spec(struct spw_pack_section *sections, uint64_t first_token,
                                      uint64_t n_tokens)
{
    uint32_t first = (uint32_t)(first_token / 128);
    uint32_t end = (uint32_t)((first_token + n_tokens) / 128);
    struct spw_chain_hash parent = spw_chain_root(pack_fingerprint);
    uint32_t n = 0;
    for (uint32_t t = 0; t < first; t++)
        parent = spw_chain_next(parent, tokens + t * 128);
    for (uint32_t l = LAYERS; l-- > 0;)
        if (end > first)
            sections[n++] = (struct spw_pack_section){.kind = OLD,
                                                      .layer = l,
                                                      .first_tile = first,
                                                      .n_tiles = end - first,
                                                      .record_bytes = l == 1 ? 8192 : 4096};
    uint32_t recent = (uint32_t)spw_div_up(first_token + n_tokens, 128);
    for (uint32_t l = 0; l < 2 && recent > 1; l++)
        sections[n++] = (struct spw_pack_section){.kind = RECENT,
                                                  .layer = l,
                                                  .first_tile = recent - 2,
                                                  .n_tiles = 2,
                                                  .record_bytes = 4096};
    return (struct spw_pack_spec){.fingerprint = pack_fingerprint,
                                  .first_token = first_token,
                                  .n_tokens = n_tokens,
                                  .tokens = tokens + first_token,
                                  .parent = parent,
                                  .checkpoint = recent > 1,
                                  .sections = sections,
                                  .n_sections = n,
                                  .max_state_bytes = 64};
}

static struct spw_chain_hash chain_at(uint32_t tile, uint64_t n_tokens)
{
    struct spw_chain_hash hash = spw_chain_root(pack_fingerprint);
    for (uint32_t t = 0; t <= tile && (t + 1) * UINT64_C(128) <= n_tokens; t++)
        hash = spw_chain_next(hash, tokens + t * 128);
    return hash;
}

/* All new records, in an order of the seed's. */
static int write_records(struct spw_pack_writer *w, const struct spw_pack_spec *s, uint64_t seed)
{
    static uint8_t record[8192];
    struct {
        uint32_t section, tile;
    } order[MOST_TOKENS / 128 * 8];
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_sections; i++)
        for (uint32_t t = 0; t < s->sections[i].n_tiles && !s->sections[i].offset; t++) {
            size_t at = check_range(&seed, 0, n);
            order[n++] = order[at];
            order[at].section = i;
            order[at].tile = s->sections[i].first_tile + t;
        }
    for (size_t i = 0; i < n; i++) {
        const struct spw_pack_section *section = &s->sections[order[i].section];
        pack_fill(record, section->record_bytes,
                  chain_at(order[i].tile, s->first_token + s->n_tokens), section, order[i].tile);
        SPW_TRY(spw_pack_write(w, order[i].section, order[i].tile, 1, record));
    }
    return 0;
}

static int create(const char *to, bool replace, const struct spw_pack_spec *s, const char *state,
                  uint64_t seed)
{
    struct spw_pack_writer *w;
    struct spw_error err = {0};
    SPW_TRY(spw_pack_create(&w, to, replace, s, &err));
    int rc = write_records(w, s, seed);
    if (rc) {
        spw_pack_abort(w);
        return rc;
    }
    return spw_pack_commit(w, state, (uint32_t)strlen(state), NULL, &err);
}

static void check_pack(const char *from, const struct spw_pack_spec *s, const char *state)
{
    struct spw_pack *p;
    struct spw_error err = {0};
    int rc = spw_pack_open(&p, from, pack_fingerprint, &err);
    CHECK_MSG(rc == 0, "%s", err.text);
    if (rc)
        return;
    const struct spw_pack_info *info = spw_pack_info(p);
    CHECK(info->first_token == s->first_token && info->n_tokens == s->n_tokens);
    CHECK(info->checkpoint == s->checkpoint && info->n_sections == s->n_sections);
    CHECK(info->state_bytes == strlen(state) && !memcmp(info->state, state, strlen(state)));
    CHECK(spw_chain_equal(info->parent, s->parent));
    CHECK(spw_pack_verify(p, &err) == 0);
    CHECK(pack_is_right(p, tokens));
    for (uint32_t i = 0; i < s->n_sections; i++) {
        const struct spw_pack_section *has = &s->sections[i], *found;
        found = spw_pack_find(p, has->kind, has->layer, has->first_tile + has->n_tiles - 1);
        CHECK(found && found->kind == has->kind && found->layer == has->layer);
        CHECK(found && found->record_bytes == has->record_bytes && found->offset % 4096 == 0);
    }
    CHECK(!spw_pack_find(p, OLD, LAYERS, 0) && !spw_pack_find(p, 0, 0, 0));
    CHECK(!spw_pack_find(p, OLD, 0, (uint32_t)(s->first_token + s->n_tokens) / 128));
    spw_pack_close(p);
}

static void test_round_trip(uint64_t *seed)
{
    struct spw_pack_section sections[MOST_SECTIONS];
    struct stat st;
    for (int i = 0; i < 20; i++) {
        uint64_t first = check_range(seed, 0, 4) * 128;
        uint64_t n = check_range(seed, 1, 1200);
        struct spw_pack_spec s = make_spec(sections, first, n);
        const char *state = i % 2 ? "state of a session" : "";
        CHECK(create(path, true, &s, state, check_random(seed)) == 0);
        CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
        CHECK((uint64_t)st.st_size <= spw_pack_bytes(&s));
        check_pack(path, &s, state);
        CHECK(pack_count(dir, NULL, NULL) == 1);
        CHECK(create(path, false, &s, state, 1) == -EEXIST && pack_count(dir, NULL, NULL) == 1);
        check_pack(path, &s, state);
    }
    CHECK(unlink(path) == 0);
    struct spw_pack_spec none = make_spec(sections, 0, 0);
    CHECK(create(path, false, &none, "x", 1) == 0);
    check_pack(path, &none, "x");
    CHECK(unlink(path) == 0 && spw_alloc_outstanding() == 0);
}

static void test_not_there_before(void)
{
    struct spw_pack_section sections[MOST_SECTIONS];
    struct spw_pack_spec s = make_spec(sections, 0, 400);
    struct spw_pack_writer *w;
    struct spw_pack *p;
    static uint8_t record[8192];
    CHECK(spw_pack_create(&w, path, false, &s, NULL) == 0);
    CHECK(spw_pack_open(&p, path, pack_fingerprint, NULL) == -ENOENT && !p);
    CHECK(spw_pack_write(w, 0, 0, 1, record) == 0);
    CHECK(spw_pack_write(w, 0, 0, 1, record) == -EINVAL); /* once */
    CHECK(spw_pack_write(w, 0, 2, 2, record) == -EINVAL);
    CHECK(spw_pack_write(w, s.n_sections, 0, 1, record) == -EINVAL);
    CHECK(spw_pack_commit(w, NULL, 0, NULL, NULL) == -EINVAL); /* records are missing */
    CHECK(pack_count(dir, NULL, NULL) == 0 && spw_alloc_outstanding() == 0);
    CHECK(spw_pack_create(&w, path, false, &s, NULL) == 0);
    CHECK(pack_count(dir, SPW_PACK_TEMPORARY, NULL) == 1);
    spw_pack_abort(w);
    CHECK(pack_count(dir, NULL, NULL) == 0 && spw_alloc_outstanding() == 0);
    CHECK(spw_pack_create(&w, "/nowhere/at/all", false, &s, NULL) == -ENOENT && !w);
}

static void test_specs(void)
{
    struct spw_pack_section sections[MOST_SECTIONS], *last;
    struct spw_pack_writer *w;
    struct spw_error err = {0};
    for (int i = 0; i < 8; i++) {
        struct spw_pack_spec s = make_spec(sections, 128, 400);
        last = &sections[s.n_sections - 1];
        s.first_token += i == 0;
        last->n_tiles += i == 1; /* after the last token */
        last->record_bytes += i == 2;
        if (i == 3)
            last->n_tiles = 0;
        if (i == 4)
            *last = sections[0];
        if (i == 5)
            last->offset = 8192;
        if (i == 6)
            last->record_bytes = UINT64_C(1) << 62;
        if (i == 7)
            s.n_sections = SPW_PACK_MAX_SECTIONS + 1;
        spw_error_clear(&err);
        int rc = spw_pack_create(&w, path, false, &s, &err);
        CHECK_MSG(rc == (i == 6 ? -EFBIG : -EINVAL), "%d: %d", i, rc);
        CHECK_MSG(!w && strstr(err.text, path) && !strchr(err.text, '\n'), "%s", err.text);
    }
    CHECK(pack_count(dir, NULL, NULL) == 0 && spw_alloc_outstanding() == 0);
}

/* ---- append: a session that is saved again and again ---- */

/* Keeps what is complete and writes the rest. */
static int save(uint64_t n_tokens, const char *state, uint64_t seed)
{
    struct spw_pack_section sections[MOST_SECTIONS];
    struct spw_pack_spec s = make_spec(sections, 0, n_tokens);
    struct spw_pack *p;
    struct spw_pack_writer *w;
    int rc = spw_pack_open(&p, path, pack_fingerprint, NULL);
    if (rc == -ENOENT)
        return create(path, true, &s, state, seed);
    SPW_TRY(rc);
    const struct spw_pack_info *info = spw_pack_info(p);
    uint64_t common = spw_min_u64(info->n_tokens, n_tokens) / 128;
    s.n_sections = 0;
    for (uint32_t i = 0; i < info->n_sections; i++) {
        const struct spw_pack_section *has = &info->sections[i];
        if (has->kind == OLD && has->first_tile < common)
            sections[s.n_sections++] =
                spw_pack_part(has, has->first_tile,
                              (uint32_t)spw_min_u64(has->n_tiles, common - has->first_tile));
    }
    for (uint32_t l = 0; l < LAYERS && n_tokens / 128 > common; l++)
        sections[s.n_sections++] =
            (struct spw_pack_section){.kind = OLD,
                                      .layer = l,
                                      .first_tile = (uint32_t)common,
                                      .n_tiles = (uint32_t)(n_tokens / 128 - common),
                                      .record_bytes = l == 1 ? 8192 : 4096};
    uint32_t recent = (uint32_t)spw_div_up(n_tokens, 128);
    for (uint32_t l = 0; l < 2 && recent > 1; l++)
        sections[s.n_sections++] = (struct spw_pack_section){.kind = RECENT,
                                                             .layer = l,
                                                             .first_tile = recent - 2,
                                                             .n_tiles = 2,
                                                             .record_bytes = 4096};
    struct spw_error err = {0};
    rc = spw_pack_append(&w, path, &s, &err);
    spw_pack_close(p);
    SPW_TRY(rc);
    rc = write_records(w, &s, seed);
    if (!rc)
        return spw_pack_commit(w, state, (uint32_t)strlen(state), NULL, &err);
    spw_pack_abort(w);
    return rc;
}

/* What the file holds: its number of tokens, or -errno; all of it must be right. */
static int64_t read_back(void)
{
    struct spw_pack *p;
    struct spw_error err = {0};
    SPW_TRY(spw_pack_open(&p, path, pack_fingerprint, &err));
    const struct spw_pack_info *info = spw_pack_info(p);
    int64_t n = (int64_t)info->n_tokens;
    char state[32];
    snprintf(state, sizeof state, "at %lld", (long long)n);
    bool right = pack_is_right(p, tokens) && info->state_bytes == strlen(state) &&
                 !memcmp(info->state, state, strlen(state));
    spw_pack_close(p);
    return right ? n : -EBADMSG;
}

static int save_at(uint64_t n, uint64_t seed)
{
    char state[32];
    snprintf(state, sizeof state, "at %llu", (unsigned long long)n);
    return save(n, state, seed);
}

static void test_append(uint64_t *seed)
{
    uint64_t n = 0;
    struct stat st;
    for (int i = 0; i < 60; i++) {
        n = i % 10 == 9 ? n - check_range(seed, 1, n / 2) : n + check_range(seed, 1, 200);
        n = spw_min_u64(n, MOST_TOKENS);
        CHECK(save_at(n, check_random(seed)) == 0);
        CHECK(read_back() == (int64_t)n);
        /* two commits, and what lies between them */
        CHECK(stat(path, &st) == 0 && st.st_size < (MOST_TOKENS / 128 * 16384 + 49152) * 2);
    }
    /* nothing new is a table alone */
    struct spw_pack *p;
    struct spw_pack_writer *w;
    CHECK(spw_pack_open(&p, path, pack_fingerprint, NULL) == 0);
    const struct spw_pack_info *info = spw_pack_info(p);
    struct spw_pack_spec s = {.fingerprint = pack_fingerprint,
                              .n_tokens = info->n_tokens,
                              .tokens = tokens,
                              .parent = info->parent,
                              .sections = info->sections,
                              .n_sections = info->n_sections};
    CHECK(spw_pack_append(&w, path, &s, NULL) == 0);
    struct spw_pack_writer *second;
    CHECK(spw_pack_append(&second, path, &s, NULL) == -EBUSY);
    CHECK(spw_pack_written_bytes(w) == 0 && spw_pack_commit(w, NULL, 0, NULL, NULL) == 0);
    spw_pack_close(p);
    CHECK(spw_pack_open(&p, path, pack_fingerprint, NULL) == 0 && pack_is_right(p, tokens));
    struct spw_pack_section part = spw_pack_part(&spw_pack_info(p)->sections[0], 0, 1);
    part.offset += 4096;
    s.sections = &part;
    s.n_sections = 1;
    CHECK(spw_pack_append(&w, path, &s, NULL) == -ESTALE);
    const uint8_t other[32] = {9};
    s.fingerprint = other;
    CHECK(spw_pack_append(&w, path, &s, NULL) == -ESTALE);
    spw_pack_close(p);
    CHECK(unlink(path) == 0 && spw_alloc_outstanding() == 0);
    CHECK(spw_pack_append(&w, path, &s, NULL) == -ENOENT && !w);
}

/* Saves for ever, and tells what was saved. */
static void save_for_ever(void *context, struct child *self)
{
    for (uint64_t n = *(uint64_t *)context; !check_failed_; n = n > 2000 ? 64 : n) {
        n += check_range(&self->seed, 1, 150);
        CHECK(save_at(n, self->seed) == 0);
        child_tell(self, &n, sizeof n);
    }
}

/* Killed at a random moment: what was told to be saved, or the save after it, is there. */
static void test_kills(int times, uint64_t *seed)
{
    uint64_t done = 0;
    for (int i = 0; i < times; i++) {
        struct children child;
        uint64_t told;
        children_start(&child, 1, save_for_ever, &done, seed);
        usleep((useconds_t)check_range(seed, 0, 20000));
        CHECK(children_kill(&child) == 1);
        while (children_told(&child, &told, sizeof told))
            done = told;
        children_close(&child);
        int64_t found = read_back();
        if (found == -ENOENT) {
            CHECK(done == 0);
            continue;
        }
        /* not told: the one after it, smaller where the child began again */
        CHECK_MSG(found == (int64_t)done || (found > 0 && found != -EBADMSG), "%lld, told %llu",
                  (long long)found, (unsigned long long)done);
        CHECK_MSG(found >= (int64_t)done || found <= 214, "%lld, told %llu", (long long)found,
                  (unsigned long long)done);
        done = (uint64_t)found;
        /* what was left behind goes with the next file that is made there */
        struct spw_pack_section sections[MOST_SECTIONS];
        struct spw_pack_spec s = make_spec(sections, 0, 10);
        char other[170];
        snprintf(other, sizeof other, "%s_other", path);
        CHECK(create(other, true, &s, "", 1) == 0 && unlink(other) == 0);
        CHECK(pack_count(dir, SPW_PACK_TEMPORARY, NULL) == 0);
    }
    fprintf(stderr, "%d writers killed, %llu tokens at the end\n", times, (unsigned long long)done);
    unlink(path);
}

/* ---- failing calls ---- */

/* The n-th call fails, for n = 0, 1, ... until the save succeeds: the file is what it was, or all
 * of the new one; no other file is left. */
static void test_failing_calls(bool append, uint64_t *seed)
{
    static const int errors[] = {ENOSPC, EIO, EDQUOT};
    int64_t n = 0, failed = 0;
    for (bool succeeded = false; !succeeded; n++) {
        unlink(path);
        if (append)
            CHECK(save_at(700, 1) == 0 && save_at(500, 1) == 0);
        uint64_t again = *seed;
        file_fault_nth(n, errors[n % 3]);
        int rc = save_at(900, check_random(&again));
        succeeded = rc == 0;
        file_fault_nth(-1, 0);
        failed += rc == -errors[n % 3];
        CHECK_MSG(rc == 0 || rc == -errors[n % 3], "call %lld: %d", (long long)n, rc);
        int64_t found = read_back();
        CHECK_MSG(found == 900 || (!succeeded && found == (append ? 500 : -ENOENT)),
                  "call %lld: %lld", (long long)n, (long long)found);
        CHECK(pack_count(dir, NULL, NULL) == (found > 0) && spw_alloc_outstanding() == 0);
        CHECK(save_at(1000, 3) == 0 && read_back() == 1000);
    }
    CHECK(failed > 20);
    unlink(path);
}

static void test_failing_allocations(bool append)
{
    bool succeeded = false;
    for (int64_t n = 0; !succeeded; n++) {
        unlink(path);
        if (append)
            CHECK(save_at(500, 1) == 0);
        spw_alloc_fail_nth(n);
        int rc = save_at(900, 7);
        spw_alloc_fail_nth(-1);
        succeeded = rc == 0;
        CHECK_MSG(rc == 0 || rc == -ENOMEM, "%lld: %d", (long long)n, rc);
        CHECK(read_back() == (succeeded ? 900 : append ? 500 : -ENOENT));
        CHECK(spw_alloc_outstanding() == 0);
    }
    unlink(path);
}

/* ---- damage ---- */

static uint8_t *read_all(const char *from, size_t *bytes)
{
    struct stat st;
    int fd = open(from, O_RDONLY);
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    uint8_t *all = malloc((size_t)st.st_size);
    CHECK(read(fd, all, (size_t)st.st_size) == st.st_size);
    close(fd);
    *bytes = (size_t)st.st_size;
    return all;
}

/* Opens what lies in memory; what comes of it must be an error, or one of the committed states. */
static const char *judge(const char *name, int64_t newest, int64_t older)
{
    struct spw_pack *p;
    struct spw_error err = {0};
    int rc = spw_pack_open(&p, name, pack_fingerprint, &err);
    if (rc) {
        bool one_line = err.text[0] && !strchr(err.text, '\n') && strstr(err.text, name);
        return rc != -EBADMSG ? "another error" : one_line ? "open" : "no text";
    }
    int64_t n = (int64_t)spw_pack_info(p)->n_tokens;
    rc = spw_pack_verify(p, &err);
    const char *verdict = "record";
    if (!rc)
        verdict = !pack_is_right(p, tokens) ? "wrong"
                  : n == newest             ? "harmless"
                  : n == older              ? "older"
                                            : "wrong";
    else if (rc != -EBADMSG || pack_is_right(p, tokens))
        verdict = "wrong";
    spw_pack_close(p);
    return verdict;
}

static void test_corruption(uint64_t *seed, int times)
{
    int count[4] = {0}; /* open, record, harmless, older */
    size_t bytes;
    unlink(path);
    CHECK(save_at(700, 1) == 0 && save_at(500, 1) == 0 && save_at(640, 1) == 0);
    uint8_t *all = read_all(path, &bytes);
    int fd = (int)syscall(SYS_memfd_create, "pack", 0u);
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    CHECK(write(fd, all, bytes) == (ssize_t)bytes);
    CHECK(strcmp(judge(name, 640, 500), "harmless") == 0);
    for (int i = 0; i < times; i++) {
        size_t at = check_range(seed, 0, i % 4 ? bytes - 1 : 8191); /* and often in the heads */
        uint8_t byte = (uint8_t)(all[at] ^ check_range(seed, 1, 255));
        CHECK(pwrite(fd, &byte, 1, (off_t)at) == 1);
        const char *verdict = judge(name, 640, 500);
        static const char *const fine[] = {"open", "record", "harmless", "older"};
        bool known = false;
        for (int k = 0; k < 4; k++) {
            known = known || !strcmp(verdict, fine[k]);
            count[k] += !strcmp(verdict, fine[k]);
        }
        CHECK_MSG(known, "byte %zu: %s", at, verdict);
        CHECK(pwrite(fd, &all[at], 1, (off_t)at) == 1);
    }
    CHECK(strcmp(judge(name, 640, 500), "harmless") == 0);
    fprintf(stderr, "%d corruptions: %d found at open, %d in a record, %d harmless, %d older\n",
            times, count[0], count[1], count[2], count[3]);
    for (size_t n = bytes; n > 0;) {
        n -= spw_min_u64(n, check_range(seed, 1, n > 9000 ? 500 : 40));
        CHECK(ftruncate(fd, (off_t)n) == 0);
        const char *verdict = judge(name, 640, 500);
        CHECK_MSG(!strcmp(verdict, "open") || (n > 9000 && !strcmp(verdict, "harmless")),
                  "%zu of %zu bytes: %s", n, bytes, verdict);
    }
    close(fd);
    free(all);
    CHECK(spw_alloc_outstanding() == 0);
}

/* Every field of the commit record and of the table set to numbers at the borders, with checksums
 * that agree: nothing may crash, and what opens must be consistent. */
static void test_made_up(uint64_t *seed)
{
    static const uint64_t borders[] = {0,          1,          127,        128,
                                       4095,       4096,       UINT32_MAX, UINT64_MAX,
                                       1ull << 63, 1ull << 32, 1ull << 62, INT64_MAX};
    size_t bytes;
    uint8_t *all = read_all(path, &bytes);
    struct spw_pack_head *head = (void *)all;
    int fd = (int)syscall(SYS_memfd_create, "pack", 0u), opened = 0;
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    memset(all + 4096, 0, 4096);
    struct spw_pack_head good = *head;
    CHECK(good.sequence == 3); /* the last save wrote record A */
    for (int i = 0; i < 3000; i++) {
        uint64_t value = borders[check_range(seed, 0, sizeof borders / sizeof *borders - 1)] +
                         check_range(seed, 0, 2) - 1;
        uint8_t *table = all + good.table_offset, saved[8];
        size_t at = check_range(seed, 0, i % 2 ? 150 : good.table_bytes - 9);
        uint8_t *field = i % 2 ? all + at : table + at;
        size_t width = check_range(seed, 0, 1) ? 8 : 4;
        memcpy(saved, field, 8);
        memcpy(field, &value, width);
        head->table_sum = XXH3_64bits(table, good.table_bytes);
        head->sum = XXH3_64bits(head, offsetof(struct spw_pack_head, sum));
        CHECK(pwrite(fd, all, bytes, 0) == (ssize_t)bytes);
        struct spw_pack *p;
        struct spw_error err = {0};
        int rc = spw_pack_open(&p, name, pack_fingerprint, &err);
        CHECK_MSG(rc == 0 || rc == -EBADMSG || rc == -ESTALE, "%d: %s", rc, err.text);
        opened += rc == 0;
        if (!rc)
            spw_pack_verify(p, NULL);
        spw_pack_close(p);
        memcpy(field, saved, 8);
        *head = good;
    }
    fprintf(stderr, "3000 made up files, %d of them opened\n", opened);
    CHECK(opened > 0 && spw_alloc_outstanding() == 0);
    close(fd);
    free(all);
}

static void test_foreign(void)
{
    struct spw_pack *p;
    struct spw_error err = {0};
    struct spw_pack_head head;
    const uint8_t other[32] = {7};
    CHECK(spw_pack_open(&p, path, other, &err) == -ESTALE && strstr(err.text, "another model"));
    CHECK(spw_pack_open(&p, path, NULL, NULL) == 0);
    spw_pack_close(p);
    for (int i = 0; i < 2; i++) { /* of both commit records */
        int fd = open(path, O_RDWR);
        CHECK(pread(fd, &head, sizeof head, i * 4096) == sizeof head);
        head.version++;
        head.sum = XXH3_64bits(&head, offsetof(struct spw_pack_head, sum));
        CHECK(pwrite(fd, &head, sizeof head, i * 4096) == sizeof head);
        close(fd);
    }
    spw_error_clear(&err);
    CHECK(spw_pack_open(&p, path, pack_fingerprint, &err) == -ESTALE &&
          strstr(err.text, "version"));
    CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0);
    CHECK(spw_pack_open(&p, path, pack_fingerprint, NULL) == -EBADMSG);
    CHECK(rmdir(path) == 0 && mkfifo(path, 0600) == 0);
    CHECK(spw_pack_open(&p, path, pack_fingerprint, NULL) == -EBADMSG);
    CHECK(unlink(path) == 0);
}

int main(int argc, char **argv)
{
    uint64_t seed = check_seed();
    int kills = argc > 1 ? atoi(argv[1]) : check_amount(RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 10 : 40);
    alarm(900);
    pack_folder(dir, "pack");
    snprintf(path, sizeof path, "%s/session", dir);
    pack_tokens(tokens, MOST_TOKENS, seed);
    test_round_trip(&seed);
    test_not_there_before();
    test_specs();
    test_append(&seed);
    test_kills(kills, &seed);
    test_failing_calls(false, &seed);
    test_failing_calls(true, &seed);
    test_failing_allocations(false);
    test_failing_allocations(true);
    test_corruption(&seed, check_amount(RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 2000 : 10000));
    test_made_up(&seed);
    test_foreign();
    pack_remove_folder(dir);
    return check_done();
}
