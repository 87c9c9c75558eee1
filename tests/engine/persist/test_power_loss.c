/* Files that are to outlive a power cut: packs of the prefix store and saved sessions. Whatever the
 * disk had of unsynced writes, lengths and names, what the program was told is safe is there and
 * right, and what was under way is there whole or not at all. And each sync is needed: with any one
 * that does nothing there is a cut after which this test finds damage or loss.
 *
 *   test_power_loss [drawn states for each cut]    default 6 */
#include "tests/engine/persist/power_loss.h"

#include "offload/store/prefix_store.h"
#include "runtime/saved.h"
#include "tests/engine/engine_run.h"
#include "tests/engine/persist/pack_run.h"

static char folder[128], scratch[160];

/* The first sync of a new file comes before its head; the second one covers both, and the name
 * comes after that. For a file that has its name already both are needed. */
static bool has_another(size_t sync)
{
    bool again = false;
    for (size_t k = sync + 1; k < power.n_ops && power.ops[k].kind != POWER_TOLD; k++) {
        again |= power.ops[k].kind == POWER_SYNC && power.ops[k].file == power.ops[sync].file;
        if (again && power.ops[k].kind == POWER_NAME && power.ops[k].file == power.ops[sync].file)
            return true;
    }
    return false;
}

static void check_cuts(const char *what, int n_random, uint64_t *seed,
                       bool (*is_right)(void *context, const struct power_left *left),
                       void *context)
{
    int n_syncs = 0, n_needed = 0;
    struct power_counts c = power_cut(scratch, SIZE_MAX, n_random, seed, is_right, context);
    CHECK_MSG(!c.n_wrong, "%s: state %llu is wrong", what, (unsigned long long)c.n);
    for (size_t k = 0; k < power.n_ops; k++) {
        if (power.ops[k].kind != POWER_SYNC && power.ops[k].kind != POWER_SYNC_NAMES)
            continue;
        struct power_counts without = power_cut(scratch, k, 0, seed, is_right, context);
        bool redundant = power.ops[k].kind == POWER_SYNC && has_another(k);
        CHECK_MSG(!without.n_wrong == redundant, "%s: without sync %d: %llu of %llu states wrong",
                  what, n_syncs, (unsigned long long)without.n_wrong,
                  (unsigned long long)without.n);
        n_syncs++;
        n_needed += without.n_wrong != 0;
    }
    fprintf(stderr, "%s: %zu changes and syncs, %llu states after a cut; %d of %d syncs needed\n",
            what, power.n_ops, (unsigned long long)c.n, n_needed, n_syncs);
    power_empty(scratch);
}

/* ---- packs of the prefix store ---- */

enum { KIND = 1, RECORD = 4096, N_PACKS = 4 };
static const uint32_t pack_ends[N_PACKS + 1] = {0, 2, 3, 7, 8};
static int32_t chain[8 * 128];
static int n_damage;

static void on_damage(void *context, const char *text)
{
    (void)context;
    (void)text;
    n_damage++;
}

static struct spw_store *open_store(const char *where)
{
    struct spw_store *s = NULL;
    struct spw_store_options o = {.directory = where,
                                  .limit_bytes = 1 << 30,
                                  .fingerprint = pack_fingerprint,
                                  .on_damage = on_damage};
    CHECK(spw_store_open(&s, &o, NULL) == 0);
    return s;
}

static void add_pack(struct spw_store *s, uint32_t first, uint32_t end)
{
    uint8_t record[RECORD];
    struct spw_store_writer *w;
    struct spw_pack_section section = {
        .kind = KIND, .first_tile = first, .n_tiles = end - first, .record_bytes = RECORD};
    struct spw_store_addition a = {.tokens = chain,
                                   .first_tile = first,
                                   .n_tiles = end,
                                   .sections = &section,
                                   .n_sections = 1};
    struct spw_chain_hash hash = spw_chain_root(pack_fingerprint);
    CHECK(spw_store_begin(&w, s, &a, NULL) == 0);
    for (uint32_t t = 0; t < end; t++) {
        hash = spw_chain_next(hash, chain + t * 128);
        pack_fill(record, RECORD, hash, &section, t);
        CHECK(t < first || spw_pack_write(spw_store_writer_pack(w), 0, t, 1, record) == 0);
    }
    CHECK(spw_store_commit(w, NULL, NULL) == 0);
}

