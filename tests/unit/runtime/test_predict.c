/* Predicted seconds against sums by hand: bytes over bandwidth on each link; the slowest link
 * decides; on the CPU copies and I/O take cores and memory bandwidth from computation; a ring
 * limits the bytes that can be in flight. */
#include "runtime/measure.h"
#include "runtime/plan_query.h"
#include "tests/check.h"

#include <math.h>
#include <string.h>

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b); /* a few roundings */
}

static const struct spw_machine cpu = {
    .threads = 2,
    .cores = 2,
    .read_bytes_per_second = 50e9,
    .copy_bytes_per_second = 10e9,
    .read_beside_bytes_per_second = 25e9, /* one thread's */
    .copy_beside_bytes_per_second = 10e9,
    .bf16_products = {[SPW_DTYPE_BF16] = {{1 / 50e9, 1 / 50e9, 0}},
                      [SPW_DTYPE_Q4_K] = {{1 / 40e9, 1e-10, 1e-3}}},
    .f32_products =
        {[SPW_DTYPE_BF16] = {{1 / 40e9, 1 / 40e9, 0}}, [SPW_DTYPE_F32] = {{1 / 20e9, 2e-10, 2e-3}}},
    .bf16_flops = 1e12,
    .f32_flops = 5e11,
    .int8_flops = 2e12,
    .attention_flops = 2.5e11};
static const struct spw_machine gpu = {
    .gpu = "card",
    .threads = 8,
    .cores = 8,
    .read_bytes_per_second = 500e9,
    .copy_bytes_per_second = 25e9,
    .read_beside_bytes_per_second = 500e9,
    .copy_beside_bytes_per_second = 25e9,
    .bf16_products[SPW_DTYPE_BF16][0] = {1 / 500e9, 1 / 500e9, 0}};
static const struct spw_drive drive = {.request_bytes = 1000000,
                                       .read_bytes_per_second = 2e9,
                                       .write_bytes_per_second = 1e9,
                                       .cpu_seconds_per_byte = 1e-10,
                                       .few_seconds = 3 / 2e3, /* only their bytes take time */
                                       .many_seconds = 12 / 2e3};

/* read: bytes that computation reads; up, down: over the link; from, to: the disk */
static struct spw_plan_info plan(double read, double up, double down, double from, double to)
{
    struct spw_plan_info p = {.decode_read_bytes = (uint64_t)read, .compute = SPW_DTYPE_BF16};
    uint64_t *moved = p.decode_moved_bytes;
    moved[SPW_MOVED_HOST_TO_DEVICE] = (uint64_t)up;
    moved[SPW_MOVED_DEVICE_TO_HOST] = (uint64_t)down;
    moved[SPW_MOVED_DISK_TO_HOST] = (uint64_t)from;
    moved[SPW_MOVED_HOST_TO_DISK] = (uint64_t)to;
    memcpy(p.prefill_moved_bytes, moved, sizeof p.prefill_moved_bytes);
    return p;
}

/* `seconds`: without the handover of the logits. */
static void check(const struct spw_plan_info *p, const struct spw_machine *m,
                  const struct spw_drive *d, double seconds, enum spw_bound bound)
{
    seconds += m->handover_seconds;
    struct spw_prediction got;
    spw_predict_step(&got, p, m, d);
    CHECK_MSG(near(got.seconds, seconds) && got.bound == bound, "%g s by %s, expected %g by %s",
              got.seconds, spw_bound_name(got.bound), seconds, spw_bound_name(bound));
}

