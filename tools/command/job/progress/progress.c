/* The progress of a job: see progress.h. A process has one job, so the state is file-static.
 *
 * Speeds are those of the last minute, from samples of the counters. A sample waits until the links
 * stand still (spw_engine_stats), so samples are rare.
 *
 * The time left follows from the pace so far: the time of steps with prompts for the prompts that
 * are left, and the time of the other steps for the answers. It is not known in the first
 * KNOWN_SECONDS, and has no answers while none has a second token. */
#include "tools/command/job/progress/progress.h"

#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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
    bool on_terminal, in_log;
    const char *noun;
    struct job_counts counts;
    struct spw_engine *engine;
    struct cli_events *events;
    const struct cli_limits *limits;
    double n_computed; /* tokens in steps that have ended */
    double n_in_step;  /* tokens of the running step */
    double n_updated;  /* n_computed at the last update */
    double updated_seconds, written_seconds;
    struct pace prompts, answers;
    struct sample first, samples[N_SAMPLES];
    size_t n_samples;                       /* the oldest is the first */
    uint64_t moved_before[SPW_MOVED_COUNT]; /* by engines that were closed */
} job;

/* ---- samples ---- */

static void read_moved(uint64_t moved[SPW_MOVED_COUNT])
{
    struct spw_stats stats = {0};
    if (job.engine)
        spw_engine_stats(job.engine, &stats);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        moved[i] = job.moved_before[i] + stats.moved_bytes[i];
}

/* Tokens of prompts that the running step has computed since the last update: each step computes
 * the last token of every answer, and these. */
static double prompt_in_step(void)
{
    double n_new = job.n_computed - job.n_updated + job.n_in_step;
    return fmax(n_new - (double)job.counts.n_requests, 0);
}

/* Tokens of prompts so far. A prompt gives the first token of its answer. */
static double prompt_read(void)
{
    double n_of_answers = (double)job.counts.n_answer_tokens - (double)job.counts.n_begun;
    return fmax(job.n_updated - n_of_answers, 0) + prompt_in_step();
}

static struct sample take_sample(double now)
{
    struct sample s = {
        .seconds = now, .n_prompt = prompt_read(), .n_answer = (double)job.counts.n_answer_tokens};
    read_moved(s.moved);
    return s;
}

/* Keeps one sample that is as old as the window, and all younger ones. */
static void keep_sample(double now)
{
    size_t n_old = 0;
    while (n_old + 1 < job.n_samples && now - job.samples[n_old + 1].seconds >= WINDOW_SECONDS)
        n_old++;
    if (job.n_samples - n_old == N_SAMPLES)
        n_old++;
    job.n_samples -= n_old;
    memmove(job.samples, job.samples + n_old, job.n_samples * sizeof *job.samples);
    job.samples[job.n_samples++] = take_sample(now);
}

/* Speeds between two samples. */
static void add_speeds(struct job_view *v, const struct sample *from, const struct sample *to)
{
    const struct cli_limits *l = job.limits;
    double seconds = to->seconds - from->seconds;
    bool has_machine = l && l->has_machine, has_drive = l && l->has_drive;
    double copies = has_machine ? l->machine.best.copy_bytes_per_second : NAN;
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
    return fmax((double)job.counts.n_prompt_tokens_left - prompt_in_step(), 0);
}

static double seconds_for(const struct pace *p, double n_tokens)
{
    return p->n_tokens > 0 ? n_tokens * p->seconds / p->n_tokens : 0;
}

static void add_left(struct job_view *v, double now)
{
    const struct job_counts *c = &job.counts;
    struct pace prompts = job.prompts;
    const double in_step = prompt_in_step();
    v->left_seconds = NAN;
    if (in_step > 0) {
        prompts.seconds += now - job.updated_seconds;
        prompts.n_tokens += in_step;
    }
    if (c->n_total && prompts.seconds + job.answers.seconds >= KNOWN_SECONDS)
        v->left_seconds = seconds_for(&prompts, prompt_left()) +
                          seconds_for(&job.answers, (double)c->n_answer_tokens_left);
}

static void add_read(struct job_view *v)
{
    v->n_read = v->n_to_read = NAN;
    if (!job.counts.n_total)
        return;
    v->n_read = prompt_read();
    v->n_to_read = v->n_read + prompt_left();
}

