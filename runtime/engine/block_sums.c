/* The sums of blocks, and the file that keeps them: see block_sums.h.
 *
 *     magic | model | model | ... | XXH3-64 of all before | end
 *     model: key[16] | n | sums[n]      the model that was used last comes first
 *
 * Numbers are those of this machine: on another one the magic number differs. */
#include "runtime/engine/block_sums.h"

#include "base/kept_file.h"
#include "prefetch/ring.h"

#include <string.h>
#include <xxhash.h>

#define MAGIC ((uint64_t)0x32736d7573777073) /* "spwsums2"; another layout has another one */
#define MOST_BYTES ((size_t)64 << 20)        /* sums of 8 TiB */

#define END "end of spwsums"

static const struct spw_kept_kind kind = {.begin = "spwsums", .end = END};

enum {
    MODEL_HEAD = SPW_SUMS_KEY_BYTES + sizeof(uint64_t),
    END_BYTES = sizeof END - 1,
    TAIL_BYTES = sizeof(uint64_t) + END_BYTES,
};

/* ---- the table ---- */

static void add(XXH3_state_t *to, uint64_t number)
{
    XXH3_128bits_update(to, &number, sizeof number);
}

/* Counts the sums of all blocks, and adds the ranges to the key. */
static void add_ranges(struct spw_block_sums *s, const struct spw_weights *w, XXH3_state_t *to)
{
    struct spw_file_range ranges[SPW_FILE_PARTS];
    uint64_t lands[SPW_FILE_PARTS];
    for (uint32_t b = 0; b < w->n_blocks + w->n_expert_blocks; b++) {
        const uint32_t n = spw_weights_ranges(w, b, ranges, lands);
        s->first[b] = s->n;
        for (uint32_t i = 0; i < n; i++) {
            add(to, ranges[i].file);
            add(to, ranges[i].offset);
            add(to, ranges[i].least_bytes);
            s->n += spw_div_up(ranges[i].bytes, SPW_RING_RECORD_BYTES);
        }
    }
}

static void add_files(const struct spw_tensors *t, XXH3_state_t *to)
{
    for (uint32_t i = 0; i < spw_tensors_n_files(t); i++) {
        const char *path = spw_tensors_path(t, i), *slash = strrchr(path, '/');
        const char *name = slash ? slash + 1 : path;
        const struct spw_tensors_extent e = spw_tensors_extent(t, i);
        XXH3_128bits_update(to, name, strlen(name) + 1);
        XXH3_128bits_update(to, e.header, e.header_bytes);
        add(to, e.file_bytes);
        add(to, (uint64_t)e.written.tv_sec);
        add(to, (uint64_t)e.written.tv_nsec);
    }
}

int spw_block_sums_open(struct spw_block_sums *s, const struct spw_weights *w)
{
    XXH3_state_t *state = spw_alloc_fails() ? NULL : XXH3_createState();
    *s = (struct spw_block_sums){
        .first = spw_alloc_zero(w->n_blocks + w->n_expert_blocks, sizeof *s->first)};
    if (state && s->first) {
        XXH128_canonical_t key;
        XXH3_128bits_reset(state);
        add_files(w->tensors, state);
        add_ranges(s, w, state);
        XXH128_canonicalFromHash(&key, XXH3_128bits_digest(state));
        memcpy(s->key, key.digest, sizeof s->key);
        s->sums = spw_alloc_zero(s->n, sizeof *s->sums);
    }
    XXH3_freeState(state);
    if (s->sums)
        return 0;
    spw_block_sums_close(s);
    return -ENOMEM;
}

void spw_block_sums_close(struct spw_block_sums *s)
{
    spw_free(s->sums);
    spw_free(s->first);
    *s = (struct spw_block_sums){0};
}

static uint64_t n_known(const struct spw_block_sums *s)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < s->n; i++)
        n += s->sums[i] != 0;
    return n;
}

/* ---- the file ---- */

/* The bytes of the model at `at`; 0: it does not lie before `end`. */
static size_t model_bytes(const char *at, const char *end)
{
    uint64_t n;
    if (end - at < MODEL_HEAD)
        return 0;
    memcpy(&n, at + SPW_SUMS_KEY_BYTES, sizeof n);
    if (n > (size_t)(end - at - MODEL_HEAD) / sizeof n)
        return 0;
    return MODEL_HEAD + (size_t)n * sizeof n;
}

