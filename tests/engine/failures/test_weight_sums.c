/* Checksums of weights that are read from the model's files: a bit that is not what it was ends the
 * step with a text that names file and tensor, in this run and in a later one that knows the sums
 * from a file; and what the file of sums does when it is damaged, old, or of another model. */
#include "tests/engine/io_fault.h"
#include "tests/engine/oracle.h"
#include "tests/engine/weight_sums.h"

#include <xxhash.h>

enum { N_TOKENS = 40 };

/* Matrices of 2 MiB: each has records of its own. */
static const struct tiny_model large = {TINY("llama", 2, 512, 1024, 4, 2, 128, 67, 512),
                                        .untied = true, .seed = 97};
static const struct tiny_model mixture = {
    TINY("qwen3_moe", 2, 64, 64, 2, 1, 32, 67, 512),
    .more = ",\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":48",
    .qk_norm = true,
    .untied = true,
    .seed = 98,
    .experts = 8,
    .expert_width = 48};

static char sums_file[96];

struct world {
    struct subject s;
    struct spw_backend backend;
    struct io_fault fault;
    struct spw_engine *e;
    struct spw_session *session;
};

static void open_engine(struct world *w)
{
    w->e = run_open_on(&w->backend, w->s.dir, &w->s.o);
    w->session = run_session(w->e);
}

static void close_engine(struct world *w)
{
    spw_session_close(w->session);
    spw_engine_close(w->e);
}

/* The smallest budgets: everything that can be read from the files is. */
static void open_world(struct world *w, const struct tiny_model *m)
{
    *w = (struct world){.backend = run_backend(true)};
    io_fault_open(&w->fault);
    subject_open(&w->s, m, "weight_sums", N_TOKENS, &(struct spw_options){0});
    struct spw_options *o = &w->s.o;
    o->sessions = 2;
    o->device_bytes = run_plan_on(&w->backend, w->s.dir, o).smallest_device_bytes;
    o->host_bytes = run_plan_on(&w->backend, w->s.dir, o).smallest_host_bytes;
    oracle(&w->s, w->s.ids[0], N_TOKENS);
    w->backend.io_fault = &w->fault.hook;
    o->weight_checksums = sums_file;
    unlink(sums_file);
}

static void close_world(struct world *w)
{
    w->s.o.weight_checksums = NULL;
    subject_close(&w->s);
    unlink(sums_file);
    pthread_mutex_destroy(&w->fault.lock);
}

/* Tokens up to n, which must be right, or fail. */
static int run(struct world *w, size_t n, struct spw_error *err)
{
    struct spw_span span = {w->session, w->s.ids[0], n, 1};
    spw_error_clear(err);
    SPW_TRY(spw_sync(w->e, &span, 1, NULL, NULL, err));
    CHECK(oracle_same(&w->s, w->s.ids[0], n, spw_session_logits(w->session)));
    return 0;
}

static void must_run(struct world *w, size_t n)
{
    struct spw_error err;
    CHECK_MSG(run(w, n, &err) == 0, "%s", err.text);
}

