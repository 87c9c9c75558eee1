/* spillway: text generation with contexts far larger than the device's memory. The public API.
 *
 * Headers of its own have what a program may want besides: runtime/measure.h (limits of the machine
 * and the drive, whether quantized KV is safe for a model), model/config.h, tokenizer.h and
 * chat_template.h in model/text/.
 *
 * An engine is one model on one backend under fixed memory budgets; a session is one token sequence
 * whose KV cache lies across the tiers. The caller always hands over a whole sequence: the session
 * finds what it already holds and computes the rest. Where bytes lie never changes a result.
 * Every call returns 0 or -errno and, where it has a `struct spw_error`, one line of text. An
 * engine and its sessions belong to one thread at a time. One thing is global: the first engine
 * installs a handler for SIGBUS, which passes on what is not about a model's files
 * (model/source/file_map.h). */
#ifndef SPW_RUNTIME_SPILLWAY_H
#define SPW_RUNTIME_SPILLWAY_H

#include "base/base.h"
#include "offload/io/io_kind.h"
#include "quant/precision.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* what the shared library exports */

#define SPW_VERSION "0.1.0"

enum spw_backend_kind {
    SPW_BACKEND_AUTO, /* the first GPU if it works, else the CPU */
    SPW_BACKEND_CPU,
    SPW_BACKEND_CUDA,
};

/* An explicit budget of no bytes, where 0 stands for "choose for me". */
#define SPW_BYTES_NONE UINT64_MAX

struct spw_progress {
    uint64_t done, total;  /* token-layers of the running step */
    uint64_t n_new_tokens; /* tokens the step computes */
};

/* A session began with KV that was kept earlier. */
struct spw_reuse {
    uint64_t n_tokens, n_asked; /* found; of the whole sequence */
    uint64_t bytes;             /* of their KV, read where it lies or as the session begins */
};

struct spw_machine;      /* runtime/measure.h */
struct spw_drive;        /* the same */
struct spw_model_config; /* model/config.h */
struct spw_tensors;      /* model/source/tensors.h */
struct spw_tokenizer;    /* model/text/tokenizer/tokenizer.h */

/* A tile that could not be read back as it was written, and what was done about it. */
enum { SPW_INCIDENTS_KEPT = 64 };

struct spw_incident {
    int error;             /* -EBADMSG: the checksum; else what the drive said */
    uint32_t layer;        /* of the tile */
    uint64_t position;     /* its first token */
    uint64_t n_recomputed; /* tokens whose KV was cut off and computed again */
};

/* What gave way when memory did not suffice. All but the precisions leave every answer as it is. */
enum spw_rung_kind {
    SPW_RUNG_BUDGETS, /* less of what was spare */
    SPW_RUNG_CHUNK,   /* a smaller prefill chunk */
    SPW_RUNG_SLOTS,   /* fewer prefetch slots */
    SPW_RUNG_WEIGHTS, /* fewer layers' weights on the device */
    SPW_RUNG_HOST,    /* more KV on the host */
    SPW_RUNG_DISK,    /* more KV on disk */
    SPW_RUNG_INT8,    /* old KV as int8, as int8:int4, as int4 */
    SPW_RUNG_INT8_INT4,
    SPW_RUNG_INT4,
    SPW_RUNG_UP, /* higher budgets: old KV has more precision again */
};

enum { SPW_RUNGS_KEPT = 64 };

struct spw_rung {
    enum spw_rung_kind kind;
    const char *failed; /* "device budget": too small; "device memory": refused by the system */
    uint64_t position;  /* tokens that the longest session held */
    uint64_t bytes_asked, bytes_freed; /* of what failed; freed: that it needs no longer */
    /* Tokens whose KV is computed again. 0: all of it was kept; if it has another precision now, it
     * had the old one up to `position`, else it has the new one from the first token on. */
    uint64_t n_recomputed;
    /* INT8 to INT4: the first token of a session that reads old KV with this precision. Logits
     * before this token are exact, unless an earlier rung or an option took precision from them.
     * Of several sessions the least. 0 for the other rungs. */
    uint64_t lossy_from;
};

