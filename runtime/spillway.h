/* spillway: text generation with contexts far larger than the device's memory. The public API.
 *
 * An engine is one model on one backend under fixed memory budgets. A session is one token sequence
 * whose KV cache lies across the tiers. A batch runs requests through the engine's sessions. Where
 * bytes lie never changes a result.
 *
 * Other public headers of runtime/: events.h (what an engine reports), plan_query.h (what would lie
 * where, the smallest budgets), saved.h (sessions in files), sampler.h (picks a token from logits),
 * measure.h (limits of the machine and the drive, the check of quantized KV).
 *
 * Every call returns 0 or -errno and, where it takes a `struct spw_error`, one line of text. An
 * engine, its sessions and its batch belong to one thread at a time. One thing is global: the first
 * engine installs a handler for SIGBUS, which passes on what is not about a model's files. */
#ifndef SPW_RUNTIME_SPILLWAY_H
#define SPW_RUNTIME_SPILLWAY_H

#include "base/types.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* what the shared library exports */

#define SPW_VERSION "0.1.0"

struct spw_engine;
struct spw_session;
struct spw_batch;
struct spw_engine_event; /* runtime/events.h */
struct spw_plan_info;    /* runtime/plan_query.h */
struct spw_machine;      /* runtime/measure.h */
struct spw_drive;        /* runtime/measure.h */
struct spw_model_config; /* model/config.h */
struct spw_tokenizer;    /* model/text/tokenizer/tokenizer.h */

/* ---- options ---- */

enum spw_backend_kind {
    SPW_BACKEND_AUTO, /* the first GPU if it works, else the CPU */
    SPW_BACKEND_CPU,
    SPW_BACKEND_CUDA,
};

/* An explicit budget of no bytes, where 0 means "choose for me". */
#define SPW_BYTES_NONE UINT64_MAX

/* What may be done when memory does not suffice. */
enum {
    SPW_ON_OOM_SPILL = 1,    /* KV may leave the device */
    SPW_ON_OOM_QUANTIZE = 2, /* old KV may have less precision, unless options name a precision */
    SPW_ON_OOM_FAIL = 4,     /* neither */
};

struct spw_progress {
    uint64_t done, total;  /* tokens times layers of the running step */
    uint64_t n_new_tokens; /* tokens that the step computes */
};

/* A wish to end the running step early. The caller owns it; several engines may share it. */
struct spw_interrupt {
    int raised; /* for the two functions only */
};
/* The running step of an engine with this options.interrupt ends with -ECANCELED within two chunks
 * of a layer. If no step runs, the next one does. A step that returns -ECANCELED clears it; what
 * was raised too late for a step stays raised. Any thread, and any signal handler, may call this.
 */
void spw_interrupt_raise(struct spw_interrupt *i);
/* Clears it. True: it was raised, and no step has ended by it. Call this before a step that an
 * earlier interrupt must not end. */
bool spw_interrupt_clear(struct spw_interrupt *i);

/* Zero means the default everywhere. Paths are borrowed until the engine is open. */
struct spw_options {
    /* ---- who computes ---- */
    enum spw_backend_kind backend;
    uint32_t device_index; /* CUDA: which GPU */
    /* Compute threads; 0: every core that this process may use. Of two kinds of cores the fast
     * ones; of eight cores or more, one is left to I/O. */
    uint32_t threads;
    enum spw_dtype compute; /* AUTO: bf16 for a bf16 model, else f32 */

    /* ---- memory: hard budgets in bytes; 0: what is available now, less a margin ---- */
    uint64_t device_bytes, host_bytes;
    unsigned on_oom; /* SPW_ON_OOM_*; 0: SPILL | QUANTIZE */
    /* Whether this model may store old KV with less precision (spw_gate_check measures it). The
     * engine asks only where a plan needs that precision and would work with it, from within calls
     * that plan. The answer may take its time. NULL: no. */
    bool (*gate)(void *context, enum spw_kv_precision precision);
    void *gate_context;

