/* Traces of routing: see trace.h. A trace is a file:
 *
 *   head     "SPWROUTE", version u32, layers with experts u32, experts of a layer u32, kept experts
 *            of a row u32, the largest count at the start f64, a code of each count u8 (counts.h)
 *   visits   layer + 1, 2 * experts (+ 1 if rows follow), the first expert, for each other expert
 *            its distance from the one before less 1; rows of each expert, unless all have one row
 *   end      0, the XXH3-64 of all bytes before it u64
 *
 * Numbers of visits have seven bits a byte, the low ones first; the last byte is less than 128. All
 * other numbers are little-endian. Nothing in a file is trusted. */
#include "runtime/experts/trace.h"

#include "base/file.h"
#include "base/grow.h"
#include "base/kept_file.h"
#include "runtime/experts/counts.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    VERSION = 1,
    MOST_LAYERS = 4096,
    MOST_EXPERTS = 1 << 17,
    MOST_OF_LAYER = 2048,
    BUFFER_BYTES = 64 << 10
};
#define MOST_BYTES ((size_t)16 << 30)
static const char magic[8] = "SPWROUTE";

struct head {
    char magic[8];
    uint32_t version;
    struct spw_expert_shape shape;
    double largest;
};
_Static_assert(sizeof(struct head) == 32 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file");

/* ---- writing ---- */

struct spw_expert_trace_writer {
    char *path; /* owned, as what follows */
    int fd, rc;
    uint32_t n_experts; /* of a layer; 0: no engine has begun */
    XXH3_state_t *sum;
    uint64_t n_written;
    size_t n;
    uint8_t buffer[BUFFER_BYTES];
};

int spw_expert_trace_create(struct spw_expert_trace_writer **out, const char *path,
                            struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_expert_trace_writer *w = spw_alloc_zero(1, sizeof *w);
    *out = NULL;
    if (!w)
        return spw_fail(err, -ENOMEM, "%s: no memory to write it", path);
    w->fd = -1;
    w->path = spw_strdup(path);
    w->sum = spw_alloc_fails() ? NULL : XXH3_createState();
    if (w->path && w->sum)
        w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0600);
    if (w->fd >= 0 && lseek(w->fd, 0, SEEK_CUR) < 0) {
        w->rc = spw_fail(err, -EINVAL, "%s: found a pipe or a socket, expected a file", path);
        return spw_expert_trace_close(w, err);
    }
    if (w->fd < 0) {
        w->rc = w->path && w->sum ? -errno : -ENOMEM;
        spw_fail(err, w->rc, "%s: cannot be written: %s", path, strerror(-w->rc));
        return spw_expert_trace_close(w, err);
    }
    XXH3_64bits_reset(w->sum);
    *out = w;
    return 0;
}

static void flush(struct spw_expert_trace_writer *w)
{
    size_t n = 0;
    if (!w->rc)
        w->rc = spw_write_at(w->fd, w->buffer, w->n, w->n_written, &n);
    w->n_written += n;
    w->n = 0;
}

static void put(struct spw_expert_trace_writer *w, const void *from, size_t bytes)
{
    if (w->n + bytes > BUFFER_BYTES)
        flush(w);
    XXH3_64bits_update(w->sum, from, bytes);
    memcpy(w->buffer + w->n, from, bytes);
    w->n += bytes;
}

static void put_number(struct spw_expert_trace_writer *w, uint64_t x)
{
    uint8_t bytes[10];
    size_t n = 0;
    for (; x >= 128; x >>= 7)
        bytes[n++] = (uint8_t)(x | 128);
    bytes[n++] = (uint8_t)x;
    put(w, bytes, n);
}

