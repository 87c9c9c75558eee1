/* `spillway tokenize`: text to ids, and ids to text. */
#include "tools/command/input/input.h"
#include "tools/command/output/report.h"

#include <stdlib.h>
#include <string.h>

static int read_text(const struct cli_options *o, const struct spw_tokenizer *t, int32_t **ids,
                     size_t *n)
{
    if (o->text)
        return cli_encode(t, "--text", o->text, strlen(o->text), !o->no_special, ids, n);
    return cli_encode_file(t, o->text_file, !o->no_special, ids, n);
}

static int print_ids(const struct cli_options *o, const struct spw_tokenizer *t, const int32_t *ids,
                     size_t n)
{
    if (!o->json) {
        for (size_t i = 0; i < n; i++)
            printf("%s%d", i ? " " : "", (int)ids[i]);
        putchar('\n');
        return 0;
    }
    const struct cli_field fields[] = {
        {"n_tokens", CLI_JSON(n)},
        {"ids", cli_report_tokens(ids, n)},
        {"tokens", cli_report_names(t, ids, n)},
    };
    return cli_print_json(CLI_OBJECT(fields));
}

static int print_text(const struct cli_options *o, const struct spw_tokenizer *t,
                      const int32_t *ids, size_t n)
{
    char *text;
    size_t bytes;
    int rc = spw_tokenizer_decode(t, ids, n, o->no_special, &text, &bytes);
    if (rc < 0)
        return cli_fail(CLI_FAILED, "--decode: %s", strerror(-rc));
    int code = 0;
    if (o->json) {
        const struct cli_field fields[] = {{"text", json_stringn(text, bytes)}};
        code = cli_print_json(CLI_OBJECT(fields));
    } else
        fwrite(text, 1, bytes, stdout); /* every byte is text: no newline is added */
    spw_free(text);
    return code;
}

/* Refuses ids that are no token of the tokenizer. */
static int check_known(const struct cli_options *o, const struct spw_tokenizer *t,
                       const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!spw_tokenizer_token(t, ids[i]))
            return cli_fail(
                CLI_REFUSED,
                "%s: token %zu: found id %d, which is no token of the tokenizer; all of "
                "its ids are below %u",
                o->token_ids, i + 1, ids[i], spw_tokenizer_vocab_size(t));
    return 0;
}

static int open_tokenizer(struct spw_tokenizer **out, const char *path)
{
    struct spw_error err = {0};
    struct spw_source *source;
    int rc = spw_source_open(&source, path, &err);
    if (rc == 0)
        rc = source->ops->tokenizer(source, out, &err);
    spw_source_close(source);
    return rc < 0 ? cli_fail_error(rc, &err, true) : 0;
}

int cli_tokenize(const struct cli_options *o)
{
    static const char *const sources[] = {"text", "text-file", "token-ids", NULL};
    struct spw_tokenizer *t;
    const char *source;
    int32_t *ids = NULL;
    size_t n = 0;
    int code = cli_one_of(o, sources, false, &source);
    if (code)
        return code;
    if (o->decode != (o->token_ids != NULL))
        return cli_fail(CLI_REFUSED,
                        o->decode ? "--decode: found --%s, expected --token-ids"
                                  : "--%s: found without --decode, expected both",
                        source);
    code = open_tokenizer(&t, o->operand);
    if (code)
        return code;
    code = o->decode ? cli_read_ids(o->token_ids, &ids, &n) : read_text(o, t, &ids, &n);
    if (code == 0 && o->decode)
        code = check_known(o, t, ids, n);
    if (code == 0)
        code = o->decode ? print_text(o, t, ids, n) : print_ids(o, t, ids, n);
    spw_free(ids);
    spw_tokenizer_close(t);
    return code;
}
