/* Faults of the drive, seen from the top: the N-th read or write of a run fails, is cut short,
 * late, out of order or one bit off, for N = 0, 1, ... until the run meets none, with both I/O
 * engines, and with tiles that land on the device at once as well as by way of the host. A run ends
 * with the same logits or with one line that says what is wrong; then the drive is well again, and
 * the same sessions go on to the right logits. Nothing leaks, nothing hangs. What moved on every
 * link is predicted, also when tiles were lost. And again, in larger steps, with old KV that is
 * quantized.
 *
 *   test_disk_faults [stride]    of N; default 240 under TSan, 100 under ASan, else 23 */
#include "tests/engine/engine_run.h"

#include <pthread.h>

#define SLOW (RUN_UNDER_TSAN || RUN_UNDER_ASAN)

enum {
    STRIDE = TEST_GPU         ? 400
             : RUN_UNDER_TSAN ? 240
             : RUN_UNDER_ASAN ? 100
                              : 23,
    PROMPT = TEST_GPU ? 800
             : SLOW   ? 1100
                      : 1900,
    LAYERS = TEST_GPU ? 3 : 4,
    EVERY = TEST_GPU || SLOW ? 1 : 3,          /* each of the first N */
    QUANTIZED_RUNS = TEST_GPU || SLOW ? 1 : 3, /* of each fault */
    EXACT_RUNS = TEST_GPU ? 2 : INT32_MAX,
};

/* The last step fills the context, so that nothing is read ahead which nobody will wait for. */
enum { N_MORE = 4, MOST_TOKENS = 2000, WATCHDOG_SECONDS = 600 };

/* What is run, and which N of every fault: from the first one on each, then in steps, and so many
 * at most. */
struct setting {
    struct tiny_model model;
    enum spw_kv_precision precision;
    size_t n_prompt;
    int64_t first, every, stride;
    int most;
};

enum fault_kind {
    READ_ONCE,    /* the next try succeeds */
    READ_FOREVER, /* of this place */
    FLIP_ONCE,    /* of a bit, on the way */
    FLIP_FOREVER, /* in this place */
    SHORT_READ,
    WRITE_ONCE,
    WRITE_FOREVER, /* to this place */
    SHORT_WRITE,
    LATE,
    ALL_READS,  /* from the N-th on */
    ALL_WRITES, /* the drive is full from the N-th on */
    FAULT_KINDS,
};

static const char *const fault_names[FAULT_KINDS] = {
    "a read fails once", "a place cannot be read", "a bit flips on its way",    "a bit is flipped",
    "a short read",      "a write fails once",     "a place cannot be written", "a short write",
    "a late completion", "all reads fail",         "the drive is full"};

struct fault {
    enum fault_kind kind;
    int64_t n;    /* of the request that meets it; negative: none */
    int64_t seen; /* requests of its direction so far */
    bool met;
    uint64_t place; /* in the file, of what stays broken */
    pthread_mutex_t lock;
};

static bool hits(enum fault_kind kind, const struct spw_io_request *r)
{
    if (kind == LATE)
        return true;
    return r->write == (kind == WRITE_ONCE || kind == WRITE_FOREVER || kind == SHORT_WRITE ||
                        kind == ALL_WRITES);
}

static bool covers(const struct spw_io_request *r, int64_t result, uint64_t place)
{
    return result > 0 && place >= r->offset && place < r->offset + (uint64_t)result;
}

/* What the engine sees of the request that meets the fault, and of those that come to its place. */
static int64_t broken(const struct fault *f, const struct spw_io_request *r, int64_t result,
                      bool first)
{
    switch (f->kind) {
    case READ_ONCE:
    case WRITE_ONCE:
        return first ? -EIO : result;
    case FLIP_ONCE:
        if (first && result > 0)
            r->memory[result / 3] ^= 16;
        return result;
    case READ_FOREVER:
    case WRITE_FOREVER:
        return covers(r, result, f->place) ? -EIO : result;
    case FLIP_FOREVER:
        if (covers(r, result, f->place))
            r->memory[f->place - r->offset] ^= 1;
        return result;
    case SHORT_READ:
    case SHORT_WRITE:
        return first && result > 4096 ? result / 8192 * 4096 : result;
    case LATE:
        if (first)
            usleep(50000);
        return result;
    case ALL_READS:
        return -EIO;
    case ALL_WRITES:
        return -ENOSPC;
    default:
        return result;
    }
}

