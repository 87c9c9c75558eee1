/* One answer, whatever is drafted for it: all right, all wrong, right until the last, with an end
 * token inside, a token whose numbers are not finite. Prompts end near the borders of tiles and of
 * the rope, windows are shorter than a draft; models have states, experts, chunks. The answer, the
 * hash of its logits and its log-probabilities are those without drafts. Then models of any sizes,
 * under any budgets; every family; an MTP layer in a file of its own, and beside the text; and what
 * later runs begin with, where drafts were taken back.
 *
 *   test_draft_kinds [models]    SPW_SEED repeats a run */
#include "runtime/batch/batch_parts.h"
#include "tests/draw_rules.h"
#include "tests/engine/oracle.h"

#include <dirent.h>
#include <sys/stat.h>

enum { VOCAB = 96, MOST_TOKENS = 400, NEW = 60, END = 2 };

static const enum kind {
    NONE,
    RIGHT,
    WRONG,
    LAST_WRONG,
    ONE_RIGHT,
    ENDS,
    NOT_FINITE,
    BY_MTP, /* what the model's own layer drafts */
    AUTO    /* as if AUTO had measured that drafts cost nothing */
} all[] = {RIGHT, WRONG, LAST_WRONG, ONE_RIGHT, ENDS, NOT_FINITE};

enum { N_KINDS = sizeof all / sizeof *all };

static enum kind drafted;
static const struct spw_result *right; /* of the run without drafts */
static int32_t poison = -1;            /* a token whose numbers are not finite */
static struct spw_backend backend;
static uint8_t fingerprint[SPW_FINGERPRINT_BYTES]; /* of the latest run with o.saves */

static void embed(const struct spw_weights *w, const struct spw_embed_args *a)
{
    const size_t bytes = w->config->hidden * spw_dtype_bytes(a->compute);
    spw_weights_embed(w, a);
    for (size_t i = 0; i < a->n; i++)
        if (a->tokens[i] == poison) /* every type of numbers has a NaN of these bits */
            memset((char *)a->rows + i * bytes, 0xff, bytes);
}

static uint32_t propose(struct spw_batch_entry *x, int32_t *out, uint32_t most, uint32_t *match)
{
    const size_t at = x->answer.result.n_tokens;
    *match = 40;
    for (uint32_t i = 0; i < most; i++) {
        const int32_t token = at + i < right->n_tokens ? right->tokens[at + i] : END;
        const bool is_wrong = drafted == WRONG || (drafted == LAST_WRONG && i + 1 == most) ||
                              (drafted == ONE_RIGHT && i);
        out[i] = is_wrong ? (token + 1) % VOCAB : token;
        if (i == most / 2 && drafted >= ENDS)
            out[i] = drafted == ENDS ? END : poison;
    }
    return most;
}

/* The bytes are those of a dry run that knows how many drafts each step had, and of which source.
 */
static void check_moved(struct spw_engine *e, const struct spw_request *r,
                        const struct spw_result *out)
{
    const bool ended = out->finish != SPW_FINISH_LENGTH;
    const struct spw_plan_request lengths = {.prompt = r->prompt,
                                             .n_prompt = r->n_prompt,
                                             .max_new_tokens = r->max_new_tokens,
                                             .ends_at = ended ? out->n_tokens : 0,
                                             .step_rows = out->step_rows};
    uint64_t predicted[SPW_MOVED_COUNT];
    struct spw_error err = {0};
    struct spw_stats stats;
    CHECK_MSG(!spw_engine_predict(predicted, e, &lengths, 1, &err), "%s", err.text);
    spw_engine_stats(e, &stats);
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        CHECK_MSG(stats.moved_bytes[i] == predicted[i], "link %d: %llu, predicted %llu", i,
                  (unsigned long long)stats.moved_bytes[i], (unsigned long long)predicted[i]);
}

