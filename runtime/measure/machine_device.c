/* The limits of a device with its own memory, and the time of single kernels: see measure.h.
 *
 * Batches of queued work take tens of milliseconds, so that the cost of a launch does not show. */
#include "model/cpu/probe/probe.h"
#include "runtime/measure/machine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 5, COPIES = 24, READS = 8, PRODUCTS = 6, MATRIX = 8192 };
#define COPY_BYTES ((uint64_t)64 << 20)
#define READ_BYTES ((uint64_t)1 << 30) /* far more than any cache */

struct bench {
    const struct spw_backend *backend;
    struct spw_lane lane;   /* owned: its streams */
    uint8_t *memory, *host; /* owned: [bytes], [COPY_BYTES] */
    uint64_t bytes;
    struct spw_probe_matrix *matrix;
    struct spw_attention_args attention;
    uint8_t *tiles; /* in `memory` */
    uint64_t context, tile_bytes;
};

static void write_time(void *argument)
{
    *(double *)argument = spw_now_seconds();
}

/* Writes the time at which the compute stream has done all that was queued before. */
static int queue_stamp(const struct spw_lane *lane, double *at)
{
    return spw_lane_host_call(lane, write_time, at, lane->compute);
}

static int queue_runs(const struct spw_lane *lane, int (*run)(void *of), void *of, int n,
                      double at[2])
{
    SPW_TRY(queue_stamp(lane, &at[0]));
    for (int i = 0; i < n; i++)
        SPW_TRY(run(of));
    return queue_stamp(lane, &at[1]);
}

int spw_machine_time(struct spw_rounds *out, const struct spw_lane *lane, int (*warm)(void *of),
                     int (*run)(void *of), void *of, int n)
{
    double at[2] = {0};
    int rc = warm(of);
    if (!rc)
        rc = queue_runs(lane, run, of, n, at);
    int synced = spw_lane_stream_sync(lane, lane->compute); /* writes the stamps */
    spw_rounds_add(out, (at[1] - at[0]) / n);
    return rc ? rc : synced;
}

/* Batches of n. */
static int time_work(struct spw_rounds *out, struct bench *b, int (*work)(void *), int n)
{
    for (int r = 0; r < ROUNDS; r++)
        SPW_TRY(spw_machine_time(out, &b->lane, work, work, b, n));
    return 0;
}

static int copy_up(void *bench)
{
    struct bench *b = bench;
    return spw_lane_copy(&b->lane, b->memory, b->host, COPY_BYTES, SPW_LINK_HOST_TO_DEVICE,
                         b->lane.compute);
}

static int read_all(void *bench)
{
    struct bench *b = bench;
    return b->backend->probe->read(b->memory, b->bytes - 4096, b->memory + b->bytes - 4096,
                                   b->lane.compute);
}

static int multiply(void *bench)
{
    struct bench *b = bench;
    return b->backend->probe->matrix_run(b->matrix, b->memory, b->lane.compute);
}

/* Numbers between 1 and 2 of either sign, as bf16 and as f32. Zeros would need less power, and give
 * a speed that no model reaches. */
static void draw(struct bench *b)
{
    uint32_t *words = (uint32_t *)b->host, state = 1;
    for (size_t i = 0; i < COPY_BYTES / sizeof *words; i++) {
        state = state * 1664525u + 1013904223u;
        words[i] = ((state >> 3) & 0x807f807fu) | 0x3f803f80u;
    }
}

/* Fills the memory with these numbers. Kernels leave other bits there, among which are denormal
 * numbers, with which some processors compute ten times as long. */
static int fill(struct bench *b)
{
    for (uint64_t at = 0; at < b->bytes; at += COPY_BYTES)
        SPW_TRY(spw_lane_copy(&b->lane, b->memory + at, b->host,
                              spw_min_u64(COPY_BYTES, b->bytes - at), SPW_LINK_HOST_TO_DEVICE,
                              b->lane.compute));
    return spw_lane_stream_sync(&b->lane, b->lane.compute);
}

