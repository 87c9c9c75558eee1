/* Which format a model has: see source.h. */
#include "model/source/source_folder.h"

int spw_source_open(struct spw_source **out, const char *path, struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_source *s = *out = spw_alloc_zero(1, sizeof *s);
    if (s && (s->path = spw_strdup(path))) {
        s->ops = &spw_source_folder;
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
