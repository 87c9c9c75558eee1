/* Predicted seconds against sums by hand: the longer of bytes and multiplications; the slowest link
 * decides; on a CPU copies take cores from computation; what cannot overlap is added. */
#include "runtime/measure.h"
#include "runtime/rules/host_rows.h"
#include "runtime/plan_query.h"
#include "tests/check.h"

#include <math.h>
#include <string.h>

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b); /* a few roundings */
}

static const struct spw_machine cpu = {
    .threads = 2,
    .cores = 2,
    .read_bytes_per_second = 50e9,
    .copy_bytes_per_second = 10e9,
    .few_flops = {20e9, 50e9, 100e9, 1e9},
    .many_flops = {5e11, 1e12, 2e12, 25e10},
};
static const struct spw_machine gpu = {.gpu = "card",
                                       .threads = 8,
                                       .cores = 8,
                                       .read_bytes_per_second = 500e9,
                                       .copy_bytes_per_second = 25e9,
                                       .many_flops = {1e13, 1e14, 1e14, 1e13}};
static const struct spw_drive drive = {.request_bytes = 1000000,
                                       .read_bytes_per_second = 2e9,
                                       .write_bytes_per_second = 1e9,
                                       .small_request_bytes = 100000,
                                       .small_read_bytes_per_second = 1e9,
                                       .latency_seconds = 1e-3};

/* read: bytes that computation reads; up, down: over the link; from, to: the disk */
static struct spw_plan_info plan(double read, double up, double down, double from, double to)
{
    struct spw_plan_info p = {
        .decode_read_bytes = (uint64_t)read, .compute = SPW_DTYPE_BF16, .n_layers = 1};
    uint64_t *moved = p.decode_moved_bytes;
    moved[SPW_MOVED_HOST_TO_DEVICE] = (uint64_t)up;
    moved[SPW_MOVED_DEVICE_TO_HOST] = (uint64_t)down;
    moved[SPW_MOVED_DISK_TO_HOST] = (uint64_t)from;
    moved[SPW_MOVED_HOST_TO_DISK] = (uint64_t)to;
    memcpy(p.prefill_moved_bytes, moved, sizeof p.prefill_moved_bytes);
    return p;
}

/* All that is read is weights, n numbers, quantized or not. */
static void give_weights(struct spw_plan_info *p, double n, bool quantized)
{
    p->weights_bytes = p->decode_weights_bytes = p->decode_read_bytes;
    p->decode_weights = (uint64_t)n;
    p->decode_quantized_weights = quantized ? (uint64_t)n : 0;
    p->int8_activations = quantized;
}

static void check(const struct spw_plan_info *p, const struct spw_machine *m,
                  const struct spw_drive *d, double seconds, enum spw_bound bound)
{
    struct spw_prediction got;
    spw_predict_step(&got, p, m, d);
    CHECK_MSG(near(got.seconds, seconds) && got.bound == bound, "%g s by %s, expected %g by %s",
              got.seconds, spw_bound_name(got.bound), seconds, spw_bound_name(bound));
}

static void check_prompt(const struct spw_plan_info *p, const struct spw_prompt_work *work,
                         const struct spw_machine *m, const struct spw_drive *d, double seconds,
                         enum spw_bound bound)
{
    struct spw_prediction got;
    spw_predict_prompt(&got, p, work, m, d);
    CHECK_MSG(near(got.seconds, seconds) && got.bound == bound, "%g s by %s, expected %g by %s",
              got.seconds, spw_bound_name(got.bound), seconds, spw_bound_name(bound));
}

static void test_links(void)
{
    /* Nothing moves: 5 GB at 50 GB/s. */
    struct spw_plan_info p = plan(5e9, 0, 0, 0, 0);
    check(&p, &cpu, NULL, 0.1, SPW_BOUND_COMPUTE);
    /* 0.5 GB copied takes one of the two cores for 0.05 s. */
    p = plan(5e9, 4e8, 1e8, 0, 0);
    check(&p, &cpu, NULL, 0.1 + 0.05 / 2, SPW_BOUND_COMPUTE);
    /* On a GPU it takes none, and the two directions do not disturb each other. */
    check(&p, &gpu, NULL, 0.4 / 25, SPW_BOUND_LINK);
    /* 3 GB copied by one thread: 0.3 s, computation 0.1 + 0.15 s. */
    p = plan(5e9, 3e9, 0, 0, 0);
    check(&p, &cpu, NULL, 0.3, SPW_BOUND_LINK);
    /* 1 GB from a drive that reads 2 GB/s; reading and writing share the drive. */
    p = plan(5e9, 0, 0, 1e9, 0);
    check(&p, &cpu, &drive, 0.5, SPW_BOUND_DISK);
    p = plan(5e9, 0, 0, 1e9, 5e8);
    check(&p, &cpu, &drive, 0.5 + 0.5, SPW_BOUND_DISK);
    check(&p, &cpu, NULL, 0.1, SPW_BOUND_COMPUTE);
}

