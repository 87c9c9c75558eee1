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
    JOB_DOCUMENT_LINE,   /* the "text" of a line of a JSONL file */
};

struct job_document {
    char *id;   /* owned; UTF-8, unique in the list; may have any characters */
    char *path; /* owned; the file, or the JSONL file */
    enum job_document_kind kind;
    const char *format;       /* PANDOC: the name of pandoc's reader */
    uint64_t offset;          /* LINE: of its first byte in the file */
    struct cli_digest digest; /* LINE: its bytes are those of the line */
    char *refused;            /* owned; why the document has no text; NULL: it may have one */

    /* For job_documents_open: */
    bool named;             /* the user gave the id, in a JSONL file */
    uint64_t line;          /* its number in that file */
    uint64_t device, inode; /* of a file */
};

struct job_documents {
    struct job_document *items; /* owned, [n] */
    size_t n, capacity;
    size_t n_broken; /* links in folders that lead nowhere; they are left out */
    char *broken;    /* owned; the first of them, or NULL */
};

/* Lists the documents of the operands, in their order: files; folders with all that is below them,
 * sorted by name, without hidden files, JSONL files and the other files of their jobs; patterns
 * that the shell did not expand; JSONL files of lines {"id", "text"} or {"id", "file"}. No file but
 * JSONL files is opened.
 *
 * The id of a file is its path below the operand: below the folder, below the part of a pattern
 * that has no special characters, below the folder of a file. Files that would have the same id get
 * their paths as ids; a second file that is the same one is left out. So are the files and folders
 * `except` (outputs of the job), [n_except], where they exist. A line of a JSONL file that is not
 * valid becomes a document that is refused. */
int job_documents_open(struct job_documents *out, const char *const *operands, size_t n,
                       const char *const *except, size_t n_except, struct spw_error *err);
void job_documents_free(struct job_documents *x);

/* The text of a document as UTF-8, owned by the caller (spw_free); ends in a NUL. `limits` may be
 * NULL. `digest` gets the digest of the file. -ENODATA: there is no text in it; -ENOENT: no file,
 * or the program that reads it is not installed; -EAGAIN: the file has changed; -ECANCELED. */
int job_document_text(const struct job_document *d, const struct job_limits *limits, char **text,
                      size_t *bytes, struct cli_digest *digest, struct spw_error *why);

/* The digest of a document without its text. If size and time are those of `known`, takes its hash
 * and reads nothing. `known` may be NULL. */
int job_document_digest(const struct job_document *d, const struct cli_digest *known,
                        struct cli_digest *out, struct spw_error *err);

/* ---- for document_list.c ---- */

enum job_document_kind job_document_kind(const char *path, const char **format);
bool job_document_is_jsonl(const char *path);

#endif
