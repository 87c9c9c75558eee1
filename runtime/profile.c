/* The profile file: see profile.h.
 *
 *     {"spillway_profile": 1, "checksum": "<XXH3-64 of measured, compact, keys sorted>",
 *      "measured": {"drives": [{...}, ...], "machines": [{...}, ...]}}
 */
#include "runtime/profile.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MOST_BYTES ((size_t)1 << 20) /* far more than a full profile has */

/* ---- fields ---- */

enum kind { TEXT, COUNT, REAL, FLAG };

/* One field of an entry, in JSON and in the struct. */
struct field {
    const char *name;
    enum kind kind;
    size_t at, bytes; /* in the struct */
    double min, max;  /* of numbers */
};

#define FIELD(type, name)                                                                          \
#name, .at = offsetof(struct type, name), .bytes = sizeof((struct type *)0)->name
#define RATE .kind = REAL, .min = 1, .max = 1e15
#define DATE .kind = COUNT, .min = 1, .max = 1e12

static const struct field drive_fields[] = {
    {FIELD(spw_drive, device), .kind = TEXT},
    {FIELD(spw_drive, filesystem), .kind = TEXT},
    {FIELD(spw_drive, io), .kind = COUNT, .min = SPW_IO_AUTO, .max = SPW_IO_THREADS},
    {FIELD(spw_drive, engine), .kind = TEXT},
    {FIELD(spw_drive, direct), .kind = FLAG},
    {FIELD(spw_drive, request_bytes), .kind = COUNT, .min = 4096, .max = 1 << 30},
    {FIELD(spw_drive, queue_depth), .kind = COUNT, .min = 1, .max = 4096},
    {FIELD(spw_drive, read_bytes_per_second), RATE},
    {FIELD(spw_drive, write_bytes_per_second), RATE},
    {FIELD(spw_drive, latency_seconds), .kind = REAL, .min = 1e-9, .max = 1e3},
    {FIELD(spw_drive, cpu_seconds_per_byte), .kind = REAL, .min = 0, .max = 1},
    {FIELD(spw_drive, measured_at), DATE},
};
static const struct field machine_fields[] = {
    {FIELD(spw_machine, cpu), .kind = TEXT},
    {FIELD(spw_machine, isa), .kind = TEXT},
    {FIELD(spw_machine, gpu), .kind = TEXT},
    {FIELD(spw_machine, threads), .kind = COUNT, .min = 1, .max = 1 << 20},
    {FIELD(spw_machine, cores), .kind = COUNT, .min = 1, .max = 1 << 20},
    {FIELD(spw_machine, read_bytes_per_second), RATE},
    {FIELD(spw_machine, copy_bytes_per_second), RATE},
    {FIELD(spw_machine, bf16_flops), .kind = REAL, .min = 0, .max = 1e18}, /* 0: no cuBLASLt */
    {FIELD(spw_machine, f32_flops), .kind = REAL, .min = 0, .max = 1e18},
    {FIELD(spw_machine, measured_at), DATE},
    {FIELD(spw_machine, note), .kind = TEXT},
};
enum {
    DRIVE_FIELDS = sizeof drive_fields / sizeof *drive_fields,
    MACHINE_FIELDS = sizeof machine_fields / sizeof *machine_fields,
};

/* Counts are fields of 4 or 8 bytes, signed ones never negative. */
static uint64_t load_count(const struct field *f, const char *at)
{
    uint32_t small;
    uint64_t large;
    memcpy(&small, at, sizeof small);
    if (f->bytes == sizeof small)
        return small;
    memcpy(&large, at, sizeof large);
    return large;
}

static void store_count(const struct field *f, char *at, uint64_t value)
{
    uint32_t small = (uint32_t)value;
    if (f->bytes == sizeof small)
        memcpy(at, &small, sizeof small);
    else
        memcpy(at, &value, sizeof value);
}

static json_t *write_field(const struct field *f, const char *at)
{
    switch (f->kind) {
    case TEXT:
        return json_string(at);
    case COUNT:
        return json_integer((json_int_t)load_count(f, at));
    case REAL:
        return json_real(*(const double *)(const void *)at);
    case FLAG:
        break;
    }
    return json_boolean(*(const bool *)at);
}

static bool read_field(const struct field *f, const json_t *value, char *at)
{
    switch (f->kind) {
    case TEXT:
        if (!json_is_string(value) || json_string_length(value) >= f->bytes ||
            strlen(json_string_value(value)) != json_string_length(value))
            return false;
        memcpy(at, json_string_value(value), json_string_length(value) + 1);
        return true;
    case COUNT: {
        double n = (double)json_integer_value(value);
        if (!json_is_integer(value) || n < f->min || n > f->max)
            return false;
        store_count(f, at, (uint64_t)json_integer_value(value));
        return true;
    }
    case REAL: {
        double x = json_number_value(value);
        if (!json_is_number(value) || !isfinite(x) || x < f->min || x > f->max)
            return false;
        *(double *)(void *)at = x;
        return true;
    }
    case FLAG:
        break;
    }
    *(bool *)at = json_is_true(value);
    return json_is_boolean(value);
}

