/* Saved runs of `generate` where memory is short: each allocation fails in turn. The run is
 * written, compared and read whole, or the command says that memory was short; the file is never
 * blamed. */
#include "tests/check.h"
#include "tests/json_text.h"
#include "tools/command/common.h"
#include "tools/command/input/saved.h"

#include <fcntl.h>
#include <string.h>

enum { N_PROMPT = 150, N_HELD = 156, N_TOKENS = 158 };

const struct cli_command cli_commands[] = {{.name = NULL}};
static const char model_dir[] = "tests/golden/llama_700";
static char path[64];
static int32_t tokens[N_TOKENS];
static struct cli_model model;
static struct spw_engine *engine;
static struct spw_session *session;

static struct cli_options options_of(bool resumes)
{
    static const char *const stops[] = {"a text of more than sixteen bytes", "b"};
    static const struct spw_logit_bias biases[] = {{5, 0.5f}, {7, -100}};
    struct cli_options o = {.operand = model_dir,
                            .compute = SPW_DTYPE_AUTO,
                            .kv_dtype = SPW_DTYPE_AUTO,
                            .max_new_tokens = 20};
    if (resumes) {
        o.resume = path;
        return o;
    }
    o.save = path;
    o.temperature = 0.123456789;
    o.seed = UINT64_MAX;
    o.min_length = SPW_NONE;
    o.token_lists[SPW_SUPPRESS] = (struct cli_ids){.items = {5, 9}, .n = 2, .is_given = true};
    o.stop = (struct cli_strings){(const char **)(uintptr_t)stops, 2};
    o.logit_bias = (struct cli_biases){(struct spw_logit_bias *)(uintptr_t)biases, 2};
    return o;
}

static void open_session(void)
{
    struct spw_error err = {0};
    CHECK_MSG(!spw_session_open(&session, engine, &err), "%s", err.text);
    const struct spw_span span = {.session = session, .tokens = tokens, .n_tokens = N_HELD};
    CHECK_MSG(!spw_sync(engine, &span, 1, NULL, NULL, &err), "%s", err.text);
}

/* ---- one call each: 0 or an exit code ---- */

static int hold_file(void)
{
    const struct cli_options o = options_of(false);
    struct cli_input in = {.tokens = tokens, .n_tokens = N_PROMPT};
    return cli_saved_open_file(session, engine, &o, &in);
}

static int write_file(void)
{
    const struct cli_options o = options_of(false);
    const struct spw_result result = {.tokens = tokens + N_PROMPT,
                                      .n_tokens = N_TOKENS - N_PROMPT,
                                      .logits_hash = UINT64_MAX - 1};
    const struct cli_progress_made made = {.prompt = tokens,
                                           .n_prompt = N_PROMPT,
                                           .result = &result,
                                           .n_text = 11,
                                           .max_new_tokens = o.max_new_tokens};
    uint64_t bytes = 0;
    return cli_saved_write(session, &o, &made, &bytes);
}

static int read_file(void)
{
    struct cli_options o = options_of(true);
    const struct cli_options before = options_of(false);
    struct cli_saved s;
    struct cli_inputs in = {0};
    int code = cli_saved_open(&s, &o);
    if (!code)
        code = cli_saved_input(&s, &in, &o, &model);
    if (!code) {
        CHECK(s.n_prompt == N_PROMPT && s.n_given == N_TOKENS - N_PROMPT && s.n_text == 11 &&
              s.logits_hash == UINT64_MAX - 1 && !memcmp(s.tokens, tokens, sizeof tokens));
        CHECK(in.n == 1 && in.items[0].n_tokens == N_PROMPT &&
              !memcmp(in.items[0].tokens, tokens, N_PROMPT * sizeof *tokens));
        CHECK(o.temperature == before.temperature && o.seed == before.seed && o.stop.n == 2 &&
              !strcmp(o.stop.items[0], before.stop.items[0]) && o.logit_bias.n == 2 &&
              o.logit_bias.items[1].token == 7 && o.logit_bias.items[1].bias == -100);
        CHECK(o.min_length == SPW_NONE && !o.token_lists[SPW_FORCED_BOS].is_given &&
              !memcmp(&o.token_lists[SPW_SUPPRESS], &before.token_lists[SPW_SUPPRESS],
                      sizeof o.token_lists[0]));
    }
    cli_inputs_free(&in);
    cli_saved_close(&s);
    return code;
}

/* ---- each allocation fails in turn ---- */

/* Without a word on stderr. */
static int run(int (*call)(void), int n, bool *has_failed)
{
    int saved = dup(2), null = open("/dev/null", O_WRONLY);
    CHECK(saved > 2 && null > 2); /* no call has closed stdin, stdout or stderr */
    dup2(null, 2);
    spw_alloc_fail_nth(n);
    int code = call();
    *has_failed = json_allocation_has_failed();
    spw_alloc_fail_nth(-1);
    dup2(saved, 2);
    close(saved);
    close(null);
    return code;
}

/* keeps: the file has the run, whether the call fails or not. */
static void attack(const char *name, int (*call)(void), int at_least, bool keeps)
{
    bool has_failed = true;
    int n = 0;
    for (; has_failed && n < 5000; n++) {
        int code = run(call, n, &has_failed);
        CHECK_MSG(code == 0 || (has_failed && code == CLI_FAILED), "%s, allocation %d: %d", name, n,
                  code);
        CHECK_MSG(!keeps || read_file() == 0, "%s, allocation %d", name, n);
    }
    CHECK_MSG(!has_failed && n > at_least, "%s: %d", name, n);
}

int main(void)
{
    struct spw_error err = {0};
    const struct spw_options o = {
        .backend = SPW_BACKEND_CPU, .threads = 1, .context = 300, .saves = true};
    snprintf(path, sizeof path, "/tmp/spw_saved_%d", (int)getpid());
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = 3 + i * 7 % 90;
    CHECK(!cli_model_open(&model, model_dir, false));
    CHECK_MSG(!spw_engine_open(&engine, model_dir, &o, &err), "%s", err.text);
    json_set_alloc_funcs(json_alloc, json_free);
    open_session();
    attack("an empty file", hold_file, 2, false);
    attack("writing", write_file, 20, false);
    spw_session_close(session);
    open_session();
    attack("a file of the run", hold_file, 20, true);
    attack("writing again", write_file, 20, true);
    spw_session_close(session);
    attack("reading", read_file, 20, true);
    CHECK(json_outstanding == 0);
    json_set_alloc_funcs(malloc, free);
    spw_engine_close(engine);
    cli_model_close(&model);
    CHECK(spw_alloc_outstanding() == 0);
    unlink(path);
    return check_done();
}
