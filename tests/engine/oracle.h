/* What the tests of engines share: a model with the logits that it must give, and drawers of the
 * options that must not change them.
 *
 * The oracle of a model is one plain engine: all budgets as large as the machine, one step, every
 * row of logits. It computes a sequence when somebody first asks for it, and remembers the latest
 * ones. */
#ifndef SPW_TESTS_ENGINE_ORACLE_H
#define SPW_TESTS_ENGINE_ORACLE_H

#include "tests/engine/engine_run.h"

enum { ORACLE_RUNS = 24, SUBJECT_SEQUENCES = 3, SUBJECT_SHARED = 200 };

struct oracle_run {
    int32_t *ids; /* [n] */
    float *rows;  /* [n][vocab] */
    size_t n;
    uint64_t asked; /* number of the latest question for it */
};

/* A model, and what its bits depend on. */
struct subject {
    char dir[512];                  /* the model */
    char folder[512];               /* that it lies in */
    const struct tiny_model *model; /* NULL: the folder is not ours */
    struct spw_options o;
    bool each_length;     /* logits depend on the length of the sequence, too (by its rope) */
    struct spw_plan plan; /* under no budgets; its pointers are gone */
    uint32_t vocab;
    size_t n_tokens; /* of each sequence */
    /* Sequence k begins as the first one, for k * SUBJECT_SHARED tokens. */
    int32_t *ids[SUBJECT_SEQUENCES];
    struct oracle_run runs[ORACLE_RUNS];
    uint64_t n_questions;
};

/* `o`: what bits depend on, but for the backend and the context. */
static inline void subject_open_at(struct subject *s, const char *dir, size_t n_tokens,
                                   const struct spw_options *o, uint64_t seed)
{
    *s = (struct subject){.n_tokens = n_tokens, .o = *o};
    snprintf(s->dir, sizeof s->dir, "%s", dir);
    const char *file = strstr(dir, TINY_GGUF);
    snprintf(s->folder, sizeof s->folder, "%.*s", file ? (int)(file - dir) : 400, dir);
    s->o.backend = TEST_BACKEND;
    s->o.context = n_tokens;
    s->o.threads = 2;
    struct spw_engine *e = run_open(dir, &s->o);
    const struct spw_model_config *c = spw_engine_config(e);
    s->vocab = c->vocab;
    s->each_length = spw_rope_table(&c->rope[0], c->max_positions, n_tokens) != SPW_ROPE_SHARED;
    s->plan = e->plan;
    spw_engine_close(e);
    for (size_t k = 0; k < SUBJECT_SEQUENCES; k++) {
        s->ids[k] = calloc(n_tokens, sizeof *s->ids[k]);
        run_ids(s->ids[k], n_tokens, s->vocab, seed + k);
        if (k && n_tokens > k * SUBJECT_SHARED)
            memcpy(s->ids[k], s->ids[0], k * SUBJECT_SHARED * sizeof(int32_t));
    }
}

/* Writes the model, into a folder of this process. */
static inline void subject_open(struct subject *s, const struct tiny_model *m, const char *test,
                                size_t n_tokens, const struct spw_options *o)
{
    char dir[128];
    run_folder(dir, m, test);
    subject_open_at(s, dir, n_tokens, o, m->seed + 77);
    s->model = m;
}

static inline void subject_close(struct subject *s)
{
    if (s->model)
        tiny_model_remove(s->dir);
    for (size_t k = 0; k < SUBJECT_SEQUENCES; k++)
        free(s->ids[k]);
    for (size_t i = 0; i < ORACLE_RUNS; i++) {
        free(s->runs[i].ids);
        free(s->runs[i].rows);
    }
}

/* [n][vocab]: the logits after each of these tokens, until ORACLE_RUNS other sequences were asked
 * for. On a miss `most` tokens are computed, which the caller will ask for, too. */
