/* Instructions of summarize: the texts of this program, files that replace them, what is refused,
 * and that values are copied as they are. */
#include "tests/folder.h"
#include "tools/command/job/summarize/instructions.h"

/* The filled text; free it with spw_free. Inlined, gcc 12 takes the text for a local variable. */
__attribute__((noinline)) static char *fill(const struct job_instructions *x, enum job_task task,
                                            const struct job_values *v)
{
    struct job_filled filled;
    CHECK(job_instructions_fill(x, task, v, &filled) == 0 &&
          strlen(filled.text.text) == filled.text.n);
    CHECK(filled.n_plain >= 1);
    for (size_t i = 0; i < filled.n_plain; i++) {
        const struct spw_text_span *span = &filled.plain[i];
        const char *at = filled.text.text + span->begin;
        const size_t n = span->end - span->begin;
        bool is_title = v->title && strlen(v->title) == n && memcmp(at, v->title, n) == 0;
        CHECK(is_title || (v->text_bytes == n && (!n || memcmp(at, v->text, n) == 0)));
        CHECK(i == 0 || span->begin >= filled.plain[i - 1].end);
    }
    spw_free(filled.plain);
    return filled.text.text;
}

/* Fills the text of a file and compares. */
static void check_fill(const char *template, const struct job_values *v, const char *want)
{
    struct job_instructions x;
    struct spw_error err = {0};
    write_text("part.txt", template);
    CHECK_MSG(job_instructions_open(&x, folder, false, NULL, &err) == 0, "%s", err.text);
    char *out = fill(&x, JOB_PART, v);
    CHECK_MSG(strcmp(out, want) == 0, "found '%s', expected '%s'", out, want);
    spw_free(out);
    job_instructions_free(&x);
    CHECK(!unlink(in_folder("part.txt")));
}

static void placeholders(void)
{
    struct job_values v = {.length = 250,
                           .language = "French",
                           .focus = "risks",
                           .title = "a.pdf",
                           .part = 2,
                           .n_parts = 7,
                           .text = "Water.",
                           .text_bytes = 6};
    check_fill("{length} {language} {focus} {title} {part}/{parts}:\n{text}\nSummary:\n", &v,
               "250 French risks a.pdf 2/7:\nWater.\nSummary:");
    check_fill("{\"json\": {text}} {Text} {} {text-} { text}", &v,
               "{\"json\": Water.} {Text} {} {text-} { text}");
    v.language = NULL;
    v.focus = "";
    check_fill("In {language}.\nOn {focus}.\nOf {title}.\n{text}", &v,
               "In the language of the document.\nOf a.pdf.\nWater.");
    check_fill("On {focus}: {text}", &v, "On : Water.");
    v.text = "{text} {focus} {unknown} %s";
    v.text_bytes = strlen(v.text);
    v.title = "{text}";
    check_fill("{title}\n{text}\n{length}", &v, "{text}\n{text} {focus} {unknown} %s\n250");
}

/* Random templates of known pieces, and values full of braces. */
static void random_templates(struct check_draws *d, uint64_t *seed)
{
    static const char *const pieces[] = {"{length}", "{language}", "{focus}", "{title}", "{parts}",
                                         "{part}",   "some words", "\n",      "{",       "}",
                                         "{}",       "{ x}",       "\xc3\xa9"};
    static const char *const some[] = {"{text}", "{focus}", "{", "}", "{{", "a", "\n", "{zzz}"};
    while (check_another(d)) {
        char values[4][200], template[1000] = "", want[3000] = "";
        for (int i = 0; i < 4; i++) {
            values[i][0] = 0;
            for (uint64_t n = check_range(seed, 1, 20); n; n--)
                strcat(values[i], some[check_range(seed, 0, 7)]);
        }
        struct job_values v = {check_range(seed, 1, 999), values[0], values[1], values[2],
                               check_range(seed, 1, 9),   9,         values[3], strlen(values[3])};
        char numbers[3][24];
        snprintf(numbers[0], 24, "%llu", (unsigned long long)v.length);
        snprintf(numbers[1], 24, "%zu", v.n_parts);
        snprintf(numbers[2], 24, "%zu", v.part);
        const char *const filled[] = {numbers[0], values[0],  values[1],
                                      values[2],  numbers[1], numbers[2]};
        uint64_t n = check_range(seed, 0, 10), at = check_range(seed, 0, n);
        for (uint64_t i = 0; i <= n; i++) {
            uint64_t which = check_range(seed, 0, 12);
            strcat(template, i == at ? "{text}" : pieces[which]);
            strcat(want, i == at ? values[3] : which < 6 ? filled[which] : pieces[which]);
            strcat(template, ".");
            strcat(want, ".");
        }
        check_fill(template, &v, want);
    }
}

