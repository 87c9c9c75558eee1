/* Documents of a job: what operands name and in which order, their ids, their text and digests;
 * hostile names and files; PDF and HTML where pdftotext and pandoc are installed. */
#include "tests/folder.h"
#include "tests/pdf_file.h"
#include "tools/command/job/summarize/document.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <xxhash.h>

static void sh(const char *line)
{
    CHECK_MSG(system(line) == 0, "%s", line);
}

/* ---- lists ---- */

static struct job_documents list;
static struct spw_error err;

/* Operands and, after "--except", what is left out; NULL ends both. */
static int open_list(const char *first, ...)
{
    const char *names[2][8];
    size_t n[2] = {0, 0};
    int which = 0;
    va_list args;
    va_start(args, first);
    for (const char *name = first; name; name = va_arg(args, const char *))
        if (strcmp(name, "--except") == 0)
            which = 1;
        else
            names[which][n[which]++] = name;
    va_end(args);
    job_documents_free(&list);
    spw_error_clear(&err);
    return job_documents_open(&list, names[0], n[0], names[1], n[1], &err);
}

/* The ids, each with a newline. */
static const char *ids(void)
{
    static char text[4000];
    text[0] = 0;
    for (size_t i = 0; i < list.n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s\n", list.items[i].id);
    return text;
}

#define CHECK_IDS(want, ...)                                                                       \
    do {                                                                                           \
        int rc_ = open_list(__VA_ARGS__, (const char *)NULL);                                      \
        CHECK_MSG(rc_ == 0 && strcmp(ids(), want) == 0, "%d %s, found:\n%s", rc_, err.text,        \
                  ids());                                                                          \
    } while (0)

#define CHECK_REFUSED(code, why, ...)                                                              \
    do {                                                                                           \
        int rc_ = open_list(__VA_ARGS__, (const char *)NULL);                                      \
        CHECK_MSG(rc_ == code && strstr(err.text, why) && !list.items, "%d %s", rc_, err.text);    \
    } while (0)

static void names(void)
{
    sh("mkdir -p t/sub/deep t/.hidden t/empty u && mkfifo t/pipe");
    sh("touch t/b.md t/a.pdf t/.secret t/sub/x.txt t/sub/deep/z.html t/.hidden/no.txt t/Z "
       "t/l.jsonl t/l.jsonl.state t/sub/l.ndjson.state t/l.jsonl.errors "
       "t/.l.jsonl.state.unfinished");
    sh("ln -s ../b.md t/sub/link.txt; ln -s sub t/linked; ln -s nowhere t/broken; touch u/x.txt");
    sh("ln -s nowhere t/.hidden-link; ln -s nowhere t/k.jsonl");
#define TOP "t/Z\nt/a.pdf\nt/b.md\n"
#define BELOW "t/sub/deep/z.html\nt/sub/link.txt\nt/sub/x.txt\n"
    CHECK_IDS(TOP BELOW, "t");
    CHECK(list.n_broken == 1 && strcmp(list.broken, "t/broken") == 0);
    CHECK(list.items[1].kind == JOB_DOCUMENT_PDF && list.items[2].kind == JOB_DOCUMENT_TEXT);
    CHECK(list.items[3].kind == JOB_DOCUMENT_PANDOC && strcmp(list.items[3].format, "html") == 0);
    CHECK(strcmp(list.items[5].path, "t/sub/x.txt") == 0);
    CHECK_IDS(TOP BELOW, "t//");
    CHECK_IDS("t/sub/x.txt\nt/a.pdf\n", "t/sub/x.txt", "t/a.pdf");
    CHECK_IDS("t/.hidden/no.txt\n", "t/.hidden");
    CHECK_IDS("t/linked/deep/z.html\nt/linked/link.txt\nt/linked/x.txt\n", "t/linked");
    /* One path is one document. */
    CHECK_IDS("u/x.txt\nt/sub/x.txt\n./u/x.txt\n", "u/x.txt", "t/sub/x.txt", "./u/x.txt",
              "t/sub/x.txt");
    CHECK_IDS(TOP BELOW, "t", "t/a.pdf", "t/");
    /* Outputs of the job. */
    CHECK_IDS(TOP, "t", "--except", "t/sub", "no such");
    CHECK_IDS("t/a.pdf\nt/b.md\n" BELOW, "t", "--except", "./t/Z");

    CHECK_REFUSED(-ENOENT, "t/none: No such file", "t/none");
    CHECK_REFUSED(-ENOENT, "t/*.none: No such file", "t/*.none");
    CHECK_REFUSED(-ENOENT, "t/empty: found no files", "t/empty");
    CHECK_REFUSED(-EINVAL, "t/l.jsonl: found a JSONL file, expected documents", "t/l.jsonl");
    CHECK_REFUSED(-ENOENT, "No such file", "");
    CHECK_REFUSED(-EINVAL, "found a device or a pipe", "t/pipe");
    if (geteuid() != 0) {
        CHECK(chmod("t/sub", 0) == 0);
        CHECK_REFUSED(-EACCES, "t/sub: Permission denied", "t");
        CHECK(chmod("t/sub", 0700) == 0);
    }
    /* Names of any bytes. */
    sh("mkdir v; touch 'v/-x.txt' 'v/a*b' 'v/[' \"$(printf 'v/q\"\\n\\377')\"");
    CHECK_IDS("v/-x.txt\nv/[\nv/a*b\nv/q\"\n\xef\xbf\xbd\n", "v");
    CHECK_IDS("v/a*b\n", "v/a*b");
    sh("mkdir n; touch \"$(printf 'n/\\376')\" \"$(printf 'n/\\377')\"");
    CHECK_REFUSED(-EINVAL, "found two files of the name n/", "n");
}

/* Names of summaries mirror folders, and are not twice there. */
static void summaries(void)
{
    sh("mkdir -p s/sub s2; touch s/x.txt s/sub/x.txt s/sub/y.md s/sub/.txt s2/x.TXT");
    static const char *const want[] = {"sub/x", "sub/y.md", "x"};
    CHECK_IDS("s/sub/x.txt\ns/sub/y.md\ns/x.txt\n", "s/");
    for (size_t i = 0; i < list.n && i < 3; i++)
        CHECK(job_document_name_bytes(&list.items[i]) == strlen(want[i]) &&
              strncmp(list.items[i].path + list.items[i].base, want[i], strlen(want[i])) == 0);
    CHECK(job_documents_check_names(&list, &err) == 0);
    CHECK(open_list("s", "s2", (const char *)NULL) == 0);
    CHECK(job_documents_check_names(&list, &err) == -EINVAL);
    CHECK_MSG(strstr(err.text, "s/x.txt and s2/x.TXT: their summaries would have one name") ||
                  strstr(err.text, "s2/x.TXT and s/x.txt: their summaries would have one name"),
              "%s", err.text);
    CHECK(open_list("s", "s/sub", (const char *)NULL) == 0); /* the same paths */
    CHECK(job_documents_check_names(&list, &err) == 0);
}

/* ---- text ---- */

static char *text;
static size_t n_text;
static struct cli_digest digest;

/* The text of the i-th document of the list. */
static int text_at(size_t i, const struct job_limits *limits)
{
    spw_free(text);
    spw_error_clear(&err);
    if (i >= list.n) {
        CHECK(i < list.n);
        return -EINVAL;
    }
    int rc = job_document_text(&list.items[i], limits, &text, &n_text, &digest, &err);
    CHECK((rc == 0) == (text != NULL) && (rc == 0 || err.text[0]));
    return rc;
}

/* The text of a file. */
static int text_of(const char *path)
{
    if (open_list(path, (const char *)NULL) != 0) {
        spw_free(text);
        text = NULL;
        return -EINVAL;
    }
    return text_at(0, NULL);
}

static bool is_text(const char *want)
{
    return text && n_text == strlen(want) && strcmp(text, want) == 0;
}

static void check_bytes(const char *data, size_t bytes, const char *want)
{
    write_bytes("bytes", data, bytes);
    CHECK_MSG(text_of("bytes") == 0 && is_text(want), "found '%s', expected '%s'", text, want);
    CHECK(digest.bytes == bytes && digest.hash == XXH3_64bits(data, bytes));
}

static void check_bad_bytes(const char *data, size_t bytes, int code, const char *why)
{
    write_bytes("bytes", data, bytes);
    int rc = text_of("bytes");
    CHECK_MSG(rc == code && strstr(err.text, why) && strstr(err.text, "bytes: "), "%d %s", rc,
              err.text);
}

static void bytes_of_files(void)
{
    check_bytes("plain \xc3\xa9\r\n", 10, "plain \xc3\xa9\r\n");
    check_bytes("\xef\xbb\xbfx\n", 5, "x\n");
    check_bytes("\xff\xfe\x61\0\xe9\0\x3d\xd8\x00\xde\n\0", 12, "a\xc3\xa9\xf0\x9f\x98\x80\n");
    check_bytes("\xfe\xff\0\x61\0\xe9\xd8\x3d\xde\x00\0\n", 12, "a\xc3\xa9\xf0\x9f\x98\x80\n");
    check_bad_bytes("caf\xe9 au lait", 12, -EILSEQ, "byte 0xe9 at offset 3");
    check_bad_bytes("caf\xc3", 4, -EILSEQ, "byte 0xc3 at offset 3");
    check_bad_bytes("\xed\xa0\x80", 3, -EILSEQ, "iconv");
    check_bad_bytes("a\0b", 3, -EILSEQ, "byte 0x00 at offset 1");
    check_bad_bytes("\xff\xfe"
                    "a\0b",
                    5, -EILSEQ, "offset 4");
    check_bad_bytes("\xff\xfe"
                    "a\0\0\0b\0",
                    8, -EILSEQ, "offset 4");
    check_bad_bytes("\xff\xfe"
                    "a\0\x3d\xd8"
                    "b\0",
                    8, -EILSEQ, "offset 4");
    check_bad_bytes("\xff\xfe\x00\xde", 4, -EILSEQ, "offset 2");
    check_bad_bytes("", 0, -ENODATA, "no text");
    check_bad_bytes("\xff\xfe", 2, -ENODATA, "no text");
    check_bad_bytes(" \n\t\f", 4, -ENODATA, "no text");
}

static void refused_texts(void)
{
    write_text("bytes", "0123456789");
    CHECK(open_list("bytes", (const char *)NULL) == 0);
    struct job_limits limits = {.bytes = 10};
    CHECK(text_at(0, &limits) == 0 && is_text("0123456789"));
    limits.bytes = 9;
    CHECK(text_at(0, &limits) == -EFBIG && strstr(err.text, "found 10B, expected at most 9B"));
    CHECK(unlink("bytes") == 0);
    CHECK(text_at(0, NULL) == -ENOENT && strstr(err.text, "bytes: No such file"));
    CHECK(mkdir("bytes", 0700) == 0);
    CHECK(text_at(0, NULL) == -EINVAL && strstr(err.text, "found a folder"));
    CHECK(rmdir("bytes") == 0 && mkfifo("bytes", 0600) == 0);
    CHECK(text_at(0, NULL) == -EINVAL && strstr(err.text, "found a device or a pipe"));
    CHECK(unlink("bytes") == 0);
}

/* ---- programs ---- */

/* Makes a program of this name in bin/, which is first in PATH. */
static void program(const char *name, const char *what)
{
    char path[100], lines[1000];
    snprintf(path, sizeof path, "bin/%s", name);
    snprintf(lines, sizeof lines, "#!/bin/sh\n%s\n", what);
    write_text(path, lines);
    CHECK(chmod(path, 0755) == 0);
}

static void fake_programs(const char *system_path)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/bin:%s", folder, system_path);
    CHECK(mkdir("bin", 0700) == 0);
    setenv("PATH", path, 1);
    sh("touch x.pdf x.docx ./-x.pdf");
    program("pdftotext", "echo \"$@\"");
    program("pandoc", "echo \"$@\"");
    CHECK(text_of("x.pdf") == 0 && is_text("-enc UTF-8 -eol unix -nopgbrk ./x.pdf -\n"));
    CHECK(digest.bytes == 0 && digest.hash == XXH3_64bits("", 0));
    CHECK(text_of("-x.pdf") == 0 && strstr(text, " ./-x.pdf -"));
    CHECK(text_of("x.docx") == 0);
    CHECK(is_text("--sandbox --quiet --from docx --to plain --wrap=none ./x.docx\n"));
    snprintf(path, sizeof path, "%s/x.pdf", folder);
    CHECK(text_of(path) == 0 && strstr(text, path) && !strstr(text, "./"));
    write_text("scan", "%PDF-1.4 by its first bytes"); /* without the extension */
    CHECK(text_of("scan") == 0 && strstr(text, "./scan -"));

    program("pdftotext", "printf 'a\\377b\\000c\\355\\240\\200'"); /* a lone surrogate */
    CHECK(text_of("x.pdf") == 0 && strncmp(text,
                                           "a\xef\xbf\xbd"
                                           "b\xef\xbf\xbd"
                                           "c",
                                           9) == 0);
    program("pdftotext", "printf '\\f\\n'");
    CHECK(text_of("x.pdf") == -ENODATA && strstr(err.text, "ocrmypdf"));
    program("pdftotext", "echo text; echo more >>x.pdf");
    CHECK(text_of("x.pdf") == -EAGAIN && strstr(err.text, "x.pdf: the file changed"));
    program("pdftotext", "echo 'Syntax Error: no trailer' >&2; exit 1");
    CHECK(text_of("x.pdf") == -EIO &&
          strcmp(err.text, "x.pdf: pdftotext: failed with status 1: Syntax Error: no trailer") ==
              0);
    setenv("PATH", "/nowhere", 1);
    CHECK(text_of("x.pdf") == -ENOENT && strstr(err.text, "install the package poppler-utils"));
    CHECK(text_of("x.docx") == -ENOENT && strstr(err.text, "install the package pandoc"));
    setenv("PATH", system_path, 1);
}

