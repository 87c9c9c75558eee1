/* The engine of a command: see engine.h. The callbacks print what the engine reports. */
#include "tools/command/engine.h"

#include "tools/command/check_kv.h"

#include <string.h>

/* 0 on the command line means "none". For the library 0 means "choose a number", which is also the
 * value of an option that was not given. */
static uint64_t budget(const struct cli_options *o, const char *name, uint64_t bytes)
{
    return cli_given(o, name) && bytes == 0 ? SPW_BYTES_NONE : bytes;
}

static bool interrupted(void *context)
{
    (void)context;
    return cli_interrupted();
}

/* Reports a tile that was lost on disk. The run continues, and the answer stays the same. */
static void say_incident(void *context, const struct spw_incident *i)
{
    (void)context;
    cli_fail(
        0,
        "disk: the KV of layer %u from token %llu on could not be read back (%s): %llu tokens are "
        "computed again",
        i->layer, (unsigned long long)i->position,
        i->error == -EBADMSG ? "checksum" : strerror(-i->error),
        (unsigned long long)i->n_recomputed);
}

/* A command plans more than once, and bench opens an engine for each run. A fallback before the
 * first token is therefore reported only the first time. */
static bool was_said(const struct spw_rung *r)
{
    static struct spw_rung said[SPW_RUNGS_KEPT];
    static size_t n;
    for (size_t i = 0; i < n; i++)
        if (r->kind == said[i].kind && r->bytes_asked == said[i].bytes_asked &&
            r->bytes_freed == said[i].bytes_freed)
            return true;
    if (n < SPW_RUNGS_KEPT)
        said[n++] = *r;
    return false;
}

/* What the run does from now on. */
static void describe_fallback(char out[96], const struct cli_options *o, enum spw_rung_kind kind)
{
    static const char *const texts[] = {[SPW_RUNG_BUDGETS] = "less memory is spare",
                                        [SPW_RUNG_CHUNK] = "the prefill chunk is smaller",
                                        [SPW_RUNG_SLOTS] = "there are fewer prefetch slots",
                                        [SPW_RUNG_WEIGHTS] = "fewer layers stay on the device",
                                        [SPW_RUNG_HOST] = "more KV lies in host memory",
                                        [SPW_RUNG_DISK] = "more KV lies on disk",
                                        [SPW_RUNG_INT8] = "int8",
                                        [SPW_RUNG_INT8_INT4] = "int8:int4",
                                        [SPW_RUNG_INT4] = "int4",
                                        [SPW_RUNG_UP] = "old KV has more precision"};
    uint64_t window = cli_given(o, "residual-window") ? o->residual_window : 1024;
    if (kind >= SPW_RUNG_INT8 && kind <= SPW_RUNG_INT4)
        snprintf(out, 96, "KV older than %llu tokens is now stored as %s",
                 (unsigned long long)window, texts[kind]);
    else
        snprintf(out, 96, "%s now", texts[kind]);
}

static void say_fallback(void *context, const struct spw_rung *r)
{
    char asked[32], freed[32], again[64] = "", lossy[128] = "", when[64] = "before the first token";
    char now[96];
    if (!r->position && was_said(r))
        return;
    describe_fallback(now, context, r->kind);
    if (r->position)
        snprintf(when, sizeof when, "at token %llu", (unsigned long long)r->position);
    if (r->n_recomputed)
        snprintf(again, sizeof again, "; %llu tokens are computed again",
                 (unsigned long long)r->n_recomputed);
    if (r->lossy_from)
        snprintf(lossy, sizeof lossy,
                 "; the answer may differ from token %llu on (--on-oom spill forbids this)",
                 (unsigned long long)r->lossy_from);
    cli_fail(0, "out of memory %s (%s, %s asked): %s, which frees %s%s%s", when, r->failed,
             cli_format_bytes(asked, r->bytes_asked), now, cli_format_bytes(freed, r->bytes_freed),
             again, lossy);
}

