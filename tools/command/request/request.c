/* See request.h. */
#include "tools/command/request/request.h"

#include "base/grow.h"
#include "tools/command/transcribe.h"

#include <string.h>
#include <utf8proc.h>
#include <xxhash.h>

static void free_choice(struct request_choice *c)
{
    for (size_t i = 0; i < c->n_calls; i++) {
        spw_free(c->calls[i].name.text);
        spw_free(c->calls[i].arguments.text);
    }
    spw_free(c->calls);
    spw_free(c->text.text);
    spw_free(c->reasoning.text);
    spw_result_free(&c->result);
}

void request_free(struct request *x)
{
    for (size_t i = 0; x->choices && i < x->n_prompts * x->n_choices; i++)
        free_choice(&x->choices[i]);
    for (size_t i = 0; i < x->n_prompts; i++)
        spw_free(x->prompts[i].tokens);
    spw_free(x->choices);
    spw_free(x->prompts);
    spw_free(x->stop.items);
    spw_free(x->logit_bias);
    for (int k = 0; k < SPW_TOKEN_LISTS; k++)
        spw_free(x->token_lists[k]);
    spw_free(x->file);
    if (x->speech)
        cli_speech_close(x->speech);
    spw_free(x->speech);
    spw_free(x->tools_json);
    spw_grammar_close(x->grammar);
    json_decref(x->line);
    json_decref(x->id);
    *x = (struct request){0};
}

int request_add_piece(struct request_choice *c, const struct spw_answer_piece *p)
{
    if (p->kind == SPW_PIECE_TEXT)
        return spw_text_add(&c->text, p->text, p->bytes);
    if (p->kind == SPW_PIECE_REASONING)
        return spw_text_add(&c->reasoning, p->text, p->bytes);
    if (p->kind == SPW_PIECE_CALL) {
        SPW_TRY(spw_grow(&c->calls, &c->calls_capacity, c->n_calls + 1, sizeof *c->calls));
        c->calls[c->n_calls++] = (struct request_call){0};
    }
    struct request_call *call = &c->calls[p->call];
    call->is_complete = p->kind == SPW_PIECE_CALL_END;
    if (call->is_complete)
        return 0;
    return spw_text_add(p->kind == SPW_PIECE_CALL ? &call->name : &call->arguments, p->text,
                        p->bytes);
}

void request_call_id(char out[48], const char *prefix, const char *answer_id, size_t choice,
                     size_t call)
{
    const uint64_t key[] = {XXH3_64bits(answer_id, strlen(answer_id)), choice, call};
    const XXH128_hash_t hash = XXH3_128bits(key, sizeof key);
    snprintf(out, 48, "%.20s%016llx%08x", prefix, (unsigned long long)hash.high64,
             (unsigned)hash.low64);
}

int request_count_reasoning(struct request *x, size_t choice, const struct spw_tokenizer *t)
{
    struct request_choice *c = &x->choices[choice];
    const struct request_prompt *p = &x->prompts[choice / x->n_choices];
    if (!spw_reasoning_has_marks(&p->form))
        return 0;
    return spw_reasoning_count(&c->n_reasoning_tokens, &p->form, p->is_open, t, c->result.tokens,
                               c->result.n_tokens);
}

int request_open_parts(const struct request *x, size_t choice, struct spw_answer_parts **out)
{
    const struct request_prompt *p = &x->prompts[choice / x->n_choices];
    const struct spw_answer_parts_options o = {
        .reasoning = &p->form,
        .is_open = p->is_open,
        .tools = x->tools_json ? &p->tools : NULL,
        .tools_json = x->tools_json,
        .tools_bytes = x->tools_json ? strlen(x->tools_json) : 0,
    };
    return spw_answer_parts_open(out, &o);
}

static int add_piece(void *choice, const struct spw_answer_piece *p)
{
    return request_add_piece(choice, p);
}

int request_split(struct request *x, size_t choice, const struct spw_tokenizer *t)
{
    struct request_choice *c = &x->choices[choice];
    const struct spw_text whole = c->text;
    struct spw_answer_parts *parts;
    if (!whole.text)
        return 0;
    SPW_TRY(request_open_parts(x, choice, &parts));
    c->text = (struct spw_text){0};
    int rc = spw_answer_parts_push(parts, whole.text, whole.n, add_piece, c);
    rc = rc ? rc : spw_answer_parts_finish(parts, add_piece, c);
    spw_answer_parts_close(parts);
    spw_free(whole.text);
    return rc ? rc : request_count_reasoning(x, choice, t);
}

