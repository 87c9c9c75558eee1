/* `spillway summarize`: what it asks the model is what the instructions say, and each answer has
 * the bits that `generate` gives for that prompt alone; interruptions, changed and unreadable
 * documents, files of summaries. With a number as the argument: so many kills. */
#include "tests/command/command_json.h"
#include "tests/command/command_model.h"
#include "tests/command/command_start.h"

#include <sys/stat.h>

static uint64_t state;

static uint64_t draw(uint64_t n)
{
    return check_random(&state) % n;
}

/* ---- the world ---- */

static void write_file(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    CHECK(file && fputs(text, file) >= 0);
    if (file)
        fclose(file);
}

/* Paragraphs of words. */
static void write_document(const char *name, size_t bytes)
{
    static char text[1 << 16];
    size_t n = 0;
    while (n < bytes) {
        for (uint64_t k = 1 + draw(8); k > 0; k--)
            text[n++] = (char)('a' + draw(26));
        uint64_t what = draw(20);
        text[n++] = what < 2 ? '\n' : ' ';
        if (what == 0)
            text[n++] = '\n';
    }
    text[n] = 0;
    write_file(name, text);
}

/* Makes the last two of the 96 tokens a newline and a space, which instructions need. Adds a
 * special token whose id the model does not have. */
static void use_blanks(void)
{
    static const char none[] = "\"added_tokens\":[]";
    char json[2 * BYTE_TOKENIZER_BYTES];
    size_t n = byte_tokenizer_json(json);
    char *at = strstr(json, none);
    char *rest = spw_strdup(at + sizeof none - 1);
    sprintf(at, "\"added_tokens\":[{\"id\":96,\"content\":\"<e>\",\"special\":true}]%s", rest);
    spw_free(rest);
    CHECK(strlen(json) > n);
    memcpy(strstr(json, "\xc3\x83\":94"), "\xc4\x8a", 2);
    memcpy(strstr(json, "\xc2\xa9\":95"), "\xc4\xa0", 2);
    write_file("m/tokenizer.json", json);
}

static const char template[] = "<{{ messages[0].content }}>{% if enable_thinking %}T{% endif %}A:";

static void make_world(void)
{
    use_blanks();
    CHECK(sh("cp -r m mt && mkdir ins docs") == 0);
    write_file("mt/chat_template.jinja", template);
    write_file("ins/whole.txt", "W {title}, {length}, {language}:\nabout {focus}\n{text}\nS:");
    write_file("ins/part.txt", "P {part} of {parts} of {title}:\n{text}\nS:");
    write_file("ins/merge.txt", "M {parts} of {title}:\n{text}\nS:");
    write_document("docs/short.txt", 200);
    write_document("docs/long.md", 3000);
    write_document("docs/longer.txt", 16000);
    write_document("docs/other.txt", 1500);
}

/* ---- prompts ---- */

static json_t *lines_of(const char *name)
{
    static char text[1 << 20];
    json_t *lines = json_array();
    read_file(name, text, sizeof text);
    for (char *at = text, *end; (end = strchr(at, '\n')); at = end + 1) {
        *end = 0;
        json_array_append_new(lines, parse(at));
    }
    return lines;
}

static const char *text_of(const json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));
    CHECK_MSG(text, "no %s", key);
    return text ? text : "";
}

static json_t *find_part(json_t *parts, const char *document, long long level, long long index)
{
    size_t i;
    json_t *line;
    json_array_foreach(parts, i, line)
    {
        json_t *id = json_object_get(line, "id");
        if (strcmp(json_string_value(json_array_get(id, 0)), document) == 0 &&
            json_integer_value(json_array_get(id, 1)) == level &&
            json_integer_value(json_array_get(id, 2)) == index)
            return line;
    }
    CHECK_MSG(false, "no part %s %lld %lld", document, level, index);
    return NULL;
}

/* Appends a text without the blanks around it. */
static void append(char *to, const char *text, size_t bytes)
{
    while (bytes && strchr(" \n", *text))
        text++, bytes--;
    while (bytes && strchr(" \n", text[bytes - 1]))
        bytes--;
    size_t n = strlen(to);
    memcpy(to + n, text, bytes);
    to[n + bytes] = 0;
}

