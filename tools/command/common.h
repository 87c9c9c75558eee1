/* Functions that the subcommands share: one-line errors, exit codes, interruption, text on stdout.
 */
#ifndef SPW_TOOLS_COMMAND_COMMON_H
#define SPW_TOOLS_COMMAND_COMMON_H

#include "tools/command/output/json.h"
#include "tools/command/options/options.h"

/* Prints "spillway: ..." as one line on stderr, after clearing a progress line; returns `code`. */
__attribute__((format(printf, 2, 3))) int cli_fail(int code, const char *format, ...);
const char *cli_last_failure(void); /* the text of the last call of cli_fail */
/* Prints a note in the same form, unless --quiet was given; returns 0. Errors use cli_fail, and so
 * do warnings that the answer may change. */
__attribute__((format(printf, 1, 2))) int cli_note(const char *format, ...);
void cli_notes(const char *lines); /* each line is a note */
void cli_set_quiet(bool quiet);
/* "" for 1, else "s": for "%zu pack%s". */
const char *cli_plural(uint64_t n);
/* Reports a failed library call and returns the exit code: 128 + the signal if a signal interrupted
 * the call. `refusable`: the run has not begun, so bad input and budgets that are too small give
 * CLI_REFUSED. */
int cli_fail_error(int rc, const struct spw_error *err, bool refusable);

/* From now on SIGINT ends the running step, and loops that ask cli_interrupted; a second SIGINT
 * kills the process. Without this call the first SIGINT kills. */
void cli_catch_interrupt(void);
/* A second SIGINT calls this function, which is safe in a handler, before it kills. */
void cli_before_kill(void (*restore)(int signal_number));
/* The same as cli_catch_interrupt for SIGTERM and SIGHUP, for a command that must save its run
 * or remove a large file before it ends. */
void cli_catch_termination(void);
/* From now on a write fails with EPIPE instead of SIGPIPE, and with EFBIG instead of SIGXFSZ (a
 * limit on the size of files). */
void cli_ignore_write_signals(void);
bool cli_interrupted(void);
extern struct spw_interrupt cli_interrupt; /* for spw_options: the same signal raises it */
/* The command has answered a SIGINT. The next SIGINT sets cli_interrupted again. */
void cli_interrupt_clear(void);

/* Writes text to stdout and flushes. On a terminal, characters that would change what it shows of
 * other text (control characters but line breaks and tabs, changes of the direction) become U+FFFD.
 * 0 or -errno; a caller does not report -EPIPE. */
int cli_write(const char *text, size_t bytes);
/* As cli_write, for sequences of our own: a terminal obeys them. */
int cli_write_as_is(const char *text, size_t bytes);

double cli_now_seconds(void);
/* Four digits, all digits before the point, or seven behind it; `buffer` has at least 32 bytes. */
const char *cli_format_number(char *buffer, double x);
/* "3.20 MiB", rounded up; `buffer` has at least 32 bytes. */
const char *cli_format_bytes(char *buffer, uint64_t bytes);

/* ---- subcommands ---- */

int cli_generate(const struct cli_options *o);
int cli_batch(const struct cli_options *o);
int cli_summarize(const struct cli_options *o);
int cli_answer_prompts(const struct cli_options *o); /* of generate --prompts */
int cli_score(const struct cli_options *o);
int cli_plan(const struct cli_options *o);
int cli_inspect(const struct cli_options *o);
int cli_inspect_topology(const struct cli_options *o);
int cli_inspect_self_test(const struct cli_options *o);
int cli_tokenize(const struct cli_options *o);
int cli_bench(const struct cli_options *o);
int cli_probe(const struct cli_options *o);
int cli_chat(const struct cli_options *o);
int cli_cache(const struct cli_options *o);
int cli_serve(const struct cli_options *o);
int cli_quantize(const struct cli_options *o);
int cli_check_kv(const struct cli_options *o);

#endif
