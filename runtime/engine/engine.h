/* An engine: a model, the plan of its memory, and its sessions. Programs use runtime/spillway.h;
 * this header has the parts, for the folders of runtime/ that work on them.
 *
 *   model, options -> plan -> arenas, KV cache, rings, executor -> sessions
 *
 * The plan can change while the engine is open: what it determines is then opened anew or moved in
 * place, and sessions keep their tokens. Each sub-struct names the file that owns it. The engine's
 * thread. */
#ifndef SPW_RUNTIME_ENGINE_ENGINE_H
#define SPW_RUNTIME_ENGINE_ENGINE_H

#include "model/fingerprint.h"
#include "runtime/engine/backend.h"
#include "runtime/engine/block_sums.h"
#include "runtime/engine/cache_policy.h"
#include "runtime/events.h"
#include "runtime/measure.h"
#include "runtime/plan/budgets.h"
#include "runtime/plan/shares.h"
#include "runtime/plan_query.h"
#include "runtime/step/executor.h"

/* An open model, before anything is loaded. */
struct spw_model {
    struct spw_source *source;
    struct spw_model_config config;
    struct spw_tensors *tensors;
    struct spw_weights *weights;
    enum spw_dtype compute;
    struct spw_cache_policy cache;
    bool is_borrowed; /* all but the weights */
};

int spw_model_open(struct spw_model *m, const char *path, const struct spw_options *o,
                   struct spw_error *err);
void spw_model_close(struct spw_model *m);

/* engine.c: copies of what the caller's options point to. */
struct spw_own_options {
    char *disk_dir, *prefix_cache_dir, *weight_checksums, *draft_model; /* owned; NULL: not given */
    struct spw_machine machine;
    struct spw_drive drive;
};

/* What spw_engine_note and spw_engine_io return. */
struct spw_engine_texts {
    char note[1024], io[256];
};

struct spw_block_context {
    struct spw_engine_blocks *all;
    const struct spw_weights *weights;
    uint32_t block;
    struct spw_piece packed; /* in the host arena, if it has one */
};

/* engine_memory.c: [spw_engine_n_blocks] of each, owned: all blocks of weights. */
struct spw_engine_blocks {
    struct spw_block *list;
    struct spw_block_context *contexts;
    /* A lost device reports at once that its streams are over, but a host function that has begun
     * still runs. n_packing counts the blocks that are being packed. While is_over is set, no
     * packing begins. Both are atomic. */
    int n_packing;
    bool is_over;
};

/* One of the model's files, for blocks that are read from it; fd -1: no block is. */
struct spw_weight_file {
    int fd;
    struct spw_io_file io;
};

/* weight_files.c: blocks that are read from the model's files. */
struct spw_weight_reads {
    struct spw_weight_file *files; /* owned, [n_files]; NULL: no block is read from files */
    uint32_t n_files;
    struct spw_block_sums sums; /* zeros, until a plan reads blocks from files */
    /* Owned, [matrices]: of a block that comes from disk, from its first matrix on */
    struct spw_block_read *ranges;
    uint64_t *bounce_offsets;
};

