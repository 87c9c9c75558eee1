/* A Hugging Face folder as a model source: config.json, *.safetensors, tokenizer.json, the files of
 * chat templates. */
#ifndef SPW_MODEL_SOURCE_SOURCE_FOLDER_H
#define SPW_MODEL_SOURCE_SOURCE_FOLDER_H

#include "model/source/source.h"

extern const struct spw_source_ops spw_source_folder;

#endif
