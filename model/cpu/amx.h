/* Tiles of AMX: what every kernel with them needs beside the intrinsics. */
#ifndef SPW_MODEL_CPU_AMX_H
#define SPW_MODEL_CPU_AMX_H

#include <immintrin.h>
#include <stdint.h>

enum {
    AMX_TILE = 16,      /* rows of a tile, at most */
    AMX_TILE_BYTES = 64 /* of a row, at most */
};

/* What ldtilecfg reads. */
struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* gcc 12 does not tell its optimiser that the tile intrinsics read and write memory. */
static inline void amx_memory_barrier(void)
{
    __asm__ volatile("" : : : "memory");
}

static inline void amx_configure(const struct amx_config *config)
{
    __asm__ volatile("" : : "r"(config) : "memory");
    _tile_loadconfig(config);
}

#endif
