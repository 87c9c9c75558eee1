/* The output of `spillway bench`: see bench.h. */
#include "quant/types.h"
#include "tools/command/bench/bench.h"
#include "tools/command/bench/bench_lines.h"
#include "tools/command/output/output.h"
#include "tools/command/output/report.h"

#include <math.h>
#include <string.h>

/* The shown numbers of a case. A fraction of 1 is the machine's limit. */
struct row {
    double prefill_rate, prefill_fraction, decode_rate, decode_fraction;
    double slowdown;       /* decode time / decode time under the first budget of the context */
    double offload_cost;   /* decode time / the least possible time, minus 1 */
    double first_fraction; /* time to the first token / time to read the weights */
    double link_fraction;  /* time of the copies alone / decode time */
    double prefill_slowdown;
    double attention_fraction[BENCH_FORMS]; /* of the read bandwidth; 0: not measured */
};

static double attention_fraction(const struct bench *b, size_t first, int form)
{
    const struct spw_attention_speed *a = &b->attention[first * BENCH_FORMS + (size_t)form];
    if (!(a->seconds > 0))
        return 0;
    return (double)a->kv_bytes / a->seconds / b->machine.best.read_bytes_per_second;
}

static struct row make_row(const struct bench *b, size_t i)
{
    const struct bench_case *c = &b->cases[i];
    size_t first = i - i % bench_n_budgets(b);
    const struct bench_case *base = &b->cases[first];
    double prefill = c->median[PREFILL_SECONDS], token = c->median[DECODE_SECONDS];
    double copy = (double)c->moved_bytes / c->median[COPY_LIMIT];
    return (struct row){
        .prefill_rate = (double)c->context / prefill,
        .prefill_fraction = c->median[PREFILL_FRACTION],
        .decode_rate = 1 / token,
        .decode_fraction = c->median[DECODE_FRACTION],
        .slowdown = token / base->median[DECODE_SECONDS],
        .offload_cost = token / fmax(base->median[DECODE_SECONDS], copy) - 1,
        .first_fraction = c->median[FIRST_SECONDS] / c->median[WEIGHTS_SECONDS],
        .link_fraction = copy / token,
        .prefill_slowdown = prefill / base->median[PREFILL_SECONDS],
        .attention_fraction = {attention_fraction(b, first, BENCH_EXACT),
                               attention_fraction(b, first, BENCH_INT8),
                               attention_fraction(b, first, BENCH_INT4)},
    };
}

/* Says if the machine changed its speed while tokens were decoded. */
static void print_drift(const struct bench_case *c)
{
    if (c->drift > MUCH)
        printf(
            "%9s the machine changed around decode: reads %.1f -> %.1f GB/s, copies %.1f -> %.1f "
            "GB/s\n",
            "", c->before.best.read_bytes_per_second * 1e-9,
            c->after.best.read_bytes_per_second * 1e-9, c->before.best.copy_bytes_per_second * 1e-9,
            c->after.best.copy_bytes_per_second * 1e-9);
}

static void print_table(const struct bench *b)
{
    const struct spw_machine *m = &b->machine.best;
    const struct spw_plan_info *p = &b->cases[0].plan;
    char text[32], int8[48] = "";
    if (m->int8_flops > 0)
        snprintf(int8, sizeof int8, ", int8 %.1f GFLOP/s", m->int8_flops * 1e-9);
    printf("machine   %s, %s, %u threads\n"
           "limits    measured around each run; the last: reads %.2f GB/s, copies %.2f GB/s, "
           "bf16 %.1f GFLOP/s, f32 %.1f GFLOP/s%s\n"
           "model     %s, %s weights, %s to compute, %s for KV\n"
           "runs      medians of %llu, %llu tokens decoded in each\n",
           m->cpu, m->isa, m->threads, m->read_bytes_per_second * 1e-9,
           m->copy_bytes_per_second * 1e-9, m->bf16_flops * 1e-9, m->f32_flops * 1e-9, int8,
           b->o->operand, cli_format_bytes(text, p->weights_bytes), cli_report_compute(p),
           spw_dtype_name(p->kv), (unsigned long long)b->o->repeat,
           (unsigned long long)b->o->decode_tokens);
    if (*m->read_pattern)
        printf("          reads: the best of 16 patterns, the last time %s\n", m->read_pattern);
    if (*m->gpu)
        printf("gpu       %s\n", m->gpu);
    if (*b->machine.typical.note)
        printf("          %s\n", b->machine.typical.note);
    printf("\n%9s %11s %11s %9s %7s %9s %7s %9s %8s %11s %9s %7s\n", "context", "budget", "peak",
           "prefill/s", "of peak", "decode/s", "of read", "predicted", "offload", "moved/token",
           "1st token", "/ read");
    for (size_t i = 0; i < b->n_cases; i++) {
        const struct bench_case *c = &b->cases[i];
        if (!c->n_runs)
            continue;
        struct row r = make_row(b, i);
        char budget[32] = "all", peak[32], moved[32];
        if (c->budget)
            cli_format_bytes(budget, c->budget);
        printf("%9llu %11s %11s %9.1f %5.1f %% %9.2f %5.1f %% %7.1f %% %6.1f %% %11s %7.2f s "
               "%7.2f\n",
               (unsigned long long)c->context, budget, cli_format_bytes(peak, c->device_peak_bytes),
               r.prefill_rate, 100 * r.prefill_fraction, r.decode_rate, 100 * r.decode_fraction,
               100 * c->median[PREDICTION], 100 * r.offload_cost,
               cli_format_bytes(moved, c->moved_bytes), c->median[FIRST_SECONDS], r.first_fraction);
        print_drift(c);
    }
}

