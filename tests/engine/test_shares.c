/* Sessions share the frames of each tier: the pure function, and lives of
 * sessions that open, grow, fork and close beside each other under small
 * budgets, also where there is memory for few of them that are as long as the
 * context. Every row of logits is what a session has that is alone with all the
 * memory; no budget is passed; every byte is predicted. The same of batches
 * whose requests wait until there is room for them. */
#include "runtime/plan/shares.h"
#include "tests/batch_run.h"
#include "tests/engine/engine_run.h"

enum { CONTEXT = 900, SESSIONS = 3, POOLED = 7, MOST_VOCAB = 128 };

/* ---- parts ---- */

/* Parts never pass the total or a want; whoever gets less than it wants has the
 * largest part, and nothing but the rest of a division is left. */
static void check_parts(uint64_t *seed)
{
    struct spw_share s[8] = {0};
    uint32_t n = (uint32_t)check_range(seed, 1, 8), n_short = 0;
    uint64_t total = check_range(seed, 0, 400), sum = 0, largest = 0, of_short = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++)
        s[i].want = check_random(seed) % 3 ? check_range(seed, 0, 120) : 0;
    spw_share_fairly(s, n, total);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(s[i].part <= s[i].want);
        sum += s[i].part;
        largest = spw_max_u64(largest, s[i].part);
        if (s[i].part < s[i].want) {
            n_short++;
            of_short = spw_min_u64(of_short, s[i].part);
        }
    }
    CHECK(sum <= total);
    CHECK(!n_short || (of_short == largest && total - sum < n_short));
}

/* ---- lives ---- */

struct life {
    const char *dir;
    const struct spw_options *o;
    struct spw_engine *e;
    uint32_t n_sessions;
    struct spw_session *sessions[POOLED];
    int32_t ids[POOLED][CONTEXT];
    uint64_t n[POOLED], most[POOLED];
    uint64_t seed;
    uint32_t n_opened, n_closed, n_forks, n_moved, n_refused, n_many;
};

static void expected(const struct life *x, uint32_t i, float out[MOST_VOCAB])
{
    struct spw_options o = {.backend = TEST_BACKEND,
                            .context = CONTEXT,
                            .precision = x->o->precision,
                            .residual_window = x->o->residual_window};
    struct spw_engine *e = run_open(x->dir, &o);
    struct spw_session *s = run_session(e);
    const float *logits = run_to(s, e, x->ids[i], x->n[i]);
    memset(out, 0, MOST_VOCAB * sizeof *out);
    if (logits)
        memcpy(out, logits, spw_engine_config(e)->vocab * sizeof *out);
    spw_session_close(s);
    spw_engine_close(e);
}

/* Whether a session of so many tokens may open: together no more than
 * full_sessions contexts. */
static bool has_room(const struct life *x, uint64_t most)
{
    uint64_t tiles = (most + 127) / 128, full = x->o->full_sessions;
    for (uint32_t i = 0; i < x->n_sessions; i++)
        tiles += x->sessions[i] ? (x->most[i] + 127) / 128 : 0;
    return !full || tiles <= full * ((CONTEXT + 127) / 128);
}

static void open_one(struct life *x, uint32_t i)
{
    struct spw_error err = {0};
    uint32_t from = (uint32_t)(check_random(&x->seed) % x->n_sessions);
    bool forks = x->sessions[from] && x->n[from] && check_random(&x->seed) % 2;
    uint64_t most = check_random(&x->seed) % 3 ? check_range(&x->seed, 1, CONTEXT) : CONTEXT;
    if (x->o->full_sessions && check_random(&x->seed) % 2)
        most = check_range(&x->seed, 1, 300);
    most = forks ? x->most[from] : most;
    bool fits = has_room(x, most);
    int rc = forks ? spw_session_fork(&x->sessions[i], x->sessions[from], &err)
                   : spw_session_open_for(&x->sessions[i], x->e, most, &err);
    CHECK_MSG(!rc == fits, "a session of %llu tokens: %s", (unsigned long long)most, err.text);
    if (rc) {
        CHECK(rc == -ENOMEM && strstr(err.text, "full_sessions") && !x->sessions[i]);
        x->n_refused++;
        return;
    }
    run_ids(x->ids[i], CONTEXT, spw_engine_config(x->e)->vocab, check_random(&x->seed));
    if (forks) /* it goes on otherwise */
        memcpy(x->ids[i], x->ids[from], x->n[from] * sizeof x->ids[i][0]);
    x->most[i] = most;
    x->n[i] = forks ? x->n[from] : 0;
    x->n_forks += forks;
    x->n_opened++;
}