struct spw_session {
    struct spw_engine *engine;
    struct spw_sequence seq;
    uint64_t most_tokens;                            /* that it may hold */
    struct spw_residency residency[SPW_LAYER_KINDS]; /* its share of the frames: seq borrows it */
    int32_t *tokens;                                 /* [most_tokens], those that it holds */
    uint64_t n_tokens, reused;
    const float *audio;             /* spw_session_set_audio */
    float *logits;                  /* [vocab], host arena, borrowed; NULL: nothing is computed */
    uint64_t from_store;            /* of the reused ones: from the prefix cache */
    uint64_t recomputed;            /* in the latest sync: see struct spw_result */
    bool made_checkpoint;           /* a step of the running spw_sync has made one */
    uint64_t n_attached;            /* of n_tokens: from the prefix cache, by any sync */
    uint64_t n_published;           /* the most tokens that it has put into the prefix cache */
    struct spw_prefix_found *found; /* owned; prefix.c's, while a sync runs */
    bool is_last_step;              /* no token follows the next step: nothing is fetched ahead */
    bool has_logits;                /* the logits of the last token are valid */
    bool cached;         /* the cache holds the tokens; else the next step computes them again */
    bool mixed;          /* some were computed before old KV lost precision, some after */
    uint64_t rope_table; /* of the keys: spw_rope_table() */
    uint32_t slot;       /* in engine.sessions */
    struct spw_save_file *file; /* owned; the file that it is saved to, or NULL: snapshot.h */
    uint64_t delivered;         /* of the running sync: logits before this were handed over */
    bool has_share;             /* `residency` is set, for most_tokens */
    bool of_batch; /* the batch has opened the session: tiles that sessions of the batch share count
                      once */
    bool leaves;   /* the batch closes it, or lets another request have it, before the next step */
    bool is_paused;                   /* of the step that was paused */
    struct spw_step_span paused_span; /* of that step */
    uint64_t asked, asked_logits;     /* tokens and logits of the span that asked for that step */
    /* Of the next step: how many of its last tokens are drafts, which may be taken back, and where
     * the logits of the last n_drafts + 1 tokens go (spw_draft_logits) */
    uint64_t n_drafts, first_draft_row;
};

/* What persist/ does in the life of an engine (persist/prefix.c). The engine's thread. */
struct spw_persist_hooks {
    /* Before the memory of a plan is taken, while the disk tier is closed: opens the store of
     * options.prefix_cache_dir for this plan, if that is not open, and sets e->above.prefix. Does
     * nothing without this option. -EINVAL: the cache is too small for one tile; or an error of the
     * directory. */
    int (*open)(struct spw_engine *e, struct spw_error *err);
    void (*close)(struct spw_engine *e); /* after the disk tier, which uses the store's files */
    /* The position at which the session should compute and publish a checkpoint before the rest of
     * the span: where the span leaves the tokens that others have computed; or its last tile, if no
     * checkpoint is possible after the whole span. It is new and far enough from the last
     * checkpoint. 0: there is none. */
    uint64_t (*branch)(struct spw_session *s, const struct spw_span *span);
    /* If it pays, replaces the *n_reused tokens that the session would reuse by more tokens from
     * files, and sets *n_reused to their number. Old tiles stay in the files; the next step loads
     * those that belong on the device, each once, while it computes. Damage is reported, and costs
     * only computation. Fails only if the device fails. */
    int (*attach)(struct spw_session *s, const struct spw_span *span, uint64_t *n_reused);
    /* Logits of the session are NaN. False: the session has not begun with tiles of files. Else
     * removes these files and those that extend them with its tokens, and the session counts none
     * of its tokens as computed (see spw_recover_step). */
    bool (*distrust)(struct spw_session *s);
    void (*publish)(struct spw_session *s);  /* as spw_session_publish; a refusal is reported */
    void (*end_sync)(struct spw_session *s); /* releases what `branch` and `attach` have found */
    void (*close_session)(struct spw_session *s); /* releases the file that it is saved to */
};

/* What the open batch does for its engine (batch/batch.c). */
struct spw_batch_hooks {
    /* Before the memory of the sessions' logits goes: copies those that are in events which nobody
     * has read yet. -ENOMEM. */
    int (*copy_logits)(struct spw_batch *b);
    /* Closes the sessions of ended requests whose events nobody can read any more. */
    void (*close_ended)(struct spw_batch *b);
    /* The batch's sessions share fewer tiles than before, and no step runs: closes as many of them
     * as have no room. Their requests get new ones. */
    void (*make_room)(struct spw_batch *b);
    /* Its thread was woken: a step that may be paused is. */
    bool (*is_woken)(const struct spw_batch *b);
};

/* What engine_limit.c knows of the control groups' limits. */
struct spw_limit_watch {
    uint64_t limit_bytes; /* the lowest limit so far; UINT64_MAX: there is none */
    double checked_at;    /* seconds of spw_now_seconds */
    bool soft;            /* memory.high counts, too: the caller gave no budget */
    bool memory_short;    /* a lowered limit leaves too little memory: the step must end */
};

