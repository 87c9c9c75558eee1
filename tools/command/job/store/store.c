/* The items of a job: see store.h. */
#include "tools/command/job/store/store_parts.h"

#include "tools/command/output/report.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *job_store_errors_path(const struct job_store *s)
{
    return s->outs[JOB_ERRORS].path;
}

void job_store_expect(struct job_store *s, uint64_t n_items)
{
    s->is_counted = true;
    s->n_expected = n_items;
}

bool job_store_expected(const struct job_store *s, uint64_t *n_items)
{
    *n_items = s->n_expected;
    return s->is_counted;
}

const json_t *job_store_identity(const struct job_store *s)
{
    return s->identity;
}

time_t job_store_started(const struct job_store *s)
{
    return s->started;
}

struct job_totals job_store_totals(const struct job_store *s)
{
    return s->totals;
}

/* ---- writing ---- */

/* Takes `text`, which may be NULL: out of memory. `out`: the file that gets the text, too; < 0:
 * none. */
static int append(struct job_store *s, struct job_record r, char *text, int out)
{
    size_t bytes;
    r.text = text;
    r.bytes = text ? strlen(text) : 0;
    char *line = text ? job_record_line(&r, &bytes) : NULL;
    spw_free(text);
    if (!line)
        return job_store_no_memory(s);
    int rc = job_log_append(&s->state, line, bytes), short_of_memory = 0;
    if (!rc && s->has_begun) {
        s->has_lines = s->is_dirty = true;
        if (out >= 0)
            short_of_memory =
                spw_text_add(&s->texts[out], line + JOB_RECORD_HEAD, bytes - JOB_RECORD_HEAD);
    }
    spw_free(line);
    s->has_failed |= rc || short_of_memory;
    if (rc)
        return cli_fail(CLI_FAILED,
                        "%s: %s; what was written before is complete, and the same command "
                        "continues there",
                        s->state.path, strerror(-rc));
    return short_of_memory ? job_store_no_memory(s) : 0;
}

static int sync_log(const struct job_log *l)
{
    return fdatasync(l->fd) ? -errno : 0;
}

/* *path: the file that has failed. */
static int write_texts(struct job_store *s, const char **path)
{
    *path = s->state.path;
    SPW_TRY(job_log_check(&s->state, s->state.end));
    SPW_TRY(sync_log(&s->state));
    for (int i = 0; i < JOB_N_OUTS; i++) {
        struct job_log *out = &s->outs[i];
        *path = out->path;
        SPW_TRY(job_log_check(out, out->end));
        if (!s->texts[i].n)
            continue;
        SPW_TRY(job_log_append(out, s->texts[i].text, s->texts[i].n));
        SPW_TRY(sync_log(out));
        s->texts[i].n = 0;
    }
    return 0;
}

int job_store_flush(struct job_store *s)
{
    const char *path;
    if (!s->is_dirty || s->has_failed)
        return 0;
    s->is_dirty = false;
    const int rc = write_texts(s, &path);
    s->has_failed = rc;
    if (!rc)
        return 0;
    if (rc != -ESTALE)
        return job_store_fail(path, rc);
    const bool is_state = path == s->state.path;
    return cli_fail(CLI_FAILED,
                    "%s: another program has changed, replaced or removed this file while the job "
                    "ran%s%s",
                    path, is_state ? "" : "; the same command writes it again from ",
                    is_state ? "" : s->state.path);
}

