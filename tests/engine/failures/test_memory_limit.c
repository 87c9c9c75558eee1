/* A control group's limit that becomes lower while an engine lives, on a made-up group: between two
 * steps, in the middle of a prompt, with a disk, without one, and lower than any plan can do with.
 * No token is lost, and answers stay the same bits unless a fallback says that old KV has less
 * precision. */
#include "runtime/engine/engine.h"
#include "runtime/batch/batch_parts.h"
#include "runtime/engine/memory.h"
#include "tests/engine/oracle.h"

enum { MOST = 900, SLACK = 1 << 20 };

static char root[64];
static struct subject subject;
static const char *const dir = subject.dir;
static int32_t *ids; /* [MOST] */

/* ---- the made-up group ---- */

static void put(const char *path, const char *text)
{
    char whole[128];
    snprintf(whole, sizeof whole, "%s/%s", root, path);
    FILE *f = fopen(whole, "w");
    CHECK(f && fputs(text, f) >= 0);
    if (f)
        fclose(f);
}

static void put_number(const char *path, uint64_t n)
{
    char text[32];
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)n);
    put(path, text);
}

static void make_group(void)
{
    char command[256];
    snprintf(root, sizeof root, "/tmp/spw_memory_limit_%d", (int)getpid());
    snprintf(command, sizeof command, "mkdir -p %s/proc/self %s/group/a/b %s/disk", root, root,
             root);
    CHECK(system(command) == 0);
    put("proc/self/cgroup", "0::/a/b\n");
    put("proc/self/mountinfo", "31 23 0:28 / /group rw - cgroup2 cgroup2 rw\n");
    spw_memory_group_root(root);
}

/* In the level above the process's own. */
static void set_limit(uint64_t limit, uint64_t used)
{
    put_number("group/a/memory.max", limit);
    put_number("group/a/memory.current", used);
}

static void set_free(void)
{
    set_limit((uint64_t)1 << 30, 0);
}

/* ---- an engine in it ---- */

static uint64_t arena_bytes(const struct spw_engine *e)
{
    return e->plan.device.end + e->plan.host.end;
}

/* The group leaves `bytes` for the engine's arenas. */
static void leave(struct spw_engine *e, uint64_t bytes)
{
    uint64_t used = (uint64_t)64 << 20;
    set_limit(used + bytes + SLACK, used + spw_engine_held_bytes(e));
    e->limit_watch.checked_at = 0;
}

static struct spw_engine *open_engine(const struct spw_options *more)
{
    struct spw_options o = *more;
    o.backend = SPW_BACKEND_CPU;
    o.threads = 2;
    o.context = MOST;
    set_free();
    struct spw_engine *e = run_open(dir, &o);
    CHECK(e->limit_watch.limit_bytes == (uint64_t)1 << 30 && e->limit_watch.soft);
    return e;
}

/* n new fallbacks. */
static void check_fallbacks(struct spw_engine *e, int n, const char *what)
{
    struct spw_fallback last = {0};
    int n_told = run_fallbacks(e, &last);
    CHECK_MSG(n_told == n, "%s: %d fallbacks", what, n_told);
    if (n_told)
        CHECK_MSG(strstr(last.failed, "control group"), "%s: %s", what, last.failed);
}

/* Token by token. The limit becomes lower twice; that it becomes higher changes nothing. */
static void check_between_steps(const struct spw_options *o)
{
    struct spw_engine *e = open_engine(o);
    struct spw_session *s = run_session(e);
    run_to(s, e, ids, 500);
    uint64_t before = arena_bytes(e);
    for (int i = 1; i <= 2; i++) {
        uint64_t left = before - (uint64_t)i * (before / 4);
        leave(e, left);
        const float *logits = run_to(s, e, ids, 500 + (size_t)i);
        CHECK_MSG(arena_bytes(e) <= left, "%llu, %llu left", (unsigned long long)arena_bytes(e),
                  (unsigned long long)left);
        CHECK(oracle_same(&subject, ids, 500 + (size_t)i, logits));
        check_fallbacks(e, 1, "between steps");
    }
    set_free();
    e->limit_watch.checked_at = 0;
    run_to(s, e, ids, 503);
    CHECK(e->events.n_fallbacks == 2);
    run_check_peaks(e, o, "between steps");
    spw_session_close(s);
    spw_engine_close(e);
}

