/* Products in which each row has the matrix of its expert, through a backend (the CPU's, and as
 * test_cuda_ops_chosen the GPU's): the bits of one call for each row. Every type of weights, both
 * types of x, shapes at random; rows that are all the same one; biases; gate and up of different
 * types. */
#include "model/cpu/ops_cpu.h"
#include "base/numbers.h"
#include "quant/codes.h"
#include "tests/check.h"
#include "tests/engine/engine_run.h"

#include <string.h>

enum { MOST_EXPERTS = 6, MOST_ROWS = 9, THREADS = 3, DRAWS = 60 };

static struct spw_backend backend;
static struct spw_device *device;
static spw_stream stream;
static uint64_t rng;

static size_t draw(size_t low, size_t high)
{
    return (size_t)check_range(&rng, low, high);
}

/* ---- device memory ---- */

struct memory {
    void *at;
    size_t bytes;
};

static struct memory memory_open(size_t bytes)
{
    struct memory m = {.bytes = bytes};
    if (backend.device_ops->alloc(device, bytes, &m.at))
        exit(1);
    return m;
}

static void copy(void *to, const void *from, size_t bytes, enum spw_link link)
{
    CHECK(backend.device_ops->copy(device, to, from, bytes, link, stream) == 0 &&
          backend.device_ops->stream_sync(device, stream) == 0);
}

static struct memory memory_of(const void *host, size_t bytes)
{
    struct memory m = memory_open(bytes);
    copy(m.at, host, bytes, SPW_LINK_HOST_TO_DEVICE);
    return m;
}

static void memory_close(struct memory *m)
{
    backend.device_ops->free(device, m->at, m->bytes);
}

static struct memory bytes_of(size_t bytes)
{
    uint8_t *host = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        host[i] = (uint8_t)check_random(&rng);
    struct memory m = memory_of(host, bytes);
    free(host);
    return m;
}

static struct memory numbers_of(enum spw_dtype type, size_t n)
{
    const size_t bytes = spw_row_bytes(type, n);
    uint8_t *host = malloc(bytes);
    for (size_t i = 0; i < n; i++) {
        const float value = (float)(int)draw(0, 2000) / 1000 - 1;
        const uint16_t narrow = spw_f32_to_bf16(value);
        if (type == SPW_DTYPE_F32)
            memcpy(host + 4 * i, &value, 4);
        else
            memcpy(host + 2 * i, &narrow, 2);
    }
    struct memory m = memory_of(host, bytes);
    free(host);
    return m;
}

/* ---- a problem ---- */

static enum spw_dtype draw_type(enum spw_dtype x)
{
    return draw(0, 3) ? (enum spw_dtype)draw(SPW_DTYPE_Q8_0, SPW_DTYPE_MXFP4) : x;
}

/* The matrices of some experts: bytes at random, which are blocks of any quantized type. */
struct experts {
    enum spw_dtype type;
    struct memory of[MOST_EXPERTS], addresses;
};

static void experts_open(struct experts *e, enum spw_dtype x, size_t n, size_t k)
{
    e->type = draw_type(x);
    for (int i = 0; i < MOST_EXPERTS; i++)
        e->of[i] = spw_type_is_quantized(e->type) ? bytes_of(n * spw_row_bytes(e->type, k))
                                                  : numbers_of(e->type, n * k);
    const void *addresses[MOST_EXPERTS];
    for (int i = 0; i < MOST_EXPERTS; i++)
        addresses[i] = e->of[i].at;
    e->addresses = memory_of(addresses, sizeof addresses);
}

static void experts_close(struct experts *e)
{
    for (int i = 0; i < MOST_EXPERTS; i++)
        memory_close(&e->of[i]);
    memory_close(&e->addresses);
}

struct problem {
    enum spw_dtype dtype;
    size_t m, n, k, x_stride;
    struct experts w, up;
    bool biased;
    struct spw_choice choices[MOST_ROWS];
    struct memory chosen, x, y, want, scratch, workspace, codes, bias; /* bias: [experts][2n] */
};

static void problem_open(struct problem *p)
{
    p->dtype = draw(0, 1) ? SPW_DTYPE_BF16 : SPW_DTYPE_F32;
    p->m = draw(1, MOST_ROWS);
    p->n = draw(1, 300);
    p->k = 256 * draw(1, 3);
    p->x_stride = draw(0, 1) ? p->k : 0;
    experts_open(&p->w, p->dtype, p->n, p->k);
    experts_open(&p->up, p->dtype, p->n, p->k);
    for (size_t i = 0; i < p->m; i++)
        p->choices[i] = (struct spw_choice){(uint32_t)draw(0, MOST_EXPERTS - 1), 1};
    p->chosen = memory_of(p->choices, sizeof p->choices);
    p->x = numbers_of(p->dtype, p->m * p->k);
    p->biased = draw(0, 1);
    p->bias = numbers_of(SPW_DTYPE_F32, MOST_EXPERTS * 2 * p->n);
    p->y = bytes_of(p->m * 2 * p->n * 4);
    p->want = bytes_of(p->m * 2 * p->n * 4);
    p->scratch = bytes_of(p->m * 2 * p->n * 4);
    size_t room = backend.linear_workspace(p->k, p->dtype, p->w.type);
    size_t other = backend.linear_workspace(p->k, p->dtype, p->up.type);
    p->workspace = bytes_of(THREADS * (room > other ? room : other) + 64);
    p->codes = bytes_of(p->m * spw_codes_groups(p->k) * sizeof(struct spw_codes));
}

