/* The MTP layer in a file of its own beside a GGUF model: see gguf_model.h.
 *
 *   NAME.gguf         the model: it says nothing of layers that predict further tokens
 *   mtp-OTHER.gguf    keys as those of the model, but block_count counts these layers, too; their
 *                     tensors; perhaps copies of the embedding, the last norm and the head
 *
 * The copies are not read: the layer computes with the tensors of the model. Of several such files
 * the file is taken whose OTHER is the longest beginning of NAME. If no OTHER begins NAME, the file
 * is taken whose OTHER shares the longest beginning with NAME; of equals, the first by name. */
#include "model/source/gguf_model.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

/* ---- which file ---- */

static bool is_named(const char *name)
{
    const size_t n = strlen(name), end = strlen(".gguf");
    return !strncmp(name, "mtp-", 4) && n > 4 + end && !strcmp(name + n - end, ".gguf");
}

/* How many characters OTHER agrees with the name of the model's file; WHOLE more if all do. */
static size_t n_alike(const char *name, const char *model)
{
    enum { WHOLE = 256 };
    const size_t all = strlen(name) - strlen("mtp-") - strlen(".gguf");
    size_t n = 0;
    while (n < all && name[4 + n] == model[n])
        n++;
    return n == all ? WHOLE + n : n;
}

/* Writes the name of the file into `best`; "": there is none. */
static void choose(DIR *folder, const char *model, char best[256])
{
    *best = 0;
    for (const struct dirent *entry; (entry = readdir(folder));) {
        const char *name = entry->d_name;
        if (!is_named(name) || !strcmp(name, model) || strlen(name) >= 256)
            continue;
        const size_t n = n_alike(name, model), most = *best ? n_alike(best, model) : 0;
        if (!*best || n > most || (n == most && strcmp(name, best) < 0))
            snprintf(best, 256, "%s", name);
    }
}

/* *out: the path of the file beside the model, owned by the caller; NULL: there is none. */
static int find_file(const char *model, char **out, struct spw_error *err)
{
    const char *slash = strrchr(model, '/');
    const int n = slash ? (int)(slash - model) : 0; /* characters of the folder */
    char best[256] = "";
    const size_t bytes = strlen(model) + sizeof best + 2;
    char *path = *out = spw_alloc(bytes);
    if (!path)
        return spw_fail(err, -ENOMEM, "%s: out of memory", model);
    snprintf(path, bytes, "%.*s/", slash ? n : 1, slash ? model : ".");
    DIR *folder = opendir(path);
    if (folder) {
        choose(folder, slash ? slash + 1 : model, best);
        closedir(folder);
    }
    snprintf(path + strlen(path), sizeof best, "%s", best);
    if (!*best) {
        spw_free(path);
        *out = NULL;
    }
    return 0;
}

/* ---- what is in it ---- */

/* Rows of the embedding, or tokens of the tokenizer; 0: the file does not say. */
static uint64_t vocab_of(const struct spw_gguf *g)
{
    const struct spw_gguf_value *tokens = spw_gguf_find(g, "tokenizer.ggml.tokens");
    for (size_t i = 0; i < g->tensors.n; i++)
        if (!strcmp(g->tensors.tensors[i].name, "token_embd.weight"))
            return g->tensors.tensors[i].shape[0];
    return tokens && tokens->array ? tokens->n : 0;
}

static int refuse(const char *path, const char *what, uint64_t found, uint64_t expected,
                  struct spw_error *err)
{
    return spw_fail(err, -EINVAL,
                    "%s: %s: found %llu, expected %llu, as the model has it; this file is of "
                    "another model",
                    path, what, (unsigned long long)found, (unsigned long long)expected);
}

