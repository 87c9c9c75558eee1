/* Instructions of summarize: see instructions.h. */
#include "tools/command/job/summarize/instructions.h"

#include "base/grow.h"
#include "tools/command/job/instructions_texts.h"
#include "tools/command/input/text.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((uint64_t)1 << 20)

static const char *const task_names[JOB_TASKS] = {
    [JOB_WHOLE] = "whole", [JOB_PART] = "part", [JOB_MERGE] = "merge"};

/* ---- placeholders ---- */

enum { ALL_TASKS = (1 << JOB_TASKS) - 1 };

enum placeholder { LENGTH, LANGUAGE, FOCUS, TITLE, PARTS, PART, TEXT, PLACEHOLDERS };

static const struct {
    const char *name;
    unsigned tasks; /* that know it */
} placeholders[PLACEHOLDERS] = {
    [LENGTH] = {"length", ALL_TASKS},
    [LANGUAGE] = {"language", ALL_TASKS},
    [FOCUS] = {"focus", ALL_TASKS},
    [TITLE] = {"title", ALL_TASKS},
    [PARTS] = {"parts", 1 << JOB_PART | 1 << JOB_MERGE},
    [PART] = {"part", 1 << JOB_PART},
    [TEXT] = {"text", ALL_TASKS},
};

/* The bytes of "{word}" at the beginning of `at`; 0: it is something else. */
static size_t braced_word(const char *at)
{
    size_t n = *at == '{' ? strspn(at + 1, "abcdefghijklmnopqrstuvwxyz_") : 0;
    return n && at[1 + n] == '}' ? n + 2 : 0;
}

/* PLACEHOLDERS: it is none that the task knows. */
static enum placeholder find_placeholder(const char *word, size_t bytes, enum job_task task)
{
    for (int i = 0; i < PLACEHOLDERS; i++)
        if (strlen(placeholders[i].name) == bytes - 2 && placeholders[i].tasks >> task & 1 &&
            memcmp(placeholders[i].name, word + 1, bytes - 2) == 0)
            return (enum placeholder)i;
    return PLACEHOLDERS;
}

static int refuse_word(const char *name, size_t line, const char *word, size_t bytes,
                       enum job_task task, struct spw_error *err)
{
    char known[100] = "";
    for (int i = 0; i < PLACEHOLDERS; i++)
        if (placeholders[i].tasks >> task & 1)
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s{%s}",
                     i == 0      ? ""
                     : i == TEXT ? " or "
                                 : ", ",
                     placeholders[i].name);
    return spw_fail(err, -EINVAL, "%s: line %zu: found %.*s, expected %s", name, line,
                    (int)spw_min_u64(bytes, 60), word, known);
}

static int check_text(const char *name, const char *text, enum job_task task, struct spw_error *err)
{
    size_t line = 1, n_texts = 0;
    for (const char *at = text; *at; at++) {
        size_t bytes = braced_word(at);
        line += *at == '\n';
        if (!bytes)
            continue;
        enum placeholder which = find_placeholder(at, bytes, task);
        if (which == PLACEHOLDERS)
            return refuse_word(name, line, at, bytes, task, err);
        n_texts += which == TEXT;
    }
    if (n_texts == 1)
        return 0;
    return spw_fail(err, -EINVAL, "%s: found {text} %zu times, expected it once: it stands for %s",
                    name, n_texts,
                    task == JOB_WHOLE  ? "the document"
                    : task == JOB_PART ? "the part"
                                       : "the summaries");
}

/* ---- files ---- */

/* The name of a text: "whole.plain.txt". */
static const char *name_of(enum job_task task, bool plain, char name[32])
{
    snprintf(name, 32, "%s%s.txt", task_names[task], plain ? ".plain" : "");
    return name;
}

/* The text of this program; NULL: it has none of this name. */
static const char *own_text(const char *name)
{
    for (size_t i = 0; i < sizeof instructions_texts / sizeof *instructions_texts; i++)
        if (strcmp(instructions_texts[i].name, name) == 0)
            return instructions_texts[i].text;
    return NULL;
}

/* Refuses a folder that has other texts, or none: a misspelled name would be passed over. */
static int check_folder(const char *folder, struct spw_error *err)
{
    DIR *dir = opendir(folder);
    size_t n = 0;
    int rc = 0;
    if (!dir)
        return spw_fail(err, -errno, "%s: %s", folder, strerror(errno));
    for (struct dirent *entry; !rc && (entry = readdir(dir));) {
        const char *dot = strrchr(entry->d_name, '.');
        if (entry->d_name[0] == '.' || !dot || strcmp(dot, ".txt") != 0)
            continue;
        n++;
        if (!own_text(entry->d_name))
            rc = spw_fail(err, -EINVAL,
                          "%s/%s: found an unknown name, expected whole.txt, part.txt, merge.txt, "
                          "whole.plain.txt, part.plain.txt or merge.plain.txt",
                          folder, entry->d_name);
    }
    closedir(dir);
    if (!rc && n == 0)
        rc = spw_fail(err, -EINVAL,
                      "%s: found no instructions, expected whole.txt, part.txt or merge.txt",
                      folder);
    return rc;
}

/* Reads a file of the user. -ENOENT: there is none. */
static int read_text(const char *folder, enum job_task task, bool plain, char **text,
                     struct spw_error *err)
{
    char name[32], path[4096];
    size_t bytes;
    struct spw_error why = {0};
    name_of(task, plain, name);
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return spw_fail(err, -ENAMETOOLONG, "%s: the name is too long", folder);
    int rc = cli_text_read(path, MOST_BYTES, text, &bytes, NULL, &why);
    if (!rc)
        rc = cli_decode_text(path, text, &bytes, &why);
    if (!rc)
        rc = check_text(path, *text, task, &why);
    return rc && rc != -ENOENT ? spw_fail(err, rc, "%s", why.text) : rc;
}

