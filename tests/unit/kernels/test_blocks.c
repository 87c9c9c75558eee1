/* Quantized types against the values of the gguf package (tests/golden/make_blocks.py): the same
 * bits, blocks at any address, read together and one by one. */
#include "quant/blocks.h"
#include "tests/check.h"

#include <string.h>

enum { MOST = 1 << 15 };

/* NaN has one form. */
static void normalise(float *x, size_t n)
{
    const uint32_t nan = 0x7fc00000;
    for (size_t i = 0; i < n; i++)
        if (x[i] != x[i])
            memcpy(&x[i], &nan, sizeof nan);
}

static void check_type(enum spw_dtype t)
{
    static uint8_t data[1 + MOST];
    static float expected[MOST / 4], out[MOST / 4];
    const struct spw_type type = spw_type_of(t);
    char path[64];
    snprintf(path, sizeof path, "tests/golden/blocks/%s.bin", type.name);
    FILE *f = fopen(path, "rb");
    CHECK_MSG(f, "%s", path);
    if (!f)
        return;
    const size_t got = fread(data + 1, 1, MOST, f), values = type.elements * sizeof *out;
    const size_t n = got / (type.bytes + values);
    fclose(f);
    CHECK_MSG(n >= 8 && got == n * (type.bytes + values), "%s: %zu bytes", path, got);
    CHECK(spw_row_bytes(t, n * type.elements) == n * type.bytes);
    memcpy(expected, data + 1 + n * type.bytes, n * values);
    normalise(expected, n * type.elements);
    spw_type_read(t, data + 1, 0, n * type.elements, out);
    normalise(out, n * type.elements);
    CHECK_MSG(!memcmp(out, expected, n * values), "%s", type.name);
    for (size_t i = 0; i < n; i++) {
        float one[SPW_BLOCK_ELEMENTS + 1];
        one[type.elements] = 77;
        spw_type_read(t, data + 1, i * type.elements, type.elements, one);
        normalise(one, type.elements);
        CHECK_MSG(!memcmp(one, expected + i * type.elements, values) && one[type.elements] == 77,
                  "%s, block %zu", type.name, i);
    }
}

int main(void)
{
    for (int t = SPW_DTYPE_AUTO; t <= SPW_DTYPE_MXFP4; t++) {
        CHECK(spw_type_is_quantized((enum spw_dtype)t) == (t >= SPW_DTYPE_Q8_0));
        if (t >= SPW_DTYPE_Q8_0)
            check_type((enum spw_dtype)t);
    }
    return check_done();
}