/* The prompt that the instructions make, by the positions in the result. */
static void make_prompt(char *to, json_t *parts, const json_t *part, const char *document,
                        size_t n_parts, bool is_chat)
{
    static char text[1 << 16];
    char path[128];
    const long long level = number(part, "level"), index = number(part, "index");
    *to = 0;
    if (level == 0) {
        snprintf(path, sizeof path, "docs/%s", document);
        read_file(path, text, sizeof text);
        size_t begin = (size_t)number(part, "begin"), end = (size_t)number(part, "end");
        if (n_parts == 1)
            sprintf(to, "%sW %s, 20, Latin:\n", is_chat ? "<" : "", document);
        else
            sprintf(to, "%sP %lld of %zu of %s:\n", is_chat ? "<" : "", index + 1, n_parts,
                    document);
        append(to, text + begin, end - begin);
    } else {
        static char joined[1 << 16];
        const long long first = number(part, "first"), count = number(part, "count");
        *joined = 0;
        for (long long i = 0; i < count; i++) {
            const char *below = text_of(find_part(parts, document, level - 1, first + i), "text");
            append(joined, below, strlen(below));
            strcat(joined, "\n\n");
        }
        sprintf(to, "%sM %lld of %s:\n", is_chat ? "<" : "", count, document);
        append(to, joined, strlen(joined));
    }
    strcat(to, is_chat ? "\nS:>A:" : "\nS:");
}

/* Every request of a job has the answer of `generate`. Returns how many there were. */
static size_t check_answers(const char *model, const char *output)
{
    static char prompt[1 << 16];
    char name[128];
    snprintf(name, sizeof name, "%s.parts", output);
    json_t *documents = lines_of(output), *parts = lines_of(name), *line, *part = NULL;
    json_t *wanted = json_object();
    FILE *file;
    size_t i, k, n = 0;
    snprintf(name, sizeof name, "%s/prompts.jsonl", folder);
    CHECK((file = fopen(name, "w")));
    json_array_foreach(documents, i, line)
    {
        json_t *list = json_object_get(line, "parts");
        size_t n_parts = 0;
        json_array_foreach(list, k, part) n_parts += number(part, "level") == 0;
        json_array_foreach(list, k, part)
        {
            char key[32];
            make_prompt(prompt, parts, part, text_of(line, "id"), n_parts, model[1] == 't');
            CHECK(number(part, "n_prompt") == (long long)strlen(prompt));
            snprintf(key, sizeof key, "%zu", n++);
            json_t *asked = json_pack("{s:s, s:s, s:I}", "id", key, "prompt", prompt,
                                      "max_new_tokens", number(part, "n_generated"));
            json_dumpf(asked, file, JSON_COMPACT);
            fputc('\n', file);
            json_decref(asked);
            json_object_set(wanted, key, part);
        }
        CHECK(strcmp(text_of(line, "logits_hash"), text_of(part, "logits_hash")) == 0);
    }
    fclose(file);
    CHECK(sh("$S generate %s --prompts prompts.jsonl --ignore-eos > g.jsonl", model) == 0);
    json_t *answers = lines_of("g.jsonl");
    CHECK(json_array_size(answers) == n);
    json_array_foreach(answers, i, line)
    {
        const json_t *is = json_object_get(wanted, text_of(line, "id"));
        CHECK_MSG(strcmp(text_of(line, "logits_hash"), text_of(is, "logits_hash")) == 0,
                  "prompt %s", text_of(line, "id"));
    }
    json_decref(wanted);
    json_decref(answers);
    json_decref(parts);
    json_decref(documents);
    return n;
}

#define OPTIONS "--instructions ins --length 20 --language Latin --max-new-tokens 60 --ignore-eos"

static void test_strategies(const char *model)
{
    json_t *line;
    size_t i;
    CHECK(sh("$S summarize %s docs --output %s.jsonl " OPTIONS, model, model) == 0);
    CHECK(strstr(err, "long.md: map-reduce: ") && strstr(err, "short.txt: whole: "));
    CHECK(strstr(err, "predict"));
    char name[32];
    snprintf(name, sizeof name, "%s.jsonl", model);
    json_t *lines = lines_of(name);
    CHECK(json_array_size(lines) == 4);
    json_array_foreach(lines, i, line)
    {
        const json_t *parts = json_object_get(line, "parts");
        const json_t *last = json_array_get(parts, json_array_size(parts) - 1);
        const bool is_whole = strcmp(text_of(line, "id"), "short.txt") == 0;
        CHECK(strcmp(text_of(line, "strategy"), is_whole ? "whole" : "map-reduce") == 0);
        CHECK(number(last, "level") >=
              (strcmp(text_of(line, "id"), "longer.txt") ? 0 : 2) - is_whole);
        CHECK(*text_of(line, "why") && *text_of(line, "text"));
        CHECK(json_object_get(last, "moved_bytes") && json_object_get(last, "seconds"));
    }
    json_decref(lines);
    CHECK(check_answers(model, name) > 15);
}

