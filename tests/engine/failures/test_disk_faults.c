/* Faults of the drive, seen from the top: the N-th read or write of a run fails, is cut short,
 * late, out of order or one bit off, for N = 0, 1, ... until the run meets none, with both I/O
 * engines, and with reads that land on the device at once as well as by way of the host.
 *
 * Tiles: a run ends with the same logits or with one line that says what is wrong; then the drive
 * is well again, and the same sessions go on to the right logits. What moved on every link is
 * predicted, also when tiles were lost. Exact ones, and, in larger steps, quantized ones.
 *
 * Weights that are read from the model's files while it computes, experts too: a place that cannot
 * be read or is not what it was, a drive that reads nothing any more and a file that was cut short
 * end the step with one line that names file and tensor; the sessions hold what they held, and go
 * on once the file can be read again. The checksums that the engine noted are those of the file.
 *
 *   test_disk_faults [stride]    of N */
#include "tests/engine/io_fault.h"
#include "tests/engine/oracle.h"
#include "tests/engine/twin.h"
#include "tests/engine/weight_sums.h"

#define SLOW (RUN_UNDER_TSAN || RUN_UNDER_ASAN)

/* The last step fills the context, so that nothing is read ahead which nobody will wait for. */
enum { N_MORE = 4, WATCHDOG_SECONDS = 600 };

/* What is run, and which N of every fault: from the first one on each, then in steps, and so many
 * at most. */
struct setting {
    struct tiny_model model;
    enum spw_kv_precision precision;
    size_t n_prompt;
    int64_t first, every, stride;
    int most;
    bool weights; /* come from the disk, not tiles */
};

struct world {
    const struct setting *is;
    struct subject s;
    struct spw_backend backend;
    struct spw_options o;
    struct twin twin; /* of the engine that runs */
};

static uint64_t n_runs, n_errors, n_recovered, n_predicted, host_bytes;

/* A prompt, then a few tokens one by one; after an error of weights from where the session is. The
 * first failure ends it. */
static int run(struct world *w, struct spw_engine *e, struct spw_session *session, const char *what,
               struct spw_error *err)
{
    size_t held = spw_session_n_tokens(session);
    size_t half = w->is->n_prompt / 2, next;
    for (size_t n = w->is->weights ? (held ? held + 1 : w->is->n_prompt) : half; n <= w->s.n_tokens;
         n = next) {
        next = n == half ? w->is->n_prompt : n + 1;
        struct spw_span span = {session, w->s.ids[0], n, 1};
        held = spw_session_n_tokens(session);
        int rc = spw_sync(e, &span, 1, NULL, NULL, err);
        twin_follow(&w->twin, e, &span, 1, rc);
        if (rc && w->is->weights)
            CHECK_MSG(spw_session_n_tokens(session) == held, "%s: %zu tokens are left of %zu", what,
                      spw_session_n_tokens(session), held);
        SPW_TRY(rc);
        CHECK_MSG(oracle_same(&w->s, w->s.ids[0], n, spw_session_logits(session)),
                  "%s: wrong logits after %zu tokens", what, n);
    }
    return 0;
}

static const struct spw_tensor *find_tensor(const struct spw_engine *e, const char *own_name)
{
    for (size_t i = 0; i < spw_tensors_count(e->model.tensors); i++)
        if (!strcmp(spw_tensors_at(e->model.tensors, i)->own_name, own_name))
            return spw_tensors_at(e->model.tensors, i);
    return NULL;
}

/* Whether the text names the file, and the tensor at the place: or the first and the last one of
 * the record that has the place. */
static bool names_tensor(struct spw_engine *e, uint64_t place, const char *text)
{
    char first[128] = "", last[128] = "";
    const char *file = spw_tensors_path(e->model.tensors, 0), *after = strstr(text, file);
    const struct spw_tensor *a, *b;
    if (!after || strncmp(after + strlen(file), ": tensor", 8) != 0)
        return false;
    after += strlen(file) + 8;
    if (sscanf(after, "s %127[^ :] to %127[^ :]: weights", first, last) != 2) {
        if (sscanf(after, " %127[^ :]: weights", first) != 1)
            return false;
        memcpy(last, first, sizeof last);
    }
    a = find_tensor(e, first);
    b = find_tensor(e, last);
    return a && b && place / SPW_FILE_BLOCK >= a->file_offset / SPW_FILE_BLOCK &&
           place < spw_align_up(b->file_offset + b->bytes, SPW_FILE_BLOCK);
}

