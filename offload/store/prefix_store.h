/* The prefix store: a directory of packs, shared by any number of processes. A pack extends a chain
 * of tiles and is named after the chain hash of its first one; the longest match of a sequence is
 * found by hashing its tokens, tile by tile, and then comparing the tokens themselves.
 *
 * What is in use is pinned by a shared lock, which dies with its owner. Room is made before a pack
 * is written: least recently used chains go first, nothing before what extends it. Damage is a
 * miss: it is told once, by on_damage, and the file is removed. One thread at a time. */
#ifndef SPW_OFFLOAD_STORE_PREFIX_STORE_H
#define SPW_OFFLOAD_STORE_PREFIX_STORE_H

#include "offload/store/pack.h"

enum {
    SPW_STORE_MOST_PACKS = 192, /* in one chain: each is an open file */
};

struct spw_store_options {
    const char *directory; /* made, mode 0700, where its parent is there */
    uint64_t limit_bytes;  /* of all packs in it, those being written included */
    bool trusts_others;    /* also takes what other users own or may write */
    const uint8_t *fingerprint;
    void (*on_damage)(void *context, const char *text); /* one line; may be NULL */
    void *context;
};

/* Tiles [first_tile, first_tile + n_tiles) of the chain lie in `pack`. */
struct spw_store_part {
    struct spw_pack *pack;
    uint32_t first_tile, n_tiles;
};

/* The packs stay open and pinned until the match is released. */
struct spw_store_match {
    uint32_t n_tiles; /* of the longest chain */
    uint32_t n_parts;
    struct spw_store_part parts[SPW_STORE_MOST_PACKS]; /* in order, from tile 0 */
    /* The last checkpoint within these tiles: a pack that ends there has what a sequence needs to
     * go on (sections of exact tiles). NULL: none. It need not be one of the parts. */
    struct spw_pack *checkpoint;
    uint32_t checkpoint_tiles;
};

struct spw_store_stats {
    uint64_t n_packs, bytes; /* as last seen */
    uint64_t n_evicted, evicted_bytes, n_damaged;
};

struct spw_store;

/* -ENOENT, -ENOTDIR, -EACCES, ... with text. -EPERM: another user owns the directory, or may write
 * to it. Reads names only. */
int spw_store_open(struct spw_store **out, const struct spw_store_options *o,
                   struct spw_error *err);
/* Matches must have been released. NULL is fine. */
void spw_store_close(struct spw_store *s);
/* The longest chain that these tokens begin with, also what others have added since the open; marks
 * it as used. At most n / 128 tiles: leave out what is to be computed anyway. Finding nothing is no
 * failure; -ENOMEM. */
int spw_store_match(struct spw_store *s, const int32_t *tokens, uint64_t n,
                    struct spw_store_match *out);
void spw_store_release(struct spw_store *s, struct spw_store_match *m); /* {0} is fine */
/* A record of this pack was found damaged while it streamed: tells it, and removes the file. The
 * pack itself stays open for whoever has it. */
void spw_store_damaged(struct spw_store *s, struct spw_pack *pack, const char *text);
void spw_store_stats(struct spw_store *s, struct spw_store_stats *out);

/* ---- adding ---- */

struct spw_store_addition {
    const int32_t *tokens; /* [n_tiles * 128], the whole chain */
    uint32_t first_tile;   /* where the new pack begins: the tiles before are in the store */
    uint32_t n_tiles; /* of the whole chain; = first_tile: a pack that only makes a checkpoint */
    bool checkpoint;  /* sections have what a sequence needs to go on behind n_tiles */
    const struct spw_pack_section *sections;
    uint32_t n_sections;
    /* What spw_store_match found of these tokens just now, which begin takes over; NULL: it looks
     * itself. */
    struct spw_store_match *found;
};

struct spw_store_writer;

/* What adding it writes in all. */
uint64_t spw_store_write_bytes(const struct spw_store_addition *a);

/* Refusals that are harmless to the run: -EEXIST: it is there already; -ENOENT: what comes before
 * is not (any more); -ENOSPC: no room can be made; -EMLINK: the chain has SPW_STORE_MOST_PACKS;
 * -EBUSY: another process keeps the directory locked. Few large packs are read faster than many
 * small ones. */
int spw_store_begin(struct spw_store_writer **out, struct spw_store *s,
                    const struct spw_store_addition *a, struct spw_error *err);
int spw_store_write(struct spw_store_writer *w, uint32_t section, uint32_t first_tile,
                    uint32_t n_tiles, const void *records);
/* Frees the writer. -EEXIST: another process was faster, with the same. *written_bytes (may be
 * NULL): of the file, tables included. */
int spw_store_commit(struct spw_store_writer *w, uint64_t *written_bytes, struct spw_error *err);
/* Bytes that it wrote so far. */
uint64_t spw_store_written_bytes(const struct spw_store_writer *w);
void spw_store_abort(struct spw_store_writer *w); /* NULL is fine */

#endif
