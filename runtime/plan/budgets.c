/* The smallest budgets, and refusals: see budgets.h. */
#include "runtime/plan/budgets.h"

#include "runtime/plan/plan_parts.h"

#include <stdio.h>
#include <string.h>

enum { PAGE = 4096 };
#define MOST_BYTES ((uint64_t)1 << 50)

const struct spw_budget_name spw_budget_names[SPW_BUDGETS] = {
    {"device budget", "device memory", "options.device_bytes"},
    {"host budget", "host memory", "options.host_bytes"},
    {"disk budget", "disk memory", "options.disk_bytes"},
};

/* ---- the smallest budgets ---- */

struct walk {
    struct spw_plan_input in;
    struct spw_plan started;
    uint64_t *budget; /* of `in`: the smallest that a candidate has fitted; at first MOST_BYTES */
};

static bool fits(const struct walk *s, const struct spw_candidate *c)
{
    struct spw_plan p = s->started;
    return spw_plan_lay_out(&p, &s->in, c);
}

static bool fits_pages(struct walk *s, const struct spw_candidate *c, uint64_t pages)
{
    *s->budget = pages * PAGE;
    return fits(s, c);
}

/* The candidate may fit a smaller budget. One that fits a budget fits all larger ones (see
 * spw_plan_lay_out), so halving finds the smallest. */
static void try_smaller(struct walk *s, const struct spw_candidate *c)
{
    uint64_t low = 0, high = *s->budget / PAGE;
    if (high && fits_pages(s, c, high - 1))
        for (high--; low < high;) {
            uint64_t middle = (low + high) / 2;
            if (fits_pages(s, c, middle))
                high = middle;
            else
                low = middle + 1;
        }
    *s->budget = high * PAGE;
}

/* Places the blocks. As many come from disk as leave the host the fewest bytes; returns their
 * number.
 */
static uint32_t place_blocks(struct spw_plan *p, const struct spw_weights *w, uint32_t n_resident)
{
    uint64_t least = UINT64_MAX;
    uint32_t places = 0;
    for (uint32_t n = 0; n <= w->n_blocks - n_resident; n++) {
        spw_plan_place_blocks(p, w, n_resident, n);
        uint64_t bytes = p->packed_bytes + p->page_cache_bytes +
                         spw_plan_pages(p->n_weight_bounce * p->weight_bounce_bytes);
        if (bytes >= least)
            continue;
        least = bytes;
        places = n;
    }
    spw_plan_place_blocks(p, w, n_resident, places);
    return places;
}

/* All candidates that need least of every tier. With a budget to lower: lowers it. Without: returns
 * whether any candidate fits. */
static bool try_all(struct walk *s)
{
    const struct spw_weights *w = s->in.weights;
    struct spw_plan_chunks chunks = spw_plan_chunks(&s->in);
    struct spw_candidate c = spw_plan_narrow(&s->in);
    for (c.n_resident = 0; c.n_resident <= w->n_blocks; c.n_resident++) {
        c.n_disk = place_blocks(&s->started, w, c.n_resident);
        for (c.chunk = chunks.least; c.chunk <= chunks.most; c.chunk *= 2)
            for (int i = 0; i < 16; i++) {
                if ((i & 4 && !w->n_expert_blocks) || (i & 8 && !s->started.n_states))
                    continue;
                c.kv_stays = s->in.kv_stays || i & 1;
                c.copies_on_host = i & 2;
                c.experts_move = i & 4;
                c.states_move = i & 8;
                if (s->budget)
                    try_smaller(s, &c);
                else if (fits(s, &c))
                    return true;
            }
    }
    return false;
}

bool spw_budgets_work(const struct spw_plan_input *in)
{
    struct walk s = {.in = *in};
    spw_plan_start(&s.started, in);
    return try_all(&s);
}

/* The smallest budget of this tier beside the other ones. False: no amount would do, and nothing is
 * set. */
static bool smallest(uint64_t *bytes, const struct spw_plan_input *in, int tier,
                     const uint64_t others[SPW_BUDGETS])
{
    struct walk s = {.in = *in};
    memcpy(s.in.budgets, others, sizeof s.in.budgets);
    s.budget = &s.in.budgets[tier];
    *s.budget = MOST_BYTES;
    spw_plan_start(&s.started, in);
    try_all(&s);
    if (*s.budget < MOST_BYTES)
        *bytes = *s.budget;
    return *s.budget < MOST_BYTES;
}

