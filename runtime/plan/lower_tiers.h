/* The part of a plan below the device: copies of KV tiles on the host and on disk, and the buffers
 * between these two tiers. Pure functions of the residency and the input, for this folder only.
 *
 * The copies of a session have ranks. Copies of sliding layers come first: these layers drop tiles
 * soon, and writing them to disk would be in vain. Then come the copies of full layers, the newest
 * first. The first `n` ranks lie on the host, the others on disk. So with a higher n the host needs
 * more frames and the disk fewer.
 *
 * Where more sessions may be open than can be as long as the context (full_sessions), each may get
 * less of the device and of the host than the plan counts, and a tile on disk stays there. So the
 * lowest tier in use has room for all tiles. */
#ifndef SPW_RUNTIME_PLAN_LOWER_TIERS_H
#define SPW_RUNTIME_PLAN_LOWER_TIERS_H

#include "runtime/plan/plan.h"

/* The most tiles of one slice of one session that have a copy in a lower tier. */
struct spw_lower {
    uint32_t full, sliding;
    uint32_t shared_most; /* of a sliding layer whose tiles other sessions share and hold longer */
    uint32_t all;         /* how many ranks there are */
};

/* Of a session that holds at most these tiles in a slice of each kind, with this residency.
 * chunked: its prompt may pass a layer in several chunks. shares_tiles: with other sessions. */
void spw_lower_of(struct spw_lower *b, const struct spw_plan *p,
                  const struct spw_residency kinds[SPW_LAYER_KINDS], uint32_t full_tiles,
                  uint32_t window_tiles, bool chunked, bool shares_tiles);
/* The same of a session as long as the context, with the residency of the plan. */
void spw_lower_count(struct spw_lower *b, const struct spw_plan *p,
                     const struct spw_plan_input *in);
/* Host frames of the first n ranks of one session; and the most ranks that these frames hold. */
uint64_t spw_lower_host_frames(const struct spw_lower *b, const struct spw_plan *p, uint32_t n);
uint32_t spw_lower_most_ranks(const struct spw_lower *b, const struct spw_plan *p, uint64_t frames);
/* The first n ranks lie on the host. */
void spw_lower_set_host(struct spw_residency kinds[SPW_LAYER_KINDS], const struct spw_plan *p,
                        const struct spw_lower *b, uint32_t n);
/* The least n with which the disk has room for the other ranks. */
uint32_t spw_lower_least(const struct spw_lower *b, const struct spw_plan *p,
                         const struct spw_plan_input *in);
/* Places n ranks on the host, with the smallest buffers between host and disk. */
void spw_lower_place(struct spw_plan *p, const struct spw_plan_input *in, const struct spw_lower *b,
                     uint32_t n);
/* Spends `room` more bytes of the host: first on larger buffers, then on more ranks than n. */
void spw_lower_grow(struct spw_plan *p, const struct spw_plan_input *in, const struct spw_lower *b,
                    uint32_t n, uint64_t room);

#endif