struct lowering {
    struct spw_engine *engine;
    uint64_t at, bytes; /* token-layers done; what is left then */
    bool done;
};

static void lower_on_the_way(void *context, const struct spw_progress *p)
{
    struct lowering *l = context;
    if (l->done || !l->engine || p->done < l->at)
        return;
    l->done = true;
    leave(l->engine, l->bytes);
}

struct seen {
    size_t n;
    bool in_order;
};

static void see(void *context, size_t span, size_t position, const float *logits)
{
    struct seen *s = context;
    (void)span;
    (void)logits;
    s->in_order = s->in_order && position == MOST - 40 + s->n;
    s->n++;
}

/* In the middle of a prompt: what was computed is kept or computed again, and no logits come
 * twice. */
static void check_in_prompt(const struct spw_options *more, uint64_t at)
{
    struct lowering l = {.at = at};
    struct seen seen = {.in_order = true};
    struct spw_options o = *more;
    struct spw_error err;
    o.on_progress = lower_on_the_way;
    o.progress_context = &l;
    l.engine = open_engine(&o);
    l.bytes = arena_bytes(l.engine) / 4 * 3;
    struct spw_session *s = run_session(l.engine);
    struct spw_span span = {s, ids, MOST, 40};
    CHECK_MSG(!spw_sync(l.engine, &span, 1, see, &seen, &err), "%s", err.text);
    CHECK(oracle_same(&subject, ids, MOST, spw_session_logits(s)));
    CHECK_MSG(l.done && seen.n == 40 && seen.in_order, "%zu logits", seen.n);
    check_fallbacks(l.engine, 1, "in a prompt");
    run_check_peaks(l.engine, &o, "in a prompt");
    spw_session_close(s);
    spw_engine_close(l.engine);
}

/* Two sessions, of which the first has its logits when the second one needs another plan: because
 * it had them before the call, or because its row is handed over first. */
struct two {
    struct lowering l;
    uint32_t n[2];
    bool between_rows;
};

static void see_two(void *context, size_t span, size_t position, const float *logits)
{
    struct two *t = context;
    (void)position;
    (void)logits;
    t->n[span]++;
    if (t->between_rows && !span)
        lower_on_the_way(&t->l, &(struct spw_progress){0});
}

static void check_two(const struct spw_options *more, bool between_rows)
{
    enum { ROWS = 300 };
    struct two t = {.between_rows = between_rows, .l = {.at = between_rows ? 0 : 900}};
    struct spw_options o = *more;
    o.sessions = 2;
    struct spw_error err = {0};
    if (!between_rows) {
        o.on_progress = lower_on_the_way;
        o.progress_context = &t.l;
    }
    struct spw_engine *e = open_engine(&o);
    struct spw_session *a = run_session(e), *b = run_session(e);
    if (!between_rows)
        run_to(a, e, ids, 300);
    t.l.engine = e;
    t.l.bytes = arena_bytes(e) / 4 * 3;
    const struct spw_span spans[] = {{a, ids, 300, 1}, {b, ids, MOST, ROWS}};
    CHECK(e->plan.logits_rows < ROWS);
    CHECK_MSG(!spw_sync(e, spans, 2, see_two, &t, &err), "%s", err.text);
    CHECK(t.l.done && t.n[0] == 1 && t.n[1] == ROWS);
    CHECK(oracle_same(&subject, ids, 300, spw_session_logits(a)));
    CHECK(oracle_same(&subject, ids, MOST, spw_session_logits(b)));
    check_fallbacks(e, 1, "two sessions");
    spw_session_close(a);
    spw_session_close(b);
    spw_engine_close(e);
}

