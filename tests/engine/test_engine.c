/* Whatever is done with an engine, in whatever order, under whatever budgets: the logits are the
 * bits of one plain run, the bytes that moved are those that were predicted, no peak passes its
 * budget, and nothing leaks.
 *
 * A draw is a model, the way its KV is kept, options that must not change a bit, and a walk over
 * the table of operations below. A walk prefers pairs of operations that have not followed each
 * other yet. The test fails if an operation, or a pair, or a kind of placement that is listed in
 * `tried` never happened.
 *
 *   test_engine [draws [first [walk]]]    SPW_SEED repeats a run. With 1 draw, the number, the seed
 *                                         and the letters of one that failed, a single one */
#include "tests/engine/walk_operations.h"
#include "tests/doing.h"

enum {
    TOKENS = TEST_GPU         ? 600
             : RUN_UNDER_ASAN ? 1100
                              : 1500,
    RANDOM_TOKENS = TEST_GPU ? 300 : 700, /* of random models and bundled ones */
    /* Draws; then until nothing is missing, and for some seconds. */
    LEAST = TEST_GPU || RUN_UNDER_TSAN ? 2 : 8,
    SECONDS = 6,
    FULL_DRAWS = TEST_GPU         ? (RUN_UNDER_ASAN ? 4 : 12)
                 : RUN_UNDER_TSAN ? 24
                 : RUN_UNDER_ASAN ? 40
                                  : 960
};

/* ---- operations ---- */

static bool has_new_pair(size_t first)
{
    for (size_t i = 0; i < N_OPERATIONS; i++)
        if (!pairs[first][i])
            return true;
    return false;
}

/* As a rule one that has never followed `last`, else one that something has never followed; or by
 * weight. What damages comes late: the account of a walk ends with it. */
static size_t choose_operation(const struct walk *w, size_t last, bool early)
{
    uint64_t weight[N_OPERATIONS], sum = 0, at;
    bool aims = check_random(w->seed) % 8 && last < N_OPERATIONS;
    for (int tries = aims ? 0 : 2; !sum; tries++)
        for (size_t i = 0; i < N_OPERATIONS; i++) {
            const struct operation *o = &operations[i];
            bool harm = o->run == spoil || o->run == refuse_memory || o->run == break_drive;
            bool can = (!o->can || o->can(w)) && !(harm && early);
            bool first_save = o->run == save && !has_saved(w); /* others wait for it */
            if (tries < 2 && !first_save)
                can = can && (tries ? has_new_pair(i) : !pairs[last][i]);
            weight[i] = can ? o->weight : 0;
            sum += weight[i];
        }
    at = check_random(w->seed) % sum;
    for (size_t i = 0; i < N_OPERATIONS; i++) {
        if (at < weight[i])
            return i;
        at -= weight[i];
    }
    return 0;
}

/* What a walk's letters may be: 'a' is the first operation. */
static bool are_operations(const char *letters)
{
    while (*letters >= 'a' && *letters < (char)('a' + N_OPERATIONS))
        letters++;
    return !*letters;
}

static uint64_t missing_pairs(bool tell)
{
    uint64_t n = 0;
    for (size_t i = 0; i < N_OPERATIONS; i++)
        for (size_t k = 0; k < N_OPERATIONS; k++)
            if (!pairs[i][k] && ++n && tell)
                fprintf(stderr, "never: %s, %s\n", operations[i].name, operations[k].name);
    return n;
}

enum {
    LONG,
    TINY,
    STATES = TINY + 2 * TINY_STATES,
    RANDOM = TINY + 2 * N_TINY_MODELS,
    MIXTURE = RANDOM + 2,
    BUNDLED,
    FAMILY,
    N_SUBJECTS
};

/* ---- draws ---- */

/* Of all layers: a prefix cache has room for it. */
static uint64_t bytes_of_tile(const struct spw_plan *p)
{
    return p->n_slices[SPW_LAYER_FULL] * p->tile_bytes +
           p->n_slices[SPW_LAYER_SLIDING] * p->exact_tile_bytes;
}

/* Any rates: the host multiplies all layers in its memory, some, or none. host 0: nobody has
 * measured. is_fast: the host reads faster than the link. */
