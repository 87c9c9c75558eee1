/* The engine's inside, shared by engine.c and session.c. */
#ifndef SPW_RUNTIME_ENGINE_ENGINE_H
#define SPW_RUNTIME_ENGINE_ENGINE_H

#include "model/fingerprint.h"
#include "runtime/engine/cache_policy.h"
#include "runtime/measure.h"
#include "runtime/step/executor.h"
#include "runtime/engine/ladder.h"

enum spw_engine_stream {
    SPW_STREAM_COMPUTE,
    SPW_STREAM_KV_UP, /* tiles that come back */
    SPW_STREAM_WEIGHTS_UP,
    SPW_STREAM_HIDDEN_UP, /* embeddings and hidden states */
    SPW_STREAM_DOWN,      /* spilled tiles, hidden states */
    SPW_STREAM_DISK,      /* no work: orders what is asked of the disk behind other streams */
    SPW_STREAM_COUNT,
};

/* What a source says, before anything is loaded. */
struct spw_model {
    struct spw_source *source;
    struct spw_model_config config;
    struct spw_tensors *tensors;
    struct spw_weights *weights;
    enum spw_dtype compute;
    struct spw_cache_policy cache;
};

int spw_model_open(struct spw_model *m, const char *path, const struct spw_options *o,
                   struct spw_error *err);
void spw_model_close(struct spw_model *m);

struct spw_block_context {
    const struct spw_weights *weights;
    uint32_t block;
    struct spw_piece packed;                     /* in the host arena, if it has one */
    struct spw_block_read reads[SPW_FILE_PARTS]; /* if it comes from disk */
    uint64_t landed[SPW_FILE_PARTS];
};

/* One of the model's files, as blocks are read from it; fd -1: none is. */
struct spw_weight_file {
    int fd;
    struct spw_io_file io;
};

struct spw_session {
    struct spw_engine *engine;
    struct spw_sequence seq;
    uint64_t most_tokens;                            /* that it may hold */
    struct spw_residency residency[SPW_LAYER_KINDS]; /* its share of the frames: seq borrows it */
    int32_t *tokens;                                 /* [most_tokens], the ones held */
    uint64_t n_tokens, reused;
    float *logits;                  /* [vocab], host arena, borrowed */
    uint64_t from_store;            /* of those reused, by the latest sync */
    uint64_t n_attached;            /* of those held, from the prefix cache by any sync */
    struct spw_prefix_found *found; /* owned; prefix.c's, while a sync runs */
    bool ends;                      /* with the next step: no further token is expected */
    bool has_logits;                /* of the last token held */
    bool cached;                    /* the cache holds them; else all are computed again */
    bool mixed;                 /* and they were computed before old KV lost precision, and after */
    uint64_t rope_table;        /* of the keys: spw_rope_table() */
    uint32_t slot;              /* in engine.sessions */
    struct spw_save_file *file; /* owned; that it is saved to, or NULL: save_file.h */
};

/* What engine_limit.c knows of the control groups' limits. */
struct spw_limit_watch {
    uint64_t limit_bytes; /* the lowest limit so far; UINT64_MAX: there is none */
    double checked_at;    /* seconds of spw_now_seconds */
    bool soft;            /* memory.high counts, too: the caller gave no budget */
    bool memory_short;    /* a lowered limit leaves too little memory: the step must end */
};

