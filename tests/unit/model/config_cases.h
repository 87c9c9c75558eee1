/* Cases in a file of text (tests/text_cases.h): what a model's config must be, or why it is
 * refused. A line of a file that reads config.json has a model, which may be a name, and keys that
 * are put over its keys:
 *
 *     llama = {"model_type": "llama"}     a name for a model
 *     llama {"hidden_size": 8}            it must be accepted
 *     llama {} + {"eos_token_id": 5}      with a generation_config.json
 *     llama {"hidden_size": 0} => words   it must be refused, in one line that has these words
 *
 * In a file that reads keys of GGUF an architecture stands before the keys, and between them what
 * is not a key, "+head". Behind " => " stands what follows the name of the architecture. What an
 * accepted config must be stands below it:
 *
 *       window 16, kv.0.n_heads 2      numbers, texts, names of constants (ACT_SILU), "" an empty
 * text qk_norm, !sandwich             true and false theta ~ 2.5, n > 0             within 1e-12 of
 * it; above it kinds FFSC                     of all layers: full, sliding, chunked; M: with a
 * state; N: none; E, X: an encoder, cross rule words                     one of its rules has these
 * words; "no rule words": none has */
#ifndef SPW_TESTS_UNIT_MODEL_CONFIG_CASES_H
#define SPW_TESTS_UNIT_MODEL_CONFIG_CASES_H

#include "model/config/config.h"
#include "tests/json_text.h"
#include "tests/text_cases.h"

#include <math.h>
#include <string.h>

/* ---- a config as JSON ---- */

static inline json_t *fact_u64(uint64_t x)
{
    return json_integer((json_int_t)x);
}

static inline json_t *fact_bool(bool x)
{
    return json_boolean(x);
}

/* The fact of a NULL is an empty text. */
static inline json_t *fact_text(const char *x)
{
    return json_string(x ? x : "");
}

#define FACT(x)                                                                                    \
    _Generic((x), bool: fact_bool, float: json_real, double: json_real, char *: fact_text,         \
             const char *: fact_text, uint64_t: fact_u64, default: json_integer)(x)
#define FIELD(to, from, name) json_object_set_new(to, #name, FACT((from)->name))
/* x: of number i. */
#define LIST(to, name, n, x)                                                                       \
    do {                                                                                           \
        json_t *list = json_array();                                                               \
        for (uint32_t i = 0; i < (n); i++)                                                         \
            json_array_append_new(list, x);                                                        \
        json_object_set_new(to, name, list);                                                       \
    } while (0)

static inline json_t *rope_facts(const struct spw_rope_config *r)
{
    json_t *o = json_object();
    FIELD(o, r, kind), FIELD(o, r, rotary_dim), FIELD(o, r, theta), FIELD(o, r, factor);
    FIELD(o, r, low_freq_factor), FIELD(o, r, high_freq_factor), FIELD(o, r, truncate);
    FIELD(o, r, original_max_positions), FIELD(o, r, attention_factor), FIELD(o, r, n_turned);
    FIELD(o, r, beta_fast), FIELD(o, r, beta_slow);
    LIST(o, "long_factors", r->long_factors ? r->rotary_dim / 2 : 0, FACT(r->long_factors[i]));
    return o;
}

static inline json_t *kv_facts(const struct spw_kv_shape *kv)
{
    json_t *o = json_object();
    FIELD(o, kv, n_heads), FIELD(o, kv, head_dim), FIELD(o, kv, n_slices);
    if (kv->n_slices)
        json_object_set_new(o, "slice_heads", FACT(spw_config_slice_heads(kv)));
    return o;
}

static inline json_t *expert_facts(const struct spw_experts_config *x)
{
    const struct spw_route *r = &x->route;
    json_t *o = json_object(), *route = json_object();
    FIELD(o, x, n), FIELD(o, x, n_kept), FIELD(o, x, intermediate), FIELD(o, x, latent);
    FIELD(o, x, shared_intermediate), FIELD(o, x, beside), FIELD(o, x, shared_gate);
    FIELD(o, x, choice_bias), FIELD(o, x, weighted_inputs);
    FIELD(route, r, score), FIELD(route, r, renormalizes), FIELD(route, r, sum_plus);
    FIELD(route, r, scale), FIELD(route, r, n_groups), FIELD(route, r, n_groups_kept);
    json_object_set_new(o, "route", route);
    return o;
}

