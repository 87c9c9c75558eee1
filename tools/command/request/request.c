/* See item.h. */
#include "tools/command/request/request.h"

#include <string.h>
#include <utf8proc.h>

void request_free(struct request *x)
{
    for (size_t i = 0; x->choices && i < x->n_prompts * x->n_choices; i++) {
        spw_free(x->choices[i].text);
        spw_free(x->choices[i].reasoning);
        spw_result_free(&x->choices[i].result);
    }
    for (size_t i = 0; i < x->n_prompts; i++)
        spw_free(x->prompts[i].tokens);
    spw_free(x->choices);
    spw_free(x->prompts);
    spw_free(x->stop.items);
    spw_free(x->logit_bias);
    spw_free(x->text);
    spw_free(x->file);
    json_decref(x->line);
    json_decref(x->id);
    *x = (struct request){0};
}

int request_split(struct request *x, size_t choice, const struct spw_tokenizer *t)
{
    struct request_choice *c = &x->choices[choice];
    const struct request_prompt *p = &x->prompts[choice / x->n_choices];
    if (!c->text || !spw_reasoning_has_marks(&p->form))
        return 0;
    struct spw_reasoning_parts parts = {.answer = spw_alloc(c->n_text + 1),
                                        .reasoning = spw_alloc(c->n_text + 1)};
    if (!parts.answer || !parts.reasoning) {
        spw_free(parts.answer);
        spw_free(parts.reasoning);
        return -ENOMEM;
    }
    spw_reasoning_split(&parts, &p->form, p->is_open, c->text, c->n_text);
    spw_free(c->text);
    c->text = parts.answer;
    c->n_text = parts.n_answer;
    c->reasoning = parts.reasoning;
    c->n_reasoning = parts.n_reasoning;
    return spw_reasoning_count(&c->n_reasoning_tokens, &p->form, p->is_open, t, c->result.tokens,
                               c->result.n_tokens);
}

uint64_t request_tokens(const struct request *x)
{
    uint64_t longest = 0;
    for (size_t i = 0; i < x->n_prompts; i++)
        longest = spw_max_u64(longest, x->prompts[i].n);
    return longest + x->max_new_tokens;
}

int request_shorten(struct request *x, uint64_t limit)
{
    const uint64_t too_many = spw_sub_u64(request_tokens(x), limit);
    if (too_many && (!x->max_is_default || too_many >= x->max_new_tokens))
        return -E2BIG;
    x->max_new_tokens -= too_many;
    return 0;
}

/* Bytes that are no UTF-8 become '?': a message may quote a broken line, and it may be cut. */
static void make_text(char *text)
{
    utf8proc_int32_t c;
    for (utf8proc_uint8_t *at = (utf8proc_uint8_t *)text; *at;) {
        utf8proc_ssize_t n = utf8proc_iterate(at, -1, &c);
        if (n <= 0)
            *at = '?';
        at += n > 0 ? n : 1;
    }
}

int request_refuse(struct request_refusal *why, int status, const char *code, const char *param,
                   const char *format, ...)
{
    va_list args;
    *why = (struct request_refusal){
        .status = status,
        .type = status >= 500 ? "server_error" : "invalid_request_error",
        .code = code,
    };
    snprintf(why->param, sizeof why->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(why->message, sizeof why->message, format, args);
    va_end(args);
    make_text(why->param);
    make_text(why->message);
    return status >= 500 ? -EIO : -EINVAL;
}

int request_refuse_memory(struct request_refusal *why)
{
    request_refuse(why, 500, NULL, NULL, "out of memory");
    return -ENOMEM;
}

const char *request_found(const json_t *value, char text[64])
{
    static const char *const kinds[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "a list", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null",    [JSON_STRING] = "a text"};
    if (!value)
        return "nothing";
    if (json_is_array(value) && !json_array_size(value))
        return "an empty list";
    if (json_is_integer(value))
        snprintf(text, 64, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value)) {
        snprintf(text, 60, "%.15g", json_real_value(value));
        strcat(text, strpbrk(text, ".e") ? "" : ".0"); /* 3.0 is no whole number */
    } else if (json_is_string(value) && json_string_length(value) < 40)
        snprintf(text, 64, "\"%s\"", json_string_value(value));
    else
        return kinds[json_typeof(value)];
    return text;
}

int request_refuse_value(struct request_refusal *why, const char *key, const json_t *value,
                         const char *expected)
{
    char text[64];
    return request_refuse(why, 400, "invalid_value", key, "%s: found %s, expected %s", key,
                          request_found(value, text), expected);
}
