/* `spillway plan`: what would lie where and what would move, from headers and options alone. */
#include "tools/input.h"
#include "tools/limits.h"
#include "tools/report.h"

#include <stdlib.h>
#include <string.h>

/* Bounds: computation and transfers overlap, so the slower of the two sets the pace. */
struct prediction {
    double decode, prefill; /* tokens/s, at most */
};

static struct prediction predict(const struct spw_plan_info *p, const struct spw_model_config *c,
                                 const struct spw_machine *m)
{
    const uint64_t *step = p->decode_moved_bytes, *prompt = p->prefill_moved_bytes;
    double read = (double)p->decode_read_bytes / m->read_bytes_per_second;
    double copy = (double)(step[SPW_MOVED_HOST_TO_DEVICE] + step[SPW_MOVED_DEVICE_TO_HOST]) /
                  m->copy_bytes_per_second;
    double multiply = cli_prefill_flops(c, p->context) / cli_matrix_peak(m, p->compute);
    double stream = (double)(prompt[SPW_MOVED_HOST_TO_DEVICE] + prompt[SPW_MOVED_DEVICE_TO_HOST]) /
                    m->copy_bytes_per_second;
    return (struct prediction){
        .decode = 1 / (read > copy ? read : copy),
        .prefill = (double)p->context / (multiply > stream ? multiply : stream),
    };
}

static int print_json(const struct cli_options *o, const struct spw_plan_info *p,
                      const struct spw_machine *machine, const struct prediction *at_most)
{
    json_t *j = cli_report_plan(o->operand, p);
    int failed = 0;
    if (machine) {
        failed |= json_object_set_new(j, "machine", cli_machine_json(machine));
        failed |=
            json_object_set_new(j, "predicted_tokens_per_second",
                                json_pack("{s:o,s:o}", "prefill", cli_json_real(at_most->prefill),
                                          "decode", cli_json_real(at_most->decode)));
    }
    if (failed) {
        json_decref(j);
        j = NULL;
    }
    return cli_print_json(j, JSON_INDENT(2));
}

static void show_tier(const char *name, uint64_t budget, uint64_t planned, uint64_t smallest)
{
    char a[32], b[32], c[32];
    printf("%-12s%14s%14s%14s\n", name, cli_format_bytes(a, budget), cli_format_bytes(b, planned),
           cli_format_bytes(c, smallest));
}

/* A part of a tier's total; what is empty is not shown. */
static void show_part(const char *name, uint64_t bytes)
{
    char text[32];
    if (bytes > 0)
        printf("  %-24s%14s\n", name, cli_format_bytes(text, bytes));
}

static void show_moved(const char *name, const uint64_t moved[SPW_MOVED_COUNT])
{
    char a[32], b[32];
    printf("%-12s%s to the device, %s to the host\n", name,
           cli_format_bytes(a, moved[SPW_MOVED_HOST_TO_DEVICE]),
           cli_format_bytes(b, moved[SPW_MOVED_DEVICE_TO_HOST]));
}

static void print_table(const struct cli_options *o, const struct spw_plan_info *p)
{
    char a[32], b[32];
    printf("model       %s, %u layers, %s to compute, %s for KV\n", o->operand, p->n_layers,
           spw_dtype_name(p->compute), spw_dtype_name(p->kv));
    printf("context     %llu tokens, %u session%s, %u tokens a chunk\n\n",
           (unsigned long long)p->context, p->sessions, p->sessions == 1 ? "" : "s",
           p->prefill_chunk);
    printf("%-12s%14s%14s%14s\n", "", "budget", "planned", "smallest");
    show_tier("device", p->device_budget_bytes, p->device.total, p->smallest_device_bytes);
    show_tier("host", p->host_budget_bytes, p->host.total, p->smallest_host_bytes);
    printf("\non the device, %u of %u layers' weights stay\n", p->n_layers_resident, p->n_layers);
    show_part("weights", p->device.weights_resident);
    show_part("weights in transit", p->device.weights_slots);
    show_part("KV", p->device.kv_resident);
    show_part("KV in transit", p->device.kv_slots);
    show_part("hidden states", p->device.hidden);
    show_part("activations", p->device.activations);
    printf("on the host\n");
    show_part("KV", p->host.kv);
    show_part("hidden states", p->host.hidden);
    show_part("staging", p->host.staging);
    show_part("weights", p->host.weights);
    printf("\nwaterlines  of %llu tokens the oldest %llu lie in host memory, the rest on the "
           "device\n",
           (unsigned long long)p->waterlines.n_tokens, (unsigned long long)p->waterlines.host_end);
    printf("KV          %s a token\n", cli_format_bytes(a, p->kv_bytes_per_token));
    show_moved("prompt", p->prefill_moved_bytes);
    show_moved("each token", p->decode_moved_bytes);
    printf("            and reads %s, %s of it weights\n",
           cli_format_bytes(a, p->decode_read_bytes),
           cli_format_bytes(b, spw_min_u64(p->weights_bytes, p->decode_read_bytes)));
}

static int print_plan(const struct cli_options *o, const struct spw_plan_info *p,
                      const struct spw_model_config *config)
{
    struct spw_machine machine;
    struct prediction at_most = {0};
    struct spw_error err = {0};
    if (!o->no_probe) {
        struct spw_options options = cli_engine_options(o, 0, 1);
        int rc = spw_machine_probe(&machine, &options, &err);
        if (rc < 0)
            return cli_fail_error(rc, &err, false);
        at_most = predict(p, config, &machine);
    }
    if (o->json)
        return print_json(o, p, o->no_probe ? NULL : &machine, &at_most);
    print_table(o, p);
    if (!o->no_probe)
        printf("at most     %.4g tokens/s of prompt, %.4g tokens/s after it (%s, %u threads: reads "
               "%.3g GB/s)\n",
               at_most.prefill, at_most.decode, machine.cpu, machine.threads,
               machine.read_bytes_per_second * 1e-9);
    return 0;
}

int cli_plan(const struct cli_options *o)
{
    struct cli_model m;
    struct cli_inputs inputs = {0};
    struct spw_plan_info plan;
    struct spw_error err = {0};
    bool with_text = o->prompt || o->prompt_file || o->prompts;
    int code = cli_model_open(&m, o->operand, with_text);
    if (code)
        return code;
    code = cli_inputs_read(&inputs, o, &m, true);
    uint32_t sessions = 1;
    if (o->prompts)
        sessions = (uint32_t)spw_min_u64(o->sessions, inputs.n);
    else if (cli_given(o, "sessions"))
        sessions = (uint32_t)o->sessions;
    if (code == 0) {
        struct spw_options options =
            cli_engine_options(o, o->context ? o->context : inputs.longest, sessions);
        int rc = spw_plan_query(&plan, o->operand, &options, &err);
        code = rc < 0 ? cli_fail_error(rc, &err, true) : print_plan(o, &plan, &m.config);
    }
    cli_inputs_free(&inputs);
    cli_model_close(&m);
    return code;
}
