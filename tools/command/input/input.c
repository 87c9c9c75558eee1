/* Files, texts and token ids: see input.h. */
#include "tools/command/input/input.h"
#include "tools/command/input/speech.h"
#include "tools/command/input/text.h"

#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

/* Far more text than a model has positions for. Stops reading a device that never ends, before
 * memory runs out. */
#define MOST_BYTES ((size_t)1 << 30)

const char *cli_input_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "stdin" : path;
}

int cli_read_file(const char *path, char **data, size_t *bytes)
{
    bool from_stdin = strcmp(path, "-") == 0;
    FILE *file = from_stdin ? stdin : fopen(path, "rb");
    *data = NULL;
    *bytes = 0;
    path = cli_input_name(path);
    if (!file)
        return cli_fail(CLI_REFUSED, "%s: %s", path, strerror(errno));
    int code = 0;
    size_t capacity = 0, n = 1;
    char *text = NULL;
    while (n > 0 && !feof(file)) { /* on a terminal one Ctrl-D ends the text */
        if (spw_grow(&text, &capacity, *bytes + (1 << 12), 1)) {
            code = cli_fail(CLI_FAILED, "%s: no memory for its text", path);
            break;
        }
        n = fread(text + *bytes, 1, capacity - *bytes - 1, file);
        *bytes += n;
        if (*bytes >= MOST_BYTES) {
            code = cli_fail(CLI_REFUSED, "%s: found 1 GiB or more, expected less", path);
            break;
        }
    }
    if (code == 0 && ferror(file))
        code = cli_fail(CLI_REFUSED, "%s: %s", path, strerror(errno));
    if (!from_stdin)
        fclose(file);
    if (code) {
        spw_free(text);
        return code;
    }
    text[*bytes] = 0;
    *data = text;
    cli_drop_mark(text, bytes);
    return 0;
}

static int refuse_id(const char *path, const char *at, const char *start)
{
    char found[24];
    snprintf(found, sizeof found, "%.*s", (int)spw_min_u64(strcspn(at, " ,\t\r\n"), 20), at);
    return cli_fail(CLI_REFUSED,
                    "%s: byte %zu: found '%s', expected token ids separated by spaces, commas or "
                    "lines",
                    path, (size_t)(at - start), found);
}

/* Reads the ids in `text`, which may be a list in brackets. `ids` has room for one id in every two
 * bytes. */
static int parse_ids(const char *path, const char *text, size_t bytes, int32_t *ids, size_t *n)
{
    static const char between[] = " ,\t\r\n";
    const char *at = text + strspn(text, between), *end = text + bytes;
    bool brackets = *at == '[';
    at += brackets;
    for (at += strspn(at, between); at < end; at += strspn(at, between)) {
        if (brackets && *at == ']' && at[1 + strspn(at + 1, between)] == 0)
            return 0;
        size_t digits = strspn(at, "0123456789");
        uint64_t id = strtoull(at, NULL, 10);
        char next = at[digits];
        bool ends = next == 0 || strchr(between, next) || (brackets && next == ']');
        if (digits == 0 || digits > 10 || id > INT32_MAX || !ends ||
            (next == 0 && at + digits < end))
            return refuse_id(path, at, text);
        ids[(*n)++] = (int32_t)id;
        at += digits;
    }
    return brackets ? refuse_id(path, end, text) : 0;
}

int cli_read_ids(const char *path, int32_t **ids, size_t *n)
{
    char *text;
    size_t bytes;
    *ids = NULL;
    *n = 0;
    int code = cli_read_file(path, &text, &bytes);
    if (code)
        return code;
    path = cli_input_name(path);
    *ids = spw_alloc_zero(bytes / 2 + 1, sizeof **ids);
    code = *ids ? parse_ids(path, text, bytes, *ids, n) : cli_fail(CLI_FAILED, "out of memory");
    if (code == 0 && *n == 0)
        code = cli_fail(CLI_REFUSED, "%s: found no token ids, expected at least one", path);
    spw_free(text);
    if (code) {
        spw_free(*ids);
        *ids = NULL;
    }
    return code;
}