static void test_cpu(void)
{
    /* Nothing moves: 5 GB at 50 GB/s. */
    struct spw_plan_info p = plan(5e9, 0, 0, 0, 0);
    check(&p, &cpu, NULL, 0.1, SPW_BOUND_COMPUTE);
    /* 0.5 GB copied takes one of the two cores for 0.05 s: 0.1 x 2 + 0.05 core-seconds. */
    p = plan(5e9, 4e8, 1e8, 0, 0);
    check(&p, &cpu, NULL, 0.125, SPW_BOUND_COMPUTE);
    /* One thread computes, the other core copies: computation loses nothing. */
    struct spw_machine one = cpu;
    one.threads = 1;
    one.read_beside_bytes_per_second = 50e9;
    check(&p, &one, NULL, 0.1, SPW_BOUND_COMPUTE);
    /* The memory is too slow for both: the copy takes 0.1 s, in which a quarter is read of what
     * takes 0.4 s beside it. */
    struct spw_machine slow = cpu;
    slow.read_beside_bytes_per_second = 12.5e9;
    slow.copy_beside_bytes_per_second = 5e9;
    check(&p, &slow, NULL, 0.1 + 0.75 * 0.1, SPW_BOUND_COMPUTE);
    /* The copy takes longer: 0.6 s beside computation, which is over after 0.2. */
    slow = cpu;
    slow.copy_beside_bytes_per_second = 5e9;
    p = plan(5e9, 3e9, 0, 0, 0);
    check(&p, &slow, NULL, 0.2 + 2.0 / 3 * 0.3, SPW_BOUND_LINK);
    /* 3 GB copied by one thread: 0.3 s, computation (0.1 x 2 + 0.3) / 2 = 0.25 s. */
    p = plan(5e9, 3e9, 0, 0, 0);
    check(&p, &cpu, NULL, 0.3, SPW_BOUND_LINK);
    /* 1 GB from a drive that reads 2 GB/s; 0.1 s of I/O threads in 0.3 core-seconds in all. */
    p = plan(5e9, 0, 0, 1e9, 0);
    check(&p, &cpu, &drive, 0.5, SPW_BOUND_DISK);
    /* Reading and writing share the drive: 0.05 + 0.05 s; its threads take 0.015 core-seconds. */
    p = plan(5e9, 0, 0, 1e8, 5e7);
    check(&p, &cpu, &drive, (0.2 + 0.015) / 2, SPW_BOUND_COMPUTE);
    /* More threads than cores do not add cores. */
    struct spw_machine many = cpu;
    many.threads = 16;
    check(&p, &many, &drive, (0.2 + 0.015) / 2, SPW_BOUND_COMPUTE);
}

static void give_weights(struct spw_plan_info *p, double bytes)
{
    p->weights_bytes = p->decode_weights_bytes = (uint64_t)bytes;
    p->decode_products_of[SPW_DTYPE_BF16].dense.bytes = (uint64_t)bytes;
}

/* 4 GB of weights, 1 GB of exact KV and 0.5 GB of old KV. */
static void test_kernels(void)
{
    struct spw_machine m = cpu;
    struct spw_plan_info p = plan(5.5e9, 0, 0, 0, 0);
    give_weights(&p, 4e9);
    p.precision = SPW_KV_INT4;
    p.decode_old_kv_bytes = (uint64_t)5e8;
    p.decode_products = (uint64_t)1e9;
    p.decode_old_products = (uint64_t)2e9;
    check(&p, &m, NULL, 5.5 / 50, SPW_BOUND_COMPUTE); /* kernels keep up with memory */
    m.bf16_products[SPW_DTYPE_BF16][0].byte_seconds = 1 / 20e9;
    check(&p, &m, NULL, 4.0 / 20 + 1.5 / 50, SPW_BOUND_COMPUTE);
    m.attention[SPW_KV_EXACT].byte_seconds = 1e-11; /* 0.01 s, memory takes 0.02 */
    m.attention[SPW_KV_INT4].byte_seconds = 1e-10;  /* 0.05 + 0.06 s, memory takes 0.01 */
    m.attention[SPW_KV_INT4].product_seconds = 3e-11;
    check(&p, &m, NULL, 0.2 + 0.02 + 0.11, SPW_BOUND_COMPUTE);
    m.attention[SPW_KV_EXACT].product_seconds = 2e-11; /* 0.01 + 0.02 */
    check(&p, &m, NULL, 0.2 + 0.03 + 0.11, SPW_BOUND_COMPUTE);
    p.compute = SPW_DTYPE_F32;
    check(&p, &m, NULL, 0.1 + 0.03 + 0.11, SPW_BOUND_COMPUTE);
}

static const double MIB = 1 << 20;