static void draw_machine(struct walk *w, bool is_fast)
{
    static const double times[] = {0, 0.5, 1.5, 3, 20};
    enum { N = sizeof times / sizeof *times, FAST = 2 };
    const double link = 1e9;
    const uint64_t host = is_fast ? FAST + draw_one(w, N - FAST) : draw_one(w, N);
    w->machine = (struct spw_machine){.host_bytes_per_second = times[host] * link,
                                      .copy_bytes_per_second = link,
                                      .read_bytes_per_second = times[draw_one(w, N)] * link};
    w->o.machine = &w->machine;
}

static void draw_walk(struct walk *w, int number, struct subject *subjects, int n_subjects)
{
    w->s = &subjects[draw_one(w, (uint64_t)n_subjects)];
    w->drives = number % 8 == 6;
    if (w->drives) /* which no run draws anew */
        w->s = &subjects[number % 24 == 22 ? STATES + draw_one(w, 2 * N_TINY_STATES)
                                           : TINY + draw_one(w, 2 * TINY_STATES)];
    const bool beside = number % 8 == 2; /* a device that the host multiplies beside */
    if (beside)
        w->s = &subjects[RANDOM + 1 + draw_one(w, MIXTURE - RANDOM)];
    w->aim = number % 4 == 1 ? (number % 8 == 1 ? FROM_HOST : FROM_DISK) : ANYTHING;
    if (w->aim && draw_one(w, 2)) /* little else than KV, and more old tiles than slots hold */
        w->s = &subjects[0];
    w->n_sessions = draw_one(w, 2) ? 1 : (uint32_t)check_range(w->seed, 1, N_SESSIONS);
    w->n_sessions = w->s == subjects && w->aim ? 1 : w->n_sessions;
    const bool able = number % 4 == 3; /* no operation is out of reach */
    w->n_sessions = w->drives ? N_SESSIONS : w->n_sessions + (able && w->n_sessions == 1);
    w->context = draw_one(w, 6) ? check_range(w->seed, w->s->n_tokens / 5 * 2, w->s->n_tokens)
                                : check_range(w->seed, 2, w->s->n_tokens / 4);
    if (w->aim || w->drives)
        w->context = check_range(w->seed, w->s->n_tokens - 60, w->s->n_tokens);
    w->backend = run_backend(draw_one(w, 2) && !beside);
    w->backend.host_lane = !w->backend.reads_host_memory;
    w->backend.io_fault = &w->fault.hook;
    struct spw_options *o = &w->o;
    *o = w->s->o;
    draw_speed(o, w->seed);
    o->host_compute = (enum spw_host_compute)(draw_one(w, 4) == 0 && !beside);
    draw_machine(w, beside);
    o->context = w->context;
    o->sessions = w->n_sessions + (able || draw_one(w, 2));
    if (!able && !w->aim && o->sessions > 1 && draw_one(w, 2)) /* memory for fewer */
        o->full_sessions = (uint32_t)check_range(w->seed, 1, o->sessions - 1);
    o->on_oom = SPW_ON_OOM_SPILL;
    o->saves = draw_one(w, 2) || able;
    o->drafts = (enum spw_drafts)spw_min_u64(draw_one(w, 4), SPW_DRAFTS_TEXT);
    if (o->drafts == SPW_DRAFTS_TEXT && strstr(w->s->dir, "_mtp"))
        o->drafts = SPW_DRAFTS_MTP;
    if (w->aim) /* little that old tiles could lie in instead */
        o->prefetch_slots = 2, o->prefetch_splits = 1, o->prefill_chunk &= ~63u;
    if (w->aim ? w->aim == FROM_DISK : draw_one(w, 2) || able || w->drives)
        o->disk_dir = w->s->folder;
    if (w->drives && o->prefill_chunk < 16) /* steps that wait have a few chunks */
        o->prefill_chunk = 16;
    if (able || (!w->drives && draw_one(w, 2) && (!w->aim || draw_one(w, 2)))) {
        o->prefix_cache_dir = w->cache;
        const uint64_t least = spw_max_u64(400 << 10, bytes_of_tile(&w->s->plan));
        o->prefix_cache_bytes = draw_one(w, 4) ? 64 * MIB : check_range(w->seed, least, MIB - 1);
    }
    const enum aim most = beside && draw_one(w, 2) ? FROM_HOST : w->aim; /* little on the device */
    draw_budgets(o, &w->backend, w->s->dir, w->drives ? FROM_DISK : most, w->seed);
}

