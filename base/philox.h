/* Philox4x32-10: a random block as a pure function of a counter and a key. So the n-th draw of a
 * seed needs no state and no order. Written from J. Salmon, M. Moraes, R. Dror, D. Shaw,
 * "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 3.3 and figure 2. */
#ifndef SPW_BASE_PHILOX_H
#define SPW_BASE_PHILOX_H

#include <stdint.h>

struct spw_philox {
    uint32_t word[4];
};

static inline struct spw_philox spw_philox_block(struct spw_philox counter, uint32_t key0,
                                                 uint32_t key1)
{
    uint32_t *c = counter.word;
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c[0] * 0xd2511f53u;
        uint64_t b = (uint64_t)c[2] * 0xcd9e8d57u;
        counter = (struct spw_philox){{(uint32_t)(b >> 32) ^ c[1] ^ key0, (uint32_t)b,
                                       (uint32_t)(a >> 32) ^ c[3] ^ key1, (uint32_t)a}};
        key0 += 0x9e3779b9u; /* the golden ratio */
        key1 += 0xbb67ae85u; /* sqrt(3) - 1 */
    }
    return counter;
}

/* Uniform in [0, 1), 53 bits: the draw at one position of one stream of one seed. */
static inline double spw_philox_uniform(uint64_t seed, uint64_t stream, uint64_t position)
{
    struct spw_philox at = {{(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)stream,
                             (uint32_t)(stream >> 32)}};
    struct spw_philox r = spw_philox_block(at, (uint32_t)seed, (uint32_t)(seed >> 32));
    uint64_t bits = (uint64_t)r.word[0] << 32 | r.word[1];
    return (double)(bits >> 11) * 0x1p-53;
}

#endif
