/* Where the tiles of sessions lie, by what the sessions did: numbers only, no memory, no cache. The
 * byte account (traffic.h) asks these tables what a move costs. They follow the rules of
 * offload/kv/kv_cache.h: a tile is written to a lower tier once, sessions that share a tile move it
 * once, and a tile on the device keeps its copy in the lower tier.
 *
 * A row stands for `times` slices that hold the same tiles. Opening allocates, nothing else does.
 * Not thread-safe. */
#ifndef SPW_RUNTIME_PLAN_TRAFFIC_TILES_H
#define SPW_RUNTIME_PLAN_TRAFFIC_TILES_H

#include "offload/kv/waterline.h"

struct spw_tiles_row {
    uint8_t kind; /* enum spw_layer_kind */
    uint64_t times;
};

struct spw_tiles_options {
    const struct spw_tiles_row *rows; /* [n_rows], copied */
    uint32_t n_rows, n_sessions, max_tiles;
    uint32_t first_tile;       /* 0 or 1: rows start here */
    bool disk, disk_to_device; /* as in struct spw_kv_options */
};

/* Tiles by the link they cross; in_bounce: of those from disk, which have not been copied on. */
struct spw_tiles_moved {
    uint64_t to_host, to_disk, from_host, from_disk, in_bounce;
};

struct spw_tiles;

int spw_tiles_open(struct spw_tiles **out, const struct spw_tiles_options *o);
void spw_tiles_close(struct spw_tiles *t);
const struct spw_tiles_row *spw_tiles_rows(const struct spw_tiles *t, uint32_t *n);

/* All of these are about one session; what moves is added to `m`, times the row's slices. */
void spw_tiles_clear(struct spw_tiles *t, uint32_t session);
/* `to` must be empty; it shares every tile of `from`. */
void spw_tiles_fork(struct spw_tiles *t, uint32_t to, uint32_t from);
void spw_tiles_grow(struct spw_tiles *t, uint32_t session, uint32_t row, uint64_t from,
                    uint64_t to);
/* Raises the waterlines; either may be there already. */
void spw_tiles_spill(struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t begin,
                     uint32_t disk_end, struct spw_tiles_moved *m);
void spw_tiles_load(struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t begin,
                    struct spw_tiles_moved *m);
void spw_tiles_drop(struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t first);
/* Tiles [first, end) stream: they are read, and do not stay on the device. */
void spw_tiles_stream(const struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t first,
                      uint32_t end, struct spw_tiles_moved *m);
/* As spw_kv_retain, spw_kv_truncate. */
void spw_tiles_retain(struct spw_tiles *t, uint32_t session);
void spw_tiles_truncate(struct spw_tiles *t, uint32_t session, uint64_t n_tokens);
/* Tiles [first, end) lie in a file of the prefix cache. The row continues after them. */
void spw_tiles_attach(struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t first,
                      uint32_t end);
/* The same, of tiles that come to the device. */
void spw_tiles_import(struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t first,
                      uint32_t end);
/* As spw_kv_drop_copies. */
void spw_tiles_drop_copies(struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t first);
/* Copies in lower tiers, of all sessions; shared copies count once. */
void spw_tiles_count_below(const struct spw_tiles *t, uint64_t *on_host, uint64_t *on_disk);
/* As offload/kv/kv_split.h for a session that was cut to what stays: rows whose tiles are never old
 * get empty, others begin at tile 1; but first tiles that are not on the device come up, and leave
 * with the end. */
void spw_tiles_split(struct spw_tiles *t, uint32_t session, struct spw_tiles_moved *m);
void spw_tiles_end_split(struct spw_tiles *t);
/* Tiles [first, end) go to a file: by what they are read from. */
void spw_tiles_export(const struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t first,
                      uint32_t end, uint64_t *from_device, uint64_t *from_disk);
uint32_t spw_tiles_first(const struct spw_tiles *t, uint32_t session, uint32_t row);
uint32_t spw_tiles_begin(const struct spw_tiles *t, uint32_t session, uint32_t row);
/* As spw_kv_shared_end. */
uint32_t spw_tiles_shared_end(const struct spw_tiles *t, uint32_t a, uint32_t b, uint32_t row);
/* Whether another session has the tile. */
bool spw_tiles_is_shared(const struct spw_tiles *t, uint32_t session, uint32_t row, uint32_t tile);
/* Between steps: tiles below it lie on disk. */
uint32_t spw_tiles_disk_end(const struct spw_tiles *t, uint32_t session, uint32_t row);

#endif