/* The number of slots that a step fills, in a ring of n. */
static void give_slots(struct spw_plan_info *p, double slots, double bytes, uint32_t n,
                       double slot_bytes)
{
    p->decode_slots = (uint64_t)slots;
    p->decode_slot_bytes = (uint64_t)bytes;
    p->prefetch_slots = n;
    p->device.kv_slots = n * (uint64_t)slot_bytes;
}

/* A request takes 1 ms and the time of its bytes at 2 GiB/s; many requests together take only the
 * time of their bytes. */
static const struct spw_drive late = {.request_bytes = 1 << 20,
                                      .latency_seconds = 1e-3 + 1 / 2048.0,
                                      .read_bytes_per_second = 2048.0 * (1 << 20),
                                      .write_bytes_per_second = 1e9,
                                      .small_request_bytes = 1 << 16,
                                      .small_latency_seconds = 1e-3 + 1 / 16.0 / 2048,
                                      .small_read_bytes_per_second = 2048.0 * (1 << 20)};

/* The cycle of a slot: the request, the computation, and a handover. */
static void test_ring(void)
{
    struct spw_drive d = late;
    struct spw_machine m = cpu;
    struct spw_plan_info p = plan(512 * MIB, 0, 0, 512 * MIB, 0);
    m.handover_seconds = 1e-4;
    check(&p, &m, &d, 0.25, SPW_BOUND_DISK);    /* a plan without a ring */
    give_slots(&p, 128, 512 * MIB, 4, 4 * MIB); /* slots of several requests: enough */
    check(&p, &m, &d, 0.25, SPW_BOUND_DISK);
    give_slots(&p, 2048, 512 * MIB, 4, MIB / 4); /* slots of a quarter of a request */
    double round = 1e-3 + 0.25 / 2048 + 1e-4 + MIB / 4 / 50e9;
    check(&p, &m, &d, 512 * round, SPW_BOUND_DISK);
    give_slots(&p, 4096, 512 * MIB, 4, MIB / 4); /* half full, on the average */
    check(&p, &m, &d, 1024 * (round - 0.125 / 2048 - MIB / 8 / 50e9), SPW_BOUND_DISK);
    give_slots(&p, 128, 512 * MIB, 4, 4 * MIB); /* the drive fills bounce buffers */
    p.host.disk_staging = 4 << 20;              /* one of 4 MiB, copied at 10 GB/s */
    round = 1e-3 + 4 / 2048.0 + 1e-4 + 4 * MIB / 10e9;
    check(&p, &m, &d, 128 * round, SPW_BOUND_DISK);
}

/* 0.1 ms a request beside its bytes, however many are in flight. */
static void test_small_requests(void)
{
    struct spw_drive d = late;
    struct spw_plan_info p = plan(512 * MIB, 0, 0, 512 * MIB, 0);
    d.read_bytes_per_second = MIB / (1e-4 + 1 / 2048.0);
    d.small_read_bytes_per_second = MIB / 16 / (1e-4 + 1 / 16.0 / 2048);
    give_slots(&p, 2048, 512 * MIB, 64, MIB / 4); /* linear between the two measured sizes */
    check(&p, &cpu, &d, 2048 * (1e-4 + 0.25 / 2048), SPW_BOUND_DISK);
    give_slots(&p, 16384, 512 * MIB, 64, MIB / 32); /* smaller than both sizes */
    check(&p, &cpu, &d, 16384 * (1e-4 + 1 / 32.0 / 2048), SPW_BOUND_DISK);
    /* The same with the cores of the I/O threads: 0.2 ms for each request of any size. */
    d = late;
    d.cpu_seconds_per_byte = 2e-4 / MIB;
    d.small_cpu_seconds_per_byte = 2e-4 / MIB * 16;
    p = plan(50e9, 0, 0, 512 * MIB, 0);
    give_slots(&p, 2048, 512 * MIB, 64, MIB / 4);
    check(&p, &cpu, &d, 1 + 2048 * 2e-4 / 2, SPW_BOUND_COMPUTE);
    /* And with the threads that hand a slot over. */
    struct spw_machine m = cpu;
    m.handover_core_seconds = 3e-4;
    check(&p, &m, &d, 1 + 2048 * 5e-4 / 2, SPW_BOUND_COMPUTE);
}