static bool store_is_right(void *context, const struct power_left *left)
{
    struct spw_store_match m;
    struct spw_store *s = open_store(left->scratch);
    (void)context;
    n_damage = 0;
    bool right = !spw_store_match(s, chain, 8 * 128, &m) && m.n_tiles >= pack_ends[left->told];
    for (uint32_t i = 0; i < m.n_parts; i++)
        right = right && pack_is_right(m.parts[i].pack, chain);
    spw_store_release(s, &m);
    spw_store_close(s);
    return right && !n_damage;
}

static void test_store(int n_random, uint64_t *seed)
{
    pack_tokens(chain, 8 * 128, 1);
    struct spw_store *s = open_store(folder);
    power_watch(folder);
    for (uint32_t i = 0; i < N_PACKS; i++) {
        add_pack(s, pack_ends[i], pack_ends[i + 1]);
        power_tell(i + 1);
    }
    power_stop();
    spw_store_close(s);
    check_cuts("packs", n_random, seed, store_is_right, NULL);
    power_forget();
    power_empty(folder);
}

/* ---- saved sessions ---- */

/* Version 0 is there before. A session that grows and is cut back is saved into its file; one with
 * other tokens replaces the file. */
static const struct version {
    size_t n;
    int tokens;
} versions[] = {{400, 0}, {130, 1}, {300, 1}, {520, 1}, {200, 1}, {640, 1}, {512, 0}, {513, 0}};
enum { N_VERSIONS = sizeof versions / sizeof *versions, MOST = 640 };

struct subject {
    int32_t ids[2][MOST];
    char file[256];
};

static void save(struct subject *u, struct spw_engine *e, struct spw_session *s, size_t version)
{
    struct spw_error err = {0};
    const struct version *v = &versions[version];
    run_to(s, e, u->ids[v->tokens], v->n);
    uint64_t state = version;
    int rc = spw_session_save(s, u->file, &state, sizeof state, NULL, &err);
    CHECK_MSG(!rc, "%s", err.text);
}

static bool is_version(const struct subject *u, const struct spw_saved *saved, uint64_t version)
{
    const struct spw_saved_info *info = spw_saved_info(saved);
    const struct version *v = &versions[version];
    return info->state_bytes == sizeof version && !memcmp(info->state, &version, sizeof version) &&
           info->n_tokens == v->n &&
           !memcmp(info->tokens, u->ids[v->tokens], v->n * sizeof *info->tokens);
}

static bool session_is_right(void *context, const struct power_left *left)
{
    const struct subject *u = context;
    struct spw_saved *saved;
    struct spw_pack *pack;
    char path[256];
    snprintf(path, sizeof path, "%s/session", left->scratch);
    if (spw_saved_open(&saved, path, NULL))
        return false;
    bool right =
        is_version(u, saved, left->told) || (left->next && is_version(u, saved, left->next));
    spw_saved_close(saved);
    right = right && !spw_pack_open(&pack, path, NULL, NULL);
    if (right) {
        right = !spw_pack_verify(pack, NULL);
        spw_pack_close(pack);
    }
    return right;
}

static void test_session(const struct tiny_model *m, enum spw_kv_precision precision, int n_random,
                         uint64_t *seed)
{
    struct subject u;
    char dir[128];
    run_folder(dir, m, "power_loss");
    run_ids(u.ids[0], MOST, m->vocab, 3);
    run_ids(u.ids[1], MOST, m->vocab, 4);
    snprintf(u.file, sizeof u.file, "%s/session", folder);
    struct spw_options o = {.context = MOST,
                            .threads = 1,
                            .precision = precision,
                            .residual_window = 128,
                            .saves = true};
    struct spw_engine *e = run_open(dir, &o);
    struct spw_session *s = run_session(e);
    save(&u, e, s, 0);
    power_watch(folder);
    for (size_t i = 1; i < N_VERSIONS; i++) {
        save(&u, e, s, i);
        power_tell(i);
    }
    power_stop();
    spw_session_close(s);
    spw_engine_close(e);
    check_cuts(dir, n_random, seed, session_is_right, &u);
    power_forget();
    power_empty(folder);
    tiny_model_remove(dir);
}

int main(int argc, char **argv)
{
    uint64_t seed = check_seed();
    int n_random = argc > 1 ? atoi(argv[1]) : check_amount(6);
    alarm(900);
    pack_folder(folder, "power_loss");
    snprintf(scratch, sizeof scratch, "%s_scratch", folder);
    CHECK(mkdir(scratch, 0700) == 0);
    test_store(n_random, &seed);
    test_session(&tiny_models[2], SPW_KV_EXACT, n_random, &seed);
    test_session(&tiny_models[3], SPW_KV_INT8, n_random, &seed);
    CHECK(rmdir(folder) == 0 && rmdir(scratch) == 0);
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