/* The strategies that the user chooses: a document that does not fit is an error line. */
static void test_whole(void)
{
    CHECK(sh("$S summarize m docs/short.txt docs/long.md --output w.jsonl --strategy "
             "whole " OPTIONS) == 1);
    CHECK(check_answers("m", "w.jsonl") == 1);
    read_file("w.jsonl.errors", out, sizeof out);
    CHECK(strstr(out, "\"id\":\"long.md\"") && strstr(out, "context_length_exceeded"));
    CHECK(sh("$S summarize m docs/short.txt --output r.jsonl --strategy map-reduce " OPTIONS) == 0);
    CHECK(check_answers("m", "r.jsonl") == 1);
    /* Longer documents than the model's context, one pass. */
    CHECK(sh("$S summarize m docs/long.md --output l.jsonl --strategy whole "
             "--allow-long-context " OPTIONS) == 0);
    CHECK(sh("$S summarize m docs/long.md --output l.jsonl --strategy auto "
             "--allow-long-context " OPTIONS) == 2);
    CHECK(strstr(err, "--strategy"));
    /* Too little memory for the whole. */
    CHECK(sh("$S summarize m docs/long.md --output b.jsonl --allow-long-context --device-memory "
             "400KiB "
             "--host-memory 16KiB " OPTIONS) == 0);
    CHECK(strstr(err, "long.md: map-reduce: 3") && strstr(err, "do not fit the budgets"));
    CHECK(check_answers("m", "b.jsonl") > 4);
}

/* ---- runs that end early ---- */

/* Whether a file has the same lines as another, in any order, but for times and bytes moved. */
static bool same_lines(const char *a, const char *b)
{
    static const char *const names[] = {"seconds", "moved_bytes", "predicted_seconds", "parts"};
    json_t *lists[2] = {lines_of(a), lines_of(b)}, *line, *all[2];
    size_t i;
    for (int k = 0; k < 2; k++) {
        all[k] = json_object();
        json_array_foreach(lists[k], i, line)
        {
            char *id = json_dumps(json_object_get(line, "id"), JSON_ENCODE_ANY | JSON_COMPACT);
            for (size_t n = 0; n < 4; n++)
                json_object_del(line, names[n]);
            CHECK_MSG(!json_object_get(all[k], id), "%s is there twice", id);
            json_object_set(all[k], id, line);
            free(id);
        }
    }
    bool same = json_equal(all[0], all[1]);
    for (int k = 0; k < 2; k++) {
        json_decref(lists[k]);
        json_decref(all[k]);
    }
    return same;
}

static void start_and_end(int with, useconds_t after)
{
    const char *arguments[] = {getenv("S"),
                               "summarize",
                               "m",
                               "docs",
                               "--output",
                               "k.jsonl",
                               "--instructions",
                               "ins",
                               "--length",
                               "20",
                               "--language",
                               "Latin",
                               "--max-new-tokens",
                               "60",
                               "--ignore-eos",
                               "--quiet",
                               NULL};
    int null = open("/dev/null", O_WRONLY), status;
    pid_t pid = start(null, arguments);
    close(null);
    usleep(after);
    kill(pid, with);
    waitpid(pid, &status, 0);
}

