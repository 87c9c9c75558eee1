/* `spillway summarize`: what it asks the model is what the instructions say, and each answer has
 * the bits that `generate` gives for that prompt alone; changed and unreadable documents, files of
 * summaries. test_summarize_kills ends it. */
#include "tests/command/command_json.h"
#include "tests/command/summarize_files.h"
#include "tests/pdf_file.h"

#include <errno.h>
#include <sys/prctl.h>

static const char template[] = "<{{ messages[0].content }}>{% if enable_thinking %}T{% endif %}A:";

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

static const char *texts = "docs"; /* the folder of what stands in the documents */

/* The prompt that the instructions make, by the positions in the result. */
static void make_prompt(char *to, json_t *parts, const json_t *part, const char *document,
                        size_t n_parts, bool is_chat)
{
    static char text[1 << 16];
    char path[128];
    const long long level = number(part, "level"), index = number(part, "index");
    *to = 0;
    if (level == 0) {
        snprintf(path, sizeof path, "%s%s", texts, strrchr(document, '/'));
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
    extract_parts(output, "parts");
    json_t *documents = lines_of(output), *parts = lines_of("parts"), *line, *part = NULL;
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

static void test_strategies(const char *model)
{
    json_t *line;
    size_t i;
    CHECK(sh("$S summarize %s docs --output %s.jsonl " OPTIONS, model, model) == 0);
    CHECK(strstr(err, "docs/long.md: map-reduce: ") && !strstr(err, ": whole: "));
    CHECK(strstr(err, "predict"));
    char name[32];
    snprintf(name, sizeof name, "%s.jsonl", model);
    json_t *lines = lines_of(name);
    CHECK(json_array_size(lines) == 4);
    json_array_foreach(lines, i, line)
    {
        const json_t *parts = json_object_get(line, "parts");
        const json_t *last = json_array_get(parts, json_array_size(parts) - 1);
        const bool is_whole = strcmp(text_of(line, "id"), "docs/short.txt") == 0;
        CHECK(strcmp(text_of(line, "strategy"), is_whole ? "whole" : "map-reduce") == 0);
        CHECK(number(last, "level") >=
              (strcmp(text_of(line, "id"), "docs/longer.txt") ? 0 : 2) - is_whole);
        CHECK(*text_of(line, "why") && *text_of(line, "text"));
        CHECK(json_object_get(last, "moved_bytes") && json_object_get(last, "seconds"));
    }
    json_decref(lines);
    CHECK(check_answers(model, name) > 15);
}

/* The times of both strategies. `short.txt` is one request in both. */
static void check_predicted(const char *output, const char *note)
{
    char text[128];
    double whole = 0, parts = 0;
    json_t *lines = lines_of(output), *times = NULL;
    times = json_object_get(json_array_get(lines, 0), "predicted_seconds");
    snprintf(text, sizeof text, "%sas given with --strategy; predicted alone: whole ", note);
    CHECK(json_unpack(times, "{s:F, s:F}", "whole", &whole, "map_reduce", &parts) == 0);
    CHECK_MSG(whole > 0 && parts > 0.5 * whole && parts < 2 * whole, "%g, %g", whole, parts);
    CHECK_MSG(strstr(err, text), "%s", err);
    json_decref(lines);
}

/* The strategies that the user chooses: a document that does not fit is an error line. */
static void test_whole(void)
{
    CHECK(sh("$S summarize m docs/short.txt docs/long.md --output w.jsonl --strategy "
             "whole " OPTIONS) == 1);
    check_predicted("w.jsonl", "docs/short.txt: whole: ");
    CHECK(check_answers("m", "w.jsonl") == 1);
    read_file("w.jsonl.errors", out, sizeof out);
    CHECK(strstr(out, "\"id\":\"docs/long.md\"") && strstr(out, "context_length_exceeded"));
    CHECK(sh("$S summarize m docs/short.txt --output r.jsonl --strategy map-reduce " OPTIONS) == 0);
    check_predicted("r.jsonl", "docs/short.txt: map-reduce: ");
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

/* ---- documents that change or cannot be read ---- */

static void test_documents(void)
{
    CHECK(
        sh("mkdir d && cp docs/short.txt d/a.txt && cp docs/other.txt d/b.txt && printf '\\377' > "
           "d/c.txt && printf '  \\n' > d/d.txt") == 0);
    CHECK(sh("$S summarize m d --output d/o.jsonl " OPTIONS) == 1);
    read_file("d/o.jsonl.errors", out, sizeof out);
    CHECK(strstr(out, "\"d/c.txt\"") && strstr(out, "\"d/d.txt\"") && !strstr(out, "\"line\""));
    CHECK(strstr(out, "invalid_file"));
    CHECK(sh("wc -l < d/o.jsonl") == 0 && atoi(out) == 2);
    /* The files of the job in the folder are no documents. A corrected file is done now. */
    CHECK(sh("echo now >> d/d.txt && $S summarize m d --output d/o.jsonl " OPTIONS) == 1);
    CHECK(strstr(err, "3 summarized, 1 without"));
    CHECK(sh("echo more >> d/b.txt && $S summarize m d --output d/o.jsonl " OPTIONS) == 2);
    CHECK(strstr(err, "b.txt") && strstr(err, "has changed since"));
    CHECK(sh("cp docs/other.txt d/b.txt && sed -i 's/W /V /' ins/whole.txt && $S summarize m d "
             "--output d/o.jsonl " OPTIONS) == 2);
    CHECK_MSG(strstr(err, "begun with other instructions; give"), "%s", err);
    CHECK(sh("sed -i 's/V /W /' ins/whole.txt && $S summarize m d --output d/o.jsonl --focus "
             "x " OPTIONS) == 2);
    CHECK(strstr(err, "--focus"));
}

/* ---- other formats ---- */

static bool is_installed(const char *name)
{
    bool found = sh("command -v %s", name) == 0;
    if (!found)
        fprintf(stderr, "%s is not installed: a part of the test is skipped\n", name);
    return found;
}

/* The folder `real` has documents, `plain` what stands in them. */
static void test_formats(void)
{
    char path[128];
    const bool pdf = is_installed("pdftotext"), pandoc = is_installed("pandoc");
    CHECK(sh("mkdir real plain") == 0);
    if (pdf) {
        snprintf(path, sizeof path, "%s/real/a.pdf", folder);
        write_pdf(path, "BT /F 24 Tf 100 700 Td (water over the spillway) Tj ET");
        write_text("plain/a.pdf", "water over the spillway");
        CHECK(sh("cp real/a.pdf 'real/b c.txt' && cp plain/a.pdf 'plain/b c.txt'") == 0);
        snprintf(path, sizeof path, "%s/real/no text.pdf", folder);
        write_pdf(path, "0 0 m 9 9 l S");
        write_text("real/bad.pdf", "%PDF-1.4\nnothing");
    }
    if (pandoc) {
        static const char text[] = "one paragraph\n\nanother one";
        write_text("a.md", "one *paragraph*\n\nanother [one](http://no.where)\n");
        CHECK_MSG(sh("pandoc a.md -o real/a.docx && pandoc a.md -o real/a.html && pandoc a.md "
                     "--metadata title=t -o real/a.epub") == 0,
                  "%s", err);
        write_text("plain/a.docx", text);
        write_text("plain/a.html", text);
        CHECK(sh("pandoc --to plain real/a.epub >plain/a.epub && grep another plain/a.epub") == 0);
        write_text("real/bad.docx", "no archive");
    }
    if (!pdf && !pandoc)
        return;
    CHECK(sh("$S summarize m real --output real.jsonl " OPTIONS) == 1);
    texts = "plain";
    CHECK(check_answers("m", "real.jsonl") == 2u * pdf + 3u * pandoc);
    texts = "docs";
    json_t *failed = results_of("real.jsonl.errors");
    CHECK(json_object_size(failed) == 2u * pdf + pandoc);
    CHECK(!pdf || (json_object_get(failed, "\"real/no text.pdf\"") &&
                   json_object_get(failed, "\"real/bad.pdf\"")));
    CHECK(!pandoc || json_object_get(failed, "\"real/bad.docx\""));
    json_decref(failed);
}

/* A document that would take hours ends with an error within the limits of a converter, and its
 * process with it. The document after it is summarized. */
static void test_bombs(void)
{
    char path[128];
    if (!check_full() || !is_installed("pdftotext"))
        return;
    CHECK(sh("mkdir bombs && cp docs/short.txt bombs/z.txt") == 0);
    snprintf(path, sizeof path, "%s/bombs/a.pdf", folder);
    write_pdf_of_forms(path, 9);
    snprintf(path, sizeof path, "%s/bombs/b.pdf", folder);
    write_pdf_of_many_pages(path);
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0); /* of processes that a command leaves behind */
    double start = check_seconds();
    CHECK(sh("$S summarize m bombs --output bombs.jsonl " OPTIONS) == 1);
    CHECK_MSG(check_seconds() - start < 150, "%.0f s", check_seconds() - start);
    CHECK_MSG(check_results("bombs.jsonl", NULL, 2) == 3, "%s", err);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
}

/* Devices, pipes, loops of links, ids and lines that no document has. */
static void test_hostile_paths(void)
{
    CHECK(
        sh("mkdir h && mkfifo h/pipe && ln -s loop h/loop && ln -s . h/here && ln -s ../h h/up && "
           "ln -s /dev/zero h/zero && ln -s pipe h/p.pdf && cp docs/short.txt h/a.txt") == 0);
    CHECK(sh("$S summarize m h --output h1 " OPTIONS) == 0);
    CHECK_MSG(strstr(err, "h/loop: this link leads nowhere, so it is left out"), "%s", err);
    CHECK(sh("wc -l <h1") == 0 && atoi(out) == 1);
    CHECK(sh("$S summarize m /dev/zero --output h2 " OPTIONS) == 2);
    CHECK_MSG(strstr(err, "/dev/zero: found a device or a pipe, expected a file or folder"), "%s",
              err);
    CHECK(sh("$S summarize m h/pipe --output h2 " OPTIONS) == 2 && strstr(err, "device or a pipe"));
    CHECK(sh("$S summarize m h/loop --output h2 " OPTIONS) == 2);
    CHECK_MSG(strstr(err, "h/loop: Too many levels of symbolic links"), "%s", err);
    CHECK(sh("$S summarize m h/here/here/a.txt h/../h/up/a.txt --output h2 " OPTIONS) == 0);
    CHECK(sh("wc -l <h2") == 0 && atoi(out) == 2); /* two ids */
}

/* What looks like a special token in a document, or in its id, is text. */
static void test_special_tokens(void)
{
    static const char *const models[] = {"m", "mt", "mu"};
    CHECK(
        sh("cp -r mt mu && echo '<{{ messages[0].content | upper }}>' > mu/chat_template.jinja") ==
        0);
    CHECK(sh("mkdir e; printf 'a <e> b<e>' >e/one; printf ab | tee 'e/<e>' >e/two") == 0);
    for (int i = 0; i < 3; i++) {
        const bool changes_text = i == 2;
        CHECK(sh("$S summarize %s e --output e%d.jsonl " OPTIONS, models[i], i) == changes_text);
        char name[32];
        snprintf(name, sizeof name, "e%d.jsonl", i);
        json_t *lines = lines_of(name);
        CHECK(json_array_size(lines) == (changes_text ? 1 : 3));
        json_decref(lines);
    }
    read_file("e2.jsonl.errors", out, sizeof out);
    CHECK(strstr(out, "\"e/one\"") && strstr(out, "special token"));
    CHECK(sh("$S generate m --prompt 'a <e> b'") == 2);
}

/* The instruction that all documents share is computed once. */
static void test_shared(void)
{
    /* A token for each letter, and the newline; then the folder in the title. */
    enum { DOCUMENTS = 5, SHARED = 601, FOLDER = 2 };
    char text[SHARED + 64];
    memset(text, 'x', SHARED - 1);
    strcpy(text + SHARED - 1, "\n{title}:\n{text}\nS:");
    CHECK(sh("mkdir long") == 0);
    write_text("long/whole.txt", text);
    CHECK(sh("mkdir v") == 0);
    for (int i = 0; i < DOCUMENTS; i++)
        CHECK(sh("echo %dab >v/%d", i, i) == 0);
    CHECK(sh("$S summarize m v --output v.out --instructions long --max-new-tokens 8 --report "
             "v.json") == 0);
    json_t *report = parse_file("v.json");
    CHECK(number(report, "prefix.n_tokens_reused") == (DOCUMENTS - 1) * (SHARED + FOLDER));
    json_decref(report);
}

/* Text files mirror the folders of the documents. */
static void test_folder(void)
{
    CHECK(sh("mkdir -p n/sub/deep; cp docs/short.txt 'n/a b.txt'; cp docs/short.txt n/-r.md; "
             "cp docs/short.txt n/sub/deep/x.txt") == 0);
    CHECK_MSG(sh("$S summarize m n --out-dir sums " OPTIONS) == 0, "%s", err);
    CHECK(sh("cd sums && find . -name '*.txt' | LC_ALL=C sort") == 0);
    CHECK_MSG(strcmp(out, "./-r.md.summary.txt\n./a b.summary.txt\n"
                          "./sub/deep/x.summary.txt\n") == 0,
              "%s", out);
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
    CHECK(sh("$S summarize m n --out-dir sums " OPTIONS) == 0);
    CHECK(sh("find sums -name '*.txt' | wc -l") == 0 && atoi(out) == 3);
    CHECK(sh("mkdir n2; cp docs/short.txt 'n2/a b.txt'; $S summarize m n n2 --out-dir "
             "sums2 " OPTIONS) == 2);
    CHECK_MSG(strstr(err, "n/a b.txt and n2/a b.txt: their summaries would have one name"), "%s",
              err);
}

static void test_refusals(void)
{
    CHECK(sh("$S summarize m --output x.jsonl") == 2 && strstr(err, "no PATH"));
    CHECK(sh("$S summarize m docs") == 2 && strstr(err, "--out-dir"));
    CHECK(sh("$S summarize m docs --output x.jsonl --out-dir y") == 2);
    CHECK(sh("cd docs && $S summarize ../m . --out-dir ../docs/") == 2);
    CHECK_MSG(strstr(err, "--out-dir: ../docs/: is a folder of documents"), "%s", err);
    CHECK(sh("$S summarize m docs --output x.jsonl --length big") == 2 && strstr(err, "--length"));
    CHECK(sh("$S summarize m none --output x.jsonl") == 2 && strstr(err, "none"));
    CHECK(sh("$S summarize m s0.jsonl --output x.jsonl") == 2);
    CHECK_MSG(strstr(err, "s0.jsonl: found a JSONL file, expected documents; 'spillway batch'"),
              "%s", err);
    CHECK(sh("$S summarize m docs --output x.jsonl --instructions none") == 2);
    CHECK(sh("$S summarize m docs --output x.jsonl --instructions ins --max-new-tokens 1000") == 1);
    read_file("x.jsonl.errors", out, sizeof out);
    CHECK(strstr(out, "leave no room"));
    /* Budgets that hold nothing refuse the run. If they hold a little, documents that need parts
     * get errors. */
    CHECK(sh("$S summarize m docs --output tiny.jsonl --device-memory 1KiB " OPTIONS) == 2);
    CHECK_MSG(strstr(err, "device memory: 1.00KiB given, a context of 512 tokens"), "%s", err);
    CHECK(sh("$S plan m --prompt-tokens 511 --max-new-tokens 1 --no-probe --json") == 0);
    json_t *plan = json_loads(out, 0, NULL);
    const long long least = number(json_object_get(plan, "smallest_bytes"), "device");
    json_decref(plan);
    CHECK(sh("$S summarize m docs --output tiny.jsonl --device-memory %lld " OPTIONS, least - 1) ==
          1);
    read_file("tiny.jsonl.errors", out, sizeof out);
    CHECK_MSG(strstr(out, "\"id\":\"docs/long.md\"") && strstr(out, "raise --device-memory") &&
                  strstr(out, "a context of 512 tokens needs") && !strstr(out, "leave no room"),
              "%s", out);
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
    json_t *whole = results_of("m.jsonl");
    CHECK(check_results("s.jsonl", whole, 0) == 4);
    json_decref(whole);
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    uint64_t random = check_seed();
    summarize_model("summarize", &random);
    CHECK(sh("cp -r m mt") == 0);
    write_text("mt/chat_template.jinja", template);
    test_strategies("m");
    test_strategies("mt");
    test_whole();
    test_shards();
    test_documents();
    test_formats();
    test_bombs();
    test_hostile_paths();
    test_special_tokens();
    test_shared();
    test_folder();
    test_refusals();
    if (!check_done())
        sh("rm -r %s", folder);
    return check_done();
}
