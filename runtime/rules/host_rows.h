/* Passes whose missed experts are multiplied in host memory, by their number of rows: a pure
 * function of measured rates.
 *
 * A missed expert either crosses the link, once a pass, or is read by the cores of the host, which
 * then multiply it. A product of several rows takes a processor up to as long as so many products
 * of one row. So the host is sooner while
 *
 *   rows of an expert / host_rate < 1 / link_rate
 *
 * where an expert that is chosen at all has, on average, rows * kept / (n (1 - (1 - kept / n) ^
 * rows)) rows. */
#ifndef SPW_RUNTIME_RULES_HOST_ROWS_H
#define SPW_RUNTIME_RULES_HOST_ROWS_H

#include <stdint.h>

struct spw_host_rates {
    double host, link; /* bytes a second: cores read host memory; the link moves it; 0: unknown */
};

/* The most rows of such a pass, at most 16; 0: every pass moves its experts. n, kept: experts of a
 * layer, and those that a row chooses. */
uint32_t spw_host_rows(const struct spw_host_rates *r, uint32_t n, uint32_t kept);

#endif
