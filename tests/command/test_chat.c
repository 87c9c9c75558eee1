/* `spillway chat` through pipes: tiny models with a tokenizer of bytes and a small chat template.
 * Answers are compared with those of `spillway generate` for the rendered text or the same token
 * ids, and reused tokens are counted (chat.cases, and here). test_chat_terminal has a terminal.
 * Skipped without the command. */
#include "tests/command/chat_models.h"

/* Runs a chat with the model m; `input` is its stdin. */
__attribute__((format(printf, 2, 3))) static int chat(const char *input, const char *format, ...)
{
    char options[512];
    va_list args;
    va_start(args, format);
    vsnprintf(options, sizeof options, format, args);
    va_end(args);
    write_text("input", input);
    return sh("%s; $S chat m --device cpu %s <input", strstr(input, "/save") ? "rm -f s.json" : ":",
              options);
}

static size_t n_turns(const json_t *report)
{
    return json_array_size(json_object_get(report, "turns"));
}

static const json_t *turn(const json_t *report, size_t i)
{
    return json_array_get(json_object_get(report, "turns"), i);
}

/* Each of ten turns computes only its new tokens: the last token (the template writes the one that
 * ends a turn), the question, and the template's text around it. At this temperature some tokens
 * are half characters, so replies do not encode into their own tokens. */
static void test_ten_turns(void)
{
    char input[256] = "", line[32];
    for (int i = 0; i < 10; i++) {
        snprintf(line, sizeof line, "Q%d\n", i);
        strcat(input, line);
    }
    CHECK(chat(input, "--max-new-tokens 80 --temperature 3 --seed 11 --report r.json") == 0);
    json_t *r = parse_file("r.json");
    CHECK(n_turns(r) == 10);
    bool cut = false;
    for (size_t i = 1; i < n_turns(r); i++) {
        const json_t *before = turn(r, i - 1), *t = turn(r, i);
        long long held = number(before, "n_prompt") + number(before, "n_generated") - 1;
        bool eos = strcmp(text_at(before, "finish"), "eos") == 0;
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
        bool eos = i > 0 && strcmp(text_at(turn(r, i - 1), "finish"), "eos") == 0;
        snprintf(text, sizeof text, "%s<u>Q%zu<a>", i == 0 || eos ? "" : "#", i);
        for (const char *c = text; *c; c++)
            json_array_append_new(ids, json_integer(*c - 33));
        CHECK((size_t)number(t, "n_prompt") == json_array_size(ids));
        if (i < 9)
            json_array_foreach(json_object_get(t, "tokens"), k, id) json_array_append(ids, id);
    }
    char *list = json_dumps(ids, JSON_COMPACT);
    write_text("ids", list);
    free(list);
    CHECK(sh("\"$S\" generate m --device cpu --token-ids ids --max-new-tokens 80 --temperature 3 "
             "--seed 11 --report g.json") == 0);
    json_t *g = parse_file("g.json");
    CHECK(json_equal(json_object_get(g, "tokens"), json_object_get(turn(r, 9), "tokens")));
    CHECK(strcmp(text_at(g, "logits_hash"), text_at(turn(r, 9), "logits_hash")) == 0);
    json_decref(ids);
    json_decref(g);
    json_decref(r);
}

