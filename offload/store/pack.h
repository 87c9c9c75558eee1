/* A pack: one file of tile records, with the tokens they were computed from. Opaque here: what a
 * record holds, and what the fingerprint, the kinds of sections and the state mean.
 *
 * A pack is either whole or not there: spw_pack_create writes under a temporary name and takes the
 * final one last; spw_pack_append writes into free places of a file that stays readable as it was
 * until the new commit record is down. What is read is untrusted: opening checks all but the data
 * of records, which have a checksum each. One thread at a time for each object. */
#ifndef SPW_OFFLOAD_STORE_PACK_H
#define SPW_OFFLOAD_STORE_PACK_H

#include "base/base.h"

#include <string.h>

enum {
    SPW_PACK_ALIGN = 4096,           /* of records, in the file and in bytes: O_DIRECT reads work */
    SPW_PACK_STATE_BYTES = 16 << 20, /* a session may be saved with its prompt half computed */
    SPW_PACK_FINGERPRINT_BYTES = 32,
};

/* The SHA-256 of a tile and of all tiles before it. Two sequences with equal hashes have equal
 * tokens: a prompt can be made by somebody who wants it to be taken for another one, so that a
 * checksum would not do. */
struct spw_chain_hash {
    uint8_t bytes[32];
};

/* The first half of a chain hash, in names of files and links between them. Who finds a pack by
 * such an id compares whole hashes. */
struct spw_pack_id {
    uint64_t low, high;
};

/* What a chain starts from: fingerprints and versions of the format share nothing. */
struct spw_chain_hash spw_chain_root(const uint8_t *fingerprint);
/* Of 128 more tokens. */
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

/* Records of one layer, side by side: tile t lies at offset + (t - first_tile) * record_bytes. */
struct spw_pack_section {
    uint32_t kind, layer; /* numbers of the caller's */
    uint32_t first_tile, n_tiles;
    uint64_t record_bytes; /* a multiple of SPW_PACK_ALIGN */
    uint64_t offset;       /* in the file. To a writer: 0, or that of records which are kept */
    const uint64_t *sums;  /* [n_tiles] XXH3-64 of each record; borrowed from the pack */
};

/* The tiles [first_tile, first_tile + n_tiles) of `s`, which has them. */
struct spw_pack_section spw_pack_part(const struct spw_pack_section *s, uint32_t first_tile,
                                      uint32_t n_tiles);

/* ---- reading ---- */

struct spw_pack_info {
    uint8_t fingerprint[SPW_PACK_FINGERPRINT_BYTES];
    uint64_t sequence;              /* of the commit: 1 after create, one more after each append */
    uint64_t first_token, n_tokens; /* first_token is a multiple of 128 */
    const int32_t *tokens;          /* [n_tokens], those that the pack covers */
    struct spw_chain_hash parent;   /* of the tile before; the root where first_token is 0 */
    const struct spw_chain_hash *hashes; /* [n_tokens / 128], computed from the tokens */
    struct spw_pack_id before;           /* opaque: the pack before, in a store */
    bool checkpoint;                     /* opaque: a sequence may go on at the end of this pack */
    uint32_t n_sections;
    const struct spw_pack_section *sections; /* in order of kind, layer, first_tile; apart */
    uint64_t n_records;
    const void *state; /* [state_bytes] */
    uint32_t state_bytes;
    uint64_t file_bytes; /* that are in use */
};

struct spw_pack;

/* `fingerprint`: [32], or NULL for any. -ENOENT; -EBADMSG: damaged; -ESTALE: of another version or
 * fingerprint; each with a line that says why. */
int spw_pack_open(struct spw_pack **out, const char *path, const uint8_t *fingerprint,
                  struct spw_error *err);
/* The same of the file `name` in an open directory, which must be no symbolic link. `path` is for
 * messages. */
int spw_pack_open_in(struct spw_pack **out, int directory, const char *name, const char *path,
                     const uint8_t *fingerprint, struct spw_error *err);
void spw_pack_close(struct spw_pack *p); /* NULL is fine */
/* Whether a file begins as a pack does, whatever is damaged behind that. */
bool spw_pack_is_one(int fd);
const struct spw_pack_info *spw_pack_info(const struct spw_pack *p);
/* Open for reading until the pack is closed, with O_DIRECT where the filesystem has it; stays
 * readable when the file is removed or replaced. */
