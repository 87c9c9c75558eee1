/* `spillway inspect`: the facts of a model, from its headers. inspect_topology.c has the
 * other form, --topology. */
#include "quant/types.h"
#include "tools/command/input/input.h"
#include "tools/command/engine.h"
#include "tools/command/output/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Everything that is shown, as text or as JSON. */
struct facts {
    struct spw_source *source;
    struct spw_model_config config;
    struct spw_tensors *tensors;
    struct spw_tokenizer *tokenizer; /* NULL if the model has none */
    char template[4096]; /* where the chat template is, or why there is none; "": none */
    uint32_t n_layers[SPW_LAYER_KINDS];
    uint64_t n_parameters;
    struct spw_cache_policy cache;
    uint64_t kv_bytes_per_token; /* of full layers, in the cache's type */
    uint64_t kv_bytes_windows;   /* of the other layers, with a full window */
    uint64_t state_bytes;        /* of all layers with a state */
};

static void count(struct facts *f)
{
    const struct spw_model_config *c = &f->config;
    for (uint32_t i = 0; i < c->n_layers; i++) /* a layer of an encoder is two of these */
        f->n_layers[c->layer_kinds[i]] += i >= c->n_source_layers || i % 2 == 0;
    for (size_t i = 0; i < spw_tensors_count(f->tensors); i++) {
        const struct spw_tensor *t = spw_tensors_at(f->tensors, i);
        uint64_t n = 1;
        for (uint32_t d = 0; d < t->n_dims; d++)
            n *= t->shape[d];
        f->n_parameters += n;
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (!spw_config_stores_kv(c, i) || i < c->n_source_layers)
            continue;
        f->state_bytes +=
            spw_config_has_state(c, i) ? spw_mixer_state_floats(&c->mixer) * sizeof(float) : 0;
        uint64_t token = 2 * spw_row_bytes(f->cache.kv, spw_config_kv_width(c, i));
        if (spw_layer_has_window((enum spw_layer_kind)c->layer_kinds[i]))
            f->kv_bytes_windows += token * c->window;
        else
            f->kv_bytes_per_token += token;
    }
}

/* ---- types of tensors ---- */

enum { MOST_TYPES = 32 };

struct type_count {
    const char *name; /* borrowed from a tensor */
    size_t n_tensors;
    uint64_t bytes;
};

static int compare_counts(const void *a, const void *b)
{
    const struct type_count *x = a, *y = b;
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/* The most bytes first. */
static size_t count_types(const struct facts *f, struct type_count out[MOST_TYPES])
{
    size_t n = 0;
    for (size_t i = 0; i < spw_tensors_count(f->tensors); i++) {
        const struct spw_tensor *t = spw_tensors_at(f->tensors, i);
        size_t k = 0;
        while (k < n && strcmp(out[k].name, t->dtype_name) != 0)
            k++;
        if (k == MOST_TYPES)
            continue;
        if (k == n)
            out[n++] = (struct type_count){.name = t->dtype_name};
        out[k].n_tensors++;
        out[k].bytes += t->bytes;
    }
    qsort(out, n, sizeof *out, compare_counts);
    return n;
}

static double bits_per_weight(const struct facts *f)
{
    uint64_t bytes = spw_tensors_total_bytes(f->tensors);
    return f->n_parameters ? 8.0 * (double)bytes / (double)f->n_parameters : 0;
}

static const char *rope_name(enum spw_rope_kind kind)
{
    static const char *const names[] = {
        [SPW_ROPE_DEFAULT] = "default", [SPW_ROPE_LINEAR] = "linear",
        [SPW_ROPE_DYNAMIC] = "dynamic", [SPW_ROPE_LLAMA3] = "llama3",
        [SPW_ROPE_YARN] = "yarn",       [SPW_ROPE_FACTORS] = "factors",
        [SPW_ROPE_LONG] = "longrope",   [SPW_ROPE_PROPORTIONAL] = "proportional",
    };
    return names[kind];
}

static json_t *shape_json(const struct spw_tensor *t)
{
    json_t *list = json_array();
    for (uint32_t d = 0; d < t->n_dims; d++)
        cli_json_append(&list, CLI_JSON(t->shape[d]));
    return list;
}

static json_t *tensors_json(const struct facts *f)
{
    json_t *list = json_array();
    for (size_t i = 0; i < spw_tensors_count(f->tensors); i++) {
        const struct spw_tensor *t = spw_tensors_at(f->tensors, i);
        const char *slash = strrchr(t->file, '/');
        const struct cli_field fields[] = {
            {"name", CLI_JSON(t->own_name)},
            {"dtype", CLI_JSON(t->dtype_name)},
            {"shape", shape_json(t)},
            CLI_FIELD(t, bytes),
            {"file", CLI_JSON(slash ? slash + 1 : t->file)},
        };
        cli_json_append(&list, CLI_OBJECT(fields));
    }
    return list;
}

static json_t *types_json(const struct facts *f)
{
    struct type_count types[MOST_TYPES];
    json_t *list = json_array();
    for (size_t n = count_types(f, types), i = 0; i < n; i++) {
        const struct cli_field fields[] = {
            {"dtype", CLI_JSON(types[i].name)},
            {"n_tensors", CLI_JSON(types[i].n_tensors)},
            {"bytes", CLI_JSON(types[i].bytes)},
        };
        cli_json_append(&list, CLI_OBJECT(fields));
    }
    return list;
}

static json_t *rules_json(const struct spw_model_config *c)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < c->n_rules; i++)
        cli_json_append(&list, CLI_JSON(c->rules[i]));
    return list;
}

