/* See record.h. The forms are OpenAI's: a line of a batch's output, with the body that
 * /v1/chat/completions or /v1/completions would have answered. "spillway" in a body has facts of
 * our own, which clients ignore. */
#include "tools/command/request/record.h"

#include "tools/command/input/speech.h"
#include "tools/command/request/record_logprobs.h"
#include "tools/command/output/report.h"

#include <string.h>
#include <xxhash.h>

/* ---- names ---- */

/* "0123456789abcdef" */
static void find_id(char out[17], const struct request *x)
{
    const uint64_t key[] = {x->digest, x->number};
    snprintf(out, 17, "%016llx", (unsigned long long)XXH3_64bits(key, sizeof key));
}

static json_t *name_of(const struct request *x, const char *prefix)
{
    char id[17];
    find_id(id, x);
    return json_sprintf("%s%s", prefix, id);
}

static json_t *model_name(const struct request *x, const struct request_names *names)
{
    json_t *model = json_object_get(x->body, "model");
    return json_is_string(model) ? json_incref(model) : CLI_JSON(names->model);
}

/* ---- an answer ---- */

/* An answer that max_new_tokens has cut may have a call that is not complete. */
const char *request_record_finish(const struct request_choice *c)
{
    if (c->result.finish == SPW_FINISH_LENGTH)
        return "length";
    for (size_t i = 0; i < c->n_calls; i++)
        if (c->calls[i].is_complete)
            return "tool_calls";
    return "stop";
}

static json_t *tool_calls(const struct request_choice *c, size_t choice, const char *answer_id)
{
    json_t *list = json_array();
    for (size_t i = 0; i < c->n_calls; i++) {
        char id[48];
        request_call_id(id, "call_", answer_id, choice, i);
        const struct request_call *call = &c->calls[i];
        const struct cli_field function[] = {
            {"name", cli_json_grown(&call->name)},
            {"arguments", cli_json_grown(&call->arguments)},
        };
        const struct cli_field fields[] = {
            {"id", json_string(id)},
            {"type", json_string("function")},
            {"function", CLI_OBJECT(function)},
        };
        cli_json_append(&list, CLI_OBJECT(fields));
    }
    return list;
}

/* The prompt as the request has it; the text of its tokens, if the request has only these. */
json_t *request_record_prompt(const struct request *x, size_t prompt, const struct spw_tokenizer *t)
{
    json_t *text = json_object_get(x->body, "prompt");
    const struct request_prompt *p = &x->prompts[prompt];
    if (json_is_array(text) && !json_is_integer(json_array_get(text, 0)))
        text = json_array_get(text, prompt);
    if (json_is_string(text))
        return json_incref(text);
    char *decoded;
    size_t bytes;
    if (!t)
        return json_string("");
    if (spw_tokenizer_decode(t, p->tokens, p->n, true, &decoded, &bytes))
        return NULL;
    text = json_stringn(decoded, bytes);
    spw_free(decoded);
    return text;
}

json_t *request_record_text(const json_t *before, const char *text, size_t bytes)
{
    struct spw_text both = {0};
    spw_text_add(&both, json_string_value(before), json_string_length(before));
    spw_text_add(&both, text, bytes);
    json_t *value = cli_json_grown(&both);
    spw_free(both.text);
    return value;
}

static json_t *chat_choice(const struct request *x, size_t i, const struct request_names *names)
{
    const struct request_choice *c = &x->choices[i];
    char id[17];
    find_id(id, x);
    const struct cli_field message[] = {
        {"role", json_string("assistant")},
        {c->reasoning.n ? "reasoning_content" : NULL, cli_json_grown(&c->reasoning)},
        {"content", CLI_OR_NULL(c->text.n || !c->n_calls, cli_json_grown(&c->text))},
        {"refusal", json_null()},
        {c->n_calls ? "tool_calls" : NULL, tool_calls(c, i, names->id ? names->id : id)},
    };
    const struct cli_field fields[] = {
        {"index", CLI_JSON(i)},
        {"message", CLI_OBJECT(message)},
        {"logprobs",
         CLI_OR_NULL(x->logprobs, request_chat_logprobs(&c->result, 0, names->tokenizer))},
        {"finish_reason", json_string(request_record_finish(c))},
    };
    return CLI_OBJECT(fields);
}