/* Events that the caller has not read yet: see events.c. */
struct spw_event_queue {
    struct spw_engine_event list[SPW_ENGINE_EVENTS_KEPT]; /* number n is at n % KEPT */
    uint64_t n_added, n_read;           /* n_read: events that were read or dropped */
    uint64_t n_missed;                  /* events that were dropped since the latest read */
    uint64_t n_fallbacks, n_lost_tiles; /* events of these kinds, read or not */
};

/* engine_host_lane.c; no device: there is no second lane. */
struct spw_engine_host_lane {
    struct spw_backend backend; /* the CPU */
    struct spw_lane lane;       /* owned: its device and its stream "compute" */
};

/* What was counted under earlier plans. */
struct spw_past_counts {
    double stalled[SPW_RANGES + 1];
    uint64_t read_bytes, written_bytes; /* by the engine's I/O */
    uint64_t host_multiplied_bytes;
    uint64_t disk_writes; /* of them, those that count against the write limit */
};

/* Bytes of saved sessions and of prefixes. */
struct spw_file_counts {
    uint64_t limit_bytes;               /* that may be written; UINT64_MAX: any number */
    uint64_t written_bytes, read_bytes; /* read: beside streamed tiles (snapshot.c) */
};

/* The step that a sync makes, or has made: see sync.c. */
struct spw_running_step {
    struct spw_executor_item *items; /* owned, [n] of [sessions], as what follows */
    struct spw_session **sessions;
    uint32_t *span_index; /* which span of the caller's each is */
    uint32_t n;
    uint64_t rope_table; /* spw_rope_table() of all of them */
    bool publishes;      /* the sessions go into the prefix cache after each pass */
    bool runs;           /* the executor is in the step */
};

/* engine_shares.c: how the open sessions share the frames. Arrays are owned, [sessions]. */
struct spw_engine_sharing {
    struct spw_share *shares;
    uint64_t n_shared; /* as in spw_share_frames, when they were computed */
    bool over;         /* sessions have lost so many shared tiles that their copies have no room */
    bool is_old;       /* a session has opened or closed since, or has lost shared tiles */
    uint64_t n_departures; /* how often a session has closed, or a request has left its own */
    uint64_t *n_tokens;    /* scratch: what the caches of each session hold, or are cut back to */
};

/* pause.c: the step that waits. */
struct spw_paused {
    struct spw_session **sessions; /* owned, [n] of [sessions]; n 0: no step waits */
    uint32_t n;
    uint32_t n_tries; /* how often this step ran again because tiles were lost */
};

/* What stands above the engine: persist/ and batch/ set their parts. */
struct spw_above {
    const struct spw_persist_hooks *persist; /* NULL: an engine that has only a plan */
    struct spw_prefix *prefix;               /* NULL: no prefix cache */
    const struct spw_batch_hooks *batch_hooks;
    struct spw_batch *batch; /* the open one, borrowed; NULL: none */
};

/* For tests: called where options.interrupt is read. */
struct spw_look {
    bool (*is_time)(void *context);
    void *context;
};

/* An engine has no memory (executor is NULL) only after memory was refused: engine_budgets.c. */
struct spw_engine {
    struct spw_model model;
    struct spw_options options; /* their pointers point to `own` */
    struct spw_own_options own;
    struct spw_plan plan;
    struct spw_plan_input in; /* of `plan` */
    struct spw_backend backend;
    const struct spw_dry_hooks *dry; /* borrowed: of an engine that only counts; else NULL */
    /* engine_drafter.c: proposes drafts; owned; NULL: none does. Its options, and the bytes of its
     * plan, are known before it is open */
    struct spw_engine *drafter;
    struct spw_options drafter_options;
    struct spw_lane lane;
    struct spw_engine_host_lane host;
    struct spw_engine_texts texts;
    /* engine_memory.c, engine_disk.c: what the plan determines. */
    struct spw_io *io; /* NULL: nothing comes from disk */
    struct spw_disk *disk;
    struct spw_disk *checkpoint_disk; /* of states: its frames have another size */
    struct spw_kv *kv;
    struct spw_prefetch *prefetch;
    struct spw_executor *executor;
    bool charged; /* plan.mapped_bytes and plan.page_cache_bytes */
    struct spw_engine_blocks blocks;
    struct spw_weight_reads reads;
    struct spw_session **sessions; /* [plan.info.sessions], NULL: free */
    struct spw_running_step step;
    struct spw_engine_sharing sharing;
    struct spw_paused paused;
    struct spw_above above;
    struct spw_event_queue events;
    struct spw_look look;
    struct spw_past_counts past;
    bool unpredicted; /* something happened that no dry run knows: see spw_engine_predict */
    struct spw_file_counts files;
    struct spw_limit_watch limit_watch;
    uint64_t rope_table;                              /* on the device: spw_rope_table() */
    uint8_t model_fingerprint[SPW_FINGERPRINT_BYTES]; /* where options.saves was given */
    double *expert_counts; /* [experts of all layers]: when the memory was opened */
};

