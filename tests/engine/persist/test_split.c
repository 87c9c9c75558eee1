/* The seed case of reuse: a sequence is split at random, its prefix comes from somewhere, and the
 * logits behind it are those of a run that computed the whole, bit by bit; so is the text that goes
 * on greedily. For the bundled model, stories260K (where the shared data is) and random models of
 * every family, with exact KV of the model's own type and of another, and old KV in each format.
 * Nothing, one token and more are left to compute behind each prefix. What was drawn is counted,
 * and a kind that never occurred, or never reused anything, has failed.
 *
 *   test_split [splits]      1000 is the long run, of some minutes */
#include "tests/batch_run.h"
#include "tests/byte_tokenizer.h"
#include "tests/engine/engine_run.h"
#include "tests/engine/persist/pack_run.h"

#ifndef TEST_MOST
#define TEST_MOST 700
#define TEST_SPLITS (RUN_UNDER_TSAN ? 8 : RUN_UNDER_ASAN ? 24 : 96)
#define TEST_FIRST_MODEL BUNDLED
#endif

enum { MOST = TEST_MOST, STORIES = 500, N_NEW = 6, N_SESSIONS = 2, TURNS = 3, MIB = 1 << 20 };

/* Where a prefix comes from. */
enum source {
    SAME_SESSION, /* which held something else behind it */
    FORKED,       /* the session of another one, shared */
    OTHER,        /* another session of the engine kept it */
    PROCESS,      /* another process did */
    DISK,         /* the disk tier has it */
    SAVED,        /* a session file of another process */
    EVICTED,      /* it was kept, had to go, and came back */
    CHAT,         /* turns of a conversation, in another process: the template puts them together */
    N_SOURCES
};
static const char *const source_names[N_SOURCES] = {"same session",    "forked", "another session",
                                                    "another process", "disk",   "saved",
                                                    "evicted",         "chat"};

enum { BUNDLED, SHARED, N_FAMILIES = 5, N_MODELS = SHARED + 1 + N_FAMILIES, N_KV = 5 };
static const char *const kv_names[N_KV] = {"own type", "another type", "int8", "int8:int4", "int4"};

struct subject {
    char dir[512], scratch[128], cache[160], file[160];
    bool is_tiny;
    struct spw_options o; /* what bits depend on */
    struct spw_tokenizer *tokenizer;
    struct spw_chat_template *template;
    uint32_t vocab;
    size_t n;          /* tokens of a sequence */
    int32_t ids[MOST]; /* [n] */
    float *expected;   /* [n][vocab] */
};

static uint64_t drawn[N_SOURCES], reused[N_SOURCES], of_model[N_MODELS], of_kv[N_KV], rests[3],
    rows, n_texts, n_gone, n_below;

/* ---- engines, under budgets of their own ---- */

static struct spw_engine *open_engine(const struct subject *s, struct spw_options *o,
                                      enum source source, uint64_t *seed)
{
    struct spw_plan_info info;
    struct spw_error err = {{0}};
    struct spw_backend b = run_backend(check_random(seed) % 2);
    *o = s->o;
    o->threads = (uint32_t)check_range(seed, 1, 3);
    o->sessions = N_SESSIONS;
    o->prefill_chunk = check_random(seed) % 2 ? 0 : (uint32_t)check_range(seed, 16, 200);
    o->delay_seed = check_random(seed) % 8 ? 0 : check_random(seed) | 1;
    o->keeps = source == SAVED;
    if (source == OTHER || source == PROCESS || source == EVICTED || source == CHAT)
        o->prefix_cache_dir = s->cache;
    if (source == DISK || check_random(seed) % 4 == 0) {
        o->disk_dir = s->scratch;
        o->disk_bytes = 256 * MIB;
    }
    CHECK_MSG(!spw_plan_query_on(&info, &b, s->dir, o, &err), "%s", err.text);
    if (source == DISK || check_random(seed) % 2)
        o->device_bytes = info.smallest_device_bytes;
    if (o->device_bytes)
        o->host_bytes = (uint64_t)1 << 30;
    if (source == DISK) { /* nor can it stay on the host */
        CHECK_MSG(!spw_plan_query_on(&info, &b, s->dir, o, &err), "%s", err.text);
        o->host_bytes = info.smallest_host_bytes;
    }
    return run_open_on(&b, s->dir, o);
}

