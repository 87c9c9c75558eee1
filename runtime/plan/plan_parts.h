/* The parts that a plan is made of, for plan*.c and lower_tiers.c only; pure. plan.c asks for
 * tries, plan_fit.c divides a device and what is below it, plan_kv.c says what tiles need and cost,
 * plan_layout.c where everything lies. */
#ifndef SPW_RUNTIME_PLAN_PLAN_PARTS_H
#define SPW_RUNTIME_PLAN_PLAN_PARTS_H

#include "runtime/plan/lower_tiers.h"

enum {
    SPW_PLAN_MOST_FRAMES = INT32_MAX,
    SPW_PLAN_SLOTS = 3, /* of KV: one is read, one lands, one waits to be released */
};

static inline uint64_t spw_plan_pages(uint64_t bytes)
{
    return spw_align_up(bytes, 4096);
}

/* Rows of one pass at most: all there can be. A prompt that is ended keeps what has passed all
 * layers, so that where it may go to a file it goes in passes of about a minute. */
static inline uint64_t spw_plan_most_rows(const struct spw_plan_input *in)
{
    uint64_t all = in->sessions * in->context;
    return in->keeps && in->kept_rows ? spw_min_u64(all, in->kept_rows) : all;
}

/* ---- plan.c ---- */

/* What the plan begins with: sizes of the model and of its tiles. */
void spw_plan_start(struct spw_plan *p, const struct spw_plan_input *in);

/* ---- plan_kv.c ---- */

/* Frames of tiles that move between tiers. */
struct spw_plan_need {
    uint64_t extra;        /* for the tiles that one chunk adds to a layer */
    uint64_t all;          /* with everything on the device */
    uint64_t least;        /* one tile a layer and session */
    uint64_t passing;      /* with one whole layer beside that */
    uint32_t window_tiles; /* of a sliding layer */
};

struct spw_plan_need spw_plan_kv_need(const struct spw_plan *p, const struct spw_plan_input *in);
uint32_t spw_plan_exact_frames(const struct spw_plan *p, const struct spw_plan_input *in);
uint64_t spw_plan_exact_bytes(const struct spw_plan *p);
/* What the device must have besides if plan.may_pin. */
uint64_t spw_plan_pinned_bytes(const struct spw_plan *p, const struct spw_plan_input *in);
/* Sets the residency of the kinds: how the frames of the device are divided between sessions and
 * layers. Sessions pin nothing where sliding layers stream. */
void spw_plan_divide_frames(struct spw_plan *p, const struct spw_plan_input *in,
                            const struct spw_plan_need *need, uint64_t frames);
/* Tiles of one layer that lie on disk when all of `b` lie in lower tiers. */
uint32_t spw_plan_tiles_on_disk(const struct spw_plan *p, const struct spw_lower *b,
                                enum spw_layer_kind kind);
/* What a decode step at the full context costs the link, in bytes: of KV; of weights too; and what
 * of KV comes up while weights are read. */
uint64_t spw_plan_kv_cost(const struct spw_plan *p, const struct spw_plan_input *in);
uint64_t spw_plan_link_cost(const struct spw_plan *p, const struct spw_plan_input *in);
uint64_t spw_plan_hidden_cost(const struct spw_plan *p, const struct spw_plan_input *in);

/* ---- plan_layout.c ---- */

/* Everything but weights and KV. `hidden_rows`: of the hidden states on the device. Then the rest.
 */
void spw_plan_lay_out_work(struct spw_plan *p, const struct spw_plan_input *in,
                           uint64_t hidden_rows);
void spw_plan_lay_out_rest(struct spw_plan *p, const struct spw_plan_input *in);
bool spw_plan_fits(const struct spw_plan *p, const struct spw_plan_input *in);
/* Bytes of blocks that `is` holds for, each on a page. */
uint64_t spw_plan_bytes_of(const struct spw_plan *p, const struct spw_weights *w,
                           bool (*is)(const struct spw_plan *, const struct spw_weights *,
                                      uint32_t));
void spw_plan_describe(struct spw_plan *p, const struct spw_plan_input *in);

/* ---- plan_fit.c ---- */

/* With the hidden states of `rows` rows on the device, or (0) two chunks there, the rest below. Of
 * two divisions the one that decode streams less with. */
bool spw_plan_try_hidden(struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows);
/* The same division with n resident blocks and what that leaves for tiles; false if it does not
 * fit.
 */
bool spw_plan_take_blocks(struct spw_plan *p, const struct spw_plan_input *in, uint32_t n_resident,
                          uint64_t rows);
/* Divides host and disk. Either the disk takes what it has room for and the host what it can hold
 * beside that, or all copies lie on the host and no buffers between the two are needed. */
bool spw_plan_divide_below(struct spw_plan *p, const struct spw_plan_input *in, uint64_t rows);

#endif
