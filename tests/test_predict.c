/* Predicted seconds against sums done by hand: bytes over bandwidth on each link, the slowest link
 * sets the pace, and on the CPU copies and I/O take cores from computation. */
#include "runtime/spillway.h"
#include "tests/check.h"

#include <math.h>
#include <string.h>

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b); /* a few roundings */
}

static const struct spw_machine cpu = {.threads = 2,
                                       .cores = 2,
                                       .read_bytes_per_second = 50e9,
                                       .copy_bytes_per_second = 10e9,
                                       .bf16_flops = 1e12,
                                       .f32_flops = 5e11};
static const struct spw_machine gpu = {.gpu = "card",
                                       .threads = 8,
                                       .cores = 8,
                                       .read_bytes_per_second = 500e9,
                                       .copy_bytes_per_second = 25e9};
static const struct spw_drive drive = {
    .read_bytes_per_second = 2e9, .write_bytes_per_second = 1e9, .cpu_seconds_per_byte = 1e-10};

/* read: what computation reads; up, down: over the link; from, to: the disk */
static struct spw_plan_info plan(double read, double up, double down, double from, double to)
{
    struct spw_plan_info p = {.decode_read_bytes = (uint64_t)read};
    uint64_t *moved = p.decode_moved_bytes;
    moved[SPW_MOVED_HOST_TO_DEVICE] = (uint64_t)up;
    moved[SPW_MOVED_DEVICE_TO_HOST] = (uint64_t)down;
    moved[SPW_MOVED_DISK_TO_HOST] = (uint64_t)from;
    moved[SPW_MOVED_HOST_TO_DISK] = (uint64_t)to;
    memcpy(p.prefill_moved_bytes, moved, sizeof p.prefill_moved_bytes);
    return p;
}

static void check(const struct spw_plan_info *p, const struct spw_machine *m,
                  const struct spw_drive *d, double seconds, enum spw_bound bound)
{
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
    /* One thread computes, the other core copies: nothing is taken. */
    struct spw_machine one = cpu;
    one.threads = 1;
    check(&p, &one, NULL, 0.1, SPW_BOUND_COMPUTE);
    /* 3 GB copied by one thread: 0.3 s, computation (0.1 x 2 + 0.3) / 2 = 0.25 s. */
    p = plan(5e9, 3e9, 0, 0, 0);
    check(&p, &cpu, NULL, 0.3, SPW_BOUND_LINK);
    /* 1 GB from a drive that reads 2 GB/s; 0.1 s of I/O threads in 0.3 core-seconds in all. */
    p = plan(5e9, 0, 0, 1e9, 0);
    check(&p, &cpu, &drive, 0.5, SPW_BOUND_DISK);
    /* Reading and writing share the drive: 0.05 + 0.05 s; its threads take 0.015 core-seconds. */
    p = plan(5e9, 0, 0, 1e8, 5e7);
    check(&p, &cpu, &drive, (0.2 + 0.015) / 2, SPW_BOUND_COMPUTE);
    /* More threads than cores are no more cores. */
    struct spw_machine many = cpu;
    many.threads = 16;
    check(&p, &many, &drive, (0.2 + 0.015) / 2, SPW_BOUND_COMPUTE);
}

/* A request takes 1 ms and its bytes at 2 GiB/s. */
static void test_ring(void)
{
    const double mib = 1 << 20;
    struct spw_drive d = {.request_bytes = 1 << 20,
                          .latency_seconds = 1e-3 + 1 / 2048.0,
                          .read_bytes_per_second = 2048 * mib,
                          .write_bytes_per_second = 1e9};
    struct spw_plan_info p = plan(0, 0, 0, 512 * mib, 0);
    check(&p, &cpu, &d, 0.25, SPW_BOUND_DISK); /* a plan without a ring */
    p.prefetch_slots = 4;
    p.device.kv_slots = 16 << 20; /* slots of several requests: 16 MiB in flight are enough */
    check(&p, &cpu, &d, 0.25, SPW_BOUND_DISK);
    p.device.kv_slots = 1 << 20; /* slots of a quarter of a request */
    check(&p, &cpu, &d, 512 * (1e-3 + 0.25 / 2048), SPW_BOUND_DISK);
    p.device.kv_slots = 16 << 20; /* the bounce buffers are what the drive sees */
    p.host.disk_staging = 1 << 20;
    check(&p, &cpu, &d, 512 * (1e-3 + 0.25 / 2048), SPW_BOUND_DISK);
}

/* 4 layers of 250 MB of weights, read in 5 ms each; 3 of 4 slots of 1 MiB fill in 1.5 ms. */
static void test_stand_still(void)
{
    const double mib = 1 << 20;
    struct spw_drive d = {.request_bytes = 1 << 20,
                          .latency_seconds = 1e-3,
                          .read_bytes_per_second = 2000 * mib,
                          .write_bytes_per_second = 1e9};
    struct spw_plan_info p = plan(1.5e9, 0, 0, 200 * mib, 0);
    p.n_layers = 4;
    p.weights_bytes = (uint64_t)1e9;
    p.prefetch_slots = 4;
    p.device.kv_slots = 4 << 20;
    check(&p, &cpu, &d, 0.1 + 4 * (0.005 - 0.0015), SPW_BOUND_DISK);
    p.device.kv_slots = 16 << 20; /* 6 ms to fill: it does not stand still */
    check(&p, &cpu, &d, 0.1, SPW_BOUND_DISK);
}

static void test_gpu(void)
{
    /* Both directions at once, and nothing is taken from computation. */
    struct spw_plan_info p = plan(50e9, 2e9, 2.4e9, 1e8, 0);
    check(&p, &gpu, &drive, 0.1, SPW_BOUND_COMPUTE);
    p = plan(50e9, 5e9, 4e9, 1e8, 0);
    check(&p, &gpu, &drive, 0.2, SPW_BOUND_LINK);
    p = plan(50e9, 5e9, 0, 5e8, 1e8);
    check(&p, &gpu, &drive, 0.35, SPW_BOUND_DISK);
}

static void test_prompt(void)
{
    struct spw_prediction got;
    struct spw_plan_info p = plan(0, 0, 0, 0, 1e8);
    p.compute = SPW_DTYPE_BF16;
    p.weights_bytes = (uint64_t)1e9;
    spw_predict_prompt(&got, &p, 4e11, &cpu, &drive); /* 0.4 s x 2 + 0.01 of I/O on two cores */
    CHECK(near(got.seconds, 0.405) && got.bound == SPW_BOUND_COMPUTE);
    p.compute = SPW_DTYPE_F32;
    spw_predict_prompt(&got, &p, 4e11, &cpu, NULL);
    CHECK(near(got.seconds, 0.8));
    spw_predict_prompt(&got, &p, 1, &cpu, NULL); /* few tokens: the weights are read once */
    CHECK(near(got.seconds, 0.02));
    spw_predict_prompt(&got, &p, 1e30, &gpu, &drive); /* no known peak: the bytes alone */
    CHECK(near(got.seconds, 0.1) && got.bound == SPW_BOUND_DISK);
}

int main(void)
{
    test_cpu();
    test_ring();
    test_stand_still();
    test_gpu();
    test_prompt();
    CHECK(!strcmp(spw_bound_name(SPW_BOUND_COMPUTE), "computation"));
    CHECK(!strcmp(spw_bound_name(SPW_BOUND_LINK), "host link"));
    CHECK(!strcmp(spw_bound_name(SPW_BOUND_DISK), "disk"));
    return check_done();
}
