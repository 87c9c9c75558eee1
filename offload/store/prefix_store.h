/* The prefix store: a directory of packs that any number of processes share. A pack extends a chain
 * of tiles. Its name is the chain hash of its first tile. To find the longest match of a sequence,
 * the store hashes the tokens tile by tile and opens the pack of each hash. Then it compares the
 * tokens.
 *
 * Tokens below zero are those of a source (model/config/config.h), each row of which depends on all
 * others. Its chain does not begin with the root but with the hash of all its tiles: the store has
 * it as a whole, or nothing of it.
 *
 * A shared lock (flock) protects a pack in use; the lock ends with its process. Before a pack is
 * written the store makes room: it removes the least recently used chains, and never a pack before
 * those that extend it. A damaged pack is a miss: on_damage reports it once, and the file is
 * removed. One thread at a time. */
#ifndef SPW_OFFLOAD_STORE_PREFIX_STORE_H
#define SPW_OFFLOAD_STORE_PREFIX_STORE_H

#include "offload/store/pack.h"

enum {
    SPW_STORE_MAX_PACKS = 192, /* of one chain; each is an open file */
};

struct spw_store_options {
    const char *directory; /* created, mode 0700, if it is missing; its parent must exist. NULL: the
                              store has blank packs, in memory, until it is closed */
    uint64_t limit_bytes;  /* of all packs in it, unfinished ones included */
    bool trusts_others;    /* also uses files that other users own or may write */
    const uint8_t *fingerprint;
    void (*on_damage)(void *context, const char *text); /* one line; may be NULL */
    void *context;
};

/* Tiles [first_tile, first_tile + n_tiles) of the chain lie in `pack`. */
struct spw_store_part {
    struct spw_pack *pack;
    uint32_t first_tile, n_tiles;
};

/* The packs stay open and locked until the match is released. */
struct spw_store_match {
    uint32_t n_tiles; /* length of the longest chain */
    uint32_t n_parts;
    struct spw_store_part parts[SPW_STORE_MAX_PACKS]; /* in order, from tile 0 */
    /* The pack of the last checkpoint within these tiles: it has what a sequence needs to continue
     * after checkpoint_tiles tiles. It need not be one of the parts. NULL: there is none. */
    struct spw_pack *checkpoint;
    uint32_t checkpoint_tiles;
    /* The pack of a checkpoint one tile after these tiles, where other tokens may lead. NULL: the
     * pack of the last part has none there. */
    struct spw_pack *next_checkpoint;
};

struct spw_store_stats {
    uint64_t n_packs, bytes; /* as last seen */
    uint64_t n_evicted, evicted_bytes, n_damaged;
};

struct spw_store;

/* Reads file names only. -ENOENT, -ENOTDIR, -EACCES, ...; -EPERM: another user owns the directory
 * or may write to it. */
int spw_store_open(struct spw_store **out, const struct spw_store_options *o,
                   struct spw_error *err);
/* The caller has released all matches. NULL is fine. */
void spw_store_close(struct spw_store *s);
/* Finds the longest chain that these tokens begin with, at most n / 128 tiles, and marks it as
 * used. It also finds packs that other processes have added since. A sequence without a match is no
 * error. -ENOMEM. */
int spw_store_match(struct spw_store *s, const int32_t *tokens, uint64_t n,
                    struct spw_store_match *out);
void spw_store_release(struct spw_store *s, struct spw_store_match *m); /* {0} is fine */
/* The caller has found a damaged record in this pack: reports `text`, and removes the file. Users
 * of the pack can still read it. */
void spw_store_remove_damaged(struct spw_store *s, struct spw_pack *pack, const char *text);
void spw_store_stats(struct spw_store *s, struct spw_store_stats *out);

/* ---- adding ---- */

struct spw_store_addition {
    const int32_t *tokens; /* [n_tiles * 128], of the whole chain */
    uint32_t first_tile;   /* of the new pack; the store has all tiles before it */
    uint32_t n_tiles;      /* of the whole chain. = first_tile: the pack only makes a checkpoint */
    bool checkpoint;       /* the sections have what a sequence needs to continue after n_tiles */
    const struct spw_pack_section *sections;
    uint32_t n_sections;
    /* The result of spw_store_match for these tokens; begin takes it over. NULL: begin searches. */
    struct spw_store_match *found;
};

struct spw_store_writer;

/* The bytes that adding this pack writes. */
uint64_t spw_store_write_bytes(const struct spw_store_addition *a);

/* Begins a pack. These failures are harmless to the run: -EEXIST: the store has these tiles
 * already; -ENOENT: the tiles before are not in the store any more; -ENOSPC: there is no room;
 * -EMLINK: the chain has SPW_STORE_MAX_PACKS packs; -EBUSY: another process has locked the
 * directory. A few large packs are read faster than many small ones. */
int spw_store_begin(struct spw_store_writer **out, struct spw_store *s,
                    const struct spw_store_addition *a, struct spw_error *err);
/* The pack, for spw_pack_write. The store commits it. */
struct spw_pack_writer *spw_store_writer_pack(struct spw_store_writer *w);
/* Completes the pack and frees the writer. A blank pack need not have its records. -EEXIST: another
 * process has written the same tiles meanwhile. *written_bytes (may be NULL): of the file, tables
 * included. */
int spw_store_commit(struct spw_store_writer *w, uint64_t *written_bytes, struct spw_error *err);
void spw_store_abort(struct spw_store_writer *w); /* NULL is fine */

#endif
