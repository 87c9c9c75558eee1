/* A job of documents that share an instruction of 1,000 tokens, eight at a time: the instruction is
 * computed once, every answer has the bits that it has alone, and the bytes are those that a plan
 * predicts from the prompts. KV lies on the device, on the host and on disk, with windows and
 * quantized; then requests fail and are canceled, and sessions of the caller run beside them. */
#include "model/source/safetensors.h"
#include "tests/batch_run.h"
#include "tests/engine/engine_run.h"

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
    FIRST_BROKEN = 3,   /* the first document that has this token, and never is canceled */
    BY = 7              /* every BY-th document after it has the token, too */
};

struct job {
    char dir[128], disk[160];
    struct spw_options o;
    int32_t ids[DOCUMENTS][CONTEXT];
    struct spw_request requests[DOCUMENTS];
    struct spw_plan_request lengths[DOCUMENTS];
    struct spw_result alone[DOCUMENTS];
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
    const struct tiny_model m = {.family = family,
                                 .layers = 3,
                                 .hidden = 16,
                                 .intermediate = 16,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .head_dim = 8,
                                 .vocab = VOCAB,
                                 .positions = 2048,
                                 .more = more,
                                 .bias = *more,
                                 .untied = true,
                                 .seed = *seed};
    *j = (struct job){.o = {.context = CONTEXT,
                            .sessions = SESSIONS,
                            .threads = 1,
                            .prefill_chunk = 256,
                            .precision = kv,
                            .residual_window = kv ? 128 : 0}};
    run_folder(j->dir, &m, "prompts");
    break_embedding(j->dir);
    snprintf(j->disk, sizeof j->disk, "%s/disk", j->dir);
    CHECK(!mkdir(j->disk, 0700));
    draw_job(j, seed);
}

/* Requests first, first + by, ..., each in a batch of its own, with all the memory. */
static void run_alone(struct job *j, uint32_t first, uint32_t n, uint32_t by)
{
    struct spw_options o = j->o;
    o.sessions = 1;
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
        while (spw_batch_event(b, &event)) {
            if (event.kind != SPW_EVENT_END)
                continue;
            CHECK(!spw_batch_take(b, event.request, &r));
            CHECK_MSG(is_as_alone(j, (uint32_t)event.request - 1, &r), "request %u",
                      (uint32_t)event.request);
            n_reused += r.n_reused;
            n_ended++;
            spw_result_free(&r);
        }
    }
    CHECK(n_ended == n);
    spw_batch_close(b);
    return n_reused;
}

/* once: the instruction is computed once in the whole job; else by each wave of requests. */
static void check_job(struct job *j, enum placement where, uint32_t n, bool once)
{
    struct spw_backend b = run_backend(true);
    struct spw_error err = {0};
    uint64_t moved[SPW_MOVED_COUNT];
    place(j, where);
    CHECK_MSG(!spw_plan_moved_on(moved, NULL, NULL, &b, j->dir, &j->o, j->lengths, n, &err), "%s",
              err.text);
    struct spw_engine *e = run_open(j->dir, &j->o);
    uint64_t n_reused = run_job(j, e, n), n_computed = once ? 1 : spw_div_up(n, SESSIONS);
    CHECK_MSG(n_reused == (n - n_computed) * INSTRUCTION, "%llu tokens were not computed",
              (unsigned long long)n_reused);
    run_check_peaks(e, &j->o, j->dir);
    struct spw_stats s;
    spw_engine_stats(e, &s);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        CHECK_MSG(s.moved_bytes[i] == moved[i], "link %d: planned %llu, counted %llu", i,
                  (unsigned long long)moved[i], (unsigned long long)s.moved_bytes[i]);
    CHECK(where != ON_HOST || s.moved_bytes[SPW_MOVED_DEVICE_TO_HOST] > 0);
    CHECK(where != ON_DISK || s.moved_bytes[SPW_MOVED_DISK_TO_HOST] > 0);
    spw_engine_close(e);
}

/* ---- a job that is disturbed ---- */

/* A session of the caller computes a prompt between two steps, if there is room for it. */
static void use_session(struct job *j, struct spw_engine *e, uint64_t *seed)
{
    uint32_t i = (uint32_t)(check_random(seed) % DOCUMENTS);
    struct spw_session *s = NULL;
    struct spw_error err = {0};
    struct spw_span span = {.tokens = j->ids[i], .n_tokens = j->requests[i].n_prompt};
    int rc = spw_session_open(&s, e, &err);
    CHECK(!rc || rc == -ENOMEM);
    if (rc)
        return;
    span.session = s;
    CHECK_MSG(!spw_sync(e, &span, 1, NULL, NULL, &err), "%s", err.text);
    spw_session_close(s);
}

/* Reads events, all or some, and takes some of the requests that have ended. */
static void read_events(struct job *j, struct spw_batch *b, bool all, uint64_t *seed,
                        uint32_t *n_failed)
{
    struct spw_event event;
    struct spw_result r;
    while ((all || check_random(seed) % 16) && spw_batch_event(b, &event)) {
        if (event.kind != SPW_EVENT_END)
            continue;
        *n_failed += event.text_bytes > 0;
        if (check_random(seed) % 4 == 0)
            continue;
        CHECK(!spw_batch_take(b, event.request, &r));
        if (r.finish != SPW_FINISH_CANCELED)
            CHECK_MSG(is_as_alone(j, (uint32_t)event.request - 1, &r), "request %u",
                      (uint32_t)event.request);
        spw_result_free(&r);
    }
}

static void check_disturbed(struct job *j, enum placement where, uint64_t *seed)
{
    struct spw_batch *b = NULL;
    struct spw_error err = {0};
    uint32_t n_failed = 0;
    uint64_t id;
    place(j, where);
    struct spw_engine *e = run_open(j->dir, &j->o);
    struct spw_session *own = run_session(e);
    CHECK(!spw_batch_open(&b, e, NULL, &err));
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        struct spw_request request = j->requests[i];
        request.session = i == SESSIONS ? own : NULL;
        CHECK_MSG(!spw_batch_submit(b, &request, &id, &err), "%s", err.text);
    }
    for (int more = 1; more > 0;) {
        id = 1 + check_random(seed) % DOCUMENTS;
        if (check_random(seed) % 4 == 0 && id != FIRST_BROKEN + 1)
            spw_batch_cancel(b, id);
        if (check_random(seed) % 4 == 0)
            use_session(j, e, seed);
        if (check_random(seed) % 8 == 0)
            spw_batch_set_prompt_chunks(b, (uint32_t)(check_random(seed) % 4));
        more = spw_batch_step(b, &err);
        CHECK_MSG(more >= 0, "%s", err.text);
        read_events(j, b, !more, seed, &n_failed);
    }
    CHECK(n_failed > 0);
    run_check_peaks(e, &j->o, j->dir);
    spw_batch_close(b);
    spw_session_close(own);
    spw_engine_close(e);
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
    for (uint32_t i = FIRST_BROKEN; i < DOCUMENTS; i += BY)
        j.ids[i][j.requests[i].n_prompt - 1] = BROKEN;
    run_alone(&j, FIRST_BROKEN, DOCUMENTS, BY);
    CHECK(j.alone[FIRST_BROKEN].finish == SPW_FINISH_FAILED);
    for (enum placement where = ON_DEVICE; where <= ON_DISK; where++)
        check_disturbed(&j, where, &seed);
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
