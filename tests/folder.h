/* A folder of this process alone, and files in it. */
#ifndef SPW_TESTS_FOLDER_H
#define SPW_TESTS_FOLDER_H

#include "tests/check.h"

#include <string.h>
#include <sys/stat.h>

static char folder[64];

/* The path of a file in the folder. It lives until there are four later ones. */
static inline const char *in_folder(const char *name)
{
    static char paths[4][256];
    static size_t n;
    char *path = paths[n++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline void open_folder(const char *test)
{
    snprintf(folder, sizeof folder, "/tmp/spw_%s_XXXXXX", test);
    CHECK(mkdtemp(folder));
}

static inline void close_folder(void)
{
    char line[160];
    snprintf(line, sizeof line, "chmod -R u+rwx %s && rm -r %s", folder, folder);
    CHECK(system(line) == 0);
}

static inline void write_bytes(const char *name, const void *bytes, size_t n)
{
    FILE *file = fopen(in_folder(name), "wb");
    CHECK_MSG(file && fwrite(bytes, 1, n, file) == n, "%s", name);
    if (file)
        fclose(file);
}

static inline void write_text(const char *name, const char *text)
{
    write_bytes(name, text, strlen(text));
}

static inline size_t read_file(const char *name, char *text, size_t bytes)
{
    FILE *file = fopen(in_folder(name), "rb");
    size_t n = file ? fread(text, 1, bytes - 1, file) : 0;
    text[n] = 0;
    if (file)
        fclose(file);
    return n;
}

#endif