int spw_pack_fd(const struct spw_pack *p);
const char *spw_pack_path(const struct spw_pack *p);
/* The section that has this tile, or NULL. */
const struct spw_pack_section *spw_pack_find(const struct spw_pack *p, uint32_t kind,
                                             uint32_t layer, uint32_t tile);
/* Reads records now, and checks them: for few of them. `records`: a multiple of SPW_PACK_ALIGN.
 * -EBADMSG, -EIO. */
int spw_pack_read(const struct spw_pack *p, const struct spw_pack_section *s, uint32_t first_tile,
                  uint32_t n_tiles, void *records, struct spw_error *err);
/* The two halves of it, for records that lie side by side. Bytes, `most` at most, that whole
 * records of kinds up to `last_kind` have from this one on; their bytes, not checked; and the
 * check. */
uint64_t spw_pack_run_bytes(const struct spw_pack *p, const struct spw_pack_section *s,
                            uint32_t tile, uint32_t last_kind, uint64_t most);
int spw_pack_fetch(const struct spw_pack *p, uint64_t offset, uint64_t bytes, void *records,
                   struct spw_error *err);
int spw_pack_check_records(const struct spw_pack *p, const struct spw_pack_section *s,
                           uint32_t first_tile, uint32_t n_tiles, const void *records,
                           struct spw_error *err);
/* Reads and checks all records. -EBADMSG: `err` says which is the first and how many are bad. */
int spw_pack_verify(const struct spw_pack *p, struct spw_error *err);

/* ---- writing ---- */

/* Borrowed during the call only. */
struct spw_pack_spec {
    const uint8_t *fingerprint; /* [32] */
    uint64_t first_token, n_tokens;
    const int32_t
        *tokens; /* [n_tokens], those that the pack covers; the end need not be a tile's */
    struct spw_chain_hash parent;
    struct spw_pack_id before;
    bool checkpoint;
    /* Append: those with an offset, taken from (parts of) sections of the committed state, are kept
     * where they lie; all others are new and must be written. What is not named is dropped. */
    const struct spw_pack_section *sections;
    uint32_t n_sections;
    uint32_t most_state_bytes; /* that commit will be given; at most SPW_PACK_STATE_BYTES */
    /* NULL, or the descriptor of the file of this name, open for both and locked (flock) by the
     * caller, who goes on saving to it. Append writes through it. Once create has replaced the
     * file, the descriptor is the new file's, locked too. Outlives the writer. */
    int *held;
};

struct spw_pack_writer;

/* What create would need in the file at most, UINT64_MAX when that is no number. */
uint64_t spw_pack_bytes(const struct spw_pack_spec *s);
/* What writing it writes in all, with a state of most_state_bytes: records that are new, table,
 * commit record. Of a spec that spw_pack_bytes has a number for. */
uint64_t spw_pack_write_bytes(const struct spw_pack_spec *s);
/* Of that, what is not records. */
uint64_t spw_pack_overhead_bytes(uint64_t n_tokens, uint64_t n_sections, uint64_t n_records,
                                 uint64_t state_bytes);
/* A new file `path`, mode 0600, its room taken now. `replace`: what has the name until then is
 * replaced at the commit, and what killed writers of this file left behind goes now; else the
 * commit is -EEXIST. -ENOSPC, -EINVAL (a spec that contradicts itself), ... */
int spw_pack_create(struct spw_pack_writer **out, const char *path, bool replace,
                    const struct spw_pack_spec *s, struct spw_error *err);
/* More of a file that is there. -EBUSY: another process is at it; -ENOENT, -EBADMSG, -ESTALE as in
 * open, or a section to keep is not there: create it anew then. */
int spw_pack_append(struct spw_pack_writer **out, const char *path, const struct spw_pack_spec *s,
                    struct spw_error *err);
/* Records of a new section of the spec, in any order, each once. */
int spw_pack_write(struct spw_pack_writer *w, uint32_t section, uint32_t first_tile,
                   uint32_t n_tiles, const void *records);
/* Makes all of it durable, then visible. Frees the writer whatever comes of it. After a failure the
 * file is what it was before, or all of the new one, if only the last sync failed. *written_bytes
 * (may be NULL): of all that was written, also after a failure. */
int spw_pack_commit(struct spw_pack_writer *w, const void *state, uint32_t state_bytes,
                    uint64_t *written_bytes, struct spw_error *err);
void spw_pack_abort(struct spw_pack_writer *w); /* NULL is fine */
/* Bytes that it wrote so far, tables included. */
uint64_t spw_pack_written_bytes(const struct spw_pack_writer *w);

#endif
