/* spillway: text generation with models and contexts larger than memory. The public API.
 *
 * An engine is one model on one backend under fixed memory budgets. A session is one token sequence
 * whose KV cache lies across the tiers. A batch runs requests through the engine's sessions. Where
 * bytes lie never changes a result.
 *
 * Other public headers of runtime/: events.h (what an engine reports), plan_query.h (the plan of an
 * engine, the smallest budgets), saved.h (sessions in files), sampler.h (picks a token from
 * logits), measure.h (limits of the machine and the drive, the check of quantized KV), experts.h
 * (counts and traces of a mixture's routing).
 *
 * Every call returns 0 or -errno; a call with a `struct spw_error` also gives one line of text. An
 * engine, its sessions and its batch belong to one thread at a time. One thing is global: the first
 * engine installs a handler for SIGBUS, which handles faults in a model's files and passes on all
 * others. */
#ifndef SPW_RUNTIME_SPILLWAY_H
#define SPW_RUNTIME_SPILLWAY_H

#include "base/dtype.h"
#include "base/token_rules.h"
#include "base/types.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* what the shared library exports */

#define SPW_VERSION "0.1.0"
/* The version of the library that runs; SPW_VERSION is that of this header. */
const char *spw_version(void);

struct spw_engine;
struct spw_session;
struct spw_batch;
struct spw_backend;             /* runtime/engine/backend.h */
struct spw_engine_event;        /* runtime/events.h */
struct spw_plan_info;           /* runtime/plan_query.h */
struct spw_machine;             /* runtime/measure.h */
struct spw_drive;               /* runtime/measure.h */
struct spw_expert_counts;       /* runtime/experts.h */
struct spw_expert_trace_writer; /* runtime/experts.h */
struct spw_model_config;        /* model/config/config.h */
struct spw_tokenizer;           /* model/text/tokenizer/tokenizer.h */
struct spw_grammar;             /* model/text/grammar/grammar.h */

/* ---- options ---- */

enum spw_backend_kind {
    SPW_BACKEND_AUTO, /* the first GPU if it works, else the CPU */
    SPW_BACKEND_CPU,
    SPW_BACKEND_CUDA,
};

/* No byte of a budget, no token of a window. An option of 0 leaves the choice to the engine. */
#define SPW_NONE UINT64_MAX

/* The allowed fallbacks when memory does not suffice. */
enum {
    SPW_ON_OOM_SPILL = 1,    /* KV may leave the device */
    SPW_ON_OOM_QUANTIZE = 2, /* old KV may have less precision, unless options name a precision */
    SPW_ON_OOM_FAIL = 4,     /* neither */
};

struct spw_progress {
    uint64_t done, total;  /* tokens times layers of the running step */
    uint64_t n_new_tokens; /* tokens that the step computes */
};

/* A request to end the running step early. The caller owns it; several engines may share it. */
struct spw_interrupt {
    int raised; /* private to the two functions */
};
/* The running step of an engine with this options.interrupt ends with -ECANCELED within two chunks
 * of a layer. If no step runs, the next step ends. A step that returns -ECANCELED clears the
 * interrupt; an interrupt that came too late for a step stays raised. Any thread and any signal
 * handler may call this. */
void spw_interrupt_raise(struct spw_interrupt *i);
/* Clears the interrupt. True: it was raised, and no step has ended because of it. Call this before
 * a step that an earlier interrupt must not end. */
bool spw_interrupt_clear(struct spw_interrupt *i);

/* Drafts are tokens that a step computes together with the next token of an answer, before anybody
 * knows whether they will be picked. Those stay that would have been picked without drafts: no
 * result depends on drafts. They are what followed the latest tokens where these occurred before,
 * in the prompt or the answer. */
enum spw_drafts {
    SPW_DRAFTS_OFF,
    /* as many as pay, by the measured times of steps and by how many stayed. The MTP layer of the
     * model also drafts, if the plan has memory for the layer that nothing else needs, and if no
     * session is saved or kept for others: what is stored must not depend on the memory */
    SPW_DRAFTS_AUTO,
    SPW_DRAFTS_TEXT, /* as many as can be made */
    /* by the layer of the model that predicts further tokens (MTP), as many as are likely to stay.
     * -EINVAL: the model has no such layer */
    SPW_DRAFTS_MTP,
    SPW_DRAFTS_MODEL, /* by options.draft_model only, which reads prompts at once */
};

