/* `spillway chat`, through pipes and through a terminal: a tiny model with a tokenizer of bytes (a
 * committed golden model, and a random one with slow answers) and a small chat template. Answers
 * are compared with those of `spillway generate` for the rendered text or the same token ids, and
 * reused tokens are counted. Skipped without the command. */
#include "tests/byte_tokenizer.h"
#include "tests/command/command_run.h"
#include "tests/engine/tiny_model.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>

#define TEMPLATE                                                                                   \
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% if m.role == 'assistant' %}#"       \
    "{% endif %}{% endfor %}{% if tools %}<t>{{ tools[0].name }}{% endif %}"                       \
    "{% if documents %}<d>{{ documents[0].text }}{% endif %}"                                      \
    "{% if add_generation_prompt %}<a>{% endif %}"

static void write_file(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    CHECK(file && fputs(text, file) >= 0);
    if (file)
        fclose(file);
}

/* Removes the files that the input saves to: /save replaces no other conversation. */
static void remove_saves(const char *input)
{
    char path[256];
    for (const char *at = input; (at = strstr(at, "/save "));) {
        at += strlen("/save ");
        snprintf(path, sizeof path, "%s/%.*s", folder, (int)strcspn(at, "\r\n"), at);
        remove(path);
    }
}

/* Runs a chat with the model m; `input` is its stdin. */
__attribute__((format(printf, 2, 3))) static int chat(const char *input, const char *format, ...)
{
    char options[512];
    va_list args;
    va_start(args, format);
    vsnprintf(options, sizeof options, format, args);
    va_end(args);
    write_file("input", input);
    remove_saves(input);
    return sh("\"$S\" chat m --device cpu %s <input", options);
}

static json_t *load(const char *name)
{
    char path[256];
    json_error_t e;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    json_t *j = json_load_file(path, 0, &e);
    CHECK_MSG(j, "%s: %s", name, e.text);
    return j;
}

static long long number(const json_t *o, const char *key)
{
    CHECK_MSG(json_is_integer(json_object_get(o, key)), "no number %s", key);
    return json_integer_value(json_object_get(o, key));
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    CHECK_MSG(text, "no text %s", key);
    return text ? text : "";
}

static const json_t *turn(const json_t *report, size_t i)
{
    return json_array_get(json_object_get(report, "turns"), i);
}

static size_t n_turns(const json_t *report)
{
    return json_array_size(json_object_get(report, "turns"));
}

static const char *content(const json_t *messages, size_t i)
{
    return text_of(json_array_get(messages, i), "content");
}

static void add_files(const char *model)
{
    char json[BYTE_TOKENIZER_BYTES], name[128];
    byte_tokenizer_json(json);
    snprintf(name, sizeof name, "%s/tokenizer.json", model);
    write_file(name, json);
    snprintf(name, sizeof name, "%s/chat_template.jinja", model);
    write_file(name, TEMPLATE);
}

static void make_models(void)
{
    char command[256], path[128];
    struct tiny_model slow = tiny_models[0];
    slow.vocab = BYTE_TOKENIZER_VOCAB;
    slow.positions = 100000;
    snprintf(folder, sizeof folder, "/tmp/spw_chat_%d", (int)getpid());
    snprintf(command, sizeof command,
             "mkdir %s && cp -r tests/golden/llama_700 %s/m && chmod -R u+w %s", folder, folder,
             folder);
    CHECK(system(command) == 0);
    snprintf(path, sizeof path, "%s/slow", folder);
    tiny_model_write(&slow, path);
    struct tiny_model slides = tiny_models[5];
    slides.vocab = BYTE_TOKENIZER_VOCAB;
    slides.positions = 100000;
    snprintf(path, sizeof path, "%s/slides", folder);
    tiny_model_write(&slides, path);
    add_files("m");
    add_files("slow");
    add_files("slides");
}

/* ---- answers ---- */

/* The model gets the rendered text; --messages gives the interactive answer. */
static void test_first_answer(void)
{
    static char text[1 << 16];
    const char *options = "--max-new-tokens 60 --temperature 1 --seed 3";
    CHECK(sh("\"$S\" generate m --device cpu --prompt '<s>Be.<u>Hello<a>' %s", options) == 0);
    CHECK_MSG(strstr(err, "this model has a chat template, which 'generate' does not use"), "%s",
              err);
    memcpy(text, out, strlen(out) + 1);
    CHECK(strlen(text) > 10);
    write_file("q.json", "[{\"role\":\"user\",\"content\":\"Hello\"}]");
    CHECK(sh("\"$S\" chat m --device cpu --messages q.json --system Be. %s", options) == 0);
    CHECK_MSG(strcmp(out, text) == 0, "'%s' is not '%s'", out, text);
    CHECK(sh("\"$S\" chat m --device cpu --messages - --system Be. %s <q.json", options) == 0);
    CHECK(strcmp(out, text) == 0);
    strcat(text, "\n");
    CHECK(chat("Hello\n", "--system Be. %s", options) == 0);
    CHECK_MSG(strcmp(out, text) == 0, "'%s' is not '%s'", out, text);
    CHECK(chat("/system Be.\nHello", "%s", options) == 0); /* no line break at the end */
    CHECK(strcmp(out, text) == 0);
    CHECK(chat("/system Be.\n/system\nHello\n", "%s", options) == 0);
    CHECK(strcmp(out, text) != 0);
    CHECK(sh("\"$S\" chat m --device cpu --prompt Hello --system Be. %s", options) == 0);
    strcat(out, "\n");
    CHECK_MSG(strcmp(out, text) == 0, "'%s' is not '%s'", out, text);
    CHECK(sh("\"$S\" chat m --device cpu --prompt Hello --ignore-eos --max-new-tokens 5") == 0);
    CHECK_MSG(strstr(err, "the answer ends here: --max-new-tokens 5\n"), "%s", err);
    /* The end token comes first. */
    CHECK(chat("Hello\n", "%s --logit-bias 2=100", options) == 0);
    CHECK_MSG(strstr(err, "the model has given an empty answer") && !strcmp(out, ""), "%s", err);
    write_file("t.json", "[{\"name\":\"clock\"}]");
    write_file("d.json", "[{\"text\":\"Bergen\"}]");
    CHECK(sh("\"$S\" generate m --device cpu --prompt '<u>Hello<t>clock<d>Bergen<a>' %s",
             options) == 0);
    memcpy(text, out, strlen(out) + 1);
    CHECK(sh("\"$S\" chat m --device cpu --messages q.json --tools t.json --documents d.json %s",
             options) == 0);
    CHECK(strcmp(out, text) == 0);
}

