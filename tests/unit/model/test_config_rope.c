/* config.json: both generations of rope keys, for all layers and by layer kind. */
#include "tests/config_text.h"

#include <math.h>

static void test_rope_keys(void)
{
    /* the same model in both generations */
    struct spw_model_config old =
        accept(llama,
               "{'rope_theta': 500000, 'rope_scaling': {'type': 'llama3', 'factor': "
               "8.0,'low_freq_factor': 1.0, 'high_freq_factor': "
               "4.0,'original_max_position_embeddings': 64}}",
               NULL);
    struct spw_model_config new =
        accept(llama,
               "{'rope_theta': 1, 'rope_parameters': {'rope_theta': 500000.0, "
               "'rope_type':'llama3', 'factor': 8, 'low_freq_factor': 1, 'high_freq_factor': "
               "4,'original_max_position_embeddings': 64}}",
               NULL);
    CHECK(old.rope[0].kind == SPW_ROPE_LLAMA3 && old.rope[0].original_max_positions == 64);
    CHECK(old.rope[0].theta == 5e5 && old.rope[0].high_freq_factor == 4);
    for (int kind = 0; kind < SPW_LAYER_KINDS; kind++) {
        CHECK(old.rope[kind].kind == new.rope[kind].kind);
        CHECK(old.rope[kind].theta == new.rope[kind].theta);
        CHECK(old.rope[kind].factor == new.rope[kind].factor);
        CHECK(old.rope[kind].low_freq_factor == new.rope[kind].low_freq_factor);
        CHECK(old.rope[kind].high_freq_factor == new.rope[kind].high_freq_factor);
        CHECK(old.rope[kind].original_max_positions == new.rope[kind].original_max_positions);
    }
    /* the top level's original length wins over a flat dict's; absent, it is the maximum */
    struct spw_model_config c =
        accept(llama,
               "{'original_max_position_embeddings': 77, 'rope_scaling': {'type': 'yarn','factor': "
               "4, 'original_max_position_embeddings': 64}}",
               NULL);
    CHECK(c.rope[0].original_max_positions == 77 && c.rope[0].truncate);
    CHECK(fabs(c.rope[0].attention_factor - 1.13862944) < 1e-8);
    c = accept(llama, "{'rope_scaling': {'type': 'yarn', 'factor': null}}", NULL);
    CHECK(c.rope[0].original_max_positions == 512 && c.rope[0].factor == 1);
    c = accept(llama,
               "{'rope_scaling': {'type': 'yarn', 'factor': null, "
               "'original_max_position_embeddings': 1024}}",
               NULL);
    CHECK(c.rope[0].factor == 0.5 && c.rope[0].attention_factor == 1 && c.reach == 512);
    c = accept(llama, "{'rope_scaling': {'type': 'yarn', 'factor': 4, 'truncate': null}}", NULL);
    CHECK(!c.rope[0].truncate);
    c = accept(llama, "{'rope_scaling': {}, 'rope_parameters': {'rope_theta': 5.0}}", NULL);
    CHECK(c.rope[0].theta == 5); /* an empty dict says nothing */

    refuse(llama, "{'rope_scaling': {'type': 'longrope', 'factor': 2}}",
           "config.json: rope_scaling.short_factor: found nothing, expected a list of ");
    refuse(llama, "{'rope_scaling': {'type': 'su', 'factor': 2}}",
           "config.json: rope_scaling.type: found 'su', expected default, linear");
    refuse(llama, "{'rope_parameters': {'rope_type': 3}}",
           "rope_parameters.rope_type: found 3, expected a string");
    refuse(llama, "{'rope_scaling': 'linear'}", "rope_scaling: found 'linear', expected an object");
    refuse(llama, "{'rope_scaling': {'type': 'linear'}}", "rope_scaling.factor: found nothing");
    refuse(llama, "{'rope_scaling': {'type': 'linear', 'factor': 0.5}}",
           "rope_scaling.factor: found 0.5, expected a number from 1");
    refuse(llama, "{'rope_scaling': {'type': 'yarn'}}",
           "rope_scaling.factor: found nothing, expected a number, or null, for yarn");
    refuse(llama, "{'rope_scaling': {'type': 'llama3', 'factor': 8}}",
           "rope_scaling.low_freq_factor: found nothing");
    refuse(llama,
           "{'rope_scaling': {'type': 'llama3', 'factor': 8, 'low_freq_factor': "
           "4,'high_freq_factor': 1}}",
           "rope_scaling.high_freq_factor: found 1, expected at least low_freq_factor");
    refuse(llama, "{'rope_theta': 0}", "rope_theta: found 0, expected a number from");
    refuse(llama, "{'rope_theta': '1e6'}", "rope_theta: found '1e6'");
    refuse(llama, "{'rope_theta': 0.5, 'rope_scaling': {'type': 'yarn', 'factor': 4}}",
           "rope_theta: found 0.5, expected more than 1, for yarn");
    refuse(llama, "{'partial_rotary_factor': 0.5}", "partial_rotary_factor: found 0.5, expected 1");
    refuse(llama, "{'rope_parameters': {'full_attention': {'rope_theta': 1e4}}}",
           "rope_parameters: found an object, expected one flat set");
    refuse(qwen3, "{'rope_scaling': {'full_attention': {'rope_type': 'linear', 'factor': 2}}}",
           "rope_scaling: found an object, expected one flat set");
    refuse(
        gemma3,
        "{'rope_parameters': {'rope_theta': 1e4}, 'rope_scaling': {'type': 'linear','factor': 8}}",
        "rope_parameters: found an object, expected an object full_attention, which rope_scal");
    refuse(gemma3, "{'rope_parameters': {'full_attention': {'rope_type': 'su'}}}",
           "rope_parameters.full_attention.rope_type: found 'su'");
    refuse(llama, "{'head_dim': 2, 'rope_scaling': {'type': 'dynamic', 'factor': 2}}",
           "head_dim: found 2, expected at least 4");
}

