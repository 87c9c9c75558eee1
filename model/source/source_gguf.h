/* A GGUF file, or the first of several, as a model source. */
#ifndef SPW_MODEL_SOURCE_SOURCE_GGUF_H
#define SPW_MODEL_SOURCE_SOURCE_GGUF_H

#include "model/source/source.h"

extern const struct spw_source_ops spw_source_gguf;

#endif
