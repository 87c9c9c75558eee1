/* The records of the state: see store_parts.h. */
#include "tools/command/job/store/store_parts.h"

#include "base/grow.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- records ---- */

static const char kinds[JOB_N_KINDS][7] = {
    [JOB_HEAD] = "job   ", [JOB_ANSWER] = "answer", [JOB_ERROR] = "error ",
    [JOB_PART] = "part  ", [JOB_KEPT] = "kept  ",   [JOB_RETRY] = "retry ",
};
enum { SUM_BYTES = 17 }; /* with the blank behind it */

bool job_record_parse(struct job_record *out, const char *line, size_t bytes)
{
    char sum[SUM_BYTES + 1], kind[7];
    if (bytes < JOB_RECORD_HEAD)
        return false;
    snprintf(sum, sizeof sum, "%016" PRIx64 " ",
             (uint64_t)XXH3_64bits(line + SUM_BYTES, bytes - SUM_BYTES));
    if (memcmp(line, sum, SUM_BYTES) != 0)
        return false;
    *out = (struct job_record){.text = line + JOB_RECORD_HEAD, .bytes = bytes - JOB_RECORD_HEAD};
    if (sscanf(line + SUM_BYTES, "%6[a-z ] %16" SCNx64 "%16" SCNx64 " %16" SCNx64, kind,
               &out->key.high, &out->key.low, &out->digest) != 4)
        return false;
    while (out->kind < JOB_N_KINDS && strcmp(kinds[out->kind], kind) != 0)
        out->kind++;
    return out->kind < JOB_N_KINDS;
}

bool job_record_begins(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes && i < SUM_BYTES + 6; i++)
        if (i < SUM_BYTES - 1 ? !strchr("0123456789abcdef", line[i]) || !line[i]
                              : line[i] != (i < SUM_BYTES ? ' ' : kinds[JOB_HEAD][i - SUM_BYTES]))
            return false;
    return true;
}

char *job_record_line(const struct job_record *r, size_t *bytes)
{
    char sum[SUM_BYTES + 1];
    *bytes = JOB_RECORD_HEAD + r->bytes + 1;
    char *line = spw_alloc(*bytes);
    if (!line)
        return NULL;
    snprintf(line + SUM_BYTES, *bytes - SUM_BYTES, "%s %016" PRIx64 "%016" PRIx64 " %016" PRIx64,
             kinds[r->kind], r->key.high, r->key.low, r->digest);
    line[JOB_RECORD_HEAD - 1] = ' ';
    memcpy(line + JOB_RECORD_HEAD, r->text, r->bytes);
    line[*bytes - 1] = '\n';
    snprintf(sum, sizeof sum, "%016" PRIx64 " ",
             (uint64_t)XXH3_64bits(line + SUM_BYTES, *bytes - SUM_BYTES - 1));
    memcpy(line, sum, SUM_BYTES);
    return line;
}

/* ---- keys ---- */

static struct job_key key_of_text(const char *text)
{
    XXH128_hash_t h = XXH3_128bits(text, strlen(text));
    return (struct job_key){h.low64 | (!h.low64 && !h.high64), h.high64};
}

struct job_key job_key_of_number(uint64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "#%" PRIu64, number);
    return key_of_text(text);
}