/* Each of ten turns computes only its new tokens: the last token (the template writes the one that
 * ends a turn), the question, and the template's text around it. At this temperature some tokens
 * are half characters, so replies do not encode into their own tokens. */
/* One question, and one about the text of a file, which has its line breaks at the end only without
 * a question. */
static void test_question(void)
{
    static char text[1 << 16];
    const char *options = "--device cpu --max-new-tokens 60 --temperature 1 --seed 3";
    write_file("book", "It was\nnight.\n\n");
    CHECK(sh("\"$S\" generate m --prompt \"$(printf '<u>It was\\nnight.\\n\\nWhen?<a>')\" %s",
             options) == 0);
    memcpy(text, out, strlen(out) + 1);
    CHECK(sh("\"$S\" chat m --prompt-file book --prompt When? %s", options) == 0);
    CHECK_MSG(strcmp(out, text) == 0, "'%s' is not '%s'", out, text);
    CHECK(sh("\"$S\" chat m --prompt-file - --prompt When? %s <book", options) == 0);
    CHECK(strcmp(out, text) == 0);
    CHECK(sh("\"$S\" generate m --prompt \"$(printf '<u>It was\\nnight.\\n\\n<a>')\" %s",
             options) == 0);
    memcpy(text, out, strlen(out) + 1);
    CHECK(sh("\"$S\" chat m --prompt-file book %s", options) == 0);
    CHECK(strcmp(out, text) == 0);
    CHECK(sh("\"$S\" chat m --prompt-file book --prompt When? --context 20 %s", options) == 2 &&
          strstr(err, "book: found"));
    CHECK(sh("\"$S\" chat m --prompt-file missing %s", options) == 2 && strstr(err, "missing"));
    write_file("bad", "It was \xff night");
    CHECK(sh("\"$S\" chat m --prompt-file bad %s", options) == 2 && strstr(err, "UTF-8"));
}

static void test_ten_turns(void)
{
    char input[256] = "", line[32];
    for (int i = 0; i < 10; i++) {
        snprintf(line, sizeof line, "Q%d\n", i);
        strcat(input, line);
    }
    CHECK(chat(input, "--max-new-tokens 80 --temperature 3 --seed 11 --report r.json") == 0);
    json_t *r = load("r.json");
    CHECK(n_turns(r) == 10);
    bool cut = false;
    for (size_t i = 1; i < n_turns(r); i++) {
        const json_t *before = turn(r, i - 1), *t = turn(r, i);
        long long held = number(before, "n_prompt") + number(before, "n_generated") - 1;
        bool eos = strcmp(text_of(before, "finish"), "eos") == 0;
        CHECK_MSG(number(t, "n_reused") == held, "turn %zu: %lld reused, %lld held", i,
                  number(t, "n_reused"), held);
        CHECK(number(t, "n_prompt") - number(t, "n_reused") ==
              1 - eos + (long long)strlen("#<u>Q1<a>"));
        cut |= strstr(out, "\xef\xbf\xbd") != NULL;
    }
    CHECK(cut);
    /* All token ids together give the tenth answer again, to the bit. */
    json_t *ids = json_array(), *id;
    size_t k;
    for (size_t i = 0; i < 10; i++) {
        char text[32];
        const json_t *t = turn(r, i);
        bool eos = i > 0 && strcmp(text_of(turn(r, i - 1), "finish"), "eos") == 0;
        snprintf(text, sizeof text, "%s<u>Q%zu<a>", i == 0 || eos ? "" : "#", i);
        for (const char *c = text; *c; c++)
            json_array_append_new(ids, json_integer(*c - 33));
        CHECK((size_t)number(t, "n_prompt") == json_array_size(ids));
        if (i < 9)
            json_array_foreach(json_object_get(t, "tokens"), k, id) json_array_append(ids, id);
    }
    char *list = json_dumps(ids, JSON_COMPACT);
    write_file("ids", list);
    free(list);
    CHECK(sh("\"$S\" generate m --device cpu --token-ids ids --max-new-tokens 80 --temperature 3 "
             "--seed 11 --report g.json") == 0);
    json_t *g = load("g.json");
    CHECK(json_equal(json_object_get(g, "tokens"), json_object_get(turn(r, 9), "tokens")));
    CHECK(strcmp(text_of(g, "logits_hash"), text_of(turn(r, 9), "logits_hash")) == 0);
    json_decref(ids);
    json_decref(g);
    json_decref(r);
}

/* Tokens from the prefix cache in all turns together. */
static long long from_store(const json_t *report)
{
    return number(json_object_get(report, "prefix"), "n_tokens_from_store");
}

/* Ten turns with a prefix cache. Each begins where the turn before ended, as without a cache.
 * Another process, which renders the conversation from its texts, finds its tiles, and gives the
 * same answer as without them. */
