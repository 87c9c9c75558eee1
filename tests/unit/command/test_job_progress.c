/* The progress of a job: the predicted times of its work against the library's own prediction, and
 * what a job with a tiny model shows on a terminal and in a log. The clock of this thread jumps
 * where the test says so. */
#include "tests/check.h"
#include "tests/engine/tiny_model.h"
#include "runtime/plan_query.h"
#include "tools/command/job/forecast.h"
#include "tools/command/output/progress.h"

#include <errno.h>
#include <math.h>
#include <pty.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

static __thread int64_t jumped_seconds;

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, t);
    if (clock == CLOCK_MONOTONIC)
        t->tv_sec += jumped_seconds;
    return rc;
}

/* ---- the forecast ---- */

static uint8_t full_layers[4]; /* SPW_LAYER_FULL */
static uint32_t own_kv[4] = {0, 1, 2, 3};
static const struct spw_model_config config = {.n_layers = 4,
                                               .hidden = 4096,
                                               .intermediate = 16384,
                                               .n_heads = 32,
                                               .kv = {[SPW_LAYER_FULL] = {8, 128}},
                                               .vocab = 32000,
                                               .kv_layers = own_kv,
                                               .layer_kinds = full_layers};

static const struct cli_limits limits = {
    .machine = {.threads = 8,
                .cores = 8,
                .read_bytes_per_second = 100e9,
                .copy_bytes_per_second = 20e9,
                .few_flops = {45e9, 90e9},
                .many_flops = {1e12, 2e12}},
    .drive = {.read_bytes_per_second = 3e9,
              .write_bytes_per_second = 1e9,
              .request_bytes = 1 << 20,
              .queue_depth = 16,
              .latency_seconds = 1e-4},
    .has_machine = true,
    .has_drive = true,
};

/* A context of 100,000 tokens: 2 GB of weights, of which half streams; 8 GB of KV: 1 GB lies on the
 * device, 3 GB on the host, the rest on the disk. */
static const struct spw_plan_info plan = {
    .context = 100000,
    .sessions = 8,
    .full_sessions = 1,
    .prefetch_slots = 4,
    .compute = SPW_DTYPE_BF16,
    .device.kv_resident = 1000000000,
    .host = {.kv = 3000000000, .disk_staging = 1 << 26},
    .device.kv_slots = 1 << 26,
    .disk.total = 4000000000,
    .n_layers = 4,
    .weights_bytes = 2000000000,
    .decode_weights_bytes = 2000000000,
    .decode_weights = 1000000000,
    .decode_moved_bytes = {[SPW_MOVED_HOST_TO_DEVICE] = 8000000000,
                           [SPW_MOVED_DEVICE_TO_HOST] = 128000,
                           [SPW_MOVED_DISK_TO_HOST] = 4000000000},
    .decode_read_bytes = 10000000000,
    .decode_products = 4ull * 100000 * 32 * 128,
    .decode_slot_bytes = 7000000000,
    .prefill_moved_bytes = {[SPW_MOVED_HOST_TO_DEVICE] = 1000000000,
                            [SPW_MOVED_DEVICE_TO_HOST] = 7000000000,
                            [SPW_MOVED_HOST_TO_DISK] = 4000000000},
};

static const struct job_forecast forecast = {&plan, &config, &limits};

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

/* Seconds of each token of n prompts that are computed together. */
static double prompt_token_seconds(uint64_t n, uint64_t n_tokens)
{
    struct spw_plan_span spans[2] = {{0, n_tokens, true}, {0, n_tokens, true}};
    struct job_times t = {0};
    job_add_steps(&t, &forecast, spans, n, 1);
    return t.prefill_seconds / (double)(n * n_tokens);
}

/* One request of the full context is what the plan is for. */
static void test_full_context(void)
{
    struct spw_prediction p;
    spw_predict_step(&p, &plan, &limits.machine, &limits.drive);
    CHECK(near(job_step_seconds(&forecast, 1, plan.context), p.seconds));
    CHECK(p.bound == SPW_BOUND_DISK);
    const struct spw_prompt_work work = cli_prompt_work(&plan, &config, plan.context);
    spw_predict_prompt(&p, &plan, &work, &limits.machine, &limits.drive);
    CHECK(near(prompt_token_seconds(1, plan.context) * (double)plan.context, p.seconds));
}

