/* A snapshot: the part of a session that goes to a file, as sections of a pack
 * (offload/store/pack.h). This module writes and reads these sections. Saved sessions (save.c) and
 * the prefix cache (prefix.c) use it.
 *
 * Tiles pass through one buffer of host memory, the piece, which is part of the plan
 * (options.saves) and has a few MiB. The moves are counted like all others. Every
 * call that moves tiles is slow. */
#ifndef SPW_RUNTIME_PERSIST_SNAPSHOT_H
#define SPW_RUNTIME_PERSIST_SNAPSHOT_H

#include "offload/store/pack.h"
#include "runtime/engine/engine.h"

/* The most sections that spw_snapshot_sections returns. */
static inline uint32_t spw_snapshot_max_sections(const struct spw_engine *e)
{
    return 4 * e->model.config.n_slices + 1;
}

/* The name of the backend, without the number of the GPU: other backends may give other bits. */
enum { SPW_SNAPSHOT_BACKEND_BYTES = sizeof((struct spw_backend){0}).name };
void spw_snapshot_backend(char out[SPW_SNAPSHOT_BACKEND_BYTES], const struct spw_engine *e);
/* A hash of everything that the bits of KV depend on: the model, the types that it is computed
 * with, the precision of KV, the backend, and the rope table that rotated the keys
 * (spw_rope_table). A saved session stores its own table, and has SPW_ROPE_SHARED here. */
void spw_snapshot_fingerprint(uint8_t out[SPW_PACK_FINGERPRINT_BYTES], const struct spw_engine *e,
                              uint64_t rope_table);

struct spw_snapshot_range {
    uint64_t from,
        to; /* tokens; the old tiles before `from`, a multiple of 128, are stored already */
    /* Also store the exact tiles that a sequence needs to continue at `to`.
     * spw_kv_can_truncate must allow a cut there. */
    bool checkpoint;
    bool tail; /* also the last tile, and the logits if `to` is the length of the session */
};

/* save.c: for a dry run (struct spw_engine.dry), a saved session of n tokens that has no file.
 * logits: the session also has the logits after the last token. Free with spw_saved_close. */
struct spw_saved;
int spw_saved_assume(struct spw_saved **out, const struct spw_engine *e, const int32_t *tokens,
                     uint64_t n, bool logits, struct spw_error *err);

/* -EDQUOT: writing `bytes` to files would leave less of the disk's write limit than spills of the
 * plan may need. The text begins with `what`. */
int spw_snapshot_check_limit(const struct spw_engine *e, uint64_t bytes, const char *what,
                             struct spw_error *err);
/* Counts the `written` bytes of a file against the limit. rc: what writing the file returned. */
void spw_snapshot_count_write(struct spw_engine *e, int rc, uint64_t written);

/* Fills `out` with the sections of a range, sorted by kind and layer, with offset 0. Returns their
 * number. Pure. A session without caches (seq.kv is NULL) has all tiles that the rules give it. */
uint32_t spw_snapshot_sections(const struct spw_session *s, const struct spw_snapshot_range *range,
                               struct spw_pack_section *out);

/* Writes all records of the sections with offset 0; `sections` are those of the writer's spec.
 * -EBADMSG: a tile was lost on disk, see spw_recover_step; or an error of spw_pack_write. */
int spw_snapshot_write(struct spw_session *s, const struct spw_pack_section *sections, uint32_t n,
                       struct spw_pack_writer *w);

/* Fills the caches of an empty session with the first n tokens of a pack that has all sections of
 * the range {0, n, true, true}. Any budgets will do. The caller sets the fields of the session.
 * After a failure the caches are empty. -EBADMSG: the pack is damaged, or lacks a section. */
int spw_snapshot_read(struct spw_session *s, const struct spw_pack *p, uint64_t n,
                      struct spw_error *err);
/* Whether a session can begin at n tokens, a multiple of 128, with the exact tiles of this
 * checkpoint, which may lie after them. */
bool spw_snapshot_continues(const struct spw_engine *e, const struct spw_pack *p, uint64_t n);
/* Reads only the exact tiles of a checkpoint that lie beside quantized ones, and its states: of the
 * sections SINK, RECENT and WINDOW, and TAIL where n is no multiple of 128. *read_bytes: of these
 * records. -EBADMSG as above. */
int spw_snapshot_read_exact(struct spw_session *s, const struct spw_pack *p, uint64_t n,
                            uint64_t *read_bytes, struct spw_error *err);
/* Reads the logits. -ENOENT: the pack has none. */
int spw_snapshot_read_logits(struct spw_session *s, const struct spw_pack *p,
                             struct spw_error *err);

/* save_file.c. The file of a saved session. spw_session_save_to locks it (flock); the lock lasts
 * until the session is closed or saved to another file. Writers of the pack use the same
 * descriptor. When a save replaces the file, the descriptor becomes that of the new file. */
struct spw_save_file {
    char *path;    /* owned */
    int fd;        /* owned, locked; -1: not open */
    bool made;     /* spw_session_save_to has created the file */
    bool verified; /* a save has checked all tiles that stay in it */
};

/* Closes and unlocks the file that the session is saved to, if there is one. */
void spw_save_file_release(struct spw_session *s);
bool spw_save_file_is_empty(const struct spw_save_file *f);
/* Whether no other user may read or write it. */
bool spw_save_file_is_private(const struct spw_save_file *f);

#endif