/* Added to the rows of a step in spw_result.step_rows. */
enum { SPW_STEP_BY_MTP = 128 };

/* Layers and experts that lie in host memory, while a GPU computes: where their weights are
 * quantized, the CPU multiplies them there when rows are few, and no result depends on that. */
enum spw_host_compute {
    SPW_HOST_COMPUTE_AUTO, /* when it saves time, by the measured rates of the machine */
    SPW_HOST_COMPUTE_OFF,
};

/* Zero is the default of every member. Paths are borrowed until the engine is open. */
struct spw_options {
    /* ---- the device ---- */
    enum spw_backend_kind backend;
    uint32_t device_index; /* CUDA: which GPU */
    /* Compute threads; 0: every core that this process may use. With two kinds of cores only the
     * fast ones; with eight cores or more, one core is left to I/O. */
    uint32_t threads;
    /* F32 or BF16; AUTO: bf16 for a model with bf16 or quantized weights, else f32 */
    enum spw_dtype compute;

    /* ---- memory: hard budgets in bytes; 0: what is available now, less a margin ---- */
    uint64_t device_bytes, host_bytes;
    unsigned on_oom; /* SPW_ON_OOM_*; 0: SPILL | QUANTIZE */
    /* Returns NULL if this model may store old KV with less precision (spw_gate_check measures it),
     * else why not: the refusal of the plan quotes the text, which stays until the next call. The
     * engine asks only if a plan needs that precision and would work with it, from within calls
     * that plan. The call may take long. NULL: no model may. */
    const char *(*gate)(void *context, enum spw_kv_precision precision);
    void *gate_context;

    /* ---- disk ---- */
    const char *disk_dir;      /* where KV may lie on disk; NULL: nowhere */
    uint64_t disk_bytes;       /* 0: what is free there, less a margin */
    uint64_t disk_write_limit; /* the most bytes that KV, the prefix cache and saved sessions write;
                                  0: no limit; SPW_NONE: they write nothing */
    enum spw_io_kind io;
    /* Weights that are read from disk during a step are compared with checksums of the first time
     * that they were read. The file keeps these checksums for later runs; it is made if it does not
     * exist, and written when the engine is closed. NULL: they are known only within this run. */
    const char *weight_checksums;
    /* The directory of prefixes that sessions may begin with; NULL: none. Needs no disk_dir. */
    const char *prefix_cache_dir;
    uint64_t prefix_cache_bytes; /* the most that all prefixes take; 0: 16 GiB */
    /* Also uses a directory and files that other users own or may write to. What they write there
     * becomes part of answers. */
    bool prefix_cache_trusts_others;

    /* ---- the KV cache ---- */
    enum spw_dtype kv; /* of exact KV; AUTO: as compute */
    /* The precision of KV older than `residual_window` tokens (0: 1024; SPW_NONE: none), in
     * layers that see every key, except for the first 128 tokens. Changes results; the change
     * depends on positions only. */
    enum spw_kv_precision precision;
    uint64_t residual_window;
    uint64_t context;    /* the most tokens that a session may hold; 0: the model's own limit */
    bool past_positions; /* context may exceed the model's own limit */

    /* ---- sessions ---- */
    uint32_t sessions; /* the most sessions at a time; 0: 1 */
    /* Memory is reserved for so many sessions as long as the context; 0: for all of them. With
     * fewer, more sessions may be open if they are shorter: together they hold at most
     * full_sessions contexts, in tiles of 128 tokens. A request of a batch waits until its prompt
     * and its longest answer fit beside the requests that run. */
    uint32_t full_sessions;
    bool saves; /* sessions will be saved or resumed (saved.h): the plan reserves memory */
    /* The caller will continue sessions after an interrupted step, and from a position before their
     * latest prompt (another question, another answer). Tiles that sliding windows and the residual
     * window have passed since then stay on the device, if they take at most an eighth of it. */
    bool rolls_back;
    /* Of the answers of a batch. TEXT, MTP: the plan reserves memory for the logits of drafts. Else
     * it does so only where the budgets allow it and a step moves no more bytes for it; without
     * this memory there are no drafts. */
    enum spw_drafts drafts;
    /* With AUTO or MODEL: the folder or file of a smaller model with the same vocabulary, which
     * proposes drafts where the text does not. It gets at most a quarter of the budgets. With AUTO
     * it reads a prompt only once this takes no more time than drafts may lose. NULL: none. */
    const char *draft_model;

