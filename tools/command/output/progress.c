/* The progress line: see progress.h. A process has one line, so the state is file-static. */
#include "tools/command/output/progress.h"
#include "tools/command/common.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define SHOW_AFTER_SECONDS 1.0
#define REDRAW_SECONDS 0.2

static struct {
    bool enabled, text_on_terminal, shown;
    struct spw_engine *engine;
    struct cli_events *events;
    double start_seconds, drawn_seconds;
    double step_seconds;   /* start of the running step */
    double decode_seconds; /* of the first token */
    uint64_t n_generated;
} line;

void cli_progress_start(enum cli_progress_mode mode, bool text_on_terminal)
{
    memset(&line, 0, sizeof line);
    line.enabled =
        mode == CLI_PROGRESS_ALWAYS || (mode == CLI_PROGRESS_AUTO && isatty(STDERR_FILENO) == 1);
    line.text_on_terminal = text_on_terminal;
    line.start_seconds = cli_now_seconds();
}

void cli_progress_engine(struct spw_engine *engine, struct cli_events *events)
{
    line.engine = engine;
    line.events = events;
    line.step_seconds = cli_now_seconds();
}

void cli_progress_clear(void)
{
    if (line.shown)
        fputs("\r\033[K", stderr);
    line.shown = false;
}

void cli_progress_end(void)
{
    cli_progress_clear();
    line.enabled = false;
    line.engine = NULL;
    line.events = NULL;
}

bool cli_progress_due(void)
{
    double now = cli_now_seconds();
    return line.enabled && now - line.start_seconds >= SHOW_AFTER_SECONDS &&
           now - line.drawn_seconds >= REDRAW_SECONDS;
}

/* Some terminals wrap a line that fills the last column. */
int cli_progress_columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
}

void cli_progress_draw(const char *text)
{
    fprintf(stderr, "\r\033[K%.*s", cli_progress_columns(), text);
    line.shown = true;
    line.drawn_seconds = cli_now_seconds();
}

/* In a narrow terminal the line has no bytes of memory. */
static void draw(const char *what, double tokens_per_second, double left_seconds)
{
    char where[96] = "", a[32], b[32], text[256];
    if (line.engine) {
        struct spw_stats stats;
        spw_engine_stats(line.engine, &stats);
        snprintf(where, sizeof where, "  device %s host %s",
                 cli_format_bytes(a, stats.device_peak_bytes),
                 cli_format_bytes(b, stats.host_peak_bytes));
    }
    if (snprintf(text, sizeof text, "%s  %.1f tokens/s%s  %.0f s left", what, tokens_per_second,
                 where, left_seconds) > cli_progress_columns())
        snprintf(text, sizeof text, "%s  %.1f tokens/s  %.0f s left", what, tokens_per_second,
                 left_seconds);
    cli_progress_draw(text);
}

static void step(void *context, const struct spw_progress *p)
{
    (void)context;
    double now = cli_now_seconds(), elapsed = now - line.step_seconds;
    if (line.events)
        cli_read_events(line.events, line.engine);
    if (p->done == p->total) { /* the next call belongs to another step */
        line.step_seconds = now;
        return;
    }
    if (!cli_progress_due() || p->total == 0 || p->done == 0)
        return;
    double part = (double)p->done / (double)p->total;
    char what[64];
    snprintf(what, sizeof what, "%3.0f %% of %llu tokens", 100 * part,
             (unsigned long long)p->n_new_tokens);
    draw(what, part * (double)p->n_new_tokens / elapsed, elapsed * (1 - part) / part);
}

cli_progress_function *cli_progress_callback(void)
{
    return line.enabled ? step : NULL;
}

void cli_progress_token(uint64_t n_expected, bool is_hidden)
{
    double now = cli_now_seconds();
    if (line.n_generated++ == 0)
        line.decode_seconds = now;
    if (line.text_on_terminal && !is_hidden) {
        cli_progress_clear();
        return;
    }
    double elapsed = now - line.decode_seconds;
    if (!cli_progress_due() || elapsed <= 0 || line.n_generated < 2)
        return;
    double rate = (double)(line.n_generated - 1) / elapsed;
    char what[64];
    snprintf(what, sizeof what, "%s%llu of at most %llu new tokens", is_hidden ? "reasoning, " : "",
             (unsigned long long)line.n_generated, (unsigned long long)n_expected);
    draw(what, rate, (double)spw_sub_u64(n_expected, line.n_generated) / rate);
}
