/* What of a session is kept in files, as sections of a pack (offload/store/pack.h), and how it gets
 * there and back: session files (save.c) and the prefix store are made of this.
 *
 * Tiles pass through one piece of host memory that is part of the plan (options.keeps), a few MiB
 * at a time; what that moves is counted and predicted like all else. Slow calls. */
#ifndef SPW_RUNTIME_PERSIST_SNAPSHOT_H
#define SPW_RUNTIME_PERSIST_SNAPSHOT_H

#include "offload/store/pack.h"
#include "runtime/engine/engine.h"

/* Kinds of sections. All but the tail are of complete tiles, which never change. */
enum spw_snapshot_kind {
    SPW_SNAPSHOT_OLD =
        1,             /* layers without a window: what waterlines are about; exact or quantized */
    SPW_SNAPSHOT_SINK, /* where that is kept apart: tile 0, exact */
    SPW_SNAPSHOT_RECENT, /* and the exact tiles near the end */
    SPW_SNAPSHOT_WINDOW, /* layers with a window: what it holds */
    SPW_SNAPSHOT_TAIL,   /* every layer: the last tile, not complete */
    SPW_SNAPSHOT_LOGITS, /* layer 0, one record: f32 logits of the last token */
};

/* Sections that spw_snapshot_sections gives at most. */
static inline uint32_t spw_snapshot_max_sections(const struct spw_engine *e)
{
    return 4 * e->model.config.n_layers + 1;
}

/* What computes, as far as bits may depend on it. */
enum { SPW_SNAPSHOT_BACKEND_BYTES = sizeof((struct spw_backend){0}).name };
void spw_snapshot_backend(char out[SPW_SNAPSHOT_BACKEND_BYTES], const struct spw_engine *e);
/* What bits depend on: the model, how it is computed, how KV is kept, and the backend. */
void spw_snapshot_fingerprint(uint8_t out[SPW_PACK_FINGERPRINT_BYTES], const struct spw_engine *e);

struct spw_snapshot_range {
    uint64_t from, to; /* tokens; from: a multiple of 128, its old tiles are somewhere already */
    /* What a sequence needs besides to go on at `to`, which spw_sequence_can_truncate must allow.
     */
    bool checkpoint;
    bool tail; /* to: all the tokens of the session, its last tile and logits */
};

/* Whether a session of this engine can begin only at a checkpoint. */
bool spw_snapshot_needs_checkpoint(const struct spw_plan *p);

/* Tiles [first, end); none where first >= end. */
struct spw_snapshot_tiles {
    uint32_t first, end;
};

/* Pure. What a section of this kind has of a layer with this residency, when old tiles of tokens
 * before `from` are somewhere already and `to` tokens are kept. */
struct spw_snapshot_tiles spw_snapshot_tiles(const struct spw_residency *r,
                                             enum spw_snapshot_kind kind, uint64_t from,
                                             uint64_t to);

/* What adding a session of n tokens to an empty prefix cache writes, by the plan alone. */
uint64_t spw_snapshot_publish_bytes(const struct spw_engine *e, uint64_t n);

/* Of the disk's write limit, what is left for files beside the spills that the plan may need. */
uint64_t spw_snapshot_write_room(const struct spw_engine *e);
/* A file got `written` bytes, where the sections and tables of what was kept are `predicted`; or
 * writing it failed with rc. */
void spw_snapshot_count_write(struct spw_engine *e, int rc, uint64_t predicted, uint64_t written);

/* Pure. In order of kind and layer, offsets 0. Returns how many. */
uint32_t spw_snapshot_sections(const struct spw_session *s, const struct spw_snapshot_range *range,
                               struct spw_pack_section *out);

/* Hands over all records of the sections whose offset is 0, in pieces; `write` is spw_pack_write,
 * or what has its shape. -EBADMSG: a tile was lost on disk, see spw_recover_step; or what `write`
 * returned. */
int spw_snapshot_write(struct spw_session *s, const struct spw_pack_section *sections, uint32_t n,
                       int (*write)(void *to, uint32_t section, uint32_t first_tile,
                                    uint32_t n_tiles, const void *records),
                       void *to);

/* Brings an empty session to the first n tokens, which the pack holds all of (range {0, n, true,
 * true}), under any budgets. The session's own fields are the caller's to set. After a failure its
 * cache is empty. -EBADMSG: the pack is damaged, or has not got what it takes. */
int spw_snapshot_read(struct spw_session *s, const struct spw_pack *p, uint64_t n,
                      struct spw_error *err);
/* Of these kinds only the exact tiles near the end; *read_bytes: what was read. -EBADMSG as
 * above. */
int spw_snapshot_read_exact(struct spw_session *s, const struct spw_pack *p, uint64_t n,
                            uint64_t *read_bytes, struct spw_error *err);
/* The same of the logits. -ENOENT: there are none. */
int spw_snapshot_read_logits(struct spw_session *s, const struct spw_pack *p,
                             struct spw_error *err);

#endif
