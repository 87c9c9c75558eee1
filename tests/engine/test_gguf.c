/* Models as GGUF files give the answers of their folders: the golden models of tests/golden, the
 * bundled one and stories260K, in F32, F16 and BF16, bit for bit, in one file and in several. Rope
 * of Llama 3 comes from rounded factors, so these logits are compared with the golden ones. */
#include "model/quantize.h"
#include "quant/types.h"
#include "tests/engine/engine_run.h"
#include "tests/engine/gguf_folder.h"
#include "tests/engine/gguf_q6_k.h"

#include <sys/stat.h>

static char dir[] = "/tmp/spw_gguf_XXXXXX";

static const char *const goldens[] = {
    "llama_plain",        "llama_biases",       "llama_f16",
    "llama_linear",       "llama_mha_tied",     "llama_odd_sizes",
    "llama_sharded",      "llama_mqa_head_dim", "mistral_null_window",
    "qwen2_bias",         "qwen2_yarn",         "qwen3_qk_norm",
    "gemma3_new_keys",    "gemma3_wrapped",     "gemma3_window_140",
    "starcoder2_plain",   "cohere_norms",       "cohere2_pattern",
    "stablelm_plain",     "olmo_clip",          "phi_plain",
    "ministral3_grows",   "gemma4_plain",       "gemma4_global_heads",
    "gemma4_shared",      "gemma4_moe_all",     "olmo2_plain",
    "olmo3_listed",       "olmo3_pattern",      "glm_plain",
    "lfm2_rounded",       "lfm2_moe_plain",     "qwen3_next_plain",
    "qwen3_5_bf16",       "mamba_plain",        "mamba2_plain",
    "nemotron_h_plain",   "nemotron_h_latent",  "granitemoehybrid_mamba",
    "muse_glimmer_plain", /* T5 */ "t5_relu",   "umt5_buckets"};

struct golden {
    int32_t *ids;
    size_t n;
    json_t *json;
};

static struct golden golden_open(const char *folder)
{
    char path[512];
    struct golden g = {0};
    snprintf(path, sizeof path, "%s/golden.json", folder);
    g.json = json_load_file(path, 0, NULL);
    g.ids = model_ids(json_object_get(g.json, "ids"), &g.n);
    if (g.n)
        return g;
    free(g.ids); /* a model that is not from there: some tokens */
    g.n = 150;
    g.ids = malloc(g.n * sizeof *g.ids);
    for (size_t i = 0; i < g.n; i++)
        g.ids[i] = (int32_t)(i * 7 % 90);
    return g;
}

static void golden_close(struct golden *g)
{
    free(g->ids);
    json_decref(g->json);
}

static float *run(const char *model, const struct golden *g, enum spw_dtype compute,
                  uint32_t *vocab)
{
    const struct spw_options o = {.backend = TEST_BACKEND,
                                  .compute = compute,
                                  .context = g->n,
                                  .past_positions = true,
                                  .threads = 2};
    return model_all_logits(model, &o, g->ids, g->n, vocab);
}

static void compare_models(const char *one, const char *other, const struct golden *g,
                           enum spw_dtype compute)
{
    uint32_t vocab = 0, other_vocab = 0;
    float *a = run(one, g, compute, &vocab), *b = run(other, g, compute, &other_vocab);
    CHECK(a && b && vocab == other_vocab);
    CHECK_MSG(a && b && !memcmp(a, b, g->n * vocab * sizeof *a), "%s and %s in %s", one, other,
              spw_dtype_name(compute));
    free(a);
    free(b);
}

static void test_folder(const char *folder)
{
    char file[64], split[64], rounded[64];
    snprintf(file, sizeof file, "%s/m.gguf", dir);
    snprintf(split, sizeof split, "%s/m-00001-of-00003.gguf", dir);
    snprintf(rounded, sizeof rounded, "%s/rounded.gguf", dir);
    struct golden g = golden_open(folder);
    if (gguf_from_folder(folder, file, &(struct gguf_way){0})) {
        compare_models(folder, file, &g, SPW_DTYPE_F32);
        compare_models(folder, file, &g, SPW_DTYPE_BF16);
    }
    if (gguf_from_folder(folder, split, &(struct gguf_way){.n_files = 3}))
        compare_models(file, split, &g, SPW_DTYPE_F32);
    static const enum spw_dtype types[] = {SPW_DTYPE_F16, SPW_DTYPE_BF16};
    for (int i = 0; i < 2; i++) {
        gguf_from_folder(folder, file, &(struct gguf_way){.matrices = types[i]});
        gguf_from_folder(folder, rounded,
                         &(struct gguf_way){.matrices = types[i], .rounded = true});
        compare_models(file, rounded, &g, SPW_DTYPE_F32);
    }
    golden_close(&g);
}

