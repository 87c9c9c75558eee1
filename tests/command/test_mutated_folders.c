/* Model folders with random damage: config.json, generation_config.json, tokenizer.json and the
 * files beside it, the chat template, the header and the data of the weights. The library refuses
 * each with one line of text or gives an answer, and leaks nothing. Most useful under sanitizers:
 *
 *   test_mutated_folders [COUNT]      150 folders; SPW_SEED repeats a run */
#include "tests/command/mutated.h"

#include <dirent.h>
#include <sys/stat.h>

static const char *const goldens[] = {
    "llama_plain",       "llama_f16",        "llama_biases",          "mistral_window",
    "qwen2_layer_types", "qwen2_yarn",       "qwen3_qk_norm",         "gemma3_old_keys",
    "gemma3_new_keys",   "gemma3_wrapped",   "llama_llama3_old_keys", "llama_mha_tied",
    "gpt_oss_plain",     "gpt_oss_mxfp4",    "qwen2_moe_shared",      "qwen3_moe_plain",
    "mixtral_joined",    "mixtral_window",   "granitemoe_plain",      "glm4_moe_norms",
    "olmoe_norm",        "olmo3_listed",     "gemma2_caps",           "phi3_long_long",
    "phi_norms",         "stablelm_norms",   "cohere_norms",          "ministral3_grows",
    "starcoder2_plain",  "mistral3_wrapped", "bart_search",           "marian_apart",
    "m2m_100_scaled"};
static const char *const tokenizers[] = {"gemma", "gpt2", "llama2", "llama3", "metaspace"};
static const char *const templates[] = {"chat", "filters", "macros", "own_vars"};

/* ---- damage ---- */

/* The value after a colon at or after a random place of [from, to): until a comma or a bracket. */
static void change_value(struct bytes *b, size_t from, size_t to, uint64_t *seed)
{
    static const char *const values[] = {"0",
                                         "1",
                                         "-1",
                                         "2",
                                         "3",
                                         "7",
                                         "0.5",
                                         "1e30",
                                         "4294967296",
                                         "null",
                                         "true",
                                         "false",
                                         "[]",
                                         "{}",
                                         "\"\"",
                                         "\"x\"",
                                         "[1, 2]",
                                         "9223372036854775807",
                                         "64",
                                         "128",
                                         "1e-9",
                                         "\"F32\"",
                                         "\"F64\"",
                                         "\"F8_E4M3\"",
                                         "\"BF16\"",
                                         "[0, 0]",
                                         "\"gelu\"",
                                         "\"relu\"",
                                         "\"sliding_attention\"",
                                         "\"llama\"",
                                         "\"ministral\"",
                                         "\"fp8\"",
                                         "{\"type\": \"yarn\", \"factor\": 3}",
                                         "[[]]",
                                         "-0.0",
                                         "1e308",
                                         "96",
                                         "95",
                                         "97"};
    size_t at = from + check_random(seed) % (to - from);
    while (at < to && b->at[at] != ':')
        at++;
    if (at == to)
        return;
    size_t end = at + 1;
    while (end < to && !strchr(",}]", b->at[end]))
        end++;
    const char *value = PICK(values, seed);
    replace(b, at + 1, end - at - 1, value, strlen(value));
}

/* Adds one key after the first brace of [from, to). */
static void add_key(struct bytes *b, size_t from, size_t to, uint64_t *seed)
{
    static const char *const keys[] = {
        "\"layer_types\": [\"full_attention\", \"sliding_attention\", \"sliding_attention\"],",
        "\"tie_word_embeddings\": true,",
        "\"sliding_window\": 5,",
        "\"num_experts\": 4,",
        "\"num_local_experts\": 4096,",
        "\"num_experts_per_tok\": 3,",
        "\"moe_intermediate_size\": 8,",
        "\"mlp_only_layers\": [0, 99],",
        "\"decoder_sparse_step\": 2,",
        "\"first_k_dense_replace\": 1,",
        "\"n_shared_experts\": 2,",
        "\"norm_topk_prob\": false,",
        "\"swiglu_limit\": 1e-30,",
        "\"original_max_position_embeddings\": 3,",
        "\"quantization_config\": {\"quant_method\": \"fp8\"},",
        "\"head_dim\": 1024,",
        "\"attention_bias\": true,",
        "\"mlp_bias\": true,",
        "\"rope_theta\": 0.5,",
        "\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 1e6},",
        "\"dtype\": \"bfloat16\",",
        "\"partial_rotary_factor\": 0.5,",
        "\"eos_token_id\": [95, 96],",
        "\"text_config\": {},",
        "\"max_position_embeddings\": 1,",
        "\"cache_implementation\": \"quantized\","};
    const uint8_t *brace = memchr(b->at + from, '{', to - from);
    const char *key = PICK(keys, seed);
    if (brace)
        replace(b, (size_t)(brace - b->at) + 1, 0, key, strlen(key));
}