static void check_error(const struct world *w, struct spw_engine *e, int rc,
                        const struct io_fault *f, const struct spw_error *err, const char *what)
{
    const enum io_fault_kind kind = f->kind;
    bool whole_drive = kind == ALL_READS || kind == CUT;
    bool named = w->is->weights ? names_tensor(e, f->place, err->text) || whole_drive
                                : strstr(err->text, "disk") != NULL;
    bool may = kind == ALL_READS || kind == ALL_WRITES || kind == CUT ||
               (w->is->weights && (kind == READ_FOREVER || kind == FLIP_FOREVER));
    CHECK_MSG(may && named && !strchr(err->text, '\n'), "%s: %d %s", what, rc, err->text);
    CHECK_MSG(!w->is->weights || strstr(err->text, kind == FLIP_FOREVER ? "not what they were"
                                                                        : "could not be read"),
              "%s: %s", what, err->text);
    CHECK_MSG(!w->is->weights || rc == -EIO, "%s: %d", what, rc);
    CHECK_MSG(kind != CUT || strstr(err->text, "shorter than it was"), "%s: %s", what, err->text);
    n_errors++;
}

static void check_losses(const struct world *w, struct spw_engine *e, int rc, struct io_fault *f,
                         const char *what)
{
    uint64_t n = e->events.n_lost_tiles;
    struct spw_engine_event first;
    struct spw_stats stats;
    run_check_peaks(e, &w->o, what);
    spw_engine_stats(e, &stats);
    host_bytes += stats.host_multiplied_bytes;
    n_recovered += n > 0;
    while (spw_engine_event(e, &first) && first.kind != SPW_ENGINE_LOST_TILE)
        ;
    if (n && f->kind != ALL_READS)
        CHECK_MSG(first.lost_tile.error == (f->kind == FLIP_FOREVER ? -EBADMSG : -EIO), "%s: %d",
                  what, first.lost_tile.error);
    if (io_fault_met(f) && (f->kind == READ_FOREVER || f->kind == FLIP_FOREVER))
        CHECK_MSG(n > 0 || (w->is->weights && rc), "%s: nobody was told", what);
    if (io_fault_met(f) && w->is->weights && (f->kind == ALL_READS || f->kind == CUT))
        CHECK_MSG(rc, "%s: nobody was told", what);
}

/* Copies of tiles before the disk's waterline are on the disk, also those that a failed write had
 * left on the host. */
static void check_copies(const struct world *w, const struct spw_session *session, const char *what)
{
    const struct spw_kv_seq *kv = session->seq.kv;
    for (uint32_t l = 0; l < session->engine->model.config.n_slices && !w->is->weights; l++) {
        uint32_t end = spw_min_u32(spw_kv_begin(kv, l), spw_kv_disk_end(kv, l));
        for (uint32_t t = spw_kv_first(kv, l); t < end; t++)
            CHECK_MSG(!spw_kv_host_tile(kv, l, t), "%s: layer %u, tile %u is on the host", what, l,
                      t);
    }
}