/* The answer under these options, with drafts of a kind. Returns how many stayed. */
static uint64_t ask(const char *dir, const struct spw_options *options, enum kind kind,
                    const struct spw_request *r, struct spw_result *out)
{
    struct spw_options o = *options;
    struct spw_engine *e = NULL;
    struct spw_batch *b;
    struct spw_error err = {0};
    struct spw_batch_times times;
    uint64_t id;
    o.drafts = kind == BY_MTP ? SPW_DRAFTS_MTP
               : kind == AUTO ? SPW_DRAFTS_AUTO
               : kind         ? SPW_DRAFTS_TEXT
                              : SPW_DRAFTS_OFF;
    drafted = kind;
    CHECK_MSG(!spw_engine_open_on(&e, &backend, dir, &o, &err), "%s", err.text);
    if (!e)
        exit(check_done());
    CHECK(!spw_batch_open(&b, e, NULL, &err));
    if (kind && kind < BY_MTP)
        b->propose = propose;
    memcpy(fingerprint, e->model_fingerprint, sizeof fingerprint);
    CHECK_MSG(!spw_batch_submit(b, r, &id, &err), "%s", err.text);
    for (int more = 1; more > 0;) {
        if (kind == AUTO)
            b->costs = (struct spw_draft_costs){.n_sessions = 1,
                                                .n_plain = 2,
                                                .seconds = 1e9,
                                                .model_seconds = 1e-3,
                                                .spent = 1e15};
        more = spw_batch_step(b, &err);
        CHECK_MSG(more >= 0, "%s, drafts of kind %d: %s", dir, kind, err.text);
    }
    spw_batch_times(b, &times);
    CHECK(!spw_batch_take(b, id, out));
    spw_batch_close(b);
    run_check_peaks(e, &o, dir);
    if (kind >= BY_MTP)
        check_moved(e, r, out);
    spw_engine_close(e);
    return times.n_accepted;
}

static void check_same(const struct spw_result *a, const struct spw_result *b, const char *dir,
                       enum kind kind)
{
    const size_t n = a->n_tokens;
    const bool same = n == b->n_tokens && a->finish == b->finish &&
                      a->logits_hash == b->logits_hash &&
                      !memcmp(a->tokens, b->tokens, n * sizeof *a->tokens) &&
                      (!a->logprobs || !memcmp(a->logprobs, b->logprobs, n * sizeof *a->logprobs));
    CHECK_MSG(same, "%s, drafts of kind %d", dir, kind);
}

static bool occurs(const struct spw_result *r, int32_t token)
{
    size_t i = 0;
    while (i < r->n_tokens && r->tokens[i] != token)
        i++;
    return i < r->n_tokens;
}

/* A token from 85 on, which no prompt has, that the answer does not have, too. */
static int32_t unused(const struct spw_result *r)
{
    int32_t token = VOCAB - 1;
    while (token > 85 && occurs(r, token))
        token--;
    return token;
}

static struct spw_request draw_request(int32_t ids[MOST_TOKENS], size_t n, uint64_t *seed)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)check_range(seed, 5, 84);
    return (struct spw_request){.prompt = ids,
                                .n_prompt = n,
                                .max_new_tokens = NEW,
                                .ignore_eos = check_random(seed) % 2,
                                .logprobs = check_random(seed) % 2,
                                .sampling = {.temperature = (float)check_range(seed, 0, 3) / 2,
                                             .seed = check_random(seed)}};
}

/* The same with rules for tokens. */
static struct spw_request draw_ruled(int32_t ids[MOST_TOKENS], size_t n, uint64_t *seed)
{
    static int32_t rules[SPW_TOKEN_LISTS];
    struct spw_request r = draw_request(ids, n, seed);
    r.sampling.rules = draw_rules(rules, VOCAB, NEW, seed);
    return r;
}

/* ---- kinds of drafts, on models that need care ---- */

static void check_kinds(const char *dir, size_t n_prompt, uint64_t *seed)
{
    int32_t ids[MOST_TOKENS];
    struct spw_result off, on;
    const struct spw_request r = draw_ruled(ids, n_prompt, seed);
    const struct spw_options o = {.context = MOST_TOKENS, .threads = 2};
    ask(dir, &o, NONE, &r, &off);
    right = &off;
    for (size_t i = 0; i < N_KINDS; i++) {
        poison = all[i] == NOT_FINITE ? unused(&off) : -1;
        const uint64_t n = ask(dir, &o, all[i], &r, &on);
        check_same(&off, &on, dir, all[i]);
        if (all[i] == RIGHT && off.n_tokens > 20 &&
            !strstr(dir, "_long")) /* else the rope differs */
            CHECK_MSG(n > off.n_tokens / 3, "%s: %llu stayed", dir, (unsigned long long)n);
        spw_result_free(&on);
    }
    poison = -1;
    spw_result_free(&off);
}