    /* ---- sizes that the plan chooses where they are 0 ---- */
    uint32_t prefill_chunk;   /* tokens of a prompt that pass a layer together */
    uint32_t prefetch_slots;  /* buffers of the KV ring on the device */
    uint32_t prefetch_splits; /* of 512 positions, in one of these buffers */
    /* Measured limits of this machine, the typical ones, and of the drive behind disk_dir; borrowed
     * until the engine is open. NULL: those of a small machine. They never change a result. */
    const struct spw_machine *machine;
    const struct spw_drive *drive;

    enum spw_host_compute host_compute;

    /* ---- experts that have no room on the device (experts.h) ---- */
    const struct spw_expert_counts *expert_counts; /* of earlier runs; borrowed until the engine is
                                                      open; NULL: none */
    struct spw_expert_trace_writer *expert_trace;  /* gets the routing; must outlive the engine */

    /* ---- during a step ---- */
    struct spw_interrupt *interrupt; /* ends steps early; must outlive the engine; NULL: none */
    /* Called as prompts are computed, and at the end of each step. May read events. */
    void (*on_progress)(void *context, const struct spw_progress *progress);
    void *progress_context;
    /* Called between two passes of a long prompt, when the sessions of the step hold the tokens
     * that have passed all layers. May save them (spw_session_save) and read events, nothing else.
     * If sessions are saved or published, a pass takes about a minute. */
    void (*on_pass)(void *context);
    void *pass_context;

    /* ---- validation ---- */
    const struct spw_backend *own_backend; /* for tests: computes in the place of `backend`;
                                              borrowed until the engine is open */
    uint64_t delay_seed;                   /* CPU: random delays around every copy and kernel */
    bool serial_kernels;                   /* CUDA: kernels never overlap */
};

/* Sets every option to its default. */
void spw_options_init(struct spw_options *o);

/* ---- the engine ---- */

/* -EINVAL: the model does not know as many positions as options.context; the text says what to do.
 * Opening an engine checks it, too. */
int spw_check_context(const struct spw_model_config *config, const struct spw_options *o,
                      struct spw_error *err);
/* Plans, then takes memory and threads and loads weights. The folder stays mapped: a step fails
 * with -EIO, and keeps nothing, if a file of the folder has changed. -ENOENT: no such folder or
 * file; -EINVAL: options or model; -ENOMEM: the budgets are too small (err->budgets has smallest
 * budgets), or memory was refused; -ENOTSUP, -ENODEV: no such device; -EIO. */
int spw_engine_open(struct spw_engine **out, const char *model_dir, const struct spw_options *o,
                    struct spw_error *err);
/* Close the batch and all sessions first. NULL is fine. */
void spw_engine_close(struct spw_engine *e);
const struct spw_model_config *spw_engine_config(const struct spw_engine *e);
const struct spw_plan_info *spw_engine_plan(const struct spw_engine *e);
/* "cpu avx512bf16", "cuda:0 NVIDIA H200, sm_90" */
const char *spw_engine_backend(const struct spw_engine *e);
/* The I/O engine and the reason for it: "io_uring, 16 in flight, ..."; "" without a disk. */
const char *spw_engine_io(const struct spw_engine *e);
/* What the user should know about the opened engine, a line for each note: why AUTO took the CPU
 * where there is a GPU, that host memory could not be pinned, that the model asks for a cache that
 * it does not get. "" if nothing. */
const char *spw_engine_note(const struct spw_engine *e);
/* A part of a sentence: the likely cause of results that are not numbers (NaN), and what may
 * help. */
const char *spw_engine_nan_advice(const struct spw_engine *e);

/* Changes the budgets, as in the options, between two steps: makes a new plan, frees memory or
 * takes it. Sessions keep their tokens. If budgets become lower, sessions keep their caches if KV
 * can be replanned in place. Else the next step computes again what the caches held, to the same
 * bits under the same precision of old KV, and sessions have no logits until then. Peaks begin
 * anew. -ENOMEM: no plan works (err->budgets has smallest budgets); -EINVAL: see options. After an
 * error the engine has its old budgets; if their memory could not be taken back, the next call that
 * needs it takes it. */
int spw_engine_set_budgets(struct spw_engine *e, uint64_t device_bytes, uint64_t host_bytes,
                           uint64_t disk_bytes, struct spw_error *err);

