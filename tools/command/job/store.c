/* See store.h. */
#include "tools/command/job/store.h"

#include "tools/command/job/lines.h"
#include "tools/command/job/log.h"
#include "tools/command/job/request.h"
#include "tools/command/job/store_table.h"
#include "tools/command/output/output.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

enum { STATE, OUTPUT, ERRORS, N_LOGS }; /* in the order in which they are synced */

struct job_store {
    struct job_log logs[N_LOGS];
    struct job_log *in_order[N_LOGS];
    struct job_syncer syncer;
    bool syncs;
    struct job_table table;
    json_t *answers; /* owned: answers under way, by the text of the item's key */
    json_t *identity;
    char *input; /* owned; NULL: not known */
    time_t started;
    uint32_t pass;
    struct job_totals totals;
    bool forgets; /* errors of items that are new again are still in their file */
};

/* ---- keys ---- */

enum { KEY_BYTES = 33 };

static struct job_key key_of_text(const char *text)
{
    XXH128_hash_t h = XXH3_128bits(text, strlen(text));
    return (struct job_key){h.low64 | (!h.low64 && !h.high64), h.high64};
}

static struct job_key key_of_number(uint64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "#%" PRIu64, number);
    return key_of_text(text);
}

static struct job_key key_of(const struct job_item *x)
{
    char *text = x->id ? json_dumps(x->id, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    struct job_key key = text ? key_of_text(text) : key_of_number(x->number);
    free(text);
    return key;
}

static const char *key_text(char buffer[KEY_BYTES], struct job_key key)
{
    snprintf(buffer, KEY_BYTES, "%016" PRIx64 "%016" PRIx64, key.high, key.low);
    return buffer;
}

static bool parse_key(const char *text, struct job_key *out)
{
    int n = 0;
    return text && sscanf(text, "%16" SCNx64 "%16" SCNx64 "%n", &out->high, &out->low, &n) == 2 &&
           n == KEY_BYTES - 1;
}

static int out_of_memory(const struct job_store *s)
{
    return cli_fail(CLI_FAILED, "%s: out of memory", s->logs[OUTPUT].path);
}

/* ---- reading what earlier runs have written ---- */

/* Calls `take` for each line of a file. */
static int read_lines(struct job_store *s, const char *path,
                      int (*take)(struct job_store *s, const char *path,
                                  const struct job_line *line))
{
    struct job_lines lines;
    struct job_line line;
    int rc = job_lines_open(&lines, path), code = 0;
    while (!rc && !code && (rc = job_lines_next(&lines, &line)) == 1) {
        rc = 0;
        if (line.has_newline) /* else another process is just writing it */
            code = take(s, path, &line);
    }
    job_lines_close(&lines);
    return code || !rc ? code : cli_fail(CLI_FAILED, "%s: %s", path, strerror(-rc));
}

static int refuse_line(const char *path, const struct job_line *line)
{
    return cli_fail(CLI_REFUSED,
                    "%s: line %" PRIu64 ": found something else than a line of this job; remove "
                    "that line, or give another output",
                    path, line->number);
}

/* The key of the item that a line of results or of errors belongs to. False: none is found. */
static bool key_of_line(const struct job_line *line, struct job_key *out)
{
    const struct job_reader reader = {.folder = "."};
    struct job_refusal why;
    struct job_item x;
    job_item_parse(&x, &reader, line->text, line->bytes, line->number, &why);
    bool is_found = x.id && !json_is_null(x.id);
    *out = key_of(&x);
    job_item_free(&x);
    if (!is_found) {
        json_t *parsed = json_loadb(line->text, line->bytes, 0, NULL);
        const json_t *number = json_object_get(parsed, "line");
        is_found = json_is_integer(number);
        *out = key_of_number((uint64_t)json_integer_value(number));
        json_decref(parsed);
    }
    return is_found;
}

/* A line of results or of errors: which item has ended. */
static int take_ended(struct job_store *s, const char *path, const struct job_line *line,
                      enum job_ended ended)
{
    struct job_key key;
    if (!key_of_line(line, &key))
        return refuse_line(path, line);
    struct job_entry *e = job_table_add(&s->table, key);
    if (!e)
        return out_of_memory(s);
    if (e->ended == JOB_HAS_ANSWER || e->ended == ended)
        return cli_fail(CLI_REFUSED,
                        "%s: line %" PRIu64 ": found a second line of the same item; remove that "
                        "line, or give another output",
                        path, line->number);
    e->ended = ended;
    ++*(ended == JOB_HAS_ANSWER ? &s->totals.n_done : &s->totals.n_failed);
    return 0;
}

static int take_answer(struct job_store *s, const char *path, const struct job_line *line)
{
    return take_ended(s, path, line, JOB_HAS_ANSWER);
}

static int take_error(struct job_store *s, const char *path, const struct job_line *line)
{
    return take_ended(s, path, line, JOB_HAS_ERROR);
}

static char *copy_text(const json_t *value)
{
    return json_is_string(value) ? spw_strdup(json_string_value(value)) : NULL;
}

static int take_state(struct job_store *s, const char *path, const struct job_line *line)
{
    json_t *parsed = json_loadb(line->text, line->bytes, 0, NULL);
    struct job_key key;
    const char *digest = json_string_value(json_object_get(parsed, "digest"));
    if (line->number == 1) { /* see begin_state */
        s->started = (time_t)json_integer_value(json_object_get(parsed, "started"));
        s->identity = json_incref(json_object_get(parsed, "identity"));
        if (!s->input)
            s->input = copy_text(json_object_get(parsed, "input"));
        if (!s->logs[ERRORS].path)
            s->logs[ERRORS].path = copy_text(json_object_get(parsed, "errors"));
        json_decref(parsed);
        return s->identity ? 0 : refuse_line(path, line);
    }
    const char *name = json_string_value(json_object_get(parsed, "item"));
    int code = parse_key(name, &key) && digest ? 0 : refuse_line(path, line);
    struct job_entry *e = code ? NULL : job_table_add(&s->table, key);
    if (!code && !e)
        code = out_of_memory(s);
    if (!code) {
        e->has_digest = true;
        e->digest = strtoull(digest, NULL, 16);
        if (json_object_get(parsed, "answers"))
            json_object_set(s->answers, name, parsed);
        else
            json_object_del(s->answers, name);
    }
    json_decref(parsed);
    return code;
}

/* ---- the same job ---- */

/* An option's value as a user would write it. */
static const char *value_text(char buffer[128], const json_t *value)
{
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    snprintf(buffer, 128, "%s", text ? text : "nothing");
    free(text);
    return buffer;
}

static int check_identity(const struct job_store *s, const json_t *now)
{
    const char *name;
    json_t *value;
    char was[128], is[128];
    json_object_foreach(s->identity, name, value)
    {
        const json_t *other = json_object_get(now, name);
        if (!json_equal(value, other))
            return cli_fail(CLI_REFUSED,
                            "%s: this job was begun with %s %s, found %s; give what it was begun "
                            "with, or another output",
                            s->logs[OUTPUT].path, name, value_text(was, value),
                            value_text(is, other));
    }
    return 0;
}

/* ---- opening ---- */

static int open_log(struct job_log *l, const char *path)
{
    struct spw_error err = {0};
    int rc = job_log_open(l, path, &err);
    return rc ? cli_fail(CLI_REFUSED, "%s", err.text) : 0;
}

static int open_logs(struct job_store *s, const struct job_store_options *o)
{
    char state[4096], errors[4096];
    snprintf(state, sizeof state, "%.4000s.state", o->output);
    snprintf(errors, sizeof errors, "%.4000s.errors", o->output);
    int code = open_log(&s->logs[OUTPUT], o->output);
    if (!code && flock(s->logs[OUTPUT].fd, LOCK_EX | LOCK_NB))
        code = cli_fail(CLI_REFUSED, "%s: %s", o->output,
                        errno == EWOULDBLOCK
                            ? "another process writes this output; wait until it has ended"
                            : strerror(errno));
    if (!code)
        code = open_log(&s->logs[STATE], state);
    if (!code)
        code = open_log(&s->logs[ERRORS], o->errors ? o->errors : errors);
    for (int i = 0; i < N_LOGS && !code; i++) {
        int rc = job_log_cut_torn_line(&s->logs[i]);
        if (rc)
            code = cli_fail(CLI_FAILED, "%s: %s", s->logs[i].path, strerror(-rc));
    }
    return code;
}

static int read_earlier(struct job_store *s, const struct job_store_options *o)
{
    const bool has_results = s->logs[OUTPUT].end || s->logs[ERRORS].end;
    if (has_results && !s->logs[STATE].end)
        return cli_fail(CLI_REFUSED,
                        "%s: found a file that no job has written (%s is empty); give another "
                        "output",
                        s->logs[s->logs[OUTPUT].end ? OUTPUT : ERRORS].path, s->logs[STATE].path);
    int code = read_lines(s, s->logs[OUTPUT].path, take_answer);
    if (!code)
        code = read_lines(s, s->logs[ERRORS].path, take_error);
    if (!code)
        code = read_lines(s, s->logs[STATE].path, take_state);
    if (!code && s->identity && (has_results || json_object_size(s->answers)))
        code = check_identity(s, o->identity);
    return code;
}

static void forget_error(struct job_store *s, struct job_entry *e)
{
    e->ended = JOB_NOT_ENDED;
    s->totals.n_failed--;
    s->forgets = true;
}

int job_store_open(struct job_store **out, const struct job_store_options *o)
{
    struct job_store *s = *out = spw_alloc_zero(1, sizeof *s);
    if (!s)
        return cli_fail(CLI_FAILED, "%s: out of memory", o->output);
    for (int i = 0; i < N_LOGS; i++) {
        s->logs[i].fd = -1;
        s->in_order[i] = &s->logs[i];
    }
    s->answers = json_object();
    int code = open_logs(s, o);
    if (!code)
        code = s->answers ? read_earlier(s, o) : out_of_memory(s);
    if (!code) {
        json_decref(s->identity);
        s->identity = json_deep_copy(o->identity);
        s->started = s->started ? s->started : time(NULL);
        spw_free(s->input);
        char *input = o->input ? realpath(o->input, NULL) : NULL;
        s->input = input ? spw_strdup(input) : NULL;
        free(input);
        code = s->identity ? 0 : out_of_memory(s);
    }
    for (size_t i = 0; i < s->table.n_places && o->retry_failed; i++)
        if (s->table.entries[i].ended == JOB_HAS_ERROR)
            forget_error(s, &s->table.entries[i]);
    if (code) {
        job_store_close(s);
        *out = NULL;
    }
    return code;
}

int job_store_close(struct job_store *s)
{
    if (!s)
        return 0;
    int rc = s->syncs ? job_syncer_end(&s->syncer) : 0;
    int code = rc ? cli_fail(CLI_FAILED, "%s: %s", s->logs[OUTPUT].path, strerror(-rc)) : 0;
    for (int i = 0; i < N_LOGS; i++)
        job_log_close(&s->logs[i]);
    spw_free(s->input);
    job_table_free(&s->table);
    json_decref(s->answers);
    json_decref(s->identity);
    spw_free(s);
    return code;
}

int job_store_look(struct job_store **out, const char *output)
{
    struct job_store *s = *out = spw_alloc_zero(1, sizeof *s);
    char state[4096];
    if (!s)
        return cli_fail(CLI_FAILED, "%s: out of memory", output);
    for (int i = 0; i < N_LOGS; i++)
        s->logs[i].fd = -1;
    snprintf(state, sizeof state, "%.4000s.state", output);
    s->answers = json_object();
    s->logs[OUTPUT].path = spw_strdup(output);
    int code = s->answers && s->logs[OUTPUT].path ? read_lines(s, state, take_state)
                                                  : cli_fail(CLI_FAILED, "out of memory");
    if (!code)
        code = read_lines(s, output, take_answer);
    if (!code && s->logs[ERRORS].path)
        code = read_lines(s, s->logs[ERRORS].path, take_error);
    if (!code && !s->identity)
        code = cli_fail(CLI_REFUSED, "%s: found no job: %s is empty", output, state);
    if (code) {
        job_store_close(s);
        *out = NULL;
    }
    return code;
}

const char *job_store_errors_path(const struct job_store *s)
{
    return s->logs[ERRORS].path;
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

static int begin_state(struct job_store *s, FILE *file)
{
    char key[KEY_BYTES];
    json_t *answers;
    const char *name;
    const struct cli_field fields[] = {
        {"spillway_job", CLI_JSON(1)},
        {"started", CLI_JSON((int64_t)s->started)},
        {"errors", CLI_JSON((const char *)s->logs[ERRORS].path)},
        {"input", CLI_JSON((const char *)s->input)},
        {"identity", json_incref(s->identity)},
    };
    json_t *first = CLI_OBJECT(fields);
    int rc = first ? json_dumpf(first, file, JSON_COMPACT | JSON_PRESERVE_ORDER) : -1;
    json_decref(first);
    for (size_t i = 0; i < s->table.n_places; i++) {
        const struct job_entry *e = &s->table.entries[i];
        if (e->has_digest && e->ended != JOB_NOT_ENDED)
            fprintf(file, "\n{\"item\":\"%s\",\"digest\":\"%016" PRIx64 "\"}",
                    key_text(key, e->key), e->digest);
    }
    json_object_foreach(s->answers, name, answers)
    {
        fputc('\n', file);
        rc |= json_dumpf(answers, file, JSON_COMPACT | JSON_PRESERVE_ORDER);
    }
    fputc('\n', file);
    return rc ? cli_fail(CLI_FAILED, "%s: out of memory", s->logs[STATE].path) : 0;
}

/* Lines of errors whose items have not become new. */
static int begin_errors(struct job_store *s, FILE *file)
{
    struct job_lines lines;
    struct job_line line;
    int rc = job_lines_open(&lines, s->logs[ERRORS].path);
    while (!rc && (rc = job_lines_next(&lines, &line)) == 1) {
        struct job_key key;
        const struct job_entry *e =
            key_of_line(&line, &key) ? job_table_find(&s->table, key) : NULL;
        if (e && e->ended == JOB_HAS_ERROR)
            fprintf(file, "%s\n", line.text);
        rc = 0;
    }
    job_lines_close(&lines);
    return rc ? cli_fail(CLI_FAILED, "%s: %s", s->logs[ERRORS].path, strerror(-rc)) : 0;
}

/* Replaces a file as a whole. The lock is on OUTPUT, which is never replaced. */
static int write_anew(struct job_store *s, struct job_log *l,
                      int (*write)(struct job_store *s, FILE *file))
{
    struct cli_output *file;
    char path[4096];
    snprintf(path, sizeof path, "%s", l->path);
    int code = cli_output_open(&file, path);
    if (code)
        return code;
    code = write(s, cli_output_file(file));
    if (code) {
        cli_output_cancel(file);
        return code;
    }
    code = cli_output_commit(file);
    job_log_close(l);
    return code ? code : open_log(l, path);
}

int job_store_begin(struct job_store *s)
{
    int code = write_anew(s, &s->logs[STATE], begin_state);
    if (!code && s->forgets)
        code = write_anew(s, &s->logs[ERRORS], begin_errors);
    s->forgets = false;
    if (code)
        return code;
    int rc = job_syncer_start(&s->syncer, s->in_order, N_LOGS);
    s->syncs = !rc;
    return rc ? cli_fail(CLI_FAILED, "a thread was refused: %s", strerror(-rc)) : 0;
}

/* ---- items ---- */

void job_store_begin_pass(struct job_store *s)
{
    s->pass++;
}

static int refuse_changed(const struct job_store *s, const struct job_item *x)
{
    char id[128];
    return cli_fail(CLI_REFUSED,
                    "%s: has the answer of item %s, but line %" PRIu64
                    " of the input, or the file that it names, has changed since; give the input "
                    "that the job was begun with, or another output",
                    s->logs[OUTPUT].path, value_text(id, x->id), x->number);
}

int job_store_meet(struct job_store *s, const struct job_item *x, enum job_standing *out)
{
    struct job_entry *e = job_table_add(&s->table, key_of(x));
    if (e && e->pass == s->pass) {
        e = job_table_add(&s->table, key_of_number(x->number));
        *out = JOB_DUPLICATE;
        if (!e)
            return out_of_memory(s);
        if (e->ended == JOB_HAS_ERROR)
            *out = JOB_FAILED;
        e->pass = s->pass;
        return 0;
    }
    if (!e)
        return out_of_memory(s);
    bool has_changed = e->has_digest && e->digest != x->digest;
    if (e->ended == JOB_HAS_ANSWER && has_changed)
        return refuse_changed(s, x);
    if (e->ended == JOB_HAS_ERROR && has_changed && !s->syncs)
        forget_error(s, e);
    e->pass = s->pass;
    e->digest = x->digest;
    e->has_digest = true;
    *out = e->ended == JOB_HAS_ANSWER ? JOB_DONE : e->ended == JOB_HAS_ERROR ? JOB_FAILED : JOB_NEW;
    return 0;
}

/* Takes the reference of `line`. */
static int append(struct job_store *s, int log, json_t *line)
{
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(line);
    if (!text)
        return out_of_memory(s);
    int rc = job_log_append(&s->logs[log], text, strlen(text));
    free(text);
    int failed = job_syncer_note(&s->syncer);
    rc = rc ? rc : failed;
    return rc ? cli_fail(CLI_FAILED,
                         "%s: %s; what was written before is complete, and the same command "
                         "continues there",
                         s->logs[log].path, strerror(-rc))
              : 0;
}

static json_t *state_line(struct job_key key, uint64_t digest)
{
    char name[KEY_BYTES], hex[17];
    snprintf(hex, sizeof hex, "%016" PRIx64, digest);
    const struct cli_field fields[] = {
        {"item", CLI_JSON(key_text(name, key))},
        {"digest", CLI_JSON((const char *)hex)},
    };
    return CLI_OBJECT(fields);
}

static int commit(struct job_store *s, struct job_key key, uint64_t digest, json_t *line,
                  enum job_ended ended)
{
    char name[KEY_BYTES];
    struct job_entry *e = job_table_add(&s->table, key);
    int code = e ? append(s, STATE, state_line(key, digest)) : out_of_memory(s);
    if (code) {
        json_decref(line);
        return code;
    }
    code = append(s, ended == JOB_HAS_ANSWER ? OUTPUT : ERRORS, line);
    if (code)
        return code;
    json_object_del(s->answers, key_text(name, key));
    e->ended = ended;
    e->digest = digest;
    e->has_digest = true;
    ++*(ended == JOB_HAS_ANSWER ? &s->totals.n_done : &s->totals.n_failed);
    return 0;
}

int job_store_commit(struct job_store *s, const struct job_item *x, json_t *line)
{
    return commit(s, key_of(x), x->digest, line, JOB_HAS_ANSWER);
}

int job_store_commit_error(struct job_store *s, const struct job_item *x, json_t *line)
{
    return commit(s, key_of(x), x->digest, line, JOB_HAS_ERROR);
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

int job_store_keep_answers(struct job_store *s, const struct job_item *x, const char *machine)
{
    char name[KEY_BYTES];
    json_t *line = state_line(key_of(x), x->digest), *answers = json_array();
    for (size_t i = 0; i < x->n_prompts * x->n_choices; i++)
        cli_json_append(&answers, answer_json(&x->choices[i].result));
    cli_json_add(&line, "machine", CLI_JSON(machine));
    cli_json_add(&line, "answers", answers);
    if (line)
        json_object_set(s->answers, key_text(name, key_of(x)), line);
    return append(s, STATE, line);
}

int job_store_answer(struct job_store *s, const struct job_item *x, size_t choice,
                     const char *machine, struct job_kept *out)
{
    char name[KEY_BYTES];
    const json_t *kept = json_object_get(s->answers, key_text(name, key_of(x)));
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
        return out_of_memory(s);
    for (size_t i = 0; i < out->n_tokens; i++)
        out->tokens[i] = (int32_t)json_integer_value(json_array_get(tokens, i));
    out->hash = strtoull(hash, NULL, 16);
    return 0;
}