/* Less than any plan can do with: an error that names the group, nothing lost, and the run goes on
 * when the limit is higher again. */
static void check_too_little(const struct spw_options *o)
{
    struct spw_error err;
    struct spw_engine *e = open_engine(o);
    struct spw_session *s = run_session(e);
    run_to(s, e, ids, 500);
    leave(e, 4096);
    struct spw_span span = {s, ids, 600, 1};
    int rc = spw_sync(e, &span, 1, NULL, NULL, &err);
    CHECK_MSG(rc == -ENOMEM && strstr(err.text, "control group /a is now"), "%d: %s", rc, err.text);
    CHECK(spw_session_n_tokens(s) == 500);
    CHECK(spw_sync(e, &span, 1, NULL, NULL, &err) == -ENOMEM); /* still */
    check_fallbacks(e, 0, "too little");
    set_free();
    e->limit_watch.checked_at = 0;
    CHECK(oracle_same(&subject, ids, 600, run_to(s, e, ids, 600)));
    CHECK(spw_session_reused(s) == 500);
    spw_session_close(s);
    spw_engine_close(e);
}

static const char *every_precision(void *context, enum spw_kv_precision precision)
{
    *(enum spw_kv_precision *)context = precision;
    return NULL;
}

/* Without a disk KV must become smaller: the run goes on, and the fallback says so. */
static void check_quantized(void)
{
    enum spw_kv_precision asked = SPW_KV_EXACT;
    struct spw_options o = {
        .gate = every_precision, .gate_context = &asked, .residual_window = 128};
    struct spw_engine *e = open_engine(&o);
    struct spw_session *s = run_session(e);
    run_to(s, e, ids, 600);
    CHECK(e->plan.info.precision == SPW_KV_EXACT);
    uint64_t smallest = e->plan.info.device.kv_resident; /* exact KV alone needs so much */
    leave(e, smallest);
    run_to(s, e, ids, 601);
    CHECK(asked != SPW_KV_EXACT && e->plan.info.precision == asked);
    CHECK(arena_bytes(e) <= smallest);
    check_fallbacks(e, 1, "quantized");
    spw_session_close(s);
    spw_engine_close(e);
}

/* Budgets that let the plan take more than the group has are refused before anything is taken; the
 * default stays within the group, whatever this machine has. */
static void check_open(void)
{
    struct spw_options o = {
        .backend = SPW_BACKEND_CPU, .threads = 2, .context = MOST, .host_bytes = 1 << 20};
    struct spw_engine *e;
    struct spw_error err;
    struct spw_plan_info info;
    set_limit((uint64_t)40 << 20, (uint64_t)10 << 20);
    o.device_bytes = (uint64_t)1 << 30;
    CHECK_MSG(!spw_engine_open(&e, dir, &o, &err), "%s", err.text); /* takes little of it */
    uint64_t needed = arena_bytes(e);
    CHECK(!e->limit_watch.soft);
    spw_engine_close(e);
    set_limit(((uint64_t)10 << 20) + needed, (uint64_t)10 << 20);
    int rc = spw_engine_open(&e, dir, &o, &err);
    CHECK_MSG(rc == -ENOMEM && strstr(err.text, "control group /a leaves only") && !e, "%d: %s", rc,
              err.text);
    o.device_bytes = o.host_bytes = 0;
    for (uint64_t mib = 40; mib >= 24; mib -= 16) {
        set_limit(mib << 20, 1 << 20);
        CHECK_MSG(!spw_plan_query(&info, dir, &o, &err), "%s", err.text);
        CHECK_MSG(info.device_budget_bytes + info.host_budget_bytes < (mib - 4) << 20 &&
                      info.device_budget_bytes > (mib - 10) << 19,
                  "%llu and %llu", (unsigned long long)info.device_budget_bytes,
                  (unsigned long long)info.host_budget_bytes);
    }
}

