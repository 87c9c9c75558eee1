/* The one table of options. Parsing, --help, the manual page, docs/options.md and shell completions
 * use it.
 *
 * cli_parse fills `struct cli_options` from a command line. Strings are borrowed from argv, lists
 * are owned (cli_options_free). For a command line that it refuses, it prints one line on stderr,
 * with what was found and what was expected, and returns the exit code. */
#ifndef SPW_TOOLS_COMMAND_OPTIONS_OPTIONS_H
#define SPW_TOOLS_COMMAND_OPTIONS_OPTIONS_H

#include "base/json.h"
#include "model/config/config.h"
#include "model/quantize.h"
#include "model/source/source.h"
#include "model/text/chat_template.h"
#include "model/text/tokenizer/tokenizer.h"
#include "offload/store/store_info.h"
#include "runtime/engine/cache_policy.h"
#include "runtime/events.h"
#include "runtime/measure.h"
#include "runtime/plan_query.h"

#include <stdio.h>

enum cli_exit {
    CLI_DONE = 0,
    CLI_FAILED = 1,        /* failed while running */
    CLI_REFUSED = 2,       /* bad usage or input */
    CLI_INTERRUPTED = 130, /* 128 + SIGINT, as shells count */
    CLI_HELP_SHOWN = -1,   /* only from cli_parse: it printed --help, and there is nothing to run */
};

enum { CLI_KV_PRECISION = 16 }; /* see cli_options.kv_dtype */

enum cli_progress_mode {
    CLI_PROGRESS_AUTO,
    CLI_PROGRESS_ALWAYS,
    CLI_PROGRESS_NEVER,
};

#define CLI_MAX_COUNTS 64
#define CLI_MAX_ROWS 160 /* of the table of options */

struct cli_counts {
    uint64_t items[CLI_MAX_COUNTS];
    size_t n;
};

struct cli_device {
    int kind; /* enum spw_backend_kind */
    uint32_t index;
};

struct cli_strings {
    const char **items; /* owned; the strings are borrowed */
    size_t n;
};

struct cli_biases {
    struct spw_logit_bias *items; /* owned */
    size_t n;
};

struct cli_ids {
    int32_t items[CLI_MAX_COUNTS];
    size_t n;
    bool is_given;
};

struct cli_command;

struct cli_options {
    const struct cli_command *command;
    const char *operand; /* MODEL, or the shell of `completion` */
    const char *
        verb; /* the word before the operand, for a command that has several actions (`cache ls`) */
    bool given[CLI_MAX_ROWS]; /* by row of the table: ask cli_given */

    /* input */
    const char *prompt, *prompt_file, *input_file, *token_ids, *prompts, *simulate;
    const char *text, *text_file;
    const char *messages, *system, *tools, *documents, *chat_template;
    const char *input, *output, *errors, *shard; /* of a job */
    struct cli_strings paths;                    /* operands after the first one */
    const char *out_dir, *instructions, *length, *language, *focus;
    int strategy;
    bool retry_failed, status;
    bool no_special, decode, allow_long_context;

    /* generation */
    uint64_t max_new_tokens;
    struct cli_strings stop;
    const char *json_schema;
    bool ignore_eos, show_reasoning;
    uint64_t seed, top_k;
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    struct cli_biases logit_bias;
    uint64_t no_repeat_ngram_size, min_length,
        min_new_tokens; /* SPW_NONE: as the model's files say */
    struct cli_ids token_lists[SPW_TOKEN_LISTS];
    uint64_t top_logprobs; /* of --logprobs, if that was given */
    uint64_t num_beams, num_beam_groups, num_return_sequences;
    double diversity_penalty, length_penalty;
    int early_stopping; /* enum spw_early_stopping */
    uint64_t n;         /* answers of each prompt */

    /* machine and memory */
    struct cli_device device;
    int compute, kv_dtype; /* kv_dtype: enum spw_dtype, or CLI_KV_PRECISION + spw_kv_precision */
    int on_oom;            /* SPW_ON_OOM_* */
    int drafts;            /* enum spw_drafts */
    int host_compute;      /* enum spw_host_compute */
    const char *draft_model;
    uint64_t n_drafts; /* of `plan` */
    double acceptance;
    uint64_t residual_window;
    const char *disk;
    int io;      /* enum spw_io_kind */
    int kv_gate; /* 1: on */
    uint64_t disk_memory, disk_write_limit;
    uint64_t prompt_tokens, prefix_tokens;
    const char *prefix_cache;
    uint64_t prefix_cache_size;
    bool trust_prefix_cache;
    uint64_t threads, device_memory, host_memory, context, sessions, prefill_chunk, prefetch_slots,
        prefetch_splits;
    uint64_t delay_seed, size;

    /* serve */
    const char *host, *model_name, *api_key_file;
    struct cli_strings allowed_hosts, allowed_origins;
    uint64_t port, max_queue, max_body, max_connections;
    double max_gap;

    /* output */
    const char *save, *resume; /* files of a session */
    uint64_t save_every;
    int type; /* enum spw_dtype */
    const char *report, *dump_logits, *drive_profile, *kv_profile, *weight_checksums;
    const char *expert_profile, *expert_trace;
    bool json, ids, tensors, topology, self_test, no_probe, redo, serial_kernels;
    int progress;
    bool quiet;

