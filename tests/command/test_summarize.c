/* `spillway summarize`: what it asks the model is what the instructions say, and each answer has
 * the bits that `generate` gives for that prompt alone; other formats of documents; and the cases
 * of summarize.cases. test_summarize_kills ends it. */
#include "tests/command/cases.h"
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

/* A model with an encoder: what its files say (encoder_models), in the words of a line of a job. */
struct encoder {
    const char *model, *prefix, *search;
    size_t positions;
    long long answer, part_answer; /* the most tokens; a merge has room for three of the latter */
};
static const struct encoder encoders[] = {
    {"b", "",
     "{\"num_beams\": 4, \"length_penalty\": 2.0, \"early_stopping\": true, \"min_length\": 5, "
     "\"no_repeat_ngram_size\": 3}",
     64, 23, 15},
    {"t", "summarize: ",
     "{\"num_beams\": 3, \"length_penalty\": 2.0, \"early_stopping\": true, \"min_length\": 7, "
     "\"no_repeat_ngram_size\": 3}",
     512, 39, 39},
};

/* The prompt that the instructions make, by the positions in the result. */
static void make_prompt(char *to, json_t *parts, const json_t *part, const char *document,
                        size_t n_parts, bool is_chat, const struct encoder *encoder)
{
    static char text[1 << 16];
    char path[128];
    const long long level = number(part, "level"), index = number(part, "index");
    strcpy(to, encoder ? encoder->prefix : "");
    if (level == 0) {
        snprintf(path, sizeof path, "%s%s", texts, strrchr(document, '/'));
        read_file(path, text, sizeof text);
        size_t begin = (size_t)number(part, "begin"), end = (size_t)number(part, "end");
        if (encoder)
            ;
        else if (n_parts == 1)
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
            const char *below = text_at(find_part(parts, document, level - 1, first + i), "text");
            append(joined, below, strlen(below));
            strcat(joined, "\n\n");
        }
        if (!encoder)
            sprintf(to, "%sM %lld of %s:\n", is_chat ? "<" : "", count, document);
        append(to, joined, strlen(joined));
    }
    if (!encoder)
        strcat(to, is_chat ? "\nS:>A:" : "\nS:");
}

/* What `generate` is asked for: a line. */
static json_t *asked_for(const char *key, const char *prompt, const json_t *part, bool is_last,
                         const struct encoder *encoder)
{
    const long long most = !encoder  ? number(part, "n_generated")
                           : is_last ? encoder->answer
                                     : encoder->part_answer;
    json_t *asked = json_pack("{s:s, s:s, s:I}", "id", key, "prompt", prompt, "max_new_tokens",
                              (json_int_t)most);
    if (encoder)
        json_object_update_new(asked, parse(encoder->search));
    return asked;
}

/* Every request of a job has the answer of `generate`. Returns how many there were. */
static size_t check_answers(const char *model, const char *output, const struct encoder *encoder)
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
            make_prompt(prompt, parts, part, text_at(line, "id"), n_parts, model[1] == 't',
                        encoder);
            CHECK(number(part, "n_prompt") == (long long)strlen(prompt));
            CHECK(!encoder || strlen(prompt) <= encoder->positions);
            snprintf(key, sizeof key, "%zu", n++);
            json_t *asked = asked_for(key, prompt, part, k + 1 == json_array_size(list), encoder);
            json_dumpf(asked, file, JSON_COMPACT);
            fputc('\n', file);
            json_decref(asked);
            json_object_set(wanted, key, part);
        }
        CHECK(strcmp(text_at(line, "logits_hash"), text_at(part, "logits_hash")) == 0);
    }
    fclose(file);
    CHECK(sh("$S generate %s --prompts prompts.jsonl %s > g.jsonl", model,
             encoder ? "" : "--ignore-eos") == 0);
    json_t *answers = lines_of("g.jsonl");
    CHECK(json_array_size(answers) == n);
    json_array_foreach(answers, i, line)
    {
        const json_t *is = json_object_get(wanted, text_at(line, "id"));
        CHECK_MSG(strcmp(text_at(line, "logits_hash"), text_at(is, "logits_hash")) == 0,
                  "prompt %s", text_at(line, "id"));
        CHECK(!encoder ||
              (json_equal(json_object_get(line, "score"), json_object_get(is, "score")) &&
               json_is_real(json_object_get(is, "score"))));
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
    char name[32];
    snprintf(name, sizeof name, "%s.jsonl", model);
    json_t *lines = lines_of(name);
    CHECK(json_array_size(lines) == 4);
    json_array_foreach(lines, i, line)
    {
        const json_t *parts = json_object_get(line, "parts");
        const json_t *last = json_array_get(parts, json_array_size(parts) - 1);
        const bool is_whole = strcmp(text_at(line, "id"), "docs/short.txt") == 0;
        CHECK(strcmp(text_at(line, "strategy"), is_whole ? "whole" : "map-reduce") == 0);
        CHECK(number(last, "level") >=
              (strcmp(text_at(line, "id"), "docs/longer.txt") ? 0 : 2) - is_whole);
        CHECK(*text_at(line, "why") && *text_at(line, "text"));
        CHECK(json_object_get(last, "moved_bytes") && json_object_get(last, "seconds"));
    }
    json_decref(lines);
    CHECK(check_answers(model, name, NULL) > 15);
}

