/* The row operations for the avx512 table: see model/ops_cpu_rows.h. */
#define KERNEL(op) spw_##op##_kernel_avx512
#include "model/ops_cpu_rows.h"
