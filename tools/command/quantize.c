/* `spillway quantize`: a model folder as a quantized GGUF file, the error of each tensor, and with
 * --text-file the loss of the folder and of the file on a text. */
#include "quant/types.h"
#include "tools/command/output/output.h"
#include "tools/command/output/progress.h"
#include "tools/command/score.h"

#include <string.h>
#include <sys/stat.h>

struct job {
    const struct cli_options *o;
    json_t *tensors;   /* with --json; owned */
    uint64_t n, bytes; /* of all tensors so far */
    size_t n_tensors;
    struct cli_score score; /* with --text-file: its tokens */
    double before, after;   /* nats a token, of the folder and of the file */
};

static double bits(const struct job *j)
{
    return j->n ? 8.0 * (double)j->bytes / (double)j->n : 0;
}

static json_t *tensor_json(const struct spw_quantized *q)
{
    const struct cli_field fields[] = {
        CLI_FIELD(q, name),
        {"from", CLI_JSON(spw_dtype_name(q->from))},
        {"type", CLI_JSON(spw_dtype_name(q->to))},
        {"why", CLI_JSON(q->why)},
        {"n_parameters", CLI_JSON(q->n)},
        CLI_FIELD(q, bytes),
        CLI_FIELD(q, relative_error),
        CLI_FIELD(q, largest_error),
    };
    return CLI_OBJECT(fields);
}

static void on_tensor(void *context, const struct spw_quantized *q)
{
    struct job *j = context;
    char bytes[32];
    j->n += q->n;
    j->bytes += q->bytes;
    if (j->o->json) {
        cli_json_append(&j->tensors, tensor_json(q));
    } else {
        cli_progress_clear();
        if (!j->n_tensors)
            printf("%-32s %-4s %-4s  %10s  %10s  %10s\n", "tensor", "from", "to", "bytes",
                   "RMS error", "largest");
        printf("%-32s %-4s %-4s  %10s  %10.3g  %10.3g%s%s\n", q->name, spw_dtype_name(q->from),
               spw_dtype_name(q->to), cli_format_bytes(bytes, q->bytes), q->relative_error,
               q->largest_error, q->why ? "  " : "", q->why ? q->why : "");
    }
    j->n_tensors++;
}

/* The file gives other answers than the folder in such a case: also with --quiet. */
static void on_note(void *context, const char *text)
{
    const struct job *j = context;
    cli_fail(0, "%s: %s", j->o->paths.items[0], text);
}

static bool on_progress(void *context, uint64_t done, uint64_t total)
{
    char text[128], millions[32];
    (void)context;
    if (cli_progress_due()) {
        snprintf(text, sizeof text, "%3.0f %% of %s million weights",
                 100 * (double)done / (double)total,
                 cli_format_number(millions, (double)total * 1e-6));
        cli_progress_draw(text);
    }
    return !cli_interrupted();
}

/* ---- the loss on a text ---- */

/* The loss of the folder or of the file, as `spillway score` reports it for that model. */
static int measure_loss(struct job *j, const char *model, double *loss)
{
    struct cli_options o = *j->o;
    o.operand = model;
    j->score.log_likelihood = 0;
    int code = cli_score_run(&o, &j->score);
    *loss = cli_score_loss(&j->score);
    cli_score_close(&j->score);
    return code;
}

static double difference_percent(const struct job *j)
{
    return j->before > 0 ? 100 * (j->after - j->before) / j->before : 0;
}

static json_t *loss_json(const struct job *j)
{
    const struct cli_field fields[] = {
        {"text_file", CLI_JSON(j->o->text_file)},
        {"n_tokens", CLI_JSON(j->score.n_tokens)},
        {"n_scored", CLI_JSON(j->score.n_tokens - 1)},
        {"model_nats_per_token", CLI_JSON(j->before)},
        {"output_nats_per_token", CLI_JSON(j->after)},
        {"difference_percent", CLI_JSON(difference_percent(j))},
    };
    return CLI_OBJECT(fields);
}

/* ---- all tensors ---- */

