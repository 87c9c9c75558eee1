/* Weights that are read from the model's files while it computes, and drives that fail at it: the
 * N-th read fails once, is cut short or late, for N = 0, 1, ... until a run meets none, with both
 * I/O engines, with reads that land in the slots and by way of the host. Such a run ends with the
 * right logits. A place that cannot be read, a drive that reads nothing any more and a file that
 * was cut short end the step with one line that names the file; the sessions hold what they held,
 * and go on to the right logits once the file can be read again. Nothing leaks, nothing hangs.
 *
 *   test_weight_faults [stride]    of N; default 4 under sanitizers, else 1 */
#include "tests/engine/engine_run.h"

#include <pthread.h>

enum { N_PROMPT = 150, N_TOKENS = 154, WATCHDOG_SECONDS = 300 };

enum fault_kind {
    READ_ONCE, /* the next try succeeds */
    SHORT_READ,
    LATE,
    PLACE,     /* cannot be read */
    ALL_READS, /* from the N-th on */
    CUT,       /* the file ends where the N-th read begins */
    FAULT_KINDS,
};

static const char *const fault_names[FAULT_KINDS] = {"a read fails once", "a short read",
                                                     "a late completion", "a place cannot be read",
                                                     "all reads fail",    "the file is cut short"};

struct fault {
    enum fault_kind kind;
    int64_t n, seen; /* the request that meets it, negative: none; so far */
    bool met;
    uint64_t place; /* in the file */
    pthread_mutex_t lock;
};

static int64_t broken(const struct fault *f, const struct spw_io_request *r, int64_t result,
                      bool first)
{
    bool there = f->place >= r->offset && f->place < r->offset + r->bytes;
    switch (f->kind) {
    case READ_ONCE:
        return first ? -EIO : result;
    case SHORT_READ:
        return first && result > 4096 ? result / 8192 * 4096 : result;
    case LATE:
        if (first)
            usleep(20000);
        return result;
    case PLACE:
        return there ? -EIO : result;
    case ALL_READS:
        return -EIO;
    default:
        return r->offset >= f->place ? 0 : there ? (int64_t)(f->place - r->offset) : result;
    }
}

static int64_t completed(void *context, const struct spw_io_request *r, int64_t result)
{
    struct fault *f = context;
    pthread_mutex_lock(&f->lock);
    if (f->n >= 0 && r->bytes) {
        bool first = f->seen++ == f->n;
        if (first) {
            f->met = true;
            f->place = r->offset + (f->kind == PLACE ? 5 : 0);
        }
        if (f->met)
            result = broken(f, r, result, first);
    }
    pthread_mutex_unlock(&f->lock);
    return result;
}

static void heal(struct fault *f)
{
    pthread_mutex_lock(&f->lock);
    f->n = -1;
    pthread_mutex_unlock(&f->lock);
}

struct subject {
    char dir[128];
    struct spw_backend backend;
    struct spw_options options;
    int32_t ids[N_TOKENS];
    float *expected; /* [N_TOKENS][vocab] */
    uint32_t vocab;
};

static uint64_t n_runs, n_errors;

/* From where the session is. A failure leaves it there. */
static int run(const struct subject *s, struct spw_engine *e, struct spw_session *session,
               const char *what, struct spw_error *err)
{
    size_t held = spw_session_n_tokens(session);
    for (size_t n = held ? held + 1 : N_PROMPT; n <= N_TOKENS; n++) {
        struct spw_span span = {session, s->ids, n, 1};
        held = spw_session_n_tokens(session);
        int rc = spw_sync(e, &span, 1, NULL, NULL, err);
        if (rc) {
            CHECK_MSG(spw_session_n_tokens(session) == held, "%s: %zu tokens are left of %zu", what,
                      spw_session_n_tokens(session), held);
            return rc;
        }
        CHECK_MSG(run_same(spw_session_logits(session), s->expected + (n - 1) * s->vocab, s->vocab),
                  "%s: wrong logits after %zu tokens", what, n);
    }
    return 0;
}

