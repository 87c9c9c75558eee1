/* The documents of a job: what the operands of summarize name, and the text of each.
 *
 * Text and Markdown are read as they are; pdftotext makes text of PDF, and pandoc of HTML, DOCX,
 * EPUB and other formats. Functions return 0 or -errno with a text. */
#ifndef SPW_TOOLS_COMMAND_JOB_SUMMARIZE_DOCUMENT_H
#define SPW_TOOLS_COMMAND_JOB_SUMMARIZE_DOCUMENT_H

#include "tools/command/job/summarize/convert.h"
#include "tools/command/input/text.h"

enum job_document_kind {
    JOB_DOCUMENT_TEXT,
    JOB_DOCUMENT_PDF,    /* read by pdftotext */
    JOB_DOCUMENT_PANDOC, /* read by pandoc */
};

struct job_document {
    char *path;  /* owned */
    char *id;    /* owned; the path as UTF-8, unique in the list */
    size_t base; /* bytes of the path before the name of its summary: the folder that was named */
    enum job_document_kind kind;
    const char *format; /* PANDOC: the name of pandoc's reader */
};

struct job_documents {
    struct job_document *items; /* owned, [n] */
    size_t n, capacity;
    size_t n_broken; /* links in folders that lead nowhere; they are left out */
    char *broken;    /* owned; the first of them, or NULL */
};

/* Lists the documents of the operands, in their order: files; folders with all that is below them,
 * sorted by name, without hidden files, JSONL files and the other files of their jobs. No file is
 * opened. A path that occurs twice is one document. The files and folders `except` (outputs of the
 * job), [n_except], are left out, where they exist. */
int job_documents_open(struct job_documents *out, const char *const *operands, size_t n,
                       const char *const *except, size_t n_except, struct spw_error *err);
void job_documents_free(struct job_documents *x);
/* The summary of a document is called as its path below the operand, without ".txt", and
 * ".summary.txt". The bytes before that. */
size_t job_document_name_bytes(const struct job_document *d);
/* -EINVAL: two summaries would have one name. */
int job_documents_check_names(struct job_documents *x, struct spw_error *err);

/* The text of a document as UTF-8, owned by the caller (spw_free); ends in a NUL. `limits` may be
 * NULL. `digest` gets the digest of the file. -ENODATA: there is no text in it; -ENOENT: no file,
 * or the program that reads it is not installed; -EAGAIN: the file has changed; -ECANCELED. */
int job_document_text(const struct job_document *d, const struct job_limits *limits, char **text,
                      size_t *bytes, struct cli_digest *digest, struct spw_error *why);

/* ---- for document_list.c ---- */

enum job_document_kind job_document_kind(const char *path, const char **format);
bool job_document_is_jsonl(const char *path);

#endif
