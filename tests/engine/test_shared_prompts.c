/* A job of documents that share an instruction of 1,000 tokens, eight at a time: the instruction is
 * computed once, every answer has the bits that it has alone, and the bytes are those that a plan
 * predicts from the prompts. KV lies on the device, on the host and on disk, with windows and
 * quantized; then tiles that sessions share are lost, and some requests fail. Requests of other
 * lengths: test_traffic; batches that are disturbed: walks of test_engine. */
#include "model/source/safetensors.h"
#include "runtime/batch/batch_parts.h"
#include "tests/batch_run.h"
#include "tests/engine/engine_run.h"
#include "tests/engine/io_fault.h"

enum {
    SESSIONS = 8,
    DOCUMENTS = RUN_UNDER_TSAN   ? 18
                : RUN_UNDER_ASAN ? 24
                                 : 100,
    FEW = 2 * SESSIONS + 2,
    INSTRUCTION = RUN_UNDER_TSAN ? 600 : 1000,
    MOST_DOCUMENT = 40,
    N_NEW = 4,
    CONTEXT = INSTRUCTION + MOST_DOCUMENT + N_NEW,
    VOCAB = 128,
    BROKEN = VOCAB - 1, /* the token whose embedding is not a number */
    FIRST_BROKEN = 3,   /* the first document that has this token */
    BY = 7              /* every BY-th document after it has the token, too */
};

/* Steps that ended because sessions had lost tiles that they share. */
static uint64_t n_stale;

struct job {
    char dir[128], disk[160];
    struct spw_options o;
    int32_t ids[DOCUMENTS][CONTEXT];
    struct spw_request requests[DOCUMENTS];
    struct spw_plan_request lengths[DOCUMENTS];
    struct spw_result alone[DOCUMENTS];
    struct spw_stats stats; /* of the latest run */
};

/* No two documents begin with the same token, and no answer has the broken one. */
static void draw_job(struct job *j, uint64_t *seed)
{
    static const struct spw_logit_bias never = {BROKEN, -100};
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        size_t n = INSTRUCTION + check_range(seed, 1, MOST_DOCUMENT);
        run_ids(j->ids[i], n, BROKEN, check_random(seed));
        run_ids(j->ids[i], INSTRUCTION, BROKEN, 1);
        j->ids[i][INSTRUCTION] = (int32_t)i;
        j->requests[i] = (struct spw_request){.prompt = j->ids[i],
                                              .n_prompt = n,
                                              .max_new_tokens = N_NEW,
                                              .sampling = {.logit_bias = &never, .n_logit_bias = 1},
                                              .ignore_eos = true};
        j->lengths[i] =
            (struct spw_plan_request){.prompt = j->ids[i], .n_prompt = n, .max_new_tokens = N_NEW};
    }
}

static void break_embedding(const char *dir)
{
    static const uint32_t nan = 0x7fc00000;
    struct spw_tensors *file = NULL;
    struct spw_error err = {0};
    CHECK_MSG(!spw_safetensors_open(&file, dir, &err), "%s", err.text);
    const struct spw_tensor *t = spw_tensors_find(file, "model.embed_tokens.weight");
    FILE *weights = fopen(t->file, "r+b");
    uint64_t row = t->bytes / VOCAB;
    CHECK(!fseek(weights, (long)(t->file_offset + BROKEN * row), SEEK_SET));
    CHECK(fwrite(&nan, sizeof nan, 1, weights) == 1);
    fclose(weights);
    spw_tensors_close(file);
}

/* more: keys of the model's configuration. */
static void open_job(struct job *j, const char *family, const char *more, enum spw_kv_precision kv,
                     uint64_t *seed)
{
    const struct tiny_model m = {TINY(family, 3, 16, 16, 2, 1, 8, VOCAB, 2048), .more = more,
                                 .bias = *more, .untied = true, .seed = *seed};
    *j = (struct job){.o = {.context = CONTEXT,
                            .sessions = SESSIONS,
                            .threads = 1,
                            .prefill_chunk = 256,
                            .precision = kv,
                            .residual_window = kv ? 128 : 0}};
    run_folder(j->dir, &m, "prompts");
    snprintf(j->disk, sizeof j->disk, "%s/disk", j->dir);
    CHECK(!mkdir(j->disk, 0700));
    break_embedding(j->dir);
    draw_job(j, seed);
}

