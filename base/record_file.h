/* Small files of measured values: lists of flat records, as JSON.
 *
 * Nothing in a file is trusted. A file has a version and the XXH3-64 of its content, and each
 * field is checked for type and range. A file that fails a check counts as missing. Files are
 * written under another name and renamed, so a reader sees the old or the new file. If two
 * processes write, the last one wins. The descriptions are borrowed. Any thread. */
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
    size_t at, bytes; /* offset and size in the struct */
    double min, max;  /* range of numbers */
    bool is_key;      /* two entries of a list differ in one of these */
};
#define SPW_RECORD(type, field)                                                                    \
#field, .at = offsetof(struct type, field), .bytes = sizeof((struct type *)0)->field

/* A list is an array of entries and their number, both members of one struct. */
struct spw_record_list {
    const char *name;
    const struct spw_record_field *fields;
    size_t n_fields;
    size_t at, entry_bytes, max, n; /* offset of the array; of the number, an unsigned */
    size_t date;                    /* offset in an entry: an int64_t, when it was measured */
};
#define SPW_RECORD_LIST(type, array, number)                                                       \
    .at = offsetof(struct type, array), .entry_bytes = sizeof *((struct type *)0)->array,          \
    .max = sizeof((struct type *)0)->array / sizeof *((struct type *)0)->array,                    \
    .n = offsetof(struct type, number)

struct spw_record_file {
    const char *what, *key; /* "profile", for messages; "spillway_profile", in the file */
    int version;
    const struct spw_record_list *lists;
    size_t n_lists;
};

/* `of`: the struct with the lists. They are empty after a failure: -ENOENT: no file; -EINVAL: the
 * file cannot be used, and `err` says why; -ENOMEM; or an error of the system. */
int spw_record_file_read(const struct spw_record_file *f, void *of, const char *path,
                         struct spw_error *err);
/* Creates missing folders (mode 0700). -EINVAL: the name belongs to a file of another kind, a
 * file of another user, or a link. */
int spw_record_file_write(const struct spw_record_file *f, const void *of, const char *path,
                          struct spw_error *err);

/* The entry with the keys of `key`, an entry. NULL: there is none. */
const void *spw_record_find(const struct spw_record_list *l, const void *of, const void *key);
/* Replaces the entry with the same keys; if there is none and no room, the oldest. */
void spw_record_put(const struct spw_record_list *l, void *of, const void *entry);

#endif
