/* Files that the command writes: see output.h. */
#include "tools/command/output/output.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct cli_output {
    FILE *file;       /* owned */
    char *path;       /* owned */
    char *unfinished; /* owned; the name of the file until the commit */
};

/* ---- names ---- */

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The folder of a path. */
static const char *folder_of(const char *path, char folder[4096])
{
    size_t bytes = (size_t)(last_part(path) - path);
    snprintf(folder, 4096, "%.*s", bytes ? (int)spw_min_u64(bytes, 4095) : 1, bytes ? path : ".");
    return folder;
}

static bool stat_folder(const char *path, struct stat *st)
{
    char folder[4096];
    return stat(folder_of(path, folder), st) == 0;
}

/* Whether both names mean one file, existing or not. */
static bool is_same_place(const char *a, const char *b)
{
    struct stat x, y;
    if (lstat(a, &x) == 0 && lstat(b, &y) == 0)
        return spw_is_same_file(&x, &y);
    return strcmp(last_part(a), last_part(b)) == 0 && stat_folder(a, &x) && stat_folder(b, &y) &&
           spw_is_same_file(&x, &y);
}

/* The path that the user gave for an option of this kind; NULL: none. */
static const char *file_of(const struct cli_options *o, const struct cli_row *row,
                           enum cli_kind kind)
{
    if (row->kind != kind || !(row->commands & o->command->bit) || !cli_given(o, row->name))
        return NULL;
    return *(const char *const *)(const void *)((const char *)o + row->at);
}

/* ---- checks ---- */

/* Refuses to replace a file that may not be replaced. */
static int check_replaceable(const char *what, const char *path, const struct stat *st)
{
    struct spw_error err = {0};
    int rc = spw_check_replaceable(st, path, &err);
    return rc ? cli_fail(CLI_REFUSED, "%s: %s", what, err.text) : 0;
}

/* Refuses to replace a file that the command reads. One exception: --save may name the file of
 * --resume. */
static int check_inputs(const struct cli_options *o, const char *what, const char *path,
                        const struct stat *st)
{
    struct stat input, folder;
    for (const struct cli_row *row = cli_rows; row->name; row++) {
        const char *name = file_of(o, row, CLI_FILE_IN);
        bool resumes = strcmp(row->name, "resume") == 0 && strcmp(what, "--save") == 0;
        if (name && !resumes && stat(name, &input) == 0 && spw_is_same_file(st, &input))
            return cli_fail(CLI_REFUSED, "%s: %s: is the file of --%s; give another name", what,
                            path, row->name);
    }
    bool has_model = o->operand && strstr(o->command->operand, "MODEL");
    if (has_model && stat(o->operand, &input) == 0 && stat_folder(path, &folder) &&
        (spw_is_same_file(st, &input) || spw_is_same_file(&folder, &input)))
        return cli_fail(CLI_REFUSED, "%s: %s: is a file of the model; give another name", what,
                        path);
    return 0;
}

static int check_name(const char *what, const char *path)
{
    if (strcmp(path, "-") == 0)
        return cli_fail(CLI_REFUSED, "%s: found -, expected a file: stdout is for the text", what);
    if (!*path)
        return cli_fail(CLI_REFUSED, "%s: found an empty name, expected a file", what);
    return 0;
}

static int check_folder(const char *what, const char *path)
{
    char folder[4096];
    if (access(folder_of(path, folder), W_OK | X_OK) == 0)
        return 0;
    return cli_fail(CLI_REFUSED, "%s: %s: %s", what, path, strerror(errno));
}

int cli_output_check(const struct cli_options *o, const char *what, const char *path)
{
    struct stat st;
    int code = check_name(what, path);
    if (code)
        return code;
    if (lstat(path, &st) == 0) {
        code = check_replaceable(what, path, &st);
        return code ? code : check_inputs(o, what, path, &st);
    }
    if (errno != ENOENT)
        return cli_fail(CLI_REFUSED, "%s: %s: %s", what, path, strerror(errno));
    return check_folder(what, path);
}

/* Refuses one file for two outputs. */
static int check_apart(const struct cli_options *o, const struct cli_row *row, const char *path)
{
    for (const struct cli_row *other = cli_rows; other < row; other++) {
        const char *name = file_of(o, other, CLI_FILE_OUT);
        if (name && is_same_place(name, path))
            return cli_fail(CLI_REFUSED, "--%s and --%s: found %s for both, expected two files",
                            other->name, row->name, path);
    }
    return 0;
}