/* One row, by what is multiplied; several rows. */
static void test_products(void)
{
    struct spw_plan_info p = plan(2e9, 0, 0, 0, 0);
    give_weights(&p, 1e9, false);
    check(&p, &cpu, NULL, 2e9 / 50e9, SPW_BOUND_COMPUTE); /* bf16: its bytes and its products */
    p.compute = SPW_DTYPE_F32;
    check(&p, &cpu, NULL, 2e9 / 20e9, SPW_BOUND_COMPUTE);
    p.decode_rows = 10; /* still the time of one */
    check(&p, &cpu, NULL, 0.1, SPW_BOUND_COMPUTE);
    p.decode_rows = 100; /* as many rows */
    check(&p, &cpu, NULL, 100 * 2e9 / 5e11, SPW_BOUND_COMPUTE);
    p = plan(5e8, 0, 0, 0, 0);
    give_weights(&p, 1e9, true);
    check(&p, &cpu, NULL, 2e9 / 100e9, SPW_BOUND_COMPUTE); /* int8 */
    p.compute = SPW_DTYPE_F32;
    check(&p, &cpu, NULL, 2e9 / 1e9, SPW_BOUND_COMPUTE); /* taken apart */
    p.compute = SPW_DTYPE_BF16;
    p.decode_quantized_weights /= 2; /* the rest in bf16 */
    check(&p, &cpu, NULL, 1e9 / 100e9 + 1e9 / 50e9, SPW_BOUND_COMPUTE);
    check(&p, &gpu, NULL, 5e8 / 500e9, SPW_BOUND_COMPUTE); /* one row: only its bytes */
    p.decode_rows = 1000;
    check(&p, &gpu, NULL, 1000 * 2e9 / 1e14, SPW_BOUND_COMPUTE);
}

/* 2 GB of exact KV, then of quantized KV: the numbers of a tile take the time of bf16 numbers, on a
 * GPU that of their bytes. Many query heads a KV head: their products. */
static void test_attention(void)
{
    struct spw_plan_info p = plan(2e9, 0, 0, 0, 0);
    check(&p, &cpu, NULL, 0.04, SPW_BOUND_COMPUTE);
    p.precision = SPW_KV_INT4;
    p.decode_old_kv_bytes = (uint64_t)1e9;
    check(&p, &cpu, NULL, 0.02 + 4 * 0.02, SPW_BOUND_COMPUTE);
    check(&p, &gpu, NULL, 0.004, SPW_BOUND_COMPUTE);
    p.decode_products = (uint64_t)1e11;
    check(&p, &cpu, NULL, 4e11 / 1e12, SPW_BOUND_COMPUTE);
    p.compute = SPW_DTYPE_F32;
    check(&p, &cpu, NULL, 4e11 / 5e11, SPW_BOUND_COMPUTE);
}

/* Slots that are smaller than the requests of a drive: 1 ms beside the bytes of a small one, and
 * linear between the two measured sizes (0.1 ms and 0.5 ms). Larger slots are as fast as it goes.
 */
static void test_small_slots(void)
{
    struct spw_plan_info p = plan(0, 0, 0, 1e9, 0);
    p.prefetch_slots = 10;
    p.device.kv_slots = 10 * 550000;
    check(&p, &cpu, &drive, 1e9 / 550000 * 0.3e-3, SPW_BOUND_DISK);
    p.device.kv_slots = 10 * 4000000;
    check(&p, &cpu, &drive, 0.5, SPW_BOUND_DISK);
    p.weights_disk_bytes = (uint64_t)1e9; /* weights come in large requests */
    p.device.kv_slots = 10 * 550000;
    check(&p, &cpu, &drive, 0.5, SPW_BOUND_DISK);
}

/* Four layers' weights take 0.1 s; in each layer the drive fills the other slots in 0.009 s, and
 * then stands still. */
