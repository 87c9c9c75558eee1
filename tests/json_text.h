/* JSON in tests of readers: texts that are written with ' where they have ", a value by its path,
 * and a count of the blocks that jansson holds. The allocations of jansson fail as
 * spw_alloc_fail_nth says, and a test can ask whether the one has failed. */
#ifndef SPW_TESTS_JSON_TEXT_H
#define SPW_TESTS_JSON_TEXT_H

#include "base/base.h"
#include "tests/check.h"

#include <jansson.h>
#include <string.h>

/* The text with " in the place of each '. It lives until there are four later ones. */
static inline const char *json_quoted(const char *text)
{
    static char texts[4][2048];
    static size_t n;
    char *to = texts[n++ % 4];
    size_t i = 0;
    for (; i < sizeof texts[0] - 1 && text[i]; i++)
        to[i] = (char)(text[i] == '\'' ? '"' : text[i]);
    CHECK(!text[i]);
    to[i] = 0;
    return to;
}

/* What stands at "a.0.b"; NULL: nothing. */
static inline json_t *value_at(const json_t *j, const char *at)
{
    char path[128], *rest;
    json_t *found = (json_t *)(uintptr_t)j;
    snprintf(path, sizeof path, "%s", at);
    for (char *key = strtok_r(path, ".", &rest); key; key = strtok_r(NULL, ".", &rest))
        found = json_is_array(found) ? json_array_get(found, (size_t)atoi(key))
                                     : json_object_get(found, key);
    return found;
}

static int64_t json_outstanding; /* for json_set_alloc_funcs(json_alloc, json_free) */

static inline void *json_alloc(size_t bytes)
{
    void *p = spw_alloc_fails() ? NULL : malloc(bytes);
    json_outstanding += p != NULL;
    return p;
}

static inline void json_free(void *p)
{
    json_outstanding -= p != NULL;
    free(p);
}

/* Whether the allocation of spw_alloc_fail_nth has failed; none will, then. */
static inline bool json_allocation_has_failed(void)
{
    for (int i = 0; i < 1 << 16; i++)
        if (spw_alloc_fails())
            return false;
    return true;
}

#endif