/* All weight blocks: those of the schedule, and the experts. */
static inline uint32_t spw_engine_n_blocks(const struct spw_engine *e)
{
    return e->model.weights->n_blocks + e->model.weights->n_expert_blocks;
}

/* The open session after s, by slot; s NULL: the first one. NULL: there are no more. */
static inline struct spw_session *spw_engine_next(const struct spw_engine *e,
                                                  const struct spw_session *s)
{
    for (uint32_t i = s ? s->slot + 1 : 0; e->sessions && i < e->plan.info.sessions; i++)
        if (e->sessions[i])
            return e->sessions[i];
    return NULL;
}

static inline const struct spw_residency *spw_engine_residency(const struct spw_engine *e,
                                                               uint32_t slice)
{
    return &e->plan.residency[e->model.config.slice_kinds[slice]];
}

/* The rope table of n tokens: spw_rope_table. */
static inline uint64_t spw_engine_rope_table(const struct spw_engine *e, uint64_t n)
{
    const struct spw_model_config *c = &e->model.config;
    return spw_rope_table(&c->rope[c->full_kind], c->max_positions, n);
}

/* Tokens that the session's caches hold. */
static inline uint64_t spw_session_cached(const struct spw_session *s)
{
    return s->cached ? s->n_tokens : 0;
}

/* Fallbacks (engine_budgets.c): what the engine does when memory does not suffice. Under lower
 * budgets the planner itself first chooses fallbacks that change no answer: smaller chunks, fewer
 * slots, tiles on the host, tiles on disk. These functions say by how much a budget is lowered
 * after its tier has failed, and name the difference between two plans. Pure. */
enum { SPW_FALLBACK_NO_TIER = -1 };

/* The system refused to give a tier `asked` bytes; it gave at most `held` of them. */
struct spw_fallback_failure {
    int tier;
    uint64_t asked, held; /* held: 0 is unknown, too */
};

/* The tier failed: sets its budget to what it can hold, if that is known, and in any case to less
 * than was asked for. False: the budget is 0 already. So a descent always ends. */
bool spw_fallback_lower(uint64_t *budget, const struct spw_fallback_failure *f);

/* The tier of a refused plan that lacks the fewest bytes (but at least one), and the bytes that it
 * needs. */
int spw_fallback_lacking(const struct spw_plan_info *refused, const struct spw_plan_input *in,
                         uint64_t *needed);
/* The fallback between two plans: of all changes, the one that matters most to a user. */
enum spw_fallback_kind spw_fallback_between(const struct spw_plan_info *from,
                                            const struct spw_plan_info *to);
/* The bytes of this tier that the plan takes. */
uint64_t spw_fallback_total(const struct spw_plan_info *p, int tier);

/* The backend that the options name, and a lane with its device under these budgets and nothing
 * else. */
int spw_engine_choose_device(struct spw_backend *out, struct spw_lane *lane,
                             const struct spw_options *o, uint64_t device_bytes,
                             uint64_t host_bytes, struct spw_error *err);