/* ---- the texts of this program ---- */

/* 0 if `what` is not in the text. */
static size_t position(const char *text, const char *what)
{
    const char *at = strstr(text, what);
    return at ? (size_t)(at - text) : 0;
}

static void own_texts(void)
{
    static const char *const names[2][JOB_TASKS] = {
        {"whole.txt", "part.txt", "merge.txt"},
        {"whole.plain.txt", "part.plain.txt", "merge.plain.txt"}};
    struct job_values v = {.length = 250, .title = "a.pdf", .text = "<text>", .text_bytes = 6};
    v.part = v.n_parts = 12;
    for (int i = 0; i < 2 * JOB_TASKS; i++) {
        enum job_task task = (enum job_task)(i / 2);
        char path[200], text[4000];
        struct job_instructions x;
        snprintf(path, sizeof path, "tools/command/job/summarize/instructions/%s",
                 names[i % 2][task]);
        FILE *file = fopen(path, "rb");
        size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
        CHECK(file && fclose(file) == 0 && job_instructions_open(&x, NULL, i % 2, NULL, NULL) == 0);
        text[n ? n - 1 : 0] = 0; /* the last newline */
        CHECK_MSG(strcmp(x.texts[task], text) == 0, "%s", names[i % 2][task]);

        v.focus = NULL;
        char *without = fill(&x, task, &v);
        v.focus = "all the risks";
        char *with = fill(&x, task, &v);
        CHECK(strstr(without, "\n<text>\n") && strstr(without, "about 250 words") &&
              strstr(without, "the language of the document"));
        CHECK(!strstr(without, "a.pdf")); /* a model may know a work of that name */
        CHECK(strchr(without, '{') == NULL && strstr(with, "all the risks"));
        CHECK(strlen(with) > strlen(without) + 20 && !strstr(without, "attention"));
        /* What all documents share comes first, and is most of the text. */
        size_t shared = position(without, task == JOB_WHOLE  ? "<text>"
                                          : task == JOB_PART ? "Part 12"
                                                             : "12 summaries");
        CHECK(shared > strlen(without) * 6 / 10);
        spw_free(without);
        spw_free(with);
        job_instructions_free(&x);
    }
}

/* ---- files of the user ---- */

static void check_own(const char *name, bool plain, enum job_task task, bool expected)
{
    struct job_instructions x;
    struct spw_error err = {0};
    write_text(name, "Mine: {text}\r\n\n");
    CHECK_MSG(job_instructions_open(&x, folder, plain, NULL, &err) == 0, "%s", err.text);
    for (int i = 0; i < JOB_TASKS; i++)
        CHECK((strcmp(x.texts[i], "Mine: {text}") == 0) == (expected && i == (int)task));
    job_instructions_free(&x);
    CHECK(!unlink(in_folder(name)));
}

static void replaced(void)
{
    check_own("whole.txt", false, JOB_WHOLE, true);
    check_own("merge.txt", false, JOB_MERGE, true);
    check_own("part.txt", true, JOB_PART, true);
    check_own("part.plain.txt", true, JOB_PART, true);
    check_own("part.plain.txt", false, JOB_PART, false);
    write_text("whole.txt", "not this one, {text}");
    check_own("whole.plain.txt", true, JOB_WHOLE, true);
    CHECK(!unlink(in_folder("whole.txt")));
}

