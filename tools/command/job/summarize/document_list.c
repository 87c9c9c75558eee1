/* The documents that operands name: see document.h. */
#include "tools/command/job/summarize/document.h"
#include "tools/command/request/request.h"
#include "tools/command/job/store/lines.h"
#include "tools/command/output/json.h"

#include <fts.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

struct listing {
    struct job_documents *out;
    const char *const *except;
    size_t n_except;
    struct spw_error *err;
};

static int fail(struct listing *l, const char *path, int code)
{
    return spw_fail(l->err, code, "%s: %s", path, strerror(-code));
}

static bool is_excepted(const struct listing *l, const struct stat *st)
{
    struct stat other;
    for (size_t i = 0; i < l->n_except; i++)
        if (stat(l->except[i], &other) == 0 && spw_is_same_file(&other, st))
            return true;
    return false;
}

/* ---- files ---- */

/* A copy that is UTF-8. */
static char *copy(const char *text)
{
    size_t bytes = strlen(text);
    char *out = spw_strdup(text);
    if (out && cli_repair_text(&out, &bytes) != 0) {
        spw_free(out);
        out = NULL;
    }
    return out;
}

/* Adds an empty document. */
static struct job_document *add(struct listing *l)
{
    struct job_documents *out = l->out;
    if (out->n == out->capacity) {
        size_t capacity = out->capacity ? 2 * out->capacity : 64;
        struct job_document *grown = spw_realloc(out->items, capacity * sizeof *grown);
        if (!grown)
            return NULL;
        out->items = grown;
        out->capacity = capacity;
    }
    out->items[out->n] = (struct job_document){0};
    return &out->items[out->n++];
}

static int add_file(struct listing *l, const char *path, const char *id, const struct stat *st)
{
    struct job_document *d = add(l);
    if (!d)
        return fail(l, path, -ENOMEM);
    d->id = copy(id);
    d->path = spw_strdup(path);
    d->kind = job_document_kind(path, &d->format);
    d->device = (uint64_t)st->st_dev;
    d->inode = (uint64_t)st->st_ino;
    return d->id && d->path ? 0 : fail(l, path, -ENOMEM);
}

/* ---- folders ---- */

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* The state or the errors of a job whose output is a JSONL file. */
static bool is_of_job(const char *name)
{
    static const char *const ends[] = {".state", ".errors"};
    char output[256];
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof ends / sizeof *ends; i++)
        if (strcmp(dot, ends[i]) == 0) {
            snprintf(output, sizeof output, "%.*s", (int)(dot - name), name);
            return job_document_is_jsonl(output);
        }
    return false;
}

/* What a job leaves out in folders: hidden files, and files of jobs. */
static bool is_left_out(const FTSENT *entry)
{
    return entry->fts_name[0] == '.' || job_document_is_jsonl(entry->fts_path) ||
           is_of_job(entry->fts_name);
}

static int add_broken(struct listing *l, const char *path)
{
    l->out->n_broken++;
    if (!l->out->broken)
        l->out->broken = spw_strdup(path);
    return l->out->broken ? 0 : fail(l, path, -ENOMEM);
}

/* Links to files are documents, links to folders are not followed. */
static int take_entry(struct listing *l, FTS *tree, FTSENT *entry, size_t base)
{
    struct stat st = {0};
    switch (entry->fts_info) {
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        return fail(l, entry->fts_path, -entry->fts_errno);
    case FTS_D:
        if (entry->fts_level > FTS_ROOTLEVEL &&
            (entry->fts_name[0] == '.' || is_excepted(l, entry->fts_statp)))
            fts_set(tree, entry, FTS_SKIP);
        return 0;
    case FTS_F:
        st = *entry->fts_statp;
        break;
    case FTS_SL:
        if (stat(entry->fts_path, &st) != 0)
            return is_left_out(entry) ? 0 : add_broken(l, entry->fts_path);
        break;
    default:
        return 0;
    }
    if (!S_ISREG(st.st_mode) || is_left_out(entry) || is_excepted(l, &st))
        return 0;
    return add_file(l, entry->fts_path, entry->fts_path + base, &st);
}