/* Some sessions grow in one step: by a prompt, by one token, or after they were
 * cut back. */
static void step(struct life *x)
{
    struct spw_span spans[POOLED];
    struct spw_error err = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->n_sessions; i++) {
        if (!x->sessions[i] || (n && check_random(&x->seed) % 4 == 0))
            continue;
        uint64_t more = check_random(&x->seed) % 2 ? 1 : check_range(&x->seed, 1, 400);
        if (check_random(&x->seed) % 8 == 0)
            x->n[i] -= spw_min_u64(x->n[i], check_range(&x->seed, 1, 200));
        x->n[i] = spw_min_u64(x->n[i] + more, x->most[i]);
        spans[n++] = (struct spw_span){x->sessions[i], x->ids[i], x->n[i], 1};
    }
    if (n)
        CHECK_MSG(!spw_sync(x->e, spans, n, NULL, NULL, &err), "%s", err.text);
    x->n_many += x->o->full_sessions && n > x->o->full_sessions;
}

static void check_bits(struct life *x)
{
    for (uint32_t i = 0; i < x->n_sessions; i++) {
        float right[MOST_VOCAB];
        if (!x->sessions[i] || !spw_session_logits(x->sessions[i]) ||
            check_random(&x->seed) % x->n_sessions)
            continue;
        expected(x, i, right);
        CHECK_MSG(
            run_same(spw_session_logits(x->sessions[i]), right, spw_engine_config(x->e)->vocab),
            "%s: session %u at %llu tokens", x->dir, i, (unsigned long long)x->n[i]);
    }
}

/* Whether a session that has opened or closed has changed the numbers of
 * another one. */
static void note_moves(struct life *x, const struct spw_residency before[POOLED])
{
    for (uint32_t i = 0; i < x->n_sessions; i++)
        x->n_moved += x->sessions[i] && before[i].resident &&
                      x->sessions[i]->residency[SPW_LAYER_FULL].resident != before[i].resident;
}

static void live(struct life *x, uint32_t n_steps)
{
    for (uint32_t k = 0; k < n_steps; k++) {
        struct spw_residency before[POOLED] = {0};
        for (uint32_t i = 0; i < x->n_sessions; i++)
            if (x->sessions[i])
                before[i] = x->sessions[i]->residency[SPW_LAYER_FULL];
        uint32_t i = (uint32_t)(check_random(&x->seed) % x->n_sessions);
        if (!x->sessions[i]) {
            open_one(x, i);
        } else if (check_random(&x->seed) % 3 == 0) {
            spw_session_close(x->sessions[i]);
            x->sessions[i] = NULL;
            before[i].resident = 0;
            x->n_closed++;
        }
        step(x);
        note_moves(x, before);
        check_bits(x);
        run_check_peaks(x->e, x->o, x->dir);
    }
}

/* ---- the pure function ---- */

/* Frames of one session, at most: on the device, on the host, and of all tiers
 * together. */