/* As spw_plan_smallest. alone: of each budget, whether it is the one beside the given others. A
 * draft model has its bytes of each of them. */
static void find_smallest(struct spw_plan_info *info, const struct spw_plan_input *in,
                          bool alone[SPW_BUDGETS])
{
    uint64_t *device = &info->smallest_device_bytes, *host = &info->smallest_host_bytes;
    uint64_t *disk = &info->smallest_disk_bytes;
    uint64_t all_disk = in->disk_bytes ? MOST_BYTES : 0;
    const uint64_t *given = in->budgets;
    *device = *host = *disk = 0;
    alone[SPW_BUDGET_DEVICE] = smallest(device, in, SPW_BUDGET_DEVICE, given);
    if (!alone[SPW_BUDGET_DEVICE]) /* the others are too small for any device */
        smallest(device, in, SPW_BUDGET_DEVICE, (const uint64_t[]){0, MOST_BYTES, all_disk});
    alone[SPW_BUDGET_HOST] = smallest(host, in, SPW_BUDGET_HOST, given);
    if (!alone[SPW_BUDGET_HOST] &&
        !smallest(host, in, SPW_BUDGET_HOST, (const uint64_t[]){*device, 0, in->disk_bytes}))
        smallest(host, in, SPW_BUDGET_HOST, (const uint64_t[]){*device, 0, all_disk});
    alone[SPW_BUDGET_DISK] = in->disk_bytes && smallest(disk, in, SPW_BUDGET_DISK, given);
    if (in->disk_bytes && !alone[SPW_BUDGET_DISK])
        smallest(disk, in, SPW_BUDGET_DISK, (const uint64_t[]){*device, *host, 0});
    *device += *device ? in->drafter_bytes[SPW_BUDGET_DEVICE] : 0;
    *host += *device ? in->drafter_bytes[SPW_BUDGET_HOST] : 0;
}

void spw_plan_smallest(struct spw_plan_info *info, const struct spw_plan_input *in)
{
    bool alone[SPW_BUDGETS];
    find_smallest(info, in, alone);
}

bool spw_budgets_split(const struct spw_plan_input *in, uint64_t bytes, uint64_t *device,
                       uint64_t *host)
{
    enum { LEAST_SHARE = 256 };
    struct spw_plan_input with = *in;
    for (uint64_t share = LEAST_SHARE; share > 1; share /= 2) {
        *host = with.host_bytes = bytes / share;
        *device = with.device_bytes = bytes - *host;
        if (spw_budgets_work(&with))
            return true;
    }
    return false;
}

const char *spw_budgets_given_text(char text[32], uint64_t bytes, const char *least)
{
    if (!strcmp(spw_bytes_text(text, bytes), least))
        snprintf(text, 32, "%llu bytes", (unsigned long long)bytes);
    return text;
}

/* The command puts in its place what the user can do: see cli_name_context. */
#define LESS_CONTEXT ", or ask for a smaller options.context"

/* Names the budgets to raise: each budget that is enough alone, or else all budgets that are too
 * small. */
static int refuse_all(const struct spw_plan_info *i, const struct spw_plan_input *in,
                      const bool alone[SPW_BUDGETS], struct spw_error *err)
{
    const int n_tiers = in->disk_bytes ? SPW_BUDGETS : SPW_BUDGET_DISK;
    bool any = alone[SPW_BUDGET_DEVICE] || alone[SPW_BUDGET_HOST] || alone[SPW_BUDGET_DISK];
    char have[256] = "", would[256] = "", given_text[32], text[32];
    for (int tier = 0; tier < n_tiers; tier++) {
        const struct spw_budget_name *name = &spw_budget_names[tier];
        const uint64_t given = in->budgets[tier], least = spw_budgets_smallest(i, tier);
        size_t n = strlen(have), m = strlen(would);
        spw_bytes_text(given_text, given);
        spw_bytes_text(text, least);
        if (any ? alone[tier] : given < least)
            snprintf(would + m, sizeof would - m, "%s%s %s",
                     !m    ? ""
                     : any ? " or "
                           : " together with ",
                     name->option, text);
        if (given < least)
            spw_budgets_given_text(given_text, given, text);
        snprintf(have + n, sizeof have - n, "%s%s of %s",
                 !n                    ? ""
                 : tier == n_tiers - 1 ? " and "
                                       : ", ",
                 name->memory, given_text);
    }
    return spw_fail(err, -ENOMEM,
                    "%s do not hold a context of %llu tokens; %s would do" LESS_CONTEXT, have,
                    (unsigned long long)in->context, would);
}

