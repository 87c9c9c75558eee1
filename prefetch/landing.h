/* The KV slots of the device: how the tiles of a transfer come into one, from host and disk.
 *
 * issue -> wait -> (kernels) -> release, in one order, as in ring.h. Tiles on the host are copied
 * on `link` when they are issued. Tiles on the disk are read into the slot itself (direct), or into
 * a bounce slot in host memory and copied from there when they have landed. The host waits in
 * `wait` only. A tile that cannot be read makes that wait -EBADMSG, and is noted as a loss with
 * its sequence. Borrows arenas, streams and disk; one host thread. */
#ifndef SPW_PREFETCH_LANDING_H
#define SPW_PREFETCH_LANDING_H

#include "prefetch/ring.h"
#include "prefetch/schedule.h"

struct spw_landing_options {
    const struct spw_device_ops *ops;
    struct spw_device *device;
    spw_stream compute, link;
    void *arena; /* [n_slots][slot_tiles][tile_bytes] */
    uint64_t tile_bytes;
    uint32_t n_slots, slot_tiles;
    struct spw_disk *disk; /* NULL: none */
    spw_stream disk_stream;
    void *bounce_arena; /* [n_bounce][slot_tiles][tile_bytes] of host memory */
    uint32_t n_bounce;  /* 0: direct */
};

struct spw_landing_slot; /* landing.c */

struct spw_landing {
    struct spw_landing_options o;
    struct spw_ring ring;
    struct spw_landing_slot *slots; /* [n_slots], owned */
    struct spw_landing_read *reads; /* [n_slots * slot_tiles], owned: slot_tiles of each slot */
    spw_event *bounce_free;         /* [n_bounce], owned: copied from */
    uint64_t bounced, passed_on;    /* bounce slots so far; of the n-th: n % n_bounce */
};

/* `o` is given. */
int spw_landing_init(struct spw_landing *l, const struct spw_landing_options *o);
void spw_landing_free(struct spw_landing *l); /* waits for reads */

/* Whether there is a slot, and the tiles can be read without waiting, from where they are to come.
 */
bool spw_landing_can_issue(const struct spw_landing *l, const struct spw_transfer *t);
/* There must be a slot; waits on the host for tiles that are still being written to the disk. */
int spw_landing_issue(struct spw_landing *l, const struct spw_transfer *t);
/* The oldest that was issued: compute waits for it. */
int spw_landing_wait(struct spw_landing *l, uint8_t **slot);
int spw_landing_release(struct spw_landing *l);
/* Gives up what was issued and not waited for; waits until no read is under way. */
void spw_landing_drop(struct spw_landing *l);
/* Whether the n-th transfer, of [ring.waited, ring.issued), is `t` and was brought from where `t`
 * is to come from. */
bool spw_landing_holds(const struct spw_landing *l, uint64_t n, const struct spw_transfer *t);
/* Waits until no read is under way, and changes nothing else. */
void spw_landing_finish(struct spw_landing *l);
/* The number of the first transfer that has not landed whole, or has failed. */
uint64_t spw_landing_landed(const struct spw_landing *l);

#endif