static void add_frames(const struct spw_plan *p, const struct spw_share *s, uint64_t sum[3],
                       bool *whole)
{
    const struct spw_residency *full = &s->residency[SPW_LAYER_FULL];
    const struct spw_residency *slides = &s->residency[p->window_kind];
    uint64_t n_full = spw_plan_n_full(p), n_sliding = p->quantizes ? 0 : spw_plan_n_windowed(p);
    uint32_t f = s->tiles.full, w = n_sliding ? s->tiles.window : 0;
    uint64_t rests = n_full * spw_min_u32(full->resident, f), passes = 0;
    if (n_full)
        passes = (n_full - 1) * spw_min_u32(full->resident_pass, f) + spw_min_u32(full->pass, f);
    uint64_t slide = spw_min_u32(slides->resident, w) + (p->retains ? s->tiles.retained : 0);
    bool chunked = s->most_tokens > p->chunk; /* a prompt that fits a chunk is not cut */
    uint32_t stay = chunked || slides->resident < w ? full->resident_pass : full->resident;
    uint32_t f_copies = f - spw_min_u32(stay, f);
    uint32_t w_copies = w - spw_min_u32(slides->resident, w);
    sum[0] += spw_max_u64(rests, passes) + n_sliding * slide;
    sum[1] += n_full * spw_min_u32(full->host, f_copies) +
              n_sliding * spw_min_u32(slides->host, w_copies);
    sum[2] += n_full * f + n_sliding * w;
    *whole &= !f_copies && !w_copies;
    if (!p->n_disk_frames)
        CHECK(full->host >= f_copies && slides->host >= w_copies);
    if (s->most_tokens && f)
        CHECK(full->resident && full->resident_pass && full->pass);
}

static uint64_t exact_frames(const struct spw_plan *p, uint64_t most_tokens)
{
    const struct spw_residency *full = &p->residency[SPW_LAYER_FULL];
    uint32_t tiles = spw_waterline_tiles(most_tokens);
    uint32_t exact = spw_min_u32(spw_waterline_exact_tiles(full->residual_tiles), tiles);
    uint32_t window = 0;
    if (spw_plan_n_windowed(p))
        window =
            spw_min_u32(spw_waterline_window_tiles(p->residency[p->window_kind].window), tiles);
    return spw_plan_n_full(p) * exact + spw_plan_n_windowed(p) * window;
}

/* Sets of sessions that fit: every tier has frames for their shares, and the
 * lowest one in use for all their tiles where shares may become smaller. */
static void check_sets(const struct spw_plan *p, uint64_t *seed)
{
    struct spw_share s[POOLED] = {0};
    uint32_t n = p->info.sessions;
    for (int draw = 0; draw < 100; draw++) {
        uint64_t sum[3] = {0}, exact = 0, tiles = 0, most;
        bool whole = true;
        uint64_t longest = check_random(seed) % 3 ? CONTEXT : check_range(seed, 1, CONTEXT);
        for (uint32_t i = 0; i < n; i++) {
            most = check_random(seed) % 4 ? check_range(seed, 1, longest) : longest;
            uint64_t rest = spw_share_most_tiles(p) - tiles;
            if (draw % 2) /* all of them, evenly */
                most = spw_min_u64(rest / (n - i) * SPW_TILE_TOKENS, CONTEXT);
            s[i].most_tokens = 0;
            if (!spw_share_fits(p, tiles + spw_waterline_tiles(most)))
                continue;
            s[i].most_tokens = most;
            tiles += spw_waterline_tiles(most);
            exact += p->quantizes ? exact_frames(p, most) : 0;
        }
        CHECK(tiles > 0);
        spw_share_frames(p, s, n, 0);
        for (uint32_t i = 0; i < n; i++)
            if (s[i].most_tokens)
                add_frames(p, &s[i], sum, &whole);
        CHECK(sum[0] + (whole ? 0 : p->new_frames) <= p->n_device_frames);
        CHECK(sum[1] + p->n_transit <= p->n_host_frames);
        CHECK(exact <= p->n_exact_frames);
        CHECK(whole || p->n_kv_slots);
        if (p->info.full_sessions < n && p->n_disk_frames)
            CHECK(sum[2] <= p->n_disk_frames);
    }
}

/* ---- what a life runs under ---- */

enum { LIVES = RUN_UNDER_TSAN ? 6 : 20 };

/* Memory for fewer sessions than may be open. */
static void draw_pool(struct spw_options *o, uint64_t *seed)
{
    o->full_sessions = (uint32_t)check_range(seed, 1, 3);
    o->sessions = o->full_sessions + (uint32_t)check_range(seed, 1, 4);
}

/* A model and the smallest budgets, or a little more. */
struct place {
    char dir[128], disk[160];
    struct spw_options o;
    uint32_t vocab;
};