int job_key_of(const struct request *x, struct job_key *out)
{
    char *text =
        x->id ? spw_json_dump(x->id, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (x->id && !text)
        return cli_fail(CLI_FAILED, "line %" PRIu64 ": out of memory", x->number);
    *out = text ? key_of_text(text) : job_key_of_number(x->number);
    spw_free(text);
    return 0;
}

/* ---- reading ---- */

int job_store_read(struct job_store *s, uint64_t offset, uint64_t number,
                   int (*take)(struct job_store *s, const struct job_line *line,
                               const struct job_record *r, void *context),
                   void *context)
{
    struct job_lines lines;
    struct job_line line;
    int code = 0, rc = job_lines_open(&lines, s->state.path);
    lines.most = SIZE_MAX;
    if (!rc)
        rc = job_lines_seek(&lines, offset, number);
    while (!rc && !code && (rc = job_lines_next(&lines, &line)) == 1) {
        struct job_record r;
        const bool is_whole = line.has_newline && job_record_parse(&r, line.text, line.bytes);
        rc = 0;
        s->state.end = line.offset + (line.has_newline ? line.bytes + 1 : 0);
        if (!job_line_is_blank(&line)) /* else it was damaged */
            code = take(s, &line, is_whole ? &r : NULL, context);
    }
    job_lines_close(&lines);
    return code || !rc ? code : job_store_fail(s->state.path, rc);
}

/* Takes the reference. */
static int take_head(struct job_store *s, json_t *head)
{
    const int64_t version = json_integer_value(json_object_get(head, "spillway_job"));
    json_decref(s->head);
    s->head = head;
    if (version != JOB_STATE_VERSION)
        return cli_fail(CLI_REFUSED,
                        "%s: found a state of version %" PRId64 ", expected %d; use the version of "
                        "spillway that wrote it, or give another output",
                        s->state.path, version, JOB_STATE_VERSION);
    json_decref(s->identity);
    s->identity = json_incref(json_object_get(head, "identity"));
    s->started = (time_t)json_integer_value(json_object_get(head, "started"));
    s->is_counted = json_object_get(head, "items");
    s->n_expected = (uint64_t)json_integer_value(json_object_get(head, "items"));
    const json_t *errors = json_object_get(head, "errors");
    spw_free(s->errors);
    s->errors = json_is_string(errors) ? spw_strdup(json_string_value(errors)) : NULL;
    return s->errors || !json_is_string(errors) ? 0 : job_store_no_memory(s);
}

void job_under_way_free(struct job_entry *e)
{
    struct job_under_way *u = e->under_way;
    for (size_t i = 0; u && i < u->n; i++)
        spw_free(u->choices[i].tokens);
    if (u) {
        spw_free(u->machine);
        spw_free(u->choices);
    }
    spw_free(u);
    e->under_way = NULL;
}

void job_store_end(struct job_store *s, struct job_entry *e, enum job_ended ended)
{
    s->totals.n_done -= e->ended == JOB_HAS_ANSWER;
    s->totals.n_done += ended == JOB_HAS_ANSWER;
    s->totals.n_failed -= e->ended == JOB_HAS_ERROR;
    s->totals.n_failed += ended == JOB_HAS_ERROR;
    e->ended = ended;
    job_under_way_free(e);
}

/* What was kept of another digest or on another machine does not count. NULL: out of memory. */
static struct job_under_way *under_way_of(struct job_entry *e, uint64_t digest, const char *machine)
{
    struct job_under_way *u = e->under_way;
    if (u && u->digest == digest && strcmp(u->machine, machine) == 0)
        return u;
    job_under_way_free(e);
    u = e->under_way = spw_alloc_zero(1, sizeof *u);
    if (!u)
        return NULL;
    u->digest = digest;
    u->machine = spw_strdup(machine);
    return u->machine ? u : NULL;
}

/* The tokens from `from` on. A gap, of a record that is lost, ends them there. */
static bool add_kept(struct job_kept *k, size_t from, const json_t *tokens, uint64_t hash)
{
    const size_t n = json_array_size(tokens);
    if (from > k->n_tokens)
        return true;
    if (spw_resize(&k->tokens, from + n, sizeof *k->tokens))
        return false;
    for (size_t i = 0; i < n; i++)
        k->tokens[from + i] = (int32_t)json_integer_value(json_array_get(tokens, i));
    k->n_tokens = from + n;
    k->hash = hash;
    return true;
}

static bool take_kept(struct job_entry *e, const struct job_record *r, const json_t *x)
{
    const char *machine = json_string_value(json_object_get(x, "machine"));
    const char *hash = json_string_value(json_object_get(x, "logits_hash"));
    const size_t choice = (size_t)json_integer_value(json_object_get(x, "choice"));
    struct job_under_way *u = under_way_of(e, r->digest, machine ? machine : "");
    if (u && choice >= u->n) {
        if (spw_resize(&u->choices, choice + 1, sizeof *u->choices))
            return false;
        memset(u->choices + u->n, 0, (choice + 1 - u->n) * sizeof *u->choices);
        u->n = choice + 1;
    }
    return u &&
           add_kept(&u->choices[choice], (size_t)json_integer_value(json_object_get(x, "from")),
                    json_object_get(x, "tokens"), hash ? strtoull(hash, NULL, 16) : 0);
}

/* A record whose text is JSON of our own. */
static int take_json(struct job_store *s, struct job_entry *e, const struct job_record *r)
{
    json_t *x;
    if (spw_json_parse(&x, r->text, r->bytes, 0, NULL))
        return job_store_no_memory(s); /* the text has its sum */
    if (r->kind == JOB_HEAD)
        return take_head(s, x);
    const bool is_kept = take_kept(e, r, x);
    json_decref(x);
    return is_kept ? 0 : job_store_no_memory(s);
}

/* The state is somebody else's, or of an older version. */
static int refuse_first(const struct job_store *s, const struct job_line *line)
{
    static const char older[] = "{\"spillway_job\":";
    if (strncmp(line->text, older, sizeof older - 1) == 0)
        return cli_fail(CLI_REFUSED,
                        "%s: an older version of spillway has begun this job (its state has the "
                        "version %.1s, this program writes %d); continue with that version, or "
                        "give another output",
                        s->state.path, line->text + sizeof older - 1, JOB_STATE_VERSION);
    return cli_fail(CLI_REFUSED, "%s: found a file that no job has written; give another output",
                    s->state.path);
}

static int take_damaged(struct job_store *s, const struct job_line *line)
{
    s->is_damaged = true;
    if (s->state.fd < 0 || s->mends)
        return cli_fail(0, "%s: line %" PRIu64 " is damaged; what it had is lost", s->state.path,
                        line->number);
    return cli_fail(CLI_REFUSED,
                    "%s: line %" PRIu64 " is damaged; with --retry-failed what it had is computed "
                    "again",
                    s->state.path, line->number);
}

static int take(struct job_store *s, const struct job_line *line, const struct job_record *r,
                void *context)
{
    static const enum job_ended ends[JOB_N_KINDS] = {
        [JOB_ANSWER] = JOB_HAS_ANSWER, [JOB_ERROR] = JOB_HAS_ERROR, [JOB_PART] = JOB_IS_PART};
    (void)context;
    if (line->number == 1 && (line->has_newline ? !r || r->kind != JOB_HEAD
                                                : !job_record_begins(line->text, line->bytes)))
        return refuse_first(s, line);
    if (!line->has_newline) /* another process is just writing it, or a process died within it */
        return 0;
    if (!r)
        return take_damaged(s, line);
    struct job_entry *e = r->kind == JOB_HEAD ? NULL : job_table_add(&s->table, r->key);
    if (r->kind != JOB_HEAD && !e)
        return job_store_no_memory(s);
    if (r->kind == JOB_HEAD || r->kind == JOB_KEPT)
        return take_json(s, e, r);
    job_store_end(s, e, ends[r->kind]);
    e->digest = r->digest;
    e->at = line->offset;
    e->bytes = line->bytes;
    return 0;
}

int job_store_load(struct job_store *s)
{
    return job_store_read(s, 0, 1, take, NULL);
}

/* An option's value as a user would write it. */
const char *job_value_text(char buffer[128], const json_t *value)
{
    char *text = value ? spw_json_dump(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    snprintf(buffer, 128, "%s", text ? text : "nothing");
    spw_free(text);
    return buffer;
}

int job_store_no_memory(const struct job_store *s)
{
    return cli_fail(CLI_FAILED, "%s: out of memory", s->state.path);
}

int job_store_fail(const char *path, int rc)
{
    return cli_fail(CLI_FAILED, "%s: %s", path, strerror(-rc));
}
