/* Waterlines as pure functions: see waterline.h. */
#include "offload/kv/waterline.h"

static uint32_t less(uint32_t a, uint32_t b)
{
    return a > b ? a - b : 0;
}

uint32_t spw_waterline_end(const struct spw_residency *r, uint64_t n_tokens)
{
    if (r->store != SPW_STORE_TILES)
        return 0;
    if (!r->quantizes)
        return spw_waterline_tiles(n_tokens);
    return (uint32_t)spw_residual_end(spw_residual_block(n_tokens), r->residual_tiles);
}

uint32_t spw_waterline_old_end(const struct spw_residency kinds[SPW_LAYER_KINDS], uint64_t n_tokens)
{
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        if (kinds[k].quantizes)
            return spw_waterline_end(&kinds[k], n_tokens);
    return 0;
}

uint32_t spw_waterline_window_first(struct spw_window window, uint64_t position)
{
    return (uint32_t)(spw_window_first(window, position) / SPW_TILE_TOKENS);
}

uint32_t spw_waterline_window_tiles(struct spw_window window)
{
    /* tokens - 1 old keys, which begin at a multiple of the step: at most so far inside a tile */
    uint32_t inside = SPW_TILE_TOKENS - spw_min_u32(window.step & -window.step, SPW_TILE_TOKENS);
    return (uint32_t)spw_div_up((uint64_t)inside + window.tokens - 1, SPW_TILE_TOKENS);
}

uint32_t spw_waterline_first_visible(const struct spw_residency *r, uint64_t position)
{
    return spw_waterline_window_first(r->window, position);
}

uint64_t spw_waterline_visible_until(const struct spw_residency *r, uint64_t position)
{
    const struct spw_window w = r->window;
    const uint64_t first = spw_waterline_first_visible(r, position);
    const uint64_t last = first * SPW_TILE_TOKENS + SPW_TILE_TOKENS - 1; /* key of the tile */
    return w.tokens ? last - last % spw_max_u32(w.step, 1) + w.tokens - 1 : UINT64_MAX;
}

uint32_t spw_waterline_first_read_exact(const struct spw_residency *r, uint64_t n_tokens)
{
    return r->quantizes ? spw_waterline_end(r, n_tokens) : spw_waterline_first_visible(r, n_tokens);
}

uint32_t spw_waterline_first_exact(const struct spw_residency *r, uint64_t n_tokens)
{
    if (!r->quantizes)
        return spw_waterline_first_visible(r, n_tokens);
    return spw_max_u32(less(spw_waterline_end(r, n_tokens), SPW_WATERLINE_SLACK), 1);
}

uint32_t spw_waterline_exact_tiles(uint32_t residual_tiles)
{
    return 1 + SPW_WATERLINE_SLACK + residual_tiles + 1; /* the sink; the tail */
}

/* The `begin` of a layer of n tokens that has its newest `count` tiles on the device. */
static uint32_t begin_of(const struct spw_residency *r, uint64_t n_tokens, uint32_t count)
{
    uint32_t least =
        spw_max_u32(spw_waterline_first_tiered(r), spw_waterline_first_visible(r, n_tokens));
    return spw_max_u32(less(spw_waterline_end(r, n_tokens), count), least);
}

uint32_t spw_waterline_begin(const struct spw_residency *r, uint64_t n_tokens)
{
    return begin_of(r, n_tokens, r->resident);
}

uint32_t spw_waterline_disk_end(const struct spw_residency *r, uint32_t written)
{
    return spw_max_u32(less(written, r->host), spw_waterline_first_tiered(r));
}

/* ---- a pass ---- */

struct spw_span_tiles spw_waterline_span(const struct spw_residency *r,
                                         const struct spw_pass_span *p)
{
    uint32_t wait = begin_of(r, p->from, p->chunked ? r->resident_pass : r->resident);
    uint32_t enter = p->chunked ? spw_min_u32(wait, begin_of(r, p->to, r->pass)) : wait;
    return (struct spw_span_tiles){wait, enter};
}

/* The first tile on the device while chunks pass the layer, at a length of n tokens. With `held` no
 * tile leaves the device meanwhile: it is the first tile from when the layer was entered. */
static uint32_t begin_passing(const struct spw_residency *r, const struct spw_pass_span *p,
                              uint64_t n_tokens)
{
    uint32_t enter = spw_waterline_span(r, p).enter;
    return p->chunked && !r->held ? spw_max_u32(enter, begin_of(r, n_tokens, r->pass)) : enter;
}

/* The first tile on the device after the last chunk, until the pass ends. */
static uint32_t begin_left(const struct spw_residency *r, const struct spw_pass_span *p)
{
    uint32_t count = p->chunked ? r->resident_pass : r->resident;
    return spw_max_u32(begin_passing(r, p, p->to), begin_of(r, p->to, count));
}

struct spw_part_tiles spw_waterline_part(const struct spw_residency *r,
                                         const struct spw_pass_span *p, uint64_t from, uint64_t to)
{
    return (struct spw_part_tiles){
        .first = spw_max_u32(spw_waterline_first_tiered(r), spw_waterline_first_visible(r, from)),
        .begin = begin_passing(r, p, from),
        .drop = spw_waterline_first_exact(r, to),
        .after = to < p->to ? begin_passing(r, p, to) : begin_left(r, p),
    };
}