static int add_text(void *choice, const char *text, size_t bytes)
{
    struct request_choice *c = choice;
    return spw_text_add(&c->text, text, bytes);
}

/* All windows have one text. */
static int end_window(struct request *x, size_t choice, const struct spw_tokenizer *t)
{
    const size_t n = x->n_prompts;
    const struct cli_speech_text to = {t, add_text, &x->choices[0]};
    SPW_TRY(cli_speech_take(x->speech, &x->choices[choice].result, &to));
    if (cli_speech_ends(x->speech))
        return 0;
    SPW_TRY(spw_resize(&x->prompts, n + 1, sizeof *x->prompts));
    SPW_TRY(spw_resize(&x->choices, n + 1, sizeof *x->choices));
    x->prompts[n] = (struct request_prompt){.n = x->speech->n_tokens};
    x->choices[n] = (struct request_choice){0};
    x->n_prompts++;
    return 0;
}

int request_end_choice(struct request *x, size_t choice, const struct spw_tokenizer *t)
{
    x->choices[choice].has_ended = true;
    return x->speech ? end_window(x, choice, t) : request_split(x, choice, t);
}

/* What ends the reasoning of an answer; NULL: the answer begins at once. A call in channels names
 * its own channel. */
static const char *answer_begins_after(const struct request *x, const struct request_prompt *p)
{
    if (p->form.has_channels)
        return x->forces_call ? NULL : "final<|message|>";
    return p->is_open ? p->form.close : NULL;
}

struct spw_request request_ask(const struct request *x, size_t choice, bool text)
{
    const struct request_prompt *p = &x->prompts[choice / x->n_choices];
    const size_t k = choice % x->n_choices;
    struct spw_request r = {
        .prompt = p->tokens,
        .n_prompt = p->n,
        .max_new_tokens = x->max_new_tokens,
        .sampling = x->sampling,
        .text = text,
        .shown = p->shown,
        .n_shown = p->n_shown,
        .stop = x->stop.items,
        .n_stop = x->stop.n,
        .grammar = x->grammar,
        .grammar_after = answer_begins_after(x, p),
        .ignore_eos = x->ignore_eos,
        .logprobs = x->logprobs,
        .n_top_logprobs = x->n_top_logprobs,
        .prompt_logprobs = x->echo && x->logprobs && k == 0,
    };
    r.sampling.stream = k;
    r.beams = x->beams;
    r.beams.n_return = x->n_choices;
    if (x->speech)
        cli_speech_ask(x->speech, &r);
    return r;
}

uint64_t request_tokens(const struct request *x)
{
    uint64_t longest = 0;
    for (size_t i = 0; i < x->n_prompts; i++)
        longest = spw_max_u64(longest, x->prompts[i].n);
    return longest + x->max_new_tokens;
}

uint64_t request_bytes(const struct request *x)
{
    const struct spw_result *r = NULL;
    const uint64_t token = sizeof *r->tokens, most = x->max_new_tokens;
    const uint64_t logprob =
        x->logprobs ? sizeof *r->logprobs + x->n_top_logprobs * sizeof *r->top_logprobs : 0;
    const uint64_t n_answers = spw_max_u32(x->n_choices, x->beams.n_beams);
    uint64_t bytes = 0, lists = x->sampling.n_logit_bias * sizeof *x->sampling.logit_bias;
    for (int k = 0; k < SPW_TOKEN_LISTS; k++)
        lists += x->sampling.rules.lists[k].n * token;
    for (size_t i = 0; i < x->n_prompts; i++) {
        const uint64_t n = x->prompts[i].n;
        bytes += n * token + (x->echo ? n * logprob : 0); /* of choice 0 */
        bytes += n_answers * ((n + 2 * most) * token + most * logprob + lists);
        bytes += x->beams.n_beams * SPW_BEAM_TOKEN_BYTES * most;
    }
    return bytes;
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

int request_refuse_asked(struct request_refusal *why, const struct spw_error *err)
{
    struct spw_error named = *err;
    const char *key = cli_name_request(&named, false);
    cli_name_options(named.text);
    return request_refuse(why, 400, key ? "invalid_value" : NULL, key, "%s", named.text);
}

bool request_failed(struct request_refusal *why, const struct spw_event *e)
{
    const bool by_grammar = e->rc == -E2BIG || e->rc == -EILSEQ;
    char text[sizeof why->message];
    if (!e->rc)
        return false;
    snprintf(text, sizeof text, "%.*s", (int)e->text_bytes, e->text);
    cli_name_options(text);
    request_refuse(why, by_grammar ? 400 : 500, by_grammar ? "invalid_value" : NULL, NULL, "%s",
                   text);
    return true;
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