static void make_place(struct place *p, uint32_t number, uint64_t *seed)
{
    static const char window[] = ",\"use_sliding_window\":true,\"sliding_window\":200,"
                                 "\"max_window_layers\":1";
    const struct tiny_model m = {.family = number % 3 == 1 ? "qwen2" : "llama",
                                 .layers = 3,
                                 .hidden = 32,
                                 .intermediate = 48,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 8,
                                 .vocab = 96,
                                 .positions = 1024,
                                 .more = number % 3 == 1 ? window : "",
                                 .bias = number % 3 == 1,
                                 .seed = *seed};
    struct spw_backend b = run_backend(true);
    struct spw_options *o = &p->o;
    p->vocab = m.vocab;
    run_folder(p->dir, &m, "shares");
    snprintf(p->disk, sizeof p->disk, "%s/disk", p->dir);
    if (number % 3 == 2) {
        o->precision = SPW_KV_INT8;
        o->residual_window = 128;
    }
    run_tight(p->dir, o, check_range(seed, 0, 30) * 4096);
    if (number % 2) {
        mkdir(p->disk, 0700);
        o->disk_dir = p->disk;
        run_to_disk(p->dir, o);
        o->host_bytes += check_range(seed, 0, 60) * 4096;
        o->disk_bytes = run_plan_on(&b, p->dir, o).smallest_disk_bytes;
    }
}

static void remove_place(struct place *p)
{
    rmdir(p->disk);
    tiny_model_remove(p->dir);
}

static void check_life(uint64_t seed, uint32_t number, struct life *total)
{
    struct place p = {.o = {.backend = TEST_BACKEND,
                            .context = CONTEXT,
                            .sessions = SESSIONS,
                            .threads = 1,
                            .prefill_chunk = (uint32_t)check_range(&seed, 16, 300),
                            .rolls_back = check_random(&seed) % 2}};
    if (number >= LIVES / 2)
        draw_pool(&p.o, &seed);
    make_place(&p, number, &seed);
    struct life x = {.dir = p.dir,
                     .o = &p.o,
                     .e = run_open(p.dir, &p.o),
                     .seed = seed,
                     .n_sessions = p.o.sessions};
    check_sets(&x.e->plan, &seed);
    live(&x, 24);
    for (uint32_t i = 0; i < x.n_sessions; i++)
        spw_session_close(x.sessions[i]);
    spw_engine_close(x.e);
    remove_place(&p);
    total->n_opened += x.n_opened;
    total->n_closed += x.n_closed;
    total->n_forks += x.n_forks;
    total->n_moved += x.n_moved;
    total->n_refused += x.n_refused;
    total->n_many += x.n_many;
}

/* ---- batches ---- */

enum {
    BATCHES = RUN_UNDER_TSAN ? 5 : 9,
    DISTURBED = RUN_UNDER_ASAN || RUN_UNDER_TSAN ? 3 : 6,
    REQUESTS = 14,
    MOST_NEW = 20
};

struct requests {
    int32_t ids[REQUESTS][CONTEXT];
    struct spw_request list[REQUESTS];
    struct spw_plan_request lengths[REQUESTS];
};

/* Of very different lengths: a few are as long as the context. Some begin
 * alike; or all are long, and begin alike. The answers have different lengths
 * too, or all the same. */
static void draw_requests(struct requests *r, uint32_t vocab, uint64_t *seed)
{
    uint64_t same_new = check_random(seed) % 2 ? check_range(seed, 1, 4) : 0;
    const bool alike = check_random(seed) % 2;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint64_t longest = alike || check_random(seed) % 4 == 0 ? CONTEXT - MOST_NEW : 150;
        uint64_t n = check_range(seed, alike ? 600 : 1, longest);
        uint64_t n_new = check_range(seed, 0, MOST_NEW);
        n_new = same_new ? same_new : n_new;
        run_ids(r->ids[i], n, vocab, check_random(seed));
        if (i && (alike || check_random(seed) % 2))
            memcpy(r->ids[i], r->ids[i - 1],
                   spw_min_u64(n, r->list[i - 1].n_prompt) * sizeof r->ids[i][0]);
        if (alike)
            r->ids[i][n - 1 - i] ^= 1;
        r->list[i] = (struct spw_request){
            .prompt = r->ids[i], .n_prompt = n, .max_new_tokens = n_new, .ignore_eos = true};
        r->lengths[i] =
            (struct spw_plan_request){.n_prompt = n, .max_new_tokens = n_new, .prompt = r->ids[i]};
    }
}