static void test_prefix_cache(void)
{
    static char text[1 << 16];
    char input[800] = "", options[80], line[80];
    int seed = 0;
    for (int i = 0; i < 10; i++) { /* long questions, short answers */
        snprintf(line, sizeof line, "Q%d%060d\n", i, i);
        strcat(input, line);
    }
    strcat(input, "/save s.json\n");
    do { /* a file has texts: half characters would be lost with it */
        snprintf(options, sizeof options, "--max-new-tokens 10 --temperature 1 --seed %d", ++seed);
        CHECK(chat(input, "%s --report a.json", options) == 0);
    } while (seed < 100 && strstr(out, "\xef\xbf\xbd"));
    CHECK(seed < 100);
    memcpy(text, out, strlen(out) + 1);
    CHECK(chat(input, "%s --prefix-cache cache --report b.json", options) == 0);
    CHECK_MSG(strcmp(out, text) == 0, "'%s' is not '%s'", out, text);
    json_t *a = load("a.json"), *b = load("b.json");
    CHECK(n_turns(a) == 10 && n_turns(b) == 10 && from_store(b) == 0);
    for (size_t i = 0; i < 10; i++) {
        CHECK(number(turn(a, i), "n_reused") == number(turn(b, i), "n_reused"));
        CHECK(json_equal(json_object_get(turn(a, i), "logits_hash"),
                         json_object_get(turn(b, i), "logits_hash")));
    }
    bool eos = strcmp(text_of(turn(b, 8), "finish"), "eos") == 0;
    long long computed = number(turn(b, 9), "n_prompt") - number(turn(b, 9), "n_reused");
    CHECK_MSG(computed == 1 - eos + (long long)strlen("#<u>Q9<a>") + 60, "%lld computed", computed);
    long long held = number(turn(b, 9), "n_prompt") + number(turn(b, 9), "n_generated") - 1;

    CHECK(chat("/load s.json\nMore\n", "%s --report a.json", options) == 0);
    memcpy(text, out, strlen(out) + 1);
    CHECK(chat("/load s.json\nMore\n/stats\n", "%s --prefix-cache cache --report c.json",
               options) == 0);
    CHECK_MSG(strcmp(out, text) == 0, "'%s' is not '%s'", out, text);
    json_t *c = load("c.json");
    long long last = number(turn(c, 0), "n_prompt") - 1; /* at least one is computed */
    held = held < last ? held : last;
    CHECK_MSG(from_store(c) == held - held % 128 && held >= 256, "%lld of %lld held: %s",
              from_store(c), held, err);
    snprintf(line, sizeof line, " %lld reused", from_store(c));
    CHECK_MSG(strstr(err, line), "%s", err);

    json_t *messages = load("s.json"); /* the same by --messages */
    json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", "More"));
    char *list = json_dumps(messages, 0);
    write_file("more.json", list);
    text[strlen(text) - 1] = 0; /* without the line break at the end */
    CHECK(sh("\"$S\" chat m --device cpu --messages more.json %s --prefix-cache cache --report "
             "d.json",
             options) == 0);
    CHECK_MSG(strcmp(out, text) == 0, "'%s' is not '%s'", out, text);
    json_t *d = load("d.json");
    CHECK(from_store(d) >= from_store(c)); /* the turn before has published its KV */
    CHECK(sh("\"$S\" cache verify cache && rm -r cache") == 0);
    free(list);
    json_decref(messages);
    json_decref(a);
    json_decref(b);
    json_decref(c);
    json_decref(d);
}

static void test_stop(void)
{
    CHECK(sh("\"$S\" chat m --device cpu --messages q.json --max-new-tokens 60") == 0);
    char stop[3] = {out[8], out[9], 0}, whole[16];
    memcpy(whole, out, 8);
    char *first = strstr(out, stop);
    size_t n = (size_t)(first - out);
    CHECK(chat("Hello\nMore\n/save s.json\n", "--max-new-tokens 60 --stop '%s' --report r.json",
               stop) == 0);
    json_t *r = load("r.json"), *s = load("s.json");
    CHECK(strlen(content(s, 1)) == n && strncmp(content(s, 1), out, n) == 0);
    CHECK(strcmp(text_of(turn(r, 0), "finish"), "stop") == 0);
    /* The tokens before the stop text are found again. */
    CHECK(number(turn(r, 1), "n_reused") >= number(turn(r, 0), "n_prompt") + (long long)n);
    json_decref(r);
    json_decref(s);
}

/* ---- commands ---- */

static void test_commands(void)
{
    static char text[1 << 16];
    char options[80];
    int seed = 0;
    do { /* a file has texts: half characters would be lost with it */
        snprintf(options, sizeof options, "--max-new-tokens 50 --temperature 1 --seed %d", ++seed);
        CHECK(chat("One\nTwo\n/save a.json\n", "%s", options) == 0);
    } while (seed < 100 && strstr(out, "\xef\xbf\xbd"));
    memcpy(text, out, strlen(out) + 1);
    json_t *a = load("a.json");
    CHECK(json_array_size(a) == 4 && strcmp(content(a, 0), "One") == 0);

    /* /undo: an undone question changes nothing. */
    CHECK(chat("One\nOther\n/undo\nTwo\n/save b.json\n/undo\n/undo\n/save e.json\n",
               "%s --report r.json", options) == 0);
    json_t *b = load("b.json"), *e = load("e.json"), *r = load("r.json");
    CHECK(json_equal(a, b) && json_array_size(e) == 0);
    CHECK(number(turn(r, 2), "n_reused") >=
          number(turn(r, 0), "n_prompt") + number(turn(r, 0), "n_generated") - 1);
    json_decref(b);
    json_decref(r);

    /* /regen draws again. The session holds its prompt, except the token that gives its logits. */
    CHECK(chat("One\nTwo\n/regen\n/save b.json\n", "%s --report r.json", options) == 0);
    b = load("b.json");
    r = load("r.json");
    CHECK(json_array_size(b) == 4 && strcmp(content(a, 1), content(b, 1)) == 0);
    CHECK(strcmp(content(a, 3), content(b, 3)) != 0);
    CHECK(number(turn(r, 2), "n_prompt") == number(turn(r, 1), "n_prompt"));
    CHECK(number(turn(r, 2), "n_reused") == number(turn(r, 2), "n_prompt") - 1);
    json_decref(b);
    json_decref(r);

    /* /save replaces a file of the conversation, also after /undo, and no other. */
    CHECK(sh("cp a.json own.json; echo text >book; : >void") == 0);
    write_file("input", "One\nTwo\n/save own.json\nMore\n/save own.json\n/undo\n/undo\n"
                        "/save own.json\n/save void\nOther\n/save a.json\n/save book\n");
    CHECK(sh("\"$S\" chat m --device cpu %s <input", options) == 2);
    CHECK_MSG(strstr(err, "saved 2 messages to void") &&
                  strstr(err, "a.json: found another conversation; give another name") &&
                  strstr(err, "book: found a file that is no conversation; give another"),
              "%s", err);
    CHECK(sh("test \"$(cat book)\" = text && cmp own.json void") == 0);
    json_t *own = load("own.json"), *again = load("a.json");
    CHECK(json_array_size(own) == 2 && json_equal(again, a));
    json_decref(own);
    json_decref(again);

    CHECK(sh("echo '[{\"role\":\"user\",\"content\":\"One\"}]' >one.json") == 0);
    CHECK(chat("/load one.json\n/stats\n/save one2.json\n", "%s", options) == 0);
    CHECK(strstr(err, "1 message from one.json") && strstr(err, "conversation   1 message;") &&
          strstr(err, "saved 1 message to one2.json"));

    /* /save and /load: another process continues like this one. */
    CHECK(chat("One\nTwo\nThree\n/save c.json\n", "%s", options) == 0);
    CHECK(chat("/load a.json\nThree\n/save d.json\n", "%s", options) == 0);
    json_t *c = load("c.json"), *d = load("d.json");
    CHECK(json_equal(c, d) && json_array_size(c) == 6);
    json_decref(c);
    json_decref(d);
    json_decref(a);
    json_decref(e);

    CHECK(chat("One\n/stats\nTwo\n/stats\n/help\n/quit\nThree\n", "%s", options) == 0);
    CHECK(strcmp(out, text) == 0);
    CHECK(strstr(err, " 0 reused, 9 computed") && strstr(err, "conversation   4 messages"));
    CHECK(strstr(err, "/regen") && strstr(err, "Ctrl-C"));
}

