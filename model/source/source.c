/* Which format a model has: see source.h. */
#include "model/source/source.h"

#include <string.h>
#include <sys/stat.h>

/* A file is GGUF or nothing; its reader says what is wrong, also if a name says GGUF and no file
 * has it. Everything else is a folder. */
static const struct spw_source_ops *choose(const char *path)
{
    struct stat info;
    size_t n = strlen(path);
    bool named = n > 5 && !strcmp(path + n - 5, ".gguf");
    bool file = stat(path, &info) ? named : !S_ISDIR(info.st_mode);
    return file ? &spw_source_gguf : &spw_source_folder;
}

int spw_source_open(struct spw_source **out, const char *path, struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_source *s = *out = spw_alloc_zero(1, sizeof *s);
    if (s && (s->path = spw_strdup(path))) {
        s->ops = choose(path);
        return 0;
    }
    spw_source_close(s);
    *out = NULL;
    return spw_fail(err, -ENOMEM, "%s: out of memory", path);
}

void spw_source_close(struct spw_source *s)
{
    if (!s)
        return;
    spw_free(s->path);
    spw_free(s);
}
