/* Cuts a text into parts of at most so many tokens. Pure functions.
 *
 * A part ends at the best border that keeps the parts about equally long: before a heading or after
 * a blank line, else at the end of a line, of a sentence, of a word, of a character. A border
 * between a heading and its first paragraph counts as the end of a line. Every byte of the text
 * belongs to exactly one part. Time and memory are linear in the length of the text. */
#ifndef SPW_TOOLS_COMMAND_JOB_SUMMARIZE_SPLIT_H
#define SPW_TOOLS_COMMAND_JOB_SUMMARIZE_SPLIT_H

#include "base/base.h"

/* The best border that a position is. */
enum job_border {
    JOB_BORDER_NONE, /* inside a code point */
    JOB_BORDER_CODE_POINT,
    JOB_BORDER_CHARACTER, /* what a reader takes for one: a letter with its accents */
    JOB_BORDER_WORD,
    JOB_BORDER_SENTENCE,
    JOB_BORDER_LINE,
    JOB_BORDER_PARAGRAPH,
    JOB_BORDER_HEADING,
    JOB_BORDER_END, /* of the text */
};

/* Gives the number of tokens of a text by itself, without special tokens. A negative result ends
 * the cutting. */
typedef int job_count_tokens(const void *context, const char *text, size_t bytes, size_t *n,
                             struct spw_error *err);
/* job_count_tokens with a struct spw_tokenizer as the context. */
int job_count_with_tokenizer(const void *tokenizer, const char *text, size_t bytes, size_t *n,
                             struct spw_error *err);

struct job_part {
    size_t begin, end;      /* bytes [begin, end) of the text */
    size_t n_tokens;        /* of the part by itself */
    enum job_border border; /* at its end */
};

/* *parts is owned by the caller (spw_free); an empty text has no parts. -EILSEQ: the text is not
 * UTF-8; -E2BIG: a single code point has more than `most_tokens` tokens; -ENOMEM; what `count`
 * returned. */
int job_split(const char *text, size_t bytes, size_t most_tokens, job_count_tokens *count,
              const void *context, struct job_part **parts, size_t *n_parts, struct spw_error *err);

/* borders[i], i < bytes, gets an enum job_border for the position before byte i. -EILSEQ. */
int job_borders(const char *text, size_t bytes, uint8_t *borders, struct spw_error *err);

#endif
