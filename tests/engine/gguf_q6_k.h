/* Writes a GGUF file again, with its Q8_0 matrices as Q6_K: `spillway quantize` has no K types. */
#ifndef SPW_TESTS_ENGINE_GGUF_Q6_K_H
#define SPW_TESTS_ENGINE_GGUF_Q6_K_H

#include "model/source/gguf.h"
#include "quant/types.h"
#include "tests/engine/gguf_folder.h"

enum { GGUF_Q6_K_NUMBERS = 256, GGUF_Q6_K_BYTES = 210, GGUF_Q6_K_PARTS = 16 };

/* The scale of a part is a whole number of steps d, and a code is a whole number of scales. */
static inline void gguf_encode_q6_k(const float *x, uint8_t *out)
{
    float largest = 0, most[GGUF_Q6_K_PARTS] = {0};
    for (size_t i = 0; i < GGUF_Q6_K_NUMBERS; i++)
        most[i / 16] = fmaxf(most[i / 16], fabsf(x[i]) / 31);
    for (size_t j = 0; j < GGUF_Q6_K_PARTS; j++)
        largest = fmaxf(largest, most[j]);
    const uint16_t half = gguf_f16(largest / 127);
    float d;
    spw_type_read(SPW_DTYPE_F16, &half, 0, 1, &d);
    memset(out, 0, GGUF_Q6_K_BYTES);
    memcpy(out + 208, &half, sizeof half);
    for (size_t i = 0; i < GGUF_Q6_K_NUMBERS; i++) {
        const long scale = d > 0 ? lrintf(fminf(most[i / 16] / d, 127)) : 0;
        const float code = scale ? x[i] / (d * (float)scale) : 0;
        const unsigned q = (unsigned)(lrintf(fminf(fmaxf(code, -32), 31)) + 32);
        /* Of 128 numbers: 64 bytes of low nibbles, 32 bytes of four times two high bits. */
        const size_t n = i / 128, k = i % 128;
        out[192 + i / 16] = (uint8_t)scale;
        out[64 * n + k % 64] |= (uint8_t)((q & 15) << (k < 64 ? 0 : 4));
        out[128 + 32 * n + k % 32] |= (uint8_t)(q >> 4 << k / 32 * 2);
    }
}

static inline int gguf_by_offset(const void *a, const void *b)
{
    const uint64_t x = ((const struct spw_tensor *)a)->offset,
                   y = ((const struct spw_tensor *)b)->offset;
    return (x > y) - (x < y);
}

static inline size_t gguf_elements(const struct spw_tensor *t)
{
    size_t n = 1;
    for (uint32_t i = 0; i < t->n_dims; i++)
        n *= (size_t)t->shape[i];
    return n;
}

static inline enum spw_dtype gguf_new_type(const struct spw_tensor *t)
{
    return t->dtype == SPW_DTYPE_Q8_0 ? SPW_DTYPE_Q6_K : t->dtype;
}

/* The entry of a tensor in the header. */
static inline void gguf_write_entry(const struct spw_tensor *t, enum spw_dtype type,
                                    uint64_t offset, FILE *out)
{
    const uint64_t bytes = strlen(t->name);
    const uint32_t id = spw_gguf_tensor_type_of(type)->id;
    fwrite(&bytes, sizeof bytes, 1, out);
    fwrite(t->name, 1, bytes, out);
    fwrite(&t->n_dims, sizeof t->n_dims, 1, out);
    for (uint32_t i = t->n_dims; i-- > 0;)
        fwrite(&t->shape[i], sizeof t->shape[i], 1, out);
    fwrite(&id, sizeof id, 1, out);
    fwrite(&offset, sizeof offset, 1, out);
}

static inline void gguf_write_data(const struct spw_tensor *t, const uint8_t *data, FILE *out)
{
    const size_t n = gguf_elements(t), bytes = (size_t)spw_row_bytes(gguf_new_type(t), n);
    float x[GGUF_Q6_K_NUMBERS];
    uint8_t block[GGUF_Q6_K_BYTES];
    if (t->dtype != SPW_DTYPE_Q8_0)
        fwrite(data, 1, bytes, out);
    for (size_t i = 0; t->dtype == SPW_DTYPE_Q8_0 && i < n; i += GGUF_Q6_K_NUMBERS) {
        spw_type_read(t->dtype, data, i, GGUF_Q6_K_NUMBERS, x);
        gguf_encode_q6_k(x, block);
        fwrite(block, 1, sizeof block, out);
    }
    CHECK(!spw_gguf_write_padding(out, bytes));
}

/* Rows have multiples of 256 numbers. */
static inline void gguf_to_q6_k(const char *from, const char *to)
{
    struct spw_gguf_file f = {0};
    struct spw_error err = {0};
    CHECK_MSG(!spw_gguf_open(&f, from, &err), "%s", err.text);
    struct spw_tensor *t = f.gguf.tensors.tensors;
    const size_t n = f.gguf.tensors.n;
    qsort(t, n, sizeof *t, gguf_by_offset);
    /* The entries begin with the length of the first name. */
    const uint8_t *base = f.map.base;
    const uint8_t *entries = memmem(base, f.gguf.header_bytes, t->name, strlen(t->name));
    CHECK(entries != NULL);
    FILE *out = fopen(to, "wb");
    size_t header = (size_t)(entries - base) - sizeof(uint64_t);
    CHECK(fwrite(base, 1, header, out) == header);
    uint64_t offset = 0;
    for (size_t i = 0; i < n; i++) {
        gguf_write_entry(&t[i], gguf_new_type(&t[i]), offset, out);
        offset = spw_align_up(offset + spw_row_bytes(gguf_new_type(&t[i]), gguf_elements(&t[i])),
                              SPW_GGUF_ALIGNMENT);
    }
    CHECK(!spw_gguf_write_padding(out, (size_t)ftell(out)));
    for (size_t i = 0; i < n; i++)
        gguf_write_data(&t[i], base + f.gguf.header_bytes + t[i].offset, out);
    CHECK(!fclose(out));
    CHECK(!spw_gguf_close(&f, from, 0, &err));
}

#endif
