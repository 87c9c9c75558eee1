/* States of the KV cache against a mirror: sequences that grow, are cut back, forked, closed, saved
 * and read again, whose passes end early, with states that stay on the device or move, with rows
 * that are kept and taken later or taken back, and with any number of checkpoints in memory and on
 * a disk that now and then returns other bytes. And the rule by which checkpoints go, alone.
 *
 *   test_states [rounds] */
#include "offload/kv/checkpoint.h"
#include "offload/kv/kv_attach.h"
#include "offload/kv/state_store.h"
#include "tests/check.h"

#include <string.h>

enum {
    LAYERS = 3,
    SEQS = 4,
    WORDS = 1024,
    BYTES = 4 * WORDS,
    MOST_TOKENS = 12000,
    MOST = 9,
    ROWS = 16
};

struct mirror {
    struct spw_kv_seq *seq;            /* NULL: not open */
    uint32_t history[MOST_TOKENS + 1]; /* what the state is made of, after each number of tokens */
    uint64_t n, taken;                 /* tokens; and of those that all states have taken */
};

struct world {
    struct spw_lane lane;
    struct spw_io_fault fault;
    struct spw_io *io; /* NULL: there is no disk */
    struct spw_disk *disk;
    struct spw_kv *kv;
    struct mirror m[SEQS];
    struct spw_residency kinds[SPW_LAYER_KINDS];
    uint64_t seed;
    uint32_t next, n_checkpoints; /* in memory */
};

static uint64_t n_cut_back, n_failed, n_moved; /* of all walks */
static _Atomic uint64_t n_damaged, n_requests;

/* Each 8th read returns a flipped bit. */
static int64_t damage(void *context, const struct spw_io_request *r, int64_t result)
{
    uint64_t draw = atomic_fetch_add(&n_requests, 1) + (uint64_t)(uintptr_t)context;
    if (result > 0 && !r->write && check_random(&draw) % 8 == 0) {
        *(uint8_t *)r->memory ^= 4;
        atomic_fetch_add(&n_damaged, 1);
    }
    return result;
}

static void open_disk(struct world *w, uint32_t n_checkpoints)
{
    struct spw_error err = {0};
    w->fault = (struct spw_io_fault){.completed = damage, .context = (void *)(uintptr_t)w->seed};
    const struct spw_io_options io = {.queue_depth = 2, .fault = &w->fault};
    CHECK_MSG(spw_io_open(&w->io, &io, &err) == 0, "%s", err.text);
    const struct spw_disk_options disk = {.directory = "/tmp",
                                          .io = w->io,
                                          .tile_bytes = BYTES,
                                          .n_frames = n_checkpoints * LAYERS,
                                          .run = LAYERS};
    CHECK_MSG(spw_disk_open(&w->disk, &disk, &err) == 0, "%s", err.text);
}

static uint32_t draw(struct world *w, uint64_t low, uint64_t high)
{
    return (uint32_t)check_range(&w->seed, low, high);
}

static uint32_t word(const struct mirror *m, uint64_t n, uint32_t layer, uint32_t i)
{
    return m->history[n] * 2654435761u + layer * 97 + i;
}