    /* bench */
    struct cli_counts contexts, budgets;
    uint64_t repeat, decode_tokens;
    bool random_tokens;
};

/* A subcommand is one row in spillway.c and one file. */
struct cli_command {
    const char *name;
    unsigned bit;            /* in the option table's `commands` */
    const char *operand;     /* as shown: "MODEL"; "[DIR]" is optional; "do|undo DIR" begins with a
                                verb;     "MODEL|OUTPUT..." may be several;
                                "MODEL OUT.gguf" are two */
    const char *summary;     /* one line */
    const char *description; /* a paragraph for --help */
    const char *examples;    /* lines for --help */
    int (*run)(const struct cli_options *o);
};

/* The rows; the last one has no name. */
extern const struct cli_command cli_commands[];

enum {
    CLI_GENERATE = 1 << 0,
    CLI_SCORE = 1 << 1,
    CLI_PLAN = 1 << 2,
    CLI_INSPECT = 1 << 3,
    CLI_TOKENIZE = 1 << 4,
    CLI_BENCH = 1 << 5,
    CLI_COMPLETION = 1 << 6,
    CLI_PROBE = 1 << 7,
    CLI_CHAT = 1 << 8,
    CLI_CACHE = 1 << 9,
    CLI_CHECK_KV = 1 << 10,
    CLI_BATCH = 1 << 11,
    CLI_SUMMARIZE = 1 << 12,
    CLI_QUANTIZE = 1 << 13,
    CLI_SERVE = 1 << 14,
};

/* argv[0] is the subcommand. 0, an exit code, or CLI_HELP_SHOWN. */
int cli_parse(struct cli_options *o, const struct cli_command *command, int argc, char **argv);
void cli_options_free(struct cli_options *o);
bool cli_given(const struct cli_options *o, const char *name);
/* Sets a number of the command's generation, "temperature": 0, or an exit code after a line. */
int cli_set(struct cli_options *o, const char *name, const char *value);
/* Writes what cli_set can set, a line for each. */
void cli_show_settings(FILE *to, const struct cli_options *o);

/* The library names a setting as the member of struct spw_options: "options.device_bytes". Puts the
 * command's option in the place of each such name: "--device-memory". The text never grows. Where
 * it says "ask for a smaller options.context", it gets what cli_name_context has found. */
void cli_name_options(char *text);
/* The text of spw_batch_submit: takes the number of the request away, and gives a member of it the
 * name that the user knows, as a key of a line or as an option. Returns the key; NULL: the text
 * begins with no member. */
const char *cli_name_request(struct spw_error *err, bool as_option);
/* Finds what makes the context of this command smaller. The command line is the same for the whole
 * process. */
void cli_name_context(const struct cli_options *o);

/* The name that is most similar to `word`; NULL when no name differs by only one or two typing
 * errors. */
const char *cli_nearest(const char *word, const char *const *names, size_t n);

/* `all`: every option; else those of every day, if there are many. */
void cli_help(FILE *to, const struct cli_command *command, bool all);
void cli_help_commands(FILE *to);
/* The manual page spillway(1). */
void cli_man(FILE *to);
/* docs/options.md. */
void cli_options_page(FILE *to);
/* A script for a shell. 0, or CLI_REFUSED for an unknown shell. */
int cli_completion(FILE *to, const char *shell);
/* What may stand in the place of the last word of a command line: the script asks for it. */
void cli_complete(FILE *to, int n, char **words);

/* NULL: there is none. */
const struct cli_command *cli_find_command(const char *name);

/* ---- rows, for help, the manual page and completion ---- */

enum cli_kind {
    CLI_FLAG,
    CLI_COUNT,
    CLI_SIZE,
    CLI_NUMBER,
    CLI_TEXT,
    CLI_FILE_IN,
    CLI_FILE_OUT,
    CLI_CHOICE,
    CLI_DEVICE, /* a choice, or cuda:N */
    CLI_TEXTS,  /* may be repeated */
    CLI_BIASES, /* ID=X; may be repeated */
    CLI_COUNTS, /* separated by commas */
    CLI_IDS,    /* of tokens, separated by commas, or "none" */
    CLI_SIZES,
};

struct cli_choice {
    const char *name; /* NULL ends the list */
    int value;
};

struct cli_row {
    const char *name; /* NULL ends the table */
    enum cli_kind kind;
    unsigned commands;
    const char *group;
    const char *argument; /* the name of the value, as shown: "SIZE"; NULL for flags */
    const char *help;
    size_t at;                        /* of the field in struct cli_options */
    double min, max;                  /* counts and numbers; both 0: any */
    const struct cli_choice *choices; /* CLI_CHOICE, CLI_DEVICE */
    unsigned everyday;                /* commands whose --help shows it without "all" */
};

extern const struct cli_row cli_rows[];
/* The value that an option has now; a new reference. */
json_t *cli_value_json(const struct cli_options *o, const struct cli_row *row);
/* The row of an option of the command; `name` has no dashes. NULL: there is none. */
const struct cli_row *cli_find_row(const struct cli_command *command, const char *name);

#endif