/* ---- entries ---- */

static json_t *write_entry(const struct field *fields, size_t n, const void *entry)
{
    json_t *o = json_object();
    int failed = 0;
    for (size_t i = 0; i < n; i++)
        failed |= json_object_set_new(o, fields[i].name,
                                      write_field(&fields[i], (const char *)entry + fields[i].at));
    if (!failed)
        return o;
    json_decref(o);
    return NULL;
}

static json_t *write_list(const struct field *fields, size_t n_fields, const void *entries,
                          size_t entry_bytes, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *entry = write_entry(fields, n_fields, (const char *)entries + i * entry_bytes);
        if (json_array_append_new(list, entry) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static int read_list(const json_t *list, const char *name, const struct field *fields,
                     size_t n_fields, void *entries, size_t entry_bytes, size_t most, unsigned *n,
                     const char *path, struct spw_error *err)
{
    if (!json_is_array(list) || json_array_size(list) > most)
        return spw_fail(err, -EINVAL, "%s: %s: expected a list of at most %zu", path, name, most);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        char *at = (char *)entries + i * entry_bytes;
        if (!json_is_object(entry) || json_object_size(entry) != n_fields)
            return spw_fail(err, -EINVAL, "%s: %s: entry %zu: expected an object of %zu fields",
                            path, name, i + 1, n_fields);
        for (size_t f = 0; f < n_fields; f++)
            if (!read_field(&fields[f], json_object_get(entry, fields[f].name), at + fields[f].at))
                return spw_fail(err, -EINVAL, "%s: %s: entry %zu: %s is missing or out of range",
                                path, name, i + 1, fields[f].name);
    }
    *n = (unsigned)json_array_size(list);
    return 0;
}

/* ---- the file ---- */

static bool sum_of(const json_t *measured, char out[17])
{
    char *text = json_dumps(measured, JSON_COMPACT | JSON_SORT_KEYS);
    if (text)
        snprintf(out, 17, "%016llx", (unsigned long long)XXH3_64bits(text, strlen(text)));
    free(text);
    return text != NULL;
}

static int check_frame(const json_t *root, const json_t **measured, const char *path,
                       struct spw_error *err)
{
    const json_t *version = json_object_get(root, "spillway_profile");
    const char *sum = json_string_value(json_object_get(root, "checksum"));
    char expected[17];
    *measured = json_object_get(root, "measured");
    if (!json_is_integer(version) || !sum || !json_is_object(*measured))
        return spw_fail(err, -EINVAL, "%s: found no profile of spillway", path);
    if (json_integer_value(version) != SPW_PROFILE_VERSION)
        return spw_fail(err, -EINVAL, "%s: found version %lld of the profile, expected %d", path,
                        (long long)json_integer_value(version), SPW_PROFILE_VERSION);
    if (!sum_of(*measured, expected))
        return spw_fail(err, -ENOMEM, "%s: no memory to check it", path);
    if (strcmp(sum, expected) != 0)
        return spw_fail(err, -EINVAL, "%s: found checksum %.16s, expected %s", path, sum, expected);
    return 0;
}

static int read_root(struct spw_profile *out, const json_t *root, const char *path,
                     struct spw_error *err)
{
    const json_t *measured;
    SPW_TRY(check_frame(root, &measured, path, err));
    SPW_TRY(read_list(json_object_get(measured, "drives"), "drives", drive_fields, DRIVE_FIELDS,
                      out->drives, sizeof *out->drives, SPW_PROFILE_DRIVES, &out->n_drives, path,
                      err));
    return read_list(json_object_get(measured, "machines"), "machines", machine_fields,
                     MACHINE_FIELDS, out->machines, sizeof *out->machines, SPW_PROFILE_MACHINES,
                     &out->n_machines, path, err);
}

/* The whole file, which must be a regular one: a pipe would be waited for. */
static int load(const char *path, char **text, size_t *bytes, struct spw_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return spw_fail(err, -errno, "%s: %s", path, strerror(errno));
    int rc = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size <= MOST_BYTES
                 ? 0
                 : -EINVAL;
    *text = rc ? NULL : spw_alloc((size_t)st.st_size);
    for (*bytes = 0; *text && *bytes < (size_t)st.st_size;) {
        ssize_t n = read(fd, *text + *bytes, (size_t)st.st_size - *bytes);
        if (n <= 0)
            break;
        *bytes += (size_t)n;
    }
    close(fd);
    if (rc)
        return spw_fail(err, rc, "%s: found no regular file of at most 1 MiB", path);
    return *text ? 0 : spw_fail(err, -ENOMEM, "%s: no memory to read it", path);
}

int spw_profile_read(struct spw_profile *out, const char *path, struct spw_error *err)
{
    char *text;
    size_t bytes;
    json_error_t why;
    memset(out, 0, sizeof *out);
    SPW_TRY(load(path, &text, &bytes, err));
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    spw_free(text);
    int rc = root ? read_root(out, root, path, err)
                  : spw_fail(err, -EINVAL, "%s: line %d: %s", path, why.line, why.text);
    json_decref(root);
    if (rc)
        memset(out, 0, sizeof *out);
    return rc;
}

static json_t *write_root(const struct spw_profile *p)
{
    char sum[17];
    json_t *measured = json_object(), *root = json_object();
    int failed = json_object_set_new(
        measured, "drives",
        write_list(drive_fields, DRIVE_FIELDS, p->drives, sizeof *p->drives, p->n_drives));
    failed |= json_object_set_new(measured, "machines",
                                  write_list(machine_fields, MACHINE_FIELDS, p->machines,
                                             sizeof *p->machines, p->n_machines));
    failed |= !sum_of(measured, sum);
    failed |= json_object_set_new(root, "spillway_profile", json_integer(SPW_PROFILE_VERSION));
    failed |= json_object_set_new(root, "checksum", failed ? NULL : json_string(sum));
    failed |= json_object_set_new(root, "measured", measured);
    if (!failed)
        return root;
    json_decref(root);
    return NULL;
}

/* Every folder on the way to the file. */
static int make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int rc = mkdir(path, 0700) == 0 || errno == EEXIST ? 0 : -errno;
        *slash = '/';
        SPW_TRY(rc);
    }
    return 0;
}

