/* Renders and encodes a conversation, and stores the marks of replies: see chat_prompt.h.
 *
 *   text    [---- prompt 1 ----][reply 1][-- prompt 2, new part --][reply 2]
 *   tokens  [..................][.......][.......................][.......]
 *                                       ^ mark                             ^ mark
 *
 * A mark says that the text up to it and the tokens up to it belong together. The next rendering is
 * compared with the old text. The last mark before the first change is where the tokens of the new
 * encoding replace the old ones. This is correct only if the encoding has a border there: the
 * encoding of the text up to the mark must be the beginning of the encoding of the whole text. */
#include "tools/command/chat/chat_prompt.h"

#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

struct mark {
    size_t text_end, token_end;
};

struct cli_prompt {
    struct spw_chat_template *template; /* owned */
    const struct cli_model *model;
    struct spw_reasoning_form form;
    bool is_open;            /* the rendered text ends inside reasoning */
    char *tools, *documents; /* owned: JSON texts, or NULL */
    size_t tools_bytes, documents_bytes;
    char *text; /* owned: the latest rendered text and its reply */
    size_t n_text;
    int32_t *tokens; /* owned */
    size_t n_tokens;
    struct mark *marks; /* owned, in order */
    size_t n_marks;
};

/* ---- opening ---- */

/* Reads a JSON file for the template. The template gets the text of the file; parsing it here gives
 * errors that name the file. */
static int read_list(const char *path, char **text, size_t *bytes)
{
    json_t *list;
    if (!path)
        return 0;
    int code = cli_read_file(path, text, bytes);
    if (code)
        return code;
    code = cli_json_parse(&list, *text, *bytes, path);
    if (!code && !json_is_array(list))
        code = cli_fail(CLI_REFUSED, "%s: found no JSON list, expected one", path);
    json_decref(list);
    return code;
}

int cli_prompt_open(struct cli_prompt **out, const struct cli_options *o,
                    const struct cli_model *model)
{
    struct spw_error err = {0};
    struct cli_prompt *p = *out = spw_alloc_zero(1, sizeof *p);
    if (!p)
        return cli_fail(CLI_FAILED, "out of memory");
    p->model = model;
    int rc = cli_chat_template_open(&p->template, o, model, &err);
    int code = 0;
    if (rc == -ENOENT)
        code =
            cli_fail(CLI_REFUSED, "%s; 'spillway generate' continues a text without one", err.text);
    else if (rc < 0)
        code = cli_fail_error(rc, &err, true);
    if (code == 0 && spw_reasoning_find(&p->form, p->template, model->tokenizer) < 0)
        code = cli_fail(CLI_FAILED, "out of memory");
    if (code == 0)
        code = read_list(o->tools, &p->tools, &p->tools_bytes);
    if (code == 0)
        code = read_list(o->documents, &p->documents, &p->documents_bytes);
    if (code) {
        cli_prompt_close(p);
        *out = NULL;
    }
    return code;
}

void cli_prompt_close(struct cli_prompt *p)
{
    if (!p)
        return;
    spw_chat_template_close(p->template);
    spw_free(p->tools);
    spw_free(p->documents);
    spw_free(p->text);
    spw_free(p->tokens);
    spw_free(p->marks);
    spw_free(p);
}

/* ---- rendering ---- */

int cli_chat_render(const struct spw_chat_template *t, const json_t *messages, time_t now,
                    const struct spw_chat_request *variables, char **text, size_t *bytes,
                    struct spw_error *err)
{
    struct tm local;
    char *json = spw_json_dump(messages, JSON_COMPACT | JSON_PRESERVE_ORDER);
    if (!json)
        return spw_fail(err, -ENOMEM, "out of memory");
    struct spw_chat_request request = *variables;
    request.messages_json = json;
    request.messages_bytes = strlen(json);
    request.now = localtime_r(&now, &local);
    int rc = spw_chat_template_render(t, &request, text, bytes, err);
    spw_free(json);
    return rc;
}

static int render(const struct cli_prompt *p, const json_t *messages, char **text, size_t *bytes)
{
    struct spw_error err = {0};
    const struct spw_chat_request variables = {
        .tools_json = p->tools,
        .tools_bytes = p->tools_bytes,
        .documents_json = p->documents,
        .documents_bytes = p->documents_bytes,
        .add_generation_prompt = true,
    };
    int rc = cli_chat_render(p->template, messages, time(NULL), &variables, text, bytes, &err);
    return rc < 0 ? cli_fail_error(rc, &err, true) : 0;
}

static bool same_tokens(const int32_t *a, const int32_t *b, size_t n)
{
    return n == 0 || memcmp(a, b, n * sizeof *a) == 0;
}

/* Joins the tokens before the mark with those of `ids` after the mark. 1 if done, 0 if no token of
 * `ids` begins at the mark, or -ENOMEM. */