/* 4 layers of 250 MB of weights, read in 5 ms each; 3 of 4 slots of 1 MiB fill in 1.5 ms. */
static void test_stand_still(void)
{
    struct spw_drive d = late;
    d.latency_seconds = d.small_latency_seconds = 1e-3;
    d.read_bytes_per_second = d.small_read_bytes_per_second = 2000 * MIB;
    struct spw_plan_info p = plan(1.5e9, 0, 0, 200 * MIB, 0);
    p.n_layers = 4;
    give_weights(&p, 1e9);
    give_slots(&p, 200, 200 * MIB, 4, MIB);
    check(&p, &cpu, &d, 0.1 + 4 * (0.005 - 0.0015), SPW_BOUND_DISK);
    give_slots(&p, 50, 200 * MIB, 4, 4 * MIB); /* 6 ms to fill: the drive is never idle */
    check(&p, &cpu, &d, 0.1, SPW_BOUND_DISK);
}

/* Each type has its speed: 1 GB at 50 GB/s; 0.4 GB at 40 GB/s and 30 products of 1 ms. */
static void test_types(void)
{
    struct spw_plan_info p = plan(1.4e9, 0, 0, 0, 0);
    give_weights(&p, 1e9);
    p.decode_weights_bytes = (uint64_t)1.4e9;
    p.decode_products_of[SPW_DTYPE_Q4_K].dense.bytes = (uint64_t)4e8;
    p.decode_products_of[SPW_DTYPE_Q4_K].dense.n = 30;
    check(&p, &cpu, NULL, 0.02 + 0.01 + 0.03, SPW_BOUND_COMPUTE);
    p.decode_products_of[SPW_DTYPE_Q4_K].dense.short_bytes = (uint64_t)1e8; /* at 10 GB/s */
    check(&p, &cpu, NULL, 0.02 + 0.0075 + 0.01 + 0.03, SPW_BOUND_COMPUTE);
    p.decode_products_of[SPW_DTYPE_Q4_K].dense.short_bytes = (uint64_t)4e8;
    check(&p, &cpu, NULL, 0.02 + 0.04 + 0.03, SPW_BOUND_COMPUTE);
    p.decode_products_of[SPW_DTYPE_F32].dense.bytes = (uint64_t)1e8; /* routers, as f32 */
    p.decode_products_of[SPW_DTYPE_F32].dense.n = 10;
    check(&p, &cpu, NULL, 0.02 + 0.04 + 0.03 + 0.005 + 0.02, SPW_BOUND_COMPUTE);
}

/* 1 GB at 50 GB/s; 100 operations of 10 us on 2,000 numbers of 1 ns each. */
static void test_rows(void)
{
    struct spw_machine m = cpu;
    struct spw_plan_info p = plan(1e9, 0, 0, 0, 0);
    give_weights(&p, 1e9);
    m.row_operation_seconds = 1e-5;
    m.row_number_seconds = 1e-9;
    p.decode_row_operations = 100;
    p.decode_row_numbers = 200000;
    check(&p, &m, NULL, 0.02 + 1e-3 + 2e-4, SPW_BOUND_COMPUTE);
}

/* 500 MB of weights in 10 ms, and 500 MB of experts in 10 ms: 50 layers use 2 experts of 5 MB each,
 * 0.1 ms. A token misses 200 MB from the drive: each expert with a chance of 0.4, in 2.5 ms. So in
 * 0.16 of the layers both are missed, 5 ms, beside which the first one computes, and in 0.48 one,
 * 2.5 ms, beside which the other computes. */
