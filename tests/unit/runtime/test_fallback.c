/* Fallbacks: every descent ends, nothing increases on the way, each step lowers the failed tier or
 * the precision, and the reported fallback is the most important change. */
#include "runtime/engine/fallback.h"
#include "tests/check.h"

#include <string.h>

static void test_precisions(void)
{
    struct spw_descent l = {.quantize = true};
    static const enum spw_kv_precision order[] = {SPW_KV_INT8, SPW_KV_INT8_INT4, SPW_KV_INT4};
    for (size_t i = 0; i < 3; i++)
        CHECK(spw_fallback_quantize(&l) && l.precision == order[i]);
    CHECK(!spw_fallback_quantize(&l) && l.precision == SPW_KV_INT4 && l.n_steps == 3);
    l = (struct spw_descent){.quantize = false};
    CHECK(!spw_fallback_quantize(&l) && l.precision == SPW_KV_EXACT && !l.n_steps);
    l = (struct spw_descent){.precision = SPW_KV_INT8_INT4, .quantize = true};
    CHECK(spw_fallback_quantize(&l) && l.precision == SPW_KV_INT4 && !spw_fallback_quantize(&l));
}

/* Fails drawn tiers with drawn sizes until nothing is left. */
static void run_down(uint64_t *seed)
{
    struct spw_descent l = {.quantize = check_random(seed) % 2};
    uint32_t n = 0;
    bool out[SPW_BUDGETS] = {false};
    for (int i = 0; i < SPW_BUDGETS; i++)
        l.budgets[i] = check_random(seed) >> check_range(seed, 14, 60);
    while (!(out[0] && out[1] && out[2])) {
        struct spw_descent before = l;
        struct spw_fallback_failure f = {.tier = (int)(check_random(seed) % SPW_BUDGETS)};
        f.asked = check_random(seed) % 4 ? l.budgets[f.tier] : check_random(seed) >> 20;
        f.held = check_random(seed) % 2 ? check_random(seed) >> 20 : 0;
        bool lowered = spw_fallback_lower(&l, &f);
        CHECK(lowered == (before.budgets[f.tier] && f.asked));
        out[f.tier] = out[f.tier] || !before.budgets[f.tier];
        for (int i = 0; i < SPW_BUDGETS; i++)
            if (i != f.tier || !lowered)
                CHECK(l.budgets[i] == before.budgets[i]);
        if (lowered) {
            CHECK(l.budgets[f.tier] < before.budgets[f.tier] && l.budgets[f.tier] < f.asked);
            CHECK(!f.held || f.held >= f.asked || l.budgets[f.tier] <= f.held);
            CHECK(l.budgets[f.tier] % 4096 == 0);
        }
        n += lowered;
        CHECK(l.n_steps == n && n <= SPW_FALLBACK_STEPS);
    }
}

static void test_lower(void)
{
    struct spw_descent l = {.budgets = {1 << 20, 1 << 20, 0}};
    struct spw_fallback_failure f = {.tier = SPW_BUDGET_HOST, .asked = 1 << 19, .held = 300000};
    CHECK(spw_fallback_lower(&l, &f) && l.budgets[SPW_BUDGET_HOST] == 300000 / 4096 * 4096);
    f = (struct spw_fallback_failure){.tier = SPW_BUDGET_DEVICE, .asked = 1 << 19};
    CHECK(spw_fallback_lower(&l, &f) && l.budgets[SPW_BUDGET_DEVICE] == (3 << 17));
    f.held = 1 << 20; /* the tier has more than was asked for, and refused it */
    f.asked = 3 << 17;
    CHECK(spw_fallback_lower(&l, &f) && l.budgets[SPW_BUDGET_DEVICE] == (9 << 15));
    f.tier = SPW_BUDGET_DISK;
    CHECK(!spw_fallback_lower(&l, &f));
    /* The longest descent: all of a tier of 2^50 bytes is refused again and again, and nothing is
     * known. */
    uint32_t n = 0;
    l = (struct spw_descent){.budgets = {(uint64_t)1 << 50, (uint64_t)1 << 50, (uint64_t)1 << 50}};
    for (f = (struct spw_fallback_failure){0}; f.tier < SPW_BUDGETS; f.tier++)
        for (f.asked = l.budgets[f.tier]; spw_fallback_lower(&l, &f); f.asked = l.budgets[f.tier])
            n++;
    CHECK_MSG(n == l.n_steps && n < SPW_FALLBACK_STEPS - 8, "%u steps", n);
}

static void test_lacking(void)
{
    struct spw_plan_info refused = {
        .smallest_device_bytes = 500, .smallest_host_bytes = 90, .smallest_disk_bytes = 0};
    const uint64_t given[SPW_BUDGETS] = {100, 60, 10}, other[SPW_BUDGETS] = {499, 60, 10};
    uint64_t needed;
    CHECK(spw_fallback_lacking(&refused, given, &needed) == SPW_BUDGET_HOST && needed == 90);
    CHECK(spw_fallback_lacking(&refused, other, &needed) == SPW_BUDGET_DEVICE && needed == 500);
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
    test_precisions();
    test_lower();
    test_lacking();
    test_names();
    for (int i = 0; i < 2000; i++)
        run_down(&seed);
    return check_done();
}
