/* Predicted bytes against the counters of a real engine: of a dry run, a batch of requests of which
 * only the lengths are known, as integers, for random budgets, chunks and slots; and against a
 * closed form. What a plan says of a prompt and of a token is compared with a dry run in test_plan,
 * and dry runs with engines, call by call, in test_engine.
 *
 *   test_traffic [draws] */
#include "tests/batch_run.h"
#include "tests/engine/oracle.h"

static int n_with_old, n_generations_on_disk, n_of_pools, n_shared;

/* Neither the lengths nor a number of sessions. */
static struct spw_options draw_options(const char *dir, uint64_t *seed)
{
    static const uint64_t windows[] = {SPW_NONE, 128, 400, 0};
    struct spw_options o = {.backend = TEST_BACKEND,
                            .disk_dir = check_random(seed) % 2 ? dir : NULL,
                            .precision = (enum spw_kv_precision)(check_random(seed) % 4),
                            .residual_window = windows[check_random(seed) % 4]};
    draw_speed(&o, seed);
    o.delay_seed = 0; /* of bytes nobody can tell */
    if (o.prefill_chunk < 16)
        o.prefill_chunk = 0;
    return o;
}

/* ---- the whole of a generation, by somebody who does not see it ---- */

enum { MOST_REQUESTS = 12 };

static void count_tokens(void *context, const struct spw_plan_span *spans, size_t n, uint64_t times)
{
    uint64_t *n_tokens = context;
    for (size_t i = 0; i < n; i++)
        *n_tokens += times * (spans[i].to - spans[i].from);
}

/* As spillway.h says it: requests of random lengths, more of them than sessions, maybe with memory
 * for fewer sessions of the whole context. Or all have the same lengths, and end and start
 * together. */
static void run_generation(const char *dir, uint32_t vocab, uint64_t most_prompt, uint64_t *seed)
{
    static int32_t ids[MOST_REQUESTS][1500];
    struct spw_options o = draw_options(dir, seed);
    o.sessions = (uint32_t)check_range(seed, 1, 7);
    if (o.sessions > 1 && check_random(seed) % 2) /* they wait until there is room for them */
        o.full_sessions = (uint32_t)check_range(seed, 1, spw_min_u32(o.sessions - 1, 3));
    struct spw_backend b = run_backend(check_random(seed) % 2);
    struct spw_request requests[MOST_REQUESTS] = {{0}};
    struct spw_plan_request lengths[MOST_REQUESTS] = {{0}};
    struct spw_result results[MOST_REQUESTS];
    size_t n = (size_t)check_range(seed, 1, MOST_REQUESTS);
    bool waves = check_random(seed) % 2;
    uint64_t moved[SPW_MOVED_COUNT], n_told = 0, n_computed = 0;
    struct spw_error err = {0};
    for (size_t i = 0; i < n; i++) {
        lengths[i] = (struct spw_plan_request){.n_prompt = check_range(seed, 1, most_prompt),
                                               .max_new_tokens = check_random(seed) % 140};
        if (waves && i)
            lengths[i] = lengths[0];
        else if (waves)
            lengths[0].max_new_tokens %= 8;
        run_ids(ids[i], lengths[i].n_prompt, vocab, *seed);
        if (i && check_random(seed) % 2) { /* it begins as the one before */
            memcpy(ids[i], ids[i - 1],
                   check_range(seed, 0, spw_min_u64(lengths[i].n_prompt, lengths[i - 1].n_prompt)) *
                       sizeof ids[i][0]);
        }
        lengths[i].prompt = ids[i];
        requests[i] = (struct spw_request){.prompt = ids[i],
                                           .n_prompt = lengths[i].n_prompt,
                                           .max_new_tokens = lengths[i].max_new_tokens,
                                           .ignore_eos = true};
        o.context = spw_max_u64(o.context, lengths[i].n_prompt + lengths[i].max_new_tokens);
    }
    draw_budgets(&o, &b, dir, o.disk_dir && check_random(seed) % 2 ? FROM_DISK : ANYTHING, seed);
    const struct spw_plan_steps steps = {count_tokens, &n_told};
    CHECK_MSG(!spw_plan_moved_on(moved, NULL, &steps, &b, dir, &o, lengths, n, &err), "%s",
              err.text);
    struct spw_engine *e = run_open_on(&b, dir, &o);
    CHECK_MSG(batch_run(e, NULL, requests, n, results, NULL, &err) == 0, "%s", err.text);
    struct spw_stats s;
    bool least = spw_engine_plan(e)->n_experts_resident < spw_engine_plan(e)->n_experts;
    spw_engine_stats(e, &s);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        CHECK_MSG(s.moved_bytes[i] == moved[i] || (least && s.moved_bytes[i] > moved[i]),
                  "generation, link %d: planned %llu, counted %llu (%zu requests, the first %llu + "
                  "%llu, context %llu, device %llu, host %llu, disk %llu, chunk %u)",
                  i, (unsigned long long)moved[i], (unsigned long long)s.moved_bytes[i], n,
                  (unsigned long long)lengths[0].n_prompt,
                  (unsigned long long)lengths[0].max_new_tokens, (unsigned long long)o.context,
                  (unsigned long long)o.device_bytes, (unsigned long long)o.host_bytes,
                  (unsigned long long)o.disk_bytes, o.prefill_chunk);
    for (size_t i = 0; i < n; i++)
        n_computed += lengths[i].n_prompt + spw_sub_u64(lengths[i].max_new_tokens, 1);
    for (size_t i = 0; i < n; i++)
        n_computed -= results[i].n_reused;
    /* With another rope table all tokens are computed again. */
    const struct spw_model_config *c = spw_engine_config(e);
    const bool again =
        spw_rope_table(&c->rope[c->full_kind], c->max_positions, o.context) != SPW_ROPE_SHARED;
    CHECK_MSG(n_told == n_computed || (again && n_told > n_computed),
              "steps of %llu tokens were planned, %llu were computed", (unsigned long long)n_told,
              (unsigned long long)n_computed);
    for (size_t i = 0; i < n; i++) {
        n_with_old += o.precision && results[i].waterlines.host_end > 0;
        n_shared += results[i].n_reused > 0;
    }
    run_check_peaks(e, &o, "generation");
    n_of_pools += o.full_sessions > 0;
    n_generations_on_disk += s.moved_bytes[SPW_MOVED_DISK_TO_HOST] > 0;
    for (size_t i = 0; i < n; i++)
        spw_result_free(&results[i]);
    spw_engine_close(e);
}

