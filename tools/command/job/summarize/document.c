/* The text of a document: see document.h. */
#include "tools/command/job/summarize/document.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

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

size_t job_document_name_bytes(const struct job_document *d)
{
    const size_t n = strlen(d->path + d->base);
    const bool is_text = n > 4 && strcasecmp(d->path + d->base + n - 4, ".txt") == 0;
    return is_text && d->path[d->base + n - 5] != '/' ? n - 4 : n;
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

/* ---- files ---- */

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

/* ---- all ---- */

static int read_document(const struct job_document *d, const struct job_limits *limits, char **text,
                         size_t *bytes, struct cli_digest *digest, struct spw_error *why)
{
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