/* Without memory (executor is NULL) only while it could not be taken: see engine_budgets.c. */
struct spw_engine {
    struct spw_model model;
    struct spw_options options; /* what they point to is below */
    char *disk_dir, *prefix_cache_dir;
    struct spw_machine machine;
    struct spw_drive drive;
    struct spw_plan plan;
    struct spw_plan_input in; /* it was made from these */
    struct spw_backend backend;
    struct spw_device *device;
    char note[1024];   /* see spw_engine_note */
    char io_text[256]; /* see spw_engine_io */
    struct spw_io *io; /* NULL: nothing comes from disk */
    struct spw_disk *disk;
    struct spw_weight_file *weight_files; /* [n_weight_files]; NULL: none is read from */
    uint32_t n_weight_files;
    spw_stream streams[SPW_STREAM_COUNT];
    void *device_arena, *host_arena;
    uint64_t device_arena_bytes, host_arena_bytes; /* as they were taken */
    struct spw_block *blocks;                      /* [weights->n_blocks] */
    struct spw_block_context *block_contexts;      /* [weights->n_blocks] */
    bool charged;                                  /* plan.mapped_bytes and plan.kept_bytes */
    struct spw_kv *kv;                             /* of tiles that move between tiers */
    struct spw_kv
        *exact; /* of exact tiles beside quantized ones; NULL where nothing is quantized */
    struct spw_prefix *prefix; /* NULL: no prefix cache */
    struct spw_prefetch *prefetch;
    struct spw_executor *executor;
    struct spw_session **sessions;   /* [plan.info.sessions], NULL: free */
    struct spw_share *shares;        /* [sessions], of the frames */
    bool shares_are_old;             /* a session has opened or closed since */
    struct spw_executor_item *items; /* [sessions], of the running sync */
    uint32_t *span_index;            /* [sessions], which span of the caller's each is */
    struct spw_session **stepping;   /* [sessions], of the running sync, as items */
    uint64_t *cut_to;                /* [sessions], scratch of recover.c */
    struct spw_batch *batch;         /* that is open, borrowed; NULL: none */
    bool generates;                  /* a step of the batch runs, which keeps prefixes */
    uint32_t n_stepping;             /* of the running step; 0: none runs */
    uint64_t stepping_rope_table;    /* of the running step */
    uint64_t *delivered;             /* [sessions], logits before this position were handed over */
    struct spw_incident incidents[SPW_INCIDENTS_KEPT];
    uint64_t n_incidents;
    void (*on_incident)(void *context, const struct spw_incident *incident);
    void *incident_context;
    struct spw_rung rungs[SPW_RUNGS_KEPT];
    uint64_t n_rungs;
    struct spw_traffic past; /* bytes that earlier plans predicted */
    bool past_unpredicted;   /* an earlier plan has no prediction */
    /* counted under earlier plans: */
    double past_stalled[SPW_RANGES + 1];
    uint64_t past_read_bytes, past_written_bytes;     /* of files */
    uint64_t past_disk_writes;                        /* that count against the limit */
    uint64_t rope_table;                              /* on the device: spw_rope_table() */
    uint8_t model_fingerprint[SPW_FINGERPRINT_BYTES]; /* where options.keeps was given */
    uint64_t file_limit_bytes, file_bytes; /* that may be written to files; and were (snapshot.c) */
    uint64_t file_read_bytes;              /* beside what streams and settles from them */
    struct spw_limit_watch limit_watch;
};

/* The backend that the options name, and its device under these budgets. */
int spw_engine_choose_device(struct spw_backend *out, struct spw_device **device,
                             const struct spw_options *o, uint64_t device_bytes,
                             uint64_t host_bytes, struct spw_error *err);

/* spw_plan_query and spw_engine_open on a backend that the caller chose: a test's way to devices
 * that spw_options cannot name. */
int spw_plan_query_on(struct spw_plan_info *out, const struct spw_backend *backend,
                      const char *model_dir, const struct spw_options *o, struct spw_error *err);
int spw_plan_moved_on(uint64_t moved[SPW_MOVED_COUNT], const struct spw_backend *backend,
                      const char *model_dir, const struct spw_options *o,
                      const struct spw_plan_request *requests, size_t n, struct spw_error *err);
int spw_engine_open_on(struct spw_engine **out, const struct spw_backend *backend,
                       const char *model_dir, const struct spw_options *o, struct spw_error *err);

/* engine_plan.c: what a plan is made from, -EINVAL, -ENOMEM and -ENOSPC for what options cannot
 * mean here; a budget, or SPW_BYTES_NONE, or 0 for `otherwise`; and what of a card is not taken. */
int spw_engine_plan_input(struct spw_plan_input *in, const struct spw_engine *e,
                          const struct spw_options *o, struct spw_error *err);
uint64_t spw_engine_budget(uint64_t given, uint64_t otherwise);
uint64_t spw_engine_leave_margin(uint64_t available);
/* The least that a device may be allowed for a budget of the options. */
uint64_t spw_engine_limit(uint64_t given);
/* What is left of the disk's write limit; without any left, of the disk. */
void spw_engine_limit_writes(const struct spw_engine *e, struct spw_plan_input *in);
/* Plans, and goes down the ladder where it must and may: `in` gets the precision that was taken,
 * `rung` what there is to tell of that; rung->failed is NULL if nothing. */
int spw_engine_make_plan(struct spw_engine *e, struct spw_plan_input *in, struct spw_rung *rung,
                         struct spw_error *err);
/* Keeps it and tells of it. */
void spw_engine_note_rung(struct spw_engine *e, const struct spw_rung *rung);

/* engine_memory.c: what stands on e->plan, all or nothing; `f` says which tier refused, if one did.
 */
int spw_engine_open_memory(struct spw_engine *e, struct spw_ladder_failure *f,
                           struct spw_error *err);
void spw_engine_give_memory(struct spw_engine *e);
/* The cache of exact tiles that are kept apart; prefetch, in the ring of a plan that was replan. */
int spw_engine_open_exact(struct spw_engine *e);
int spw_engine_replan_prefetch(struct spw_engine *e);
/* Tables in the caches for a session that has none. */
int spw_engine_open_sequence(struct spw_engine *e, struct spw_session *s);
/* Waits for all copies, reads and writes, and adds the predicted bytes. False: there is no
 * prediction. */