/* Whether the fault was met. */
static bool one(struct world *w, enum io_fault_kind kind, int64_t n)
{
    struct io_fault f;
    struct spw_error err = {0};
    char what[300];
    snprintf(what, sizeof what, "%.99s: %s, io %d, %s, N = %lld", w->s.dir, io_fault_names[kind],
             (int)w->o.io, w->backend.reads_host_memory ? "direct" : "by the host", (long long)n);
    io_fault_open(&f);
    f.hook.reorder = n % 3 ? 0 : 4;
    w->backend.io_fault = &f.hook;
    io_fault_set(&f, kind, n);
    alarm(WATCHDOG_SECONDS);
    struct spw_engine *e = run_open_on(&w->backend, w->s.dir, &w->o);
    twin_open(&w->twin, e);
    struct spw_session *session = run_session(e);
    twin_open_session(&w->twin, session->slot, w->s.n_tokens);
    if (kind == FLIP_ONCE || kind == FLIP_FOREVER) /* known, as from an earlier run */
        weight_sums_check(e, true);
    int rc = run(w, e, session, what, &err);
    io_fault_end(&f);
    if (rc) {
        check_error(w, e, rc, &f, &err, what);
        spw_error_clear(&err);
        int again = run(w, e, session, what, &err);
        CHECK_MSG(again == 0, "%s: the drive is well, but: %s", what, err.text);
        check_copies(w, session, what);
    }
    check_losses(w, e, rc, &f, what);
    n_predicted += twin_end(&w->twin, e, what);
    if (w->is->weights) {
        struct weight_sums sums = weight_sums_check(e, false);
        CHECK_MSG(sums.n_known && !sums.n_wrong, "%s: %llu sums, %llu wrong", what,
                  (unsigned long long)sums.n_known, (unsigned long long)sums.n_wrong);
    }
    n_runs++;
    spw_session_close(session);
    spw_engine_close(e);
    pthread_mutex_destroy(&f.lock);
    return f.met;
}

/* Each engine meets every kind of fault in a full run, else every other kind: the two engines share
 * the kinds. Where that is slow (emulated, TSan) each engine meets a quarter of the kinds of tiles,
 * a place that cannot be read and a full drive among them. Weights are not written. */
static void sweep(struct world *w)
{
    static const enum io_fault_kind of_tiles[] = {
        READ_ONCE,     READ_FOREVER, FLIP_ONCE, FLIP_FOREVER, SHORT_READ, WRITE_ONCE,
        WRITE_FOREVER, SHORT_WRITE,  LATE,      ALL_READS,    ALL_WRITES};
    static const enum io_fault_kind of_weights[] = {
        READ_ONCE, FLIP_ONCE, SHORT_READ, READ_FOREVER, FLIP_FOREVER, LATE, ALL_READS, CUT};
    /* The tiles of one layer hold the frames that another one needs; nobody waits for the write. */
    static const int64_t found[] = {18, 31};
    const struct setting *is = w->is;
    bool slow = (TEST_GPU || RUN_UNDER_TSAN) && !is->weights;
    size_t step = slow ? 4 : check_full() ? 1 : 2, n_kinds = is->weights ? 8 : 11;
    for (size_t k = (size_t)w->o.io % step; k < n_kinds; k += step) {
        int64_t n = is->first;
        for (size_t i = 0; i < 2 && !slow && !is->weights && of_tiles[k] == ALL_WRITES; i++)
            one(w, ALL_WRITES, found[i]);
        for (int i = 0; i < is->most && one(w, (is->weights ? of_weights : of_tiles)[k], n); i++)
            n += n < is->every ? 1 : n < (is->weights ? 12 : 40) ? is->stride : n / 4 * is->stride;
    }
}

/* The smallest budgets: no block of weights stays, none waits on the host. Or so much more that old
 * tiles go to the disk, and no weights. */
static void make_tight(struct world *w)
{
    struct spw_options *o = &w->o;
    o->device_bytes = o->host_bytes = 0;
    o->device_bytes = run_plan_on(&w->backend, w->s.dir, o).smallest_device_bytes;
    struct spw_plan_info info = run_plan_on(&w->backend, w->s.dir, o);
    o->host_bytes = info.smallest_host_bytes;
    do {
        o->host_bytes += w->is->weights ? 0 : 4096;
        info = run_plan_on(&w->backend, w->s.dir, o);
    } while (!w->is->weights && info.weights_disk_bytes);
    CHECK(info.precision == o->precision);
    if (!w->is->weights)
        CHECK(info.disk.kv > 0);
    else
        CHECK(info.n_experts ? info.n_experts_from_disk : info.n_layers_from_disk);
}

