/* Opens and closes the files of a job: see store.h. */
#include "tools/command/job/store/store_parts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the same job ---- */

/* Says what differs. Digests say nothing to a person. */
static int refuse_identity(const struct job_store *s, const char *name, const json_t *value,
                           const json_t *now)
{
    static const char *const digests[][2] = {{"the model", "another model"},
                                             {"the tokenizer", "another tokenizer"},
                                             {"the instructions", "other instructions"},
                                             {"the token rules", "another generation_config.json"}};
    char was[128], is[128], begun[320];
    if (json_is_null(value))
        snprintf(begun, sizeof begun, "without %s, found %s", name, job_value_text(is, now));
    else
        snprintf(begun, sizeof begun, "with %s %s, found %s", name, job_value_text(was, value),
                 json_is_null(now) ? "none" : job_value_text(is, now));
    for (size_t i = 0; i < sizeof digests / sizeof *digests; i++)
        if (!strcmp(name, digests[i][0]))
            snprintf(begun, sizeof begun, "with %s", digests[i][1]);
    return cli_fail(CLI_REFUSED,
                    "%s: this job was begun %s; give what it was begun with, or another output",
                    s->outs[JOB_OUTPUT].path, begun);
}

static int check_identity(const struct job_store *s, const json_t *now)
{
    const char *name;
    json_t *value;
    if (!s->table.n) /* nothing was computed */
        return 0;
    json_object_foreach(s->identity, name, value)
    {
        const json_t *other = json_object_get(now, name);
        if (!json_equal(value, other))
            return refuse_identity(s, name, value, other);
    }
    return 0;
}

/* ---- names ---- */

enum { NAME_BYTES = 4096 };

static const char *beside(char name[NAME_BYTES], const char *output, const char *end)
{
    snprintf(name, NAME_BYTES, "%.4000s%s", output, end);
    return name;
}

/* Keeps the whole name of a file of errors that is not OUTPUT.errors, which moves with OUTPUT. */
static int find_errors(struct job_store *s)
{
    char name[NAME_BYTES];
    struct stat usual, given;
    beside(name, s->outs[JOB_OUTPUT].path, ".errors");
    const bool is_usual = !stat(name, &usual) && !stat(s->outs[JOB_ERRORS].path, &given) &&
                          spw_is_same_file(&usual, &given);
    char *real = is_usual ? NULL : realpath(s->outs[JOB_ERRORS].path, NULL);
    char *errors = real ? spw_strdup(real) : NULL;
    free(real);
    if (!errors && !is_usual)
        return job_store_no_memory(s);
    const char *is = errors ? errors : "OUTPUT.errors",
               *was = s->errors ? s->errors : "OUTPUT.errors";
    int code = 0;
    if (s->identity && strcmp(is, was) != 0)
        code =
            cli_fail(CLI_REFUSED,
                     "%s: this job writes its errors to %s, found %s; give the same --errors, or "
                     "another output",
                     s->outs[JOB_OUTPUT].path, was, is);
    spw_free(s->errors);
    s->errors = errors;
    return code;
}

/* ---- opening ---- */

static int open_log(struct job_log *l, const char *path)
{
    struct spw_error err = {0};
    int rc = job_log_open(l, path, &err);
    return rc ? cli_fail(CLI_REFUSED, "%s", err.text) : 0;
}

/* Two names may mean one file: then its lock was refused already, but not that of a report. */
static int check_report(const struct job_store *s, const char *report)
{
    const struct job_log *logs[] = {&s->state, &s->outs[JOB_OUTPUT], &s->outs[JOB_ERRORS]};
    struct stat st, written;
    if (!report || stat(report, &written))
        return 0;
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++)
        if (!fstat(logs[i]->fd, &st) && spw_is_same_file(&st, &written))
            return cli_fail(CLI_REFUSED, "--report %s is a file of the job; give another name",
                            report);
    return 0;
}

static int open_logs(struct job_store *s, const struct job_store_options *o)
{
    char state[NAME_BYTES], errors[NAME_BYTES];
    const char *named = o->errors ? o->errors : beside(errors, o->output, ".errors");
    beside(state, o->output, ".state");
    if (strcmp(named, o->output) == 0 || strcmp(named, state) == 0)
        return cli_fail(CLI_REFUSED, "%s: found %s for --errors; they are one file, expected two",
                        o->output, named);
    int code = open_log(&s->outs[JOB_OUTPUT], o->output);
    if (!code)
        code = open_log(&s->state, state);
    if (!code)
        code = open_log(&s->outs[JOB_ERRORS], named);
    return code ? code : check_report(s, o->report);
}