static void close_engine(struct spw_engine *e, const struct spw_options *o, const char *what)
{
    run_check_account(e, o, what);
    spw_engine_close(e);
}

/* The whole of it, computed at once under no budgets: logits of the last n_rows, and the answer. */
static void compute(const struct subject *s, const int32_t *ids, size_t n,
                    struct spw_result *answer, float *logits, size_t n_rows);

/* ---- what is compared ---- */

struct goal {
    const struct subject *s;
    const int32_t *ids;    /* the sequence */
    const float *expected; /* [][vocab], of position `first` on */
    size_t first;
    uint64_t wrong;
};

static void compare(void *context, size_t span, size_t position, const float *logits)
{
    struct goal *g = context;
    (void)span;
    rows++;
    g->wrong += memcmp(logits, g->expected + (position - g->first) * g->s->vocab,
                       g->s->vocab * sizeof *logits) != 0;
}

/* The session to n tokens, of which `rest` come behind a prefix it can have from somewhere. */
static void reach(struct goal *g, struct spw_engine *e, struct spw_session *session, size_t n,
                  size_t rest, enum source source)
{
    struct spw_error err = {{0}};
    struct spw_span span = {session, g->ids, n, rest ? rest : 1};
    CHECK_MSG(spw_sync(e, &span, 1, compare, g, &err) == 0, "%s", err.text);
    CHECK_MSG(!g->wrong, "%s, %s: %zu tokens and %zu: %llu rows differ", g->s->dir,
              source_names[source], n - rest, rest, (unsigned long long)g->wrong);
    rests[rest < 2 ? rest : 2]++;
    bool stored = source == OTHER || source == PROCESS || source == EVICTED || source == CHAT;
    reused[source] += stored ? spw_session_from_store(session) : spw_session_reused(session);
}

static int answer(struct spw_engine *e, struct spw_session *session, const int32_t *ids, size_t n,
                  struct spw_result *out)
{
    struct spw_error err = {{0}};
    struct spw_request request = {.prompt = ids,
                                  .n_prompt = n,
                                  .max_new_tokens = N_NEW,
                                  .session = session,
                                  .ignore_eos = true};
    int rc = batch_run(e, NULL, &request, 1, out, NULL, &err);
    CHECK_MSG(rc == 0, "%s", err.text);
    return rc;
}

static void compare_answer(struct spw_engine *e, struct spw_session *session, const int32_t *ids,
                           size_t n, const struct spw_result *expected)
{
    struct spw_result r;
    if (!answer(e, session, ids, n, &r))
        CHECK(r.n_tokens == N_NEW && r.logits_hash == expected->logits_hash &&
              !memcmp(r.tokens, expected->tokens, N_NEW * sizeof *r.tokens));
    spw_result_free(&r);
    n_texts++;
}

static void keep_logits(void *context, size_t span, size_t position, const float *logits)
{
    struct model_logits *l = context;
    (void)span;
    (void)position;
    memcpy(l->rows, logits, l->vocab * sizeof *logits);
    l->rows += l->vocab;
}

static void compute(const struct subject *s, const int32_t *ids, size_t n, struct spw_result *out,
                    float *logits, size_t n_rows)
{
    struct spw_error err = {{0}};
    struct spw_engine *e = run_open(s->dir, &s->o);
    struct spw_session *session = run_session(e);
    struct model_logits l = {logits, s->vocab};
    struct spw_span span = {session, ids, n, n_rows};
    CHECK_MSG(spw_sync(e, &span, 1, keep_logits, &l, &err) == 0, "%s", err.text);
    if (out)
        answer(e, session, ids, n, out);
    spw_session_close(session);
    spw_engine_close(e);
}

/* ---- prefixes ---- */

static void go_to(struct spw_engine *e, struct spw_session *session, const int32_t *ids, size_t n)
{
    struct spw_error err = {{0}};
    struct spw_span span = {session, ids, n, 1};
    CHECK_MSG(spw_sync(e, &span, 1, NULL, NULL, &err) == 0, "%s", err.text);
}

