/* Waterlines against their definitions: windows token by token, and whole lives of a sequence, step
 * by step, with the tiles of every layer counted one at a time. The operations of every layer kind
 * against a model that looks at one key at a time. */
#include "offload/kv/layer_store.h"
#include "tests/check.h"

enum { MOST_TOKENS = 4000 };

/* The first tile with a key that the query at `position` may look at. */
static uint32_t first_by_token(struct spw_window window, uint64_t position)
{
    for (uint64_t key = 0;; key++)
        if (window.step == 1 ? key + window.tokens > position
                             : key / window.tokens == position / window.tokens)
            return (uint32_t)(key / SPW_TILE_TOKENS);
}

static struct spw_window draw_window(uint64_t *seed, uint32_t most)
{
    uint32_t n = (uint32_t)check_range(seed, 1, most);
    if (check_random(seed) % 3 == 0)
        n = (uint32_t)spw_align_up(n, check_random(seed) % 2 ? SPW_TILE_TOKENS : 32);
    return (struct spw_window){n, check_random(seed) % 2 ? n : 1};
}

static void check_window(uint64_t *seed)
{
    struct spw_window window = draw_window(seed, check_random(seed) % 2 ? 300 : 2000);
    uint32_t last = 0, most = 0;
    for (uint64_t n = 0; n < 1500; n += check_range(seed, 1, 9)) {
        const struct spw_residency r = {.window = window};
        const uint64_t until = spw_waterline_visible_until(&r, n);
        uint32_t first = spw_waterline_window_first(window, n);
        CHECK(spw_waterline_window_first(window, until) == first &&
              spw_waterline_window_first(window, until + 1) > first);
        CHECK(first == first_by_token(window, n) && first >= last);
        last = first;
        /* between steps the next query is at position n, and tiles [first, end) are kept */
        uint32_t held = spw_waterline_tiles(n) -
                        (first < spw_waterline_tiles(n) ? first : spw_waterline_tiles(n));
        most = spw_max_u32(most, held);
        CHECK(held <= spw_waterline_window_tiles(window));
    }
    if (window.tokens < 1000)
        for (uint64_t n = 1; n < MOST_TOKENS * 32;
             n++) { /* the bound is reached: no planned frame is useless */
            uint32_t end = spw_waterline_tiles(n), first = spw_waterline_window_first(window, n);
            most = spw_max_u32(most, first < end ? end - first : 0);
        }
    if (window.tokens > 1 && window.tokens < 1000)
        CHECK(most == spw_waterline_window_tiles(window));
}

/* For a layer without a window, and for one with a window, whose tiles do not depend on the
 * pass. */
static struct spw_residency draw(uint64_t *seed, bool window)
{
    struct spw_residency r = {.host = check_random(seed) % 4 ? (uint32_t)check_range(seed, 0, 9)
                                                             : UINT32_MAX};
    r.resident = (uint32_t)check_range(seed, 1, 12);
    r.resident_pass = (uint32_t)check_range(seed, 1, r.resident);
    r.pass = (uint32_t)check_range(seed, r.resident_pass, 20);
    r.held = !window && check_random(seed) % 3 == 0;
    if (window) {
        r.window = draw_window(seed, 700);
        r.resident = r.resident_pass = r.pass = (uint32_t)check_range(seed, 1, 5);
    }
    return r;
}

/* Lower copies, one at a time: the host is a queue, and copies that leave it are on disk. */
static void check_disk(uint64_t *seed)
{
    struct spw_residency r = draw(seed, check_random(seed) % 2);
    uint32_t n_host = 0, n_disk = 0;
    for (uint32_t written = 0; written < 40; written++) {
        CHECK(spw_waterline_disk_end(&r, written) == n_disk && n_disk + n_host == written);
        n_host++;
        if (n_host > r.host) {
            n_host--;
            n_disk++;
        }
    }
}

/* Takes one full layer through one pass, in chunks; returns its first device tile after it. The
 * layer may hold at most `pass` old tiles (or `resident`, unchunked) beside the new ones of a
 * chunk; or, if tiles are held, of the pass. */
static uint32_t pass_layer(const struct spw_residency *r, const struct spw_pass_span *p,
                           uint32_t chunk)
{
    const struct spw_span_tiles at = spw_waterline_span(r, p);
    uint32_t begin = spw_waterline_begin(r, p->from), wait = at.wait, enter = at.enter;
    CHECK(wait >= begin && enter <= wait); /* no tile is loaded only to be spilled again */
    CHECK(p->chunked || (wait == begin && enter == begin));
    uint32_t held = spw_waterline_tiles(p->from) - wait;
    CHECK(!p->chunked || held <= r->resident_pass);
    begin = enter;
    uint32_t most = p->chunked ? r->pass : r->resident;
    for (uint64_t n = p->from; n < p->to;) {
        uint64_t to = spw_min_u64(n + chunk, p->to);
        const struct spw_part_tiles part = spw_waterline_part(r, p, n, to);
        CHECK(part.begin == begin && !part.first && !part.drop); /* it streams [0, begin) */
        uint32_t old = spw_waterline_tiles(n) - begin;
        CHECK(old <= most || r->held);
        CHECK(!r->held || begin == enter);
        CHECK(part.after >= begin && part.after <= spw_waterline_tiles(to));
        begin = part.after;
        n = to;
    }
    CHECK(spw_waterline_tiles(p->to) - begin <= (p->chunked ? r->resident_pass : r->resident));
    CHECK(begin < spw_waterline_tiles(p->to)); /* the tail stays */
    return begin;
}