/* Within this part of the largest logit of a row. */
static void expect_golden(const char *folder, const char *file, double tolerance)
{
    char path[512];
    uint32_t vocab = 0;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/golden_logits.f32", folder);
    struct golden g = golden_open(folder);
    float *got = run(file, &g, SPW_DTYPE_F32, &vocab);
    int32_t *positions = model_ids(json_object_get(g.json, "positions"), &n);
    float *expected = model_floats(path, n * vocab);
    for (size_t i = 0; got && expected && i < n; i++) {
        double largest = 0, worst = 0;
        for (uint32_t v = 0; v < vocab; v++) {
            double want = (double)expected[i * vocab + v];
            double is = (double)got[(size_t)positions[i] * vocab + v];
            largest = fmax(largest, fabs(want));
            worst = fmax(worst, fabs(is - want));
        }
        CHECK_MSG(worst <= tolerance * largest, "%s: %g of %g", file, worst, largest);
    }
    CHECK(got && expected && n);
    free(got);
    free(expected);
    free(positions);
    golden_close(&g);
}

/* As in test_goldens. */
static void test_logits(const char *name, const struct gguf_way *way)
{
    char folder[256], file[256];
    snprintf(folder, sizeof folder, "tests/golden/%s", name);
    snprintf(file, sizeof file, "%s/%s.gguf", dir, name);
    gguf_from_folder(folder, file, way);
    expect_golden(folder, file, 1e-5);
}

/* Tensors have their places and names by our own writer: others in a place give other logits. */
static void test_quantized(const char *folder)
{
    char file[256];
    struct spw_error err = {0};
    snprintf(file, sizeof file, "%s/quantized.gguf", dir);
    const struct spw_quantize_options o = {.type = SPW_DTYPE_Q8_0, .to = fopen(file, "wb")};
    CHECK_MSG(!spw_quantize(folder, &o, &err), "%s", err.text);
    CHECK(!fclose(o.to));
    expect_golden(folder, file, 1.0 / 20);
}

/* T5 of which GGUF has no key for something. */
static void test_refused_quantize(const char *folder, const char *message)
{
    struct spw_error err = {0};
    const struct spw_quantize_options o = {.type = SPW_DTYPE_Q8_0, .to = fopen("/dev/null", "w")};
    CHECK(spw_quantize(folder, &o, &err) == -ENOTSUP);
    CHECK_MSG(strstr(err.text, message), "%s", err.text);
    fclose(o.to);
}

/* ---- several files ---- */

static void refuse(const char *path, int code, const char *message)
{
    struct spw_source *s;
    struct spw_tensors *t = NULL;
    struct spw_error err = {0};
    CHECK(!spw_source_open(&s, path, &err));
    int rc = s->ops->tensors(s, &t, &err);
    CHECK_MSG(rc == code && !t && strstr(err.text, message), "%d '%s', not '%s'", rc, err.text,
              message);
    spw_source_close(s);
}

static void test_split(void)
{
    char first[64], second[64], other[64], gone[64];
    snprintf(first, sizeof first, "%s/s-00001-of-00003.gguf", dir);
    snprintf(second, sizeof second, "%s/s-00002-of-00003.gguf", dir);
    snprintf(other, sizeof other, "%s/one.gguf", dir);
    snprintf(gone, sizeof gone, "%s/gone", dir);
    gguf_from_folder("tests/golden/llama_plain", first, &(struct gguf_way){.n_files = 3});
    gguf_from_folder("tests/golden/llama_plain", other, &(struct gguf_way){.n_files = 1});
    refuse(second, -EINVAL,
           "found file 2 of 3, expected the first one, with a name that ends with "
           "-00001-of-00003.gguf");
    CHECK(!rename(second, gone));
    refuse(first, -ENOENT, "s-00002-of-00003.gguf: found no such file, expected file 2 of 3");
    CHECK(!rename(other, second));
    refuse(first, -EINVAL, "s-00002-of-00003.gguf: found file 1 of 1, expected file 2 of 3");
    CHECK(!rename(first, other));
    refuse(other, -EINVAL, "one.gguf: found file 1 of 3, expected the first one, with a name");
    snprintf(other, sizeof other, "%s/none.gguf", dir);
    refuse(other, -ENOENT, "none.gguf");
}

/* ---- what the file says beside the weights ---- */

