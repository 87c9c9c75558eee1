/* test_interrupt on a GPU (or the emulated one). */
#include "runtime/spillway.h"

#define TEST_BACKEND SPW_BACKEND_CUDA
#define TEST_TOKENS 200
#define TEST_DRAWS 4
#define TEST_EACH_TOKENS 140
#define TEST_BACK_STRIDE 5
#define TEST_GENERATIONS 2
#define TEST_MODELS 1
#include "tests/engine/failures/test_interrupt.c"
