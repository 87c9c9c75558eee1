/* The text of a document: see document.h. */
#include "tools/command/job/summarize/document.h"
#include "tools/command/output/json.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- kinds ---- */

/* What follows the last dot of the name; "": nothing. */
static const char *extension(const char *path)
{
    const char *name = strrchr(path, '/');
    const char *dot = strrchr(name ? name : path, '.');
    return dot ? dot + 1 : "";
}

enum job_document_kind job_document_kind(const char *path, const char **format)
{
    static const char *const formats[][2] = {
        {"html", "html"}, {"htm", "html"},        {"xhtml", "html"}, {"docx", "docx"},
        {"odt", "odt"},   {"epub", "epub"},       {"rtf", "rtf"},    {"tex", "latex"},
        {"rst", "rst"},   {"latex", "latex"},     {"org", "org"},    {"ipynb", "ipynb"},
        {"fb2", "fb2"},   {"textile", "textile"},
    };
    const char *what = extension(path);
    *format = NULL;
    if (strcasecmp(what, "pdf") == 0)
        return JOB_DOCUMENT_PDF;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcasecmp(what, formats[i][0]) == 0)
            *format = formats[i][1];
    return *format ? JOB_DOCUMENT_PANDOC : JOB_DOCUMENT_TEXT;
}

bool job_document_is_jsonl(const char *path)
{
    return strcasecmp(extension(path), "jsonl") == 0 || strcasecmp(extension(path), "ndjson") == 0;
}

/* ---- programs ---- */

/* A relative path begins with "./": a program takes it neither for an option nor for an address. */
static const char *plain_path(const char *path, char buffer[4096])
{
    snprintf(buffer, 4096, "%s%s", *path == '/' ? "" : "./", path);
    return buffer;
}

static int convert(const struct job_document *d, const struct job_limits *limits, bool pdf,
                   char **text, size_t *bytes, struct spw_error *why)
{
    char path[4096];
    struct spw_error reason = {0};
    plain_path(d->path, path);
    const char *const pdftotext[] = {"pdftotext", "-enc", "UTF-8", "-eol", "unix",
                                     "-nopgbrk",  path,   "-",     NULL};
    const char *const pandoc[] = {"pandoc", "--sandbox", "--quiet",     "--from", d->format,
                                  "--to",   "plain",     "--wrap=none", path,     NULL};
    int rc = job_convert(pdf ? pdftotext : pandoc, limits, text, bytes, &reason);
    if (rc == -ENOENT)
        return spw_fail(why, rc,
                        "%s: %s reads this file and is not installed; install the package %s",
                        d->path, pdf ? "pdftotext" : "pandoc", pdf ? "poppler-utils" : "pandoc");
    if (rc)
        return spw_fail(why, rc, "%s: %s", d->path, reason.text);
    rc = cli_repair_text(text, bytes);
    return rc ? spw_fail(why, rc, "%s: no memory for its text", d->path) : 0;
}

static int read_by_program(const struct job_document *d, const struct job_limits *limits,
                           char **text, size_t *bytes, struct cli_digest *digest,
                           struct spw_error *why)
{
    struct cli_digest after;
    if (strlen(d->path) > 4000)
        return spw_fail(why, -ENAMETOOLONG, "%.200s...: %s", d->path, strerror(ENAMETOOLONG));
    SPW_TRY(cli_digest_file(d->path, digest, why));
    SPW_TRY(convert(d, limits, d->kind != JOB_DOCUMENT_PANDOC, text, bytes, why));
    SPW_TRY(cli_stat_file(d->path, &after, why));
    if (after.bytes == digest->bytes && after.mtime_ns == digest->mtime_ns)
        return 0;
    return spw_fail(why, -EAGAIN, "%s: the file changed while it was read", d->path);
}

/* ---- files and lines ---- */

