/* `spillway cache ls|verify|prune` on a store that the library wrote. */
#include "tests/command/command_run.h"

#include "offload/store/prefix_store.h"
#include "offload/store/store_info.h"

#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

static const uint8_t fingerprint[32] = {0xab, 0xcd, 0xef, 1, 2, 3, 4, 5, 6};

/* Tiles [first, end) of the chain of `seed`, one layer. */
static void add(struct spw_store *s, uint64_t seed, uint32_t first, uint32_t end, bool checkpoint)
{
    static int32_t tokens[32 * 128];
    static uint8_t records[32 * 4096];
    for (uint32_t i = 0; i < end * 128; i++)
        tokens[i] = (int32_t)(check_random(&seed) % 1000);
    struct spw_pack_section section = {
        .first_tile = first, .n_tiles = end - first, .record_bytes = 4096};
    struct spw_store_addition a = {.tokens = tokens,
                                   .first_tile = first,
                                   .n_tiles = end,
                                   .checkpoint = checkpoint,
                                   .sections = &section,
                                   .n_sections = 1};
    struct spw_store_writer *w;
    CHECK(spw_store_begin(&w, s, &a, NULL) == 0);
    CHECK(spw_pack_write(spw_store_writer_pack(w), 0, first, end - first, records) == 0);
    CHECK(spw_store_commit(w, NULL, NULL) == 0);
    usleep(12000); /* longer than a tick of the clock that files get their times from */
}

static void make_store(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/c", folder);
    struct spw_store_options o = {
        .directory = path, .limit_bytes = 1 << 30, .fingerprint = fingerprint};
    struct spw_store *s;
    CHECK(spw_store_open(&s, &o, NULL) == 0);
    add(s, 1, 0, 5, false);
    add(s, 1, 5, 7, true);
    add(s, 2, 0, 9, false);
    spw_store_close(s);
}

/* In the last pack, which was used latest. */
static void corrupt(long at)
{
    CHECK(sh("cd c && f=$(ls -tr *.pack | tail -n 1) && printf X | "
             "dd of=$f bs=1 seek=%ld conv=notrunc status=none && touch $f && echo $f",
             at) == 0);
}

static void test_ls(void)
{
    CHECK(sh("\"$S\" cache ls c") == 0 && !*err);
    CHECK_MSG(strstr(out, "3 packs, 16 tiles, 2048 tokens, ") && strstr(out, "abcdef0102030405"),
              "%s", out);
    CHECK(strstr(out, "  checkpoint\n"));
    CHECK(sh("\"$S\" cache ls c --json") == 0 && !*err);
    json_t *list = json_loads(out, 0, NULL), *last = json_array_get(list, 2);
    CHECK(json_array_size(list) == 3);
    CHECK(json_integer_value(json_object_get(last, "tiles")) == 9);
    CHECK(json_integer_value(json_object_get(last, "bytes")) > 9 * 4096);
    CHECK(json_is_null(json_object_get(last, "damaged")));
    json_decref(list);
    CHECK(sh("mkdir -p none && \"$S\" cache ls none") == 0 &&
          !strcmp(out, "0 packs, 0 tiles, 0 tokens, 0 B\n"));
}

static void test_verify(void)
{
    CHECK(sh("\"$S\" cache verify c") == 0 && strstr(out, "3 packs, ") &&
          strstr(out, ", 0 damaged"));
    corrupt(8192 + 4096 + 7);
    CHECK(sh("\"$S\" cache ls c") == 0);
    CHECK(sh("\"$S\" cache verify c") == 1 && strstr(out, "tile 1, ") &&
          strstr(out, "1 of 9 records"));
    CHECK(strstr(out, ", 1 damaged"));
    CHECK(sh("\"$S\" cache verify c --json") == 1 && strstr(out, "does not have its checksum"));
    corrupt(20);
    CHECK(sh("\"$S\" cache ls c") == 0 && strstr(out, "no file of a prefix cache"));
}

static void test_prune(void)
{
    CHECK(sh("\"$S\" cache prune c --size 1GiB") == 0 && strstr(out, "1 pack removed"));
    CHECK(strstr(out, "2 left"));
    CHECK(sh("\"$S\" cache verify c") == 0);
    CHECK(sh("\"$S\" cache prune c --size 40000 --json") ==
          0); /* the end of the chain is removed */
    json_t *o = json_loads(out, 0, NULL);
    CHECK(json_integer_value(json_object_get(o, "removed")) == 1);
    CHECK(json_integer_value(json_object_get(o, "left")) == 1);
    json_decref(o);
    CHECK(sh("\"$S\" cache ls c") == 0 && strstr(out, "1 pack, 5 tiles"));
    CHECK(sh("\"$S\" cache prune c --size 0") == 0 && strstr(out, "0 left, 0 B"));
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    snprintf(folder, sizeof folder, "/tmp/spw_cache_command_%d", (int)getpid());
    CHECK(mkdir(folder, 0700) == 0);
    make_store();
    test_ls();
    test_verify();
    test_prune();
    char line[128];
    snprintf(line, sizeof line, "rm -r %s", folder);
    CHECK(system(line) == 0);
    return check_done();
}
