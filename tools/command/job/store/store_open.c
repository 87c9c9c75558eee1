/* Opens the files of a job: see store.h. */
#include "tools/command/job/store/store_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the same job ---- */

/* Says what differs. Digests say nothing to a person. */
static int refuse_identity(const struct job_store *s, const char *name, const json_t *value,
                           const json_t *now)
{
    static const char *const digests[][2] = {{"the model", "another model"},
                                             {"the tokenizer", "another tokenizer"},
                                             {"the instructions", "other instructions"}};
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
                    s->logs[JOB_OUTPUT].path, begun);
}

static int check_identity(const struct job_store *s, const json_t *now)
{
    const char *name;
    json_t *value;
    json_object_foreach(s->identity, name, value)
    {
        const json_t *other = json_object_get(now, name);
        if (!json_equal(value, other))
            return refuse_identity(s, name, value, other);
    }
    return 0;
}

/* ---- opening ---- */

int job_store_open_log(struct job_log *l, const char *path)
{
    struct spw_error err = {0};
    int rc = job_log_open(l, path, &err);
    return rc ? cli_fail(CLI_REFUSED, "%s", err.text) : 0;
}

/* Opens a file that only one process may write. */
int job_store_open_locked(struct job_log *l, const char *path)
{
    struct stat is, named;
    int code = job_store_open_log(l, path);
    if (code)
        return code;
    bool is_locked = flock(l->fd, LOCK_EX | LOCK_NB) == 0;
    int why = errno;
    /* Another process may have replaced the file while this one opened it. */
    bool is_named =
        fstat(l->fd, &is) == 0 && stat(path, &named) == 0 && spw_is_same_file(&is, &named);
    if (is_locked && is_named)
        return 0;
    l->is_new = false; /* it is the other process's by now */
    return cli_fail(CLI_REFUSED, "%s: %s", path,
                    is_locked || why == EWOULDBLOCK
                        ? "another process writes this file; wait until it has ended"
                        : strerror(why));
}

/* Two names may mean one file. */
static int check_apart(const struct job_store *s, const char *report)
{
    struct stat st[JOB_N_LOGS], written;
    const bool has_report = report && stat(report, &written) == 0;
    for (size_t i = 0; i < s->n_open; i++) {
        const struct job_log *l = s->in_order[i];
        if (fstat(l->fd, &st[i]))
            return cli_fail(CLI_FAILED, "%s: %s", l->path, strerror(errno));
        for (size_t k = 0; k < i; k++)
            if (spw_is_same_file(&st[i], &st[k]))
                return cli_fail(CLI_REFUSED, "%s and %s are one file, expected two",
                                s->in_order[k]->path, l->path);
        if (has_report && spw_is_same_file(&st[i], &written))
            return cli_fail(CLI_REFUSED, "--report %s is a file of the job; give another name",
                            report);
    }
    return 0;
}

static int open_logs(struct job_store *s, const struct job_store_options *o)
{
    char state[4096], parts[4096], errors[4096];
    snprintf(state, sizeof state, "%.4000s.state", o->output);
    snprintf(parts, sizeof parts, "%.4000s.parts", o->output);
    snprintf(errors, sizeof errors, "%.4000s.errors", o->output);
    int code = job_store_open_locked(&s->logs[JOB_OUTPUT], o->output);
    if (!code)
        code = job_store_open_log(&s->logs[JOB_STATE], state);
    if (!code && o->has_parts)
        code = job_store_open_log(&s->logs[JOB_PARTS], parts);
    if (!code && o->errors && strcmp(o->errors, o->output) == 0)
        code = cli_fail(CLI_REFUSED, "%s: found one file for answers and errors, expected two",
                        o->output);
    if (!code)
        code = job_store_open_locked(&s->logs[JOB_ERRORS], o->errors ? o->errors : errors);
    for (int i = 0; i < JOB_N_LOGS; i++)
        if (s->logs[i].fd >= 0)
            s->in_order[s->n_open++] = &s->logs[i];
    return code ? code : check_apart(s, o->report);
}

/* A file beside the state that has something; NULL: none. */
static const struct job_log *find_results(const struct job_store *s)
{
    for (size_t i = 1; i < s->n_open; i++)
        if (s->in_order[i]->end)
            return s->in_order[i];
    return NULL;
}

/* Reads the state. Nothing has been changed yet: the files may be somebody else's. */
static int read_state(struct job_store *s)
{
    const struct job_log *state = &s->logs[JOB_STATE], *results = find_results(s);
    if (!state->end && results)
        return cli_fail(CLI_REFUSED,
                        "%s: found a file that no job has written (%s is empty); give another "
                        "output",
                        results->path, state->path);
    int code = job_store_read(s, state->path, job_store_take_state);
    if (!code && state->end && !s->identity)
        code =
            cli_fail(CLI_REFUSED, "%s: found a file that no job has written; give another output",
                     state->path);
    return code;
}

static int cut_torn_lines(struct job_store *s)
{
    for (size_t i = 0; i < s->n_open; i++) {
        int rc = job_log_cut_torn_line(s->in_order[i]);
        if (rc)
            return cli_fail(CLI_FAILED, "%s: %s", s->in_order[i]->path, strerror(-rc));
    }
    return 0;
}

