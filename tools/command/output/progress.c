/* See progress.h. A process has one line, so the state is file-static.
 *
 * Speeds are those of the last minute, from samples of the counters. A sample waits until the links
 * stand still (spw_engine_stats), so samples are rare.
 *
 * The time left follows from the pace so far: the time of steps with prompts for the prompts that
 * are left, and the time of the other steps for the answers. It is not known in the first
 * KNOWN_SECONDS, and has no answers while none has a second token. */
#include "tools/command/output/progress.h"

#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define SHOW_AFTER_SECONDS 1.0
#define REDRAW_SECONDS 0.2
#define WINDOW_SECONDS 60.0
#define SAMPLE_SECONDS 2.0
#define KNOWN_SECONDS 10.0
#define SHOWN_BYTES_PER_SECOND 5e6 /* 0.01 GB/s. Less, such as logits, keeps no link busy */
enum { N_SAMPLES = 40 };           /* more than WINDOW_SECONDS / SAMPLE_SECONDS */

struct sample {
    double seconds;
    double n_prompt, n_answer; /* tokens so far */
    uint64_t moved[SPW_MOVED_COUNT];
};

struct pace {
    double seconds, n_tokens; /* of the steps so far */
};

static struct {
    bool draws, logs; /* a line on a terminal; sentences in a log */
    bool text_on_terminal, shown;
    bool is_hidden;   /* the latest token is reasoning that is not shown */
    const char *noun; /* NULL: one request after the other */
    struct job_counts counts;
    struct spw_engine *engine;
    struct cli_events *events;
    const struct cli_limits *limits;
    double n_computed; /* tokens in steps that have ended */
    double n_in_step;  /* tokens of the running step */
    double n_updated;  /* n_computed at the last update */
    double start_seconds, drawn_seconds, updated_seconds, written_seconds;
    struct pace prompts, answers;
    struct sample first, samples[N_SAMPLES];
    size_t n_samples;                       /* the oldest is the first */
    uint64_t moved_before[SPW_MOVED_COUNT]; /* by engines that were closed */
} line;

/* ---- samples ---- */

static void read_moved(uint64_t moved[SPW_MOVED_COUNT])
{
    struct spw_stats stats = {0};
    if (line.engine)
        spw_engine_stats(line.engine, &stats);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        moved[i] = line.moved_before[i] + stats.moved_bytes[i];
}

/* Tokens of prompts that the running step has computed since the last update: each step computes
 * the last token of every answer, and these. */
static double prompt_in_step(void)
{
    double n_new = line.n_computed - line.n_updated + line.n_in_step;
    return fmax(n_new - (double)line.counts.n_requests, 0);
}

/* Tokens of prompts so far. A prompt gives the first token of its answer. */
static double prompt_read(void)
{
    double n_of_answers = (double)line.counts.n_answer_tokens - (double)line.counts.n_begun;
    return fmax(line.n_updated - n_of_answers, 0) + prompt_in_step();
}

static struct sample take_sample(double now)
{
    struct sample s = {
        .seconds = now, .n_prompt = prompt_read(), .n_answer = (double)line.counts.n_answer_tokens};
    read_moved(s.moved);
    return s;
}

/* Keeps one sample that is as old as the window, and all younger ones. */
static void keep_sample(double now)
{
    size_t n_old = 0;
    while (n_old + 1 < line.n_samples && now - line.samples[n_old + 1].seconds >= WINDOW_SECONDS)
        n_old++;
    if (line.n_samples - n_old == N_SAMPLES)
        n_old++;
    line.n_samples -= n_old;
    memmove(line.samples, line.samples + n_old, line.n_samples * sizeof *line.samples);
    line.samples[line.n_samples++] = take_sample(now);
}

