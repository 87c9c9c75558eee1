/* test_placement on CUDA: fewer draws over shorter sequences, because an emulated GPU is slow. */
#define TEST_BACKEND SPW_BACKEND_CUDA
#define TEST_TOKENS 600
#define TEST_DRAWS (RUN_UNDER_ASAN ? 2 : 12)
#define TEST_MODELS N_TINY_MODELS

#include "tests/engine/test_placement.c"
