/* Fallbacks: every descent ends, each step lowers the failed tier, and the reported fallback is the
 * most important change. */
#include "runtime/engine/engine.h"
#include "tests/check.h"

#include <string.h>

/* Fails drawn tiers with drawn sizes until nothing is left. */
static void run_down(uint64_t *seed)
{
    uint64_t budgets[SPW_BUDGETS];
    uint32_t n = 0;
    bool out[SPW_BUDGETS] = {false};
    for (int i = 0; i < SPW_BUDGETS; i++)
        budgets[i] = check_random(seed) >> check_range(seed, 14, 60);
    while (!(out[0] && out[1] && out[2])) {
        struct spw_fallback_failure f = {.tier = (int)(check_random(seed) % SPW_BUDGETS)};
        uint64_t *budget = &budgets[f.tier];
        const uint64_t before = *budget;
        f.asked = check_random(seed) % 4 ? before : check_random(seed) >> 20;
        f.held = check_random(seed) % 2 ? check_random(seed) >> 20 : 0;
        bool lowered = spw_fallback_lower(budget, &f);
        CHECK(lowered == (before && f.asked));
        out[f.tier] = out[f.tier] || !before;
        if (lowered) {
            CHECK(*budget < before && *budget < f.asked && *budget % 4096 == 0);
            CHECK(!f.held || f.held >= f.asked || *budget <= f.held);
        } else {
            CHECK(*budget == before);
        }
        n += lowered;
        CHECK(n <= 512);
    }
}

static void test_lower(void)
{
    uint64_t budget = 1 << 20, n = 0;
    struct spw_fallback_failure f = {.asked = 1 << 19, .held = 300000};
    CHECK(spw_fallback_lower(&budget, &f) && budget == 300000 / 4096 * 4096);
    f.held = 0;
    budget = 1 << 20;
    CHECK(spw_fallback_lower(&budget, &f) && budget == (3 << 17));
    f.held = 1 << 20; /* the tier has more than was asked for, and refused it */
    f.asked = 3 << 17;
    CHECK(spw_fallback_lower(&budget, &f) && budget == (9 << 15));
    budget = 0;
    CHECK(!spw_fallback_lower(&budget, &f));
    /* The longest descent: all of 2^50 bytes is refused again and again, and nothing is known. */
    budget = (uint64_t)1 << 50;
    f = (struct spw_fallback_failure){.asked = budget};
    for (; spw_fallback_lower(&budget, &f); f.asked = budget)
        n++;
    CHECK_MSG(n < 512 / SPW_BUDGETS - 8, "%u steps", (unsigned)n);
}

static void test_lacking(void)
{
    struct spw_plan_info refused = {
        .smallest_device_bytes = 500, .smallest_host_bytes = 90, .smallest_disk_bytes = 0};
    const struct spw_plan_input given = {.budgets = {100, 60, 10}},
                                other = {.budgets = {400, 60, 10}, .drafter_bytes = {99}};
    uint64_t needed;
    CHECK(spw_fallback_lacking(&refused, &given, &needed) == SPW_BUDGET_HOST && needed == 90);
    CHECK(spw_fallback_lacking(&refused, &other, &needed) == SPW_BUDGET_DEVICE && needed == 500);
}

static void test_names(void)
{
    const struct spw_plan_info from = {.prefill_chunk = 512,
                                       .prefetch_slots = 4,
                                       .prefetch_splits = 2,
                                       .n_layers_resident = 3,
                                       .host = {.kv = 50}};
    struct spw_plan_info to = from;
    CHECK(spw_fallback_between(&from, &to) == SPW_FALLBACK_BUDGETS);
    to.prefill_chunk = 256;
    CHECK(spw_fallback_between(&from, &to) == SPW_FALLBACK_CHUNK);
    to.prefetch_slots = 3;
    CHECK(spw_fallback_between(&from, &to) == SPW_FALLBACK_SLOTS);
    to.n_layers_resident = 2;
    CHECK(spw_fallback_between(&from, &to) == SPW_FALLBACK_WEIGHTS);
    to.host.kv = 60;
    CHECK(spw_fallback_between(&from, &to) == SPW_FALLBACK_HOST);
    to.disk.kv = 1;
    CHECK(spw_fallback_between(&from, &to) == SPW_FALLBACK_DISK);
    to.precision = SPW_KV_INT8;
    CHECK(spw_fallback_between(&from, &to) == SPW_FALLBACK_INT8);
    to.precision = SPW_KV_INT8_INT4;
    CHECK(spw_fallback_between(&from, &to) == SPW_FALLBACK_INT8_INT4);
    to.precision = SPW_KV_INT4;
    CHECK(spw_fallback_between(&from, &to) == SPW_FALLBACK_INT4);
    CHECK(spw_fallback_between(&to, &from) == SPW_FALLBACK_UP);
    for (int i = SPW_FALLBACK_BUDGETS; i <= SPW_FALLBACK_UP; i++)
        for (int j = SPW_FALLBACK_BUDGETS; j < i; j++)
            CHECK(strcmp(spw_fallback_name((enum spw_fallback_kind)i),
                         spw_fallback_name((enum spw_fallback_kind)j)) != 0);
}

int main(void)
{
    uint64_t seed = check_seed();
    test_lower();
    test_lacking();
    test_names();
    for (int i = 0; i < 2000; i++)
        run_down(&seed);
    return check_done();
}
