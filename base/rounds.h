/* The rounds of a measurement: the same work, again and again. The fastest round is the best that
 * the machine can do, because others on it only make a round slower. The median is what a round
 * typically takes. Plain values, nothing to free. */
#ifndef SPW_BASE_ROUNDS_H
#define SPW_BASE_ROUNDS_H

enum spw_round { SPW_ROUND_TYPICAL, SPW_ROUND_BEST };

struct spw_rounds {
    double seconds[80];
    unsigned n;
};

/* More than 80 are not kept. */
void spw_rounds_add(struct spw_rounds *r, double seconds);
/* NAN: there are none. */
double spw_rounds_take(const struct spw_rounds *r, enum spw_round which);

#endif