static json_t *completion_choice(const struct request *x, size_t i,
                                 const struct request_names *names)
{
    const struct request_choice *c = &x->choices[i];
    const size_t prompt = i / x->n_choices;
    const struct spw_result *first = &x->choices[prompt * x->n_choices].result;
    json_t *before = x->echo ? request_record_prompt(x, prompt, names->tokenizer) : NULL;
    const struct request_completion answer = {.prompt = &x->prompts[prompt],
                                              .result = &c->result,
                                              .of_prompt = first,
                                              .echo = before,
                                              .tokenizer = names->tokenizer};
    struct request_place place = {0};
    json_t *logprobs = CLI_OR_NULL(x->logprobs, request_completion_logprobs(&answer, &place));
    request_place_free(&place);
    const struct cli_field fields[] = {
        {"index", CLI_JSON(i)},
        {"text", x->echo && !before ? NULL : request_record_text(before, c->text.text, c->text.n)},
        {"logprobs", logprobs},
        {"finish_reason", json_string(request_record_finish(c))},
    };
    json_decref(before);
    return CLI_OBJECT(fields);
}

/* A prompt counts once, however many answers it has. Answers that are computed beside each other
 * share the prompt: the least that one of them reused was there before all of them. */
json_t *request_record_usage(const struct request *x)
{
    uint64_t n_prompt = 0, n_cached = 0, n_new = 0, n_reasoning = 0;
    for (size_t p = 0; p < x->n_prompts; p++) {
        uint64_t cached = x->prompts[p].n;
        for (size_t k = 0; k < x->n_choices; k++) {
            const struct request_choice *c = &x->choices[p * x->n_choices + k];
            cached = spw_min_u64(cached, c->result.n_reused);
            n_new += c->result.n_tokens;
            n_reasoning += c->n_reasoning_tokens;
        }
        n_prompt += x->prompts[p].n;
        n_cached += cached;
    }
    const struct cli_field details[] = {{"cached_tokens", CLI_JSON(n_cached)}};
    const struct cli_field new_details[] = {{"reasoning_tokens", CLI_JSON(n_reasoning)}};
    const char *name = x->form == REQUEST_CHAT ? "completion_tokens_details" : NULL;
    const struct cli_field fields[] = {
        {"prompt_tokens", CLI_JSON(n_prompt)},
        {"completion_tokens", CLI_JSON(n_new)},
        {"total_tokens", CLI_JSON(n_prompt + n_new)},
        {"prompt_tokens_details", CLI_OBJECT(details)},
        {name, CLI_OBJECT(new_details)},
    };
    return CLI_OBJECT(fields);
}

json_t *request_record_hashes(const struct request *x)
{
    json_t *hashes = json_array();
    for (size_t i = 0; i < x->n_prompts * x->n_choices; i++)
        cli_json_append(
            &hashes, json_sprintf("%016llx", (unsigned long long)x->choices[i].result.logits_hash));
    return hashes;
}

/* Whoever has these can repeat the answer, and see that the answer is the same. */
static json_t *own_facts(const struct request *x)
{
    const struct cli_field fields[] = {
        {"seed", json_integer((json_int_t)x->sampling.seed)},
        {"logits_hash", request_record_hashes(x)},
    };
    json_t *facts = CLI_OBJECT(fields), *scores = x->beams.n_beams ? json_array() : NULL;
    for (size_t i = 0; scores && i < x->n_prompts * x->n_choices; i++)
        cli_json_append(&scores, json_real(x->choices[i].result.score));
    if (scores)
        cli_json_add(&facts, "scores", scores);
    return facts;
}

json_t *request_record_body(const struct request *x, const struct request_names *names)
{
    const bool chat = x->form == REQUEST_CHAT;
    const char *prefix = chat ? "chatcmpl-" : "cmpl-";
    json_t *choices = json_array();
    for (size_t i = 0; i < x->n_prompts * x->n_choices; i++)
        cli_json_append(&choices, (chat ? chat_choice : completion_choice)(x, i, names));
    const struct cli_field fields[] = {
        {"id", names->id ? json_sprintf("%s%s", prefix, names->id) : name_of(x, prefix)},
        {"object", json_string(chat ? "chat.completion" : "text_completion")},
        {"created", json_integer(names->created)},
        {"model", model_name(x, names)},
        {"choices", choices},
        {"usage", request_record_usage(x)},
        {"system_fingerprint", json_null()},
        {"spillway", own_facts(x)},
    };
    return CLI_OBJECT(fields);
}