static json_t *tokenizer_json(const struct spw_tokenizer *t)
{
    size_t n_prefix, n_suffix;
    const int32_t *prefix = spw_tokenizer_prefix(t, &n_prefix);
    const int32_t *suffix = spw_tokenizer_suffix(t, &n_suffix);
    const struct cli_field fields[] = {
        {"vocab", CLI_JSON(spw_tokenizer_vocab_size(t))},
        {"prefix", cli_report_tokens(prefix, n_prefix)},
        {"prefix_texts", cli_report_names(t, prefix, n_prefix)},
        {"suffix", cli_report_tokens(suffix, n_suffix)},
        {"suffix_texts", cli_report_names(t, suffix, n_suffix)},
    };
    return CLI_OBJECT(fields);
}

static json_t *experts_json(const struct facts *f)
{
    const struct spw_experts_config *e = &f->config.experts;
    const struct cli_field fields[] = {
        CLI_FIELD(e, n),
        CLI_FIELD(e, n_kept),
        CLI_FIELD(e, intermediate),
        CLI_FIELD(e, shared_intermediate),
        {"n_layers", CLI_JSON(spw_expert_layers(&f->config))},
    };
    return CLI_OBJECT(fields);
}

static uint32_t rope_layers(const struct spw_model_config *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        n += c->rotates[i] && spw_config_attends(c, i);
    return n;
}

/* Takes the object. */
static json_t *null_if_empty(json_t *o)
{
    if (!o || json_object_size(o))
        return o;
    json_decref(o);
    return json_null();
}

/* As the file has it: 1.2, not 1.2000000476. */
static json_t *decimal(float value)
{
    return CLI_JSON(round((double)value * 1e6) / 1e6);
}

/* What the files of a model with an encoder ask for; null if they ask for nothing. */
static json_t *search_json(const struct spw_search_rules *s)
{
    static const char *const early[] = {"false", "true", "never"};
    const uint64_t most = s->max_new_tokens ? s->max_new_tokens : s->max_length;
    const struct cli_field fields[] = {
        {s->num_beams > 1 ? "num_beams" : NULL, CLI_JSON(s->num_beams)},
        {s->num_beam_groups > 1 ? "num_beam_groups" : NULL, CLI_JSON(s->num_beam_groups)},
        {s->diversity_penalty > 0 ? "diversity_penalty" : NULL, decimal(s->diversity_penalty)},
        {s->repetition_penalty > 0 ? "repetition_penalty" : NULL, decimal(s->repetition_penalty)},
        {s->num_beams > 1 ? "length_penalty" : NULL, decimal(s->length_penalty)},
        {s->num_beams > 1 ? "early_stopping" : NULL, CLI_JSON(early[s->early_stopping])},
        {most ? s->max_new_tokens ? "max_new_tokens" : "max_length" : NULL, CLI_JSON(most)},
    };
    return null_if_empty(CLI_OBJECT(fields));
}

