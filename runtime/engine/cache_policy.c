/* The cache of each layer, and the reasons: see cache_policy.h. */
#include "runtime/engine/cache_policy.h"

#include "quant/types.h"
#include "runtime/spillway.h"

#include <stdio.h>
#include <string.h>

/* ---- options that do not exist, or contradict each other ---- */

static int check_choices(const struct spw_options *o, struct spw_error *err)
{
    const bool known_type =
        !o->compute || o->compute == SPW_DTYPE_F32 || o->compute == SPW_DTYPE_BF16;
    const struct {
        const char *what, *expected;
        bool known;
        unsigned found;
    } choices[] = {
        {"backend", "auto, cpu or cuda", o->backend <= SPW_BACKEND_CUDA, o->backend},
        {"compute type", "auto, f32 or bf16", known_type, o->compute},
        {"io", "auto, uring or threads", o->io <= SPW_IO_THREADS, o->io},
        {"kv type", "auto, f32, f16 or bf16", o->kv <= SPW_DTYPE_BF16, o->kv},
        {"kv precision", "exact, int8, int8:int4 or int4", o->precision <= SPW_KV_INT4,
         o->precision},
        {"on oom", "spill, quantize, both of them, or fail", o->on_oom <= SPW_ON_OOM_FAIL,
         o->on_oom},
    };
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (!choices[i].known)
            return spw_fail(err, -EINVAL, "%s %u: expected %s", choices[i].what, choices[i].found,
                            choices[i].expected);
    return 0;
}

static int check_options(const struct spw_options *o, struct spw_error *err)
{
    bool room = o->disk_bytes && o->disk_bytes != SPW_NONE;
    bool writes = o->disk_write_limit && o->disk_write_limit != SPW_NONE;
    char text[32];
    SPW_TRY(check_choices(o, err));
    bool files = o->prefix_cache_dir || o->saves; /* their writes also count against the limit */
    if (!o->disk_dir && (room || (writes && !files)))
        return spw_fail(err, -EINVAL,
                        "disk %s: %s given, but no disk; name a directory with "
                        "options.disk_dir",
                        room ? "memory" : "write limit",
                        spw_bytes_text(text, room ? o->disk_bytes : o->disk_write_limit));
    if (!o->prefix_cache_dir && o->prefix_cache_bytes)
        return spw_fail(err, -EINVAL,
                        "prefix cache size: found no prefix cache beside it; name a directory with "
                        "options.prefix_cache_dir");
    if (room && o->disk_write_limit == SPW_NONE)
        return spw_fail(err, -EINVAL,
                        "disk memory: %s given, but options.disk_write_limit allows no writes "
                        "there; raise the limit, or leave out options.disk_bytes",
                        spw_bytes_text(text, o->disk_bytes));
    return 0;
}

/* ---- tiers ---- */

static unsigned on_oom(const struct spw_options *o)
{
    return o->on_oom ? o->on_oom : SPW_ON_OOM_SPILL | SPW_ON_OOM_QUANTIZE;
}

static bool uses_disk(const struct spw_options *o)
{
    return on_oom(o) & SPW_ON_OOM_SPILL && o->disk_dir && o->disk_bytes != SPW_NONE &&
           o->disk_write_limit != SPW_NONE;
}

static void decide_tiers(struct spw_cache_policy *out, const struct spw_options *o)
{
    const char *host = "the host gets KV that does not fit on the device";
    const char *disk = "no options.disk_dir was given";
    out->stays = !(on_oom(o) & SPW_ON_OOM_SPILL);
    if (out->stays) {
        snprintf(out->tiers_why, sizeof out->tiers_why,
                 "options.on_oom without spill keeps all KV there");
        return;
    }
    out->disk = uses_disk(o);
    if (out->disk)
        disk = "options.disk_dir names the disk";
    else if (o->disk_dir)
        disk = o->disk_bytes == SPW_NONE ? "options.disk_bytes allows no bytes on the disk"
                                         : "options.disk_write_limit allows no KV to be written";
    out->host = o->host_bytes != SPW_NONE;
    if (o->host_bytes)
        host = out->host ? "options.host_bytes gives the host a budget"
                         : "options.host_bytes allows no bytes on the host";
    snprintf(out->tiers_why, sizeof out->tiers_why, "%s; %s", host, disk);
}

/* ---- the request of the model's files ---- */

/* The number of layers that see every key. */
static uint32_t n_full(const struct spw_cache_policy *p)
{
    uint32_t n = 0;
    for (int kind = 0; kind < SPW_LAYER_KINDS; kind++)
        if (spw_layer_has_tiles((enum spw_layer_kind)kind) && !p->layers[kind].window)
            n += p->layers[kind].n_layers;
    return n;
}

