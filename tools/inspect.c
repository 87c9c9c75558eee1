/* `spillway inspect`: the facts of a model folder, from its headers. The other form, --topology, is
 * inspect_topology.c. */
#include "tools/input.h"
#include "tools/inspect_cache.h"
#include "tools/limits.h"
#include "tools/report.h"

#include <stdlib.h>
#include <string.h>

/* Everything that is shown, in either form. */
struct facts {
    struct spw_model_config config;
    struct spw_safetensors *weights;
    struct spw_tokenizer *tokenizer; /* NULL: the folder has none */
    uint32_t n_full, n_sliding;
    uint64_t n_parameters;
    struct spw_cache_policy cache;
    uint64_t kv_bytes_per_token; /* of full layers, in the cache's type */
    uint64_t kv_bytes_sliding;   /* of sliding layers, once their window is full */
};

static void count(struct facts *f)
{
    const struct spw_model_config *c = &f->config;
    for (uint32_t i = 0; i < c->n_layers; i++)
        *(c->layer_kinds[i] == SPW_LAYER_SLIDING ? &f->n_sliding : &f->n_full) += 1;
    for (size_t i = 0; i < spw_safetensors_count(f->weights); i++) {
        const struct spw_tensor *t = spw_safetensors_at(f->weights, i);
        uint64_t n = 1;
        for (uint32_t d = 0; d < t->n_dims; d++)
            n *= t->shape[d];
        f->n_parameters += n;
    }
    uint64_t token = 2 * (uint64_t)c->n_kv_heads * c->head_dim * spw_dtype_bytes(f->cache.kv);
    f->kv_bytes_per_token = f->n_full * token;
    f->kv_bytes_sliding = f->n_sliding * token * c->window;
}

static const char *rope_name(enum spw_rope_kind kind)
{
    static const char *const names[] = {
        [SPW_ROPE_DEFAULT] = "default", [SPW_ROPE_LINEAR] = "linear",
        [SPW_ROPE_DYNAMIC] = "dynamic", [SPW_ROPE_LLAMA3] = "llama3",
        [SPW_ROPE_YARN] = "yarn",
    };
    return names[kind];
}

/* ---- JSON ---- */

static json_t *tensor_json(const struct spw_tensor *t)
{
    json_t *o = json_object(), *shape = json_array();
    const char *name = strrchr(t->file, '/');
    int failed = 0;
    for (uint32_t d = 0; d < t->n_dims; d++)
        failed |= json_array_append_new(shape, cli_json_count(t->shape[d]));
    failed |= json_object_set_new(o, "name", json_string(t->name));
    failed |= json_object_set_new(o, "dtype", json_string(t->dtype_name));
    failed |= json_object_set_new(o, "shape", shape);
    failed |= json_object_set_new(o, "bytes", cli_json_count(t->bytes));
    failed |= json_object_set_new(o, "file", cli_json_text(name ? name + 1 : t->file));
    if (!failed)
        return o;
    json_decref(o);
    return NULL;
}

static int add_config(json_t *o, const struct facts *f)
{
    const struct spw_model_config *c = &f->config;
    int failed = json_object_set_new(o, "model_type", json_string(c->model_type));
    failed |= json_object_set_new(o, "dtype", json_string(spw_dtype_name(c->dtype)));
    failed |= json_object_set_new(o, "n_layers", cli_json_count(c->n_layers));
    failed |= json_object_set_new(o, "n_full_layers", cli_json_count(f->n_full));
    failed |= json_object_set_new(o, "n_sliding_layers", cli_json_count(f->n_sliding));
    failed |= json_object_set_new(o, "window", cli_json_count(c->window));
    failed |= json_object_set_new(o, "hidden", cli_json_count(c->hidden));
    failed |= json_object_set_new(o, "intermediate", cli_json_count(c->intermediate));
    failed |= json_object_set_new(o, "n_heads", cli_json_count(c->n_heads));
    failed |= json_object_set_new(o, "n_kv_heads", cli_json_count(c->n_kv_heads));
    failed |= json_object_set_new(o, "head_dim", cli_json_count(c->head_dim));
    failed |= json_object_set_new(o, "vocab", cli_json_count(c->vocab));
    failed |= json_object_set_new(o, "max_positions", cli_json_count(c->max_positions));
    failed |= json_object_set_new(o, "longest_context", cli_json_count(c->reach));
    failed |= json_object_set_new(o, "tied_embeddings", json_boolean(c->tied_embeddings));
    failed |= json_object_set_new(o, "rope", json_string(rope_name(c->rope[SPW_LAYER_FULL].kind)));
    failed |= json_object_set_new(o, "rope_theta", cli_json_real(c->rope[SPW_LAYER_FULL].theta));
    failed |= json_object_set_new(o, "eos", cli_report_tokens(c->eos, c->n_eos));
    failed |= json_object_set_new(o, "bos", c->bos < 0 ? json_null() : json_integer(c->bos));
    return failed;
}