static void test_still(void)
{
    struct spw_plan_info p = plan(5e9, 0, 0, 1e9, 0);
    give_weights(&p, 2.5e9, false);
    p.n_layers = 4;
    p.prefetch_slots = 10;
    p.device.kv_slots = 10 * 2000000;
    check(&p, &cpu, &drive, 0.5 + 0.1 - 4 * 0.009, SPW_BOUND_DISK);
    p.device.kv_slots = 10 * 200000000ull;
    check(&p, &cpu, &drive, 0.5, SPW_BOUND_DISK);
}

/* Two layers with experts: half of 2 GB are theirs; of 8, 2 are used. */
static void test_experts(void)
{
    struct spw_plan_info p = plan(2e9, 0, 0, 0, 0);
    give_weights(&p, 1e9, false);
    p.decode_expert_bytes = (uint64_t)1e9;
    p.n_expert_layers = p.n_experts_kept = 2;
    p.n_experts = 16;
    check(&p, &cpu, NULL, 0.04, SPW_BOUND_COMPUTE);
    p.decode_rows = 2; /* 3.5 of 8 experts: 1.75 times those of one row */
    check(&p, &cpu, NULL, 0.02 + 1.75 * 0.02, SPW_BOUND_COMPUTE);
    p.decode_rows = 1;
    p.decode_expert_host_bytes = (uint64_t)1e8; /* waits for the link */
    check(&p, &cpu, NULL, 0.04 + 0.01, SPW_BOUND_COMPUTE);
    p.decode_expert_disk_bytes = (uint64_t)1e9; /* and for the drive, once a layer */
    check(&p, &cpu, &drive, 0.04 + 0.5 + 2 * 1e-3, SPW_BOUND_DISK);
    check(&p, &cpu, NULL, 0.04 + 0.01, SPW_BOUND_COMPUTE);
    struct spw_machine both = gpu;
    p = plan(2e9, 0, 0, 0, 0);
    p.n_expert_layers = p.n_experts_kept = 2;
    p.n_experts = 16;
    p.decode_expert_host_bytes = (uint64_t)1e9;
    const double link = 1e9 / 25e9, products = 2e9 / gpu.read_bytes_per_second;
    check(&p, &both, NULL, products + link, SPW_BOUND_LINK);
    p.decode_expert_disk_bytes = (uint64_t)2e9; /* cross the link, too; the drive takes longer */
    const struct spw_drive fast = {.read_bytes_per_second = 40e9},
                           slow = {.read_bytes_per_second = 4e9};
    check(&p, &both, &fast, products + 3 * link, SPW_BOUND_LINK);
    check(&p, &both, &slow, products + 0.5, SPW_BOUND_DISK);
    p.decode_expert_disk_bytes = 0;
    both.host_bytes_per_second =
        50e9; /* the host multiplies them, but in steps of few rows alone */
    p.host_rows = 1;
    check(&p, &both, NULL, products + link / 2, SPW_BOUND_COMPUTE);
    p.decode_rows = 2;
    check(&p, &both, NULL, products + link, SPW_BOUND_LINK);
    p = plan(2e9, 0, 0, 0, 0); /* a half of the weights is of layers that the host multiplies */
    p.host_layers_bytes = (uint64_t)1e9;
    p.host_layer_rows = 2;
    check(&p, &both, NULL, products / 2 + 1e9 / 50e9, SPW_BOUND_COMPUTE);
    p.decode_rows = 2;
    check(&p, &both, NULL, products / 2 + 2e9 / 50e9, SPW_BOUND_COMPUTE);
    p.decode_rows = 3;
    check(&p, &both, NULL, products, SPW_BOUND_COMPUTE);
}

/* With 2 of 8 experts a row of 1, 2, 3 rows has 1, 1.14, 1.3 rows of an expert. */
static void test_host_rows(void)
{
    CHECK(spw_host_rows(&(struct spw_host_rates){.host = 0, .link = 10e9}, 8, 2) ==
          8); /* nobody has measured */
    CHECK(spw_host_rows(&(struct spw_host_rates){.host = 10e9, .link = 0}, 8, 2) == 8);
    CHECK(spw_host_rows(&(struct spw_host_rates){.host = 10e9, .link = 0}, 1, 1) == 1); /* layers */
    CHECK(spw_host_rows(&(struct spw_host_rates){.host = 9e9, .link = 10e9}, 8, 2) == 0);
    CHECK(spw_host_rows(&(struct spw_host_rates){.host = 11e9, .link = 10e9}, 8, 2) == 1);
    CHECK(spw_host_rows(&(struct spw_host_rates){.host = 12e9, .link = 10e9}, 8, 2) == 2);
    CHECK(spw_host_rows(&(struct spw_host_rates){.host = 13.5e9, .link = 10e9}, 8, 2) == 3);
    CHECK(spw_host_rows(&(struct spw_host_rates){.host = 1e12, .link = 10e9}, 8, 2) == 16);
    CHECK(spw_host_rows(&(struct spw_host_rates){.host = 15e9, .link = 10e9}, 128, 8) >
          8); /* rows rarely meet */
    CHECK(spw_host_rows(&(struct spw_host_rates){.host = 15e9, .link = 10e9}, 2, 2) == 1);
}