/* "quantized" names no number of bits. int8 is chosen: it is closest to the exact answer. */
static void explain_quantized(struct spw_cache_policy *out, const struct spw_options *o)
{
    size_t n = strlen(out->files_why);
    if (o->kv || o->precision)
        snprintf(out->files_why + n, sizeof out->files_why - n, "overruled: options.%s asks for %s",
                 o->precision ? "precision" : "kv",
                 o->precision ? spw_kv_precision_name(o->precision) : spw_dtype_name(o->kv));
    else
        snprintf(out->files_why + n, sizeof out->files_why - n, "%s",
                 n_full(out) ? "done, as int8; options.kv bf16, f16 or f32 keeps all KV exact"
                             : "not done: no layer sees every key, and a window is kept exact");
    out->notes_files = !o->kv && !o->precision;
}

static bool files_ask_for_quantized(const struct spw_model_config *c)
{
    return !strcmp(c->cache_implementation, "quantized");
}

/* All other words say where or how KV is stored, which changes no answer; or ask for windows, which
 * only the layers have. */
static void apply_files(struct spw_cache_policy *out, const struct spw_model_config *c,
                        const struct spw_options *o)
{
    const char *asked = c->cache_implementation;
    if (!*asked)
        return;
    int n = snprintf(out->files_why, sizeof out->files_why, "%s asks for \"%s\": ",
                     c->cache_by_generation ? "generation_config.json" : "config.json", asked);
    if (files_ask_for_quantized(c))
        explain_quantized(out, o);
    else
        snprintf(out->files_why + n, sizeof out->files_why - (size_t)n,
                 "no effect: the layers decide which keys they need, and the budgets where these "
                 "lie");
}

/* ---- the policy ---- */

static void count_layers(struct spw_cache_policy *out, const struct spw_model_config *c)
{
    for (uint32_t i = 0; i < c->n_layers; i++)
        out->layers[c->layer_kinds[i]].n_layers++;
    for (int kind = 0; kind < SPW_LAYER_KINDS; kind++) {
        out->layers[kind].window = spw_layer_window((enum spw_layer_kind)kind, c->window).tokens;
        const char *sees = spw_layer_kinds[kind].sees;
        if (c->kinds_listed)
            snprintf(out->layers[kind].why, sizeof out->layers[kind].why,
                     "layer_types in config.json; %s", sees);
        else
            snprintf(out->layers[kind].why, sizeof out->layers[kind].why,
                     "the rule of %s models; %s", c->model_type, sees);
    }
}

/* The precision of layers that see every key: the one that the options ask for, else the one that
 * the files ask for, else exact. */
static void decide_precision(struct spw_cache_policy *out, const struct spw_model_config *c,
                             const struct spw_options *o)
{
    const char *why = "no options.precision asks for a lower precision";
    enum { RESIDUAL_TOKENS = 1024 };
    out->residual_tokens = o->residual_window == SPW_NONE ? 0
                           : o->residual_window           ? o->residual_window
                                                          : RESIDUAL_TOKENS;
    if (o->precision) {
        out->precision = o->precision;
        why = "options.precision asks for it";
    } else if (!o->kv && files_ask_for_quantized(c)) {
        out->precision = SPW_KV_INT8;
        why = "the model's files ask for a quantized cache";
    }
    if (out->precision && !n_full(out)) {
        out->precision = SPW_KV_EXACT;
        why = "no layer sees every key, and a window is kept exact";
    }
    snprintf(out->precision_why, sizeof out->precision_why, "%s", why);
    /* A precision that the options or the files name never changes. */
    out->may_quantize = on_oom(o) & SPW_ON_OOM_QUANTIZE && !o->kv && !o->precision &&
                        !out->precision && n_full(out);
}

int spw_cache_policy_make(struct spw_cache_policy *out, const struct spw_model_config *config,
                          enum spw_dtype compute, const struct spw_options *o,
                          struct spw_error *err)
{
    spw_error_clear(err);
    *out = (struct spw_cache_policy){.kv = o->kv ? o->kv : compute};
    SPW_TRY(check_options(o, err));
    snprintf(out->kv_why, sizeof out->kv_why, "%s",
             o->kv        ? "options.kv asks for it"
             : o->compute ? "same as options.compute, because options.kv is not given"
                          : "same as the computation, because options.kv is not given");
    decide_tiers(out, o);
    count_layers(out, config);
    decide_precision(out, config, o);
    apply_files(out, config, o);
    return 0;
}