/* spw_engine_open without what stands above the engine (runtime/open.c). `hooks` are borrowed. */
int spw_engine_open_with(struct spw_engine **out, const struct spw_persist_hooks *hooks,
                         const char *model_dir, const struct spw_options *o, struct spw_error *err);

/* Opens streams and tables of an engine that has a plan. */
int spw_engine_open_tables(struct spw_engine *e, struct spw_error *err);
/* engine_dry.c: opens an engine under the plan of `like` that computes nothing and counts what it
 * would move: see backend_dry.c. The caller closes it before `like`, whose model it borrows.
 * All arguments are borrowed. */
int spw_engine_open_dry(struct spw_engine **out, const struct spw_engine *like,
                        const struct spw_dry_backend *backend,
                        const struct spw_persist_hooks *persist, const struct spw_dry_hooks *hooks,
                        struct spw_error *err);
/* Opens an engine that has a plan and no memory: only close, and what reads the plan, may follow.
 * The caller closes it also after a failure; then it may be NULL. */
int spw_engine_plan_only(struct spw_engine **out, const char *model_dir,
                         const struct spw_options *o, struct spw_error *err);
/* [experts of all layers]: the counts up to now; NULL: the model has no experts. */
const double *spw_engine_expert_counts(struct spw_engine *e);

/* engine_plan.c: the input of a plan. -EINVAL, -ENOMEM, -ENOSPC: options that cannot work here. */
int spw_engine_plan_input(struct spw_plan_input *in, struct spw_engine *e,
                          const struct spw_options *o, struct spw_error *err);
/* The bytes of a budget of the options: 0 for SPW_NONE, `otherwise` for 0. */
uint64_t spw_engine_budget(uint64_t given, uint64_t otherwise);
/* `available` bytes of a card, less a margin for others. */
uint64_t spw_engine_leave_margin(uint64_t available);
/* The limit of a device for a budget of the options; 0 is no limit. */
uint64_t spw_engine_limit(uint64_t given);
/* Sets the rest of the disk's write limit. If the rest is 0, the plan has no disk. */
void spw_engine_limit_writes(const struct spw_engine *e, struct spw_plan_input *in);
/* The plan reserves memory for drafts only where that costs nothing. */
static inline bool spw_drafts_are_optional(const struct spw_options *o)
{
    return o->drafts == SPW_DRAFTS_AUTO || o->drafts == SPW_DRAFTS_MODEL;
}
/* engine_host_lane.c: opens it where the options, the backend and the model allow it; what the plan
 * must know of it. */
int spw_engine_open_host_lane(struct spw_engine *e, const struct spw_options *o,
                              struct spw_error *err);
void spw_engine_close_host_lane(struct spw_engine *e);
void spw_engine_plan_host_lane(struct spw_plan_input *in, const struct spw_engine *e,
                               const struct spw_options *o);
/* engine_drafter.c, for options.draft_model. Chooses the options of its engine, within the budgets
 * of `in`, which are those of both engines; then takes its memory off these budgets. */
int spw_engine_plan_drafter(struct spw_engine *e, struct spw_plan_input *in,
                            const struct spw_options *o, struct spw_error *err);
/* Opens it with these options, if there are any. */
int spw_engine_open_drafter(struct spw_engine *e, struct spw_error *err);
/* Whether the MTP layer can draft for a session of which n tokens are known: the layer has what it
 * needs of the tokens that the session holds. */
bool spw_session_can_draft(const struct spw_session *s, uint64_t n);
/* Between two steps: the MTP layer gives logits after the last token of each span, in the order of
 * the spans. `first`: the first call after a step; the next ones go on by one token each, the
 * draft. The longest span ends where spw_engine_alike_until allows it, seen from the tokens that a
 * session holds. on_logits as in spw_executor_step. After a failure sessions may hold fewer tokens.
 */
int spw_engine_draft(struct spw_engine *e, const struct spw_span *spans, uint32_t n, bool first,
                     int (*on_logits)(void *context, uint32_t span, uint64_t position,
                                      const float *logits),
                     void *context);
/* Makes a plan. If no plan works with the precision of `in`, takes the next precision that works,
 * if the options allow that: `in` gets the precision, `fallback` describes the change.
 * fallback->failed is NULL if nothing had to change; `fallback` NULL: nobody asks. */
