/* The smallest program with the installed library: prints N tokens that a model generates after
 * token 1. C and C++. tests/command/test_install.sh builds and runs it.
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
    struct spw_error err;
    struct spw_engine *engine;
    struct spw_batch *batch = NULL;
    struct spw_event event;
    uint64_t id;
    int n = 0;
    if (argc != 3)
        return 2;
    spw_error_clear(&err);
    spw_options_init(&options);
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
    int rc = spw_batch_open(&batch, engine, NULL, &err);
    if (rc == 0)
        rc = spw_batch_submit(batch, &request, &id, &err);
    while (rc == 0 && spw_batch_step(batch, &err) >= 0) {
        int ended = 0;
        while (spw_batch_event(batch, &event)) {
            if (event.kind == SPW_EVENT_TOKEN)
                printf("%s%d", n++ ? " " : "", (int)event.token);
            ended |= event.kind == SPW_EVENT_END;
        }
        if (ended)
            break;
    }
    spw_batch_close(batch);
    spw_engine_close(engine);
    if (err.text[0])
        fprintf(stderr, "%s\n", err.text);
    return err.text[0] != 0;
}
