/* Chat templates: every rendering and unit case of the shared data, error texts, limits, the
 * folder's files, and an allocation that fails anywhere.
 *
 *   test_chat_template --serve   answers lines of JSON {"template", "vars"} with {"text"} or
 * {"error"}: for tests/oracle/jinja_differential.py */
#include "model/text/chat_template.h"
#include "model/text/jinja/jinja.h"
#include "tests/command/fixed_now.h"
#include "tests/folder.h"

/* The text, or NULL and the error in *err. */
static char *render(const char *source, size_t source_bytes, const json_t *vars, size_t *bytes,
                    struct spw_error *err)
{
    const struct spw_jinja_input in = {vars, &fixed_now};
    struct spw_jinja *t = NULL;
    char *text = NULL;
    spw_error_clear(err);
    int rc = spw_jinja_parse(&t, source, source_bytes, "test", err);
    if (!rc)
        rc = spw_jinja_render(t, &in, &text, bytes, err);
    CHECK(!rc == !err->text[0] && !rc == !!text);
    spw_jinja_free(t);
    return text;
}

static json_t *load_shared(const char *file)
{
    const char *data = getenv("SPW_DATA");
    char path[4096];
    json_error_t error;
    snprintf(path, sizeof path, "%s/chat/%s", data ? data : "../shared/data", file);
    return json_load_file(path, JSON_ALLOW_NUL, &error);
}

/* ---- the shared unit cases ---- */

/* What these cases use and spillway does not know, as no template of a model needs it; the last two
 * change a list, which transformers refuses too. */
static const struct {
    const char *template, *error;
} refused[] = {
    {"{{ 'yes' if 'lowercase' is lower }}",
     "the template uses the test 'lower', which spillway does not know"},
    {"{{ 'yes' if x is sameas(false) }}",
     "the template uses the test 'sameas', which spillway does not know"},
    {"{{ 'yes' if 'trim' is filter }}",
     "the template uses the test 'filter', which spillway does not know"},
    {"{{ 'yes' if 'sequence' is test }}",
     "the template uses the test 'test', which spillway does not know"},
    {"{{ arr|truncate(9) }}",
     "the template uses the filter 'truncate', which spillway does not know"},
    {"{{ arr.pop() }}-{{ arr|join(',') }}",
     "access to attribute 'pop' of 'list' object is unsafe."},
    {"{% set _ = arr.append('d') %}{{ arr|join(',') }}",
     "access to attribute 'append' of 'list' object is unsafe."},
};

/* The error that a case must give, or NULL where it must render. */
static const char *refusal(const char *source)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!strcmp(source, refused[i].template))
            return refused[i].error;
    return NULL;
}

static void test_units(const json_t *file)
{
    size_t i;
    json_t *test;
    json_array_foreach(json_object_get(file, "tests"), i, test)
    {
        const char *source = json_string_value(json_object_get(test, "template"));
        const json_t *expect = json_object_get(test, "expect");
        struct spw_error err = {0};
        size_t bytes = 0;
        const char *error = refusal(source);
        char *text = render(source, strlen(source), json_object_get(test, "vars"), &bytes, &err);
        if (error)
            CHECK_MSG(!text && strstr(err.text, error), "%s: found %s%s, expected %s", source,
                      err.text, text ? text : "", error);
        else
            CHECK_MSG(text && bytes == json_string_length(expect) &&
                          !memcmp(text, json_string_value(expect), bytes),
                      "%s: %s\n  found %s\n  expected %s", source, err.text,
                      text ? text : "nothing", json_string_value(expect));
        spw_free(text);
    }
}

/* ---- the shared renderings ---- */

static char *read_text(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    char *text = malloc(1 << 20);
    *bytes = f && text ? fread(text, 1, 1 << 20, f) : 0;
    if (f)
        fclose(f);
    return text;
}

