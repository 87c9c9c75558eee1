/* The fastest and the median round, against sorted numbers; more rounds than there is room for. */
#include "tests/check.h"

#include "base/rounds.h"

#include <math.h>

int main(void)
{
    struct spw_rounds r = {0};
    uint64_t random = check_seed();
    CHECK(isnan(spw_rounds_take(&r, SPW_ROUND_BEST)));
    for (unsigned n = 1; n <= 200; n++) {
        /* 1 ... n in a random order: the median is (n + 1) / 2. */
        unsigned order[200], kept = n < 80 ? n : 80, least = n;
        for (unsigned i = 0; i < n; i++)
            order[i] = i + 1;
        for (unsigned i = n - 1; i > 0; i--) {
            unsigned other = (unsigned)check_range(&random, 0, i), was = order[i];
            order[i] = order[other];
            order[other] = was;
        }
        r.n = 0;
        for (unsigned i = 0; i < n; i++)
            spw_rounds_add(&r, order[i]);
        for (unsigned i = 0; i < kept; i++)
            least = order[i] < least ? order[i] : least;
        CHECK(r.n == kept && spw_rounds_take(&r, SPW_ROUND_BEST) == least);
        if (n == kept)
            CHECK(spw_rounds_take(&r, SPW_ROUND_TYPICAL) == (n + 1) / 2.0);
    }
    return check_done();
}