/* A model with an encoder: a prefix alone, or a file of the user. */
static void prefixes(void)
{
    struct job_instructions x;
    struct spw_error err = {0};
    CHECK(job_instructions_open(&x, NULL, true, "", &err) == 0);
    for (int i = 0; i < JOB_TASKS; i++)
        CHECK(strcmp(x.texts[i], "{text}") == 0);
    job_instructions_free(&x);
    write_text("part.txt", "Mine: {text}");
    CHECK(job_instructions_open(&x, folder, true, "Sum {it} up: ", &err) == -EINVAL &&
          strstr(err.text, "the prefix of summaries: line 1: found {it}"));
    CHECK(job_instructions_open(&x, folder, true, "Sum { it } up: ", &err) == 0);
    for (int i = 0; i < JOB_TASKS; i++)
        CHECK(strcmp(x.texts[i], i == JOB_PART ? "Mine: {text}" : "Sum { it } up: {text}") == 0);
    job_instructions_free(&x);
    CHECK(!unlink(in_folder("part.txt")));
}

static void check_refused(const char *name, const char *text, int code, const char *why)
{
    struct job_instructions x;
    struct spw_error err = {0};
    write_text(name, text);
    int rc = job_instructions_open(&x, folder, false, NULL, &err);
    CHECK_MSG(rc == code && strstr(err.text, why) && strstr(err.text, name), "%d: %s", rc,
              err.text);
    CHECK(!unlink(in_folder(name)));
}

static void refused(void)
{
    struct job_instructions x;
    struct spw_error err = {0};
    check_refused("whole.txt", "Read\n{txt}: {text}", -EINVAL,
                  "line 2: found {txt}, expected {length}, {language}, {focus}, {title} or {text}");
    check_refused("whole.txt", "{part} {text}", -EINVAL, "found {part}");
    check_refused("merge.txt", "{part} {text}", -EINVAL, "{title}, {parts} or {text}");
    check_refused("merge.txt", "nothing", -EINVAL, "found {text} 0 times");
    check_refused("part.txt", "{text} {text}", -EINVAL, "found {text} 2 times");
    check_refused("parts.txt", "{text}", -EINVAL, "unknown name");
    check_refused("part.txt", "\xff {text}", -EILSEQ, "0xff at offset 0");
    CHECK(job_instructions_open(&x, folder, false, NULL, &err) == -EINVAL &&
          strstr(err.text, "found no instructions"));
    spw_error_clear(&err);
    CHECK(job_instructions_open(&x, "/nowhere", false, NULL, &err) == -ENOENT &&
          strstr(err.text, "/nowhere"));
}

static void lengths(void)
{
    static const struct {
        const char *text;
        uint64_t words; /* 0: refused */
    } cases[] = {{"short", 100}, {"medium", 250}, {"long", 600}, {"10", 10}, {"99999", 99999},
                 {"9", 0},       {"100000", 0},   {"", 0},       {"1e3", 0}, {"-50", 0},
                 {"Short", 0},   {"50 ", 0},      {" 50", 0},    {"50x", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t words = 0;
        struct spw_error err = {0};
        int rc = job_parse_length(cases[i].text, &words, &err);
        CHECK_MSG(cases[i].words ? rc == 0 && words == cases[i].words
                                 : rc == -EINVAL && strstr(err.text, "expected short, medium"),
                  "'%s': %d %s", cases[i].text, rc, err.text);
    }
}

static void no_memory(const char *prefix)
{
    struct job_instructions x;
    int rc = -ENOMEM;
    for (int i = 0; rc == -ENOMEM; i++) {
        struct job_filled out = {0};
        spw_alloc_fail_nth(i);
        rc = job_instructions_open(&x, NULL, prefix, prefix, NULL);
        if (!rc)
            rc = job_instructions_fill(&x, JOB_WHOLE, &(struct job_values){.text = ""}, &out);
        spw_alloc_fail_nth(-1);
        CHECK(i < 20 && (rc == 0 || rc == -ENOMEM));
        job_filled_free(&out);
        job_instructions_free(&x);
    }
}

int main(int argc, char **argv)
{
    struct check_draws d = check_draws_of(argc, argv, 400);
    uint64_t seed = check_seed();
    open_folder("instructions");
    own_texts();
    placeholders();
    random_templates(&d, &seed);
    replaced();
    prefixes();
    refused();
    lengths();
    no_memory(NULL);
    no_memory("p ");
    close_folder();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
