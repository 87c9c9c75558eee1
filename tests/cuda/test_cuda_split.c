/* test_split on a GPU (or the emulated one): short sequences of the random models, and few splits
 * unless more are asked for. */
#include "runtime/spillway.h"

#define TEST_BACKEND SPW_BACKEND_CUDA
#define TEST_MOST 300
#define TEST_SPLITS (RUN_UNDER_TSAN || RUN_UNDER_ASAN ? 1 : 2)
#define TEST_FIRST_MODEL 2 /* those before are large for an emulator */
#include "tests/engine/persist/test_split.c"
