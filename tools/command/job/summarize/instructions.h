/* What a model is told to do with a document: texts with placeholders, which a user can replace.
 *
 * The texts of this program are the files in instructions/. A placeholder is a word of small
 * letters in braces; other braces are text. {text} is the document (of a merge: the summaries), and
 * every text has it once. {length}, {language} and {focus} are the same for all documents of a job,
 * {title}, {part} and {parts} are not: what comes before the first of these and before {text} is
 * the same for all documents, and its KV is computed once. A line with a placeholder that has no
 * value is left out, unless it has {text}. */
#ifndef SPW_TOOLS_COMMAND_JOB_SUMMARIZE_INSTRUCTIONS_H
#define SPW_TOOLS_COMMAND_JOB_SUMMARIZE_INSTRUCTIONS_H

#include "tools/command/common.h"

enum job_task { JOB_WHOLE, JOB_PART, JOB_MERGE, JOB_TASKS };

struct job_instructions {
    char *texts[JOB_TASKS]; /* owned, checked */
};

/* The texts for models with a chat template: whole.txt, part.txt, merge.txt; `plain` ones for
 * models without, which continue a text: whole.plain.txt, ... A model with an encoder gets `prefix`
 * and {text}; prefix NULL: it has none. A file of the same name in `folder` replaces a text. A
 * plain text is also replaced by a file whose name has no ".plain". `folder` may be NULL. Returns 0
 * or -errno. -EINVAL: an unknown placeholder or file, no {text}, a folder without texts. */
int job_instructions_open(struct job_instructions *out, const char *folder, bool plain,
                          const char *prefix, struct spw_error *err);
void job_instructions_free(struct job_instructions *x);

/* The values of placeholders. NULL, "" and 0: none. */
struct job_values {
    uint64_t length;      /* words */
    const char *language; /* NULL: "the language of the document" */
    const char *focus, *title;
    size_t part, n_parts; /* part: from 1 */
    const char *text;
    size_t text_bytes;
};

/* A text, and the parts of it that come from a document: {text} and {title}. */
struct job_filled {
    struct spw_text text;
    struct spw_text_span *plain; /* owned, [n_plain], in order */
    size_t n_plain;
};
void job_filled_free(struct job_filled *x);
/* Puts the values into the text of a task. The values are copied as they are. 0 or -ENOMEM. */
int job_instructions_fill(const struct job_instructions *x, enum job_task task,
                          const struct job_values *values, struct job_filled *out);

/* --length: short, medium, long, or a number of words. */
int job_parse_length(const char *text, uint64_t *words, struct spw_error *err);

#endif