static void open_world(struct world *w, bool stay, uint32_t n_checkpoints)
{
    static const uint8_t kinds[LAYERS] = {SPW_LAYER_STATE, SPW_LAYER_STATE, SPW_LAYER_STATE};
    const struct spw_device_options d = {.device_bytes = UINT64_MAX,
                                         .host_bytes = UINT64_MAX,
                                         .threads = 1,
                                         .delay_seed = w->seed | 1};
    w->n_checkpoints = n_checkpoints;
    w->lane = (struct spw_lane){.ops = &spw_device_cpu};
    CHECK(w->lane.ops->open(&w->lane.device, &d, NULL) == 0);
    CHECK(spw_lane_open_streams(&w->lane) == 0);
    void *device, *host;
    w->lane.device_arena_bytes = SEQS * LAYERS * (BYTES + ROWS * 4);
    w->lane.host_arena_bytes = (SEQS + MOST) * LAYERS * BYTES;
    CHECK(w->lane.ops->alloc(w->lane.device, w->lane.device_arena_bytes, &device) == 0);
    CHECK(w->lane.ops->alloc_host(w->lane.device, w->lane.host_arena_bytes, &host) == 0);
    w->lane.device_arena = device;
    w->lane.host_arena = host;
    memset(device, 0xaa, w->lane.device_arena_bytes); /* a state at position 0 is not read */
    const uint32_t n_on_disk = n_checkpoints && draw(w, 0, 1) ? draw(w, 1, MOST) : 0;
    if (n_on_disk)
        open_disk(w, n_on_disk);
    const struct spw_kv_options o = {
        .tile_bytes = 4096,
        .exact_tile_bytes = 4096,
        .n_layers = LAYERS,
        .kinds = kinds,
        .max_tiles = MOST_TOKENS / SPW_TILE_TOKENS,
        .slot_tiles = 1,
        .states = {.bytes = BYTES,
                   .n_sequences = SEQS,
                   .stay = stay,
                   .device_arena = device,
                   .host_arena = host,
                   .checkpoint_arena = w->lane.host_arena + SEQS * LAYERS * BYTES,
                   .kept_arena = w->lane.device_arena + SEQS * LAYERS * BYTES,
                   .kept_bytes = ROWS * 4,
                   .n_checkpoints = n_checkpoints,
                   .disk = w->disk,
                   .n_disk_checkpoints = n_on_disk}};
    CHECK(spw_kv_open(&w->kv, &w->lane, &o) == 0);
    for (int k = 0; k < SPW_LAYER_KINDS; k++)
        w->kinds[k] = (struct spw_residency){.store = spw_layer_kinds[k].store};
}

static void close_world(struct world *w)
{
    CHECK(spw_lane_sync_all(&w->lane) == 0);
    for (uint32_t i = 0; i < SEQS; i++)
        spw_kv_seq_close(w->m[i].seq);
    spw_kv_close(w->kv);
    CHECK(!w->disk || !spw_disk_n_used(w->disk));
    spw_disk_close(w->disk);
    spw_io_close(w->io);
    w->lane.ops->free(w->lane.device, w->lane.device_arena, w->lane.device_arena_bytes);
    w->lane.ops->free_host(w->lane.device, w->lane.host_arena, w->lane.host_arena_bytes);
    spw_lane_close_streams(&w->lane);
    w->lane.ops->close(w->lane.device);
}

/* ---- steps ---- */

static void check_state(struct world *w, const struct mirror *m, uint32_t layer, uint64_t n)
{
    CHECK(spw_lane_stream_sync(&w->lane, w->lane.compute) == 0);
    const uint32_t *state = (const uint32_t *)(const void *)spw_kv_state(m->seq, layer);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < WORDS && n; i++)
        wrong += state[i] != word(m, n, layer, i);
    CHECK_MSG(!wrong, "layer %u, %llu tokens", layer, (unsigned long long)n);
}

static void set_state(const struct mirror *m, uint32_t layer, uint64_t n)
{
    uint32_t *state = (uint32_t *)(void *)spw_kv_state(m->seq, layer);
    for (uint32_t i = 0; i < WORDS; i++)
        state[i] = word(m, n, layer, i);
}

/* The state, which is on the device, takes the rows that are kept. */
static void take(struct world *w, const struct mirror *m, uint32_t layer)
{
    const struct spw_kept_rows kept = spw_kv_state_kept_rows(m->seq, layer);
    const uint32_t *rows = kept.rows;
    if (kept.from == kept.to)
        return;
    check_state(w, m, layer, kept.from);
    for (uint64_t n = kept.from; n < kept.to; n++)
        CHECK(rows[n - kept.from] == word(m, n + 1, layer, 0));
    set_state(m, layer, kept.to);
    spw_kv_state_applied(m->seq, layer);
}

static void take_all(struct world *w, struct mirror *m)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const struct spw_kept_rows kept = spw_kv_state_kept_rows(m->seq, layer);
        if (kept.from == kept.to)
            continue;
        CHECK(spw_kv_state_enter(m->seq, layer) == 0);
        take(w, m, layer);
        CHECK(spw_kv_state_leave(m->seq, layer) == 0);
    }
    m->taken = m->n;
}