static void keep(struct spw_session *session)
{
    struct spw_error err = {{0}};
    CHECK_MSG(spw_session_keep(session, &err) == 0, "%s", err.text);
}

/* Another process goes on from here: 0 in that one. Below 0: there is none, for a process that has
 * forked cannot use a real GPU; an engine of its own must do. */
static pid_t go_elsewhere(void)
{
    fflush(NULL);
    if (!run_can_lose_device()) /* neither the CPU nor an emulated GPU */
        return -1;
    pid_t child = fork();
    CHECK(child >= 0);
    return child;
}

static void come_back(pid_t child)
{
    int status = 1;
    if (!child)
        _exit(check_failed_ != 0);
    CHECK(child < 0 || (waitpid(child, &status, 0) == child && status == 0));
}

/* The prefix is kept, or the session saved. */
static void leave_elsewhere(const struct subject *s, size_t n, enum source source, uint64_t *seed)
{
    pid_t child = go_elsewhere();
    uint64_t theirs = *seed;
    check_random(seed);
    if (child <= 0) {
        struct spw_options o;
        struct spw_error err = {{0}};
        struct spw_engine *e = open_engine(s, &o, source, &theirs);
        struct spw_session *session = run_session(e);
        go_to(e, session, s->ids, n);
        if (source == SAVED)
            CHECK_MSG(spw_session_save(session, s->file, NULL, 0, NULL, &err) == 0, "%s", err.text);
        else
            keep(session);
        spw_session_close(session);
        close_engine(e, &o, "elsewhere");
    }
    come_back(child);
}

/* Keeps the prefix in a cache that has room for little more, and then what drives it out. */
static void leave_and_evict(const struct subject *s, size_t n, uint64_t *limit, uint64_t *seed)
{
    int32_t other[MOST];
    struct spw_options o;
    struct spw_prefix_stats stats;
    struct spw_engine *e = open_engine(s, &o, EVICTED, seed);
    struct spw_session *session = run_session(e);
    go_to(e, session, s->ids, n);
    keep(session);
    spw_engine_prefix(e, &stats);
    *limit = spw_max_u64(stats.written_bytes + stats.written_bytes / 2,
                         e->plan.n_layers[SPW_LAYER_FULL] * e->plan.tile_bytes +
                             e->plan.n_layers[SPW_LAYER_SLIDING] * e->plan.exact_tile_bytes);
    spw_session_close(session);
    close_engine(e, &o, "kept");
    struct subject small = *s;
    small.o.prefix_cache_bytes = *limit;
    run_ids(other, n, s->vocab, check_random(seed));
    e = open_engine(&small, &o, EVICTED, seed);
    session = run_session(e);
    go_to(e, session, other, n);
    keep(session);
    go_to(e, session, s->ids, n); /* gone, so that it is computed; and kept again */
    n_gone += stats.n_kept && !spw_session_from_store(session);
    keep(session);
    spw_session_close(session);
    close_engine(e, &o, "evicted");
}

/* A session that holds the first n tokens, or finds them once it is asked for more. */
static struct spw_session *begin(const struct subject *s, struct spw_engine *e,
                                 struct spw_session *holder, size_t n, enum source source)
{
    struct spw_error err = {{0}};
    struct spw_session *session = NULL;
    struct spw_saved *saved = NULL;
    if (source == SAME_SESSION || source == DISK)
        return holder;
    if (source == FORKED) {
        CHECK_MSG(spw_session_fork(&session, holder, &err) == 0, "%s", err.text);
    } else if (source == SAVED) {
        CHECK_MSG(spw_saved_open(&saved, s->file, &err) == 0, "%s", err.text);
        CHECK_MSG(spw_session_resume(&session, e, saved, &err) == 0, "%s", err.text);
        CHECK(spw_session_n_tokens(session) == n);
        spw_saved_close(saved);
    } else {
        session = run_session(e);
    }
    return session;
}

