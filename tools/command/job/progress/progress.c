/* The progress of a job: see progress.h. A process has one job, so the state is file-static.
 *
 * Speeds are those of the last minute, from samples of the counters. A sample waits until the links
 * stand still (spw_engine_stats), so samples are rare.
 *
 * The time left is predicted from the plan (forecast.h). What steps have really taken corrects the
 * prediction: the time of steps with prompts corrects that of the prompts that are left, and the
 * time of the other steps that of the answers. While steps of one kind only were measured, their
 * correction is for both. In the first KNOWN_SECONDS the plan alone speaks. */
#include "tools/command/job/progress/progress.h"
#include "runtime/plan_query.h"
#include "tools/command/job/progress/forecast.h"

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
    double seconds, predicted; /* of the steps so far */
};

static struct {
    bool on_terminal, in_log;
    const char *noun;
    struct job_counts counts;
    struct spw_engine *engine;
    struct cli_events *events;
    struct job_forecast forecast;
    bool has_forecast;
    double n_computed; /* tokens in steps that have ended */
    double n_in_step;  /* tokens of the running step */
    double n_updated;  /* n_computed at the last update */
    double updated_seconds, written_seconds;
    struct pace prompts, answers;
    double prompt_token_seconds; /* predicted; 0: not known yet */
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
    const struct cli_limits *l = job.forecast.limits;
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

/* The work that a prediction is for: the requests that run, or those that can begin together. */
struct work {
    uint64_t n_together, n_prompt; /* prompts, and the mean length of one */
    uint64_t n_requests, n_held;
};

/* Tokens of prompts that are not computed yet. */
static double prompt_left(void)
{
    return fmax((double)job.counts.n_prompt_tokens_left - prompt_in_step(), 0);
}

static struct work work_of(const struct job_counts *c)
{
    const struct spw_plan_info *p = job.forecast.plan;
    uint64_t all = p->full_sessions * p->context;
    struct work w = {.n_requests = c->n_requests, .n_held = c->n_held_tokens};
    if (c->n_prompts_left) {
        w.n_prompt = spw_min_u64(c->n_prompt_tokens_left / c->n_prompts_left, p->context);
        w.n_prompt = spw_max_u64(w.n_prompt, 1);
        w.n_together = spw_min_u64(spw_min_u64(p->sessions, c->n_prompts_left), all / w.n_prompt);
    }
    if (!w.n_requests) {
        w.n_requests = spw_max_u64(w.n_together, 1);
        w.n_held = w.n_together * w.n_prompt;
    }
    return w;
}

static double answer_token_seconds(const struct work *w)
{
    return job_step_seconds(&job.forecast, w->n_requests, w->n_held) / (double)w->n_requests;
}

/* Measured over predicted time, of the other pace if this one was not measured. */
static double slowdown(const struct pace *p, const struct pace *other)
{
    const struct pace *known = p->predicted > 0 ? p : other;
    return known->seconds / known->predicted;
}

static void add_left(struct job_view *v, double now)
{
    const struct job_counts *c = &job.counts;
    v->left_seconds = v->slowdown = NAN;
    if (!job.has_forecast || !c->n_total)
        return;
    struct work w = work_of(c);
    struct pace prompts = job.prompts;
    double in_step = prompt_in_step();
    if (in_step > 0 && job.prompt_token_seconds > 0) {
        prompts.seconds += now - job.updated_seconds;
        prompts.predicted += in_step * job.prompt_token_seconds;
    }
    double prompt = prompt_left() * job.prompt_token_seconds;
    double answer = (double)c->n_answer_tokens_left * answer_token_seconds(&w);
    v->left_seconds = prompt + answer;
    if (v->left_seconds <= 0 || prompts.seconds + job.answers.seconds < KNOWN_SECONDS)
        return;
    double left =
        prompt * slowdown(&prompts, &job.answers) + answer * slowdown(&job.answers, &prompts);
    v->slowdown = left / v->left_seconds;
    v->left_seconds = left;
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
 * them in answers. `before`: the counts before the step. */
static void add_pace(const struct job_counts *before, double seconds, double n, double n_answer)
{
    if (!job.has_forecast || n <= 0)
        return;
    if (n > n_answer) {
        if (job.prompt_token_seconds <= 0)
            return;
        job.prompts.seconds += seconds;
        job.prompts.predicted += (n - n_answer) * job.prompt_token_seconds;
        return;
    }
    struct work w = work_of(before);
    job.answers.seconds += seconds;
    job.answers.predicted += n_answer * answer_token_seconds(&w);
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
    job.forecast = (struct job_forecast){.limits = limits};
    job.has_forecast = engine && cli_limits_suffice(limits, spw_engine_plan(engine));
    if (engine) {
        job.forecast.plan = spw_engine_plan(engine);
        job.forecast.config = spw_engine_config(engine);
    }
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
    add_pace(&job.counts, now - job.updated_seconds, job.n_computed - job.n_updated,
             (double)counts->n_answer_tokens - (double)job.counts.n_answer_tokens);
    job.counts = *counts;
    job.n_updated = job.n_computed;
    job.n_in_step = 0; /* also after a step that failed */
    job.updated_seconds = now;
    if (job.has_forecast && counts->n_prompts_left) {
        struct work w = work_of(counts);
        job.prompt_token_seconds =
            job_prompt_token_seconds(&job.forecast, w.n_together, w.n_prompt);
    }
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
