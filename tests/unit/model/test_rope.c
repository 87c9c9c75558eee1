/* Rotary frequencies against transformers' own (tests/golden/rope.json, written by
 * make_goldens.py): the config text goes through the config reader, so that keys and formulas are
 * tested together. */
#include "model/config/config.h"
#include "model/config/rope.h"
#include "tests/check.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* How many representable floats lie between two positive ones. */
static uint32_t ulps(float a, float b)
{
    uint32_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x > y ? x - y : y - x;
}

static void check_entry(const json_t *entry, uint32_t *n_equal, uint32_t *n_all)
{
    char *text = json_dumps(json_object_get(entry, "config"), 0);
    const json_t *expected = json_object_get(entry, "inv_freq");
    uint64_t length = (uint64_t)json_integer_value(json_object_get(entry, "length"));
    struct spw_error err = {0};
    struct spw_model_config config;
    int rc = spw_config_parse(
        &config, &(struct spw_config_text){.config = text, .config_bytes = strlen(text)}, &err);
    CHECK_MSG(rc == 0, "%s", err.text);
    if (!rc) {
        float inv_freq[256], scaling;
        const struct spw_rope_config *rope = &config.rope[SPW_LAYER_FULL];
        CHECK(config.kv[0].head_dim == 2 * json_array_size(expected));
        CHECK(rope->rotary_dim == config.kv[0].head_dim);
        CHECK(!spw_rope_frequencies(rope, rope->rotary_dim, length, config.max_positions, inv_freq,
                                    &scaling));
        CHECK(scaling == (float)json_real_value(json_object_get(entry, "attention_scaling")));
        for (size_t i = 0; i < json_array_size(expected); i++) {
            float want = (float)json_real_value(json_array_get(expected, i));
            uint32_t apart = ulps(inv_freq[i], want);
            /* torch's vector powf and libm's differ in the last bit of about one value in 100; a
             * division afterwards can make two of it */
            CHECK_MSG(apart <= 2, "%s: pair %zu: %a, expected %a", text, i, (double)inv_freq[i],
                      (double)want);
            *n_equal += apart == 0;
            ++*n_all;
        }
    }
    spw_config_free(&config);
    free(text);
}

static void test_goldens(void)
{
    json_t *root = json_load_file("tests/golden/rope.json", 0, NULL);
    CHECK(json_array_size(root) >= 10);
    uint32_t n_equal = 0, n_all = 0;
    for (size_t i = 0; i < json_array_size(root); i++)
        check_entry(json_array_get(root, i), &n_equal, &n_all);
    CHECK_MSG(n_equal * 100 >= n_all * 95, "%u of %u frequencies are equal", n_equal, n_all);
    json_decref(root);
}

static void test_border(void)
{
    struct spw_rope_config rope = {.kind = SPW_ROPE_DYNAMIC, .theta = 1e4, .factor = 2};
    float at[4], past[4], fresh[4], scaling;
    CHECK(spw_rope_table(&rope, 512, 1) == SPW_ROPE_SHARED);
    CHECK(spw_rope_table(&rope, 512, 512) == SPW_ROPE_SHARED);
    CHECK(spw_rope_table(&rope, 512, 513) == 513);
    CHECK(!spw_rope_frequencies(&rope, 8, 1, 512, fresh, &scaling));
    CHECK(!spw_rope_frequencies(&rope, 8, 512, 512, at, &scaling));
    CHECK(!spw_rope_frequencies(&rope, 8, 513, 512, past, &scaling));
    CHECK(!memcmp(at, fresh, sizeof at));
    CHECK(memcmp(at, past, sizeof at));
    rope.kind = SPW_ROPE_LONG;
    rope.original_max_positions = 100;
    CHECK(spw_rope_table(&rope, 512, 100) == SPW_ROPE_SHARED);
    CHECK(spw_rope_table(&rope, 512, 101) == 101 && spw_rope_table(&rope, 512, 5000) == 101);
    rope.kind = SPW_ROPE_YARN;
    CHECK(spw_rope_table(&rope, 512, 513) == SPW_ROPE_SHARED);
}

/* The closed forms, in double, for what the goldens sample. */
static void test_closed_forms(void)
{
    struct spw_rope_config rope = {.kind = SPW_ROPE_DEFAULT, .theta = 1e4, .factor = 4};
    float inv_freq[64], scaling;
    CHECK(!spw_rope_frequencies(&rope, 128, 7, 1024, inv_freq, &scaling));
    CHECK(scaling == 1 && inv_freq[0] == 1);
    for (int i = 0; i < 64; i++)
        CHECK(fabs(inv_freq[i] * pow(1e4, 2 * i / 128.0) - 1) < 1e-6);
    rope.kind = SPW_ROPE_LINEAR;
    CHECK(!spw_rope_frequencies(&rope, 128, 7, 1024, inv_freq, &scaling));
    CHECK(inv_freq[0] == 0.25f);
    rope.kind = SPW_ROPE_LLAMA3; /* equal factors: no ramp, and no division by zero */
    rope.low_freq_factor = rope.high_freq_factor = 1;
    rope.original_max_positions = 1024;
    CHECK(!spw_rope_frequencies(&rope, 128, 7, 1024, inv_freq, &scaling));
    CHECK(inv_freq[0] == 1 && fabs(inv_freq[63] * 4 * pow(1e4, 126 / 128.0) - 1) < 1e-6);
}

static void test_bad_arguments(void)
{
    struct spw_rope_config rope = {.kind = SPW_ROPE_DEFAULT, .theta = 1e4, .factor = 1};
    float inv_freq[8], scaling;
    CHECK(spw_rope_frequencies(&rope, 0, 1, 10, inv_freq, &scaling) == -EINVAL);
    CHECK(spw_rope_frequencies(&rope, 3, 1, 10, inv_freq, &scaling) == -EINVAL);
    CHECK(spw_rope_frequencies(&rope, 4, 1, 0, inv_freq, &scaling) == -EINVAL);
    rope.kind = SPW_ROPE_DYNAMIC;
    CHECK(spw_rope_frequencies(&rope, 2, 1, 10, inv_freq, &scaling) == -EINVAL);
    rope.kind = SPW_ROPE_DEFAULT;
    rope.theta = 0; /* the second pair would be infinite */
    CHECK(spw_rope_frequencies(&rope, 4, 1, 10, inv_freq, &scaling) == -EINVAL);
}

int main(void)
{
    test_goldens();
    test_border();
    test_closed_forms();
    test_bad_arguments();
    return check_done();
}