/* Speeds between two samples. */
static void add_speeds(struct job_view *v, const struct sample *from, const struct sample *to)
{
    const struct cli_limits *l = line.limits;
    double seconds = to->seconds - from->seconds;
    bool has_machine = l && l->has_machine, has_drive = l && l->has_drive;
    double copies = has_machine ? l->machine.copy_bytes_per_second : NAN;
    double limits[SPW_MOVED_COUNT] = {
        [SPW_MOVED_HOST_TO_DEVICE] = copies,
        [SPW_MOVED_DEVICE_TO_HOST] = copies,
        [SPW_MOVED_HOST_TO_DISK] = has_drive ? l->drive.write_bytes_per_second : NAN,
        [SPW_MOVED_DISK_TO_HOST] = has_drive ? l->drive.read_bytes_per_second : NAN,
    };
    v->prompt_rate = v->answer_rate = NAN;
    for (int i = 0; i < SPW_MOVED_COUNT; i++) {
        double bytes = (double)spw_sub_u64(to->moved[i], from->moved[i]);
        double rate = seconds > 0 ? bytes / seconds : 0;
        v->links[i].rate = rate >= SHOWN_BYTES_PER_SECOND ? rate : NAN;
        v->links[i].limit = limits[i];
    }
    if (seconds > 0) {
        v->prompt_rate = fmax(to->n_prompt - from->n_prompt, 0) / seconds;
        v->answer_rate = (to->n_answer - from->n_answer) / seconds;
    }
}

/* ---- the time left ---- */

/* Tokens of prompts that are not computed yet. */
static double prompt_left(void)
{
    return fmax((double)line.counts.n_prompt_tokens_left - prompt_in_step(), 0);
}

static double seconds_for(const struct pace *p, double n_tokens)
{
    return p->n_tokens > 0 ? n_tokens * p->seconds / p->n_tokens : 0;
}

/* What is left is known once the input was read. */
static void add_left(struct job_view *v, double now)
{
    const struct job_counts *c = &line.counts;
    struct pace prompts = line.prompts;
    const double in_step = prompt_in_step();
    v->n_read = v->n_to_read = v->left_seconds = NAN;
    if (line.noun && !c->n_total)
        return;
    v->n_read = prompt_read();
    v->n_to_read = v->n_read + prompt_left();
    if (in_step > 0) {
        prompts.seconds += now - line.updated_seconds;
        prompts.n_tokens += in_step;
    }
    if (prompts.seconds + line.answers.seconds >= KNOWN_SECONDS)
        v->left_seconds = seconds_for(&prompts, prompt_left()) +
                          seconds_for(&line.answers, (double)c->n_answer_tokens_left);
}

/* Takes the time since the last update as that of a step, which has computed n tokens, n_answer of
 * them in answers. */
static void add_pace(double seconds, double n, double n_answer)
{
    struct pace *p = n > n_answer ? &line.prompts : &line.answers;
    if (n <= 0)
        return;
    p->seconds += seconds;
    p->n_tokens += n > n_answer ? n - n_answer : n_answer;
}

/* ---- showing ---- */

/* Some terminals wrap a line that fills the last column. */
static int columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
}

bool cli_progress_due(void)
{
    double now = cli_now_seconds();
    return line.draws && now - line.start_seconds >= SHOW_AFTER_SECONDS &&
           now - line.drawn_seconds >= REDRAW_SECONDS;
}

void cli_progress_draw(const char *text)
{
    fprintf(stderr, "\r\033[K%.*s", columns(), text);
    line.shown = true;
    line.drawn_seconds = cli_now_seconds();
}

void cli_progress_clear(void)
{
    if (line.shown)
        fputs("\r\033[K", stderr);
    line.shown = false;
}

static struct job_view view(double now, const struct sample *from)
{
    struct job_view v = {
        .noun = line.noun, .is_hidden = line.is_hidden, .counts = line.counts, .took_seconds = NAN};
    add_speeds(&v, from, &line.samples[line.n_samples - 1]);
    add_left(&v, now);
    return v;
}

static void draw_line(double now)
{
    char text[512];
    const int most = (int)spw_min_u64((uint64_t)columns(), sizeof text - 1);
    if (!line.n_samples || now - line.samples[line.n_samples - 1].seconds >= SAMPLE_SECONDS)
        keep_sample(now);
    const struct job_view v = view(now, &line.samples[0]);
    job_progress_line(text, most < 20 ? 20 : most, &v);
    cli_progress_draw(text);
}

