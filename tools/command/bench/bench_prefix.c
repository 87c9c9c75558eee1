/* `spillway bench --prefix`: the time to the first token of a prompt whose beginning lies in a
 * prefix cache, compared with the time that fio takes to read the same bytes.
 *
 * A prompt of random tokens is computed once and stored. Then pairs measure both things one after
 * the other; odd pairs use the opposite order:
 *
 * - First token: an engine is opened (not part of the time, but shown). The page cache has nothing
 * of the pack. Time runs from the request of that prompt with a question after it to the last
 * logits of the question.
 * - fio reads the same pack from its beginning to its end.
 *
 * All files lie in a temporary directory inside that of --prefix-cache. The table shows the median,
 * least and most of the pairs. */
#include "tools/command/bench/bench.h"
#include "tools/command/engine.h"
#include "tools/command/bench/fio.h"
#include "tools/command/output/progress.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIO_BLOCK ((uint64_t)1 << 20)
enum { PAIRS = 5, CONTEXT = 16384, TILE_TOKENS = 128 };

enum { FIRST_TOKEN, FIO, FIRST_OVER_FIO, FIO_RATE, WAIT, OPEN, PREFIX_MEASURES };

static const struct bench_line lines[PREFIX_MEASURES] = {
    [FIRST_TOKEN] = {"first_token_seconds", "first token, the prefix found", BENCH_SECONDS, 0},
    [FIO] = {"fio_seconds", "its bytes, at fio's rate", BENCH_SECONDS, 0},
    [FIRST_OVER_FIO] = {"first_token_over_fio", "  first token / fio", BENCH_FACTOR, -1.15},
    [FIO_RATE] = {"fio_read_bytes_per_second", "fio, the same file", BENCH_RATE, 0},
    [WAIT] = {"unhidden_wait_seconds", "waiting for tiles, not hidden", BENCH_SECONDS, 0},
    [OPEN] = {"open_seconds", "opening the engine and the cache", BENCH_SECONDS, 0},
};

struct prefix_bench {
    const struct cli_options *o;
    struct cli_model model;
    struct spw_options options;
    char directory[4096], pack[4400]; /* `pack` is the largest file in `directory` */
    uint64_t context,
        question; /* tokens of the prompt in the cache; tokens of the question after it */
    uint64_t pack_bytes, bytes; /* bytes of the file; bytes that were read from it */
    double computed_seconds;    /* time of the prompt with an empty cache */
    char backend[80], io[256];
    int32_t *tokens;          /* owned, [context + question] */
    struct bench_table table; /* owned */
    char no_fio[320];         /* why there are no numbers of fio; "" if there are */
};

/* ---- files ---- */