/* Every id once, no part computed again. */
static void test_kills(int n_kills)
{
    double began = check_seconds();
    CHECK(sh("$S summarize m docs --output u.jsonl " OPTIONS) == 0);
    const useconds_t whole = (useconds_t)((check_seconds() - began) * 1e6);
    for (int i = 0; i < n_kills; i++) {
        start_and_end(i % 4 == 3 ? SIGTERM : SIGKILL, (useconds_t)draw(whole));
        if (i % 8 == 7)
            CHECK(sh("rm -f k.jsonl*") == 0);
    }
    CHECK(sh("$S summarize m docs --output k.jsonl " OPTIONS) == 0);
    CHECK(same_lines("k.jsonl", "u.jsonl"));
    CHECK(same_lines("k.jsonl.parts", "u.jsonl.parts"));
    CHECK(sh("cp k.jsonl before && $S summarize m docs --output k.jsonl " OPTIONS
             " && cmp k.jsonl before") == 0);
    /* The parts are kept, so nothing is computed again for an answer that was lost. */
    CHECK(
        sh("cp k.jsonl.parts before && : > k.jsonl && $S summarize m docs --output k.jsonl " OPTIONS
           " && cmp k.jsonl.parts before") == 0);
    CHECK(same_lines("k.jsonl", "u.jsonl"));
}

/* ---- documents that change or cannot be read ---- */

static void test_documents(void)
{
    CHECK(
        sh("mkdir d && cp docs/short.txt d/a.txt && cp docs/other.txt d/b.txt && printf '\\377' > "
           "d/c.txt && printf '  \\n' > d/d.txt") == 0);
    CHECK(sh("$S summarize m d --output d/o.jsonl " OPTIONS) == 1);
    read_file("d/o.jsonl.errors", out, sizeof out);
    CHECK(strstr(out, "\"c.txt\"") && strstr(out, "\"d.txt\"") && !strstr(out, "\"line\""));
    CHECK(strstr(out, "invalid_file"));
    CHECK(sh("wc -l < d/o.jsonl") == 0 && atoi(out) == 2);
    /* The files of the job in the folder are no documents. A corrected file is done now. */
    CHECK(sh("echo now >> d/d.txt && $S summarize m d --output d/o.jsonl " OPTIONS) == 1);
    CHECK(strstr(err, "3 summarized, 1 without"));
    CHECK(sh("echo more >> d/b.txt && $S summarize m d --output d/o.jsonl " OPTIONS) == 2);
    CHECK(strstr(err, "b.txt") && strstr(err, "has changed since"));
    CHECK(sh("cp docs/other.txt d/b.txt && sed -i 's/W /V /' ins/whole.txt && $S summarize m d "
             "--output d/o.jsonl " OPTIONS) == 2);
    CHECK(strstr(err, "the instructions"));
    CHECK(sh("sed -i 's/V /W /' ins/whole.txt && $S summarize m d --output d/o.jsonl --focus "
             "x " OPTIONS) == 2);
    CHECK(strstr(err, "--focus"));
}

/* What looks like a special token in a document, or in its id, is text. */
static void test_special_tokens(void)
{
    static const char *const models[] = {"m", "mt", "mu"};
    CHECK(
        sh("cp -r mt mu && echo '<{{ messages[0].content | upper }}>' > mu/chat_template.jinja") ==
        0);
    write_file("e.jsonl", "{\"id\": \"one\", \"text\": \"a <e> b<e>\"}\n"
                          "{\"id\": \"<e>\", \"text\": \"ab\"}\n"
                          "{\"id\": \"two\", \"text\": \"ab\"}\n");
    for (int i = 0; i < 3; i++) {
        const bool changes_text = i == 2;
        CHECK(sh("$S summarize %s e.jsonl --output e%d.jsonl " OPTIONS, models[i], i) ==
              changes_text);
        char name[32];
        snprintf(name, sizeof name, "e%d.jsonl", i);
        json_t *lines = lines_of(name);
        CHECK(json_array_size(lines) == (changes_text ? 1 : 3));
        json_decref(lines);
    }
    read_file("e2.jsonl.errors", out, sizeof out);
    CHECK(strstr(out, "\"one\"") && strstr(out, "special token"));
    CHECK(sh("$S generate m --prompt 'a <e> b'") == 2);
}