static void add_text(struct spw_gguf_writer *w, void *context)
{
    static const struct spw_gguf_string tokens[] = {{"<s>", 3}, {"<|im_end|>", 10}, {"a", 1}};
    static const int32_t types[] = {3, 3, 1};
    static const float scores[] = {0, 0, 0};
    (void)context;
    spw_gguf_add_string(w, "tokenizer.ggml.model", "llama");
    spw_gguf_add_strings(w, "tokenizer.ggml.tokens", tokens, 3);
    spw_gguf_add(w, "tokenizer.ggml.token_type", SPW_GGUF_I32, true, types, 3);
    spw_gguf_add(w, "tokenizer.ggml.scores", SPW_GGUF_F32, true, scores, 3);
    spw_gguf_add_bool(w, "tokenizer.ggml.add_space_prefix", false);
    spw_gguf_add_string(w, "tokenizer.chat_template", "{{ eos_token }}{{ messages[0].content }}");
    spw_gguf_add_string(w, "tokenizer.chat_template.short", "{{ messages[0].role }}");
}

static void render(const struct spw_source *s, const char *name, const char *expected)
{
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"hello\"}]";
    const struct spw_chat_request q = {.messages_json = messages,
                                       .messages_bytes = sizeof messages - 1};
    struct spw_chat_template *t = NULL;
    struct spw_error err = {0};
    char *text = NULL;
    size_t bytes;
    CHECK_MSG(!s->ops->chat_template(s, name, NULL, &t, &err), "%s", err.text);
    if (!t)
        return;
    CHECK(!spw_chat_template_render(t, &q, &text, &bytes, &err) && !strcmp(text, expected));
    spw_free(text);
    spw_chat_template_close(t);
}

static void test_text(void)
{
    char path[64];
    struct spw_source *s;
    struct spw_model_config c = {0};
    struct spw_tokenizer *t = NULL;
    struct spw_chat_template *none;
    struct spw_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/text.gguf", dir);
    gguf_from_folder("tests/golden/llama_plain", path, &(struct gguf_way){.more_keys = add_text});
    CHECK(!spw_source_open(&s, path, &err) && !s->ops->config(s, &c, &err));
    CHECK(c.n_eos == 2 && c.eos[1] == 1); /* the golden's own, and <|im_end|> */
    CHECK(!s->ops->tokenizer(s, &t, &err) && spw_tokenizer_vocab_size(t) == 3);
    CHECK(!spw_tokenizer_encode(t, "a<s>", 4, false, &ids, &n, &err) && n == 2 && ids[1] == 0);
    render(s, NULL, "ahello"); /* token 2 is the eos_token */
    render(s, "short", "user");
    CHECK(s->ops->chat_template(s, "missing", NULL, &none, &err) == -ENOENT);
    spw_free(ids);
    spw_tokenizer_close(t);
    spw_config_free(&c);
    spw_source_close(s);
}

struct ends {
    const char *golden;
    const char *texts[6];
    int32_t more[3]; /* eos_token_ids, up to the first 0 */
    int32_t eos[4];
    uint32_t n;
};

/* Token 2 is that of eos_token_id. */
static void add_ends(struct spw_gguf_writer *w, void *context)
{
    const struct ends *c = context;
    const char *const *texts = c->texts;
    uint32_t n_more = 0;
    struct spw_gguf_string tokens[6];
    static const int32_t types[] = {3, 3, 3, 3, 3, 1};
    for (int i = 0; i < 6; i++)
        tokens[i] = (struct spw_gguf_string){texts[i], strlen(texts[i])};
    spw_gguf_add_string(w, "tokenizer.ggml.model", "llama");
    spw_gguf_add_strings(w, "tokenizer.ggml.tokens", tokens, 6);
    spw_gguf_add(w, "tokenizer.ggml.token_type", SPW_GGUF_I32, true, types, 6);
    while (n_more < 3 && c->more[n_more])
        n_more++;
    if (n_more)
        spw_gguf_add(w, "tokenizer.ggml.eos_token_ids", SPW_GGUF_I32, true, c->more, n_more);
}

