/* A sequence that is cut in two at any token and goes on from there, in all the ways that there
 * are: from the prefix cache, from a saved session, as a request of a batch, after another question
 * in a chat. Every row of logits is one of a run that was never cut (oracle.h). On every golden
 * model, so every family and every layer kind, with experts, windows and sinks; windows and the
 * border between two rope tables are drawn, too. test_engine does much more to fewer models.
 *
 *   test_splits [draws [first]]    SPW_SEED repeats a run */
#include "tests/engine/walk_operations.h"
#include "tests/doing.h"

enum { TOKENS = 700, MOST_FOLDERS = 256, DRAWS = 1000, LEAST = 40, SECONDS = 4 };

/* Operations of walk_operations.h, by their letters there. */
enum { CACHE, SAVED, JOB, CHAT, N_SPLITS };
static const struct {
    const char *name, *walks[4];
} splits[N_SPLITS] = {
    {"prefix cache", {"bhkda", "bhbhkdada", "bhdhkdhkd", "bhlda"}},
    {"saved session", {"baikjab", "bikjbikjac", "bakdijba", "bijalib"}},
    {"job", {"p", "bpqb", "qpqa", "hpkp"}},
    {"chat", {"babac", "bacacac", "bagbad", "bacqda"}},
};

static char *folders[MOST_FOLDERS];
static int n_folders;

/* ---- models ---- */

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Such models are not cut anywhere: test_encoder. */
static bool encodes(const char *config)
{
    char text[8192] = "";
    FILE *file = fopen(config, "r");
    if (file)
        text[fread(text, 1, sizeof text - 1, file)] = 0;
    if (file)
        fclose(file);
    return strstr(text, "\"is_encoder_decoder\": true");
}

static void find_folders(void)
{
    DIR *dir = opendir("tests/golden");
    char path[300];
    for (struct dirent *x; dir && (x = readdir(dir)) && n_folders < MOST_FOLDERS;) {
        snprintf(path, sizeof path, "tests/golden/%.200s/config.json", x->d_name);
        if (*x->d_name != '.' && access(path, R_OK) == 0 && !encodes(path))
            folders[n_folders++] = strdup(x->d_name);
    }
    if (dir)
        closedir(dir);
    qsort(folders, (size_t)n_folders, sizeof *folders, compare);
}

/* Puts another number behind the key, if the text has the key with a number. */
static void set_number(char *text, const char *key, unsigned value)
{
    char name[64], rest[8192];
    snprintf(name, sizeof name, "\"%s\": ", key);
    char *at = strstr(text, name);
    if (!at || at[strlen(name)] < '0' || at[strlen(name)] > '9')
        return;
    at += strlen(name);
    snprintf(rest, sizeof rest, "%s", at + strspn(at, "0123456789"));
    sprintf(at, "%u%s", value, rest);
}

/* Ends the program with a line if it cannot: no draw works without the files. */
static FILE *must_open(const char *path, const char *mode)
{
    FILE *f = fopen(path, mode);
    if (f)
        return f;
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    exit(1);
}

/* The golden model with other numbers, in a folder of its own: the same weights. */
static void write_variant(const char *golden, const char *dir, uint64_t *seed)
{
    static const unsigned windows[] = {100, 128, 150, 200, 256, 300};
    char from[600], to[600], text[8192] = "";
    mkdir(dir, 0700);
    snprintf(from, sizeof from, "tests/golden/%s/config.json", golden);
    FILE *f = must_open(from, "r");
    text[fread(text, 1, sizeof text - 64, f)] = 0;
    fclose(f);
    if (check_random(seed) % 3)
        set_number(text, "sliding_window", windows[check_random(seed) % 6]);
    if (strstr(text, "longrope"))
        set_number(text, "original_max_position_embeddings", (unsigned)check_range(seed, 60, 400));
    if (strstr(text, "\"dynamic\""))
        set_number(text, "max_position_embeddings", (unsigned)check_range(seed, 60, 400));
    snprintf(to, sizeof to, "%s/config.json", dir);
    f = must_open(to, "w");
    CHECK(fputs(text, f) >= 0 && !fclose(f));
    snprintf(from, sizeof from, "tests/golden/%s", golden);
    DIR *d = opendir(from);
    for (struct dirent *x; (x = readdir(d));)
        if (strstr(x->d_name, ".safetensors")) {
            char *whole = NULL;
            snprintf(from, sizeof from, "tests/golden/%s/%s", golden, x->d_name);
            whole = realpath(from, NULL);
            snprintf(to, sizeof to, "%s/%s", dir, x->d_name);
            CHECK(symlink(whole, to) == 0);
            free(whole);
        }
    closedir(d);
}

/* ---- draws ---- */

