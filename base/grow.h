/* Arrays and texts that grow, and white space in texts. */
#ifndef SPW_BASE_GROW_H
#define SPW_BASE_GROW_H

#include <stdbool.h>
#include <stddef.h>

/* By doubling: room for `n` elements of `size` bytes in the array that the pointer at `array` owns,
 * which has room for *capacity: 0, or -ENOMEM, and nothing has changed. */
int spw_grow(void *array, size_t *capacity, size_t n, size_t size);

/* The same, exactly `n` elements, for an array that seldom grows. */
int spw_resize(void *array, size_t n, size_t size);

/* A text that grows; zero at first. Ends in a NUL that `n` leaves out, once something was added. */
struct spw_text {
    char *text; /* owned: spw_free */
    size_t n, capacity;
    bool failed; /* an addition is missing: out of memory */
};
/* 0 or -ENOMEM. */
int spw_text_add(struct spw_text *t, const char *bytes, size_t n);

/* White space, as JSON has it. */
static inline bool spw_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Leaves white space out at both ends. */
static inline void spw_trim(const char **text, size_t *bytes)
{
    for (; *bytes && spw_is_blank(**text); --*bytes)
        ++*text;
    while (*bytes && spw_is_blank((*text)[*bytes - 1]))
        --*bytes;
}

#endif
