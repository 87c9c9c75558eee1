/* The speeds of this machine, measured or from the profile: see measure.h. */
#include "model/cpu/ops_cpu.h"
#include "offload/device/topology.h"
#include "runtime/measure/machine.h"
#include "runtime/engine/memory.h"
#include "runtime/measure/profile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* The processor's name from /proc/cpuinfo. Machines other than x86 stay "unknown CPU". */
static void read_cpu_name(char *out, size_t bytes)
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
    const struct spw_backend *b = &s->b;
    const struct spw_lane *lane = &s->lane;
    *out = (struct spw_machine){.threads = s->o->threads};
    read_cpu_name(out->cpu, sizeof out->cpu);
    SPW_TRY(count_cores(&out->cores, err));
    if (!out->threads) /* the number that the device chose, for example its fast cores */
        out->threads = lane->ops->workers(lane->device);
    if (!out->threads)
        out->threads = out->cores;
    if (b->probe)
        snprintf(out->gpu, sizeof out->gpu, "%s", b->name);
    snprintf(out->isa, sizeof out->isa, "%s",
             b->probe ? lane->ops->name : spw_isa_name(spw_isa_best()));
    return 0;
}

static int measure(struct spw_machine_range *out, const struct subject *s, struct spw_error *err)
{
    enum { MEASURE_BYTES = 448 << 20 }; /* on 2 threads it takes at most 386 MiB */
    SPW_TRY(spw_memory_to_measure("this machine", MEASURE_BYTES, err));
    SPW_TRY(spw_machine_measure(out, &s->b, &s->lane, s->o->interrupt, err));
    out->typical.measured_at = out->best.measured_at = (int64_t)time(NULL);
    return 0;
}

/* ---- the profile ---- */

/* Speeds of a machine that is busy with other work are not stored: they would stay. */
static int measure_and_store(struct spw_machine_range *out, const struct subject *s,
                             struct spw_profile *p, const char *path, struct spw_error *err)
{
    enum { MOST_SPREAD = 3 };
    struct spw_error why = {0};
    SPW_TRY(measure(out, s, err));
    if (out->spread > MOST_SPREAD)
        snprintf(out->unstored, sizeof out->unstored,
                 "while this machine was measured, its speed changed by a factor of %.1f, as if "
                 "other programs ran: it is not stored, and the machine will be measured again",
                 out->spread);
    if (*out->unstored)
        return 0;
    spw_profile_put_machine(p, out);
    if (spw_profile_write(p, path, &why) < 0)
        snprintf(out->unstored, sizeof out->unstored,
                 "%.200s, so the machine will be measured again", why.text);
    return 0;
}

static int find_or_measure(struct spw_machine_range *out, const struct subject *s, const char *path,
                           enum spw_probe_mode mode, struct spw_error *err)
{
    struct spw_error why = {0};
    struct spw_profile *p = spw_alloc_zero(1, sizeof *p);
    if (!p)
        return spw_fail(err, -ENOMEM, "%s: no memory to read it", path);
    int rc = spw_profile_read(p, path, &why);
    const bool unusable = rc < 0 && rc != -ENOENT;
    rc = 0;
    if (mode == SPW_PROBE_AGAIN || !spw_profile_find_machine(p, out))
        rc = mode == SPW_PROBE_NEVER
                 ? spw_fail(err, -ENODATA,
                            "this machine has not been measured; run 'spillway probe'")
                 : measure_and_store(out, s, p, path, err);
    if (!rc && unusable && !*out->typical.note)
        snprintf(out->typical.note, sizeof out->typical.note,
                 "%.200s, so the machine was measured again", why.text);
    spw_free(p);
    return rc;
}

int spw_machine_recall(struct spw_machine_range *out, const struct spw_options *o,
                       const char *profile, enum spw_probe_mode mode, struct spw_error *err)
{
    spw_error_clear(err);
    struct subject s = {.o = o};
    SPW_TRY(spw_engine_choose_device(&s.b, &s.lane, o, UINT64_MAX, UINT64_MAX, err));
    int rc = identify(&out->typical, &s, err);
    out->best = out->typical;
    out->unstored[0] = 0;
    out->spread = 0;
    if (!rc)
        rc = profile ? find_or_measure(out, &s, profile, mode, err) : measure(out, &s, err);
    s.lane.ops->close(s.lane.device);
    return rc;
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

double spw_machine_many_flops(const struct spw_machine *m, enum spw_product product)
{
    if (m->many_flops[product] > 0 || product < SPW_PRODUCT_INT8)
        return m->many_flops[product];
    return m->many_flops[product == SPW_PRODUCT_INT8 ? SPW_PRODUCT_BF16 : SPW_PRODUCT_F32];
}

int spw_machine_probe(struct spw_machine_range *out, const struct spw_options *o,
                      struct spw_error *err)
{
    return spw_machine_recall(out, o, NULL, SPW_PROBE_AGAIN, err);
}