/* Neither the machine nor a drive is measured where the group would be killed for it. */
static void check_measuring(void)
{
    struct spw_options o = {.backend = SPW_BACKEND_CPU, .threads = 2};
    struct spw_drive_options d = {.directory = dir, .mode = SPW_PROBE_AGAIN};
    struct spw_machine machine;
    struct spw_drive drive;
    struct spw_error err;
    set_limit((uint64_t)40 << 20, (uint64_t)1 << 20);
    int rc = spw_machine_probe(&machine, NULL, &o, &err);
    CHECK_MSG(rc == -ENOMEM && strstr(err.text, "control group /a leaves"), "%d: %s", rc, err.text);
    rc = spw_drive_probe(&drive, &d, &err);
    CHECK_MSG(rc == -ENOMEM && strstr(err.text, "control group /a leaves"), "%d: %s", rc, err.text);
    set_free();
}

/* A draft model keeps its memory, which is a part of the budgets: what is left after a lower limit,
 * or after budgets that the system chooses again, is the engine's. */
static void check_drafter(void)
{
    struct spw_error err;
    const struct spw_options o = {.drafts = SPW_DRAFTS_AUTO, .draft_model = dir};
    struct spw_engine *e = open_engine(&o);
    struct spw_session *s = run_session(e);
    const uint64_t device = e->in.device_bytes, left = arena_bytes(e) / 8 * 7;
    run_to(s, e, ids, 500);
    set_limit((uint64_t)1 << 30, spw_engine_held_bytes(e) + spw_engine_held_bytes(e->drafter));
    CHECK(e->drafter->plan.device.end && !spw_engine_set_budgets(e, 0, 0, 0, &err));
    CHECK(e->in.device_bytes == device);
    leave(e, left);
    CHECK(oracle_same(&subject, ids, 501, run_to(s, e, ids, 501)));
    CHECK(e->in.device_bytes + e->in.host_bytes == left && arena_bytes(e) <= left);
    check_fallbacks(e, 1, "beside a draft model");
    set_free();
    spw_session_close(s);
    spw_engine_close(e);
}

/* ---- drafts ---- */

enum { ASKED = 2, NEW = 40 };

static struct drafting {
    struct lowering l;
    struct spw_batch *batch;
    const struct spw_result *right; /* [ASKED], without drafts */
    bool in_step;
} drafting;

/* All are right. Both answers have drafts when the limit becomes lower, before their step. */
static uint32_t propose(struct spw_batch_entry *x, int32_t *out, uint32_t most, uint32_t *match)
{
    const struct spw_result *r = &drafting.right[x->id - 1];
    const size_t at = x->answer.result.n_tokens;
    *match = 40;
    for (uint32_t i = 0; i < most; i++)
        out[i] = at + i < r->n_tokens ? r->tokens[at + i] : 0;
    if (!drafting.in_step && x->id == ASKED && most > 8)
        lower_on_the_way(&drafting.l, &(struct spw_progress){0});
    return most;
}

/* Or on the way. */
static void lower_beside_drafts(void *context, const struct spw_progress *p)
{
    const struct spw_batch *b = drafting.batch;
    if (b && drafting.in_step && b->rows_beside > 24)
        lower_on_the_way(context, p);
}

/* The logits of new tokens lie where rows of logits are. */
static void check_rows(const struct spw_batch *b)
{
    const struct spw_engine *e = b->engine;
    const uint64_t row = e->model.config.vocab * sizeof(float);
    const uint64_t end = e->plan.host.draft_logits + e->plan.draft_rows * row;
    for (struct spw_batch_entry *x = NULL; (x = spw_batch_next(b, x));)
        if (x->n_new && !x->is_kept)
            CHECK((uint64_t)((const uint8_t *)x->logits - e->lane.host_arena) + x->n_new * row <=
                  end);
}