/* /read: the text stands before the next question, also after an /undo of it, and where a system
 * message comes between. */
static void test_read(void)
{
    static const char *const expected[] = {"It was\nnight.\n\nWhen?", "It was\nnight.\n\nWhere?"};
    write_file("book", "It was\nnight.\n\n");
    CHECK(chat("/read book\n/read missing\nWhen?\nThen?\n/save a.json\n/system Be.\n/undo\n/undo\n"
               "Where?\n/save b.json\n/undo\n/read\nWho?\n/save c.json\n",
               "--max-new-tokens 3") == 2);
    CHECK_MSG(strstr(err, "book: 11 tokens of a context of ") &&
                  strstr(err, "missing: No such file"),
              "%s", err);
    json_t *a = load("a.json"), *b = load("b.json"), *c = load("c.json");
    CHECK_MSG(!strcmp(content(a, 0), expected[0]) && !strcmp(content(a, 2), "Then?"), "%s",
              content(a, 0));
    CHECK_MSG(!strcmp(content(b, 1), expected[1]), "%s", content(b, 1));
    CHECK_MSG(!strcmp(content(c, 1), "Who?"), "%s", content(c, 1));
    json_decref(a);
    json_decref(b);
    json_decref(c);
}

/* /set changes later answers. /regen computes no answer that is known. */
static void test_set(void)
{
    CHECK(chat("One\n/regen\n/set max-new-tokens 5\n/regen\n/set temperature 9\n/regen\n/set\n",
               "--max-new-tokens 3 --ignore-eos --report r.json") == 0);
    json_t *r = load("r.json");
    CHECK(n_turns(r) == 3 && number(turn(r, 0), "n_generated") == 3);
    CHECK(number(turn(r, 1), "n_generated") == 5 && number(turn(r, 2), "n_generated") == 5);
    CHECK_MSG(strstr(err, "/regen: at temperature 0 the same question has the same answer") &&
                  strstr(err, "max-new-tokens       5\n") &&
                  strstr(err, "temperature          9\n"),
              "%s", err);
    json_decref(r);
    CHECK(chat("/set temp 1\n/set temperature hot\n/set stop x\n/set top-p\n",
               "--max-new-tokens 3") == 2);
    CHECK_MSG(
        strstr(err, "found the setting 'temp', expected one of max-new-tokens, temperature,") &&
            strstr(err, "--temperature: found 'hot', expected a number") &&
            strstr(err, "found the setting 'stop'") && strstr(err, "--top-p: found ''"),
        "%s", err);
}

/* If windows move on during long answers, another answer computes its question again, another
 * question computes itself, and neither computes earlier tokens: with sliding windows, and with the
 * residual window. */
static void test_going_back(void)
{
    static char input[2000];
    static const char *const kv[] = {"", "--kv-dtype int8 --kv-gate off --residual-window 128"};
    snprintf(input, sizeof input, "%0500d\n%0200d\n/regen\n/undo\n%0100d\n", 1, 2, 3);
    write_file("input", input);
    for (int i = 0; i < 2; i++) {
        int code = sh("\"$S\" chat slides --device cpu --ignore-eos --max-new-tokens 400 "
                      "--temperature 1 --report r.json %s <input",
                      kv[i]);
        CHECK_MSG(code == 0, "%d: %s", code, err);
        json_t *r = load("r.json");
        long long held = number(turn(r, 0), "n_prompt") + number(turn(r, 0), "n_generated") - 1;
        CHECK(n_turns(r) == 4 && held > 800);
        for (size_t k = 1; k < 4; k++)
            CHECK_MSG(number(turn(r, k), "n_reused") >= held, "turn %zu: %lld of %lld", k,
                      number(turn(r, k), "n_reused"), held);
        json_decref(r);
    }
}

static void test_texts(void)
{
    CHECK(chat("a\\\nb\n\"\"\"\n/c\n\nd\n\"\"\"\n\n\"\"\"\n/e", "--max-new-tokens 5") == 0);
    CHECK(chat("a\\\nb\n\"\"\"\n/c\n\nd\n\"\"\"\n/save s.json\n", "--max-new-tokens 5") == 0);
    json_t *s = load("s.json");
    CHECK(json_array_size(s) == 4 && strcmp(content(s, 0), "a\nb") == 0);
    CHECK(strcmp(content(s, 2), "/c\n\nd") == 0);
    json_decref(s);
    /* Lines of Windows, lines of blanks, blanks behind the name of a file. */
    CHECK(chat("a\\\r\nb\r\n\"\"\"\r\n/c\r\n\"\"\"\r\n \t\n\r\n/save w.json \r\n/quit\r\n",
               "--max-new-tokens 5") == 0);
    s = load("w.json");
    CHECK(json_array_size(s) == 4 && strcmp(content(s, 0), "a\nb") == 0);
    CHECK(strcmp(content(s, 2), "/c") == 0);
    json_decref(s);
}