/* Calls a function for each file of the directory. */
static void each_file(const struct prefix_bench *b, void (*visit)(void *context, const char *path),
                      void *context)
{
    char path[4400];
    DIR *d = opendir(b->directory);
    for (struct dirent *x; d && (x = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", b->directory, x->d_name);
        if (strcmp(x->d_name, ".") && strcmp(x->d_name, ".."))
            visit(context, path);
    }
    if (d)
        closedir(d);
}

static void drop_pages(void *context, const char *path)
{
    (void)context;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* no page is dirty: the file was synced */
    close(fd);
}

static void remove_file(void *context, const char *path)
{
    (void)context;
    unlink(path);
}

static void find_largest(void *context, const char *path)
{
    struct prefix_bench *b = context;
    struct stat st;
    if (stat(path, &st) || (uint64_t)st.st_size <= b->pack_bytes)
        return;
    b->pack_bytes = (uint64_t)st.st_size;
    snprintf(b->pack, sizeof b->pack, "%s", path);
}

static int make_directory(struct prefix_bench *b, struct spw_error *err)
{
    if (!b->o->prefix_cache)
        return spw_fail(err, -EINVAL,
                        "--prefix: found no --prefix-cache, expected a directory on the drive to "
                        "measure");
    char name[4096];
    if (snprintf(name, sizeof name, "%s/spillway-bench-XXXXXX", b->o->prefix_cache) >=
            (int)sizeof name ||
        !mkdtemp(name))
        return spw_fail(err, -errno, "--prefix-cache: %s: %s", b->o->prefix_cache, strerror(errno));
    snprintf(b->directory, sizeof b->directory, "%s", name);
    b->options.prefix_cache_dir = b->directory;
    return 0;
}

static void remove_directory(const struct prefix_bench *b)
{
    if (!*b->directory)
        return;
    each_file(b, remove_file, NULL);
    rmdir(b->directory);
}

/* ---- runs ---- */

/* Computes the prompt and stores it in the cache. */
static int store_prompt(struct prefix_bench *b, struct spw_error *err)
{
    struct bench_run r;
    int rc = bench_open(&r, b->o->operand, &b->options, err);
    if (!rc) {
        snprintf(b->backend, sizeof b->backend, "%s", spw_engine_backend(r.engine));
        snprintf(b->io, sizeof b->io, "%s", spw_engine_io(r.engine));
        rc = bench_sync(&r, b->tokens, b->context, &b->computed_seconds, err);
    }
    if (!rc)
        rc = spw_session_publish(r.session, err);
    bench_close(&r);
    each_file(b, find_largest, b);
    return rc;
}

static int find_prompt(struct prefix_bench *b, size_t i, struct spw_error *err)
{
    struct spw_prefix_stats p;
    struct spw_stats s;
    struct bench_run r;
    each_file(b, drop_pages, NULL);
    int rc = bench_open(&r, b->o->operand, &b->options, err);
    if (!rc)
        rc = bench_sync(&r, b->tokens, b->context + b->question, &b->table.samples[FIRST_TOKEN][i],
                        err);
    if (!rc && spw_session_from_store(r.session) != b->context)
        rc = spw_fail(err, -EIO, "%s: found %zu of %llu tokens, expected all of them", b->directory,
                      spw_session_from_store(r.session), (unsigned long long)b->context);
    if (!rc) {
        spw_engine_stats(r.engine, &s);
        spw_engine_prefix(r.engine, &p);
        b->table.samples[WAIT][i] = s.unhidden_wait_seconds;
        b->table.samples[OPEN][i] = r.opened;
        b->bytes = p.reused_bytes;
    }
    bench_close(&r);
    return rc;
}

/* Runs fio. NAN without fio: then the other numbers are shown alone. */
static void read_by_fio(struct prefix_bench *b, size_t i)
{
    struct spw_error why = {0};
    double rate = NAN;
    if (!*b->no_fio &&
        cli_fio_run(b->pack, false, b->pack_bytes - b->pack_bytes % FIO_BLOCK, &rate, &why)) {
        snprintf(b->no_fio, sizeof b->no_fio, "%.300s", why.text);
        rate = NAN;
    }
    b->table.samples[FIO_RATE][i] = rate;
}

static int pair(struct prefix_bench *b, size_t i, struct spw_error *err)
{
    if (i % 2)
        read_by_fio(b, i);
    SPW_TRY(find_prompt(b, i, err));
    if (i % 2 == 0)
        read_by_fio(b, i);
    b->table.samples[FIO][i] = (double)b->bytes / b->table.samples[FIO_RATE][i];
    b->table.samples[FIRST_OVER_FIO][i] =
        b->table.samples[FIRST_TOKEN][i] / b->table.samples[FIO][i];
    return 0;
}

/* ---- output ---- */

static void print_head(const void *of)
{
    const struct prefix_bench *b = of;
    char kv[32], file[32];
    printf("machine   %s; %s\n"
           "model     %s, a prompt of %llu tokens in the cache (computed in %.2f s), then %llu "
           "tokens\n"
           "tiles     %s, checksums compared, in a file of %s\n"
           "runs      medians of %zu pairs, the page cache empty of the file\n",
           b->backend, b->io, b->o->operand, (unsigned long long)b->context, b->computed_seconds,
           (unsigned long long)b->question, cli_format_bytes(kv, b->bytes),
           cli_format_bytes(file, b->pack_bytes), b->table.n_runs);
    if (*b->no_fio)
        printf("fio       no comparison: %s\n", b->no_fio);
}

static json_t *head_json(const struct prefix_bench *b)
{
    const struct cli_field fields[] = {
        {"model", CLI_JSON(b->o->operand)},
        CLI_FIELD(b, backend),
        CLI_FIELD(b, io),
        CLI_FIELD(b, context),
        CLI_FIELD(b, question),
        {"pairs", CLI_JSON(b->table.n_runs)},
        {"tile_bytes", CLI_JSON(b->bytes)},
        {"file_bytes", CLI_JSON(b->pack_bytes)},
        CLI_FIELD(b, computed_seconds),
        {"fio", *b->no_fio ? CLI_JSON(b->no_fio) : json_true()},
    };
    return CLI_OBJECT(fields);
}

/* ---- the command ---- */

static int prepare(struct prefix_bench *b, struct spw_error *err)
{
    struct spw_plan_info plan;
    b->context = b->o->contexts.n ? b->o->contexts.items[0] : CONTEXT;
    b->context -= b->context % TILE_TOKENS;
    b->question = b->o->decode_tokens;
    if (!b->context)
        return spw_fail(err, -EINVAL, "--contexts: found less than the %d tokens of a tile",
                        TILE_TOKENS);
    b->options = cli_engine_options(b->o, b->context + b->question, 1);
    b->options.on_progress = cli_progress_callback();
    SPW_TRY(make_directory(b, err));
    SPW_TRY(spw_plan_query(&plan, b->o->operand, &b->options, err));
    b->tokens = bench_random_tokens(b->model.config.vocab, b->o->seed, b->context + b->question);
    if (!b->tokens)
        return spw_fail(err, -ENOMEM, "out of memory");
    return bench_table_open(&b->table, lines, PREFIX_MEASURES,
                            cli_given(b->o, "repeat") ? b->o->repeat : PAIRS, err);
}

static int measure(struct prefix_bench *b, struct spw_error *err)
{
    cli_progress_start((enum cli_progress_mode)b->o->progress, false);
    SPW_TRY(store_prompt(b, err));
    for (; b->table.n_runs < b->table.most_runs; b->table.n_runs++)
        SPW_TRY(pair(b, b->table.n_runs, err));
    return 0;
}

int bench_prefix(const struct cli_options *o)
{
    struct prefix_bench b = {.o = o};
    struct spw_error err = {0};
    int code = cli_model_open(&b.model, o->operand, false);
    if (code)
        return code;
    int rc = prepare(&b, &err);
    if (rc)
        code = cli_fail_error(rc, &err, true);
    else
        rc = measure(&b, &err);
    cli_progress_end();
    remove_directory(&b);
    if (!code && rc)
        code = rc == -ECANCELED ? cli_fail(CLI_INTERRUPTED, "interrupted")
                                : cli_fail_error(rc, &err, false);
    if (!code)
        code = bench_show(o, print_head, &b, head_json(&b), &b.table);
    bench_table_close(&b.table);
    spw_free(b.tokens);
    cli_model_close(&b.model);
    return code;
}
