/* Errors, signals and output of the command: see common.h. */
#include "tools/command/common.h"

#include "tools/command/output/progress.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct spw_interrupt cli_interrupt;
static volatile sig_atomic_t interrupted; /* 0, or the signal */
static void (*before_kill)(int);          /* or NULL */

static void on_interrupt(int signal_number)
{
    interrupted = signal_number;
    spw_interrupt_raise(&cli_interrupt);
    if (before_kill && signal_number == SIGINT)
        signal(SIGINT, before_kill);
}

void cli_before_kill(void (*restore)(int signal_number))
{
    before_kill = restore;
}

/* SA_RESETHAND: a second signal ends the process as usual. */
static void catch_signal(int signal_number)
{
    struct sigaction stop = {.sa_handler = on_interrupt,
                             .sa_flags = (int)(SA_RESETHAND | (unsigned)SA_RESTART)};
    sigaction(signal_number, &stop, NULL);
}

void cli_catch_interrupt(void)
{
    catch_signal(SIGINT);
}

void cli_catch_termination(void)
{
    struct sigaction now;
    catch_signal(SIGTERM);
    if (sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler != SIG_IGN) /* nohup */
        catch_signal(SIGHUP);
}

void cli_ignore_write_signals(void)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL);
}

bool cli_interrupted(void)
{
    return interrupted;
}

void cli_interrupt_clear(void)
{
    do { /* a signal in here is answered too, in both places */
        interrupted = 0;
        spw_interrupt_clear(&cli_interrupt);
    } while (interrupted);
    cli_catch_interrupt();
}

/* The bytes of the character at `text` if it is a control character of a terminal, or one that
 * changes the direction of the text around it; else 0. */
static size_t control_bytes(const char *text, size_t n)
{
    const unsigned char *c = (const unsigned char *)text;
    if (c[0] < ' ' || c[0] == 0x7f)
        return c[0] != '\n' && c[0] != '\t';
    if (n >= 2 && c[0] == 0xc2 && c[1] < 0xa0) /* U+0080 to U+009F */
        return 2;
    const bool turns = n >= 3 && c[0] == 0xe2 &&
                       ((c[1] == 0x80 && c[2] >= 0xaa && c[2] <= 0xae) || /* U+202A to U+202E */
                        (c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9));  /* U+2066 to U+2069 */
    return turns ? 3 : 0;
}

/* Writes `text` with U+FFFD in the place of each control character. */
static bool write_shown(const char *text, size_t bytes)
{
    static const char instead[] = "\xef\xbf\xbd";
    bool written = true;
    while (bytes && written) {
        size_t n = 0, control = 0;
        while (n < bytes && !(control = control_bytes(text + n, bytes - n)))
            n++;
        written = fwrite(text, 1, n, stdout) == n && (!control || fputs(instead, stdout) >= 0);
        text += n + control;
        bytes -= n + control;
    }
    return written;
}

enum { LINE_BYTES = 2048 };

static bool in_line; /* the text on stdout does not end with a line break */

/* Whether stdout and stderr are one terminal, pipe or file: a message begins a line there. */
static bool share_file(void)
{
    struct stat out, err;
    return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
           spw_is_same_file(&out, &err);
}

/* A message is one line, also when it quotes a text of the user that has line breaks. It names
 * options as the user types them. `line` gets the message. */
static void print_line(char line[LINE_BYTES], const char *format, va_list args)
{
    vsnprintf(line, LINE_BYTES, format, args);
    cli_name_options(line);
    for (char *c = line; *c; c++) {
        if (*c == '\n' || *c == '\t')
            *c = ' ';
        memset(c, '?', control_bytes(c, strnlen(c, 3)));
    }
    cli_progress_clear();
    if (in_line && share_file())
        fputc('\n', stderr);
    in_line = false;
    fprintf(stderr, "spillway: %s\n", line);
}

static char last_failure[LINE_BYTES];

int cli_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_line(last_failure, format, args);
    va_end(args);
    return code;
}

const char *cli_last_failure(void)
{
    return last_failure;
}

static bool quiet; /* --quiet */

void cli_set_quiet(bool wanted)
{
    quiet = wanted;
}

int cli_note(const char *format, ...)
{
    char line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    if (!quiet)
        print_line(line, format, args);
    va_end(args);
    return 0;
}

void cli_notes(const char *lines)
{
    while (*lines) {
        const size_t n = strcspn(lines, "\n");
        cli_note("%.*s", (int)n, lines);
        lines += n + (lines[n] == '\n');
    }
}

const char *cli_plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

int cli_fail_error(int rc, const struct spw_error *err, bool refusable)
{
    if (rc == -EPIPE)
        return CLI_FAILED;
    if (rc == -ECANCELED && interrupted)
        return cli_fail(128 + interrupted, "interrupted"); /* as shells count */
    cli_fail(0, "%s", err->text[0] ? err->text : strerror(-rc));
    if (rc == -EIO || (rc == -ENOMEM && !refusable))
        return CLI_FAILED;
    return refusable || rc == -EINVAL || rc == -ENODEV || rc == -ENOTSUP || rc == -E2BIG
               ? CLI_REFUSED
               : CLI_FAILED;
}

static int end_write(bool written)
{
    if (written && fflush(stdout) == 0)
        return 0;
    return errno ? -errno : -EIO;
}

int cli_write_as_is(const char *text, size_t bytes)
{
    return end_write(fwrite(text, 1, bytes, stdout) == bytes);
}

int cli_write(const char *text, size_t bytes)
{
    if (bytes)
        in_line = text[bytes - 1] != '\n';
    if (isatty(STDOUT_FILENO) != 1)
        return cli_write_as_is(text, bytes);
    return end_write(write_shown(text, bytes));
}

double cli_now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *cli_format_number(char *buffer, double x)
{
    snprintf(buffer, 32, x >= 1000 ? "%.0f" : x > 0 && x < 1e-4 ? "%.7f" : "%.4g", x);
    return buffer;
}

const char *cli_format_bytes(char *buffer, uint64_t bytes)
{
    char text[32];
    size_t n = strspn(spw_bytes_text(text, bytes), "0123456789.");
    snprintf(buffer, 32, "%.*s %s", (int)n, text, text + n);
    return buffer;
}