static void test_experts(void)
{
    struct spw_plan_info p = plan(1e9, 0, 0, 0, 0);
    give_weights(&p, 5e8);
    p.decode_weights_bytes = (uint64_t)1e9;
    p.decode_products_of[SPW_DTYPE_BF16].experts.bytes = p.decode_expert_bytes = (uint64_t)5e8;
    p.n_expert_layers = 50;
    p.n_experts_kept = 2;
    check(&p, &cpu, &drive, 0.02, SPW_BOUND_COMPUTE);
    p.decode_expert_disk_bytes = (uint64_t)2e8;
    const double alone = 50 * (0.16 * 0.0049 + 0.48 * 0.0024);
    check(&p, &cpu, &drive, 0.02 + alone, SPW_BOUND_DISK);
    check(&p, &cpu, NULL, 0.02, SPW_BOUND_COMPUTE); /* the drive is not known */
    /* A burst takes 1 ms longer than its bytes: once a layer that misses. */
    struct spw_drive slow = drive;
    slow.few_seconds += 0.001;
    slow.many_seconds += 0.001;
    check(&p, &cpu, &slow, 0.02 + alone + 50 * 0.64 * 0.001, SPW_BOUND_DISK);
    /* Bursts are served at half of the rate that requests in a row reach. */
    slow.few_seconds = drive.few_seconds * 2;
    slow.many_seconds = drive.many_seconds * 2;
    check(&p, &cpu, &slow, 0.02 + alone + 50 * (0.16 * 0.005 + 0.48 * 0.0025), SPW_BOUND_DISK);
    slow.many_seconds = slow.few_seconds; /* and never less than a small request takes */
    slow.few_seconds = slow.many_seconds = 1e-6;
    slow.small_latency_seconds = 0.003;
    check(&p, &cpu, &slow, 0.02 + 50 * (0.16 * 0.003 + 0.48 * 0.0029), SPW_BOUND_DISK);
    /* Each layer's choice goes to the host, and 0.64 of the layers wait for the drive. */
    struct spw_machine m = cpu;
    m.handover_seconds = 1e-4;
    p.n_experts = 400;
    p.n_experts_resident = 200;
    check(&p, &m, &drive, 0.02 + alone + 0.005 * 1.64, SPW_BOUND_DISK);
    /* 300 MB from the host, too: all are missed, 200 MB in 100 ms and 300 MB in 30. One
     * of two experts computes meanwhile, 0.1 ms in each layer. */
    p.decode_expert_host_bytes = (uint64_t)3e8;
    check(&p, &cpu, &drive, 0.02 + 0.13 - 0.005, SPW_BOUND_DISK);
    p.decode_expert_disk_bytes = 0;
    p.decode_expert_host_bytes = (uint64_t)5e8;
    check(&p, &cpu, &drive, 0.02 + 0.05 - 0.005, SPW_BOUND_LINK);
    /* Copies of 0.05 ms: computation waits only for the first of a layer. */
    m = cpu;
    m.copy_bytes_per_second = m.copy_beside_bytes_per_second = 100e9;
    check(&p, &m, &drive, 0.02 + 50 * 0.00005, SPW_BOUND_COMPUTE);
}

static void test_gpu(void)
{
    /* Both directions at once, and computation loses nothing. */
    struct spw_plan_info p = plan(50e9, 2e9, 2.4e9, 1e8, 0);
    check(&p, &gpu, &drive, 0.1, SPW_BOUND_COMPUTE);
    p = plan(50e9, 5e9, 4e9, 1e8, 0);
    check(&p, &gpu, &drive, 0.2, SPW_BOUND_LINK);
    p = plan(50e9, 5e9, 0, 5e8, 1e8);
    check(&p, &gpu, &drive, 0.35, SPW_BOUND_DISK);
}

static void test_prompt(void)
{
    const struct spw_prompt_work many = {4e11, 0, 1}, few = {1, 0, 1}, huge = {1e30, 1e30, 1};
    const struct spw_prompt_work attends = {4e11, 1e11, 1};
    struct spw_prediction got;
    struct spw_plan_info p = plan(0, 0, 0, 0, 1e8);
    p.compute = SPW_DTYPE_BF16;
    p.weights_bytes = p.decode_weights_bytes = (uint64_t)1e9;
    spw_predict_prompt(&got, &p, &many, &cpu, &drive); /* 0.4 s x 2 + 0.01 of I/O on two cores */
    CHECK(near(got.seconds, 0.405) && got.bound == SPW_BOUND_COMPUTE);
    p.int8_activations = true;
    spw_predict_prompt(&got, &p, &many, &cpu, NULL);
    CHECK(near(got.seconds, 0.2));
    struct spw_machine unknown = cpu;
    unknown.int8_flops = 0; /* that of bf16 counts */
    spw_predict_prompt(&got, &p, &many, &unknown, NULL);
    CHECK(near(got.seconds, 0.4));
    p.compute = SPW_DTYPE_F32;
    spw_predict_prompt(&got, &p, &many, &cpu, NULL);
    CHECK(near(got.seconds, 0.8));
    spw_predict_prompt(&got, &p, &attends, &cpu, NULL); /* attention in f32: at the peak */
    CHECK(near(got.seconds, 1.0));
    p.compute = SPW_DTYPE_BF16;
    spw_predict_prompt(&got, &p, &attends, &cpu, NULL); /* 0.2 s of products, 0.4 of attention */
    CHECK(near(got.seconds, 0.6));
    unknown.attention_flops = 0;
    spw_predict_prompt(&got, &p, &attends, &unknown, NULL); /* both at the peak of bf16 */
    CHECK(near(got.seconds, 0.5));
    spw_predict_prompt(&got, &p, &few, &cpu, NULL); /* few tokens: the weights are read once */
    CHECK(near(got.seconds, 0.02));
    spw_predict_prompt(&got, &p, &huge, &gpu, &drive); /* no known peak: the bytes alone */
    CHECK(near(got.seconds, 0.1) && got.bound == SPW_BOUND_DISK);
}

