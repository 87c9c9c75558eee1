/* test_replan on a GPU (or the emulated one), with shorter contexts because that is slow. */
#define TEST_BACKEND SPW_BACKEND_CUDA
#define TEST_DRAWS 3
#define TEST_CONTEXT 1664
#define TEST_PROMPT 500

#include "tests/engine/failures/test_replan.c"