/* More tokens and more requests take longer; a step of n requests takes less than n steps. */
static void test_many_requests(uint64_t seed)
{
    for (int i = 0; i < check_amount(4000); i++) {
        uint64_t n = check_range(&seed, 1, 64), held = check_range(&seed, n, plan.context);
        double one = job_step_seconds(&forecast, n, held);
        CHECK(isfinite(one) && one > 0);
        CHECK(job_step_seconds(&forecast, n, held + held / 3) >= one);
        CHECK(job_step_seconds(&forecast, n + 1, held) >= one);
        CHECK(one <= (double)n * job_step_seconds(&forecast, 1, held));
        double token = prompt_token_seconds(1, held);
        CHECK(isfinite(token) && token > 0);
        CHECK(token <= prompt_token_seconds(1, 1));
    }
    /* 10,000 tokens lie on the device: only 1 GB of weights crosses the link. */
    double link = 1e9 / limits.machine.copy_bytes_per_second;
    double step = job_step_seconds(&forecast, 1, 10000);
    CHECK(step > link && step < 2 * link);
    /* Steps of many requests take the time of many rows. */
    const double flops = 2 * (double)plan.decode_weights;
    CHECK(job_step_seconds(&forecast, 64, 10000) >= 64 * flops / 2e12);
}

/* Two prompts of 500 tokens, one of which ends first; a third one joins the other's answer. */
static void test_run(void)
{
    const struct spw_plan_span prompts[] = {{0, 500, true}, {0, 500, true}};
    const struct spw_plan_span two[] = {{500, 501, false}, {500, 501, false}};
    const struct spw_plan_span mixed[] = {{0, 500, true}, {511, 512, false}};
    const struct spw_plan_span rest[] = {{300, 500, true}};
    struct job_times t = {0};
    job_add_steps(&t, &forecast, prompts, 2, 1);
    double prefill = 1000 * prompt_token_seconds(2, 500);
    CHECK(near(t.prefill_seconds, prefill) && t.decode_seconds == 0 && !t.most_sessions);
    job_add_steps(&t, &forecast, &two[1], 1, 1);
    job_add_steps(&t, &forecast, two, 2, 11); /* 501 to 511 tokens each */
    const double pair = job_step_seconds(&forecast, 2, 2 * 506);
    const double one = job_step_seconds(&forecast, 1, 501);
    CHECK(near(t.decode_seconds, 11 * pair + one) && t.n_decode_steps == 12);
    CHECK(t.most_sessions == 2 && t.n_fullest_steps == 11 && near(t.fullest_seconds, 11 * pair));
    job_add_steps(&t, &forecast, mixed, 2, 1);
    prefill += 500 * prompt_token_seconds(1, 500);
    const double nothing = job_step_seconds(&forecast, 1, 0);
    CHECK(near(t.prefill_seconds, prefill + job_step_seconds(&forecast, 1, 512) - nothing));
    CHECK(t.n_decode_steps == 12);
    /* The end of a prompt: no more than the whole prompt. */
    struct job_times end = {0};
    job_add_steps(&end, &forecast, rest, 1, 1);
    CHECK(end.prefill_seconds > 0 && end.prefill_seconds < prefill);
}

/* ---- the number of sessions ---- */

static double rate(uint32_t sessions, uint64_t resident_weights, uint64_t n_held)
{
    struct spw_plan_info p = plan;
    const struct job_forecast f = {&p, &config, &limits};
    p.sessions = p.full_sessions = sessions;
    p.decode_moved_bytes[SPW_MOVED_HOST_TO_DEVICE] -= resident_weights;
    return job_rate(&f, n_held);
}

/* 1 GB of frames has the KV of 12,500 tokens. Where all weights lie on the device, sessions whose
 * KV streams lower the speed; where weights stream, more sessions share them. */
static void test_sessions(void)
{
    enum { HELD = 3000, FIT = 4 };
    const uint64_t all = 1000000000;
    CHECK(rate(FIT, all, HELD) > rate(FIT / 2, all, HELD));
    CHECK(rate(FIT, all, HELD) > 2 * rate(8 * FIT, all, HELD));
    CHECK(rate(FIT, 0, HELD) > rate(FIT / 2, 0, HELD));
    CHECK(rate(FIT / 2, 0, HELD) > rate(1, 0, HELD));
    /* The pool has room for one context: requests that do not fit wait. */
    CHECK(job_running(&plan, plan.context) == 1 && job_running(&plan, 2 * plan.context) == 1);
    CHECK(job_running(&plan, plan.context / 2) == 2 && job_running(&plan, 1) == plan.sessions);
}

/* ---- a job ---- */

enum { N_DOCUMENTS = 4, N_PROMPT = 100, N_ANSWER = 40 };

static char folder[64], text[65536];

static struct run {
    struct spw_engine *engine;
    struct spw_batch *batch;
    struct cli_events events;
    struct job_counts counts;
} run;

static int64_t seconds_a_chunk; /* that each chunk of a prompt takes in a layer */

static void on_progress(void *context, const struct spw_progress *p)
{
    jumped_seconds += p->done < p->total ? seconds_a_chunk : 0;
    if (cli_progress_callback())
        cli_progress_callback()(context, p);
}