enum spw_moved {
    SPW_MOVED_HOST_TO_DEVICE,
    SPW_MOVED_DEVICE_TO_HOST,
    SPW_MOVED_HOST_TO_DISK, /* over the drive's link, to and from any memory */
    SPW_MOVED_DISK_TO_HOST,
    SPW_MOVED_COUNT,
};

struct spw_stats { /* since the engine opened */
    uint64_t device_budget_bytes, host_budget_bytes, disk_budget_bytes;
    uint64_t device_peak_bytes, host_peak_bytes, disk_peak_bytes;
    uint64_t moved_bytes[SPW_MOVED_COUNT]; /* counted where bytes are copied */
    /* The same of the draft model; moved_bytes does not contain these bytes */
    uint64_t draft_moved_bytes[SPW_MOVED_COUNT];
    /* Weights that were multiplied in host memory, beside a GPU, counted each time */
    uint64_t host_multiplied_bytes;
    double unhidden_wait_seconds; /* computation waited for a transfer, or for such products */
    uint64_t card_bytes;          /* CUDA: what the driver took from the card */
    uint64_t n_fallbacks, n_lost_tiles;
    /* Now: tokens that open sessions have room for, shared ones once, without sessions that a batch
     * keeps of requests that have ended; and that there is room for. */
    uint64_t kv_tokens, most_kv_tokens;
};
void spw_engine_stats(struct spw_engine *e, struct spw_stats *out);
/* The part of unhidden_wait_seconds that belongs to one layer; 0 for layers from the 512th on. The
 * rest belongs to hidden rows and the head. */
double spw_engine_layer_wait(struct spw_engine *e, uint32_t layer);

struct spw_prefix_stats {                  /* since the engine opened */
    uint64_t n_reused, reused_bytes;       /* tokens that sessions began with, and their KV */
    uint64_t n_published, published_bytes; /* tokens and KV that are new in the prefix cache */
    uint64_t written_bytes;                /* written for this, tables included */
};
void spw_engine_prefix(const struct spw_engine *e, struct spw_prefix_stats *out);

/* ---- events of an engine: runtime/events.h ---- */

/* Takes the oldest event that was not read yet: a fallback, a tile that was lost on disk, a prefix
 * that was found. False: there is none. The engine stores the newest 64 events since it was opened.
 * They survive the next step, and exist without a batch. */
bool spw_engine_event(struct spw_engine *e, struct spw_engine_event *out);

/* ---- sessions ---- */

/* A session as long as the context. -ENOMEM: options.sessions are open already, or the open ones
 * leave no room for it (options.full_sessions). */
int spw_session_open(struct spw_session **out, struct spw_engine *e, struct spw_error *err);
/* A second session with the same tokens, which shares every tile that is full. It needs room like a
 * new one. */
int spw_session_fork(struct spw_session **out, struct spw_session *from, struct spw_error *err);
/* In a model with layers that have a state: makes a checkpoint of the tokens that the session holds
 * now, such as the border of a message, to which the session can be cut back without computing. The
 * engine makes some of its own: before and after each prompt, and each 1,024 tokens. Does nothing
 * if the plan has no memory for checkpoints (struct spw_plan_info.n_checkpoints), and in other
 * models. -EIO: the device failed. */
int spw_session_checkpoint(struct spw_session *s);
/* Of a model whose source is audio (spw_model_config.n_mels): the spectrogram of the source,
 * [SPW_AUDIO_FRAMES * tokens of the source][n_mels] (spw_audio_log_mel), from which the session
 * computes it. The tokens of the source must differ where the spectrogram does
 * (spw_audio_source). Borrowed until another one is set, or the session is closed. A session that
 * has its source, such as one that was resumed, needs it only where the source is computed again.
 */
void spw_session_set_audio(struct spw_session *s, const float *audio);
void spw_session_close(struct spw_session *s); /* NULL is fine */
size_t spw_session_n_tokens(const struct spw_session *s);
/* reused: tokens that the latest spw_sync did not compute. from_store: how many of these came from
 * the prefix cache: all or none. */
size_t spw_session_reused(const struct spw_session *s);
size_t spw_session_from_store(const struct spw_session *s);
/* [vocab] logits after the last token, f32; valid until the next spw_sync. NULL: the session is
 * new, or its latest spw_sync asked for no logits. */