/* Files end in a newline; a text for a model that continues it does not. */
static void cut_end(char *text)
{
    size_t n = strlen(text);
    while (n > 0 && strchr("\r\n", text[n - 1]))
        n--;
    text[n] = 0;
}

/* What the model gets without a file of the user. */
static int make_text(char **text, enum job_task task, bool plain, const char *prefix,
                     struct spw_error *err)
{
    char name[32], source[512];
    if (prefix)
        snprintf(source, sizeof source, "%s{text}", prefix);
    *text = spw_strdup(prefix ? source : own_text(name_of(task, plain, name)));
    if (!*text)
        return -ENOMEM;
    return prefix ? check_text("the prefix of summaries", *text, task, err) : 0;
}

static int open_text(char **text, const char *folder, enum job_task task, bool plain,
                     const char *prefix, struct spw_error *err)
{
    int rc = folder ? read_text(folder, task, plain, text, err) : -ENOENT;
    if (rc == -ENOENT && folder && plain)
        rc = read_text(folder, task, false, text, err);
    if (rc == -ENOENT)
        rc = make_text(text, task, plain, prefix, err);
    if (!rc)
        cut_end(*text);
    return rc;
}

int job_instructions_open(struct job_instructions *out, const char *folder, bool plain,
                          const char *prefix, struct spw_error *err)
{
    *out = (struct job_instructions){0};
    int rc = folder ? check_folder(folder, err) : 0;
    for (int task = 0; task < JOB_TASKS && !rc; task++)
        rc = open_text(&out->texts[task], folder, (enum job_task)task, plain, prefix, err);
    if (rc)
        job_instructions_free(out);
    return rc;
}

void job_instructions_free(struct job_instructions *x)
{
    for (int task = 0; task < JOB_TASKS; task++)
        spw_free(x->texts[task]);
    *x = (struct job_instructions){0};
}

/* ---- values ---- */

struct value {
    const char *text; /* NULL: none */
    size_t bytes;
};

static struct value value_of(const char *text)
{
    return text && *text ? (struct value){text, strlen(text)} : (struct value){0};
}

static struct value number(uint64_t n, char digits[24])
{
    snprintf(digits, 24, "%llu", (unsigned long long)n);
    return value_of(n ? digits : NULL);
}

static int append_value(struct job_filled *out, enum placeholder which, const struct value *value)
{
    if (which == TEXT || which == TITLE) {
        SPW_TRY(spw_resize(&out->plain, out->n_plain + 1, sizeof *out->plain));
        out->plain[out->n_plain++] =
            (struct spw_text_span){out->text.n, out->text.n + value->bytes};
    }
    return spw_text_add(&out->text, value->text, value->bytes);
}

/* Whether a line has a placeholder without a value, and no {text}. */
static bool is_left_out(const char *line, size_t line_bytes, enum job_task task,
                        const struct value *values)
{
    bool misses = false;
    for (size_t i = 0; i < line_bytes; i++) {
        size_t word = braced_word(line + i);
        enum placeholder which = word ? find_placeholder(line + i, word, task) : PLACEHOLDERS;
        if (which == TEXT)
            return false;
        misses |= which != PLACEHOLDERS && !values[which].text;
    }
    return misses;
}

/* Fills one line of the template, with its newline. */
static int fill_line(const char *line, size_t line_bytes, enum job_task task,
                     const struct value *values, struct job_filled *out)
{
    if (is_left_out(line, line_bytes, task, values))
        return 0;
    for (size_t i = 0; i < line_bytes;) {
        size_t word = braced_word(line + i);
        if (word) {
            enum placeholder which = find_placeholder(line + i, word, task);
            SPW_TRY(append_value(out, which, &values[which]));
            i += word;
        } else {
            SPW_TRY(spw_text_add(&out->text, line + i++, 1));
        }
    }
    return 0;
}

int job_instructions_fill(const struct job_instructions *x, enum job_task task,
                          const struct job_values *v, struct job_filled *out)
{
    char length[24], part[24], parts[24];
    const struct value values[PLACEHOLDERS] = {
        [LENGTH] = number(v->length, length),
        [LANGUAGE] =
            value_of(v->language && *v->language ? v->language : "the language of the document"),
        [FOCUS] = value_of(v->focus),
        [TITLE] = value_of(v->title),
        [PARTS] = number(v->n_parts, parts),
        [PART] = number(v->part, part),
        [TEXT] = {v->text, v->text_bytes},
    };
    *out = (struct job_filled){0};
    int rc = spw_text_add(&out->text, "", 0);
    for (const char *line = x->texts[task]; *line && !rc;) {
        size_t bytes = strcspn(line, "\n");
        bytes += line[bytes] == '\n';
        rc = fill_line(line, bytes, task, values, out);
        line += bytes;
    }
    if (rc)
        job_filled_free(out);
    return rc;
}

void job_filled_free(struct job_filled *x)
{
    spw_free(x->text.text);
    spw_free(x->plain);
    *x = (struct job_filled){0};
}

int job_parse_length(const char *text, uint64_t *words, struct spw_error *err)
{
    static const struct {
        const char *name;
        uint64_t words;
    } lengths[] = {{"short", 100}, {"medium", 250}, {"long", 600}};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        if (strcmp(text, lengths[i].name) == 0) {
            *words = lengths[i].words;
            return 0;
        }
    size_t digits = strspn(text, "0123456789");
    *words = strtoull(text, NULL, 10);
    if (digits && digits < 6 && !text[digits] && *words >= 10)
        return 0;
    return spw_fail(err, -EINVAL,
                    "found '%.40s', expected short, medium, long, or a number of words from 10 to "
                    "99999",
                    text);
}
