/* Control groups: how much memory a plan may take, and limits that become lower while the engine
 * lives. The system kills a process whose group passes its limit. So the engine must give up
 * memory that is planned but not touched yet, before it is touched:
 *
 *     limit of the group
 *     | others, this process | arenas: touched | untouched | slack |
 *       used, without pages    \---- held ----/
 *       of files
 *
 * If a lower limit leaves less than the untouched part and the slack, the engine makes a new
 * plan for what is left, with the usual fallbacks. As long as the limit does not change, the
 * engine does not look at what others use. See engine.h. */
#include "runtime/engine/engine.h"
#include "runtime/engine/memory.h"

#include <sys/mman.h>

#define CHECK_SECONDS 1.0

enum {
    PAGE = 4096,
    PIECE_PAGES = 4096,
    BESIDE_BYTES =
        3 << 20, /* threads, streams, tables; 2.5 MiB for models/records at 16,000 tokens */
    BESIDE_THREAD = 64 << 10,
    BESIDE_TOKEN = 16,     /* a token of a session, a request and an answer, and tables of tiles */
    BESIDE_WORD = 32,      /* for each word of the vocabulary: the sampler */
    BESIDE_SHARE = 256,    /* 1 / 256 of the arenas: page tables, with some room */
    SLACK_BYTES = 1 << 20, /* for a process whose tables are allocated */
};

/* ---- arenas ---- */

/* Bytes of an arena that lie in memory; all bytes if the system does not say. */
static uint64_t touched(const void *arena, uint64_t bytes)
{
    unsigned char in_memory[PIECE_PAGES];
    uint64_t n = 0;
    for (uint64_t from = 0; arena && from < bytes; from += (uint64_t)PIECE_PAGES * PAGE) {
        uint64_t piece = spw_min_u64(bytes - from, (uint64_t)PIECE_PAGES * PAGE);
        uint64_t pages = spw_div_up(piece, PAGE);
        if (mincore((char *)(uintptr_t)arena + from, piece, in_memory))
            return bytes;
        for (uint64_t i = 0; i < pages; i++)
            n += in_memory[i] & 1;
    }
    return n * PAGE;
}

/* Whether the device's arena is system memory. */
static bool is_shared(const struct spw_engine *e)
{
    return e->lane.ops->available(e->lane.device) == UINT64_MAX;
}

static uint64_t planned_bytes(const struct spw_engine *e)
{
    return e->plan.host.end + (is_shared(e) ? e->plan.device.end : 0);
}

uint64_t spw_engine_held_bytes(const struct spw_engine *e)
{
    uint64_t device = is_shared(e) ? touched(e->lane.device_arena, e->lane.device_arena_bytes) : 0;
    return device + touched(e->lane.host_arena, e->lane.host_arena_bytes);
}

/* ---- before there is an engine ---- */

uint64_t spw_engine_beside_bytes(const struct spw_engine *e, const struct spw_options *o,
                                 uint64_t arena_bytes)
{
    const struct spw_model_config *c = &e->model.config;
    uint64_t context = o->context ? o->context : c->max_positions;
    uint64_t sessions = o->sessions ? o->sessions : 1;
    if (o->full_sessions)
        sessions = spw_min_u64(sessions, o->full_sessions);
    const struct spw_lane *host = &e->host.lane;
    const uint64_t threads = e->lane.ops->workers(e->lane.device) +
                             (host->device ? host->ops->workers(host->device) : 0);
    return BESIDE_BYTES + threads * BESIDE_THREAD + BESIDE_TOKEN * context * sessions +
           BESIDE_WORD * (uint64_t)c->vocab + arena_bytes / BESIDE_SHARE;
}

uint64_t spw_engine_system_bytes(const struct spw_engine *e, const struct spw_options *o)
{
    struct spw_memory_group g;
    /* freed before a new plan is taken; a draft model keeps its memory, which the budgets have */
    uint64_t held = spw_engine_held_bytes(e) + (e->drafter ? spw_engine_held_bytes(e->drafter) : 0);
    uint64_t system = spw_memory_of_system() + held;
    spw_memory_group(&g);
    if (g.soft.left_bytes == UINT64_MAX)
        return system;
    uint64_t left = g.soft.left_bytes + held;
    return spw_min_u64(system, spw_sub_u64(left, spw_engine_beside_bytes(e, o, left)));
}

/* The system may drop pages of mapped weights. That kills no process, but each use may read them
 * again. */
static void note_pages(struct spw_engine *e, const struct spw_memory_limit *hard)
{
    char total[32], left[32];
    uint64_t bytes = e->plan.info.host.total + (is_shared(e) ? e->plan.info.device.total : 0);
    if (bytes > hard->left_bytes)
        spw_engine_add_note(e,
                            "the plan uses %s, but the memory limit of control group %s leaves %s: "
                            "weights may be read from the drive again and again",
                            spw_bytes_text(total, bytes), hard->group,
                            spw_bytes_text(left, hard->left_bytes));
}