static void check_golden(const char *name, const char *source, size_t source_bytes,
                         const char *conversation, const json_t *vars, const json_t *golden)
{
    struct spw_error err = {0};
    size_t bytes = 0;
    char *text = render(source, source_bytes, vars, &bytes, &err);
    const json_t *expect = json_object_get(golden, "text");
    if (json_is_true(json_object_get(golden, "ok"))) {
        CHECK_MSG(text && bytes == json_string_length(expect) &&
                      !memcmp(text, json_string_value(expect), bytes),
                  "%s, %s: %s\n--- found\n%s\n--- expected\n%s", name, conversation, err.text,
                  text ? text : "nothing", json_string_value(expect));
    } else {
        /* "TypeError: reason": ours is "name: line N: reason" */
        const char *theirs = json_string_value(json_object_get(golden, "error"));
        const char *reason = strstr(theirs, ": ") + 2;
        CHECK_MSG(!text && strstr(err.text, reason), "%s, %s: found '%s', expected '%s'", name,
                  conversation, text ? text : err.text, reason);
    }
    spw_free(text);
}

static json_t *golden_vars(const json_t *conversation)
{
    json_t *vars = json_pack("{s:s, s:s, s:n, s:n}", "bos_token", "<BOS>", "eos_token", "<EOS>",
                             "tools", "documents");
    json_object_update(vars, (json_t *)(uintptr_t)conversation);
    return vars;
}

static void test_goldens(const json_t *file)
{
    const char *data = getenv("SPW_DATA"), *name, *conversation;
    json_t *renders, *golden;
    json_object_foreach(json_object_get(file, "renders"), name, renders)
    {
        char path[4096];
        size_t bytes;
        snprintf(path, sizeof path, "%s/chat/templates/%s", data ? data : "../shared/data", name);
        char *source = read_text(path, &bytes);
        CHECK_MSG(bytes, "%s", path);
        json_object_foreach(renders, conversation, golden)
        {
            json_t *vars =
                golden_vars(json_object_get(json_object_get(file, "conversations"), conversation));
            check_golden(name, source, bytes, conversation, vars, golden);
            json_decref(vars);
        }
        free(source);
    }
}

/* ---- folders ---- */

static void drop(const char *file)
{
    CHECK(!remove(in_folder(file)));
}

static struct spw_chat_request request(const char *messages)
{
    return (struct spw_chat_request){.messages_json = messages, .messages_bytes = strlen(messages)};
}

/* What the folder's template makes of a request, or the error's text without the folder's name. */
static const char *answer(const char *name, const struct spw_chat_request *q, char out[1024])
{
    struct spw_chat_template *t = NULL;
    struct spw_error err = {0};
    char *text = NULL;
    size_t bytes = 0;
    int rc = spw_chat_template_open(&t, folder, name, &err);
    if (!rc)
        rc = spw_chat_template_render(t, q, &text, &bytes, &err);
    CHECK(!rc == !err.text[0] && !rc == !!text);
    const char *error = strstr(err.text, folder) == err.text ? err.text + strlen(folder) : err.text;
    snprintf(out, 1024, "%s", rc ? error : text);
    spw_free(text);
    spw_chat_template_close(t);
    return out;
}

#define EXPECT(name, q, expected)                                                                  \
    do {                                                                                           \
        char found_[1024];                                                                         \
        CHECK_MSG(!strcmp(answer(name, &(q), found_), expected), "found    %s\n  expected %s",     \
                  found_, expected);                                                               \
    } while (0)

#define HI "[{\"role\": \"user\", \"content\": \"hi\"}]"

