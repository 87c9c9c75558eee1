/* --prefix-cache through the command, with models of several layouts. */
#include "tests/command/cases.h"
#include "tests/engine/tiny_model.h"

static void write_model(const struct tiny_model *m, const char *n_ids, const char *more)
{
    tiny_model_write(m, in_folder("m"));
    setenv("IDS", n_ids, 1);
    setenv("MORE", more, 1);
    snprintf(out, sizeof out, "%u", m->vocab);
    setenv("VOCAB", out, 1);
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    open_folder("prefix_command");
    command_limits();
    const struct {
        const struct tiny_model *model;
        const char *n_ids, *more;
    } runs[] = {
        {&tiny_models[0], "1100", ""},
        {&tiny_models[1], "1100", "--kv-dtype int8 --residual-window 128"},
        {tiny_model_of("mistral"), "1030", ""}, /* where its odd window ends in the last tile */
        {tiny_model_of("gemma3_text"), "1030", "--kv-dtype int4 --residual-window 0"},
        {tiny_model_of("qwen3_5_text"), "1100", ""},
        {tiny_model_of("qwen3_5_text"), "1100", "--kv-dtype int8 --residual-window 128"},
        {tiny_model_of("lfm2"), "1100", "--prefill-chunk 100"}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        write_model(runs[i].model, runs[i].n_ids, runs[i].more);
        run_cases("prefix", "two processes");
        run_cases("prefix", runs[i].n_ids);
        CHECK(sh("rm -r cache m") == 0);
    }
    write_model(&tiny_models[0], "300", "");
    run_cases("prefix", "resume");
    run_cases("prefix", "refusals");
    write_model(&tiny_models[0], "1100", "");
    run_cases("prefix", "write limit");
    CHECK(sh("rm -r \"$PWD\"") == 0);
    return check_done();
}
