/* Reasoning in chat, batch and summarize. A tiny model has the tokens <think> and </think>, and its
 * template opens the reasoning of each answer. What is shown, stored and given back to the model is
 * compared with the text of `generate` for the same prompt, cut at the first </think>. The same
 * with marks that are special tokens, which `generate` does not print. */
#include "tests/command/batch_files.h"
#include "tests/command/command_json.h"
#include "tests/command/terminal.h"
#include "tests/engine/tiny_model.h"

/* Leaves out the reasoning of earlier answers. */
static const char template[] =
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% if m.role == 'assistant' %}#"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<a><think>{% endif %}";

/* </think> is more likely than other tokens, and <think> never comes. */
#define DRAW                                                                                       \
    "--temperature 1.5 --seed 5 --max-new-tokens 90 --ignore-eos --logit-bias 97=3 "               \
    "--logit-bias 96=-100"

/* Tokens 94 and 95 are a newline and a space. */
static void write_thinking(const char *name, const char *special)
{
    static const char none[] = "\"added_tokens\":[]";
    char json[2 * BYTE_TOKENIZER_BYTES];
    byte_tokenizer_json(json);
    char *at = strstr(json, none), *rest = spw_strdup(at + sizeof none - 1);
    sprintf(at,
            "\"added_tokens\":[{\"id\":96,\"content\":\"<think>\",\"special\":%s},"
            "{\"id\":97,\"content\":\"</think>\",\"special\":%s}]%s",
            special, special, rest);
    spw_free(rest);
    memcpy(strstr(json, "\xc3\x83\":94"), "\xc4\x8a", 2);
    memcpy(strstr(json, "\xc2\xa9\":95"), "\xc4\xa0", 2);
    write_text(name, json);
}

static void make_models(void)
{
    struct tiny_model tiny = tiny_models[0];
    tiny.vocab = 98;
    tiny.positions = 100000;
    open_folder("reasoning");
    command_limits();
    tiny_model_write(&tiny, in_folder("plain"));
    write_text("plain/chat_template.jinja", template);
    CHECK(sh("cp -r plain special") == 0);
    write_thinking("plain/tokenizer.json", "false");
    write_thinking("special/tokenizer.json", "true");
}

/* The parts of an answer. */
struct parts {
    char reasoning[4096], answer[4096];
};

/* The parts of the answer to a rendered prompt. */
static struct parts parts_of(const char *prompt)
{
    struct parts p = {0};
    write_text("prompt", prompt);
    CHECK(sh("\"$S\" generate plain --device cpu --prompt-file prompt " DRAW) == 0);
    const char *end = strstr(out, "</think>");
    CHECK_MSG(end, "no </think> in '%s'", out);
    if (!end)
        return p;
    const char *begin = out + strspn(out, "\n");
    const char *answer = end + strlen("</think>");
    strcpy(p.answer, answer + strspn(answer, "\n"));
    while (end > begin && end[-1] == '\n')
        end--;
    snprintf(p.reasoning, sizeof p.reasoning, "%.*s", (int)(end - begin), begin);
    CHECK(*p.reasoning && *p.answer);
    return p;
}

/* ---- chat ---- */

static void test_messages(const char *model, const struct parts *p)
{
    char both[sizeof *p + 8];
    write_text("q.json", "[{\"role\":\"user\",\"content\":\"Hello\"}]");
    CHECK(sh("\"$S\" chat %s --device cpu --messages q.json " DRAW, model) == 0);
    CHECK_MSG(!strcmp(out, p->answer), "'%s' is not '%s'", out, p->answer);
    CHECK(sh("\"$S\" chat %s --device cpu --messages q.json --show-reasoning " DRAW, model) == 0);
    snprintf(both, sizeof both, "%s\n\n%s", p->reasoning, p->answer);
    CHECK_MSG(!strcmp(out, both), "'%s' is not '%s'", out, both);
}

/* The second turn: the template leaves out the first reasoning, so the conversation is computed
 * again from the end of the first prompt on. */