static int print_totals(struct job *j)
{
    char bytes[32], millions[32];
    if (!j->o->json) {
        printf("\n%s in %zu tensors, %s million parameters, %.4g bits a weight\n",
               cli_format_bytes(bytes, j->bytes), j->n_tensors,
               cli_format_number(millions, (double)j->n * 1e-6), bits(j));
        if (j->o->text_file)
            printf("loss on %zu tokens (%zu scored): %.6f nats/token of %s, %.6f of %s: %+.2f %%\n",
                   j->score.n_tokens, j->score.n_tokens - 1, j->before, j->o->operand, j->after,
                   j->o->paths.items[0], difference_percent(j));
        return 0;
    }
    const struct cli_field fields[] = {
        {"model", CLI_JSON(j->o->operand)},
        {"output", CLI_JSON(j->o->paths.items[0])},
        {"type", CLI_JSON(spw_dtype_name((enum spw_dtype)j->o->type))},
        {"n_parameters", CLI_JSON(j->n)},
        {"weights_bytes", CLI_JSON(j->bytes)},
        {"bits_per_weight", CLI_JSON(bits(j))},
        {"tensors", j->tensors},
        {j->o->text_file ? "loss" : NULL, CLI_OR_NULL(j->o->text_file, loss_json(j))},
    };
    j->tensors = NULL;
    return cli_print_json(CLI_OBJECT(fields));
}

/* An error of the stream has no text, and names the file. */
static int write_output(struct job *j, struct cli_output *out)
{
    const struct spw_quantize_options options = {.type = (enum spw_dtype)j->o->type,
                                                 .to = cli_output_file(out),
                                                 .context = j,
                                                 .on_tensor = on_tensor,
                                                 .on_note = on_note,
                                                 .on_progress = on_progress};
    struct spw_error err = {0};
    cli_progress_start((enum cli_progress_mode)j->o->progress, NULL, false);
    int rc = spw_quantize(j->o->operand, &options, &err);
    cli_progress_end();
    if (!rc)
        return cli_output_commit(out);
    cli_output_cancel(out);
    if (rc != -ECANCELED && !err.text[0])
        return cli_fail(CLI_FAILED, "%s: %s", j->o->paths.items[0], strerror(-rc));
    return cli_fail_error(rc, &err, rc == -ENOENT || rc == -ENOTDIR);
}

/* A model is not replaced, as a report is: it may be the only copy. */
static int check_new(const char *path)
{
    struct stat st;
    char bytes[32];
    if (lstat(path, &st) != 0 || st.st_size == 0)
        return 0;
    return cli_fail(CLI_REFUSED,
                    "quantize: %s: found a file of %s; give another name, or remove it", path,
                    cli_format_bytes(bytes, (uint64_t)st.st_size));
}

int cli_quantize(const struct cli_options *o)
{
    struct cli_output *out;
    struct job j = {.o = o, .tensors = o->json ? json_array() : NULL};
    if (!o->paths.n)
        return cli_fail(CLI_REFUSED,
                        "quantize: found no output after '%s'; usage: spillway "
                        "quantize MODEL OUT.gguf --type q8_0|q4_0",
                        o->operand);
    if (!o->type)
        return cli_fail(CLI_REFUSED, "quantize: found no --type, expected q8_0 or q4_0");
    cli_catch_termination(); /* a half file has gigabytes */
    int code = cli_output_check(o, "quantize", o->paths.items[0]);
    if (!code)
        code = check_new(o->paths.items[0]);
    if (!code && o->text_file)
        code = cli_score_read(o, &j.score);
    if (!code && o->text_file)
        code = measure_loss(&j, o->operand, &j.before);
    if (!code)
        code = cli_output_open(&out, o->paths.items[0], false);
    if (!code)
        code = write_output(&j, out);
    cli_set_quiet(true); /* the notes of the folder's run hold for the file, too */
    if (!code && o->text_file)
        code = measure_loss(&j, o->paths.items[0], &j.after);
    cli_set_quiet(o->quiet);
    if (!code)
        code = print_totals(&j);
    json_decref(j.tensors);
    spw_free(j.score.tokens);
    return code;
}