static bool is_installed(const char *name)
{
    char line[200];
    snprintf(line, sizeof line, "command -v %s >/dev/null", name);
    bool found = system(line) == 0;
    if (!found)
        fprintf(stderr, "%s is not installed: a part of the test is skipped\n", name);
    return found;
}

/* Ends with an error, soon, and leaves no process behind. */
static void check_bomb(const char *path)
{
    struct job_limits limits = {.seconds = 1, .memory_bytes = UINT64_C(512) << 20};
    double before = check_seconds();
    CHECK(open_list(path, (const char *)NULL) == 0);
    int rc = text_at(0, &limits);
    CHECK_MSG(rc == -ETIMEDOUT || rc == -EIO || rc == -ENODATA, "%d %s", rc, err.text);
    CHECK_MSG(check_seconds() - before < 5, "%.1f s", check_seconds() - before);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
    fprintf(stderr, "%.2f s: %s\n", check_seconds() - before, err.text);
}

static void real_pdf(void)
{
    if (!is_installed("pdftotext"))
        return;
    write_pdf("-r.pdf", "BT /F 24 Tf 100 700 Td (Water over the spillway) Tj ET");
    CHECK_MSG(text_of("-r.pdf") == 0 && strstr(text, "Water over the spillway\n"), "%s", err.text);
    CHECK(!strchr(text, '\f'));
    sh("mkdir dir; cp ./-r.pdf \"dir/a b;\\$(touch z)'.pdf\"");
    CHECK(text_of("dir") == 0 && strstr(text, "Water") && access("z", F_OK) != 0);
    write_pdf("scan.pdf", "0 0 m 9 9 l S");
    CHECK(text_of("scan.pdf") == -ENODATA && strstr(err.text, "ocrmypdf"));
    write_text("bad.pdf", "%PDF-1.4\nnothing");
    CHECK(text_of("bad.pdf") == -EIO && strstr(err.text, "bad.pdf: pdftotext: failed"));
    write_pdf_of_forms("bomb.pdf", 9);
    check_bomb("bomb.pdf");
    write_pdf_of_deflated_words("bomb.pdf");
    check_bomb("bomb.pdf");
    write_pdf_of_many_pages("bomb.pdf");
    check_bomb("bomb.pdf");
}

