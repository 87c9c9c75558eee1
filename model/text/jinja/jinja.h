/* Jinja templates as chat templates use them: parsed once, rendered any number of times.
 *
 * The language is the part of Python's jinja2 3.1 that the chat templates of public models use,
 * with the settings Hugging Face renders them with: trim_blocks, lstrip_blocks, break and continue,
 * `generation` blocks, its tojson, and a sandbox in which templates change no list and no dict. The
 * tables of jinja_of_text.c, jinja_of_items.c and jinja_names.c hold the filters, tests, methods
 * and functions. keys(), range() and the like are lists. A parsed template owns all it needs and
 * never changes, so any number of threads may render it. Every failure is one line: template, line
 * and reason; -EINVAL for a mistake of the template or of its input, -E2BIG for a limit.
 *
 * A template is untrusted. Bounded are: nesting (SPW_JINJA_MAX_DEPTH of everything that recurses),
 * and, each plus a multiple of the bytes of the input, so that long texts pass: work, memory,
 * output. */
#ifndef SPW_MODEL_TEXT_JINJA_JINJA_H
#define SPW_MODEL_TEXT_JINJA_JINJA_H

#include "base/base.h"

#include <jansson.h>
#include <time.h>

#define SPW_JINJA_MAX_SOURCE (1u << 20) /* bytes of a template */
#define SPW_JINJA_MAX_DEPTH 1000      /* expressions, blocks, calls and values inside each other */
#define SPW_JINJA_MAX_PARSE_DEPTH 200 /* of them, in the template's own text */
#define SPW_JINJA_MAX_ARGS 1000       /* of one call, or parameters of one macro */
#define SPW_JINJA_MAX_RANGE 100000    /* numbers in one range() */
/* Limit = base + factor * bytes of the input. Work: about one unit an operation or 32 bytes. */
#define SPW_JINJA_WORK_BASE (4u << 20)
#define SPW_JINJA_WORK_FACTOR 4
#define SPW_JINJA_MEMORY_BASE (64u << 20)
#define SPW_JINJA_MEMORY_FACTOR 16
#define SPW_JINJA_OUTPUT_BASE (16u << 20)
#define SPW_JINJA_OUTPUT_FACTOR 8

struct spw_jinja;

struct spw_jinja_input {
    const json_t *vars;   /* an object: the template's variables; borrowed */
    const struct tm *now; /* what strftime_now tells; NULL: a template that asks fails */
};

/* `name` stands for the template in error texts. */
int spw_jinja_parse(struct spw_jinja **out, const char *text, size_t bytes, const char *name,
                    struct spw_error *err);
/* *text is UTF-8, ends in a NUL that *bytes leaves out, and belongs to the caller (spw_free). */
int spw_jinja_render(const struct spw_jinja *t, const struct spw_jinja_input *in, char **text,
                     size_t *bytes, struct spw_error *err);
void spw_jinja_free(struct spw_jinja *t);
/* Whether `words` stand in the text of the template. NULL: no. */
bool spw_jinja_has(const struct spw_jinja *t, const char *words);

#endif
