/* Ranges of files against brute force over synthetic files: every byte of every part is at its
 * place, for any order, files and offsets of the parts; ranges are whole blocks, disjoint, and
 * farther apart than the gap that is read, too; and every byte that must exist belongs to the file.
 *
 *   test_file_ranges [draws] */
#include "model/weights/file_ranges.h"
#include "tests/check.h"

#include <string.h>

enum { N_FILES = 3, FILE_BYTES = 600000 };

/* The content of a file: nearby places always differ. */
static uint8_t files[N_FILES][FILE_BYTES];
static uint8_t slot[N_FILES * (FILE_BYTES + SPW_FILE_BLOCK)];

/* Disjoint parts, in a random order. The last one of a file may end it. */
static uint32_t draw_parts(struct spw_file_part parts[SPW_FILE_PARTS], uint64_t *seed)
{
    uint32_t n = (uint32_t)check_range(seed, 1, SPW_FILE_PARTS), done = 0;
    static const uint64_t gaps[] = {0, 1, 4095, 65535, 65536, 65537, 70000, 130000};
    uint64_t at[N_FILES];
    for (int f = 0; f < N_FILES; f++)
        at[f] = check_range(seed, 0, 9000);
    while (done < n) {
        uint32_t f = (uint32_t)check_range(seed, 0, check_random(seed) % 2 ? 0 : N_FILES - 1);
        at[f] += gaps[check_random(seed) % 8];
        uint64_t bytes = check_range(seed, 1, check_random(seed) % 2 ? 9 : 20000);
        if (at[f] + bytes > FILE_BYTES)
            break;
        if (check_random(seed) % 16 == 0)
            bytes = FILE_BYTES - at[f];
        parts[done++] = (struct spw_file_part){f, at[f], bytes};
        at[f] += bytes;
    }
    for (uint32_t i = 0; i < done; i++) {
        uint32_t k = (uint32_t)check_range(seed, i, done - 1);
        struct spw_file_part p = parts[i];
        parts[i] = parts[k];
        parts[k] = p;
    }
    return done;
}

/* Like a read that may end with the file. */
static void read_range(const struct spw_file_range *r)
{
    CHECK(r->offset % SPW_FILE_BLOCK == 0 && r->bytes % SPW_FILE_BLOCK == 0 && r->bytes);
    CHECK(r->slot_offset % SPW_FILE_BLOCK == 0);
    CHECK(r->least_bytes <= r->bytes && r->bytes - r->least_bytes < SPW_FILE_BLOCK);
    CHECK(r->file < N_FILES && r->offset + r->least_bytes <= FILE_BYTES);
    uint64_t there = spw_min_u64(r->bytes, FILE_BYTES - r->offset);
    memcpy(slot + r->slot_offset, files[r->file] + r->offset, there);
}

static void run_draw(uint64_t *seed)
{
    struct spw_file_part parts[SPW_FILE_PARTS];
    struct spw_file_range ranges[SPW_FILE_PARTS];
    uint64_t lands[SPW_FILE_PARTS], end = 0, wanted = 0;
    uint32_t n = draw_parts(parts, seed), n_ranges = spw_file_ranges(parts, n, ranges, lands);
    CHECK(n_ranges <= n && (n_ranges || !n));
    memset(slot, 0, sizeof slot);
    for (uint32_t i = 0; i < n_ranges; i++) {
        const struct spw_file_range *r = &ranges[i], *before = i ? r - 1 : NULL;
        read_range(r);
        CHECK(r->slot_offset == end);
        end += r->bytes;
        if (!before)
            continue;
        CHECK(before->file <= r->file);
        CHECK(before->file < r->file ||
              before->offset + before->least_bytes + SPW_FILE_GAP - SPW_FILE_BLOCK < r->offset);
    }
    CHECK(spw_file_ranges_bytes(ranges, n_ranges) == end);
    for (uint32_t i = 0; i < n; i++) {
        const struct spw_file_part *p = &parts[i];
        CHECK(!memcmp(slot + lands[i], files[p->file] + p->offset, p->bytes));
        CHECK(lands[i] + p->bytes <= end &&
              lands[i] % SPW_FILE_BLOCK == p->offset % SPW_FILE_BLOCK);
        wanted += p->bytes;
    }
    CHECK(end >= wanted && end - wanted <= n * (uint64_t)(SPW_FILE_GAP + 2 * SPW_FILE_BLOCK));
}

int main(int argc, char **argv)
{
    struct check_draws draws = check_draws_of(argc, argv, 400);
    uint64_t seed = check_seed();
    for (int f = 0; f < N_FILES; f++)
        for (uint64_t i = 0; i < FILE_BYTES; i++)
            files[f][i] = (uint8_t)check_random(&seed);
    while (check_another(&draws))
        run_draw(&seed);
    return check_done();
}