/* Rope by layer kind has two generations of keys in Gemma-3, and one in Gemma-4. */
static void test_nested_rope(void)
{
    const char *types = "'type': 'linear', 'factor': 8";
    char patch[512];
    snprintf(patch, sizeof patch, "{'rope_scaling': {%s}}", types);
    refuse(gemma3, patch, "rope_scaling.type: found 'linear', expected the name rope_type");
    snprintf(patch, sizeof patch, "{'rope_scaling': {'rope_type': 'linear', %s}}", types);
    CHECK(accept(gemma3, patch, NULL).rope[SPW_LAYER_FULL].factor == 8);
    struct spw_model_config c = accept(
        gemma3,
        "{'rope_scaling': {'factor': 2}, 'rope_parameters': {'full_attention': {'rope_type': "
        "'linear', 'factor': 8, 'rope_theta': 77}}}",
        NULL);
    CHECK(c.rope[SPW_LAYER_FULL].kind == SPW_ROPE_LINEAR && c.rope[SPW_LAYER_FULL].factor == 2);
    CHECK(c.rope[SPW_LAYER_FULL].theta == 77);
    c = accept(llama, "{'model_type': 'olmo3', 'rope_local_base_freq': 7}", NULL);
    CHECK(c.rope[SPW_LAYER_SLIDING].theta == 5e5); /* a key of Gemma-3 */
    refuse(gemma3,
           "{'rope_parameters': {'full_attention': {'rope_type': 'yarn', 'factor': 2, 'truncate': "
           "false}}}",
           "rope_parameters.full_attention.truncate: found false, expected true");
    refuse(gemma3, "{'rope_parameters': {'full_attention': {}, 'truncate': false}}",
           "rope_parameters.truncate: found false, expected nothing");

    const char *both = "{'full_attention': {'rope_type': 'linear', 'factor': 2, 'rope_theta': 5e5},"
                       "'sliding_attention': {'rope_theta': 7e4}}";
    snprintf(patch, sizeof patch, "{'rope_theta': 1, 'rope_scaling': %s}", both);
    c = accept(gemma4, patch, NULL);
    CHECK(c.rope[SPW_LAYER_FULL].theta == 5e5 && c.rope[SPW_LAYER_FULL].factor == 2);
    CHECK(c.rope[SPW_LAYER_SLIDING].theta == 7e4);
    c = accept(gemma4, "{'rope_theta': 1, 'rope_local_base_freq': 2}", NULL);
    CHECK(c.rope[SPW_LAYER_FULL].theta == 1e6 && c.rope[SPW_LAYER_SLIDING].theta == 1e4);
    refuse(gemma4, "{'rope_scaling': {'rope_type': 'linear', 'factor': 2}}",
           "rope_scaling.full_attention: found nothing, expected an object");
    refuse(gemma4, "{'rope_parameters': {'full_attention': {'rope_theta': 1}}}",
           "rope_parameters.sliding_attention: found nothing, expected an object");
    refuse(gemma4, "{'rope_parameters': {'full_attention': {}, 'sliding_attention': {}}}",
           "rope_parameters.full_attention.rope_theta: found nothing, expected a number");
}

