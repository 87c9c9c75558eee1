/* `spillway summarize` that is disturbed: every document has one summary in the end, the one of a
 * run that nothing disturbs, and no part is computed twice. An argument: how often each kind of job
 * is ended. */
#include "tests/command/command_json.h"
#include "tests/command/disturbed_job.h"
#include "tests/command/summarize_files.h"

/* ---- a job ---- */

static struct {
    bool is_folder;        /* --out-dir */
    json_t *whole, *parts; /* of a run that nothing disturbs */
    size_t n_before;       /* parts */
} now;
static struct job job;

/* The file of the lines of an output. */
static const char *lines_name(const char *output)
{
    static char name[64];
    snprintf(name, sizeof name, "%.30s%s", output, now.is_folder ? "/summaries.jsonl" : "");
    return name;
}

static json_t *parts_of(const char *output)
{
    extract_parts(lines_name(output), "parts");
    return checked_results_of("parts", now.parts);
}

/* The text file of each line, and no other file. */
static void check_text_files(const char *output, bool is_whole)
{
    const char *key;
    json_t *line, *lines = results_of(lines_name(output));
    json_object_foreach(lines, key, line)
    {
        char name[160], text[4096];
        const json_t *wanted = json_object_get(line, "text");
        const char *file = json_string_value(json_object_get(line, "text_file"));
        snprintf(name, sizeof name, "%.30s/%.100s", output, file ? file : "none");
        size_t n = read_file(name, text, sizeof text), n_wanted = json_string_length(wanted);
        CHECK_MSG(n == n_wanted + 1 && text[n_wanted] == '\n' &&
                      memcmp(text, json_string_value(wanted), n_wanted) == 0,
                  "%s: %s", key, text);
    }
    CHECK(!is_whole || sh("test $(find %s -name '*.summary.txt' | wc -l) = %zu", output,
                          json_object_size(lines)) == 0);
    json_decref(lines);
}

static size_t check(const char *output)
{
    const size_t n = check_results(lines_name(output), now.whole, 0);
    json_t *parts = parts_of(output);
    const size_t n_parts = json_object_size(parts);
    CHECK_MSG(n_parts >= now.n_before, "%zu parts, %zu before", n_parts, now.n_before);
    now.n_before = n == job.n_items ? 0 : n_parts;
    CHECK(n < job.n_items || !now.parts || n_parts == json_object_size(now.parts));
    if (now.is_folder)
        check_text_files(output, n == job.n_items);
    json_decref(parts);
    return n;
}

/* Makes `job` the one of these documents, and runs it. */
static void begin(const char *before, const char *after, size_t n_items)
{
    json_decref(now.whole);
    json_decref(now.parts);
    now.whole = now.parts = NULL;
    now.is_folder = strstr(before, "--out-dir");
    job = (struct job){.before = before, .after = after, .n_items = n_items, .check = check};
    double start = check_seconds();
    check_end(&job, "u");
    job.seconds = check_seconds() - start;
    now.whole = results_of(lines_name("u"));
    now.parts = parts_of("u");
}

/* ---- ended ---- */

/* Nothing is computed again for a summary that was lost: its parts are there. */
static void test_lost_summaries(void)
{
    extract_parts(lines_name("u"), "before");
    CHECK(sh("sed -i '/^.\\{17\\}answer/d' %s.state && : >%s", lines_name("u"), lines_name("u")) ==
          0);
    check_end(&job, "u");
    extract_parts(lines_name("u"), "parts");
    CHECK(sh("cmp parts before") == 0);
}

static void test_kills(uint64_t *random, int kills)
{
    static const struct {
        const char *before, *after;
        size_t n_items;
        bool is_whole;
    } jobs[] = {
        {"summarize m docs --output", OPTIONS " " RUN, 4, false},
        {"summarize m docs --out-dir", OPTIONS " " RUN, 4, false},
        {"summarize states docs --output", OPTIONS " " RUN, 4, false}, /* layers with a state */
        {"summarize b few --output", RUN, 2, false},                   /* an encoder, beams */
        {"summarize t docs --out-dir", RUN, 4, false},
        {"summarize m few --strategy whole --allow-long-context --output", OPTIONS " " RUN, 2,
         true},
        {"summarize m few --strategy whole --allow-long-context --out-dir", OPTIONS " " RUN, 2,
         true},
    };
    encoder_models();
    command_golden("states", "qwen3_5_plain");
    CHECK(sh("cp m/tokenizer.json states") == 0); /* with blanks */
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        begin(jobs[i].before, jobs[i].after, jobs[i].n_items);
        const size_t n_parts = json_object_size(now.parts);
        CHECK(jobs[i].is_whole ? n_parts == 2 : n_parts > 15);
        check_kills(&job, random, kills);
        test_lost_summaries();
        remove_job("u");
    }
}

