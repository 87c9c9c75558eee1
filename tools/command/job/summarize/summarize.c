/* `spillway summarize`: a summary of each document. The items of the job are requests: a whole
 * document, a part of one, a merge of summaries. The summary of each is kept in OUTPUT.parts; a
 * document is done when its line is in OUTPUT. */
#include "tools/command/job/job.h"
#include "tools/command/job/summarize/summarize_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- documents ---- */

/* The document as an item, for the store. request_free frees it. */
static int item_of(const struct job_document *d, uint64_t digest, struct request *x)
{
    *x = (struct request){.form = REQUEST_SHORT, .digest = digest, .id = json_string(d->id)};
    return x->id ? 0 : cli_fail(CLI_FAILED, "out of memory");
}

/* A file that cannot be read has the digest 0 here, and an error line later. */
static struct cli_digest digest_of(const struct job_document *d)
{
    struct cli_digest digest;
    return cli_digest_file(d->path, &digest, NULL) ? (struct cli_digest){0} : digest;
}

static int meet(struct job_summarize *s, const struct job_document *d, uint64_t digest,
                enum job_standing *out, bool *is_ours)
{
    struct request x;
    int code = item_of(d, digest, &x);
    *is_ours = !code && job_shard_has(&s->shard, &x);
    if (*is_ours)
        code = job_store_meet(s->store, &x, out);
    request_free(&x);
    return code;
}

/* Compares all documents with what is done, so that a changed one is refused before any work. */
static int compare_documents(struct job_summarize *s, uint64_t *longest)
{
    enum { BYTES_OF_TOKEN = 4 };
    int code = 0;
    uint64_t most_bytes = 0;
    job_store_begin_pass(s->store);
    for (size_t i = 0; i < s->documents.n && !code && !cli_interrupted(); i++) {
        struct job_document *d = &s->documents.items[i];
        enum job_standing standing;
        bool is_ours;
        const struct cli_digest digest = digest_of(d);
        code = meet(s, d, digest.hash, &standing, &is_ours);
        if (code || !is_ours)
            continue;
        s->n_total++;
        s->n_new += standing == JOB_NEW;
        if (standing == JOB_NEW)
            s->new_bytes += digest.bytes;
        if (standing == JOB_NEW && d->kind == JOB_DOCUMENT_TEXT)
            most_bytes = spw_max_u64(most_bytes, digest.bytes);
    }
    const uint64_t source = s->most_source ? s->most_source : s->limit;
    *longest = spw_min_u64(s->limit, spw_min_u64(source, most_bytes / BYTES_OF_TOKEN) + s->answer);
    return code;
}

/* The document has no summary. After an interrupt nothing is committed, because the error may say
 * no more than that: the next run begins the document again. */
static int commit_error(struct job_summarize *s, struct job_work *w,
                        const struct request_refusal *why)
{
    struct request x;
    w->has_failed = true;
    if (cli_interrupted())
        return 0;
    int code = item_of(w->document, w->digest, &x);
    if (!code)
        code = job_store_commit_error(s->store, &x, request_record_error(&x, why));
    request_free(&x);
    return code;
}

/* The text file is on the drive before the line says that the document is done. */
static int commit_document(struct job_summarize *s, struct job_work *w)
{
    struct request x;
    json_t *line = job_work_line(s, w);
    int code = line && s->o->out_dir ? job_work_write(s, w, line) : 0;
    if (!code)
        code = item_of(w->document, w->digest, &x);
    if (code) {
        json_decref(line);
        return code;
    }
    const json_t *finish = json_object_get(line, "finish");
    const bool is_cut = finish && strcmp(json_string_value(finish), "length") == 0;
    code = job_store_commit(s->store, &x, line);
    request_free(&x);
    if (!code && is_cut)
        cli_note("%s: the summary was cut off; a larger --max-new-tokens allows more",
                 w->document->id);
    return code;
}

