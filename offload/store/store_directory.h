/* The directory of a prefix store: its packs by name, their bytes and last use, and what goes when
 * room is needed.
 *
 *   <32 hex digits>.pack   a pack; the digits are its id
 *   .spw-tmp-*             one that is being written, at its full size; without a lock: left by a
 *                          killed writer
 *   .lock                  held while bytes are counted, room is made and names appear
 *   not-a-pack-*           a directory that had the name of a pack, and was not empty
 *
 * The index has names alone; links between packs are read from their commit records when something
 * must go. One thread at a time. */
#ifndef SPW_OFFLOAD_STORE_STORE_DIRECTORY_H
#define SPW_OFFLOAD_STORE_STORE_DIRECTORY_H

#include "offload/store/pack.h"

#include <sys/types.h>
#include <time.h>

enum { SPW_STORE_NAME_BYTES = 48 };

struct spw_store_item {
    struct spw_pack_id id;
    struct spw_pack_id before; /* the pack that it extends; zeros: none, or not known */
    uint64_t bytes, first_token;
    struct timespec used;
    uint32_t n_children; /* while something is chosen to go */
    bool linked;         /* before and first_token were read */
    bool damaged;        /* was told, and could not be removed; it is no longer found */
    bool gone;
};

struct spw_store_directory {
    int fd;                       /* owned */
    char *path;                   /* owned */
    uid_t owner;                  /* of the directory, and of each pack that is opened */
    bool trusts_others;           /* then of any pack */
    struct spw_store_item *items; /* [n], owned; in any order */
    uint32_t n, n_most;
    uint32_t *slots; /* [n_slots] 1 + index into items by id, 0: free; owned */
    uint32_t n_slots;
    uint64_t bytes, writing_bytes; /* as last weighed: packs; what is being written */
    struct timespec changed;       /* mtime of what was last read */
    bool settled;                  /* it was old enough then to tell the next change */
};

/* Makes the directory where it is missing, if `make`. Errors name it. */
int spw_store_directory_open(struct spw_store_directory *d, const char *path, bool make,
                             struct spw_error *err);
void spw_store_directory_close(struct spw_store_directory *d);
/* -EPERM: it belongs to somebody else than this process runs for, or others may write to it. */
int spw_store_directory_check_owner(const struct spw_store_directory *d, struct spw_error *err);
/* As spw_pack_open. -EBADMSG: also a file that is no pack of this name; -EPERM: one that somebody
 * else than the owner of the directory may have written. */
int spw_store_directory_open_pack(const struct spw_store_directory *d, struct spw_pack_id id,
                                  const uint8_t *fingerprint, struct spw_pack **out,
                                  struct spw_error *err);
/* Whether a pack that could not be opened with `rc` is of no use to anybody, and only keeps a right
 * one from its name. */
bool spw_store_directory_is_useless(const struct spw_store_directory *d, int rc);

/* Reads names, `weighed`: and bytes and last use (a system call each, which a match has no need
 * of); removes what killed writers left. */
int spw_store_directory_scan(struct spw_store_directory *d, bool weighed);
/* Reads names if they may have changed. */
int spw_store_directory_refresh(struct spw_store_directory *d);
struct spw_store_item *spw_store_directory_find(const struct spw_store_directory *d,
                                                struct spw_pack_id id);
void spw_store_directory_name(char name[SPW_STORE_NAME_BYTES], struct spw_pack_id id);
/* Of a pack that only makes a checkpoint at the end of this chain. */
struct spw_pack_id spw_store_checkpoint_id(struct spw_chain_hash chain);

/* A descriptor whose close lets go; waits two seconds at most. -EBUSY, -EROFS, -EACCES. */
int spw_store_directory_lock(struct spw_store_directory *d);
/* Locked and weighed: least recently used chains go until packs and what is being written have at
 * most `bytes`. What is in use stays. -ENOSPC: that is not enough. */
int spw_store_directory_shrink(struct spw_store_directory *d, uint64_t bytes, uint64_t *n_gone,
                               uint64_t *bytes_gone);
/* Removes it unless somebody has it in use; a damaged one also then: who has it open can go on.
 * What is no file is removed too, or loses the name. */
bool spw_store_directory_remove(struct spw_store_directory *d, struct spw_store_item *item,
                                bool also_in_use);

#endif
