/* The row operations for the avx2 table: see model/cpu/rows/rows.h. */
#define KERNEL(op) spw_##op##_kernel_avx2
#include "model/cpu/rows/rows.h"