/* "int8 for old KV" */
const char *spw_rung_name(enum spw_rung_kind kind);

/* What may be done when memory does not suffice. */
enum {
    SPW_ON_OOM_SPILL = 1,    /* KV may leave the device */
    SPW_ON_OOM_QUANTIZE = 2, /* old KV may have less precision, unless options name one */
    SPW_ON_OOM_FAIL = 4,     /* neither */
};

/* Zero is the default everywhere. */
struct spw_options {
    enum spw_backend_kind backend;
    uint32_t device_index; /* CUDA: which GPU */
    uint32_t threads;      /* compute threads; 0: every core this process may use, of two kinds the
                              fast ones; of eight or more one less beside a disk tier */
    uint64_t device_bytes; /* hard budgets; 0: what is available now, less a margin */
    uint64_t host_bytes;
    const char *disk_dir;      /* where KV may lie on disk; NULL: no disk tier */
    uint64_t disk_bytes;       /* with it; 0: what is free there, less a margin */
    uint64_t disk_write_limit; /* most bytes written to disk, of KV and to the prefix cache and
                                  saved sessions; 0: any number; SPW_BYTES_NONE: none */
    enum spw_io_kind io;       /* who reads and writes there */
    /* Where prefixes lie that sessions may begin with; NULL: nowhere. Their tiles are read where
     * they lie, beside disk_dir or without it. */
    const char *prefix_cache_dir;
    uint64_t prefix_cache_bytes; /* with it: most that all of them take; 0: 16 GiB */
    /* With it: also takes a directory and files that other users own or may write to. What they
     * write there becomes part of answers. */
    bool prefix_cache_trusts_others;
    /* What was measured of this machine and of the drive behind disk_dir; borrowed while the engine
     * opens or the plan is asked. NULL: typical numbers. Never changes a result. */
    const struct spw_machine *machine;
    const struct spw_drive *drive;
    enum spw_dtype compute; /* AUTO: bf16 for a bf16 model, else f32 */
    enum spw_dtype kv;      /* of exact KV; AUTO: as compute */
    /* How KV is kept once it is old: older than `residual_window` tokens (0: 1024; SPW_BYTES_NONE:
     * none), in layers that see every key, but for the first 128. Changes results, and is a pure
     * function of positions. */
    enum spw_kv_precision precision;
    uint64_t residual_window;
    unsigned on_oom; /* SPW_ON_OOM_*; 0: SPILL | QUANTIZE */
    /* Whether this model may keep old KV with less precision. Asked only where a plan needs it and
     * would do with it, from within calls that plan; may take its time. NULL: it may not. */
    bool (*gate)(void *context, enum spw_kv_precision precision);
    void *gate_context;
    uint64_t context;         /* most tokens a session may hold; 0: what the model knows */
    bool past_positions;      /* context may be more than the model knows: see spw_engine_note */
    uint32_t sessions;        /* most sessions at a time; 0: 1 */
    uint32_t prefill_chunk;   /* tokens of a prompt that pass a layer together; 0: planned */
    uint32_t prefetch_slots;  /* buffers of the KV ring on the device; 0: planned */
    uint32_t prefetch_splits; /* of 512 positions in one of them; 0: planned */
    /* Sessions will be written to files or taken from them (spw_session_save): host memory for the
     * pieces is part of the plan. */
    bool keeps;
    uint64_t delay_seed; /* CPU: random delays around every copy and kernel (validation) */
    bool serial_kernels; /* CUDA: kernels never overlap (validation) */
    /* Called from within spw_sync, as prompts are computed, and at the end of a step. May be NULL.
     */
    void (*on_progress)(void *context, const struct spw_progress *progress);
    void *progress_context;
    /* Asked from within spw_sync, behind each chunk of a layer: true ends the call with -ECANCELED,
     * within two chunks. All it need do is look at a flag that a signal handler (volatile
     * sig_atomic_t) or another thread (atomic) has set. May be NULL. */
    bool (*interrupted)(void *context);
    void *interrupt_context;
    /* Called from within spw_sync between two passes of a long prompt: the sessions of the call
     * hold what has passed all layers. The callback may save them (spw_session_save), and may call
     * nothing else of theirs. Where sessions are kept a pass takes about a minute. May be NULL. */
    void (*on_pass)(void *context);
    void *pass_context;
    /* Sessions will be gone on with after a step that was ended, and from before their latest
     * prompt again (another question, another answer): what sliding windows and exact tiles near
     * the end have left behind since then stays on the device. It is part of the plan, if it takes
     * at most an eighth of the device's budget. */
    bool rolls_back;
    /* Called from within spw_sync when a tile was lost on disk and its tokens are about to be
     * computed again. May be NULL. */
    void (*on_incident)(void *context, const struct spw_incident *incident);
    void *incident_context;
    /* Called from within spw_sync when a session begins with a prefix that was kept, and from there
     * and spw_session_keep with one line where the prefix cache is damaged or cannot take more: no
     * answer depends on it. May be NULL. */
    void (*on_reuse)(void *context, const struct spw_reuse *reuse);
    void (*on_prefix_note)(void *context, const char *text);
    void *prefix_context;
    /* Called when a rung has been entered, from within calls that plan. May be NULL. */
    void (*on_rung)(void *context, const struct spw_rung *rung);
    void *rung_context;
};

