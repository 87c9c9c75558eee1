/* test_save on CUDA: two models that slide and fewer damaged files, because an emulated GPU is
 * slow; nothing is killed. */
#define TEST_BACKEND SPW_BACKEND_CUDA
#define TEST_CORRUPTIONS 6
#define TEST_KILLS 0
#define TEST_FIRST_MODEL 4
#define TEST_PRECISIONS 1
#define TEST_STEP 130

#include "tests/test_save.c"
