/* XXH3, by the fastest code that this processor runs. libxxhash itself is compiled for the oldest
 * processor of its architecture: 20 GB/s on a Zen 5. On x86-64 it also has code that is chosen at
 * run time: 34 GB/s in memory, 78 in the L3 cache. The sums are the same. For files that sum much:
 * include this file in place of xxhash.h. */
#ifndef SPW_BASE_XXH3_H
#define SPW_BASE_XXH3_H

#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>) /* installed if libxxhash has it */
#include <xxh_x86dispatch.h>
#endif

#endif