/* `base`: bytes of a path that are not in its id. */
static int add_folder(struct listing *l, const char *path, size_t base)
{
    char *const roots[] = {(char *)(uintptr_t)path, NULL};
    size_t before = l->out->n;
    FTSENT *entry;
    int rc = 0;
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);
    if (!tree)
        return fail(l, path, -errno);
    while (!rc && (entry = fts_read(tree)))
        rc = take_entry(l, tree, entry, base);
    if (!rc && errno)
        rc = fail(l, path, -errno);
    fts_close(tree);
    if (!rc && l->out->n == before)
        rc = spw_fail(l->err, -ENOENT, "%s: found no files in this folder", path);
    return rc;
}

/* ---- JSONL files ---- */

/* The file that a line names; relative names begin in the folder of the JSONL file. */
static int name_file(struct listing *l, struct job_document *d, const char *jsonl, const char *name)
{
    const char *slash = strrchr(jsonl, '/');
    int folder = *name == '/' || !slash ? 0 : (int)(slash + 1 - jsonl);
    size_t bytes = (size_t)folder + strlen(name) + 1;
    char *path = spw_alloc(bytes);
    if (!path)
        return fail(l, jsonl, -ENOMEM);
    snprintf(path, bytes, "%.*s%s", folder, jsonl, name);
    spw_free(d->path);
    d->path = path;
    d->kind = job_document_kind(path, &d->format);
    d->digest = (struct cli_digest){0};
    return 0;
}

/* 0: the line is a document. */
static int check_line(const struct job_line *line, const json_t *object, const json_error_t *syntax,
                      struct request_refusal *why)
{
    const json_t *id = json_object_get(object, "id"), *text = json_object_get(object, "text"),
                 *file = json_object_get(object, "file"), *named = text ? text : file;
    const char *key = text ? "text" : "file";
    if (line->is_too_long)
        return request_refuse(why, 0, NULL, NULL,
                              "the line is longer than 64 MiB; put the text into a file");
    if (!object)
        return request_refuse(why, 0, NULL, NULL, "%s", syntax->text);
    if (!json_is_object(object))
        return request_refuse(why, 0, NULL, NULL,
                              "found no JSON object, expected {\"id\": ..., \"text\": ...} or "
                              "{\"id\": ..., \"file\": ...}");
    if (!json_is_string(id) || json_string_length(id) == 0)
        return request_refuse_value(why, "id", id, "a text that is not empty");
    if (!text == !file)
        return request_refuse(why, 0, NULL, NULL, "found %s, expected either \"text\" or \"file\"",
                              text ? "\"text\" and \"file\"" : "no text");
    return json_is_string(named) ? 0 : request_refuse_value(why, key, named, "a text");
}

static int refuse(struct listing *l, struct job_document *d, const char *jsonl, uint64_t number,
                  const char *why)
{
    char id[600], text[900];
    const char *slash = strrchr(jsonl, '/');
    snprintf(id, sizeof id, "%.500s:%llu", slash ? slash + 1 : jsonl, (unsigned long long)number);
    snprintf(text, sizeof text, "%.300s: line %llu: %s", jsonl, (unsigned long long)number, why);
    spw_free(d->id);
    d->id = copy(id);
    d->refused = copy(text);
    return d->id && d->refused ? 0 : fail(l, jsonl, -ENOMEM);
}

static int add_line(struct listing *l, const char *path, const struct job_line *line)
{
    json_error_t syntax;
    json_t *object;
    if (spw_json_parse(&object, line->text, line->bytes, 0, &syntax) == -ENOMEM)
        return fail(l, path, -ENOMEM);
    struct request_refusal why;
    const bool is_refused = check_line(line, object, &syntax, &why) != 0;
    const char *file = json_string_value(json_object_get(object, "file"));
    struct job_document *d = add(l);
    int rc = d ? 0 : fail(l, path, -ENOMEM);
    if (d) {
        d->kind = JOB_DOCUMENT_LINE;
        d->named = true;
        d->offset = line->offset;
        d->line = line->number;
        d->digest = (struct cli_digest){XXH3_64bits(line->text, line->bytes), line->bytes, 0};
        d->path = spw_strdup(path);
        rc = d->path ? 0 : fail(l, path, -ENOMEM);
    }
    if (!rc && is_refused) {
        rc = refuse(l, d, path, line->number, why.message);
    } else if (!rc) {
        d->id = spw_strdup(json_string_value(json_object_get(object, "id")));
        rc = !d->id ? fail(l, path, -ENOMEM) : file ? name_file(l, d, path, file) : 0;
    }
    json_decref(object);
    return rc;
}

