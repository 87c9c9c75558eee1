/* See store.h. */
#include "tools/command/job/store/store_parts.h"

#include "tools/command/job/store/lines.h"
#include "tools/command/output/output.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int job_store_close(struct job_store *s, int code)
{
    if (!s)
        return code;
    int rc = s->syncs ? job_syncer_end(&s->syncer) : 0;
    if (rc && !code)
        code = cli_fail(CLI_FAILED, "%s: %s", s->logs[JOB_OUTPUT].path, strerror(-rc));
    for (int i = 0; i < JOB_N_LOGS; i++) {
        /* The lock is held: nobody else has written the file. */
        if (code && !s->has_lines && s->logs[i].is_new)
            unlink(s->logs[i].path);
        job_log_close(&s->logs[i]);
    }
    spw_free(s->input);
    spw_free(s->errors);
    job_table_free(&s->table);
    json_decref(s->answers);
    json_decref(s->identity);
    json_decref(s->head);
    spw_free(s);
    return code;
}

const char *job_store_errors_path(const struct job_store *s)
{
    return s->logs[JOB_ERRORS].path;
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

const char *job_store_input(const struct job_store *s)
{
    return s->input;
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

/* ---- files that are written anew ---- */

/* Takes the reference. False: out of memory. */
static bool put(json_t *value, FILE *file)
{
    char *text = value ? job_line_seal(value) : NULL;
    if (text)
        fprintf(file, "%s\n", text);
    json_decref(value);
    spw_free(text);
    return text;
}

static json_t *state_line(struct job_key key, uint64_t digest)
{
    char name[JOB_KEY_BYTES], hex[17];
    snprintf(hex, sizeof hex, "%016" PRIx64, digest);
    const struct cli_field fields[] = {
        {"item", CLI_JSON(job_key_text(name, key))},
        {"digest", CLI_JSON((const char *)hex)},
    };
    return CLI_OBJECT(fields);
}

static json_t *state_head(const struct job_store *s)
{
    const struct cli_field fields[] = {
        {"spillway_job", CLI_JSON((int64_t)JOB_STATE_VERSION)},
        {"started", CLI_JSON((int64_t)s->started)},
        {"errors", CLI_JSON((const char *)s->errors)},
        {"input", CLI_JSON((const char *)s->input)},
        {s->is_counted ? "items" : NULL, CLI_JSON(s->n_expected)},
        {"identity", json_incref(s->identity)},
    };
    return CLI_OBJECT(fields);
}

static int begin_state(struct job_store *s, FILE *file)
{
    json_t *answers;
    const char *name;
    bool is_whole = put(state_head(s), file);
    for (size_t i = 0; i < s->table.n_places; i++) {
        const struct job_entry *e = &s->table.entries[i];
        if (e->has_digest && e->ended != JOB_NOT_ENDED)
            is_whole &= put(state_line(e->key, e->digest), file);
    }
    json_object_foreach(s->answers, name, answers) is_whole &= put(json_incref(answers), file);
    return is_whole ? 0 : cli_fail(CLI_FAILED, "%s: out of memory", s->logs[JOB_STATE].path);
}

/* Lines of errors whose items have not become new. */
static int begin_errors(struct job_store *s, FILE *file)
{
    struct job_lines lines;
    struct job_line line;
    const char *path = s->logs[JOB_ERRORS].path;
    int rc = job_lines_open(&lines, path), code = 0;
    while (!rc && !code && (rc = job_lines_next(&lines, &line)) == 1) {
        struct job_key key;
        code = job_key_of_line(s, path, &line, &key);
        const struct job_entry *e = code ? NULL : job_table_find(&s->table, key);
        if (e && e->ended == JOB_HAS_ERROR)
            fprintf(file, "%s\n", line.text);
        rc = 0;
    }
    job_lines_close(&lines);
    return code || !rc ? code : cli_fail(CLI_FAILED, "%s: %s", path, strerror(-rc));
}

/* Replaces a file as a whole. The lock is on OUTPUT, which is never replaced. */
static int write_anew(struct job_store *s, struct job_log *l,
                      int (*write)(struct job_store *s, FILE *file),
                      int (*open)(struct job_log *l, const char *path))
{
    struct cli_output *file;
    char path[4096];
    snprintf(path, sizeof path, "%s", l->path);
    int code = cli_output_open_locked(&file, path);
    if (code)
        return code;
    code = write(s, cli_output_file(file));
    if (code) {
        cli_output_cancel(file);
        return code;
    }
    const bool is_new = l->is_new;
    code = cli_output_commit(file);
    if (code)
        return code;
    job_log_close(l);
    code = open(l, path);
    l->is_new = is_new && !code;
    return code;
}

int job_sync_folder(const char *path)
{
    char folder[4096];
    job_lines_folder(folder, path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* EINVAL: this file system has no such call */
    int rc = fd < 0 || (fsync(fd) && errno != EINVAL) ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return rc ? cli_fail(CLI_FAILED, "%s: %s", folder, strerror(-rc)) : 0;
}

/* After a loss of power, OUTPUT must not be there without its state. */
static int sync_folders(const struct job_store *s)
{
    char of_output[4096], of_errors[4096];
    job_lines_folder(of_output, s->logs[JOB_OUTPUT].path);
    job_lines_folder(of_errors, s->logs[JOB_ERRORS].path);
    int code = job_sync_folder(s->logs[JOB_OUTPUT].path);
    if (!code && strcmp(of_output, of_errors) != 0)
        code = job_sync_folder(s->logs[JOB_ERRORS].path);
    return code;
}

/* Whether a pass has found that all items have ended, and the state says what it would say again:
 * such a job also ends on a full drive. */
static bool has_nothing_to_write(const struct job_store *s)
{
    json_t *head = s->pass && !s->has_new && !s->forgets ? state_head(s) : NULL;
    const bool is_same = head && json_equal(head, s->head);
    json_decref(head);
    return is_same;
}

/* The errors first: until they are gone, the state has the digests of their lines, which say that
 * these lines were corrected. */
int job_store_begin(struct job_store *s)
{
    const bool writes = !has_nothing_to_write(s);
    int code =
        s->forgets ? write_anew(s, &s->logs[JOB_ERRORS], begin_errors, job_store_open_locked) : 0;
    s->forgets = false;
    if (!code && writes)
        code = write_anew(s, &s->logs[JOB_STATE], begin_state, job_store_open_log);
    if (!code)
        code = sync_folders(s);
    if (code)
        return code;
    int rc = job_syncer_start(&s->syncer, s->in_order, s->n_open);
    s->syncs = !rc;
    if (s->syncs)
        job_syncer_note(&s->syncer); /* lines of a run that was killed */
    return rc ? cli_fail(CLI_FAILED, "a thread was refused: %s", strerror(-rc)) : 0;
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
                    s->logs[JOB_OUTPUT].path, job_value_text(id, x->id), line);
}

/* An error of this line, which had no id of its own, and has one now. */
static void forget_line(struct job_store *s, uint64_t number)
{
    struct job_entry *e = job_table_find(&s->table, job_key_of_number(number));
    if (e && e->ended == JOB_HAS_ERROR && !s->syncs)
        job_store_forget_error(s, e);
}

int job_store_meet(struct job_store *s, const struct request *x, enum job_standing *out)
{
    struct job_key key;
    int code = job_key_of(x, &key);
    if (code)
        return code;
    struct job_entry *e = job_table_add(&s->table, key);
    if (e && e->pass == s->pass) {
        e = job_table_add(&s->table, job_key_of_number(x->number));
        *out = JOB_DUPLICATE;
        if (!e)
            return job_store_no_memory(s);
        if (e->ended == JOB_HAS_ERROR)
            *out = JOB_FAILED;
        else
            s->has_new = true;
        e->pass = s->pass;
        return 0;
    }
    if (!e)
        return job_store_no_memory(s);
    if (x->id)
        forget_line(s, x->number);
    bool has_changed = e->has_digest && e->digest != x->digest;
    if (e->ended == JOB_HAS_ANSWER && has_changed)
        return refuse_changed(s, x);
    if (e->ended == JOB_HAS_ERROR && has_changed && !s->syncs)
        job_store_forget_error(s, e);
    e->pass = s->pass;
    e->digest = x->digest;
    e->has_digest = true;
    *out = e->ended == JOB_HAS_ANSWER ? JOB_DONE : e->ended == JOB_HAS_ERROR ? JOB_FAILED : JOB_NEW;
    s->has_new |= *out == JOB_NEW;
    return 0;
}

/* Takes the reference of `line`. */
static int append(struct job_store *s, int log, json_t *line)
{
    const bool is_sealed = log == JOB_STATE || log == JOB_PARTS;
    char *text = !line       ? NULL
                 : is_sealed ? job_line_seal(line)
                             : spw_json_dump(line, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(line);
    if (!text)
        return job_store_no_memory(s);
    int rc = job_log_append(&s->logs[log], text, strlen(text));
    s->has_lines |= !rc;
    spw_free(text);
    int failed = job_syncer_note(&s->syncer);
    rc = rc ? rc : failed;
    return rc ? cli_fail(CLI_FAILED,
                         "%s: %s; what was written before is complete, and the same command "
                         "continues there",
                         s->logs[log].path, strerror(-rc))
              : 0;
}

static int commit(struct job_store *s, const struct request *x, json_t *line, enum job_ended ended)
{
    char name[JOB_KEY_BYTES];
    struct job_key key;
    int code = job_key_of(x, &key);
    struct job_entry *e = code ? NULL : job_table_add(&s->table, key);
    if (!code)
        code = e ? append(s, JOB_STATE, state_line(key, x->digest)) : job_store_no_memory(s);
    if (code) {
        json_decref(line);
        return code;
    }
    code = append(s, ended == JOB_HAS_ANSWER ? JOB_OUTPUT : JOB_ERRORS, line);
    if (code)
        return code;
    json_object_del(s->answers, job_key_text(name, key));
    e->ended = ended;
    e->digest = x->digest;
    e->has_digest = true;
    ++*(ended == JOB_HAS_ANSWER ? &s->totals.n_done : &s->totals.n_failed);
    return 0;
}

int job_store_commit(struct job_store *s, const struct request *x, json_t *line)
{
    return commit(s, x, line, JOB_HAS_ANSWER);
}

int job_store_commit_error(struct job_store *s, const struct request *x, json_t *line)
{
    return commit(s, x, line, JOB_HAS_ERROR);
}

/* ---- parts ---- */

int job_store_commit_part(struct job_store *s, const struct request *x, json_t *line)
{
    char name[JOB_KEY_BYTES], hex[17];
    struct job_key key;
    int code = job_key_of(x, &key);
    struct job_entry *e = code ? NULL : job_table_add(&s->table, key);
    if (!e) {
        json_decref(line);
        return code ? code : job_store_no_memory(s);
    }
    snprintf(hex, sizeof hex, "%016" PRIx64, x->digest);
    cli_json_add(&line, "digest", CLI_JSON((const char *)hex));
    const uint64_t begin = s->logs[JOB_PARTS].end;
    code = append(s, JOB_PARTS, line);
    if (code)
        return code;
    json_object_del(s->answers, job_key_text(name, key));
    e->part_end = s->logs[JOB_PARTS].end;
    e->part_bytes = e->part_end - begin;
    return 0;
}

int job_store_part(struct job_store *s, const struct request *x, json_t **line)
{
    struct job_key key;
    const char *digest = NULL;
    *line = NULL;
    int code = job_key_of(x, &key);
    if (code)
        return code;
    const struct job_entry *e = job_table_find(&s->table, key);
    if (!e || !e->part_end)
        return 0;
    char *text = spw_alloc(e->part_bytes);
    if (!text)
        return job_store_no_memory(s);
    const off_t at = (off_t)(e->part_end - e->part_bytes);
    const size_t bytes = e->part_bytes - 1; /* without the newline */
    int rc = -EINVAL;
    if (pread(s->logs[JOB_PARTS].fd, text, bytes, at) == (ssize_t)bytes &&
        job_line_has_sum(text, bytes))
        rc = spw_json_parse(line, text, bytes, JSON_ALLOW_NUL, NULL);
    spw_free(text);
    if (rc == -ENOMEM)
        return job_store_no_memory(s);
    if (rc) /* the line was whole when the store was opened */
        return cli_fail(CLI_FAILED,
                        "%s: a part cannot be read back: another program has changed the file",
                        s->logs[JOB_PARTS].path);
    json_object_del(*line, "sum");
    digest = json_string_value(json_object_get(*line, "digest"));
    if (!digest || strtoull(digest, NULL, 16) != x->digest) {
        json_decref(*line);
        *line = NULL;
    }
    return 0;
}

/* ---- answers under way ---- */

static json_t *answer_json(const struct spw_result *r)
{
    char hex[17];
    json_t *tokens = json_array();
    for (size_t i = 0; i < r->n_tokens; i++)
        cli_json_append(&tokens, CLI_JSON((int64_t)r->tokens[i]));
    snprintf(hex, sizeof hex, "%016" PRIx64, r->logits_hash);
    const struct cli_field fields[] = {
        {"tokens", tokens},
        {"logits_hash", CLI_JSON((const char *)hex)},
    };
    return CLI_OBJECT(fields);
}

int job_store_keep_answers(struct job_store *s, const struct request *x, const char *machine)
{
    char name[JOB_KEY_BYTES];
    struct job_key key;
    int code = job_key_of(x, &key);
    if (code)
        return code;
    json_t *line = state_line(key, x->digest), *answers = json_array();
    for (size_t i = 0; i < x->n_prompts * x->n_choices; i++)
        cli_json_append(&answers, answer_json(&x->choices[i].result));
    cli_json_add(&line, "machine", CLI_JSON(machine));
    cli_json_add(&line, "answers", answers);
    if (line)
        json_object_set(s->answers, job_key_text(name, key), line);
    return append(s, JOB_STATE, line);
}

int job_store_answer(struct job_store *s, const struct request *x, size_t choice,
                     const char *machine, struct job_kept *out)
{
    char name[JOB_KEY_BYTES];
    struct job_key key;
    int code = job_key_of(x, &key);
    if (code)
        return code;
    const json_t *kept = json_object_get(s->answers, job_key_text(name, key));
    const json_t *answer = json_array_get(json_object_get(kept, "answers"), choice);
    const json_t *tokens = json_object_get(answer, "tokens");
    const char *hash = json_string_value(json_object_get(answer, "logits_hash"));
    const char *where = json_string_value(json_object_get(kept, "machine"));
    const char *digest = json_string_value(json_object_get(kept, "digest"));
    *out = (struct job_kept){0};
    if (!json_array_size(tokens) || !hash || !where || strcmp(where, machine) != 0 || !digest ||
        strtoull(digest, NULL, 16) != x->digest)
        return 0;
    out->n_tokens = json_array_size(tokens);
    out->tokens = spw_alloc(out->n_tokens * sizeof *out->tokens);
    if (!out->tokens)
        return job_store_no_memory(s);
    for (size_t i = 0; i < out->n_tokens; i++)
        out->tokens[i] = (int32_t)json_integer_value(json_array_get(tokens, i));
    out->hash = strtoull(hash, NULL, 16);
    return 0;
}
