/* The rules of the way from the disk, each beside a list made by brute force or numbers worked out
 * by hand: the order in which requests are submitted, how jobs are cut into requests and memory
 * into slabs, how many requests are in flight. None of these changes an answer, and all of them
 * have been measured (SPEED.md, "The disk"): a rule that changes by accident shows here. */
#include "offload/io/io_engine.h"
#include "runtime/engine/engine.h"
#include "runtime/plan/plan_parts.h"
#include "tests/engine/engine_run.h"

#include <signal.h>
#include <sys/mman.h>
#include <xxhash.h>

#define MIB ((uint64_t)1 << 20)

/* ---- jobs into requests ---- */

enum { MOST_JOBS = 6, MOST_PARTS = 5 };

static void wake(struct spw_io *io)
{
    (void)io;
}

static const struct spw_io_engine nobody = {.wake = wake};

static void draw_job(struct spw_io_job *job, const struct spw_io_file *file, uint64_t *seed)
{
    uint64_t align = file->align;
    spw_io_job_init(job);
    job->file = file;
    job->record_bytes = check_random(seed) % 3 ? align * check_range(seed, 1, 40) : 0;
    uint64_t unit = job->record_bytes ? job->record_bytes : align;
    job->bytes = unit * check_range(seed, 1, 60);
    job->offset = align * check_range(seed, 0, 9);
}

/* Whole records where a request has room for one; else whole blocks of the file. */
static uint64_t part_of(const struct spw_io_job *job, uint64_t request_bytes)
{
    uint64_t step = job->file->align, part;
    if (job->record_bytes && job->record_bytes < request_bytes)
        step = job->record_bytes;
    for (part = step; part + step <= request_bytes;)
        part += step;
    return part;
}

/* Jobs go in the order of their submission, each from its beginning to its end, and no more
 * requests are out than there are parts for. */
static void check_cuts(uint64_t *seed)
{
    struct spw_io_job jobs[MOST_JOBS];
    struct spw_io_part parts[MOST_PARTS], *out[MOST_PARTS];
    struct spw_io_file file = {.align = 1};
    struct spw_io io = {.engine = &nobody, .request_bytes = check_range(seed, 1, 5000)};
    uint64_t n_jobs = check_range(seed, 1, MOST_JOBS), n_out = 0, first = 0;
    if (check_random(seed) % 2)
        file.align = 1u << check_range(seed, 3, 9);
    CHECK(!pthread_mutex_init(&io.lock, NULL));
    for (int i = 0; i < MOST_PARTS; i++) {
        parts[i].next = io.free_parts;
        io.free_parts = &parts[i];
    }
    for (uint64_t i = 0; i < n_jobs; i++) {
        draw_job(&jobs[i], &file, seed);
        spw_io_submit(&io, &jobs[i]);
    }
    for (uint64_t i = 0; i < n_jobs; i++)
        for (uint64_t at = 0, part; at < jobs[i].bytes; at += part) {
            if (n_out == MOST_PARTS) { /* one is back */
                CHECK(!spw_io_next_part(&io));
                struct spw_io_part *back = out[first++ % MOST_PARTS];
                back->next = io.free_parts;
                io.free_parts = back;
                n_out--;
            }
            struct spw_io_part *a = spw_io_next_part(&io);
            part = spw_min_u64(part_of(&jobs[i], io.request_bytes), jobs[i].bytes - at);
            CHECK_MSG(a && a->job == &jobs[i] && a->begin == at && a->end == at + part,
                      "job %llu: a piece of %llu bytes at %llu, records of %llu, requests of %llu",
                      (unsigned long long)i, (unsigned long long)part, (unsigned long long)at,
                      (unsigned long long)jobs[i].record_bytes,
                      (unsigned long long)io.request_bytes);
            if (!a)
                return;
            out[(first + n_out++) % MOST_PARTS] = a;
        }
    CHECK(!spw_io_next_part(&io));
    pthread_mutex_destroy(&io.lock);
}

/* ---- memory into slabs ---- */

/* Small pages before the first border of a huge page are a slab of their own; what follows begins
 * at borders, in as few slabs of 1 GiB as there can be. */