/* ---- full disks, folders ---- */

static void test_files(void)
{
    static const char *const jobs[] = {"summarize m few --output", "summarize m few --out-dir"};
    for (size_t i = 0; i < 2; i++) {
        begin(jobs[i], OPTIONS " " RUN, 2);
        check_short_files(&job);
        check_small_drives(&job);
        check_unwritable_folder(&job);
        remove_job("u");
    }
}

/* ---- a second process, a folder that grows ---- */

/* The program that reads PDF waits for the file `go`. */
static void hold_pdf(void)
{
    char path[4096];
    CHECK(sh("mkdir bin && printf '#!/bin/sh\\nwhile ! test -e go; do sleep 0.01; done\\ncat "
             "docs/short.txt\\n' >bin/pdftotext && chmod +x bin/pdftotext") == 0);
    snprintf(path, sizeof path, "%s/bin:%s", folder, getenv("PATH"));
    setenv("PATH", path, 1);
}

static void test_two_processes(void)
{
    static const char *const jobs[] = {"summarize m held --output", "summarize m held --out-dir"};
    hold_pdf();
    for (int i = 0; i < 2; i++) {
        CHECK(sh("rm -rf held && mkdir held && cp docs/other.txt held/b.txt && echo >held/a.pdf && "
                 "touch go") == 0);
        begin(jobs[i], OPTIONS " " RUN, 2);
        CHECK(sh("rm go") == 0);
        pid_t child = start_beside(&job, "two", i ? "two/summaries.jsonl.state" : "two.state");
        /* This run has its list of documents. The next one finds the new document. */
        CHECK(sh("cp docs/short.txt held/c.txt && touch go") == 0);
        int status = end_of(child);
        CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%x", status);
        CHECK(check("two") == 2);
        CHECK(sh("cp %s before", lines_name("two")) == 0);
        begin(jobs[i], OPTIONS " " RUN, 3);
        check_end(&job, "two");
        CHECK(sh("head -n 2 %s | cmp - before", lines_name("two")) == 0);
        remove_job("two");
        remove_job("u");
    }
}

/* A document that changes before it has its summary: the parts that are the same are kept. */
static void test_changed_document(void)
{
    const char count[] = "grep -c ' part .*\\[\"few/long.md\",0,' c.state";
    now.is_folder = false;
    CHECK(sh("$S summarize m few --output c " OPTIONS) == 0);
    CHECK(sh("%s", count) == 0);
    const int n_before = atoi(out);
    CHECK(sh("sed -i '/ answer .*long.md/d' c.state; sed -i '\\#long.md#d' c; printf Q | dd "
             "of=few/long.md bs=1 seek=2900 "
             "conv=notrunc 2>/dev/null; $S summarize m few --output c " OPTIONS) == 0);
    CHECK(sh("%s", count) == 0);
    CHECK_MSG(atoi(out) > n_before && atoi(out) < 2 * n_before, "%d parts, %s", n_before, out);
    CHECK(sh("$S summarize m few --output fresh " OPTIONS) == 0);
    json_t *fresh = results_of("fresh");
    CHECK(check_results("c", fresh, 0) == 2);
    json_decref(fresh);
}

int main(int argc, char **argv)
{
    if (!command_is_there())
        return CHECK_SKIP;
    uint64_t random = check_seed();
    summarize_model("summarize_kills", &random);
    CHECK(sh("mkdir few && cp docs/short.txt docs/long.md few") == 0);
    test_kills(&random, kills_of(argc, argv, 50, 3));
    test_files();
    test_changed_document();
    test_two_processes();
    json_decref(now.whole);
    json_decref(now.parts);
    sh("rm -rf %s", folder);
    return check_done();
}