/* Those rules of the files that are on; null if none is. */
static json_t *token_rules_json(const struct spw_token_rules *r)
{
    const struct cli_field numbers[] = {
        {r->no_repeat_ngram_size ? "no_repeat_ngram_size" : NULL,
         CLI_JSON(r->no_repeat_ngram_size)},
        {r->min_length ? "min_length" : NULL, CLI_JSON(r->min_length)},
        {r->min_new_tokens ? "min_new_tokens" : NULL, CLI_JSON(r->min_new_tokens)},
        {r->renormalize_logits ? "renormalize_logits" : NULL, CLI_JSON(r->renormalize_logits)},
    };
    json_t *o = CLI_OBJECT(numbers);
    for (int k = 0; k < SPW_TOKEN_LISTS; k++)
        if (r->lists[k].n)
            cli_json_add(&o, spw_token_list_name((enum spw_token_list_kind)k),
                         cli_report_tokens(r->lists[k].ids, r->lists[k].n));
    if (r->bad_words.n)
        cli_json_add(&o, "bad_words", cli_report_tokens(r->bad_words.ids, r->bad_words.n));
    return null_if_empty(o);
}

/* What is different when a model with an encoder summarizes; null if nothing is asked for. */
static json_t *summary_json(const struct spw_summary_config *s)
{
    const struct cli_field fields[] = {
        {*s->prefix ? "prefix" : NULL, CLI_JSON((const char *)s->prefix)},
        {"token_rules", token_rules_json(&s->rules)},
        {"search", search_json(&s->search)},
    };
    return CLI_OBJECT(fields);
}

static void add_config(json_t **o, const struct facts *f)
{
    const struct spw_model_config *c = &f->config;
    const bool halves = c->n_source_layers; /* a layer of the files is two of ours */
    const struct cli_field layers[] = {
        CLI_FIELD(c, model_type),
        {"wrapper", CLI_OR_NULL(c->wrapper, CLI_JSON(c->wrapper))},
        {"dtype", CLI_OR_NULL(c->dtype, CLI_JSON(spw_dtype_name(c->dtype)))},
        {"n_layers", CLI_JSON(halves ? c->n_layers / 2 : c->n_layers)},
        {halves ? "n_encoder_layers" : NULL, CLI_JSON(c->n_source_layers / 2)},
        {halves ? "n_decoder_layers" : NULL, CLI_JSON((c->n_layers - c->n_source_layers) / 2)},
    };
    CLI_ADD(o, layers);
    for (int k = 0; k < SPW_LAYER_KINDS; k++) {
        char name[32];
        snprintf(name, sizeof name, "n_%s_layers", spw_layer_kinds[k].name);
        cli_json_add(o, name, CLI_JSON(f->n_layers[k]));
    }
    const struct cli_field fields[] = {
        CLI_FIELD(c, window),
        CLI_FIELD(c, hidden),
        CLI_FIELD(c, intermediate),
        {"experts", CLI_OR_NULL(c->experts.n, experts_json(f))},
        CLI_FIELD(c, n_heads),
        {"n_kv_heads", CLI_JSON(c->kv[c->full_kind].n_heads)},
        {"head_dim", CLI_JSON(c->kv[c->full_kind].head_dim)},
        CLI_FIELD(c, vocab),
        CLI_FIELD(c, max_positions),
        {"longest_context", CLI_JSON(c->reach)},
        CLI_FIELD(c, tied_embeddings),
        {"n_rope_layers", CLI_JSON(rope_layers(c))},
        {"rope", CLI_JSON(rope_name(c->rope[c->full_kind].kind))},
        {"rope_theta", CLI_JSON(c->rope[c->full_kind].theta)},
        {"eos", cli_report_tokens(c->eos, c->n_eos)},
        {"eos_texts", cli_report_names(f->tokenizer, c->eos, c->n_eos)},
        {"token_rules", token_rules_json(&c->token_rules)},
        {"search", search_json(&c->search)},
        {c->n_source_layers && !c->n_mels ? "summaries" : NULL, summary_json(&c->summary)},
        {"bos", CLI_OR_NULL(c->bos >= 0, CLI_JSON(c->bos))},
    };
    CLI_ADD(o, fields);
}