static void open_job(enum cli_progress_mode mode, const struct cli_limits *with)
{
    struct spw_error err = {0};
    cli_progress_start(mode, "documents", false);
    const struct spw_options options = {.backend = SPW_BACKEND_CPU,
                                        .threads = 1,
                                        .device_bytes = 16 << 20,
                                        .host_bytes = 16 << 20,
                                        .context = 256,
                                        .sessions = 2,
                                        .prefill_chunk = 16,
                                        .on_progress = on_progress};
    run = (struct run){.counts = {.n_total = N_DOCUMENTS,
                                  .n_waiting = N_DOCUMENTS,
                                  .n_prompt_tokens_left = N_DOCUMENTS * N_PROMPT,
                                  .n_answer_tokens_left = N_DOCUMENTS * N_ANSWER}};
    CHECK_MSG(spw_engine_open(&run.engine, folder, &options, &err) == 0, "%s", err.text);
    CHECK_MSG(spw_batch_open(&run.batch, run.engine, NULL, &err) == 0, "%s", err.text);
    cli_progress_engine(run.engine, &run.events, with);
    cli_progress_update(&run.counts);
    for (int i = 0; i < N_DOCUMENTS; i++) {
        uint64_t id;
        int32_t prompt[N_PROMPT];
        for (int k = 0; k < N_PROMPT; k++)
            prompt[k] = (i + 7 * k) % 60;
        const struct spw_request r = {
            .prompt = prompt, .n_prompt = N_PROMPT, .max_new_tokens = N_ANSWER, .ignore_eos = true};
        CHECK(spw_batch_submit(run.batch, &r, &id, &err) == 0);
    }
}

/* A step of a job that takes `seconds`. */
static bool step_job(int64_t seconds)
{
    struct job_counts *c = &run.counts;
    struct spw_event e;
    struct spw_error err = {0};
    int rc = spw_batch_step(run.batch, &err);
    CHECK_MSG(rc >= 0, "%s", err.text);
    while (spw_batch_event(run.batch, &e)) {
        const struct spw_result *r = spw_batch_result(run.batch, e.request);
        bool ends = e.kind == SPW_EVENT_END, begins = !ends && r->n_tokens == 1;
        c->n_answer_tokens += !ends;
        c->n_begun += begins;
        c->n_answer_tokens_left -= !ends;
        c->n_prompt_tokens_left -= begins ? N_PROMPT : 0;
        c->n_waiting -= begins;
        c->n_running += (uint64_t)begins - ends;
        c->n_done += ends;
    }
    c->n_requests = c->n_running;
    jumped_seconds += seconds;
    cli_progress_update(c);
    return rc > 0;
}

static void close_job(void)
{
    cli_progress_end();
    spw_batch_close(run.batch);
    spw_engine_close(run.engine);
    cli_events_free(&run.events);
}

/* Lets stderr be `fd` until the next call with the fd that this call returns. */
static int swap_stderr(int fd)
{
    fflush(stderr);
    int before = dup(STDERR_FILENO);
    CHECK(dup2(fd, STDERR_FILENO) == STDERR_FILENO);
    close(fd);
    return before;
}

/* Reads what a job wrote, of a file from its beginning. */
static void read_text(int fd)
{
    size_t n = 0;
    lseek(fd, 0, SEEK_SET);
    for (ssize_t part; n + 1 < sizeof text && (part = read(fd, text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)part;
    text[n] = 0;
}

static int lines_with(const char *words)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, words)); at++)
        n++;
    return n;
}

/* In a log: a sentence a minute, and one at the end. Two steps with prompts and 2 * 39 others, each
 * of 10 seconds. */
static void test_log(void)
{
    FILE *log = tmpfile();
    int before = swap_stderr(dup(fileno(log)));
    open_job(CLI_PROGRESS_AUTO, &limits);
    double start = check_seconds();
    for (bool more = true; more;)
        more = step_job(10);
    double seconds = check_seconds() - start;
    close_job();
    close(swap_stderr(before));
    read_text(fileno(log));
    fclose(log);
    CHECK_MSG(lines_with("\n") == (int)(seconds / 60) + 1, "%.0f s: %s", seconds, text);
    CHECK_MSG(lines_with("spillway: 20") == lines_with("\n"), "%s", text);
    /* 160 answer tokens and 400 prompt tokens in 800 s. */
    const char *last = strstr(text, "4 of 4 documents done, 0 running, 0 waiting, 0 failed; ");
    CHECK_MSG(last && lines_with(" in 13 min") == 1, "%s", text);
    CHECK_MSG(last && strstr(last, "; 0.50 tokens/s of prompts, 0.20 of answers"), "%s", text);
    CHECK_MSG(last && !strstr(last, " left"), "%s", text);
    /* Both kinds of steps were measured after a minute: 2 tokens of answers take 10 seconds, and
     * 200 of prompts. At 60 s 148 and 200 are left. */
    CHECK_MSG(lines_with("13 min left") == 1, "%s", text);
    CHECK_MSG(lines_with("2 running, 2 waiting, 0 failed; 200 of 400 tokens of prompts read; 3.") ==
                  1,
              "%s", text);
}