/* Tokens from the prefix cache in all turns together. */
static long long from_store(const json_t *report)
{
    return number(report, "prefix.n_tokens_from_store");
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
    json_t *a = parse_file("a.json"), *b = parse_file("b.json");
    CHECK(n_turns(a) == 10 && n_turns(b) == 10 && from_store(b) == 0);
    for (size_t i = 0; i < 10; i++) {
        CHECK(number(turn(a, i), "n_reused") == number(turn(b, i), "n_reused"));
        CHECK(json_equal(json_object_get(turn(a, i), "logits_hash"),
                         json_object_get(turn(b, i), "logits_hash")));
    }
    bool eos = strcmp(text_at(turn(b, 8), "finish"), "eos") == 0;
    long long computed = number(turn(b, 9), "n_prompt") - number(turn(b, 9), "n_reused");
    CHECK_MSG(computed == 1 - eos + (long long)strlen("#<u>Q9<a>") + 60, "%lld computed", computed);
    long long held = number(turn(b, 9), "n_prompt") + number(turn(b, 9), "n_generated") - 1;

    CHECK(chat("/load s.json\nMore\n", "%s --report a.json", options) == 0);
    memcpy(text, out, strlen(out) + 1);
    CHECK(chat("/load s.json\nMore\n/stats\n", "%s --prefix-cache cache --report c.json",
               options) == 0);
    CHECK_MSG(strcmp(out, text) == 0, "'%s' is not '%s'", out, text);
    json_t *c = parse_file("c.json");
    long long last = number(turn(c, 0), "n_prompt") - 1; /* at least one is computed */
    held = held < last ? held : last;
    CHECK_MSG(from_store(c) == held - held % 128 && held >= 256, "%lld of %lld held: %s",
              from_store(c), held, err);
    snprintf(line, sizeof line, " %lld reused", from_store(c));
    CHECK_MSG(strstr(err, line), "%s", err);

    json_t *messages = parse_file("s.json"); /* the same by --messages */
    json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", "More"));
    char *list = json_dumps(messages, 0);
    write_text("more.json", list);
    text[strlen(text) - 1] = 0; /* without the line break at the end */
    CHECK(sh("\"$S\" chat m --device cpu --messages more.json %s --prefix-cache cache --report "
             "d.json",
             options) == 0);
    CHECK_MSG(strcmp(out, text) == 0, "'%s' is not '%s'", out, text);
    json_t *d = parse_file("d.json");
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
    json_t *r = parse_file("r.json"), *s = parse_file("s.json");
    CHECK(strlen(text_at(s, "1.content")) == n && strncmp(text_at(s, "1.content"), out, n) == 0);
    CHECK(strcmp(text_at(turn(r, 0), "finish"), "stop") == 0);
    /* The tokens before the stop text are found again. */
    CHECK(number(turn(r, 1), "n_reused") >= number(turn(r, 0), "n_prompt") + (long long)n);
    json_decref(r);
    json_decref(s);
}

/* If windows move on during long answers, another answer computes its question again, another
 * question computes itself, and neither computes earlier tokens: with sliding windows, and with the
 * residual window. */
static void test_going_back(void)
{
    static char input[2000];
    static const char *const kv[] = {"", "--kv-dtype int8 --kv-gate off --residual-window 128"};
    snprintf(input, sizeof input, "%0500d\n%0200d\n/regen\n/undo\n%0100d\n", 1, 2, 3);
    write_text("input", input);
    for (int i = 0; i < 2; i++) {
        int code = sh("\"$S\" chat slides --device cpu --ignore-eos --max-new-tokens 400 "
                      "--temperature 1 --report r.json %s <input",
                      kv[i]);
        CHECK_MSG(code == 0, "%d: %s", code, err);
        json_t *r = parse_file("r.json");
        long long held = number(turn(r, 0), "n_prompt") + number(turn(r, 0), "n_generated") - 1;
        CHECK(n_turns(r) == 4 && held > 800);
        for (size_t k = 1; k < 4; k++)
            CHECK_MSG(number(turn(r, k), "n_reused") >= held, "turn %zu: %lld of %lld", k,
                      number(turn(r, k), "n_reused"), held);
        json_decref(r);
    }
}

/* A model with states, whose template drops earlier answers: no turn can go on where the one before
 * has ended. Each computes its question and less than two tiles before it, also after /regen and
 * /undo, and with chunks that are shorter than a tile. */
static void test_states(void)
{
    static char input[5000];
    static const char *const options[] = {"", "--prefill-chunk 50"};
    enum { QUESTION = 200, TURNS = 6 };
    snprintf(input, sizeof input, "%01500d\n%0200d\n/regen\n/undo\n%0200d\n%0200d\n%0200d\n", 1, 2,
             3, 4, 5);
    write_text("input", input);
    for (int i = 0; i < 2; i++) {
        int code = sh("\"$S\" chat states --device cpu --ignore-eos --max-new-tokens 300 "
                      "--temperature 1 --report r.json %s <input",
                      options[i]);
        CHECK_MSG(code == 0, "%d: %s", code, err);
        json_t *r = parse_file("r.json");
        CHECK(n_turns(r) == TURNS);
        CHECK(number(turn(r, 0), "n_recomputed") == 0); /* then all up to what follows <u>...< */
        CHECK(number(turn(r, 1), "n_recomputed") == 1504 - number(turn(r, 1), "n_reused"));
        for (size_t k = 1; k < n_turns(r); k++) {
            long long computed = number(turn(r, k), "n_prompt") - number(turn(r, k), "n_reused");
            CHECK_MSG(computed > 0 && computed < QUESTION + 2 * 128 + 10, "%d, turn %zu: %lld", i,
                      k, computed);
        }
        json_decref(r);
    }
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    chat_models("chat");
    command_limits();
    run_cases("chat", NULL);
    test_ten_turns();
    test_prefix_cache();
    test_stop();
    test_going_back();
    test_states();
    sh("rm -r %s", folder);
    return check_done();
}
