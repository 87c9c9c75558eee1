/* The table of types: the bytes of numbers, and how they are read, against values written by
 * hand. */
#include "base/numbers.h"
#include "quant/type_facts.h"
#include "tests/check.h"

#include <math.h>
#include <string.h>

/* Three numbers of each type: 1.5, -0.25 and a NaN (f8_e4m3 has no infinity). */
static const struct {
    enum spw_dtype type;
    const char *name;
    uint64_t bytes;
    uint8_t stored[24];
} kinds[] = {
    {SPW_DTYPE_F32, "f32", 4, {0, 0, 0xc0, 0x3f, 0, 0, 0x80, 0xbe, 0, 0, 0xc0, 0x7f}},
    {SPW_DTYPE_F16, "f16", 2, {0, 0x3e, 0, 0xb4, 0, 0x7e}},
    {SPW_DTYPE_BF16, "bf16", 2, {0xc0, 0x3f, 0x80, 0xbe, 0xc0, 0x7f}},
    {SPW_DTYPE_F64, "f64", 8, {0, 0, 0,    0,    0, 0, 0xf8, 0x3f, 0, 0, 0,    0,
                               0, 0, 0xd0, 0xbf, 0, 0, 0,    0,    0, 0, 0xf8, 0x7f}},
    {SPW_DTYPE_F8_E4M3, "f8_e4m3", 1, {0x3c, 0xa8, 0x7f}},
    {SPW_DTYPE_F8_E5M2, "f8_e5m2", 1, {0x3e, 0xb4, 0x7e}},
};

int main(void)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        enum spw_dtype t = kinds[i].type;
        uint8_t row[1 + 24];
        float out[4] = {0, 0, 0, 77};
        memcpy(row + 1, kinds[i].stored, 24); /* at an odd address */
        spw_type_read(t, row + 1, 0, 3, out);
        CHECK_MSG(out[0] == 1.5f && out[1] == -0.25f && isnan(out[2]) && out[3] == 77, "%s",
                  kinds[i].name);
        spw_type_read(t, row + 1, 1, 1, out);
        CHECK_MSG(out[0] == -0.25f && out[1] == -0.25f, "%s", kinds[i].name);
        CHECK(!strcmp(spw_dtype_name(t), kinds[i].name));
        CHECK(spw_dtype_bytes(t) == kinds[i].bytes && spw_row_bytes(t, 7) == 7 * kinds[i].bytes);
        CHECK(spw_type_of(t).multiplies == (t < SPW_DTYPE_F64));
    }
    for (int t = SPW_DTYPE_Q8_0; t <= SPW_DTYPE_MXFP4;
         t++) /* the rows have the order of the enum */
        CHECK((int)SPW_FACTS(t).type == t);
    CHECK(!strcmp(spw_dtype_name(SPW_DTYPE_AUTO), "auto") && !spw_row_bytes(SPW_DTYPE_AUTO, 7));
    return check_done();
}