int spw_engine_make_plan(struct spw_engine *e, struct spw_plan_input *in,
                         struct spw_fallback *fallback, struct spw_error *err);
/* Fills in what p->info says of bytes and of work. -ENOMEM. */
int spw_engine_describe_plan(const struct spw_engine *e, struct spw_plan *p);
/* e->model has got its MTP layer; the plan and its input are those without. Whether a plan with the
 * layer is as good, drafts of the layer need no transfers, and the layer costs next to nothing
 * where nothing is drafted. True: it is the plan now. False: nothing has changed. */
bool spw_engine_plan_mtp(struct spw_engine *e, const struct spw_options *o);
/* Adds the first token whose logits are not exact, and reports the fallback. */
void spw_engine_note_fallback(struct spw_engine *e, const struct spw_fallback *fallback);

/* events.c: adds a copy of an event for spw_engine_event; a NOTE. */
void spw_engine_report(struct spw_engine *e, const struct spw_engine_event *event);
void spw_engine_report_note(void *engine, const char *text);
bool spw_interrupt_is_raised(const struct spw_interrupt *i); /* NULL: no */
/* Whether the running step must end: the caller has raised options.interrupt, or a memory limit was
 * lowered. */
bool spw_engine_is_interrupted(void *engine);
bool spw_engine_is_hurried(void *engine); /* the batch was woken */

/* engine_memory.c: takes all memory of e->plan, or nothing; `f` says which tier refused memory. */
int spw_engine_open_memory(struct spw_engine *e, struct spw_fallback_failure *f,
                           struct spw_error *err);
void spw_engine_give_memory(struct spw_engine *e);
/* After a replan in place: prefetch, in the ring of the new plan. */
int spw_engine_replan_prefetch(struct spw_engine *e);
/* Opens the tables of a session in the caches. */
int spw_engine_open_sequence(struct spw_engine *e, struct spw_session *s);
/* Waits for all copies, reads and writes. */
void spw_engine_finish(struct spw_engine *e);
__attribute__((format(printf, 2, 3))) void spw_engine_add_note(struct spw_engine *e,
                                                               const char *format, ...);

/* engine_budgets.c: takes the memory of e->plan. A tier that refuses memory gets a lower budget;
 * then e->in and e->plan change. */
int spw_engine_take_memory(struct spw_engine *e, struct spw_error *err);
/* Takes the memory of e->plan if the engine has none. */
int spw_engine_need_memory(struct spw_engine *e, struct spw_error *err);
/* The disk is full (why: -ENOSPC, -EDQUOT): takes a plan that works with the disk space in use.
 * Caches stay if KV can be replanned in place; else they are empty. Fails if there is no such plan;
 * nothing has changed then, unless memory was lost. */
int spw_engine_shrink_disk(struct spw_engine *e, int why, struct spw_error *err);

/* As spw_engine_set_budgets; `why`: what a fallback reports as failed; NULL: a budget. */
int spw_engine_change_budgets(struct spw_engine *e, const uint64_t budgets[SPW_BUDGETS],
                              const char *why, struct spw_error *err);

/* engine_limit.c (control groups): bytes that the process takes beside the arenas. */
uint64_t spw_engine_beside_bytes(const struct spw_engine *e, const struct spw_options *o,
                                 uint64_t arena_bytes);
/* Bytes of the arenas that are in memory now; of a GPU's engine only the host's. */
uint64_t spw_engine_held_bytes(const struct spw_engine *e);
/* System memory that the arenas may have, what they have now included. */
uint64_t spw_engine_system_bytes(const struct spw_engine *e, const struct spw_options *o);
/* -ENOMEM: the arenas of e->plan, with what the process takes beside them, do not fit. */
int spw_engine_check_memory(struct spw_engine *e, struct spw_error *err);
/* Begins to watch the limits. */
void spw_engine_watch_limit(struct spw_engine *e);
/* Reads the limits, at most once a second. True: a lowered limit leaves too little memory. */
bool spw_engine_memory_is_short(struct spw_engine *e);
/* Between steps, after memory was short: makes a plan for lower budgets. -ENOMEM: no plan works
 * with what is left; nothing has changed then. */