/* 400 MB of Q4_K in 30 products: 40 ms for one row, 80 for 4, 122 for 8, 470 for 128. */
static const double rows_4 = 0.08, rows_8 = 0.122, rows_128 = 0.47;

static struct spw_plan_info plan_of_rows(struct spw_machine *m)
{
    const struct spw_product_speed rows[] = {
        {5e-11, 1, 2e-3}, {8e-11, 1, 3e-3}, {8e-10, 1, 5e-3}}; /* no row of weights is short */
    struct spw_plan_info p = plan(4e8, 0, 0, 0, 0);
    p.weights_bytes = p.decode_weights_bytes = (uint64_t)4e8;
    p.decode_products_of[SPW_DTYPE_Q4_K].dense.bytes = (uint64_t)4e8;
    p.decode_products_of[SPW_DTYPE_Q4_K].dense.n = 30;
    p.int8_activations = true;
    memcpy(&m->bf16_products[SPW_DTYPE_Q4_K][1], rows, sizeof rows);
    return p;
}

/* 250 tokens in passes of 100: three of 83 1/3 rows. */
static void test_prompt_rows(void)
{
    const struct spw_prompt_work work = {4e11, 1e11, 250}, few = {4e9, 0, 3};
    struct spw_machine m = cpu;
    struct spw_prediction got;
    struct spw_plan_info p = plan_of_rows(&m);
    p.prefill_chunk = 100;
    spw_predict_prompt(&got, &p, &work, &cpu, NULL);
    CHECK(near(got.seconds, 0.2 + 0.4)); /* not measured: the peak */
    const double flops = 2.0 * 4e8 / 144 * 256, share = 4e11 / (250 * flops), attention = 0.4;
    const double others = rows_8 + (rows_128 - rows_8) * (250 / 3.0 - 8) / 120 - 0.04;
    spw_predict_prompt(&got, &p, &work, &m, NULL);
    CHECK(near(got.seconds, 3 * (0.04 + others * share) + attention));
    /* The same multiplications again with weights of another type: 0.1 s with several rows. */
    const uint64_t bytes = (uint64_t)4e8 / 144 * 512;
    struct spw_product_speed *bf16 = m.bf16_products[SPW_DTYPE_BF16];
    p.decode_products_of[SPW_DTYPE_BF16].dense.bytes = bytes;
    bf16[0] = (struct spw_product_speed){0};
    spw_predict_prompt(&got, &p, &work, &m, NULL);
    CHECK(near(got.seconds, 0.2 + 0.4)); /* one type was not measured */
    for (int i = 1; i < SPW_ROW_COUNTS; i++)
        bf16[i] = (struct spw_product_speed){0.1 / (double)bytes, 1, 0};
    spw_predict_prompt(&got, &p, &work, &m, NULL);
    const double both = 3 * (0.04 + (others + 0.1) * share / 2) + attention;
    CHECK(fabs(got.seconds - both) < 1e-6);
    p.decode_row_numbers = 1000000; /* shared by two threads */
    m.row_number_seconds = 1e-9;
    spw_predict_prompt(&got, &p, &work, &m, NULL);
    CHECK(fabs(got.seconds - both - 0.125) < 1e-6);
    /* Three rows choose 2 of 8 experts each: 8 * (1 - 0.75^3) experts are read, 2 at 10 ms. They
     * have 6 rows together: 20 ms for 2 with four rows each. */
    p = plan(0, 0, 0, 0, 0);
    p.prefill_chunk = 100;
    p.n_experts = 16;
    p.n_expert_layers = p.n_experts_kept = 2;
    p.decode_products_of[SPW_DTYPE_Q4_K].experts.bytes = (uint64_t)4e8;
    const double experts = 4 * (1 - 0.75 * 0.75 * 0.75), rows = 3 / experts;
    spw_predict_prompt(&got, &p, &few, &m, NULL);
    CHECK(near(got.seconds, experts * (0.01 + 0.01 * (rows - 1) / 3 * 4e9 / (3 * flops))));
}