const float *spw_session_logits(const struct spw_session *s);
/* Publishes the session's complete tiles in the prefix cache: any session of any process that
 * begins with the same tokens finds them. In a model with sliding windows or quantized tiles a
 * session can begin only at a position where another session was published. A refusal of the cache
 * (-ENOSPC, -EBUSY, ...) is harmless, and a NOTE reports it once. Returns 0 without a cache. */
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

/* The forward call: brings the session of every span to exactly its tokens, together: each layer's
 * weights cross the link once for all of them. Reuses the longest common prefix that each session
 * holds, or the prefix cache if that has much more. `on_logits` gets the logits after token
 * `position` of spans[span], in the order of positions.
 *
 * -EINVAL: a token out of range or a session named twice; -E2BIG: more tokens than the context.
 * Nothing has changed then. -ECANCELED: options.interrupt was raised. A session then holds the
 * tokens that it held before, and those of this call that have passed all layers; it holds nothing
 * if a sliding window has moved on (struct spw_plan_info.rolls_back). The next call computes the
 * rest, to the same bits; it may hand over logits a second time. */
int spw_sync(struct spw_engine *e, const struct spw_span *spans, size_t n_spans,
             void (*on_logits)(void *context, size_t span, size_t position, const float *logits),
             void *context, struct spw_error *err);

/* ---- a batch: requests that run together ---- */

struct spw_logit_bias {
    int32_t token;
    float bias; /* -100 to 100 */
};

/* How a token is picked from logits. runtime/rules/logit_rules.h and runtime/batch/sampler.c have
 * the meaning and the order of all steps. */
struct spw_sampling {
    float temperature;        /* 0: greedy */
    uint32_t top_k;           /* 0: off */
    float top_p;              /* 0 or 1: off */
    float min_p;              /* 0: off */
    float repetition_penalty; /* 0 or 1: off; of the prompt's tokens, too */
    float presence_penalty;   /* -2 to 2; 0: off; of generated tokens only, as OpenAI does */
    float frequency_penalty;  /* the same, times how often the token was generated */
    const struct spw_logit_bias *logit_bias; /* borrowed; added to the logits; a batch copies it */
    size_t n_logit_bias;
    /* In a request, 0 and lists whose ids are NULL: as the model's files say; SPW_NONE and empty
     * lists with ids that are not NULL: off. A batch copies the lists. */
    struct spw_token_rules rules;
    /* A batch sets what follows, and takes none of it from a caller. [vocab] bits: tokens that may
     * be picked, where a request has a grammar; NULL: all. Borrowed. */
    const uint64_t *allowed;
    struct spw_token_list ends; /* the tokens that end an answer */
    uint64_t most_tokens;       /* of prompt and answer */
    uint64_t seed, stream;      /* the n-th draw of a seed and a stream is always the same draw */
};

enum {
    SPW_BEAMS_MOST = 256,
    SPW_BEAM_TOKEN_BYTES = 17, /* host memory of a search, for each beam and new token */
};

/* A beam search: of all answers, those whose sums of log-probabilities, divided by their lengths to
 * the power of length_penalty, are the largest that n_beams find (transformers 5.24; with groups
 * that differ from each other as transformers 4.55.4). No result depends on budgets or on other
 * requests. */
struct spw_beam_search {
    uint32_t n_beams;  /* 0: none; at most options.sessions, and SPW_BEAMS_MOST */
    uint32_t n_groups; /* divides n_beams; 0: 1 */
    uint32_t n_return; /* answers that the caller gets, at most n_beams; 0: all */
    /* With groups, above 0: what a token loses for each beam of an earlier group with this token */
    float diversity_penalty;
    float length_penalty; /* -30 to 30; 1: the mean of the log-probabilities; 0: their sum */
    enum spw_early_stopping early_stopping;
};