static void test_where_templates_lie(void)
{
    struct spw_chat_request q = request(HI);
    EXPECT(NULL, q,
           ": found no chat template (chat_template.jinja, or chat_template in "
           "tokenizer_config.json); put one there, or give the prompt as text");
    write_text("chat_template.json",
               "{\"chat_template\": \"processor {{ messages[0].content }}\"}");
    EXPECT(NULL, q, "processor hi");
    write_text("tokenizer_config.json",
               "{\"model_max_length\": 1000000000000000019884624838656, "
               "\"bos_token\": \"<s>\", \"eos_token\": {\"content\": "
               "\"</s>\"}, \"pad_token\": null, \"chat_template\": "
               "\"{{ bos_token }}config{{ eos_token }}{{ pad_token is defined }}\"}");
    EXPECT(NULL, q, "<s>config</s>False");
    write_text("chat_template.jinja", "file {{ bos_token }}\n");
    EXPECT(NULL, q, "file <s>");
    EXPECT("rag", q,
           ": found no chat template called rag (chat_template.jinja, or chat_template in "
           "tokenizer_config.json); put one there, or give the prompt as text");
    CHECK(!mkdir(in_folder("additional_chat_templates"), 0700));
    write_text("additional_chat_templates/rag.jinja", "rag {{ documents[0].title }}");
    q.documents_json = "[{\"title\": \"T\"}]";
    q.documents_bytes = strlen(q.documents_json);
    EXPECT("rag", q, "rag T");
    EXPECT("../x", q, ": found '../x' for a chat template's name");
    drop("additional_chat_templates/rag.jinja");
    drop("additional_chat_templates");
    drop("chat_template.jinja");
    drop("chat_template.json");
}

static void test_named_templates(void)
{
    static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]";
    struct spw_chat_request q = request(HI);
    write_text(
        "tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"default\", \"template\": \"plain {{ tools }}\"}, "
        "{\"name\": "
        "\"tool_use\", \"template\": \"tools {{ tools[0].function.name }}\"}, {\"name\": \"bad\", "
        "\"template\": \"\\n{{ 1 + }}\"}]}");
    EXPECT(NULL, q, "plain None");
    q.tools_json = tools;
    q.tools_bytes = sizeof tools - 1;
    EXPECT(NULL, q, "tools f");
    EXPECT("tool_use", q, "tools f");
    EXPECT("default", q, "plain [{'type': 'function', 'function': {'name': 'f'}}]");
    write_text("chat_template.json",
               "{\"chat_template\": {\"default\": \"other\", \"rag\": \"rag\"}}");
    EXPECT(NULL, q, "tools f");
    EXPECT("rag", q,
           ": found no chat template called rag (chat_template.jinja, or chat_template in "
           "tokenizer_config.json); put one there, or give the prompt as text");
    write_text("chat_template.jinja", "file"); /* and for tools, too */
    EXPECT(NULL, q, "file");
    drop("chat_template.jinja");
    drop("chat_template.json");
    EXPECT("bad", q, "/tokenizer_config.json: chat_template: line 2: found }}, expected a value");
    write_text("tokenizer_config.json", "{\"chat_template\": [}");
    EXPECT(NULL, q, "/tokenizer_config.json: line 1, column 20: found '}', expected a value");
    write_text("tokenizer_config.json", "{\"chat_template\": 5}");
    EXPECT(NULL, q,
           ": found no chat template (chat_template.jinja, or chat_template in "
           "tokenizer_config.json); put one there, or give the prompt as text");
    drop("tokenizer_config.json");
}

/* Where tokenizer_config.json is of an older version, or missing. */
static void test_special_tokens_map(void)
{
    struct spw_chat_request q = request(HI);
    write_text("chat_template.jinja", "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}");
    write_text("special_tokens_map.json",
               "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\"}");
    EXPECT(NULL, q, "<s>|</s>|");
    write_text("tokenizer_config.json", "{\"bos_token\": \"<b>\", \"pad_token\": \"<p>\"}");
    EXPECT(NULL, q, "<s>|</s>|<p>");
    write_text("special_tokens_map.json", "{\"bos_token\": null}");
    EXPECT(NULL, q, "||<p>");
    write_text("tokenizer_config.json", "{\"bos_token\": \"<b>\", \"added_tokens_decoder\": {}}");
    EXPECT(NULL, q, "<b>||");
    write_text("special_tokens_map.json", "{");
    EXPECT(NULL, q, "<b>||");
    drop("tokenizer_config.json");
    EXPECT(NULL, q,
           "/special_tokens_map.json: line 1, column 2: found the end of the text, expected a "
           "key in quotes");
    drop("special_tokens_map.json");
    drop("chat_template.jinja");
}