    /* ---- disk ---- */
    const char *disk_dir;      /* where KV may lie on disk; NULL: nowhere */
    uint64_t disk_bytes;       /* 0: what is free there, less a margin */
    uint64_t disk_write_limit; /* the most bytes that KV, the prefix cache and saved sessions write;
                                  0: no limit; SPW_BYTES_NONE: none */
    enum spw_io_kind io;
    /* Where prefixes lie that sessions may begin with; NULL: nowhere. Needs no disk_dir. */
    const char *prefix_cache_dir;
    uint64_t prefix_cache_bytes; /* the most that all prefixes take; 0: 16 GiB */
    /* Also uses a directory and files that other users own or may write to. What they write there
     * becomes part of answers. */
    bool prefix_cache_trusts_others;

    /* ---- the KV cache ---- */
    enum spw_dtype kv; /* of exact KV; AUTO: as compute */
    /* Of KV older than `residual_window` tokens (0: 1024; SPW_BYTES_NONE: none), in layers that see
     * every key, but for the first 128 tokens. Changes results: a pure function of positions. */
    enum spw_kv_precision precision;
    uint64_t residual_window;
    uint64_t context;    /* the most tokens a session may hold; 0: what the model knows */
    bool past_positions; /* context may be more than the model knows */

    /* ---- sessions ---- */
    uint32_t sessions; /* the most sessions at a time; 0: 1 */
    bool saves;        /* sessions will be saved or resumed (saved.h): the plan reserves memory */
    /* The caller will continue sessions after an interrupted step, and from before their latest
     * prompt (another question, another answer). What sliding windows and exact tiles near the end
     * have left behind since then stays on the device, if it takes at most an eighth of it. */
    bool rolls_back;

    /* ---- sizes that the plan chooses where they are 0 ---- */
    uint32_t prefill_chunk;   /* tokens of a prompt that pass a layer together */
    uint32_t prefetch_slots;  /* buffers of the KV ring on the device */
    uint32_t prefetch_splits; /* of 512 positions, in one of these buffers */
    /* What was measured of this machine, and of the drive behind disk_dir; borrowed until the
     * engine is open. NULL: typical numbers. Never changes a result. */
    const struct spw_machine *machine;
    const struct spw_drive *drive;

    /* ---- during a step ---- */
    struct spw_interrupt
        *interrupt; /* ends steps early; must outlive the engine; NULL: nothing does */
    /* Called as prompts are computed, and at the end of each step. May read events. */
    void (*on_progress)(void *context, const struct spw_progress *progress);
    void *progress_context;
    /* Called between two passes of a long prompt, when the sessions of the step hold what has
     * passed all layers. May save them (spw_session_save) and read events, nothing else. Where
     * sessions are kept a pass takes about a minute. */
    void (*on_pass)(void *context);
    void *pass_context;

    /* ---- validation ---- */
    uint64_t delay_seed; /* CPU: random delays around every copy and kernel */
    bool serial_kernels; /* CUDA: kernels never overlap */
};

/* Every option gets its default. */
void spw_options_init(struct spw_options *o);

/* ---- the engine ---- */

/* Plans, then takes memory, threads and weights. The folder stays mapped: a step that finds a file
 * of it changed fails with -EIO and keeps nothing. -ENOENT: no such folder or file; -EINVAL:
 * options or model; -ENOMEM: budgets (err->budgets says what would do), or memory was refused;
 * -ENOTSUP, -ENODEV: no such device; -EIO. */
int spw_engine_open(struct spw_engine **out, const char *model_dir, const struct spw_options *o,
                    struct spw_error *err);
/* The batch and all sessions must have been closed. NULL is fine. */
void spw_engine_close(struct spw_engine *e);
const struct spw_model_config *spw_engine_config(const struct spw_engine *e);
const struct spw_plan_info *spw_engine_plan(const struct spw_engine *e);
/* "cpu avx512bf16", "cuda:0 NVIDIA H200, sm_90" */
const char *spw_engine_backend(const struct spw_engine *e);
/* What reads and writes the disk, and why: "io_uring, 16 in flight, ..."; "" without a disk. */
const char *spw_engine_io(const struct spw_engine *e);
/* What the user should know of how the engine was opened: why AUTO took the CPU, that host memory
 * could not be pinned, that the model asks for a cache that it does not get. "" if nothing. */