/* What each request has in a batch of its own, with all the memory. */
static void run_alone(const char *dir, const struct spw_options *with, const struct requests *r,
                      struct spw_result results[REQUESTS])
{
    struct spw_error err = {0};
    struct spw_options o = {.backend = TEST_BACKEND,
                            .context = CONTEXT,
                            .precision = with->precision,
                            .residual_window = with->residual_window};
    struct spw_engine *e = run_open(dir, &o);
    for (uint32_t i = 0; i < REQUESTS; i++)
        CHECK_MSG(!batch_run(e, NULL, &r->list[i], 1, &results[i], NULL, &err), "%s", err.text);
    spw_engine_close(e);
}

/* What happens between and within the steps of a batch. */
struct disturbance {
    struct place *place;
    uint64_t *seed, least_device_bytes;
    int64_t left; /* times the engine asks until the step is interrupted; below 0: never */
};

static bool interrupts(void *context)
{
    struct disturbance *d = context;
    return d->left >= 0 && d->left-- == 0;
}

/* Prompts wait between their chunks, requests are canceled, budgets change, and the next step is
 * interrupted; or nothing of this. */
static void disturb(struct disturbance *d, struct spw_engine *e, struct spw_batch *b)
{
    struct spw_options *o = &d->place->o;
    struct spw_error err = {0};
    if (check_random(d->seed) % 6 == 0)
        spw_batch_set_prompt_chunks(b, (uint32_t)check_range(d->seed, 0, 5));
    if (check_random(d->seed) % 16 == 0)
        spw_batch_cancel(b, check_range(d->seed, 1, REQUESTS));
    if (check_random(d->seed) % 16 == 0) {
        o->device_bytes = d->least_device_bytes + check_range(d->seed, 0, 40) * 4096;
        CHECK_MSG(!spw_engine_set_budgets(e, o->device_bytes, o->host_bytes, o->disk_bytes, &err),
                  "%s", err.text);
    }
    d->left = check_random(d->seed) % 4 ? -1 : (int64_t)check_range(d->seed, 0, 60);
    e->look.is_time = interrupts;
    e->look.context = d;
}

/* All requests at once. Returns the most sessions that were open in a step.
 * canceled: a request that is canceled before it runs; REQUESTS: none.
 * d: NULL: nothing disturbs the batch. */
static uint32_t run_together(struct spw_engine *e, const struct requests *r, uint32_t canceled,
                             struct disturbance *d, struct spw_result results[REQUESTS])
{
    struct spw_batch *b = NULL;
    struct spw_error err = {0};
    uint32_t most = 0;
    uint64_t id;
    int more = 1;
    bool taken[REQUESTS] = {0};
    CHECK(!spw_batch_open(&b, e, NULL, &err));
    for (uint32_t i = 0; i < REQUESTS; i++)
        CHECK_MSG(!spw_batch_submit(b, &r->list[i], &id, &err), "%s", err.text);
    while (more > 0) {
        uint32_t n = 0;
        if (d)
            disturb(d, e, b);
        more = spw_batch_step(b, &err);
        if (d && more == -ECANCELED)
            more = 1;
        CHECK_MSG(more >= 0, "%s", err.text);
        for (uint32_t i = 0; i < e->plan.info.sessions; i++)
            n += e->sessions[i] != NULL;
        most = n > most ? n : most;
        CHECK(spw_share_fits(&e->plan, spw_engine_open_tiles(e, false)));
        if (canceled < REQUESTS && spw_batch_result(b, canceled + 1)->finish == SPW_FINISH_NONE)
            CHECK(!spw_batch_cancel(b, canceled + 1));
        for (uint32_t i = 0; i < REQUESTS; i += 2) /* some go as soon as they can */
            taken[i] = taken[i] || !spw_batch_take(b, i + 1, &results[i]);
    }
    for (uint32_t i = 0; i < REQUESTS; i++)
        CHECK(taken[i] || !spw_batch_take(b, i + 1, &results[i]));
    spw_batch_close(b);
    return most;
}

