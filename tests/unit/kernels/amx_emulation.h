/* The AMX tile instructions in plain C, by Intel's Software Developer's Manual, volume 2: for tests
 * of kernels on machines without them. Include it before the kernel's source: it replaces the names
 * of the intrinsics. An operation that the processor would refuse (#UD, #GP) ends the program.
 *
 * tdpbf16ps: for each element of C the even and the odd channels are summed separately, in order,
 * with subnormal inputs and results taken as zero, and both sums are added to C.
 *
 * tdpbssd, tdpbsud: for each element of C the products of bytes of A, which have a sign, and bytes
 * of B, which have a sign or none, are added to C in 32 bits and wrap around. */
#ifndef SPW_TESTS_UNIT_KERNELS_AMX_EMULATION_H
#define SPW_TESTS_UNIT_KERNELS_AMX_EMULATION_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#define _tile_loadconfig amx_loadconfig
#define _tile_release amx_release
#define _tile_zero amx_zero
#define _tile_loadd(tile, base, stride) amx_loadd(tile, base, stride)
#define _tile_stored(tile, base, stride) amx_stored(tile, base, stride)
#define _tile_dpbf16ps(c, a, b) amx_dpbf16ps(c, a, b)
#define _tile_dpbssd(c, a, b) amx_dpb(c, a, b, 0x80)
#define _tile_dpbsud(c, a, b) amx_dpb(c, a, b, 0)

enum { AMX_TILES = 8, AMX_ROWS = 16, AMX_ROW_BYTES = 64 };

struct amx_tile {
    unsigned rows, row_bytes;
    unsigned char data[AMX_ROWS][AMX_ROW_BYTES];
};

/* The registers of a thread. */
static _Thread_local struct {
    int configured;
    struct amx_tile tiles[AMX_TILES];
} amx_state;

static void amx_require(int condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "emulated AMX fault: %s\n", what);
    abort();
}

static struct amx_tile *amx_tile_at(int i)
{
    amx_require(amx_state.configured, "no configuration");
    amx_require(i >= 0 && i < AMX_TILES, "tile number");
    struct amx_tile *t = &amx_state.tiles[i];
    amx_require(t->rows && t->row_bytes, "a tile that is not configured");
    return t;
}

static inline void amx_loadconfig(const void *config)
{
    const unsigned char *c = config;
    amx_require(c[0] == 1 && c[1] == 0, "palette");
    for (int i = 2; i < 16; i++)
        amx_require(c[i] == 0, "reserved bytes of the configuration");
    for (int i = 0; i < 16; i++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, c + 16 + 2 * i, sizeof row_bytes);
        unsigned rows = c[48 + i];
        amx_require(row_bytes <= AMX_ROW_BYTES && rows <= AMX_ROWS, "size of a tile");
        amx_require(!rows == !row_bytes, "half a size");
        amx_require(i < AMX_TILES || !rows, "a ninth tile");
        if (i < AMX_TILES) {
            amx_state.tiles[i] = (struct amx_tile){.rows = rows, .row_bytes = row_bytes};
        }
    }
    amx_state.configured = 1;
}

static inline void amx_release(void)
{
    memset(&amx_state, 0, sizeof amx_state);
}

static inline void amx_zero(int tile)
{
    struct amx_tile *t = amx_tile_at(tile);
    memset(t->data, 0, sizeof t->data);
}

static inline void amx_loadd(int tile, const void *base, size_t stride)
{
    struct amx_tile *t = amx_tile_at(tile);
    memset(t->data, 0, sizeof t->data);
    for (unsigned r = 0; r < t->rows; r++)
        memcpy(t->data[r], (const char *)base + r * stride, t->row_bytes);
}

static inline void amx_stored(int tile, void *base, size_t stride)
{
    struct amx_tile *t = amx_tile_at(tile);
    for (unsigned r = 0; r < t->rows; r++)
        memcpy((char *)base + r * stride, t->data[r], t->row_bytes);
}

static inline float amx_flush(float f)
{
    return fpclassify(f) == FP_SUBNORMAL ? copysignf(0, f) : f;
}

static inline float amx_bf16(const unsigned char *p)
{
    uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float f;
    memcpy(&f, &bits, sizeof f);
    return amx_flush(f);
}

static inline void amx_require_product(const struct amx_tile *tc, const struct amx_tile *ta,
                                       const struct amx_tile *tb)
{
    amx_require(tc != ta && tc != tb && ta != tb, "the same tile twice");
    amx_require(tc->rows == ta->rows && tc->row_bytes == tb->row_bytes &&
                    ta->row_bytes == tb->rows * 4 && tc->row_bytes % 4 == 0,
                "tiles that do not fit");
}

static inline void amx_dpbf16ps(int c, int a, int b)
{
    struct amx_tile *tc = amx_tile_at(c), *ta = amx_tile_at(a), *tb = amx_tile_at(b);
    amx_require_product(tc, ta, tb);
    for (unsigned m = 0; m < tc->rows; m++)
        for (unsigned n = 0; n < tc->row_bytes / 4; n++) {
            float sums[2] = {0, 0}, old;
            for (unsigned k = 0; k < tb->rows; k++)
                for (unsigned odd = 0; odd < 2; odd++)
                    sums[odd] = amx_flush(fmaf(amx_bf16(ta->data[m] + 4 * k + 2 * odd),
                                               amx_bf16(tb->data[k] + 4 * n + 2 * odd), sums[odd]));
            memcpy(&old, tc->data[m] + 4 * n, sizeof old);
            old = amx_flush(amx_flush(old) + amx_flush(sums[0] + sums[1]));
            memcpy(tc->data[m] + 4 * n, &old, sizeof old);
        }
}

/* A byte whose bit `sign` is a sign; 0: it has none. */
static inline int amx_byte(unsigned char byte, unsigned char sign)
{
    return (byte ^ sign) - sign;
}

static inline void amx_dpb(int c, int a, int b, unsigned char b_sign)
{
    struct amx_tile *tc = amx_tile_at(c), *ta = amx_tile_at(a), *tb = amx_tile_at(b);
    amx_require_product(tc, ta, tb);
    for (unsigned m = 0; m < tc->rows; m++)
        for (unsigned n = 0; n < tc->row_bytes / 4; n++) {
            uint32_t sum;
            memcpy(&sum, tc->data[m] + 4 * n, sizeof sum);
            for (unsigned k = 0; k < tb->rows * 4; k++)
                sum += (uint32_t)(amx_byte(ta->data[m][k], 0x80) *
                                  amx_byte(tb->data[k / 4][4 * n + k % 4], b_sign));
            memcpy(tc->data[m] + 4 * n, &sum, sizeof sum);
        }
}

#endif