enum spw_moved {
    SPW_MOVED_HOST_TO_DEVICE,
    SPW_MOVED_DEVICE_TO_HOST,
    SPW_MOVED_HOST_TO_DISK, /* over the drive's link, whatever memory is at the other end */
    SPW_MOVED_DISK_TO_HOST,
    SPW_MOVED_COUNT,
};

/* Token positions, tile-aligned: [0, disk_end) disk, [disk_end, host_end) host, rest device. */
struct spw_waterlines {
    uint64_t disk_end, host_end, n_tokens;
};

/* What lies where for a full context, decided before anything is loaded. Bytes. */
struct spw_plan_info {
    uint64_t context;
    uint32_t sessions, prefill_chunk, prefetch_slots, prefetch_splits;
    enum spw_dtype compute, kv;
    enum spw_kv_precision precision; /* of old KV */
    uint64_t residual_tokens;        /* then: the newest that are read exact */
    /* Sessions can be cut back to where their latest prompt began, or its last pass: a step that is
     * ended takes nothing from what they held before. */
    bool rolls_back;
    uint64_t device_budget_bytes, host_budget_bytes, disk_budget_bytes;
    struct {
        uint64_t weights_resident, weights_slots, kv_resident, kv_slots, hidden, activations, total;
    } device;
    struct {
        uint64_t kv, hidden, staging, disk_staging, weights, total;
    } host;
    struct {
        uint64_t kv, total;
    } disk;
    uint32_t n_layers, n_layers_resident; /* layers whose weights stay on the device */
    uint32_t n_layers_from_disk;          /* whose weights are read from the files each time */
    uint64_t weights_bytes;               /* of all layers and the head */
    uint64_t weights_disk_bytes;          /* that one decode step reads of the files */
    uint64_t kv_bytes_per_token;          /* all full-attention layers */
    struct spw_waterlines waterlines;     /* of one session that holds `context` tokens */
    /* One decode step of one session at the full context. */
    uint64_t decode_moved_bytes[SPW_MOVED_COUNT];
    uint64_t decode_read_bytes;   /* weights and KV that computation reads */
    uint64_t decode_old_kv_bytes; /* of these, KV with less precision */
    /* Channels of queries times keys, of exact KV and of that: head_dim * heads * keys, a layer. */
    uint64_t decode_products, decode_old_products;
    /* KV that comes into slots of the ring, from the host or the disk, and in how many of them. */
    uint64_t decode_slot_bytes, decode_slots;
    /* A prompt of `context` tokens from nothing. */
    uint64_t prefill_moved_bytes[SPW_MOVED_COUNT];
    /* The most that all sessions write to disk as they grow to `context` tokens. */
    uint64_t disk_write_bytes;
    /* With a prefix cache: what keeping a session of `context` tokens at once writes there, if
     * nothing of it is there yet. A prompt that is kept after each pass writes some tables more. */
    uint64_t prefix_write_bytes;
    uint64_t smallest_device_bytes, smallest_host_bytes, smallest_disk_bytes; /* that still work */
};

