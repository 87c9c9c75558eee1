/* A pack is one file of tile records, with the tokens that the records were computed from. This
 * module does not know what a record holds, nor what the fingerprint, the kinds of sections and the
 * state mean.
 *
 * A pack is complete or absent. spw_pack_create writes under a temporary name, and takes the final
 * name last. spw_pack_append writes into free places of an existing file; the old content stays
 * readable until the new commit record is written. Opening a pack checks everything but the data of
 * the records; each record has a checksum. One thread at a time for each object. */
#ifndef SPW_OFFLOAD_STORE_PACK_H
#define SPW_OFFLOAD_STORE_PACK_H

#include "base/base.h"

#include <string.h>

enum {
    SPW_PACK_ALIGN = 4096,           /* of each record's offset and size, as O_DIRECT needs it */
    SPW_PACK_STATE_BYTES = 16 << 20, /* most bytes of the state: room for a long prompt */
    SPW_PACK_FINGERPRINT_BYTES = 32,
};

/* The SHA-256 of a tile's tokens and of all tokens before it. Two sequences with equal hashes have
 * equal tokens. A checksum would not do: an attacker could make two prompts with the same
 * checksum. */
struct spw_chain_hash {
    uint8_t bytes[32];
};

/* The first half of a chain hash. File names and links between packs use it. Code that finds a
 * pack by its id then compares the whole hash. */
struct spw_pack_id {
    uint64_t low, high;
};

/* The hash that a chain starts from. It differs for each fingerprint and each version of the
 * format. */
struct spw_chain_hash spw_chain_root(const uint8_t *fingerprint);
/* The hash after 128 more tokens. */
struct spw_chain_hash spw_chain_next(struct spw_chain_hash before, const int32_t *tokens);

static inline bool spw_chain_equal(struct spw_chain_hash a, struct spw_chain_hash b)
{
    return memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0;
}

static inline struct spw_pack_id spw_chain_id(struct spw_chain_hash chain)
{
    struct spw_pack_id id;
    memcpy(&id, chain.bytes, sizeof id);
    return id;
}
static inline bool spw_pack_same_id(struct spw_pack_id a, struct spw_pack_id b)
{
    return a.low == b.low && a.high == b.high;
}

/* Adjacent records of one layer: tile t lies at offset + (t - first_tile) * record_bytes. */
struct spw_pack_section {
    uint32_t kind, layer; /* chosen by the caller */
    uint32_t first_tile, n_tiles;
    uint64_t record_bytes; /* a multiple of SPW_PACK_ALIGN */
    uint64_t
        offset; /* in the file. For a writer: 0 for new records, else where the file has them */
    const uint64_t *sums; /* [n_tiles] XXH3-64 of each record; borrowed from the pack */
};

/* The part of `s` with the tiles [first_tile, first_tile + n_tiles), which `s` must contain. */
struct spw_pack_section spw_pack_part(const struct spw_pack_section *s, uint32_t first_tile,
                                      uint32_t n_tiles);

/* ---- reading ---- */

struct spw_pack_info {
    uint8_t fingerprint[SPW_PACK_FINGERPRINT_BYTES];
    uint64_t sequence; /* number of the commit: 1 after create, one more after each append */
    uint64_t first_token, n_tokens;      /* first_token is a multiple of 128 */
    const int32_t *tokens;               /* [n_tokens], the tokens of this pack */
    struct spw_chain_hash parent;        /* hash of the tile before; the root if first_token is 0 */
    const struct spw_chain_hash *hashes; /* [n_tokens / 128], computed from the tokens */
    struct spw_pack_id previous;         /* in a store, the pack that this one extends */
    bool checkpoint;                     /* a sequence can continue at the end of this pack */
    uint32_t n_sections;
    const struct spw_pack_section *sections; /* sorted by kind, layer, first_tile; disjoint */
    uint64_t n_records;
    const void *state; /* [state_bytes] */
    uint32_t state_bytes;
    uint64_t file_bytes; /* up to the end of the last byte in use */
};

struct spw_pack;

/* Opens a pack. `fingerprint` is [32]; NULL accepts any. -ENOENT; -EBADMSG: damaged; -ESTALE: of
 * another version of the format or another fingerprint. `err` says why. */
int spw_pack_open(struct spw_pack **out, const char *path, const uint8_t *fingerprint,
                  struct spw_error *err);
/* Opens the file `name` in an open directory. A symbolic link is refused. Messages show `path`. */
int spw_pack_open_in(struct spw_pack **out, int directory, const char *name, const char *path,
                     const uint8_t *fingerprint, struct spw_error *err);
void spw_pack_close(struct spw_pack *p); /* NULL is fine */
/* Whether a file begins like a pack. The rest of the file may be damaged. */
bool spw_pack_has_magic(int fd);
const struct spw_pack_info *spw_pack_info(const struct spw_pack *p);
/* The descriptor for reading, valid until the pack is closed. It has O_DIRECT if the filesystem
 * supports it. It stays readable when the file is removed or replaced. */
int spw_pack_fd(const struct spw_pack *p);
const char *spw_pack_path(const struct spw_pack *p);
bool spw_pack_is_blank(const struct spw_pack *p); /* see spw_pack_create_blank */
/* The section that contains this tile, or NULL. */
const struct spw_pack_section *spw_pack_find(const struct spw_pack *p, uint32_t kind,
                                             uint32_t layer, uint32_t tile);
