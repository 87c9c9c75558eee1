/* Pieces of other files as frames: see attached.h. */
#include "offload/kv/attached.h"

#include "base/grow.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>

/* O_DIRECT works only if its block size divides a tile; else turns it off. */
static int lend(struct spw_attached *p, uint64_t tile_bytes)
{
    int fd = p->given.fd;
    SPW_TRY(spw_io_use_file(fd, &p->file));
    uint32_t align = p->file.align;
    if (tile_bytes % align == 0 && p->given.offset % align == 0)
        return 0;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_DIRECT))
        return -errno;
    return spw_io_use_file(fd, &p->file);
}

/* Finds the lowest n adjacent free numbers; *place: their index among the items. */
static int find_numbers(const struct spw_attached_set *s, uint32_t n, uint32_t *first,
                        uint32_t *place)
{
    uint64_t from = s->base;
    uint32_t i = 0;
    for (; i < s->n && from + n >= s->items[i]->first; i++)
        from = (uint64_t)s->items[i]->first + s->items[i]->given.n + 1;
    *first = (uint32_t)from;
    *place = i;
    return from + n <= SPW_DISK_NONE ? 0 : -ENOMEM;
}

int spw_attached_add(struct spw_attached_set *s, const struct spw_disk_attachment *a,
                     uint64_t tile_bytes, uint32_t *first)
{
    uint32_t place;
    SPW_TRY(spw_grow(&s->items, &s->room, (size_t)s->n + 1, sizeof(void *)));
    SPW_TRY(find_numbers(s, a->n, first, &place));
    struct spw_attached *p = spw_alloc(sizeof *p + a->n * sizeof p->sums[0]);
    if (!p)
        return -ENOMEM;
    p->given = *a;
    p->first = *first;
    p->n_left = a->n;
    memcpy(p->sums, a->sums, a->n * sizeof p->sums[0]);
    p->given.sums = p->sums;
    int rc = lend(p, tile_bytes);
    if (rc) {
        spw_free(p);
        return rc;
    }
    memmove(s->items + place + 1, s->items + place, (s->n++ - place) * sizeof(void *));
    s->items[place] = p;
    return 0;
}

static uint32_t find_place(const struct spw_attached_set *s, uint32_t frame)
{
    uint32_t low = 0, high = s->n;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        *(s->items[middle]->first <= frame ? &low : &high) = middle;
    }
    assert(low < s->n && frame >= s->items[low]->first &&
           frame - s->items[low]->first < s->items[low]->given.n);
    return low;
}

struct spw_attached *spw_attached_find(const struct spw_attached_set *s, uint32_t frame)
{
    return s->items[find_place(s, frame)];
}

static void release_piece(struct spw_attached *p)
{
    if (p->given.released)
        p->given.released(p->given.context);
    spw_free(p);
}

void spw_attached_put(struct spw_attached_set *s, uint32_t frame)
{
    uint32_t place = find_place(s, frame);
    struct spw_attached *p = s->items[place];
    if (--p->n_left)
        return;
    memmove(s->items + place, s->items + place + 1, (--s->n - place) * sizeof(void *));
    release_piece(p);
}

void spw_attached_free(struct spw_attached_set *s)
{
    while (s->n)
        release_piece(s->items[--s->n]);
    spw_free(s->items);
}