/* Brings the prefix there, before anybody looks for it. */
static void leave_here(const struct subject *s, struct spw_engine *e, struct spw_session *holder,
                       size_t n, enum source source, uint64_t *seed)
{
    int32_t ids[MOST];
    size_t more = check_range(seed, 0, s->n - n);
    if (source > DISK || source == PROCESS)
        return;
    go_to(e, holder, s->ids, n);
    if (source == OTHER)
        keep(holder);
    if (source == DISK) {
        struct spw_waterlines w;
        spw_session_waterlines(holder, &w);
        n_below += w.disk_end > 0;
    }
    if (source != SAME_SESSION || !more)
        return;
    memcpy(ids, s->ids, n * sizeof *ids);
    run_ids(ids + n, more, s->vocab, check_random(seed));
    go_to(e, holder, ids, n + more);
}

/* ---- one split ---- */

static void split(const struct subject *s, enum source source, uint64_t *seed)
{
    struct subject here = *s;
    struct spw_options o;
    struct spw_result expected;
    struct goal g = {.s = s, .ids = s->ids, .expected = s->expected};
    size_t least = source == EVICTED ? SPW_TILE_TOKENS : source == DISK ? s->n - 150 : 1;
    size_t n = check_range(seed, least, s->n - 2), most = s->n - n;
    size_t rest[3] = {0, 1, check_range(seed, 2, most)};
    size_t with_answer = check_random(seed) % 3;
    compute(s, s->ids, n + rest[with_answer], &expected, NULL, 0);
    if (source == PROCESS || source == SAVED)
        leave_elsewhere(s, n, source, seed);
    if (source == EVICTED)
        leave_and_evict(s, n, &here.o.prefix_cache_bytes, seed);
    struct spw_engine *e = open_engine(&here, &o, source, seed);
    struct spw_session *holder = source == SAVED ? NULL : run_session(e);
    leave_here(s, e, holder, n, source, seed);
    for (size_t i = 0, at = check_random(seed) % 3; i < 3; i++, at = (at + 1) % 3) {
        struct spw_session *session = begin(s, e, holder, n, source);
        reach(&g, e, session, n + rest[at], rest[at], source);
        if (at == with_answer)
            compare_answer(e, session, s->ids, n + rest[at], &expected);
        if (session != holder)
            spw_session_close(session);
    }
    spw_session_close(holder);
    close_engine(e, &o, source_names[source]);
    spw_result_free(&expected);
}

/* ---- a conversation ---- */

#define TEMPLATE                                                                                   \
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% if m.role == 'assistant' %}#"       \
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"

struct turn {
    int32_t *ids; /* of the conversation, as the template has it */
    size_t n;
};

static struct turn render(const struct subject *s, const json_t *messages)
{
    struct spw_error err = {{0}};
    struct turn t = {0};
    char *text = NULL, *json = json_dumps(messages, 0);
    size_t bytes = 0;
    struct spw_chat_request request = {
        .messages_json = json, .messages_bytes = strlen(json), .add_generation_prompt = true};
    CHECK_MSG(!spw_chat_template_render(s->template, &request, &text, &bytes, &err), "%s",
              err.text);
    CHECK_MSG(!spw_tokenizer_encode(s->tokenizer, text, bytes, false, &t.ids, &t.n, &err), "%s",
              err.text);
    CHECK(t.n && t.n <= s->n);
    spw_free(text);
    free(json);
    return t;
}

static void say(json_t *messages, const char *role, const char *text)
{
    json_array_append_new(messages, json_pack("{s:s,s:s}", "role", role, "content", text));
}

/* Questions of random letters, and the answers that whoever computes all of it gives. */
static void converse(const struct subject *s, struct turn *turns, struct spw_result *answers,
                     uint64_t *seed)
{
    json_t *messages = json_array();
    for (int i = 0; i < TURNS; i++) {
        char question[MOST] = "", *said; /* the first has a whole tile; there is room for all */
        size_t bytes, more = (s->n - 230) / (TURNS - 1);
        size_t n = check_range(seed, i ? 1 : 130, i ? more : 150);
        for (size_t k = 0; k < n; k++)
            question[k] = (char)('a' + check_random(seed) % 26);
        say(messages, "user", question);
        turns[i] = render(s, messages);
        compute(s, turns[i].ids, turns[i].n, &answers[i], NULL, 0);
        CHECK(spw_tokenizer_decode(s->tokenizer, answers[i].tokens, N_NEW, true, &said, &bytes) ==
              0);
        say(messages, "assistant", said);
        spw_free(said);
    }
    json_decref(messages);
}