static void test_full_context(void)
{
    CHECK(chat("One\nTwo\n/save s.json\n/undo\n/undo\n",
               "--context 20 --max-new-tokens 30 --ignore-eos") == 2);
    CHECK_MSG(strstr(err, "context of 20 tokens is full; /undo") &&
                  strstr(err, "/undo removes the last turn; a larger --context would do"),
              "%s", err);
    json_t *s = load("s.json");
    CHECK(json_array_size(s) == 2); /* "Two" was never part of it */
    CHECK(strstr(err, "messages left: 0") && strstr(err, "/undo: found no question"));
    json_decref(s);
}

/* ---- refusals ---- */

static void test_refusals(void)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"chat m --messages missing", "missing: No such file"},
        {"chat m --messages b1", "b1: line 2"},
        {"chat m --messages b2", "b2: found no JSON list"},
        {"chat m --messages b3", "b3: message 2: \"role\": found no text"},
        {"chat m --messages b8", "b8: message 1: \"role\": found 'robot', expected system"},
        {"chat m --messages b9", "b9: message 2: \"content\": found no text, expected one"},
        {"chat m --messages b4", "b4: message 1: found no object"},
        {"chat m --messages b5", "b5: found no messages"},
        {"chat m --messages b6", "b6: found an answer as the last message"},
        {"chat m --messages b7 --system x", "found both --system and a system message in b7"},
        {"chat m --messages q.json --context 9", "q.json: found 11 tokens, expected at most"},
        {"chat m --messages q.json --tools b1", "b1: line 2"},
        {"chat m --messages q.json --documents b2", "b2: found no JSON list"},
        {"chat m --messages q.json --stop ''", "--stop: found an empty text"},
        {"chat m --messages q.json --report no/such", "--report: no/such"},
        {"chat m --messages q.json --prompt x", "found both --messages and --prompt"},
        {"chat m --messages q.json --prompt-file x", "found both --messages and --prompt-file"},
        {"chat none --messages q.json",
         "none: found no chat template, expected one (chat_template.jinja or "},
        {"chat wrong --messages q.json", "wrong/chat_template.jinja"},
        {"chat raises --messages q.json", "only one role"},
        {"chat missing", "missing: found no such file or folder"},
    };
    CHECK(
        sh("echo '[{' >b1; echo '{}' >b2; echo "
           "'[{\"role\":\"user\",\"content\":\"x\"},{\"content\":\"x\"}]' >b3\n"
           "echo '[{\"role\":\"robot\",\"content\":\"x\"}]' >b8\n"
           "echo '[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\"}]' >b9\n"
           "echo '[1]' >b4; echo '[]' >b5; echo '[{\"role\":\"assistant\",\"content\":\"\"}]' >b6\n"
           "echo '[{\"role\":\"system\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"\"}]' "
           ">b7\n"
           "for d in none wrong raises; do cp -r m $d; done; rm none/chat_template.jinja\n"
           "echo '{%% for %%}' >wrong/chat_template.jinja\n"
           "echo '{{ raise_exception(\"only one role\") }}' >raises/chat_template.jinja") == 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int code = sh("\"$S\" %s </dev/null", cases[i].line);
        const char *end = strchr(err, '\n');
        CHECK_MSG(code == 2 && !*out, "%s: exit %d, found '%s'", cases[i].line, code, out);
        CHECK_MSG(strncmp(err, "spillway: ", 10) == 0 && end && strstr(err, cases[i].says),
                  "%s: %s", cases[i].line, err);
        CHECK_MSG(end && (!end[1] || strstr(cases[i].line, "raises")), "%s", err);
    }
    CHECK(sh("printf 'a\\377b\\n' | \"$S\" chat m --device cpu") == 2);
    CHECK_MSG(strstr(err, "found byte 0xff at offset 1 of the text"), "%s", err);
    /* In a conversation each error is one line, and the conversation continues. */
    CHECK(
        sh("mkfifo fifo; echo '[{\"role\":\"user\",\"role\":\"user\",\"content\":\"\"}]' >twice") ==
        0);
    CHECK(sh("printf '/load fifo\n/read fifo\n/load twice\n' | timeout 20 \"$S\" chat m --device "
             "cpu") == 2);
    CHECK_MSG(strstr(err, "fifo: found no file") && strstr(err, "twice: line 1, column "), "%s",
              err);
    CHECK(chat("/sve s\n/bogus\n/save\n/load b3\n/undo\n/regen\n/quit now\nOne\n/save s.json\n",
               "--max-new-tokens 4") == 2);
    CHECK(strstr(err, "did you mean /save?") && strstr(err, "unknown command /bogus"));
    CHECK(strstr(err, "/save: found nothing, expected FILE") && strstr(err, "b3: message 2"));
    CHECK(strstr(err, "/undo: found no question") && strstr(err, "/regen: found no question"));
    json_t *s = load("s.json");
    CHECK(json_array_size(s) == 2);
    json_decref(s);
}

/* ---- interruption, and a terminal ---- */

/* The report of an answer that could not be written has its tokens. */
static void test_full_stdout(void)
{
    if (access("/dev/full", W_OK))
        return;
    CHECK(sh("\"$S\" chat m --device cpu --prompt Hello --max-new-tokens 5 --report full.json "
             ">/dev/full") == 1);
    CHECK_MSG(strstr(err, "stdout: No space left"), "%s", err);
    json_t *report = load("full.json");
    const json_t *turn = json_array_get(json_object_get(report, "turns"), 0);
    CHECK(json_integer_value(json_object_get(turn, "n_generated")) > 0);
    json_decref(report);
}

static void run_child(const char *const *arguments)
{
    if (chdir(folder) == 0)
        execv(getenv("S"), (char *const *)(uintptr_t)arguments);
    _exit(127);
}

