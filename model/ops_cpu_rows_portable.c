/* The row operations for the portable table: see model/ops_cpu_rows.h. */
#define KERNEL(op) spw_##op##_kernel_portable
#include "model/ops_cpu_rows.h"
