/* Saved runs of `generate`: see saved.h. */
#include "tools/command/input/saved.h"

#include "quant/types.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_STOP_BYTES = 16 << 10 };

/* Options that decide which token comes next. The state has them under their own names. A run with
 * a schema is not saved. */
static bool is_saved(const struct cli_row *row)
{
    return row->commands & CLI_GENERATE && strcmp(row->group, "Generation") == 0 &&
           strcmp(row->name, "max-new-tokens") != 0 && strcmp(row->name, "n") != 0 &&
           strcmp(row->name, "json-schema") != 0;
}

int cli_saved_check(const struct cli_options *o)
{
    static const char *const inputs[] = {"prompt",  "prompt-file",   "token-ids",
                                         "prompts", "prompt-tokens", "input-file"};
    size_t bytes = 0;
    for (size_t i = 0; o->resume && i < sizeof inputs / sizeof *inputs; i++)
        if (cli_given(o, inputs[i]))
            return cli_fail(CLI_REFUSED, "found both --resume and --%s, expected one of them",
                            inputs[i]);
    if (o->prompts && o->save)
        return cli_fail(CLI_REFUSED, "found both --prompts and --save, expected one of them");
    if (o->save_every && !o->save)
        return cli_fail(CLI_REFUSED, "--save-every: found without --save, expected both");
    for (size_t i = 0; i < o->stop.n; i++)
        bytes += strlen(o->stop.items[i]);
    if (o->save && bytes > MOST_STOP_BYTES)
        return cli_fail(CLI_REFUSED, "--stop: found %zu bytes beside --save, expected at most %d",
                        bytes, MOST_STOP_BYTES);
    return 0;
}

/* ---- resuming ---- */

static int damaged(const struct cli_options *o)
{
    return cli_fail(CLI_REFUSED,
                    "%s: found a session that 'generate --save' of this version did not write",
                    o->resume);
}

/* Reads the prompt and the answer: the tokens of the session, the tokens that the session had not
 * computed yet, and the answer's hash. */
static int read_tokens(struct cli_saved *s, const struct cli_options *o)
{
    const struct spw_saved_info *info = spw_saved_info(s->file);
    const json_t *rest = json_object_get(s->state, "rest");
    const json_t *hash = json_object_get(s->state, "logits_hash");
    size_t n_rest = json_array_size(rest);
    int64_t n_prompt = json_integer_value(json_object_get(s->state, "n_prompt"));
    if (n_prompt <= 0 || (uint64_t)n_prompt > info->n_tokens + n_rest || !json_is_integer(hash))
        return damaged(o);
    s->logits_hash = (uint64_t)json_integer_value(hash);
    s->n_prompt = (size_t)n_prompt;
    s->n_given = info->n_tokens + n_rest - s->n_prompt;
    s->tokens = spw_alloc((info->n_tokens + n_rest) * sizeof *s->tokens);
    if (!s->tokens)
        return cli_fail(CLI_FAILED, "out of memory");
    memcpy(s->tokens, info->tokens, info->n_tokens * sizeof *s->tokens);
    for (size_t i = 0; i < n_rest; i++) {
        if (!json_is_integer(json_array_get(rest, i)))
            return damaged(o);
        s->tokens[info->n_tokens + i] = (int32_t)json_integer_value(json_array_get(rest, i));
    }
    return 0;
}

static int take_stops(struct cli_saved *s, struct cli_options *o, const json_t *list)
{
    const size_t n = json_array_size(list);
    s->stop = spw_alloc_zero(n + 1, sizeof *s->stop);
    if (!s->stop)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < n; i++) {
        s->stop[i] = json_string_value(json_array_get(list, i));
        if (!s->stop[i] || !*s->stop[i])
            return damaged(o);
    }
    o->stop = (struct cli_strings){s->stop, n};
    return 0;
}

static int take_biases(struct cli_saved *s, struct cli_options *o, const json_t *list)
{
    const size_t n = json_array_size(list);
    s->biases = spw_alloc_zero(n, sizeof *s->biases);
    if (!s->biases)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < n; i++) {
        double bias;
        if (json_unpack(json_array_get(list, i), "[iF]", &s->biases[i].token, &bias))
            return damaged(o);
        s->biases[i].bias = (float)bias;
    }
    o->logit_bias = (struct cli_biases){s->biases, n};
    return 0;
}