const char *spw_engine_note(const struct spw_engine *e);
/* A part of a sentence: what may be wrong, and may help, when results are not numbers (NaN). */
const char *spw_engine_nan_advice(const struct spw_engine *e);

/* Other budgets, as in the options, between two steps: plans again, gives memory back or takes it.
 * Sessions keep their tokens. On the way down they keep their caches where KV can be divided anew
 * in place; else the next step computes again what the caches held, to the same bits under the same
 * precision of old KV, and there are no logits until then. Peaks begin anew. -ENOMEM: no plan
 * works (err->budgets says what would); -EINVAL: see options. After an error the engine has its old
 * budgets; memory that it could not take back then is taken by the next call that needs it. */
int spw_engine_set_budgets(struct spw_engine *e, uint64_t device_bytes, uint64_t host_bytes,
                           uint64_t disk_bytes, struct spw_error *err);

enum spw_moved {
    SPW_MOVED_HOST_TO_DEVICE,
    SPW_MOVED_DEVICE_TO_HOST,
    SPW_MOVED_HOST_TO_DISK, /* over the drive's link, whatever memory is at the other end */
    SPW_MOVED_DISK_TO_HOST,
    SPW_MOVED_COUNT,
};

struct spw_stats { /* since the engine opened */
    uint64_t device_budget_bytes, host_budget_bytes, disk_budget_bytes;
    uint64_t device_peak_bytes, host_peak_bytes, disk_peak_bytes;
    uint64_t moved_bytes[SPW_MOVED_COUNT]; /* counted where bytes are copied */
    /* By the plan and what happened (tokens that were computed, tiles that were lost), never by
     * what was counted. Where that does not say what moved (a write to disk failed, say),
     * has_prediction is false, and these are 0. */
    uint64_t predicted_bytes[SPW_MOVED_COUNT];
    bool has_prediction;
    double unhidden_wait_seconds; /* computation waited for a transfer */
    uint64_t card_bytes;          /* CUDA: what the driver took from the card */
    uint64_t n_fallbacks, n_lost_tiles;
};
void spw_engine_stats(struct spw_engine *e, struct spw_stats *out);
/* Of unhidden_wait_seconds, the part of one layer; 0 for layers from the 512th on. The rest belongs
 * to hidden rows and the head. */
double spw_engine_layer_wait(struct spw_engine *e, uint32_t layer);

struct spw_prefix_stats {            /* since the engine opened */
    uint64_t n_reused, reused_bytes; /* tokens that sessions began with, and their KV */
    uint64_t n_kept, kept_bytes;     /* new in the prefix cache */
    uint64_t written_bytes;          /* for that, tables included */
};
void spw_engine_prefix(const struct spw_engine *e, struct spw_prefix_stats *out);

/* ---- events of an engine: runtime/events.h ---- */

/* The oldest event that was not read yet: memory did not suffice and something gave way, a tile was
 * lost on disk, a prefix was found. False: there is none. The engine keeps the newest 64 events,
 * from its opening on; they do not go with the next step, and exist without a batch. */
bool spw_engine_event(struct spw_engine *e, struct spw_engine_event *out);

/* ---- sessions ---- */

/* -ENOMEM: options.sessions are open already. */
int spw_session_open(struct spw_session **out, struct spw_engine *e, struct spw_error *err);
/* A second session with the same tokens, which shares every tile that is full. */
int spw_session_fork(struct spw_session **out, struct spw_session *from, struct spw_error *err);
void spw_session_close(struct spw_session *s); /* NULL is fine */
size_t spw_session_n_tokens(const struct spw_session *s);
/* Tokens that the latest spw_sync did not compute; and those of them that came from the prefix
 * cache: all or none. */