static int patience_ms = 60000; /* for busy machines */

/* Reads `bytes` bytes or, with `text`, until the text has come. */
static size_t wait_for(int fd, char *into, size_t room, size_t bytes, const char *text)
{
    size_t n = 0;
    into[0] = 0;
    while (n + 1 < room && (text ? !strstr(into, text) : n < bytes)) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t got = poll(&p, 1, patience_ms) == 1 ? read(fd, into + n, room - 1 - n) : 0;
        if (got <= 0)
            break;
        n += (size_t)got;
        into[n] = 0;
    }
    return n;
}

static void send_text(int fd, const char *text)
{
    remove_saves(text);
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
}

/* SIGINT ends the answer; its text stays, and the next turn continues from it. */
static void test_interrupt(void)
{
    static const char *const arguments[] = {
        "spillway",     "chat",      "slow",  "--device",         "cpu",
        "--ignore-eos", "--context", "90000", "--max-new-tokens", "80000",
        "--report",     "r.json",    NULL};
    int in[2], from[2], status;
    CHECK(pipe(in) == 0 && pipe(from) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(from[1], STDOUT_FILENO);
        close(in[1]);
        close(from[0]);
        run_child(arguments);
    }
    close(in[0]);
    close(from[1]);
    for (int i = 0; i < 2; i++) {
        send_text(in[1], i == 0 ? "Hello\n" : "Again\n");
        CHECK(wait_for(from[0], out, 200, 50, NULL) >= 50);
        check_kill(pid, SIGINT);
        CHECK(wait_for(from[0], out, sizeof out, 0, "\n") > 0);
    }
    send_text(in[1], "/save s.json\n/quit\n");
    close(in[1]);
    CHECK(waitpid(pid, &status, 0) == pid);
    close(from[0]);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
    json_t *s = load("s.json"), *r = load("r.json");
    CHECK(json_array_size(s) == 4 && strlen(content(s, 1)) >= 50 && strlen(content(s, 3)) >= 50);
    CHECK(strcmp(text_of(turn(r, 0), "finish"), "interrupted") == 0);
    /* Everything is there, except half a character at the end, which was not shown. */
    long long held = number(turn(r, 0), "n_prompt") + number(turn(r, 0), "n_generated") - 1;
    CHECK(number(turn(r, 1), "n_reused") <= held && number(turn(r, 1), "n_reused") >= held - 2);
    json_decref(s);
    json_decref(r);

    write_file("q.json", "[{\"role\":\"user\",\"content\":\"Hello\"}]");
    /* In the foreground: else timeout sends two signals, and the second one kills. */
    CHECK(sh("timeout --foreground -s INT 1 \"$S\" chat slow --device cpu --ignore-eos --context "
             "90000 "
             "--messages q.json --max-new-tokens 80000") == 124);
    CHECK_MSG(strstr(err, "interrupted"), "%s", err);
}

/* Of the last progress line. */
static int last_percent(const char *text)
{
    int percent = 0;
    for (const char *at = text; (at = strstr(at, " % of ")) && at - text >= 3; at++)
        percent = atoi(at - 3);
    return percent;
}

/* SIGINT in a prompt that would take minutes: the conversation has not changed, and continues. It
 * continues from nothing if windows have moved on and there was no room to retain their tiles. */
static void interrupt_prompt(const char *model, const char *memory, bool lost)
{
    enum { N = 60000 };
    const char *const arguments[] = {"spillway",   "chat",
                                     model,        "--device",
                                     "cpu",        "--threads",
                                     "2",          "--device-memory",
                                     memory,       "--max-new-tokens",
                                     "8",          "--ignore-eos",
                                     "--context",  "90000",
                                     "--progress", "always",
                                     "--report",   "r.json",
                                     NULL};
    static char question[N + 2];
    int in[2], from[2], says[2], status;
    memset(question, 'a', N);
    question[N] = '\n';
    CHECK(pipe(in) == 0 && pipe(from) == 0 && pipe(says) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(from[1], STDOUT_FILENO);
        dup2(says[1], STDERR_FILENO);
        close(in[1]);
        run_child(arguments);
    }
    close(in[0]);
    close(from[1]);
    close(says[1]);
    send_text(in[1], "Hello\n");
    CHECK(wait_for(from[0], out, sizeof out, 0, "\n") > 0);
    send_text(in[1], question);
    CHECK(wait_for(says[0], err, sizeof err, 0, "% of 60") > 0);
    check_kill(pid, SIGINT);
    CHECK(wait_for(says[0], err, sizeof err, 0,
                   lost ? "computes the whole conversation again" : "before the first word") > 0);
    CHECK_MSG(last_percent(err) < 90, "%s", err); /* not at its end */
    send_text(in[1], "Again\n");
    CHECK(wait_for(from[0], out, sizeof out, 0, "\n") > 0);
    send_text(in[1], "/save s.json\n/quit\n");
    close(in[1]);
    CHECK(waitpid(pid, &status, 0) == pid);
    close(from[0]);
    close(says[0]);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 130, "status %x", status);
    json_t *s = load("s.json"), *r = load("r.json");
    CHECK(json_array_size(s) == 4 && strcmp(content(s, 2), "Again") == 0 && n_turns(r) == 2);
    long long held = number(turn(r, 0), "n_prompt") + number(turn(r, 0), "n_generated") - 1;
    CHECK_MSG(number(turn(r, 1), "n_reused") == (lost ? 0 : held), "%s, %s: %lld of %lld held: %s",
              model, memory, number(turn(r, 1), "n_reused"), held, err);
    json_decref(s);
    json_decref(r);
}

static void test_interrupted_prompt(void)
{
    interrupt_prompt("slow", "256MiB", false);
    interrupt_prompt("slides", "256MiB", false);
    interrupt_prompt("slides", "700KiB", true);

    /* With --messages it ends the command, with no output. The passes that were complete are saved:
     * none or some, depending on the machine's speed. */
    CHECK(sh("seq 60000 | sed 's/.*/7/' >many; timeout --foreground -s INT 2 \"$S\" generate slow "
             "--device cpu --token-ids many --ids --save f --max-new-tokens 8") == 124);
    CHECK_MSG(!*out && strstr(err, "interrupted\n"), "%s%s", out, err);
    bool refused = strstr(err, "f was not written");
    CHECK_MSG((sh("test -e f") == 0) == !refused, "%d", refused);
}