/* Requests first, first + by, ..., each in a batch of its own, with all the memory. */
static void run_alone(struct job *j, uint32_t first, uint32_t n, uint32_t by)
{
    const struct spw_options o = {.backend = TEST_BACKEND,
                                  .context = j->o.context,
                                  .threads = 1,
                                  .precision = j->o.precision,
                                  .residual_window = j->o.residual_window};
    struct spw_engine *e = run_open(j->dir, &o);
    for (uint32_t i = first; i < n; i += by) {
        spw_result_free(&j->alone[i]);
        CHECK(!batch_run(e, NULL, &j->requests[i], 1, &j->alone[i], NULL, NULL));
    }
    spw_engine_close(e);
}

static void close_job(struct job *j)
{
    for (uint32_t i = 0; i < DOCUMENTS; i++)
        spw_result_free(&j->alone[i]);
    rmdir(j->disk);
    tiny_model_remove(j->dir);
}

enum placement { ON_DEVICE, ON_HOST, ON_DISK };

static void place(struct job *j, enum placement where)
{
    struct spw_backend b = run_backend(true);
    struct spw_options *o = &j->o;
    o->device_bytes = o->host_bytes = o->disk_bytes = 0;
    o->disk_dir = where == ON_DISK ? j->disk : NULL;
    if (where == ON_DEVICE)
        return;
    run_tight(j->dir, o, 0);
    if (where == ON_DISK) {
        run_to_disk(j->dir, o);
        o->disk_bytes = run_plan_on(&b, j->dir, o).smallest_disk_bytes;
    }
}

static bool is_as_alone(const struct job *j, uint32_t i, const struct spw_result *r)
{
    const struct spw_result *a = &j->alone[i];
    return r->finish == a->finish && r->n_tokens == a->n_tokens &&
           r->logits_hash == a->logits_hash &&
           !memcmp(r->tokens, a->tokens, r->n_tokens * sizeof *r->tokens);
}

/* Results go as soon as they are there, as in the jobs of the command. Returns the tokens of
 * prompts that were not computed. */
static uint64_t run_job(struct job *j, struct spw_engine *e, uint32_t n)
{
    struct spw_batch *b = NULL;
    struct spw_error err = {0};
    struct spw_event event;
    struct spw_result r;
    uint64_t id, n_reused = 0, n_ended = 0;
    CHECK(!spw_batch_open(&b, e, NULL, &err));
    for (uint32_t i = 0; i < n; i++)
        CHECK_MSG(!spw_batch_submit(b, &j->requests[i], &id, &err), "%s", err.text);
    for (int more = 1; more > 0;) {
        more = spw_batch_step(b, &err);
        CHECK_MSG(more >= 0, "%s", err.text);
        n_stale += b->n_stale > 0;
        while (spw_batch_event(b, &event)) {
            if (event.kind != SPW_EVENT_END)
                continue;
            CHECK(!spw_batch_take(b, event.request, &r));
            CHECK_MSG(r.finish == SPW_FINISH_CANCELED ||
                          is_as_alone(j, (uint32_t)event.request - 1, &r),
                      "request %u", (uint32_t)event.request);
            n_reused += r.n_reused;
            n_ended++;
            spw_result_free(&r);
        }
    }
    CHECK(n_ended == n);
    spw_batch_close(b);
    return n_reused;
}