static void test_kinds(uint64_t *seed)
{
    static const char *const dirs[] = {
        "tests/golden/llama_700",
        "tests/golden/phi3_long_long",       /* another rope from 70 tokens on */
        "tests/golden/exaone_moe_listed",    /* a window of 20, shorter than a draft and a step */
        "tests/golden/gemma3_window_140",    /* begins in a tile that is not the last */
        "tests/golden/llama4_chunk_140",     /* chunks */
        "tests/golden/qwen3_next_plain",     /* states */
        "tests/golden/recurrent_gemma_plain" /* states and windows */
    };
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        check_kinds(dirs[i], check_range(seed, 50, 69), seed);
        check_kinds(dirs[i], check_range(seed, 100, 130), seed); /* a tile begins on the way */
    }
}

/* A window of 8 tokens, which is shorter than a draft. */
static void test_short_window(uint64_t *seed)
{
    static const struct tiny_model m = {TINY("mistral", 3, 32, 48, 4, 2, 16, VOCAB, 4096),
                                        .more = ",\"sliding_window\":8", .seed = 31};
    char dir[128];
    run_folder(dir, &m, "draft_kinds");
    check_kinds(dir, check_range(seed, 50, 69), seed);
    check_kinds(dir, check_range(seed, 100, 130), seed);
    tiny_model_remove(dir);
}

/* Whether the model has an encoder: its answers get no drafts. */
static bool has_source(const char *dir)
{
    const struct spw_options o = {.context = 8, .threads = 1};
    struct spw_engine *e = NULL;
    struct spw_error err = {0};
    CHECK_MSG(!spw_engine_open_on(&e, &backend, dir, &o, &err), "%s", err.text);
    const bool has = e && spw_engine_config(e)->n_source_layers;
    spw_engine_close(e);
    return has;
}

/* Every family: each golden model with drafts of a kind. In a short run, some of them. */
static void test_families(uint64_t *seed)
{
    enum { PART = 8 };
    const uint64_t first = check_random(seed) % PART;
    DIR *d = opendir("tests/golden");
    uint64_t n = 0;
    CHECK(d != NULL);
    for (struct dirent *entry; (entry = readdir(d));) {
        char dir[300], path[320];
        int32_t ids[MOST_TOKENS];
        struct spw_result off, on;
        snprintf(dir, sizeof dir, "tests/golden/%s", entry->d_name);
        snprintf(path, sizeof path, "%s/config.json", dir);
        if (access(path, R_OK) || (n++ % PART != first && !check_full()) || has_source(dir))
            continue;
        const bool mtp = strstr(dir, "_mtp");
        const enum kind kind = mtp ? BY_MTP : all[check_random(seed) % (N_KINDS - 1)];
        const struct spw_options o = {.context = MOST_TOKENS, .threads = 2, .past_positions = true};
        const struct spw_request r = draw_ruled(ids, check_range(seed, 20, 140), seed);
        ask(dir, &o, NONE, &r, &off);
        right = &off;
        ask(dir, &o, kind, &r, &on);
        check_same(&off, &on, dir, kind);
        spw_result_free(&off);
        spw_result_free(&on);
    }
    closedir(d);
    CHECK(n > 150);
}

/* ---- an MTP layer in a file of its own ---- */

/* Drafts as those of the layer inside the model's file, if the numbers are the same; and the answer
 * without drafts in any case: a layer of another type does not change how the model computes. */
