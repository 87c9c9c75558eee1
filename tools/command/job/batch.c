/* `spillway batch`: the lines of a JSONL file, answered once each. `generate --prompts` is the same
 * with the answers on stdout, and without a store: nothing is kept for another run. */
#include "tools/command/job/job.h"
#include "tools/command/job/store/lines.h"
#include "tools/command/request/record.h"
#include "tools/command/request/reader.h"
#include "tools/command/job/run.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A line that may be the longest item. */
struct long_line {
    uint64_t offset, number, bytes;
};
enum { N_LONG_LINES = 8 };

struct batch {
    const struct cli_options *o;
    struct cli_model model;
    struct request_reader reader;
    char folder[4096]; /* of the input */
    struct job_lines lines;
    struct job_shard shard;
    struct job_store *store;  /* NULL: lines go to stdout */
    struct job_totals totals; /* without a store */
    struct request_names names;
    /* What the first pass over a file has found. */
    struct long_line longest[N_LONG_LINES]; /* the longest first */
    uint64_t n_new, n_seen, new_bytes, n_sessions;
    /* What was handed out: for estimates of what is left. */
    uint64_t given_bytes;
};

/* ---- lines ---- */

static int fail_input(const struct batch *b, int rc)
{
    return cli_fail(CLI_FAILED, "%s: %s", b->o->input, strerror(-rc));
}

/* Reads the next line that belongs to this process. 1: *x is an item; *why says if it cannot be
 * answered (message). 0: no more lines. */
static int read_item(struct batch *b, struct request *x, struct request_refusal *why,
                     struct job_line *line)
{
    int rc;
    while ((rc = job_lines_next(&b->lines, line)) == 1) {
        if (job_line_is_blank(line))
            continue;
        why->message[0] = '\0';
        int parsed = request_parse(x, &b->reader, line->text, line->bytes, line->number, why);
        if (line->is_too_long)
            request_refuse(why, 0, "invalid_line", NULL,
                           "found a line of more than %" PRIu64
                           " MiB; put the text into a file, and give its name as \"file\"",
                           JOB_MAX_LINE_BYTES >> 20);
        rc = parsed == -ENOMEM && !x->id ? parsed : job_shard_has(&b->shard, x);
        if (rc > 0)
            return 1;
        request_free(x);
        if (rc)
            return rc;
    }
    return rc;
}

/* ---- what has ended ---- */

static int meet(struct batch *b, const struct request *x, enum job_standing *out)
{
    *out = JOB_NEW;
    return b->store ? job_store_meet(b->store, x, out) : 0;
}

static void begin_pass(struct batch *b)
{
    if (b->store)
        job_store_begin_pass(b->store);
}

static struct job_totals totals_of(const struct batch *b)
{
    return b->store ? job_store_totals(b->store) : b->totals;
}