/* Takes the time since the last update as that of a step, which has computed n tokens, n_answer of
 * them in answers. */
static void add_pace(double seconds, double n, double n_answer)
{
    struct pace *p = n > n_answer ? &job.prompts : &job.answers;
    if (n <= 0)
        return;
    p->seconds += seconds;
    p->n_tokens += n > n_answer ? n - n_answer : n_answer;
}

/* ---- showing ---- */

static void show_line(double now)
{
    char line[512];
    if (!cli_progress_due())
        return;
    if (!job.n_samples || now - job.samples[job.n_samples - 1].seconds >= SAMPLE_SECONDS)
        keep_sample(now);
    struct job_view v = {.noun = job.noun, .counts = job.counts, .took_seconds = NAN};
    add_speeds(&v, &job.samples[0], &job.samples[job.n_samples - 1]);
    add_read(&v);
    add_left(&v, now);
    int columns = cli_progress_columns();
    job_progress_line(line, columns < 20 ? 20 : columns < 500 ? columns : 500, &v);
    cli_progress_draw(line);
}

static void write_sentence(double now, bool ended)
{
    char sentence[JOB_LOG_BYTES];
    keep_sample(now);
    struct job_view v = {.noun = job.noun, .counts = job.counts, .took_seconds = NAN};
    add_read(&v);
    add_speeds(&v, ended ? &job.first : &job.samples[0], &job.samples[job.n_samples - 1]);
    if (ended)
        v.took_seconds = now - job.first.seconds;
    else
        add_left(&v, now);
    job_progress_sentence(sentence, time(NULL), &v);
    cli_note("%s", sentence);
    job.written_seconds = now;
}

static void show(double now)
{
    if (job.on_terminal)
        show_line(now);
    else if (job.in_log && now - job.written_seconds >= WINDOW_SECONDS)
        write_sentence(now, false);
}

static void step(void *context, const struct spw_progress *p)
{
    (void)context;
    if (job.events)
        cli_read_events(job.events, job.engine);
    job.n_in_step = 0;
    if (p->done == p->total)
        job.n_computed += (double)p->n_new_tokens;
    else
        job.n_in_step = (double)p->done / (double)p->total * (double)p->n_new_tokens;
    show(cli_now_seconds());
}

/* ---- the job ---- */

void job_progress_open(enum cli_progress_mode mode, const char *noun)
{
    cli_progress_start(mode, false);
    memset(&job, 0, sizeof job);
    job.noun = noun;
    job.on_terminal = cli_progress_callback();
    job.in_log = mode == CLI_PROGRESS_AUTO && !job.on_terminal;
}

cli_progress_function *job_progress_callback(void)
{
    return job.on_terminal || job.in_log ? step : NULL;
}

void job_progress_running(uint64_t n_running, uint64_t n_reading)
{
    struct job_counts *c = &job.counts;
    c->n_reading = n_reading;
    if (n_running == UINT64_MAX)
        return;
    if (c->n_total)
        c->n_waiting = spw_sub_u64(c->n_running + c->n_waiting, n_running);
    c->n_running = n_running;
}

void job_progress_engine(struct spw_engine *engine, struct cli_events *events,
                         const struct cli_limits *limits)
{
    double now = cli_now_seconds();
    if (job.engine)
        read_moved(job.moved_before);
    job.engine = engine;
    job.events = events;
    job.limits = limits;
    job.n_in_step = 0;
    job.updated_seconds = now;
    if (engine && !job.n_samples) {
        job.written_seconds = now;
        job.first = job.samples[job.n_samples++] = take_sample(now);
    }
}

void job_progress_update(const struct job_counts *counts)
{
    const double now = cli_now_seconds();
    add_pace(now - job.updated_seconds, job.n_computed - job.n_updated,
             (double)counts->n_answer_tokens - (double)job.counts.n_answer_tokens);
    job.counts = *counts;
    job.n_updated = job.n_computed;
    job.n_in_step = 0; /* also after a step that failed */
    job.updated_seconds = now;
    if (job.n_samples)
        show(now);
}

void job_progress_end(void)
{
    const double now = cli_now_seconds();
    if (job.in_log && job.n_samples && now - job.first.seconds >= WINDOW_SECONDS)
        write_sentence(now, true);
    cli_progress_end();
    memset(&job, 0, sizeof job);
}
