/* The layout of a pack file, and what its reader and its writer share.
 *
 *        0  commit record A   4096 bytes   \ the intact record with the larger sequence number
 *     4096  commit record B   4096 bytes   / counts; create writes A, append the other one
 *     8192  records of a section, adjacent | records of the next section | ...   each at n * 4096
 *      ...  table:  tokens [n_tokens] int32, with zeros to a multiple of 8
 *                   sections [n_sections] struct spw_pack_row
 *                   sums [n_records] XXH3-64, in the order of the sections
 *                   state [state_bytes]
 *
 * A session is saved into the same file again and again, by append. A new section or table goes to
 * a place that neither of the last two commits uses. It is made durable. Only then the new commit
 * record overwrites the older one. If the process is killed before that, the file has its old
 * content. If the commit record is torn, the other record still counts, and nothing that it names
 * was touched. The new table names unchanged tiles again, so each tile is written once. A chain of
 * files would save the bytes of the table (about 4 a token and 8 a record), but losing one file
 * would lose the session. Numbers are little-endian. */
#ifndef SPW_OFFLOAD_STORE_PACK_FORMAT_H
#define SPW_OFFLOAD_STORE_PACK_FORMAT_H

#include "offload/store/pack.h"
#include "quant/tile.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file has the byte order of memory");

enum {
    SPW_PACK_VERSION =
        2, /* version 1 had XXH3-128 as chain hash, for which collisions can be made */
    SPW_PACK_DATA_OFFSET = 2 * SPW_PACK_ALIGN,
    SPW_PACK_MAX_SECTIONS = 1 << 20,
    SPW_PACK_MAX_TABLE_BYTES = 1 << 30, /* limits what an untrusted file makes us allocate */
    SPW_PACK_CHECKPOINT = 1,            /* the only flag */
};

#define SPW_PACK_MAGIC "SPWPACK\n"
#define SPW_PACK_TEMPORARY ".spw-tmp-" /* prefix of the names of unfinished packs */

/* Magic, version and sum have the same place in every version. */
struct spw_pack_head {
    char magic[8];
    uint32_t version, flags;
    uint64_t sequence;
    uint8_t fingerprint[SPW_PACK_FINGERPRINT_BYTES];
    uint64_t first_token, n_tokens;
    struct spw_chain_hash parent;
    struct spw_pack_id previous;
    uint64_t file_bytes; /* the end of everything that this commit names */
    uint64_t table_offset, table_bytes, table_sum;
    uint64_t n_records;
    uint32_t n_sections, state_bytes;
    uint8_t zeros[SPW_PACK_ALIGN - 176];
    uint64_t sum; /* XXH3-64 of all bytes before */
};
_Static_assert(sizeof(struct spw_pack_head) == SPW_PACK_ALIGN, "one block, written by one call");

struct spw_pack_row {
    uint32_t kind, layer, first_tile, n_tiles;
    uint64_t record_bytes, offset;
};
_Static_assert(sizeof(struct spw_pack_row) == 32, "no padding");

/* One commit of a file. */
struct spw_pack {
    int fd;     /* owned */
    char *path; /* owned */
    bool blank; /* its records have no bytes */
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

/* The size of a table; each argument is below 2^40. */
static inline uint64_t spw_pack_table_bytes(uint64_t n_tokens, uint64_t n_sections,
                                            uint64_t n_records, uint64_t state_bytes)
{
    return spw_pack_token_bytes(n_tokens) + n_sections * sizeof(struct spw_pack_row) +
           n_records * sizeof(uint64_t) + state_bytes;
}

/* Reads all the bytes, or returns -errno; -ENODATA: the file is too short. */
int spw_pack_pread(int fd, void *to, uint64_t bytes, uint64_t offset);

/* Both commit records of a file. intact[i]: magic and sum of record i agree. */
struct spw_pack_heads {
    struct spw_pack_head head[2];
    bool intact[2];
    int newest; /* the record that counts */
};
/* Reads both. -EBADMSG: none is intact; -ESTALE: of another version, or of another fingerprint than
 * `fingerprint` (NULL: any). Texts begin with `path`. */
int spw_pack_read_heads(int fd, const char *path, const uint8_t *fingerprint,
                        struct spw_pack_heads *out, struct spw_error *err);
/* Reads and checks the table of p->head; p->fd, path and head are set. spw_pack_unload frees it. */
int spw_pack_load(struct spw_pack *p, uint64_t size, struct spw_error *err);
void spw_pack_unload(struct spw_pack *p);

/* Opens a blank pack from the descriptor of its memory, which stays the caller's. */
int spw_pack_open_memory(struct spw_pack **out, int fd, struct spw_error *err);

/* Sorts the sections and checks them: sizes, bounds, no tile twice, no overlap in the file, neither
 * with each other nor with the table. Returns NULL, or what is wrong. */
const char *spw_pack_check(struct spw_pack_section *sections, const struct spw_pack_head *h);

/* The two steps of a commit: durable, then visible. Neither frees the writer. */
int spw_pack_seal(struct spw_pack_writer *w, const void *state, uint32_t state_bytes,
                  struct spw_error *err);
int spw_pack_publish(struct spw_pack_writer *w, struct spw_error *err);

static inline bool spw_pack_is_temporary(const char *name)
{
    return strncmp(name, SPW_PACK_TEMPORARY, strlen(SPW_PACK_TEMPORARY)) == 0;
}
/* Removes a temporary file whose writer is dead. */
void spw_pack_remove_abandoned(int directory, const char *name);

#endif
