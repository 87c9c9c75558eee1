/* The row operations for the avx512bf16 table: see model/cpu/rows/rows.h. */
#define KERNEL(op) spw_##op##_kernel_avx512bf16
#include "model/cpu/rows/rows.h"
