/* The weights of one folder: model.safetensors, or the shards that model.safetensors.index.json
 * names, as a table of tensors. Every offset, shape and name is checked at open. Errors: -ENOENT,
 * -EINVAL (the text names file, tensor, what was found and expected), -ENOMEM. */
#ifndef SPW_MODEL_SOURCE_SAFETENSORS_H
#define SPW_MODEL_SOURCE_SAFETENSORS_H

#include "model/source/tensors_read.h"

#include <jansson.h>

int spw_safetensors_open(struct spw_tensors **out, const char *folder, struct spw_error *err);

/* Parses the JSON of one header (after its 8 bytes of length), for a file that has `data_bytes`
 * bytes after it. `file` is for messages. */
int spw_safetensors_parse_header(struct spw_tensor_table *out, const char *header,
                                 size_t header_bytes, uint64_t data_bytes, const char *file,
                                 struct spw_error *err);

/* Parses an index. *map is its weight_map, owned by the caller (json_decref): for each tensor the
 * name of its file, which is a plain name. */
int spw_safetensors_parse_index(json_t **map, const char *text, size_t bytes, const char *file,
                                struct spw_error *err);

#endif