/* ---- the cache: adjacent layers of one kind are one range ----
 *
 * In a model with an encoder all layers of a kind are one: each layer of the decoder has both. */

/* The end of the range of equal layers that begins at `first`. */
static uint32_t run_end(const struct spw_model_config *c, uint32_t first)
{
    uint32_t end = first + 1;
    while (end < c->n_layers && c->layer_kinds[end] == c->layer_kinds[first])
        end++;
    return end;
}

static json_t *tiers_json(const struct spw_cache_policy *p)
{
    json_t *list = json_array();
    cli_json_append(&list, CLI_JSON("device"));
    if (p->host)
        cli_json_append(&list, CLI_JSON("host"));
    if (p->disk)
        cli_json_append(&list, CLI_JSON("disk"));
    return list;
}

static json_t *run_json(const struct spw_cache_policy *p, int kind, uint32_t first, uint32_t end)
{
    const struct spw_cache_layers *layers = &p->layers[kind];
    const struct cli_field fields[] = {
        {"first", CLI_JSON(first)},
        {"last", CLI_JSON(end - 1)},
        {"kind", CLI_JSON(spw_layer_kinds[kind].name)},
        {"window", CLI_OR_NULL(layers->window, CLI_JSON(layers->window))},
        {"kv_dtype", CLI_JSON(spw_dtype_name(p->kv))},
        {"tiers", tiers_json(p)},
        CLI_FIELD(layers, why),
    };
    return CLI_OBJECT(fields);
}

static json_t *cache_json(const struct facts *f)
{
    const struct spw_cache_policy *p = &f->cache;
    const struct spw_model_config *c = &f->config;
    json_t *list = json_array();
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        if (c->n_source_layers && f->n_layers[k])
            cli_json_append(&list, run_json(p, k, 0, f->n_layers[k]));
    for (uint32_t i = 0, end; i < c->n_layers && !c->n_source_layers; i = end) {
        end = run_end(c, i);
        cli_json_append(&list, run_json(p, c->layer_kinds[i], i, end));
    }
    const char *asked = c->cache_implementation;
    const struct cli_field fields[] = {
        {"layers", list},
        {"kv_dtype_why", CLI_JSON(p->kv_why)},
        {"old_kv", CLI_JSON(spw_kv_precision_name(p->precision))},
        {"old_kv_why", CLI_JSON(p->precision_why)},
        {"residual_window", CLI_OR_NULL(p->precision, CLI_JSON(p->residual_tokens))},
        CLI_FIELD(p, tiers_why),
        {"asked", CLI_OR_NULL(*asked, CLI_JSON(asked))},
        {"asked_why", CLI_OR_NULL(*p->files_why, CLI_JSON(p->files_why))},
    };
    return CLI_OBJECT(fields);
}

/* ---- all ---- */