bool spw_engine_finish(struct spw_engine *e, struct spw_traffic *predicted);
__attribute__((format(printf, 2, 3))) void spw_engine_add_note(struct spw_engine *e,
                                                               const char *format, ...);

/* engine_budgets.c: the same for `in` and e->plan, which was made from it; a tier that refuses gets
 * a lower budget, and both change. */
int spw_engine_take_memory(struct spw_engine *e, struct spw_plan_input *in, struct spw_error *err);
/* If it could not be taken back when it was last asked for. */
int spw_engine_need_memory(struct spw_engine *e, struct spw_error *err);
/* The disk is full (why: -ENOSPC, -EDQUOT): takes a plan that does with the disk space in use.
 * Caches are kept if KV can be divided anew in place; else they are empty. Fails if there is no
 * such plan; nothing has changed then, unless memory was lost. */
int spw_engine_shrink_disk(struct spw_engine *e, int why, struct spw_error *err);

/* The same as spw_engine_set_budgets; `why` is what rungs say has failed, NULL: a budget. */
int spw_engine_change_budgets(struct spw_engine *e, const uint64_t budgets[SPW_BUDGETS],
                              const char *why, struct spw_error *err);

/* engine_limit.c: control groups. Bytes that the process takes beside `arena_bytes`. */
uint64_t spw_engine_beside_bytes(const struct spw_engine *e, const struct spw_options *o,
                                 uint64_t arena_bytes);
/* Bytes of the arenas that lie in memory by now, of a GPU's only the host's. */
uint64_t spw_engine_held_bytes(const struct spw_engine *e);
/* Of system memory for the arenas, those that are held now included. */
uint64_t spw_engine_system_bytes(const struct spw_engine *e, const struct spw_options *o);
/* -ENOMEM: the arenas of e->plan, and what is beside them, are more than there is. */
int spw_engine_check_memory(struct spw_engine *e, struct spw_error *err);
/* Begins to watch the limits. */
void spw_engine_watch_limit(struct spw_engine *e);
/* Reads the limits, at most once a second. True: a lowered limit leaves too little memory. */
bool spw_engine_memory_is_short(struct spw_engine *e);
/* Between steps, after memory was short: makes a plan for lower budgets. -ENOMEM: no plan works
 * with what is left; nothing has changed then. */
int spw_engine_apply_limit(struct spw_engine *e, struct spw_error *err);

/* engine_replan.c: KV under `in` in the same arenas, sessions and all; e->plan and e->in change.
 * After a failure they have not, but caches may be in pieces: give memory, and take it anew.
 * -ENODATA: there is nothing to be kept by it. -ENOMEM, -EDQUOT: no such plan. */
int spw_engine_replan(struct spw_engine *e, const struct spw_plan_input *in);

/* engine_shares.c. Sets the shares of the sessions that are open; true: the numbers of one that
 * holds tiles have changed. */
bool spw_engine_compute_shares(struct spw_engine *e);
/* After that: tiles leave the frames that now belong to other sessions. Sessions must hold what
 * their caches do; spw_residency_apply of each must follow. */
int spw_engine_leave_frames(struct spw_engine *e);
/* Between two steps: shares the frames anew if a session has opened or closed. If tiles cannot be
 * moved, the sessions keep their tokens, and the next step computes them again. */
void spw_engine_share(struct spw_engine *e);
/* [sessions], the tokens whose KV the caches have; valid until the next call. */
const uint64_t *spw_engine_cached_tokens(struct spw_engine *e);

/* session.c: spw_session_open and spw_session_fork for a session of at most `most_tokens`. A forked
 * one may hold more until its first spw_sync. */
int spw_session_open_for(struct spw_session **out, struct spw_engine *e, uint64_t most_tokens,
                         struct spw_error *err);
int spw_session_fork_for(struct spw_session **out, struct spw_session *from, uint64_t most_tokens,
                         struct spw_error *err);

/* engine_disk.c: what the plan lays on disk, after the arenas are there. */
int spw_engine_open_disk(struct spw_engine *e, struct spw_error *err);
void spw_engine_close_disk(struct spw_engine *e); /* no job may be under way */
/* session.c: a pass of the running step is through all layers, and more are to come: its sessions
 * hold what has passed, and may be kept. */
void spw_session_passed(void *engine);
/* save_file.c: gives the file back that the session is saved to, if there is one. */
void spw_session_release_file(struct spw_session *s);
/* weight_files.c: the model's files as weights are read from them. */
int spw_engine_open_weight_files(struct spw_engine *e, struct spw_error *err);
void spw_engine_close_weight_files(struct spw_engine *e); /* no job may be under way */
/* Where block `u`, which comes from disk, is read from. */
void spw_engine_read_block(struct spw_engine *e, uint32_t u);
void spw_engine_disk_stats(const struct spw_engine *e, struct spw_stats *out);

#endif