static void describe(struct walk *w, int number, uint64_t start)
{
    const struct spw_options *o = &w->o;
    snprintf(
        w->what, sizeof w->what,
        "draw %d (seed %llu): %.60s context %zu sessions %u of %u (%u) device %llu host %llu disk "
        "%llu (io %d) chunk %u slots %u of %u splits threads %u delays %llu weights %s KV %s%s%s",
        number, (unsigned long long)start, w->s->dir, w->context, w->n_sessions, o->sessions,
        o->full_sessions, (unsigned long long)o->device_bytes, (unsigned long long)o->host_bytes,
        (unsigned long long)o->disk_bytes, (int)o->io, o->prefill_chunk, o->prefetch_slots,
        o->prefetch_splits, o->threads, (unsigned long long)o->delay_seed,
        w->backend.reads_host_memory ? "mapped" : "copied", spw_kv_precision_name(o->precision),
        o->prefix_cache_dir ? ", prefix cache" : "", o->saves ? ", saves: " : ": ");
}

static struct walk walk;

/* The drive fails again and again, while sessions open, close, fork and wait. */
static const char *const drives_fail = "dmbmfmqmamemqmfmbmcm";

/* Draws that have found something: with the seed of their run. */
static const struct {
    int number;
    uint64_t seed;
} found[] = {
    {350, 1},  /* tiles that a full drive had not taken were not written again before a step */
    {1190, 2}, /* a drive that reads nothing failed a step as if the device had failed */
};

/* `given`: the letters of its operations; NULL: they are drawn. */
static void run_draw(int number, struct subject *subjects, int n_subjects, uint64_t start,
                     const char *given)
{
    struct walk *w = &walk;
    uint64_t of_draw = start + (uint64_t)number * 1000003, *seed = &of_draw;
    size_t last = N_OPERATIONS;
    *w = (struct walk){.seed = seed, .alloc_nth = -1, .left = -1};
    snprintf(w->what, sizeof w->what, "draw %d (seed %llu)", number, (unsigned long long)start);
    name_walk(w, "engine");
    draw_walk(w, number, subjects, n_subjects);
    describe(w, number, start);
    begin_walk(w);
    if (w->aim) /* a long prompt, and a few tokens after it */
        for (size_t n = w->context - 3; n <= w->context; n++)
            must_step(w, (const size_t[N_SESSIONS]){n}, "a long prompt");
    given = given || !w->drives ? given : drives_fail;
    int drawn = (int)check_range(seed, 6, 18), steps = given ? (int)strlen(given) : drawn;
    for (int i = 0; i < steps; i++) {
        size_t now = choose_operation(w, last, i < drawn / 2);
        if (given)
            now = (size_t)(given[i] - 'a');
        if (given == drives_fail && operations[now].can && !operations[now].can(w))
            continue;
        do_operation(w, now, last);
        last = now;
    }
    end_walk(w);
}

/* ---- models ---- */

/* Where layers see every key, quantized ones must show from the first block on that reads one. */
static void expect_other_bits(struct subject *exact, struct subject *quantized)
{
    struct spw_plan_info info;
    uint64_t given = quantized->o.residual_window, window = given == SPW_NONE ? 0 : given;
    CHECK(spw_plan_query_on(&info, NULL, quantized->dir, &quantized->o, NULL) == 0);
    size_t from = (size_t)spw_residual_until(1, spw_residual_tiles(window)) * SPW_TILE_TOKENS;
    const int32_t *ids = exact->ids[0];
    const float *a = oracle_rows(exact, ids, exact->n_tokens, exact->n_tokens);
    const float *b = oracle_rows(quantized, ids, exact->n_tokens, exact->n_tokens);
    CHECK(from < exact->n_tokens && !memcmp(a, b, from * exact->vocab * sizeof *a));
    bool same = run_same(a + from * exact->vocab, b + from * exact->vocab, exact->vocab);
    CHECK(same == (info.precision == SPW_KV_EXACT));
}

/* Where draws are slow there are too few of them for everything. */
static bool is_slow(void)
{
    return TEST_GPU || RUN_UNDER_ASAN || RUN_UNDER_TSAN;
}

/* Little else than KV, and in a long run more old tiles than the least slots hold. Each tiny model
 * as it is, and with old KV quantized; one is not stored in the type it is computed with. */
