/* Memory, limits, errors and output of a Jinja template: see jinja_impl.h. */
#include "model/text/jinja/jinja_impl.h"

#include <stdio.h>

enum { BLOCK_BYTES = 16 << 10, ALIGNMENT = 8 };

static struct spw_jj_block *new_block(struct spw_jj_arena *a, struct spw_jj_block **list,
                                      size_t bytes)
{
    size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    if (room > a->limit - a->taken)
        room = bytes;
    if (room > a->limit - a->taken) {
        a->full = true;
        return NULL;
    }
    struct spw_jj_block *b = spw_alloc(sizeof *b + room);
    if (!b)
        return NULL;
    a->taken += room;
    *b = (struct spw_jj_block){.next = *list, .room = room};
    *list = b;
    return b;
}

void *spw_jj_take(struct spw_jj_arena *a, size_t bytes)
{
    struct spw_jj_block *b = a->objects;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (size_t)spw_align_up(bytes, ALIGNMENT);
    if ((!b || bytes > b->room - b->used) && !(b = new_block(a, &a->objects, bytes)))
        return NULL;
    void *p = b->at + b->used;
    b->used += bytes;
    return memset(p, 0, bytes);
}

char *spw_jj_take_text(struct spw_jj_arena *a, size_t bytes)
{
    struct spw_jj_block *b = a->text;
    /* a long text gets a block with room to grow into, as far as the limit lets it */
    if (!b || bytes > b->room - b->used) {
        size_t room = bytes < BLOCK_BYTES ? bytes : bytes + bytes / 2;
        if (bytes > SIZE_MAX / 4)
            return NULL;
        if (room > a->limit - a->taken)
            room = bytes;
        if (!(b = new_block(a, &a->text, room)))
            return NULL;
    }
    char *p = b->at + b->used;
    b->used += bytes;
    return p;
}

bool spw_jj_extend_text(struct spw_jj_arena *a, const char *end, size_t more)
{
    struct spw_jj_block *b = a->text;
    if (!b || b->at + b->used != end || more > b->room - b->used)
        return false;
    b->used += more;
    return true;
}

static void free_blocks(struct spw_jj_block *b)
{
    while (b) {
        struct spw_jj_block *next = b->next;
        spw_free(b);
        b = next;
    }
}

void spw_jj_arena_free(struct spw_jj_arena *a)
{
    free_blocks(a->objects);
    free_blocks(a->text);
    *a = (struct spw_jj_arena){0};
}

size_t spw_jj_chars(const char *at, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += (at[i] & 0xc0) != 0x80;
    return n;
}

/* A message quotes templates and their input, which hold anything: one line it must be, and not end
 * in the middle of a character. */
static int refuse(struct spw_error *err, int code, const char *name, uint32_t line,
                  const char *reason)
{
    if (!err || err->text[0])
        return code;
    snprintf(err->text, sizeof err->text, "%s: line %u: %s", name, line, reason);
    size_t n = strlen(err->text);
    if (n == sizeof err->text - 1) {
        while (n > 0 && (err->text[n - 1] & 0xc0) == 0x80)
            n--;
        err->text[n - (n > 0)] = 0;
    }
    for (char *c = err->text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = *c == '\n' ? ' ' : '?';
    return code;
}

int spw_jj_fail(struct spw_jj_run *r, const char *format, ...)
{
    char reason[sizeof r->err->text];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return refuse(r->err, -EINVAL, r->name, r->line, reason);
}

int spw_jj_refuse(struct spw_jj_run *r, const char *doing, struct spw_jj_value v)
{
    return spw_jj_fail(r, "found %s a %s, which spillway does not do", doing, spw_jj_type_name(v));
}

int spw_jj_syntax(const struct spw_jj_source *s, uint32_t line, const char *format, ...)
{
    char reason[sizeof s->err->text];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return refuse(s->err, -EINVAL, s->name, line, reason);
}

int spw_jj_no_memory(struct spw_jj_run *r)
{
    char reason[96];
    if (!r->arena.full)
        return refuse(r->err, -ENOMEM, r->name, r->line, "out of memory");
    snprintf(reason, sizeof reason, "the template takes more than %zu bytes of memory",
             r->arena.limit);
    return refuse(r->err, -E2BIG, r->name, r->line, reason);
}

int spw_jj_charge(struct spw_jj_run *r, size_t work)
{
    if (work > INT64_MAX || (r->work_left -= (int64_t)spw_min_u64(work, INT64_MAX / 2)) < 0)
        return refuse(r->err, -E2BIG, r->name, r->line, "the template takes too many steps");
    return 0;
}

int spw_jj_enter(struct spw_jj_run *r)
{
    char reason[96];
    SPW_TRY(spw_jj_charge(r, 1));
    if (++r->depth <= SPW_JINJA_MAX_DEPTH)
        return 0;
    snprintf(reason, sizeof reason, "more than %d levels of calls, blocks or values",
             SPW_JINJA_MAX_DEPTH);
    return refuse(r->err, -E2BIG, r->name, r->line, reason);
}

/* Room for `times` times `bytes` more, and a NUL. */
static int reserve(struct spw_jj_run *r, size_t bytes, uint64_t times)
{
    struct spw_jj_buffer *b = &r->out;
    if (bytes && times > (r->out_limit - b->bytes) / bytes) {
        char reason[96];
        snprintf(reason, sizeof reason, "the template prints more than %zu bytes", r->out_limit);
        return refuse(r->err, -E2BIG, r->name, r->line, reason);
    }
    size_t needed = b->bytes + bytes * times;
    if (needed >= b->room) {
        size_t room = needed * 2 + 256;
        char *grown = spw_realloc(b->at, room);
        if (!grown)
            return refuse(r->err, -ENOMEM, r->name, r->line, "out of memory");
        b->at = grown;
        b->room = room;
    }
    return spw_jj_charge(r, bytes * times / 32);
}

int spw_jj_print(struct spw_jj_run *r, const char *at, size_t bytes)
{
    SPW_TRY(reserve(r, bytes, 1));
    if (bytes)
        memcpy(r->out.at + r->out.bytes, at, bytes);
    r->out.bytes += bytes;
    return 0;
}

int spw_jj_print_times(struct spw_jj_run *r, const char *at, size_t bytes, int64_t times)
{
    if (times <= 0 || !bytes)
        return 0;
    SPW_TRY(reserve(r, bytes, (uint64_t)times));
    char *to = r->out.at + r->out.bytes;
    size_t all = bytes * (size_t)times, done = bytes;
    memcpy(to, at, bytes);
    for (; done < all; done *= 2)
        memcpy(to + done, to, done * 2 <= all ? done : all - done);
    r->out.bytes += all;
    return 0;
}

int spw_jj_captured(struct spw_jj_run *r, size_t start, struct spw_jj_value *out)
{
    size_t bytes = r->out.bytes - start;
    r->out.bytes = start;
    return spw_jj_copy(r, bytes ? r->out.at + start : "", bytes, out);
}