static inline json_t *mixer_facts(const struct spw_mixer_config *m)
{
    json_t *o = json_object();
    FIELD(o, m, kind), FIELD(o, m, heads), FIELD(o, m, key_heads), FIELD(o, m, key_dim);
    FIELD(o, m, value_dim), FIELD(o, m, conv_channels), FIELD(o, m, conv_width);
    FIELD(o, m, dt_rank), FIELD(o, m, gate_blocks), FIELD(o, m, conv_bias), FIELD(o, m, in_bias);
    FIELD(o, m, out_bias), FIELD(o, m, act), FIELD(o, m, in_scale), FIELD(o, m, grouped);
    FIELD(o, m, grouped_rates), FIELD(o, m, tiled), FIELD(o, m, gate_norm), FIELD(o, m, norm_first);
    FIELD(o, m, norm);
    LIST(o, "in_scales", SPW_SSD_PARTS, FACT(m->in_scales[i]));
    if (!m->kind)
        return o;
    json_object_set_new(o, "width", FACT(spw_mixer_width(m)));
    json_object_set_new(o, "in_width", FACT(spw_mixer_in_width(m)));
    json_object_set_new(o, "conv_floats", FACT(spw_mixer_conv_floats(m)));
    json_object_set_new(o, "state_floats", FACT(spw_mixer_state_floats(m)));
    return o;
}

/* Lists with a number for each layer. */
static inline void layer_facts(json_t *o, const struct spw_model_config *c)
{
    char kinds[256];
    CHECK(c->n_layers < sizeof kinds);
    for (uint32_t i = 0; i < c->n_layers; i++)
        kinds[i] = "FSCMNEX"[c->layer_kinds[i]];
    kinds[c->n_layers] = 0;
    json_object_set_new(o, "kinds", json_string(kinds));
    const uint32_t n = c->n_layers;
    LIST(o, "rotates", n, FACT(c->rotates[i]));
    LIST(o, "has_experts", n, FACT(c->has_experts[i]));
    LIST(o, "has_mlp", n, FACT(c->has_mlp[i]));
    LIST(o, "has_state", n, FACT(spw_config_has_state(c, i)));
    LIST(o, "attends", n, FACT(spw_config_attends(c, i)));
    LIST(o, "kv_layers", n, FACT(c->kv_layers[i]));
    LIST(o, "first_slices", n, FACT(c->first_slices[i]));
    LIST(o, "state_slices", n, json_integer((int32_t)c->state_slices[i]));
    LIST(o, "mlp_width", n, FACT(spw_config_mlp_width(c, i)));
    LIST(o, "last_reader", n,
         spw_config_stores_kv(c, i) ? FACT(spw_config_last_reader(c, i)) : FACT(0));
    LIST(o, "qkv_width", n, spw_config_attends(c, i) ? FACT(spw_config_qkv_width(c, i)) : FACT(0));
    LIST(o, "gate_width", n,
         spw_config_attends(c, i) ? FACT(spw_config_gate_width(c, i)) : FACT(0));
    LIST(o, "slice_layers", c->n_slices, FACT(c->slice_layers[i]));
    LIST(o, "slice_kinds", c->n_slices, FACT(c->slice_kinds[i]));
}

static inline json_t *search_facts(const struct spw_search_rules *s)
{
    json_t *o = json_object();
    FIELD(o, s, num_beam_groups), FIELD(o, s, diversity_penalty), FIELD(o, s, repetition_penalty);
    FIELD(o, s, num_beams), FIELD(o, s, length_penalty), FIELD(o, s, early_stopping);
    FIELD(o, s, max_length), FIELD(o, s, max_new_tokens);
    return o;
}