/* Answers that pass the border between two rope tables: all of the sequence is computed again, and
 * nothing was fetched for another step. past: each length has a table of its own. */
static void run_tables(bool past, uint64_t *seed)
{
    const char *golden = past ? "llama_dynamic_past" : "phi3_long_short";
    char dir[] = "/tmp/spw_traffic_XXXXXX", command[128];
    CHECK(mkdtemp(dir));
    snprintf(command, sizeof command, "cp tests/golden/%s/* %s", golden, dir);
    CHECK(!system(command));
    run_generation(dir, 96, 100, seed);
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK(!system(command));
}

/* ---- a closed form, from first principles ---- */

/* What is published of a plan, and the sizes of the model. */
struct form {
    const struct tiny_model *m;
    uint32_t n_sessions, n_streamed; /* layers whose weights come with each step */
    bool head_streams;
    uint32_t resident; /* tiles of a layer that a session has on the device */
    uint64_t open;     /* bytes to the device before the first step */
};

static uint64_t layer_bytes(const struct tiny_model *m)
{
    const uint64_t q = (uint64_t)m->heads * m->head_dim, kv = (uint64_t)m->kv_heads * m->head_dim;
    return (2 * q + 2 * kv + 3 * m->intermediate) * m->hidden * sizeof(float);
}

/* Tiles of a session of n tokens that have left the device, in bytes, over all layers. */
static uint64_t below(const struct form *f, uint64_t n)
{
    const uint64_t channels = (uint64_t)f->m->kv_heads * f->m->head_dim;
    const uint64_t tile = 2 * SPW_TILE_TOKENS * channels * sizeof(float);
    return f->m->layers * tile * spw_sub_u64(spw_div_up(n, SPW_TILE_TOKENS), f->resident);
}