static int print_json(const struct cli_options *o, const struct facts *f)
{
    json_t *j = json_object();
    int failed = json_object_set_new(j, "model", cli_json_text(o->operand));
    failed |= add_config(j, f);
    failed |= json_object_set_new(j, "n_parameters", cli_json_count(f->n_parameters));
    failed |=
        json_object_set_new(j, "n_tensors", cli_json_count(spw_safetensors_count(f->weights)));
    failed |= json_object_set_new(j, "weights_bytes",
                                  cli_json_count(spw_safetensors_total_bytes(f->weights)));
    failed |= json_object_set_new(j, "kv_bytes_per_token", cli_json_count(f->kv_bytes_per_token));
    failed |= json_object_set_new(j, "kv_bytes_sliding", cli_json_count(f->kv_bytes_sliding));
    failed |= json_object_set_new(j, "cache", cli_cache_json(&f->cache, &f->config));
    json_t *tokenizer = json_null();
    if (f->tokenizer)
        tokenizer =
            json_pack("{s:I,s:I}", "vocab", (json_int_t)spw_tokenizer_vocab_size(f->tokenizer),
                      "memory_bytes", (json_int_t)spw_tokenizer_bytes(f->tokenizer));
    failed |= json_object_set_new(j, "tokenizer", tokenizer);
    if (o->tensors) {
        json_t *list = json_array();
        for (size_t i = 0; i < spw_safetensors_count(f->weights); i++)
            failed |= json_array_append_new(list, tensor_json(spw_safetensors_at(f->weights, i)));
        failed |= json_object_set_new(j, "tensors", list);
    }
    if (failed) {
        json_decref(j);
        j = NULL;
    }
    return cli_print_json(j, JSON_INDENT(2));
}

/* ---- text ---- */

static void print_token(const struct facts *f, int32_t id)
{
    const char *token = f->tokenizer ? spw_tokenizer_token(f->tokenizer, id) : NULL;
    printf(" %d", (int)id);
    if (token)
        printf(" (%s)", token);
}

static void print_tokenizer(const struct facts *f)
{
    const struct spw_model_config *c = &f->config;
    if (f->tokenizer)
        printf("tokenizer   %u tokens\n", spw_tokenizer_vocab_size(f->tokenizer));
    else
        printf("tokenizer   none\n");
    if (c->bos >= 0) {
        printf("begins with");
        print_token(f, c->bos);
        putchar('\n');
    }
    printf("ends with  ");
    for (uint32_t i = 0; i < c->n_eos; i++)
        print_token(f, c->eos[i]);
    puts(c->n_eos ? "" : " nothing");
}

static void print_tensors(const struct facts *f)
{
    putchar('\n');
    for (size_t i = 0; i < spw_safetensors_count(f->weights); i++) {
        const struct spw_tensor *t = spw_safetensors_at(f->weights, i);
        char shape[160] = "", bytes[32];
        for (uint32_t d = 0; d < t->n_dims; d++) {
            size_t n = strlen(shape);
            snprintf(shape + n, sizeof shape - n, "%s%llu", d ? ", " : "",
                     (unsigned long long)t->shape[d]);
        }
        printf("%-52s %-5s [%s] %s\n", t->name, t->dtype_name, shape,
               cli_format_bytes(bytes, t->bytes));
    }
}

