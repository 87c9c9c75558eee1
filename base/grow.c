/* See grow.h. */
#include "base/grow.h"

#include "base/base.h"

#include <string.h>

enum { LEAST = 16 };

int spw_resize(void *array, size_t n, size_t size)
{
    void *old;
    memcpy(&old, array, sizeof old); /* a pointer of any type */
    void *resized = n > SIZE_MAX / 2 / size ? NULL : spw_realloc(old, spw_max_u64(n, 1) * size);
    if (!resized)
        return -ENOMEM;
    memcpy(array, &resized, sizeof resized);
    return 0;
}

int spw_grow(void *array, size_t *capacity, size_t n, size_t size)
{
    if (n <= *capacity)
        return 0;
    const size_t wanted = spw_max_u64(spw_max_u64(n, LEAST), 2 * *capacity);
    SPW_TRY(spw_resize(array, wanted, size));
    *capacity = wanted;
    return 0;
}

int spw_text_add(struct spw_text *t, const char *bytes, size_t n)
{
    const int rc = spw_grow(&t->text, &t->capacity, t->n + n + 1, 1);
    t->failed |= rc != 0;
    SPW_TRY(rc);
    if (n)
        memcpy(t->text + t->n, bytes, n);
    t->n += n;
    t->text[t->n] = 0;
    return 0;
}
