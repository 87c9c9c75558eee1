/* In which tier the tiles of a sequence are, as pure functions of positions.
 *
 * The tiles of one layer, in the order of positions:
 *
 *      0        first       disk_end         begin                 end
 *      | dropped  | disk        | host         | device              |
 *        (window)    streamed     streamed       read in place
 *
 * Tiles are spilled as they become old: tiles [begin, end) are on the device, older ones on the
 * host, and those before `disk_end` on disk. A tile that is loaded keeps its copy in the lower
 * tier. So tiles [0, written) have copies, where `written` is the highest `begin` that the layer
 * ever had.
 *
 * Between steps a layer has its newest `resident` tiles on the device. While a prompt passes a
 * layer in several chunks, more tiles of this layer stay on the device (`pass`), so that they are
 * not loaded for each chunk, and fewer tiles of the other layers (`resident_pass`). A layer with a
 * window has only the tiles that its next query can still see.
 *
 * If old tiles are quantized (`quantizes`), all this applies to the quantized tiles, [1, E(n)) for
 * a length of n tokens (quant/residual.h): E(n) is `end`, and the first tile is 1. The exact tiles
 * are on the device, from spw_waterline_first_exact on.
 *
 * All counts are tiles, all positions tokens. No state, no failure, any thread. */
#ifndef SPW_OFFLOAD_KV_WATERLINE_H
#define SPW_OFFLOAD_KV_WATERLINE_H

#include "quant/layer_kind.h"
#include "quant/residual.h"

/* In a layer that quantizes: exact tiles that stay although queries read them in the quantized form
 * already. With them a sequence can be cut back by so many tiles. */
enum { SPW_WATERLINE_SLACK = 1 };

/* The tiles of one layer that a sequence may have in each tier. The plan sets one of these for each
 * layer kind. */
struct spw_residency {
    enum spw_layer_store store; /* the store of the kind */
    struct spw_window window;
    uint32_t resident;      /* on the device between steps; at least 1 */
    uint32_t resident_pass; /* while a prompt passes other layers; 1..resident */
    uint32_t pass;          /* while a prompt passes this layer; at least resident_pass */
    uint32_t host;  /* copies on the host: the newest ones; older ones are on disk. UINT32_MAX: all
                       are on the host */
    bool quantizes; /* old tiles are quantized */
    uint32_t residual_tiles; /* the residual window: so many newest tiles are read exactly */
    bool fixed;              /* no tile leaves the device before it is dropped */
    /* Other layers read the tiles of a layer: its tiles are spilled after the last of those layers,
     * and until then none of them leaves the device (holds_tiles in plan.h) */
    bool held;
};

/* The number of tiles of n tokens. */
static inline uint32_t spw_waterline_tiles(uint64_t n_tokens)
{
    return (uint32_t)spw_div_up(n_tokens, SPW_TILE_TOKENS);
}

/* For a length of n tokens: the end and the first of the tiles that move between the tiers: [first,
 * end). */
uint32_t spw_waterline_end(const struct spw_residency *r, uint64_t n_tokens);
static inline uint32_t spw_waterline_first_tiered(const struct spw_residency *r)
{
    return r->quantizes;
}

/* The same end in the layers that quantize. kinds: by layer kind. 0: no layer quantizes. */
uint32_t spw_waterline_old_end(const struct spw_residency kinds[SPW_LAYER_KINDS],
                               uint64_t n_tokens);

/* The first tile that a query at `position` can see through a window; the most tiles that a layer
 * with this window has between steps. */
uint32_t spw_waterline_window_first(struct spw_window window, uint64_t position);
uint32_t spw_waterline_window_tiles(struct spw_window window);
/* The first tile that a query at `position` of a layer of this kind can see. */
uint32_t spw_waterline_first_visible(const struct spw_residency *r, uint64_t position);
/* The last position whose queries see the same first tile as queries at `position`; UINT64_MAX:
 * there is no window. */
uint64_t spw_waterline_visible_until(const struct spw_residency *r, uint64_t position);

/* The first tile, after the sink, that queries from position n on read in the exact form. */
uint32_t spw_waterline_first_read_exact(const struct spw_residency *r, uint64_t n_tokens);
/* For a length of n tokens: the first exact tile that is not dropped, after the sink of a layer
 * that quantizes; and the most exact tiles that such a layer has between steps. */
uint32_t spw_waterline_first_exact(const struct spw_residency *r, uint64_t n_tokens);
uint32_t spw_waterline_exact_tiles(uint32_t residual_tiles);

/* Between steps, for a length of n tokens: the first tile on the device. */
uint32_t spw_waterline_begin(const struct spw_residency *r, uint64_t n_tokens);

/* The first tile whose copy is on the host; older copies are on disk. written: the highest `begin`
 * that the layer ever had. In a layer with a window, dropped tiles have no copy. */
uint32_t spw_waterline_disk_end(const struct spw_residency *r, uint32_t written);

/* The part of one session in a pass: [from, to) new tokens, in one chunk or several. */
struct spw_pass_span {
    uint64_t from, to;
    bool chunked; /* more than one chunk */
};

/* The first tile of a layer on the device during a pass: `wait` before the pass reaches the layer;
 * `enter` when its first chunk begins. So tiles [enter, wait) are loaded once, and all chunks read
 * them in place. */
struct spw_span_tiles {
    uint32_t wait, enter;
};

/* Where the tiles of a layer lie while new tokens [from, to) of a span pass the layer in one chunk.
 * Queries see no tile before `first`. They read tiles [first, begin) from lower tiers, and later
 * ones on the device. After the chunk, exact tiles before `drop` are dropped, and tiles before
 * `after` leave the device. With `held`, that happens for all chunks after the last one. */
struct spw_part_tiles {
    uint32_t first, begin, drop, after;
};

/* A pass computes both once, before it begins (runtime/step/step.c). Whoever reads, moves or
 * schedules tiles gets them from there. */
struct spw_span_tiles spw_waterline_span(const struct spw_residency *r,
                                         const struct spw_pass_span *p);
struct spw_part_tiles spw_waterline_part(const struct spw_residency *r,
                                         const struct spw_pass_span *p, uint64_t from, uint64_t to);

#endif