/* Rows that may be taken back. `layers`: as of grow. */
static void keep(struct world *w, struct mirror *m, uint64_t to, uint32_t layers)
{
    for (uint64_t n = m->n + 1; n <= to; n++)
        m->history[n] = ++w->next;
    for (uint32_t layer = 0; layer < layers; layer++) {
        CHECK(spw_kv_state_enter(m->seq, layer) == 0);
        take(w, m, layer);
        check_state(w, m, layer, m->n);
        spw_kv_state_keep_rows(m->seq, layer, to);
        uint32_t *rows = spw_kv_state_kept_rows(m->seq, layer).rows;
        for (uint64_t n = m->n + 1; n <= to; n++)
            rows[n - m->n - 1] = word(m, n, layer, 0);
        if (layer + 1 < layers || layers == LAYERS)
            CHECK(spw_kv_state_leave(m->seq, layer) == 0);
    }
    m->taken = m->n;
    m->n = layers == LAYERS ? to : m->n;
}

/* Rows pass a layer: reads what `from` tokens have left, and leaves what `to` tokens leave. */
static void pass_rows(struct world *w, struct mirror *m, uint32_t layer, uint64_t from, uint64_t to)
{
    take(w, m, layer);
    check_state(w, m, layer, from);
    CHECK(spw_kv_grow(m->seq, layer, from, to) == 0);
    set_state(m, layer, to);
}

/* Rows pass a layer in parts; at the end of some a checkpoint is made. */
static void pass_layer(struct world *w, struct mirror *m, uint32_t layer, uint64_t part,
                       uint64_t to)
{
    CHECK(spw_kv_state_enter(m->seq, layer) == 0);
    for (uint64_t from = m->n, end; from < to; from = end) {
        end = spw_min_u64(from + part, to);
        pass_rows(w, m, layer, from, end);
        CHECK(spw_kv_checkpoint_layer(m->seq, end, layer) == 0);
    }
}

/* A step of new tokens. Meanwhile another sequence gets a checkpoint, too. `layers`: after so many
 * the step ends early. Where there is memory for all, the newest checkpoint stays until the step is
 * over. */
static void grow(struct world *w, struct mirror *m, uint64_t to, uint32_t layers)
{
    const uint64_t part = draw(w, 1, 300), newest = spw_kv_last_checkpoint(m->seq, UINT64_MAX);
    const bool any = draw(w, 0, 3), all = w->n_checkpoints >= 2 * SEQS;
    for (uint64_t n = m->n + 1; n <= to; n++)
        m->history[n] = ++w->next;
    for (uint64_t end = m->n; end < to && any;) {
        end = spw_min_u64(end + part, to);
        if (end == to || draw(w, 0, 1))
            spw_kv_checkpoint_begin(m->seq, end);
    }
    for (uint32_t layer = 0; layer < layers; layer++) {
        struct mirror *other = &w->m[draw(w, 0, SEQS - 1)];
        pass_layer(w, m, layer, part, to);
        if (layer + 1 < layers || layers == LAYERS)
            CHECK(spw_kv_state_leave(m->seq, layer) == 0);
        if (other->seq && other != m)
            take_all(w, other);
        if (other->seq && other != m)
            CHECK(spw_kv_checkpoint(other->seq, other->n) == 0);
    }
    CHECK(!all || spw_kv_last_checkpoint(m->seq, UINT64_MAX) == newest);
    spw_kv_checkpoints_end(m->seq, layers == LAYERS);
    CHECK(!all || layers < LAYERS || !any || spw_kv_last_checkpoint(m->seq, UINT64_MAX) == to);
    if (layers == LAYERS)
        m->n = m->taken = to;
}

/* unsure: a step has ended early, and layers may have passed n. */
static void cut(struct world *w, struct mirror *m, uint64_t n, bool unsure)
{
    uint64_t reach;
    int rc;
    do { /* again from an earlier checkpoint, if that one was damaged */
        reach = spw_kv_reach(m->seq, w->kinds, n);
        CHECK(reach <= n && (reach == n || n < m->taken || unsure));
        rc = spw_kv_truncate(m->seq, w->kinds, reach);
        CHECK(!rc || (rc == -EBADMSG && w->disk));
    } while (rc);
    CHECK(spw_kv_last_checkpoint(m->seq, UINT64_MAX) <= reach);
    n_cut_back += reach && reach < m->n;
    m->n = reach;
    m->taken = spw_min_u64(m->taken, reach);
}