static void test_step_rows(void)
{
    struct spw_machine m = cpu;
    struct spw_plan_info p = plan_of_rows(&m);
    const double flops = 2.0 * 4e8 / 144 * 256;
    p.decode_rows = 1;
    check(&p, &m, NULL, 0.01 + 0.03, SPW_BOUND_COMPUTE);
    p.decode_rows = 3; /* not measured: the peak, which the first row alone does not reach */
    struct spw_machine unknown = cpu;
    check(&p, &unknown, NULL, 0.01 + 0.03, SPW_BOUND_COMPUTE);
    unknown.int8_flops = 2e10;
    check(&p, &unknown, NULL, 3 * flops / 2e10, SPW_BOUND_COMPUTE);
    /* Measured: straight lines between the counts, and beyond them. */
    check(&p, &m, NULL, 0.04 + (rows_4 - 0.04) * 2 / 3, SPW_BOUND_COMPUTE);
    p.decode_rows = 4;
    check(&p, &m, NULL, rows_4, SPW_BOUND_COMPUTE);
    p.decode_rows = 6;
    check(&p, &m, NULL, (rows_4 + rows_8) / 2, SPW_BOUND_COMPUTE);
    p.decode_rows = 128;
    check(&p, &m, NULL, rows_128, SPW_BOUND_COMPUTE);
    p.decode_rows = 188;
    check(&p, &m, NULL, rows_128 + (rows_128 - rows_8) / 2, SPW_BOUND_COMPUTE);
    /* More rows never take less time, whatever was measured. */
    m.bf16_products[SPW_DTYPE_Q4_K][1] = (struct spw_product_speed){1e-12, 1, 0};
    p.decode_rows = 4;
    check(&p, &m, NULL, 0.04, SPW_BOUND_COMPUTE);
    /* Experts, 2 of 8 for a row, as in the pass of a prompt; nothing else. */
    p = plan_of_rows(&m);
    p.n_experts = p.n_experts_resident = 16;
    p.n_expert_layers = p.n_experts_kept = 2;
    p.decode_products_of[SPW_DTYPE_Q4_K].experts = p.decode_products_of[SPW_DTYPE_Q4_K].dense;
    p.decode_products_of[SPW_DTYPE_Q4_K].dense.bytes = 0;
    p.decode_products_of[SPW_DTYPE_Q4_K].dense.n = 0;
    p.decode_rows = 3;
    const double experts = 4 * (1 - 0.75 * 0.75 * 0.75), rows = 3 / experts;
    check(&p, &m, NULL, experts * (0.04 + (rows_4 - 0.04) * (rows - 1) / 3), SPW_BOUND_COMPUTE);
}

int main(void)
{
    test_cpu();
    test_kernels();
    test_ring();
    test_small_requests();
    test_stand_still();
    test_types();
    test_rows();
    test_experts();
    test_gpu();
    test_prompt();
    test_prompt_rows();
    test_step_rows();
    CHECK(!strcmp(spw_bound_name(SPW_BOUND_COMPUTE), "computation"));
    CHECK(!strcmp(spw_bound_name(SPW_BOUND_LINK), "host link"));
    CHECK(!strcmp(spw_bound_name(SPW_BOUND_DISK), "disk"));
    return check_done();
}