/* Reads n_tiles records from first_tile on into `records`, aligned at SPW_PACK_ALIGN, and checks
 * their checksums. Blocks until the data is there. -EBADMSG, -EIO. */
int spw_pack_read(const struct spw_pack *p, const struct spw_pack_section *s, uint32_t first_tile,
                  uint32_t n_tiles, void *records, struct spw_error *err);
/* spw_pack_read in steps, for adjacent records of several sections. run_bytes: how many bytes, at
 * most `max`, follow each other in the file from this record on: whole records of kinds up to
 * `last_kind`. fetch: reads bytes without a check. check_records: checks the checksums. */
uint64_t spw_pack_run_bytes(const struct spw_pack *p, const struct spw_pack_section *s,
                            uint32_t tile, uint32_t last_kind, uint64_t max);
int spw_pack_fetch(const struct spw_pack *p, uint64_t offset, uint64_t bytes, void *records,
                   struct spw_error *err);
int spw_pack_check_records(const struct spw_pack *p, const struct spw_pack_section *s,
                           uint32_t first_tile, uint32_t n_tiles, const void *records,
                           struct spw_error *err);
/* Reads and checks all records. -EBADMSG: `err` names the first damaged record and counts them. */
int spw_pack_verify(const struct spw_pack *p, struct spw_error *err);

/* ---- writing ---- */

/* Borrowed during the call, except `locked_fd`. */
struct spw_pack_spec {
    const uint8_t *fingerprint; /* [32] */
    uint64_t first_token, n_tokens;
    const int32_t *tokens; /* [n_tokens], the tokens of this pack; the last tile may be partial */
    struct spw_chain_hash parent;
    struct spw_pack_id previous;
    bool checkpoint;
    /* For append: a section with an offset is (a part of) a section of the committed file, and its
     * records stay where they are. All other sections are new, and the caller writes them. Records
     * that the spec does not name are dropped. */
    const struct spw_pack_section *sections;
    uint32_t n_sections;
    uint32_t max_state_bytes; /* of the state at commit; at most SPW_PACK_STATE_BYTES */
    /* NULL, or the caller's descriptor of the file `path`, open for reading and writing and locked
     * with flock. Append writes through this descriptor. After create has replaced the file,
     * *locked_fd is the descriptor of the new file, also locked. Must outlive the writer. */
    int *locked_fd;
};

struct spw_pack_writer;

/* The size of the file that create makes, at most. UINT64_MAX: too large for a number. */
uint64_t spw_pack_bytes(const struct spw_pack_spec *s);
/* The bytes that writing this spec writes, with a state of max_state_bytes: new records, table,
 * commit record. Only for a spec for which spw_pack_bytes returns a number. */
uint64_t spw_pack_write_bytes(const struct spw_pack_spec *s);
/* The part of these bytes that is not records. */
uint64_t spw_pack_overhead_bytes(uint64_t n_tokens, uint64_t n_sections, uint64_t n_records,
                                 uint64_t state_bytes);
/* Creates a new file `path`, mode 0600, and reserves its space now. `replace`: the commit replaces
 * a file of this name, and temporary files that killed writers of this file left are removed now.
 * Without `replace` the commit fails with -EEXIST if the name is taken. -ENOSPC; -EINVAL: the spec
 * contradicts itself. */
int spw_pack_create(struct spw_pack_writer **out, const char *path, bool replace,
                    const struct spw_pack_spec *s, struct spw_error *err);
/* Creates a blank pack, in memory: it has sections and tables, but its records have no bytes. They
 * are counted as written and as read. */
int spw_pack_create_blank(struct spw_pack_writer **out, const struct spw_pack_spec *s,
                          struct spw_error *err);
/* Completes a blank pack, whether its records were written or not, and opens it. Frees the writer
 * in any case. */
int spw_pack_open_blank(struct spw_pack **out, struct spw_pack_writer *w, const void *state,
                        uint32_t state_bytes, uint64_t *written_bytes, struct spw_error *err);
/* Writes a new commit into an existing file. -EBUSY: another process has locked the file; -ENOENT,
 * -EBADMSG, -ESTALE as in spw_pack_open, or the file lacks a section that the spec wants to keep:
 * the caller then creates a new file. */
int spw_pack_append(struct spw_pack_writer **out, const char *path, const struct spw_pack_spec *s,
                    struct spw_error *err);
/* Writes records of a new section of the spec: in any order, each record once. */
int spw_pack_write(struct spw_pack_writer *w, uint32_t section, uint32_t first_tile,
                   uint32_t n_tiles, const void *records);
/* Makes everything durable, then visible, and frees the writer in any case. After a failure the
 * file has its old content, or the whole new content if only the last sync failed. *written_bytes
 * (may be NULL) counts all bytes written, also after a failure. */
int spw_pack_commit(struct spw_pack_writer *w, const void *state, uint32_t state_bytes,
                    uint64_t *written_bytes, struct spw_error *err);
void spw_pack_abort(struct spw_pack_writer *w); /* NULL is fine */
/* Bytes written so far, tables included. */
uint64_t spw_pack_written_bytes(const struct spw_pack_writer *w);

#endif