static inline const float *oracle_rows(struct subject *s, const int32_t *ids, size_t n, size_t most)
{
    struct oracle_run *r = &s->runs[0];
    for (size_t i = 0; i < ORACLE_RUNS; i++) {
        struct oracle_run *other = &s->runs[i];
        if (other->rows && (s->each_length ? other->n == n : other->n >= n) &&
            !memcmp(other->ids, ids, n * sizeof *ids)) {
            other->asked = ++s->n_questions;
            return other->rows;
        }
        r = other->asked < r->asked ? other : r;
    }
    r->asked = ++s->n_questions;
    uint32_t vocab;
    free(r->ids);
    free(r->rows);
    r->n = s->each_length ? n : most;
    r->ids = malloc(r->n * sizeof *ids);
    memcpy(r->ids, ids, r->n * sizeof *ids);
    r->rows = model_all_logits(s->dir, &s->o, ids, r->n, &vocab);
    return r->rows;
}

/* The logits after the last of n tokens of an array of s->n_tokens. */
static inline const float *oracle(struct subject *s, const int32_t *ids, size_t n)
{
    const float *rows = oracle_rows(s, ids, n, s->n_tokens);
    return rows ? rows + (n - 1) * s->vocab : NULL;
}

static inline bool oracle_same(struct subject *s, const int32_t *ids, size_t n, const float *logits)
{
    return run_same(logits, oracle(s, ids, n), s->vocab);
}

/* ---- steps whose logits are compared ---- */

enum { WATCH_SPANS = 48 };

struct watch {
    const struct subject *s;
    const float *rows[WATCH_SPANS]; /* of each span of the running step */
    uint64_t n_rows, n_wrong;
};

static inline void watch_logits(void *context, size_t span, size_t position, const float *logits)
{
    struct watch *w = context;
    w->n_rows++;
    w->n_wrong += !run_same(logits, w->rows[span] + position * w->s->vocab, w->s->vocab);
}

/* spw_sync. Tokens of the spans are arrays of `most` tokens. */
static inline int watch_sync(struct watch *w, struct subject *s, struct spw_engine *e,
                             const struct spw_span *spans, size_t n, size_t most,
                             struct spw_error *err)
{
    w->s = s;
    for (size_t i = 0; i < n; i++)
        w->rows[i] = oracle_rows(s, spans[i].tokens, spans[i].n_tokens, most);
    return spw_sync(e, spans, n, watch_logits, w, err);
}

/* ---- options that change no bit ---- */

static inline uint64_t draw_between(uint64_t *seed, uint64_t low, uint64_t high)
{
    return low >= high ? low : check_range(seed, low, high);
}

static inline void draw_speed(struct spw_options *o, uint64_t *seed)
{
    static const uint32_t chunks[] = {0, 0, 1, 7, 16, 64, 100, 128, 200, 333};
    static const uint32_t splits[] = {0, 0, 0, 0, 0, 0, 1, 2};
    o->threads = (uint32_t)check_range(seed, 1, 3);
    o->io = (enum spw_io_kind)(check_random(seed) % 3);
    o->prefill_chunk = chunks[check_random(seed) % 10];
    o->prefetch_slots = (uint32_t)check_range(seed, 0, 5);
    o->prefetch_slots += o->prefetch_slots == 1;
    o->prefetch_splits = splits[check_random(seed) % 8];
    o->rolls_back = check_random(seed) % 3 == 0;
    o->delay_seed = check_random(seed) % 2 ? 0 : check_random(seed) | 1;
}

/* FROM_HOST, FROM_DISK: as much as can be lies there, and streams. */
enum aim { ANYTHING, FROM_HOST, FROM_DISK };

/* A host budget from the least upward, or for all but KV; as much disk as that takes, or more. */
static inline void draw_disk(struct spw_options *o, const struct spw_backend *b, const char *dir,
                             enum aim aim, uint64_t *seed)
{
    uint64_t part = aim ? 8 : check_random(seed) % 4;
    struct spw_plan_info info = run_plan_on(b, dir, o);
    /* where most of the KV has to go down; short sequences have few tiles that could */
    if (aim || check_random(seed) % 2 || o->context < 1000) {
        uint64_t least = info.smallest_device_bytes;
        o->device_bytes = draw_between(seed, least, least + (aim ? 0 : least / 16));
    }
    run_to_disk_on(b, dir, o);
    if (part) { /* some of what would lie on disk */
        info = run_plan_on(b, dir, o);
        o->host_bytes = info.smallest_host_bytes + draw_between(seed, 0, info.disk.total / part);
    }
    info = run_plan_on(b, dir, o);
    o->disk_bytes = draw_between(seed, info.smallest_disk_bytes, 2 * info.disk.total);
    if (!o->disk_bytes)
        o->disk_bytes = 1 << 20;
}