struct spw_stats {
    uint64_t device_budget_bytes, host_budget_bytes, disk_budget_bytes;
    uint64_t device_peak_bytes, host_peak_bytes, disk_peak_bytes;
    uint64_t moved_bytes[SPW_MOVED_COUNT]; /* counted where bytes are copied */
    /* By the plan and what happened (tokens that were computed, sessions from files, tiles that
     * were lost), never by what was counted. Where that does not say what moved (a write to disk
     * that failed, say), has_prediction is false, and these are 0. */
    uint64_t predicted_bytes[SPW_MOVED_COUNT];
    bool has_prediction;
    double unhidden_wait_seconds; /* computation waited for a transfer */
    uint64_t card_bytes; /* CUDA: taken from the card since the engine opened, by the driver */
};

struct spw_engine;
struct spw_session;

/* The type that a model with these weights is computed in: what the options say, or AUTO's choice.
 */
enum spw_dtype spw_compute_type(const struct spw_tensors *weights, const struct spw_options *o);

/* Reads the headers and the budgets, decides, and takes nothing. Refuses what cannot work with the
 * smallest budgets that can: -ENOMEM (budgets), -EINVAL (options, model). `out` is filled with
 * smallest_*_bytes also when a budget was too small: those of the plan's own precision, and of a
 * refusal those of the precision that was asked for. */
int spw_plan_query(struct spw_plan_info *out, const char *model_dir, const struct spw_options *o,
                   struct spw_error *err);

/* A request as a batch gets it, by its lengths; tokens that it was given count as prompt.
 * prompt: [n_prompt]; NULL: it shares no tokens with other requests.
 * n_found: the tokens of the prompt that a prefix cache gives. n_resumed: those that its session
 * got from spw_session_resume, and resumed_logits: with the logits behind them (spw_saved_info). */
struct spw_plan_request {
    uint64_t n_prompt, max_new_tokens, n_found, n_resumed;
    bool resumed_logits;
    const int32_t *prompt;
};

/* The same decision, and the bytes that an engine moves over each link in all if it is opened with
 * these options, generates for these requests in one batch, submitted before the first step, and
 * every answer has max_new_tokens: what its spw_stats count then, as integers. Of a prefix cache no
 * more is known than n_found: that it gives so many tokens, and holds no more of these sequences.
 * -E2BIG: a request is longer than the context. */
int spw_plan_moved(uint64_t moved[SPW_MOVED_COUNT], const char *model_dir,
                   const struct spw_options *o, const struct spw_plan_request *requests, size_t n,
                   struct spw_error *err);

/* The same decision, then memory, threads and weights (the folder stays mapped: a step that finds a
 * file of it shorter, or written to, fails with -EIO and keeps nothing). -ENOENT: no such folder or
 * file; -EINVAL: options or model; -ENOMEM: budgets, or memory was refused; -ENOTSUP, -ENODEV: no
 * such device; -EIO. *out is for spw_engine_close. */
int spw_engine_open(struct spw_engine **out, const char *model_dir, const struct spw_options *o,
                    struct spw_error *err);
/* Sessions must have been closed. NULL is fine. */
void spw_engine_close(struct spw_engine *e);
const struct spw_model_config *spw_engine_config(const struct spw_engine *e);
const struct spw_plan_info *spw_engine_plan(const struct spw_engine *e);
void spw_engine_stats(struct spw_engine *e, struct spw_stats *out);
/* Other budgets, as in the options, between two calls of spw_sync: plans again, gives memory back
 * or takes it. Sessions keep their tokens, and on the way down their caches where KV can be divided
 * anew in place; else the next spw_sync computes what these held again, to the same bits under the
 * same precision of old KV, and logits are gone until then (struct spw_rung). Peaks begin anew.
 * -ENOMEM where no plan works, with the smallest budgets that would do, and whatever options cannot
 * mean: the engine goes on under the old ones. Memory that could not be had back then is asked for
 * again by the next call that needs it. */