static int take_ids(const struct cli_options *o, struct cli_ids *ids, const json_t *list)
{
    *ids = (struct cli_ids){.n = json_array_size(list), .is_given = json_is_array(list)};
    if (ids->n > CLI_MAX_COUNTS || (!ids->is_given && !json_is_null(list)))
        return damaged(o);
    for (size_t i = 0; i < ids->n; i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX)
            return damaged(o);
        ids->items[i] = (int32_t)json_integer_value(id);
    }
    return 0;
}

static int take_value(struct cli_saved *s, struct cli_options *o, const struct cli_row *row,
                      const json_t *value)
{
    void *field = (char *)o + row->at;
    switch (row->kind) {
    case CLI_FLAG:
        *(bool *)field = json_is_true(value);
        return 0;
    case CLI_NUMBER:
        *(double *)field = json_real_value(value);
        return json_is_real(value) ? 0 : damaged(o);
    case CLI_COUNT:
        *(uint64_t *)field = (uint64_t)json_integer_value(value);
        return json_is_integer(value) ? 0 : damaged(o);
    case CLI_TEXTS:
        return take_stops(s, o, value);
    case CLI_IDS:
        return take_ids(o, field, value);
    default:
        return take_biases(s, o, value);
    }
}

/* An option that was given must have the value of the saved run. */
static int take_option(struct cli_saved *s, struct cli_options *o, const struct cli_row *row)
{
    const json_t *was = json_object_get(s->state, row->name);
    json_t *is = cli_value_json(o, row);
    int code = 0;
    if (cli_given(o, row->name) && !json_equal(was, is)) {
        const size_t flags = JSON_ENCODE_ANY | JSON_REAL_PRECISION(6);
        char *old = spw_json_dump(was, flags), *new = spw_json_dump(is, flags);
        code = cli_fail(CLI_REFUSED, "%s: was saved with --%s %s, found --%s %s", o->resume,
                        row->name, old ? old : "none", row->name, new ? new : "none");
        spw_free(old);
        spw_free(new);
    }
    json_decref(is);
    /* a program without the option has saved the run: the default stays */
    return code || !was ? code : take_value(s, o, row, was);
}

static const char *kv_name(int kv)
{
    return kv < CLI_KV_PRECISION
               ? spw_dtype_name((enum spw_dtype)kv)
               : spw_kv_precision_name((enum spw_kv_precision)(kv - CLI_KV_PRECISION));
}

static int refuse_type(const struct cli_options *o, const char *name, const char *was,
                       const char *is)
{
    return cli_fail(CLI_REFUSED, "%s: was saved with --%s %s, found --%s %s", o->resume, name, was,
                    name, is);
}

/* Takes over the types that decide about the bits of the answer. The engine checks them again, and
 * the model too. */
static int take_types(const struct cli_saved *s, struct cli_options *o)
{
    const struct spw_saved_info *i = spw_saved_info(s->file);
    bool exact = i->precision == SPW_KV_EXACT;
    int kv = exact ? (int)i->kv : CLI_KV_PRECISION + (int)i->precision;
    uint64_t window = i->residual_tokens ? i->residual_tokens : SPW_NONE;
    if (o->compute != SPW_DTYPE_AUTO && o->compute != (int)i->compute)
        return refuse_type(o, "compute", spw_dtype_name(i->compute),
                           spw_dtype_name((enum spw_dtype)o->compute));
    /* a precision changes nothing in a model of windows alone, which is saved as exact */
    const bool may_be_exact = exact && o->kv_dtype >= CLI_KV_PRECISION;
    if (o->kv_dtype != SPW_DTYPE_AUTO && o->kv_dtype != kv && !may_be_exact)
        return refuse_type(o, "kv-dtype", kv_name(kv), kv_name(o->kv_dtype));
    if (!exact && cli_given(o, "residual-window") &&
        spw_align_up(o->residual_window, spw_plan_tile_tokens()) != i->residual_tokens)
        return cli_fail(CLI_REFUSED, "%s: was saved with --residual-window %llu, found %llu",
                        o->resume, (unsigned long long)i->residual_tokens,
                        (unsigned long long)o->residual_window);
    o->compute = (int)i->compute;
    if (!may_be_exact)
        o->kv_dtype = kv;
    if (!exact)
        o->residual_window = window;
    if (o->device.kind == SPW_BACKEND_AUTO && strncmp(i->backend, "cpu", 3) == 0)
        o->device.kind = SPW_BACKEND_CPU;
    return 0;
}

