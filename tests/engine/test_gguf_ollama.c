/* Files in the form in which Ollama writes them give the logits of the usual form, bit for bit:
 * other names of keys and tensors, keys that are not there, and parts for images and sound beside
 * the text. The usual form is what spw_quantize writes of a golden model. */
#include "model/quantize.h"
#include "model/source/gguf_write.h"
#include "tests/engine/model_run.h"

#include <stdlib.h>

static char dir[] = "/tmp/spw_gguf_ollama_XXXXXX";

enum { MOST_NAMES = 12, MOST_KEYS = 4 };

/* names: how keys and tensors are called, behind the architecture or the layer; "": they are not
 * written. numbers: keys that are added. */
static const struct form {
    const char *golden, *architecture;
    const char *names[MOST_NAMES][2];
    struct {
        const char *key;
        float value;
    } numbers[MOST_KEYS];
    const char *flag; /* is true */
    bool other_parts;
    bool splits_experts; /* gate and up of all experts are two tensors */
} forms[] = {
    {"gemma3_wrapped", "gemma3",
     .names = {{"attention.layer_norm_rms_epsilon", ""},
               {"rope.freq_base", ""},
               {"rope.freq_base_swa", ""}},
     .other_parts = true},
    {"gemma3_new_keys", "gemma3",
     .names = {{"rope.freq_base", "rope.global.freq_base"},
               {"rope.freq_base_swa", "rope.local.freq_base"}}},
    {"gpt_oss_plain", "gptoss",
     .names = {{"rope.scaling.type", ""},
               {"expert_feed_forward_length", ""},
               {"attn_output.weight", "attn_out.weight"},
               {"attn_output.bias", "attn_out.bias"},
               {"attn_sinks.weight", "attn_sinks"},
               {"post_attention_norm.weight", "ffn_norm.weight"}}},
    {"ministral3_grows", "mistral3",
     .names = {{"rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast"},
               {"rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow"},
               {"rope.scaling.yarn_log_multiplier", "rope.scaling.mscale_all_dim"},
               {"rope.scaling.yarn_attn_factor", ""},
               {"attention.temperature_scale", "rope.scaling_beta"}},
     .numbers = {{"rope.scaling.mscale", 1}, {"image_token_index", 10}, {"spatial_merge_size", 2}},
     .flag = "mm.projector_bias", .other_parts = true},
    {"olmo3_listed", "olmo3",
     .names = {{"rope.scaling.yarn_attn_factor", "rope.scaling.attn_factor"}}},
    {"qwen2_bias", "qwen25vl", .numbers = {{"rope.mrope_section", 3}}, .other_parts = true},
    {"qwen3_qk_norm", "qwen3vl",
     .numbers = {{"rope.dimension_sections", 3}, {"n_deepstack_layers", 3}}, .other_parts = true},
    {"qwen3_moe_plain", "qwen3vlmoe",
     .names = {{"expert_feed_forward_length", ""}, {"expert_weights_norm", ""}},
     .flag = "norm_top_k_prob", .other_parts = true},
    {"llama4_defaults", "llama4",
     .numbers = {{"attention.chunk_size", 8192}, {"attention.head_dim", 16}}, .flag = "use_qk_norm",
     .other_parts = true},
    {"gemma4_moe", "gemma4", .names = {{"ffn_down_exps.scale", "ffn_gate_inp.per_expert_scale"}},
     .other_parts = true, .splits_experts = true},
};

static const char *own_name(const struct form *f, const char *name)
{
    for (int i = 0; i < MOST_NAMES && f->names[i][0]; i++)
        if (!strcmp(f->names[i][0], name))
            return f->names[i][1];
    return name;
}

