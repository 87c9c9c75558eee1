/* Probe loops of the tile products of AMX: see probe.h. */
#include "model/cpu/amx.h"
#include "model/cpu/probe/probe_loops.h"

/* All eight tiles are full. */
static void fill_tiles(void)
{
    struct amx_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = AMX_TILE_BYTES;
        config.rows[i] = AMX_TILE;
    }
    amx_configure(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
}

/* Four chains of 16 x 16, as in the kernels. */
#define DEFINE(name, product, depth)                                                               \
    static double name(uint64_t rounds)                                                            \
    {                                                                                              \
        fill_tiles();                                                                              \
        for (uint64_t round = 0; round < rounds; round++) {                                        \
            product(0, 4, 6);                                                                      \
            product(1, 4, 7);                                                                      \
            product(2, 5, 6);                                                                      \
            product(3, 5, 7);                                                                      \
        }                                                                                          \
        _tile_release();                                                                           \
        return (double)rounds * 4 * AMX_TILE * AMX_TILE * (depth)*2;                               \
    }
DEFINE(bf16, _tile_dpbf16ps, 32)
DEFINE(int8, _tile_dpbssd, 64)

const struct spw_probe_loops spw_probe_loops_amx = {.bf16 = bf16, .int8 = int8};
