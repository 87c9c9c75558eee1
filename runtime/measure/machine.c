/* The speeds of this machine, measured or from the profile: see measure.h. */
#include "model/cpu/ops_cpu.h"
#include "offload/device/topology.h"
#include "runtime/measure/machine.h"
#include "runtime/engine/memory.h"
#include "runtime/measure/profile.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

void spw_machine_cpu_name(char *out, size_t bytes)
{
    static const char key[] = "model name";
    char line[256];
    snprintf(out, bytes, "unknown CPU");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, key, sizeof key - 1) != 0 || !value)
            continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = 0;
        snprintf(out, bytes, "%s", value);
        break;
    }
    fclose(file);
}

/* All cores that this process may use. */
static int count_cores(uint32_t *out, struct spw_error *err)
{
    struct spw_topology *t;
    *out = spw_topology_usable_threads();
    if (*out <= 2)
        return 0;
    int rc = spw_topology_open(&t, NULL, err);
    if (rc == -ENOMEM)
        return spw_fail(err, rc, "out of memory for the topology");
    if (rc == 0)
        *out = spw_topology_cores(t);
    spw_topology_close(rc == 0 ? t : NULL);
    return 0;
}

/* The device that is measured, and what the caller asked for. */
struct subject {
    const struct spw_options *o;
    struct spw_backend b;
    struct spw_lane lane;
};

/* Fills the fields that identify a machine in the profile. */
static int identify(struct spw_machine *out, const struct subject *s, struct spw_error *err)
{
    const struct spw_lane *lane = &s->lane;
    const bool is_cpu = s->b.device_ops == &spw_device_cpu;
    *out = (struct spw_machine){.threads = s->o->threads};
    spw_machine_cpu_name(out->cpu, sizeof out->cpu);
    SPW_TRY(count_cores(&out->cores, err));
    if (!out->threads) /* the number that the device chose, for example its fast cores */
        out->threads = lane->ops->workers(lane->device);
    if (!out->threads)
        out->threads = out->cores;
    if (!is_cpu)
        snprintf(out->gpu, sizeof out->gpu, "%s", s->b.name);
    snprintf(out->isa, sizeof out->isa, "%s",
             is_cpu ? spw_isa_name(spw_isa_best()) : lane->ops->name);
    return 0;
}

static int measure(struct spw_machine *typical, struct spw_machine *best, const struct subject *s,
                   struct spw_error *err)
{
    enum { MEASURE_BYTES = 256 << 20 }; /* on 2 threads it takes at most 192 MiB */
    SPW_TRY(spw_memory_to_measure("this machine", MEASURE_BYTES, err));
    typical->measured_at = (int64_t)time(NULL);
    return spw_machine_measure(typical, best, &s->b, &s->lane, s->o->interrupt, err);
}

/* Opens the device, and finds out which machine this is. After 0 the caller closes the device. */
static int open_subject(struct subject *s, struct spw_machine *out, const struct spw_options *o,
                        struct spw_error *err)
{
    spw_error_clear(err);
    s->o = o;
    SPW_TRY(spw_engine_choose_device(&s->b, &s->lane, o, UINT64_MAX, UINT64_MAX, err));
    int rc = identify(out, s, err);
    if (rc)
        s->lane.ops->close(s->lane.device);
    return rc;
}

int spw_machine_probe(struct spw_machine *typical, struct spw_machine *best,
                      const struct spw_options *o, struct spw_error *err)
{
    struct subject s;
    SPW_TRY(open_subject(&s, typical, o, err));
    int rc = measure(typical, best, &s, err);
    s.lane.ops->close(s.lane.device);
    return rc;
}

/* ---- the profile ---- */

/* Speeds of a machine that is busy with other work are not stored: they would stay. */
static int measure_typical(void *subject, void *machine, struct spw_error *err)
{
    enum { MOST_SPREAD = 3 };
    struct spw_machine *m = machine;
    SPW_TRY(measure(m, NULL, subject, err));
    if (m->spread > MOST_SPREAD)
        snprintf(m->unstored, sizeof m->unstored,
                 "while this machine was measured, its speed changed by a factor of %.1f, as if "
                 "other programs ran: it is not stored, and the machine will be measured again",
                 m->spread);
    return 0;
}

int spw_machine_recall(struct spw_machine *out, const struct spw_options *o, const char *profile,
                       enum spw_probe_mode mode, struct spw_error *err)
{
    struct subject s;
    SPW_TRY(open_subject(&s, out, o, err));
    const struct spw_recall r = {.list = &spw_profile_lists[SPW_PROFILE_MACHINES],
                                 .what = "machine",
                                 .path = profile,
                                 .mode = mode,
                                 .measure = measure_typical,
                                 .context = &s,
                                 .note = &out->note,
                                 .unstored = &out->unstored};
    const int rc = spw_profile_recall(out, &r, err);
    s.lane.ops->close(s.lane.device);
    return rc == -ENODATA
               ? spw_fail(err, rc, "this machine has not been measured; run 'spillway probe'")
               : rc;
}

enum spw_product spw_product_of(enum spw_dtype compute, bool quantized, bool int8_activations)
{
    if (!quantized)
        return compute == SPW_DTYPE_F32 ? SPW_PRODUCT_F32 : SPW_PRODUCT_BF16;
    return compute != SPW_DTYPE_F32 && int8_activations ? SPW_PRODUCT_INT8 : SPW_PRODUCT_UNPACKED;
}

const char *spw_product_name(enum spw_product product)
{
    static const char *const names[SPW_PRODUCTS] = {"f32", "bf16", "int8", "f32_quantized"};
    return names[product];
}
