/* The input of the command: texts, token ids, and JSON lines of prompts. All functions return 0 or
 * an exit code. Before an exit code they print one line on stderr with the file, what was found and
 * what was expected. */
#ifndef SPW_TOOLS_COMMAND_INPUT_INPUT_H
#define SPW_TOOLS_COMMAND_INPUT_INPUT_H

#include "tools/command/common.h"

/* The parts of a model that are needed to read input. */
struct cli_model {
    struct spw_source *source; /* owned */
    struct spw_model_config config;
    struct spw_tokenizer *tokenizer; /* owned; NULL if the caller wanted none */
};

int cli_model_open(struct cli_model *m, const char *path, bool with_tokenizer);
void cli_model_close(struct cli_model *m);
/* Refuses a model with an encoder; `what`: the command or the option that is not for such models.
 */
int cli_refuse_encoder(const struct cli_model *m, const char *what);
/* Refuses a model whose source is audio. */
int cli_refuse_audio(const struct cli_model *m);
/* Opens the template of --chat-template, else the model's own. 0, or -errno of the source; the text
 * of -ENOENT says what would do. */
int cli_chat_template_open(struct spw_chat_template **out, const struct cli_options *o,
                           const struct cli_model *m, struct spw_error *err);

struct cli_speech;

/* One prompt. */
struct cli_input {
    int32_t *tokens; /* owned; NULL if only their number is known (--prompt-tokens) */
    size_t n_tokens;
    uint64_t max_new_tokens;
    struct cli_speech *speech; /* owned, of a model whose source is audio: the tokens are those of
                                  its first window. NULL: the source is text, or there is none */
};

struct cli_inputs {
    struct cli_input *items; /* owned, [capacity] */
    size_t n, capacity;
    size_t n_lines;   /* of --prompts, each with one input or more */
    uint64_t longest; /* largest prompt + max_new_tokens: the context that the inputs need */
};

/* Reads the input from the one source that was given (--prompt, --prompt-file, --token-ids). With
 * `optional`, --prompt-tokens is a source too, and without any source there are no inputs. With
 * --prompts there are none: job/prompts.h reads them. With --input-file the encoder of the model
 * reads that file, and the source, if there is one, begins the answer. */
int cli_inputs_read(struct cli_inputs *in, const struct cli_options *o, const struct cli_model *m,
                    bool optional);
void cli_inputs_free(struct cli_inputs *in);
/* Puts the file of --input-file, which the encoder reads, before the tokens that the answer begins
 * with: the model's own first token, if it is not there, and those of the item. */
int cli_add_source(struct cli_input *item, const struct cli_options *o, const struct cli_model *m);

/* *tokens = the source, the first token of answers, the *n tokens that were there. 0 or -ENOMEM. */
int cli_join_source(int32_t **tokens, size_t *n, const struct spw_model_config *c,
                    const int32_t *source, size_t n_source);

/* In a model with an encoder the tokens of the only item become a source, as a batch makes it of
 * them, if they are not one already. */
int cli_take_as_source(struct cli_inputs *in, const struct spw_model_config *c);

/* Options that no beam search has, NULL at the end. */
extern const char *const cli_no_beams[];
/* What the files of a model with an encoder say of a search counts where no option says it, unless
 * an option that no search has was given. */
void cli_obey_search(struct cli_options *o, const struct cli_model *m);
/* The same, refuses options that do not fit to the search, and says it if the files ask for one. */
int cli_take_search(struct cli_options *o, const struct cli_model *m);
/* The search of the options. */
struct spw_beam_search cli_beams(const struct cli_options *o);
/* The most tokens of an answer: --max-new-tokens, else what the files say, else the default.
 * n_before: tokens that the answer begins with. */
uint64_t cli_max_new_tokens(const struct cli_options *o, const struct spw_model_config *c,
                            uint64_t n_before);

/* The name of an input in messages: "-" is stdin. */
const char *cli_input_name(const char *path);
/* Reads a whole file; "-" reads stdin. Leaves out a byte order mark of UTF-8. *data is
 * NUL-terminated and allocated with spw_alloc. */
int cli_read_file(const char *path, char **data, size_t *bytes);
int cli_read_ids(const char *path, int32_t **ids, size_t *n);
/* Encodes a text; refuses an empty text. 0, or -errno with a reason that names no source. */
int cli_encode_spans(const struct spw_tokenizer *t, const struct spw_encoding *e, int32_t **ids,
                     size_t *n, struct spw_error *err);
/* The same, with the reason on stderr. `source` is its name in messages. */
int cli_encode(const struct spw_tokenizer *t, const char *source, const char *text, size_t bytes,
               bool add_special, int32_t **ids, size_t *n);
int cli_encode_file(const struct spw_tokenizer *t, const char *path, bool add_special,
                    int32_t **ids, size_t *n);
/* Refuses a --stop that is empty or not UTF-8. `t` may be NULL without --stop. */
int cli_check_stops(const struct cli_options *o, const struct spw_tokenizer *t);
int cli_check_ids(const char *source, const int32_t *ids, size_t n, uint32_t vocab);
/* The most tokens that a prompt and its answer may have together: --context, else what the model
 * was made for. */
uint64_t cli_longest_context(const struct cli_options *o, const struct cli_model *m);
/* If a text of --prompt-file with so many tokens is longer than what the model knows: says that
 * `summarize` reads it. The caller refuses the text. */
void cli_say_summarize(const struct cli_options *o, const struct cli_model *m, size_t n_tokens);
/* Prints a note if the tokenizer has no text for some of these tokens. */
void cli_say_unnamed(const struct cli_model *m, const int32_t *tokens, size_t n);
/* Finds which option of `names` (NULL at the end) was given. Refuses two of them, and, unless
 * `optional`, none. */
int cli_one_of(const struct cli_options *o, const char *const *names, bool optional,
               const char **out);

#endif
