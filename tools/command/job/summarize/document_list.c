/* The documents that operands name: see document.h. */
#include "tools/command/job/summarize/document.h"

#include "base/grow.h"

#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

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

static int add_file(struct listing *l, const char *path, size_t base)
{
    struct job_documents *out = l->out;
    if (spw_grow(&out->items, &out->capacity, out->n + 1, sizeof *out->items))
        return fail(l, path, -ENOMEM);
    struct job_document *d = &out->items[out->n++];
    size_t bytes = strlen(path);
    *d = (struct job_document){.path = spw_strdup(path), .id = spw_strdup(path), .base = base};
    d->kind = job_document_kind(path, &d->format);
    return d->path && d->id && !cli_repair_text(&d->id, &bytes) ? 0 : fail(l, path, -ENOMEM);
}

/* ---- folders ---- */

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* What a job leaves out in folders: hidden files, JSONL files, and what jobs write beside these. */
static bool is_left_out(const FTSENT *entry)
{
    const char *name = entry->fts_name;
    return *name == '.' || strcasestr(name, ".jsonl") || strcasestr(name, ".ndjson");
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
    return add_file(l, entry->fts_path, base);
}

/* `base`: bytes of a path before the name of its summary. */
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

/* ---- operands ---- */

static size_t folder_bytes(const char *path, size_t bytes)
{
    while (bytes > 0 && path[bytes - 1] != '/')
        bytes--;
    return bytes;
}

/* A file or a folder, without slashes at its end. */
static int add_path(struct listing *l, const char *path, const struct stat *st)
{
    const size_t bytes = strlen(path);
    if (S_ISDIR(st->st_mode))
        return add_folder(l, path, bytes + (path[bytes - 1] != '/'));
    if (!S_ISREG(st->st_mode))
        return spw_fail(l->err, -EINVAL, "%s: found a device or a pipe, expected a file or folder",
                        path);
    if (job_document_is_jsonl(path))
        return spw_fail(l->err, -EINVAL,
                        "%s: found a JSONL file, expected documents; 'spillway batch' answers the "
                        "lines of such a file",
                        path);
    return add_file(l, path, folder_bytes(path, bytes));
}

static int add_operand(struct listing *l, const char *operand)
{
    struct stat st;
    size_t bytes = strlen(operand);
    if (stat(operand, &st) != 0)
        return fail(l, operand, -errno);
    char *path = spw_strdup(operand);
    if (!path)
        return fail(l, operand, -ENOMEM);
    while (bytes > 1 && path[bytes - 1] == '/')
        path[--bytes] = 0;
    int rc = add_path(l, path, &st);
    spw_free(path);
    return rc;
}

/* ---- one document, one id, one name ---- */

static void free_document(struct job_document *d)
{
    spw_free(d->id);
    spw_free(d->path);
    *d = (struct job_document){0};
}

/* By id; the same ids in the order of the list. */
static int by_id(const void *a, const void *b)
{
    const struct job_document *x = *(struct job_document *const *)a,
                              *y = *(struct job_document *const *)b;
    int order = strcmp(x->id, y->id);
    return order ? order : (x > y) - (x < y);
}

static int by_summary(const void *a, const void *b)
{
    const struct job_document *x = *(struct job_document *const *)a,
                              *y = *(struct job_document *const *)b;
    const size_t n = job_document_name_bytes(x), m = job_document_name_bytes(y);
    int order = memcmp(x->path + x->base, y->path + y->base, n < m ? n : m);
    return order ? order : (n > m) - (n < m);
}

/* The documents in an order, owned by the caller. NULL: no memory. */
static struct job_document **
sorted(struct job_documents *x, int (*order)(const void *a, const void *b), struct spw_error *err)
{
    struct job_document **list = spw_alloc_zero(x->n, sizeof *list);
    if (!list)
        spw_fail(err, -ENOMEM, "no memory for %zu documents", x->n);
    for (size_t i = 0; i < x->n && list; i++)
        list[i] = &x->items[i];
    if (list)
        qsort(list, x->n, sizeof(struct job_document *), order);
    return list;
}

/* A file that was named twice is one document. Names that are no UTF-8 may have one id. */
static int make_unique(struct listing *l)
{
    struct job_documents *x = l->out;
    struct job_document **list = sorted(x, by_id, l->err), *first = NULL;
    size_t n = 0;
    int rc = list ? 0 : -ENOMEM;
    for (size_t i = 0; list && i < x->n && !rc; i++) {
        if (!first || strcmp(first->id, list[i]->id) != 0)
            first = list[i];
        else if (strcmp(first->path, list[i]->path) == 0)
            free_document(list[i]);
        else
            rc = spw_fail(l->err, -EINVAL, "found two files of the name %s, which is no UTF-8",
                          first->id);
    }
    spw_free(list);
    for (size_t i = 0; i < x->n && !rc; i++)
        if (x->items[i].path)
            x->items[n++] = x->items[i];
    x->n = rc ? x->n : n;
    return rc;
}

int job_documents_check_names(struct job_documents *x, struct spw_error *err)
{
    struct job_document **list = sorted(x, by_summary, err);
    int rc = list ? 0 : -ENOMEM;
    for (size_t i = 1; list && i < x->n && !rc; i++)
        if (by_summary(&list[i - 1], &list[i]) == 0)
            rc = spw_fail(err, -EINVAL,
                          "%s and %s: their summaries would have one name; give the folder above "
                          "both, or --output",
                          list[i - 1]->id, list[i]->id);
    spw_free(list);
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
    if (!rc && out->n)
        rc = make_unique(&l);
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