static int64_t completed(void *context, const struct spw_io_request *r, int64_t result)
{
    struct fault *f = context;
    pthread_mutex_lock(&f->lock);
    bool first = false;
    if (f->n >= 0 && r->bytes && hits(f->kind, r)) {
        first = f->seen++ == f->n;
        if (first) {
            f->met = true;
            f->place = r->offset + 77;
        }
        if (f->met)
            result = broken(f, r, result, first);
    }
    pthread_mutex_unlock(&f->lock);
    return result;
}

struct subject {
    const struct setting *is;
    char dir[128];
    enum spw_io_kind io;
    struct spw_backend backend;
    struct spw_options options;
    int32_t ids[MOST_TOKENS];
    size_t n_tokens; /* the prompt, and N_MORE */
    float *expected; /* [n_tokens][vocab] */
    uint32_t vocab;
};

/* A prompt, then a few tokens one by one. The first failure ends it. */
static int run(const struct subject *s, struct spw_engine *e, struct spw_session *session,
               const char *what, struct spw_error *err)
{
    for (size_t n = s->is->n_prompt; n <= s->n_tokens; n++) {
        struct spw_span span = {session, s->ids, n, 1};
        SPW_TRY(spw_sync(e, &span, 1, NULL, NULL, err));
        CHECK_MSG(run_same(spw_session_logits(session), s->expected + (n - 1) * s->vocab, s->vocab),
                  "%s: wrong logits after %zu tokens", what, n);
    }
    return 0;
}

static void heal(struct fault *f)
{
    pthread_mutex_lock(&f->lock);
    f->n = -1;
    pthread_mutex_unlock(&f->lock);
}

static uint64_t n_runs, n_errors, n_recovered, n_lost_predicted;

/* Whether the fault was met. */
static bool one(struct subject *s, enum fault_kind kind, int64_t n)
{
    struct fault f = {.kind = kind, .n = n};
    struct spw_io_fault hook = {.completed = completed, .reorder = n % 3 ? 0 : 4, .context = &f};
    struct spw_error err = {0};
    char what[256];
    snprintf(what, sizeof what, "%s, io %d, %s, N = %lld", fault_names[kind], (int)s->io,
             s->backend.reads_host_memory ? "direct" : "by the host", (long long)n);
    pthread_mutex_init(&f.lock, NULL);
    s->backend.io_fault = &hook;
    alarm(WATCHDOG_SECONDS);
    struct spw_engine *e = run_open_on(&s->backend, s->dir, &s->options);
    struct spw_session *session = run_session(e);
    int rc = run(s, e, session, what, &err), rc_of_run = rc;
    if (rc) {
        CHECK_MSG(kind == ALL_READS || kind == ALL_WRITES, "%s: %s", what, err.text);
        CHECK_MSG(err.text[0] && !strchr(err.text, '\n'), "%s: no line of text", what);
        CHECK_MSG(strstr(err.text, "disk"), "%s: %s", what, err.text);
        n_errors++;
        heal(&f);
        spw_error_clear(&err);
        rc = run(s, e, session, what, &err);
        CHECK_MSG(rc == 0, "%s: the drive is well, but: %s", what, err.text);
    }
    uint64_t n_incidents = e->n_lost_tiles;
    struct spw_engine_event first;
    bool predicted = run_check_moved(e, &s->options, what);
    CHECK_MSG(predicted || rc_of_run || n_incidents, "%s: nothing predicts what was moved", what);
    n_lost_predicted += n_incidents && predicted;
    while (spw_engine_event(e, &first) && first.kind != SPW_ENGINE_LOST_TILE)
        ;
    if (n_incidents && kind != ALL_READS)
        CHECK_MSG(first.lost_tile.error == (kind == FLIP_FOREVER ? -EBADMSG : -EIO), "%s: %d", what,
                  first.lost_tile.error);
    if (f.met && (kind == READ_FOREVER || kind == FLIP_FOREVER))
        CHECK_MSG(n_incidents > 0, "%s: nobody was told", what);
    n_recovered += n_incidents > 0;
    n_runs++;
    spw_session_close(session);
    spw_engine_close(e);
    pthread_mutex_destroy(&f.lock);
    return f.met;
}

/* Each engine meets every kind of fault in a full run, else every other kind: the two engines share
 * the kinds. Where that is slow (emulated, TSan) each engine meets a quarter of the kinds, a place
 * that cannot be read and a full drive among them. */