/* Frees the documents that have ended. */
static void sweep(struct job_summarize *s)
{
    for (struct job_work **at = &s->works; *at;) {
        struct job_work *w = *at;
        if (w->n_running == 0 && (w->has_failed || job_work_has_ended(w))) {
            *at = w->next;
            job_work_free(w);
        } else {
            at = &w->next;
        }
    }
}

/* Takes the reference of `record`. */
static int record(struct job_summarize *s, struct job_work *w, size_t node, json_t *line)
{
    struct request_refusal why;
    if (!line)
        return cli_fail(CLI_FAILED, "out of memory");
    int rc = job_work_record(s, w, node, line, &why);
    if (w->has_failed)
        return 0;
    if (rc)
        return commit_error(s, w, &why);
    return job_work_has_ended(w) ? commit_document(s, w) : 0;
}

/* `bytes`: of its file. */
static int begin_document(struct job_summarize *s, const struct job_document *d, uint64_t bytes)
{
    struct request_refusal why;
    struct job_work *w = spw_alloc_zero(1, sizeof *w);
    if (!w)
        return cli_fail(CLI_FAILED, "out of memory");
    w->document = d;
    w->began = cli_now_seconds();
    int rc = job_work_begin(s, w, &why);
    s->new_bytes = spw_sub_u64(s->new_bytes, bytes) + (rc ? 0 : w->bytes);
    if (rc) {
        w->digest = digest_of(d).hash;
        int code = commit_error(s, w, &why);
        job_work_free(w);
        return code;
    }
    struct job_work **last = &s->works;
    while (*last)
        last = &(*last)->next;
    *last = w;
    return 0;
}

/* Begins the next document that has to be done. *any: there was one that is not done. */
static int next_document(struct job_summarize *s, bool *any)
{
    *any = false;
    while (s->next_document < s->documents.n && !cli_interrupted()) {
        const struct job_document *d = &s->documents.items[s->next_document++];
        enum job_standing standing;
        bool is_ours;
        const struct cli_digest digest = digest_of(d);
        int code = meet(s, d, digest.hash, &standing, &is_ours);
        if (code)
            return code;
        if (!is_ours || standing != JOB_NEW)
            continue;
        *any = true;
        return begin_document(s, d, digest.bytes);
    }
    return 0;
}

/* ---- the source of items ---- */

/* The next request that has to be computed; NULL: all of the documents that have begun are running
 * or done. Takes those that an earlier run has computed from the store. */
static int next_item(struct job_summarize *s, struct job_work *w, struct job_summary **out)
{
    struct request_refusal why;
    *out = NULL;
    while (!w->has_failed && w->n_given < w->n_nodes) {
        json_t *line;
        if (job_work_item(s, w, out, &why))
            return commit_error(s, w, &why);
        struct job_summary *x = *out;
        const struct job_node *node = &w->nodes[x->node];
        const uint64_t bytes = node->level ? 0 : node->end - node->begin;
        int code = job_store_part(s->store, &x->item, &line);
        if (!code && !line) {
            s->given_bytes += bytes;
            w->n_running++;
            return 0;
        }
        s->new_bytes = spw_sub_u64(s->new_bytes, bytes);
        if (!code)
            code = record(s, w, x->node, line);
        request_free(&x->item);
        spw_free(x);
        *out = NULL;
        if (code)
            return code;
    }
    return 0;
}

/* Files never make it wait. */
static int next(void *context, int wait_ms, struct request **out, bool *is_late)
{
    (void)wait_ms;
    (void)is_late;
    struct job_summarize *s = context;
    struct job_summary *found = NULL;
    bool more = true;
    int code = 0;
    while (!code && !found && more && !cli_interrupted()) {
        for (struct job_work *w = s->works; w && !found && !code; w = w->next)
            code = next_item(s, w, &found);
        sweep(s);
        if (!found && !code)
            code = next_document(s, &more);
    }
    *out = found ? &found->item : NULL;
    return code;
}