static int write_text(int fd, const char *text)
{
    size_t bytes = strlen(text);
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(fd, text + done, bytes - done);
        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* Renamed only when it is whole. */
static int replace(const char *path, char *temporary, const char *text)
{
    SPW_TRY(make_folders(temporary));
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int rc = write_text(fd, text);
    if (!rc)
        rc = write_text(fd, "\n");
    if (close(fd) != 0 && !rc)
        rc = -errno;
    if (!rc && rename(temporary, path) != 0)
        rc = -errno;
    if (rc)
        unlink(temporary);
    return rc;
}

int spw_profile_write(const struct spw_profile *p, const char *path, struct spw_error *err)
{
    size_t bytes = strlen(path) + sizeof ".XXXXXX";
    char *temporary = spw_alloc(bytes), *text = NULL;
    json_t *root = temporary ? write_root(p) : NULL;
    if (root)
        text = json_dumps(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    json_decref(root);
    int rc = -ENOMEM;
    if (text) {
        snprintf(temporary, bytes, "%s.XXXXXX", path);
        rc = replace(path, temporary, text);
    }
    free(text);
    spw_free(temporary);
    return rc ? spw_fail(err, rc, "%s: cannot be written: %s", path, strerror(-rc)) : 0;
}

/* ---- entries by key ---- */

const struct spw_drive *spw_profile_find_drive(const struct spw_profile *p,
                                               const struct spw_drive *key)
{
    for (unsigned i = 0; i < p->n_drives; i++) {
        const struct spw_drive *d = &p->drives[i];
        if (strcmp(d->device, key->device) == 0 && strcmp(d->filesystem, key->filesystem) == 0 &&
            d->io == key->io)
            return d;
    }
    return NULL;
}

const struct spw_machine *spw_profile_find_machine(const struct spw_profile *p,
                                                   const struct spw_machine *key)
{
    for (unsigned i = 0; i < p->n_machines; i++) {
        const struct spw_machine *m = &p->machines[i];
        if (strcmp(m->cpu, key->cpu) == 0 && strcmp(m->isa, key->isa) == 0 &&
            strcmp(m->gpu, key->gpu) == 0 && m->threads == key->threads && m->cores == key->cores)
            return m;
    }
    return NULL;
}

void spw_profile_keep_drive(struct spw_profile *p, const struct spw_drive *drive)
{
    const struct spw_drive *known = spw_profile_find_drive(p, drive);
    struct spw_drive *to = known ? &p->drives[known - p->drives] : p->drives;
    if (!known && p->n_drives < SPW_PROFILE_DRIVES)
        to = &p->drives[p->n_drives++];
    else
        for (unsigned i = 0; !known && i < p->n_drives; i++)
            to = p->drives[i].measured_at < to->measured_at ? &p->drives[i] : to;
    *to = *drive;
}

void spw_profile_keep_machine(struct spw_profile *p, const struct spw_machine *machine)
{
    const struct spw_machine *known = spw_profile_find_machine(p, machine);
    struct spw_machine *to = known ? &p->machines[known - p->machines] : p->machines;
    if (!known && p->n_machines < SPW_PROFILE_MACHINES)
        to = &p->machines[p->n_machines++];
    else
        for (unsigned i = 0; !known && i < p->n_machines; i++)
            to = p->machines[i].measured_at < to->measured_at ? &p->machines[i] : to;
    *to = *machine;
}