/* Budgets from the smallest that can work upward, with a disk tier if disk_dir names one. */
static inline void draw_budgets(struct spw_options *o, const struct spw_backend *b, const char *dir,
                                enum aim aim, uint64_t *seed)
{
    o->device_bytes = o->host_bytes = 0;
    o->disk_bytes = o->disk_dir ? 256 << 20 : 0;
    struct spw_plan_info all = run_plan_on(b, dir, o);
    uint64_t low = all.smallest_device_bytes, high = all.device.total;
    uint64_t kind = aim ? 0 : check_random(seed) % 6, part = 2 * (kind % 4);
    if (kind == 5) /* around what holds everything */
        o->device_bytes = draw_between(seed, high - (high - low) / 4, high + (high - low) / 4);
    else
        o->device_bytes = kind % 4 ? draw_between(seed, low, low + ((high - low) >> part)) : low;
    if (aim ? aim == FROM_DISK : o->disk_dir != NULL) {
        draw_disk(o, b, dir, aim, seed);
        return;
    }
    struct spw_plan_info least = run_plan_on(b, dir, o);
    if (check_random(seed) % 2)
        o->host_bytes = draw_between(seed, least.smallest_host_bytes, 2 * least.host.total);
    if (!o->host_bytes)
        o->host_bytes = 1 << 30;
}

/* ---- models ---- */

/* Layers with chunks, of whole tiles or not; the last ones have experts, or none has. */
static inline void draw_chunked(struct tiny_model *m, char more[300], bool gguf, uint64_t *seed)
{
    uint32_t chunk = (uint32_t)check_range(seed, 1, 3) * 128;
    if (check_random(seed) % 2)
        chunk = (uint32_t)check_range(seed, 50, 400);
    m->experts = (uint32_t)check_range(seed, 1, 5);
    m->expert_width = m->shared_width = m->intermediate;
    if (gguf) { /* has no keys for the rest */
        snprintf(more, 300,
                 ",\"intermediate_size_mlp\":%u,\"num_local_experts\":%u,"
                 "\"num_experts_per_tok\":%u",
                 m->intermediate, m->experts, (uint32_t)check_range(seed, 1, m->experts));
        return;
    }
    m->dense = (uint32_t)check_range(seed, 0, m->layers);
    int n =
        snprintf(more, 300,
                 ",\"attention_chunk_size\":%u,\"no_rope_layer_interval\":%u,\"floor_scale\":%u,"
                 "\"intermediate_size_mlp\":%u,\"num_local_experts\":%u,"
                 "\"num_experts_per_tok\":%u,\"use_qk_norm\":%s,\"moe_layers\":[",
                 chunk, (uint32_t)check_range(seed, 1, 4), (uint32_t)check_range(seed, 1, 200),
                 m->intermediate, m->experts, (uint32_t)check_range(seed, 1, m->experts),
                 check_random(seed) % 2 ? "true" : "false");
    for (uint32_t l = m->dense; l < m->layers; l++)
        n += snprintf(more + n, 300 - (size_t)n, "%s%u", l > m->dense ? "," : "", l);
    snprintf(more + n, 300 - (size_t)n, "]");
}

static inline void draw_gemma4(struct tiny_model *m, uint32_t window, char more[300],
                               bool quantized, uint64_t *seed)
{
    const uint32_t more_heads = (uint32_t)check_range(seed, 1, 2);
    m->layers = (uint32_t)check_range(seed, 2, 6);
    m->heads *= more_heads, m->kv_heads *= more_heads; /* with more, some kind often has slices */
    m->full_head_dim = 2 * (uint32_t)check_range(seed, 4, 24);
    m->v_is_k = check_random(seed) % 2;
    m->full_heads = check_random(seed) % 2 ? 1 : m->kv_heads;
    m->readers = check_random(seed) % 3 ? (uint32_t)check_range(seed, 0, m->layers - 2) : 0;
    m->inputs = check_random(seed) % 2 ? 2 * (uint32_t)check_range(seed, 2, 30) : 0;
    m->experts = check_random(seed) % 3 ? 0 : (uint32_t)check_range(seed, 1, 7);
    m->expert_width = 8 * (uint32_t)check_range(seed, 1, 6);
    if (quantized) { /* rows that blocks of 32 fit */
        m->full_head_dim = 32 * (uint32_t)check_range(seed, 1, 2);
        m->inputs = m->inputs ? 32 * (uint32_t)check_range(seed, 1, 2) : 0;
        m->expert_width = 32 * (uint32_t)check_range(seed, 1, 2);
    }
    snprintf(more, 300, ",\"sliding_window\":%u", window);
}

