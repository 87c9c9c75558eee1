/* The directory of a prefix store: the names of its packs, their sizes and last use, and which
 * packs are removed when room is needed.
 *
 *   <32 hex digits>.pack   a pack; the digits are its id
 *   .spw-tmp-*             an unfinished pack at its full size; without a lock: its writer is dead
 *   .lock                  locked while a process counts bytes, makes room or names a pack
 *   not-a-pack-*           a directory that had the name of a pack and was not empty
 *
 * The index has only names. When packs must be removed, the links between packs are read from their
 * commit records. One thread at a time. */
#ifndef SPW_OFFLOAD_STORE_STORE_DIRECTORY_H
#define SPW_OFFLOAD_STORE_STORE_DIRECTORY_H

#include "offload/store/pack.h"

#include <sys/types.h>
#include <time.h>

enum { SPW_STORE_NAME_BYTES = 48 };

struct spw_store_item {
    struct spw_pack_id id;
    struct spw_pack_id previous; /* the pack that this one extends; zeros: none, or unknown */
    uint64_t bytes, first_token;
    struct timespec used;
    uint32_t n_children; /* packs that extend this one; set while packs are removed */
    bool linked;         /* `previous` and first_token were read */
    bool damaged;        /* was reported, but cannot be removed; no match uses it */
    bool removed;
};

struct spw_store_directory {
    int fd;                       /* owned */
    char *path;                   /* owned */
    uid_t owner;                  /* of the directory; each pack must have the same owner */
    bool trusts_others;           /* packs may have any owner */
    struct spw_store_item *items; /* [n], owned; unsorted */
    uint32_t n;
    size_t capacity;
    uint32_t *slots; /* [n_slots] hash table by id: 1 + index into items, 0: free; owned */
    uint32_t n_slots;
    uint64_t bytes, writing_bytes; /* at the last scan with sizes: packs, unfinished packs */
    struct timespec changed;       /* mtime of the directory at the last scan */
    bool is_stable; /* that mtime was old enough: any later change gives another mtime */
};

/* `make`: creates the directory if it is missing. Errors name the directory. */
int spw_store_directory_open(struct spw_store_directory *d, const char *path, bool make,
                             struct spw_error *err);
void spw_store_directory_close(struct spw_store_directory *d);
/* -EPERM: the directory belongs to another user, or other users may write to it. */
int spw_store_directory_check_owner(const struct spw_store_directory *d, struct spw_error *err);
/* As spw_pack_open. -EBADMSG also: the file is not the pack of this name; -EPERM: another user than
 * the owner of the directory may have written it. */
int spw_store_directory_open_pack(const struct spw_store_directory *d, struct spw_pack_id id,
                                  const uint8_t *fingerprint, struct spw_pack **out,
                                  struct spw_error *err);
/* Whether a pack that failed to open with `rc` is useless to every process. It only occupies the
 * name of a good pack, so it may be removed. */
bool spw_store_directory_is_unusable(const struct spw_store_directory *d, int rc);

/* Reads the names, and removes files that killed writers left. `with_sizes`: also reads sizes and
 * last use, with a system call for each file. A match does not need them. */
int spw_store_directory_scan(struct spw_store_directory *d, bool with_sizes);
/* Reads the names if they may have changed. */
int spw_store_directory_refresh(struct spw_store_directory *d);
struct spw_store_item *spw_store_directory_find(const struct spw_store_directory *d,
                                                struct spw_pack_id id);
void spw_store_directory_name(char name[SPW_STORE_NAME_BYTES], struct spw_pack_id id);
/* The id of a pack that only makes a checkpoint at the end of this chain. */
struct spw_pack_id spw_store_checkpoint_id(struct spw_chain_hash chain);

/* Locks the directory; waits two seconds at most. Returns a descriptor; closing it unlocks. -EBUSY,
 * -EROFS, -EACCES. */
int spw_store_directory_lock(struct spw_store_directory *d);
/* Removes the least recently used chains until packs and unfinished packs have at most `bytes`
 * together. The caller has locked the directory and scanned it with sizes. Packs in use stay.
 * -ENOSPC: more than `bytes` remain. */
int spw_store_directory_shrink(struct spw_store_directory *d, uint64_t bytes, uint64_t *n_removed,
                               uint64_t *bytes_removed);
/* Removes a pack unless a process uses it. `also_in_use`: for a damaged pack; processes that have
 * it open can still read it. A directory with the name of a pack is removed or renamed. */
bool spw_store_directory_remove(struct spw_store_directory *d, struct spw_store_item *item,
                                bool also_in_use);

#endif