/* A short job writes nothing into a log, and --progress never writes nothing. The time left needs
 * no limits. */
static void test_unknown(void)
{
    static const struct cli_limits none;
    for (int i = 0; i < 3; i++) {
        bool never = i == 2, is_short = i == 1;
        FILE *log = tmpfile();
        int before = swap_stderr(dup(fileno(log)));
        open_job(never ? CLI_PROGRESS_NEVER : CLI_PROGRESS_AUTO, &none);
        CHECK((cli_progress_callback() == NULL) == never);
        for (int k = 0; k < 5; k++)
            step_job(is_short ? 1 : 61);
        close_job();
        close(swap_stderr(before));
        read_text(fileno(log));
        fclose(log);
        CHECK_MSG(lines_with("\n") == (never || is_short ? 0 : 6), "%s", text);
        CHECK_MSG(lines_with(" left") == (never || is_short ? 0 : 5), "%s", text);
        CHECK_MSG(!lines_with(" GB/s"), "%s", text); /* only logits move */
    }
}

/* In a step that takes long, the log has a sentence each minute, too. Half of the prompts are
 * computed in the first step. Two of its chunks are not reported, because they are still queued. */
static void test_long_step(void)
{
    FILE *log = tmpfile();
    int before = swap_stderr(dup(fileno(log)));
    seconds_a_chunk = 61;
    open_job(CLI_PROGRESS_AUTO, &limits);
    step_job(0);
    seconds_a_chunk = 0;
    close_job();
    close(swap_stderr(before));
    read_text(fileno(log));
    fclose(log);
    uint32_t n_chunks = tiny_models[0].layers * (uint32_t)spw_div_up(2 * N_PROMPT, 16);
    CHECK_MSG(lines_with("\n") == (int)n_chunks - 2 + 1, "%u: %s", n_chunks, text);
    /* A third of 16 tokens in 61 s. What the first chunk took is known after a minute. */
    CHECK_MSG(lines_with(" left") == (int)n_chunks - 2, "%s", text);
    CHECK_MSG(lines_with("; 0.09 tokens/s of prompts") >= (int)n_chunks / 2, "%s", text);
    /* Two of four prompts are in the step; each chunk is another number of tokens. */
    double before_n = -1, n;
    for (const char *at = text; (at = strstr(at, " failed; ")); before_n = n) {
        at += strlen(" failed; ");
        CHECK_MSG(sscanf(at, "%lf of 400 tokens of prompts read", &n) == 1 && n > before_n &&
                      n <= 2 * N_PROMPT,
                  "%.60s", at);
    }
}

/* On a terminal of `columns`: the line never wraps, a message gets a line of its own, and nothing
 * is left at the end. */
static void test_terminal(uint16_t columns)
{
    int master, slave;
    const struct winsize size = {.ws_row = 24, .ws_col = columns};
    if (openpty(&master, &slave, NULL, NULL, &size)) { /* /dev/pts is not mounted */
        CHECK_MSG(errno == ENOENT || errno == ENODEV, "%s", strerror(errno));
        return;
    }
    int before = swap_stderr(slave);
    open_job(CLI_PROGRESS_AUTO, &limits);
    for (int i = 0; i < 20; i++)
        step_job(3);
    cli_note("a message");
    step_job(3);
    close_job();
    close(swap_stderr(before));
    fcntl(master, F_SETFL, O_NONBLOCK);
    read_text(master);
    close(master);
    CHECK_MSG(lines_with("\r\033[K") >= 20, "%s", text);
    CHECK_MSG(lines_with("\r\033[Kspillway: a message\r\n") == 1 && lines_with("\n") == 1, "%s",
              text);
    size_t n = strlen(text);
    CHECK_MSG(n > 4 && strcmp(text + n - 4, "\r\033[K") == 0, "%s", text);
    CHECK_MSG(columns < 80 || lines_with("  left "), "%s", text);
    char *save;
    for (char *part = strtok_r(text, "\r\n", &save); part; part = strtok_r(NULL, "\r\n", &save))
        CHECK_MSG(strlen(part) < columns + strlen("\033[K"), "%s", part);
}

int main(void)
{
    uint64_t seed = check_seed();
    test_full_context();
    test_run();
    test_sessions();
    test_many_requests(seed);
    snprintf(folder, sizeof folder, "/tmp/spw_progress_%ld", (long)getpid());
    tiny_model_write(&tiny_models[0], folder);
    test_log();
    test_unknown();
    test_long_step();
    test_terminal(80);
    test_terminal(30);
    tiny_model_remove(folder);
    return check_done();
}