static inline void draw_delta_experts(struct tiny_model *m, char more[300], bool quantized,
                                      uint64_t *seed)
{
    m->family = "qwen3_5_moe_text";
    m->experts = (uint32_t)check_range(seed, 1, 9);
    m->expert_width = (quantized ? 32 : 8) * (uint32_t)check_range(seed, 1, quantized ? 2 : 6);
    m->shared_width = m->expert_width;
    snprintf(more, 300,
             ",\"num_experts\":%u,\"num_experts_per_tok\":%u,\"moe_intermediate_size\":%u,"
             "\"shared_expert_intermediate_size\":%u",
             m->experts, (uint32_t)check_range(seed, 1, m->experts), m->expert_width,
             m->shared_width);
}

/* Layers with a state; maybe no others. */
static inline void draw_states(struct tiny_model *m, char more[300], bool quantized, uint64_t *seed)
{
    m->mixer = !strcmp(m->family, "lfm2")           ? TINY_CONV
               : !strcmp(m->family, "qwen3_5_text") ? TINY_DELTA
                                                    : TINY_SSD;
    m->beside = !strcmp(m->family, "falcon_h1");
    m->interval = m->beside ? 1 : m->mixer == TINY_SSD ? 100 : (uint32_t)check_range(seed, 2, 5);
    m->taps = (uint32_t)check_range(seed, 2, 4);
    m->qk_norm = m->mixer != TINY_SSD;
    m->bias = m->mixer != TINY_DELTA && check_random(seed) % 2;
    if (m->mixer == TINY_CONV)
        return;
    if (m->mixer == TINY_DELTA) /* a quarter of it is rotated */
        m->head_dim = quantized ? 32 : 8 * (uint32_t)check_range(seed, 1, 6);
    m->state_key_heads = (uint32_t)check_range(seed, 1, 2);
    m->state_heads = m->state_key_heads * (uint32_t)check_range(seed, 1, 3);
    m->state_key_dim = (uint32_t)check_range(seed, 2, 40);
    m->state_dim = (uint32_t)check_range(seed, 2, 40);
    if (quantized) /* rows that blocks of 32 fit */
        m->state_key_dim = m->state_dim = 32;
    if (m->mixer == TINY_SSD && !m->beside) { /* all heads are as wide as `expand` rows */
        m->intermediate = 0;
        m->state_dim = 4 * (uint32_t)check_range(seed, 1, 8);
        m->hidden = m->state_heads * m->state_dim;
        m->hidden /= m->state_dim % 8 || check_random(seed) % 2 ? 1 : 2;
        m->head_dim = m->state_dim;
    }
    if (m->mixer == TINY_DELTA && check_random(seed) % 2)
        draw_delta_experts(m, more, quantized, seed);
}

/* Any sizes of a family; what the family adds of its own is drawn, too. `more` [300] is the
 * model's. At least `vocab` tokens. */