static void write_sentence(double now, bool ended)
{
    char sentence[JOB_LOG_BYTES];
    keep_sample(now);
    struct job_view v = view(now, ended ? &line.first : &line.samples[0]);
    if (ended)
        v.took_seconds = now - line.first.seconds;
    job_progress_sentence(sentence, time(NULL), &v);
    cli_note("%s", sentence);
    line.written_seconds = now;
}

static void show(double now)
{
    if (cli_progress_due())
        draw_line(now);
    else if (line.logs && now - line.written_seconds >= WINDOW_SECONDS)
        write_sentence(now, false);
}

static void step(void *context, const struct spw_progress *p)
{
    (void)context;
    if (line.events)
        cli_read_events(line.events, line.engine);
    if (!line.noun && !line.counts.n_answer_tokens) /* the prompt of the only request */
        line.counts.n_prompt_tokens_left =
            (uint64_t)(line.n_computed - line.n_updated) + p->n_new_tokens;
    line.n_in_step = 0;
    if (p->done == p->total)
        line.n_computed += (double)p->n_new_tokens;
    else
        line.n_in_step = (double)p->done / (double)p->total * (double)p->n_new_tokens;
    if (line.noun || p->done < p->total) /* the token of a request shows its step */
        show(cli_now_seconds());
}

cli_progress_function *cli_progress_callback(void)
{
    return line.draws || line.logs ? step : NULL;
}

/* ---- what the command says ---- */

void cli_progress_start(enum cli_progress_mode mode, const char *noun, bool text_on_terminal)
{
    memset(&line, 0, sizeof line);
    line.draws =
        mode == CLI_PROGRESS_ALWAYS || (mode == CLI_PROGRESS_AUTO && isatty(STDERR_FILENO) == 1);
    line.logs = noun && mode == CLI_PROGRESS_AUTO && !line.draws;
    line.noun = noun;
    line.text_on_terminal = text_on_terminal;
    line.start_seconds = cli_now_seconds();
}

void cli_progress_engine(struct spw_engine *engine, struct cli_events *events,
                         const struct cli_limits *limits)
{
    double now = cli_now_seconds();
    if (line.engine)
        read_moved(line.moved_before);
    line.engine = engine;
    line.events = events;
    line.limits = limits;
    line.n_in_step = 0;
    line.updated_seconds = now;
    if (engine && !line.n_samples && cli_progress_callback()) {
        line.written_seconds = now;
        line.first = line.samples[line.n_samples++] = take_sample(now);
    }
}

void cli_progress_running(uint64_t n_running, uint64_t n_reading)
{
    struct job_counts *c = &line.counts;
    c->n_reading = n_reading;
    if (n_running == UINT64_MAX)
        return;
    if (c->n_total)
        c->n_waiting = spw_sub_u64(c->n_running + c->n_waiting, n_running);
    c->n_running = n_running;
}

static void update(const struct job_counts *counts, double now)
{
    add_pace(now - line.updated_seconds, line.n_computed - line.n_updated,
             (double)counts->n_answer_tokens - (double)line.counts.n_answer_tokens);
    line.counts = *counts;
    line.n_updated = line.n_computed;
    line.n_in_step = 0; /* also after a step that failed */
    line.updated_seconds = now;
}

void cli_progress_update(const struct job_counts *counts)
{
    const double now = cli_now_seconds();
    update(counts, now);
    if (line.n_samples)
        show(now);
}

void cli_progress_token(uint64_t n_expected, bool is_hidden)
{
    const double now = cli_now_seconds();
    const uint64_t n = line.counts.n_answer_tokens + 1;
    const struct job_counts counts = {.n_requests = 1,
                                      .n_answer_tokens = n,
                                      .n_begun = 1,
                                      .n_answer_tokens_left = spw_sub_u64(n_expected, n)};
    update(&counts, now);
    line.is_hidden = is_hidden;
    if (line.text_on_terminal && !is_hidden)
        cli_progress_clear();
    else if (line.n_samples)
        show(now);
}

void cli_progress_end(void)
{
    const double now = cli_now_seconds();
    if (line.logs && line.n_samples && now - line.first.seconds >= WINDOW_SECONDS)
        write_sentence(now, true);
    cli_progress_clear();
    memset(&line, 0, sizeof line);
}
