/* Memory, limits, errors and output of a Jinja template: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <stdio.h>

enum { BLOCK_BYTES = 16 << 10, ALIGNMENT = 8 };

/* ---- failures ---- */

int spw_jinja_try(struct run *r, void (*body)(struct run *r, void *arg), void *arg)
{
    if (!setjmp(r->failed))
        body(r, arg);
    return r->rc;
}

/* A message quotes templates and their input, which hold anything: one line it must be, and not end
 * in the middle of a character. */
static void write_error(struct run *r, const char *format, va_list args)
{
    char *text = r->err->text;
    size_t room = sizeof r->err->text;
    int head = snprintf(text, room, "%s: line %u: ", r->name, r->line);
    if (head >= 0 && (size_t)head < room)
        vsnprintf(text + head, room - (size_t)head, format, args);
    size_t n = strlen(text);
    if (n == room - 1)
        text[spw_jinja_before(text, text + n) - text] = 0;
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = *c == '\n' ? ' ' : '?';
}

void spw_jinja_stop(struct run *r, int rc, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (r->err)
        write_error(r, format, args);
    va_end(args);
    r->rc = rc;
    longjmp(r->failed, 1);
}

void spw_jinja_refuse(struct run *r, const char *doing, struct value v)
{
    spw_jinja_fail(r, "found %s a %s, which spillway does not do", doing, spw_jinja_type_name(v));
}

void spw_jinja_charge(struct run *r, size_t work)
{
    if (work > INT64_MAX || (r->work_left -= (int64_t)spw_min_u64(work, INT64_MAX / 2)) < 0)
        spw_jinja_stop(r, -E2BIG, "the template takes too many steps");
}

void spw_jinja_enter(struct run *r)
{
    spw_jinja_charge(r, 1);
    if (++r->depth > SPW_JINJA_MAX_DEPTH)
        spw_jinja_stop(r, -E2BIG, "more than %d levels of calls, blocks or values",
                       SPW_JINJA_MAX_DEPTH);
}

/* ---- the arena ---- */

/* A block for `bytes`, with `room` where the limit lets it. */
static struct block *new_block(struct run *r, struct block **list, size_t bytes, size_t room)
{
    struct arena *a = &r->arena;
    room = room > BLOCK_BYTES ? room : BLOCK_BYTES;
    if (room > a->limit - a->taken)
        room = bytes;
    if (room > a->limit - a->taken)
        spw_jinja_stop(r, -E2BIG, "the template takes more than %zu bytes of memory", a->limit);
    struct block *b = spw_alloc(sizeof *b + room);
    if (!b)
        spw_jinja_stop(r, -ENOMEM, "out of memory");
    a->taken += room;
    *b = (struct block){.next = *list, .room = room};
    *list = b;
    return b;
}

void *spw_jinja_take(struct run *r, size_t bytes)
{
    struct block *b = r->arena.objects;
    bytes = (size_t)spw_align_up(spw_min_u64(bytes, SIZE_MAX / 4), ALIGNMENT);
    if (!b || bytes > b->room - b->used)
        b = new_block(r, &r->arena.objects, bytes, bytes);
    void *p = b->at + b->used;
    b->used += bytes;
    return memset(p, 0, bytes);
}

char *spw_jinja_take_text(struct run *r, size_t bytes)
{
    struct block *b = r->arena.text;
    /* a long text gets a block with room to grow into, as far as the limit lets it */
    if (!b || bytes > b->room - b->used)
        b = new_block(r, &r->arena.text, bytes, bytes + (bytes < BLOCK_BYTES ? 0 : bytes / 2));
    char *p = b->at + b->used;
    b->used += bytes;
    return p;
}

void *spw_jinja_grow(struct run *r, void *at, size_t n, size_t *room, size_t size)
{
    if (n < *room)
        return at;
    *room = *room ? *room * 2 : 4;
    void *grown = spw_jinja_take(r, *room * size);
    if (n)
        memcpy(grown, at, n * size);
    return grown;
}

bool spw_jinja_extend_text(struct run *r, const char *end, size_t more)
{
    struct block *b = r->arena.text;
    if (!b || b->at + b->used != end || more > b->room - b->used)
        return false;
    b->used += more;
    return true;
}

static void free_blocks(struct block *b)
{
    while (b) {
        struct block *next = b->next;
        spw_free(b);
        b = next;
    }
}

void spw_jinja_arena_free(struct arena *a)
{
    free_blocks(a->objects);
    free_blocks(a->text);
    *a = (struct arena){0};
}

/* ---- output ---- */

/* Room for `times` times `bytes` more; the place where they go. */
static char *reserve(struct run *r, size_t bytes, uint64_t times)
{
    if (bytes && times > (r->out_limit - r->out_bytes) / bytes)
        spw_jinja_stop(r, -E2BIG, "the template prints more than %zu bytes", r->out_limit);
    size_t needed = r->out_bytes + bytes * times;
    if (spw_grow(&r->out, &r->out_room, needed ? needed : 1, 1)) /* the place is never NULL */
        spw_jinja_stop(r, -ENOMEM, "out of memory");
    spw_jinja_charge(r, bytes * times / 32);
    char *to = r->out + r->out_bytes;
    r->out_bytes = needed;
    return to;
}

void spw_jinja_print(struct run *r, const char *at, size_t bytes)
{
    char *to = reserve(r, bytes, 1);
    if (bytes)
        memcpy(to, at, bytes);
}

void spw_jinja_print_text(struct run *r, const char *text)
{
    spw_jinja_print(r, text, strlen(text));
}

void spw_jinja_print_times(struct run *r, const char *at, size_t bytes, int64_t times)
{
    if (times <= 0 || !bytes)
        return;
    char *to = reserve(r, bytes, (uint64_t)times);
    size_t all = bytes * (size_t)times, done = bytes;
    memcpy(to, at, bytes);
    for (; done < all; done *= 2)
        memcpy(to + done, to, done * 2 <= all ? done : all - done);
}

struct value spw_jinja_captured(struct run *r, size_t start)
{
    size_t bytes = r->out_bytes - start;
    r->out_bytes = start;
    return spw_jinja_copy(r, bytes ? r->out + start : "", bytes);
}
