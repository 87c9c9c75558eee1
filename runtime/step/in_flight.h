/* How many requests the I/O threads of an engine have in flight. A pure function. */
#ifndef SPW_RUNTIME_STEP_IN_FLIGHT_H
#define SPW_RUNTIME_STEP_IN_FLIGHT_H

#include "runtime/plan/plan.h"

/* d: what was measured of the drive; NULL: 0, which is the I/O engine's own number. */
unsigned spw_in_flight(const struct spw_plan *p, const struct spw_drive *d);

#endif
