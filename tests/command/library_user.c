/* The smallest user of the installed library: a model folder and a number, and the tokens that the
 * model goes on with from token 1. C and C++. tests/command/test_install.sh builds and runs it.
 *
 *     cc library_user.c $(pkg-config --cflags --libs spillway) && ./a.out MODEL 8 */
#include "runtime/spillway.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    const int32_t prompt[] = {1};
    struct spw_options options;
    struct spw_request request;
    struct spw_result result;
    struct spw_error err = {""};
    struct spw_engine *engine;
    if (argc != 3)
        return 2;
    memset(&options, 0, sizeof options);
    options.backend = SPW_BACKEND_CPU;
    options.context = (uint64_t)atoi(argv[2]) + 1;
    if (spw_engine_open(&engine, argv[1], &options, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    memset(&request, 0, sizeof request);
    request.prompt = prompt;
    request.n_prompt = 1;
    request.max_new_tokens = (size_t)atoi(argv[2]);
    request.ignore_eos = true;
    int rc = spw_generate(engine, NULL, &request, 1, &result, NULL, &err);
    for (size_t i = 0; i < result.n_tokens; i++)
        printf("%s%d", i ? " " : "", (int)result.tokens[i]);
    spw_result_free(&result);
    spw_engine_close(engine);
    if (rc < 0)
        fprintf(stderr, "%s\n", err.text);
    return rc < 0;
}
