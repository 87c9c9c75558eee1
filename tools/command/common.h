/* What the subcommands share: one-line errors, exit codes, interruption, and text on stdout. */
#ifndef SPW_TOOLS_COMMAND_COMMON_H
#define SPW_TOOLS_COMMAND_COMMON_H

#include "tools/command/output/json.h"
#include "tools/command/options/options.h"

/* Prints "spillway: ..." as one line on stderr, after clearing a progress line; returns `code`. */
__attribute__((format(printf, 2, 3))) int cli_fail(int code, const char *format, ...);
/* Prints a note in the same form, unless --quiet was given; returns 0. Errors, and warnings that
 * the answer may change, are no notes: they use cli_fail. */
__attribute__((format(printf, 1, 2))) int cli_note(const char *format, ...);
void cli_set_quiet(bool quiet);
/* "" for 1, else "s": for "%zu pack%s". */
const char *cli_plural(uint64_t n);
/* The same as cli_fail for a failed library call; 128 + the signal if an interruption is why.
 * `refusable`: before anything ran, so that bad input and budgets that cannot work give
 * CLI_REFUSED. */
int cli_fail_error(int rc, const struct spw_error *err, bool refusable);

/* From now on SIGINT ends the running step, or what looks at cli_interrupted; a second one kills.
 * Before, and in commands that look at nothing, the first one does. */
void cli_catch_interrupt(void);
/* The same of SIGTERM and SIGHUP: for who has something to save. */
void cli_catch_termination(void);
/* SIGPIPE becomes EPIPE, SIGXFSZ (a limit on the size of files) EFBIG: a write that failed. */
void cli_ignore_write_signals(void);
bool cli_interrupted(void);
/* What a SIGINT asked for is done: the next one asks again. */
void cli_interrupt_clear(void);

/* To stdout, flushed. 0 or -errno; -EPIPE is to be passed over in silence. */
int cli_write(const char *text, size_t bytes);

double cli_now_seconds(void);
/* "3.20 MiB", rounded up; `buffer` has at least 32 bytes. */
const char *cli_format_bytes(char *buffer, uint64_t bytes);

/* Engine options as the command line gives them, for `context` tokens. */
struct spw_options cli_engine_options(const struct cli_options *o, uint64_t context,
                                      uint32_t sessions);
/* One line on stderr: which device was chosen where the choice was ours, and what of it the user
 * should know. */
void cli_say_device(const struct cli_options *o, const struct spw_engine *e);
struct spw_sampling cli_sampling(const struct cli_options *o);

/* ---- subcommands ---- */

int cli_generate(const struct cli_options *o);
int cli_score(const struct cli_options *o);
int cli_plan(const struct cli_options *o);
int cli_inspect(const struct cli_options *o);
int cli_inspect_topology(const struct cli_options *o);
int cli_tokenize(const struct cli_options *o);
int cli_bench(const struct cli_options *o);
int cli_probe(const struct cli_options *o);
int cli_chat(const struct cli_options *o);
int cli_cache(const struct cli_options *o);
int cli_check_kv(const struct cli_options *o);

#endif