static void fork_one(struct world *w, struct mirror *to, const struct mirror *from)
{
    spw_kv_seq_close(to->seq);
    CHECK(spw_kv_seq_open(&to->seq, w->kv) == 0);
    CHECK(spw_kv_seq_fork(to->seq, from->seq) == 0);
    memcpy(to->history, from->history, sizeof to->history);
    to->n = from->n;
    to->taken = from->taken;
}

/* Through memory, to a new sequence. */
static void move(struct world *w, struct mirror *m)
{
    static _Alignas(4096) uint8_t memory[LAYERS][BYTES];
    const uint32_t tile = spw_waterline_tiles(m->n) - 1;
    if (!m->n)
        return;
    take_all(w, m);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        CHECK(spw_kv_export(m->seq, layer, SPW_SNAPSHOT_WINDOW, tile, tile + 1, memory[layer]) ==
              0);
    spw_kv_seq_close(m->seq);
    CHECK(spw_kv_seq_open(&m->seq, w->kv) == 0);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        CHECK(spw_kv_import(m->seq, layer, SPW_SNAPSHOT_WINDOW, tile, m->n, memory[layer]) == 0);
    n_moved++;
}

static void walk_step(struct world *w)
{
    struct mirror *m = &w->m[draw(w, 0, SEQS - 1)], *other = &w->m[draw(w, 0, SEQS - 1)];
    if (!m->seq)
        CHECK(spw_kv_seq_open(&m->seq, w->kv) == 0);
    const uint64_t to = m->n + draw(w, 1, draw(w, 0, 1) ? 3 : 700);
    switch (draw(w, 0, 10)) {
    case 0:
        cut(w, m, draw(w, 0, m->n), false);
        break;
    case 1:
        if (m != other && other->seq)
            fork_one(w, m, other);
        break;
    case 2:
        spw_kv_seq_close(m->seq);
        m->seq = NULL;
        m->n = m->taken = 0;
        break;
    case 3:
        move(w, m);
        break;
    case 4:
        take_all(w, m);
        CHECK(spw_kv_checkpoint(m->seq, m->n) == 0);
        break;
    case 5:
        if (to > MOST_TOKENS)
            break;
        grow(w, m, to, draw(w, 1, LAYERS - 1)); /* and then it is cut back */
        n_failed++;
        cut(w, m, m->n, true);
        break;
    case 6: /* the states of some layers have taken the rows that were kept before */
        if (!m->n || m->n + ROWS > MOST_TOKENS)
            break;
        keep(w, m, m->n + draw(w, 1, ROWS), draw(w, 1, LAYERS - 1));
        n_failed++;
        cut(w, m, m->n, false);
        break;
    case 7:
    case 8:
        if (!m->n || m->n + ROWS > MOST_TOKENS)
            break;
        keep(w, m, m->n + draw(w, 1, ROWS), LAYERS);
        cut(w, m, draw(w, m->taken, m->n), false);
        break;
    default:
        if (to <= MOST_TOKENS)
            grow(w, m, to, LAYERS);
    }
}

static void check_walk(uint64_t seed)
{
    static struct world w;
    memset(&w, 0, sizeof w);
    w.seed = seed;
    open_world(&w, draw(&w, 0, 1), draw(&w, 0, MOST));
    for (int i = 0; i < 60; i++)
        walk_step(&w);
    close_world(&w);
}

/* Where every 1,024th position gets a checkpoint and only some find room, those that stay are dense
 * near the end and thin out with their age. */
static void check_thinning(void)
{
    enum { SLOTS = 14, STEPS = 4000 };
    uint64_t kept[SLOTS];
    uint32_t n = 0;
    for (uint64_t at = SPW_CHECKPOINT_TOKENS; at <= (uint64_t)STEPS * SPW_CHECKPOINT_TOKENS;
         at += SPW_CHECKPOINT_TOKENS) {
        if (n == SLOTS) {
            uint32_t gone = 0;
            for (uint32_t i = 1; i < n; i++)
                if (spw_checkpoint_loss(kept, i, n, at) < spw_checkpoint_loss(kept, gone, n, at))
                    gone = i;
            memmove(kept + gone, kept + gone + 1, (--n - gone) * sizeof *kept);
        }
        kept[n++] = at;
        for (uint32_t i = 0; i + 1 < n; i++) /* a cut anywhere computes no more than twice the
                                                age again, or the first distances */
            CHECK(kept[i + 1] - kept[i] <=
                  2 * spw_max_u64(at - kept[i + 1], 2 * SPW_CHECKPOINT_TOKENS));
    }
}