static void open_subjects(struct subject *subjects)
{
    static const struct tiny_model long_run = {TINY("llama", 2, 32, 32, 2, 1, 32, 67, 4096),
                                               .untied = true, .stored = TINY_BF16, .seed = 7};
    static const uint64_t windows[] = {128, SPW_NONE, 200, SPW_NONE};
    struct spw_options o = {.precision = SPW_KV_INT8, .residual_window = SPW_NONE};
    subject_open(&subjects[LONG], &long_run, "engine", TOKENS > 1100 ? TOKENS : 1100, &o);
    for (int i = 0; i < N_TINY_MODELS; i++) {
        enum spw_dtype compute = i == 3 ? SPW_DTYPE_BF16 : SPW_DTYPE_AUTO;
        o = (struct spw_options){.compute = compute};
        subject_open(&subjects[TINY + 2 * i], &tiny_models[i], "engine", TOKENS, &o);
        o.precision = (enum spw_kv_precision)(SPW_KV_INT8 + i % 3);
        o.residual_window = windows[i % 4];
        subject_open(&subjects[TINY + 2 * i + 1], &tiny_models[i], "engine_quantized", TOKENS, &o);
        if (!TEST_GPU && (check_full() || !is_slow())) /* whole runs of each */
            expect_other_bits(&subjects[TINY + 2 * i], &subjects[TINY + 2 * i + 1]);
    }
}

/* Folders of families that have something which no drawn model has. */
static const char *const families[] = {
    "gpt_oss_plain",  "gpt_oss_mxfp4",    "granitemoe_plain", "glm4_plain",
    "glm4_moe_norms", "exaone_moe_mtp",   "glm4_moe_mtp",     "glm4_moe_mtp_dense",
    "qwen3_5_mtp",    "qwen3_next_mtp",   "olmo3_pattern",    "gemma2_caps",
    "smollm3_plain",  "olmoe_norm",       "phi3_partial",     "granite_plain",
    "mixtral_joined", "qwen2_moe_shared", "gpt_oss_no_bias",  "phi3_long_long",
    "cohere_norms",   "cohere2_pattern",  "stablelm_norms",   "olmo_clip",
    "phi_norms",      "ministral3_grows", "starcoder2_plain", "mistral3_wrapped",
    "llama4_plain",   "llama4_dense",     "llama4_chunk_140", "llama4_listed",
    "hunyuan_plain",  "arcee_plain",      "minimax_m2_plain", "granitemoehybrid_experts",
};

/* Two of any sizes, one of them with quantized weights; a quantized mixture; and the bundled one,
 * or the shared one where it is here. And one of a family. */
static void open_others(struct subject *subjects, uint64_t *seed)
{
    static char more[3][300];
    static struct tiny_model models[3];
    const char *data = getenv("SPW_DATA");
    char dir[512];
    for (uint64_t i = 0; i < 3; i++) {
        struct spw_options o = {0};
        draw_kv(&o, i ? check_random(seed) % KV_KINDS : 1 + check_random(seed) % 4, seed);
        if (i == 2)
            o.compute = SPW_DTYPE_AUTO; /* the host multiplies no experts in f32 */
        models[i] =
            i == 2 ? draw_mixture(more[i], 67, seed) : draw_model(more[i], 67, i == 1, seed);
        const size_t n = i == 2 ? RANDOM_TOKENS / 2 : RANDOM_TOKENS; /* experts take their time */
        subject_open(&subjects[RANDOM + i], &models[i], "engine_random", n, &o);
    }
    struct spw_options o = {0};
    snprintf(dir, sizeof dir, "%.400s/models/stories260K", data ? data : "/none");
    if (check_random(seed) % 2 || access(dir, R_OK))
        snprintf(dir, sizeof dir, "models/records");
    draw_kv(&o, check_random(seed) % KV_KINDS, seed);
    subject_open_at(&subjects[BUNDLED], dir, RANDOM_TOKENS < 500 ? RANDOM_TOKENS : 500, &o, 5);
    o = (struct spw_options){0};
    draw_kv(&o, check_random(seed) % KV_KINDS, seed);
    snprintf(dir, sizeof dir, "tests/golden/%s",
             families[check_random(seed) % (sizeof families / sizeof *families)]);
    subject_open_at(&subjects[FAMILY], dir, RANDOM_TOKENS < 500 ? RANDOM_TOKENS : 500, &o, 6);
}

/* ---- a context that is bounded by no tier alone ---- */

