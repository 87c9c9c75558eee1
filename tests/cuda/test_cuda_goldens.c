/* test_goldens on CUDA: f32 through the kernels against transformers, with the same tolerance. */
#define TEST_BACKEND SPW_BACKEND_CUDA

#include "tests/engine/test_goldens.c"
