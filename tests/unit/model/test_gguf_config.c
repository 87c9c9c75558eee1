/* What the keys of a GGUF file say of a model: the cases of gguf_config.cases, and every key in
 * every architecture. */
#include "model/config/config_gguf.h"
#include "tests/unit/model/config_cases.h"

/* Keys that architectures need. */
#define WINDOW "'attention.sliding_window': 16"
#define MIXTURE "'expert_count': 8, 'expert_used_count': 2, 'expert_feed_forward_length': 32"
#define PARTIAL "'rope.dimension_count': 4"
#define SECTIONS "rope.dimension_sections rope.mrope_section n_deepstack_layers "
#define YARN                                                                                       \
    "'rope.scaling.type': 'yarn', 'rope.scaling.factor': 4, "                                      \
    "'rope.scaling.original_context_length': 128"
#define GEMMA4                                                                                     \
    WINDOW ", 'attention.key_length': 32, 'attention.key_length_swa': 16, "                        \
           "'attention.sliding_window_pattern': [true, false, true, false]"
#define MUSE "'logit_scale': 0.25, 'final_logit_softcapping': 20, " WINDOW
#define DELTA                                                                                      \
    "'ssm.conv_kernel': 4, 'ssm.state_size': 16, 'ssm.group_count': 2, 'ssm.time_step_rank': 6, "  \
    "'ssm.inner_size': 144, " PARTIAL
#define EXPERTS "expert_weights_norm expert_weights_scale expert_gating_func "

static const char *const plain =
    "{'block_count': 4, 'context_length': 512, 'embedding_length': 64, 'feed_forward_length': 96, "
    "'attention.head_count': 8, 'attention.head_count_kv': 2, 'attention.layer_norm_rms_epsilon': "
    "1e-5, 'attention.layer_norm_epsilon': 1e-5}";

static bool is_above_0(const json_t *keys, const char *key)
{
    return json_number_value(json_object_get(keys, key)) > 0;
}

/* The plain model with the keys of `patch` put over it. */
static struct spw_config_gguf facts_of(const char *architecture, const char *patch)
{
    json_t *change = json_loads(json_quoted(patch), 0, NULL);
    const bool windows = is_above_0(change, "attention.sliding_window");
    struct spw_config_gguf f = {.file = "f.gguf",
                                .architecture =
                                    spw_gguf_architecture_find(architecture, false, windows),
                                .keys = json_loads(json_quoted(plain), 0, NULL),
                                .tokenizer = json_loads("{\"bos_token_id\": 1}", 0, NULL),
                                .vocab = 100};
    if (!f.architecture || !f.keys || !change || json_object_update(f.keys, change))
        abort();
    json_decref(change);
    return f;
}

static void facts_free(struct spw_config_gguf *f)
{
    json_decref(f->keys);
    json_decref(f->tokenizer);
    json_decref(f->blocks);
}

/* What the tensors of a file say, and a key that it lacks: "+name", "+name=number", "-key". */
static void set_fact(struct spw_config_gguf *f, const char *word)
{
#define FLAG(name)                                                                                 \
    {                                                                                              \
#name, offsetof(struct spw_config_gguf, name)                                              \
    }
    static const struct {
        const char *name;
        size_t offset;
    } flags[] = {FLAG(head),      FLAG(qkv_bias),  FLAG(mlp_bias),    FLAG(rope_factors),
                 FLAG(qk_norm),   FLAG(v_is_k),    FLAG(other_parts), FLAG(gate_joined),
                 FLAG(conv_bias), FLAG(gate_norm), FLAG(state_bias),  FLAG(choice_bias)},
      numbers[] = {FLAG(input_vocab), FLAG(expert_width), FLAG(mlp_width)};
    const size_t n = strcspn(word, "=");
    if (*word == '-')
        json_object_del(f->keys, word + 1);
    else if (!strncmp(word, "+blocks=", 8))
        f->blocks = json_string(word + 8);
    else if (word[n]) {
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
            if (!strncmp(numbers[i].name, word + 1, n - 1))
                *(uint32_t *)(void *)((char *)f + numbers[i].offset) = (uint32_t)atoi(word + n + 1);
    } else {
        for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
            if (!strcmp(flags[i].name, word + 1))
                *(bool *)(void *)((char *)f + flags[i].offset) = true;
    }
}

