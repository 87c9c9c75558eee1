/* libFuzzer target of spw_pack_open. The first byte chooses: 0, the rest is the file as it is;
 * else the rest is the fields of a commit record and the table behind them, of which a file is made
 * whose checksums agree (and, with bit 1, whose chain begins where it must), so that what lies
 * behind the checksums is reached. What opens keeps the promises of pack.h.
 *
 *   build/fuzz/fuzz_pack -max_total_time=60 tests/fuzz/seeds/pack */
#include "offload/store/pack_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

enum { FIELD_BYTES = offsetof(struct spw_pack_head, zeros), FILE_BYTES = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void expect(bool promise)
{
    if (!promise)
        abort();
}

static void write_file(int fd, const void *from, size_t bytes, uint64_t at)
{
    expect(pwrite(fd, from, bytes, (off_t)at) == (ssize_t)bytes);
}

/* The file that the fields and the table describe, as far as it is of a size for this. */
static void make_file(int fd, const uint8_t *data, size_t bytes, bool root)
{
    static uint8_t table[FILE_BYTES];
    struct spw_pack_head head = {0};
    memcpy(&head, data, bytes < FIELD_BYTES ? bytes : (size_t)FIELD_BYTES);
    memcpy(head.magic, SPW_PACK_MAGIC, sizeof head.magic);
    head.version = SPW_PACK_VERSION;
    if (root)
        head.parent = spw_chain_root(head.fingerprint);
    expect(ftruncate(fd, (off_t)spw_min_u64(head.file_bytes, FILE_BYTES)) == 0);
    size_t n = bytes > FIELD_BYTES ? bytes - FIELD_BYTES : 0;
    if (head.table_bytes <= FILE_BYTES && head.table_offset <= FILE_BYTES && n <= FILE_BYTES) {
        memset(table, 0, head.table_bytes);
        memcpy(table, data + bytes - n, spw_min_u64(n, head.table_bytes));
        head.table_sum = XXH3_64bits(table, head.table_bytes);
        write_file(fd, table, head.table_bytes, head.table_offset);
    }
    head.sum = XXH3_64bits(&head, offsetof(struct spw_pack_head, sum));
    write_file(fd, &head, sizeof head, 0);
}

static uint64_t check_sections(const struct spw_pack *p, const struct spw_pack_info *info)
{
    uint64_t n_records = 0, bytes = 0, sums = 0;
    uint64_t end = spw_div_up(info->first_token + info->n_tokens, SPW_TILE_TOKENS);
    for (uint32_t i = 0; i < info->n_sections; i++) {
        const struct spw_pack_section *s = &info->sections[i], *last = s - 1;
        expect(s->n_tiles && (uint64_t)s->first_tile + s->n_tiles <= end);
        expect(s->offset >= 8192 && s->offset % 4096 == 0 && s->record_bytes % 4096 == 0);
        expect(s->offset <= info->file_bytes &&
               s->record_bytes <= (info->file_bytes - s->offset) / s->n_tiles);
        sums ^= s->sums[0] ^ s->sums[s->n_tiles - 1]; /* may be read */
        expect(spw_pack_find(p, s->kind, s->layer, s->first_tile) == s);
        expect(spw_pack_find(p, s->kind, s->layer, s->first_tile + s->n_tiles - 1) == s);
        if (i && last->kind == s->kind && last->layer == s->layer)
            expect(last->first_tile + last->n_tiles <= s->first_tile);
        n_records += s->n_tiles;
        bytes += s->n_tiles * s->record_bytes;
    }
    expect(n_records == info->n_records && bytes <= info->file_bytes); /* or two overlap */
    return sums;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    struct spw_error err = {0};
    struct spw_pack *p;
    if (!bytes)
        return 0;
    int fd = memfd_create("pack", MFD_CLOEXEC);
    expect(fd >= 0);
    if (data[0])
        make_file(fd, data + 1, bytes - 1, data[0] & 2);
    else
        write_file(fd, data + 1, bytes - 1, 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int rc = spw_pack_open(&p, path, NULL, &err);
    if (rc) {
        expect(!p && err.text[0] && !strchr(err.text, '\n'));
        expect(rc == -EBADMSG || rc == -ESTALE);
    } else {
        const struct spw_pack_info *info = spw_pack_info(p);
        volatile uint64_t sums = check_sections(p, info);
        (void)sums;
        expect(info->first_token % 128 == 0 && info->state_bytes <= SPW_PACK_STATE_BYTES);
        rc = spw_pack_verify(p, NULL);
        expect(rc == 0 || rc == -EBADMSG);
    }
    spw_pack_close(p);
    close(fd);
    expect(spw_alloc_outstanding() == 0);
    return 0;
}
