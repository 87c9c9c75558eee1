/* test_prefix on a GPU (or the emulated one): tiles come from packs by way of pinned host memory.
 */
#include "runtime/spillway.h"

#define TEST_BACKEND SPW_BACKEND_CUDA
#define TEST_TOKENS 400
#define TEST_DRAWS 4
#define TEST_MODELS 1
#include "tests/engine/persist/test_prefix.c"