int cli_encode_spans(const struct spw_tokenizer *t, const struct spw_encoding *e, int32_t **ids,
                     size_t *n, struct spw_error *err)
{
    struct spw_encoding heard = *e;
    heard.stopped = cli_interrupted;
    *ids = NULL;
    spw_error_clear(err);
    if (e->bytes == 0)
        return spw_fail(err, -EINVAL, "found an empty text, expected at least one character");
    SPW_TRY(spw_tokenizer_encode_spans(t, &heard, ids, n, err));
    if (*n > 0)
        return 0;
    spw_free(*ids);
    *ids = NULL;
    return spw_fail(err, -EINVAL, "found a text without tokens, expected at least one");
}

int cli_encode(const struct spw_tokenizer *t, const char *source, const char *text, size_t bytes,
               bool add_special, int32_t **ids, size_t *n)
{
    struct spw_error err = {0};
    const struct spw_encoding e = {.text = text, .bytes = bytes, .add_special = add_special};
    int rc = cli_encode_spans(t, &e, ids, n, &err);
    if (rc == -ECANCELED)
        return cli_fail_error(rc, &err, true);
    return rc ? cli_fail(rc == -ENOMEM ? CLI_FAILED : CLI_REFUSED, "%s: %s", source,
                         err.text[0] ? err.text : strerror(-rc))
              : 0;
}

int cli_encode_file(const struct spw_tokenizer *t, const char *path, bool add_special,
                    int32_t **ids, size_t *n)
{
    char *text;
    size_t bytes;
    int code = cli_read_file(path, &text, &bytes);
    if (code)
        return code;
    code = cli_encode(t, cli_input_name(path), text, bytes, add_special, ids, n);
    spw_free(text);
    return code;
}

int cli_check_stops(const struct cli_options *o, const struct spw_tokenizer *t)
{
    int code = 0;
    for (size_t i = 0; i < o->stop.n && !code; i++) {
        const char *text = o->stop.items[i];
        int32_t *ids = NULL;
        size_t n;
        code = cli_encode(t, "--stop", text, strlen(text), false, &ids, &n);
        spw_free(ids);
    }
    return code;
}

int cli_check_ids(const char *source, const int32_t *ids, size_t n, uint32_t vocab)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= vocab)
            return cli_fail(CLI_REFUSED, "%s: token %zu: found id %d, expected 0 to %u", source,
                            i + 1, ids[i], vocab - 1);
    return 0;
}

void cli_say_unnamed(const struct cli_model *m, const int32_t *tokens, size_t n)
{
    size_t n_unnamed = 0, last = 0;
    for (size_t i = 0; i < n; i++)
        if (!spw_tokenizer_token(m->tokenizer, tokens[i])) {
            n_unnamed++;
            last = i;
        }
    if (n_unnamed)
        cli_fail(0,
                 "%zu of the %zu new tokens, such as id %d, have no text in the tokenizer and are "
                 "not printed; is it this model's tokenizer?",
                 n_unnamed, n, tokens[last]);
}

int cli_one_of(const struct cli_options *o, const char *const *names, bool optional,
               const char **out)
{
    char list[160] = "";
    *out = NULL;
    for (size_t i = 0; names[i]; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s--%s",
                 i == 0         ? ""
                 : names[i + 1] ? ", "
                                : " or ",
                 names[i]);
        if (!cli_given(o, names[i]))
            continue;
        if (*out)
            return cli_fail(CLI_REFUSED, "found both --%s and --%s, expected one of them", *out,
                            names[i]);
        *out = names[i];
    }
    if (!*out && !optional)
        return cli_fail(CLI_REFUSED, "%s: found no input, expected %s", o->command->name, list);
    return 0;
}

int cli_model_open(struct cli_model *m, const char *path, bool with_tokenizer)
{
    struct spw_error err = {0};
    *m = (struct cli_model){0};
    int rc = spw_source_open(&m->source, path, &err);
    if (rc == 0)
        rc = m->source->ops->config(m->source, &m->config, &err);
    if (rc == 0 && with_tokenizer)
        rc = m->source->ops->tokenizer(m->source, &m->tokenizer, &err);
    if (rc == 0)
        return 0;
    cli_model_close(m);
    return cli_fail_error(rc, &err, true);
}

