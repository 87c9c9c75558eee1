/* The lines of summarize, and its text files. */
#include "tools/command/job/summarize/summarize_parts.h"
#include "tools/command/output/output.h"
#include "tools/command/output/report.h"

#include <string.h>
#include <sys/stat.h>

json_t *job_summary_record(const struct job_summarize *s, const struct job_summary *x)
{
    const struct job_node *node = &x->work->nodes[x->node];
    const bool is_part = node->level == 0;
    const size_t level_below = is_part ? 0 : x->work->nodes[node->begin].index;
    json_t *record = request_record(&x->item, &s->names);
    const struct cli_field fields[] = {
        {"level", CLI_JSON(node->level)},
        {"index", CLI_JSON(node->index)},
        {is_part ? "begin" : "first", CLI_JSON(is_part ? node->begin : level_below)},
        {is_part ? "end" : "count", CLI_JSON(is_part ? node->end : node->end - node->begin)},
        {"seconds", CLI_JSON(cli_now_seconds() - x->began)},
        {"moved_bytes", cli_report_moved(x->item.moved_bytes)},
        {x->item.fallbacks ? "fallback_events" : NULL, json_deep_copy(x->item.fallbacks)},
    };
    CLI_ADD(&record, fields);
    return record;
}

/* ---- a document ---- */

enum { NAME_BYTES = 4096 };

/* The name of the text file, from the path or from the id, which is as long if it is UTF-8. */
static void name_of(char name[NAME_BYTES], const struct job_document *d, const char *from)
{
    const size_t left_out = strlen(d->path) - d->base - job_document_name_bytes(d);
    snprintf(name, NAME_BYTES, "%.*s.summary.txt", (int)(strlen(from) - d->base - left_out),
             from + d->base);
}

/* What a part has in the line of its document. Its text stays in the file of parts. */
static json_t *part_json(const struct job_node *node)
{
    static const char *const left_out[] = {"id", "text", "reasoning", "n_reasoning", "tokens"};
    json_t *part = json_copy(node->record);
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        json_object_del(part, left_out[i]);
    return part;
}

static uint64_t sum(const struct job_work *w, const char *name)
{
    uint64_t all = 0;
    for (size_t i = 0; i < w->n_nodes; i++)
        all += (uint64_t)json_integer_value(json_object_get(w->nodes[i].record, name));
    return all;
}

json_t *job_work_line(const struct job_summarize *s, const struct job_work *w)
{
    const json_t *last = w->nodes[w->n_nodes - 1].record;
    char name[NAME_BYTES];
    const char *text;
    size_t bytes;
    job_node_text(&w->nodes[w->n_nodes - 1], &text, &bytes);
    json_t *parts = json_array();
    for (size_t i = 0; i < w->n_nodes; i++)
        cli_json_append(&parts, part_json(&w->nodes[i]));
    name_of(name, w->document, w->document->id);
    const struct cli_field fields[] = {
        {"id", CLI_JSON((const char *)w->document->id)},
        {"text", json_stringn(text, bytes)},
        {s->o->out_dir ? "text_file" : NULL, CLI_JSON((const char *)name)},
        {"strategy", json_string(w->is_whole ? "whole" : "map-reduce")},
        {"why", CLI_JSON((const char *)w->why)},
        {"finish", json_incref(json_object_get(last, "finish"))},
        {"logits_hash", json_incref(json_object_get(last, "logits_hash"))},
        {"n_prompt", CLI_JSON(sum(w, "n_prompt"))},
        {"n_generated", CLI_JSON(sum(w, "n_generated"))},
        {"seconds", CLI_JSON(cli_now_seconds() - w->began)},
        {"parts", parts},
    };
    return CLI_OBJECT(fields);
}

/* Makes the folders of out/name that are missing. */
static int make_folders(const char *out, char *path)
{
    for (char *slash = path + strlen(out) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        const bool is_there = mkdir(path, 0777) == 0 || errno == EEXIST;
        int code = is_there ? 0 : cli_fail(CLI_FAILED, "--out-dir: %s: %s", path, strerror(errno));
        if (!code)
            code = job_sync_folder(path);
        *slash = '/';
        if (code)
            return code;
    }
    return 0;
}

int job_work_write(const struct job_summarize *s, const struct job_work *w, const json_t *line)
{
    char name[NAME_BYTES], path[2 * NAME_BYTES];
    struct cli_output *file;
    name_of(name, w->document, w->document->path);
    if (snprintf(path, sizeof path, "%s/%s", s->o->out_dir, name) >= NAME_BYTES)
        return cli_fail(CLI_FAILED, "--out-dir: %.100s...: %s", path, strerror(ENAMETOOLONG));
    int code = make_folders(s->o->out_dir, path);
    if (!code)
        code = cli_output_open(&file, path, true);
    if (code)
        return code;
    const json_t *text = json_object_get(line, "text");
    fwrite(json_string_value(text), 1, json_string_length(text), cli_output_file(file));
    fputc('\n', cli_output_file(file));
    code = cli_output_commit(file);
    return code ? code : job_sync_folder(path);
}