/* The library checks profiles itself: it replaces only a file of the same kind, and it makes
 * folders. */
static bool is_profile(const struct cli_row *row)
{
    return strcmp(row->name, "drive-profile") == 0 || strcmp(row->name, "kv-profile") == 0 ||
           strcmp(row->name, "weight-checksums") == 0;
}

int cli_outputs_check(const struct cli_options *o)
{
    int code = 0;
    for (const struct cli_row *row = cli_rows; row->name && !code; row++) {
        const char *path = file_of(o, row, CLI_FILE_OUT);
        char what[64];
        if (!path)
            continue;
        snprintf(what, sizeof what, "--%s", row->name);
        code = is_profile(row) ? check_name(what, path) : cli_output_check(o, what, path);
        if (!code)
            code = check_apart(o, row, path);
    }
    return code;
}

/* ---- writing ---- */

static void output_free(struct cli_output *out)
{
    spw_free(out->path);
    spw_free(out->unfinished);
    spw_free(out);
}

/* A hidden name in the folder of `path`: such a file is no document of the folder. */
static char *unfinished_name(const char *path, const char *end)
{
    const char *name = last_part(path);
    size_t bytes = strlen(path) + strlen(end) + 2;
    char *out = spw_alloc(bytes);
    if (out)
        snprintf(out, bytes, "%.*s.%s%s", (int)(name - path), path, name, end);
    return out;
}

/* Makes a file of mode 0600; replaces the file that a killed process has left. */
static int make_unfinished(char *name, bool is_alone)
{
    if (!is_alone)
        return mkostemp(name, O_CLOEXEC);
    unlink(name);
    return open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
}

int cli_output_open(struct cli_output **out, const char *path, bool is_alone)
{
    struct cli_output *to = *out = spw_alloc_zero(1, sizeof *to);
    if (!to)
        return cli_fail(CLI_FAILED, "%s: out of memory", path);
    to->path = spw_strdup(path);
    to->unfinished = unfinished_name(path, is_alone ? ".unfinished" : ".XXXXXX");
    int fd = -1, why = ENOMEM;
    if (to->path && to->unfinished) {
        fd = make_unfinished(to->unfinished, is_alone);
        why = errno;
    }
    to->file = fd < 0 ? NULL : fdopen(fd, "wb");
    if (to->file)
        return 0;
    if (fd >= 0) {
        why = errno;
        close(fd);
        unlink(to->unfinished);
    }
    output_free(to);
    *out = NULL;
    return cli_fail(CLI_FAILED, "%s: %s", path, strerror(why));
}

FILE *cli_output_file(const struct cli_output *out)
{
    return out->file;
}

const char *cli_output_name(const struct cli_output *out)
{
    return out->unfinished;
}

/* Gives the file its name. Checks the old file of that name again, because hours may have passed
 * since the first check. */
static int take_name(const struct cli_output *out)
{
    struct stat st;
    if (lstat(out->path, &st) == 0) {
        int code = check_replaceable("output", out->path, &st);
        if (code)
            return CLI_FAILED;
    }
    if (rename(out->unfinished, out->path) == 0)
        return 0;
    return cli_fail(CLI_FAILED, "%s: %s", out->path, strerror(errno));
}

int cli_output_commit(struct cli_output *out)
{
    int why = errno; /* of an earlier write that failed */
    bool whole = !ferror(out->file);
    if (whole && (fflush(out->file) != 0 || fsync(fileno(out->file)) != 0)) {
        whole = false;
        why = errno;
    }
    if (fclose(out->file) != 0 && whole) {
        whole = false;
        why = errno;
    }
    int code = whole ? take_name(out) : cli_fail(CLI_FAILED, "%s: %s", out->path, strerror(why));
    if (code)
        unlink(out->unfinished);
    output_free(out);
    return code;
}

void cli_output_cancel(struct cli_output *out)
{
    fclose(out->file);
    unlink(out->unfinished);
    output_free(out);
}

int cli_write_json(const char *path, json_t *value)
{
    struct cli_output *out;
    char *text = spw_json_dump(value, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    json_decref(value);
    if (!text)
        return cli_fail(CLI_FAILED, "%s: no memory for the JSON object", path);
    int code = cli_output_open(&out, path, false);
    if (!code) {
        fprintf(cli_output_file(out), "%s\n", text);
        code = cli_output_commit(out); /* it reports a failed write */
    }
    spw_free(text);
    return code;
}
