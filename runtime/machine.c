/* The machine's own limits, measured now: what a speed is to be set beside. */
#include "model/ops_cpu_probe.h"
#include "offload/topology.h"
#include "runtime/machine.h"

#include <stdio.h>
#include <string.h>

/* The processor's name as Linux says it; the file has it on x86, other machines keep "unknown". */
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

/* As the device chooses: every core this process may use. */
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

static int probe_cpu(struct spw_machine *out, struct spw_error *err)
{
    enum spw_isa isa = spw_isa_best();
    snprintf(out->isa, sizeof out->isa, "%s", spw_isa_name(isa));
    out->read_bytes_per_second = spw_probe_read_bandwidth(out->threads);
    out->copy_bytes_per_second = spw_probe_copy_bandwidth(1); /* a stream is one thread */
    out->bf16_flops = spw_probe_matrix_peak(isa, SPW_DTYPE_BF16, out->threads);
    out->f32_flops = spw_probe_matrix_peak(isa, SPW_DTYPE_F32, out->threads);
    if (out->read_bytes_per_second == 0 || out->copy_bytes_per_second == 0 ||
        out->bf16_flops == 0 || out->f32_flops == 0)
        return spw_fail(err, -ENOMEM, "no memory or threads to measure the machine with");
    return 0;
}

int spw_machine_probe(struct spw_machine *out, const struct spw_options *o, struct spw_error *err)
{
    struct spw_backend b;
    struct spw_device *device;
    *out = (struct spw_machine){.threads = o->threads};
    read_cpu_name(out->cpu, sizeof out->cpu);
    if (!out->threads)
        SPW_TRY(count_cores(&out->threads, err));
    SPW_TRY(spw_engine_choose_device(&b, &device, o, UINT64_MAX, UINT64_MAX, err));
    int rc = b.probe ? spw_machine_probe_device(out, &b, device, err) : 0;
    b.device_ops->close(device);
    return rc || b.probe ? rc : probe_cpu(out, err);
}