/* A line of gguf_config.cases: an architecture, facts, keys. */
static int read_case(struct spw_model_config *out, const char *line, struct spw_error *err)
{
    char word[64];
    int n = 0;
    sscanf(line, "%63s %n", word, &n);
    struct spw_config_gguf f = facts_of(word, strchr(line, '{'));
    for (const char *at = line + n; *at && *at != '{'; at += n) {
        sscanf(at, "%63s %n", word, &n);
        set_fact(&f, word);
    }
    const int rc = spw_config_from_gguf(out, &f, err);
    facts_free(&f);
    return rc;
}

/* ---- each key is read or refused ---- */

/* Values that no tiny model has; 3 where none is given. */
static const char keys_of_gguf[] =
    "activation_sparsity_scale altup.num_inputs attention.causal=false attention.chunk_size "
    "attention.clamp_kqv attention.group_norm_groups attention.head_dim=6 attention.key_length=6 "
    "attention.key_length_mla=6 attention.key_length_swa=6 attention.kv_lora_rank "
    "attention.layer_norm_epsilon=3e-3 attention.layer_norm_rms_epsilon=3e-3 "
    "attention.max_alibi_bias attention.output_scale attention.q_lora_rank attention.scale "
    "attention.shared_kv_layers=1 attention.sliding_window attention.sliding_window_pattern "
    "attention.temperature_length attention.temperature_scale attention.value_length=6 "
    "attention.value_length_swa=6 attn_logit_softcapping decoder_block_count "
    "embedding_length_per_layer_input embedding_scale expert_chunk_feed_forward_length "
    "expert_count expert_feed_forward_length expert_gating_func=4 expert_group_count=2 "
    "expert_group_scale expert_group_used_count=1 expert_shared_count "
    "expert_shared_feed_forward_length expert_used_count expert_weights_norm=false "
    "expert_weights_norm=true expert_weights_scale experts_per_group final_logit_softcapping "
    "full_attention_interval image_token_index interleave_moe_layer_step leading_dense_block_count "
    "logit_scale max_position_embeddings mm.tokens_per_image moe_every_n_layers moe_latent_size "
    "n_deepstack_layers nextn_predict_layers=1 norm_top_k_prob=false pooling_type "
    "rescale_every_n_layers residual_scale rope.dimension_count=6 rope.dimension_count_swa=6 "
    "rope.dimension_sections=[0,3,0,0] rope.freq_base=3e3 rope.freq_base_swa=3e3 "
    "rope.global.freq_base=3e3 rope.local.freq_base=3e3 rope.mrope_section=[3,3,2] "
    "rope.scale_linear rope.scaling.alpha rope.scaling.attn_factor rope.scaling.beta_fast "
    "rope.scaling.beta_slow rope.scaling.factor rope.scaling.finetuned=false rope.scaling.mscale "
    "rope.scaling.mscale_all_dim rope.scaling.type='longrope' rope.scaling.yarn_attn_factor "
    "rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow rope.scaling.yarn_ext_factor "
    "rope.scaling.yarn_log_multiplier rope.scaling_beta router_logit_softcapping "
    "spatial_merge_size ssm.conv_kernel swiglu_clamp_exp=[3,3,3,3] swin_norm=true "
    "tensor_data_layout='another' token_shift_count use_parallel_residual=false "
    "use_parallel_residual=true use_qk_norm=false vision.block_count vocab_size wkv.head_size";