/* Older files have other names for it. */
static void test_longrope(void)
{
    static const char *const names[] = {"longrope", "su", "yarn"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char patch[512];
        snprintf(patch, sizeof patch,
                 "{'model_type': 'phi3', 'original_max_position_embeddings': 128, 'rope_scaling': "
                 "{'type': '%s', 'short_factor': [1, 1, 2, 2], 'long_factor': [2, 3, 4, 5]}}",
                 names[i]);
        struct spw_model_config c = accept(llama, patch, NULL);
        CHECK(c.rope[0].kind == SPW_ROPE_LONG && c.rope[0].long_factors[3] == 5 &&
              c.rope[0].original_max_positions == 128);
    }
    struct spw_model_config c =
        accept(llama, /* as transformers: the default wins over a number in the object */
               "{'model_type': 'phi3', 'rope_scaling': {'type': 'longrope', "
               "'original_max_position_embeddings': 128, 'short_factor': [1, 1, 2, 2], "
               "'long_factor': [2, 3, 4, 5]}}",
               NULL);
    CHECK(c.rope[0].original_max_positions == 4096);
    refuse(
        llama,
        "{'model_type': 'phi3', 'original_max_position_embeddings': 1, 'rope_scaling': {'type': "
        "'longrope', 'short_factor': [1, 1, 2, 2], 'long_factor': [2, 3, 4, 5]}}",
        "config.json: original_max_position_embeddings: found 1, expected more than 1, for long");
    refuse(llama, "{'model_type': 'phi3', 'rope_scaling': {'rope_type': 'linear', 'factor': 2}}",
           "rope_scaling.rope_type: found 'linear', expected default or longrope, in this family");
}

/* Theta is stretched, or the factor is that of the length. */
static void test_alpha(void)
{
    struct spw_model_config c = accept(llama,
                                       "{'model_type': 'hunyuan_v1_dense', 'rope_scaling': "
                                       "{'type': 'dynamic', 'alpha': 1000.0, 'factor': 1.0}}",
                                       NULL);
    CHECK(c.rope[0].kind == SPW_ROPE_DEFAULT && c.qk_norm && c.qk_norm_after_rope);
    CHECK(fabs(c.rope[0].theta / (1e4 * pow(1000, 8.0 / 6)) - 1) < 1e-12);
    c = accept(llama,
               "{'model_type': 'hunyuan_v1_dense', 'rope_scaling': {'type': 'dynamic', 'alpha': "
               "null, 'factor': 2.0}}",
               NULL);
    CHECK(c.rope[0].kind == SPW_ROPE_DYNAMIC && c.rope[0].theta == 1e4);
    c = accept(llama, "{'model_type': 'minimax_m2', 'head_dim': 16, 'rotary_dim': 8}", NULL);
    CHECK(c.rope[0].rotary_dim == 8);
    c = accept(llama,
               "{'model_type': 'minimax_m2', 'head_dim': 16, 'rotary_dim': 8, "
               "'partial_rotary_factor': null}",
               NULL);
    CHECK(c.rope[0].rotary_dim == 16);
    refuse(llama, "{'model_type': 'minimax_m2', 'head_dim': 16, 'rotary_dim': 32}",
           "rotary_dim: found 32, expected a number from 2 to 16");
}

/* The lengths that scaled rope allows are not refused: Qwen2.5's own advice for 131,072 tokens
 * leaves max_position_embeddings at 32,768. */
static void test_reach(void)
{
    static const struct {
        const char *patch;
        uint64_t reach;
    } cases[] = {
        {"{}", 32768},
        {"{'rope_scaling': {'type': 'yarn', 'factor': 4.0,'original_max_position_embeddings': "
         "32768}}",
         131072},
        {"{'max_position_embeddings': 131072, 'rope_scaling': {'type': 'yarn','factor': 4.0, "
         "'original_max_position_embeddings': 32768}}",
         131072},
        {"{'rope_scaling': {'type': 'linear', 'factor': 2.5}}", 81920},
        {"{'rope_scaling': {'type': 'dynamic', 'factor': 2}}", 1 << 24},
        {"{'rope_scaling': {'type': 'linear', 'factor': 100000}}", 1 << 24},
        {"{'rope_scaling': {'type': 'llama3', 'factor': 8, 'low_freq_factor': "
         "1,'high_freq_factor': 4, 'original_max_position_embeddings': 8192}}",
         32768},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct spw_model_config c = accept(qwen2, cases[i].patch, NULL);
        CHECK_MSG(c.reach == cases[i].reach, "%s: %llu", cases[i].patch,
                  (unsigned long long)c.reach);
    }
    struct spw_model_config c =
        accept(gemma3, "{'rope_scaling': {'rope_type': 'linear', 'factor': 8}}", NULL);
    CHECK(c.reach == 131072); /* counts the factor in */
}

int main(void)
{
    json_set_alloc_funcs(json_alloc, json_free);
    test_rope_keys();
    test_nested_rope();
    test_longrope();
    test_alpha();
    test_reach();
    return config_done();
}
