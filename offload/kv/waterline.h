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
 * Between steps a layer has its newest `resident` tiles on the device. If a prompt passes a layer
 * in several chunks, more tiles of this layer stay on the device (`pass`) and fewer of the waiting
 * layers (`resident_pass`): then the tiles of this layer are not loaded for each chunk. A layer
 * with a window has only tiles that its next query can still see.
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

/* Exact tiles that stay before those that queries read. With them a sequence can be cut back a
 * little. */
enum { SPW_WATERLINE_SLACK = 1 };

/* The tiles of one layer that a sequence may have in each tier. The plan sets one of these for each
 * layer kind. */
struct spw_residency {
    enum spw_layer_store store; /* of the kind */
    struct spw_window window;
    uint32_t resident;      /* on the device between steps; at least 1 */
    uint32_t resident_pass; /* while a prompt passes other layers; 1..resident */
    uint32_t pass;          /* while a prompt passes this layer; at least resident_pass */
    uint32_t host;  /* copies on the host: the newest ones; older ones are on disk. UINT32_MAX: all
                       are on the host */
    bool quantizes; /* old tiles are quantized */
    uint32_t residual_tiles; /* the residual window, which is read exactly */
    bool fixed;              /* no tile leaves the device before it is dropped */
    bool held; /* while a pass is in a layer, no tile of the layer leaves the device */
};

/* The number of tiles of n tokens. */
static inline uint32_t spw_waterline_tiles(uint64_t n_tokens)
{
    return (uint32_t)spw_div_up(n_tokens, SPW_TILE_TOKENS);
}

/* For a length of n tokens: the end and the first of the tiles that move between the tiers. */
uint32_t spw_waterline_end(const struct spw_residency *r, uint64_t n_tokens);
static inline uint32_t spw_waterline_first_tiered(const struct spw_residency *r)
{
    return r->quantizes;
}

/* The same end in layers whose old tiles are quantized, of residencies by kind; 0: no layer
 * quantizes. */
uint32_t spw_waterline_old_end(const struct spw_residency kinds[SPW_LAYER_KINDS],
                               uint64_t n_tokens);

/* The first tile that a query at `position` can see through a window; the most tiles that a layer
 * with this window has between steps. */
uint32_t spw_waterline_window_first(struct spw_window window, uint64_t position);
uint32_t spw_waterline_window_tiles(struct spw_window window);
/* The first tile that a query at `position` of a layer of this kind can see. */
uint32_t spw_waterline_first_visible(const struct spw_residency *r, uint64_t position);
/* The last position from which this tile is still the first one; UINT64_MAX: it stays visible. */
uint64_t spw_waterline_visible_until(const struct spw_residency *r, uint64_t position);

/* The first tile that queries from position n on read exactly, beside a sink. */
uint32_t spw_waterline_first_read_exact(const struct spw_residency *r, uint64_t n_tokens);
/* For a length of n tokens: the first exact tile that stays, beside tile 0 of a layer that
 * quantizes; and the most exact tiles that a layer that quantizes has between steps. */
uint32_t spw_waterline_first_exact(const struct spw_residency *r, uint64_t n_tokens);
uint32_t spw_waterline_exact_tiles(uint32_t residual_tiles);

/* Between steps, for a length of n tokens: the first tile on the device. */
uint32_t spw_waterline_begin(const struct spw_residency *r, uint64_t n_tokens);

/* The first tile whose copy is on the host, where `written` is the highest `begin` so far; older
 * copies are on disk. In a layer with a window, tiles before the layer's first have no copy. */
uint32_t spw_waterline_disk_end(const struct spw_residency *r, uint32_t written);

/* The part of one session in a pass: [from, to) new tokens, in one chunk or several. */
struct spw_pass_span {
    uint64_t from, to;
    bool chunked; /* more than one chunk */
};

/* The first tile on the device: while the layer waits for the pass, and when the pass reaches the
 * layer, whose chunks all read the tiles that are loaded then. */
struct spw_span_tiles {
    uint32_t wait, enter;
};

/* Where tiles lie while new tokens [from, to) of a span pass the layer in one chunk: queries see no
 * tile before `first`; tiles [first, begin) are read from lower tiers, later ones are on the
 * device. After the chunk exact tiles before `drop` are dropped, and tiles before `after` leave the
 * device. If tiles are held, those of all chunks leave it after the last one. */
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