static void check_slabs(uint64_t *seed)
{
    uint64_t from = check_range(seed, 1, 1 << 20) * 4096,
             left = check_range(seed, 1, 1 << 20) * 4096;
    uint64_t border = (from + 2 * MIB - 1) / (2 * MIB) * (2 * MIB), head = border - from;
    if (check_random(seed) % 2) {
        from = border;
        head = 0;
    }
    uint64_t expected = head ? spw_min_u64(head, left) : spw_min_u64(1024 * MIB, left), n = 0;
    for (uint64_t at = 0, part; at < left; at += part, n++) {
        part = spw_io_slab_bytes((const void *)(uintptr_t)(from + at), left - at);
        CHECK_MSG(part == expected, "%llu bytes at %llx: a slab of %llu, expected %llu",
                  (unsigned long long)left, (unsigned long long)from, (unsigned long long)part,
                  (unsigned long long)expected);
        if (part != expected)
            return;
        expected = spw_min_u64(1024 * MIB, left - at - part);
    }
    uint64_t rest = left - spw_min_u64(left, head);
    CHECK(n == (head > 0) + rest / (1024 * MIB) + (rest % (1024 * MIB) > 0));
}

/* ---- requests in flight ---- */

static void check_in_flight(void)
{
    static const struct {
        uint32_t slots, bounce, weight_slots; /* of 2 MiB, for weights from files */
        uint64_t slot_bytes;
        uint32_t depth;
        unsigned expected;
    } cases[] = {
        {8, 0, 0, MIB, 8, 4},           /* half of the ring */
        {16, 0, 0, MIB, 8, 8},          /* no more than the drive wants */
        {64, 0, 0, MIB, 8, 8},          /* however long the ring is */
        {7, 0, 0, MIB, 8, 4},           /* rounded up */
        {1, 0, 0, MIB, 8, 1},           /* */
        {2, 0, 0, MIB / 4, 8, 1},       /* never none */
        {128, 0, 0, MIB / 4, 8, 32},    /* as many small requests as make up the bytes */
        {40, 0, 0, MIB / 4, 8, 20},     /* or half of a ring of small slots */
        {1024, 0, 0, MIB / 16, 16, 64}, /* but 64 at most */
        {4, 0, 0, 4 * MIB, 8, 8},       /* half of the ring are two slots of four requests each */
        {2, 0, 0, 4 * MIB, 8, 4},       /* */
        {2, 6, 0, MIB, 8, 3},           /* slots in host memory count, where there are any */
        {8, 0, 2, MIB, 8, 6},           /* half of both rings */
        {8, 0, 9, MIB, 8, 8},           /* no more than the drive wants */
        {0, 0, 0, 0, 8, 8},             /* no ring */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct spw_drive d = {.queue_depth = cases[i].depth, .request_bytes = MIB};
        struct spw_plan p = {.n_kv_slots = cases[i].slots,
                             .n_bounce = cases[i].bounce,
                             .n_weight_slots = cases[i].weight_slots,
                             .weight_slot_bytes = 2 * MIB,
                             .disk_read_bytes = cases[i].weight_slots,
                             .slot_tiles = SPW_SPLIT_TILES,
                             .tile_bytes = cases[i].slot_bytes / SPW_SPLIT_TILES};
        CHECK_MSG(spw_in_flight(&p, &d) == cases[i].expected, "case %zu: %u in flight, expected %u",
                  i, spw_in_flight(&p, &d), cases[i].expected);
        CHECK(spw_in_flight(&p, NULL) == 0);
    }
}

/* Twice bandwidth x latency, at least 4, no more than the drive wants. */
static void check_for_experts(void)
{
    static const struct {
        uint32_t depth;
        double latency;
        bool weights;
        unsigned expected;
    } cases[] = {{16, 1e-4, false, 4},
                 {16, 1e-3, false, 6}, /* 3 MiB */
                 {16, 1, false, 16},
                 {2, 1e-4, false, 2},
                 {16, 1e-4, true, 16}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct spw_drive d = {.queue_depth = cases[i].depth,
                                    .request_bytes = MIB,
                                    .read_bytes_per_second = 3072.0 * MIB,
                                    .latency_seconds = cases[i].latency};
        const struct spw_plan p = {.n_disk_experts = 9,
                                   .n_weight_slots = 2,
                                   .weight_slot_bytes = 2 * MIB,
                                   .disk_read_bytes = cases[i].weights};
        CHECK_MSG(spw_in_flight(&p, &d) == cases[i].expected, "case %zu: %u in flight, expected %u",
                  i, spw_in_flight(&p, &d), cases[i].expected);
    }
}

/* ---- what a ring of io_uring does ---- */