static void run_setting(const struct setting *is)
{
    static struct world w;
    n_runs = n_recovered = n_errors = n_predicted = host_bytes = 0;
    w = (struct world){.is = is};
    subject_open(&w.s, &is->model, "disk_faults", is->n_prompt + N_MORE,
                 &(struct spw_options){.precision = is->precision, .residual_window = SPW_NONE});
    w.o = w.s.o;
    if (!is->weights) {
        w.o.disk_dir = w.s.dir;
        w.o.disk_bytes = 64 << 20;
        w.o.prefill_chunk = 128;
    }
    if (is->precision != SPW_KV_EXACT) /* little that old tiles could lie in instead */
        w.o.prefetch_slots = 2, w.o.prefetch_splits = 1;
    for (int direct = 0; direct < (run_backend(true).reads_host_memory ? 2 : 1); direct++)
        for (int io = SPW_IO_URING; io <= SPW_IO_THREADS; io++) {
            if (RUN_UNDER_ASAN && !check_full() && direct == (io == SPW_IO_URING))
                continue; /* each of both once */
            w.backend = run_backend(direct);
            w.backend.host_lane = !direct;
            w.o.io = (enum spw_io_kind)io;
            make_tight(&w);
            sweep(&w);
        }
    subject_close(&w.s);
    fprintf(
        stderr,
        "%s %s: %llu runs, %llu of them predicted, %llu with lost tiles computed again, %llu ended "
        "in an error\n",
        is->weights ? "weights, KV" : "KV", spw_kv_precision_name(is->precision),
        (unsigned long long)n_runs, (unsigned long long)n_predicted,
        (unsigned long long)n_recovered, (unsigned long long)n_errors);
    CHECK(n_errors > 0 && (host_bytes > 0) == (is->model.stored == TINY_QUANTIZED));
    CHECK(is->weights || (n_recovered > 0 && n_predicted > 0));
}

int main(int argc, char **argv)
{
    const int stride = check_stride(argc, argv,
                                    TEST_GPU         ? 400
                                    : RUN_UNDER_TSAN ? 240
                                    : RUN_UNDER_ASAN ? 100
                                                     : 23);
    const int of_weights = argc > 1 ? stride : check_stride(argc, argv, SLOW ? 4 : 1);
    const struct tiny_model quantized = {TINY("llama", 2, 32, 32, 2, 1, 32, 67, 2048),
                                         .untied = true, .stored = TINY_BF16, .seed = 92};
    const struct tiny_model exact = {TINY("llama", TEST_GPU ? 3 : 4, 32, 48, 2, 1, 16, 67, 2048),
                                     .untied = true, .stored = TINY_BF16, .seed = 91};
    const struct tiny_model mixture = {
        TINY("qwen3_moe", 2, 64, 32, 2, 1, 32, 67, 512),
        .more = ",\"num_experts\":8,\"num_experts_per_tok\":3,\"moe_intermediate_size\":32",
        .qk_norm = true,
        .untied = true,
        .stored = TINY_QUANTIZED,
        .seed = 93,
        .experts = 8,
        .expert_width = 32};
    const int few = TEST_GPU || SLOW ? 1 : 3; /* runs of each fault; and each of the first N */
    const size_t n_prompt = TEST_GPU ? 800 : SLOW || !check_full() ? 1100 : 1900;
    const struct setting settings[] = {
        {quantized, SPW_KV_INT8_INT4, 1100, 2, 0, stride, few, false},
        {exact, SPW_KV_EXACT, n_prompt, 0, few, stride, TEST_GPU ? 2 : INT32_MAX, false},
        {tiny_models[1], SPW_KV_EXACT, 150, 0, 3, of_weights, INT32_MAX, true},
        /* its matrices lie at odd addresses */
        {tiny_models[2], SPW_KV_EXACT, 150, 0, 3, of_weights, INT32_MAX, true},
        {tiny_models[6], SPW_KV_EXACT, 40, 0, 3, 5 * of_weights, INT32_MAX, true}, /* experts */
        /* the same in the steps of one row: the host multiplies those that it reads */
        {mixture, SPW_KV_EXACT, 40, 40, 44, 1, 3, true},
    };
    if (!run_is_there())
        return CHECK_SKIP;
    int64_t outstanding = spw_alloc_outstanding();
    for (size_t i = 0; i < (TEST_GPU || (RUN_UNDER_TSAN && !check_full()) ? 2 : 6); i++)
        run_setting(&settings[i]);
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
