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

/* The smallest budget of this tier, to the page, at which the plan works beside the other budgets.
 * False: none does, and nothing is set. */
static bool smallest(uint64_t *bytes, const struct spw_plan_input *in, int tier,
                     const uint64_t others[SPW_BUDGETS])
{
    uint64_t with[SPW_BUDGETS] = {others[SPW_BUDGET_DEVICE], others[SPW_BUDGET_HOST],
                                  others[SPW_BUDGET_DISK]};
    uint64_t low = 0, high = MOST_BYTES / PAGE;
    with[tier] = MOST_BYTES;
    if (!spw_plan_works(in, with))
        return false;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        with[tier] = middle * PAGE;
        if (spw_plan_works(in, with))
            high = middle;
        else
            low = middle + 1;
    }
    *bytes = high * PAGE;
    return true;
}

void spw_budgets_smallest(struct spw_plan_info *info, const struct spw_plan_input *in,
                          bool alone[SPW_BUDGETS])
{
    uint64_t *device = &info->smallest_device_bytes, *host = &info->smallest_host_bytes;
    uint64_t *disk = &info->smallest_disk_bytes;
    uint64_t all_disk = in->disk_bytes ? MOST_BYTES : 0;
    const uint64_t given[SPW_BUDGETS] = {in->device_bytes, in->host_bytes, in->disk_bytes};
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
}

bool spw_budgets_split(const struct spw_plan_input *in, uint64_t bytes, uint64_t *device,
                       uint64_t *host)
{
    enum { LEAST_SHARE = 256 };
    for (uint64_t share = LEAST_SHARE; share > 1; share /= 2) {
        uint64_t of_host = bytes / share, of_device = bytes - of_host;
        if (!spw_plan_works(in, (const uint64_t[]){of_device, of_host, in->disk_bytes}))
            continue;
        *device = of_device;
        *host = of_host;
        return true;
    }
    return false;
}

/* Says which budget would do: one of them, or either. */
static int refuse(const struct spw_plan_info *i, const struct spw_plan_input *in,
                  const bool alone[SPW_BUDGETS], struct spw_error *err)
{
    char texts[4][32];
    unsigned long long context = in->context;
    const char *device = spw_bytes_text(texts[0], in->device_bytes);
    const char *host = spw_bytes_text(texts[1], in->host_bytes);
    const char *device_least = spw_bytes_text(texts[2], i->smallest_device_bytes);
    const char *host_least = spw_bytes_text(texts[3], i->smallest_host_bytes);
    if (!alone[SPW_BUDGET_HOST])
        return spw_fail(err, -ENOMEM,
                        "device memory: %s given, a context of %llu tokens needs at least %s; "
                        "raise options.device_bytes, or lower options.context or "
                        "options.prefill_chunk",
                        device, context, device_least);
    if (!alone[SPW_BUDGET_DEVICE])
        return spw_fail(err, -ENOMEM,
                        "host memory: %s given, a context of %llu tokens needs at least %s; "
                        "raise options.host_bytes, or lower options.context",
                        host, context, host_least);
    return spw_fail(err, -ENOMEM,
                    "host memory: %s given, a context of %llu tokens needs at least %s "
                    "beside this device memory (or device memory of at least %s beside this host "
                    "memory); raise options.host_bytes or options.device_bytes, or lower "
                    "options.context",
                    host, context, host_least, device_least);
}

/* The same of three. */
static int refuse_with_disk(const struct spw_plan_info *i, const struct spw_plan_input *in,
                            const bool alone[SPW_BUDGETS], struct spw_error *err)
{
    const uint64_t least[SPW_BUDGETS] = {i->smallest_device_bytes, i->smallest_host_bytes,
                                         i->smallest_disk_bytes};
    bool any = alone[SPW_BUDGET_DEVICE] || alone[SPW_BUDGET_HOST] || alone[SPW_BUDGET_DISK];
    char would[256] = "", texts[SPW_BUDGETS][32], text[32];
    for (int tier = 0; tier < SPW_BUDGETS; tier++) {
        size_t n = strlen(would);
        if (alone[tier] || !any)
            snprintf(would + n, sizeof would - n, "%s%s %s", n ? any ? " or " : " with " : "",
                     spw_budget_names[tier].option, spw_bytes_text(text, least[tier]));
    }
    return spw_fail(
        err, -ENOMEM,
        "device memory of %s, host memory of %s and disk memory of %s do "
        "not hold a context of %llu tokens; %s would do, or a lower options.context",
        spw_bytes_text(texts[0], in->device_bytes), spw_bytes_text(texts[1], in->host_bytes),
        spw_bytes_text(texts[2], in->disk_bytes), (unsigned long long)in->context, would);
}

int spw_budgets_refuse(struct spw_plan_info *info, const struct spw_plan_input *in,
                       struct spw_error *err)
{
    bool alone[SPW_BUDGETS];
    spw_budgets_smallest(info, in, alone);
    if (!info->smallest_device_bytes)
        return spw_fail(err, -ENOMEM,
                        "a context of %llu tokens and %u sessions is too large for any budget; "
                        "ask for a smaller options.context",
                        (unsigned long long)in->context, in->sessions);
    return in->disk_bytes ? refuse_with_disk(info, in, alone, err) : refuse(info, in, alone, err);
}