int spw_engine_apply_limit(struct spw_engine *e, struct spw_error *err);

/* Whether the arenas, in whole pages, are larger than these budgets: an earlier change of the plan
 * may have kept them. */
bool spw_engine_exceeds_budgets(const struct spw_engine *e, const struct spw_plan *to,
                                const struct spw_plan_input *in);
/* engine_replan.c: replans KV in place for `in`, in the same arenas, with the same caches; e->plan
 * and e->in change. After a failure they have not changed, but the caches may be damaged: the
 * caller frees all memory and allocates it again. -ENODATA: the caches hold nothing. -ENOMEM,
 * -EDQUOT: there is no such plan. */
int spw_engine_replan(struct spw_engine *e, const struct spw_plan_input *in);

/* engine_shares.c. The most tiles of a layer that the open sessions may hold, all together; without
 * those that leave, if `stay`. */
uint64_t spw_engine_open_tiles(const struct spw_engine *e, bool stay);
/* In a step that has failed: whether its sessions share fewer tiles than their shares of the frames
 * count on, or there is no room for all of them. */
bool spw_engine_lost_shared(const struct spw_engine *e);
/* Sets the shares of the sessions that are open; true: the numbers of one that
 * holds tiles have changed. */
bool spw_engine_compute_shares(struct spw_engine *e);
/* After that: tiles leave the frames that now belong to other sessions. Sessions must hold what
 * their caches do; spw_residency_apply of each must follow. */
int spw_engine_leave_frames(struct spw_engine *e);
/* Between two steps: shares the frames anew if a session has opened or closed. If tiles cannot be
 * moved, the sessions keep their tokens, and the next step computes them again. */
void spw_engine_share(struct spw_engine *e);

/* sync.c: spw_sync for the batch. -ESTALE: tiles that its sessions shared are lost. They hold what
 * can be kept, and the call should be made again, after make_room. */
struct spw_sync_options {
    uint64_t
        most_chunks; /* after so many chunks of a layer the step is paused: -EAGAIN; 0: never */
    bool publishes;  /* as spw_running_step */
    uint64_t most_tokens; /* that the call computes; 0: any number. Sessions may then hold fewer
                             tokens than their spans have: the next call computes the rest */
};
int spw_engine_sync(struct spw_engine *e, const struct spw_span *spans, size_t n_spans,
                    const struct spw_sync_options *o,
                    void (*on_logits)(void *context, size_t span, size_t position,
                                      const float *logits),
                    void *context, struct spw_error *err);

/* Tokens that the caches of all sessions hold. */
uint64_t spw_engine_n_cached(const struct spw_engine *e);

/* recover.c. Waits for all queued work and all writes, and takes the failure of a write. */
int spw_engine_settle(struct spw_engine *e);
/* The caches of the session were cut back to n tokens. */
void spw_session_hold(struct spw_session *s, uint64_t n);
/* The session holds nothing. */
void spw_session_empty(struct spw_session *s);
/* Cuts the caches back to *n tokens, or to as many of them as they reach, and lowers *n. */
int spw_session_cut(struct spw_session *s, const struct spw_residency *residency, uint64_t *n);
/* Row i of options.draft_rows, valid until the next step or another plan. NULL: nothing is
 * computed.
 */
float *spw_draft_logits(const struct spw_engine *e, uint64_t i);
/* The step with drafts has failed. If the session had its part of the step, it holds drafts now:
 * the next step takes them back. */
void spw_session_end_drafts(struct spw_session *s);
/* After a step with drafts: the session keeps n of its tokens, all but the last drafts (more than
 * it had before the step), and `logits` [vocab] come after them. If the step ran again after tiles
 * were lost, a state may reach fewer tokens: the next step computes the others. */
int spw_session_settle(struct spw_session *s, uint64_t n, const float *logits);
/* Must be called before the states are read at the session's length: updates the states by the kept
 * rows of the latest step with drafts (offload/kv/state_store.h). */
