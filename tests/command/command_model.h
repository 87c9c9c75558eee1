/* A folder for tests of the command, with a committed golden model `m` in it that has a tokenizer
 * of bytes. */
#ifndef SPW_TESTS_COMMAND_COMMAND_MODEL_H
#define SPW_TESTS_COMMAND_COMMAND_MODEL_H

#include "tests/byte_tokenizer.h"
#include "tests/command/command_run.h"

/* Gives a model of the folder the tokenizer of bytes. */
static inline void write_tokenizer(const char *model)
{
    char json[BYTE_TOKENIZER_BYTES], name[64];
    byte_tokenizer_json(json);
    snprintf(name, sizeof name, "%s/tokenizer.json", model);
    write_text(name, json);
}

/* A copy of a committed model whose vocabulary has 96 tokens. */
static inline void command_golden(const char *model, const char *golden)
{
    CHECK(sh("rm -rf %s && cp -r $REPOSITORY/tests/golden/%s %s && chmod -R u+w %s", model, golden,
             model, model) == 0);
    write_tokenizer(model);
}

static inline void command_model(const char *test)
{
    open_folder(test);
    command_golden("m", "llama_700");
}

#endif