static void problem_close(struct problem *p)
{
    experts_close(&p->w), experts_close(&p->up);
    struct memory *all[] = {&p->chosen,  &p->x,         &p->y,     &p->want,
                            &p->scratch, &p->workspace, &p->codes, &p->bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        memory_close(all[i]);
}

static const void *row_of_x(const struct problem *p, size_t row)
{
    return (const char *)p->x.at + spw_row_bytes(p->dtype, row * p->x_stride);
}

/* Of one expert, or those of all. */
static const float *bias_of(const struct problem *p, uint32_t expert)
{
    return p->biased ? (const float *)p->bias.at + expert * 2 * p->n : NULL;
}

static void *row_of_want(const struct problem *p, size_t row)
{
    return (char *)p->want.at + spw_row_bytes(p->dtype, row * p->n);
}

static void check_same(const struct problem *p, const char *what)
{
    const size_t bytes = p->m * spw_row_bytes(p->dtype, p->n);
    void *y = malloc(bytes), *want = malloc(bytes);
    copy(y, p->y.at, bytes, SPW_LINK_DEVICE_TO_HOST);
    copy(want, p->want.at, bytes, SPW_LINK_DEVICE_TO_HOST);
    CHECK_MSG(!memcmp(y, want, bytes), "%s: x %s w %s up %s m %zu n %zu k %zu stride %zu", what,
              spw_dtype_name(p->dtype), spw_dtype_name(p->w.type), spw_dtype_name(p->up.type), p->m,
              p->n, p->k, p->x_stride);
    free(y), free(want);
}

static void check_linear(const struct problem *p)
{
    const struct spw_linear_args a = {.x = p->x.at,
                                      .w = p->w.of[0].at,
                                      .bias = bias_of(p, 0),
                                      .y = p->y.at,
                                      .m = p->m,
                                      .n = p->n,
                                      .k = p->k,
                                      .x_stride = p->x_stride,
                                      .y_stride = p->n,
                                      .x_dtype = p->dtype,
                                      .w_dtype = p->w.type,
                                      .y_dtype = p->dtype,
                                      .workspace = p->workspace.at,
                                      .codes = p->codes.at,
                                      .choices = p->chosen.at,
                                      .matrices = p->w.addresses.at,
                                      .bias_step = 2 * p->n};
    CHECK(backend.ops->linear(&a, stream) == 0);
    for (size_t row = 0; row < p->m; row++) {
        const uint32_t expert = p->choices[row].expert;
        struct spw_linear_args one = a;
        one.choices = NULL;
        one.m = 1;
        one.x_stride = p->k;
        one.x = row_of_x(p, row);
        one.w = p->w.of[expert].at;
        one.bias = bias_of(p, expert);
        one.y = row_of_want(p, row);
        CHECK(backend.ops->linear(&one, stream) == 0);
    }
    check_same(p, "linear");
}

static void check_gated(const struct problem *p)
{
    const struct spw_gated_linear_args a = {.x = p->x.at,
                                            .bias = bias_of(p, 0),
                                            .y = p->y.at,
                                            .scratch = p->scratch.at,
                                            .m = p->m,
                                            .n = p->n,
                                            .k = p->k,
                                            .x_stride = p->x_stride,
                                            .dtype = p->dtype,
                                            .gate_dtype = p->w.type,
                                            .up_dtype = p->up.type,
                                            .act = (enum spw_activation)draw(0, SPW_ACT_COUNT - 1),
                                            .workspace = p->workspace.at,
                                            .codes = p->codes.at,
                                            .choices = p->chosen.at,
                                            .gates = p->w.addresses.at,
                                            .ups = p->up.addresses.at};
    CHECK(backend.ops->gated_linear(&a, stream) == 0);
    for (size_t row = 0; row < p->m; row++) {
        const uint32_t expert = p->choices[row].expert;
        struct spw_gated_linear_args one = a;
        one.choices = NULL;
        one.m = 1;
        one.x_stride = p->k;
        one.x = row_of_x(p, row);
        one.w_gate = p->w.of[expert].at;
        one.w_up = p->up.of[expert].at;
        one.bias = bias_of(p, expert);
        one.y = row_of_want(p, row);
        CHECK(backend.ops->gated_linear(&one, stream) == 0);
    }
    check_same(p, "gated");
}

int main(void)
{
    if (!run_is_there())
        return CHECK_SKIP;
    rng = check_seed();
    backend = run_backend(true);
    const struct spw_device_options o = {.device_bytes = UINT64_MAX,
                                         .host_bytes = UINT64_MAX,
                                         .threads = THREADS,
                                         .context = backend.context};
    CHECK(backend.device_ops->open(&device, &o, NULL) == 0);
    CHECK(backend.device_ops->stream_open(device, "compute", &stream) == 0);
    /* ThreadSanitizer sees how threads share the work, which is the same for all types. */
    const int draws = RUN_UNDER_TSAN && !check_full() ? DRAWS / 3 : DRAWS;
    for (int i = 0; i < draws; i++) {
        struct problem p;
        problem_open(&p);
        check_linear(&p);
        check_gated(&p);
        problem_close(&p);
    }
    backend.device_ops->stream_close(device, stream);
    backend.device_ops->close(device);
    return check_done();
}