static void draw_split(struct walk *w, int kind)
{
    w->context = check_range(w->seed, TOKENS / 3, TOKENS);
    w->aim = draw_one(w, 3) ? ANYTHING : draw_one(w, 2) ? FROM_HOST : FROM_DISK;
    w->n_sessions = kind == JOB ? (uint32_t)check_range(w->seed, 1, N_SESSIONS) : 1;
    w->backend = run_backend(draw_one(w, 2));
    w->backend.io_fault = &w->fault.hook;
    struct spw_options *o = &w->o;
    *o = w->s->o;
    draw_speed(o, w->seed);
    o->context = w->context;
    o->past_positions = true;
    o->sessions = w->n_sessions + (kind == JOB);
    o->on_oom = SPW_ON_OOM_SPILL;
    o->saves = kind == SAVED;
    o->rolls_back = kind == CHAT;
    if (w->aim ? w->aim == FROM_DISK : draw_one(w, 2))
        o->disk_dir = w->s->folder;
    if (w->aim) /* little that old tiles could lie in instead */
        o->prefetch_slots = 2, o->prefetch_splits = 1;
    o->prefix_cache_dir = kind == CACHE || (kind == JOB && draw_one(w, 2)) ? w->cache : NULL;
    o->prefix_cache_bytes = o->prefix_cache_dir ? 64 * MIB : 0;
    draw_budgets(o, &w->backend, w->s->dir, w->aim, w->seed);
}

static struct walk walk;

static void run_split(int number, uint64_t start)
{
    static struct subject subject;
    struct walk *w = &walk;
    uint64_t of_draw = start + (uint64_t)number * 1000003, *seed = &of_draw;
    const int kind = (int)(check_random(seed) % N_SPLITS);
    const char *golden = folders[check_random(seed) % (uint64_t)n_folders];
    char dir[128];
    struct spw_options kv = {.past_positions = true};
    *w = (struct walk){.s = &subject, .seed = seed, .alloc_nth = -1, .left = -1};
    snprintf(w->what, sizeof w->what, "draw %d (seed %llu): opening %.60s", number,
             (unsigned long long)start, golden);
    snprintf(dir, sizeof dir, "/tmp/spw_splits_%d_%.60s", (int)getpid(), golden);
    write_variant(golden, dir, seed);
    draw_kv(&kv, check_random(seed) % KV_KINDS, seed);
    subject_open_at(&subject, dir, TOKENS, &kv, check_random(seed));
    name_walk(w, "splits");
    draw_split(w, kind);
    const char *script = splits[kind].walks[draw_one(w, 4)];
    snprintf(w->what, sizeof w->what,
             "draw %d (seed %llu): %.60s, %s, device %llu host %llu %s: ", number,
             (unsigned long long)start, golden, splits[kind].name,
             (unsigned long long)w->o.device_bytes, (unsigned long long)w->o.host_bytes,
             spw_kv_precision_name(w->o.precision));
    begin_walk(w);
    for (size_t i = 0, last = N_OPERATIONS; script[i]; last = (size_t)(script[i++] - 'a'))
        if (!operations[script[i] - 'a'].can || operations[script[i] - 'a'].can(w))
            do_operation(w, (size_t)(script[i] - 'a'), last);
    end_walk(w);
    subject_close(&subject);
    pack_remove_folder(dir);
}

/* ---- layers that read the tiles of others ---- */

/* Chunks whose new tiles several layers keep at the same time, under the smallest budget. */
static void run_smallest(struct subject *s, uint32_t chunk)
{
    static const size_t ends[] = {128, 328, 528, TOKENS};
    struct spw_options o = s->o;
    struct spw_plan_info info;
    struct spw_error err = {0};
    struct watch watch = {0};
    o.context = TOKENS;
    o.prefill_chunk = chunk;
    CHECK(spw_plan_query_on(&info, NULL, s->dir, &o, NULL) == 0);
    o.device_bytes = info.smallest_device_bytes;
    struct spw_engine *e = run_open(s->dir, &o);
    struct spw_session *session = run_session(e);
    for (int i = 0; i < 4; i++) {
        struct spw_span span = {session, s->ids[0], ends[i], 1};
        int rc = watch_sync(&watch, s, e, &span, 1, TOKENS, &err);
        CHECK_MSG(!rc && !watch.n_wrong, "%s, chunks of %u: %d: %s", s->dir, chunk, rc, err.text);
    }
    spw_session_close(session);
    spw_engine_close(e);
}