/* <|end|> ends the answer, unless <|return|> or <|flush|> does: then it ends a part of it. */
static void test_ends(void)
{
    static const struct ends cases[] = {
        {"llama_plain", {"a", "<|end|>", "</s>", "b", "<|call|>", "</s> "}, {0}, {2, 1}, 2},
        /* Published files give such tokens other types. */
        {"llama_plain", {"a", "b", "</s>", "c", "d", "<end_of_turn>"}, {0}, {2, 5}, 2},
        {"llama_plain", {"<|call|>", "<|end|>", "</s>", "<|return|>", "b", "c"}, {0}, {2, 3, 0}, 3},
        {"llama_plain", {"a", "<|end|>", "<|return|>", "<|start|>", "b", "c"}, {0}, {2}, 1},
        {"llama_plain", {"<|calls|>", "<|end|>", "</s>", "<|flush|>", "b", "c"}, {0}, {2, 3, 0}, 3},
        /* Ollama's files have lists. */
        {"llama_plain", {"a", "b", "</s>", "c", "d", "e"}, {3, 2, 4}, {2, 3, 4}, 3},
        {"llama_plain", {"a", "b", "</s>", "c", "<end_of_turn>", "e"}, {5}, {2, 5, 4}, 3},
        /* No control token, but Gemma 4 waits there for the result of a call. */
        {"gemma4_plain", {"a", "b", "</s>", "c", "<turn|>", "<|tool_response>"}, {0}, {2, 4, 5}, 3},
        {"llama_plain", {"a", "b", "</s>", "c", "<turn|>", "<|tool_response>"}, {0}, {2, 4}, 2},
        {"glm_plain", {"<|observation|>", "b", "</s>", "c", "d", "e"}, {0}, {2, 0}, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct gguf_way way = {.more_keys = add_ends,
                                     .context = (void *)(uintptr_t)&cases[i]};
        struct spw_model_config c = {0};
        struct spw_error err = {0};
        struct spw_source *s;
        char path[64];
        char folder[64];
        snprintf(path, sizeof path, "%s/ends.gguf", dir);
        snprintf(folder, sizeof folder, "tests/golden/%s", cases[i].golden);
        gguf_from_folder(folder, path, &way);
        CHECK_MSG(!spw_source_open(&s, path, &err) && !s->ops->config(s, &c, &err), "%s", err.text);
        CHECK_MSG(c.n_eos == cases[i].n && !memcmp(c.eos, cases[i].eos, c.n_eos * sizeof *c.eos),
                  "%zu: %u ends", i, c.n_eos);
        spw_config_free(&c);
        spw_source_close(s);
    }
}

/* The list of layers with windows as numbers, in the place of truth values; then all of them are 1.
 */
static void test_pattern(void)
{
    static const char name[] = "gemma3.attention.sliding_window_pattern";
    static char bytes[1 << 12];
    uint8_t kinds[4] = {0};
    char path[64];
    snprintf(path, sizeof path, "%s/pattern.gguf", dir);
    gguf_from_folder("tests/golden/gemma3_window_140", path, &(struct gguf_way){0});
    for (int step = 0; step < 3; step++) {
        struct spw_model_config c = {0};
        struct spw_error err = {0};
        FILE *f = fopen(path, "r+b");
        CHECK(f && fread(bytes, 1, sizeof bytes, f) == sizeof bytes);
        char *at = memmem(bytes, sizeof bytes, name, sizeof name - 1);
        CHECK(at && at[sizeof name - 1] == SPW_GGUF_ARRAY);
        at += sizeof name - 1 + 4;
        CHECK(at[0] == (step < 2 ? SPW_GGUF_BOOL : SPW_GGUF_U8) && at[4] == 4);
        if (step > 0)
            at[0] = SPW_GGUF_U8;
        if (step > 1)
            memset(at + 12, 1, 4);
        CHECK(!fseek(f, 0, SEEK_SET) && fwrite(bytes, 1, sizeof bytes, f) == sizeof bytes);
        CHECK(!fclose(f));
        CHECK_MSG(!source_config(&c, path, &err) && c.n_layers == 4, "%s", err.text);
        for (uint32_t i = 0; i < 4; i++) {
            kinds[i] = step == 0 ? c.layer_kinds[i] : step == 1 ? kinds[i] : SPW_LAYER_SLIDING;
            CHECK_MSG(c.layer_kinds[i] == kinds[i], "%d: layer %u", step, i);
        }
        spw_config_free(&c);
    }
}

/* Ids that the model cannot choose, by the key that has them. Only texts of such tokens end
 * nothing.
 */
static void add_beyond(struct spw_gguf_writer *w, void *context)
{
    const int32_t ids[] = {3, 96};
    struct spw_gguf_string tokens[98];
    int32_t types[98];
    for (int i = 0; i < 98; i++) {
        tokens[i] = i == 97 ? (struct spw_gguf_string){"<|im_end|>", 10}
                            : (struct spw_gguf_string){"abc", 3};
        types[i] = i == 97 ? 3 : 1;
    }
    spw_gguf_add_strings(w, "tokenizer.ggml.tokens", tokens, 98);
    spw_gguf_add(w, "tokenizer.ggml.token_type", SPW_GGUF_I32, true, types, 98);
    const bool list = context && strstr(context, "ids");
    if (context)
        spw_gguf_add(w, context, SPW_GGUF_I32, list, list ? ids : ids + 1, list ? 2 : 1);
}

static void test_ends_beyond(void)
{
    static const char *const keys[] = {NULL, "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id",
                                       "tokenizer.ggml.eos_token_ids"};
    char path[64], text[128];
    snprintf(path, sizeof path, "%s/beyond.gguf", dir);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct spw_model_config c = {0};
        struct spw_error err = {0};
        gguf_from_folder(
            "tests/golden/llama_plain", path,
            &(struct gguf_way){.more_keys = add_beyond, .context = (void *)(uintptr_t)keys[i]});
        int rc = source_config(&c, path, &err);
        snprintf(text, sizeof text, "%s: %s: found %s, expected ids below 96, the rows of ", path,
                 keys[i] ? keys[i] : "", i == 3 ? "a list of 2" : "96");
        CHECK_MSG(keys[i] ? rc == -EINVAL && strstr(err.text, text) : !rc && c.n_eos == 1,
                  "%d '%s', not '%s'", rc, err.text, text);
        spw_config_free(&c);
    }
}