void cli_model_close(struct cli_model *m)
{
    spw_tokenizer_close(m->tokenizer);
    spw_config_free(&m->config);
    spw_source_close(m->source);
    *m = (struct cli_model){0};
}

int cli_refuse_encoder(const struct cli_model *m, const char *what)
{
    if (!m->config.n_source_layers)
        return 0;
    return cli_fail(CLI_REFUSED,
                    "%s: the model (%s) has an encoder that reads the prompt, expected a model "
                    "without an encoder",
                    what, m->config.model_type);
}

int cli_refuse_audio(const struct cli_model *m)
{
    if (!m->config.n_mels)
        return 0;
    return cli_fail(
        CLI_REFUSED,
        "the model (%s) listens to audio, expected 'generate --input-file FILE.wav', or "
        "'batch' with lines of \"file\"",
        m->config.model_type);
}

int cli_chat_template_open(struct spw_chat_template **out, const struct cli_options *o,
                           const struct cli_model *m, struct spw_error *err)
{
    const struct spw_source_ops *ops = m->source->ops;
    if (o->chat_template)
        return ops->chat_template(m->source, NULL, o->chat_template, out, err);
    int rc = ops->chat_template(m->source, NULL, NULL, out, err);
    if (rc != -ENOENT)
        return rc;
    spw_error_clear(err);
    return spw_fail(err, rc,
                    "%s: found no chat template, expected one (chat_template.jinja or "
                    "tokenizer_config.json of a folder, tokenizer.chat_template of a GGUF file); "
                    "--chat-template FILE.jinja gives one",
                    m->source->path);
}

/* ---- prompts ---- */

static int read_one(struct cli_input *in, const struct cli_options *o, const struct cli_model *m,
                    const char *source)
{
    if (strcmp(source, "prompt-tokens") == 0) {
        in->n_tokens = (size_t)o->prompt_tokens;
        return 0;
    }
    if (strcmp(source, "token-ids") == 0)
        return cli_read_ids(o->token_ids, &in->tokens, &in->n_tokens);
    const bool special = !o->input_file; /* behind a source the answer has begun */
    if (strcmp(source, "prompt") == 0)
        return cli_encode(m->tokenizer, "--prompt", o->prompt, strlen(o->prompt), special,
                          &in->tokens, &in->n_tokens);
    return cli_encode_file(m->tokenizer, o->prompt_file, special, &in->tokens, &in->n_tokens);
}

static int read_single(struct cli_inputs *in, const struct cli_options *o,
                       const struct cli_model *m, const char *source)
{
    in->items = spw_alloc_zero(1, sizeof *in->items);
    if (!in->items)
        return cli_fail(CLI_FAILED, "out of memory");
    in->n = 1;
    struct cli_input *item = &in->items[0];
    item->max_new_tokens = o->max_new_tokens;
    int code = source ? read_one(item, o, m, source) : 0;
    const char *where = o->token_ids ? o->token_ids : o->prompt ? "--prompt" : o->prompt_file;
    if (code == 0 && item->tokens)
        code = cli_check_ids(
            where, item->tokens, item->n_tokens,
            spw_config_vocab(&m->config, m->config.n_source_layers && !o->input_file));
    if (code == 0 && o->input_file)
        code = cli_add_source(item, o, m);
    else if (code == 0 && item->tokens)
        code = cli_refuse_audio(m);
    return code;
}

static uint64_t needed_by(const struct cli_input *item)
{
    return item->n_tokens + item->max_new_tokens;
}

uint64_t cli_longest_context(const struct cli_options *o, const struct cli_model *m)
{
    return o->context ? o->context : o->allow_long_context ? UINT64_MAX / 4 : m->config.reach;
}

