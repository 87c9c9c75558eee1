/* The plan of an engine for a model under given budgets, computed from the headers of the model and
 * the options. Part of the public API. The calls load nothing and reserve no memory. */
#ifndef SPW_RUNTIME_PLAN_QUERY_H
#define SPW_RUNTIME_PLAN_QUERY_H

#include "runtime/events.h"
#include "runtime/spillway.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct spw_tensors; /* model/source/tensors.h */

/* The bytes of each tier for a full context. */
struct spw_plan_info {
    uint64_t context;
    uint32_t sessions, full_sessions, prefill_chunk, prefetch_slots, prefetch_splits;
    enum spw_dtype compute, kv;
    bool int8_activations;           /* in products with quantized weights */
    enum spw_kv_precision precision; /* of old KV */
    uint64_t residual_tokens;        /* the newest tokens, which stay exact */
    bool shares_tiles;               /* forked sessions share KV; else each has all of its own */
    /* Sessions can be cut back to the beginning of their latest prompt, or of its last pass: after
     * an interrupted step they still hold what they held before. */
    bool rolls_back;
    uint64_t device_budget_bytes, host_budget_bytes, disk_budget_bytes;
    struct {
        uint64_t weights_resident, weights_slots, kv_resident, kv_slots, states, hidden;
        uint64_t activations, total;
    } device;
    struct {
        uint64_t kv, states, hidden, staging, disk_staging, weights, total;
    } host;
    struct {
        uint64_t kv, checkpoints, total;
    } disk;
    /* Layers with a state: their bytes in one session, and how many checkpoints of them the host
     * and the disk have room for. */
    uint64_t session_states_bytes;
    uint32_t n_state_layers, n_checkpoints;
    uint32_t n_layers, n_layers_resident; /* layers whose weights stay on the device */
    uint32_t n_layers_from_disk;          /* layers whose weights come from the files each time */
    uint64_t weights_bytes;               /* of all layers and the head */
    uint64_t decode_weights_bytes;        /* of these, what a row reads: not all experts */
    uint64_t decode_expert_bytes;         /* of these, those of experts */
    /* How many weights a row is multiplied with: all, and those of quantized types. */
    uint64_t decode_weights, decode_quantized_weights;
    /* Layers with experts, and how many of its experts such a layer uses for a row. */
    uint32_t n_expert_layers, n_experts_kept;
    /* Experts of all layers; those that the device has room for; and those that come from the
     * files, not from the host, when they are needed there. */
    uint32_t n_experts, n_experts_resident, n_experts_from_disk;
    /* Steps of so many rows, at most, have the CPU multiply the experts that lie in host memory or
     * come from the files; 0: these go to the device in every step. */
    uint32_t host_rows;
    /* The same of layers whose weights do not stay on the device: steps of so many rows, at most,
     * have the CPU multiply the weights of n_layers_on_host of them in host memory, and only rows
     * cross the link. The bytes of these weights. */
    uint32_t host_layer_rows, n_layers_on_host;
    uint64_t host_layers_bytes;
    /* Bytes of experts that a token is expected to miss, after the first tokens: from the files,
     * and from the host. They follow from options.expert_counts; without counts, all experts are
     * taken to be chosen equally often, and a real run misses fewer. No other number has these
     * bytes. */
    uint64_t decode_expert_disk_bytes, decode_expert_host_bytes;
    uint64_t weights_disk_bytes;      /* that one decode step reads from the files */
    uint64_t kv_bytes_per_token;      /* all full-attention layers */
    struct spw_waterlines waterlines; /* of one session that holds `context` tokens */
    /* One decode step of one session at the full context; copies of states for checkpoints are not
     * counted, here and below. A plan has 0 in decode_rows, which means
     * 1. A caller that changes the numbers below to a step of several sessions sets it, too. */
    uint32_t decode_rows;
    uint64_t decode_moved_bytes[SPW_MOVED_COUNT];
    uint64_t decode_read_bytes;   /* weights and KV that computation reads */
    uint64_t decode_old_kv_bytes; /* of these, quantized KV */
    /* Products of a channel of a query and a channel of a key: head_dim * heads * keys for each
     * layer. */
    uint64_t decode_products;
    uint64_t
        decode_slot_bytes; /* KV that comes into slots of the ring, from the host or the disk */
    /* A prompt of `context` tokens in an empty session. */
    uint64_t prefill_moved_bytes[SPW_MOVED_COUNT];
    /* The most tiles that all sessions write to disk as they grow to `context` tokens, in bytes. */
    uint64_t disk_write_bytes;
    /* With a prefix cache: the bytes that spw_session_publish writes for `context` tokens, if the
     * cache is empty. A prompt that is published after each pass writes a few more tables. */
    uint64_t prefix_write_bytes;
    uint64_t smallest_device_bytes, smallest_host_bytes,
        smallest_disk_bytes; /* the smallest budgets that work */
    /* In spw_plan_query: the fallback that made this plan possible. `failed` is NULL if none was
     * needed. */
    struct spw_fallback fallback;
};

