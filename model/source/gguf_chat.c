/* tokenizer.chat_template is the default template, tokenizer.chat_template.NAME another one: see
 * gguf_chat.h. */
#include "model/source/gguf_chat.h"

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

/* Adds the text of the token whose id a key has. */
static int add_token(const struct spw_gguf *g, json_t *tokens, const char *name, const char *key)
{
    const struct spw_gguf_value *id = spw_gguf_find(g, key);
    const struct spw_gguf_value *all = spw_gguf_find(g, "tokenizer.ggml.tokens");
    if (!id || id->array || id->type == SPW_GGUF_STRING || !all || !all->array ||
        all->type != SPW_GGUF_STRING)
        return 0;
    double wanted = spw_gguf_number(id, 0);
    const uint8_t *at = all->at, *end = at + all->bytes;
    struct spw_gguf_string s;
    for (uint64_t i = 0; i < all->n && spw_gguf_next_string(&at, end, &s); i++) {
        if ((double)i != wanted)
            continue;
        json_t *text = json_stringn(s.at, s.bytes); /* NULL: it is not UTF-8 */
        return text ? json_object_set_new(tokens, name, text) : 0;
    }
    return 0;
}

static json_t *read_tokens(const struct spw_gguf *g)
{
    static const char *const names[][2] = {
        {"bos_token", "tokenizer.ggml.bos_token_id"},
        {"eos_token", "tokenizer.ggml.eos_token_id"},
        {"unk_token", "tokenizer.ggml.unknown_token_id"},
        {"sep_token", "tokenizer.ggml.seperator_token_id"}, /* as the format spells it */
        {"pad_token", "tokenizer.ggml.padding_token_id"}};
    json_t *tokens = json_object();
    for (size_t i = 0; tokens && i < sizeof names / sizeof *names; i++)
        if (add_token(g, tokens, names[i][0], names[i][1])) {
            json_decref(tokens);
            return NULL;
        }
    return tokens;
}

int spw_gguf_read_chat_template(struct spw_chat_template **out, const struct spw_gguf *g,
                                const char *path, const char *name, struct spw_error *err)
{
    struct spw_gguf_string plain = find_template(g, name ? name : "default"), tools = {0};
    *out = NULL;
    if (!name)
        tools = find_template(g, "tool_use");
    if (!plain.at && !tools.at)
        return spw_fail(err, -ENOENT,
                        "%s: found no chat template%s%s (key tokenizer.chat_template); give the "
                        "prompt as text",
                        path, name ? " called " : "", name ? name : "");
    struct spw_chat_template_text text = {.file = path,
                                          .plain = plain.at,
                                          .plain_bytes = plain.bytes,
                                          .with_tools = tools.at,
                                          .with_tools_bytes = tools.bytes,
                                          .tokens = read_tokens(g)};
    return spw_chat_template_parse(out, &text, err);
}