int spw_engine_set_budgets(struct spw_engine *e, uint64_t device_bytes, uint64_t host_bytes,
                           uint64_t disk_bytes, struct spw_error *err);
/* Of stats.unhidden_wait_seconds, what layer `layer` waited for; the rest are hidden rows and the
 * head. 0 for layers from the 512th on. */
double spw_engine_layer_wait(struct spw_engine *e, uint32_t layer);
/* "cpu avx512bf16", "cuda:0 NVIDIA H200, sm_90" */
const char *spw_engine_backend(const struct spw_engine *e);
/* Who reads and writes the disk, how, and why: "io_uring, 16 in flight, ..."; "" without a disk. */
const char *spw_engine_io(const struct spw_engine *e);
/* What the user should know of how the engine was opened: why AUTO took the CPU, that host memory
 * could not be pinned, that device memory was gone and the plan is another one, that the model asks
 * for a cache it does not get. "" if nothing. */
const char *spw_engine_note(const struct spw_engine *e);
/* What may help, and what may be wrong, when results are not numbers (NaN): a part of a sentence.
 */
const char *spw_engine_nan_advice(const struct spw_engine *e);

/* What was lost on disk and computed again since the engine opened; the first ones are kept, `n`
 * counts all. Valid until the next spw_sync. */
const struct spw_incident *spw_engine_incidents(const struct spw_engine *e, uint64_t *n);

/* The rungs that were entered since the engine opened, as incidents are kept. */
const struct spw_rung *spw_engine_rungs(const struct spw_engine *e, uint64_t *n);

/* -ENOMEM when `sessions` are open already. */
int spw_session_open(struct spw_session **out, struct spw_engine *e, struct spw_error *err);
/* A second session with the same tokens, sharing every tile that is full. */
int spw_session_fork(struct spw_session **out, struct spw_session *from, struct spw_error *err);
void spw_session_close(struct spw_session *s);
size_t spw_session_n_tokens(const struct spw_session *s);
/* Tokens the latest spw_sync did not have to compute; and those of them that came from the prefix
 * cache: all or none. */
size_t spw_session_reused(const struct spw_session *s);
size_t spw_session_from_store(const struct spw_session *s);
void spw_session_waterlines(const struct spw_session *s, struct spw_waterlines *out);
/* [vocab] logits after the last token, f32; valid until the next spw_sync. NULL where the session
 * has none: it is new, or its latest spw_sync asked for no logits. */
const float *spw_session_logits(const struct spw_session *s);

/* One session's part of a step. */
struct spw_span {
    struct spw_session *session;
    const int32_t *tokens; /* the whole sequence */
    size_t n_tokens;       /* at least 1 */
    size_t n_logits;       /* rows of logits handed to on_logits, counted from the end; 0: none */
};

/* Brings every span's session to exactly its tokens, all in one step: each layer's weights cross
 * the link once for all of them. Reuses the longest common prefix each session holds, or the
 * prefix cache if that has much more. `on_logits` gets the logits after token `position` of
 * spans[span]; it is called in position order. -EINVAL for a token out of range or a session named
 * twice, -E2BIG past the context: nothing has changed then. -ECANCELED: options.interrupted has
 * said so; a session then holds what it did of the tokens, and those of this call that had passed
 * all layers, or nothing where a window has moved on (struct spw_plan_info.rolls_back); the next
 * call computes the rest, to the same bits. Logits that were handed over may come again then. */
int spw_sync(struct spw_engine *e, const struct spw_span *spans, size_t n_spans,
             void (*on_logits)(void *context, size_t span, size_t position, const float *logits),
             void *context, struct spw_error *err);

/* ---- sessions in files ---- */

enum { SPW_SAVED_STATE_BYTES = (16 << 20) - 4096 };

/* Holds `path` for the saves of this session until it is closed or saved elsewhere: nobody else can
 * save there meanwhile. A name that is free gets an empty file, which goes again if nothing is
 * saved. -EBUSY: another process, or session, holds it; -EPERM: it belongs to another user;
 * -EINVAL: it is neither a saved session nor free, or is a link. */