/* *n: layers that predict further tokens. The shapes of tensors are checked later. */
static int read_keys(const struct spw_keys *keys, const struct spw_model_config *c, uint32_t *n)
{
    uint32_t n_layers = 0, hidden = 0;
    SPW_TRY(spw_keys_u32(keys, "block_count", 0, UINT32_MAX, &n_layers));
    SPW_TRY(spw_keys_u32(keys, "nextn_predict_layers", 0, n_layers, n));
    SPW_TRY(spw_keys_u32(keys, "embedding_length", 0, UINT32_MAX, &hidden));
    if (!*n)
        return spw_keys_refuse(keys, "nextn_predict_layers",
                               "the number of layers that predict further tokens (MTP)");
    if (n_layers - *n != c->n_layers)
        return refuse(keys->file, "block_count less nextn_predict_layers", n_layers - *n,
                      c->n_layers, keys->err);
    return hidden == c->hidden
               ? 0
               : refuse(keys->file, "embedding_length", hidden, c->hidden, keys->err);
}

static int check(const struct spw_gguf *g, const struct spw_gguf_architecture *a, const char *path,
                 struct spw_model_config *c, struct spw_error *err)
{
    char prefix[64];
    json_t *object;
    const uint64_t vocab = vocab_of(g);
    if (strcmp(a->model_type, c->model_type) != 0)
        return spw_fail(err, -EINVAL,
                        "%s: general.architecture: found %s, expected that of the model "
                        "(model_type %s)",
                        path, a->name, c->model_type);
    snprintf(prefix, sizeof prefix, "%s.", a->name);
    if (spw_gguf_object(g, prefix, &object))
        return spw_fail(err, -ENOMEM, "%s: out of memory", path);
    const struct spw_keys keys = {.file = path, .prefix = prefix, .object = object, .err = err};
    int rc = read_keys(&keys, c, &c->n_more_layers);
    json_decref(object);
    return rc || !vocab || vocab == c->vocab ? rc : refuse(path, "tokens", vocab, c->vocab, err);
}

/* Leaves the tensors of layers behind those of the model. */
static void keep_layers(struct spw_tensor_table *t, uint32_t first)
{
    size_t n = 0;
    unsigned layer;
    for (size_t i = 0; i < t->n; i++)
        if (sscanf(t->tensors[i].name, "model.layers.%5u.", &layer) == 1 && layer >= first)
            t->tensors[n++] = t->tensors[i];
    t->n = n;
}

static int read_file(struct spw_tensor_table *out, uint64_t *header_bytes, const uint8_t *base,
                     uint64_t bytes, const char *path, void *context, struct spw_error *err)
{
    struct spw_model_config *c = context;
    const struct spw_gguf_architecture *a;
    struct spw_gguf g;
    SPW_TRY(spw_gguf_parse(&g, base, bytes, path, err));
    int rc = spw_gguf_read_architecture(&g, path, &a, err);
    if (!rc)
        rc = check(&g, a, path, c, err);
    if (!rc)
        rc = spw_gguf_rename_all(&g.tensors, a, path, err);
    if (!rc) {
        keep_layers(&g.tensors, c->n_layers);
        *out = g.tensors;
        *header_bytes = g.header_bytes;
        g.tensors = (struct spw_tensor_table){0};
    }
    spw_gguf_free(&g);
    return rc;
}

int spw_gguf_add_mtp(const char *path, struct spw_model_config *c, struct spw_tensors *t,
                     struct spw_error *err)
{
    char *its;
    SPW_TRY(find_file(path, &its, err));
    if (!its)
        return spw_fail(err, -ENODATA,
                        "%s: found no layer that predicts further tokens (MTP) and could propose "
                        "drafts, and no file mtp-*.gguf beside it with such a layer; expected "
                        "other options.drafts",
                        path);
    int rc = spw_tensors_add(t, its, SPW_GGUF_LEAST_BYTES, read_file, c, err);
    if (!rc)
        rc = spw_tensors_merge(t, path, err);
    else if (rc == -ENOENT) /* a link to no file */
        rc = spw_fail(err, -EINVAL, "%s: %s", its, strerror(ENOENT));
    if (rc)
        spw_json_tidy(err);
    return rc;
}