static int add_lines(struct listing *l, const char *path)
{
    struct job_lines lines;
    struct job_line line;
    int rc = job_lines_open(&lines, path);
    if (rc)
        return fail(l, path, rc);
    while ((rc = job_lines_next(&lines, &line)) > 0)
        if (!cli_text_is_blank(line.text, line.bytes) && (rc = add_line(l, path, &line)) < 0)
            break;
    job_lines_close(&lines);
    return rc ? fail(l, path, rc) : 0;
}

/* ---- operands ---- */

/* A file or a folder; `base`: bytes of the path that are not in ids. */
static int add_path(struct listing *l, const char *path, size_t base, const struct stat *st)
{
    if (S_ISDIR(st->st_mode))
        return add_folder(l, path, base);
    if (!S_ISREG(st->st_mode))
        return spw_fail(l->err, -EINVAL, "%s: found a device or a pipe, expected a file or folder",
                        path);
    if (job_document_is_jsonl(path))
        return add_lines(l, path);
    return add_file(l, path, path + base, st);
}

static size_t folder_bytes(const char *path, size_t bytes)
{
    while (bytes > 0 && path[bytes - 1] != '/')
        bytes--;
    return bytes;
}

static int add_pattern(struct listing *l, const char *pattern)
{
    glob_t found;
    struct stat st;
    int rc = glob(pattern, GLOB_ERR, NULL, &found);
    if (rc == GLOB_NOMATCH)
        return spw_fail(l->err, -ENOENT, "%s: found no such file or folder", pattern);
    if (rc)
        return fail(l, pattern, rc == GLOB_NOSPACE ? -ENOMEM : errno ? -errno : -EIO);
    size_t base = folder_bytes(pattern, strcspn(pattern, "*?["));
    for (size_t i = 0; i < found.gl_pathc && !rc; i++) {
        const char *path = found.gl_pathv[i];
        if (stat(path, &st) != 0)
            rc = fail(l, path, -errno);
        else if (!is_excepted(l, &st))
            rc = add_path(l, path, base, &st);
    }
    globfree(&found);
    return rc;
}

static int add_operand(struct listing *l, const char *operand)
{
    struct stat st;
    size_t bytes = strlen(operand);
    if (stat(operand, &st) != 0) {
        int error = errno;
        if (error == ENOENT && strpbrk(operand, "*?["))
            return add_pattern(l, operand);
        return spw_fail(l->err, -error, "%s: %s", operand, strerror(error));
    }
    while (bytes > 1 && operand[bytes - 1] == '/')
        bytes--;
    char *path = spw_alloc(bytes + 1);
    if (!path)
        return fail(l, operand, -ENOMEM);
    memcpy(path, operand, bytes);
    path[bytes] = 0;
    bool slash = path[bytes - 1] == '/'; /* the root */
    int rc =
        add_path(l, path, S_ISDIR(st.st_mode) ? bytes + !slash : folder_bytes(path, bytes), &st);
    spw_free(path);
    return rc;
}

/* ---- ids ---- */

static void free_document(struct job_document *d)
{
    spw_free(d->id);
    spw_free(d->path);
    spw_free(d->refused);
    *d = (struct job_document){0};
}

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* By id; then the same files side by side, in the order of the list. */
static int by_id(const void *a, const void *b)
{
    const struct job_document *x = *(struct job_document *const *)a,
                              *y = *(struct job_document *const *)b;
    int order = strcmp(x->id, y->id);
    order = order ? order : compare(x->device, y->device);
    order = order ? order : compare(x->inode, y->inode);
    return order ? order : (x > y) - (x < y);
}

