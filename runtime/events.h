/* What an engine reports: spw_engine_event (spillway.h) gives these events, in the order in which
 * things happened. Part of the public API.
 *
 * A batch has events of its own (struct spw_event): they point into the batch, and go with its next
 * step. Events of an engine are copies, and also come from calls without a batch: opening, other
 * budgets, keeping a prefix. */
#ifndef SPW_RUNTIME_EVENTS_H
#define SPW_RUNTIME_EVENTS_H

#include "base/types.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* What gave way when memory did not suffice. Only the precisions change answers. */
enum spw_fallback_kind {
    SPW_FALLBACK_BUDGETS, /* less spare memory */
    SPW_FALLBACK_CHUNK,   /* a smaller prefill chunk */
    SPW_FALLBACK_SLOTS,   /* fewer prefetch slots */
    SPW_FALLBACK_WEIGHTS, /* fewer layers' weights on the device */
    SPW_FALLBACK_HOST,    /* more KV on the host */
    SPW_FALLBACK_DISK,    /* more KV on disk */
    SPW_FALLBACK_INT8,    /* old KV as int8, as int8:int4, as int4 */
    SPW_FALLBACK_INT8_INT4,
    SPW_FALLBACK_INT4,
    SPW_FALLBACK_UP, /* higher budgets: old KV has more precision again */
};

struct spw_fallback {
    enum spw_fallback_kind kind;
    const char *failed; /* a constant: "device budget" (too small), "device memory" (refused) */
    uint64_t position;  /* tokens that the longest session held */
    uint64_t bytes_asked, bytes_freed; /* of what failed; freed: it needs so much less now */
    /* Tokens whose KV is computed again. 0: all KV was kept. If KV that was kept has another
     * precision now, it had the old one up to `position`; else it has the new one from the first
     * token on. */
    uint64_t n_recomputed;
    /* INT8 to INT4: the first token of a session that reads old KV with this precision; of several
     * sessions the least. Logits before it are exact, unless an earlier fallback or an option took
     * precision from them. 0 for other kinds. */
    uint64_t lossy_from;
};
/* "int8 for old KV" */
const char *spw_fallback_name(enum spw_fallback_kind kind);

/* A tile that could not be read back from disk as it was written. Its tokens are computed again. */
struct spw_lost_tile {
    int error;             /* -EBADMSG: the checksum; else what the drive said */
    uint32_t layer;        /* of the tile */
    uint64_t position;     /* its first token */
    uint64_t n_recomputed; /* tokens whose KV was cut off and is computed again */
};

/* A session begins with a prefix from the prefix cache. */
struct spw_reuse {
    uint64_t n_tokens, n_asked; /* found; of the whole sequence */
    uint64_t bytes;             /* of their KV, read where it lies or as the session begins */
};

enum spw_engine_event_kind {
    SPW_ENGINE_FALLBACK,  /* memory did not suffice */
    SPW_ENGINE_LOST_TILE, /* a tile could not be read back from disk */
    SPW_ENGINE_REUSE,     /* a session begins with a prefix from the prefix cache */
    SPW_ENGINE_NOTE, /* the prefix cache is damaged or cannot take more: no answer depends on it */
};

/* The engine keeps so many events, the newest ones. */
enum { SPW_ENGINE_EVENTS_KEPT = 64 };

struct spw_engine_event {
    enum spw_engine_event_kind kind;
    uint64_t n_missed; /* events before this one that nobody read in time: they are lost */
    struct spw_fallback fallback;
    struct spw_lost_tile lost_tile;
    struct spw_reuse reuse;
    char text[1024]; /* NOTE: one line */
};

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
