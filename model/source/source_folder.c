/* A Hugging Face folder: config.json and generation_config.json, *.safetensors, tokenizer.json, and
 * what chat_template.h lists. See source.h. */
#include "model/source/source.h"

#include "base/file.h"
#include "model/source/safetensors.h"
#include "model/text/tokenizer/tokenizer_spm.h"

#include <dirent.h>
#include <string.h>
#include <unistd.h>

#define MOST_CONFIG_BYTES ((uint64_t)16 << 20) /* far more than any model has */

static int out_of_memory(const struct spw_source *s, struct spw_error *err)
{
    return spw_fail(err, -ENOMEM, "%s: out of memory", s->path);
}

/* Reads FOLDER/NAME. *path is owned by the caller, also after a failure. -ENOENT and -ENOTDIR come
 * without a text. */
static int read_file(const struct spw_source *s, const char *name, uint64_t most, char **path,
                     char **text, size_t *bytes, struct spw_error *err)
{
    *text = NULL;
    *path = spw_file_join(s->path, name);
    return *path ? spw_file_read(*path, most, text, bytes, err) : out_of_memory(s, err);
}

/* Refuses a folder without config.json. Hugging Face's cache has each revision of a model in a
 * folder of FOLDER/snapshots: the text names that folder, or `snapshots` if there are several. */
static void refuse_folder(const struct spw_source *s, struct spw_error *err)
{
    char *snapshots = spw_file_join(s->path, "snapshots"), *revision = NULL;
    DIR *names = snapshots ? opendir(snapshots) : NULL;
    size_t n = 0;
    for (struct dirent *entry; names && (entry = readdir(names));) {
        if (entry->d_name[0] == '.')
            continue;
        spw_free(revision);
        revision = spw_file_join(snapshots, entry->d_name);
        n++;
    }
    const char *advice = n > 1 ? "; give one of the folders in " : "; give the folder ";
    const char *folder = n > 1 ? snapshots : revision;
    spw_fail(err, -ENOENT,
             "%s: found no %s, expected a Hugging Face model folder or a GGUF file%s%s", s->path,
             access(s->path, F_OK) ? "such file or folder" : "config.json there",
             folder ? advice : "", folder ? folder : "");
    if (names)
        closedir(names);
    spw_free(revision);
    spw_free(snapshots);
}

/* preprocessor_config.json of a model whose source is audio. The spectrogram is Whisper's: a file
 * that says something else is refused. */
static int check_audio(const struct spw_source *s, const struct spw_model_config *c,
                       struct spw_error *err)
{
    char *path, *text;
    size_t bytes;
    int rc = read_file(s, "preprocessor_config.json", MOST_CONFIG_BYTES, &path, &text, &bytes, err);
    rc = rc == -ENOENT ? 0 : rc ? rc : spw_config_check_audio(c, text, bytes, path, err);
    spw_free(text);
    spw_free(path);
    return rc;
}

static int folder_config(const struct spw_source *s, struct spw_model_config *out,
                         struct spw_error *err)
{
    spw_error_clear(err);
    char *config_path, *config, *generation_path = NULL, *generation = NULL;
    struct spw_config_text text = {0};
    *out = (struct spw_model_config){0};
    int rc = read_file(s, "config.json", MOST_CONFIG_BYTES, &config_path, &config,
                       &text.config_bytes, err);
    if (rc == -ENOENT)
        refuse_folder(s, err);
    if (rc == -ENOTDIR)
        spw_fail(err, rc, "%s: found a file, expected a Hugging Face model folder", s->path);
    if (!rc) {
        rc = read_file(s, "generation_config.json", MOST_CONFIG_BYTES, &generation_path,
                       &generation, &text.generation_bytes, err);
        rc = rc == -ENOENT ? 0 : rc;
    }
    text.config = config;
    text.config_name = config_path;
    text.generation = generation;
    text.generation_name = generation_path;
    if (!rc)
        rc = spw_config_parse(out, &text, err);
    if (!rc && out->n_mels && (rc = check_audio(s, out, err)))
        spw_config_free(out);
    spw_free(generation);
    spw_free(generation_path);
    spw_free(config);
    spw_free(config_path);
    return rc;
}

