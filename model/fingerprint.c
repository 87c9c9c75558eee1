/* Which model this is: see fingerprint.h. */
#include "model/fingerprint.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    SAMPLE_BYTES = 4096,     /* a page: less costs the drive as much */
    MOST_PARTS = 7,          /* of one tensor, besides its start */
    PART_BYTES = 16 << 20,   /* a tensor of so many bytes has one more part */
    AROUND_BYTES = 64 << 10, /* Linux maps the cached pages around a fault */
};

/* ---- samples ---- */

struct sample {
    const uint8_t *at;
    size_t bytes;
};

static uint32_t n_parts(const struct spw_tensor *t)
{
    if (t->bytes <= SAMPLE_BYTES)
        return 0;
    return (uint32_t)spw_min_u64(1 + t->bytes / PART_BYTES, MOST_PARTS);
}

/* Sample 0 is the start; sample i > 0 lies somewhere in the i-th of equal parts. */
static struct sample sample_of(const struct spw_tensor *t, uint32_t i)
{
    struct sample s = {t->data, (size_t)spw_min_u64(t->bytes, SAMPLE_BYTES)};
    if (i == 0)
        return s;
    uint64_t part = t->bytes / n_parts(t), begin = (i - 1) * part;
    uint64_t room = spw_sub_u64(part, SAMPLE_BYTES) + 1;
    uint64_t place = begin + XXH3_64bits_withSeed(t->name, strlen(t->name), i) % room;
    s.at += spw_min_u64(place, t->bytes - SAMPLE_BYTES);
    return s;
}

/* 0: a file beside the model has the tensor. */
static uint32_t n_samples(const struct spw_tensors *weights, const struct spw_tensor *t)
{
    return t->file_index < spw_tensors_n_model_files(weights) ? 1 + n_parts(t) : 0;
}

/* Requests the pages of all samples without waiting, so the drive sees all requests together. This
 * is advice only. */
static void ask_for_samples(const struct spw_tensors *weights)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (size_t k = 0; k < spw_tensors_count(weights); k++) {
        const struct spw_tensor *t = spw_tensors_at(weights, k);
        for (uint32_t i = 0; i < n_samples(weights, t); i++) {
            struct sample s = sample_of(t, i);
            uintptr_t begin = (uintptr_t)s.at / page * page;
            if (s.bytes)
                madvise((void *)begin, (uintptr_t)s.at + s.bytes - begin, MADV_WILLNEED);
        }
    }
}

/* Unmaps the page of the sample and those that came with it: a large model has thousands of
 * samples, and their pages would count as memory of this process. */
static void drop_pages(const struct spw_tensors *weights, const struct spw_tensor *t,
                       const struct sample *s)
{
    const uintptr_t begin = (uintptr_t)t->data - t->file_offset, at = (uintptr_t)s->at;
    const uintptr_t end = begin + spw_tensors_extent(weights, t->file_index).file_bytes;
    const uintptr_t from = spw_max_u64(begin, at / AROUND_BYTES * AROUND_BYTES);
    const uintptr_t to = spw_min_u64(end, spw_align_up(at + s->bytes, AROUND_BYTES));
    if (s->bytes)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

static void add_samples(XXH3_state_t *to, const struct spw_tensors *weights)
{
    for (size_t k = 0; k < spw_tensors_count(weights); k++) {
        const struct spw_tensor *t = spw_tensors_at(weights, k);
        const uint32_t n = n_samples(weights, t);
        if (n)
            XXH3_128bits_update(to, t->name, strlen(t->name) + 1);
        for (uint32_t i = 0; i < n; i++) {
            struct sample s = sample_of(t, i);
            XXH3_128bits_update(to, s.at, s.bytes);
            drop_pages(weights, t, &s);
        }
    }
}

/* ---- config and headers ---- */

static void add_bytes(XXH3_state_t *to, const void *bytes, uint64_t n)
{
    XXH3_128bits_update(to, &n, sizeof n); /* the length keeps two lists from hashing as one */
    XXH3_128bits_update(to, bytes, (size_t)n);
}

static int add_config(XXH3_state_t *to, const struct spw_source *source, struct spw_error *err)
{
    char *text;
    size_t n;
    SPW_TRY(source->ops->text(source, SPW_SOURCE_CONFIG, &text, &n, err));
    XXH3_128bits_update(to, text, n);
    spw_free(text);
    uint64_t total = n;
    XXH3_128bits_update(to, &total, sizeof total);
    return 0;
}

static void add_headers(XXH3_state_t *to, const struct spw_tensors *weights)
{
    for (uint32_t i = 0; i < spw_tensors_n_model_files(weights); i++) {
        const char *path = spw_tensors_path(weights, i), *slash = strrchr(path, '/');
        const char *name = slash ? slash + 1 : path;
        struct spw_tensors_extent e = spw_tensors_extent(weights, i);
        add_bytes(to, name, strlen(name));
        add_bytes(to, e.header, e.header_bytes);
        XXH3_128bits_update(to, &e.file_bytes, sizeof e.file_bytes);
    }
}

/* ---- the fingerprint ---- */

static void put(uint8_t out[16], const XXH3_state_t *state)
{
    XXH128_canonical_t bytes; /* the same on every machine */
    XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(state));
    memcpy(out, bytes.digest, sizeof bytes.digest);
}

int spw_fingerprint_take(uint8_t out[SPW_FINGERPRINT_BYTES], const struct spw_source *source,
                         const struct spw_tensors *weights, struct spw_error *err)
{
    XXH3_state_t *state = spw_alloc_fails() ? NULL : XXH3_createState();
    if (!state)
        return spw_fail(err, -ENOMEM, "%s: out of memory", source->path);
    XXH3_128bits_reset(state);
    int rc = add_config(state, source, err);
    if (!rc) {
        add_headers(state, weights);
        put(out, state);
        ask_for_samples(weights);
        XXH3_128bits_reset(state);
        add_samples(state, weights);
        put(out + SPW_FINGERPRINT_BYTES / 2, state);
        if (spw_tensors_damaged(weights))
            rc = spw_tensors_check(weights, err);
    }
    XXH3_freeState(state);
    return rc;
}

void spw_fingerprint_text(char out[2 * SPW_FINGERPRINT_BYTES + 1],
                          const uint8_t fingerprint[SPW_FINGERPRINT_BYTES])
{
    for (unsigned i = 0; i < SPW_FINGERPRINT_BYTES; i++)
        snprintf(out + (size_t)2 * i, 3, "%02x", fingerprint[i]);
}