/* Sessions compute n_prompt tokens each in one step, and then a token in each further step. Every
 * step reads the weights that stream; a session reads all its tiles below the device for each
 * token, and each tile has gone there once. */
static void fill_form(const struct form *f, uint64_t n_prompt, uint64_t n_new,
                      uint64_t out[SPW_MOVED_COUNT])
{
    const uint64_t n_steps = spw_max_u64(n_new, 1), n_held = n_prompt + n_steps - 1;
    const uint64_t head = (uint64_t)f->m->vocab * f->m->hidden * sizeof(float);
    uint64_t up = n_held * f->m->hidden * sizeof(float);
    for (uint64_t held = n_prompt; held < n_held; held++)
        up += below(f, held);
    memset(out, 0, SPW_MOVED_COUNT * sizeof *out);
    out[SPW_MOVED_HOST_TO_DEVICE] = f->open + f->n_sessions * up +
                                    n_steps * f->n_streamed * layer_bytes(f->m) +
                                    (f->head_streams ? n_new * head : 0);
    out[SPW_MOVED_DEVICE_TO_HOST] =
        f->n_sessions * (n_new * f->m->vocab * sizeof(float) + below(f, n_held));
}

/* Returns whether tiles leave the device, and weights stream. */
static unsigned check_form(const char *dir, const struct spw_options *o, uint64_t *seed)
{
    struct form f = {.m = &tiny_models[0], .n_sessions = o->sessions};
    struct spw_plan_info info;
    uint64_t moved[SPW_MOVED_COUNT], form[SPW_MOVED_COUNT];
    struct spw_error err = {0};
    CHECK_MSG(!spw_plan_query(&info, dir, o, &err), "%s", err.text);
    f.n_streamed = info.n_layers - info.n_layers_resident;
    f.resident = (uint32_t)(spw_div_up(info.context, SPW_TILE_TOKENS) -
                            info.waterlines.host_end / SPW_TILE_TOKENS);
    for (int k = 0; k < 6; k++) {
        struct spw_plan_request requests[3] = {{0}};
        const uint64_t n_prompt = k > 1 ? check_range(seed, 1, 300) : 1;
        /* shorter sessions of several would share the frames in another way */
        const uint64_t n_new = k < 2              ? (uint64_t)k
                               : o->sessions == 1 ? check_range(seed, 1, 600)
                                                  : info.context - n_prompt + 1;
        for (uint32_t i = 0; i < o->sessions; i++)
            requests[i] = (struct spw_plan_request){.n_prompt = n_prompt, .max_new_tokens = n_new};
        CHECK_MSG(!spw_plan_moved(moved, NULL, NULL, dir, o, requests, o->sessions, &err), "%s",
                  err.text);
        fill_form(&f, n_prompt, n_new, form);
        if (!k) /* the first run gives the bytes of opening: they are those of all runs */
            f.open = moved[SPW_MOVED_HOST_TO_DEVICE] - form[SPW_MOVED_HOST_TO_DEVICE];
        fill_form(&f, n_prompt, n_new, form);
        if (k == 1) /* and the second one whether the head streams */
            f.head_streams = moved[SPW_MOVED_HOST_TO_DEVICE] != form[SPW_MOVED_HOST_TO_DEVICE];
        fill_form(&f, n_prompt, n_new, form);
        for (int i = 0; i < SPW_MOVED_COUNT; i++)
            CHECK_MSG(moved[i] == form[i],
                      "%u sessions, %llu + %llu, %u streamed, %u resident: link %d: %llu, the "
                      "closed form has %llu",
                      o->sessions, (unsigned long long)n_prompt, (unsigned long long)n_new,
                      f.n_streamed, f.resident, i, (unsigned long long)moved[i],
                      (unsigned long long)form[i]);
    }
    return (info.waterlines.host_end > 0) + 2u * (f.n_streamed > 0);
}