static void compare_results(const struct spw_result *a, const struct spw_result *b, uint32_t i)
{
    CHECK_MSG(a->finish == b->finish && a->n_tokens == b->n_tokens &&
                  a->logits_hash == b->logits_hash &&
                  !memcmp(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens),
              "request %u: %zu tokens, finish %d; alone %zu, %d", i, a->n_tokens, (int)a->finish,
              b->n_tokens, (int)b->finish);
}

/* Requests wait until they fit, and get the bits that they have alone; no
 * budget is passed; the bytes are what a plan that sees only their lengths has
 * said, unless the batch is disturbed. */
static void check_batch(uint64_t seed, uint32_t number, bool disturbed, uint32_t *n_many)
{
    static struct requests r;
    struct place p = {.o = {.backend = TEST_BACKEND, .context = CONTEXT, .threads = 1}};
    const struct spw_options *o = &p.o;
    if (check_random(&seed) % 2)
        p.o.prefill_chunk = (uint32_t)check_range(&seed, 16, 300);
    const char *dir = p.dir;
    struct spw_result alone[REQUESTS], results[REQUESTS];
    struct spw_backend b = run_backend(true);
    struct spw_error err = {0};
    uint64_t moved[SPW_MOVED_COUNT];
    uint32_t canceled = check_random(&seed) % 2 ? REQUESTS : REQUESTS - 1;
    draw_pool(&p.o, &seed);
    make_place(&p, number, &seed);
    draw_requests(&r, p.vocab, &seed);
    run_alone(dir, o, &r, alone);
    CHECK(!spw_plan_moved_on(moved, NULL, NULL, &b, dir, o, r.lengths, REQUESTS, &err));
    struct spw_engine *e = run_open(dir, o);
    struct disturbance d = {.place = &p, .seed = &seed, .least_device_bytes = o->device_bytes};
    *n_many += run_together(e, &r, canceled, disturbed ? &d : NULL, results) > o->full_sessions;
    run_check_peaks(e, o, dir);
    struct spw_stats s;
    spw_engine_stats(e, &s);
    for (int i = 0; i < SPW_MOVED_COUNT && canceled == REQUESTS && !disturbed; i++)
        CHECK_MSG(s.moved_bytes[i] == moved[i], "link %d: planned %llu, counted %llu", i,
                  (unsigned long long)moved[i], (unsigned long long)s.moved_bytes[i]);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        if ((disturbed || i == canceled) && results[i].finish == SPW_FINISH_CANCELED)
            CHECK(results[i].n_tokens <= alone[i].n_tokens &&
                  !memcmp(results[i].tokens, alone[i].tokens,
                          results[i].n_tokens * sizeof *results[i].tokens));
        else
            compare_results(&results[i], &alone[i], i);
        spw_result_free(&results[i]);
        spw_result_free(&alone[i]);
    }
    spw_engine_close(e);
    remove_place(&p);
}

static struct tiny_model tiny_llama(uint64_t seed)
{
    return (struct tiny_model){.family = "llama",
                               .layers = 3,
                               .hidden = 32,
                               .intermediate = 48,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 8,
                               .vocab = 96,
                               .positions = 4096,
                               .more = "",
                               .seed = seed};
}

/* A session that is alone gets the frames that two others would have had, and
 * gives them back. */
static void check_alone(void)
{
    const struct tiny_model m = tiny_llama(3);
    char dir[128];
    int32_t ids[CONTEXT];
    struct spw_waterlines alone, beside, again;
    struct spw_options o = {
        .backend = TEST_BACKEND, .context = CONTEXT, .sessions = SESSIONS, .threads = 1};
    run_folder(dir, &m, "alone");
    run_tight(dir, &o, 24 * 4096);
    run_ids(ids, CONTEXT, m.vocab, 1);
    struct spw_engine *e = run_open(dir, &o);
    struct spw_session *s = run_session(e);
    run_to(s, e, ids, 800);
    spw_session_waterlines(s, &alone);
    struct spw_session *other = run_session(e), *third = run_session(e);
    run_to(other, e, ids, 800);
    spw_session_waterlines(s, &beside);
    spw_session_close(other);
    spw_session_close(third);
    run_to(s, e, ids, 801);
    spw_session_waterlines(s, &again);
    CHECK_MSG(alone.host_end < beside.host_end, "%llu tokens on the host alone, %llu beside others",
              (unsigned long long)alone.host_end, (unsigned long long)beside.host_end);
    CHECK(again.host_end == alone.host_end);
    run_check_peaks(e, &o, dir);
    spw_session_close(s);
    spw_engine_close(e);
    tiny_model_remove(dir);
}

