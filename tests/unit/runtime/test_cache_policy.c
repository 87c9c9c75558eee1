/* The cache policy: which setting wins, which settings contradict each other, and the texts. The
 * expected words are written by hand. */
#include "runtime/engine/cache_policy.h"

#include "runtime/spillway.h"
#include "tests/check.h"

#include <string.h>

static uint8_t full[] = {0, 0, 0, 0}, mixed[] = {1, 0, 1, 1}, sliding[] = {1, 1, 1, 1},
               chunked[] = {2, 2, 2, 0};

static struct spw_model_config model(uint8_t *kinds, const char *asked)
{
    struct spw_model_config c = {.model_type = "qwen2",
                                 .n_layers = 4,
                                 .layer_kinds = kinds,
                                 .window = kinds == full ? 0 : 24,
                                 .cache_by_generation = true};
    snprintf(c.cache_implementation, sizeof c.cache_implementation, "%s", asked);
    return c;
}

static struct spw_cache_policy make(uint8_t *kinds, const char *asked, const struct spw_options *o)
{
    struct spw_cache_policy p;
    struct spw_error err = {0};
    struct spw_model_config c = model(kinds, asked);
    CHECK_MSG(spw_cache_policy_make(&p, &c, SPW_DTYPE_BF16, o, &err) == 0, "%s", err.text);
    return p;
}

static void test_layers(void)
{
    struct spw_options none = {0};
    struct spw_cache_policy p = make(mixed, "", &none);
    const struct spw_cache_layers *f = &p.layers[SPW_LAYER_FULL], *s = &p.layers[SPW_LAYER_SLIDING];
    CHECK(f->n_layers == 1 && f->window == 0 && s->n_layers == 3 && s->window == 24);
    CHECK(strstr(s->why, "the rule of qwen2 models") && !*p.files_why && !p.notes_files);
    struct spw_model_config c = model(mixed, "");
    struct spw_error err = {0};
    c.kinds_listed = true;
    CHECK(!spw_cache_policy_make(&p, &c, SPW_DTYPE_F32, &none, &err));
    CHECK(strstr(p.layers[SPW_LAYER_FULL].why, "layer_types in config.json"));
    CHECK(p.kv == SPW_DTYPE_F32);
}

static void test_precision(void)
{
    struct spw_options o = {0};
    struct spw_cache_policy p = make(full, "", &o);
    CHECK(p.kv == SPW_DTYPE_BF16 && strstr(p.kv_why, "options.kv is not given"));
    p = make(full, "quantized", &o);
    CHECK(p.kv == SPW_DTYPE_BF16 && p.notes_files);
    CHECK_MSG(strstr(p.files_why, "generation_config.json asks for \"quantized\": done, as int8") &&
                  strstr(p.files_why, "bf16"),
              "%s", p.files_why);
    o.kv = SPW_DTYPE_F16; /* the user's option wins, and needs no note */
    p = make(full, "quantized", &o);
    CHECK(p.kv == SPW_DTYPE_F16 && !p.notes_files && strstr(p.kv_why, "options.kv asks"));
    CHECK_MSG(strstr(p.files_why, "overruled: options.kv asks for f16"), "%s", p.files_why);
}

/* The request of the files never changes layers and precision. */
static void test_words(void)
{
    static const struct {
        uint8_t *kinds;
        const char *asked;
    } cases[] = {{full, "static"},          {full, "offloaded"},       {full, "hybrid"},
                 {mixed, "hybrid"},         {mixed, "sliding_window"}, {full, "sliding_window"},
                 {sliding, "dynamic_full"}, {chunked, "hybrid"},       {full, "mamba"}};
    struct spw_options o = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct spw_cache_policy p = make(cases[i].kinds, cases[i].asked, &o),
                                q = make(cases[i].kinds, "", &o);
        CHECK_MSG(strstr(p.files_why, "no effect: the layers decide"), "%s: %s", cases[i].asked,
                  p.files_why);
        CHECK(!memcmp(p.layers, q.layers, sizeof p.layers) && p.kv == q.kv && !p.notes_files);
        CHECK(p.host == q.host && p.disk == q.disk);
    }
    struct spw_model_config c = model(full, "hybrid");
    struct spw_cache_policy p;
    struct spw_error err = {0};
    c.cache_by_generation = false;
    CHECK(!spw_cache_policy_make(&p, &c, SPW_DTYPE_BF16, &o, &err));
    CHECK(!strncmp(p.files_why, "config.json asks", 16));
    /* The longest word that a file can have does not cut the reason off. */
    p = make(full, "0123456789012345678901234567890", &o);
    CHECK(strstr(p.files_why, "where these lie"));
}

