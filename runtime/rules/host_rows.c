/* What the host multiplies: see host_rows.h. */
#include "runtime/rules/host_rows.h"

#include <math.h>
#include <stdbool.h>

enum { MOST_ROWS = 16, ROWS_UNKNOWN = 8, LAYER_ROWS_UNKNOWN = 1 };

static double rows_of_expert(double rows, double n, double kept)
{
    return rows * kept / (n * (1 - pow(1 - kept / n, rows)));
}

uint32_t spw_host_rows(const struct spw_host_rates *r, uint32_t n, uint32_t kept)
{
    uint32_t rows = 0;
    if (r->host <= 0 || r->link <= 0)
        return n > 1 ? ROWS_UNKNOWN : LAYER_ROWS_UNKNOWN;
    while (rows < MOST_ROWS && rows_of_expert(rows + 1, n, kept) * r->link < r->host)
        rows++;
    return rows;
}

uint32_t spw_host_link_blocks(const struct spw_host_rates *r, uint32_t n, uint64_t bytes,
                              uint64_t others, uint64_t resident)
{
    if (r->device <= 0 || !bytes)
        return 0;
    const double meanwhile = (double)resident / r->device * r->link - (double)others;
    return (uint32_t)(n * fmax(fmin(meanwhile / (double)bytes, 1), 0));
}

uint64_t spw_host_cost(const struct spw_host_rates *r, uint32_t rows, uint32_t n, uint32_t kept,
                       uint64_t bytes)
{
    const bool is_known = r->host > 0 && r->link > 0;
    const double times = is_known ? rows_of_expert(rows, n, kept) * r->link / r->host : 1;
    return (uint64_t)(times * (double)bytes);
}