static inline json_t *summary_facts(const struct spw_summary_config *s)
{
    const struct spw_token_rules *t = &s->rules;
    json_t *o = search_facts(&s->search);
    FIELD(o, s, prefix), FIELD(o, t, no_repeat_ngram_size), FIELD(o, t, min_length);
    FIELD(o, t, min_new_tokens);
    return o;
}

static inline json_t *config_facts(const struct spw_model_config *c)
{
    json_t *o = json_object();
    FIELD(o, c, model_type), FIELD(o, c, wrapper), FIELD(o, c, n_layers), FIELD(o, c, hidden);
    FIELD(o, c, intermediate), FIELD(o, c, n_heads), FIELD(o, c, vocab), FIELD(o, c, max_positions);
    FIELD(o, c, reach), FIELD(o, c, rms_eps), FIELD(o, c, norm), FIELD(o, c, post_eps);
    FIELD(o, c, norm_plus_one), FIELD(o, c, plain_last), FIELD(o, c, norm_bias);
    FIELD(o, c, norm_bare), FIELD(o, c, act), FIELD(o, c, qkv_bias), FIELD(o, c, o_bias);
    FIELD(o, c, mlp_bias), FIELD(o, c, head_bias), FIELD(o, c, qk_norm), FIELD(o, c, qk_norm_whole);
    FIELD(o, c, qk_norm_by_head), FIELD(o, c, qk_norm_after_rope), FIELD(o, c, q_norm_scale);
    FIELD(o, c, qk_norm_last), FIELD(o, c, v_norm), FIELD(o, c, interleaved_qk);
    FIELD(o, c, sandwich), FIELD(o, c, late_norms), FIELD(o, c, parallel), FIELD(o, c, plain_mlp);
    FIELD(o, c, tied_embeddings), FIELD(o, c, fp8_scaled), FIELD(o, c, attention_scale);
    FIELD(o, c, attention_softcap), FIELD(o, c, logit_softcap), FIELD(o, c, attention_gate);
    FIELD(o, c, qkv_limit), FIELD(o, c, grows_unrotated), FIELD(o, c, rope_rounding);
    FIELD(o, c, attention_in_scale), FIELD(o, c, mlp_in_scale), FIELD(o, c, logit_divisor);
    FIELD(o, c, embedding_scale), FIELD(o, c, normed_rows), FIELD(o, c, dtype);
    FIELD(o, c, n_slices), FIELD(o, c, wide_readers);
    FIELD(o, c, n_source_layers), FIELD(o, c, start), FIELD(o, c, n_buckets);
    FIELD(o, c, most_distance), FIELD(o, c, own_buckets), FIELD(o, c, post_norms);
    FIELD(o, c, embedding_norm), FIELD(o, c, positions), FIELD(o, c, position_offset);
    FIELD(o, c, stack_positions), FIELD(o, c, source_vocab), FIELD(o, c, own_source_rows);
    FIELD(o, c, n_mels), FIELD(o, c, n_audio), FIELD(o, c, no_k_bias);
    FIELD(o, c, layer_inputs), FIELD(o, c, input_vocab), FIELD(o, c, n_more_layers);
    FIELD(o, c, kinds_listed), FIELD(o, c, window), FIELD(o, c, cache_implementation);
    FIELD(o, c, cache_by_generation), FIELD(o, c, n_eos), FIELD(o, c, bos);
    const struct spw_token_rules *t = &c->token_rules;
    FIELD(o, c, n_rules), FIELD(o, t, no_repeat_ngram_size), FIELD(o, t, min_length);
    FIELD(o, t, min_new_tokens), FIELD(o, t, renormalize_logits);
    json_object_set_new(o, "search", search_facts(&c->search));
    json_object_set_new(o, "summary", summary_facts(&c->summary));
    for (int k = 0; k < SPW_TOKEN_LISTS; k++) {
        char n[40];
        const char *name = spw_token_list_name((enum spw_token_list_kind)k);
        snprintf(n, sizeof n, "n_%s", name);
        json_object_set_new(o, n, FACT((uint64_t)t->lists[k].n));
        LIST(o, name, t->lists[k].n, FACT(t->lists[k].ids[i]));
    }
    LIST(o, "bad_words", t->bad_words.n, FACT(t->bad_words.ids[i]));
    json_object_set_new(o, "n_kv_layers", json_integer(c->n_layers - spw_config_n_readers(c)));
    const struct spw_query_growth *g = &c->query_growth;
    json_object_set_new(
        o, "query_growth",
        json_pack("{s:f, s:f, s:f}", "beta", g->beta, "base", g->base, "offset", g->offset));
    LIST(o, "kv", SPW_LAYER_KINDS, kv_facts(&c->kv[i]));
    LIST(o, "rope", SPW_LAYER_KINDS, rope_facts(&c->rope[i]));
    LIST(o, "v_is_k", SPW_LAYER_KINDS, FACT(c->v_is_k[i]));
    LIST(o, "branch_scales", SPW_BRANCHES, FACT(c->branch_scales[i]));
    LIST(o, "fp8_block", 2, FACT(c->fp8_block[i]));
    LIST(o, "eos", c->n_eos, FACT(c->eos[i]));
    LIST(o, "rules", c->n_rules, FACT(c->rules[i]));
    LIST(o, "n_growing", SPW_LAYER_KINDS + 1,
         FACT(spw_config_n_growing(c, (enum spw_layer_kind)i)));
    json_object_set_new(o, "expert_row", FACT(spw_config_expert_row(c)));
    json_object_set_new(o, "expert_layers", FACT(spw_expert_layers(c)));
    json_object_set_new(o, "experts", expert_facts(&c->experts));
    json_object_set_new(o, "mixer", mixer_facts(&c->mixer));
    layer_facts(o, c);
    return o;
}