void spw_expert_trace_begin(struct spw_expert_trace_writer *w, const struct spw_expert_shape *shape,
                            const double *counts)
{
    struct head head = {.version = VERSION, .shape = *shape};
    const uint32_t n = shape->n_layers * shape->n_experts;
    if (w->n_experts || w->rc)
        return;
    uint8_t *codes = spw_alloc(n);
    if (!codes) {
        w->rc = -ENOMEM;
        return;
    }
    w->n_experts = shape->n_experts;
    memcpy(head.magic, magic, sizeof magic);
    head.largest = spw_expert_counts_encode(codes, counts, n);
    put(w, &head, sizeof head);
    for (uint32_t e = 0; e < n; e++)
        put(w, &codes[e], 1);
    spw_free(codes);
}

void spw_expert_trace_add(struct spw_expert_trace_writer *w, const struct spw_expert_visit *v,
                          uint32_t n)
{
    if (!w->n_experts) /* the head could not be written */
        return;
    const uint32_t layer = v->expert / w->n_experts;
    bool with_rows = false;
    for (uint32_t i = 0; i < n; i++)
        with_rows |= v[i].n_rows != 1;
    put_number(w, layer + 1);
    put_number(w, 2 * (uint64_t)n + with_rows);
    for (uint32_t i = 0, next = layer * w->n_experts; i < n; next = v[i++].expert + 1)
        put_number(w, v[i].expert - next);
    for (uint32_t i = 0; i < n && with_rows; i++)
        put_number(w, v[i].n_rows);
}

int spw_expert_trace_close(struct spw_expert_trace_writer *w, struct spw_error *err)
{
    if (!w)
        return 0;
    if (w->fd >= 0 && w->n_experts) {
        put(w, "", 1);
        const uint64_t sum = XXH3_64bits_digest(w->sum);
        put(w, &sum, sizeof sum);
        flush(w);
    }
    if (w->fd >= 0 && close(w->fd) && !w->rc)
        w->rc = -errno;
    int rc = w->rc;
    if (rc)
        spw_fail(err, rc, "%s: cannot be written: %s", w->path, strerror(-rc));
    XXH3_freeState(w->sum);
    spw_free(w->path);
    spw_free(w);
    return rc;
}

/* ---- reading ---- */

/* The bytes that are left; `bad`: the first thing that was wrong. */
struct reader {
    const uint8_t *at, *end;
    const char *bad;
};

static uint64_t get_number(struct reader *r, uint64_t least, uint64_t most, const char *what)
{
    uint64_t x = 0;
    uint32_t shift = 0;
    uint8_t byte = 128;
    for (; byte >= 128 && r->at < r->end && shift < 35; shift += 7) {
        byte = *r->at++;
        x |= (uint64_t)(byte & 127) << shift;
    }
    if (!r->bad && (byte >= 128 || x < least || x > most))
        r->bad = what;
    return r->bad ? least : x;
}

static int get_visit(struct spw_expert_trace *t, struct reader *r, uint32_t layer)
{
    const uint64_t n_and_rows =
        get_number(r, 2, 2 * (uint64_t)t->shape.n_experts + 1, "this number of experts");
    const uint32_t n = (uint32_t)(n_and_rows / 2);
    SPW_TRY(spw_grow(&t->items, &t->items_capacity, t->n_items + n, sizeof *t->items));
    SPW_TRY(spw_grow(&t->ends, &t->visits_capacity, t->n_visits + 1, sizeof *t->ends));
    struct spw_expert_visit *v = &t->items[t->n_items];
    for (uint32_t i = 0, next = 0; i < n && !r->bad; i++) {
        next += (uint32_t)get_number(r, 0, t->shape.n_experts - 1, "this number of an expert");
        if (next >= t->shape.n_experts)
            r->bad = "this number of an expert";
        v[i] =
            (struct spw_expert_visit){.expert = layer * t->shape.n_experts + next++, .n_rows = 1};
    }
    for (uint32_t i = 0; i < n && n_and_rows % 2 && !r->bad; i++)
        v[i].n_rows = (uint32_t)get_number(r, 1, UINT32_MAX, "this number of rows");
    t->n_items += n;
    t->ends[t->n_visits++] = t->n_items;
    return 0;
}