size_t spw_session_reused(const struct spw_session *s);
size_t spw_session_from_store(const struct spw_session *s);
/* [vocab] logits after the last token, f32; valid until the next spw_sync. NULL: the session is
 * new, or its latest spw_sync asked for no logits. */
const float *spw_session_logits(const struct spw_session *s);
/* Puts the session's whole tiles into the prefix cache: any session of any process that begins with
 * the same tokens finds them. Where layers slide or old KV has less precision, a session can begin
 * only where another one was kept. What the cache refuses (-ENOSPC, -EBUSY, ...) is harmless, and a
 * NOTE reports it once. 0 also without a cache. */
int spw_session_publish(struct spw_session *s, struct spw_error *err);

/* Token positions, tile-aligned: [0, disk_end) disk, [disk_end, host_end) host, rest device. */
struct spw_waterlines {
    uint64_t disk_end, host_end, n_tokens;
};
void spw_session_waterlines(const struct spw_session *s, struct spw_waterlines *out);

/* One session's part of a step. */
struct spw_span {
    struct spw_session *session;
    const int32_t *tokens; /* the whole sequence */
    size_t n_tokens;       /* at least 1 */
    size_t n_logits;       /* rows of logits for on_logits, counted from the end; 0: none */
};

/* Brings the session of every span to exactly its tokens, all in one step: each layer's weights
 * cross the link once for all of them. Reuses the longest common prefix that each session holds, or
 * the prefix cache if that has much more. `on_logits` gets the logits after token `position` of
 * spans[span], in position order. -EINVAL for a token out of range or a session named twice, -E2BIG
 * past the context: nothing has changed then. -ECANCELED: options.interrupt was raised; a session
 * then holds what it did of the tokens, and those of this call that had passed all layers, or
 * nothing where a window has moved on (struct spw_plan_info.rolls_back). The next call computes the
 * rest, to the same bits; logits that were handed over may come again then. */
int spw_sync(struct spw_engine *e, const struct spw_span *spans, size_t n_spans,
             void (*on_logits)(void *context, size_t span, size_t position, const float *logits),
             void *context, struct spw_error *err);

/* ---- a batch: requests that run together ---- */

struct spw_sampling {
    float temperature;        /* 0: greedy */
    uint32_t top_k;           /* 0: off */
    float top_p;              /* 0 or 1: off */
    float min_p;              /* 0: off */
    float repetition_penalty; /* 0 or 1: off */
    uint64_t seed;            /* the n-th draw of a seed is always the same draw */
};

struct spw_request {
    const int32_t *prompt;
    size_t n_prompt, max_new_tokens;
    struct spw_sampling sampling;
    /* Tokens that an earlier batch, which ended early, has generated for this request: this batch
     * continues behind them, as that batch would have. max_new_tokens counts them, and the result
     * has them; its logits_hash leaves them out. The earlier batch has reported the first
     * n_text_given bytes of the text; this batch reports the rest. */
    const int32_t *given;
    size_t n_given;
    uint64_t n_text_given;
    bool text;               /* TEXT events are wanted */
    const char *const *stop; /* stop strings; the text ends before the first one found */
    size_t n_stop;
    bool ignore_eos;
    bool prompt_logprobs; /* the result gets the log-probability of each token of the prompt */
    /* The session that computes the request. The caller owns it, and leaves it open until the
     * request has ended. NULL: the batch opens a session, and closes it when the request has ended.
     * No two requests that have not ended may name the same session. */
    struct spw_session *session;
};

enum spw_finish {
    SPW_FINISH_LENGTH,
    SPW_FINISH_EOS,
    SPW_FINISH_STOP,
    SPW_FINISH_CANCELED, /* by spw_batch_cancel */
    SPW_FINISH_FAILED,   /* the request alone failed; its END event says why */
    SPW_FINISH_NONE,     /* it has not ended yet */
};

