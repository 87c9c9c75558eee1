/* test_faults on CUDA: steps over more of the allocations and commands, because an emulated GPU is
 * slow. */
#define TEST_BACKEND SPW_BACKEND_CUDA
#define TEST_STRIDE 61
#define TEST_ALLOCATION_STRIDE 17
#define TEST_GENERATION_STRIDE 41
#define TEST_QUANTIZED_STRIDES 9

#include "tests/engine/failures/test_faults.c"