/* Keys that an architecture needs, and keys of the list above that change nothing in it. */
static const struct {
    const char *architecture, *keys, *unused;
} models[] = {
    {"llama", "", EXPERTS},
    {"llama", MIXTURE, ""},
    {"mistral3", "", EXPERTS},
    {"mistral3", YARN ", 'rope.scaling.yarn_log_multiplier': 0.5", EXPERTS},
    {"command-r", "'logit_scale': 0.25", EXPERTS},
    {"cohere2", "'logit_scale': 0.25, " WINDOW, EXPERTS},
    {"chatglm", PARTIAL, EXPERTS},
    {"glm4", PARTIAL, EXPERTS},
    {"glm4moe", PARTIAL ", " MIXTURE, ""},
    {"gpt-oss", MIXTURE ", " WINDOW, "expert_weights_norm "},
    {"gptoss", MIXTURE ", " WINDOW, "expert_weights_norm "},
    {"granite", "'logit_scale': 0.25, 'attention.scale': 0.5",
     EXPERTS "ssm.conv_kernel expert_shared_feed_forward_length "},
    {"granitemoe", "'logit_scale': 0.25, 'attention.scale': 0.5, " MIXTURE,
     "expert_weights_norm ssm.conv_kernel "},
    {"arcee", "", EXPERTS},
    {"hunyuan-dense", "", EXPERTS},
    {"hunyuan-moe", MIXTURE, ""},
    {"jais2", "", EXPERTS},
    {"exaone-moe", MIXTURE ", " WINDOW, ""},
    {"mellum", MIXTURE ", " WINDOW, ""},
    {"nemotron", PARTIAL, EXPERTS},
    {"ernie4_5-moe", MIXTURE, ""},
    {"dots1", MIXTURE, ""},
    {"minimax-m2", MIXTURE, ""},
    {"olmo", "", EXPERTS},
    {"olmo2", "", EXPERTS},
    {"olmo2", WINDOW, EXPERTS},
    {"olmo2", WINDOW ", " YARN, EXPERTS},
    {"olmo3", WINDOW, EXPERTS},
    {"olmoe", MIXTURE, ""},
    {"phi2", PARTIAL, EXPERTS},
    {"phi3", "", EXPERTS},
    {"phi3", WINDOW, EXPERTS},
    {"qwen2", "", EXPERTS},
    {"qwen2moe", MIXTURE ", 'expert_shared_feed_forward_length': 32", ""},
    {"qwen2vl", "", EXPERTS SECTIONS},
    {"qwen25vl", "", EXPERTS SECTIONS},
    {"qwen3", "", EXPERTS},
    {"qwen3vl", "", EXPERTS SECTIONS},
    {"qwen3vlmoe", MIXTURE, SECTIONS},
    {"qwen3moe", MIXTURE, ""},
    {"smollm3", "", EXPERTS},
    {"stablelm", PARTIAL, EXPERTS},
    {"starcoder2", "", EXPERTS},
    {"seed_oss", "", EXPERTS},
    {"ernie4_5", "", EXPERTS},
    {"exaone4", WINDOW, EXPERTS},
    {"exaone4", "", EXPERTS},
    {"gemma", "", EXPERTS},
    {"gemma2", WINDOW, EXPERTS},
    {"gemma3", WINDOW, EXPERTS},
    {"gemma3", "", EXPERTS},
    {"gemma4", WINDOW ", 'attention.key_length': 16, 'attention.key_length_swa': 8", ""},
    {"llama4", MIXTURE, "expert_weights_norm "},
    {"muse-glimmer", MUSE, EXPERTS},
    {"qwen35", DELTA, EXPERTS "rope.dimension_sections rope.mrope_section n_deepstack_layers "},
    {"qwen3next", DELTA ", 'expert_shared_feed_forward_length': 8, " MIXTURE, ""},
    {"lfm2", "'shortconv.l_cache': 3, 'attention.head_count_kv': [0, 2, 0, 0]", EXPERTS},
    {"lfm2moe", "'shortconv.l_cache': 3, 'attention.head_count_kv': [0, 2, 0, 0], " MIXTURE, ""},
};

/* Everything but addresses, and the lists that they lead to. */
static uint64_t hash_of(const struct spw_model_config *c)
{
    struct spw_model_config flat = *c;
    uint64_t h = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        h = h * 31 + c->layer_kinds[i] * 8u + c->has_experts[i] * 4u + c->rotates[i] * 2u +
            c->kv_layers[i] * 16u + c->has_mlp[i] * 32u + spw_config_has_state(c, i) * 64u;
    flat.layer_kinds = NULL;
    flat.has_experts = flat.rotates = flat.has_mlp = NULL;
    flat.state_slices = NULL;
    flat.kv_layers = flat.first_slices = flat.slice_layers = NULL;
    flat.slice_kinds = NULL;
    memset(flat.rules, 0, sizeof flat.rules);
    flat.n_rules = 0;
    for (size_t i = 0; i < sizeof flat; i++)
        h = h * 1099511628211u + ((const uint8_t *)&flat)[i];
    return h;
}

/* The hash of a model's config; 0: it was refused, by the name of the key. */
static uint64_t hash_with(size_t model, const char *key, const char *value)
{
    char patch[512], name[128];
    const char *architecture = models[model].architecture, *keys = models[model].keys;
    snprintf(patch, sizeof patch, key ? "{%s%s'%s': %s}" : "{%s}", keys, *keys ? ", " : "", key,
             value);
    struct spw_config_gguf f = facts_of("llama", patch);
    json_object_clear(f.tokenizer);
    f.architecture = spw_gguf_architecture_find(architecture, is_above_0(f.keys, "expert_count"),
                                                is_above_0(f.keys, "attention.sliding_window"));
    f.rope_factors = !strcmp(architecture, "gemma4");
    struct spw_model_config c;
    struct spw_error err = {0};
    const int rc = spw_config_from_gguf(&c, &f, &err);
    const uint64_t h = rc ? 0 : hash_of(&c);
    snprintf(name, sizeof name, "f.gguf: %s.%s: found ", architecture, key ? key : "");
    if (rc && key && strcmp(key, "expert_count") != 0) /* others may be missing then */
        CHECK_MSG(!strncmp(err.text, name, strlen(name)), "%s %s: %s", architecture, patch,
                  err.text);
    CHECK_MSG(!rc || key, "%s: %s", architecture, err.text);
    if (!rc)
        spw_config_free(&c);
    facts_free(&f);
    return h;
}