/* 50,000 tokens and some decode steps under a few MiB of device memory; bytes and peaks are what
 * the plan says, to the byte. */
static void check_long_context(size_t n_prompt)
{
    enum { N_DECODE = 6, ROWS = 40 };
    static const struct tiny_model model = {TINY("llama", 2, 16, 16, 1, 1, 16, 64, 262144),
                                            .more = ",\"rope_theta\":500000.0", .untied = true,
                                            .stored = TINY_BF16, .seed = 91};
    static struct subject s;
    struct spw_error err = {0};
    struct watch watch = {0};
    struct spw_stats stats;
    struct spw_waterlines w;
    subject_open(&s, &model, "long", n_prompt + N_DECODE, &(struct spw_options){0});
    struct spw_options o = s.o;
    o.device_bytes = 3 << 20;
    o.host_bytes = (uint64_t)1 << 30;
    struct spw_engine *e = run_open(s.dir, &o);
    struct spw_session *session = run_session(e);
    const struct spw_plan_info *plan = spw_engine_plan(e);
    for (size_t n = n_prompt; n <= n_prompt + N_DECODE; n++) {
        struct spw_span span = {session, s.ids[0], n, n > n_prompt ? 1 : ROWS};
        CHECK_MSG(!watch_sync(&watch, &s, e, &span, 1, s.n_tokens, &err), "%s", err.text);
        CHECK(n == n_prompt || spw_session_reused(session) == n - 1);
    }
    CHECK(watch.n_rows == ROWS + N_DECODE && !watch.n_wrong);
    spw_engine_stats(e, &stats);
    spw_session_waterlines(session, &w);
    run_check_peaks(e, &o, "long context");
    CHECK(stats.device_peak_bytes == plan->device.total);
    CHECK(stats.host_peak_bytes == plan->host.total);
    CHECK(w.host_end > n_prompt / 2); /* most of the context left the device */
    CHECK(w.n_tokens == plan->waterlines.n_tokens && w.host_end == plan->waterlines.host_end);
    spw_session_close(session);
    spw_engine_close(e);
    subject_close(&s);
}

/* ---- all of it ---- */

/* What never happened and should have. */
static uint64_t missing(bool tell)
{
    return missing_kinds(tell) + missing_pairs(tell);
}

static void check_tried(int draws, bool all)
{
    fprintf(stderr, "%d draws, %llu rows", draws, (unsigned long long)n_rows);
    for (int i = 0; i < N_TRIED; i++)
        fprintf(stderr, "; %s: %llu", tried[i].name, (unsigned long long)tried[i].n);
    for (size_t i = 0; i < N_OPERATIONS; i++)
        fprintf(stderr, "%s%s %llu", i ? ", " : "\n", operations[i].name,
                (unsigned long long)done[i]);
    fputc('\n', stderr);
    CHECK(n_rows > (uint64_t)draws);
    CHECK(!all || !missing(true));
}

int main(int argc, char **argv)
{
    static struct subject subjects[N_SUBJECTS];
    int first = argc > 2 ? atoi(argv[2]) : 0, n = 0;
    bool all = argc < 2 && !is_slow();
    const char *given = argc > 3 ? argv[3] : NULL;
    if (given && !are_operations(given)) {
        fprintf(stderr, "%s: a walk has the letters a to %c\n", given, 'a' + N_OPERATIONS - 1);
        return 1;
    }
    if (!run_is_there())
        return CHECK_SKIP;
    uint64_t seed = check_seed(), of_others = seed;
    check_doing(walk.what);
    int64_t outstanding = spw_alloc_outstanding();
    open_subjects(subjects);
    open_others(subjects, &of_others);
    for (size_t i = 0; i < sizeof found / sizeof *found && all; i++)
        run_draw(found[i].number, subjects, N_SUBJECTS, found[i].seed, NULL);
    struct check_draws draws = check_draws_of(argc, argv, FULL_DRAWS);
    if (argc < 2 && !check_full()) {
        draws.least = LEAST;
        draws.until = check_seconds() + SECONDS;
    }
    for (; check_another(&draws) || (n < FULL_DRAWS && all && missing(false)); n++)
        run_draw(first + n, subjects, N_SUBJECTS, seed, given);
    for (int i = 0; i < N_SUBJECTS; i++)
        subject_close(&subjects[i]);
    check_tried(n, all);
    if (all)
        check_long_context(check_full() ? 100000 : 50000);
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