static void damage(struct bytes *b, size_t from, size_t to, uint64_t *seed)
{
    if (to <= from + 1)
        return;
    size_t at = from + check_random(seed) % (to - from), n = check_random(seed) % 20;
    switch (check_random(seed) % 8) {
    case 0:
        add_key(b, from, to, seed);
        break;
    case 1:
        change_bytes(b, from, to, seed);
        break;
    case 2: /* removes a piece */
        replace(b, at, n < to - at ? n : to - at, "", 0);
        break;
    case 3: /* repeats a piece */
        n = n < to - at ? n : to - at;
        replace(b, at, 0, (char *)b->at + at, n);
        break;
    default:
        change_value(b, from, to, seed);
    }
}

static uint64_t header_bytes(const struct bytes *b)
{
    uint64_t n = 0;
    memcpy(&n, b->at, b->n < 8 ? b->n : 8);
    return b->n < 9 || n > b->n - 8 ? 0 : n;
}

/* After a change inside the header its length is usually corrected: else only the first check would
 * be tested. */
static void damage_weights(struct bytes *b, uint64_t *seed)
{
    uint64_t n = header_bytes(b), size = b->n;
    if (size < 16)
        return;
    switch (check_random(seed) % 6) {
    case 0:
        b->n -= check_random(seed) % (b->n / 2);
        break;
    case 1:
        change_bytes(b, 0, 8, seed);
        break;
    case 2: /* data: NaN, infinity, anything */
        for (int i = 0; i < 40 && 8 + n < b->n; i++)
            change_bytes(b, 8 + n, b->n, seed);
        break;
    case 3:
        replace(b, b->n, 0, "more", check_range(seed, 1, 4));
        break;
    default:
        damage(b, 8, 8 + n, seed);
        n += b->n - size;
        memcpy(b->at, &n, 8);
    }
}

/* ---- the library's result ---- */

static int use_tokenizer(const char *dir, struct spw_tokenizer **t)
{
    static const char text[] = "The h\xc3\xa9llo of 1234 <s>worlds\n\n  </s>";
    struct spw_error err = {0};
    int32_t *ids = NULL;
    size_t n;
    int rc = spw_tokenizer_open_folder(t, dir, &err);
    check_refusal(rc, &err, "tokenizer");
    if (rc)
        return rc;
    rc = spw_tokenizer_encode(*t, text, sizeof text - 1, true, &ids, &n, &err);
    check_refusal(rc, &err, "encode");
    spw_free(ids);
    return 0;
}

static void use_template(const char *dir)
{
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"hello\"}]";
    struct spw_chat_template *t;
    struct spw_error err = {0};
    int rc = spw_chat_template_open(&t, dir, NULL, &err);
    check_refusal(rc, &err, "template");
    if (rc)
        return;
    struct spw_chat_request q = {.messages_json = messages,
                                 .messages_bytes = sizeof messages - 1,
                                 .add_generation_prompt = true};
    char *text;
    size_t bytes;
    check_refusal(spw_chat_template_render(t, &q, &text, &bytes, &err), &err, "render");
    spw_free(text);
    spw_chat_template_close(t);
}

static void copy(struct bytes *b, const char *path, const char *dir, const char *name, bool harm,
                 uint64_t *seed)
{
    if (!read_bytes(b, path))
        return;
    bool weights = strcmp(name, "model.safetensors") == 0;
    for (uint64_t n = harm ? check_range(seed, 1, 3) : 0; n > 0 && b->n > 16; n--) {
        if (weights)
            damage_weights(b, seed);
        else
            damage(b, 0, b->n, seed);
    }
    write_bytes(b, dir, name);
}