static void answer(struct spw_engine *e, struct spw_result *out)
{
    struct spw_batch *b;
    struct spw_error err = {0};
    uint64_t id;
    CHECK(!spw_batch_open(&b, e, NULL, &err));
    drafting.batch = b;
    for (uint32_t i = 0; i < ASKED; i++) {
        const struct spw_request r = {
            .prompt = ids + 300 * i, .n_prompt = 261, .max_new_tokens = NEW, .ignore_eos = true};
        CHECK_MSG(!spw_batch_submit(b, &r, &id, &err), "%s", err.text);
    }
    if (b->propose)
        b->propose = propose;
    b->drafts_all = true;
    for (int more = 1; more > 0;) {
        more = spw_batch_step(b, &err);
        CHECK_MSG(more >= 0, "%s", err.text);
        check_rows(b);
    }
    for (uint64_t i = 0; i < ASKED; i++)
        CHECK(!spw_batch_take(b, i + 1, &out[i]));
    spw_batch_close(b);
    drafting.batch = NULL;
}

/* The plan for a lower limit has fewer rows of logits for drafts than the step has drafts. */
static void check_drafts(enum spw_drafts drafts, bool in_step)
{
    char prefix[80];
    struct spw_result off[ASKED], on[ASKED];
    struct spw_options o = {
        .sessions = ASKED, .prefix_cache_dir = prefix, .drafts = SPW_DRAFTS_OFF};
    snprintf(prefix, sizeof prefix, "%s/prefix", root); /* so that memory is taken anew */
    struct spw_engine *e = open_engine(&o);
    answer(e, off);
    spw_engine_close(e);
    drafting = (struct drafting){.right = off, .in_step = in_step};
    o.drafts = drafts;
    o.on_progress = lower_beside_drafts;
    o.progress_context = &drafting.l;
    e = open_engine(&o);
    const uint32_t before = e->plan.draft_rows;
    drafting.l.bytes = arena_bytes(e) / 4 * 3;
    drafting.l.engine = e;
    answer(e, on);
    CHECK(drafting.l.done && e->plan.draft_rows < before);
    for (int i = 0; i < ASKED; i++) {
        CHECK(on[i].n_tokens == NEW && on[i].logits_hash == off[i].logits_hash &&
              !memcmp(on[i].tokens, off[i].tokens, NEW * sizeof *on[i].tokens));
        spw_result_free(&on[i]);
        spw_result_free(&off[i]);
    }
    check_fallbacks(e, 1, "drafts");
    spw_engine_close(e);
}

int main(void)
{
    const struct tiny_model m = {TINY("llama", 3, 48, 80, 6, 2, 64, 96, 4096), .more = "",
                                 .untied = true, .seed = 5};
    /* rows of logits that are a large part of small budgets */
    const struct tiny_model wide = {TINY("llama", 4, 32, 48, 2, 1, 16, 4000, 1024), .more = "",
                                    .seed = 6};
    char command[128], disk[80];
    subject_open(&subject, &m, "memory_limit", MOST, &(struct spw_options){0});
    ids = subject.ids[0];
    oracle_rows(&subject, ids, MOST, MOST); /* before there is a limit */
    make_group();
    snprintf(disk, sizeof disk, "%s/disk", root);
    struct spw_options with_disk = {.disk_dir = disk}, without = {0};
    check_open();
    check_measuring();
    check_between_steps(&with_disk);
    check_in_prompt(&with_disk, MOST);
    check_two(&with_disk, false);
    check_two(&with_disk, true);
    check_too_little(&with_disk);
    if (!RUN_UNDER_TSAN || check_full()) {
        check_in_prompt(&with_disk, 1);
        check_too_little(&without);
    }
    check_quantized();
    check_drafter();
    set_free();
    subject_close(&subject);
    subject_open(&subject, &wide, "memory_limit", MOST, &(struct spw_options){0});
    ids = subject.ids[0];
    check_drafts(SPW_DRAFTS_AUTO, false);
    check_drafts(SPW_DRAFTS_TEXT, true);
    spw_memory_group_root("");
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK(system(command) == 0);
    subject_close(&subject);
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