static int take(struct bench *b, uint64_t bytes)
{
    b->bytes = bytes;
    SPW_TRY(b->lane.ops->alloc(b->lane.device, bytes, (void **)&b->memory));
    SPW_TRY(b->lane.ops->alloc_host(b->lane.device, COPY_BYTES, (void **)&b->host));
    SPW_TRY(b->lane.ops->stream_open(b->lane.device, "compute", &b->lane.compute));
    draw(b);
    return fill(b);
}

static void give(struct bench *b)
{
    spw_lane_close_streams(&b->lane);
    b->lane.ops->free_host(b->lane.device, b->host, COPY_BYTES);
    b->lane.ops->free(b->lane.device, b->memory, b->bytes);
    b->host = b->memory = NULL;
}

/* The device reads its own memory. */
static void take_bandwidths(struct spw_machine *out, double copy_seconds, double read_seconds)
{
    const double copy = 1 / copy_seconds, read = 1 / read_seconds;
    const struct spw_product_speed speed = {.byte_seconds = read_seconds,
                                            .short_byte_seconds = read_seconds};
    out->copy_bytes_per_second = out->copy_beside_bytes_per_second = copy;
    out->read_bytes_per_second = out->read_beside_bytes_per_second = read;
    for (int t = 0; t < SPW_WEIGHT_TYPES; t++)
        out->bf16_products[t][0] = out->f32_products[t][0] = speed;
}

static int probe_bandwidths(struct spw_machine_range *out, struct bench *b)
{
    struct spw_rounds copies = {0}, reads = {0};
    const double copied = (double)COPY_BYTES;
    SPW_TRY(
        take(b, spw_min_u64(READ_BYTES, b->lane.ops->available(b->lane.device) / 2 / 4096 * 4096)));
    SPW_TRY(time_work(&copies, b, copy_up, COPIES));
    SPW_TRY(time_work(&reads, b, read_all, READS));
    const double read = (double)(b->bytes - 4096);
    take_bandwidths(&out->typical, spw_rounds_take(&copies, SPW_ROUND_TYPICAL) / copied,
                    spw_rounds_take(&reads, SPW_ROUND_TYPICAL) / read);
    take_bandwidths(&out->best, spw_rounds_take(&copies, SPW_ROUND_BEST) / copied,
                    spw_rounds_take(&reads, SPW_ROUND_BEST) / read);
    return 0;
}

/* Without the library there is no result; the note says why. */
static int probe_matrix(struct spw_machine_range *out, struct bench *b, enum spw_dtype dtype,
                        double *typical, double *best)
{
    static const double flop = 2.0 * MATRIX * MATRIX * MATRIX;
    struct spw_rounds rounds = {0};
    struct spw_error why = {0};
    int rc = b->backend->probe->matrix_open(&b->matrix, dtype, MATRIX, &why);
    if (rc == -ENODEV) {
        snprintf(out->typical.note, sizeof out->typical.note, "no matrix peak: %.120s", why.text);
        return 0;
    }
    SPW_TRY(rc);
    rc = take(b, spw_align_up(b->backend->probe->matrix_bytes(b->matrix), 4096));
    if (!rc)
        rc = time_work(&rounds, b, multiply, PRODUCTS);
    if (!rc) {
        *typical = flop / spw_rounds_take(&rounds, SPW_ROUND_TYPICAL);
        *best = flop / spw_rounds_take(&rounds, SPW_ROUND_BEST);
    }
    give(b);
    b->backend->probe->matrix_close(b->matrix);
    return rc;
}

int spw_machine_probe_device(struct spw_machine_range *out, const struct spw_backend *backend,
                             const struct spw_lane *lane, struct spw_error *err)
{
    struct bench b = {.backend = backend, .lane = *lane};
    int rc = probe_bandwidths(out, &b);
    give(&b);
    if (!rc)
        rc = probe_matrix(out, &b, SPW_DTYPE_BF16, &out->typical.bf16_flops, &out->best.bf16_flops);
    if (!rc)
        rc = probe_matrix(out, &b, SPW_DTYPE_F32, &out->typical.f32_flops, &out->best.f32_flops);
    return rc ? spw_fail(err, rc, "%s: its limits could not be measured: %s", backend->name,
                         strerror(-rc))
              : 0;
}