/* A PDF need not have the extension. */
static int read_text_file(const struct job_document *d, const struct job_limits *limits,
                          char **text, size_t *bytes, struct cli_digest *digest,
                          struct spw_error *why)
{
    SPW_TRY(cli_text_read(d->path, limits->bytes, text, bytes, digest, why));
    if (*bytes < 5 || memcmp(*text, "%PDF-", 5) != 0)
        return cli_decode_text(d->path, text, bytes, why);
    spw_free(*text);
    *text = NULL;
    return read_by_program(d, limits, text, bytes, digest, why);
}

/* Reads the line, which must be the one that was listed. */
static int read_line(const struct job_document *d, char *line, struct spw_error *why)
{
    int fd = open(d->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return spw_fail(why, -errno, "%s: %s", d->path, strerror(errno));
    size_t done = 0;
    ssize_t n = 1;
    while (done < d->digest.bytes && n > 0) {
        n = pread(fd, line + done, d->digest.bytes - done, (off_t)(d->offset + done));
        done += n > 0 ? (size_t)n : 0;
    }
    close(fd);
    if (done == d->digest.bytes && XXH3_64bits(line, done) == d->digest.hash)
        return 0;
    return spw_fail(why, -EAGAIN, "%s: the line of id %.100s has changed", d->path, d->id);
}

static int copy_text(const struct job_document *d, const char *line, char **text, size_t *bytes,
                     struct spw_error *why)
{
    json_t *object;
    int rc = spw_json_parse(&object, line, d->digest.bytes, 0, NULL);
    const char *found = json_string_value(json_object_get(object, "text"));
    *bytes = found ? strlen(found) : 0;
    *text = rc == -ENOMEM ? NULL : spw_strdup(found ? found : "");
    json_decref(object);
    return *text ? 0 : spw_fail(why, -ENOMEM, "%s: no memory for its text", d->path);
}

static int read_text_of_line(const struct job_document *d, char **text, size_t *bytes,
                             struct cli_digest *digest, struct spw_error *why)
{
    char *line = spw_alloc(d->digest.bytes);
    if (!line)
        return spw_fail(why, -ENOMEM, "%s: no memory for its text", d->path);
    *digest = d->digest;
    int rc = read_line(d, line, why);
    if (!rc)
        rc = copy_text(d, line, text, bytes, why);
    spw_free(line);
    return rc;
}

/* ---- all ---- */

static int read_document(const struct job_document *d, const struct job_limits *limits, char **text,
                         size_t *bytes, struct cli_digest *digest, struct spw_error *why)
{
    if (d->refused)
        return spw_fail(why, -EINVAL, "%s", d->refused);
    if (d->kind == JOB_DOCUMENT_LINE)
        return read_text_of_line(d, text, bytes, digest, why);
    if (d->kind == JOB_DOCUMENT_TEXT)
        return read_text_file(d, limits, text, bytes, digest, why);
    return read_by_program(d, limits, text, bytes, digest, why);
}

int job_document_text(const struct job_document *d, const struct job_limits *limits, char **text,
                      size_t *bytes, struct cli_digest *digest, struct spw_error *why)
{
    struct job_limits all = job_limits_or_defaults(limits);
    *text = NULL;
    *bytes = 0;
    *digest = (struct cli_digest){0};
    int rc = read_document(d, &all, text, bytes, digest, why);
    if (!rc && cli_text_is_blank(*text, *bytes))
        rc = spw_fail(why, -ENODATA, "%s: found no text%s", d->path,
                      d->kind == JOB_DOCUMENT_PDF
                          ? "; scanned pages need text recognition first, for example ocrmypdf"
                          : "");
    if (rc) {
        spw_free(*text);
        *text = NULL;
        *bytes = 0;
    }
    return rc;
}

int job_document_digest(const struct job_document *d, const struct cli_digest *known,
                        struct cli_digest *out, struct spw_error *err)
{
    *out = d->digest;
    if (d->refused)
        return spw_fail(err, -EINVAL, "%s", d->refused);
    if (d->kind == JOB_DOCUMENT_LINE)
        return 0;
    SPW_TRY(cli_stat_file(d->path, out, err));
    if (!known || known->bytes != out->bytes || known->mtime_ns != out->mtime_ns)
        return cli_digest_file(d->path, out, err);
    *out = *known;
    return 0;
}