/* Keys right after the prompt may come before the terminal is set up: then they are lost. */
static bool drop_line(int fd)
{
    bool back = false;
    patience_ms = 2000;
    for (int i = 0; i < 10 && !back; i++) {
        usleep(50000);
        send_text(fd, "junk\003");
        wait_for(fd, out, sizeof out, 0, "\n> ");
        back = strstr(out, "\n> ");
    }
    patience_ms = 60000;
    return back;
}

/* Edited lines, the history, and Ctrl-C at the prompt and in an answer. */
static void test_terminal(void)
{
    static const char *const arguments[] = {"spillway",  "chat",  "slow",
                                            "--device",  "cpu",   "--ignore-eos",
                                            "--context", "90000", "--max-new-tokens",
                                            "80000",     NULL};
    static const char *const lines[] = {"Hexx\177\177llo\r", "\033[A\r", "a\\\r\tb\xc3\xa9\r"};
    int fd, status;
    setenv("TERM", "xterm", 1);
    setenv("HOME", folder, 1); /* nobody's .editrc */
    pid_t pid = forkpty(&fd, NULL, NULL, NULL);
    if (pid == 0)
        run_child(arguments);
    if (pid < 0) { /* /dev/pts is not mounted */
        CHECK_MSG(errno == ENOENT || errno == ENODEV, "%s", strerror(errno));
        fprintf(stderr, "no terminals here: keys are not tested\n");
        return;
    }
    CHECK(wait_for(fd, out, sizeof out, 0, "> ") > 0);
    for (int i = 0; i < 3; i++) {
        CHECK(drop_line(fd));
        usleep(50000);
        send_text(fd, "\003"); /* on an empty line it drops nothing, and the conversation stays */
        CHECK(wait_for(fd, out, sizeof out, 0, "\n> ") > 0);
        usleep(50000);
        send_text(fd, lines[i]);
        size_t n = wait_for(fd, out, 1000, 900, NULL); /* well into the answer */
        CHECK_MSG(n >= 900, "%d: %zu: %s", i, n, out);
        send_text(fd, "\003");
        CHECK(wait_for(fd, out, sizeof out, 0, "\n> ") > 0);
    }
    usleep(50000);
    send_text(fd, "/save p.json\r");
    CHECK(wait_for(fd, out, sizeof out, 0, "\n> ") > 0);
    pid_t ended = 0;
    for (int i = 0; i < 200 && ended == 0; i++) {
        usleep(50000);
        if (write(fd, "\004", 1) == 1 || errno == EIO)
            ended = waitpid(pid, &status, WNOHANG);
    }
    CHECK(ended == pid);
    if (ended != pid) {
        check_kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    close(fd);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
    json_t *p = load("p.json");
    CHECK(json_array_size(p) == 6);
    CHECK_MSG(strcmp(content(p, 0), "Hello") == 0, "'%s'", content(p, 0));
    CHECK_MSG(strcmp(content(p, 2), "Hello") == 0, "'%s'", content(p, 2));
    CHECK_MSG(strcmp(content(p, 4), "a\n\tb\xc3\xa9") == 0, "'%s'", content(p, 4));
    CHECK(strlen(content(p, 1)) > 0 && strlen(content(p, 3)) > 0 && strlen(content(p, 5)) > 0);
    json_decref(p);
}

/* Starts a chat on a terminal of 80 columns, after the first prompt. False: there are no terminals
 * here. */
static bool start_on_terminal(const char *const *arguments, int *fd, pid_t *pid)
{
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    *pid = forkpty(fd, NULL, NULL, &size);
    if (*pid == 0)
        run_child(arguments);
    if (*pid < 0)
        return false;
    CHECK(wait_for(*fd, out, sizeof out, 0, "> ") > 0);
    CHECK(drop_line(*fd));
    return true;
}

/* Ends a chat on a terminal, after what it has said. */
static void end_on_terminal(int fd, pid_t pid)
{
    int status;
    send_text(fd, "/quit\r");
    wait_for(fd, out, sizeof out, 0, "\033[?2004l");
    CHECK_MSG(strstr(out, "\033[?2004l"), "%s", out);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(fd);
}

static void type(int fd, const char *line)
{
    usleep(50000);
    send_text(fd, line);
    wait_for(fd, out, sizeof out, 0, "\n> ");
    CHECK_MSG(strstr(out, "\n> "), "%s", out);
}

/* A pasted text of several lines is one message, and no command. Tab completes a command. The next
 * conversation has the lines of this one. With a text file the conversation is about it. */
static void test_editing(void)
{
    static const char *const first[] = {"spillway",         "chat", "m", "--device", "cpu",
                                        "--max-new-tokens", "4",    NULL};
    static const char *const second[] = {
        "spillway", "chat",          "m",    "--device", "cpu", "--max-new-tokens",
        "4",        "--prompt-file", "book", NULL};
    int fd;
    pid_t pid;
    if (!start_on_terminal(first, &fd, &pid))
        return;
    type(fd, "\033[200~/one\r\ttwo\033[31m\r\033[201~three\r");
    type(fd, "/sa\tpaste.json\r");
    end_on_terminal(fd, pid);
    json_t *p = load("paste.json");
    CHECK(json_array_size(p) == 2);
    CHECK_MSG(!strcmp(content(p, 0), "/one\n\ttwo31m\nthree"), "'%s'", content(p, 0));
    json_decref(p);
    write_file("book", "It was\nnight.\n");
    CHECK(start_on_terminal(second, &fd, &pid));
    type(fd, "\020\020\020\r"); /* Ctrl-P: /quit, /save, the pasted text */
    type(fd, "/save book.json\r");
    end_on_terminal(fd, pid);
    p = load("book.json");
    CHECK_MSG(!strcmp(content(p, 0), "It was\nnight.\n\n/one\n\ttwo31m\nthree"), "'%s'",
              content(p, 0));
    json_decref(p);
}

/* A terminal does not obey what a model writes; a pipe gets its bytes. */
static void test_control_characters(void)
{
    static const char *const commands[] = {"chat", "generate"};
    CHECK(sh("cp -r m escapes && sed -i 's/\"!\":0,/\"\xc4\x9b\":0,/' escapes/tokenizer.json") ==
          0);
    for (size_t i = 0; i < 2; i++) {
        const char *const arguments[] = {"spillway", commands[i],    "escapes", "--device",
                                         "cpu",      "--prompt",     "a",       "--max-new-tokens",
                                         "3",        "--logit-bias", "0=100",   NULL};
        int fd, status;
        CHECK(sh("\"$S\" %s escapes --device cpu --prompt a --max-new-tokens 3 --logit-bias 0=100",
                 commands[i]) == 0);
        CHECK_MSG(!strcmp(out, "\033\033\033"), "%s", out);
        pid_t pid = forkpty(&fd, NULL, NULL, NULL);
        if (pid == 0)
            run_child(arguments);
        if (pid < 0)
            return;
        wait_for(fd, out, sizeof out, 0, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
        CHECK_MSG(strstr(out, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"), "%s", out);
        CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        close(fd);
    }
}

/* A line is shown in the width that the window has while it is typed; Ctrl-D ends the last line. */
static void test_window(void)
{
    static const char *const arguments[] = {"spillway", "chat", "m", "--device", "cpu", NULL};
    static const char text[] = "0123456789012345678901234567890123456789";
    const struct winsize narrow = {.ws_row = 24, .ws_col = 30};
    int fd, status;
    pid_t pid;
    if (!start_on_terminal(arguments, &fd, &pid))
        return;
    usleep(50000);
    send_text(fd, text);
    CHECK(wait_for(fd, out, sizeof out, 0, "6789012345678901234567890123456789") > 0);
    CHECK(ioctl(fd, TIOCSWINSZ, &narrow) == 0);
    send_text(fd, "x");
    CHECK(wait_for(fd, out, sizeof out, 0, "x") > 0);
    CHECK_MSG(strstr(out, "> 0123456789012345678901234567") && !strstr(out, "67890123456789x"),
              "not in two lines: %s", out);
    send_text(fd, "\025\004"); /* Ctrl-U removes the text */
    wait_for(fd, out, sizeof out, 0, "^D\r\n");
    CHECK_MSG(strstr(out, "^D\r\n"), "%s", out);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(fd);
}

/* On a terminal a message begins a line, also in the middle of an answer: here the prefix cache
 * cannot be written. */
static void test_message_in_answer(void)
{
    static char command[1024];
    int fd, status;
    size_t n = (size_t)snprintf(command, sizeof command,
                                "cd %s && ulimit -f 8 && exec \"$S\" generate m --device cpu "
                                "--ignore-eos --max-new-tokens 9 --prefix-cache full --prompt ",
                                folder);
    memset(command + n, 'a', 300);
    pid_t pid = forkpty(&fd, NULL, NULL, NULL);
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(98);
    }
    if (pid < 0)
        return;
    wait_for(fd, out, sizeof out, 0, "cut off");
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    const char *message = strstr(out, "spillway: full/");
    CHECK_MSG(message && message[-1] == '\n', "%s", out);
    close(fd);
}

/* One Ctrl-D ends a text that is typed. */
static void test_typed_text(void)
{
    static const char *const arguments[] = {
        "spillway", "generate",      "m", "--device", "cpu", "--ignore-eos", "--max-new-tokens",
        "3",        "--prompt-file", "-", NULL};
    int fd, status;
    pid_t pid = forkpty(&fd, NULL, NULL, NULL);
    if (pid == 0)
        run_child(arguments);
    if (pid < 0)
        return;
    send_text(fd, "Hello\n\004");
    wait_for(fd, out, sizeof out, 0, "cut off after 3 new tokens");
    CHECK_MSG(strstr(out, "cut off after 3 new tokens"), "%s", out);
    check_kill(pid, SIGTERM); /* if it still waits for text */
    CHECK(waitpid(pid, &status, 0) == pid);
    close(fd);
}

/* A signal that kills leaves the terminal as it was: at the prompt, and in an answer. */
static void test_killed_on_terminal(void)
{
    static const char *const arguments[] = {"spillway",  "chat",  "slow",
                                            "--device",  "cpu",   "--ignore-eos",
                                            "--context", "90000", "--max-new-tokens",
                                            "80000",     NULL};
    static const int ends[] = {SIGTERM, SIGTERM, SIGINT};
    const tcflag_t all = ECHO | ICANON | ISIG;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        int fd, status;
        pid_t pid;
        struct termios is;
        if (!start_on_terminal(arguments, &fd, &pid))
            return;
        int slave = open(ptsname(fd), O_RDWR | O_NOCTTY); /* the terminal stays */
        usleep(50000);
        if (i > 0) {
            send_text(fd, "Hello\r");
            CHECK(wait_for(fd, out, 1000, 900, NULL) >= 900);
        }
        CHECK(tcgetattr(slave, &is) == 0 && (is.c_lflag & all) != all);
        check_kill(pid, ends[i]);
        usleep(1000);
        check_kill(pid, ends[i]); /* the second SIGINT kills, unless the step has ended before */
        usleep(100000);
        check_kill(pid, SIGTERM);
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        CHECK_MSG(tcgetattr(slave, &is) == 0 && (is.c_lflag & all) == all, "case %d: flags %x",
                  (int)i, (unsigned)is.c_lflag);
        close(slave);
        close(fd);
    }
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    make_models();
    command_limits();
    test_first_answer();
    test_question();
    test_ten_turns();
    test_prefix_cache();
    test_stop();
    test_commands();
    test_read();
    test_set();
    test_going_back();
    test_texts();
    test_full_context();
    test_refusals();
    test_full_stdout();
    test_interrupt();
    test_interrupted_prompt();
    test_terminal();
    test_editing();
    test_control_characters();
    test_window();
    test_message_in_answer();
    test_typed_text();
    test_killed_on_terminal();
    sh("rm -r %s", folder);
    return check_done();
}