static void test_turns(const char *model, const struct parts *p)
{
    char prompt[sizeof p->answer + 64], both[2 * sizeof *p];
    snprintf(prompt, sizeof prompt, "<u>Hello<a>%s#<u>Again<a><think>", p->answer);
    const struct parts second = parts_of(prompt);
    write_text("input", "Hello\nAgain\n/save s.json\n");
    CHECK(sh("rm -f s.json; \"$S\" chat %s --device cpu --report r.json " DRAW " <input", model) ==
          0);
    snprintf(both, sizeof both, "%s\n%s\n", p->answer, second.answer);
    CHECK_MSG(!strcmp(out, both), "'%s' is not '%s'", out, both);
    json_t *messages = parse_file("s.json"), *r = parse_file("r.json");
    CHECK(json_array_size(messages) == 4);
    for (size_t i = 0; i < 2; i++) {
        const json_t *m = json_array_get(messages, 2 * i + 1);
        const struct parts *its = i ? &second : p;
        CHECK(!strcmp(text_at(m, "content"), its->answer));
        CHECK(!strcmp(text_at(m, "reasoning_content"), its->reasoning));
    }
    const json_t *turns = json_object_get(r, "turns");
    CHECK_MSG(number(json_array_get(turns, 1), "n_reused") ==
                  number(json_array_get(turns, 0), "n_prompt") - 1,
              "%lld reused", number(json_array_get(turns, 1), "n_reused"));
    CHECK(!strstr(err, "again")); /* no warning */
    json_decref(messages);
    json_decref(r);
    /* The saved conversation goes on with the same tokens. */
    CHECK(sh("(echo /load s.json; echo /undo; echo Again) | \"$S\" chat %s --device cpu " DRAW,
             model) == 0);
    snprintf(both, sizeof both, "%s\n", second.answer);
    CHECK_MSG(!strcmp(out, both), "'%s' is not '%s'", out, both);
}

/* Runs a command on a terminal. What the terminal got, or NULL: there are none here. */
static const char *on_terminal(const char *command, int *status)
{
    static struct terminal t;
    if (!terminal_open(&t, 80, command))
        return NULL;
    *status = terminal_close(&t);
    return t.text;
}

/* On a terminal the reasoning is dim. Where it is not shown, a line says that the model reasons. */
static void test_terminal(const struct parts *p)
{
    char both[sizeof *p + 32];
    int status = 0;
    const char *shown =
        on_terminal("stty -onlcr; exec \"$S\" chat plain --device cpu --progress never --messages "
                    "q.json --show-reasoning " DRAW,
                    &status);
    if (!shown)
        return;
    snprintf(both, sizeof both, "\033[2m%s\033[0m\n\n%s\n", p->reasoning, p->answer);
    CHECK_MSG(status == 0 && strstr(shown, both), "'%s' is not in '%s'", both, shown);
    shown = on_terminal("stty -onlcr; timeout --foreground -s INT 3 \"$S\" chat plain --device cpu "
                        "--messages q.json --ignore-eos --max-new-tokens 90000 --logit-bias "
                        "97=-100 --context 99000",
                        &status);
    const char *line = strstr(shown, "\r\033[Kreasoning, ");
    CHECK_MSG(line &&
                  (strstr(line, " of at most 90000 new tokens  ") || strstr(line, "/90000 new")),
              "'%s'", shown);
    const char *last = strrchr(shown, '\r'); /* the line is removed */
    CHECK_MSG(last && !strncmp(last, "\r\033[Kspillway: ", 13), "'%s'", shown);
}

/* An answer that is cut off inside its reasoning. */
static void test_no_answer(void)
{
    CHECK(sh("\"$S\" chat plain --device cpu --messages q.json --max-new-tokens 5 --logit-bias "
             "97=-100") == 0);
    CHECK(!*out);
    CHECK_MSG(strstr(err, "given no answer; --show-reasoning"), "'%s'", err);
}

/* ---- jobs ---- */

/* Of the tokens of a short line: those up to </think>, which is token 97. */
static size_t n_reasoning_tokens(const json_t *line)
{
    const json_t *tokens = json_object_get(line, "tokens");
    size_t n = 0;
    while (n < json_array_size(tokens) && json_integer_value(json_array_get(tokens, n)) != 97)
        n++;
    return n + 1;
}