/* ---- attention alone ---- */

enum { STEPS = 8 };

static enum spw_qformat format_of(const struct spw_attention_shape *s)
{
    if (!s->k_bits)
        return SPW_QFORMAT_EXACT;
    if (s->v_bits == 8)
        return SPW_QFORMAT_INT8;
    return s->k_bits == 8 ? SPW_QFORMAT_INT8_INT4 : SPW_QFORMAT_INT4;
}

/* The bytes of a tile in this form. */
static uint64_t tile_bytes_of(const struct spw_attention_shape *s)
{
    enum spw_qformat format = format_of(s);
    return format == SPW_QFORMAT_EXACT
               ? spw_tile_bytes(s->n_kv_heads, spw_tile_square(s->head_dim), s->dtype)
               : spw_qtile_bytes(s->n_kv_heads, spw_tile_square(s->head_dim), format);
}

static int attend(void *bench)
{
    struct bench *b = bench;
    struct spw_attention_args *a = &b->attention;
    uint64_t tiles = spw_div_up(b->context, SPW_TILE_TOKENS);
    uint32_t most = b->backend->ops->attention_tiles;
    for (uint64_t first = 0; first < tiles; first += most) {
        a->tile_first = first;
        a->n_tiles = (uint32_t)spw_min_u64(most, tiles - first);
        a->first = first == 0;
        a->quantized_end = a->qformat == SPW_QFORMAT_EXACT ? 0 : a->n_tiles;
        for (uint32_t i = 0; i < a->n_tiles; i++)
            a->tiles[i] = b->tiles + (first + i) * b->tile_bytes;
        SPW_TRY(b->backend->ops->attention(a, b->lane.compute));
    }
    return 0;
}

/* Offsets in `memory` after q; `end` is the size of everything. */
struct attention_layout {
    uint64_t state, split_states, kv, end;
};

static struct attention_layout attention_layout(const struct bench *b,
                                                const struct spw_attention_shape *s)
{
    struct attention_layout at;
    uint64_t state_row = (uint64_t)s->n_heads * (s->head_dim + 2) * sizeof(float);
    uint64_t splits = b->backend->ops->attention_tiles / SPW_SPLIT_TILES;
    at.state = spw_align_up((uint64_t)s->n_heads * s->head_dim * 4, 4096);
    at.split_states = at.state + spw_align_up(state_row, 4096);
    at.kv = at.split_states + spw_align_up(splits * state_row, 4096);
    at.end = spw_align_up(at.kv + spw_div_up(s->context, SPW_TILE_TOKENS) * tile_bytes_of(s), 4096);
    return at;
}

/* In the memory that is allocated already. */
static void lay_out_attention(struct bench *b, const struct spw_attention_shape *s)
{
    struct attention_layout at = attention_layout(b, s);
    b->context = s->context;
    b->tile_bytes = tile_bytes_of(s);
    b->tiles = b->memory + at.kv;
    b->attention = (struct spw_attention_args){
        .q = b->memory,
        .state = (float *)(b->memory + at.state),
        .split_states = (float *)(b->memory + at.split_states),
        .rows = 1,
        .q_stride = (size_t)s->n_heads * s->head_dim,
        .position = s->context - 1,
        .n_heads = s->n_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->head_dim,
        .scale = 0.01f,
        .dtype = s->dtype,
        .kv_dtype = s->dtype,
        .qformat = format_of(s),
    };
}

/* Of the last tile, only the visible part counts. */
static uint64_t kv_bytes(const struct bench *b)
{
    return b->context / SPW_TILE_TOKENS * b->tile_bytes +
           b->tile_bytes * (b->context % SPW_TILE_TOKENS) / SPW_TILE_TOKENS;
}

static int time_attention(struct spw_attention_speed *out, struct bench *b,
                          const struct spw_attention_shape *s)
{
    SPW_TRY(take(b, attention_layout(b, s).end));
    lay_out_attention(b, s);
    out->kv_bytes = kv_bytes(b);
    struct spw_rounds rounds = {0};
    SPW_TRY(time_work(&rounds, b, attend, STEPS));
    out->seconds = spw_rounds_take(&rounds, SPW_ROUND_BEST);
    return 0;
}

