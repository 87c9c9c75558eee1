/* test_faults on CUDA: steps over more of the allocations and commands, because an emulated GPU is
 * slow. */
#define TEST_BACKEND SPW_BACKEND_CUDA
#define TEST_STRIDE (RUN_UNDER_ASAN ? 131 : 41)
#define TEST_ALLOCATION_STRIDE (RUN_UNDER_ASAN ? 37 : 13)
#define TEST_GENERATION_STRIDE (RUN_UNDER_ASAN ? 97 : 31)
#define TEST_QUANTIZED_STRIDES (RUN_UNDER_ASAN ? 25 : 9)

#include "tests/test_faults.c"