/* Takes the reference of `line`. */
static int print(json_t *line)
{
    char *text = line ? spw_json_dump(line, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(line);
    if (!text)
        return cli_fail(CLI_FAILED, "out of memory");
    size_t bytes = strlen(text);
    text[bytes] = '\n'; /* in the place of the NUL */
    cli_progress_clear();
    int rc = cli_write(text, bytes + 1);
    spw_free(text);
    if (rc && rc != -EPIPE)
        cli_fail(0, "stdout: %s", strerror(-rc));
    return rc ? CLI_FAILED : 0;
}

static int refused(void *context, struct request *x, const struct request_refusal *why)
{
    struct batch *b = context;
    json_t *line = request_record_error(x, why);
    if (b->store)
        return job_store_commit_error(b->store, x, line);
    b->totals.n_failed++;
    cli_fail(0, "%s: line %" PRIu64 ": %s", b->o->input, x->number, why->message);
    return print(line);
}

static int answered(void *context, struct request *x)
{
    struct batch *b = context;
    json_t *line = request_record(x, &b->names);
    if (b->store)
        return job_store_commit(b->store, x, line);
    b->totals.n_done += x->n_ended == x->n_prompts * x->n_choices;
    return print(line);
}

/* ---- the first pass ---- */

static void note_length(struct batch *b, const struct job_line *line, const struct request *x)
{
    struct long_line now = {line->offset, line->number, line->bytes + x->file_bytes};
    for (size_t i = 0; i < N_LONG_LINES; i++)
        if (now.bytes > b->longest[i].bytes) {
            struct long_line before = b->longest[i];
            b->longest[i] = now;
            now = before;
        }
}

/* Compares the whole input with what is done, so that a changed input is refused before any work.
 */
static int compare_input(struct batch *b)
{
    struct job_line line;
    struct request x;
    struct request_refusal why;
    int rc = 0, code = 0;
    begin_pass(b);
    while (!code && !cli_interrupted() && (rc = read_item(b, &x, &why, &line)) == 1) {
        enum job_standing standing;
        code = meet(b, &x, &standing);
        b->n_seen++;
        if (!code && standing == JOB_NEW) {
            b->n_new++;
            b->n_sessions += request_sessions(&x, &b->reader);
            b->new_bytes += line.bytes + x.file_bytes;
            note_length(b, &line, &x);
        }
        request_free(&x);
    }
    if (code || rc < 0)
        return code ? code : fail_input(b, rc);
    return cli_interrupted() ? cli_fail_error(-ECANCELED, NULL, false) : 0;
}

/* The tokens of the longest items, as far as the length of their lines shows them, and of an item
 * of average length, which has as many tokens a byte. */
static int measure_lengths(struct batch *b, struct job_run_options *run)
{
    uint64_t *tokens = &run->longest;
    *tokens = 0;
    for (size_t i = 0; i < N_LONG_LINES && b->longest[i].bytes; i++) {
        struct job_line line;
        struct request x;
        struct request_refusal why;
        int rc = job_lines_seek(&b->lines, b->longest[i].offset, b->longest[i].number);
        if (!rc)
            rc = read_item(b, &x, &why, &line);
        if (rc != 1)
            return rc < 0 ? fail_input(b, rc) : 0;
        if (!request_encode(&x, &b->reader, &why))
            *tokens = spw_max_u64(*tokens, request_tokens(&x));
        request_free(&x);
    }
    if (b->model.config.n_mels) /* windows have one length */
        run->typical = *tokens;
    else if (b->n_new)
        run->typical = (uint64_t)((double)*tokens * (double)b->new_bytes / (double)b->n_new /
                                  (double)b->longest[0].bytes);
    return 0;
}

/* ---- the source of items ---- */

static int refuse_duplicate(struct batch *b, struct request *x)
{
    struct request_refusal why;
    char *id = spw_json_dump(x->id, JSON_ENCODE_ANY);
    request_refuse(&why, 0, "duplicate_custom_id", x->form == REQUEST_SHORT ? "id" : "custom_id",
                   "found the id %.200s a second time; every line needs its own", id ? id : "");
    spw_free(id);
    json_decref(x->id); /* the line of errors has the number of the line */
    x->id = NULL;
    return refused(b, x, &why);
}

/* Answers nothing that has ended already. *is_item: it has to be answered now. */
static int sort_item(struct batch *b, struct request *x, struct request_refusal *why, bool *is_item)
{
    enum job_standing standing;
    *is_item = false;
    int code = meet(b, x, &standing);
    if (code || standing == JOB_DONE || standing == JOB_FAILED)
        return code;
    if (standing == JOB_DUPLICATE)
        return refuse_duplicate(b, x);
    b->given_bytes += x->bytes + x->file_bytes;
    if (why->message[0] || request_encode(x, &b->reader, why))
        return cli_interrupted() ? 0 : refused(b, x, why); /* maybe only for the interrupt */
    *is_item = true;
    return 0;
}

static int next(void *context, int wait_ms, struct request **out, bool *is_late)
{
    struct batch *b = context;
    struct job_line line;
    struct request_refusal why;
    int rc = 1, code = 0;
    bool is_item = false;
    struct request *x = *out = spw_alloc_zero(1, sizeof *x);
    if (!x)
        return cli_fail(CLI_FAILED, "out of memory");
    b->lines.wait_ms = wait_ms;
    while (!code && !is_item && !cli_interrupted() && (rc = read_item(b, x, &why, &line)) == 1) {
        code = sort_item(b, x, &why, &is_item);
        if (!is_item)
            request_free(x);
    }
    if (is_item)
        return 0;
    spw_free(x);
    *out = NULL;
    *is_late = rc == -EAGAIN;
    return code ? code : rc < 0 && !*is_late ? fail_input(b, rc) : 0;
}

/* Items that were not read yet have as much work a byte as those that were. */
static double count(void *context, struct job_counts *out)
{
    const struct batch *b = context;
    const struct job_totals totals = totals_of(b);
    out->n_total = b->n_seen;
    out->n_done = totals.n_done;
    out->n_failed = totals.n_failed;
    return b->given_bytes
               ? (double)spw_sub_u64(b->new_bytes, b->given_bytes) / (double)b->given_bytes
               : 0;
}

/* ---- the command ---- */

static int open_input(struct batch *b)
{
    int rc = job_lines_open(&b->lines, b->o->input);
    if (rc)
        return cli_fail(CLI_REFUSED, "%s: %s", b->o->input, strerror(-rc));
    job_lines_folder(b->folder, b->o->input);
    b->reader = (struct request_reader){.o = b->o, .model = &b->model, .folder = b->folder};
    struct spw_error err = {0};
    rc = b->o->chat_template ? request_reader_open_template(&b->reader, &err) : 0;
    return rc ? cli_fail_error(rc, &err, true) : 0;
}

static int open_store(struct batch *b)
{
    json_t *identity;
    int code = job_identity(&identity, b->o, &b->model);
    if (code)
        return code;
    const struct job_store_options options = {.output = b->o->output,
                                              .errors = b->o->errors,
                                              .identity = identity,
                                              .report = b->o->report,
                                              .retry_failed = b->o->retry_failed};
    code = job_store_open(&b->store, &options);
    json_decref(identity);
    return code;
}

/* Reads a file twice; a pipe only once. */
static int look_ahead(struct batch *b, struct job_run_options *run)
{
    int rc = job_lines_seek(&b->lines, 0, 1);
    if (rc)
        return 0;
    int code = compare_input(b);
    if (!code)
        code = measure_lengths(b, run);
    rc = job_lines_seek(&b->lines, 0, 1);
    run->n_sessions = b->n_sessions;
    if (b->store)
        job_store_expect(b->store, b->n_seen);
    return code ? code : rc ? fail_input(b, rc) : 0;
}

static void say_totals(const struct batch *b)
{
    const struct job_totals t = totals_of(b);
    const char *errors = b->store && t.n_failed ? job_store_errors_path(b->store) : NULL;
    if (b->store || t.n_failed)
        cli_note("%" PRIu64 " answered, %" PRIu64 " without an answer%s%s%s", t.n_done, t.n_failed,
                 errors ? ", see " : "", errors ? errors : "",
                 b->store && cli_interrupted() ? "; the same command continues" : "");
}

static int answer_lines(struct batch *b)
{
    struct job_run_options run = {.o = b->o, .model = &b->model, .store = b->store};
    const struct job_source source = {
        .next = next, .answered = answered, .refused = refused, .count = count, .context = b};
    b->reader.started = b->names.created = b->store ? job_store_started(b->store) : time(NULL);
    b->names.model = b->o->operand;
    b->names.tokenizer = b->model.tokenizer;
    int code = look_ahead(b, &run);
    if (!code && b->store)
        code = job_store_begin(b->store);
    if (code)
        return code;
    begin_pass(b);
    code = job_run(&run, &source);
    say_totals(b);
    return !code && totals_of(b).n_failed ? CLI_FAILED : code;
}

/* Answers the lines of o->input, into o->output or to stdout. */
static int run_batch(struct cli_options *o)
{
    struct batch b = {.o = o, .lines.fd = -1};
    int code = job_model_open(&b.model, b.o->operand);
    if (!code)
        code = cli_take_search(o, &b.model);
    if (!code)
        code = job_shard_check(o, &b.shard);
    if (!code)
        code = cli_check_answers(o, &b.model);
    if (!code)
        code = open_input(&b);
    cli_progress_start((enum cli_progress_mode)o->progress, "items", false);
    if (!code && o->output)
        code = open_store(&b);
    if (!code)
        code = answer_lines(&b);
    code = job_store_close(b.store, code);
    request_reader_close(&b.reader);
    if (b.lines.fd >= 0)
        job_lines_close(&b.lines);
    cli_model_close(&b.model);
    return code;
}

int cli_batch(const struct cli_options *given)
{
    struct cli_options o = *given;
    if (o.status)
        return job_status(&o);
    if (o.paths.n > 0)
        return cli_fail(CLI_REFUSED, "found '%s' after '%s', expected one MODEL", o.paths.items[0],
                        o.operand);
    if (!o.input || !o.output)
        return cli_fail(CLI_REFUSED,
                        "found no --%s, expected --input FILE.jsonl and --output FILE.jsonl",
                        o.input ? "output" : "input");
    job_set_defaults(&o);
    cli_catch_termination();
    return run_batch(&o);
}

int cli_answer_prompts(const struct cli_options *given)
{
    struct cli_options o = *given;
    o.input = o.prompts;
    return run_batch(&o);
}