static int folder_tensors(const struct spw_source *s, struct spw_tensors **out,
                          struct spw_error *err)
{
    return spw_safetensors_open(out, s->path, err);
}

static bool has_file(const struct spw_source *s, const char *name)
{
    char *path = spw_file_join(s->path, name);
    const bool is_there = path && access(path, R_OK) == 0;
    spw_free(path);
    return is_there;
}

/* The SentencePiece model of the folder; NULL: it has none. */
static const char *pieces_file(const struct spw_source *s)
{
    const char *name;
    for (size_t i = 0; (name = spw_tok_spm_file(i)); i++)
        if (has_file(s, name))
            return name;
    return NULL;
}

static int folder_tokenizer(const struct spw_source *s, struct spw_tokenizer **out,
                            struct spw_error *err)
{
    int rc = spw_tokenizer_open_folder(out, s->path, err);
    if (rc == -ENOENT) {
        const char *other = pieces_file(s);
        spw_error_clear(err);
        spw_fail(err, rc, "%s/tokenizer.json: no such file%s%s%s", s->path, other ? " (" : "",
                 other ? other : "",
                 other ? " needs a vocab.json beside it, or is of a family whose tokenizer is not "
                         "known; give token ids)"
                       : "");
    }
    return rc;
}

static int folder_chat_template(const struct spw_source *s, const char *name, const char *file,
                                struct spw_chat_template **out, struct spw_error *err)
{
    return file ? spw_chat_template_open_file(out, s->path, file, err)
                : spw_chat_template_open(out, s->path, name, err);
}

/* A file that is missing adds nothing. */
static int append_file(const struct spw_source *s, const char *name, char **text, size_t *bytes,
                       struct spw_error *err)
{
    char *path, *more;
    size_t n;
    int rc = read_file(s, name, SPW_TOKENIZER_MOST_BYTES, &path, &more, &n, err);
    spw_free(path);
    if (rc)
        return rc == -ENOENT ? 0 : rc;
    char *both = spw_realloc(*text, *bytes + n + 1);
    if (both) {
        memcpy(both + *bytes, more, n + 1);
        *text = both;
        *bytes += n;
    }
    spw_free(more);
    return both ? 0 : out_of_memory(s, err);
}

static int folder_text(const struct spw_source *s, enum spw_source_part part, char **text,
                       size_t *bytes, struct spw_error *err)
{
    static const char *const others[] = {"tokenizer_config.json", "special_tokens_map.json",
                                         "added_tokens.json"};
    spw_error_clear(err);
    bool config = part == SPW_SOURCE_CONFIG;
    const char *pieces = config || has_file(s, "tokenizer.json") ? NULL : pieces_file(s);
    char *path;
    int rc =
        read_file(s,
                  config   ? "config.json"
                  : pieces ? pieces
                           : "tokenizer.json",
                  config ? MOST_CONFIG_BYTES : SPW_TOKENIZER_MOST_BYTES, &path, text, bytes, err);
    if (rc == -ENOENT || rc == -ENOTDIR)
        spw_fail(err, rc, "%s: no such file", path);
    spw_free(path);
    if (!rc && pieces)
        rc = append_file(s, "vocab.json", text, bytes, err);
    for (int i = 0; i < 3 && !rc && !config; i++)
        rc = append_file(s, others[i], text, bytes, err);
    if (rc) {
        spw_free(*text);
        *text = NULL;
    }
    return rc;
}

const struct spw_source_ops spw_source_folder = {
    .config = folder_config,
    .tensors = folder_tensors,
    .tokenizer = folder_tokenizer,
    .chat_template = folder_chat_template,
    .text = folder_text,
};
