/* test_budgets on CUDA: a shorter prompt, one model, exact KV, and steps over more of the
 * allocations, because an emulated GPU is slow. */
#define TEST_BACKEND SPW_BACKEND_CUDA
#define TEST_STRIDE 199
#define TEST_TOKENS 300
#define TEST_WRITES 4
#define TEST_QUANTIZED false
#define TEST_MODELS 1

#include "tests/engine/failures/test_budgets.c"
