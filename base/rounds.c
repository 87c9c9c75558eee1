/* See rounds.h. */
#include "base/rounds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void spw_rounds_add(struct spw_rounds *r, double seconds)
{
    if (r->n < sizeof r->seconds / sizeof *r->seconds)
        r->seconds[r->n++] = seconds;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double spw_rounds_take(const struct spw_rounds *r, enum spw_round which)
{
    double sorted[sizeof r->seconds / sizeof *r->seconds];
    if (!r->n)
        return NAN;
    memcpy(sorted, r->seconds, sizeof sorted);
    qsort(sorted, r->n, sizeof *sorted, compare);
    return which == SPW_ROUND_BEST ? sorted[0] : (sorted[(r->n - 1) / 2] + sorted[r->n / 2]) / 2;
}
