/* test_disk_faults on a GPU (or the emulated one): tiles go to and from the disk by way of pinned
 * host memory. */
#include "runtime/spillway.h"

#define TEST_BACKEND SPW_BACKEND_CUDA
#define TEST_STRIDE 400
#define TEST_PROMPT 800
#define TEST_LAYERS 3
#define TEST_EVERY 1
#define TEST_QUANTIZED_RUNS 1
#define TEST_EXACT_RUNS 2
#include "tests/engine/failures/test_disk_faults.c"