static int take_options(struct cli_saved *s, struct cli_options *o)
{
    int code = take_types(s, o);
    for (const struct cli_row *row = cli_rows; row->name && !code; row++)
        if (is_saved(row))
            code = take_option(s, o, row);
    const json_t *most = json_object_get(s->state, "max-new-tokens");
    if (!code && (!json_is_integer(most) || json_integer_value(most) < 0))
        code = damaged(o);
    if (!code && !cli_given(o, "max-new-tokens"))
        o->max_new_tokens = (uint64_t)json_integer_value(most);
    return code;
}

int cli_saved_open(struct cli_saved *s, struct cli_options *o)
{
    struct spw_error err = {0};
    *s = (struct cli_saved){0};
    if (!o->resume)
        return 0;
    int rc = spw_saved_open(&s->file, o->resume, &err);
    if (rc)
        return cli_fail_error(rc, &err, rc != -ENOMEM);
    const struct spw_saved_info *info = spw_saved_info(s->file);
    if (info->foreign) {
        cli_fail(0, "%s: %s", o->resume, info->foreign);
        cli_saved_close(s);
        return CLI_REFUSED;
    }
    rc = spw_json_parse(&s->state, info->state, info->state_bytes, 0, NULL);
    s->n_text = (uint64_t)json_integer_value(json_object_get(s->state, "n_text"));
    int code = rc == -ENOMEM ? cli_fail(CLI_FAILED, "%s: no memory for its state", o->resume)
               : rc          ? damaged(o)
                             : read_tokens(s, o);
    if (!code)
        code = take_options(s, o);
    if (code)
        cli_saved_close(s);
    return code;
}

void cli_saved_close(struct cli_saved *s)
{
    spw_saved_close(s->file);
    json_decref(s->state);
    spw_free(s->tokens);
    spw_free(s->stop);
    spw_free(s->biases);
    *s = (struct cli_saved){0};
}

int cli_saved_input(const struct cli_saved *s, struct cli_inputs *in, const struct cli_options *o,
                    const struct cli_model *m)
{
    size_t n = s->n_prompt + s->n_given;
    uint64_t needed = s->n_prompt + o->max_new_tokens;
    *in = (struct cli_inputs){.longest = spw_max_u64(needed, n)};
    /* the batch checks those of the source */
    const uint64_t n_source =
        m->config.n_source_layers ? spw_source_length(s->tokens, s->n_prompt) : 0;
    int code = cli_check_ids(o->resume, s->tokens + n_source, n - n_source, m->config.vocab);
    if (code)
        return code;
    if (s->n_given > o->max_new_tokens)
        return cli_fail(CLI_REFUSED,
                        "--max-new-tokens: found %llu, expected at least the %zu that %s has",
                        (unsigned long long)o->max_new_tokens, s->n_given, o->resume);
    if (o->context && needed > o->context)
        return cli_fail(CLI_REFUSED,
                        "--context: found %llu, expected at least %llu: what %s has and may get",
                        (unsigned long long)o->context, (unsigned long long)needed, o->resume);
    in->items = spw_alloc_zero(1, sizeof *in->items);
    int32_t *tokens = spw_alloc(s->n_prompt * sizeof *tokens);
    if (!in->items || !tokens) {
        spw_free(tokens);
        return cli_fail(CLI_FAILED, "out of memory");
    }
    memcpy(tokens, s->tokens, s->n_prompt * sizeof *tokens);
    in->n = 1;
    in->items[0] = (struct cli_input){
        .tokens = tokens, .n_tokens = s->n_prompt, .max_new_tokens = o->max_new_tokens};
    return 0;
}

/* ---- saving ---- */

/* The tokens of prompt and answer from position `from` on. */
static json_t *tokens_from(const struct cli_progress_made *made, size_t from)
{
    const struct spw_result *r = made->result;
    json_t *list = json_array();
    for (size_t i = from; i < made->n_prompt + r->n_tokens; i++)
        cli_json_append(
            &list, CLI_JSON(i < made->n_prompt ? made->prompt[i] : r->tokens[i - made->n_prompt]));
    return list;
}

/* Adds the options that the answer depends on. */
static void add_options(json_t **s, const struct cli_options *o)
{
    for (const struct cli_row *row = cli_rows; row->name; row++)
        if (is_saved(row))
            cli_json_add(s, row->name, cli_value_json(o, row));
}

