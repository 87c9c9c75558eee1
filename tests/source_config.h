/* The config of the model at a path, by way of its source. */
#ifndef SPW_TESTS_SOURCE_CONFIG_H
#define SPW_TESTS_SOURCE_CONFIG_H

#include "model/source/source.h"

static inline int source_config(struct spw_model_config *out, const char *path,
                                struct spw_error *err)
{
    struct spw_source *source;
    *out = (struct spw_model_config){0};
    SPW_TRY(spw_source_open(&source, path, err));
    int rc = source->ops->config(source, out, err);
    spw_source_close(source);
    return rc;
}

#endif