static void check_line(const json_t *line, const struct parts *p)
{
    static json_int_t n_before; /* the lines have the same answer, in either order */
    const json_t *body = json_object_get(json_object_get(line, "response"), "body");
    const json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    const json_t *m = body ? json_object_get(choice, "message") : line;
    CHECK(!strcmp(text_at(m, body ? "content" : "text"), p->answer));
    CHECK(!strcmp(text_at(m, body ? "reasoning_content" : "reasoning"), p->reasoning));
    const json_t *details =
        json_object_get(json_object_get(body, "usage"), "completion_tokens_details");
    const json_int_t n = json_integer_value(body ? json_object_get(details, "reasoning_tokens")
                                                 : json_object_get(line, "n_reasoning"));
    CHECK(n > 1 && (!n_before || n == n_before));
    CHECK(body || (size_t)n == n_reasoning_tokens(line));
    n_before = n;
}

static void test_batch(const char *model, const struct parts *p)
{
    static char lines[1 << 16];
    write_text("in.jsonl",
               "{\"id\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}\n"
               "{\"custom_id\": \"2\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", "
               "\"body\": {\"model\": \"m\", \"seed\": 5, \"temperature\": 1.5, \"ignore_eos\": "
               "true, \"max_tokens\": 90, \"logit_bias\": {\"97\": 3, \"96\": -100}, \"messages\": "
               "[{\"role\": "
               "\"user\", \"content\": \"Hello\"}]}}\n"
               "{\"id\": 3, \"prompt\": \"<u>Hello<a>\"}\n");
    CHECK(sh("rm -f answers*; \"$S\" batch %s " RUN
             " --input in.jsonl --output answers.jsonl " DRAW,
             model) == 0);
    CHECK(read_file("answers.jsonl", lines, sizeof lines));
    size_t n = 0;
    for (char *at = lines, *end; (end = strchr(at, '\n')); at = end + 1, n++) {
        *end = 0;
        json_t *line = parse(at);
        if (json_integer_value(json_object_get(line, "id")) == 3) /* a prompt as it is */
            CHECK(!json_object_get(line, "reasoning"));
        else
            check_line(line, p);
        json_decref(line);
    }
    CHECK(n == 3);
}

static void test_summarize(const char *model)
{
    CHECK(sh("rm -rf docs ins sum* && mkdir docs ins") == 0);
    write_text("docs/a.txt", "one two three");
    write_text("ins/whole.txt", "W {title}, {length}, {language}:\nabout {focus}\n{text}\nS:");
    write_text("ins/part.txt", "P {part} of {parts} of {title}:\n{text}\nS:");
    write_text("ins/merge.txt", "M {parts} of {title}:\n{text}\nS:");
    const struct parts p = parts_of("<u>W docs/a.txt, 20, Latin:\none two three\nS:<a><think>");
    CHECK(sh("\"$S\" summarize %s docs " RUN " --output sum.jsonl --instructions ins --length 20 "
             "--language Latin " DRAW,
             model) == 0);
    json_t *line = parse_file("sum.jsonl");
    const char *text = text_at(line, "text"), *found = strstr(p.answer, text);
    CHECK_MSG(*text && found, "'%s' is not in '%s'", text, p.answer); /* without blanks around it */
    char *all = json_dumps(line, 0);
    CHECK(!strstr(all, "reasoning"));
    free(all);
    json_decref(line);
    CHECK(sh("\"$S\" summarize %s docs " RUN " --output sum2.jsonl --instructions ins --length 20 "
             "--language Latin --max-new-tokens 5 --logit-bias 97=-100",
             model) != 0);
    static char errors[1 << 12];
    read_file("sum2.jsonl.errors", errors, sizeof errors);
    CHECK_MSG(strstr(errors, "found reasoning in all 5 tokens"), "'%s' '%s'", errors, err);
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    make_models();
    const struct parts p = parts_of("<u>Hello<a><think>");
    static const char *const models[] = {"plain", "special"};
    for (size_t i = 0; i < 2; i++) {
        test_messages(models[i], &p);
        test_turns(models[i], &p);
        test_batch(models[i], &p);
        test_summarize(models[i]);
    }
    test_terminal(&p);
    test_no_answer();
    sh("rm -r %s", folder);
    return check_done();
}