/* The numbers of a GPU only: the link, the card, attention alone. */
static void print_gpu_table(const struct bench *b)
{
    printf("\n%9s %11s %7s %9s %8s %11s %9s %7s %7s\n", "context", "budget", "of link", "wait",
           "prefill", "off card", "attention", "int8", "int4");
    for (size_t i = 0; i < b->n_cases; i++) {
        const struct bench_case *c = &b->cases[i];
        if (!c->n_runs)
            continue;
        struct row r = make_row(b, i);
        char budget[32] = "all", card[32];
        if (c->budget)
            cli_format_bytes(budget, c->budget);
        printf("%9llu %11s %5.1f %% %6.2f ms %6.2f x %11s %7.1f %% %5.1f %% %5.1f %%\n",
               (unsigned long long)c->context, budget, 100 * r.link_fraction,
               1e3 * c->median[WAIT_SECONDS], r.prefill_slowdown,
               cli_format_bytes(card, c->card_bytes), 100 * r.attention_fraction[BENCH_EXACT],
               100 * r.attention_fraction[BENCH_INT8], 100 * r.attention_fraction[BENCH_INT4]);
    }
}

/* Writes a field in quotes, by RFC 4180. */
static void quote(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text; text++)
        fprintf(to, *text == '"' ? "\"\"" : "%c", *text);
    fputc('"', to);
}

/* The precision of old KV, or the type of KV if all of it is exact. */
static const char *kv_name(const struct spw_plan_info *p)
{
    return p->precision ? spw_kv_precision_name(p->precision) : spw_dtype_name(p->kv);
}

static void write_csv(const struct bench *b, FILE *to)
{
    const struct spw_machine *m = &b->machine.best;
    fputs("cpu,isa,threads,read_bytes_per_second,copy_bytes_per_second,matrix_flops,limits_drift,"
          "model,compute,kv_dtype,context,device_budget_bytes,device_peak_bytes,host_peak_bytes,"
          "layers_resident,prefill_seconds,prefill_tokens_per_second,prefill_fraction_of_peak,"
          "decode_seconds_per_token,decode_tokens_per_second,decode_read_bytes,"
          "decode_fraction_of_read,predicted_seconds_per_token,predicted_over_decode,slowdown,"
          "offload_cost,decode_moved_bytes,unhidden_wait_seconds_"
          "per_token,"
          "first_token_seconds,weights_read_seconds,first_token_over_read,"
          "gpu,card_bytes,link_fraction,prefill_slowdown,attention_fraction_of_read,"
          "attention_int8_fraction_of_read,attention_int4_fraction_of_read\n",
          to);
    for (size_t i = 0; i < b->n_cases; i++) {
        const struct bench_case *c = &b->cases[i];
        if (!c->n_runs)
            continue;
        struct row r = make_row(b, i);
        quote(to, m->cpu);
        fprintf(to, ",%s,%u,%.4g,%.4g,%.4g,%.4g,", m->isa, m->threads, c->median[READ_LIMIT],
                c->median[COPY_LIMIT], c->median[MATRIX_LIMIT], c->drift);
        quote(to, b->o->operand);
        fprintf(to, ",%s,%s,%llu,%llu,%llu,%llu,%u,", spw_dtype_name(c->plan.compute),
                kv_name(&c->plan), (unsigned long long)c->context,
                (unsigned long long)c->plan.device_budget_bytes,
                (unsigned long long)c->device_peak_bytes, (unsigned long long)c->host_peak_bytes,
                c->plan.n_layers_resident);
        fprintf(to, "%.6g,%.5g,%.4g,%.6g,%.5g,%llu,%.4g,%.6g,%.4g,%.4g,%.4g,%llu,%.4g,%.5g,%.5g,",
                c->median[PREFILL_SECONDS], r.prefill_rate, r.prefill_fraction,
                c->median[DECODE_SECONDS], r.decode_rate,
                (unsigned long long)c->plan.decode_read_bytes, r.decode_fraction,
                c->median[PREDICTED], c->median[PREDICTION], r.slowdown, r.offload_cost,
                (unsigned long long)c->moved_bytes, c->median[WAIT_SECONDS],
                c->median[FIRST_SECONDS], c->median[WEIGHTS_SECONDS]);
        fprintf(to, "%.4g,", r.first_fraction);
        quote(to, m->gpu);
        fprintf(to, ",%llu,%.4g,%.4g,%.4g,%.4g,%.4g\n", (unsigned long long)c->card_bytes,
                r.link_fraction, r.prefill_slowdown, r.attention_fraction[BENCH_EXACT],
                r.attention_fraction[BENCH_INT8], r.attention_fraction[BENCH_INT4]);
    }
}

