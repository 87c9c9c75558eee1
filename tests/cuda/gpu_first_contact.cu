/* For tools/gpu_check.sh: what only a real GPU can tell, in about ten seconds.
 *
 *   1. mma       rows and columns may change places without changing a bit; the layout of
 * quant/cuda.cuh
 *   2. copies    pinned memory to the card by size: alone, as the rings of prefetch/ queue them,
 * and as a ring over two streams
 *   3. kernels   microseconds from kernel to kernel: plain, overlapped, with an event in between
 *   4. host      microseconds that a call of the runtime takes
 *
 * Prints numbers, judges only the first. 0, 1 where mma differs or a call fails, 77 without a GPU.
 */
#include "quant/cuda.cuh"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

#define OK(call)                                                                                   \
    do {                                                                                           \
        cudaError_t rc_ = (call);                                                                  \
        if (rc_ != cudaSuccess) {                                                                  \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(rc_));         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static double now(void)
{
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static cudaStream_t stream(void)
{
    cudaStream_t s;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static cudaEvent_t event(unsigned flags)
{
    cudaEvent_t e;
    OK(cudaEventCreateWithFlags(&e, flags));
    return e;
}

/* ---- 1: mma ---- */

enum { PRODUCTS = 64, M = 16, N = 8, K = 16 };
static uint16_t A[PRODUCTS][M][K], B[PRODUCTS][K][N];

/* d [M][N] = the sum of all products; fragments [PRODUCTS][32][4], [PRODUCTS][32][2]. */
static __global__ void k_products(const uint32_t *a, const uint32_t *b, float *d)
{
    int lane = (int)threadIdx.x;
    float sums[4] = {};
    for (int i = 0; i < PRODUCTS; i++)
        spw_mma_bf16(sums, a + (i * 32 + lane) * 4, b + (i * 32 + lane) * 2);
    for (int i = 0; i < 4; i++)
        d[(lane / 4 + i / 2 * 8) * N + lane % 4 * 2 + i % 2] = sums[i];
}

static uint32_t pair(uint16_t low, uint16_t high)
{
    return (uint32_t)high << 16 | low;
}

/* Row g of the kernel's operand is row[g] of A, column g is column[g] of B. */
static void run_products(const int *row, const int *column, float *out)
{
    static uint32_t a[PRODUCTS][32][4], b[PRODUCTS][32][2];
    for (int i = 0; i < PRODUCTS; i++)
        for (int lane = 0; lane < 32; lane++) {
            int g = lane / 4, t = lane % 4;
            for (int r = 0; r < 4; r++) {
                int m = row[g + r % 2 * 8], k = 2 * t + r / 2 * 8;
                a[i][lane][r] = pair(A[i][m][k], A[i][m][k + 1]);
            }
            for (int r = 0; r < 2; r++) {
                int k = 2 * t + r * 8;
                b[i][lane][r] = pair(B[i][k][column[g]], B[i][k + 1][column[g]]);
            }
        }
    uint32_t *on_a, *on_b;
    float *on_d;
    OK(cudaMalloc(&on_a, sizeof a));
    OK(cudaMalloc(&on_b, sizeof b));
    OK(cudaMalloc(&on_d, M * N * sizeof *on_d));
    OK(cudaMemcpy(on_a, a, sizeof a, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(on_b, b, sizeof b, cudaMemcpyHostToDevice));
    k_products<<<1, 32>>>(on_a, on_b, on_d);
    OK(cudaMemcpy(out, on_d, M * N * sizeof *on_d, cudaMemcpyDeviceToHost));
    OK(cudaFree(on_a));
    OK(cudaFree(on_b));
    OK(cudaFree(on_d));
}

/* A random sign and fraction, an exponent of twelve. */
static uint16_t random_bf16(void)
{
    return (uint16_t)((rand() & 0x807f) | (0x3c00 + rand() % 12 * 0x80));
}

static double value(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The error of one sum over the sum of magnitudes. */
static double error_of(float sum, int m, int n)
{
    double exact = 0, magnitude = 0;
    for (int i = 0; i < PRODUCTS; i++)
        for (int k = 0; k < K; k++) {
            double p = value(A[i][m][k]) * value(B[i][k][n]);
            exact += p;
            magnitude += fabs(p);
        }
    return fabs(sum - exact) / magnitude;
}

static bool check_mma(void)
{
    const double bound = (PRODUCTS * K + 10) * 0x1p-23; /* as test_ops_linear.c */
    int row[2][M], column[2][N], differ = 0;
    float out[2][M * N];
    srand(7);
    for (int i = 0; i < PRODUCTS * M * K; i++)
        (&A[0][0][0])[i] = random_bf16();
    for (int i = 0; i < PRODUCTS * K * N; i++)
        (&B[0][0][0])[i] = random_bf16();
    for (int i = 0; i < M; i++) {
        row[0][i] = i;
        row[1][i] = (5 * i + 3) % M;
    }
    for (int i = 0; i < N; i++) {
        column[0][i] = i;
        column[1][i] = (3 * i + 1) % N;
    }
    for (int i = 0; i < 2; i++)
        run_products(row[i], column[i], out[i]);
    double worst = 0;
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            differ += memcmp(&out[1][m * N + n], &out[0][row[1][m] * N + column[1][n]], 4) != 0;
            worst = fmax(worst, error_of(out[0][m * N + n], m, n));
        }
    printf("mma: %d of %d differ when rows and columns change places (0 expected); error over "
           "magnitude %.2g (at most %.2g)\n",
           differ, M * N, worst, bound);
    return !differ && worst <= bound;
}

/* ---- 2: copies ---- */

enum { COPIES_BYTES = 256 << 20, EVENTS = 64, LAPS = 4, TRIES = 3 };
enum way { ALONE, RING, RING_OF_TWO, WAYS };

struct link {
    char *host, *device;
    cudaStream_t streams[2], compute;
    cudaEvent_t arrived[EVENTS], over[EVENTS];
};

/* GB/s. In a ring each copy waits until its slot is free, and compute waits for the copy. */
static double copy_rate(const struct link *l, size_t bytes, enum way way)
{
    double best = INFINITY;
    for (int i = 0; i < TRIES; i++) {
        double start = now();
        unsigned n = 0;
        for (int lap = 0; lap < LAPS; lap++)
            for (size_t at = 0; at < COPIES_BYTES; at += bytes, n++) {
                cudaStream_t s = l->streams[way == RING_OF_TWO ? n % 2 : 0];
                if (way != ALONE)
                    OK(cudaStreamWaitEvent(s, l->over[n % EVENTS], 0));
                OK(cudaMemcpyAsync(l->device + at, l->host + at, bytes, cudaMemcpyHostToDevice, s));
                if (way == ALONE)
                    continue;
                OK(cudaEventRecord(l->arrived[n % EVENTS], s));
                OK(cudaStreamWaitEvent(l->compute, l->arrived[n % EVENTS], 0));
                OK(cudaEventRecord(l->over[n % EVENTS], l->compute));
            }
        OK(cudaDeviceSynchronize());
        best = smaller(best, now() - start);
    }
    return LAPS * (double)COPIES_BYTES / best * 1e-9;
}

static void link_open(struct link *l)
{
    l->host = (char *)mmap(NULL, COPIES_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                           -1, 0);
    if (l->host == MAP_FAILED) {
        printf("no host memory\n");
        exit(1);
    }
    (void)madvise(l->host, COPIES_BYTES, MADV_HUGEPAGE);
    memset(l->host, 1, COPIES_BYTES);
    double start = now();
    OK(cudaHostRegister(l->host, COPIES_BYTES, cudaHostRegisterDefault));
    printf("pinning: %.3f s a GiB\n", (now() - start) * 0x1p30 / COPIES_BYTES);
    OK(cudaMalloc(&l->device, COPIES_BYTES));
    l->streams[0] = stream();
    l->streams[1] = stream();
    l->compute = stream();
    for (int i = 0; i < EVENTS; i++) {
        l->arrived[i] = event(cudaEventDisableTiming);
        l->over[i] = event(cudaEventDisableTiming);
    }
}

static void show_copies(const struct link *l)
{
    for (size_t bytes = 256 << 10; bytes <= 64 << 20; bytes *= 2)
        printf("host to device, %6zu KiB: alone %.1f GB/s, ring %.1f, ring of two streams %.1f\n",
               bytes >> 10, copy_rate(l, bytes, ALONE), copy_rate(l, bytes, RING),
               copy_rate(l, bytes, RING_OF_TWO));
}

/* ---- 3: kernel after kernel ---- */

static __device__ void work(float *p, int steps)
{
    float x = p[threadIdx.x];
    for (int i = 0; i < steps; i++)
        x = fmaf(x, 1.0001f, 1e-9f);
    p[threadIdx.x] = x;
}

static __global__ void k_small(float *p, int steps)
{
    spw_grid_wait();
    spw_grid_next();
    work(p, steps);
}

/* The same with the shared memory of k_stream, which another split of L1 may suit. */
static __global__ void k_shared(float *p, int steps)
{
    SPW_SHARED_DYNAMIC(float, tile);
    spw_grid_wait();
    spw_grid_next();
    tile[threadIdx.x] = 0;
    work(p, steps);
}

struct large {
    char bytes[4000];
};

static __global__ void k_arguments(SPW_PARAMETER large a, float *p)
{
    spw_grid_wait();
    spw_grid_next();
    if (!p)
        printf("%d", a.bytes[threadIdx.x]);
}

template <class... P, class... A>
static void launch(void (*kernel)(P...), unsigned grid, size_t shared, cudaStream_t s, bool overlap,
                   const A &...arguments)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t how = {};
    how.gridDim = grid;
    how.blockDim = 64;
    how.dynamicSmemBytes = shared;
    how.stream = s;
    how.attrs = &attribute;
    how.numAttrs = overlap && spw_cuda_may_overlap() ? 1 : 0;
    OK(cudaLaunchKernelEx(&how, kernel, static_cast<P>(arguments)...));
}

/* Seconds a kernel; `between`: an event recorded behind each, or NULL. */
static double kernel_seconds(cudaStream_t s, float *p, bool overlap, cudaEvent_t between)
{
    enum { KERNELS = 1000, STEPS = 2000 };
    double best = INFINITY;
    for (int i = 0; i < TRIES; i++) {
        double start = now();
        for (int k = 0; k < KERNELS; k++) {
            if (k % 2)
                launch(k_shared, 528, 48 << 10, s, overlap, p, STEPS);
            else
                launch(k_small, 32, 0, s, overlap, p, STEPS);
            if (between)
                OK(cudaEventRecord(between, s));
        }
        OK(cudaStreamSynchronize(s));
        best = smaller(best, (now() - start) / KERNELS);
    }
    return best;
}

static void show_kernels(cudaStream_t s, float *p)
{
    cudaEvent_t plain = event(cudaEventDisableTiming), timed = event(cudaEventDefault);
    for (int carveout = 0; carveout < 2; carveout++) {
        if (carveout) {
            OK(cudaFuncSetAttribute(k_small, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
            OK(cudaFuncSetAttribute(k_shared, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
        }
        printf("kernels, carveout %s: plain %.2f us each, overlapped %.2f, with an event between "
               "%.2f, with a timed event %.2f\n",
               carveout ? "100" : "default", 1e6 * kernel_seconds(s, p, false, NULL),
               1e6 * kernel_seconds(s, p, true, NULL), 1e6 * kernel_seconds(s, p, true, plain),
               1e6 * kernel_seconds(s, p, true, timed));
    }
}

/* ---- 4: the host's time for a call ---- */

template <class F> static void show_cost(const char *name, F call)
{
    enum { CALLS = 300 };
    double best = INFINITY;
    for (int i = 0; i < 1 + TRIES; i++) {
        double start = now();
        for (int k = 0; k < CALLS; k++)
            call();
        if (i) /* the first try warms up */
            best = smaller(best, (now() - start) / CALLS);
        OK(cudaDeviceSynchronize());
    }
    printf("host: %-38s %.2f us\n", name, best * 1e6);
}

static void show_host(const struct link *l, float *p)
{
    cudaStream_t s = l->streams[0];
    cudaEvent_t e = l->arrived[0];
    int v;
    show_cost("launch, few arguments", [&] { launch(k_small, 1, 0, s, true, p, 1); });
    show_cost("launch, 4 KB of arguments", [&] { launch(k_arguments, 1, 0, s, true, large(), p); });
    show_cost("cudaFuncSetAttribute", [&] {
        OK(cudaFuncSetAttribute(k_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 48 << 10));
    });
    show_cost("cudaGetDevice", [&] { OK(cudaGetDevice(&v)); });
    show_cost("cudaDeviceGetAttribute",
              [&] { OK(cudaDeviceGetAttribute(&v, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0)); });
    show_cost("cudaSetDevice", [&] { OK(cudaSetDevice(0)); });
    show_cost("cudaEventQuery", [&] { (void)cudaEventQuery(e); });
    (void)cudaGetLastError();
    show_cost("cudaEventRecord", [&] { OK(cudaEventRecord(e, s)); });
    show_cost("cudaStreamWaitEvent", [&] { OK(cudaStreamWaitEvent(l->compute, e, 0)); });
    show_cost("cudaMemcpyAsync, 8 KiB",
              [&] { OK(cudaMemcpyAsync(l->device, l->host, 8192, cudaMemcpyHostToDevice, s)); });
}

int main(void)
{
    int n = 0;
    struct link l;
    float *p;
    cudaDeviceProp card;
    setvbuf(stdout, NULL, _IOLBF, 0); /* lines are there when a time limit ends this */
    if (cudaGetDeviceCount(&n) != cudaSuccess || !n) {
        printf("no GPU here\n");
        return 77;
    }
    OK(cudaGetDeviceProperties(&card, 0));
    printf("%s, sm_%d%d, %d copy engines, %d multiprocessors\n", card.name, card.major, card.minor,
           card.asyncEngineCount, card.multiProcessorCount);
    bool right = check_mma();
    link_open(&l);
    OK(cudaMalloc(&p, 1024));
    OK(cudaMemset(p, 0, 1024));
    show_kernels(l.streams[0], p);
    show_host(&l, p);
    show_copies(&l);
    OK(cudaDeviceSynchronize());
    return right ? 0 : 1;
}