int spw_session_save_to(struct spw_session *s, const char *path, struct spw_error *err);
/* Writes all that the session holds to `path`, mode 0600, and `state`, the caller's own bytes,
 * after spw_session_save_to. The file is the one before or the new one, whenever the process dies.
 * A file of the same tokens grows: only what is new is written, and, by a session's first save,
 * what was damaged since; another saved session is replaced, and so is one that others may read or
 * write. *written_bytes may be NULL. Needs options.keeps. -EDQUOT: the disk write limit; -ENOSPC,
 * -EIO. The session stays as it is. */
int spw_session_save(struct spw_session *s, const char *path, const void *state, size_t state_bytes,
                     uint64_t *written_bytes, struct spw_error *err);

/* A file that was saved, open. */
struct spw_saved;
struct spw_saved_info {
    const int32_t *tokens; /* [n_tokens] */
    size_t n_tokens;
    bool has_logits;   /* behind the last token */
    const void *state; /* [state_bytes], of the caller of save */
    size_t state_bytes;
    enum spw_dtype compute, kv; /* what it was computed with: an engine must have the same */
    enum spw_kv_precision precision;
    uint64_t residual_tokens;
    const char *backend; /* spw_engine_backend */
    /* NULL, or why it is not to be trusted: others own it, or may write it. */
    const char *foreign;
};
/* -ENOENT; -EBADMSG: damaged, or no file of spillway; -EINVAL: another file of spillway; -ESTALE:
 * of another version. */
int spw_saved_open(struct spw_saved **out, const char *path, struct spw_error *err);
void spw_saved_close(struct spw_saved *v); /* NULL is fine */
const struct spw_saved_info *spw_saved_info(const struct spw_saved *v);
/* 0, or -ESTALE: it was computed with another model, on another backend, or with other types than
 * the engine has, and `err` names both sides. */
int spw_saved_check(const struct spw_saved *v, const struct spw_engine *e, struct spw_error *err);
/* A new session that holds what was saved, under any budgets; what it computes from there on is
 * what the other one would have. Needs options.keeps. -ESTALE: see spw_saved_check; -EPERM:
 * info.foreign; -EBADMSG: damaged; -E2BIG: more tokens than the context. */
int spw_session_resume(struct spw_session **out, struct spw_engine *e, const struct spw_saved *v,
                       struct spw_error *err);
/* ---- prefixes ---- */

/* Keeps the session's whole tiles in the prefix cache, those that are not there yet: any session of
 * any process that begins with the same tokens finds them, in spw_sync. Where layers slide or old
 * KV has less precision one can begin only where another one was kept. What the cache refuses
 * (-ENOSPC, -EBUSY, ...) is told by on_prefix_note too, once, and harmless; 0 also without a cache.
 */
int spw_session_keep(struct spw_session *s, struct spw_error *err);

/* Since the engine opened. */
struct spw_prefix_stats {
    uint64_t n_reused, reused_bytes; /* tokens that sessions began with, their KV */
    uint64_t n_kept, kept_bytes;     /* new in the cache */
    uint64_t written_bytes;          /* for that, tables included */
};
void spw_engine_prefix(const struct spw_engine *e, struct spw_prefix_stats *out);

/* ---- sampling ---- */

struct spw_sampling {
    float temperature;        /* 0: greedy */
    uint32_t top_k;           /* 0: off */
    float top_p;              /* 0 or 1: off */
    float min_p;              /* 0: off */
    float repetition_penalty; /* 0 or 1: off */
    uint64_t seed;
};

/* Scratch for one vocabulary; no state: the n-th draw of a seed is always the same draw. */
struct spw_sampler;
int spw_sampler_open(struct spw_sampler **out, uint32_t vocab, struct spw_error *err);
void spw_sampler_close(struct spw_sampler *s);
int spw_sampling_check(const struct spw_sampling *p, struct spw_error *err);
/* The next token after `tokens` (for the repetition penalty), with the counter-based generator at
 * (seed, stream, n_tokens): a sequence's choices depend on nothing but its own tokens. */
