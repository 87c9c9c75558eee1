/* Helpers of the tests of packs and of the store: records that can be told from each other, by
 * anybody who knows the tokens. */
#ifndef SPW_TESTS_ENGINE_PERSIST_PACK_RUN_H
#define SPW_TESTS_ENGINE_PERSIST_PACK_RUN_H

#include "offload/store/pack_format.h"
#include "tests/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const uint8_t pack_fingerprint[SPW_PACK_FINGERPRINT_BYTES] = {1, 2, 3, 0xfe, 9};

/* The record of a tile says which chain, kind, layer and tile it belongs to, in every word. */
static inline void pack_fill(void *record, uint64_t bytes, struct spw_chain_hash chain,
                             const struct spw_pack_section *s, uint32_t tile)
{
    uint64_t state =
        spw_chain_id(chain).low ^ ((uint64_t)s->kind << 48) ^ ((uint64_t)s->layer << 32) ^ tile;
    uint64_t *words = record;
    for (uint64_t i = 0; i < bytes / sizeof *words; i++)
        words[i] = check_random(&state);
}

/* Whether all records of the pack are those of these tokens (from position 0 on). */
static inline bool pack_is_right(const struct spw_pack *p, const int32_t *tokens)
{
    const struct spw_pack_info *info = spw_pack_info(p);
    uint64_t n_tiles = (info->first_token + info->n_tokens) / SPW_TILE_TOKENS;
    bool right =
        memcmp(info->tokens, tokens + info->first_token, info->n_tokens * sizeof *tokens) == 0;
    struct spw_chain_hash hash = spw_chain_root(info->fingerprint);
    struct spw_chain_hash *chain = calloc(n_tiles + 1, sizeof *chain);
    for (uint64_t t = 0; t < n_tiles; t++)
        hash = chain[t] = spw_chain_next(hash, tokens + t * SPW_TILE_TOKENS);
    for (uint32_t i = 0; i < info->n_sections && right; i++) {
        const struct spw_pack_section *s = &info->sections[i];
        uint8_t *found = aligned_alloc(SPW_PACK_ALIGN, s->record_bytes);
        uint8_t *expected = malloc(s->record_bytes);
        for (uint32_t t = s->first_tile; t < s->first_tile + s->n_tiles && right; t++) {
            /* the tail tile of a session has no hash: the one before stands for it */
            pack_fill(expected, s->record_bytes, t < n_tiles ? chain[t] : hash, s, t);
            right = spw_pack_read(p, s, t, 1, found, NULL) == 0 &&
                    memcmp(found, expected, s->record_bytes) == 0;
        }
        free(found);
        free(expected);
    }
    free(chain);
    return right;
}

static inline void pack_tokens(int32_t *tokens, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(check_random(&seed) % 50000);
}

/* A folder of this process alone. */
static inline void pack_folder(char dir[128], const char *test)
{
    snprintf(dir, 128, "/tmp/spw_%s_%d", test, (int)getpid());
    CHECK(mkdir(dir, 0700) == 0);
}

/* Names that begin so; NULL: any. `bytes`: of them, may be NULL. */
static inline int pack_count(const char *dir, const char *prefix, uint64_t *bytes)
{
    int n = 0;
    struct stat st;
    DIR *d = opendir(dir);
    if (bytes)
        *bytes = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
            (prefix && strncmp(e->d_name, prefix, strlen(prefix)) != 0))
            continue;
        n++;
        if (bytes && !fstatat(dirfd(d), e->d_name, &st, 0))
            *bytes += (uint64_t)st.st_size;
    }
    if (d)
        closedir(d);
    return n;
}

static inline void pack_remove_folder(const char *dir)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    CHECK(rmdir(dir) == 0);
}

#endif
