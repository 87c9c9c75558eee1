/* Walking over values, and sorting: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

int spw_jj_new_iterator(struct spw_jj_run *r, struct spw_jj_value over,
                        struct spw_jj_iterator **out)
{
    struct spw_jj_iterator *it = spw_jj_take(&r->arena, sizeof *it);
    if (!it)
        return spw_jj_no_memory(r);
    it->over = over;
    *out = it;
    return 0;
}

int spw_jj_iterate(struct spw_jj_run *r, struct spw_jj_value over, struct spw_jj_iterator **out)
{
    switch (over.type) {
    case SPW_JJ_ITERATOR:
        *out = over.u.iterator; /* goes on where it stands */
        return 0;
    case SPW_JJ_UNDEFINED:
    case SPW_JJ_STRING:
    case SPW_JJ_LIST:
    case SPW_JJ_TUPLE:
    case SPW_JJ_DICT:
    case SPW_JJ_RANGE:
    case SPW_JJ_VIEW:
        return spw_jj_new_iterator(r, over, out);
    default:
        return spw_jj_fail(r, "'%s' object is not iterable", spw_jj_type_name(over));
    }
}

static int next_of_string(struct spw_jj_run *r, struct spw_jj_iterator *it,
                          struct spw_jj_value *out)
{
    const struct spw_jj_string *s = it->over.u.string;
    size_t n;
    spw_jj_decode(s->at + it->offset, s->at + s->bytes, &n);
    SPW_TRY(spw_jj_borrow(r, s->at + it->offset, n, out));
    it->offset += n;
    return 0; /* plain, also of a string that was marked safe: as in Python */
}

int spw_jj_next(struct spw_jj_run *r, struct spw_jj_iterator *it, struct spw_jj_value *out,
                bool *more)
{
    int64_t n = 0;
    struct spw_jj_value over = it->over;
    SPW_TRY(spw_jj_charge(r, 1));
    SPW_TRY(spw_jj_length(r, over, &n));
    *more = it->at < (size_t)n;
    if (!*more)
        return 0;
    size_t at = it->at++;
    if (over.type == SPW_JJ_STRING)
        return next_of_string(r, it, out);
    if (over.type == SPW_JJ_DICT)
        *out = over.u.dict->at[at].key;
    else if (over.type == SPW_JJ_RANGE)
        *out = spw_jj_int(over.u.range->start + (int64_t)at * over.u.range->step);
    else
        *out = over.u.list->at[at];
    return 0;
}

int spw_jj_to_list(struct spw_jj_run *r, struct spw_jj_value over, enum spw_jj_type type,
                   struct spw_jj_value *out)
{
    struct spw_jj_value list, item;
    struct spw_jj_iterator *it = NULL;
    bool more;
    SPW_TRY(spw_jj_new_list(r, type, &list));
    SPW_TRY(spw_jj_iterate(r, over, &it));
    for (;;) {
        SPW_TRY(spw_jj_next(r, it, &item, &more));
        if (!more)
            break;
        SPW_TRY(spw_jj_append(r, list.u.list, item));
    }
    *out = list;
    return 0;
}

/* Merges the sorted runs [a, b) and [b, end) of `order` into `to`. */
static int merge(struct spw_jj_run *r, const struct spw_jj_list *keys, const uint32_t *order,
                 size_t a, size_t b, size_t end, bool reverse, uint32_t *to)
{
    size_t i = a, j = b;
    for (size_t n = a; n < end; n++) {
        int c = 0;
        bool left = j >= end;
        if (i < b && j < end) {
            /* `<` of the later and the earlier, as Python asks: for equal ones the earlier is first
             */
            if (reverse)
                SPW_TRY(spw_jj_order(r, keys->at[order[i]], keys->at[order[j]], "<", &c));
            else
                SPW_TRY(spw_jj_order(r, keys->at[order[j]], keys->at[order[i]], "<", &c));
            left = c != -1;
        }
        to[n] = left ? order[i++] : order[j++];
    }
    return 0;
}

int spw_jj_sort(struct spw_jj_run *r, struct spw_jj_list *items, struct spw_jj_list *keys,
                bool reverse)
{
    size_t n = items->n;
    uint32_t *order = spw_jj_take(&r->arena, n * sizeof *order);
    uint32_t *to = spw_jj_take(&r->arena, n * sizeof *to);
    struct spw_jj_value *sorted = spw_jj_take(&r->arena, n * sizeof *sorted);
    if (!order || !to || !sorted)
        return spw_jj_no_memory(r);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t a = 0; a < n; a += width * 2) {
            size_t b = spw_min_u64(a + width, n), end = spw_min_u64(a + width * 2, n);
            SPW_TRY(merge(r, keys, order, a, b, end, reverse, to));
        }
        uint32_t *swap = order;
        order = to;
        to = swap;
    }
    for (size_t i = 0; i < n; i++)
        sorted[i] = items->at[order[i]];
    if (n)
        memcpy(items->at, sorted, n * sizeof *sorted);
    return 0;
}