/* A file of any architecture may have any key: it changes the model, or is refused, or is known to
 * change nothing. */
static void test_all_keys(void)
{
    static const char always[] =
        " vision.block_count image_token_index spatial_merge_size mm.tokens_per_image "
        "max_position_embeddings vocab_size pooling_type tensor_data_layout "
        "expert_group_used_count rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow "
        "rope.scaling.finetuned attention.layer_norm_epsilon attention.layer_norm_rms_epsilon "
        "expert_feed_forward_length ";
    static const char of_windows[] =
        " attention.key_length_swa attention.value_length_swa attention.sliding_window_pattern "
        "rope.dimension_count_swa rope.freq_base_swa ";
    uint32_t n_changed = 0, n_refused = 0, n_unused = 0;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        const uint64_t base = hash_with(m, NULL, NULL);
        CHECK(base && base == hash_with(m, NULL, NULL));
        const bool has_window =
            strstr(models[m].keys, WINDOW) || !strcmp(models[m].architecture, "llama4");
        char words[sizeof keys_of_gguf], last[64] = "", *rest = words;
        bool last_changed =
            false; /* by another value of the same key, which may be the usual one */
        strcpy(words, keys_of_gguf);
        for (char *key; (key = strtok_r(rest, " ", &rest));) {
            char word[96], *value = strchr(key, '=');
            if (value)
                *value++ = 0;
            snprintf(word, sizeof word, " %s ", key);
            const bool may_be_unused = strstr(always, word) || strstr(models[m].unused, word + 1) ||
                                       (!has_window && strstr(of_windows, word));
            const uint64_t h = hash_with(m, key, value ? value : "3");
            const bool again = !strcmp(key, last);
            snprintf(last, sizeof last, "%s=", key);
            if (strncmp(rest, last, strlen(last)) != 0)
                CHECK_MSG(h != base || (again && last_changed) || may_be_unused, "%s ignores %s",
                          models[m].architecture, key);
            last_changed = h != base;
            snprintf(last, sizeof last, "%s", key);
            n_changed += h && h != base;
            n_refused += !h;
            n_unused += h == base;
        }
    }
    CHECK_MSG(n_changed > 150 && n_refused > 1000 && n_unused > 200, "%u %u %u", n_changed,
              n_refused, n_unused);
}

static void test_ends(void)
{
    struct spw_config_gguf f = facts_of("qwen3", "{}");
    json_object_set_new(f.tokenizer, "eos_token_id", json_pack("[ii]", 7, 9));
    json_object_set_new(f.tokenizer, "suppress_tokens", json_pack("[ii]", 5, 200));
    f.more_eos = true;
    struct spw_model_config c;
    struct spw_error err = {0};
    CHECK_MSG(!spw_config_from_gguf(&c, &f, &err), "%s", err.text);
    facts_free(&f);
    const struct spw_token_list *suppressed = &c.token_rules.lists[SPW_SUPPRESS];
    CHECK(suppressed->n == 1 && suppressed->ids[0] == 5);
    CHECK(c.n_eos == 2 && c.eos[0] == 7 && c.eos[1] == 9 && c.qk_norm && c.n_rules == 2 &&
          strstr(c.rules[1], "by their text"));
    spw_config_free(&c);
    f = facts_of("qwen3", "{}");
    json_object_set_new(f.tokenizer, "eos_token_id", json_integer(100));
    CHECK(spw_config_from_gguf(&c, &f, &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "tokenizer.ggml.eos_token_id: found 100, expected ids below"), "%s",
              err.text);
    facts_free(&f);
}

int main(void)
{
    static struct config_cases cases = {.read = read_case, .names_key = "f.gguf"};
    run_config_cases(&cases, "tests/unit/model/gguf_config.cases");
    test_all_keys();
    test_ends();
    CHECK(!spw_gguf_architecture_find("rwkv6", false, false));
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