int spw_machine_attention(struct spw_attention_speed *out, const struct spw_attention_shape *shape,
                          const struct spw_options *o, struct spw_error *err)
{
    spw_error_clear(err);
    struct spw_backend backend;
    struct spw_lane lane;
    *out = (struct spw_attention_speed){0};
    SPW_TRY(spw_engine_choose_device(&backend, &lane, o, UINT64_MAX, UINT64_MAX, err));
    struct bench b = {.backend = &backend, .lane = lane};
    int rc = time_attention(out, &b, shape);
    give(&b);
    lane.ops->close(lane.device);
    return rc ? spw_fail(err, rc, "attention over %llu tokens: %s",
                         (unsigned long long)shape->context, strerror(-rc))
              : 0;
}

/* ---- what kernels take ---- */

enum { KV_CONTEXT = 8192, KV_HEADS = 8, KV_DIM = 64, GROUP = 4 };
enum { KERNEL_BYTES = 24 << 20 }; /* attention over this context needs them */

/* Writes tiles with the codec, because kernels need valid scales and means. Exact tiles may have
 * any content. */
static int write_tiles(struct bench *b)
{
    const struct spw_attention_args *a = &b->attention;
    uint64_t n = a->qformat == SPW_QFORMAT_EXACT ? 0 : b->context / SPW_TILE_TOKENS;
    for (uint64_t i = 0; i < n; i++)
        SPW_TRY(b->backend->ops->kv_quantize(
            &(struct spw_codec_args){.tile = b->host,
                                     .qtile = b->tiles + i * b->tile_bytes,
                                     .n_kv_heads = a->n_kv_heads,
                                     .widths = spw_tile_square(a->head_dim),
                                     .dtype = a->kv_dtype,
                                     .format = a->qformat,
                                     .not_finite = (uint32_t *)a->split_states},
            b->lane.compute));
    return 0;
}

struct spw_machine_kernels {
    struct bench bench;
    struct spw_machine_rows *rows; /* owned */
    /* By form, with one KV head per query head, or one KV head for GROUP query heads. */
    struct spw_rounds forms[SPW_KV_PRECISIONS][2], prompt;
    uint64_t form_bytes[SPW_KV_PRECISIONS];
};

/* A quarter as many tokens, behind those that are measured. */
static int attend_others(void *bench)
{
    struct bench others = *(struct bench *)bench;
    others.tiles += spw_div_up(others.context, SPW_TILE_TOKENS) * others.tile_bytes;
    others.context /= 4;
    others.attention.position = others.context - 1;
    return attend(&others);
}

/* The bytes are the same with and without a group, the computation is not. The data comes from
 * memory, as in a step, which uses each tile once. */
static int time_form(struct spw_machine_kernels *k, enum spw_kv_precision form)
{
    static const uint32_t k_bits[] = {0, 8, 8, 4}, v_bits[] = {0, 8, 4, 4};
    for (uint32_t shared = 0; shared < 2; shared++) {
        SPW_TRY(fill(&k->bench));
        lay_out_attention(&k->bench,
                          &(struct spw_attention_shape){.n_heads = KV_HEADS * (shared ? GROUP : 1),
                                                        .n_kv_heads = KV_HEADS,
                                                        .head_dim = KV_DIM,
                                                        .dtype = SPW_DTYPE_BF16,
                                                        .k_bits = k_bits[form],
                                                        .v_bits = v_bits[form],
                                                        .context = KV_CONTEXT});
        SPW_TRY(write_tiles(&k->bench));
        SPW_TRY(spw_lane_stream_sync(&k->bench.lane, k->bench.lane.compute));
        spw_probe_evict(k->bench.tiles, kv_bytes(&k->bench));
        SPW_TRY(spw_machine_time(&k->forms[form][shared], &k->bench.lane, attend_others, attend,
                                 &k->bench, 1));
    }
    k->form_bytes[form] = kv_bytes(&k->bench);
    return 0;
}