/* In a layer with a window each end of a chunk is like the end of a step. */
static void check_window_pass(const struct spw_residency *r, const struct spw_pass_span *p,
                              uint32_t chunk)
{
    const struct spw_span_tiles at = spw_waterline_span(r, p);
    CHECK(at.wait == spw_waterline_begin(r, p->from) && at.enter == at.wait);
    for (uint64_t n = p->from; n < p->to;) {
        uint64_t to = spw_min_u64(n + chunk, p->to);
        const struct spw_part_tiles part = spw_waterline_part(r, p, n, to);
        CHECK(part.first == spw_waterline_window_first(r->window, n));
        CHECK(part.begin == spw_waterline_begin(r, n) && part.after == spw_waterline_begin(r, to));
        CHECK(part.drop == spw_waterline_window_first(r->window, to));
        n = to;
    }
}

/* A life: prompts, single tokens. Between steps a full layer has its newest `resident` tiles. */
static void check_life(uint64_t *seed)
{
    struct spw_residency r = draw(seed, false), w = draw(seed, true);
    uint32_t chunk = (uint32_t)check_range(seed, 1, 400);
    uint64_t n = 0;
    uint32_t lowest = 0;
    while (n < MOST_TOKENS) {
        uint64_t more =
            check_random(seed) % 3 ? check_range(seed, 1, 3) : check_range(seed, 1, 900);
        struct spw_pass_span p = {.from = n, .to = n + more, .chunked = more > chunk};
        CHECK(spw_waterline_tiles(n) - spw_waterline_begin(&r, n) <= r.resident);
        uint32_t left = pass_layer(&r, &p, chunk);
        n += more;
        uint32_t rest = spw_waterline_begin(&r, n);
        CHECK(rest <=
              left); /* settling only brings back, and only what was above before or came new */
        CHECK(rest >= lowest);
        lowest = rest;
        check_window_pass(&w, &p, chunk);
        uint32_t first = spw_waterline_window_first(w.window, n),
                 begin = spw_waterline_begin(&w, n);
        CHECK(begin >= first); /* a tile that no query sees is not kept */
        CHECK(spw_waterline_tiles(n) < begin || spw_waterline_tiles(n) - begin <= w.resident);
        uint64_t oldest = spw_window_first(w.window, n); /* key that the next query sees */
        CHECK(oldest >= n || oldest / SPW_TILE_TOKENS >= first);
    }
}

/* A border is where no layer has a tile that the next query sees. */
static void check_border(uint64_t *seed)
{
    struct spw_residency kinds[SPW_LAYER_KINDS] = {0};
    struct spw_window *w = &kinds[SPW_LAYER_CHUNKED].window;
    uint64_t n = check_range(seed, 0, 3000), border = n - n % SPW_TILE_TOKENS;
    CHECK(spw_kv_border(kinds, n) == border); /* no layer has a window */
    w->tokens = (uint32_t)check_range(seed, 2, 700);
    if (check_random(seed) % 2)
        w->tokens = (uint32_t)spw_align_up(w->tokens, 64);
    w->step = 1;
    CHECK(spw_kv_border(kinds, n) == 0);
    w->step = w->tokens;
    while (border % w->tokens)
        border -= SPW_TILE_TOKENS;
    CHECK(spw_kv_border(kinds, n) == border);
    kinds[SPW_LAYER_FULL].quantizes = true;
    CHECK(spw_kv_border(kinds, n) == 0);
}

/* ---- the operations of a layer kind ---- */

static struct spw_residency draw_kind(uint64_t *seed, int kind, bool quantizes)
{
    const struct spw_layer_kind_row *row = &spw_layer_kinds[kind];
    const bool windowed = spw_layer_has_window((enum spw_layer_kind)kind);
    return (struct spw_residency){
        .store = row->store,
        .window = spw_layer_window((enum spw_layer_kind)kind, draw_window(seed, 700).tokens),
        .quantizes = quantizes && !windowed,
        .fixed = quantizes && windowed,
        .residual_tiles = (uint32_t)check_range(seed, 0, 4),
    };
}

/* Whether the query at position p reads a key of the tile, and in its exact form. */
static bool reads(const struct spw_residency *r, uint64_t p, uint32_t tile, bool exact)
{
    const bool visible = r->window.tokens ? first_by_token(r->window, p) <= tile : true;
    const uint64_t block = p / SPW_TILE_TOKENS;
    const bool quantized = r->quantizes && tile > 0 && tile + r->residual_tiles < block;
    return visible && quantized != exact;
}