static void check_error(int rc, const struct spw_error *err, enum fault_kind kind, const char *what)
{
    CHECK_MSG(kind >= PLACE && rc == -EIO, "%s: %d %s", what, rc, err->text);
    CHECK_MSG(strstr(err->text, "/model.safetensors: weights could not be read") &&
                  !strchr(err->text, '\n'),
              "%s: %s", what, err->text);
    CHECK_MSG(kind != CUT || strstr(err->text, "shorter than it was"), "%s: %s", what, err->text);
    n_errors++;
}

/* Whether the fault was met. */
static bool one(struct subject *s, enum fault_kind kind, int64_t n)
{
    struct fault f = {.kind = kind, .n = n};
    struct spw_io_fault hook = {.completed = completed, .reorder = n % 3 ? 0 : 4, .context = &f};
    struct spw_error err = {0};
    char what[256];
    snprintf(what, sizeof what, "%s: %s, io %d, %s, N = %lld", s->dir, fault_names[kind],
             (int)s->options.io, s->backend.reads_host_memory ? "direct" : "by the host",
             (long long)n);
    pthread_mutex_init(&f.lock, NULL);
    s->backend.io_fault = &hook;
    alarm(WATCHDOG_SECONDS);
    struct spw_engine *e = run_open_on(&s->backend, s->dir, &s->options);
    struct spw_session *session = run_session(e);
    int rc = run(s, e, session, what, &err);
    if (rc) {
        check_error(rc, &err, kind, what);
        heal(&f);
        spw_error_clear(&err);
        rc = run(s, e, session, what, &err);
        CHECK_MSG(rc == 0, "%s: the drive is well, but: %s", what, err.text);
    } else {
        CHECK_MSG(kind < PLACE || !f.met, "%s: nobody was told", what);
        run_check_account(e, &s->options, what);
    }
    n_runs++;
    spw_session_close(session);
    spw_engine_close(e);
    pthread_mutex_destroy(&f.lock);
    return f.met;
}

/* At the smallest budgets: no block stays, none waits on the host. */
static void sweep(struct subject *s, int stride)
{
    struct spw_plan_info info;
    struct spw_error err = {0};
    s->options.device_bytes = s->options.host_bytes = 0;
    CHECK_MSG(!spw_plan_query_on(&info, &s->backend, s->dir, &s->options, &err), "%s", err.text);
    s->options.device_bytes = info.smallest_device_bytes;
    CHECK_MSG(!spw_plan_query_on(&info, &s->backend, s->dir, &s->options, &err), "%s", err.text);
    s->options.host_bytes = info.smallest_host_bytes;
    CHECK_MSG(!spw_plan_query_on(&info, &s->backend, s->dir, &s->options, &err), "%s", err.text);
    CHECK(info.weights_disk_bytes > 0 && info.n_layers_from_disk > 0);
    for (int kind = 0; kind < FAULT_KINDS; kind++)
        for (int64_t n = 0; one(s, (enum fault_kind)kind, n);)
            n += n < 3 ? 1 : n < 12 ? stride : n / 4 * stride;
}

int main(int argc, char **argv)
{
    int stride = check_stride(argc, argv, RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 4 : 1);
    if (!run_is_there())
        return CHECK_SKIP;
    int64_t outstanding = spw_alloc_outstanding();
    for (int i = 1; i < 3; i++) { /* of the second the matrices lie at odd addresses */
        static struct subject s;
        run_folder(s.dir, &tiny_models[i], "weight_faults");
        run_ids(s.ids, N_TOKENS, tiny_models[i].vocab, 5);
        s.options =
            (struct spw_options){.backend = TEST_BACKEND, .context = N_TOKENS, .threads = 2};
        s.expected = model_all_logits(s.dir, &s.options, s.ids, N_TOKENS, &s.vocab);
        for (int direct = 0; direct < 2; direct++)
            for (int io = SPW_IO_URING; io <= SPW_IO_THREADS; io++) {
                s.backend = run_backend(direct);
                s.options.io = (enum spw_io_kind)io;
                sweep(&s, stride);
            }
        tiny_model_remove(s.dir);
        free(s.expected);
    }
    CHECK(spw_alloc_outstanding() == outstanding);
    fprintf(stderr, "%llu runs, %llu ended with an error\n", (unsigned long long)n_runs,
            (unsigned long long)n_errors);
    CHECK(n_errors > 0);
    return check_done();
}