static int refused(void *context, struct request *item, const struct request_refusal *why)
{
    struct job_summarize *s = context;
    struct job_work *w = ((struct job_summary *)item)->work;
    w->n_running--;
    int code = w->has_failed ? 0 : commit_error(s, w, why);
    sweep(s);
    return code;
}

/* Reasoning is no summary. An answer of reasoning alone ends the document with an error. */
static int answered(void *context, struct request *item)
{
    struct job_summarize *s = context;
    struct job_summary *x = (struct job_summary *)item;
    const struct request_choice *c = &item->choices[0];
    if (c->reasoning.n && !c->text.n) {
        struct request_refusal why;
        request_refuse(
            &why, 500, NULL, "max_new_tokens",
            "found reasoning in all %zu tokens of an answer, expected a summary after it: "
            "a larger --max-new-tokens has room for both",
            c->result.n_tokens);
        return refused(context, item, &why);
    }
    json_t *line = job_summary_record(s, x);
    x->work->n_running--;
    int code = job_store_commit_part(s->store, item, json_incref(line));
    if (code)
        json_decref(line);
    else
        code = record(s, x->work, x->node, line);
    sweep(s);
    return code;
}

/* The merges that are left count as little beside the parts. */
static double count(void *context, struct job_counts *out)
{
    const struct job_summarize *s = context;
    const struct job_totals totals = job_store_totals(s->store);
    out->n_total = s->n_total;
    out->n_done = totals.n_done;
    out->n_failed = totals.n_failed;
    for (const struct job_work *w = s->works; w; w = w->next)
        out->n_running += !w->has_failed;
    return s->given_bytes
               ? (double)spw_sub_u64(s->new_bytes, s->given_bytes) / (double)s->given_bytes
               : 0;
}

/* ---- the command ---- */

static int open_model(struct job_summarize *s)
{
    const struct cli_options *o = s->o;
    const struct spw_model_config *c = &s->model.config;
    struct spw_error err = {0};
    int code = cli_model_open(&s->model, o->operand, true), rc = -ENOENT;
    if (!code)
        code = cli_refuse_audio(&s->model);
    if (code)
        return code;
    s->reader.o = o;
    s->reader.model = &s->model;
    s->limit = cli_longest_context(o, &s->model);
    if (c->n_source_layers)
        s->most_source =
            o->allow_long_context && !c->stack_positions ? UINT64_MAX : c->max_positions / 2;
    else
        rc = request_reader_open_template(&s->reader, &err);
    if (rc && rc != -ENOENT)
        return cli_fail_error(rc, &err, true);
    s->has_template = !rc;
    s->names = (struct request_names){.model = o->operand, .tokenizer = s->model.tokenizer};
    s->budget.fails = UINT64_MAX;
    return 0;
}

/* A model with an encoder gets no instructions. What its files say of summaries counts where no
 * option does, and becomes the value of the option: so it is part of the identity of the job. */
static int obey_files(struct job_summarize *s, struct cli_options *o)
{
    static const char *const unknown[] = {"length", "language", "focus", "chat-template"};
    struct spw_model_config *c = &s->model.config;
    const struct spw_token_rules *r = &c->summary.rules;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        if (cli_given(o, unknown[i]))
            return cli_fail(CLI_REFUSED,
                            "--%s: the model (%s) has an encoder, which reads the document without "
                            "instructions; --max-new-tokens and --min-length limit its summaries",
                            unknown[i], c->model_type);
    c->search = c->summary.search;
    o->max_new_tokens = cli_max_new_tokens(o, c, 1);
    if (c->stack_positions)
        o->max_new_tokens = spw_min_u64(o->max_new_tokens, c->stack_positions);
    if (!cli_given(o, "no-repeat-ngram-size"))
        o->no_repeat_ngram_size = r->no_repeat_ngram_size;
    if (!cli_given(o, "min-length"))
        o->min_length = r->min_length;
    if (!cli_given(o, "min-new-tokens") && r->min_new_tokens)
        o->min_new_tokens = r->min_new_tokens;
    return 0;
}