static char *make_state(const struct spw_session *session, const struct cli_options *o,
                        const struct cli_progress_made *made)
{
    const struct cli_field fields[] = {
        {"n_prompt", CLI_JSON(made->n_prompt)},
        {"rest", tokens_from(made, spw_session_n_tokens(session))},
        {"n_text", CLI_JSON(made->n_text)},
        {"logits_hash", CLI_JSON((int64_t)made->result->logits_hash)}, /* uses all 64 bits */
        {"max-new-tokens", CLI_JSON(made->max_new_tokens)},
    };
    json_t *s = CLI_OBJECT(fields);
    add_options(&s, o);
    char *text = spw_json_dump(s, JSON_COMPACT);
    json_decref(s);
    return text;
}

/* Whether each value of `mine`, the options of this run, is that of the file. */
static bool has_options(const json_t *state, json_t *mine)
{
    const char *key;
    json_t *value;
    bool same = true;
    json_object_foreach(mine, key, value) same &= json_equal(json_object_get(state, key), value);
    return same;
}

/* How many tokens of the answer the file has; -1 if the file has another run, or -ENOMEM. */
static int64_t count_same(const struct spw_saved *file, const struct cli_options *o,
                          const struct cli_input *in)
{
    const struct spw_saved_info *info = spw_saved_info(file);
    json_t *state, *mine = json_object();
    add_options(&mine, o);
    int rc = spw_json_parse(&state, info->state, info->state_bytes, 0, NULL);
    json_t *rest = json_object_get(state, "rest");
    size_t n = info->n_tokens + json_array_size(rest);
    bool same = in->n_tokens == (uint64_t)json_integer_value(json_object_get(state, "n_prompt")) &&
                n >= in->n_tokens && has_options(state, mine);
    const bool is_short = rc == -ENOMEM || !mine;
    for (size_t i = 0; same && i < in->n_tokens; i++)
        same = in->tokens[i] ==
               (i < info->n_tokens ? info->tokens[i]
                                   : json_integer_value(json_array_get(rest, i - info->n_tokens)));
    json_decref(state);
    json_decref(mine);
    return is_short ? -ENOMEM : same ? (int64_t)(n - in->n_tokens) : -1;
}

/* Refuses a file that has another run. A file that is empty, damaged, or has this run is written
 * anew. */
static int check_before(const struct spw_engine *e, const struct cli_options *o,
                        const struct cli_input *in)
{
    struct spw_saved *there = NULL;
    struct spw_error err = {0}, why = {0};
    struct stat st;
    if (stat(o->save, &st) == 0 && st.st_size == 0)
        return 0;
    int rc = spw_saved_open(&there, o->save, &err);
    if (rc == -EBADMSG)
        return cli_fail(0, "--save: %s; the file is replaced", err.text);
    if (rc)
        return cli_fail_error(rc, &err, rc != -ENOMEM);
    int64_t n = spw_saved_check(there, e, &why) ? -1 : count_same(there, o, in);
    spw_saved_close(there);
    if (n == -ENOMEM)
        return cli_fail(CLI_FAILED, "--save: %s: no memory to read it", o->save);
    if (n < 0)
        return cli_fail(CLI_REFUSED,
                        "--save: %s has another run%s%s; give another name, or remove it", o->save,
                        *why.text ? ": " : "", why.text);
    return cli_fail(
        0,
        "--save: %s has this run up to token %lld of its answer. The file is written anew; "
        "--resume %s would continue the run",
        o->save, (long long)n, o->save);
}

static bool is_resumed(const struct cli_options *o)
{
    struct stat save, resume;
    return o->resume && stat(o->save, &save) == 0 && stat(o->resume, &resume) == 0 &&
           spw_is_same_file(&save, &resume);
}

int cli_saved_open_file(struct spw_session *session, const struct spw_engine *e,
                        const struct cli_options *o, const struct cli_input *in)
{
    struct spw_error err = {0};
    int rc = spw_session_save_to(session, o->save, &err);
    if (rc)
        return cli_fail(rc == -ENOMEM ? CLI_FAILED : CLI_REFUSED, "--save: %s", err.text);
    return is_resumed(o) ? 0 : check_before(e, o, in);
}

int cli_saved_write(struct spw_session *session, const struct cli_options *o,
                    const struct cli_progress_made *made, uint64_t *written_bytes)
{
    struct spw_error err = {0};
    uint64_t written = 0;
    char *state = make_state(session, o, made);
    if (!state)
        return cli_fail(CLI_FAILED, "%s: no memory for its state", o->save);
    int rc = spw_session_save(session, o->save, state, strlen(state), &written, &err);
    *written_bytes += written;
    spw_free(state);
    return rc ? cli_fail_error(rc, &err, false) : 0;
}