/* Without a disk, in fewer words where one budget is too small, or either may be raised. */
static int refuse(const struct spw_plan_info *i, const struct spw_plan_input *in,
                  const bool alone[SPW_BUDGETS], struct spw_error *err)
{
    char texts[4][32];
    unsigned long long context = in->context;
    const char *device_least = spw_bytes_text(texts[2], i->smallest_device_bytes);
    const char *host_least = spw_bytes_text(texts[3], i->smallest_host_bytes);
    const char *device = spw_budgets_given_text(texts[0], in->device_bytes, device_least);
    const char *host = spw_budgets_given_text(texts[1], in->host_bytes, host_least);
    if (in->disk_bytes || (!alone[SPW_BUDGET_DEVICE] && !alone[SPW_BUDGET_HOST]))
        return refuse_all(i, in, alone, err);
    if (!alone[SPW_BUDGET_HOST])
        return spw_fail(err, -ENOMEM,
                        "device memory: %s given, a context of %llu tokens needs at least %s; "
                        "raise options.device_bytes" LESS_CONTEXT
                        ", or lower options.prefill_chunk",
                        device, context, device_least);
    if (!alone[SPW_BUDGET_DEVICE])
        return spw_fail(err, -ENOMEM,
                        "host memory: %s given, a context of %llu tokens needs at least %s; "
                        "raise options.host_bytes" LESS_CONTEXT,
                        host, context, host_least);
    return spw_fail(err, -ENOMEM,
                    "host memory: %s given, a context of %llu tokens needs at least %s "
                    "beside this device memory (or device memory of at least %s beside this host "
                    "memory); raise options.host_bytes or options.device_bytes" LESS_CONTEXT,
                    host, context, host_least, device_least);
}

/* The same as numbers. The first error stays, as in spw_fail. */
static void fill_refusal(const struct spw_plan_info *i, const struct spw_plan_input *in,
                         const bool alone[SPW_BUDGETS], struct spw_error *err)
{
    if (!err || *err->text)
        return;
    err->refuses_budgets = true;
    for (int t = 0; t < SPW_BUDGETS; t++)
        err->budgets[t] =
            (struct spw_refused_budget){in->budgets[t], spw_budgets_smallest(i, t), alone[t]};
}

int spw_budgets_refuse(struct spw_plan_info *info, const struct spw_plan_input *in,
                       struct spw_error *err)
{
    bool alone[SPW_BUDGETS];
    struct spw_plan_input given = *in;
    find_smallest(info, in, alone);
    for (int t = 0; t < SPW_BUDGETS; t++)
        given.budgets[t] += in->drafter_bytes[t];
    if (!info->smallest_device_bytes)
        return spw_fail(err, -ENOMEM,
                        "a context of %llu tokens and %u sessions is too large for any budget; "
                        "ask for a smaller options.context",
                        (unsigned long long)in->context, in->sessions);
    fill_refusal(info, &given, alone, err);
    return refuse(info, &given, alone, err);
}

int spw_budgets_refuse_writes(struct spw_plan_info *info, const struct spw_plan_input *in,
                              struct spw_error *err)
{
    bool alone[SPW_BUDGETS];
    char texts[4][32], memory[128] = "";
    find_smallest(info, in, alone);
    for (int tier = 0; tier < SPW_BUDGET_DISK; tier++) {
        size_t n = strlen(memory);
        if (alone[tier])
            snprintf(memory + n, sizeof memory - n, ", %s to %s", spw_budget_names[tier].option,
                     spw_bytes_text(texts[tier], spw_budgets_smallest(info, tier)));
    }
    const char *written = spw_bytes_text(texts[2], info->disk_write_bytes);
    return spw_fail(err, -EDQUOT,
                    "disk write limit: %s given, a context of %llu tokens writes up to %s; raise "
                    "options.disk_write_limit to that%s" LESS_CONTEXT,
                    spw_budgets_given_text(texts[3], in->disk_write_limit, written),
                    (unsigned long long)in->context, written, memory);
}