static int check_options(struct job_summarize *s)
{
    enum { TOKENS_OF_WORD = 5 }; /* German has more of them than English */
    const struct cli_options *o = s->o;
    const char *prefix = s->most_source ? s->model.config.summary.prefix : NULL;
    struct spw_error err = {0};
    if (!o->paths.n)
        return cli_fail(CLI_REFUSED, "found no PATH after '%s', expected files or folders",
                        o->operand);
    if (!o->output == !o->out_dir)
        return cli_fail(CLI_REFUSED, "found %s, expected --output FILE.jsonl or --out-dir DIR",
                        o->output ? "--output and --out-dir" : "no --output");
    int refused = job_shard_check(o, &s->shard);
    if (refused)
        return refused;
    if (job_parse_length(o->length ? o->length : "medium", &s->words, &err))
        return cli_fail(CLI_REFUSED, "--length: %s", err.text);
    s->answer = s->most_source || cli_given(o, "max-new-tokens") ? o->max_new_tokens
                                                                 : TOKENS_OF_WORD * s->words;
    int rc =
        job_instructions_open(&s->instructions, o->instructions, !s->has_template, prefix, &err);
    if (rc)
        return cli_fail_error(rc, &err, true);
    return cli_check_answers(o, &s->model);
}

static int open_output(struct job_summarize *s)
{
    const struct cli_options *o = s->o;
    const char *folder = o->out_dir;
    s->made_folder = folder && mkdir(folder, 0777) == 0;
    if (folder && !s->made_folder && errno != EEXIST)
        return cli_fail(CLI_REFUSED, "--out-dir: %s: %s", folder, strerror(errno));
    int n = snprintf(s->output, sizeof s->output, "%s%s", folder ? folder : o->output,
                     folder ? "/summaries.jsonl" : "");
    return n < (int)sizeof s->output - 16
               ? 0
               : cli_fail(CLI_REFUSED, "%.100s...: %s", s->output, strerror(ENAMETOOLONG));
}

/* A continued run would take the summaries in a folder of documents for documents. */
static int check_out_dir(const struct cli_options *o)
{
    struct stat out, folder;
    if (!o->out_dir || stat(o->out_dir, &out))
        return 0;
    for (size_t i = 0; i < o->paths.n; i++)
        if (!stat(o->paths.items[i], &folder) && spw_is_same_file(&folder, &out))
            return cli_fail(CLI_REFUSED,
                            "--out-dir: %s: is a folder of documents, and its summaries would "
                            "become documents; give another folder, also one inside it",
                            o->out_dir);
    return 0;
}

/* The files of the job may lie in a folder with documents. */
static int list_documents(struct job_summarize *s)
{
    static const char *const extensions[] = {"state", "errors"};
    const struct cli_options *o = s->o;
    char paths[2][4112];
    const char *except[5];
    size_t n = 0;
    struct spw_error err = {0};
    for (size_t i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s.%s", s->output, extensions[i]);
        except[n++] = paths[i];
    }
    except[n++] = s->output;
    if (o->errors)
        except[n++] = o->errors;
    if (o->out_dir)
        except[n++] = o->out_dir;
    int rc = job_documents_open(&s->documents, o->paths.items, o->paths.n, except, n, &err);
    if (!rc && o->out_dir)
        rc = job_documents_check_names(&s->documents, &err);
    if (rc)
        return cli_fail_error(rc, &err, true);
    const struct job_documents *d = &s->documents;
    if (d->n_broken == 1)
        cli_fail(0, "%s: this link leads nowhere, so it is left out", d->broken);
    else if (d->n_broken)
        cli_fail(0, "%s and %zu more link%s lead nowhere, so they are left out", d->broken,
                 d->n_broken - 1, cli_plural(d->n_broken - 1));
    return 0;
}