/* A fallback that --on-oom excludes is not used, and a named precision never changes. */
static void test_on_oom(void)
{
    const unsigned spill = SPW_ON_OOM_SPILL, quantize = SPW_ON_OOM_QUANTIZE;
    const struct {
        struct spw_options o;
        uint8_t *kinds;
        const char *asked;
        bool stays, may_quantize;
    } cases[] = {
        {{.disk_dir = "."}, full, "", false, true},
        {{.disk_dir = ".", .on_oom = spill | quantize}, mixed, "", false, true},
        {{.disk_dir = ".", .on_oom = spill}, full, "", false, false},
        {{.disk_dir = ".", .on_oom = quantize}, full, "", true, true},
        {{.disk_dir = ".", .on_oom = SPW_ON_OOM_FAIL}, full, "", true, false},
        {{.disk_dir = ".", .kv = SPW_DTYPE_BF16}, full, "", false, false},
        {{.disk_dir = ".", .precision = SPW_KV_INT8}, full, "", false, false},
        {{.disk_dir = "."}, full, "quantized", false, false},
        {{.disk_dir = "."}, sliding, "", false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct spw_cache_policy p = make(cases[i].kinds, cases[i].asked, &cases[i].o);
        CHECK_MSG(p.stays == cases[i].stays && p.may_quantize == cases[i].may_quantize, "case %zu",
                  i);
        CHECK(p.disk == !p.stays && p.host == !p.stays);
        CHECK(!p.stays || strstr(p.tiers_why, "options.on_oom"));
    }
    struct spw_model_config c = model(full, "");
    struct spw_cache_policy p;
    struct spw_error err = {0};
    struct spw_options o = {.on_oom = SPW_ON_OOM_FAIL | SPW_ON_OOM_SPILL};
    CHECK(spw_cache_policy_make(&p, &c, SPW_DTYPE_F32, &o, &err) == -EINVAL && err.text[0]);
}

static void test_tiers(void)
{
    const uint64_t none = SPW_NONE;
    static const enum spw_backend_kind cpu = SPW_BACKEND_CPU, cuda = SPW_BACKEND_CUDA;
    const struct {
        struct spw_options o;
        bool host, disk;
        const char *says;
    } cases[] = {
        {{0}, true, false, "no options.disk_dir"},
        {{.host_bytes = none}, false, false, "options.host_bytes allows no bytes"},
        {{.disk_dir = ".", .backend = cpu}, true, true, "the host gets KV"},
        {{.disk_dir = ".", .backend = cuda}, true, true, "options.disk_dir names"},
        {{.disk_dir = ".", .backend = cpu, .host_bytes = 9}, true, true, "budget"},
        {{.disk_dir = ".", .host_bytes = none}, false, true, "options.host_bytes allows no bytes"},
        {{.disk_dir = ".", .disk_bytes = none}, true, false, "options.disk_bytes allows no bytes"},
        {{.disk_dir = ".", .disk_write_limit = none},
         true,
         false,
         "options.disk_write_limit allows no KV"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct spw_cache_policy p = make(full, "", &cases[i].o);
        CHECK_MSG(p.host == cases[i].host && p.disk == cases[i].disk, "case %zu", i);
        CHECK_MSG(strstr(p.tiers_why, cases[i].says), "case %zu: %s", i, p.tiers_why);
    }
}

static void test_contradictions(void)
{
    static const struct {
        struct spw_options o;
        const char *one, *other; /* parts of the text for both settings */
    } cases[] = {
        {{.disk_bytes = 77}, "disk memory: 77B", "no disk"},
        {{.disk_write_limit = 78}, "disk write limit: 78B", "no disk"},
        {{.disk_dir = ".", .disk_bytes = 77, .disk_write_limit = SPW_NONE},
         "disk memory: 77B",
         "options.disk_write_limit allows no writes"},
        {{.kv = (enum spw_dtype)9}, "kv type 9", "f16 or bf16"},
        {{.backend = (enum spw_backend_kind)3}, "backend 3", "cpu or cuda"},
        {{.compute = SPW_DTYPE_F16}, "compute type 2", "f32 or bf16"},
        {{.compute = SPW_DTYPE_F64}, "compute type 4", "f32 or bf16"},
        {{.compute = SPW_DTYPE_Q8_0}, "compute type 7", "f32 or bf16"},
        {{.compute = (enum spw_dtype)77}, "compute type 77", "f32 or bf16"},
        {{.io = (enum spw_io_kind)3}, "io 3", "uring or threads"},
        {{.precision = (enum spw_kv_precision)4}, "kv precision 4", "int8:int4 or int4"},
        {{.on_oom = 5}, "on oom 5", "both of them, or fail"},
    };
    struct spw_model_config c = model(full, "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct spw_cache_policy p;
        struct spw_error err = {0};
        CHECK(spw_cache_policy_make(&p, &c, SPW_DTYPE_F32, &cases[i].o, &err) == -EINVAL);
        CHECK_MSG(strstr(err.text, cases[i].one) && strstr(err.text, cases[i].other) &&
                      !strchr(err.text, '\n'),
                  "%s", err.text);
    }
    /* Two settings that both exclude a disk do not contradict each other. */
    struct spw_options none = {.disk_bytes = SPW_NONE, .disk_write_limit = SPW_NONE};
    CHECK(!make(full, "", &none).disk);
}

int main(void)
{
    test_layers();
    test_precision();
    test_words();
    test_tiers();
    test_on_oom();
    test_contradictions();
    return check_done();
}