/* ---- lines ---- */

static json_t *id_or_null(const struct request *x)
{
    return CLI_OR_NULL(x->id, json_incref(x->id));
}

/* Takes the references. `response`: the body that has this status; null for status 0. */
static json_t *openai_line(const struct request *x, int status, json_t *response, json_t *error)
{
    if (status) {
        const struct cli_field fields[] = {
            {"status_code", CLI_JSON(status)},
            {"request_id", name_of(x, "req_")},
            {"body", response},
        };
        response = CLI_OBJECT(fields);
    }
    const struct cli_field fields[] = {
        {"id", name_of(x, "batch_req_")},
        {"custom_id", id_or_null(x)},
        {"response", response},
        {"error", error},
    };
    return CLI_OBJECT(fields);
}

static void add_short(json_t **to, const struct request *x, size_t i,
                      const struct request_names *names)
{
    const struct request_choice *c = &x->choices[i];
    const struct spw_result *result = x->speech ? &x->speech->answer : &c->result;
    cli_json_add(to, "text", CLI_OR_NULL(names->tokenizer, cli_json_grown(&c->text)));
    if (c->reasoning.n)
        cli_json_add(to, "reasoning", cli_json_grown(&c->reasoning));
    cli_report_result(to, x->prompts[x->n_prompts - 1].n, result); /* one, or that of a window */
    if (c->n_reasoning_tokens)
        cli_json_add(to, "n_reasoning", CLI_JSON(c->n_reasoning_tokens));
    /* An answer does not depend on the budgets, and waterlines do. */
    json_object_del(*to, "waterlines");
}

static json_t *short_line(const struct request *x, const struct request_names *names)
{
    const struct cli_field fields[] = {
        {x->id ? "id" : NULL, id_or_null(x)},
        {x->id ? NULL : "line", CLI_JSON(x->number)},
    };
    json_t *line = CLI_OBJECT(fields);
    if (x->n_choices == 1) {
        add_short(&line, x, 0, names);
        return line;
    }
    json_t *choices = json_array();
    for (size_t i = 0; i < x->n_choices; i++) {
        const struct cli_field index[] = {{"index", CLI_JSON(i)}};
        json_t *choice = CLI_OBJECT(index);
        add_short(&choice, x, i, names);
        cli_json_append(&choices, choice);
    }
    cli_json_add(&line, "choices", choices);
    return line;
}

json_t *request_record(const struct request *x, const struct request_names *names)
{
    return x->form == REQUEST_SHORT
               ? short_line(x, names)
               : openai_line(x, 200, request_record_body(x, names), json_null());
}

static json_t *reason(const struct request_refusal *why, bool has_type)
{
    const char *param = why->param[0] ? why->param : NULL;
    const struct cli_field error[] = {
        {"message", CLI_JSON((const char *)why->message)},
        {has_type ? "type" : NULL, CLI_JSON(why->type)},
        {has_type ? "param" : NULL, CLI_JSON(param)},
        {"code", CLI_JSON(why->code)},
    };
    return CLI_OBJECT(error);
}

json_t *request_record_reason(const struct request_refusal *why)
{
    return reason(why, true);
}

json_t *request_record_error(const struct request *x, const struct request_refusal *why)
{
    const bool is_short = x->form == REQUEST_SHORT, executed = why->status != 0;
    json_t *line, *error = reason(why, is_short || executed);
    if (is_short) {
        const struct cli_field fields[] = {
            {x->id ? "id" : NULL, id_or_null(x)},
            {"error", error},
        };
        line = CLI_OBJECT(fields);
    } else if (executed) {
        const struct cli_field body[] = {{"error", error}};
        line = openai_line(x, why->status, CLI_OBJECT(body), json_null());
    } else {
        line = openai_line(x, 0, json_null(), error);
    }
    if (x->number)
        cli_json_add(&line, "line", CLI_JSON(x->number));
    return line;
}