/* Reads of a pipe that is empty stay in the kernel. NULL: io_uring is refused here. */
static struct spw_io *open_uring(unsigned depth)
{
    struct spw_io_options o = {.kind = SPW_IO_URING, .queue_depth = depth};
    struct spw_error err = {0};
    struct spw_io *io = NULL;
    if (spw_io_open(&io, &o, &err) < 0)
        fprintf(stderr, "%s: not checked\n", err.text);
    return io;
}

static uint64_t bytes_asked(struct spw_io *io, const struct spw_io_job *job)
{
    pthread_mutex_lock(&io->lock);
    uint64_t n = job->cut_bytes;
    pthread_mutex_unlock(&io->lock);
    return n;
}

static void lend(int ends[2], struct spw_io_file *file)
{
    if (pipe(ends) || spw_io_use_file(ends[0], file))
        exit(1);
}

static void submit_read(struct spw_io *io, struct spw_io_job *job, const struct spw_io_file *file,
                        uint8_t *memory, uint64_t bytes)
{
    spw_io_job_init(job);
    job->file = file;
    job->memory = memory;
    job->bytes = bytes;
    spw_io_submit(io, job);
}

/* A ring has `depth` requests in the kernel, not one more. */
static void check_depth(unsigned depth)
{
    enum { N = 12 };
    struct spw_io_job jobs[N];
    struct spw_io_file file;
    uint8_t memory[N] = {0};
    int ends[2];
    struct spw_io *io = open_uring(depth);
    if (!io)
        return;
    lend(ends, &file);
    for (int i = 0; i < N; i++)
        submit_read(io, &jobs[i], &file, &memory[i], 1);
    for (int over = 0; over <= N; over++) {
        unsigned wanted = (unsigned)spw_min_u64(N, depth + (unsigned)over), asked = 0;
        for (int tries = 0; asked < wanted && tries < 20000; tries++) {
            usleep(100);
            for (asked = 0; asked < N && bytes_asked(io, &jobs[asked]);)
                asked++;
        }
        usleep(2000); /* for one too many */
        for (; asked < N && bytes_asked(io, &jobs[asked]);)
            asked++;
        CHECK_MSG(asked == wanted, "%d over: %u asked, expected %u", over, asked, wanted);
        if (over < N)
            CHECK(write(ends[1], "x", 1) == 1);
    }
    for (int i = 0; i < N; i++)
        CHECK(spw_io_wait(io, &jobs[i]) == 0);
    spw_io_close(io);
    close(ends[0]);
    close(ends[1]);
}

/* The job behind the one that is summed, and its bytes that were asked for by then. The expected
 * checksum lies in a file that is too short: the I/O thread meets this when it compares, and the
 * signal is one that such threads do not block. */
static struct {
    struct spw_io_job second;
    int file;
    uint64_t sum;
    _Atomic uint64_t asked;
} behind;

static void on_compare(int signal)
{
    (void)signal;
    behind.asked = behind.second.cut_bytes;
    if (pwrite(behind.file, &behind.sum, sizeof behind.sum, 0) != sizeof behind.sum)
        _exit(1);
}

/* The drive gets its next request before the last one's checksum is taken: with one request in
 * flight, the second job is asked for by then. */
static void check_sums_last(void)
{
    static uint8_t memory[4096], x;
    struct sigaction then, act = {.sa_handler = on_compare};
    struct spw_io_job first;
    struct spw_io_file file[2];
    int ends[2][2];
    struct spw_io *io = open_uring(1);
    if (!io)
        return;
    for (int i = 0; i < 2; i++)
        lend(ends[i], &file[i]);
    behind.file = memfd_create("sum", MFD_CLOEXEC);
    behind.sum = XXH3_64bits(memory, sizeof memory);
    void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, behind.file, 0);
    CHECK(page != MAP_FAILED && !sigaction(SIGBUS, &act, &then));
    spw_io_job_init(&first);
    first.file = &file[0];
    first.memory = memory;
    first.bytes = first.record_bytes = sizeof memory;
    first.sums = page;
    spw_io_submit(io, &first);
    submit_read(io, &behind.second, &file[1], &x, 1);
    CHECK(write(ends[0][1], memory, sizeof memory) == sizeof memory);
    CHECK(spw_io_wait(io, &first) == 0 && behind.asked == 1);
    CHECK(write(ends[1][1], "x", 1) == 1 && spw_io_wait(io, &behind.second) == 0);
    spw_io_close(io);
    sigaction(SIGBUS, &then, NULL);
    munmap(page, 4096);
    close(behind.file);
    for (int i = 0; i < 2; i++) {
        close(ends[i][0]);
        close(ends[i][1]);
    }
}

/* ---- the order of a step ---- */

