/* The row operations for the avx512bf16 table: see model/ops_cpu_rows.h. */
#define KERNEL(op) spw_##op##_kernel_avx512bf16
#include "model/ops_cpu_rows.h"
