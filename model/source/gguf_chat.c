/* tokenizer.chat_template is the default template, tokenizer.chat_template.NAME another one: see
 * gguf_model.h. */
#include "model/source/gguf_model.h"
#include "model/text/chat_template_parts.h"

#include <stdio.h>
#include <string.h>

/* The text of a string key; NULL: there is none. */
static struct spw_gguf_string find_text(const struct spw_gguf *g, const char *key)
{
    const struct spw_gguf_value *v = spw_gguf_find(g, key);
    struct spw_gguf_string s = {0};
    if (!v || v->array || v->type != SPW_GGUF_STRING)
        return s;
    const uint8_t *at = v->at;
    return spw_gguf_next_string(&at, v->at + v->bytes, &s) ? s : (struct spw_gguf_string){0};
}

static struct spw_gguf_string find_template(const struct spw_gguf *g, const char *name)
{
    char key[256];
    bool plain = !strcmp(name, "default");
    snprintf(key, sizeof key, "tokenizer.chat_template%s%.200s", plain ? "" : ".",
             plain ? "" : name);
    return find_text(g, key);
}

/* Adds the text of a token. */
static int add_token(const struct spw_gguf *g, json_t *tokens, const char *name, const json_t *id)
{
    const struct spw_gguf_value *all = spw_gguf_find(g, "tokenizer.ggml.tokens");
    if (!json_is_integer(id) || !all || !all->array || all->type != SPW_GGUF_STRING)
        return 0;
    const uint8_t *at = all->at, *end = at + all->bytes;
    struct spw_gguf_string s;
    for (uint64_t i = 0; i < all->n && spw_gguf_next_string(&at, end, &s); i++) {
        if ((json_int_t)i != json_integer_value(id))
            continue;
        json_t *text = json_stringn(s.at, s.bytes); /* NULL: it is not UTF-8 */
        return text ? json_object_set_new(tokens, name, text) : 0;
    }
    return 0;
}

static json_t *read_tokens(const struct spw_gguf *g)
{
    static const char *const names[][2] = {
        {"bos_token", "bos_token_id"},
        {"eos_token", "eos_token_id"},
        {"unk_token", "unknown_token_id"},
        {"sep_token", "seperator_token_id"}, /* as the format spells it */
        {"pad_token", "padding_token_id"}};
    json_t *keys, *tokens = json_object();
    int rc = spw_gguf_tokenizer_keys(g, &keys, NULL);
    for (size_t i = 0; tokens && !rc && i < sizeof names / sizeof *names; i++)
        rc = add_token(g, tokens, names[i][0], json_object_get(keys, names[i][1]));
    json_decref(keys);
    if (rc) {
        json_decref(tokens);
        return NULL;
    }
    return tokens;
}

int spw_gguf_read_chat_template(struct spw_chat_template **out, const struct spw_gguf *g,
                                const char *path, const char *name, const char *file,
                                struct spw_error *err)
{
    if (file)
        return spw_chat_template_read(out, file, read_tokens(g), err);
    struct spw_gguf_string plain = find_template(g, name ? name : "default"), tools = {0};
    *out = NULL;
    if (!name)
        tools = find_template(g, "tool_use");
    if (!plain.at && !tools.at)
        return spw_fail(err, -ENOENT,
                        "%s: found no chat template%s%s (key tokenizer.chat_template); give the "
                        "prompt as text",
                        path, name ? " called " : "", name ? name : "");
    char own[4096];
    snprintf(own, sizeof own, "%s: tokenizer.chat_template", path);
    struct spw_chat_template_text text = {.name = own,
                                          .plain = plain.at,
                                          .plain_bytes = plain.bytes,
                                          .with_tools = tools.at,
                                          .with_tools_bytes = tools.bytes,
                                          .tokens = read_tokens(g)};
    return spw_chat_template_parse(out, &text, err);
}