static inline struct tiny_model draw_model(char more[300], uint32_t vocab, bool quantized,
                                           uint64_t *seed)
{
    static const char *const families[] = {
        "llama",       "mistral",      "qwen2", "qwen3",     "gemma3_text", "llama4_text",
        "gemma4_text", "qwen3_5_text", "lfm2",  "falcon_h1", "mamba2"};
    uint64_t family = check_random(seed) % (quantized ? 8 : 11);
    uint32_t kv_heads = (uint32_t)check_range(seed, 1, 3);
    struct tiny_model m = {.family = families[family],
                           .layers = (uint32_t)check_range(seed, 1, 4),
                           .hidden = 8 * (uint32_t)check_range(seed, 2, 10),
                           .intermediate = 8 * (uint32_t)check_range(seed, 2, 14),
                           .heads = kv_heads * (uint32_t)check_range(seed, 1, 3),
                           .kv_heads = kv_heads,
                           .head_dim = 2 * (uint32_t)check_range(seed, 4, 24),
                           .vocab = (uint32_t)check_range(seed, vocab, 140),
                           .positions = 4096,
                           .more = more,
                           .bias = family == 2,
                           .qk_norm = family == 3 || family == 4,
                           .sandwich = family == 4,
                           .untied = family != 4 && check_random(seed) % 2,
                           .stored = check_random(seed) % 2 ? TINY_BF16 : TINY_F32,
                           .seed = check_random(seed)};
    uint32_t window = (uint32_t)check_range(seed, 50, 400);
    bool slides = check_random(seed) % 2;
    *more = 0;
    if (quantized) {
        m.stored = TINY_QUANTIZED;
        bool large = check_random(seed) % 3 == 0; /* rows that types with blocks of 256 fit */
        m.hidden = large ? 256 : 32 * (uint32_t)check_range(seed, 1, 3);
        m.intermediate = large ? 256 : 32 * (uint32_t)check_range(seed, 1, 4);
        m.head_dim = 32;
        slides = false; /* GGUF has no key for these windows */
    }
    if (family == 1)
        snprintf(more, 300, slides ? ",\"sliding_window\":%u" : ",\"sliding_window\":null", window);
    if ((family == 2 || family == 3) && slides)
        snprintf(more, 300,
                 ",\"use_sliding_window\":true,\"sliding_window\":%u,\"max_window_layers\":1",
                 window);
    if (family == 3 && check_random(seed) % 2) { /* experts in all layers */
        size_t n = strlen(more);
        m.family = "qwen3_moe";
        m.experts = (uint32_t)check_range(seed, 1, 9);
        m.expert_width = quantized ? m.intermediate : 8 * (uint32_t)check_range(seed, 1, 6);
        snprintf(more + n, 300 - n,
                 ",\"num_experts\":%u,\"num_experts_per_tok\":%u,\"moe_intermediate_size\":%u",
                 m.experts, (uint32_t)check_range(seed, 1, m.experts), m.expert_width);
    }
    if (family == 4)
        snprintf(more, 300,
                 ",\"sliding_window\":%u,\"sliding_window_pattern\":2,\"query_pre_attn_scalar\":%u,"
                 "\"hidden_activation\":\"gelu_pytorch_tanh\",\"rope_theta\":1000000.0,"
                 "\"rope_local_base_freq\":10000.0",
                 window, m.head_dim);
    if (family == 5)
        draw_chunked(&m, more, quantized, seed);
    if (family == 6)
        draw_gemma4(&m, window, more, quantized, seed);
    if (family > 6)
        draw_states(&m, more, quantized, seed);
    return m;
}

/* Quantized weights, and experts so large that frames for a few take less memory than all do. */
static inline struct tiny_model draw_mixture(char more[300], uint32_t vocab, uint64_t *seed)
{
    struct tiny_model m;
    do
        m = draw_model(more, vocab, true, seed);
    while (m.hidden < 256 || m.experts < 4 || m.layers * m.experts < 12);
    return m;
}

/* How KV is kept: kind 0 as the model computes, 1 in another type, 2 to 4 quantized when it is
 * old. */
enum { KV_KINDS = 5 };

static inline void draw_kv(struct spw_options *o, uint64_t kind, uint64_t *seed)
{
    static const uint64_t windows[] = {SPW_NONE, 128, 200};
    if (kind == 1)
        o->kv = check_random(seed) % 2 ? SPW_DTYPE_F16 : SPW_DTYPE_BF16;
    if (kind == 1 && o->kv == SPW_DTYPE_BF16)
        o->compute = SPW_DTYPE_F32;
    if (kind < 2)
        return;
    o->precision = (enum spw_kv_precision)(SPW_KV_INT8 + kind - 2);
    o->residual_window = windows[check_random(seed) % 3];
}

#endif