static int show(const struct cli_options *o, const struct facts *f)
{
    const struct cli_field fields[] = {
        CLI_FIELD(f, n_parameters),
        {"n_tensors", CLI_JSON(spw_tensors_count(f->tensors))},
        {"weights_bytes", CLI_JSON(spw_tensors_total_bytes(f->tensors))},
        {"bits_per_weight", CLI_JSON(bits_per_weight(f))},
        {"types", types_json(f)},
        {"by_rule", rules_json(&f->config)},
        CLI_FIELD(f, kv_bytes_per_token),
        CLI_FIELD(f, state_bytes),
        CLI_FIELD(f, kv_bytes_windows),
        {"cache", cache_json(f)},
        {"tokenizer", CLI_OR_NULL(f->tokenizer, tokenizer_json(f->tokenizer))},
        {"chat_template", CLI_OR_NULL(*f->template, CLI_JSON((const char *)f->template))},
        {o->tensors ? "tensors" : NULL, CLI_OR_NULL(o->tensors, tensors_json(f))},
    };
    json_t *j = json_object();
    cli_json_add(&j, "model", CLI_JSON(o->operand));
    add_config(&j, f);
    CLI_ADD(&j, fields);
    return cli_show(o, j);
}

/* Opens the parts of the model. A model without a tokenizer can run on token ids. A tokenizer that
 * cannot be read is an error. */
static int open_parts(struct facts *f, const char *path)
{
    struct spw_error err = {0};
    int rc = spw_source_open(&f->source, path, &err);
    if (rc == 0)
        rc = f->source->ops->config(f->source, &f->config, &err);
    if (rc == 0)
        rc = f->source->ops->tensors(f->source, &f->tensors, &err);
    if (rc == 0)
        rc = f->source->ops->tokenizer(f->source, &f->tokenizer, &err);
    return rc < 0 && !(rc == -ENOENT && f->tensors) ? cli_fail_error(rc, &err, true) : 0;
}

/* A template that cannot be read is a fact, too. */
static void find_template(struct facts *f)
{
    struct spw_error err = {0};
    struct spw_chat_template *t;
    int rc = f->source->ops->chat_template(f->source, NULL, NULL, &t, &err);
    if (rc && rc != -ENOENT)
        snprintf(f->template, sizeof f->template, "%s", err.text);
    if (rc)
        return;
    snprintf(f->template, sizeof f->template, "%s", spw_chat_template_name(t));
    spw_chat_template_close(t);
}

/* Decides the cache as a run with these options would. */
static int decide_cache(struct facts *f, const struct cli_options *o)
{
    struct spw_error err = {0};
    struct spw_options options = cli_engine_options(o, 0, 1);
    enum spw_dtype compute = spw_compute_type(f->tensors, &options);
    int rc = spw_cache_policy_make(&f->cache, &f->config, compute, &options, &err);
    if (rc < 0)
        return cli_fail_error(rc, &err, true);
    cli_name_options(f->cache.kv_why);
    cli_name_options(f->cache.precision_why);
    cli_name_options(f->cache.tiers_why);
    cli_name_options(f->cache.files_why);
    return 0;
}

/* The facts are also shown if the weights do not fit the config. Then a line on stderr says so. */
static void say_unfit(const char *model)
{
    struct spw_plan_info plan;
    struct spw_error err = {0};
    const struct spw_options options = {.backend = SPW_BACKEND_CPU, .context = 1};
    if (spw_plan_query(&plan, model, &options, &err) == -EINVAL)
        cli_fail(0, "this model cannot be run: %s", err.text);
}

int cli_inspect(const struct cli_options *o)
{
    if (o->topology)
        return cli_inspect_topology(o);
    if (o->self_test)
        return cli_inspect_self_test(o);
    if (!o->operand)
        return cli_fail(CLI_REFUSED, "inspect: found neither MODEL nor --topology nor --self-test; "
                                     "usage: spillway inspect MODEL [options]");
    if (cli_given(o, "threads"))
        return cli_fail(CLI_REFUSED, "--threads: found without --topology or --self-test, expected "
                                     "with one of them");
    struct facts f = {0};
    int code = open_parts(&f, o->operand);
    if (code == 0)
        code = decide_cache(&f, o);
    if (code == 0) {
        count(&f);
        find_template(&f);
        code = show(o, &f);
        say_unfit(o->operand);
    }
    spw_tokenizer_close(f.tokenizer);
    spw_tensors_close(f.tensors);
    spw_config_free(&f.config);
    spw_source_close(f.source);
    return code;
}