/* Keeps the whole name of a file of errors that is not OUTPUT.errors, which moves with OUTPUT. */
static int find_errors(struct job_store *s)
{
    char *output = realpath(s->logs[JOB_OUTPUT].path, NULL);
    char *whole = realpath(s->logs[JOB_ERRORS].path, NULL);
    const size_t n = output ? strlen(output) : 0;
    bool is_default =
        whole && output && strncmp(whole, output, n) == 0 && strcmp(whole + n, ".errors") == 0;
    char *errors = whole && !is_default ? spw_strdup(whole) : NULL;
    bool has_failed = !output || !whole || (!is_default && !errors);
    free(output);
    free(whole);
    if (has_failed)
        return job_store_no_memory(s);
    const char *is = errors ? errors : "OUTPUT.errors",
               *was = s->errors ? s->errors : "OUTPUT.errors";
    int code = 0;
    if (s->identity && strcmp(is, was) != 0)
        code =
            cli_fail(CLI_REFUSED,
                     "%s: this job writes its errors to %s, found %s; give the same --errors, or "
                     "another output",
                     s->logs[JOB_OUTPUT].path, was, is);
    spw_free(s->errors);
    s->errors = errors;
    return code;
}

static int read_earlier(struct job_store *s, const struct job_store_options *o)
{
    int code = read_state(s);
    if (!code)
        code = find_errors(s);
    if (!code)
        code = cut_torn_lines(s);
    if (!code)
        code = job_store_read(s, s->logs[JOB_OUTPUT].path, job_store_take_answer);
    if (!code)
        code = job_store_read(s, s->logs[JOB_ERRORS].path, job_store_take_error);
    if (!code && o->has_parts)
        code = job_store_read(s, s->logs[JOB_PARTS].path, job_store_take_part);
    if (!code && s->identity && (find_results(s) || json_object_size(s->answers)))
        code = check_identity(s, o->identity);
    return code;
}

/* A link keeps its name: files that lines name are in its folder. */
static char *whole_name(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char folder[4096], whole[8192];
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(name - path) : 1, slash ? path : ".");
    char *real = realpath(folder, NULL);
    if (!real)
        return NULL;
    snprintf(whole, sizeof whole, "%s/%s", strcmp(real, "/") == 0 ? "" : real, name);
    free(real);
    return spw_strdup(whole);
}

int job_store_open(struct job_store **out, const struct job_store_options *o)
{
    struct job_store *s = *out = spw_alloc_zero(1, sizeof *s);
    if (!s)
        return cli_fail(CLI_FAILED, "%s: out of memory", o->output);
    for (int i = 0; i < JOB_N_LOGS; i++)
        s->logs[i].fd = -1;
    s->answers = json_object();
    int code = open_logs(s, o);
    if (!code)
        code = s->answers ? read_earlier(s, o) : job_store_no_memory(s);
    if (!code) {
        json_decref(s->identity);
        s->identity = json_deep_copy(o->identity);
        s->started = s->started ? s->started : time(NULL);
        spw_free(s->input);
        s->input = NULL;
        code = s->identity && (!o->input || (s->input = whole_name(o->input)))
                   ? 0
                   : job_store_no_memory(s);
    }
    for (size_t i = 0; i < s->table.n_places && o->retry_failed; i++)
        if (s->table.entries[i].ended == JOB_HAS_ERROR)
            job_store_forget_error(s, &s->table.entries[i]);
    if (code) {
        job_store_close(s, code);
        *out = NULL;
    }
    return code;
}

static int look_at_errors(struct job_store *s, const char *output)
{
    char errors[4096];
    snprintf(errors, sizeof errors, "%.4000s.errors", output);
    s->logs[JOB_ERRORS].path = spw_strdup(s->errors ? s->errors : errors);
    if (!s->logs[JOB_ERRORS].path)
        return job_store_no_memory(s);
    return access(s->logs[JOB_ERRORS].path, F_OK) == 0
               ? job_store_read(s, s->logs[JOB_ERRORS].path, job_store_take_error)
               : 0;
}

int job_store_look(struct job_store **out, const char *output)
{
    struct job_store *s = *out = spw_alloc_zero(1, sizeof *s);
    char state[4096];
    if (!s)
        return cli_fail(CLI_FAILED, "%s: out of memory", output);
    for (int i = 0; i < JOB_N_LOGS; i++)
        s->logs[i].fd = -1;
    snprintf(state, sizeof state, "%.4000s.state", output);
    s->answers = json_object();
    s->logs[JOB_OUTPUT].path = spw_strdup(output);
    int code = 0;
    if (!s->answers || !s->logs[JOB_OUTPUT].path)
        code = cli_fail(CLI_FAILED, "out of memory");
    else if (access(state, F_OK))
        code = cli_fail(CLI_REFUSED, "%s: found no %s beside it, expected the output of a job",
                        output, state);
    if (!code)
        code = job_store_read(s, state, job_store_take_state);
    if (!code)
        code = job_store_read(s, output, job_store_take_answer);
    if (!code)
        code = look_at_errors(s, output);
    if (!code && !s->identity)
        code = cli_fail(CLI_REFUSED, "%s: found no job: %s is empty", output, state);
    if (code) {
        job_store_close(s, code);
        *out = NULL;
    }
    return code;
}