/* The strategies that the user chooses: a document that does not fit is an error line. */
static void test_whole(void)
{
    CHECK(sh("$S summarize m docs/short.txt docs/long.md --output w.jsonl --strategy "
             "whole " OPTIONS) == 1);
    CHECK(check_answers("m", "w.jsonl", NULL) == 1);
    read_file("w.jsonl.errors", out, sizeof out);
    CHECK(strstr(out, "\"id\":\"docs/long.md\"") && strstr(out, "context_length_exceeded"));
    CHECK(sh("$S summarize m docs/short.txt --output r.jsonl --strategy map-reduce " OPTIONS) == 0);
    CHECK(check_answers("m", "r.jsonl", NULL) == 1);
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
    CHECK(check_answers("m", "b.jsonl", NULL) > 4);
}

/* ---- encoders ---- */

/* A document of so many letters: one request if the encoder reads them all. */
static void write_letters(const char *name, size_t n)
{
    static char text[1024];
    memset(text, 'x', n);
    text[n] = 0;
    write_text(name, text);
}

static void test_encoder(const struct encoder *e)
{
    char name[32];
    size_t i;
    json_t *line;
    const size_t most = e->positions - strlen(e->prefix);
    snprintf(name, sizeof name, "encoder-%s", e->model);
    write_letters("docs/most.txt", most);
    write_letters("docs/more.txt", most + 1);
    CHECK(sh("rm -f docs/longer.txt; $S summarize %s docs --output %s", e->model, name) == 0);
    CHECK(strstr(err, "the files of the model ask for a search with "));
    CHECK(strstr(err, "long.md: map-reduce: ") && strstr(err, "that the encoder reads"));
    json_t *lines = lines_of(name);
    CHECK(json_array_size(lines) == 5);
    json_array_foreach(lines, i, line)
    {
        const json_t *parts = json_object_get(line, "parts");
        const bool is_whole = strstr(text_at(line, "id"), "most") ||
                              (e->positions > 300 && strstr(text_at(line, "id"), "short"));
        CHECK(strcmp(text_at(line, "strategy"), is_whole ? "whole" : "map-reduce") == 0);
        CHECK_MSG((json_array_size(parts) == 1) == is_whole, "%s", text_at(line, "id"));
        CHECK(!strstr(text_at(line, "id"), "more") || json_array_size(parts) == 3);
    }
    json_decref(lines);
    CHECK(check_answers(e->model, name, e) > 12);
    /* Memory, threads and neighbours change nothing. */
    json_t *whole = results_of(name);
    CHECK(sh("$S summarize %s docs --output again --device cpu --threads 2 --sessions 7 "
             "--device-memory 2MiB --host-memory 100KiB --disk . --prefill-chunk 16",
             e->model) == 0);
    CHECK(check_results("again", whole, 0) == 5);
    json_decref(whole);
    CHECK(sh("rm docs/most.txt docs/more.txt again*") == 0);
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
    const bool pdf = is_installed("pdftotext"), pandoc = is_installed("pandoc");
    CHECK(sh("mkdir real plain") == 0);
    if (pdf) {
        write_pdf(in_folder("real/a.pdf"),
                  "BT /F 24 Tf 100 700 Td (water over the spillway) Tj ET");
        write_text("plain/a.pdf", "water over the spillway");
        CHECK(sh("cp real/a.pdf 'real/b c.txt' && cp plain/a.pdf 'plain/b c.txt'") == 0);
        write_pdf(in_folder("real/no text.pdf"), "0 0 m 9 9 l S");
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
    CHECK(check_answers("m", "real.jsonl", NULL) == 2u * pdf + 3u * pandoc);
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
    if (!check_full() || !is_installed("pdftotext"))
        return;
    CHECK(sh("mkdir bombs && cp docs/short.txt bombs/z.txt") == 0);
    write_pdf_of_forms(in_folder("bombs/a.pdf"), 9);
    write_pdf_of_many_pages(in_folder("bombs/b.pdf"));
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0); /* of processes that a command leaves behind */
    double start = check_seconds();
    CHECK(sh("$S summarize m bombs --output bombs.jsonl " OPTIONS) == 1);
    CHECK_MSG(check_seconds() - start < 150, "%.0f s", check_seconds() - start);
    CHECK_MSG(check_results("bombs.jsonl", NULL, 2) == 3, "%s", err);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
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
    encoder_models();
    setenv("OPTIONS", OPTIONS, 1);
    run_cases("summarize", NULL);
    json_t *whole = results_of("m.jsonl");
    CHECK(check_results("s.jsonl", whole, 0) == 4); /* of the shards */
    json_decref(whole);
    for (size_t i = 0; i < sizeof encoders / sizeof *encoders; i++)
        test_encoder(&encoders[i]);
    test_formats();
    test_bombs();
    if (!check_done())
        sh("rm -r %s", folder);
    return check_done();
}