/* All turns but the last, each kept as it ends. */
static void take_turns(const struct subject *s, const struct turn *turns,
                       const struct spw_result *answers, uint64_t *seed)
{
    struct spw_options o;
    struct spw_engine *e = open_engine(s, &o, CHAT, seed);
    struct spw_session *session = run_session(e);
    for (int i = 0; i + 1 < TURNS; i++)
        compare_answer(e, session, turns[i].ids, turns[i].n, &answers[i]);
    spw_session_close(session);
    close_engine(e, &o, "turns");
}

static void take_turns_elsewhere(const struct subject *s, const struct turn *turns,
                                 const struct spw_result *answers, uint64_t *seed)
{
    pid_t child = go_elsewhere();
    uint64_t theirs = *seed;
    check_random(seed);
    if (child <= 0)
        take_turns(s, turns, answers, &theirs);
    come_back(child);
}

/* The last turn by a process that finds the others' tiles: what the template puts behind them is
 * computed, then nothing more, then one token. */
static void split_chat(const struct subject *s, uint64_t *seed)
{
    struct turn turns[TURNS];
    struct spw_result answers[TURNS];
    struct spw_options o;
    converse(s, turns, answers, seed);
    take_turns_elsewhere(s, turns, answers, seed);
    struct turn *last = &turns[TURNS - 1];
    size_t n = last->n, shared = turns[TURNS - 2].n;
    CHECK(shared < n);
    float *expected = calloc((n - shared + 2) * s->vocab, sizeof *expected);
    int32_t *ids = calloc(n + 1, sizeof *ids);
    memcpy(ids, last->ids, n * sizeof *ids);
    ids[n] = answers[TURNS - 1].tokens[0];
    compute(s, ids, n + 1, NULL, expected, n + 1 - shared);
    struct goal g = {.s = s, .ids = ids, .expected = expected, .first = shared};
    struct spw_engine *e = open_engine(s, &o, CHAT, seed);
    struct spw_session *session = run_session(e);
    reach(&g, e, session, n, n - shared, CHAT);
    reach(&g, e, session, n, 0, CHAT);
    compare_answer(e, session, last->ids, n, &answers[TURNS - 1]);
    reach(&g, e, session, n + 1, 1, CHAT);
    spw_session_close(session);
    close_engine(e, &o, "chat");
    for (int i = 0; i < TURNS; i++) {
        spw_free(turns[i].ids);
        spw_result_free(&answers[i]);
    }
    free(ids);
    free(expected);
}

/* ---- subjects ---- */

static const char *const families[N_FAMILIES] = {"llama", "mistral", "qwen2", "qwen3",
                                                 "gemma3_text"};

/* Any sizes; what a family adds of its own is drawn too. */
static void draw_model(const char *dir, int family, uint64_t *seed)
{
    char more[300] = "";
    uint32_t kv_heads = (uint32_t)check_range(seed, 1, 3);
    struct tiny_model m = {.family = families[family],
                           .layers = (uint32_t)check_range(seed, 1, 4),
                           .hidden = 8 * (uint32_t)check_range(seed, 2, 10),
                           .intermediate = 8 * (uint32_t)check_range(seed, 2, 14),
                           .heads = kv_heads * (uint32_t)check_range(seed, 1, 3),
                           .kv_heads = kv_heads,
                           .head_dim = 2 * (uint32_t)check_range(seed, 4, 24),
                           .vocab = (uint32_t)check_range(seed, BYTE_TOKENIZER_VOCAB, 140),
                           .positions = 4096,
                           .more = more,
                           .bias = family == 2,
                           .qk_norm = family >= 3,
                           .sandwich = family == 4,
                           .untied = family != 4 && check_random(seed) % 2,
                           .bf16 = check_random(seed) % 2,
                           .seed = check_random(seed)};
    uint32_t window = (uint32_t)check_range(seed, 50, 400);
    bool slides = check_random(seed) % 2;
    if (family == 1)
        snprintf(more, sizeof more, slides ? ",\"sliding_window\":%u" : ",\"sliding_window\":null",
                 window);
    if ((family == 2 || family == 3) && slides)
        snprintf(more, sizeof more,
                 ",\"use_sliding_window\":true,\"sliding_window\":%u,\"max_window_layers\":1",
                 window);
    if (family == 4)
        snprintf(more, sizeof more,
                 ",\"sliding_window\":%u,\"sliding_window_pattern\":2,\"query_pre_attn_scalar\":%u,"
                 "\"hidden_activation\":\"gelu_pytorch_tanh\",\"rope_theta\":1000000.0,"
                 "\"rope_local_base_freq\":10000.0",
                 window, m.head_dim);
    tiny_model_write(&m, dir);
}

