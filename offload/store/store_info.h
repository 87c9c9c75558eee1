/* A prefix store as its owner sees it: what is in the directory, whether it is whole, and less of
 * it. Needs no model, and works beside processes that use the directory. */
#ifndef SPW_OFFLOAD_STORE_STORE_INFO_H
#define SPW_OFFLOAD_STORE_STORE_INFO_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct spw_store_entry {
    char name[48];
    uint64_t bytes;
    uint64_t first_token, n_tokens, n_tiles, n_records;
    bool checkpoint;              /* a sequence may go on at its end */
    int64_t used_at;              /* seconds since 1970, */
    uint32_t used_at_nanoseconds; /* and more of them */
    uint8_t fingerprint[32];
    /* -EBADMSG: damaged; -EPERM: not of the directory's owner alone; -ESTALE: of another version;
     * else what the system says */
    int error;
    struct spw_error reason; /* for it */
};

/* All packs, the least recently used first; checks all but records, with `records` those too.
 * spw_free. -ENOENT, -ENOTDIR, -EACCES with text. */
int spw_store_list(struct spw_store_entry **out, size_t *n, const char *directory, bool records,
                   struct spw_error *err);

struct spw_store_pruned {
    uint64_t n_packs, bytes; /* that went */
    uint64_t n_left, left_bytes;
};

/* Removes damaged packs and then least recently used chains until `bytes` are left, except for what
 * is in use. */
int spw_store_prune(struct spw_store_pruned *out, const char *directory, uint64_t bytes,
                    struct spw_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