/* ---- cases ---- */

struct config_cases {
    struct text_cases cases;
    /* Reads the model of a line, without what stands behind " => ". */
    int (*read)(struct spw_model_config *out, const char *line, struct spw_error *err);
    const char *names_key; /* a refusal begins with it and the line's first word; or NULL */
    json_t *facts;         /* of the latest config */
};

/* What constants of the config are called in cases. */
static inline bool constant(const char *name, json_int_t *out)
{
#define NAME(x) #x, SPW_##x
    static const struct {
        const char *name;
        int value;
    } names[] = {{NAME(NORM_LLAMA)},         {NAME(NORM_LATE)},
                 {NAME(NORM_MEAN)},          {NAME(ACT_SILU)},
                 {NAME(ACT_GELU_ERF)},       {NAME(ACT_GELU_TANH)},
                 {NAME(ACT_RELU)},           {NAME(ACT_GELU_QUICK)},
                 {NAME(ACT_RELU_SQUARED)},   {NAME(ROPE_DEFAULT)},
                 {NAME(ROPE_LINEAR)},        {NAME(ROPE_DYNAMIC)},
                 {NAME(ROPE_LLAMA3)},        {NAME(ROPE_YARN)},
                 {NAME(ROPE_LONG)},          {NAME(ROPE_FACTORS)},
                 {NAME(ROPE_PROPORTIONAL)},  {NAME(MIXER_NONE)},
                 {NAME(MIXER_CONV)},         {NAME(MIXER_DELTA)},
                 {NAME(MIXER_SSD)},          {NAME(MIXER_SCAN)},
                 {NAME(MIXER_LRU)},          {NAME(DTYPE_AUTO)},
                 {NAME(DTYPE_F32)},          {NAME(DTYPE_BF16)},
                 {NAME(ROUTE_SOFTMAX)},      {NAME(ROUTE_SIGMOID)},
                 {NAME(ROPE_ROUNDS_ALL)},    {NAME(LAYER_FULL)},
                 {NAME(LAYER_STATE)},        {NAME(ATTENTION_GATE_APART)},
                 {NAME(ROPE_ROUNDS_ANGLES)}, {NAME(ROPE_ROUNDS_RESULT)}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].name, name)) {
            *out = names[i].value;
            return true;
        }
    return false;
}