static void real_pandoc(void)
{
    if (!is_installed("pandoc"))
        return;
    write_text("secret", "secret words\n");
    write_text("-p.html",
               "<html><head><title>T</title></head><h1>Head</h1><p>A <b>b</b> \xc3\xa9.</p>"
               "<iframe src=secret></iframe><script>x()</script>");
    CHECK_MSG(text_of("-p.html") == 0 && is_text("Head\n\nA b \xc3\xa9.\n"), "%s %s", err.text,
              text);
    write_text("i.rst", "Head\n====\n\nBefore\n\n.. include:: secret\n\nAfter\n");
    CHECK_MSG(text_of("i.rst") == 0 && is_text("Head\n\nBefore\n\nAfter\n"), "%s %s", err.text,
              text);
    write_text("i.tex", "Before \\input{secret} after\n");
    CHECK_MSG(text_of("i.tex") == 0 && !strstr(text, "secret"), "%s %s", err.text, text);
    sh("{ yes '<b>' | head -n 200000 | tr -d '\\n'; echo x; } >deep.html");
    check_bomb("deep.html");
    write_text("bad.docx", "no archive");
    CHECK_MSG(text_of("bad.docx") == -EIO && strstr(err.text, "bad.docx: pandoc: failed"), "%s",
              err.text);
}

static void no_memory(void)
{
    int rc = -ENOMEM;
    for (int i = 0; rc == -ENOMEM; i++) {
        spw_alloc_fail_nth(i);
        rc = open_list("t", "u/x.txt", "t/sub/x.txt", (const char *)NULL);
        if (!rc)
            rc = job_documents_check_names(&list, &err);
        for (size_t k = 0; k < list.n && rc == 0; k++)
            if (list.items[k].kind == JOB_DOCUMENT_TEXT)
                rc = text_at(k, NULL) == -ENOMEM ? -ENOMEM : 0;
        spw_alloc_fail_nth(-1);
        CHECK_MSG(i < 200 && (rc == 0 || rc == -ENOMEM), "%d: %d %s", i, rc, err.text);
    }
}

int main(void)
{
    const char *path = strdup(getenv("PATH"));
    open_folder("documents");
    CHECK(chdir(folder) == 0);
    names();
    summaries();
    bytes_of_files();
    refused_texts();
    fake_programs(path);
    real_pdf();
    real_pandoc();
    no_memory();
    job_documents_free(&list);
    spw_free(text);
    free((void *)(uintptr_t)path);
    close_folder();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