struct spw_request {
    const int32_t *prompt;
    size_t n_prompt, max_new_tokens;
    /* Of a model whose source is audio: as spw_session_set_audio has it, borrowed until the request
     * has ended. The prompt has the tokens of the source. */
    const float *audio;
    struct spw_sampling sampling;
    /* Answers to the prompt; 0: 1. Each is a request of its own: they have the numbers from that of
     * the first one on, and sample k, from 0 on, draws from sampling.stream + k. The prompt is
     * computed once for all that start together. Samples have no session of the caller's and no
     * given tokens, and only the first one has prompt_logprobs. */
    uint32_t n_samples;
    /* The request gets n_return answers: each is a request of its own, as samples are, the best
     * answer first; numbers behind them are used up. All their events come when the search has
     * ended; they have no TOKEN events, and no logits_hash. */
    struct spw_beam_search beams;
    /* Tokens that an earlier batch, which was ended early, has generated for this request: this
     * batch continues after them. max_new_tokens counts them, and the result has them. The earlier
     * batch has reported the first n_text_given bytes of the text; this batch reports the rest.
     * given_hash: the earlier result's logits_hash. */
    const int32_t *given;
    size_t n_given;
    uint64_t n_text_given, given_hash;
    /* A later batch may continue the answer. If it ends at max_new_tokens, text that later tokens
     * can still change is not reported: half a character, or the begin of a stop string. */
    bool continues;
    bool text;            /* the request gets TEXT events */
    const int32_t *shown; /* special tokens that the text has; at most SPW_TOKENIZER_MOST_SHOWN */
    size_t n_shown;
    const char *const *stop; /* stop strings; the text ends before the first one found */
    size_t n_stop;
    /* Only tokens are picked with which the answer is the begin of a text of this grammar, and the
     * answer ends where such a text is complete: an end token is picked as soon as nothing else may
     * follow, and not before the text may end. Logits, their hash and log-probabilities stay those
     * of the model. The grammar begins behind the first `grammar_after` of the answer (the mark
     * that ends reasoning; at most 63 bytes), NULL: with the answer. Both are borrowed until the
     * request is taken. NULL: any text. */
    const struct spw_grammar *grammar;
    const char *grammar_after;
    bool ignore_eos;
    bool prompt_logprobs; /* the result gets the log-probability of each token of the prompt */
    /* The result gets the log-probability of each generated token, and the n_top_logprobs (0 to 20)
     * most likely tokens at its place; with prompt_logprobs also those of each token of the prompt.
     * To have them for given tokens, too, the first step computes those tokens again. */
    bool logprobs;
    uint32_t n_top_logprobs;
    /* The session that computes the request. The caller owns it, and leaves it open until the
     * request has ended. NULL: the batch opens a session, and closes it in the step after the
     * request has ended, or lets a request that starts then go on with its tokens, or keeps it
     * (spw_batch_keep_ended).
     * No two requests that have not ended may name the same session. */
    struct spw_session *session;
};

enum spw_finish {
    SPW_FINISH_NONE, /* it has not ended yet */
    SPW_FINISH_LENGTH,
    SPW_FINISH_EOS,
    SPW_FINISH_STOP,
    SPW_FINISH_CANCELED, /* by spw_batch_cancel */
    SPW_FINISH_FAILED,   /* the request alone failed; its END event says why */
};

struct spw_token_logprob {
    int32_t token;
    double logprob;
};

/* Log-probabilities are natural logarithms, computed in double from the model's f32 logits, before
 * biases, penalties and temperature. NULL: nobody asked. */
struct spw_result {
    int32_t *tokens; /* generated ones */
    size_t n_tokens;
    double *prompt_logprobs; /* [n_prompt], each given all tokens before it; the first is 0 */
    double *logprobs;        /* [n_tokens] */
    struct spw_token_logprob *top_logprobs; /* [n_tokens][n_top_logprobs], most likely first; of
                                               equals, lower ids first */
    struct spw_token_logprob
        *prompt_top_logprobs; /* [n_prompt][n_top_logprobs]; the first row: 0 */
    uint32_t n_top_logprobs;  /* as asked, or the vocabulary if that is smaller */
    bool has_score;           /* it is an answer of a beam search */
    double score;             /* of it */
    size_t n_reused;          /* tokens of the prompt that were not computed */
    size_t n_from_store;      /* of these, from the prefix cache; the session held the others */
    size_t n_recomputed;      /* tokens of the prompt that the session held but computed again:
                                 some of its layers could not be cut back to them */
    enum spw_finish finish;
    /* [n_tokens]: of a token that a step began with, how many rows the step computed of this
     * request: 1, and one for each draft, and SPW_STEP_BY_MTP if the MTP layer proposed these; of a
     * draft that stayed: 0. NULL: no drafts. */
    uint8_t *step_rows;
    /* [n_steps][n_beams], of the first request of a beam search: as which beam each one went on,
     * after each step. NULL: none. */
    uint8_t *parents;
    uint64_t n_steps;
    /* A chain over the f32 logits [vocab] that each token was picked from: XXH3-64 of a row, with
     * the hash after the row before as its seed. It begins with request.given_hash, 0 without. */
    uint64_t logits_hash;
    struct spw_waterlines waterlines; /* where its tokens were at the end */
};
void spw_result_free(struct spw_result *r);

