/* See store_parts.h. */
#include "tools/command/job/store/store_parts.h"

void job_table_free(struct job_table *t)
{
    spw_free(t->entries);
    *t = (struct job_table){0};
}

static bool is_empty(const struct job_entry *e)
{
    return !e->key.low && !e->key.high;
}

/* Where the key is, or the empty place where it belongs. */
static struct job_entry *place_of(const struct job_table *t, struct job_key key)
{
    size_t i = key.low & (t->n_places - 1);
    while (!is_empty(&t->entries[i]) &&
           (t->entries[i].key.low != key.low || t->entries[i].key.high != key.high))
        i = (i + 1) & (t->n_places - 1);
    return &t->entries[i];
}

struct job_entry *job_table_find(const struct job_table *t, struct job_key key)
{
    struct job_entry *e = t->n_places ? place_of(t, key) : NULL;
    return e && !is_empty(e) ? e : NULL;
}

static int grow(struct job_table *t)
{
    enum { LEAST = 1024 };
    struct job_table grown = {.n_places = t->n_places ? 2 * t->n_places : LEAST, .n = t->n};
    grown.entries = spw_alloc_zero(grown.n_places, sizeof *grown.entries);
    if (!grown.entries)
        return -ENOMEM;
    for (size_t i = 0; i < t->n_places; i++)
        if (!is_empty(&t->entries[i]))
            *place_of(&grown, t->entries[i].key) = t->entries[i];
    spw_free(t->entries);
    *t = grown;
    return 0;
}

struct job_entry *job_table_add(struct job_table *t, struct job_key key)
{
    if (2 * (t->n + 1) > t->n_places && grow(t))
        return NULL;
    struct job_entry *e = place_of(t, key);
    if (is_empty(e)) {
        *e = (struct job_entry){.key = key};
        t->n++;
    }
    return e;
}