static int splice(const struct cli_prompt *p, const struct mark *m, int32_t **ids, size_t *n)
{
    int32_t *before;
    size_t n_before;
    if (m->token_end <= *n && same_tokens(*ids, p->tokens, m->token_end))
        return 1;
    if (cli_encode(p->model->tokenizer, "chat template", p->text, m->text_end, false, &before,
                   &n_before))
        return 0;
    bool border = n_before <= *n && same_tokens(*ids, before, n_before);
    spw_free(before);
    if (!border)
        return 0;
    size_t n_behind = *n - n_before;
    int32_t *both = spw_alloc_zero(m->token_end + n_behind, sizeof *both);
    if (!both)
        return -ENOMEM;
    memcpy(both, p->tokens, m->token_end * sizeof *both);
    memcpy(both + m->token_end, *ids + n_before, n_behind * sizeof *both);
    spw_free(*ids);
    *ids = both;
    *n = m->token_end + n_behind;
    return 1;
}

/* Counts the marks that are still true for the new text, and takes the tokens that belong to the
 * last of them. */
static int keep_marks(const struct cli_prompt *p, const char *text, size_t bytes, int32_t **ids,
                      size_t *n, size_t *n_marks)
{
    for (*n_marks = p->n_marks; *n_marks > 0; --*n_marks) {
        const struct mark *m = &p->marks[*n_marks - 1];
        if (m->text_end > bytes || memcmp(text, p->text, m->text_end) != 0)
            continue;
        int rc = splice(p, m, ids, n);
        if (rc)
            return rc < 0 ? rc : 0;
    }
    return 0;
}

int cli_prompt_render(struct cli_prompt *p, const json_t *messages, const int32_t **tokens,
                      size_t *n)
{
    char *text;
    size_t bytes, n_ids, n_marks;
    int32_t *ids;
    int code = render(p, messages, &text, &bytes);
    if (code)
        return code;
    code = cli_encode(p->model->tokenizer, "chat template", text, bytes, false, &ids, &n_ids);
    if (code == 0)
        code = cli_check_ids("chat template", ids, n_ids, p->model->config.vocab);
    if (code == 0 && keep_marks(p, text, bytes, &ids, &n_ids, &n_marks) < 0)
        code = cli_fail(CLI_FAILED, "out of memory");
    if (code) {
        spw_free(text);
        spw_free(ids);
        return code;
    }
    spw_free(p->text);
    spw_free(p->tokens);
    p->text = text;
    p->n_text = bytes;
    *tokens = p->tokens = ids;
    *n = p->n_tokens = n_ids;
    p->n_marks = n_marks;
    p->is_open = spw_reasoning_is_open(&p->form, text, bytes);
    return 0;
}

const struct spw_reasoning_form *cli_prompt_form(const struct cli_prompt *p)
{
    return &p->form;
}

bool cli_prompt_is_open(const struct cli_prompt *p)
{
    return p->is_open;
}

/* ---- replies ---- */

/* Counts the generated tokens that make exactly the reply: a stop text or an interruption may have
 * cut off the last ones. SIZE_MAX if no number of tokens makes the reply. */
static size_t tokens_of_reply(const struct cli_prompt *p, const struct spw_result *r,
                              const char *reply, size_t bytes)
{
    struct spw_detokenizer *d;
    const char *text;
    size_t n, n_out = 0, found = SIZE_MAX;
    if (spw_detokenizer_init(&d, p->model->tokenizer, true) < 0)
        return SIZE_MAX;
    spw_detokenizer_show(d, p->form.specials.ids, p->form.specials.n);
    for (size_t i = 0; i < p->n_tokens; i++)
        if (spw_detokenizer_push(d, p->tokens[i], &text, &n) < 0)
            goto end;
    for (size_t i = 0; i < r->n_tokens && n_out < bytes; i++) {
        if (spw_detokenizer_push(d, r->tokens[i], &text, &n) < 0 || n > bytes - n_out ||
            (n > 0 && memcmp(reply + n_out, text, n) != 0))
            goto end;
        n_out += n;
        if (n_out == bytes)
            found = i + 1;
    }
end:
    spw_detokenizer_free(d);
    return found;
}

int cli_prompt_keep(struct cli_prompt *p, const struct spw_result *r, const char *reply,
                    size_t bytes)
{
    /* the template writes the token that ends a turn */
    size_t n = r->finish == SPW_FINISH_EOS      ? r->n_tokens - 1
               : r->finish == SPW_FINISH_LENGTH ? r->n_tokens
                                                : tokens_of_reply(p, r, reply, bytes);
    if (n == SIZE_MAX)
        return 0;
    SPW_TRY(spw_resize(&p->text, p->n_text + bytes + 1, 1));
    SPW_TRY(spw_resize(&p->tokens, p->n_tokens + n, sizeof *p->tokens));
    SPW_TRY(spw_resize(&p->marks, p->n_marks + 1, sizeof *p->marks));
    if (bytes > 0)
        memcpy(p->text + p->n_text, reply, bytes);
    if (n > 0)
        memcpy(p->tokens + p->n_tokens, r->tokens, n * sizeof *p->tokens);
    p->n_text += bytes;
    p->n_tokens += n;
    p->marks[p->n_marks++] = (struct mark){p->n_text, p->n_tokens};
    return 0;
}