/* Turns a bit of the tensor, at this part of its bytes. The time of the last write is as before. */
static void turn_bit(struct world *w, const char *tensor, double part)
{
    struct stat st;
    uint8_t byte;
    const struct spw_tensor *t = spw_tensors_find(w->e->model.tensors, tensor);
    off_t at = (off_t)(t->file_offset + (uint64_t)(part * (double)t->bytes));
    int fd = open(t->file, O_RDWR);
    CHECK(fd >= 0 && fstat(fd, &st) == 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 4;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    CHECK(futimens(fd, (struct timespec[2]){st.st_atim, st.st_mtim}) == 0);
    close(fd);
}

/* A prompt in a session of its own. */
static int run_other(struct world *w, struct spw_session *session, struct spw_error *err)
{
    struct spw_span span = {session, w->s.ids[1], 30, 1};
    spw_error_clear(err);
    SPW_TRY(spw_sync(w->e, &span, 1, NULL, NULL, err));
    CHECK(oracle_same(&w->s, w->s.ids[1], 30, spw_session_logits(session)));
    return 0;
}

static void must_run_other(struct world *w)
{
    struct spw_error err;
    struct spw_session *session = run_session(w->e);
    CHECK_MSG(run_other(w, session, &err) == 0, "%s", err.text);
    spw_session_close(session);
}

/* It cannot be computed. The first session keeps its tokens. */
static void must_fail(struct world *w, const char *tensor)
{
    struct spw_error err;
    const size_t held = spw_session_n_tokens(w->session);
    struct spw_session *session = run_session(w->e);
    CHECK(run_other(w, session, &err) == -EIO);
    CHECK_MSG(strstr(err.text, "/model.safetensors: tensor") && strstr(err.text, tensor) &&
                  strstr(err.text, ": weights are not what they were") &&
                  strstr(err.text, sums_file),
              "%s", err.text);
    CHECK(spw_session_n_tokens(session) == 0 && spw_session_n_tokens(w->session) == held);
    spw_session_close(session);
}

/* A bit that changes in the middle of a run, and one that changed before it. */
static void test_changed(const struct tiny_model *m, const char *tensor, const char *named)
{
    static struct world w;
    open_world(&w, m);
    open_engine(&w);
    must_run(&w, 20);
    must_run_other(&w);
    must_run(&w, 21);
    turn_bit(&w, tensor, 0.7);
    must_fail(&w, named);
    must_fail(&w, named); /* as long as it is wrong */
    turn_bit(&w, tensor, 0.7);
    must_run(&w, 22);
    CHECK(!weight_sums_check(w.e, false).n_wrong);
    turn_bit(&w, tensor, 0.7);
    close_engine(&w);
    open_engine(&w); /* the sums are those of the first run */
    must_fail(&w, named);
    turn_bit(&w, tensor, 0.7);
    must_run_other(&w);
    close_engine(&w);
    close_world(&w);
}

/* A bit that turned on its way when it was first read: a later read does not agree, in the same
 * step or in the next one. */
static void test_first_read(void)
{
    static struct world w;
    struct spw_error err;
    open_world(&w, &large);
    w.s.o.weight_checksums = NULL;
    open_engine(&w);
    io_fault_set(&w.fault, FLIP_ONCE, 0);
    struct spw_span span = {w.session, w.s.ids[0], 20, 1};
    int rc = spw_sync(w.e, &span, 1, NULL, NULL, &err);
    CHECK(io_fault_end(&w.fault) && weight_sums_check(w.e, false).n_wrong == 1);
    CHECK((rc ? rc : run(&w, 21, &err)) == -EIO);
    CHECK(strstr(err.text, "if the file is right, open the model"));
    close_engine(&w);
    open_engine(&w);
    must_run(&w, 21);
    close_engine(&w);
    close_world(&w);
}

/* The drive reads nothing from now on. */
static void break_drive(void *context, size_t span, size_t position, const float *logits)
{
    (void)span, (void)position, (void)logits;
    io_fault_set(context, ALL_READS, 0);
}

/* The drive was bad while the reads of the next step were issued, and is well when that step needs
 * them. */
static void test_bad_for_a_while(const struct tiny_model *m, bool direct)
{
    static struct world w;
    struct spw_error err;
    open_world(&w, m);
    w.backend.reads_host_memory &= direct;
    w.s.o.host_bytes = 0;
    w.s.o.host_bytes = run_plan_on(&w.backend, w.s.dir, &w.s.o).smallest_host_bytes;
    open_engine(&w);
    must_run(&w, 20);
    int n_met = 0; /* steps whose reads were not all issued before the drive was bad */
    for (size_t n = 21; n < 24; n++) {
        struct spw_span span = {w.session, w.s.ids[0], n, 1};
        CHECK(spw_sync(w.e, &span, 1, break_drive, &w.fault, &err) == 0);
        spw_prefetch_finish(w.e->prefetch);
        n_met += io_fault_end(&w.fault);
    }
    CHECK(n_met > 0);
    must_run(&w, 24);
    run_check_peaks(w.e, &w.s.o, "a drive that was bad for a while");
    CHECK(!weight_sums_check(w.e, false).n_wrong);
    close_engine(&w);
    close_world(&w);
}

/* How many sums an engine has before its first step. */
static uint64_t n_known_at_open(struct world *w)
{
    open_engine(w);
    struct weight_sums sums = weight_sums_check(w->e, false);
    CHECK(!sums.n_wrong && sums.n > 0);
    close_engine(w);
    return sums.n_known;
}

static void flip_byte(const char *file, off_t at)
{
    uint8_t byte;
    int fd = open(file, O_RDWR);
    CHECK(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 1;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

/* The first list of the file gets a length that the file does not have; the checksum of the file is
 * right. */
static void lengthen_list(const char *file)
{
    enum { MOST = 1 << 16, AT_LENGTH = 8 + 16, END = sizeof "end of spwsums" - 1 };
    static uint8_t bytes[MOST];
    int fd = open(file, O_RDWR);
    const ssize_t n = read(fd, bytes, MOST) - END;
    CHECK(fd >= 0 && n > AT_LENGTH + 16 && n < MOST);
    bytes[AT_LENGTH + 2] = 1;
    const uint64_t sum = XXH3_64bits(bytes, (size_t)n - sizeof sum);
    CHECK(pwrite(fd, bytes, (size_t)n - sizeof sum, 0) == n - (ssize_t)sizeof sum);
    CHECK(pwrite(fd, &sum, sizeof sum, n - (off_t)sizeof sum) == (ssize_t)sizeof sum);
    close(fd);
}

static void test_file(void)
{
    static struct world w, other;
    struct stat st;
    char path[600];
    open_world(&w, &mixture);
    CHECK(n_known_at_open(&w) == 0);
    CHECK(access(sums_file, F_OK) != 0); /* nothing was read */
    open_engine(&w);
    must_run(&w, 20);
    const uint64_t n = weight_sums_check(w.e, false).n_known;
    close_engine(&w);
    CHECK(n > 0 && n_known_at_open(&w) == n);

    open_world(&other, &large); /* takes the file away, and begins a new one */
    open_engine(&other);
    must_run(&other, 20);
    const uint64_t n_other = weight_sums_check(other.e, false).n_known;
    close_engine(&other);
    CHECK(n_known_at_open(&w) == 0);
    open_engine(&w);
    must_run(&w, 20);
    close_engine(&w);
    CHECK(n_known_at_open(&w) == n && n_known_at_open(&other) == n_other);

    CHECK(stat(sums_file, &st) == 0 && st.st_size > 64);
    for (off_t at = 0; at < st.st_size; at += st.st_size / 37) { /* damage is no file */
        flip_byte(sums_file, at);
        CHECK(n_known_at_open(&w) == 0);
        flip_byte(sums_file, at);
    }
    CHECK(n_known_at_open(&w) == n);
    lengthen_list(sums_file);
    CHECK(n_known_at_open(&w) == 0);
    open_engine(&w);
    must_run(&w, 20);
    close_engine(&w);
    CHECK(n_known_at_open(&w) == n); /* another file has taken its place, too */
    flip_byte(sums_file, 0);
    open_engine(&w);
    must_run(&w, 20);
    close_engine(&w);
    CHECK(n_known_at_open(&w) == n); /* of a damaged beginning, too */
    CHECK(stat(sums_file, &st) == 0);
    for (off_t cut = st.st_size - 1; cut > 8; cut = cut * 2 / 3) {
        CHECK(truncate(sums_file, cut) == 0);
        CHECK(n_known_at_open(&w) == 0);
    }
    flip_byte(sums_file, 7); /* the number of another layout */
    open_engine(&w);
    CHECK_MSG(strstr(spw_engine_note(w.e), "taken anew"), "%s", spw_engine_note(w.e));
    must_run(&w, 20);
    close_engine(&w);
    CHECK(n_known_at_open(&w) == n); /* another file has taken its place */

    snprintf(path, sizeof path, "%.500s/model.safetensors", w.s.dir);
    CHECK(utimensat(AT_FDCWD, path, NULL, 0) == 0); /* somebody wrote to the model */
    CHECK(n_known_at_open(&w) == 0);

    FILE *f = fopen(sums_file, "w"); /* a file of somebody else stays */
    fputs("my own notes", f);
    fclose(f);
    open_engine(&w);
    must_run(&w, 20);
    close_engine(&w);
    CHECK(stat(sums_file, &st) == 0 && st.st_size == 12);
    close_world(&other);
    close_world(&w);
}

int main(void)
{
    if (!run_is_there())
        return CHECK_SKIP;
    int64_t outstanding = spw_alloc_outstanding();
    snprintf(sums_file, sizeof sums_file, "/tmp/spw_weight_sums_%d", (int)getpid());
    test_changed(&large, "model.layers.1.mlp.up_proj.weight",
                 ": tensor model.layers.1.mlp.up_proj.weight: weights");
    test_changed(&mixture, "model.layers.1.mlp.experts.3.down_proj.weight",
                 ": tensors model.layers.1.mlp.experts.3.gate_proj.weight to "
                 "model.layers.1.mlp.experts.3.down_proj.weight: weights");
    test_first_read();
    for (int direct = 0; direct < 2; direct++) {
        test_bad_for_a_while(&large, direct);
        test_bad_for_a_while(&mixture, direct);
    }
    test_file();
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