static void test_mtp_file(const char *golden, uint64_t *seed)
{
    char dir[64], inside[96], model[96], file[96];
    int32_t ids[MOST_TOKENS];
    uint8_t alone[SPW_FINGERPRINT_BYTES];
    struct spw_result off, on;
    const struct spw_options o = {.context = MOST_TOKENS, .threads = 2, .saves = true};
    struct spw_request r = draw_request(ids, check_range(seed, 50, 69), seed);
    r.ignore_eos = true;
    r.sampling.temperature = 0; /* chance rarely picks what the layer drafts */
    snprintf(dir, sizeof dir, "/tmp/spw_draft_kinds_%d", (int)getpid());
    snprintf(inside, sizeof inside, "%s/inside.gguf", dir);
    snprintf(model, sizeof model, "%s/model.gguf", dir);
    snprintf(file, sizeof file, "%s/mtp-model.gguf", dir);
    CHECK(!mkdir(dir, 0700));
    CHECK(gguf_from_folder(golden, inside, &(struct gguf_way){.matrices = SPW_DTYPE_F32}));
    CHECK(gguf_from_folder(
        golden, model, &(struct gguf_way){.matrices = SPW_DTYPE_F32, .mtp = GGUF_MTP_LEFT_OUT}));
    ask(model, &o, NONE, &r, &off);
    memcpy(alone, fingerprint, sizeof alone);
    const uint64_t n = ask(inside, &o, BY_MTP, &r, &on);
    check_same(&off, &on, golden, BY_MTP);
    spw_result_free(&on);
    for (int i = 0; i < 2; i++) {
        const struct gguf_way way = {.matrices = i ? SPW_DTYPE_Q8_0 : SPW_DTYPE_F32,
                                     .mtp = i ? GGUF_MTP_WITH_COPIES : GGUF_MTP_ALONE};
        CHECK(gguf_from_folder(golden, file, &way));
        const uint64_t stayed = ask(model, &o, BY_MTP, &r, &on);
        CHECK_MSG(i || (n && stayed == n), "%s: %llu stayed, not %llu", golden,
                  (unsigned long long)stayed, (unsigned long long)n);
        check_same(&off, &on, golden, BY_MTP);
        CHECK(!memcmp(fingerprint, alone, sizeof alone));
        spw_result_free(&on);
    }
    ask(model, &o, NONE, &r, &on);
    check_same(&off, &on, golden, NONE);
    CHECK(!memcmp(fingerprint, alone, sizeof alone));
    spw_result_free(&on);
    spw_result_free(&off);
    CHECK(!unlink(inside) && !unlink(model) && !unlink(file) && !rmdir(dir));
}

/* ---- AUTO with an MTP layer ---- */

static uint32_t auto_layers(const char *dir, const struct spw_options *options)
{
    struct spw_options o = *options;
    struct spw_plan_info off, on;
    struct spw_error err = {0};
    CHECK_MSG(!spw_plan_query_on(&off, &backend, dir, &o, &err), "%s", err.text);
    o.drafts = SPW_DRAFTS_AUTO;
    CHECK_MSG(!spw_plan_query_on(&on, &backend, dir, &o, &err), "%s", err.text);
    CHECK(on.smallest_device_bytes == off.smallest_device_bytes &&
          on.smallest_host_bytes == off.smallest_host_bytes);
    return on.n_layers - off.n_layers;
}

/* AUTO uses the layer beside the text, where it takes memory from nothing, and where nothing is
 * stored that other runs may begin with. A bias makes an answer repeat a token: what the text
 * drafts for it stays. The layer drafts for the other answers, whose text has no matches. */