int spw_session_apply_kept_rows(struct spw_session *s);
/* The most tokens up to which steps of a session read and move the same tiles, and use the same
 * rope, as the step that ends with n tokens: no tile begins, none leaves a window, none ages. */
uint64_t spw_engine_alike_until(const struct spw_engine *e, uint64_t n);

/* After this many failed tries a step fails. */
enum { SPW_RECOVER_TRIES = 8 };
/* Cuts the session back to `*cut_to` tokens, or to fewer if more is lost, and moves its tiles to
 * the tiers of the waterlines. Lowers *cut_to accordingly. No queued work may use the session,
 * except transfers ahead. A session whose tokens are not in its caches, because another plan has
 * dropped them, keeps its tokens. */
int spw_recover_cut_back(struct spw_session *s, uint64_t *cut_to);

/* A step of these sessions has failed. Waits for all queued work, and cuts the sessions back to
 * tokens that their caches hold. -EIO: the device has failed, too; -EBADMSG: tiles were lost again
 * each time. */
int spw_recover_step(struct spw_engine *e, struct spw_session *const *sessions, uint32_t n);

/* pause.c. The sessions of the step wait; they hold what passed all layers. */
void spw_engine_pause(struct spw_engine *e);
/* Before a step runs: its sessions do not wait any more, if it is the one that was paused. */
void spw_engine_continue_paused(struct spw_engine *e);
/* Whether the spans are those of the step that was paused. */
bool spw_engine_continues_paused(const struct spw_engine *e, const struct spw_span *spans,
                                 size_t n);
/* Gives up the step that was paused, if there is one. */
void spw_engine_drop_paused(struct spw_engine *e);

/* session.c: spw_session_open and spw_session_fork for a session of at most `most_tokens`. The
 * forked one holds the first n tokens: all of them, where a session can only continue at a
 * checkpoint. Tiles that it shares with a session of the batch need no room. */
int spw_session_open_for(struct spw_session **out, struct spw_engine *e, uint64_t most_tokens,
                         struct spw_error *err);
int spw_session_fork_for(struct spw_session **out, struct spw_session *from, uint64_t n,
                         uint64_t most_tokens, struct spw_error *err);
/* Makes the session a fork of `from`, with all its tokens, but without its logits; it may hold as
 * many. On failure the caller closes it. */
int spw_session_become(struct spw_session *s, const struct spw_session *from);
/* Makes the session one of at most `most_tokens`, as if it had been forked at its first n tokens.
 * It waits for no step, and its cache has its tokens. On failure the caller closes it. */
int spw_session_take_over(struct spw_session *s, uint64_t n, uint64_t most_tokens);

/* Where nothing is computed: n tokens, each of them 0, pass in the last tile of the session, as if
 * n steps had computed them. */
int spw_session_skip(struct spw_session *s, uint64_t n);

/* engine_disk.c: how many requests the I/O threads have in flight. d: what was measured of the
 * drive; NULL: 0, which is the I/O engine's own number. Pure. */
unsigned spw_in_flight(const struct spw_plan *p, const struct spw_drive *d);
/* Opens the disk tier and I/O, after the arenas. */
int spw_engine_open_disk(struct spw_engine *e, struct spw_error *err);
void spw_engine_close_disk(struct spw_engine *e); /* no job may be in flight */
/* sync.c: called when a pass of the running step has ended and another one follows: its sessions
 * hold what has passed all layers, and are published. */
void spw_engine_on_pass(void *engine);
/* weight_files.c: opens the model's files for blocks that are read from them. */
int spw_engine_open_weight_files(struct spw_engine *e, struct spw_error *err);
void spw_engine_close_weight_files(struct spw_engine *e); /* no job may be in flight */
/* Finds the ranges of files from which block `u` is read. */
void spw_engine_read_block(struct spw_engine *e, uint32_t u);
/* The text of a failed read: the file and the tensor. Returns -EIO. */
int spw_engine_fail_read(const struct spw_engine *e, const struct spw_block_failure *f,
                         struct spw_error *err);

#endif