int32_t spw_sampler_pick(struct spw_sampler *s, const struct spw_sampling *p, const float *logits,
                         const int32_t *tokens, size_t n_tokens, uint64_t stream);

/* ---- a batch: requests that run together ---- */

enum spw_finish {
    SPW_FINISH_LENGTH,
    SPW_FINISH_EOS,
    SPW_FINISH_STOP,
    SPW_FINISH_CANCELED, /* by spw_batch_cancel */
    SPW_FINISH_FAILED,   /* the request alone failed; its END event says why */
    SPW_FINISH_NONE,     /* it has not ended yet */
};

struct spw_request {
    const int32_t *prompt;
    size_t n_prompt;
    size_t max_new_tokens;
    struct spw_sampling sampling;
    /* Tokens that an earlier batch, which ended early, has generated for this request: this batch
     * goes on behind them, as that one would have. max_new_tokens counts them, and the result has
     * them; its logits_hash leaves them out. The first n_text_given bytes of the text were told
     * then, and are not told again. */
    const int32_t *given;
    size_t n_given;
    uint64_t n_text_given;
    bool text;               /* TEXT events are wanted */
    const char *const *stop; /* stop strings; the text ends before the first one found */
    size_t n_stop;
    bool ignore_eos;
    bool prompt_logprobs; /* the result gets the log-probability of each token of the prompt */
    /* The session that computes the request. It stays the caller's, and must be open until the
     * request has ended. NULL: the batch opens a session, and closes it when the request has ended.
     * No two requests that have not ended may name the same session. */
    struct spw_session *session;
};

struct spw_result {
    int32_t *tokens; /* generated ones */
    size_t n_tokens;
    double *prompt_logprobs; /* [n_prompt], nats, each given all tokens before it; the first is 0;
                                NULL: nobody asked */
    size_t n_reused;         /* of the prompt: not computed */
    size_t n_from_store;     /* then: from the prefix cache; else the session held them already */
    enum spw_finish finish;
    uint64_t
        logits_hash; /* XXH3-64 over the f32 logits of every position generated by this batch */
    struct spw_waterlines waterlines; /* where its tokens lay at the end */
};

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
    const float *logits; /* TOKEN: [vocab], those that it was picked from */
    const char *text;    /* TEXT, and of an END with SPW_FINISH_FAILED the reason */
    size_t text_bytes;
};

struct spw_batch;

/* Tokens that several prompts begin with are computed once: the sessions of these requests then
 * share tiles, and result.n_reused counts the tokens.
 *
 * Requests may be submitted and canceled at any time between two steps. Up to the engine's number
 * of sessions run at a time, the others wait; sessions that callers have open count. Submitting
 * takes all memory of a request but that of its text. What requests compute is kept in the prefix
 * cache, if there is one, when they end, after each pass of a long prompt, and, where a session can
 * only go on at checkpoints, once their first token is there. `tokenizer` may be NULL where no
 * request has text or stop strings. An engine has one batch at a time. -ENOMEM, -EBUSY. */
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
 * their prompts are computed in the same step. 1: there is more to do; 0: nothing is left. A
 * request that fails (its logits are not numbers, say) ends, and the others go on. A negative
 * return is the whole step's, as of spw_sync: no request got a token, all still run, and the step
 * may be tried again (-ECANCELED), or the batch closed (-EIO). */
int spw_batch_step(struct spw_batch *b, struct spw_error *err);
/* What has happened, in order; false: no more. Events that were not asked for go with the next
 * step. */
bool spw_batch_event(struct spw_batch *b, struct spw_event *out);
/* A request as it is now, until the next call with the batch; NULL: it is not there. */
const struct spw_result *spw_batch_result(const struct spw_batch *b, uint64_t id);
/* Moves the result of a request out of the batch, which forgets the request: for spw_result_free.
 * -ENOENT: it is not there; -EBUSY: it has not ended. */
int spw_batch_take(struct spw_batch *b, uint64_t id, struct spw_result *out);
void spw_result_free(struct spw_result *r);

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