static void say_reuse(void *context, const struct spw_reuse *r)
{
    char bytes[32];
    (void)context;
    cli_note("prefix cache: the first %llu of %llu tokens were found, %s",
             (unsigned long long)r->n_tokens, (unsigned long long)r->n_asked,
             cli_format_bytes(bytes, r->bytes));
}

static void say_prefix_note(void *context, const char *text)
{
    (void)context;
    cli_note("%s", text);
}

struct spw_options cli_engine_options(const struct cli_options *o, uint64_t context,
                                      uint32_t sessions)
{
    return (struct spw_options){
        .backend = (enum spw_backend_kind)o->device.kind,
        .device_index = o->device.index,
        .threads = (uint32_t)o->threads,
        .device_bytes = budget(o, "device-memory", o->device_memory),
        .host_bytes = budget(o, "host-memory", o->host_memory),
        .disk_dir = o->disk,
        .disk_bytes = budget(o, "disk-memory", o->disk_memory),
        .disk_write_limit = budget(o, "disk-write-limit", o->disk_write_limit),
        .prefix_cache_dir = o->prefix_cache,
        .prefix_cache_bytes = budget(o, "prefix-cache-size", o->prefix_cache_size),
        .prefix_cache_trusts_others = o->trust_prefix_cache,
        .on_reuse = say_reuse,
        .on_prefix_note = say_prefix_note,
        .io = (enum spw_io_kind)o->io,
        .compute = (enum spw_dtype)o->compute,
        .kv = o->kv_dtype < CLI_KV_PRECISION ? (enum spw_dtype)o->kv_dtype : SPW_DTYPE_AUTO,
        .precision = o->kv_dtype < CLI_KV_PRECISION
                         ? SPW_KV_EXACT
                         : (enum spw_kv_precision)(o->kv_dtype - CLI_KV_PRECISION),
        .residual_window = budget(o, "residual-window", o->residual_window),
        .context = context,
        .past_positions = o->allow_long_context,
        .sessions = sessions,
        .prefill_chunk = (uint32_t)o->prefill_chunk,
        .prefetch_slots = (uint32_t)o->prefetch_slots,
        .prefetch_splits = (uint32_t)o->prefetch_splits,
        .delay_seed = o->delay_seed,
        .serial_kernels = o->serial_kernels,
        .interrupted = interrupted,
        .on_incident = say_incident,
        .on_oom = (unsigned)o->on_oom,
        .on_rung = say_fallback,
        .rung_context = (void *)o,
        .gate = cli_check_kv_gate,
        .gate_context = (void *)o,
    };
}

/* Names the device if the user did not, and prints the engine's note about it. */
static void say_device(const struct cli_options *o, const struct spw_engine *e)
{
    const char *note = spw_engine_note(e);
    if (o->device.kind == SPW_BACKEND_AUTO || !cli_given(o, "device"))
        cli_note("on %s%s%s", spw_engine_backend(e), *note ? ": " : "", note);
    else if (*note)
        cli_note("%s", note);
}

int cli_engine_open(struct spw_engine **out, const struct cli_options *o,
                    const struct spw_options *options, const struct cli_limits *limits)
{
    struct spw_error err = {0};
    int rc = spw_engine_open(out, o->operand, options, &err);
    if (rc < 0)
        return cli_fail_error(rc, &err, true);
    if (*limits->why.text)
        cli_note("%s", limits->why.text);
    say_device(o, *out);
    cli_check_kv_warn(o, options);
    return 0;
}

struct spw_sampling cli_sampling(const struct cli_options *o)
{
    return (struct spw_sampling){
        .temperature = (float)o->temperature,
        .top_k = (uint32_t)o->top_k,
        .top_p = (float)o->top_p,
        .min_p = (float)o->min_p,
        .repetition_penalty = (float)o->repetition_penalty,
        .seed = o->seed,
    };
}
