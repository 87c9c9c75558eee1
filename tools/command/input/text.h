/* Bytes of files as text. All functions return 0 or -errno, with a text that begins with the path.
 */
#ifndef SPW_TOOLS_COMMAND_INPUT_TEXT_H
#define SPW_TOOLS_COMMAND_INPUT_TEXT_H

#include "base/base.h"

/* Says whether a file is the same as before: by size and time of modification, or by its bytes. */
struct cli_digest {
    uint64_t hash; /* XXH3-64 of the bytes */
    uint64_t bytes;
    int64_t mtime_ns;
};

/* Reads a regular file of at most `most_bytes`. *data is owned by the caller (spw_free) and ends in
 * a NUL. `digest` may be NULL. -EFBIG: too long; -EAGAIN: it changed meanwhile; -EINVAL: not a
 * regular file. */
int cli_text_read(const char *path, uint64_t most_bytes, char **data, size_t *bytes,
                  struct cli_digest *digest, struct spw_error *err);
/* The digest alone; reads the file in pieces. */
int cli_digest_file(const char *path, struct cli_digest *digest, struct spw_error *err);
/* Size and time of modification; leaves the hash as it is. */
int cli_stat_file(const char *path, struct cli_digest *digest, struct spw_error *err);

/* Leaves out the byte order mark of UTF-8 that a text begins with, if it does. The text ends in a
 * NUL. */
void cli_drop_mark(char *text, size_t *bytes);
/* Makes UTF-8 without a byte order mark of the bytes of a file: UTF-8, or UTF-16 with a byte order
 * mark. Replaces *data, which is owned as above, where the text is UTF-16. -EILSEQ: it is not such
 * a text; the error names the byte. */
int cli_decode_text(const char *path, char **data, size_t *bytes, struct spw_error *err);
/* Makes UTF-8 of the output of a program: bytes that form no character and NULs become U+FFFD.
 * Replaces *data where there are any. */
int cli_repair_text(char **data, size_t *bytes);
/* Whether a reader sees nothing of it. */
bool cli_text_is_blank(const char *data, size_t bytes);

#endif