static void take_form(struct spw_machine *out, const struct spw_machine_kernels *k,
                      enum spw_kv_precision form, enum spw_round which)
{
    const double one = spw_rounds_take(&k->forms[form][0], which);
    const double group = spw_rounds_take(&k->forms[form][1], which);
    const double more = fmax(0, (group - one) / (GROUP - 1));
    out->attention[form].product_seconds = more / ((double)KV_CONTEXT * KV_HEADS * KV_DIM);
    out->attention[form].byte_seconds = fmax(0, one - more) / (double)k->form_bytes[form];
}

/* A chunk of a prompt over the split before it and over itself. */
enum { PROMPT_ROWS = 32, PROMPT_CONTEXT = SPW_SPLIT_TILES * SPW_TILE_TOKENS };

static int time_prompt(struct spw_machine_kernels *k)
{
    struct bench *b = &k->bench;
    const uint64_t heads = KV_HEADS * GROUP, rows = PROMPT_ROWS;
    const uint64_t q_bytes = rows * heads * KV_DIM * sizeof(uint16_t);
    const uint64_t state_bytes = rows * heads * (KV_DIM + 2) * sizeof(float);
    lay_out_attention(b, &(struct spw_attention_shape){.n_heads = KV_HEADS * GROUP,
                                                       .n_kv_heads = KV_HEADS,
                                                       .head_dim = KV_DIM,
                                                       .dtype = SPW_DTYPE_BF16,
                                                       .context = PROMPT_CONTEXT});
    struct spw_attention_args *a = &b->attention;
    a->rows = rows;
    a->position = PROMPT_CONTEXT - rows;
    a->state = (float *)(b->memory + spw_align_up(q_bytes, 4096));
    a->split_states = NULL;
    b->tiles = (uint8_t *)a->state + spw_align_up(state_bytes, 4096);
    SPW_TRY(fill(b));
    return spw_machine_time(&k->prompt, &b->lane, attend, attend, b, 1);
}

static void take_prompt(struct spw_machine *out, const struct spw_machine_kernels *k,
                        enum spw_round which)
{
    const uint64_t heads = KV_HEADS * GROUP, rows = PROMPT_ROWS, before = PROMPT_CONTEXT - rows;
    const uint64_t pairs = rows * before + rows * (rows + 1) / 2;
    out->attention_flops =
        4.0 * (double)(pairs * heads * KV_DIM) / spw_rounds_take(&k->prompt, which);
}

int spw_machine_kernels_open(struct spw_machine_kernels **out, const struct spw_backend *backend,
                             const struct spw_lane *lane)
{
    struct spw_machine_kernels *k = *out = spw_alloc_zero(1, sizeof *k);
    if (!k)
        return -ENOMEM;
    k->bench = (struct bench){.backend = backend, .lane = *lane};
    SPW_TRY(take(&k->bench, spw_max_u64(KERNEL_BYTES, spw_machine_rows_bytes(backend, lane))));
    return spw_machine_rows_open(&k->rows, backend, &k->bench.lane, k->bench.memory);
}

int spw_machine_kernels_round(struct spw_machine_kernels *k)
{
    SPW_TRY(fill(&k->bench));
    SPW_TRY(spw_machine_rows_round(k->rows));
    for (int form = SPW_KV_EXACT; form < SPW_KV_PRECISIONS; form++)
        SPW_TRY(time_form(k, (enum spw_kv_precision)form));
    return time_prompt(k);
}

void spw_machine_kernels_take(const struct spw_machine_kernels *k, struct spw_machine *out,
                              enum spw_round which)
{
    spw_machine_rows_take(k->rows, out, which);
    for (int form = SPW_KV_EXACT; form < SPW_KV_PRECISIONS; form++)
        take_form(out, k, (enum spw_kv_precision)form, which);
    take_prompt(out, k, which);
}

void spw_machine_kernels_close(struct spw_machine_kernels *k)
{
    if (!k)
        return;
    spw_machine_rows_close(k->rows);
    give(&k->bench);
    spw_free(k);
}

/* ---- from thread to thread ---- */

/* Longer than any thread spins before it sleeps. */
enum { LAPS = 65, DRIVE_NS = 200000 };

