/* The row operations for the avx2 table: see model/ops_cpu_rows.h. */
#define KERNEL(op) spw_##op##_kernel_avx2
#include "model/ops_cpu_rows.h"
