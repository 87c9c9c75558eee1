/* The form of the KV cache: precision, tiers, windows. The options win over the model's files
 * (cache_implementation), and the files win over what the model's layers imply. The engine follows
 * the policy, and `spillway inspect` shows it.
 *
 * In spillway the place of keys and values never changes an answer. So of the words that
 * cache_implementation may have (those of transformers' GenerationConfig) only "quantized" has an
 * effect. Nothing is owned. Pure; any thread. */
#ifndef SPW_RUNTIME_ENGINE_CACHE_POLICY_H
#define SPW_RUNTIME_ENGINE_CACHE_POLICY_H

#include "model/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct spw_options;

/* All layers of one kind; config.layer_kinds says which ones they are. */
struct spw_cache_layers {
    uint32_t n_layers, window; /* window 0: every key stays */
    char why[160];
};

struct spw_cache_policy {
    enum spw_dtype kv;               /* of exact KV, in every layer */
    enum spw_kv_precision precision; /* of old tiles in layers that see every key */
    uint64_t residual_tokens;        /* newer tokens are exact */
    bool host, disk;                 /* may hold KV */
    bool stays;                      /* all KV stays on the device */
    bool may_quantize; /* if memory does not suffice, old tiles may get less precision */
    struct spw_cache_layers layers[SPW_LAYER_KINDS];
    /* Settings have names as in struct spw_error. */
    char kv_why[192], precision_why[192], tiers_why[192];
    char files_why[320]; /* what cache_implementation does; "": the files do not have it */
    bool notes_files;    /* the files ask for a precision: every run notes this */
};

/* `compute` is not AUTO. -EINVAL: options contradict each other; the text names both. */
int spw_cache_policy_make(struct spw_cache_policy *out, const struct spw_model_config *config,
                          enum spw_dtype compute, const struct spw_options *o,
                          struct spw_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