/* Takes the reference; NULL: out of memory. */
static char *text_of(json_t *value)
{
    char *text = value ? spw_json_dump(value, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(value);
    return text;
}

json_t *job_store_head(const struct job_store *s)
{
    const struct cli_field fields[] = {
        {"spillway_job", CLI_JSON((int64_t)JOB_STATE_VERSION)},
        {"started", CLI_JSON((int64_t)s->started)},
        {"errors", CLI_JSON((const char *)s->errors)},
        {s->is_counted ? "items" : NULL, CLI_JSON(s->n_expected)},
        {"identity", json_incref(s->identity)},
    };
    return CLI_OBJECT(fields);
}

/* ---- the beginning ---- */

int job_sync_folder(const char *path)
{
    char folder[4096];
    job_lines_folder(folder, path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* EINVAL: this file system has no such call */
    int rc = fd < 0 || (fsync(fd) && errno != EINVAL) ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return rc ? job_store_fail(folder, rc) : 0;
}

/* Makes a damaged line a blank one: it is not named again. */
static int blank(struct job_store *s, const struct job_line *line, const struct job_record *r,
                 void *context)
{
    (void)context;
    if (r || !line->has_newline)
        return 0;
    memset(line->text, ' ', line->bytes);
    const bool is_written =
        pwrite(s->state.fd, line->text, line->bytes, (off_t)line->offset) == (ssize_t)line->bytes;
    return is_written ? 0 : job_store_fail(s->state.path, -errno);
}

/* The head, if it says something new. A finished job also ends on a full drive. */
static int write_head(struct job_store *s)
{
    json_t *head = job_store_head(s);
    if (head && json_equal(head, s->head)) {
        json_decref(head);
        return 0;
    }
    return append(s, (struct job_record){.kind = JOB_HEAD}, text_of(head), -1);
}

/* An item that had an error is new again: its line is no line of the errors any more. */
static int write_retries(struct job_store *s)
{
    int code = 0;
    for (size_t i = 0; i < s->table.n_places && !code; i++) {
        struct job_entry *e = &s->table.entries[i];
        if (e->is_retried)
            code = append(s, (struct job_record){.kind = JOB_RETRY, .key = e->key}, spw_strdup(""),
                          -1);
        e->is_retried = false;
    }
    return code;
}

/* After a loss of power, OUTPUT must not be there without its state. */
static int sync_state(const struct job_store *s)
{
    if (fdatasync(s->state.fd))
        return job_store_fail(s->state.path, -errno);
    int code = job_sync_folder(s->state.path);
    return code ? code : job_sync_folder(s->outs[JOB_ERRORS].path);
}

/* Brings the state to what this run knows. */
static int write_state(struct job_store *s)
{
    int rc = job_log_cut(&s->state, s->state.end);
    int code = rc ? job_store_fail(s->state.path, rc) : 0;
    if (!code && s->is_damaged)
        code = job_store_read(s, 0, 1, blank, NULL);
    if (!code)
        code = write_head(s);
    if (!code)
        code = write_retries(s);
    return code ? code : sync_state(s);
}

/* The state first: the other files follow from what the drive has of it. A run that is refused
 * changes nothing. */
int job_store_begin(struct job_store *s)
{
    struct job_follow f;
    int code = job_store_compare(s, &f, true);
    if (!code)
        code = write_state(s);
    if (!code)
        code = job_store_mend(s, &f);
    s->has_begun = !code;
    return code;
}

/* ---- items ---- */

void job_store_begin_pass(struct job_store *s)
{
    s->pass++;
}

static int refuse_changed(const struct job_store *s, const struct request *x)
{
    char id[128], line[96] = "its document";
    if (x->number)
        snprintf(line, sizeof line, "line %" PRIu64 " of the input, or the file that it names,",
                 x->number);
    return cli_fail(CLI_REFUSED,
                    "%s: has the answer of item %s, but %s has changed since; give the input that "
                    "the job was begun with, or another output",
                    s->outs[JOB_OUTPUT].path, job_value_text(id, x->id), line);
}

void job_store_retry(struct job_store *s, struct job_entry *e)
{
    if (!e || e->ended != JOB_HAS_ERROR || s->has_begun)
        return;
    job_store_end(s, e, JOB_NOT_ENDED);
    e->is_retried = true;
}

/* A second item of one id: its error has the number of its line. */
static int meet_duplicate(struct job_store *s, const struct request *x, enum job_standing *out)
{
    struct job_entry *e = job_table_add(&s->table, job_key_of_number(x->number));
    if (!e)
        return job_store_no_memory(s);
    e->pass = s->pass;
    *out = e->ended == JOB_HAS_ERROR ? JOB_FAILED : JOB_DUPLICATE;
    return 0;
}

int job_store_meet(struct job_store *s, const struct request *x, enum job_standing *out)
{
    struct job_key key;
    int code = job_key_of(x, &key);
    struct job_entry *e = code ? NULL : job_table_add(&s->table, key);
    if (!e)
        return code ? code : job_store_no_memory(s);
    if (e->pass == s->pass)
        return meet_duplicate(s, x, out);
    e->pass = s->pass;
    if (e->ended == JOB_HAS_ANSWER && e->digest != x->digest)
        return refuse_changed(s, x);
    if (e->digest != x->digest)
        job_store_retry(s, e);
    *out = e->ended == JOB_HAS_ANSWER ? JOB_DONE : e->ended == JOB_HAS_ERROR ? JOB_FAILED : JOB_NEW;
    if (x->id) /* an error of this line, which had no id of its own */
        job_store_retry(s, job_table_find(&s->table, job_key_of_number(x->number)));
    return 0;
}

/* Takes the reference of `line`. */
static int commit(struct job_store *s, const struct request *x, json_t *line, enum job_kind kind)
{
    static const struct {
        int out;
        enum job_ended ended;
    } to[] = {[JOB_ANSWER] = {JOB_OUTPUT, JOB_HAS_ANSWER},
              [JOB_ERROR] = {JOB_ERRORS, JOB_HAS_ERROR},
              [JOB_PART] = {-1, JOB_IS_PART}};
    struct job_record r = {.kind = kind, .digest = x->digest};
    char *text = text_of(line);
    int code = job_key_of(x, &r.key);
    struct job_entry *e = code ? NULL : job_table_add(&s->table, r.key);
    if (!e) {
        spw_free(text);
        return code ? code : job_store_no_memory(s);
    }
    const uint64_t at = s->state.end;
    code = append(s, r, text, to[kind].out);
    if (code)
        return code;
    job_store_end(s, e, to[kind].ended);
    e->digest = x->digest;
    e->at = at;
    e->bytes = s->state.end - at - 1;
    return 0;
}

int job_store_commit(struct job_store *s, const struct request *x, json_t *line)
{
    return commit(s, x, line, JOB_ANSWER);
}

int job_store_commit_error(struct job_store *s, const struct request *x, json_t *line)
{
    return commit(s, x, line, JOB_ERROR);
}

int job_store_commit_part(struct job_store *s, const struct request *x, json_t *line)
{
    return commit(s, x, line, JOB_PART);
}

int job_store_part(struct job_store *s, const struct request *x, json_t **line)
{
    struct job_key key;
    struct job_record r;
    *line = NULL;
    int code = job_key_of(x, &key);
    const struct job_entry *e = code ? NULL : job_table_find(&s->table, key);
    if (!e || e->ended != JOB_IS_PART || e->digest != x->digest)
        return code;
    char *text = spw_alloc(e->bytes);
    if (!text)
        return job_store_no_memory(s);
    int rc = -EINVAL;
    if (pread(s->state.fd, text, e->bytes, (off_t)e->at) == (ssize_t)e->bytes &&
        job_record_parse(&r, text, e->bytes))
        rc = spw_json_parse(line, r.text, r.bytes, JSON_ALLOW_NUL, NULL);
    spw_free(text);
    if (rc == -ENOMEM)
        return job_store_no_memory(s);
    if (rc) /* the line was whole when the store was opened */
        return cli_fail(CLI_FAILED,
                        "%s: a part cannot be read back: another program has changed the file",
                        s->state.path);
    return 0;
}

/* ---- answers under way ---- */

int job_store_keep_answers(struct job_store *s, struct request *x, const char *machine)
{
    struct job_record r = {.kind = JOB_KEPT, .digest = x->digest};
    int code = job_key_of(x, &r.key);
    for (size_t i = 0; i < x->n_prompts * x->n_choices && !code; i++) {
        struct request_choice *c = &x->choices[i];
        char hex[17];
        if (c->result.n_tokens <= c->n_kept)
            continue;
        snprintf(hex, sizeof hex, "%016" PRIx64, c->result.logits_hash);
        const struct cli_field fields[] = {
            {"machine", CLI_JSON(machine)},
            {"choice", CLI_JSON(i)},
            {"from", CLI_JSON(c->n_kept)},
            {"tokens",
             cli_report_tokens(c->result.tokens + c->n_kept, c->result.n_tokens - c->n_kept)},
            {"logits_hash", CLI_JSON((const char *)hex)},
        };
        code = append(s, r, text_of(CLI_OBJECT(fields)), -1);
        c->n_kept = c->result.n_tokens;
    }
    return code;
}

int job_store_answer(struct job_store *s, const struct request *x, size_t choice,
                     const char *machine, struct job_kept *out)
{
    struct job_key key;
    *out = (struct job_kept){0};
    int code = job_key_of(x, &key);
    const struct job_entry *e = code ? NULL : job_table_find(&s->table, key);
    const struct job_under_way *u = e ? e->under_way : NULL;
    if (!u || u->digest != x->digest || strcmp(u->machine, machine) != 0 || choice >= u->n ||
        !u->choices[choice].n_tokens)
        return code;
    *out = u->choices[choice];
    out->tokens = spw_alloc(out->n_tokens * sizeof *out->tokens);
    if (!out->tokens)
        return job_store_no_memory(s);
    memcpy(out->tokens, u->choices[choice].tokens, out->n_tokens * sizeof *out->tokens);
    return 0;
}
