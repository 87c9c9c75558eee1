/* The header of a GGUF file: what a writer wrote is read back, each thing that is wrong is refused
 * with one line that names it, every prefix of a file and random damage are refused or read, and
 * nothing leaks. */
#include "model/source/gguf_model.h"
#include "model/source/gguf_write.h"
#include "quant/types.h"
#include "tests/check.h"
#include "tests/source_config.h"

#include <stdlib.h>
#include <string.h>

static uint64_t rng;

struct file {
    uint8_t *at; /* from malloc */
    size_t n;
};

/* ---- a file made by hand ---- */

static void put(struct file *f, const void *from, size_t n)
{
    f->at = realloc(f->at, f->n + n + 1);
    memcpy(f->at + f->n, from, n);
    f->n += n;
}

static void put_u32(struct file *f, uint32_t x)
{
    put(f, &x, sizeof x);
}

static void put_u64(struct file *f, uint64_t x)
{
    put(f, &x, sizeof x);
}

static void put_text(struct file *f, const char *text)
{
    put_u64(f, strlen(text));
    put(f, text, strlen(text));
}

static struct file begin(uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    struct file f = {0};
    put(&f, "GGUF", 4);
    put_u32(&f, version);
    put_u64(&f, n_tensors);
    put_u64(&f, n_keys);
    return f;
}

static void pad(struct file *f, size_t n)
{
    static const uint8_t zeros[64];
    while (f->n % n)
        put(f, zeros, 1);
}

/* A header and what follows it, in words: u5, a number of 32 bits; q5, one of 64; tname, a text; z,
 * a byte of zeros; p, zeros up to a multiple of 32. */
static struct file file_of(uint64_t n_tensors, uint64_t n_keys, const char *words)
{
    struct file f = begin(3, n_tensors, n_keys);
    char text[256], *rest;
    snprintf(text, sizeof text, "%s", words);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        if (*word == 'u')
            put_u32(&f, (uint32_t)strtoul(word + 1, NULL, 0));
        else if (*word == 'q')
            put_u64(&f, strtoull(word + 1, NULL, 0));
        else if (*word == 't')
            put_text(&f, word + 1);
        else if (*word == 'z')
            put(&f, "", 1);
        else
            pad(&f, 32);
    }
    return f;
}

static int parse(struct spw_gguf *g, const struct file *f, struct spw_error *err)
{
    return spw_gguf_parse(g, f->at, f->n, "f.gguf", err);
}

/* Takes the file. */
static void refuse(struct file f, const char *message)
{
    struct spw_gguf g;
    struct spw_error err = {0};
    int rc = parse(&g, &f, &err);
    CHECK_MSG(rc == -EINVAL && !strncmp(err.text, "f.gguf: ", 8) && strstr(err.text, message) &&
                  !strchr(err.text, '\n') && !g.values && !g.tensors.tensors,
              "%d '%s', not '%s'", rc, err.text, message);
    free(f.at);
}

/* ---- what is refused ---- */

static void test_version(void)
{
    struct file f = begin(1, 0, 0);
    refuse(f, "found version 1 of GGUF, expected 2 or 3; convert the model again");
    refuse(begin(4, 0, 0), "found version 4 of GGUF, expected 2 or 3; this program is too old");
    refuse(begin(0, 0, 0), "found version 0 of GGUF, expected 2 or 3");
    refuse(begin(3u << 24, 0, 0), "found a big-endian file, expected little-endian");
    f = begin(3, 0, 0);
    f.at[0] = 'g';
    refuse(f, "found a file that is not GGUF, expected a GGUF file or a Hugging Face");
}