enum {
    N_LAYERS = 3,
    N_PROMPT = 1800,
    N_STEPS = 4,
    CONTEXT = N_PROMPT + N_STEPS,
    MOST = 1 << 14,
    TILE_BYTES = 64 << 10
};

struct request {
    uint64_t offset, bytes;
};

/* Of one I/O thread: what it reads, in order. */
struct list {
    struct request at[MOST];
    size_t n;
    int fd; /* of the file that is written to: weights come from others */
};

static int64_t completed(void *context, const struct spw_io_request *r, int64_t result)
{
    struct list *l = context;
    if (r->write)
        l->fd = r->fd;
    else if (r->bytes && r->fd == l->fd && l->n < MOST)
        l->at[l->n++] = (struct request){r->offset, r->bytes};
    return result;
}

static void add(struct list *l, uint64_t offset, uint64_t bytes, uint64_t most)
{
    for (uint64_t part; bytes; offset += part, bytes -= part) {
        part = spw_min_u64(bytes, most);
        l->at[l->n++] = (struct request){offset, part};
    }
}

/* Layer by layer, from the oldest tile on; tiles of one slot whose frames are adjacent are one
 * read, which is cut into requests of whole tiles. */
static void expect_step(struct list *l, const struct spw_engine *e, const struct spw_session *s,
                        uint64_t tiles_a_request)
{
    uint64_t tile = e->plan.tile_bytes, end = 0;
    struct spw_kv_seq *seq = s->seq.kv;
    struct spw_waterlines w = {0};
    spw_session_waterlines(s, &w);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        for (uint32_t t = 0, n; t < w.disk_end / SPW_TILE_TOKENS; t += n) {
            uint32_t first = spw_kv_disk_frame(seq, layer, t);
            CHECK(first != SPW_DISK_NONE);
            end = (t / e->plan.slot_tiles + 1) * e->plan.slot_tiles;
            end = spw_min_u64(end, w.disk_end / SPW_TILE_TOKENS);
            for (n = 1; t + n < end && spw_kv_disk_frame(seq, layer, t + n) == first + n;)
                n++;
            add(l, first * tile, n * tile, tiles_a_request * tile);
        }
}

static const struct tiny_model model = {TINY("llama", N_LAYERS, 64, 96, 4, 2, 32, 67, 32768),
                                        .untied = true, .seed = 163};

/* A drive, and host memory for what cannot lie on it. */
static struct spw_options options(const struct spw_backend *b, const char *dir,
                                  const struct spw_drive *drive)
{
    struct spw_options o = {.backend = TEST_BACKEND,
                            .context = CONTEXT,
                            .threads = 1,
                            .compute = SPW_DTYPE_F32,
                            .io = SPW_IO_THREADS,
                            .disk_dir = dir,
                            .disk_bytes = 64 * MIB,
                            .drive = drive};
    run_to_disk_on(b, dir, &o);
    return o;
}

static struct spw_drive drive_of(uint32_t depth, uint64_t request_bytes)
{
    return (struct spw_drive){.queue_depth = depth,
                              .request_bytes = request_bytes,
                              .read_bytes_per_second = 2e9,
                              .write_bytes_per_second = 1e9,
                              .latency_seconds = 1e-4};
}

/* A ring has room for twice the bytes that the drive wants in flight, in at most a quarter of the
 * memory of tiles, but for the slots that every ring has. */
static void check_ring(const char *dir)
{
    struct spw_backend b = run_backend(true);
    struct spw_drive drive = drive_of(3, 256 << 10);
    struct spw_options o = options(&b, dir, &drive);
    o.context = 20000;
    struct spw_plan_info i;
    struct spw_error err = {0};
    uint32_t least = UINT32_MAX, most = 0;
    CHECK_MSG(!spw_plan_query_on(&i, &b, dir, &o, &err), "%s", err.text);
    for (uint64_t more = 0, smallest = i.smallest_device_bytes; more < 24 * MIB; more += 500000) {
        o.device_bytes = smallest + more;
        CHECK_MSG(!spw_plan_query_on(&i, &b, dir, &o, &err), "%s", err.text);
        if (!i.disk.kv)
            break;
        uint64_t slot = (uint64_t)i.prefetch_splits * SPW_SPLIT_TILES * TILE_BYTES;
        uint64_t tiles = (i.device.kv_resident + i.device.kv_slots) / slot;
        uint64_t n = spw_min_u64(spw_div_up(6 * (256 << 10), slot), tiles / 4);
        CHECK_MSG(i.prefetch_slots == spw_max_u64(n, SPW_PLAN_SLOTS),
                  "%llu bytes: %u slots of %llu, not %llu", (unsigned long long)o.device_bytes,
                  i.prefetch_slots, (unsigned long long)slot, (unsigned long long)n);
        least = spw_min_u32(least, i.prefetch_slots);
        most = spw_max_u32(most, i.prefetch_slots);
    }
    CHECK_MSG(least == SPW_PLAN_SLOTS && most == 6, "%u to %u slots", least, most);
}