static void test_requests(void)
{
    struct spw_chat_request q = request(HI);
    write_text("chat_template.jinja",
               "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
               "{% if add_generation_prompt %}<assistant>{% endif %}{{ extra }}"
               "{{ strftime_now('%Y') if extra == 'year' }}");
    EXPECT(NULL, q, "<user>hi</>");
    q.add_generation_prompt = true;
    EXPECT(NULL, q, "<user>hi</><assistant>");
    q.continue_final_message = true;
    EXPECT(NULL, q,
           "add_generation_prompt and continue_final_message: found both, expected at most "
           "one");
    q.add_generation_prompt = false;
    EXPECT(NULL, q, "<user>hi");
    struct spw_chat_request spaced = request("[{\"role\": \"user\", \"content\": \"hi \\n\"}]");
    spaced.continue_final_message = true;
    EXPECT(NULL, spaced, "<user>hi"); /* the template trims, so the space is not kept */
    spaced = request("[{\"role\": \"user\", \"content\": \" h i\\u00a0\\u2003\\n\"}]");
    spaced.continue_final_message = true;
    EXPECT(NULL, spaced, "<user>h i"); /* nor are Unicode's spaces, as in Python */
    struct spw_chat_request none = request("[]");
    EXPECT(NULL, none, "");
    none.continue_final_message = true;
    EXPECT(NULL, none, "messages: found none, expected one to continue");
    q.continue_final_message = false;
    q.extra_json = "{\"extra\": \"year\"}";
    q.extra_bytes = strlen(q.extra_json);
    EXPECT(NULL, q,
           "/chat_template.jinja: line 1: strftime_now() asks for the date, and the caller "
           "gave none");
    q.now = &fixed_now;
    EXPECT(NULL, q, "<user>hi</>year2024");
    q.extra_json = "{\"tools\": []}";
    q.extra_bytes = strlen(q.extra_json);
    EXPECT(NULL, q, "extra variables: found 'tools', which has an option of its own");
    q.extra_json = "[]";
    q.extra_bytes = 2;
    EXPECT(NULL, q, "extra variables: expected a JSON object");
    struct spw_chat_request bad = request("[{]");
    EXPECT(NULL, bad, "messages: line 1, column 3: found ']', expected a key in quotes");
    bad = request("[1]");
    EXPECT(NULL, bad, "messages: item 0: expected a JSON object");
    bad.messages_json = NULL;
    EXPECT(NULL, bad, "messages: found none, expected a JSON list");
    write_text("chat_template.jinja", "{{ messages[0].role }}");
    q = request(HI);
    q.continue_final_message = true;
    EXPECT(NULL, q,
           "the chat template does not print the end of the last message, which is to be "
           "continued");
    write_text("chat_template.jinja",
               "{{ messages[0].content | upper | replace('_TAG', '_TAG ') }}");
    EXPECT(NULL, q,
           "the chat template changes the last message, which is to be continued; give a message "
           "that the template prints as it is");
    write_text("chat_template.jinja", "{{ messages[0].content | replace('i', 'ii') }}");
    struct spw_chat_request shown = request("[{\"role\": \"user\", \"content\": \"a hint\"}]");
    shown.continue_final_message = true;
    EXPECT(NULL, shown,
           "the chat template changes the last message, which is to be continued; give a message "
           "that the template prints as it is");
    write_text("chat_template.jinja", "{% set _ = messages.append(1) %}{{ messages | length }}");
    q.continue_final_message = false;
    EXPECT(NULL, q,
           "/chat_template.jinja: line 1: access to attribute 'append' of 'list' object is "
           "unsafe.");
}