/* "gemma3.rope.freq_base" */
static void add_key(const struct form *f, struct spw_gguf_writer *w, const struct spw_gguf_value *v)
{
    char key[128], text[256], full[256];
    const uint8_t *at = v->at;
    struct spw_gguf_string s = {0};
    snprintf(key, sizeof key, "%.*s", (int)v->key.bytes, v->key.at);
    const char *end = strchr(key, '.') + 1;
    const bool general = !strncmp(key, "general.", 8) || !strncmp(key, "tokenizer.", 10);
    snprintf(full, sizeof full, "%s.%s", f->architecture, own_name(f, end));
    if (!general && !*own_name(f, end))
        return;
    if (v->type != SPW_GGUF_STRING) {
        spw_gguf_add(w, general ? key : full, v->type, v->array, v->at, v->n);
        return;
    }
    CHECK(!v->array && spw_gguf_next_string(&at, v->at + v->bytes, &s));
    snprintf(text, sizeof text, "%.*s", (int)s.bytes, s.at);
    spw_gguf_add_string(w, general ? key : full,
                        strcmp(key, "general.architecture") ? text : f->architecture);
}

static void add_more_keys(const struct form *f, struct spw_gguf_writer *w)
{
    char key[128];
    for (int i = 0; i < MOST_KEYS && f->numbers[i].key; i++) {
        snprintf(key, sizeof key, "%s.%s", f->architecture, f->numbers[i].key);
        if (f->numbers[i].value == 3) { /* a list */
            const int32_t sections[] = {2, 3, 3};
            spw_gguf_add(w, key, SPW_GGUF_I32, true, sections, 3);
        } else if (f->numbers[i].value == 1) {
            spw_gguf_add_f32(w, key, f->numbers[i].value);
        } else {
            spw_gguf_add_u32(w, key, (uint32_t)f->numbers[i].value);
        }
    }
    snprintf(key, sizeof key, "%s.%s", f->architecture, f->flag);
    if (f->flag)
        spw_gguf_add_bool(w, key, true);
    static const char *const keys[] = {"vision.block_count", "vision.patch_size",
                                       "audio.block_count", "mm.tokens_per_image"};
    for (size_t i = 0; f->other_parts && i < sizeof keys / sizeof *keys; i++) {
        snprintf(key, sizeof key, "%s.%s", f->architecture, keys[i]);
        spw_gguf_add_u32(w, key, 27);
    }
}

static const char *const other_parts[] = {"v.blk.0.attn_k.weight", "a.blk.0.ffn_norm.weight",
                                          "mm.mm_input_projection.weight"};
enum { N_OTHER_PARTS = sizeof other_parts / sizeof *other_parts };
static const float other_data[8] = {1, 2, 3};

static void add_tensor(const struct form *f, struct spw_gguf_writer *w, const struct spw_tensor *t)
{
    char name[256];
    const char *in_layer = strncmp(t->name, "blk.", 4) ? t->name : strchr(t->name + 4, '.') + 1;
    snprintf(name, sizeof name, "%.*s%s", (int)(in_layer - t->name), t->name,
             own_name(f, in_layer));
    spw_gguf_add_tensor(w, name, t->dtype, t->n_dims, t->shape);
}

static bool is_split(const struct form *f, const struct spw_tensor *t)
{
    return f->splits_experts && strstr(t->name, ".ffn_gate_up_exps.weight");
}

/* [n][2 width][k] becomes two of [n][width][k]. */
static void add_halves(struct spw_gguf_writer *w, const struct spw_tensor *t)
{
    static const char *const halves[] = {"ffn_gate_exps.weight", "ffn_up_exps.weight"};
    const uint64_t shape[] = {t->shape[0], t->shape[1] / 2, t->shape[2]};
    char name[256];
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%.*s%s", (int)(strstr(t->name, "ffn_gate_up") - t->name),
                 t->name, halves[i]);
        spw_gguf_add_tensor(w, name, t->dtype, 3, shape);
    }
}

static void write_halves(const struct spw_tensor *t, const uint8_t *data, FILE *out)
{
    const size_t half = (size_t)(t->bytes / t->shape[0] / 2);
    for (size_t i = 0; i < 2; i++) {
        for (size_t e = 0; e < t->shape[0]; e++)
            fwrite(data + (2 * e + i) * half, 1, half, out);
        CHECK(!spw_gguf_write_padding(out, half * t->shape[0]));
    }
}

