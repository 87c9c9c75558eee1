/* A GGUF model: every part comes out of the file. See source.h. Each call reads the header again:
 * it takes some milliseconds, and nothing stays open between the calls. */
#include "model/source/gguf_model.h"
#include "model/source/source.h"
#include "model/text/tokenizer/tokenizer_gguf.h"

#include <string.h>

/* The text of an error of the file itself, unless there is one already. */
static int explain(const struct spw_source *s, int rc, struct spw_error *err)
{
    if (rc == -ENOENT || rc == -ENOTDIR)
        spw_fail(err, rc, "%s: found no such file, expected a GGUF file", s->path);
    return rc;
}

static int open_file(const struct spw_source *s, struct spw_gguf_file *f, struct spw_error *err)
{
    spw_error_clear(err);
    return explain(s, spw_gguf_open(f, s->path, err), err);
}

static int gguf_config(const struct spw_source *s, struct spw_model_config *out,
                       struct spw_error *err)
{
    struct spw_gguf_file f;
    *out = (struct spw_model_config){0};
    SPW_TRY(open_file(s, &f, err));
    int rc = spw_gguf_read_config(out, &f, s->path, err);
    rc = spw_gguf_close(&f, s->path, rc, err);
    if (rc)
        spw_config_free(out);
    return rc;
}

static int gguf_tensors(const struct spw_source *s, struct spw_tensors **out, struct spw_error *err)
{
    spw_error_clear(err);
    return explain(s, spw_gguf_open_tensors(out, s->path, err), err);
}

static int gguf_add_mtp(const struct spw_source *s, struct spw_model_config *config,
                        struct spw_tensors *t, struct spw_error *err)
{
    spw_error_clear(err);
    return spw_gguf_add_mtp(s->path, config, t, err);
}

static int gguf_tokenizer(const struct spw_source *s, struct spw_tokenizer **out,
                          struct spw_error *err)
{
    struct spw_gguf_file f;
    *out = NULL;
    SPW_TRY(open_file(s, &f, err));
    int rc = spw_tokenizer_parse_gguf(out, &f.gguf, s->path, err);
    rc = spw_gguf_close(&f, s->path, rc, err);
    if (rc) {
        spw_tokenizer_close(*out);
        *out = NULL;
    }
    return rc;
}

static int gguf_chat_template(const struct spw_source *s, const char *name, const char *file,
                              struct spw_chat_template **out, struct spw_error *err)
{
    struct spw_gguf_file f;
    *out = NULL;
    SPW_TRY(open_file(s, &f, err));
    int rc = spw_gguf_read_chat_template(out, &f.gguf, s->path, name, file, err);
    rc = spw_gguf_close(&f, s->path, rc, err);
    if (rc) {
        spw_chat_template_close(*out);
        *out = NULL;
    }
    return rc;
}

/* The keys of the tokenizer, one after the other. */
static int tokenizer_text(const struct spw_gguf *g, char **text, size_t *bytes)
{
    static const char prefix[] = "tokenizer.";
    for (int pass = 0; pass < 2; pass++) {
        size_t n = 0;
        for (size_t i = 0; i < g->n_values; i++) {
            const struct spw_gguf_value *v = &g->values[i];
            if (v->key.bytes < sizeof prefix - 1 || memcmp(v->key.at, prefix, sizeof prefix - 1))
                continue;
            if (pass) {
                memcpy(*text + n, v->key.at, v->key.bytes);
                memcpy(*text + n + v->key.bytes, v->at, v->bytes);
            }
            n += v->key.bytes + v->bytes;
        }
        if (!pass && !(*text = spw_alloc(n + 1)))
            return -ENOMEM;
        (*text)[n] = 0;
        *bytes = n;
    }
    return 0;
}

static int gguf_text(const struct spw_source *s, enum spw_source_part part, char **text,
                     size_t *bytes, struct spw_error *err)
{
    struct spw_gguf_file f;
    *text = NULL;
    *bytes = 0;
    SPW_TRY(open_file(s, &f, err));
    int rc = 0;
    if (part == SPW_SOURCE_CONFIG)
        rc = (*text = spw_alloc_zero(1, 1)) ? 0 : -ENOMEM;
    else if (!spw_tokenizer_gguf_is_there(&f.gguf))
        rc = spw_fail(err, -ENOENT, "%s: found no tokenizer (key tokenizer.ggml.model)", s->path);
    else
        rc = tokenizer_text(&f.gguf, text, bytes);
    if (rc == -ENOMEM)
        spw_fail(err, rc, "%s: out of memory", s->path);
    rc = spw_gguf_close(&f, s->path, rc, err);
    if (rc) {
        spw_free(*text);
        *text = NULL;
    }
    return rc;
}

const struct spw_source_ops spw_source_gguf = {
    .config = gguf_config,
    .tensors = gguf_tensors,
    .add_mtp = gguf_add_mtp,
    .tokenizer = gguf_tokenizer,
    .chat_template = gguf_chat_template,
    .text = gguf_text,
};
