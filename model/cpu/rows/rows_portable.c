/* The row operations for the portable table: see model/cpu/rows/rows.h. */
#define KERNEL(op) spw_##op##_kernel_portable
#include "model/cpu/rows/rows.h"
