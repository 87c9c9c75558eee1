/* Arrays that grow by doubling. */
#ifndef SPW_BASE_GROW_H
#define SPW_BASE_GROW_H

#include <stddef.h>

/* Room for `n` elements of `size` bytes in the array that the pointer at `array` owns, which has
 * room for *capacity: 0, or -ENOMEM, and nothing has changed. */
int spw_grow(void *array, size_t *capacity, size_t n, size_t size);

#endif