static void sweep(struct subject *s)
{
    const struct setting *is = s->is;
    bool slow = TEST_BACKEND != SPW_BACKEND_CPU || RUN_UNDER_TSAN;
    int step = slow ? 4 : check_full() ? 1 : 2;
    for (int kind = (int)s->io % step; kind < FAULT_KINDS; kind += step) {
        int64_t n = is->first;
        for (int i = 0; i < is->most && one(s, (enum fault_kind)kind, n); i++)
            n += n < is->every ? 1 : n < 40 ? is->stride : n / 4 * is->stride;
    }
}

/* Budgets under which old tiles go to the disk, and no weights: they have no checksums
 * (test_weight_faults has what can be found out about them). */
static void make_tight(struct subject *s)
{
    struct spw_plan_info info;
    struct spw_error err = {0};
    s->options.device_bytes = s->options.host_bytes = 0;
    CHECK_MSG(!spw_plan_query_on(&info, &s->backend, s->dir, &s->options, &err), "%s", err.text);
    s->options.device_bytes = info.smallest_device_bytes;
    CHECK_MSG(!spw_plan_query_on(&info, &s->backend, s->dir, &s->options, &err), "%s", err.text);
    s->options.host_bytes = info.smallest_host_bytes;
    do {
        s->options.host_bytes += 4096;
        CHECK_MSG(!spw_plan_query_on(&info, &s->backend, s->dir, &s->options, &err), "%s",
                  err.text);
    } while (info.weights_disk_bytes);
    CHECK(info.disk.kv > 0 && info.precision == s->options.precision);
}

static void run_setting(const struct setting *is)
{
    static struct subject s;
    n_runs = n_recovered = n_errors = n_lost_predicted = 0;
    s = (struct subject){.is = is, .n_tokens = is->n_prompt + N_MORE};
    run_folder(s.dir, &is->model, "disk_faults");
    run_ids(s.ids, s.n_tokens, is->model.vocab, 5);
    s.options = (struct spw_options){.backend = TEST_BACKEND,
                                     .context = s.n_tokens,
                                     .threads = 2,
                                     .precision = is->precision,
                                     .residual_window = SPW_BYTES_NONE};
    s.expected = model_all_logits(s.dir, &s.options, s.ids, s.n_tokens, &s.vocab);
    s.options.disk_dir = s.dir;
    s.options.disk_bytes = 64 << 20;
    s.options.prefill_chunk = 128;
    if (is->precision != SPW_KV_EXACT) /* little that old tiles could lie in instead */
        s.options.prefetch_slots = 2, s.options.prefetch_splits = 1;
    for (int direct = 0; direct < (run_backend(true).reads_host_memory ? 2 : 1); direct++)
        for (int io = SPW_IO_URING; io <= SPW_IO_THREADS; io++) {
            s.backend = run_backend(direct);
            s.io = s.options.io = (enum spw_io_kind)io;
            make_tight(&s);
            sweep(&s);
        }
    tiny_model_remove(s.dir);
    free(s.expected);
    fprintf(stderr,
            "KV %s: %llu runs, %llu with lost tiles computed again (%llu of them predicted), %llu "
            "ended in an error\n",
            spw_kv_precision_name(is->precision), (unsigned long long)n_runs,
            (unsigned long long)n_recovered, (unsigned long long)n_lost_predicted,
            (unsigned long long)n_errors);
    CHECK(n_recovered > 0 && n_errors > 0 && n_lost_predicted > n_recovered / 2);
}

int main(int argc, char **argv)
{
    const int stride = check_stride(argc, argv, STRIDE);
    const struct setting settings[] = {
        {{"llama", 2, 32, 32, 2, 1, 32, 67, 2048, NULL, false, false, false, true, true, 92},
         SPW_KV_INT8_INT4,
         1100,
         2,
         0,
         stride,
         QUANTIZED_RUNS},
        {{"llama", LAYERS, 32, 48, 2, 1, 16, 67, 2048, NULL, false, false, false, true, true, 91},
         SPW_KV_EXACT,
         PROMPT,
         0,
         EVERY,
         stride,
         EXACT_RUNS},
    };
    if (!run_is_there())
        return CHECK_SKIP;
    int64_t outstanding = spw_alloc_outstanding();
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        run_setting(&settings[i]);
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
