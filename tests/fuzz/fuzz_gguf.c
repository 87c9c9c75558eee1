/* libFuzzer target of a GGUF file: its header, what its keys say of the model, its tokenizer and
 * its chat template. What is accepted lies inside the file; what is refused has one line of text.
 *
 *   build/fuzz/fuzz_gguf -max_total_time=60 tests/fuzz/seeds/gguf */
#include "model/source/gguf_model.h"
#include "model/text/tokenizer/tokenizer_gguf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void expect(bool promise)
{
    if (!promise)
        abort();
}

static void expect_line(int rc, const struct spw_error *err)
{
    expect(!rc || (err->text[0] && !strchr(err->text, '\n')));
}

static void check_header(const struct spw_gguf *g, size_t bytes)
{
    for (size_t i = 0; i < g->tensors.n; i++) {
        const struct spw_tensor *t = &g->tensors.tensors[i];
        expect(!i || strcmp(g->tensors.tensors[i - 1].name, t->name) < 0);
        expect(g->header_bytes + t->offset + t->bytes <= bytes);
    }
}

static bool has_tensor(const struct spw_gguf *g, const char *name)
{
    for (size_t i = 0; i < g->tensors.n; i++)
        if (!strcmp(g->tensors.tensors[i].name, name))
            return true;
    return false;
}

static void use_config(const struct spw_gguf *g)
{
    struct spw_config_gguf facts = {.file = "f", .vocab = 100, .head = true};
    struct spw_model_config config;
    struct spw_error err = {0};
    if (spw_gguf_read_architecture(g, "f", &facts.architecture, &err)) {
        expect_line(-1, &err);
        return;
    }
    facts.rope_factors = has_tensor(g, "rope_freqs.weight");
    facts.v_is_k = has_tensor(g, "blk.0.attn_k.weight") && !has_tensor(g, "blk.0.attn_v.weight");
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s.", facts.architecture->name);
    expect(!spw_gguf_object(g, prefix, &facts.keys));
    expect(!spw_gguf_tokenizer_keys(g, &facts.tokenizer, &facts.default_tokens));
    int rc = spw_config_from_gguf(&config, &facts, &err);
    expect_line(rc, &err);
    if (!rc)
        expect(config.n_layers && config.max_positions);
    for (uint32_t l = 0; !rc && l < config.n_layers; l++) {
        const struct spw_kv_shape *kv = spw_config_kv(&config, l);
        expect(!spw_config_attends(&config, l) ||
               (config.n_heads % kv->n_heads == 0 && kv->head_dim % 2 == 0));
    }
    spw_config_free(&config);
    json_decref(facts.keys);
    json_decref(facts.tokenizer);
}

static void use_text(const struct spw_gguf *g)
{
    static const char text[] = "The h\xc3\xa9llo of 1234 <s>worlds\n\n  </s>";
    struct spw_tokenizer *t = NULL;
    struct spw_chat_template *chat = NULL;
    struct spw_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    int rc = spw_tokenizer_parse_gguf(&t, g, "f", &err);
    expect_line(rc, &err);
    spw_error_clear(&err);
    if (!rc)
        expect_line(spw_tokenizer_encode(t, text, sizeof text - 1, true, &ids, &n, &err), &err);
    for (size_t i = 0; i < n; i++)
        expect(ids[i] >= 0 && (uint32_t)ids[i] < spw_tokenizer_vocab_size(t));
    spw_free(ids);
    spw_tokenizer_close(t);
    spw_error_clear(&err);
    rc = spw_gguf_read_chat_template(&chat, g, "f", NULL, NULL, &err);
    expect_line(rc, &err);
    spw_chat_template_close(chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct spw_gguf g;
    struct spw_error err = {0};
    int rc = spw_gguf_parse(&g, data, bytes, "f", &err);
    expect_line(rc, &err);
    if (!rc) {
        check_header(&g, bytes);
        use_config(&g);
        use_text(&g);
    }
    spw_gguf_free(&g);
    expect(spw_alloc_outstanding() == 0);
    return 0;
}