/* The models in the file: [*from, *end). After a failure nothing is set. */
static int check(const char *data, size_t bytes, const char **from, const char **end,
                 const char *path, struct spw_error *err)
{
    uint64_t magic = 0, sum = 0;
    if (bytes >= sizeof magic + TAIL_BYTES) {
        memcpy(&magic, data, sizeof magic);
        memcpy(&sum, data + bytes - TAIL_BYTES, sizeof sum);
    }
    if (magic != MAGIC || sum != XXH3_64bits(data, bytes - TAIL_BYTES) ||
        memcmp(data + bytes - END_BYTES, kind.end, END_BYTES) != 0)
        return spw_fail(err, -EINVAL,
                        "%s: found no list of checksums of spillway, or a damaged one", path);
    const char *first = data + sizeof magic, *last = data + bytes - TAIL_BYTES;
    for (const char *at = first; at < last; at += model_bytes(at, last))
        if (!model_bytes(at, last))
            return spw_fail(err, -EINVAL, "%s: a list of checksums is longer than the file", path);
    *from = first;
    *end = last;
    return 0;
}

static int load(char **data, const char **from, const char **end, const char *path,
                struct spw_error *err)
{
    size_t bytes;
    SPW_TRY(spw_kept_file_read(path, MOST_BYTES, data, &bytes, err));
    int rc = check(*data, bytes, from, end, path, err);
    if (!rc)
        return 0;
    spw_free(*data);
    *data = NULL;
    return rc;
}

/* Of this model, with its number of sums. */
static bool is_own(const struct spw_block_sums *s, const char *at)
{
    uint64_t n;
    memcpy(&n, at + SPW_SUMS_KEY_BYTES, sizeof n);
    return n == s->n && memcmp(at, s->key, SPW_SUMS_KEY_BYTES) == 0;
}

int spw_block_sums_read(struct spw_block_sums *s, const char *path, struct spw_error *err)
{
    char *data;
    const char *at, *end;
    SPW_TRY(load(&data, &at, &end, path, err));
    while (at < end && !is_own(s, at))
        at += model_bytes(at, end);
    const bool found = at < end;
    if (found) {
        memcpy(s->sums, at + MODEL_HEAD, s->n * sizeof *s->sums);
        s->n_kept = n_known(s);
    }
    spw_free(data);
    return found ? 0 : spw_fail(err, -ENOENT, "%s: found no checksums of this model", path);
}

static char *put(char *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return to + bytes;
}

/* The new content: this model, and of the others as many as fit. */
static size_t fill(const struct spw_block_sums *s, char *to, const char *others, const char *end)
{
    const uint64_t magic = MAGIC;
    char *at = put(to, &magic, sizeof magic);
    at = put(at, s->key, sizeof s->key);
    at = put(at, &s->n, sizeof s->n);
    at = put(at, s->sums, s->n * sizeof *s->sums);
    for (size_t n; others < end; others += n) {
        n = model_bytes(others, end);
        if (!is_own(s, others) && (size_t)(at - to) + n + TAIL_BYTES <= MOST_BYTES)
            at = put(at, others, n);
    }
    const uint64_t sum = XXH3_64bits(to, (size_t)(at - to));
    at = put(at, &sum, sizeof sum);
    return (size_t)(put(at, kind.end, END_BYTES) - to);
}

int spw_block_sums_write(struct spw_block_sums *s, const char *path, struct spw_error *err)
{
    const char *others = NULL, *end = NULL;
    char *old = NULL;
    if (n_known(s) == s->n_kept || s->n > MOST_BYTES / sizeof *s->sums / 2)
        return 0;
    load(&old, &others, &end, path, NULL); /* a file that cannot be read is replaced */
    const size_t most = sizeof MAGIC + MODEL_HEAD + s->n * sizeof *s->sums + TAIL_BYTES;
    char *data = spw_alloc(most + (size_t)(end - others));
    int rc = -ENOMEM;
    if (data)
        rc = spw_kept_file_write(path, &kind, data, fill(s, data, others, end), err);
    if (!rc)
        s->n_kept = n_known(s);
    spw_free(data);
    spw_free(old);
    return rc;
}