static bool is_same_file(const struct job_document *a, const struct job_document *b)
{
    return !a->named && !b->named && a->device == b->device && a->inode == b->inode;
}

/* Leaves out files that are in the group already. Returns how many documents are left in it. */
static size_t drop_same_files(struct job_document **group, size_t n)
{
    size_t kept = 1;
    for (size_t i = 1; i < n; i++)
        if (is_same_file(group[kept - 1], group[i]))
            free_document(group[i]);
        else
            group[kept++] = group[i];
    return kept;
}

static int take_path(struct listing *l, struct job_document *d)
{
    char *id = copy(d->path);
    if (!id)
        return fail(l, d->path, -ENOMEM);
    spw_free(d->id);
    d->id = id;
    return 0;
}

/* A second line with an id. */
static int refuse_again(struct listing *l, struct job_document *d)
{
    char id[300], why[700];
    snprintf(id, sizeof id, "%.200s (line %llu)", d->id, (unsigned long long)d->line);
    snprintf(why, sizeof why, "line %llu: the id %.200s belongs to another document, too",
             (unsigned long long)d->line, d->id);
    spw_free(d->id);
    spw_free(d->refused);
    d->id = copy(id); /* `id` may end in the middle of a character */
    d->refused = copy(why);
    return d->id && d->refused ? 0 : fail(l, d->path, -ENOMEM);
}

/* Documents of one id. First files get their paths as ids, then lines lose theirs. */
static int make_apart(struct listing *l, struct job_document **group, size_t n, int round)
{
    n = drop_same_files(group, n);
    if (n > 1 && round == 2)
        return spw_fail(l->err, -EINVAL, "%s and %s: found the id %s for both, expected two ids",
                        group[0]->path, group[1]->path, group[0]->id);
    for (size_t i = 0; i < n && n > 1; i++) {
        if (round == 0 && !group[i]->named)
            SPW_TRY(take_path(l, group[i]));
        else if (round == 1 && i > 0 && group[i]->named)
            SPW_TRY(refuse_again(l, group[i]));
    }
    return 0;
}

/* Closes the gaps of documents that were left out. */
static void compact(struct job_documents *x)
{
    size_t n = 0;
    for (size_t i = 0; i < x->n; i++)
        if (x->items[i].path)
            x->items[n++] = x->items[i];
    x->n = n;
}

static int make_unique(struct listing *l, int round)
{
    struct job_documents *x = l->out;
    struct job_document **sorted = spw_alloc_zero(x->n, sizeof *sorted);
    int rc = sorted ? 0 : spw_fail(l->err, -ENOMEM, "no memory for %zu documents", x->n);
    for (size_t i = 0; i < x->n && sorted; i++)
        sorted[i] = &x->items[i];
    if (sorted)
        qsort(sorted, x->n, sizeof(struct job_document *), by_id);
    for (size_t i = 0, end; i < x->n && !rc; i = end) {
        for (end = i + 1; end < x->n && strcmp(sorted[i]->id, sorted[end]->id) == 0;)
            end++;
        rc = end - i > 1 ? make_apart(l, sorted + i, end - i, round) : 0;
    }
    spw_free(sorted);
    compact(x);
    return rc;
}

int job_documents_open(struct job_documents *out, const char *const *operands, size_t n,
                       const char *const *except, size_t n_except, struct spw_error *err)
{
    struct listing l = {.out = out, .except = except, .n_except = n_except, .err = err};
    *out = (struct job_documents){0};
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++)
        rc = add_operand(&l, operands[i]);
    for (int round = 0; round < 3 && !rc; round++)
        rc = make_unique(&l, round);
    if (!rc && out->n == 0)
        rc = spw_fail(err, -ENOENT, "%s: found no documents", n ? operands[0] : "no operand");
    if (rc)
        job_documents_free(out);
    return rc;
}

void job_documents_free(struct job_documents *x)
{
    for (size_t i = 0; i < x->n; i++)
        free_document(&x->items[i]);
    spw_free(x->items);
    spw_free(x->broken);
    *x = (struct job_documents){0};
}