static int get_visits(struct spw_expert_trace *t, struct reader *r)
{
    while (!r->bad) {
        const uint32_t layer =
            (uint32_t)get_number(r, 0, t->shape.n_layers, "this number of a layer");
        if (!layer || r->bad)
            break;
        SPW_TRY(get_visit(t, r, layer - 1));
    }
    return 0;
}

/* The rule has a byte for each pair of experts of a layer. */
static bool is_shape(const struct spw_expert_shape *s)
{
    return s->n_layers && s->n_layers <= MOST_LAYERS && s->n_experts &&
           s->n_experts <= MOST_OF_LAYER && s->n_kept && s->n_kept <= s->n_experts &&
           (uint64_t)s->n_layers * s->n_experts <= MOST_EXPERTS;
}

static int get_head(struct spw_expert_trace *t, struct reader *r)
{
    struct head head;
    if (!r->bad && (size_t)(r->end - r->at) < sizeof head)
        r->bad = "this head";
    if (r->bad)
        return 0;
    memcpy(&head, r->at, sizeof head);
    r->at += sizeof head;
    if (memcmp(head.magic, magic, sizeof magic) != 0)
        r->bad = "these first bytes";
    else if (head.version != VERSION)
        r->bad = "this version";
    else if (!is_shape(&head.shape) || !isfinite(head.largest) || head.largest < 0 ||
             (uint64_t)(r->end - r->at) < (uint64_t)head.shape.n_layers * head.shape.n_experts)
        r->bad = "this head";
    if (r->bad)
        return 0;
    const uint32_t n = head.shape.n_layers * head.shape.n_experts;
    *t = (struct spw_expert_trace){.shape = head.shape, .counts = spw_alloc(n * sizeof *t->counts)};
    if (!t->counts)
        return -ENOMEM;
    spw_expert_counts_decode(t->counts, head.largest, r->at, n);
    r->at += n;
    return 0;
}

/* The sum comes first: what follows is damage that no accident makes. */
static int parse(struct spw_expert_trace *t, const uint8_t *bytes, size_t n, const char *path,
                 struct spw_error *err)
{
    uint64_t sum = 0;
    const size_t n_summed = n - spw_min_u64(n, sizeof sum);
    struct reader r = {.at = bytes, .end = bytes + n_summed};
    memcpy(&sum, r.end, n - n_summed);
    if (XXH3_64bits(bytes, n_summed) != sum)
        return spw_fail(err, -EINVAL,
                        "%s: found no checksum of a trace at its end: the file is no trace of "
                        "experts, it is damaged, or its run was killed; another run writes "
                        "another one",
                        path);
    int rc = get_head(t, &r);
    if (!rc && !r.bad)
        rc = get_visits(t, &r);
    if (!r.bad && r.at != r.end)
        r.bad = "more bytes after its end";
    if (rc)
        return spw_fail(err, rc, "%s: no memory to read it", path);
    return r.bad ? spw_fail(err, -EINVAL, "%s: byte %zu: a trace of experts cannot have %s", path,
                            (size_t)(r.at - bytes), r.bad)
                 : 0;
}

int spw_expert_trace_read(struct spw_expert_trace **out, const char *path, struct spw_error *err)
{
    char *bytes;
    size_t n;
    spw_error_clear(err);
    *out = NULL;
    SPW_TRY(spw_kept_file_read(path, MOST_BYTES, &bytes, &n, err));
    struct spw_expert_trace *t = spw_alloc_zero(1, sizeof *t);
    int rc = t ? parse(t, (const uint8_t *)bytes, n, path, err)
               : spw_fail(err, -ENOMEM, "%s: no memory to read it", path);
    spw_free(bytes);
    if (rc)
        spw_expert_trace_free(t);
    else
        *out = t;
    return rc;
}

void spw_expert_trace_free(struct spw_expert_trace *t)
{
    if (!t)
        return;
    spw_free(t->counts);
    spw_free(t->items);
    spw_free(t->ends);
    spw_free(t);
}