/* A number that was not measured is 0 in the program and null in JSON. */
static double measured(double value)
{
    return value > 0 ? value : NAN;
}

/* ---- JSON ---- */

static json_t *case_json(const struct bench *b, size_t i)
{
    const struct bench_case *c = &b->cases[i];
    const double *median = c->median;
    struct row r = make_row(b, i);
    const struct cli_field fields[] = {
        {"runs", CLI_JSON(c->n_runs)},
        CLI_FIELD(c, context),
        {"device_budget_bytes", CLI_JSON(c->plan.device_budget_bytes)},
        CLI_FIELD(c, device_peak_bytes),
        CLI_FIELD(c, host_peak_bytes),
        CLI_FIELD(c, card_bytes),
        {"layers_resident", CLI_JSON(c->plan.n_layers_resident)},
        {"decode_read_bytes", CLI_JSON(c->plan.decode_read_bytes)},
        {"decode_moved_bytes", CLI_JSON(c->moved_bytes)},
        {"prefill_seconds", CLI_JSON(median[PREFILL_SECONDS])},
        {"prefill_tokens_per_second", CLI_JSON(r.prefill_rate)},
        {"prefill_fraction_of_peak", CLI_JSON(measured(r.prefill_fraction))},
        CLI_FIELD(&r, prefill_slowdown),
        {"decode_seconds_per_token", CLI_JSON(median[DECODE_SECONDS])},
        {"decode_tokens_per_second", CLI_JSON(r.decode_rate)},
        {"decode_fraction_of_read", CLI_JSON(r.decode_fraction)},
        {"predicted_seconds_per_token", CLI_JSON(median[PREDICTED])},
        {"predicted_over_decode", CLI_JSON(median[PREDICTION])},
        {"decode_slowdown", CLI_JSON(r.slowdown)},
        CLI_FIELD(&r, link_fraction),
        {"unhidden_wait_seconds_per_token", CLI_JSON(median[WAIT_SECONDS])},
        {"attention_fraction_of_read", CLI_JSON(measured(r.attention_fraction[BENCH_EXACT]))},
        {"attention_int8_fraction_of_read", CLI_JSON(measured(r.attention_fraction[BENCH_INT8]))},
        {"attention_int4_fraction_of_read", CLI_JSON(measured(r.attention_fraction[BENCH_INT4]))},
        {"first_token_seconds", CLI_JSON(median[FIRST_SECONDS])},
        {"weights_read_seconds", CLI_JSON(median[WEIGHTS_SECONDS])},
    };
    return CLI_OBJECT(fields);
}

static int write_json(const struct bench *b)
{
    const struct spw_plan_info *p = &b->cases[0].plan;
    json_t *cases = json_array();
    for (size_t i = 0; i < b->n_cases; i++)
        if (b->cases[i].n_runs)
            cli_json_append(&cases, case_json(b, i));
    const struct cli_field fields[] = {
        CLI_FIELD(b, backend),
        {"model", CLI_JSON(b->o->operand)},
        {"compute", CLI_JSON(spw_dtype_name(p->compute))},
        {"kv_dtype", CLI_JSON(kv_name(p))},
        {"repeat", CLI_JSON(b->o->repeat)},
        {"machine", cli_machine_json(&b->machine)},
        {"cases", cases},
    };
    return cli_write_json(b->o->report, CLI_OBJECT(fields));
}

void bench_print(const struct bench *b)
{
    if (bench_csv_alone(b->o)) {
        write_csv(b, stdout);
        return;
    }
    print_table(b);
    if (*b->machine.best.gpu)
        print_gpu_table(b);
}

int bench_write(const struct bench *b)
{
    struct cli_output *out = NULL;
    bool to_file = b->o->csv && !bench_csv_alone(b->o);
    int code = to_file ? cli_output_open(&out, b->o->csv) : 0;
    if (code)
        return code;
    if (out)
        write_csv(b, cli_output_file(out));
    code = out ? cli_output_commit(out) : 0;
    return !code && b->o->report ? write_json(b) : code;
}
