/* Probe loop of the AMX bf16 tile product: see probe.h. */
#include "model/cpu/probe/probe_loops.h"

#include <immintrin.h>

/* What ldtilecfg reads: all eight tiles full, 16 rows of 64 bytes. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static double bf16(uint64_t rounds)
{
    struct tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("" : : "r"(&config) : "memory"); /* gcc 12: else its stores may go */
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    /* Four chains of 16 x 16, as in the kernel. */
    for (uint64_t round = 0; round < rounds; round++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return (double)rounds * 4 * 16 * 16 * 32 * 2;
}

const struct spw_probe_loops spw_probe_loops_amx = {.bf16 = bf16};
