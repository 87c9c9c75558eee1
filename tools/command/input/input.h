/* What the command reads: texts, token ids, and JSON lines of prompts. All functions return 0 or an
 * exit code, after one line on stderr that names the file, what was found and what was expected. */
#ifndef SPW_TOOLS_COMMAND_INPUT_INPUT_H
#define SPW_TOOLS_COMMAND_INPUT_INPUT_H

#include "tools/command/common.h"

/* The parts of a model folder that say how to read input. */
struct cli_model {
    struct spw_model_config config;
    struct spw_tokenizer *tokenizer; /* owned; NULL when it was not wanted */
};

int cli_model_open(struct cli_model *m, const char *folder, bool with_tokenizer);
int cli_tokenizer_open(struct spw_tokenizer **out, const char *folder);
void cli_model_close(struct cli_model *m);

/* One prompt and how it is to be continued. */
struct cli_input {
    int32_t *tokens; /* owned; NULL where only their number is known (--prompt-tokens) */
    size_t n_tokens;
    uint64_t max_new_tokens;
    struct spw_sampling sampling;
    struct cli_strings stop; /* strings are borrowed from the options, or from `line` */
    bool ignore_eos;
    size_t number; /* of its line in --prompts */
    char *refused; /* owned; why it is not computed; NULL: it is */
    json_t *line;  /* owned; NULL unless the prompt came from JSON lines */
};

struct cli_inputs {
    struct cli_input *items; /* owned */
    size_t n;
    uint64_t longest; /* of prompt + max_new_tokens: the context they need */
    size_t n_refused;
};

/* A line of --prompts is too long: says so on stderr, and the others go on. `longest` is found
 * again. */
int cli_inputs_refuse(struct cli_inputs *in, const struct cli_options *o, struct cli_input *item,
                      const char *why);

/* From the one source that was given (--prompt, --prompt-file, --token-ids, --prompts); with
 * `optional`, --prompt-tokens is one too, and none gives no inputs. */
int cli_inputs_read(struct cli_inputs *in, const struct cli_options *o, const struct cli_model *m,
                    bool optional);
void cli_inputs_free(struct cli_inputs *in);

/* A whole file, NUL-terminated, *data by spw_alloc; "-" reads stdin. */
int cli_read_file(const char *path, char **data, size_t *bytes);
int cli_read_ids(const char *path, int32_t **ids, size_t *n);
/* `source` is for messages. An empty text is refused. */
int cli_encode(const struct spw_tokenizer *t, const char *source, const char *text, size_t bytes,
               bool add_special, int32_t **ids, size_t *n);
int cli_check_ids(const char *source, const int32_t *ids, size_t n, uint32_t vocab);
/* Refuses a context that is longer than what the model was made for, unless that is allowed. */
int cli_check_context(const struct cli_options *o, const struct cli_model *m, uint64_t context);
/* Says how many of these tokens the tokenizer has no text for, if there are any. */
void cli_say_unnamed(const struct cli_model *m, const int32_t *tokens, size_t n);
/* The one of `names` (NULL at the end) that was given; refuses two, and none unless `optional`. */
int cli_one_of(const struct cli_options *o, const char *const *names, bool optional,
               const char **out);

#endif