/* Nothing has been changed yet: the files may be somebody else's. */
static int read_earlier(struct job_store *s, const struct job_store_options *o)
{
    for (int i = 0; i < JOB_N_OUTS && !s->head; i++) {
        const struct job_log *out = &s->outs[i];
        struct stat st;
        if (!fstat(s->state.fd, &st) && !st.st_size && out->end)
            return cli_fail(CLI_REFUSED,
                            "%s: found a file that no job has written (%s is empty); give another "
                            "output",
                            out->path, s->state.path);
    }
    int code = job_store_load(s);
    if (!code && !s->head && (s->outs[JOB_OUTPUT].end || s->outs[JOB_ERRORS].end))
        code =
            cli_fail(CLI_REFUSED, "%s: found a file that no job has written; give another output",
                     s->state.path);
    if (!code)
        code = find_errors(s);
    return code ? code : check_identity(s, o->identity);
}

/* What this run knows better. */
static int take_options(struct job_store *s, const struct job_store_options *o)
{
    json_decref(s->identity);
    s->identity = json_deep_copy(o->identity);
    s->started = s->started ? s->started : time(NULL);
    for (size_t i = 0; i < s->table.n_places && o->retry_failed; i++)
        job_store_retry(s, &s->table.entries[i]);
    return s->identity ? 0 : job_store_no_memory(s);
}

static struct job_store *new_store(const char *output)
{
    struct job_store *s = spw_alloc_zero(1, sizeof *s);
    if (s)
        s->state.fd = s->outs[JOB_OUTPUT].fd = s->outs[JOB_ERRORS].fd = -1;
    else
        cli_fail(CLI_FAILED, "%s: out of memory", output);
    return s;
}

int job_store_open(struct job_store **out, const struct job_store_options *o)
{
    struct job_store *s = *out = new_store(o->output);
    if (!s)
        return CLI_FAILED;
    s->mends = o->retry_failed;
    int code = open_logs(s, o);
    if (!code)
        code = read_earlier(s, o);
    if (!code)
        code = take_options(s, o);
    if (code) {
        job_store_close(s, code);
        *out = NULL;
    }
    return code;
}

/* ---- looking ---- */

/* A file that is not there has no lines. */
static bool look_at(struct job_log *l, const char *path)
{
    l->path = spw_strdup(path);
    l->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return l->path;
}

static int look(struct job_store *s, const char *output)
{
    struct job_follow f;
    char name[NAME_BYTES];
    s->state.path = spw_strdup(beside(name, output, ".state"));
    if (!s->state.path || !look_at(&s->outs[JOB_OUTPUT], output))
        return cli_fail(CLI_FAILED, "%s: out of memory", output);
    if (access(name, F_OK))
        return cli_fail(CLI_REFUSED, "%s: found no %s beside it, expected the output of a job",
                        output, name);
    int code = job_store_load(s);
    if (!code && !s->head)
        code = cli_fail(CLI_REFUSED, "%s: found no job: %s is empty", output, name);
    if (!code &&
        !look_at(&s->outs[JOB_ERRORS], s->errors ? s->errors : beside(name, output, ".errors")))
        code = job_store_no_memory(s);
    return code ? code : job_store_compare(s, &f, false);
}

int job_store_look(struct job_store **out, const char *output, bool *is_damaged)
{
    struct job_store *s = *out = new_store(output);
    if (!s)
        return CLI_FAILED;
    int code = look(s, output);
    *is_damaged |= s->is_damaged;
    if (code) {
        job_store_close(s, code);
        *out = NULL;
    }
    return code;
}

/* ---- closing ---- */

int job_store_close(struct job_store *s, int code)
{
    if (!s)
        return code;
    struct job_log *logs[] = {&s->state, &s->outs[JOB_OUTPUT], &s->outs[JOB_ERRORS]};
    s->is_dirty =
        s->has_begun; /* the last look finds files that were changed while nothing was written */
    const int failed = job_store_flush(s);
    code = failed ? failed : code;
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
        /* The lock is held: nobody else has written the file. */
        if (code && !s->has_lines && logs[i]->is_new)
            unlink(logs[i]->path);
        job_log_close(logs[i]);
    }
    for (size_t i = 0; i < s->table.n_places; i++)
        job_under_way_free(&s->table.entries[i]);
    for (int i = 0; i < JOB_N_OUTS; i++)
        spw_free(s->texts[i].text);
    spw_free(s->errors);
    job_table_free(&s->table);
    json_decref(s->identity);
    json_decref(s->head);
    spw_free(s);
    return code;
}
