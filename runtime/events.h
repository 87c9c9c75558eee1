/* What an engine reports: spw_engine_event (spillway.h) gives these events, in the order in which
 * things happened. Part of the public API.
 *
 * A batch has events of its own (struct spw_event): they point into the batch, and its next step
 * drops them. Events of an engine are copies. They also come from calls without a batch: opening an
 * engine, changing budgets, publishing a prefix. */
#ifndef SPW_RUNTIME_EVENTS_H
#define SPW_RUNTIME_EVENTS_H

#include "base/types.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The fallbacks of an engine when memory does not suffice. Only those that change the precision
 * change answers. */
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
    uint64_t position;  /* tokens that the longest session held before */
    uint64_t bytes_asked,
        bytes_freed; /* of the tier that failed; freed: how many bytes less it needs now */
    /* Tokens of all sessions that are computed again. 0: all KV stays. Of one session the first
     * position - n_recomputed tokens stay: if KV has another precision now, they were computed with
     * the old precision. */
    uint64_t n_recomputed;
    /* INT8 to INT4: the first token of a session that reads old KV with this precision; of several
     * sessions the least. Logits before it are exact, unless an earlier fallback or an option has
     * lowered the precision. 0 for other kinds. */
    uint64_t lossy_from;
};
/* "int8 for old KV" */
const char *spw_fallback_name(enum spw_fallback_kind kind);

/* A tile on disk that could not be read, or whose checksum was wrong. Its tokens are computed
 * again. */
struct spw_lost_tile {
    int error;             /* -EBADMSG: the checksum; else the error of the drive */
    uint32_t layer;        /* of the tile */
    uint64_t position;     /* its first token */
    uint64_t n_recomputed; /* tokens whose KV was cut off and is computed again */
};

/* A session begins with a prefix from the prefix cache. */
struct spw_reuse {
    uint64_t n_tokens, n_asked; /* tokens that were found; tokens of the whole sequence */
    uint64_t bytes; /* of their KV, streamed from the files or loaded at the beginning */
};

enum spw_engine_event_kind {
    SPW_ENGINE_FALLBACK,  /* memory did not suffice */
    SPW_ENGINE_LOST_TILE, /* a tile could not be read back from disk */
    SPW_ENGINE_REUSE,     /* a session begins with a prefix from the prefix cache */
    SPW_ENGINE_NOTE,      /* the prefix cache is damaged or full; answers do not depend on it */
};

/* The engine stores the newest events, at most this many. */
enum { SPW_ENGINE_EVENTS_KEPT = 64 };

struct spw_engine_event {
    enum spw_engine_event_kind kind;
    uint64_t n_missed; /* events before this one that were dropped, because the caller did not read
                          them in time */
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