struct spw_result {
    int32_t *tokens; /* generated ones */
    size_t n_tokens;
    double *prompt_logprobs; /* [n_prompt], nats, each given all tokens before it; the first is 0;
                                NULL: nobody asked */
    size_t n_reused;         /* of the prompt: not computed */
    size_t n_from_store;     /* of these: from the prefix cache; else the session held them */
    enum spw_finish finish;
    uint64_t
        logits_hash; /* XXH3-64 over the f32 logits of every position that this batch generated */
    struct spw_waterlines waterlines; /* where its tokens lay at the end */
};
void spw_result_free(struct spw_result *r);

enum spw_event_kind {
    SPW_EVENT_TOKEN, /* a token was generated; the request's session may be saved */
    /* Text has become final: whole characters, nothing that a stop string may still take back. It
     * continues the prompt's text: special tokens left out, the space before a word kept. */
    SPW_EVENT_TEXT,
    SPW_EVENT_END, /* the request has ended: spw_batch_take gives its result */
};

/* What happened to one request. Pointers are valid until the next call with the batch that is not
 * spw_batch_event. */
struct spw_event {
    enum spw_event_kind kind;
    uint64_t request;    /* its number */
    int32_t token;       /* TOKEN */
    const float *logits; /* TOKEN: [vocab], those that the token was picked from */
    const char *text;    /* TEXT, and of an END with SPW_FINISH_FAILED the reason */
    size_t text_bytes;
};

/* Tokens that several prompts begin with are computed once: the sessions of these requests then
 * share tiles, and result.n_reused counts the tokens.
 *
 * Requests may be submitted and canceled at any time between two steps. Up to options.sessions run
 * at a time, the others wait; sessions that callers have open count. Submitting takes all memory of
 * a request but that of its text. The prefix cache, if there is one, gets what a request has
 * computed when the request ends, after each pass of a long prompt, and, where a session can begin
 * only at checkpoints, once the first token is there. `tokenizer` may be NULL where no request
 * has text or stop strings. An engine has one batch at a time. -ENOMEM, -EBUSY. */
int spw_batch_open(struct spw_batch **out, struct spw_engine *e,
                   const struct spw_tokenizer *tokenizer, struct spw_error *err);
/* Requests that still run end without an event. NULL is fine. */
void spw_batch_close(struct spw_batch *b);
/* Takes a copy of the request; *id gets its number, from 1 on. -EINVAL, -E2BIG: it could never run,
 * and `err` says why; -ENOMEM. Nothing has changed then. */
int spw_batch_submit(struct spw_batch *b, const struct spw_request *request, uint64_t *id,
                     struct spw_error *err);
/* The request ends with the tokens that it has; events that nobody has read yet are still told, and
 * then its END. -ENOENT: it is not there, or has ended. */
int spw_batch_cancel(struct spw_batch *b, uint64_t id);
/* Gives every running request a token, after waiting ones have taken the place of those that ended;
 * their prompts are computed in the same step. 1: there is more to do, also where no request got a
 * token; 0: nothing is left. A request that fails (its logits are not numbers, say) ends, and the
 * others continue. A negative return is the whole step's, as of spw_sync: no request got a token,
 * all still run, and the caller may try the step again (-ECANCELED), or close the batch (-EIO). */
int spw_batch_step(struct spw_batch *b, struct spw_error *err);
/* What has happened, in order; false: no more. Events that were not read go with the next step. */
bool spw_batch_event(struct spw_batch *b, struct spw_event *out);
/* A request as it is now, until the next call with the batch; NULL: it is not there. */
const struct spw_result *spw_batch_result(const struct spw_batch *b, uint64_t id);
/* Moves the result of a request out of the batch, which forgets the request: for spw_result_free.
 * -ENOENT: it is not there; -EBUSY: it has not ended. */
int spw_batch_take(struct spw_batch *b, uint64_t id, struct spw_result *out);

struct spw_batch_times {
    double prefill_seconds, decode_seconds; /* steps that a prompt is part of; the others */
    uint64_t n_decode_steps;
};
void spw_batch_times(const struct spw_batch *b, struct spw_batch_times *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