/* ---- a file beside the model with its MTP layer ---- */

/* Another number of a key in the file. */
static void edit(const char *path, const char *key, uint32_t value)
{
    static char bytes[1 << 12];
    FILE *f = fopen(path, "r+b");
    CHECK(f && fread(bytes, 1, sizeof bytes, f) == sizeof bytes);
    char *at = memmem(bytes, sizeof bytes, key, strlen(key));
    CHECK(at != NULL);
    memcpy(at + strlen(key) + 4, &value, sizeof value);
    CHECK(!fseek(f, 0, SEEK_SET) && fwrite(bytes, 1, sizeof bytes, f) == sizeof bytes);
    CHECK(!fclose(f));
}

/* message NULL: the model opens with the layer. */
static void plan_mtp(const char *model, const char *message)
{
    const struct spw_options o = {
        .backend = SPW_BACKEND_CPU, .context = 64, .drafts = SPW_DRAFTS_MTP};
    struct spw_plan_info info;
    struct spw_error err = {0};
    const int rc = spw_plan_query(&info, model, &o, &err);
    CHECK_MSG(message ? rc == -EINVAL && strstr(err.text, message) : !rc, "%d '%s', not '%s'", rc,
              err.text, message ? message : "");
}

/* AUTO goes on without the layer. A note says why if a file is there. */
static void plan_auto(const char *model, const char *message, bool has_file)
{
    const struct spw_options o = {
        .backend = SPW_BACKEND_CPU, .context = 64, .drafts = SPW_DRAFTS_AUTO};
    struct spw_engine *e;
    struct spw_plan_info info;
    struct spw_error err = {0};
    CHECK_MSG(!spw_plan_query(&info, model, &o, &err), "%s", err.text);
    CHECK_MSG(!spw_engine_plan_only(&e, model, &o, &err), "%s", err.text);
    const char *note = strstr(spw_engine_note(e), "no drafts by an MTP layer");
    CHECK_MSG(!note == !(message && has_file) && (!note || strstr(note, message)), "'%s', not '%s'",
              spw_engine_note(e), message ? message : "");
    spw_engine_close(e);
}

static void fail_allocations(const char *model)
{
    const struct spw_options o = {
        .backend = SPW_BACKEND_CPU, .context = 64, .drafts = SPW_DRAFTS_MTP, .threads = 1};
    struct spw_model m;
    struct spw_error err = {0};
    const int64_t before = spw_alloc_outstanding();
    int rc = -ENOMEM;
    for (int64_t n = 0; rc == -ENOMEM; n++) {
        spw_alloc_fail_nth(n);
        rc = spw_model_open(&m, model, &o, &err);
        spw_alloc_fail_nth(-1);
        CHECK_MSG(!rc || (rc == -ENOMEM && err.text[0]), "%d '%s'", rc, err.text);
        if (!rc)
            spw_model_close(&m);
        CHECK(spw_alloc_outstanding() == before);
    }
    CHECK_MSG(!rc, "%d '%s'", rc, err.text);
}