static uint64_t brought_up(struct spw_engine *e)
{
    struct spw_stats s;
    spw_engine_stats(e, &s);
    return s.moved_bytes[SPW_MOVED_HOST_TO_DEVICE];
}

/* Forked sessions that decode together read the tiles they share once a step.
 */
static void check_shared_reads(void)
{
    const struct tiny_model m = tiny_llama(4);
    enum { LONG = 3000 };
    char dir[128];
    static int32_t ids[LONG + 2];
    struct spw_session *s[SESSIONS];
    struct spw_span spans[SESSIONS];
    struct spw_error err = {0};
    struct spw_options o = {
        .backend = TEST_BACKEND, .context = LONG + 2, .sessions = SESSIONS, .threads = 1};
    run_folder(dir, &m, "shared");
    run_tight(dir, &o, 0);
    run_ids(ids, LONG + 2, m.vocab, 1);
    struct spw_engine *e = run_open(dir, &o);
    s[0] = run_session(e);
    run_to(s[0], e, ids, LONG);
    for (uint32_t i = 1; i < SESSIONS; i++)
        CHECK(!spw_session_fork(&s[i], s[0], &err));
    for (uint32_t i = 0; i < SESSIONS; i++)
        spans[i] = (struct spw_span){s[i], ids, LONG + 1, 1};
    CHECK_MSG(!spw_sync(e, spans, SESSIONS, NULL, NULL, &err), "%s", err.text);
    uint64_t before = brought_up(e),
             tile = spw_tile_bytes(2, spw_tile_square(8), spw_engine_plan(e)->kv);
    for (uint32_t i = 0; i < SESSIONS; i++)
        spans[i].n_tokens++;
    CHECK_MSG(!spw_sync(e, spans, SESSIONS, NULL, NULL, &err), "%s", err.text);
    uint64_t once = spw_waterline_tiles(LONG) * m.layers * tile;
    CHECK_MSG(brought_up(e) - before < once + once / 4, "%llu bytes for %llu of tiles",
              (unsigned long long)(brought_up(e) - before), (unsigned long long)once);
    CHECK(brought_up(e) - before > once / 2);
    run_check_peaks(e, &o, dir);
    for (uint32_t i = 0; i < SESSIONS; i++)
        spw_session_close(s[i]);
    spw_engine_close(e);
    tiny_model_remove(dir);
}

/* A prompt that another one begins with as a whole: it is computed once, and
 * its logits with it. */
static void check_whole_prompt(void)
{
    const struct tiny_model m = tiny_llama(6);
    char dir[128];
    int32_t ids[300];
    struct spw_request requests[2];
    struct spw_plan_request lengths[2];
    struct spw_result results[2], alone;
    struct spw_error err = {0};
    uint64_t moved[SPW_MOVED_COUNT];
    struct spw_backend b = run_backend(true);
    struct spw_options o = {.backend = TEST_BACKEND,
                            .context = CONTEXT,
                            .sessions = 2,
                            .threads = 1,
                            .prefill_chunk = 64};
    run_folder(dir, &m, "whole");
    run_ids(ids, 300, m.vocab, 1);
    for (uint32_t i = 0; i < 2; i++) {
        size_t n = i ? 300 : 256;
        requests[i] = (struct spw_request){.prompt = ids, .n_prompt = n, .max_new_tokens = 3};
        lengths[i] = (struct spw_plan_request){.prompt = ids, .n_prompt = n, .max_new_tokens = 3};
        requests[i].ignore_eos = true;
    }
    CHECK(!spw_plan_moved_on(moved, NULL, NULL, &b, dir, &o, lengths, 2, &err));
    struct spw_engine *e = run_open(dir, &o);
    CHECK_MSG(!batch_run(e, NULL, requests, 2, results, NULL, &err), "%s", err.text);
    struct spw_stats s;
    spw_engine_stats(e, &s);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        CHECK_MSG(s.moved_bytes[i] == moved[i], "link %d: planned %llu, counted %llu", i,
                  (unsigned long long)moved[i], (unsigned long long)s.moved_bytes[i]);
    CHECK(results[0].n_reused == 0 && results[1].n_reused == 256);
    CHECK(!batch_run(e, NULL, requests, 1, &alone, NULL, &err));
    compare_results(&results[0], &alone, 0);
    for (uint32_t i = 0; i < 2; i++)
        spw_result_free(&results[i]);
    spw_result_free(&alone);
    spw_engine_close(e);
    tiny_model_remove(dir);
}

