/* test_save on CUDA: one model and fewer damaged files, because an emulated GPU is slow. */
#define TEST_BACKEND SPW_BACKEND_CUDA
#define TEST_CORRUPTIONS 4
#define TEST_KILLS 0
#define TEST_FIRST_MODEL 5
#define TEST_PRECISIONS 1
#define TEST_STEP 130

#include "tests/engine/persist/test_save.c"