static void test_mtp_files(void)
{
    static const struct {
        const char *golden;
        enum gguf_mtp mtp;
        const char *key; /* gets another value; NULL: none */
        uint32_t value;
        void (*more_keys)(struct spw_gguf_writer *w, void *context);
        const char *message;
    } cases[] = {
        {"qwen3_next_mtp", GGUF_MTP_ALONE, NULL, 0, NULL,
         "mtp-model.gguf: general.architecture: found qwen3next, expected that of the model "
         "(model_type qwen3_5_text)"},
        {"qwen3_5_mtp", GGUF_MTP_LEFT_OUT, NULL, 0, NULL,
         "mtp-model.gguf: qwen35.nextn_predict_layers: found nothing, expected the number of "},
        {"qwen3_5_mtp", GGUF_MTP_ALONE, "qwen35.block_count", 4, NULL,
         "mtp-model.gguf: block_count less nextn_predict_layers: found 3, expected 2"},
        {"qwen3_5_mtp", GGUF_MTP_ALONE, "qwen35.embedding_length", 64, NULL,
         "mtp-model.gguf: embedding_length: found 64, expected 32"},
        {"qwen3_5_mtp", GGUF_MTP_ALONE, NULL, 0, add_text,
         "mtp-model.gguf: tokens: found 3, expected 96"},
        {"qwen3_5_mtp", GGUF_MTP_ALONE, NULL, 0, NULL, NULL},
        {"qwen3_5_mtp", GGUF_MTP_WITH_COPIES, NULL, 0, add_text, NULL}, /* the embedding counts */
        {"qwen3_5_mtp", GGUF_MTP_INSIDE, NULL, 0, NULL, NULL},          /* a whole model */
    };
    char model[96], file[96], other[96], folder[64];
    snprintf(folder, sizeof folder, "%s/mtp", dir);
    CHECK(!mkdir(folder, 0700));
    snprintf(model, sizeof model, "%s/model.gguf", folder);
    snprintf(file, sizeof file, "%s/mtp-model.gguf", folder);
    snprintf(other, sizeof other, "%s/mtp-a.gguf", folder);
    gguf_from_folder("tests/golden/qwen3_5_mtp", model,
                     &(struct gguf_way){.mtp = GGUF_MTP_LEFT_OUT});
    plan_mtp(model, "model.gguf: found no layer that predicts further tokens (MTP) and could "
                    "propose drafts, and no file mtp-*.gguf beside it");
    plan_auto(model, "", false);
    gguf_from_folder("tests/golden/llama_plain", other, &(struct gguf_way){0});
    plan_mtp(model, "mtp-a.gguf: general.architecture: found llama");
    CHECK(!symlink("no-file", file));
    plan_mtp(model, "mtp-model.gguf: No such file");
    plan_auto(model, "mtp-model.gguf: No such file", true);
    CHECK(!unlink(file));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char golden[64];
        snprintf(golden, sizeof golden, "tests/golden/%s", cases[i].golden);
        gguf_from_folder(golden, file,
                         &(struct gguf_way){.mtp = cases[i].mtp, .more_keys = cases[i].more_keys});
        if (cases[i].key)
            edit(file, cases[i].key, cases[i].value);
        plan_mtp(model, cases[i].message);
        plan_auto(model, cases[i].message, true);
    }
    /* the model's name begins with all of one name, and agrees longer with another */
    snprintf(other, sizeof other, "%s/mtp-model-q4.gguf", folder);
    gguf_from_folder("tests/golden/llama_plain", other, &(struct gguf_way){0});
    snprintf(file, sizeof file, "%s/model-q8.gguf", folder);
    CHECK(!rename(model, file));
    plan_mtp(file, NULL);
    CHECK(!rename(file, model) && !unlink(other));
    fail_allocations(model);
}

/* ---- memory that fails ---- */

