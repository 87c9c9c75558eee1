/* What the host multiplies in its memory, beside a device: pure functions of measured rates.
 *
 * Weights in host memory either cross the link, once a pass, or are read by the cores of the host,
 * which then multiply them. A product of several rows takes a processor up to as long as so many
 * products of one row. So the host is sooner while
 *
 *   rows of a matrix / host_rate < 1 / link_rate
 *
 * The matrices of a layer have all rows of a pass. An expert that is chosen at all has, on average,
 * rows * kept / (n (1 - (1 - kept / n) ^ rows)) rows.
 *
 * While the device computes with the weights that it has, the link stands still. The blocks of
 * layers that it can bring meanwhile cost no time, so they cross the link. Experts do not: which
 * ones a pass needs is not known before. */
#ifndef SPW_RUNTIME_RULES_HOST_ROWS_H
#define SPW_RUNTIME_RULES_HOST_ROWS_H

#include <stdint.h>

/* Bytes a second; 0: unknown. */
struct spw_host_rates {
    double host;   /* cores multiply in host memory */
    double link;   /* the link brings */
    double device; /* the device reads */
};

/* The most rows of a pass whose missed experts the host multiplies, at most 16; 0: every pass moves
 * its experts. n, kept: experts of a layer, and those that a row chooses. With n and kept 1: whose
 * layers it multiplies. */
uint32_t spw_host_rows(const struct spw_host_rates *r, uint32_t n, uint32_t kept);
/* Of n blocks, `bytes` together, that host memory has and the host could multiply: how many cross
 * the link all the same. others: bytes of blocks that the host cannot multiply, which cross in any
 * case. resident: bytes of the device that a row reads. */
uint32_t spw_host_link_blocks(const struct spw_host_rates *r, uint32_t n, uint64_t bytes,
                              uint64_t others, uint64_t resident);
/* What products of `rows` rows cost that the host computes from `bytes` bytes of its memory: the
 * bytes that the link brings meanwhile. Unknown rates: as many. */
uint64_t spw_host_cost(const struct spw_host_rates *r, uint32_t rows, uint32_t n, uint32_t kept,
                       uint64_t bytes);

#endif
