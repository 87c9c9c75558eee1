/* The weights of one folder: model.safetensors, or the shards that model.safetensors.index.json
 * names, as a table of tensors. Every offset, shape and name is checked at open. Errors: -ENOENT,
 * -EINVAL (the text names file, tensor, what was found and expected), -ENOMEM. */
#ifndef SPW_MODEL_SOURCE_SAFETENSORS_H
#define SPW_MODEL_SOURCE_SAFETENSORS_H

#include "model/source/tensors_read.h"

int spw_safetensors_open(struct spw_tensors **out, const char *folder, struct spw_error *err);

/* Parses the JSON of one header (after its 8 bytes of length), for a file that has `data_bytes`
 * bytes after it. `file` is for messages. */
int spw_safetensors_parse_header(struct spw_tensor_table *out, const char *header,
                                 size_t header_bytes, uint64_t data_bytes, const char *file,
                                 struct spw_error *err);

/* The shard files that an index names, each once, sorted; and which tensor lies in which. */
struct spw_shard_index {
    struct spw_shard_entry {
        const char *tensor; /* borrowed, as `file`, from `names` */
        const char *file;   /* a plain file name of the folder */
    } * entries;            /* owned, sorted by tensor */
    size_t n;
    const char **files; /* owned */
    size_t n_files;
    char *names; /* owned */
};

int spw_safetensors_parse_index(struct spw_shard_index *out, const char *text, size_t bytes,
                                const char *file, struct spw_error *err);
void spw_safetensors_free_index(struct spw_shard_index *index);

#endif
