/* The file of a pack as it lies on disk, and what its reader and its writer share.
 *
 *        0  commit record A   4096 bytes   \ of those that are intact, the one with the larger
 *     4096  commit record B   4096 bytes   / sequence number counts; create writes A, append the
 *                                            one that does not count
 *     8192  records of one section, side by side | those of the next | ...     each at n * 4096
 *      ...  table:  tokens [n_tokens] int32, with zeros to a multiple of 8
 *                   sections [n_sections] struct spw_pack_row
 *                   sums [n_records] XXH3-64, in the order of the sections
 *                   state [state_bytes]
 *
 * A session file is saved again and again by appending, in one file: a new section or table goes
 * where neither of the last two commits has anything, is made durable, and only then the older
 * commit record is overwritten by the new one. Killed before that, the file is what it was; torn in
 * the middle of it, the other record still counts, and nothing of what it names was touched. Tiles
 * that did not change are named again by the new table and written once. A chain of files would
 * save the table's bytes (about 4 a token and 8 a record), and lose a session with any one of them.
 * Numbers are little-endian. */
#ifndef SPW_OFFLOAD_STORE_PACK_FORMAT_H
#define SPW_OFFLOAD_STORE_PACK_FORMAT_H

#include "offload/store/pack.h"
#include "quant/tile.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is written as memory lies");

enum {
    SPW_PACK_VERSION = 2, /* 1 had XXH3-128 as chain hash, which can be collided */
    SPW_PACK_DATA_OFFSET = 2 * SPW_PACK_ALIGN,
    SPW_PACK_MOST_SECTIONS = 1 << 20,
    SPW_PACK_MOST_TABLE_BYTES = 1 << 30, /* what an untrusted file may make a reader take */
    SPW_PACK_CHECKPOINT = 1,             /* the only flag */
};

#define SPW_PACK_MAGIC "SPWPACK\n"
#define SPW_PACK_TEMPORARY ".spw-tmp-" /* how names of unfinished packs begin */

/* Magic, version and sum stay where they are in every version. */
struct spw_pack_head {
    char magic[8];
    uint32_t version, flags;
    uint64_t sequence;
    uint8_t fingerprint[SPW_PACK_FINGERPRINT_BYTES];
    uint64_t first_token, n_tokens;
    struct spw_chain_hash parent;
    struct spw_pack_id before;
    uint64_t file_bytes; /* all that this commit names lies below */
    uint64_t table_offset, table_bytes, table_sum;
    uint64_t n_records;
    uint32_t n_sections, state_bytes;
    uint8_t zeros[SPW_PACK_ALIGN - 176];
    uint64_t sum; /* XXH3-64 of all before it */
};
_Static_assert(sizeof(struct spw_pack_head) == SPW_PACK_ALIGN, "one block, written at once");

struct spw_pack_row {
    uint32_t kind, layer, first_tile, n_tiles;
    uint64_t record_bytes, offset;
};
_Static_assert(sizeof(struct spw_pack_row) == 32, "no padding");

/* One commit of a file. */
struct spw_pack {
    int fd;     /* owned */
    char *path; /* owned */
    struct spw_pack_info info;
    struct spw_pack_head head;
    uint8_t *table;                    /* [head.table_bytes], owned */
    struct spw_pack_section *sections; /* [n_sections], owned */
    struct spw_chain_hash *hashes;     /* [n_tokens / 128], owned */
};

static inline uint64_t spw_pack_token_bytes(uint64_t n_tokens)
{
    return spw_align_up(n_tokens * sizeof(int32_t), 8);
}

/* Of a table with these numbers, each below 2^40. */
static inline uint64_t spw_pack_table_bytes(uint64_t n_tokens, uint64_t n_sections,
                                            uint64_t n_records, uint64_t state_bytes)
{
    return spw_pack_token_bytes(n_tokens) + n_sections * sizeof(struct spw_pack_row) +
           n_records * sizeof(uint64_t) + state_bytes;
}

/* All of it, or -errno; -ENODATA where the file ends before. */
int spw_pack_pread(int fd, void *to, uint64_t bytes, uint64_t offset);

/* Both commit records as they are; intact[i]: magic and sum agree. */
int spw_pack_read_heads(int fd, struct spw_pack_head heads[2], bool intact[2]);
/* The one that counts, or -1. */
int spw_pack_newest(const struct spw_pack_head heads[2], const bool intact[2]);
/* NULL, or why this one is not for the caller (-ESTALE). */
const char *spw_pack_foreign(const struct spw_pack_head *h, const uint8_t *fingerprint);
/* Reads and checks what head names; p->fd, path and head are set. Undone by spw_pack_unload. */
int spw_pack_load(struct spw_pack *p, uint64_t size, struct spw_error *err);
void spw_pack_unload(struct spw_pack *p);

/* Brings the sections in order and checks them: sizes, bounds, apart from each other as tiles and
 * in the file, apart from the table. NULL, or what is wrong. */
const char *spw_pack_check(struct spw_pack_section *sections, const struct spw_pack_head *h);

/* The two halves of a commit, neither of which frees the writer: durable, then visible. */
int spw_pack_seal(struct spw_pack_writer *w, const void *state, uint32_t state_bytes,
                  struct spw_error *err);
int spw_pack_publish(struct spw_pack_writer *w, struct spw_error *err);

static inline bool spw_pack_is_temporary(const char *name)
{
    return strncmp(name, SPW_PACK_TEMPORARY, strlen(SPW_PACK_TEMPORARY)) == 0;
}
/* Removes it if its writer is dead. */
void spw_pack_sweep_one(int directory, const char *name);

#endif