/* Each allocation of each part fails in turn. */
static void test_failed_allocations(void)
{
    char path[64];
    struct spw_source *s;
    struct spw_error err = {0};
    snprintf(path, sizeof path, "%s/s-00001-of-00003.gguf", dir);
    gguf_from_folder("tests/golden/llama_plain", path,
                     &(struct gguf_way){.more_keys = add_text, .n_files = 3});
    CHECK(!spw_source_open(&s, path, &err));
    int64_t before = spw_alloc_outstanding();
    for (int part = 0; part < 4; part++) {
        int rc = -ENOMEM;
        for (int64_t n = 0; rc == -ENOMEM; n++) {
            struct spw_model_config c = {0};
            struct spw_tensors *t = NULL;
            struct spw_chat_template *chat = NULL;
            char *text = NULL;
            size_t bytes;
            spw_alloc_fail_nth(n);
            rc = part == 0   ? s->ops->config(s, &c, &err)
                 : part == 1 ? s->ops->tensors(s, &t, &err)
                 : part == 2 ? s->ops->chat_template(s, NULL, NULL, &chat, &err)
                             : s->ops->text(s, SPW_SOURCE_TOKENIZER, &text, &bytes, &err);
            spw_alloc_fail_nth(-1);
            CHECK_MSG(!rc || (rc == -ENOMEM && err.text[0] && !t && !chat && !text), "%d: %d '%s'",
                      part, rc, err.text);
            spw_config_free(&c);
            spw_tensors_close(t);
            spw_chat_template_close(chat);
            spw_free(text);
            CHECK(spw_alloc_outstanding() == before);
        }
        CHECK_MSG(!rc, "%d: %d %s", part, rc, err.text);
    }
    spw_source_close(s);
}

/* Each allocation of a model that is written fails in turn. */
static void test_failed_quantize(const char *folder)
{
    const struct spw_quantize_options o = {.type = SPW_DTYPE_Q8_0, .to = fopen("/dev/null", "w")};
    const int64_t before = spw_alloc_outstanding();
    int rc = -ENOMEM, n = 0;
    for (; rc == -ENOMEM; n++) {
        struct spw_error err = {0};
        spw_alloc_fail_nth(n);
        rc = spw_quantize(folder, &o, &err);
        spw_alloc_fail_nth(-1);
        CHECK_MSG(!rc || (rc == -ENOMEM && err.text[0]), "%s: %d: %d '%s'", folder, n, rc,
                  err.text);
        CHECK_MSG(spw_alloc_outstanding() == before, "%s: %d", folder, n);
    }
    CHECK(!rc && n > 40);
    fclose(o.to);
}

/* Writes a file again, with blocks in the biases of experts, or the numbers of these blocks. */
static void write_biases(const char *from, const char *to, bool blocks)
{
    const enum spw_dtype type = blocks ? SPW_DTYPE_Q8_0 : SPW_DTYPE_F32;
    struct spw_gguf_file f = {0};
    struct spw_error err = {0};
    CHECK_MSG(!spw_gguf_open(&f, from, &err), "%s", err.text);
    struct spw_tensor *t = f.gguf.tensors.tensors;
    const size_t n = f.gguf.tensors.n;
    const uint8_t *base = f.map.base;
    uint64_t offset = 0, seed = 1;
    qsort(t, n, sizeof *t, gguf_by_offset);
    const uint8_t *entries = memmem(base, f.gguf.header_bytes, t->name, strlen(t->name));
    FILE *out = fopen(to, "wb");
    fwrite(base, 1, (size_t)(entries - base) - sizeof(uint64_t), out);
    for (size_t i = 0; i < n; i++) {
        const bool bias = strstr(t[i].name, "down_exps.bias");
        gguf_write_entry(&t[i], bias ? type : t[i].dtype, offset, out);
        offset += bias ? spw_row_bytes(type, gguf_elements(&t[i])) : t[i].bytes;
        offset = spw_align_up(offset, SPW_GGUF_ALIGNMENT);
    }
    CHECK(!spw_gguf_write_padding(out, (size_t)ftell(out)));
    for (size_t i = 0; i < n; i++) {
        const size_t numbers = gguf_elements(&t[i]);
        uint8_t bytes[1 << 12];
        float x[1 << 10];
        if (strstr(t[i].name, "down_exps.bias")) {
            gguf_draw_blocks(bytes, SPW_DTYPE_Q8_0, numbers, gguf_cols(&t[i]), &seed);
            spw_type_read(SPW_DTYPE_Q8_0, bytes, 0, numbers, x);
            t[i].bytes = spw_row_bytes(type, numbers);
            fwrite(blocks ? (const void *)bytes : x, 1, t[i].bytes, out);
        } else {
            fwrite(base + f.gguf.header_bytes + t[i].offset, 1, t[i].bytes, out);
        }
        CHECK(!spw_gguf_write_padding(out, t[i].bytes));
    }
    CHECK(!fclose(out) && !spw_gguf_close(&f, from, 0, &err));
}