/* What every run of the job has in common: also the texts of the instructions. */
static int identity(const struct job_summarize *s, json_t **out)
{
    char hex[17];
    uint64_t hash = 0;
    int code = job_identity(out, s->o, &s->model);
    if (code)
        return code;
    for (int i = 0; i < JOB_TASKS; i++)
        hash =
            XXH3_64bits_withSeed(s->instructions.texts[i], strlen(s->instructions.texts[i]), hash);
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    cli_json_add(out, "the instructions", CLI_JSON((const char *)hex));
    return *out ? 0 : cli_fail(CLI_FAILED, "out of memory");
}

static int open_store(struct job_summarize *s)
{
    struct job_store_options options = {.output = s->output,
                                        .errors = s->o->errors,
                                        .report = s->o->report,
                                        .retry_failed = s->o->retry_failed};
    json_t *now;
    int code = identity(s, &now);
    if (code)
        return code;
    options.identity = now;
    code = job_store_open(&s->store, &options);
    json_decref(now);
    if (!code)
        s->reader.started = s->names.created = job_store_started(s->store);
    return code;
}

/* The length of requests, before the documents are read. A document that does not fit is read in
 * parts. */
static int expect_lengths(struct job_summarize *s, struct job_run_options *run)
{
    struct spw_error err = {0};
    int fits = 1, rc = 0;
    if (s->o->strategy == JOB_AUTO)
        fits = job_budget_fits(s, run->longest, &err);
    if (fits >= 0 && (s->o->strategy == JOB_MAP_REDUCE || !fits)) {
        rc = job_budget_window(s, &err);
        if (rc == -E2BIG && job_budget_fits(s, 1, NULL) > 0)
            rc = 0; /* a document that needs parts gets the error */
        run->longest = s->window;
    }
    if (s->o->strategy == JOB_ALL_AT_ONCE)
        run->n_sessions = s->n_new * s->o->num_beams;
    return fits < 0 || rc ? cli_fail_error(fits < 0 ? fits : rc, &err, true) : 0;
}

static int summarize(struct job_summarize *s)
{
    struct job_run_options run = {
        .o = s->o, .model = &s->model, .store = s->store, .measures_items = true};
    const struct job_source source = {
        .next = next, .answered = answered, .refused = refused, .count = count, .context = s};
    int code = compare_documents(s, &run.longest);
    if (!code && s->n_new)
        code = expect_lengths(s, &run);
    job_store_expect(s->store, s->n_total);
    if (!code)
        code = job_store_begin(s->store);
    if (code)
        return code;
    job_store_begin_pass(s->store);
    code = job_run(&run, &source);
    const struct job_totals t = job_store_totals(s->store);
    cli_note("%" PRIu64 " summarized, %" PRIu64 " without a summary%s%s%s", t.n_done, t.n_failed,
             t.n_failed ? ", see " : "", t.n_failed ? job_store_errors_path(s->store) : "",
             cli_interrupted() ? "; the same command continues" : "");
    return code || !t.n_failed ? code : CLI_FAILED;
}

int cli_summarize(const struct cli_options *given)
{
    struct cli_options o = *given;
    struct job_summarize s = {.o = &o};
    job_set_defaults(&o);
    cli_catch_termination();
    int code = open_model(&s);
    if (!code && s.most_source)
        code = obey_files(&s, &o);
    if (!code)
        code = cli_take_search(&o, &s.model);
    if (!code)
        code = check_options(&s);
    if (!code)
        code = check_out_dir(&o);
    if (!code)
        code = open_output(&s);
    if (!code)
        code = list_documents(&s);
    cli_progress_start((enum cli_progress_mode)o.progress, "documents", false);
    if (!code)
        code = open_store(&s);
    if (!code)
        code = summarize(&s);
    code = job_store_close(s.store, code);
    if (code && s.made_folder)
        rmdir(o.out_dir); /* unless it has files */
    while (s.works) {
        struct job_work *w = s.works;
        s.works = w->next;
        job_work_free(w);
    }
    request_reader_close(&s.reader);
    job_documents_free(&s.documents);
    job_instructions_free(&s.instructions);
    cli_model_close(&s.model);
    return code;
}
