/* A prefix store for its owner: lists its packs, verifies them, removes some. Needs no model. Other
 * processes may use the directory meanwhile. */
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
    bool checkpoint;              /* a sequence can continue at its end */
    int64_t used_at;              /* last use, in seconds since 1970 */
    uint32_t used_at_nanoseconds; /* the fraction of that second */
    uint8_t fingerprint[32];
    /* 0; -EBADMSG: damaged; -EPERM: another user owns it or may write to it; -ESTALE: of another
     * version; else the error of the system */
    int error;
    struct spw_error reason; /* the text of `error` */
};

/* Lists all packs, the least recently used first, and checks them. `records`: also checks the data
 * of all records. The caller frees *out with spw_free. -ENOENT, -ENOTDIR, -EACCES. */
int spw_store_list(struct spw_store_entry **out, size_t *n, const char *directory, bool records,
                   struct spw_error *err);

struct spw_store_pruned {
    uint64_t n_packs, bytes; /* removed */
    uint64_t n_left, left_bytes;
};

/* Removes damaged packs, then the least recently used chains, until at most `bytes` are left. Packs
 * in use stay. */
int spw_store_prune(struct spw_store_pruned *out, const char *directory, uint64_t bytes,
                    struct spw_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