/* Biases of experts in a type with blocks. */
static void test_biases(void)
{
    struct golden g = golden_open("tests/golden/gpt_oss_plain");
    char from[64], numbers[64], blocks[64];
    struct spw_error err = {0};
    snprintf(from, sizeof from, "%s/oss.gguf", dir);
    snprintf(numbers, sizeof numbers, "%s/numbers.gguf", dir);
    snprintf(blocks, sizeof blocks, "%s/blocks.gguf", dir);
    const struct spw_quantize_options o = {.type = SPW_DTYPE_Q8_0, .to = fopen(from, "wb")};
    CHECK_MSG(!spw_quantize("tests/golden/gpt_oss_plain", &o, &err), "%s", err.text);
    fclose(o.to);
    write_biases(from, numbers, false);
    write_biases(from, blocks, true);
    compare_models(numbers, blocks, &g, SPW_DTYPE_F32);
    golden_close(&g);
}

/* A layer that block_count does not count, in a family whose folders have layers that are not read.
 */
static void test_more_layers(void)
{
    static const char name[] = "glm4moe.block_count";
    static char bytes[1 << 12];
    char path[64];
    struct spw_model_config c = {0};
    struct spw_tensors *tensors = NULL;
    struct spw_weights *w = NULL;
    struct spw_source *s = NULL;
    struct spw_error err = {0};
    snprintf(path, sizeof path, "%s/more.gguf", dir);
    const struct spw_quantize_options o = {.type = SPW_DTYPE_Q8_0, .to = fopen(path, "w+b")};
    CHECK_MSG(!spw_quantize("tests/golden/glm4_moe_plain", &o, &err), "%s", err.text);
    CHECK(!fseek(o.to, 0, SEEK_SET) && fread(bytes, 1, sizeof bytes, o.to) == sizeof bytes);
    char *at = memmem(bytes, sizeof bytes, name, sizeof name - 1);
    CHECK(at && at[sizeof name - 1] == SPW_GGUF_U32 && at[sizeof name - 1 + 4] > 1);
    at[sizeof name - 1 + 4]--;
    CHECK(!fseek(o.to, 0, SEEK_SET) && fwrite(bytes, 1, sizeof bytes, o.to) == sizeof bytes);
    CHECK(!fclose(o.to) && !spw_source_open(&s, path, &err) && !s->ops->config(s, &c, &err) &&
          !s->ops->tensors(s, &tensors, &err));
    CHECK_MSG(spw_weights_open(&w, &c, tensors, SPW_DTYPE_F32, &err) == -EINVAL &&
                  strstr(err.text, "found it, but the config"),
              "'%s'", err.text);
    spw_weights_close(w);
    spw_tensors_close(tensors);
    spw_config_free(&c);
    spw_source_close(s);
}

static void remove_files(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK(!system(command));
}

static void test_goldens(void)
{
    char folder[64];
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        snprintf(folder, sizeof folder, "tests/golden/%s", goldens[i]);
        /* An emulated GPU is slow: a model with interleaved q and k, one with other norms. */
        bool slow = strcmp(goldens[i], "llama_biases") && strcmp(goldens[i], "gemma3_new_keys");
        if (!TEST_GPU || !slow)
            test_folder(folder);
    }
}

/* What needs no run on another backend, or is the same there. */
static void test_rest(void)
{
    const char *data = getenv("SPW_DATA");
    char folder[512];
    test_folder("models/records");
    snprintf(folder, sizeof folder, "%s/models/stories260K", data ? data : "none");
    if (!access(folder, R_OK))
        test_folder(folder);
    test_split();
    test_mtp_files();
    test_text();
    test_ends();
    test_ends_beyond();
    test_pattern();
    test_biases();
    test_more_layers();
    test_failed_allocations();
    test_failed_quantize("tests/golden/qwen2_moe_shared");
    test_failed_quantize("tests/golden/gemma4_moe");
    test_quantized("tests/golden/t5_relu");
    test_quantized("tests/golden/umt5_buckets");
    test_refused_quantize("tests/golden/t5_gated", "relative_attention_max_distance");
    test_refused_quantize("tests/golden/mt5_gated",
                          "found rows that are not scaled before the head");
    test_logits("llama_llama3_old_keys", &(struct gguf_way){0});
    test_logits("llama_llama3_new_keys", &(struct gguf_way){0});
    /* value heads, and the columns of the matrix behind them, come in another order */
    test_logits("qwen3_5_plain", &(struct gguf_way){0});
    test_logits("qwen3_5_moe_plain", &(struct gguf_way){0});
    test_logits("qwen3_next_plain", &(struct gguf_way){.joined_gate = true});
}

int main(void)
{
    if (!run_is_there())
        return CHECK_SKIP;
    if (!mkdtemp(dir))
        return 1;
    test_goldens();
    if (!TEST_GPU)
        test_rest();
    remove_files();
    return check_done();
}
