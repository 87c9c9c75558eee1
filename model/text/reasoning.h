/* Splits the text of an answer into reasoning and answer.
 *
 * A model that reasons marks the reasoning in its text. A form has the marks. Two sorts are known:
 *
 *   pair      <think> REASONING </think> ANSWER        (only where the text begins)
 *             <|think|> REASONING <|end|><|begin|>assistant<|content|> ANSWER, or
 *             <|content|> ANSWER                       (Solar Open)
 *   channels  <|channel|>analysis<|message|> REASONING <|end|>
 *             <|start|>assistant<|channel|>final<|message|> ANSWER <|return|>     (gpt-oss)
 *
 * A prompt may end with the opening mark; then the text begins as reasoning. A splitter takes the
 * text in pieces of any size and gives the parts without marks, and without line breaks beside a
 * mark of a pair. The splitter depends on the text only, allocates nothing, and never fails. */
#ifndef SPW_MODEL_TEXT_REASONING_H
#define SPW_MODEL_TEXT_REASONING_H

#include "model/text/chat_template.h"
#include "model/text/tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The special tokens of a form's marks. The text of an answer must have them, although it has no
 * other special tokens (spw_request.shown). */
struct spw_marks {
    int32_t ids[SPW_TOKENIZER_MOST_SHOWN];
    size_t n;
};
/* Adds those of one mark. 0, or -errno of the tokenizer. */
int spw_marks_add(struct spw_marks *m, const struct spw_tokenizer *t, const char *mark);

struct spw_reasoning_form {
    const char *open, *close; /* static texts: the pair; both NULL: there is none */
    const char *bare;         /* what begins an answer without reasoning; NULL: nothing does */
    bool has_channels;
    struct spw_marks specials;
};

/* Finds the form of a model: its chat template has the marks in its text, or its tokenizer has a
 * token for each mark. `t` may be NULL. The form of other models has no marks: all text is answer.
 * 0, or -errno of the tokenizer. */
int spw_reasoning_find(struct spw_reasoning_form *out, const struct spw_chat_template *t,
                       const struct spw_tokenizer *tokenizer);
static inline bool spw_reasoning_has_marks(const struct spw_reasoning_form *f)
{
    return f->open || f->has_channels;
}
/* Whether a prompt ends inside reasoning: with the opening mark, and maybe white space after it. */
bool spw_reasoning_is_open(const struct spw_reasoning_form *f, const char *prompt, size_t bytes);

enum { SPW_REASONING_MOST_HELD = 512 };

struct spw_splitter {
    struct spw_reasoning_form form;
    enum { SPW_SPLIT_START, SPW_SPLIT_HEADER, SPW_SPLIT_REASONING, SPW_SPLIT_ANSWER } state;
    bool had_answer, had_reasoning;     /* some text of this part was given */
    bool after_mark;                    /* line breaks that follow are not given */
    uint64_t n_breaks;                  /* line breaks of the reasoning that are not given yet */
    char held[SPW_REASONING_MOST_HELD]; /* text that may be a mark */
    size_t n_held;
};

/* Gets a piece of a part. 0; anything else ends the call, which returns it. */
typedef int (*spw_splitter_emit)(void *context, bool is_reasoning, const char *text, size_t bytes);

/* `is_open`: of the prompt (spw_reasoning_is_open). */
void spw_splitter_init(struct spw_splitter *s, const struct spw_reasoning_form *form, bool is_open);
int spw_splitter_push(struct spw_splitter *s, const char *text, size_t bytes,
                      spw_splitter_emit emit, void *context);
/* The text ends. What was held back is given. */
int spw_splitter_finish(struct spw_splitter *s, spw_splitter_emit emit, void *context);

/* How many of an answer's tokens are reasoning, its marks included. 0 or -ENOMEM. */
int spw_reasoning_count(uint64_t *out, const struct spw_reasoning_form *form, bool is_open,
                        const struct spw_tokenizer *t, const int32_t *tokens, size_t n);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
