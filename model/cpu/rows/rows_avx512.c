/* The row operations for the avx512 table: see model/cpu/rows/rows.h. */
#define KERNEL(op) spw_##op##_kernel_avx512
#include "model/cpu/rows/rows.h"