static uint32_t count(const struct mirror *m, const struct mirror *other)
{
    uint32_t n = 0;
    for (uint64_t at = MOST_TOKENS; (at = spw_kv_last_checkpoint(m->seq, at)); at--)
        n += spw_kv_last_checkpoint(other->seq, at) == at;
    return n;
}

/* A pass asks for more checkpoints than there is room for: the one at its beginning stays, and so
 * do those on disk. */
static void check_little_room(uint64_t seed)
{
    static struct world w;
    memset(&w, 0, sizeof w);
    w.seed = seed;
    const uint32_t in_memory = draw(&w, 1, 3);
    open_world(&w, true, in_memory);
    struct mirror *m = &w.m[0];
    CHECK(spw_kv_seq_open(&m->seq, w.kv) == 0);
    for (uint32_t i = draw(&w, 1, 6); i > 0; i--) {
        grow(&w, m, m->n + draw(&w, 1, 300), LAYERS);
        CHECK(spw_kv_checkpoint(m->seq, m->n) == 0);
    }
    const uint32_t before = count(m, m);
    for (uint32_t i = 1; i <= 8; i++)
        spw_kv_checkpoint_begin(m->seq, m->n + i);
    CHECK(spw_kv_last_checkpoint(m->seq, UINT64_MAX) == m->n);
    CHECK(count(m, m) + in_memory >= before);
    spw_kv_checkpoints_end(m->seq, false);
    close_world(&w);
}

/* A checkpoint that two sequences share goes from both, or stays with both: only that makes room.
 */
static void check_shared(uint64_t seed)
{
    static struct world w;
    memset(&w, 0, sizeof w);
    w.seed = seed;
    open_world(&w, true, 6);
    struct mirror *m = &w.m[0], *child = &w.m[1];
    CHECK(spw_kv_seq_open(&m->seq, w.kv) == 0);
    for (int i = 0; i < 6; i++) {
        grow(&w, m, m->n + 500, LAYERS);
        CHECK(spw_kv_checkpoint(m->seq, m->n) == 0);
    }
    fork_one(&w, child, m);
    grow(&w, m, MOST_TOKENS, LAYERS); /* now it needs others than the child */
    CHECK(spw_kv_checkpoint(m->seq, m->n) == 0);
    CHECK(count(child, child) && count(child, m) == count(child, child));
    close_world(&w);
}

/* A long prompt in one pass gets the checkpoints that would stay: near its end, and its end. */
static void check_long_prompt(void)
{
    enum { SLOTS = 8, TO = 60 };
    static struct world w;
    memset(&w, 0, sizeof w);
    w.seed = 1;
    open_world(&w, true, SLOTS);
    CHECK(spw_kv_seq_open(&w.m[0].seq, w.kv) == 0);
    for (uint64_t n = 1; n <= TO; n++)
        spw_kv_checkpoint_begin(w.m[0].seq, n * SPW_CHECKPOINT_TOKENS);
    CHECK(!spw_kv_last_checkpoint(w.m[0].seq, UINT64_MAX));
    spw_kv_checkpoints_end(w.m[0].seq, true);
    uint64_t n = (uint64_t)TO * SPW_CHECKPOINT_TOKENS;
    uint32_t left = 0;
    for (uint64_t age = 0, before; n; n = before, left++) {
        before = spw_kv_last_checkpoint(w.m[0].seq, n - 1);
        age = (uint64_t)TO * SPW_CHECKPOINT_TOKENS - n;
        CHECK(n - before <= 2 * spw_max_u64(age, 2 * SPW_CHECKPOINT_TOKENS));
    }
    CHECK(left == SLOTS);
    close_world(&w);
}

int main(int argc, char **argv)
{
    uint64_t seed = check_seed();
    int rounds = argc > 1 ? atoi(argv[1]) : RUN_UNDER_ASAN || RUN_UNDER_TSAN ? 40 : 200;
    for (int i = 0; i < rounds; i++)
        check_walk(check_random(&seed));
    CHECK(n_cut_back && n_failed && n_moved && n_damaged);
    for (int i = 0; i < rounds; i++) {
        check_little_room(check_random(&seed));
        check_shared(check_random(&seed));
    }
    check_thinning();
    check_long_prompt();
    return check_done();
}
