/* The one owner of the cache policy: what is asked for (command line, API) wins over what the
 * model's files ask for (cache_implementation), which wins over what the model's layers imply.
 * The engine does what it says, `spillway inspect` shows it.
 *
 * Where keys and values lie and how memory grows never changes an answer here, so that most words
 * of cache_implementation have nothing left to decide; what becomes of each is told. Nothing is
 * owned. Pure; any thread. */
#ifndef SPW_RUNTIME_ENGINE_CACHE_POLICY_H
#define SPW_RUNTIME_ENGINE_CACHE_POLICY_H

#include "model/config.h"
#include "quant/precision.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct spw_options;

/* Of all layers of one kind; which ones they are is config.layer_kinds. */
struct spw_cache_layers {
    uint32_t n_layers, window; /* window 0: every key is kept */
    char why[160];
};

struct spw_cache_policy {
    enum spw_dtype kv;               /* of every layer, as far as it is exact */
    enum spw_kv_precision precision; /* of old tiles in layers that see every key */
    uint64_t residual_tokens;        /* newer ones are exact */
    bool host, disk;                 /* may hold KV */
    bool stays;                      /* all KV stays on the device */
    bool ladder; /* where memory does not suffice, old tiles may have less precision */
    struct spw_cache_layers layers[SPW_LAYER_KINDS];
    /* Settings have names as in struct spw_error. */
    char kv_why[192], precision_why[192], tiers_why[192];
    char files_why[320]; /* what became of cache_implementation; "": the files ask for nothing */
    bool tell_files;     /* they ask for a precision: worth a note on every run */
};

/* `compute`: resolved, not AUTO. -EINVAL for options that contradict each other; the text names
 * both sides. */
int spw_cache_policy_make(struct spw_cache_policy *out, const struct spw_model_config *config,
                          enum spw_dtype compute, const struct spw_options *o,
                          struct spw_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
