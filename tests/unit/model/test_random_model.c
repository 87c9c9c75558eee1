/* tools/make_random_model.py knows the families' tensors a second time, in Python: for one folder
 * of each key combination that transformers wrote, it must make the same names and shapes. */
#include "model/config/config.h"
#include "model/source/safetensors.h"
#include "tests/source_config.h"
#include "tests/folder.h"

static int make(const char *config, const char *options)
{
    char command[512];
    snprintf(command, sizeof command,
             "rm -rf %s/m && python3 tools/make_random_model.py %s %s/m %s 2>/dev/null", folder,
             config, folder, options);
    return system(command);
}

static struct spw_tensors *open_tensors(const char *path)
{
    struct spw_error err = {0};
    struct spw_tensors *st = NULL;
    CHECK_MSG(!spw_safetensors_open(&st, path, &err), "%s", err.text);
    if (!st)
        abort();
    return st;
}

static void check_same_tensors(const char *golden, const char *options, enum spw_dtype dtype)
{
    char source[128], made[128];
    snprintf(source, sizeof source, "tests/golden/%s", golden);
    snprintf(made, sizeof made, "%s/m", folder);
    CHECK(!make(source, options));
    struct spw_tensors *a = open_tensors(source), *b = open_tensors(made);
    CHECK_MSG(spw_tensors_count(a) == spw_tensors_count(b), "%s", golden);
    for (size_t i = 0; i < spw_tensors_count(a); i++) {
        const struct spw_tensor *want = spw_tensors_at(a, i);
        const struct spw_tensor *got = spw_tensors_find(b, want->name);
        CHECK_MSG(got && got->dtype == dtype && got->n_dims == want->n_dims &&
                      !memcmp(got->shape, want->shape, sizeof want->shape),
                  "%s: %s", golden, want->name);
    }
    spw_tensors_close(a);
    spw_tensors_close(b);
    struct spw_error err = {0};
    struct spw_model_config config;
    CHECK_MSG(!source_config(&config, made, &err), "%s", err.text);
    CHECK(config.dtype == dtype);
    spw_config_free(&config);
}

/* bf16 values of one matrix: centred, a few hundredths wide, no infinity. */
static void check_values(void)
{
    struct spw_tensors *st = open_tensors(in_folder("m"));
    const struct spw_tensor *t = spw_tensors_find(st, "model.layers.0.mlp.up_proj.weight");
    double sum = 0, squares = 0;
    size_t n = t ? t->bytes / 2 : 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        float value;
        memcpy(&half, (const uint8_t *)t->data + 2 * i, sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(&value, &bits, sizeof value);
        CHECK(value > -1 && value < 1);
        sum += (double)value;
        squares += (double)value * (double)value;
    }
    CHECK(n > 1000 && squares / (double)n > 1e-4 && squares / (double)n < 4e-3);
    CHECK(sum / (double)n > -0.01 && sum / (double)n < 0.01);
    spw_tensors_close(st);
}

int main(void)
{
    if (system("python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null"))
        return CHECK_SKIP;
    open_folder("random_model");
    static const char *const goldens[] = {
        "llama_biases",        "llama_odd_sizes",   "llama_mha_tied",  "llama_mqa_head_dim",
        "mistral_null_window", "qwen2_layer_types", "qwen3_qk_norm",   "qwen3_bias_sliding",
        "gemma3_old_keys",     "gemma3_window_140", "gemma3_new_keys", "mixtral_window",
        "qwen3_moe_plain",     "qwen3_moe_sliding", "glm4_moe_plain",  "glm4_moe_norms",
        "gpt_oss_plain",       "gpt_oss_no_bias",
    };
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++)
        check_same_tensors(goldens[i], "", SPW_DTYPE_BF16);
    check_same_tensors("llama_plain", "--shard-bytes 20K --seed 3", SPW_DTYPE_BF16);
    check_values();
    check_same_tensors("llama_plain", "--dtype f16 --tokenizer LICENSE", SPW_DTYPE_F16);
    check_same_tensors("llama_plain", "--dtype f32 --layers 3", SPW_DTYPE_F32);
    CHECK(make("tests/golden/llama_plain", "--layers 0"));
    CHECK(make("tests/golden/llama_plain", "--shard-bytes none"));
    CHECK(make("tests/fuzz/seeds/config/none.json", ""));
    close_folder();
    return check_done();
}