static void test_auto(uint64_t *seed)
{
    int32_t ids[MOST_TOKENS];
    char dir[128];
    static const struct spw_logit_bias one = {50, 100};
    struct spw_plan_info least;
    struct spw_error err = {0};
    struct spw_options o = {.context = MOST_TOKENS, .threads = 2};
    run_folder(dir, &tiny_with_mtp, "draft_kinds");
    for (int i = 0; i < 4; i++) {
        struct spw_result off, on;
        struct spw_request r = draw_request(ids, check_range(seed, 20, 300), seed);
        uint64_t n_by_layer = 0;
        r.ignore_eos = true;
        r.sampling.logit_bias = &one;
        r.sampling.n_logit_bias = i % 2 ? 1 : 0;
        ask(dir, &o, NONE, &r, &off);
        const uint64_t n_stayed = ask(dir, &o, AUTO, &r, &on);
        check_same(&off, &on, dir, AUTO);
        for (size_t k = 0; k < on.n_tokens; k++)
            n_by_layer += on.step_rows[k] > SPW_STEP_BY_MTP;
        CHECK_MSG(i % 2 ? n_stayed > 20 : n_by_layer > 4, "%llu steps, %llu stayed",
                  (unsigned long long)n_by_layer, (unsigned long long)n_stayed);
        spw_result_free(&off);
        spw_result_free(&on);
    }
    CHECK(auto_layers(dir, &o) == 1);
    CHECK(!spw_plan_query_on(&least, &backend, dir, &o, &err));
    o.saves = true;
    CHECK(auto_layers(dir, &o) == 0);
    o.saves = false;
    o.device_bytes = least.smallest_device_bytes;
    o.host_bytes = 64 << 20;
    CHECK(auto_layers(dir, &o) == 0);
    tiny_model_remove(dir);
}

/* ---- what later runs begin with ---- */

/* A run has filled a prefix cache; values that are not finite come from drafts, and not from its
 * files, where the run is repeated. What another question that begins as prompt and answer of this
 * run do gets with this cache. */
static void ask_again(const char *dir, enum kind kind, size_t n_repeated,
                      const struct spw_request *first, const struct spw_request *second,
                      struct spw_result *out)
{
    char cache[64], command[96];
    struct spw_result r;
    struct spw_options o = {.context = MOST_TOKENS, .threads = 2, .prefix_cache_dir = cache};
    snprintf(cache, sizeof cache, "/tmp/spw_draft_kinds_%d", (int)getpid());
    snprintf(command, sizeof command, "rm -r %s", cache);
    ask(dir, &o, kind, first, &r);
    check_same(right, &r, dir, kind);
    spw_result_free(&r);
    poison = unused(right);
    ask(dir, &o, NOT_FINITE, first, &r);
    check_same(right, &r, dir, NOT_FINITE);
    CHECK(r.n_from_store == n_repeated);
    poison = -1;
    ask(dir, &o, NONE, second, out);
    CHECK(system(command) == 0);
    spw_result_free(&r);
}

/* Drafts that were taken back change neither what the cache gives nor the answer. */
static void test_prefix(const char *dir, bool has_any, uint64_t *seed)
{
    enum { FIRST = 250, OTHERS = 5 };
    int32_t ids[MOST_TOKENS], longer[MOST_TOKENS];
    struct spw_result off, cold, warm[2];
    const struct spw_options o = {.context = MOST_TOKENS, .threads = 2};
    struct spw_request first = draw_request(ids, FIRST, seed), second;
    first.ignore_eos = true;
    second = first;
    ask(dir, &o, NONE, &first, &off);
    right = &off;
    memcpy(longer, ids, FIRST * sizeof *ids);
    memcpy(longer + FIRST, off.tokens, (NEW - OTHERS) * sizeof *ids);
    for (int i = 0; i < OTHERS; i++)
        longer[FIRST + NEW - OTHERS + i] = 5 + i;
    second.prompt = longer;
    second.n_prompt = FIRST + NEW;
    ask(dir, &o, NONE, &second, &cold);
    ask_again(dir, NONE, has_any ? 128 : 0, &first, &second, &warm[0]);
    ask_again(dir, ONE_RIGHT, has_any ? 128 : 0, &first, &second, &warm[1]);
    check_same(&cold, &warm[1], dir, ONE_RIGHT);
    CHECK_MSG(warm[0].n_from_store == warm[1].n_from_store && has_any == (warm[0].n_from_store > 0),
              "%s: %zu, after drafts %zu", dir, warm[0].n_from_store, warm[1].n_from_store);
    spw_result_free(&off);
    spw_result_free(&cold);
    spw_result_free(&warm[0]);
    spw_result_free(&warm[1]);
}

/* The answer ends in a step with drafts that begins with a tile: the prefix cache gets the states
 * there, which the rows of the step have not passed. */