/* Between steps a sequence of n tokens has the tiles that a later query reads, and one exact tile
 * more; never more than it needs. */
static void check_need(const struct spw_residency *r, uint64_t n)
{
    const struct spw_store_need need = spw_layer_stores[r->store]->need(r, n);
    const uint32_t all = spw_waterline_tiles(n);
    uint32_t n_read[2] = {0, 0};
    for (uint32_t t = 0; t < all; t++)
        for (int exact = 0; exact < 2; exact++)
            n_read[exact] += reads(r, n, t, exact);
    if (r->quantizes) {
        CHECK(need.moving == n_read[0] && need.fixed >= n_read[1]);
        CHECK(need.fixed <= r->residual_tiles + 2 + 1 + SPW_WATERLINE_SLACK && need.fixed <= all);
        CHECK(!all || need.retained == spw_min_u32(need.fixed - 1, all - need.fixed));
    } else if (r->window.tokens) {
        const uint32_t tiles = r->fixed ? need.fixed : need.moving;
        CHECK(need.moving + need.fixed == tiles && tiles >= n_read[1] && tiles <= all);
        CHECK(tiles <= r->window.tokens / SPW_TILE_TOKENS + 2);
        CHECK(need.retained == spw_min_u32(tiles, all - tiles));
    } else {
        CHECK(need.moving == all && n_read[1] == all && !need.fixed && !need.retained);
    }
}

/* A session can begin with n tokens if old tiles, and those of a checkpoint, are all it reads. */
static void check_sections(const struct spw_residency *r, uint64_t before, uint64_t n)
{
    const struct spw_layer_store_ops *ops = spw_layer_stores[r->store];
    const struct spw_snapshot_tiles first = ops->snapshot(r, SPW_SNAPSHOT_OLD, 0, before);
    const struct spw_snapshot_tiles old = ops->snapshot(r, SPW_SNAPSHOT_OLD, before, n);
    const uint32_t whole = (uint32_t)(n / SPW_TILE_TOKENS);
    bool needs_checkpoint = false;
    CHECK(first.first >= first.end || old.first == first.end); /* each tile once */
    for (uint32_t t = 0; t < spw_waterline_tiles(n); t++) {
        bool in_old = (t >= first.first && t < first.end) || (t >= old.first && t < old.end);
        bool in_exact = false;
        for (enum spw_snapshot_kind k = SPW_SNAPSHOT_SINK; k <= SPW_SNAPSHOT_TAIL; k++) {
            const struct spw_snapshot_tiles x = ops->snapshot(r, k, before, n);
            CHECK(k != SPW_SNAPSHOT_TAIL || (x.first == whole && x.end == spw_waterline_tiles(n)));
            in_exact |= t >= x.first && t < x.end;
        }
        if (!r->quantizes && !r->window.tokens)
            in_exact |= in_old; /* old tiles are exact */
        CHECK(!reads(r, n, t, true) || in_exact);
        CHECK(!reads(r, n, t, false) || in_old);
        needs_checkpoint |= t < whole && reads(r, n, t, true) && !in_old;
        CHECK(!reads(r, n, t, true) || t >= spw_waterline_first_read_exact(r, n) ||
              (r->quantizes && !t)); /* how far a cut back reaches */
    }
    if (n % SPW_TILE_TOKENS == 0 && n)
        CHECK(ops->begins_at(r, n) == !needs_checkpoint);
}

/* A table has no gap: callers do not look. Where nothing is stored, the cache has no layer. */
static void check_tables(void)
{
    for (int i = 0; i < SPW_STORE_NOTHING; i++) {
        const struct spw_layer_store_ops *ops = spw_layer_stores[i];
        void (*const *slot)(void) = (void (*const *)(void))(const void *)ops;
        for (size_t k = 0; k < sizeof *ops / sizeof *slot; k++)
            CHECK(slot[k]);
    }
}

static void check_kinds(uint64_t *seed)
{
    for (int kind = 0; spw_layer_has_tiles((enum spw_layer_kind)kind); kind++)
        for (int quantizes = 0; quantizes < 2; quantizes++) {
            const struct spw_residency r = draw_kind(seed, kind, quantizes);
            uint64_t before = check_range(seed, 0, 12) * SPW_TILE_TOKENS;
            uint64_t n = before + check_range(seed, 0, 1500);
            if (check_random(seed) % 3 == 0)
                n -= n % SPW_TILE_TOKENS;
            check_need(&r, n);
            check_sections(&r, before, n);
        }
}

int main(void)
{
    uint64_t seed = check_seed();
    check_tables();
    for (uint64_t n = 0; n < 2000; n++)
        CHECK(spw_waterline_tiles(n) == (n + 127) / 128);
    for (int i = 0; i < 300; i++) {
        check_window(&seed);
        check_border(&seed);
        check_kinds(&seed);
    }
    for (int i = 0; i < 3000; i++)
        check_life(&seed);
    for (int i = 0; i < 300; i++)
        check_disk(&seed);
    return check_done();
}