/* What the model computes with decides what "another type" is. */
static void choose_kv(struct subject *s, int kv, uint64_t *seed)
{
    static const uint64_t windows[] = {SPW_BYTES_NONE, 128, 200};
    struct spw_options *o = &s->o;
    if (kv == 1)
        o->kv = check_random(seed) % 2 ? SPW_DTYPE_F16 : SPW_DTYPE_BF16;
    if (kv == 1 && o->kv == SPW_DTYPE_BF16)
        o->compute = SPW_DTYPE_F32;
    if (kv >= 2) {
        o->precision = (enum spw_kv_precision)(SPW_KV_INT8 + kv - 2);
        o->residual_window = windows[check_random(seed) % 3];
    }
}

static void open_tokenizer(struct subject *s)
{
    struct spw_error err = {{0}};
    char json[BYTE_TOKENIZER_BYTES], path[600];
    int rc;
    if (s->is_tiny) {
        size_t n = byte_tokenizer_json(json);
        rc = spw_tokenizer_parse(&s->tokenizer, json, n, "bytes", &err);
    } else {
        snprintf(path, sizeof path, "%s/tokenizer.json", s->dir);
        rc = spw_tokenizer_open(&s->tokenizer, path, &err);
    }
    CHECK_MSG(rc == 0, "%s", err.text);
    snprintf(path, sizeof path, "%s/chat_template.jinja", s->scratch);
    FILE *file = fopen(path, "w");
    CHECK(file && fputs(TEMPLATE, file) >= 0 && fclose(file) == 0);
    rc = spw_chat_template_open(&s->template, s->scratch, NULL, &err);
    CHECK_MSG(rc == 0, "%s", err.text);
    unlink(path);
}

/* False: it is not here. */
static bool find_model(struct subject *s, int model, uint64_t *seed)
{
    const char *data = getenv("SPW_DATA");
    s->is_tiny = model > SHARED;
    s->n = model == SHARED ? STORIES : MOST;
    snprintf(s->scratch, sizeof s->scratch, "/tmp/spw_split_%d", (int)getpid());
    snprintf(s->cache, sizeof s->cache, "%s_cache", s->scratch);
    snprintf(s->file, sizeof s->file, "%s_session", s->scratch);
    CHECK(mkdir(s->scratch, 0700) == 0);
    if (model == BUNDLED)
        snprintf(s->dir, sizeof s->dir, "models/records");
    else if (model == SHARED)
        snprintf(s->dir, sizeof s->dir, "%.400s/models/stories260K", data ? data : "/none");
    else
        snprintf(s->dir, sizeof s->dir, "%s_model", s->scratch);
    if (s->is_tiny)
        draw_model(s->dir, model - SHARED - 1, seed);
    return access(s->dir, R_OK) == 0;
}

static bool open_subject(struct subject *s, int model, int kv, uint64_t *seed)
{
    *s = (struct subject){.o = {.backend = TEST_BACKEND, .threads = 2}};
    if (!find_model(s, model, seed)) {
        rmdir(s->scratch);
        return false;
    }
    s->o.context = s->n + N_NEW;
    choose_kv(s, kv, seed);
    open_tokenizer(s);
    struct spw_engine *e = run_open(s->dir, &s->o);
    s->vocab = spw_engine_config(e)->vocab;
    spw_engine_close(e);
    run_ids(s->ids, s->n, s->vocab, check_random(seed));
    s->expected = model_all_logits(s->dir, &s->o, s->ids, s->n, &s->vocab);
    return true;
}

