/* Splits the text of an answer into its parts: reasoning, text, and calls of tools, each in the
 * form of its model. The text comes in pieces of any size; the parts come as soon as they are
 * certain. */
#ifndef SPW_MODEL_TEXT_ANSWER_PARTS_H
#define SPW_MODEL_TEXT_ANSWER_PARTS_H

#include "model/text/grammar/grammar.h"
#include "model/text/reasoning.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* How a model writes calls of tools in its text: a row of a table. */
struct spw_tool_style;

struct spw_tool_form {
    const struct spw_tool_style *style; /* NULL: the model has none */
    struct spw_marks specials;
};
/* 0, or -errno of the tokenizer. `t` and `tokenizer` may be NULL. */
int spw_tool_form_find(struct spw_tool_form *out, const struct spw_chat_template *t,
                       const struct spw_tokenizer *tokenizer);
/* Whether the template takes ids of nine letters and digits only. */
bool spw_tool_form_wants_short_ids(const struct spw_tool_form *f);
/* Answers that are one call: of the function `name`; NULL: of any of the tools (OpenAI's list). `t`
 * may be NULL: then no mark is a special token.
 * -ENOTSUP: the style has no grammar; -EINVAL: no such function, or its schema is refused. */
int spw_tool_form_grammar(struct spw_grammar **out, const struct spw_tool_form *f,
                          const struct spw_tokenizer *t, const char *tools_json, const char *name,
                          struct spw_error *err);

enum spw_answer_piece_kind {
    SPW_PIECE_TEXT,
    SPW_PIECE_REASONING,
    SPW_PIECE_CALL,      /* a call begins: `text` is the name of the function */
    SPW_PIECE_ARGUMENTS, /* the next bytes of the call's arguments, a JSON text in all */
    SPW_PIECE_CALL_END,  /* the call is complete */
};
struct spw_answer_piece {
    enum spw_answer_piece_kind kind;
    uint32_t call; /* number of the call in the answer, from 0 on */
    const char *text;
    size_t bytes;
};
/* 0; anything else ends the call, which returns it. */
typedef int (*spw_answer_emit)(void *context, const struct spw_answer_piece *piece);

struct spw_answer_parts;
struct spw_answer_parts_options {
    const struct spw_reasoning_form *reasoning; /* borrowed until open returns; NULL: none */
    bool is_open;                               /* the answer begins inside reasoning */
    const struct spw_tool_form *tools;          /* borrowed until open returns; NULL: no calls */
    const char *tools_json; /* OpenAI's list of tools, which says the types of arguments; borrowed
                               until open returns; NULL: none */
    size_t tools_bytes;
};
/* -EINVAL: tools_json is no such list; -ENOMEM. */
int spw_answer_parts_open(struct spw_answer_parts **out, const struct spw_answer_parts_options *o);
void spw_answer_parts_close(struct spw_answer_parts *a); /* NULL is fine */
int spw_answer_parts_push(struct spw_answer_parts *a, const char *text, size_t bytes,
                          spw_answer_emit emit, void *context);
/* The text ends. A call that has begun and is not complete has no CALL_END. */
int spw_answer_parts_finish(struct spw_answer_parts *a, spw_answer_emit emit, void *context);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
