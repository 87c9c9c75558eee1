/* A folder for tests of the command, with a committed golden model `m` in it that has a tokenizer
 * of bytes. */
#ifndef SPW_TESTS_COMMAND_COMMAND_MODEL_H
#define SPW_TESTS_COMMAND_COMMAND_MODEL_H

#include "tests/byte_tokenizer.h"
#include "tests/command/command_run.h"

static inline void command_model(const char *test)
{
    char json[BYTE_TOKENIZER_BYTES], path[256], command[512];
    snprintf(folder, sizeof folder, "/tmp/spw_%s_%d", test, (int)getpid());
    snprintf(command, sizeof command,
             "mkdir %s && cp -r tests/golden/llama_700 %s/m && chmod -R u+w %s", folder, folder,
             folder);
    CHECK(system(command) == 0);
    snprintf(path, sizeof path, "%s/m/tokenizer.json", folder);
    size_t n = byte_tokenizer_json(json);
    FILE *file = fopen(path, "w");
    CHECK(file && fwrite(json, 1, n, file) == n);
    if (file)
        fclose(file);
}

#endif
