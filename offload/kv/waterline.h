/* Where the tiles of a sequence lie, as pure functions of positions.
 *
 * A sequence ages downward: its tiles [begin, end) are on the device, those below on the host, and
 * below `disk_end` on disk. What comes back up keeps its copy below, so that the copies are those
 * of [0, written), where `written` is the highest `begin` the layer ever had. Between steps every
 * full layer keeps its newest `resident` tiles. A prompt that passes a layer in several chunks
 * keeps more of the layer that is passing (`pass`) at the cost of the others
 * (`resident_pass`), so that the layer's own KV need not come back for each chunk. A sliding layer
 * holds the tiles its next query can still see, of which the newest `resident_sliding` lie on the
 * device.
 *
 *      0        first       disk_end         begin                 end        tiles of one layer
 *      | dropped  | disk        | host         | device              |
 *        (sliding)   streamed     streamed       read in place
 *
 * Where old tiles are kept in another format (`aged`), all this is about the aged tiles of full
 * layers, [1, E(n)) with n tokens held (quant/residual.h): E(n) stands for `end`, and the first
 * tile there is 1. What is exact then lies on the device and has its own line, spw_waterline_near.
 *
 * All counts are tiles, all positions tokens. No state, no failure, any thread. */
#ifndef SPW_OFFLOAD_KV_WATERLINE_H
#define SPW_OFFLOAD_KV_WATERLINE_H

#include "quant/residual.h"

/* Exact tiles before those that are read, which let a sequence be cut back a little. */
enum { SPW_WATERLINE_SLACK = 1 };

/* How many tiles of one layer a sequence may keep on the device. Fixed by the plan. */
struct spw_residency {
    uint32_t resident;         /* a full layer, between steps; at least 1 */
    uint32_t resident_pass;    /* a full layer that waits while a prompt passes; 1..resident */
    uint32_t pass;             /* the full layer a prompt passes; at least resident_pass */
    uint32_t resident_sliding; /* a sliding layer; at least 1 */
    uint32_t window;           /* keys a sliding query sees, itself included; 0: no such layers */
    /* Newest copies below that lie on the host, of a full and of a sliding layer; older ones lie on
     * disk. UINT32_MAX: all of them on the host. */
    uint32_t host, host_sliding;
    bool aged;               /* old tiles of full layers are kept apart */
    uint32_t residual_tiles; /* then: the window that is read exactly */
};

/* Tiles that hold n tokens. */
static inline uint32_t spw_waterline_tiles(uint64_t n_tokens)
{
    return (uint32_t)spw_div_up(n_tokens, SPW_TILE_TOKENS);
}

/* With n tokens held: the end of the tiles of a full layer that waterlines are about, and the
 * first of them. */
uint32_t spw_waterline_end(const struct spw_residency *r, uint64_t n_tokens);
static inline uint32_t spw_waterline_start(const struct spw_residency *r)
{
    return r->aged;
}

/* The first exact tile that is kept beside tile 0 by a full layer of n tokens whose old tiles are
 * kept apart; and the most exact tiles that such a layer holds between steps. */
uint32_t spw_waterline_near(const struct spw_residency *r, uint64_t n_tokens);
uint32_t spw_waterline_near_tiles(uint32_t residual_tiles);

/* The first tile a sliding query at `position` can see. */
uint32_t spw_waterline_first(uint32_t window, uint64_t position);
/* The most tiles a sliding layer of this window holds between steps. */
uint32_t spw_waterline_window_tiles(uint32_t window);

/* Between steps, with n tokens held: the first tile on the device. */
uint32_t spw_waterline_begin(const struct spw_residency *r, bool sliding, uint64_t n_tokens);

/* The first tile whose copy below is on the host; those before it are on disk. In a sliding layer
 * tiles before the layer's first are nowhere. */
uint32_t spw_waterline_disk(const struct spw_residency *r, bool sliding, uint32_t written);

/* The part of a step that concerns one sequence: [from, to) new tokens, in one chunk or several. */
struct spw_passage {
    uint64_t from, to;
    uint32_t begin;   /* first device tile of a full layer when the step starts */
    uint32_t written; /* the highest that ever was; 0 where nobody asks what lies on disk */
    bool chunked;     /* more than one chunk */
};

/* A full layer before its first chunk: higher than passage.begin frees memory for the layers that
 * pass first, lower brings tiles back for all chunks at once. */
uint32_t spw_waterline_wait(const struct spw_residency *r, const struct spw_passage *p);
uint32_t spw_waterline_enter(const struct spw_residency *r, const struct spw_passage *p);
/* While the layer passes and n tokens lie in it: the first tile on the device. */
uint32_t spw_waterline_pass(const struct spw_residency *r, const struct spw_passage *p, uint64_t n);
/* When its last chunk has passed, before the step ends. */
uint32_t spw_waterline_leave(const struct spw_residency *r, const struct spw_passage *p);

#endif
