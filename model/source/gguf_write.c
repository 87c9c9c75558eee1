/* Writes GGUF: see gguf_write.h; gguf.h draws the format. */
#include "model/source/gguf_write.h"

#include "base/grow.h"
#include "quant/types.h"

#include <string.h>

void spw_gguf_note(struct spw_gguf_notes *notes, const char *text)
{
    if (notes->n < sizeof notes->at / sizeof *notes->at)
        notes->at[notes->n++] = text;
}

static void put(struct spw_gguf_writer *w, struct spw_gguf_bytes *to, const void *from, size_t n)
{
    if (w->rc || !n)
        return;
    w->rc = spw_grow(&to->at, &to->capacity, to->n + n, 1);
    if (w->rc)
        return;
    memcpy(to->at + to->n, from, n);
    to->n += n;
}

/* The machine is little-endian, like the file. */
static void put_u32(struct spw_gguf_writer *w, struct spw_gguf_bytes *to, uint32_t x)
{
    put(w, to, &x, sizeof x);
}

static void put_u64(struct spw_gguf_writer *w, struct spw_gguf_bytes *to, uint64_t x)
{
    put(w, to, &x, sizeof x);
}

static void put_string(struct spw_gguf_writer *w, struct spw_gguf_bytes *to, const char *text,
                       uint64_t n)
{
    put_u64(w, to, n);
    put(w, to, text, n);
}

/* A key, and what comes before the elements of its value. */
static void begin(struct spw_gguf_writer *w, const char *key, enum spw_gguf_type type, bool array,
                  uint64_t n)
{
    put_string(w, &w->keys, key, strlen(key));
    put_u32(w, &w->keys, array ? SPW_GGUF_ARRAY : type);
    if (array) {
        put_u32(w, &w->keys, type);
        put_u64(w, &w->keys, n);
    }
    w->n_keys++;
}

void spw_gguf_add(struct spw_gguf_writer *w, const char *key, enum spw_gguf_type type, bool array,
                  const void *values, uint64_t n)
{
    begin(w, key, type, array, n);
    put(w, &w->keys, values, n * spw_gguf_value_bytes(type));
}

void spw_gguf_add_u32(struct spw_gguf_writer *w, const char *key, uint32_t value)
{
    spw_gguf_add(w, key, SPW_GGUF_U32, false, &value, 1);
}

void spw_gguf_add_f32(struct spw_gguf_writer *w, const char *key, float value)
{
    spw_gguf_add(w, key, SPW_GGUF_F32, false, &value, 1);
}

void spw_gguf_add_bool(struct spw_gguf_writer *w, const char *key, bool value)
{
    const uint8_t byte = value;
    spw_gguf_add(w, key, SPW_GGUF_BOOL, false, &byte, 1);
}

void spw_gguf_add_string(struct spw_gguf_writer *w, const char *key, const char *value)
{
    begin(w, key, SPW_GGUF_STRING, false, 1);
    put_string(w, &w->keys, value, strlen(value));
}

void spw_gguf_add_strings(struct spw_gguf_writer *w, const char *key,
                          const struct spw_gguf_string *values, uint64_t n)
{
    begin(w, key, SPW_GGUF_STRING, true, n);
    for (uint64_t i = 0; i < n; i++)
        put_string(w, &w->keys, values[i].at, values[i].bytes);
}

void spw_gguf_add_tensor(struct spw_gguf_writer *w, const char *name, enum spw_dtype type,
                         uint32_t n_dims, const uint64_t *shape)
{
    const struct spw_gguf_tensor_type *of = spw_gguf_tensor_type_of(type);
    uint64_t elements = 1;
    if (!of) {
        w->rc = w->rc ? w->rc : -EINVAL;
        return;
    }
    put_string(w, &w->tensors, name, strlen(name));
    put_u32(w, &w->tensors, n_dims);
    for (uint32_t i = n_dims; i-- > 0; elements *= shape[i])
        put_u64(w, &w->tensors, shape[i]);
    put_u32(w, &w->tensors, of->id);
    put_u64(w, &w->tensors, w->data_bytes);
    w->data_bytes += spw_align_up(spw_row_bytes(type, elements), SPW_GGUF_ALIGNMENT);
    w->n_tensors++;
}

static int write_all(FILE *out, const void *from, size_t n)
{
    return n && fwrite(from, 1, n, out) != n ? (errno ? -errno : -EIO) : 0;
}

int spw_gguf_write_padding(FILE *out, uint64_t bytes)
{
    static const uint8_t zeros[SPW_GGUF_ALIGNMENT];
    return write_all(out, zeros, (size_t)(spw_align_up(bytes, SPW_GGUF_ALIGNMENT) - bytes));
}

int spw_gguf_write_header(const struct spw_gguf_writer *w, FILE *out)
{
    const uint32_t version = 3;
    if (w->rc)
        return w->rc;
    errno = 0;
    SPW_TRY(write_all(out, "GGUF", 4));
    SPW_TRY(write_all(out, &version, sizeof version));
    SPW_TRY(write_all(out, &w->n_tensors, sizeof w->n_tensors));
    SPW_TRY(write_all(out, &w->n_keys, sizeof w->n_keys));
    SPW_TRY(write_all(out, w->keys.at, w->keys.n));
    SPW_TRY(write_all(out, w->tensors.at, w->tensors.n));
    return spw_gguf_write_padding(out, SPW_GGUF_LEAST_BYTES + w->keys.n + w->tensors.n);
}

void spw_gguf_writer_free(struct spw_gguf_writer *w)
{
    spw_free(w->keys.at);
    spw_free(w->tensors.at);
    *w = (struct spw_gguf_writer){0};
}