static void test_published(const char *dir, uint64_t *seed)
{
    enum { FIRST = 250, BORDER = 256, DRAFTED = 9 };
    int32_t ids[MOST_TOKENS];
    char cache[64], command[96];
    struct spw_result off, on;
    struct spw_options o = {.context = MOST_TOKENS, .threads = 2, .prefix_cache_dir = cache};
    struct spw_request r = draw_request(ids, FIRST, seed);
    snprintf(cache, sizeof cache, "/tmp/spw_draft_kinds_%d", (int)getpid());
    snprintf(command, sizeof command, "rm -r %s", cache);
    r.ignore_eos = true;
    r.max_new_tokens = BORDER + 2 + DRAFTED - FIRST;
    ask(dir, &(struct spw_options){.context = MOST_TOKENS, .threads = 2}, NONE, &r, &off);
    right = &off;
    ask(dir, &o, RIGHT, &r, &on);
    check_same(&off, &on, dir, RIGHT);
    CHECK(on.step_rows[r.max_new_tokens - DRAFTED - 1] == DRAFTED + 1);
    spw_result_free(&on);
    memcpy(ids + FIRST, off.tokens, (size_t)(BORDER - FIRST + 1) * sizeof *ids);
    r.n_prompt = BORDER + 1;
    r.max_new_tokens = DRAFTED;
    spw_result_free(&off);
    ask(dir, &(struct spw_options){.context = MOST_TOKENS, .threads = 2}, NONE, &r, &off);
    ask(dir, &o, NONE, &r, &on);
    check_same(&off, &on, dir, NONE);
    CHECK_MSG(on.n_from_store == BORDER, "%s: %zu", dir, on.n_from_store);
    spw_result_free(&off);
    spw_result_free(&on);
    CHECK(system(command) == 0);
}

/* ---- models of any sizes ---- */

static void check_model(uint64_t *seed)
{
    char more[300], dir[128], command[160];
    int32_t ids[MOST_TOKENS];
    struct spw_result off, on;
    const struct tiny_model m = draw_model(more, VOCAB, check_random(seed) % 3 == 0, seed);
    const struct spw_request r = draw_ruled(ids, check_range(seed, 1, MOST_TOKENS - NEW), seed);
    const enum kind kind = all[check_random(seed) % N_KINDS];
    struct spw_options o = {.context = MOST_TOKENS, .threads = 2};
    run_folder(dir, &m, "draft_kinds");
    draw_kv(&o, check_random(seed) % KV_KINDS, seed);
    ask(dir, &o, NONE, &r, &off);
    right = &off;
    poison = kind == NOT_FINITE ? unused(&off) : -1;
    o.drafts = SPW_DRAFTS_TEXT;
    draw_budgets(&o, &backend, dir, ANYTHING, seed);
    ask(dir, &o, kind, &r, &on);
    check_same(&off, &on, dir, kind);
    poison = -1;
    spw_result_free(&off);
    spw_result_free(&on);
    if (strstr(dir, TINY_GGUF))
        *strstr(dir, TINY_GGUF) = 0; /* the folder of the file */
    snprintf(command, sizeof command, "rm -r %.127s", dir);
    CHECK(system(command) == 0);
}

int main(int argc, char **argv)
{
    uint64_t seed = check_seed();
    int n = 0;
    spw_backend_cpu(&backend);
    backend.embed = embed;
    for (struct check_draws d = check_draws_of(argc, argv, 40); check_another(&d); n++)
        check_model(&seed);
    printf("%d models\n", n);
    test_kinds(&seed);
    test_short_window(&seed);
    test_families(&seed);
    test_auto(&seed);
    test_mtp_file("tests/golden/qwen3_5_mtp", &seed);
    test_mtp_file("tests/golden/qwen3_5_moe_mtp", &seed);
    test_mtp_file("tests/golden/qwen3_next_mtp", &seed);
    test_prefix("tests/golden/llama_700", true, &seed);
    test_prefix("tests/golden/exaone_moe_listed", false, &seed); /* no checkpoint lies that early */
    test_prefix("tests/golden/qwen3_next_plain", true, &seed);
    test_published("tests/golden/qwen3_next_plain", &seed);
    test_published("tests/golden/mamba2_plain", &seed);
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