static void rewrite(const struct form *f, const char *from, const char *to)
{
    struct spw_gguf_file file;
    struct spw_error err = {0};
    struct spw_gguf_writer w = {0};
    CHECK_MSG(!spw_gguf_open(&file, from, &err), "%s", err.text);
    const struct spw_gguf *g = &file.gguf;
    for (size_t i = 0; i < g->n_values; i++)
        add_key(f, &w, &g->values[i]);
    add_more_keys(f, &w);
    for (size_t i = 0; i < g->tensors.n; i++)
        if (is_split(f, &g->tensors.tensors[i]))
            add_halves(&w, &g->tensors.tensors[i]);
        else
            add_tensor(f, &w, &g->tensors.tensors[i]);
    for (int i = 0; f->other_parts && i < N_OTHER_PARTS; i++)
        spw_gguf_add_tensor(&w, other_parts[i], SPW_DTYPE_F32, 1, (const uint64_t[]){8});
    FILE *out = fopen(to, "wb");
    CHECK(out && !spw_gguf_write_header(&w, out));
    for (size_t i = 0; i < g->tensors.n; i++) {
        const struct spw_tensor *t = &g->tensors.tensors[i];
        const uint8_t *data = file.map.base + g->header_bytes + t->offset;
        if (is_split(f, t)) {
            write_halves(t, data, out);
            continue;
        }
        fwrite(data, 1, t->bytes, out);
        CHECK(!spw_gguf_write_padding(out, t->bytes));
    }
    for (int i = 0; f->other_parts && i < N_OTHER_PARTS; i++) {
        fwrite(other_data, 1, sizeof other_data, out);
        CHECK(!spw_gguf_write_padding(out, sizeof other_data));
    }
    CHECK(!fclose(out));
    spw_gguf_writer_free(&w);
    CHECK_MSG(!spw_gguf_close(&file, from, 0, &err), "%s", err.text);
}

static const char *wrapper_of(const char *path)
{
    struct spw_source *s;
    struct spw_model_config c = {0};
    struct spw_error err = {0};
    CHECK(!spw_source_open(&s, path, &err));
    CHECK_MSG(!s->ops->config(s, &c, &err), "%s", err.text);
    const char *wrapper = c.wrapper; /* a constant */
    spw_config_free(&c);
    spw_source_close(s);
    return wrapper;
}

static void test_form(const struct form *f)
{
    char folder[128], usual[128], own[128];
    struct spw_error err = {0};
    int32_t ids[150];
    uint32_t vocab = 0, own_vocab = 0;
    const size_t n = sizeof ids / sizeof *ids;
    const struct spw_options o = {.backend = SPW_BACKEND_CPU,
                                  .compute = SPW_DTYPE_F32,
                                  .context = n,
                                  .past_positions = true,
                                  .threads = 2};
    snprintf(folder, sizeof folder, "tests/golden/%s", f->golden);
    snprintf(usual, sizeof usual, "%s/usual.gguf", dir);
    snprintf(own, sizeof own, "%s/sha256-%s", dir, f->golden); /* as Ollama calls its files */
    FILE *out = fopen(usual, "w+b");
    const struct spw_quantize_options q = {.type = SPW_DTYPE_Q8_0, .to = out};
    CHECK_MSG(!spw_quantize(folder, &q, &err), "%s: %s", folder, err.text);
    CHECK(!fclose(out));
    rewrite(f, usual, own);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(i * 7 % 90);
    const char *wrapper = wrapper_of(own);
    CHECK_MSG(f->other_parts ? wrapper && !strcmp(wrapper, f->architecture) : !wrapper, "%s: %s",
              f->golden, wrapper ? wrapper : "no wrapper");
    float *a = model_all_logits(usual, &o, ids, n, &vocab);
    float *b = model_all_logits(own, &o, ids, n, &own_vocab);
    CHECK(a && b && vocab == own_vocab);
    CHECK_MSG(a && b && !memcmp(a, b, n * vocab * sizeof *a), "%s as %s", f->golden,
              f->architecture);
    free(a);
    free(b);
    CHECK(!remove(usual) && !remove(own));
}

int main(void)
{
    if (!mkdtemp(dir))
        return 1;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        test_form(&forms[i]);
    CHECK(!rmdir(dir));
    return check_done();
}