/* KV lies in tiles of so many consecutive positions. */
uint32_t spw_plan_tile_tokens(void);
/* Plans as spw_engine_open does. -ENOMEM: the budgets are too small (err->budgets); -EINVAL:
 * options or model. smallest_*_bytes are filled in also when a budget was too small: for the
 * precision of the plan, or after a refusal for the precision that was asked for. */
int spw_plan_query(struct spw_plan_info *out, const char *model_dir, const struct spw_options *o,
                   struct spw_error *err);

/* The type in which a model with these weights is computed: options.compute, or the choice of AUTO.
 */
enum spw_dtype spw_compute_type(const struct spw_tensors *weights, const struct spw_options *o);

/* The lengths of a request of a batch; tokens in request.given count as prompt. n_found: tokens of
 * the prompt that the prefix cache has. n_resumed: tokens that its session got from
 * spw_session_resume; resumed_logits: the session also got the logits after them (struct
 * spw_saved_info). prompt: [n_prompt]; NULL: the request shares no tokens with other requests. */
struct spw_plan_request {
    uint64_t n_prompt, max_new_tokens, n_found, n_resumed;
    uint64_t ends_at; /* the answer ends with so many tokens; 0: with max_new_tokens */
    bool resumed_logits;
    const int32_t *prompt;
    /* As in struct spw_result, for each token of the answer; borrowed; NULL: no drafts. */
    const uint8_t *step_rows;
    /* Of a beam search: ends_at is its number of steps. parents, n_steps: as in struct spw_result,
     * borrowed; from step n_steps on each beam goes on as itself. */
    uint32_t n_beams; /* 0: no search */
    const uint8_t *parents;
    uint64_t n_steps;
};

/* Bytes of experts that a run misses on each link, beside all others: at least, at most, and
 * expected, with options.expert_counts by these counts. All 0 where no expert moves. The bytes of
 * one routing: spw_plan_replay (experts.h). */
struct spw_expert_bytes {
    uint64_t least[SPW_MOVED_COUNT], expected[SPW_MOVED_COUNT], most[SPW_MOVED_COUNT];
    bool from_counts; /* else all experts are taken to be chosen equally often */
};

/* The steps of a planned run. `step` gets tokens [from, to) of each session that takes part in a
 * step; `times`: that many steps follow each other, and each session gets one token more in each of
 * them. */
struct spw_plan_span {
    uint64_t from, to;
    bool is_prompt; /* else an answer gets its next token */
};
struct spw_plan_steps {
    void (*step)(void *context, const struct spw_plan_span *spans, size_t n, uint64_t times);
    void *context;
};

/* Plans, and predicts the bytes that spw_stats will count on each link, as integers, for this run:
 * an engine with these options, one batch, all requests submitted before the first step, and
 * max_new_tokens tokens in every answer. It assumes that the prefix cache has n_found tokens of
 * each prompt, with a checkpoint at their end, and nothing else of these sequences. Missed experts
 * are not in `moved`, but in `experts`. -E2BIG: a request is longer than the context. `experts` and
 * `steps` may be NULL: nobody asks. */
int spw_plan_moved(uint64_t moved[SPW_MOVED_COUNT], struct spw_expert_bytes *experts,
                   const struct spw_plan_steps *steps, const char *model_dir,
                   const struct spw_options *o, const struct spw_plan_request *requests, size_t n,
                   struct spw_error *err);

/* Predicts the bytes that spw_stats counts for an engine that is open, if one batch with these
 * requests was all that it has done: tokens, lengths and finds as they were. -ENODATA: something
 * happened that no plan can know: memory or a write was refused, a budget changed, tiles were lost,
 * a session was saved, a step was interrupted or paused, a beam search waited for a drive. The
 * routing of experts is that of the engine: which of them missed follows from the rule by which
 * they stay. */
int spw_engine_predict(uint64_t moved[SPW_MOVED_COUNT], const struct spw_engine *e,
                       const struct spw_plan_request *requests, size_t n, struct spw_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