/* The device computes for 10 ms with 2 GB, in which the link brings 100 MB. */
static void test_link_blocks(void)
{
    const struct spw_host_rates r = {.host = 50e9, .link = 10e9, .device = 200e9};
    CHECK(spw_host_link_blocks(&r, 10, (uint64_t)1e9, 0, (uint64_t)2e9) == 1);
    CHECK(spw_host_link_blocks(&r, 10, (uint64_t)1e8, (uint64_t)5e7, (uint64_t)2e9) == 5);
    CHECK(spw_host_link_blocks(&r, 10, (uint64_t)1e8, (uint64_t)1e9, (uint64_t)2e9) == 0);
    CHECK(spw_host_link_blocks(&r, 10, (uint64_t)1.01e9, 0, (uint64_t)2e9) ==
          0); /* no part of one */
    CHECK(spw_host_link_blocks(&r, 10, (uint64_t)2e8, 0, (uint64_t)2e9) == 5);
    CHECK(spw_host_link_blocks(&r, 10, (uint64_t)5e7, 0, (uint64_t)2e9) == 10);
    CHECK(spw_host_link_blocks(&r, 10, (uint64_t)1e9, 0, 0) == 0);
    CHECK(spw_host_link_blocks(&(struct spw_host_rates){0}, 10, (uint64_t)1e9, 0, 1) == 0);
    CHECK(spw_host_link_blocks(&r, 0, 0, 0, (uint64_t)2e9) == 0);
}

/* The host reads five bytes while the link brings one; two rows take twice as long, but those of
 * experts rarely meet. */
static void test_host_cost(void)
{
    const struct spw_host_rates r = {.host = 50e9, .link = 10e9};
    CHECK(spw_host_cost(&r, 1, 1, 1, 1000) == 200 && spw_host_cost(&r, 2, 1, 1, 1000) == 400);
    CHECK(spw_host_cost(&r, 1, 8, 2, 1000) == 200);
    CHECK(spw_host_cost(&r, 2, 8, 2, 1000) > 200 && spw_host_cost(&r, 2, 8, 2, 1000) < 250);
    CHECK(spw_host_cost(&(struct spw_host_rates){0}, 2, 1, 1, 1000) == 1000);
}

static void test_prompt(void)
{
    struct spw_plan_info p = plan(2e9, 0, 1e9, 0, 0);
    struct spw_prompt_work work = {.product_flops = 2e12, .attention_flops = 1e11, .tokens = 1000};
    give_weights(&p, 1e9, false);
    p.prefill_chunk = 250;
    check_prompt(&p, &work, &cpu, NULL, 2 + 0.1 + 0.1 / 2, SPW_BOUND_COMPUTE);
    check_prompt(&p, &work, &gpu, NULL, 1e9 / 25e9, SPW_BOUND_LINK);
    work.product_flops = 1e12; /* half of the weights are the head, which only one token needs */
    check_prompt(&p, &work, &cpu, NULL, 1 + 0.1 + 0.1 / 2, SPW_BOUND_COMPUTE);
    p.prefill_chunk = 1; /* each pass reads all weights */
    check_prompt(&p, &work, &cpu, NULL, 1000 * 0.04 + 0.1 + 0.1 / 2, SPW_BOUND_COMPUTE);
    p = plan(0, 0, 0, 4e9, 1e9); /* the drive */
    check_prompt(&p, &work, &cpu, &drive, 2 + 1, SPW_BOUND_DISK);
}

int main(void)
{
    test_links();
    test_products();
    test_attention();
    test_small_slots();
    test_still();
    test_experts();
    test_host_rows();
    test_link_blocks();
    test_host_cost();
    test_prompt();
    return check_done();
}