/* Where a message is a list of parts, the last text is continued. */
static void test_continued_parts(void)
{
    struct spw_chat_request q =
        request("[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"one \"}, "
                "{\"type\": \"image\"}]}]");
    write_text("chat_template.jinja",
               "{% for p in messages[0].content %}[{{ p.text }}]{% endfor %}");
    q.continue_final_message = true;
    EXPECT(NULL, q, "[one ");
    q = request("[{\"role\": \"user\", \"content\": null}]");
    q.continue_final_message = true;
    EXPECT(NULL, q, "messages: the last one has no text to continue");
}

/* What a message's reasoning is called: as transformers fills its other names. */
static void test_reasoning(void)
{
    struct spw_chat_request q =
        request("[{\"role\": \"a\", \"reasoning\": \"r\"}, {\"role\": \"b\", \"thinking\": \"t\", "
                "\"reasoning_content\": null}, {\"role\": \"c\", \"reasoning_content\": null}]");
    write_text("chat_template.jinja", "{% for m in messages %}{{ m | tojson }}{% endfor %}");
    EXPECT(
        NULL, q,
        "{\"thinking\": \"r\", \"role\": \"a\", \"reasoning\": \"r\", \"reasoning_content\": \"r\"}"
        "{\"thinking\": \"t\", \"role\": \"b\", \"reasoning_content\": \"t\"}"
        "{\"role\": \"c\", \"reasoning_content\": null}");
}

static void test_allocations(void)
{
    struct spw_chat_request q = request(HI);
    char good[1024], found[1024];
    int64_t n = 0;
    write_text("chat_template.jinja", "{% for m in messages %}{{ m.content ~ m }}{% endfor %}");
    write_text("tokenizer_config.json", "{\"bos_token\": \"<s>\"}");
    q.continue_final_message = true;
    answer(NULL, &q, good);
    for (bool failed = true; failed && n < 10000; n++) {
        spw_alloc_fail_nth(n);
        answer(NULL, &q, found);
        spw_alloc_fail_nth(-1);
        failed = strcmp(found, good) != 0;
        CHECK_MSG(!failed || strstr(found, "out of memory"), "%s", found);
        CHECK_MSG(spw_alloc_outstanding() == 0, "allocation %lld leaks", (long long)n);
    }
    CHECK(n > 8 && n < 10000);
    drop("chat_template.jinja");
    drop("tokenizer_config.json");
}

static void test_folders(void)
{
    open_folder("chat_template");
    test_where_templates_lie();
    test_named_templates();
    test_special_tokens_map();
    test_requests();
    test_continued_parts();
    test_reasoning();
    test_allocations();
    close_folder();
}

/* ---- answering another program ---- */

static int serve(void)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    while ((n = getline(&line, &room, stdin)) > 0) {
        struct spw_error err = {0};
        size_t bytes = 0;
        json_t *question = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        const json_t *source = json_object_get(question, "template");
        char *text = render(json_string_value(source), json_string_length(source),
                            json_object_get(question, "vars"), &bytes, &err);
        json_t *answer =
            text ? json_pack("{s:s%}", "text", text, bytes) : json_pack("{s:s}", "error", err.text);
        char *out = json_dumps(answer, JSON_COMPACT);
        puts(out ? out : "{\"error\": \"cannot be written as JSON\"}");
        free(out);
        spw_free(text);
        json_decref(answer);
        json_decref(question);
    }
    free(line);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--serve"))
        return serve();
    json_t *units = load_shared("jinja_unit_tests.json");
    json_t *goldens = load_shared("template_goldens.json");
    if (units)
        test_units(units);
    if (goldens)
        test_goldens(goldens);
    else
        fprintf(stderr, "the shared renderings are not here: only our own cases are checked\n");
    test_folders();
    json_decref(units);
    json_decref(goldens);
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
