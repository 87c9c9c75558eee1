/* test_attach on a GPU (or the emulated one): tiles come from the files by way of pinned host
 * memory. */
#include "runtime/spillway.h"

#define TEST_BACKEND SPW_BACKEND_CUDA
#define TEST_TOKENS 600
#define TEST_DRAWS 3
#define TEST_MODELS 1
#include "tests/engine/persist/test_attach.c"