/* The engine does by the rule: the plan has a ring, and reads no weights from the disk. */
static void check_engine(const char *dir)
{
    struct spw_backend b = run_backend(true);
    struct spw_drive drive = drive_of(8, 256 << 10);
    struct spw_options o = options(&b, dir, &drive);
    struct spw_plan_info i;
    struct spw_error err = {0};
    o.context = 20000;
    CHECK_MSG(!spw_plan_query_on(&i, &b, dir, &o, &err), "%s", err.text);
    o.prefetch_slots = 6;
    for (o.device_bytes = i.smallest_device_bytes; o.device_bytes < 40 * MIB;
         o.device_bytes += 65536)
        if (!spw_plan_query_on(&i, &b, dir, &o, &err) && i.disk.kv && !i.weights_disk_bytes)
            break;
    struct spw_engine *e = run_open_on(&b, dir, &o);
    CHECK_MSG(e->plan.n_kv_slots == 6 && e->plan.n_disk_frames && !e->plan.n_disk_blocks,
              "%u slots", e->plan.n_kv_slots);
    CHECK_MSG(strstr(e->texts.io, "3 threads"), "%s", e->texts.io); /* half of the ring */
    spw_engine_close(e);
}

/* One request at a time by one thread: requests are over in the order in which they were begun. */
static void check_order(const char *dir, uint64_t tiles_a_request, uint64_t seed)
{
    static struct list got, expected;
    static int32_t ids[CONTEXT];
    struct spw_plan_info info;
    struct spw_error err = {0};
    struct spw_io_fault hook = {.completed = completed, .context = &got};
    struct spw_backend b = run_backend(true);
    struct spw_drive drive = drive_of(1, tiles_a_request * TILE_BYTES);
    got.n = expected.n = 0;
    got.fd = -1;
    b.io_fault = &hook;
    run_ids(ids, CONTEXT, model.vocab, seed);
    struct spw_options o = options(&b, dir, &drive);
    o.prefetch_slots = 3;
    CHECK_MSG(!spw_plan_query_on(&info, &b, dir, &o, &err), "%s", err.text);
    o.device_bytes = info.smallest_device_bytes;
    struct spw_engine *e = run_open_on(&b, dir, &o);
    struct spw_session *s = run_session(e);
    CHECK_MSG(e->plan.tile_bytes == TILE_BYTES && strstr(e->texts.io, "1 threads"),
              "%llu bytes, %s", (unsigned long long)e->plan.tile_bytes, e->texts.io);
    for (int i = 0; i <= N_STEPS; i++) {
        run_to(s, e, ids, (size_t)(N_PROMPT + i));
        if (i)
            expect_step(&expected, e, s, tiles_a_request);
    }
    spw_session_close(s);
    spw_engine_close(e);
    CHECK_MSG(expected.n > N_STEPS * N_LAYERS * 3 && got.n >= expected.n, "%zu of %zu", got.n,
              expected.n);
    for (size_t i = 0, skip = got.n - expected.n; got.n >= expected.n && i < expected.n; i++) {
        const struct request *is = &got.at[skip + i], *should = &expected.at[i];
        CHECK_MSG(is->offset == should->offset && is->bytes == should->bytes,
                  "request %zu: %llu bytes at %llu, expected %llu at %llu", i,
                  (unsigned long long)is->bytes, (unsigned long long)is->offset,
                  (unsigned long long)should->bytes, (unsigned long long)should->offset);
    }
}

int main(void)
{
    uint64_t seed = check_seed();
    char dir[128];
    run_folder(dir, &model, "io_rules");
    for (int i = 0; i < 1000; i++) {
        check_cuts(&seed);
        check_slabs(&seed);
    }
    check_in_flight();
    check_for_experts();
    check_depth(1);
    check_depth(5);
    check_sums_last();
    check_ring(dir);
    check_engine(dir);
    check_order(dir, 3, seed);
    check_order(dir, SPW_SPLIT_TILES, seed); /* a slot in one request */
    tiny_model_remove(dir);
    return check_done();
}