static void check_closed_form(const char *dir, uint64_t *seed)
{
    unsigned n_seen[4] = {0};
    for (int k = 0; k < 12; k++) {
        struct spw_options o = {.backend = SPW_BACKEND_CPU,
                                .threads = 1,
                                .compute = SPW_DTYPE_F32,
                                .context = 1000,
                                .sessions = 1 + (uint32_t)k % 3,
                                .prefill_chunk = 1024,
                                .device_bytes = (uint64_t)1 << 30,
                                .host_bytes = (uint64_t)1 << 26};
        struct spw_plan_info info;
        CHECK(!spw_plan_query(&info, dir, &o, NULL));
        const uint64_t least = info.smallest_device_bytes, all = info.device.total;
        o.device_bytes = k % 4 ? check_range(seed, least, all) : k % 8 ? least : all;
        n_seen[check_form(dir, &o, seed)]++;
    }
    CHECK(n_seen[0] && (n_seen[1] || n_seen[3]));
}

/* A context of 2^24 tokens for each of 4,096 sessions, with all memory and with little of it. */
static void check_absurd_plans(void)
{
    struct spw_model model;
    struct spw_error err = {0};
    struct spw_plan p;
    const struct spw_options o = {.threads = 1};
    const uint64_t all = (uint64_t)1 << 48;
    const uint64_t host[] = {all, (uint64_t)1 << 32}, disk[] = {0, all};
    CHECK(spw_model_open(&model, "models/records", &o, &err) == 0);
    for (int i = 0; i < 3; i++) { /* on the device; on the host, too; on disk, too */
        struct spw_plan_input in = {.weights = model.weights,
                                    .compute = model.compute,
                                    .kv = model.cache.kv,
                                    .context = (uint64_t)1 << 24,
                                    .sessions = i == 2 ? 1 : 4096,
                                    .attention_tiles = 32,
                                    .device_bytes = i ? (uint64_t)1 << 30 : all,
                                    .host_bytes = host[i == 2],
                                    .disk_bytes = disk[i == 2]};
        CHECK(spw_plan_make(&p, &in, &err) == 0);
        spw_plan_count_moved(&p, model.weights);
        CHECK(i != 1 || p.n_host_frames > 1000000);
        CHECK(i != 2 || (p.n_host_frames > 1000 && p.n_disk_frames > 1000));
    }
    spw_model_close(&model);
}

static void count_steps(void *context, const struct spw_plan_span *spans, size_t n, uint64_t times)
{
    uint64_t *n_made = context;
    (void)spans, (void)n;
    *n_made += times == 1;
}

/* Steps of a long answer are not made one by one: a few for each tile. */
static void check_work_of_long_answers(const char *dir)
{
    const struct spw_options o = {.backend = SPW_BACKEND_CPU, .threads = 1, .context = 1400};
    const struct spw_plan_request answer = {.n_prompt = 100, .max_new_tokens = 1300};
    uint64_t moved[SPW_MOVED_COUNT], n_made = 0;
    const struct spw_plan_steps steps = {count_steps, &n_made};
    struct spw_error err = {0};
    CHECK_MSG(!spw_plan_moved(moved, NULL, &steps, dir, &o, &answer, 1, &err), "%s", err.text);
    CHECK_MSG(n_made < 10 * (1400 / SPW_TILE_TOKENS + 1), "%llu steps were made",
              (unsigned long long)n_made);
}

int main(int argc, char **argv)
{
    const int all = RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 40 : 150;
    const int draws = argc > 1 ? atoi(argv[1]) : check_full() ? all : 2 * N_TINY_MODELS;
    uint64_t seed = check_seed();
    for (int i = 0; i < N_TINY_MODELS; i++) {
        char dir[128];
        run_folder(dir, &tiny_models[i], "traffic");
        for (int k = 0; k < draws / N_TINY_MODELS; k++)
            run_generation(dir, tiny_models[i].vocab, k % 8 ? 700 : 1300, &seed);
        if (!i) {
            check_closed_form(dir, &seed);
            check_work_of_long_answers(dir);
        }
        tiny_model_remove(dir);
    }
    for (int k = 0; k < draws / 2; k++)
        run_tables(k % 2, &seed);
    check_absurd_plans();
    printf("%d requests with quantized tiles below the device, %d that read from disk, %d with "
           "memory for few, %d requests that shared tokens\n",
           n_with_old, n_generations_on_disk, n_of_pools, n_shared);
    CHECK(draws < 100 || (n_with_old && n_generations_on_disk && n_of_pools && n_shared));
    return check_done();
}