static void print_facts(const struct cli_options *o, const struct facts *f)
{
    const struct spw_model_config *c = &f->config;
    char bytes[32];
    printf("model       %s (%s), %s\n", o->operand, c->model_type, spw_dtype_name(c->dtype));
    printf("layers      %u", c->n_layers);
    if (f->n_sliding > 0)
        printf(": %u full, %u sliding over %u tokens", f->n_full, f->n_sliding, c->window);
    printf("\nwidth       %u, mlp %u, %u heads of %u, %u for KV\n", c->hidden, c->intermediate,
           c->n_heads, c->head_dim, c->n_kv_heads);
    printf("vocabulary  %u%s\n", c->vocab,
           c->tied_embeddings ? ", embeddings are the head too" : "");
    printf("positions   %llu, rope %s, theta %g", (unsigned long long)c->max_positions,
           rope_name(c->rope[SPW_LAYER_FULL].kind), c->rope[SPW_LAYER_FULL].theta);
    if (c->reach > c->max_positions)
        printf(", reaches %llu", (unsigned long long)c->reach);
    putchar('\n');
    printf("weights     %s in %zu tensors, %.4g million parameters\n",
           cli_format_bytes(bytes, spw_safetensors_total_bytes(f->weights)),
           spw_safetensors_count(f->weights), (double)f->n_parameters * 1e-6);
    printf("KV          %s a token", cli_format_bytes(bytes, f->kv_bytes_per_token));
    if (f->n_sliding > 0)
        printf(", and %s for the windows", cli_format_bytes(bytes, f->kv_bytes_sliding));
    putchar('\n');
    cli_cache_print(&f->cache, &f->config);
    print_tokenizer(f);
    if (o->tensors)
        print_tensors(f);
}

/* A folder without a tokenizer can still be run on ids; one that cannot be read is an error. */
static int open_tokenizer(struct facts *f, const char *folder)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/tokenizer.json", folder) >= (int)sizeof path)
        return cli_fail(CLI_REFUSED, "%s: found a path that is too long", folder);
    struct spw_error err = {0};
    int rc = spw_tokenizer_open(&f->tokenizer, path, &err);
    return rc < 0 && rc != -ENOENT ? cli_fail_error(rc, &err, true) : 0;
}

/* As a run with these options would. */
static int decide_cache(struct facts *f, const struct cli_options *o)
{
    struct spw_error err = {0};
    struct spw_options options = cli_engine_options(o, 0, 1);
    enum spw_dtype compute = spw_compute_type(f->weights, &options);
    int rc = spw_cache_policy_make(&f->cache, &f->config, compute, &options, &err);
    return rc < 0 ? cli_fail_error(rc, &err, true) : 0;
}

/* Facts are shown of weights that do not fit their config.json, too; but not without a word. */
static void say_unfit(const char *folder)
{
    struct spw_plan_info plan;
    struct spw_error err = {0};
    const struct spw_options options = {.backend = SPW_BACKEND_CPU, .context = 1};
    if (spw_plan_query(&plan, folder, &options, &err) == -EINVAL)
        cli_fail(0, "this folder cannot be run: %s", err.text);
}

int cli_inspect(const struct cli_options *o)
{
    if (o->topology)
        return cli_inspect_topology(o);
    if (!o->operand)
        return cli_fail(CLI_REFUSED, "inspect: found neither MODEL nor --topology; usage: spillway "
                                     "inspect MODEL [options]");
    if (cli_given(o, "threads"))
        return cli_fail(CLI_REFUSED, "--threads: found without --topology, expected with it");
    struct facts f = {0};
    struct spw_error err = {0};
    int code = 0, rc = spw_config_open(&f.config, o->operand, &err);
    if (rc < 0)
        return cli_fail_error(rc, &err, true);
    rc = spw_safetensors_open(&f.weights, o->operand, &err);
    if (rc < 0)
        code = cli_fail_error(rc, &err, true);
    if (code == 0)
        code = decide_cache(&f, o);
    if (code == 0)
        code = open_tokenizer(&f, o->operand);
    if (code == 0) {
        count(&f);
        if (o->json)
            code = print_json(o, &f);
        else
            print_facts(o, &f);
        say_unfit(o->operand);
    }
    spw_tokenizer_close(f.tokenizer);
    spw_safetensors_close(f.weights);
    spw_config_free(&f.config);
    return code;
}