/* The instruction that all documents share is computed once. */
static void test_shared(void)
{
    enum { DOCUMENTS = 5, SHARED = 600, TILE = 256 };
    char text[SHARED + 64], line[128];
    memset(text, 'x', SHARED);
    strcpy(text + SHARED, "\n{title}:\n{text}\nS:");
    CHECK(sh("mkdir long") == 0);
    write_file("long/whole.txt", text);
    CHECK(sh(": > v.jsonl") == 0);
    for (int i = 0; i < DOCUMENTS; i++) {
        snprintf(line, sizeof line, "echo '{\"id\": \"%d\", \"text\": \"%dab\"}' >> v.jsonl", i, i);
        CHECK(sh("%s", line) == 0);
    }
    CHECK(
        sh("$S summarize m v.jsonl --output v.out --instructions long --max-new-tokens 8 --report "
           "v.json") == 0);
    json_t *report = parse_file("v.json");
    CHECK(number(report, "prefix.n_tokens_reused") == (DOCUMENTS - 1) * (SHARED / TILE) * TILE);
    json_decref(report);
}

/* Names of files are made of ids. */
static void test_folder(void)
{
    write_file("d.jsonl", "{\"id\": \"../up\", \"text\": \"one\"}\n{\"id\": \"a\\nb/c\", \"text\": "
                          "\"two\"}\n{\"id\": \"plain\", \"text\": \"three\"}\n");
    CHECK(sh("$S summarize m d.jsonl --out-dir sums " OPTIONS) == 0);
    CHECK(sh("ls sums/*.txt | wc -l; ls sums | grep -c -v '^[A-Za-z0-9_.-]*$'; ls up* 2>/dev/null; "
             "true") == 0);
    CHECK(strcmp(out, "3\n0\n") == 0);
    json_t *lines = lines_of("sums/summaries.jsonl"), *line;
    size_t i;
    CHECK(json_array_size(lines) == 3);
    json_array_foreach(lines, i, line)
    {
        char path[128], text[4096];
        snprintf(path, sizeof path, "sums/%.100s", text_of(line, "text_file"));
        read_file(path, text, sizeof text);
        CHECK(strlen(text) > 1);
        text[strlen(text) - 1] = 0;
        CHECK(strcmp(text, text_of(line, "text")) == 0);
    }
    json_decref(lines);
    CHECK(sh("$S summarize m d.jsonl --out-dir sums " OPTIONS) == 0);
    CHECK(sh("ls sums/*.txt | wc -l") == 0 && atoi(out) == 3);
}

static void test_refusals(void)
{
    CHECK(sh("$S summarize m --output x.jsonl") == 2 && strstr(err, "no PATH"));
    CHECK(sh("$S summarize m docs") == 2 && strstr(err, "--out-dir"));
    CHECK(sh("$S summarize m docs --output x.jsonl --out-dir y") == 2);
    CHECK(sh("$S summarize m docs --output x.jsonl --length big") == 2 && strstr(err, "--length"));
    CHECK(sh("$S summarize m none --output x.jsonl") == 2 && strstr(err, "none"));
    CHECK(sh("$S summarize m docs --output x.jsonl --instructions none") == 2);
    CHECK(sh("$S summarize m docs --output x.jsonl --instructions ins --max-new-tokens 1000") == 1);
    read_file("x.jsonl.errors", out, sizeof out);
    CHECK(strstr(out, "leave no room"));
}

/* Two shards are the job. */
static void test_shards(void)
{
    for (int i = 0; i < 2; i++)
        CHECK(sh("$S summarize m docs --output s%d.jsonl --shard %d/2 " OPTIONS, i, i) == 0);
    CHECK(sh("$S batch --status s0.jsonl s1.jsonl") == 0);
    CHECK(strstr(out, "all: 4 done, 0 failed, 0 missing"));
    CHECK(sh("cp s0.jsonl.state t.jsonl.state && : > t.jsonl && $S batch --status t.jsonl") == 1);
    CHECK(!strstr(out, " 0 missing"));
    CHECK(sh("cat s0.jsonl s1.jsonl > s.jsonl") == 0);
    CHECK(same_lines("s.jsonl", "u.jsonl"));
}

int main(int argc, char **argv)
{
    if (!command_is_there())
        return CHECK_SKIP;
    state = check_seed();
    command_model("summarize");
    command_limits();
    make_world();
    test_strategies("m");
    test_strategies("mt");
    test_whole();
    test_kills(argc > 1 ? atoi(argv[1]) : (int)check_amount(24));
    test_shards();
    test_documents();
    test_special_tokens();
    test_shared();
    test_folder();
    test_refusals();
    if (!check_done())
        sh("rm -r %s", folder);
    return check_done();
}
