/* The AMX kernel of products of quantized weights on an emulation of its tile instructions, and the
 * same for any number of rows. Its other instructions are AVX-512: a source of its own, with flags
 * of its own. */
#include "tests/unit/kernels/amx_emulation.h"
#define spw_linear_codes_kernel_amx emulated_codes_kernel
#include "model/cpu/linear/linear_codes_amx.c"

const struct spw_kernel emulated_tiles_kernel = {.n_tasks = spw_linear_tasks, .run = run_many};