enum spw_event_kind {
    SPW_EVENT_TOKEN, /* a token was generated; the request's session may be saved */
    /* Final text: complete characters, nothing that a stop string may still remove. It continues
     * the text of the prompt: special tokens are left out, and the space before a word stays. */
    SPW_EVENT_TEXT,
    SPW_EVENT_END, /* the request has ended: spw_batch_take gives its result */
};

/* What has happened to one request. Pointers are valid until the next call for the batch, except
 * spw_batch_event. */
struct spw_event {
    enum spw_event_kind kind;
    uint64_t request;    /* its number */
    int32_t token;       /* TOKEN */
    const float *logits; /* TOKEN: [vocab], the logits that the token was picked from */
    const char *text;    /* TEXT; END with SPW_FINISH_FAILED: the reason */
    size_t text_bytes;
    int rc; /* END: -errno of the reason; 0: it did not fail. -E2BIG, -EILSEQ: its grammar cannot be
               followed further, whatever the model says */
};

/* A batch. Tokens that several prompts begin with are computed once, if they are a tile or more:
 * the sessions of these requests share tiles, and result.n_reused counts the tokens. A request also
 * begins with the tokens of one that has just ended. Where sessions can begin only at checkpoints,
 * only requests that run together share tokens.
 *
 * Requests may be submitted and canceled at any time between two steps. At most options.sessions
 * requests run at a time, as far as options.full_sessions has room for them, and the others wait in
 * the order of their numbers; sessions that the caller has open count. Submit takes all memory of a
 * request except that of its text. The prefix cache, if there is one, gets
 * what a request has computed: when the request ends, after each pass of a long prompt, and, if
 * sessions can begin only at checkpoints, after the first token. `tokenizer` may be NULL if no
 * request has text or stop strings. An engine has one batch at a time. -ENOMEM, -EBUSY. */
int spw_batch_open(struct spw_batch **out, struct spw_engine *e,
                   const struct spw_tokenizer *tokenizer, struct spw_error *err);
/* Ends running requests without an event. NULL is fine. */
void spw_batch_close(struct spw_batch *b);
/* Copies the request; *id gets its number, from 1 on; with n_samples, the first one's. -EINVAL,
 * -E2BIG: it could never run, and `err` says why; -ENOMEM. Nothing has changed then. */
int spw_batch_submit(struct spw_batch *b, const struct spw_request *request, uint64_t *id,
                     struct spw_error *err);
/* Ends a request with the tokens that it has. Events that were not read stay, and its END follows
 * them. With a beam of a search the whole search ends. -ENOENT: there is no such request, or it
 * has ended. */
int spw_batch_cancel(struct spw_batch *b, uint64_t id);
/* Publishes what a running request holds now in the prefix cache, as spw_session_publish does: for
 * a caller that is about to end the batch. -ENOENT: no such request runs. */
int spw_batch_publish(struct spw_batch *b, uint64_t id);
/* Gives places that have become free to waiting requests, computes their prompts, and gives every
 * running request a token: together, but for prompts that others share, which are computed before.
 * 1: there is more to do, even if no request got a token;
 * 0: nothing is left. A request that fails (its logits are not numbers, for example) ends, and the
 * others continue. A negative value is the error of the whole step, as in spw_sync: no request got
 * a token, all still run, and the caller may try the step again (-ECANCELED), end those that it was
 * for (spw_batch_give_up), or close the batch (-EIO). */
int spw_batch_step(struct spw_batch *b, struct spw_error *err);
/* After a step that has failed with `rc` and `why`: ends the requests for which n_tries steps have
 * failed since their latest token; their END has `why`. The others go on. Returns how many have
 * ended. A server does this instead of closing the batch. */
uint32_t spw_batch_give_up(struct spw_batch *b, uint32_t n_tries, int rc,
                           const struct spw_error *why);
/* No request runs, and none waits: a step would do nothing. */
bool spw_batch_is_idle(struct spw_batch *b);
/* Wakes the thread that steps the batch. Any thread and any signal handler may call this while the
 * batch is open. No other call for a batch is thread-safe: a thread that has a request puts it
 * where the batch's thread finds it, and wakes that thread. The batch's thread repeats:
 *
 *   spw_batch_wait, no time unless the batch is idle -> submit and cancel what others have put down
 *   -> spw_batch_step -> spw_batch_event until there is none */