/* known: the bytes are, as no document is broken. Returns as run_job. */
static uint64_t check_bytes(struct job *j, uint32_t n, bool known)
{
    struct spw_backend b = run_backend(true);
    struct spw_error err = {0};
    uint64_t moved[SPW_MOVED_COUNT];
    CHECK_MSG(!spw_plan_moved_on(moved, NULL, NULL, &b, j->dir, &j->o, j->lengths, n, &err), "%s",
              err.text);
    struct spw_engine *e = run_open(j->dir, &j->o);
    const uint64_t n_reused = run_job(j, e, n);
    run_check_peaks(e, &j->o, j->dir);
    spw_engine_stats(e, &j->stats);
    const uint64_t *counted = j->stats.moved_bytes;
    for (int i = 0; i < SPW_MOVED_COUNT && known; i++)
        CHECK_MSG(counted[i] == moved[i], "link %d: planned %llu, counted %llu", i,
                  (unsigned long long)moved[i], (unsigned long long)counted[i]);
    spw_engine_close(e);
    return n_reused;
}

/* once: the instruction is computed once in the whole job; else by each wave of requests. */
static void check_job(struct job *j, enum placement where, uint32_t n, bool once)
{
    place(j, where);
    const uint64_t n_reused = check_bytes(j, n, true);
    const uint64_t n_computed = once ? 1 : spw_div_up(n, SESSIONS);
    CHECK_MSG(n_reused == (n - n_computed) * INSTRUCTION, "%llu tokens were not computed",
              (unsigned long long)n_reused);
    CHECK(where != ON_HOST || j->stats.moved_bytes[SPW_MOVED_DEVICE_TO_HOST] > 0);
    CHECK(where != ON_DISK || j->stats.moved_bytes[SPW_MOVED_DISK_TO_HOST] > 0);
}

/* A place of the drive can no longer be read. Sessions lose tiles that they share, and there is no
 * room for copies of them: some sessions are closed, and their requests get new ones. */
static void check_lost(struct job *j, uint64_t *seed)
{
    struct io_fault f;
    struct spw_backend b = run_backend(true);
    io_fault_open(&f);
    b.io_fault = &f.hook;
    for (int i = 0; i < 120 && !n_stale; i++) {
        j->o.full_sessions = (uint32_t)check_range(seed, 2, 4);
        place(j, ON_DISK);
        j->o.disk_bytes += 1 << 20;
        struct spw_engine *e = run_open_on(&b, j->dir, &j->o);
        io_fault_set(&f, READ_FOREVER, (int64_t)check_range(seed, 0, 200));
        run_job(j, e, FEW);
        CHECK(!io_fault_end(&f) || e->events.n_lost_tiles);
        spw_engine_close(e);
    }
    CHECK(n_stale > 0);
    pthread_mutex_destroy(&f.lock);
    j->o.full_sessions = 0;
}

int main(void)
{
    static const char window[] = ",\"use_sliding_window\":true,\"sliding_window\":200,"
                                 "\"max_window_layers\":1";
    static struct job j;
    uint64_t seed = check_seed();
    open_job(&j, "llama", "", 0, &seed);
    run_alone(&j, 0, DOCUMENTS, 1);
    for (enum placement where = ON_DEVICE; where <= ON_DISK; where++)
        check_job(&j, where, DOCUMENTS, true);
    check_lost(&j, &seed);
    for (uint32_t i = FIRST_BROKEN; i < DOCUMENTS; i += BY)
        j.ids[i][j.requests[i].n_prompt - 1] = BROKEN;
    run_alone(&j, FIRST_BROKEN, DOCUMENTS, BY);
    CHECK(j.alone[FIRST_BROKEN].finish == SPW_FINISH_FAILED);
    for (enum placement where = ON_DEVICE; where <= ON_DISK; where++) {
        place(&j, where);
        check_bytes(&j, DOCUMENTS, false);
    }
    close_job(&j);
    for (uint32_t kind = 0; kind < 2; kind++) {
        open_job(&j, kind ? "qwen2" : "llama", kind ? window : "", kind ? 0 : SPW_KV_INT8, &seed);
        run_alone(&j, 0, FEW, 1);
        for (enum placement where = ON_DEVICE; where <= ON_DISK; where++)
            check_job(&j, where, FEW, false);
        close_job(&j);
    }
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