void cli_say_summarize(const struct cli_options *o, const struct cli_model *m, size_t n_tokens)
{
    if (o->prompt_file && !o->allow_long_context && n_tokens > m->config.reach)
        cli_fail(0,
                 "%s: found %zu tokens, the model knows only %llu; 'spillway summarize' reads a "
                 "text of any length, in parts",
                 cli_input_name(o->prompt_file), n_tokens, (unsigned long long)m->config.reach);
}

/* If the user gave no --max-new-tokens, a long prompt makes the number of new tokens smaller. */
static int fit(struct cli_inputs *in, const struct cli_options *o, const struct cli_model *m)
{
    uint64_t limit = cli_longest_context(o, m);
    struct cli_input *item = &in->items[0];
    const uint64_t n_source = item->tokens ? spw_source_length(item->tokens, item->n_tokens) : 0;
    item->max_new_tokens =
        cli_max_new_tokens(o, &m->config, n_source ? item->n_tokens - n_source : 1);
    if (!cli_given(o, "max-new-tokens") && item->n_tokens < limit)
        item->max_new_tokens = spw_min_u64(item->max_new_tokens, limit - item->n_tokens);
    if (!cli_given(o, "max-new-tokens") && m->config.stack_positions)
        item->max_new_tokens = spw_min_u64(item->max_new_tokens, m->config.stack_positions);
    in->longest = needed_by(item);
    cli_say_summarize(o, m, item->n_tokens);
    if (in->longest > limit && !o->context && item->speech && item->n_tokens < limit)
        return cli_fail(CLI_REFUSED,
                        "--max-new-tokens: found %llu, expected at most %llu: the model has %llu "
                        "positions for an answer, which begins with %llu tokens",
                        (unsigned long long)item->max_new_tokens,
                        (unsigned long long)(limit - item->n_tokens),
                        (unsigned long long)m->config.stack_positions,
                        (unsigned long long)(item->n_tokens - n_source));
    if (in->longest > limit && !o->context && item->n_tokens < limit)
        return cli_fail(CLI_REFUSED,
                        "--max-new-tokens: found %llu, expected at most %llu: the model was made "
                        "for %llu tokens, and the prompt has %zu%s",
                        (unsigned long long)item->max_new_tokens,
                        (unsigned long long)(limit - item->n_tokens), (unsigned long long)limit,
                        item->n_tokens,
                        m->config.stack_positions ? "" : "; --allow-long-context allows more");
    if (in->longest > limit && o->context)
        return cli_fail(CLI_REFUSED,
                        "--context: found %llu, expected at least %llu: %zu prompt tokens and "
                        "%llu new ones",
                        (unsigned long long)o->context, (unsigned long long)in->longest,
                        item->n_tokens, (unsigned long long)item->max_new_tokens);
    return 0;
}

int cli_inputs_read(struct cli_inputs *in, const struct cli_options *o, const struct cli_model *m,
                    bool optional)
{
    static const char *const texts[] = {"prompt", "prompt-file", "token-ids", "prompts", NULL};
    static const char *const lengths[] = {"prompt",  "prompt-file",   "token-ids",
                                          "prompts", "prompt-tokens", NULL};
    const char *const *sources = optional ? lengths : texts, *source;
    *in = (struct cli_inputs){0};
    if (o->prompts && o->input_file)
        return cli_fail(CLI_REFUSED, "found both --prompts and --input-file, expected one of them");
    int code = cli_one_of(o, sources, optional || o->input_file, &source);
    if (code || (!source && !o->input_file) || (source && strcmp(source, "prompts") == 0))
        return code;
    code = read_single(in, o, m, source);
    if (code == 0)
        code = fit(in, o, m);
    if (code)
        cli_inputs_free(in);
    return code;
}

void cli_inputs_free(struct cli_inputs *in)
{
    for (size_t i = 0; i < in->n; i++) {
        spw_free(in->items[i].tokens);
        if (in->items[i].speech)
            cli_speech_close(in->items[i].speech);
        spw_free(in->items[i].speech);
    }
    spw_free(in->items);
    *in = (struct cli_inputs){0};
}