/* Forked sessions whose last tile was not full when they went different ways:
 * the next token reads this tile from lower tiers, each session its own, and so
 * says what is fetched ahead. */
static void check_forked_tails(void)
{
    const struct tiny_model m = tiny_llama(5);
    enum { FORK = 400, LONG = 1000 };
    char dir[128];
    int32_t ids[2][LONG + 1];
    struct spw_session *s[2];
    struct spw_span spans[2];
    struct spw_error err = {0};
    struct spw_options alone = {.backend = TEST_BACKEND, .context = LONG + 1, .threads = 1};
    struct spw_options o = alone;
    o.sessions = 2;
    o.prefill_chunk = 128;
    o.prefetch_splits = 1;
    run_folder(dir, &m, "tails");
    run_tight(dir, &o, 30 * 4096); /* a prompt in one pass */
    for (uint32_t i = 0; i < 2; i++) {
        run_ids(ids[i], LONG + 1, m.vocab, i + 1);
        memcpy(ids[i], ids[0], FORK * sizeof ids[i][0]);
    }
    struct spw_engine *e = run_open(dir, &o), *plain = run_open(dir, &alone);
    s[0] = run_session(e);
    run_to(s[0], e, ids[0], FORK);
    CHECK(!spw_session_fork(&s[1], s[0], &err));
    for (size_t n = LONG; n <= LONG + 1; n++) {
        for (uint32_t i = 0; i < 2; i++)
            spans[i] = (struct spw_span){s[i], ids[i], n, 1};
        CHECK_MSG(!spw_sync(e, spans, 2, NULL, NULL, &err), "%s", err.text);
        for (uint32_t i = 0; i < 2; i++) {
            struct spw_session *right = run_session(plain);
            CHECK_MSG(run_same(spw_session_logits(s[i]), run_to(right, plain, ids[i], n), m.vocab),
                      "session %u at %zu tokens", i, n);
            spw_session_close(right);
        }
        run_check_peaks(e, &o, dir);
    }
    for (uint32_t i = 0; i < 2; i++)
        spw_session_close(s[i]);
    spw_engine_close(e);
    spw_engine_close(plain);
    tiny_model_remove(dir);
}

int main(void)
{
    uint64_t seed = check_seed();
    struct life total = {0};
    uint32_t n_many = 0;
    if (!run_is_there())
        return CHECK_SKIP;
    for (int i = 0; i < 2000; i++)
        check_parts(&seed);
    check_alone();
    check_shared_reads();
    check_forked_tails();
    check_whole_prompt();
    for (uint32_t i = 0; i < LIVES || (!total.n_refused && i < 4 * LIVES); i++)
        check_life(check_random(&seed), i, &total);
    for (uint32_t i = 0; i < BATCHES + DISTURBED; i++)
        check_batch(check_random(&seed), i, i >= BATCHES, &n_many);
    /* A tile of a window that one session let go, and that the others had on the device, kept its
     * copy on the host, for which no share had a frame. */
    check_batch(5839040747702736345u, 1, false, &n_many);
    CHECK_MSG(n_many > BATCHES / 2, "%u batches with many sessions", n_many);
    CHECK_MSG(total.n_refused && total.n_many > LIVES / 2, "%u refused, %u steps of many sessions",
              total.n_refused, total.n_many);
    CHECK_MSG(total.n_moved > LIVES && total.n_forks > LIVES / 2 && total.n_closed > LIVES,
              "%u shares changed, %u forks, %u closed", total.n_moved, total.n_forks,
              total.n_closed);
    return check_done();
}
