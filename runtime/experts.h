/* The routing of a mixture of experts: how often earlier runs chose each expert, the routing of one
 * run in a file (a trace), and what a trace costs under several rules. Part of the public API. None
 * of this changes a result: it decides which experts stay on the device, and predicts bytes. */
#ifndef SPW_RUNTIME_EXPERTS_H
#define SPW_RUNTIME_EXPERTS_H

#include "runtime/spillway.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- counts of earlier runs ---- */

/* How often each expert of a model was chosen: old choices count less than new ones. Where experts
 * have no room on the device, an engine begins with these counts (options.expert_counts). */
struct spw_expert_counts;

/* Reads the counts of this model from a profile, a file with the counts of some models. -ENODATA:
 * the model has no experts, the profile has no counts of it, or the model's weights cannot be read
 * (opening an engine gives the error); -EINVAL: the profile cannot be used, and `err` says why;
 * -ENOMEM; the errors of opening the model. The caller frees *out. */
int spw_expert_counts_read(struct spw_expert_counts **out, const char *model, const char *profile,
                           struct spw_error *err);
void spw_expert_counts_free(struct spw_expert_counts *c); /* NULL is fine */
/* Writes the counts of this engine, those that it began with included, to the profile. If the
 * profile has no room, they replace those of the model that ran least recently. Writes nothing if
 * the engine has chosen no expert that moves. A damaged profile is replaced. */
int spw_expert_counts_write(struct spw_engine *e, const char *profile, struct spw_error *err);

/* ---- traces ---- */

/* Writes a file with the counts that an engine begins with, and each visit: which experts a layer
 * needs, and for how many rows. The caller gives the writer to one engine (options.expert_trace),
 * and closes the writer when that engine is closed. Steps of an engine whose experts all lie on the
 * device are not in the trace. trace.c has the format. */
struct spw_expert_trace_writer;
int spw_expert_trace_create(struct spw_expert_trace_writer **out, const char *path,
                            struct spw_error *err);
/* Ends and closes the file. The error of any write since its begin. NULL is fine. */
int spw_expert_trace_close(struct spw_expert_trace_writer *w, struct spw_error *err);

/* A trace in memory. -EINVAL: the file is no whole trace, and `err` says why. */
struct spw_expert_trace;
int spw_expert_trace_read(struct spw_expert_trace **out, const char *path, struct spw_error *err);
void spw_expert_trace_free(struct spw_expert_trace *t); /* NULL is fine */

/* ---- what a trace costs ---- */

/* Which expert leaves a frame. No rule moves an expert away while a visit uses it. */
enum spw_expert_rule {
    SPW_EXPERTS_OURS,   /* what the engine does: prefetch/expert_residency.h */
    SPW_EXPERTS_STATIC, /* always the same experts stay, in all frames but one: those that were used
                           most. All others come through that frame */
    SPW_EXPERTS_RECENT, /* the least recently used one leaves */
    SPW_EXPERTS_BEST,   /* the one leaves that is used again last of all, or never: no rule that has
                           only these frames can miss fewer */
    SPW_EXPERT_RULES,
};

struct spw_expert_replay {
    uint32_t n_experts, n_frames; /* of all layers; that have room on the device */
    uint64_t n_computed;          /* tokens, those of prompts included */
    uint64_t n_tokens;            /* passes of one row: tokens that were generated one by one */
    uint64_t used, token_used;    /* experts that visits used; of these, for such tokens */
    struct {
        uint64_t missed, missed_bytes;
        uint64_t token_missed, token_missed_bytes;
    } rules[SPW_EXPERT_RULES];
    /* STATIC has the experts that earlier runs chose most; else those that most visits of this
     * trace use, which no run can know before. */
    bool static_from_earlier_runs;
    uint64_t moved[SPW_MOVED_COUNT]; /* the bytes of missed experts on each link, with OURS */
};

/* The cost of a trace with the frames of this engine, and of an engine with these options. All
 * frames are empty at first. -EINVAL: the trace is that of another model. */
int spw_engine_replay(struct spw_expert_replay *out, const struct spw_engine *e,
                      const struct spw_expert_trace *t, struct spw_error *err);
int spw_plan_replay(struct spw_expert_replay *out, const char *model, const struct spw_options *o,
                    const struct spw_expert_trace *t, struct spw_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