/* A prompt of several chunks in one pass, beside weights that stream: they cross the link once. */
static void run_one_pass(struct subject *s, uint32_t chunk)
{
    enum { STEP = 16 << 10, MOST_STEPS = 200 };
    struct spw_options o = s->o;
    struct spw_plan_info info;
    struct spw_error err = {0};
    struct watch watch = {0};
    struct spw_stats before, after;
    struct spw_engine *e = NULL;
    o.context = TOKENS;
    o.prefill_chunk = chunk;
    CHECK(spw_plan_query_on(&info, NULL, s->dir, &o, NULL) == 0);
    o.device_bytes = info.smallest_device_bytes;
    for (int i = 0; i < MOST_STEPS && (!e || e->plan.pass_rows < TOKENS); i++) {
        spw_engine_close(e);
        e = run_open(s->dir, &o);
        o.device_bytes += STEP;
    }
    const struct spw_plan *p = &e->plan;
    CHECK_MSG(p->pass_rows >= TOKENS && p->chunk < TOKENS && p->streamed_bytes && !p->n_kv_slots,
              "%s: %llu rows in a pass, %llu bytes of weights stream", s->dir,
              (unsigned long long)p->pass_rows, (unsigned long long)p->streamed_bytes);
    struct spw_session *session = run_session(e);
    const struct spw_span span = {session, s->ids[0], TOKENS, 1};
    spw_engine_stats(e, &before);
    int rc = watch_sync(&watch, s, e, &span, 1, TOKENS, &err);
    spw_engine_stats(e, &after);
    CHECK_MSG(!rc && !watch.n_wrong, "%s, chunks of %u: %d: %s", s->dir, chunk, rc, err.text);
    const uint64_t moved =
        after.moved_bytes[SPW_MOVED_HOST_TO_DEVICE] - before.moved_bytes[SPW_MOVED_HOST_TO_DEVICE];
    CHECK_MSG(moved == p->streamed_bytes + TOKENS * (p->hidden_row_bytes + p->inputs_row_bytes),
              "%s: %llu bytes up, of weights %llu", s->dir, (unsigned long long)moved,
              (unsigned long long)p->streamed_bytes);
    run_check_peaks(e, &o, "one pass");
    spw_session_close(session);
    spw_engine_close(e);
}

static void check_readers(const char *golden)
{
    static struct subject s;
    char dir[300];
    snprintf(dir, sizeof dir, "tests/golden/%.200s", golden);
    for (int exact = 0; exact < 2; exact++) {
        const struct spw_options o = {.precision = exact ? SPW_KV_EXACT : SPW_KV_INT8,
                                      .residual_window = exact ? 0 : SPW_NONE,
                                      .past_positions = true};
        subject_open_at(&s, dir, TOKENS, &o, 3);
        run_smallest(&s, 100);
        run_smallest(&s, 200);
        subject_close(&s);
    }
}

static void check_one_pass(void)
{
    struct tiny_model model = tiny_models[TINY_STATES - 1]; /* its layers read KV of others */
    CHECK(model.readers);
    model.intermediate = 2048; /* weights that take more than KV */
    static struct subject s;
    for (int exact = 0; exact < 2; exact++) {
        const struct spw_options o = {.precision = exact ? SPW_KV_EXACT : SPW_KV_INT8,
                                      .residual_window = exact ? 0 : SPW_NONE};
        subject_open(&s, &model, "one_pass", TOKENS, &o);
        run_one_pass(&s, 64);
        run_one_pass(&s, 200);
        subject_close(&s);
    }
}

/* Prefixes of each kind were found. */
static bool found_all(void)
{
    return tried[FOUND].n && tried[FOUND_SLIDING].n && tried[FOUND_QUANTIZED].n;
}

int main(int argc, char **argv)
{
    const int first = argc > 2 ? atoi(argv[2]) : 0;
    int n = 0;
    if (!run_is_there())
        return CHECK_SKIP;
    uint64_t seed = check_seed();
    check_doing(walk.what);
    int64_t outstanding = spw_alloc_outstanding();
    find_folders();
    CHECK(n_folders > 50);
    for (int i = 0; i < n_folders && argc < 2; i++)
        if (strstr(folders[i], "gemma4_"))
            check_readers(folders[i]);
    if (argc < 2)
        check_one_pass();
    struct check_draws draws = check_draws_of(argc, argv, DRAWS);
    if (argc < 2 && !check_full()) {
        draws.least = RUN_UNDER_ASAN || RUN_UNDER_TSAN ? LEAST / 4 : LEAST;
        draws.until = check_seconds() + SECONDS;
    }
    for (; check_another(&draws); n++)
        run_split(first + n, seed);
    for (; n >= LEAST && !found_all() && n < 4 * LEAST; n++) /* too few: go on */
        run_split(first + n, seed);
    fprintf(
        stderr, "%d splits, %llu rows; prefixes found: %llu, with windows %llu, quantized %llu\n",
        n, (unsigned long long)n_rows, (unsigned long long)tried[FOUND].n,
        (unsigned long long)tried[FOUND_SLIDING].n, (unsigned long long)tried[FOUND_QUANTIZED].n);
    for (size_t i = 0; i < N_OPERATIONS; i++)
        if (done[i])
            fprintf(stderr, "%s %llu, ", operations[i].name, (unsigned long long)done[i]);
    missing_kinds(true);
    CHECK(n < LEAST || found_all());
    for (int i = 0; i < n_folders; i++)
        free(folders[i]);
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
