/* Reading stored numbers: see types.h. The reference for every type, and what conversions use. */
#include "quant/types.h"

#include "base/numbers.h"
#include "quant/blocks.h"

const char *spw_dtype_name(enum spw_dtype t)
{
    return spw_type_of(t).name;
}

static float read_f64(const uint8_t *at)
{
    double f;
    memcpy(&f, at, sizeof f);
    return (float)f;
}

static uint16_t read_u16(const uint8_t *at)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

static void read_blocks(enum spw_dtype t, const uint8_t *from, size_t n, float *out)
{
    const struct spw_type type = spw_type_of(t);
    struct spw_quantized_block b;
    for (; n; n -= type.elements, from += type.bytes, out += type.elements) {
        spw_block_unpack(t, from, &b);
        for (size_t part = 0; part < type.elements / SPW_BLOCK_PART; part++) {
            const float scale = b.d * b.scales[part], offset = b.m * b.minima[part];
            const int8_t *codes = b.codes + part * SPW_BLOCK_PART;
            for (size_t i = 0; i < SPW_BLOCK_PART; i++)
                out[part * SPW_BLOCK_PART + i] = scale * codes[i] + offset;
        }
    }
}

void spw_type_read(enum spw_dtype t, const void *row, uint64_t first, size_t n, float *out)
{
    const uint8_t *from = (const uint8_t *)row + spw_row_bytes(t, first);
    switch (t) { /* a loop for each: nothing is decided for a single number */
    case SPW_DTYPE_F32:
        memcpy(out, from, n * sizeof *out);
        break;
    case SPW_DTYPE_F64:
        for (size_t i = 0; i < n; i++)
            out[i] = read_f64(from + 8 * i);
        break;
    case SPW_DTYPE_F16:
        for (size_t i = 0; i < n; i++)
            out[i] = spw_f16_to_f32(read_u16(from + 2 * i));
        break;
    case SPW_DTYPE_BF16:
        for (size_t i = 0; i < n; i++)
            out[i] = spw_bf16_to_f32(read_u16(from + 2 * i));
        break;
    case SPW_DTYPE_F8_E4M3:
        for (size_t i = 0; i < n; i++)
            out[i] = spw_f8_e4m3_to_f32(from[i]);
        break;
    case SPW_DTYPE_F8_E5M2:
        for (size_t i = 0; i < n; i++)
            out[i] = spw_f8_e5m2_to_f32(from[i]);
        break;
    case SPW_DTYPE_AUTO:
        memset(out, 0, n * sizeof *out);
        break;
    default:
        read_blocks(t, from, n, out);
        break;
    }
}