static void test_contents(void)
{
    static const struct {
        uint64_t n_tensors, n_keys;
        const char *words, *message;
    } cases[] = {
        {0, 32, "",
         "the header says that the file has 32 keys, but only 0 bytes follow; the file is cut "
         "short or damaged"},
        {0, UINT64_MAX, "", "the file has 18446744073709551615 keys, but only 0 bytes"},
        {0, 1, "t u0 u0", "found a key without a name, expected a name"},
        {0, 1, "tsome.key u13", "key some.key: found type 13, expected a type from 0 to 12"},
        {0, 1, "tsome.key u9 u9 q1",
         "key some.key: found type 9, expected a type of elements from 0 to 12, and no array"},
        {0, 1, "tsome.key u9 u8 q0x1fffffffffffffff",
         "key some.key: found the end of the file, expected more bytes"},
        {0, 1, "tsome.key u9 u10 q0x2000000000000001",
         "key some.key: found the end of the file, expected more bytes"},
        {0, 1, "q0xffffffffffffffff q0", "a key: found the end of the file"},
        {0, 2, "tsome.key u7 z tsome.key u7 z",
         "key some.key: found it twice, expected each key once"},
        {0, 1, "tgeneral.alignment u4 u33",
         "key general.alignment: expected a power of two from 1 to 1048576"},
        /* of a tensor: its name, the number of its sizes, the sizes, its type, its offset */
        {UINT64_MAX, 0, "", "the file has 18446744073709551615 tensors, but only 0 bytes"},
        {1, 0, "t u1 q32 u0 q0",
         "found a tensor whose name has 0 bytes or a zero, expected 1 to 64"},
        {1, 0, "taaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa u1 q32 u0 q0",
         "found a tensor whose name has 65 bytes, expected 1 to 64"},
        {1, 0, "tw u5 q32 q1 q1 q1 q1 u0 q0", "tensor w: found 5 dimensions, expected at most 4"},
        {1, 0, "tw u2 q0x10000000000 q0x10000000000 u0 q0",
         "tensor w: found 2^64 elements or more"},
        {1, 0, "tw u1 q0x2000000000000000 u28 q0", "tensor w: found 2^64 bytes or more"},
        {1, 0, "tw u1 q32 u4 q0", "tensor w: found type 4, expected a type of GGUF"},
        {1, 0, "tw u1 q33 u8 q0",
         "tensor w: found rows of 33 numbers, expected a multiple of 32 for type Q8_0"},
        {1, 0, "tw u1 q32 u0 q32",
         "tensor w: found offset 32, expected 0, the end of the tensor before it"},
        {1, 0, "tw u1 q32 u0 q0 p",
         "tensor w: found its end at byte 128 of the data, expected at most 0"},
        {2, 0, "tw u1 q32 u0 q0 tw u1 q32 u0 q128",
         "tensor w: found it twice, expected each tensor once"},
        {2, 0, "tw u1 q32 u0 q0 tv u1 q32 u0 q96", "tensor v: found offset 96, expected 128"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse(file_of(cases[i].n_tensors, cases[i].n_keys, cases[i].words), cases[i].message);
    struct file f = begin(3, 0, 4097);
    for (int i = 0; i < 4097 * 14; i += 8)
        put_u64(&f, 0);
    refuse(f, "found 4097 keys in the header, expected at most 4096");
}

/* ---- what is written is read ---- */

static struct file write_all(void)
{
    struct spw_gguf_writer w = {0};
    struct file f = {0};
    const uint64_t shape[] = {3, 64};
    const int64_t numbers[] = {-5, 5};
    const struct spw_gguf_string texts[] = {{"ab", 2}, {"", 0}};
    char *at = NULL;
    FILE *out = open_memstream(&at, &f.n);
    spw_gguf_add_string(&w, "general.architecture", "llama");
    spw_gguf_add_u32(&w, "llama.block_count", 7);
    spw_gguf_add_f32(&w, "llama.rope.freq_base", 1.5f);
    spw_gguf_add_bool(&w, "llama.flag", true);
    spw_gguf_add(&w, "llama.numbers", SPW_GGUF_I64, true, numbers, 2);
    spw_gguf_add(&w, "llama.same", SPW_GGUF_I64, true, (int64_t[]){8, 8, 8}, 3);
    spw_gguf_add_strings(&w, "llama.texts", texts, 2);
    spw_gguf_add_tensor(&w, "b.weight", SPW_DTYPE_Q8_0, 2, shape);
    spw_gguf_add_tensor(&w, "a.weight", SPW_DTYPE_F32, 1, shape);
    CHECK(!spw_gguf_write_header(&w, out));
    for (int i = 0; i < 3 * 2 * 34 + 12; i++)
        CHECK(fputc(i, out) != EOF &&
              (i != 3 * 2 * 34 - 1 || !spw_gguf_write_padding(out, 3 * 2 * 34)));
    CHECK(!spw_gguf_write_padding(out, 12) && !fclose(out));
    spw_gguf_writer_free(&w);
    f.at = (uint8_t *)at;
    return f;
}

static void test_round(void)
{
    struct file f = write_all();
    struct spw_gguf g;
    struct spw_error err = {0};
    json_t *o = NULL;
    CHECK_MSG(!parse(&g, &f, &err), "%s", err.text);
    CHECK(g.n_values == 7 && g.tensors.n == 2 && g.header_bytes % 32 == 0);
    const struct spw_tensor *a = &g.tensors.tensors[0], *b = &g.tensors.tensors[1];
    CHECK(!strcmp(a->name, "a.weight") && a->n_dims == 1 && a->shape[0] == 3 && a->bytes == 12);
    CHECK(!strcmp(b->name, "b.weight") && b->n_dims == 2 && b->shape[0] == 3 && b->shape[1] == 64);
    CHECK(b->offset == 0 && b->bytes == 204 && a->offset == 224 && a->dtype == SPW_DTYPE_F32);
    CHECK(!strcmp(b->dtype_name, "Q8_0") && b->dtype == SPW_DTYPE_Q8_0);
    CHECK(f.at[g.header_bytes] == 0 && f.at[g.header_bytes + 224] == 204);
    CHECK(!spw_gguf_object(&g, "llama.", &o) && json_object_size(o) == 6);
    CHECK(json_integer_value(json_object_get(o, "block_count")) == 7);
    CHECK(json_real_value(json_object_get(o, "rope.freq_base")) == 1.5);
    CHECK(json_is_true(json_object_get(o, "flag")));
    CHECK(json_integer_value(json_array_get(json_object_get(o, "numbers"), 0)) == -5);
    CHECK(json_integer_value(json_object_get(o, "same")) == 8);
    CHECK(!strcmp(json_string_value(json_object_get(o, "texts")), "a list of 2"));
    CHECK(spw_gguf_find(&g, "llama.flag") && !spw_gguf_find(&g, "llama.fla"));
    json_decref(o);
    spw_gguf_free(&g);
    f.at[4] = 2; /* version 2 is the same */
    CHECK(!parse(&g, &f, &err));
    spw_gguf_free(&g);
    free(f.at);
}

/* Tensors begin at multiples of general.alignment. */
static void test_alignment(void)
{
    const uint64_t one[] = {8};
    struct spw_gguf g;
    struct spw_error err = {0};
    struct file f = file_of(2, 1, "tgeneral.alignment u4 u64 tb u1 q8 u0 q0 ta u1 q8 u0 q64");
    f.at[4] = 2;
    pad(&f, 64);
    size_t header = f.n;
    put(&f, one, 8);
    pad(&f, 64);
    for (int i = 0; i < 4; i++)
        put(&f, one, 8); /* the last tensor needs no padding */
    CHECK_MSG(!parse(&g, &f, &err), "%s", err.text);
    CHECK(g.header_bytes == header && g.tensors.tensors[0].offset == 64 && f.n == header + 96);
    spw_gguf_free(&g);
    pad(&f, 64);
    CHECK(!parse(&g, &f, &err)); /* but may have it, */
    spw_gguf_free(&g);
    put(&f, one, 1); /* and no more */
    CHECK(parse(&g, &f, &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "f.gguf: found 129 bytes of data, expected at most 128"), "%s",
              err.text);
    spw_error_clear(&err);
    f.n = header + 95;
    refuse(f, "tensor a: found its end at byte 96 of the data, expected at most 95");
}

/* Blocks of every type have the size that products assume. */
static void test_types(void)
{
    for (uint32_t id = 0; id < 64; id++) {
        const struct spw_gguf_tensor_type *t = spw_gguf_tensor_type(id);
        if (!t || t->dtype == SPW_DTYPE_AUTO)
            continue;
        CHECK_MSG(t->elements == spw_type_of(t->dtype).elements &&
                      t->bytes == spw_type_of(t->dtype).bytes && t->id == id &&
                      spw_gguf_tensor_type_of(t->dtype) == t,
                  "%s", t->name);
    }
    /* others have a name only */
    const struct spw_gguf_tensor_type *t = spw_gguf_tensor_type(40);
    CHECK(t && !strcmp(t->name, "NVFP4") && t->dtype == SPW_DTYPE_AUTO);
    t = spw_gguf_tensor_type(41);
    CHECK(t && !strcmp(t->name, "Q1_0") && t->dtype == SPW_DTYPE_AUTO);
}

/* ---- damage ---- */

/* The file is refused with one line, or what was read lies inside the file. */
static void check_damaged(const struct file *f)
{
    struct spw_gguf g;
    struct spw_error err = {0};
    uint8_t *exact = malloc(f->n ? f->n : 1); /* so that a sanitizer sees a read behind it */
    memcpy(exact, f->at, f->n);
    int rc = spw_gguf_parse(&g, exact, f->n, "f.gguf", &err);
    CHECK_MSG(rc == 0 || (rc == -EINVAL && err.text[0] && !strchr(err.text, '\n')), "%d '%s'", rc,
              err.text);
    for (size_t i = 0; !rc && i < g.tensors.n; i++)
        CHECK(g.header_bytes + g.tensors.tensors[i].offset + g.tensors.tensors[i].bytes <= f->n);
    json_t *o = NULL;
    if (!rc && !spw_gguf_object(&g, "llama.", &o))
        json_decref(o);
    spw_gguf_free(&g);
    free(exact);
}

static void test_damage(void)
{
    struct file f = write_all();
    struct spw_gguf g;
    CHECK(!parse(&g, &f, NULL));
    size_t header = g.header_bytes;
    spw_gguf_free(&g);
    for (size_t n = 0; n <= f.n; n++)
        check_damaged(&(struct file){f.at, n});
    for (int i = check_amount(40000); i > 0; i--) {
        struct file copy = {malloc(f.n), f.n};
        memcpy(copy.at, f.at, f.n);
        for (uint64_t k = check_range(&rng, 1, 3); k > 0; k--)
            copy.at[check_random(&rng) % header] =
                (uint8_t)(check_random(&rng) % 3 ? check_random(&rng)
                                                 : 255 * (check_random(&rng) & 1));
        check_damaged(&copy);
        free(copy.at);
    }
    free(f.at);
}

static void test_failed_allocations(void)
{
    struct file f = write_all();
    int rc = -ENOMEM;
    for (int64_t n = 0; rc == -ENOMEM; n++) {
        struct spw_gguf g;
        struct spw_error err = {0};
        spw_alloc_fail_nth(n);
        rc = parse(&g, &f, &err);
        spw_alloc_fail_nth(-1);
        CHECK(!rc || (rc == -ENOMEM && err.text[0]));
        spw_gguf_free(&g);
        CHECK(spw_alloc_outstanding() == 0);
    }
    CHECK(rc == 0);
    free(f.at);
}

/* ---- names ---- */

static void test_names(void)
{
    static const struct {
        const char *architecture, *gguf, *hf; /* hf NULL: there is none */
    } cases[] = {
        {"llama", "token_embd.weight", "model.embed_tokens.weight"},
        {"llama", "blk.12.ffn_norm.weight", "model.layers.12.post_attention_layernorm.weight"},
        {"gemma3", "blk.12.ffn_norm.weight", "model.layers.12.pre_feedforward_layernorm.weight"},
        {"gemma3", "blk.0.post_ffw_norm.weight",
         "model.layers.0.post_feedforward_layernorm.weight"},
        {"qwen2", "blk.3.attn_q.bias", "model.layers.3.self_attn.q_proj.bias"},
        {"gemma4", "blk.1.pre_ffw_norm_2.weight",
         "model.layers.1.pre_feedforward_layernorm_2.weight"},
        {"gemma4", "blk.1.layer_output_scale.weight", "model.layers.1.layer_scalar"},
        {"gemma4", "blk.1.ffn_gate_inp.scale", "model.layers.1.router.scale"},
        {"gemma4", "blk.1.ffn_down_exps.scale", "model.layers.1.router.per_expert_scale"},
        {"gemma4", "blk.1.ffn_gate_up_exps.weight",
         "model.layers.1.mlp.experts.gate_up_proj.weight"},
        {"gemma4", "per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
        {"gpt-oss", "blk.0.attn_sinks.weight", "model.layers.0.self_attn.sinks"},
        {"glm4moe", "blk.46.nextn.eh_proj.weight", "model.layers.46.eh_proj.weight"},
        {"glm4moe", "blk.46.nextn.eh_proj", NULL},
        {"llama", "blk.0.ffn_gate_inp.weight.scale", NULL},
        {"llama", "blk.0.laurel_l.weight", NULL},
        {"llama", "blk.00.attn_q.weight", NULL},
        {"llama", "blk.+1.attn_q.weight", NULL},
        {"llama", "blk.1.attn_q", NULL},
        {"llama", "blk.1.weight", NULL},
        {"llama", "blk.1..weight", NULL},
        {"llama", "blk.123456.attn_q.weight", NULL},
        {"llama", "blk.1.attn_q.scale", NULL},
        {"gemma3", "v.blk.0.attn_q.weight", "v.blk.0.attn_q.weight"}, /* of images: not used */
        {"gemma4", "mm.a.input_projection.weight", "mm.a.input_projection.weight"},
        {"llama", "s.blk.0.attn_q.weight", NULL},
        {"gptoss", "blk.0.attn_sinks", "model.layers.0.self_attn.sinks"},
        {"gptoss", "blk.0.attn_out.weight", "model.layers.0.self_attn.o_proj.weight"},
        {"gptoss", "blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[SPW_GGUF_MOST_HF_NAME] = "";
        bool found = spw_gguf_hf_name(
            spw_gguf_architecture_find(cases[i].architecture, false, false), cases[i].gguf, out);
        CHECK_MSG(found == (cases[i].hf != NULL) && (!found || !strcmp(out, cases[i].hf)), "%s: %s",
                  cases[i].gguf, out);
    }
}

int main(void)
{
    rng = check_seed();
    test_version();
    test_contents();
    test_round();
    test_alignment();
    test_types();
    test_names();
    test_damage();
    test_failed_allocations();
    return check_done();
}