/* Files that name more tokens, some of them damaged. */
static void write_special_tokens(struct bytes *b, const char *dir, uint64_t *seed)
{
    static const char *const files[][2] = {
        {"tokenizer_config.json",
         "{\"bos_token\": \"<s>\", \"eos_token\": {\"__type\": \"AddedToken\", \"content\": "
         "\"<e>\"},"
         " \"image_token\": \"<i>\", \"extra_special_tokens\": [\"a\", \"<x>\"]}"},
        {"tokenizer_config.json",
         "{\"additional_special_tokens\": [\"<x>\"], \"extra_special_tokens\": {\"y_token\": "
         "\"<y>\"},"
         " \"added_tokens_decoder\": {\"3\": {\"content\": \"<s>\", \"lstrip\": true, \"special\":"
         " true}, \"99\": {\"content\": \"<z>\", \"normalized\": true}}}"},
        {"special_tokens_map.json",
         "{\"pad_token\": {\"content\": \"<p>\", \"rstrip\": true}, \"bos_token\": null,"
         " \"extra_special_tokens\": [\"<x>\"]}"},
        {"added_tokens.json", "{\"<z>\": 99, \"a\": 1, \"<p>\": 100}"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (check_random(seed) % 2)
            continue;
        b->n = strlen(files[i][1]);
        memcpy(b->at, files[i][1], b->n);
        if (check_random(seed) % 3 == 0)
            damage(b, 0, b->n, seed);
        write_bytes(b, dir, files[i][0]);
    }
}

/* One file of the folder is damaged, sometimes more. */
static void write_folder(struct bytes *b, const char *dir, uint64_t *seed)
{
    char path[200];
    const char *golden = PICK(goldens, seed);
    uint64_t which = check_random(seed), harm = 1u << which % 5;
    if (which % 7 == 0)
        harm |= 1u << check_random(seed) % 5;
    static const char *const names[] = {"config.json", "model.safetensors",
                                        "generation_config.json"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "tests/golden/%s/%s", golden, names[i]);
        copy(b, path, dir, names[i], harm >> i & 1, seed);
    }
    snprintf(path, sizeof path, "tests/fuzz/seeds/tokenizer/%s", PICK(tokenizers, seed));
    copy(b, path, dir, "tokenizer.json", harm >> 3 & 1, seed);
    snprintf(path, sizeof path, "tests/fuzz/seeds/template/%s", PICK(templates, seed));
    copy(b, path, dir, "chat_template.jinja", harm >> 4 & 1, seed);
    if (check_random(seed) % 4 == 0)
        write_special_tokens(b, dir, seed);
}

static void remove_folder(const char *dir)
{
    DIR *d = opendir(dir);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        unlink(path);
    }
    if (d)
        closedir(d);
    rmdir(dir);
}

int main(int argc, char **argv)
{
    unsigned long n = argc > 1 ? strtoul(argv[1], NULL, 10) : 150, n_answers = 0;
    uint64_t seed = check_seed();
    char dir[] = "/tmp/spw_mutated_XXXXXX";
    struct bytes b = {.at = malloc(MOST_BYTES)};
    if (!b.at || !mkdtemp(dir))
        return 1;
    for (unsigned long i = 0; i < n; i++) {
        struct spw_tokenizer *t = NULL;
        alarm(SECONDS);
        mkdir(dir, 0700);
        write_folder(&b, dir, &seed);
        bool tokenizer = use_tokenizer(dir, &t) == 0;
        use_template(dir);
        n_answers += use_model(dir, tokenizer ? t : NULL);
        spw_tokenizer_close(t);
        CHECK_MSG(spw_alloc_outstanding() == 0, "folder %lu left %lld", i,
                  (long long)spw_alloc_outstanding());
        remove_folder(dir);
    }
    fprintf(stderr, "%lu of %lu folders gave an answer\n", n_answers, n);
    CHECK(n < 100 || (n_answers > n / 20 && n_answers < n));
    free(b.at);
    return check_done();
}
