/* Measures the limits of the machine, to compare speeds with. */
#include "model/cpu/probe/probe.h"
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

/* Seconds a byte, seconds a FLOP. */
struct limits {
    struct spw_rounds read, copy, read_beside, copy_beside, bf16, f32, int8;
    uint32_t threads, cores;
    struct spw_read_pattern pattern; /* the fastest */
};

static bool probe_reads(struct limits *l)
{
    return spw_probe_read(&l->read, l->threads, &l->pattern);
}

/* A copy stream is one thread. It takes a core; the worker team does not use that core
 * (device_cpu_team.c). */
static bool probe_copies(struct limits *l)
{
    const uint32_t left = l->cores > 1 ? l->cores - 1 : 1;
    return spw_probe_copy(&l->copy, 1) &&
           spw_probe_read_beside_copy(&l->read_beside, &l->copy_beside,
                                      l->threads < left ? l->threads : left);
}

static bool probe_peaks(struct limits *l)
{
    const enum spw_isa isa = spw_isa_best();
    return spw_probe_matrix_peak(&l->bf16, isa, SPW_DTYPE_BF16, l->threads) &&
           spw_probe_matrix_peak(&l->f32, isa, SPW_DTYPE_F32, l->threads) &&
           spw_probe_matrix_peak(&l->int8, isa, SPW_DTYPE_Q8_0, l->threads);
}

static void take(struct spw_machine *out, const struct limits *l,
                 const struct spw_machine_kernels *k, enum spw_round which)
{
    const struct spw_read_pattern *best = &l->pattern;
    out->read_bytes_per_second = 1 / spw_rounds_take(&l->read, which);
    out->copy_bytes_per_second = 1 / spw_rounds_take(&l->copy, which);
    out->read_beside_bytes_per_second = 1 / spw_rounds_take(&l->read_beside, which);
    out->copy_beside_bytes_per_second = 1 / spw_rounds_take(&l->copy_beside, which);
    out->bf16_flops = 1 / spw_rounds_take(&l->bf16, which);
    out->f32_flops = 1 / spw_rounds_take(&l->f32, which);
    out->int8_flops = 1 / spw_rounds_take(&l->int8, which);
    snprintf(out->read_pattern, sizeof out->read_pattern, "%u stream%s a thread, %s pages%s",
             best->streams, best->streams == 1 ? "" : "s", best->huge_pages ? "huge" : "small",
             best->fetch ? ", with prefetches" : "");
    spw_machine_kernels_take(k, out, which);
}

/* `seconds`: 0 where nothing was measured. */
static double faster(double than, double seconds)
{
    return seconds > 0 ? fmin(than, seconds) : than;
}

/* No kernel is faster than memory and the matrix peak. Of memory, all that was measured counts: a
 * round of a kernel is shorter than a round of reading, and finds shorter moments without load. */
static void bound_kernels(struct spw_machine *best)
{
    double seconds = 1 / best->read_bytes_per_second;
    for (int t = 0; t < SPW_WEIGHT_TYPES; t++) {
        seconds = faster(seconds, best->bf16_products[t][0].byte_seconds);
        seconds = faster(seconds, best->f32_products[t][0].byte_seconds);
    }
    memset(best->bf16_products, 0, sizeof best->bf16_products);
    memset(best->f32_products, 0, sizeof best->f32_products);
    for (int t = 0; t < SPW_WEIGHT_TYPES; t++)
        best->bf16_products[t][0] = best->f32_products[t][0] =
            (struct spw_product_speed){.byte_seconds = seconds, .short_byte_seconds = seconds};
    best->read_bytes_per_second = 1 / seconds;
    best->row_operation_seconds = best->row_number_seconds = best->attention_flops = 0;
    memset(best->attention, 0, sizeof best->attention);
}

/* Rounds of the kernels between the other measurements: a virtual machine may be slow for a second.
 */
static int probe_in_turn(struct spw_machine_range *out, struct spw_machine_kernels *k,
                         const struct spw_interrupt *interrupt)
{
    static bool (*const turns[])(struct limits *) = {probe_peaks, probe_reads, probe_copies,
                                                     probe_peaks};
    struct limits l = {.threads = out->typical.threads, .cores = out->typical.cores};
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        if (!turns[i](&l))
            return -ENOMEM;
        SPW_TRY(spw_machine_kernels_round(k));
        if (spw_interrupt_is_raised(interrupt))
            return -ECANCELED;
    }
    take(&out->typical, &l, k, SPW_ROUND_TYPICAL);
    take(&out->best, &l, k, SPW_ROUND_BEST);
    bound_kernels(&out->best);
    return 0;
}

static int probe_cpu(struct spw_machine_range *out, const struct subject *s, struct spw_error *err)
{
    struct spw_machine_kernels *k;
    int rc = spw_machine_kernels_open(&k, &s->b, &s->lane);
    if (!rc)
        rc = probe_in_turn(out, k, s->o->interrupt);
    spw_machine_kernels_close(k);
    if (rc == -ECANCELED)
        return spw_fail(err, rc, "interrupted: this machine was not measured");
    if (rc == -ENOMEM)
        return spw_fail(err, rc, "no memory or threads to measure the machine with");
    return rc ? spw_fail(err, rc, "%s: its kernels could not be measured: %s", s->b.name,
                         strerror(-rc))
              : 0;
}

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
    enum { MEASURE_BYTES = 704 << 20 }; /* on 2 threads it takes at most 627 MiB */
    SPW_TRY(spw_memory_to_measure("this machine", MEASURE_BYTES, err));
    SPW_TRY(s->b.probe ? spw_machine_probe_device(out, &s->b, &s->lane, err)
                       : probe_cpu(out, s, err));
    SPW_TRY(spw_machine_probe_handover(out, &s->b, &s->lane, err));
    out->typical.measured_at = out->best.measured_at = (int64_t)time(NULL);
    return 0;
}

/* ---- the profile ---- */

static int measure_and_store(struct spw_machine_range *out, const struct subject *s,
                             struct spw_profile *p, const char *path, struct spw_error *err)
{
    struct spw_error why = {0};
    SPW_TRY(measure(out, s, err));
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
    if (!rc)
        rc = profile ? find_or_measure(out, &s, profile, mode, err) : measure(out, &s, err);
    s.lane.ops->close(s.lane.device);
    return rc;
}

double spw_machine_peak(const struct spw_machine *m, enum spw_dtype compute, bool int8_activations)
{
    if (compute == SPW_DTYPE_F32)
        return m->f32_flops;
    return int8_activations && m->int8_flops > 0 ? m->int8_flops : m->bf16_flops;
}

int spw_machine_probe(struct spw_machine_range *out, const struct spw_options *o,
                      struct spw_error *err)
{
    return spw_machine_recall(out, o, NULL, SPW_PROBE_AGAIN, err);
}