/* `says`: "path", "!path", "path VALUE", "path ~ NUMBER", "path > NUMBER". */
static inline bool fact_is(const json_t *facts, const char *says)
{
    char path[64], how = '=', *end;
    const bool lacks = *says == '!';
    int n = 0;
    json_int_t number;
    sscanf(says + lacks, "%63s%n", path, &n);
    const json_t *j = value_at(facts, path);
    const char *value = says + lacks + n;
    value += *value == ' ';
    if (!*value)
        return lacks ? json_is_false(j) : json_is_true(j);
    if ((*value == '~' || *value == '>') && value[1] == ' ')
        how = *value, value += 2;
    const double is = json_number_value(j), x = strtod(value, &end);
    if (json_is_number(j) && !*end)
        return how == '~'   ? fabs(is - x) <= 1e-12 * fabs(x)
               : how == '>' ? is > x
                            : is == x || is == (double)(float)x;
    if (json_is_integer(j))
        return constant(value, &number) && json_integer_value(j) == number;
    return json_is_string(j) && !strcmp(json_string_value(j), strcmp(value, "\"\"") ? value : "");
}

static inline bool has_rule(const json_t *facts, const char *words)
{
    const json_t *rule;
    size_t i;
    json_array_foreach(json_object_get(facts, "rules"), i,
                       rule) if (strstr(json_string_value(rule), words)) return true;
    return false;
}

/* A line of facts. */
static inline void check_facts(struct config_cases *c, char *line)
{
    if (!strncmp(line, "rule ", 5) || !strncmp(line, "no rule ", 8)) {
        const bool lacks = *line == 'n';
        CHECK_CASE(&c->cases, has_rule(c->facts, line + (lacks ? 8 : 5)) != lacks, "%s", line);
        return;
    }
    for (char *says = line, *next; says && *says; says = next) {
        next = strchr(says, ',');
        if (next)
            *next++ = 0, next += *next == ' ';
        CHECK_CASE(&c->cases, fact_is(c->facts, says), "%s", says);
    }
}

/* The next value of a line, which then begins behind it. */
static inline json_t *config_cases_json(const char **line)
{
    json_error_t e;
    json_t *j = json_loads(*line, JSON_DISABLE_EOF_CHECK, &e);
    CHECK_MSG(j, "%s: %s", *line, e.text);
    *line += j ? (size_t)e.position : 0;
    *line += strspn(*line, " ");
    return j;
}

static inline void config_cases_run(struct text_cases *cases, char *line)
{
    struct config_cases *c = cases->context;
    struct spw_model_config config;
    struct spw_error err = {0};
    char *says = strstr(line, " => "), all[1024], facts[TEXT_CASES_BYTES];
    if (says)
        *says = 0, says += 4;
    const int rc = c->read(&config, line, &err);
    CHECK_CASE(cases, rc == (says ? -EINVAL : 0), "%s: %d %s", line, rc, err.text);
    if (says) {
        snprintf(all, sizeof all, "%s: %.*s.%s", c->names_key ? c->names_key : "",
                 (int)strcspn(line, " "), line, says);
        const bool right =
            c->names_key ? !strncmp(err.text, all, strlen(all)) : strstr(err.text, says) != NULL;
        CHECK_CASE(cases, right && !strchr(err.text, '\n'), "found '%s'", err.text);
    }
    if (rc) {
        CHECK(!config.layer_kinds);
        return;
    }
    c->facts = config_facts(&config);
    for (size_t i = 0; i < cases->n_says; i++) { /* a choice may need the line again */
        snprintf(facts, sizeof facts, "%s", cases->says[i]);
        check_facts(c, facts);
    }
    json_decref(c->facts);
    spw_config_free(&config);
}

static inline void run_config_cases(struct config_cases *c, const char *path)
{
    c->cases = (struct text_cases){.path = path, .run = config_cases_run, .context = c};
    run_text_cases(&c->cases);
}

#endif