/* A ring of one slot, as in prefetch/ring.c; its drive only sleeps. */
struct relay {
    spw_event freed, landed, ready;
    double asked; /* time of the request */
};

static void be_drive(void *argument)
{
    struct relay *r = argument;
    r->asked = spw_now_seconds();
    nanosleep(&(struct timespec){.tv_nsec = DRIVE_NS}, NULL);
}

/* Queues what the host queues when a slot has its data: the kernel, the release of the slot, and
 * the next request to the drive. Waits until the drive has answered. */
static int run_lap(struct bench *b, struct relay *r)
{
    const struct spw_lane *l = &b->lane;
    SPW_TRY(spw_lane_stream_wait(l, l->compute, r->ready));
    SPW_TRY(attend(b));
    SPW_TRY(spw_lane_event_record(l, r->freed, l->compute));
    SPW_TRY(spw_lane_stream_wait(l, l->kv_up, r->freed));
    SPW_TRY(spw_lane_stream_wait(l, l->disk, r->freed));
    SPW_TRY(spw_lane_host_call(l, be_drive, r, l->disk));
    SPW_TRY(spw_lane_event_record(l, r->landed, l->disk));
    SPW_TRY(spw_lane_event_record(l, r->ready, l->kv_up));
    return spw_lane_event_sync(l, r->landed);
}

static double process_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The time until the next request, and the time on the cores of all threads. */
static int time_laps(struct spw_rounds *handover, struct spw_rounds *cores, struct bench *b,
                     struct relay *r)
{
    SPW_TRY(run_lap(b, r)); /* warms up */
    for (int i = 0; i < LAPS; i++) {
        const double begin = spw_now_seconds(), used = process_seconds();
        SPW_TRY(run_lap(b, r));
        spw_rounds_add(handover, r->asked - begin);
        spw_rounds_add(cores, process_seconds() - used);
    }
    return 0;
}

static int open_relay(struct bench *b, struct relay *r)
{
    struct spw_lane *l = &b->lane;
    struct spw_attention_shape shape = {.n_heads = GROUP,
                                        .n_kv_heads = 1,
                                        .head_dim = KV_DIM,
                                        .dtype = SPW_DTYPE_BF16,
                                        .context = SPW_SPLIT_TILES * SPW_TILE_TOKENS};
    SPW_TRY(take(b, attention_layout(b, &shape).end));
    lay_out_attention(b, &shape);
    SPW_TRY(l->ops->stream_open(l->device, "link", &l->kv_up));
    SPW_TRY(l->ops->stream_open(l->device, "disk", &l->disk));
    SPW_TRY(spw_lane_event_open(l, &r->freed));
    SPW_TRY(spw_lane_event_open(l, &r->landed));
    return spw_lane_event_open(l, &r->ready);
}

static void close_relay(struct bench *b, struct relay *r)
{
    spw_lane_close_streams(&b->lane);
    spw_lane_event_close(&b->lane, r->freed);
    spw_lane_event_close(&b->lane, r->landed);
    spw_lane_event_close(&b->lane, r->ready);
    give(b);
}

static void take_handover(struct spw_machine *out, const struct spw_rounds *handover,
                          const struct spw_rounds *cores, enum spw_round which)
{
    out->handover_seconds = spw_rounds_take(handover, which);
    out->handover_core_seconds = spw_rounds_take(cores, which);
}

int spw_machine_probe_handover(struct spw_machine_range *out, const struct spw_backend *backend,
                               const struct spw_lane *lane, struct spw_error *err)
{
    struct bench b = {.backend = backend, .lane = *lane};
    struct relay r = {0};
    struct spw_rounds handover = {0}, cores = {0};
    int rc = open_relay(&b, &r);
    if (!rc)
        rc = time_laps(&handover, &cores, &b, &r);
    close_relay(&b, &r);
    if (rc)
        return spw_fail(err, rc, "%s: its streams could not be measured: %s", backend->name,
                        strerror(-rc));
    take_handover(&out->typical, &handover, &cores, SPW_ROUND_TYPICAL);
    take_handover(&out->best, &handover, &cores, SPW_ROUND_BEST);
    return 0;
}