void spw_batch_wake(struct spw_batch *b);
/* Waits until the batch is woken, at most this time; negative: any time. True: it was woken since
 * the last call that has returned true. A signal may end the wait early. */
bool spw_batch_wait(struct spw_batch *b, int milliseconds);
/* For a thread that also waits for other things: a file descriptor that poll() finds readable when
 * the batch was woken, until spw_batch_wait has returned true. It belongs to the batch. */
int spw_batch_wake_fd(const struct spw_batch *b);
/* How long prompts may hold up requests that already have a token. A step then computes the next
 * token of these requests, and takes prompts through at most `chunks` chunks (a chunk in one
 * layer counts 1); fewer if the batch is woken meanwhile. No result
 * depends on this number. 0, as at open: a step computes prompts whole, together with the tokens of
 * the others; this moves the fewest bytes. */
void spw_batch_set_prompt_chunks(struct spw_batch *b, uint32_t chunks);
/* With prompt chunks: how many tokens of prompts pass all layers before requests that wait can
 * start. Passes have short prompts and the oldest ones by turns, so no prompt waits for the end of
 * a long one. Steps then end after `chunks` chunks also if no request has a token yet.
 * What has passed all layers stays if a request is canceled. A prompt whose log-probabilities are
 * wanted passes whole. No result depends on this number. 0, as at open: prompts pass whole. */
void spw_batch_set_pass_tokens(struct spw_batch *b, uint64_t tokens);
/* From now on the session that the batch has opened for a request stays open when the request has
 * ended, and later requests begin with its tokens. It gives way when a request needs its place or
 * its memory: first the one whose tokens another session has, too, then the oldest one. What a
 * canceled request leaves is published in the prefix cache. */
void spw_batch_keep_ended(struct spw_batch *b);
/* Sessions that are kept now; *n_tokens: the tokens that they hold. */
uint32_t spw_batch_n_kept(const struct spw_batch *b, uint64_t *n_tokens);
/* Takes the next event; false: there are no more. The next step drops events that were not read. */
bool spw_batch_event(struct spw_batch *b, struct spw_event *out);
/* Whether the request has a place now: its prompt or its answer is computed. Also inside of
 * options.on_progress. */
bool spw_batch_runs(const struct spw_batch *b, uint64_t id);
/* Tokens of the request's prompt that have been read. `p`: inside of options.on_progress, the part
 * of the running pass that has been computed counts, too; NULL: nobody knows it. */
uint64_t spw_batch_n_read(const struct spw_batch *b, uint64_t id, const struct spw_progress *p);
/* The current state of a request, valid until the next call for the batch; NULL: there is no such
 * request. */
const struct spw_result *spw_batch_result(const struct spw_batch *b, uint64_t id);
/* An open session of the batch: of a request that has a place, or kept (spw_batch_keep_ended). */
struct spw_batch_session {
    uint64_t request; /* its number */
    bool has_ended;   /* it is kept */
    uint64_t n_prompt, n_generated;
    struct spw_waterlines waterlines;
};
/* Copies them, at most `most`: first those of running requests. Returns how many. */
size_t spw_batch_sessions(const struct spw_batch *b, struct spw_batch_session *out, size_t most);
/* Moves the result of a request out of the batch, and the batch forgets the request. A session that
 * the batch has opened for it leaves its place to sessions that the caller opens. The caller
 * frees the result with spw_result_free. -ENOENT: there is no such request; -EBUSY: it has not
 * ended. */
int spw_batch_take(struct spw_batch *b, uint64_t id, struct spw_result *out);

struct spw_batch_times {
    double prefill_seconds, decode_seconds; /* seconds of steps with a prompt; of the other steps */
    uint64_t n_decode_steps;
    uint64_t n_prompt_tokens;       /* that have passed all layers */
    uint64_t n_drafted, n_accepted; /* tokens that were drafted; of these, those that were picked */
    double draft_seconds;           /* of decode_seconds: in which the draft model ran */
    uint64_t n_pauses;              /* steps of prompts that were paused */
    uint64_t n_chunks;              /* of steps with a prompt: a chunk in one layer counts 1 */
};
void spw_batch_times(const struct spw_batch *b, struct spw_batch_times *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
