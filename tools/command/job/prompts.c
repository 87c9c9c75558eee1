/* See job.h. */
#include "tools/command/job/job.h"

#include "base/grow.h"
#include "tools/command/job/store/lines.h"
#include "tools/command/request/reader.h"

#include <inttypes.h>
#include <string.h>

static int add_input(struct cli_inputs *in, const struct request_prompt *prompt,
                     uint64_t max_new_tokens)
{
    SPW_TRY(spw_grow(&in->items, &in->capacity, in->n + 1, sizeof *in->items));
    int32_t *tokens = spw_alloc(prompt->n * sizeof *tokens);
    if (!tokens)
        return -ENOMEM;
    memcpy(tokens, prompt->tokens, prompt->n * sizeof *tokens);
    in->items[in->n++] = (struct cli_input){
        .tokens = tokens, .n_tokens = prompt->n, .max_new_tokens = max_new_tokens};
    in->longest = spw_max_u64(in->longest, prompt->n + max_new_tokens);
    return 0;
}

static int add_item(struct cli_inputs *in, struct request *x, uint64_t limit,
                    struct request_refusal *why)
{
    if (request_shorten(x, limit))
        return request_refuse(why, 400, "context_length_exceeded", NULL,
                              "found %" PRIu64
                              " tokens of the prompt and the answer, expected at most "
                              "%" PRIu64,
                              request_tokens(x), limit);
    const uint32_t each = x->beams.n_beams ? x->beams.n_beams : x->n_choices; /* sessions */
    for (size_t i = 0; i < x->n_prompts * each; i++)
        if (add_input(in, &x->prompts[i / each], x->max_new_tokens))
            return request_refuse_memory(why);
    in->n_lines++;
    return 0;
}

static int read_line(struct cli_inputs *in, struct request_reader *reader,
                     const struct job_line *line, uint64_t limit)
{
    struct request x;
    struct request_refusal why;
    int rc = request_parse(&x, reader, line->text, line->bytes, line->number, &why);
    if (!rc)
        rc = request_encode(&x, reader, &why);
    if (!rc)
        rc = add_item(in, &x, limit, &why);
    request_free(&x);
    if (rc)
        cli_fail(0, "%s: line %" PRIu64 ": %s", reader->o->prompts, line->number, why.message);
    return rc == -ENOMEM ? CLI_FAILED : 0;
}

int job_model_open(struct cli_model *m, const char *path)
{
    struct spw_error err = {0};
    int code = cli_model_open(m, path, false);
    if (code)
        return code;
    int rc = m->source->ops->tokenizer(m->source, &m->tokenizer, &err);
    if (rc == -ENOENT)
        return cli_note("%s, so lines need \"tokens\", and answers are token ids", err.text);
    if (rc)
        cli_model_close(m);
    return rc ? cli_fail_error(rc, &err, true) : 0;
}

int job_read_prompts(struct cli_inputs *in, const struct cli_options *o, const struct cli_model *m)
{
    char folder[4096];
    struct cli_options with_search = *o;
    struct request_reader reader = {
        .o = &with_search, .model = m, .folder = folder, .started = time(NULL)};
    struct job_lines lines;
    struct job_line line;
    const uint64_t limit = cli_longest_context(o, m);
    int refused = cli_refuse_audio(m);
    if (refused)
        return refused;
    cli_obey_search(&with_search, m);
    int rc = job_lines_open(&lines, o->prompts), code = 0;
    job_lines_folder(folder, o->prompts);
    while (!rc && !code && (rc = job_lines_next(&lines, &line)) == 1) {
        rc = 0;
        if (!job_line_is_blank(&line))
            code = read_line(in, &reader, &line, limit);
    }
    job_lines_close(&lines);
    request_reader_close(&reader);
    if (rc)
        code = cli_fail(CLI_REFUSED, "%s: %s", o->prompts, strerror(-rc));
    if (!code && !in->n)
        code = cli_fail(CLI_REFUSED,
                        "%s: found no line that can be answered, expected at least "
                        "one",
                        o->prompts);
    return code;
}
