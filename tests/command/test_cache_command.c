/* `spillway cache ls|verify|prune` on a store that the library wrote. */
#include "tests/command/cases.h"

#include "offload/store/prefix_store.h"
#include "offload/store/store_info.h"

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
    struct spw_store_options o = {
        .directory = in_folder("c"), .limit_bytes = 1 << 30, .fingerprint = fingerprint};
    struct spw_store *s;
    CHECK(spw_store_open(&s, &o, NULL) == 0);
    add(s, 1, 0, 5, false);
    add(s, 1, 5, 7, true);
    add(s, 2, 0, 9, false);
    spw_store_close(s);
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    open_folder("cache_command");
    make_store();
    run_cases("cache", NULL);
    CHECK(sh("rm -r \"$PWD\"") == 0);
    return check_done();
}