int spw_engine_check_memory(struct spw_engine *e, struct spw_error *err)
{
    char taken[32], besides[32], left[32], limit[32];
    struct spw_memory_group g;
    uint64_t needed = planned_bytes(e), system = spw_memory_of_system();
    uint64_t beside = spw_engine_beside_bytes(e, &e->options, needed);
    spw_memory_group(&g);
    if (g.hard.left_bytes != UINT64_MAX && needed + beside > g.hard.left_bytes)
        return spw_fail(err, -ENOMEM,
                        "memory: the plan takes %s and the process about %s beside it, but control "
                        "group %s leaves only %s of its limit of %s, and the system would kill the "
                        "run; give smaller budgets or a smaller context, or raise the group's "
                        "limit",
                        spw_bytes_text(taken, needed), spw_bytes_text(besides, beside),
                        g.hard.group, spw_bytes_text(left, g.hard.left_bytes),
                        spw_bytes_text(limit, g.hard.limit_bytes));
    if (needed > system)
        return spw_fail(err, -ENOMEM,
                        "memory: the budgets given let the plan take %s, but this machine has only "
                        "%s available; give smaller budgets, a disk, or a smaller context",
                        spw_bytes_text(taken, needed), spw_bytes_text(left, system));
    note_pages(e, &g.hard);
    return 0;
}

/* ---- a limit that becomes lower ---- */

static struct spw_memory_limit read_limit(const struct spw_engine *e)
{
    struct spw_memory_group g;
    spw_memory_group(&g);
    return e->limit_watch.soft ? g.soft : g.hard;
}

void spw_engine_watch_limit(struct spw_engine *e)
{
    e->limit_watch.soft = !e->options.device_bytes && !e->options.host_bytes;
    e->limit_watch.limit_bytes = read_limit(e).limit_bytes;
    e->limit_watch.checked_at = spw_now_seconds();
}

bool spw_engine_memory_is_short(struct spw_engine *e)
{
    double now = spw_now_seconds();
    if (e->limit_watch.memory_short || !e->executor ||
        now - e->limit_watch.checked_at < CHECK_SECONDS)
        return e->limit_watch.memory_short;
    e->limit_watch.checked_at = now;
    struct spw_memory_limit limit = read_limit(e);
    if (limit.limit_bytes >= e->limit_watch.limit_bytes)
        return false;
    uint64_t untouched = spw_sub_u64(planned_bytes(e), spw_engine_held_bytes(e));
    e->limit_watch.memory_short = limit.limit_bytes < limit.used_bytes + untouched + SLACK_BYTES;
    return e->limit_watch.memory_short;
}

/* Changes the budgets to `bytes` together, with the current precision of old KV, or with the
 * next lower one that fits and is allowed. */
static int lower_budgets(struct spw_engine *e, uint64_t bytes, struct spw_error *err)
{
    uint64_t budgets[SPW_BUDGETS] = {[SPW_BUDGET_DISK] = e->options.disk_bytes};
    const bool quantizes = e->model.cache.may_quantize && e->options.gate;
    const enum spw_kv_precision last = quantizes ? SPW_KV_INT4 : e->in.precision;
    for (enum spw_kv_precision k = e->in.precision; k <= last; k++) {
        struct spw_plan_input in = e->in;
        spw_plan_set_precision(&in, k);
        in.draft_rows = spw_drafts_are_optional(&e->options)
                            ? 0
                            : spw_min_u32(in.draft_rows, SPW_PLAN_LEAST_DRAFT_ROWS);
        if (!is_shared(e)) {
            budgets[SPW_BUDGET_DEVICE] = e->options.device_bytes;
            budgets[SPW_BUDGET_HOST] = bytes;
        } else if (!spw_budgets_split(&in, bytes, &budgets[SPW_BUDGET_DEVICE],
                                      &budgets[SPW_BUDGET_HOST])) {
            continue;
        }
        for (int t = 0; t < SPW_BUDGETS; t++) /* `bytes` are without those of a draft model */
            budgets[t] += t == SPW_BUDGET_HOST || is_shared(e) ? in.drafter_bytes[t] : 0;
        spw_error_clear(err);
        if (!spw_engine_change_budgets(e, budgets, "memory limit of the control group", err))
            return 0;
    }
    return -ENOMEM;
}

int spw_engine_apply_limit(struct spw_engine *e, struct spw_error *err)
{
    char left_text[32], limit_text[32];
    struct spw_error ignored = {0};
    struct spw_memory_limit limit = read_limit(e);
    uint64_t left =
        spw_sub_u64(limit.limit_bytes + spw_engine_held_bytes(e), limit.used_bytes + SLACK_BYTES);
    e->limit_watch.memory_short = false;
    if (lower_budgets(e, left, &ignored)) {
        e->limit_watch.checked_at = 0;
        return spw_fail(err, -ENOMEM,
                        "memory: the limit of control group %s is now %s, which leaves %s to this "
                        "run, and no plan works with that; the sessions hold what was computed: "
                        "raise the limit, or use a disk or a smaller context",
                        limit.group, spw_bytes_text(limit_text, limit.limit_bytes),
                        spw_bytes_text(left_text, left));
    }
    e->limit_watch.limit_bytes = limit.limit_bytes;
    return 0;
}