static void close_subject(struct subject *s)
{
    spw_tokenizer_close(s->tokenizer);
    spw_chat_template_close(s->template);
    free(s->expected);
    if (s->is_tiny)
        tiny_model_remove(s->dir);
    CHECK(rmdir(s->scratch) == 0);
}

/* ---- all of them ---- */

/* Each source once; the cache is empty before each. */
static void run_subject(int round, int *left, uint64_t *seed)
{
    int n_models = N_MODELS - TEST_FIRST_MODEL;
    int model = TEST_FIRST_MODEL + round % n_models, kv = (round + round / n_models) % N_KV;
    static struct subject s;
    if (!open_subject(&s, model, kv, seed)) {
        fprintf(stderr, "%s is not here: skipped\n", s.dir);
        return;
    }
    for (int i = 0; i<N_SOURCES && * left> 0; i++, --*left) {
        enum source source = (enum source)((i + round) % N_SOURCES);
        if (source == CHAT)
            split_chat(&s, seed);
        else
            split(&s, source, seed);
        if (access(s.cache, F_OK) == 0)
            pack_remove_folder(s.cache);
        unlink(s.file);
        drawn[source]++;
        of_model[model]++;
        of_kv[kv]++;
    }
    close_subject(&s);
}

static void print_counts(int splits)
{
    fprintf(stderr,
            "%d splits, %llu rows and %llu texts compared; rests of 0, 1, more: %llu, %llu, "
            "%llu\n",
            splits, (unsigned long long)rows, (unsigned long long)n_texts,
            (unsigned long long)rests[0], (unsigned long long)rests[1],
            (unsigned long long)rests[2]);
    for (int i = 0; i < N_SOURCES; i++)
        fprintf(stderr, "%s%s: %llu (%llu tokens reused)", i ? ", " : "", source_names[i],
                (unsigned long long)drawn[i], (unsigned long long)reused[i]);
    fprintf(stderr, "\nrecords: %llu, stories260K: %llu", (unsigned long long)of_model[BUNDLED],
            (unsigned long long)of_model[SHARED]);
    for (int i = 0; i < N_FAMILIES; i++)
        fprintf(stderr, ", %s: %llu", families[i], (unsigned long long)of_model[SHARED + 1 + i]);
    for (int i = 0; i < N_KV; i++)
        fprintf(stderr, "%s%s: %llu", i ? ", " : "\n", kv_names[i], (unsigned long long)of_kv[i]);
    fprintf(stderr, "; %llu had tiles below, %llu came back after they had gone\n",
            (unsigned long long)n_below, (unsigned long long)n_gone);
}

/* All kinds have occurred; of the models those that are here. */
static void check_counts(int splits)
{
    bool all = splits >= N_SOURCES * N_MODELS;
    CHECK(splits < 3 || (rests[0] && rests[1] && rests[2] && n_texts));
    for (int i = 0; i < N_SOURCES; i++)
        CHECK_MSG(!all || (drawn[i] && reused[i]), "%s", source_names[i]);
    for (int i = 0; i < N_MODELS; i++)
        CHECK_MSG(!all || of_model[i] || i == SHARED || i < TEST_FIRST_MODEL, "model %d", i);
    for (int i = 0; i < N_KV; i++)
        CHECK_MSG(!all || of_kv[i], "%s", kv_names[i]);
    CHECK(!all || n_gone);
    /* of fewer tiles the least device holds all: slots to stream them would take more */
    CHECK(!all || n_below || MOST < 5 * SPW_TILE_TOKENS);
}

int main(int argc, char **argv)
{
    int splits = argc > 1 ? atoi(argv[1]) : check_amount(TEST_SPLITS), left = splits;
    if (!run_is_there())
        return CHECK_SKIP;
    uint64_t seed = check_seed();
    int64_t outstanding = spw_alloc_outstanding();
    alarm(3600);
    for (int round = (int)(seed % (N_MODELS * N_KV)); left > 0; round++)
        run_subject(round, &left, &seed);
    print_counts(splits);
    check_counts(splits);
    CHECK(spw_alloc_outstanding() == outstanding);
    return check_done();
}
