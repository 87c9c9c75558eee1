/* What lines of a job need, without a model: a folder with files and a chat template, a tokenizer
 * of bytes with 96 tokens, options of a command line, a reader. One a process. */
#ifndef SPW_TESTS_JOB_WORLD_H
#define SPW_TESTS_JOB_WORLD_H

#include "tests/byte_tokenizer.h"
#include "tests/folder.h"
#include "tools/command/request/reader.h"

const struct cli_command cli_commands[] = {{.name = NULL}};

static struct cli_options options;
static struct request_reader reader;

static inline int open_template(const struct spw_source *s, const char *name, const char *file,
                                struct spw_chat_template **out, struct spw_error *err)
{
    (void)s;
    (void)file;
    return spw_chat_template_open(out, folder, name, err);
}

static const struct spw_source_ops source_ops = {.chat_template = open_template};
static struct spw_source source = {.ops = &source_ops};
static struct cli_model model = {.source = &source, .config.vocab = BYTE_TOKENIZER_VOCAB};

/* Has no spaces, for which the tokenizer has no token. */
static const char template[] =
    "{%- for m in messages -%}{%- if m.role == 'tool' -%}{{ raise_exception('no tools here') }}"
    "{%- endif -%}<{{ m.role }}>{{ m.content }}"
    "{%- for c in m.tool_calls or [] -%}[{{ c.function.arguments.a }}]{%- endfor -%}{%- endfor -%}"
    "{%- if tools -%}T{{ tools | length }}{%- endif -%}"
    "{%- if extra -%}{{ extra }}{%- endif -%}{{ strftime_now('%Y') }}";

static inline void use_template(const char *text)
{
    request_reader_close(&reader);
    reader.no_template = (struct request_refusal){0};
    reader.habits = (struct request_habits){0};
    reader.takes_effort = 0;
    write_text("chat_template.jinja", text);
}

/* The command line, without the command. */
static inline void use_options(int argc, char **argv)
{
    static const struct cli_command command = {
        .name = "test", .bit = CLI_GENERATE, .operand = "MODEL"};
    cli_options_free(&options);
    CHECK(cli_parse(&options, &command, argc, argv) == 0);
}

static inline void no_options(void)
{
    char *argv[] = {"test", folder};
    use_options(2, argv);
}

static inline void job_world_open(void)
{
    char json[BYTE_TOKENIZER_BYTES];
    open_folder("job");
    CHECK(mkdir(in_folder("sub"), 0700) == 0);
    CHECK(mkfifo(in_folder("fifo"), 0600) == 0);
    write_text("text.txt", "abc");
    write_text("empty.txt", "");
    write_text("latin.txt", "a\xe9");
    CHECK(spw_tokenizer_parse(&model.tokenizer, json, byte_tokenizer_json(json), "bytes", NULL) ==
          0);
    no_options();
    reader = (struct request_reader){
        .o = &options, .model = &model, .folder = folder, .started = 1000000000};
    use_template(template);
}

static inline void job_world_close(void)
{
    request_reader_close(&reader);
    spw_tokenizer_close(model.tokenizer);
    cli_options_free(&options);
    CHECK(spw_alloc_outstanding() == 0);
    close_folder();
}

#endif
