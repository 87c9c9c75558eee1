/* Computes ranges from parts: see file_ranges.h. */
#include "model/weights/file_ranges.h"

#include <assert.h>

static bool comes_before(const struct spw_file_part *a, const struct spw_file_part *b)
{
    return a->file != b->file ? a->file < b->file : a->offset < b->offset;
}

/* order[i]: the i-th part in its file. */
static void sort(const struct spw_file_part *parts, uint32_t n, uint32_t order[SPW_FILE_PARTS])
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at && comes_before(&parts[i], &parts[order[at - 1]]); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

/* Whether the part is read with the range r, whose last part ends at least_bytes. */
static bool is_close(const struct spw_file_range *r, const struct spw_file_part *p)
{
    return p->file == r->file && p->offset <= r->offset + r->least_bytes + SPW_FILE_GAP;
}

static struct spw_file_range begin_range(const struct spw_file_part *p, uint64_t slot_offset)
{
    return (struct spw_file_range){.file = p->file,
                                   .offset = p->offset - p->offset % SPW_FILE_BLOCK,
                                   .slot_offset = slot_offset};
}

uint32_t spw_file_ranges(const struct spw_file_part *parts, uint32_t n, struct spw_file_range *out,
                         uint64_t *lands)
{
    uint32_t order[SPW_FILE_PARTS], n_ranges = 0;
    assert(n <= SPW_FILE_PARTS);
    sort(parts, n, order);
    for (uint32_t i = 0; i < n; i++) {
        const struct spw_file_part *p = &parts[order[i]];
        struct spw_file_range *last = n_ranges ? &out[n_ranges - 1] : NULL;
        if (!last || !is_close(last, p)) {
            uint64_t end = last ? last->slot_offset + last->bytes : 0;
            last = &out[n_ranges++];
            *last = begin_range(p, end);
        }
        last->least_bytes = p->offset + p->bytes - last->offset;
        last->bytes = spw_align_up(last->least_bytes, SPW_FILE_BLOCK);
        lands[order[i]] = last->slot_offset + (p->offset - last->offset);
    }
    return n_ranges;
}

uint64_t spw_file_ranges_bytes(const struct spw_file_range *ranges, uint32_t n)
{
    return n ? ranges[n - 1].slot_offset + ranges[n - 1].bytes : 0;
}
