/* Packed rows against those of the gguf package (tests/golden/make_packed.py): the same bytes, at
 * any address. Plain types: every f16 and bf16 number comes back, and what lies between two goes to
 * the nearer one. */
#include "quant/pack.h"
#include "base/numbers.h"
#include "tests/check.h"

#include <string.h>

enum { MOST = 1 << 16 };

static void check_type(enum spw_dtype t)
{
    static uint8_t data[MOST], packed[MOST + 1];
    const struct spw_type type = spw_type_of(t);
    char path[64];
    snprintf(path, sizeof path, "tests/golden/blocks/packed_%s.bin", type.name);
    FILE *f = fopen(path, "rb");
    CHECK_MSG(f, "%s", path);
    if (!f)
        return;
    const size_t got = fread(data, 1, MOST, f), one = type.elements * sizeof(float) + type.bytes;
    const size_t n = got / one, numbers = n * type.elements;
    fclose(f);
    CHECK_MSG(n >= 50 && got == n * one && got < MOST, "%s: %zu bytes", path, got);
    for (size_t shift = 0; shift < 2; shift++) {
        memset(packed, 0xa5, sizeof packed);
        spw_type_write(t, (const float *)(const void *)data, numbers, packed + shift);
        for (size_t i = 0; i < n; i++)
            CHECK_MSG(!memcmp(packed + shift + i * type.bytes,
                              data + numbers * sizeof(float) + i * type.bytes, type.bytes),
                      "%s, block %zu", type.name, i);
        CHECK(packed[shift + n * type.bytes] == 0xa5);
    }
}

/* Each number of a 16-bit type, the halves between it and the next one, and their neighbours. */
static void check_halves(enum spw_dtype t, uint16_t infinity)
{
    for (uint32_t bits = 0; bits < infinity; bits++) {
        const uint16_t pair[] = {(uint16_t)bits, (uint16_t)(bits + 1)}, even = pair[bits & 1];
        float x[2], half;
        uint16_t out[4];
        spw_type_read(t, pair, 0, 2, x);
        if (pair[1] == infinity) /* as if there were a number behind the largest one */
            x[1] = t == SPW_DTYPE_F16 ? 65536.0f : x[0];
        half = x[0] + (x[1] - x[0]) / 2;
        const float in[] = {x[0], half, nextafterf(half, 0), -half};
        spw_type_write(t, in, 4, out);
        CHECK_MSG(out[0] == bits, "%x", bits);
        if (half > x[0])
            CHECK_MSG(out[1] == even && out[2] == bits && out[3] == (even | 0x8000), "%x: %x %x %x",
                      bits, out[1], out[2], out[3]);
    }
    const float special[] = {INFINITY, -INFINITY, NAN, -0.0f};
    uint16_t out[4];
    float back[4];
    spw_type_write(t, special, 4, out);
    spw_type_read(t, out, 0, 4, back);
    CHECK(out[0] == infinity && out[1] == (infinity | 0x8000) && back[2] != back[2] &&
          out[3] == 0x8000);
}

int main(void)
{
    check_type(SPW_DTYPE_Q8_0);
    check_type(SPW_DTYPE_Q4_0);
    check_halves(SPW_DTYPE_F16, 0x7c00);
    check_halves(SPW_DTYPE_BF16, 0x7f80);
    return check_done();
}
