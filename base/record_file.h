/* Small files in which what was measured is kept: lists of flat records, as JSON.
 *
 * Nothing in a file is trusted: it carries its version and the XXH3-64 of what it holds, and every
 * field is checked for type and range. What does not pass is as good as no file. Written under
 * another name and renamed, so that a reader sees the old file or the new one; of two writers the
 * last one wins. The descriptions are borrowed. Any thread. */
#ifndef SPW_BASE_RECORD_FILE_H
#define SPW_BASE_RECORD_FILE_H

#include "base/base.h"

enum spw_record_kind {
    SPW_RECORD_TEXT,  /* an array of char */
    SPW_RECORD_COUNT, /* a number of 4 or 8 bytes, never negative */
    SPW_RECORD_REAL,  /* a double */
    SPW_RECORD_FLAG,  /* a bool */
};

/* One field of an entry, in JSON and in the struct. */
struct spw_record_field {
    const char *name;
    enum spw_record_kind kind;
    size_t at, bytes; /* in the struct */
    double min, max;  /* of numbers */
};
#define SPW_RECORD(type, field)                                                                    \
#field, .at = offsetof(struct type, field), .bytes = sizeof((struct type *)0)->field

struct spw_record_list {
    const char *name;
    const struct spw_record_field *fields;
    size_t n_fields;
    void *entries; /* [most]; writing leaves them alone */
    size_t entry_bytes;
    unsigned *n, most;
};

struct spw_record_file {
    const char *what, *key; /* "profile", for messages; "spillway_profile" */
    int version;
    const struct spw_record_list *lists;
    size_t n_lists;
};

/* Empty and -ENOENT where there is no file; empty and -EINVAL, with what was wrong, where it cannot
 * be used; -ENOMEM; else what the system said. */
int spw_record_file_read(const struct spw_record_file *f, const char *path, struct spw_error *err);
/* Makes folders that are missing (mode 0700). -EINVAL for a name that a file of another kind, a
 * file of another user, or a link has. */
int spw_record_file_write(const struct spw_record_file *f, const char *path, struct spw_error *err);

#endif
