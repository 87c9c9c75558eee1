/* Measures the products of the CPU kernels beside the limits of this machine, in the same run:
 *
 *     bench_products [THREADS [TYPE...]]          ninja -C build/release bench_products
 *
 * Few rows: bytes of weights a second, from memory, and the share of the reads of memory. Many
 * rows: operations a second, and the ratio to bf16. Reads are measured before and after each turn:
 * virtual machines change their speed within seconds. Medians of rounds in which the types take
 * turns. The matrix has 2,048 columns, as those of Llama-3.2-1B. */
#include "quant/codes.h"
#include "tests/bench/bench.h"

enum {
    K = 2048,
    BYTES = 256 << 20, /* of weights, for few rows */
    MANY_COLS = 2048,
    MOST_ROWS = 2048,
    N_TYPES = 14,
};
static const size_t few[] = {1, 2, 4, 8}, many[] = {512, 2048};
enum { N_FEW = 4, N_ROWS = 6 };

struct bench {
    struct spw_backend backend;
    struct spw_device *device;
    spw_stream stream;
    int threads;
    void *x, *y, *workspace, *codes;
    uint8_t *w;
    double seconds[N_TYPES][N_ROWS][ROUNDS];
    double reads[N_TYPES][ROUNDS]; /* bytes a second, around the turn of the type */
};

static size_t rows_of(int i)
{
    return i < N_FEW ? few[i] : many[i - N_FEW];
}

static size_t cols_of(enum spw_dtype t, int i)
{
    return i < N_FEW ? BYTES / spw_row_bytes(t, K) / 64 * 64 : MANY_COLS;
}

static double run(struct bench *b, enum spw_dtype t, int i)
{
    const size_t n = cols_of(t, i);
    const struct spw_linear_args a = {.x = b->x,
                                      .w = b->w,
                                      .y = b->y,
                                      .m = rows_of(i),
                                      .n = n,
                                      .k = K,
                                      .x_stride = K,
                                      .y_stride = n,
                                      .x_dtype = SPW_DTYPE_BF16,
                                      .w_dtype = t,
                                      .y_dtype = SPW_DTYPE_BF16,
                                      .workspace = b->workspace,
                                      .codes = b->codes};
    spw_cache_evict(b->w, i < N_FEW ? BYTES : n * spw_row_bytes(t, K));
    double start = now();
    if (b->backend.ops->linear(&a, b->stream) ||
        b->backend.device_ops->stream_sync(b->device, b->stream)) {
        fprintf(stderr, "bench_products: the product failed\n");
        exit(1);
    }
    return now() - start;
}

/* The median of the shares of the limit of the same turn. `n`: bytes or operations. */
static double share_of(const struct bench *b, size_t t, int i, double n, const double *limits)
{
    double shares[ROUNDS];
    for (int r = 0; r < ROUNDS; r++)
        shares[r] = n / b->seconds[t][i][r] / limits[r];
    return median(shares);
}

static double reads(const struct bench *b)
{
    return read_rate(&b->backend, b->device, b->stream, b->w, BYTES);
}

static void open_bench(struct bench *b)
{
    size_t workspace = 0, cols = BYTES / spw_row_bytes(SPW_DTYPE_Q2_K, K) * 8;
    spw_backend_cpu(&b->backend);
    struct spw_device_options o = {.context = b->backend.context, .threads = b->threads};
    if (b->backend.device_ops->open(&b->device, &o, NULL) ||
        b->backend.device_ops->stream_open(b->device, "compute", &b->stream)) {
        fprintf(stderr, "bench_products: the device does not open\n");
        exit(1);
    }
    for (enum spw_dtype t = SPW_DTYPE_BF16; t <= SPW_DTYPE_MXFP4; t++)
        if (spw_type_of(t).multiplies)
            workspace = spw_max_u64(workspace, b->backend.linear_workspace(K, SPW_DTYPE_BF16, t));
    b->workspace = room((size_t)b->threads * spw_align_up(workspace, 64));
    b->codes = room(MOST_ROWS * spw_codes_groups(K) * sizeof(struct spw_codes));
    b->x = room(sizeof(uint16_t) * MOST_ROWS * K);
    b->y = room(sizeof(uint16_t) * spw_max_u64(cols, MOST_ROWS * MANY_COLS));
    b->w = room(BYTES);
    uint32_t random = 1;
    /* No number of bf16 and no scale is denormal: multiply-adds of Intel's processors take ten
     * times as long with those. */
    for (size_t i = 0; i < BYTES; i++)
        b->w[i] = (uint8_t)((random = random * 1664525 + 1013904223) >> 24 & 0x3b) | 0x20;
    for (size_t i = 0; i < (size_t)MOST_ROWS * K; i++)
        ((uint16_t *)b->x)[i] = (uint16_t)(0x3f00 + (i * 37 & 0x80ff));
}

static void print(const struct bench *b, const enum spw_dtype *types, size_t n_types)
{
    double plain[N_ROWS];
    printf("%s, %d threads\n\n", b->backend.name, b->threads);
    printf("| type | reads, GB/s | 1 row, GB/s | of reads | 2 rows | 4 | 8 | 512 rows, Gop/s | / "
           "bf16 | 2,048 | / bf16 |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t t = 0; t < n_types; t++) {
        printf("| %s | %.1f ", spw_dtype_name(types[t]), median(b->reads[t]) * 1e-9);
        for (int i = 0; i < N_ROWS; i++) {
            const double n = (double)cols_of(types[t], i), seconds = median(b->seconds[t][i]);
            const double bytes = n * (double)spw_row_bytes(types[t], K);
            const double products = 2 * n * K * (double)rows_of(i), ops = products / seconds;
            if (t == 0)
                plain[i] = ops;
            if (i == 0)
                printf("| %.1f ", bytes / seconds * 1e-9);
            if (i < N_FEW)
                printf("| %.0f %% ", 100 * share_of(b, t, i, bytes, b->reads[t]));
            else
                printf("| %.0f | %.2f ", ops * 1e-9, ops / plain[i]);
        }
        printf("|\n");
    }
}

int main(int argc, char **argv)
{
    static struct bench b;
    enum spw_dtype types[N_TYPES] = {SPW_DTYPE_BF16};
    size_t n_types = 1;
    b.threads = argc > 1 ? atoi(argv[1]) : 2;
    for (enum spw_dtype t = SPW_DTYPE_Q8_0; t <= SPW_DTYPE_MXFP4; t++) {
        bool named = argc <= 2;
        for (int i = 2; i < argc; i++)
            named |= !strcmp(argv[i], spw_dtype_name(t));
        if (named)
            types[n_types++] = t;
    }
    open_bench(&b);
    for (int r = -1; r < ROUNDS; r++) {
        double before = reads(&b);
        for (size_t t = 0; t < n_types; t++) {
            double seconds[N_ROWS];
            for (int i = 0; i < N_ROWS; i++)
                seconds[i] = run(&b, types[t], i);
            const double after = reads(&b);
            for (int i = 0; i < N_ROWS && r >= 0; i++)
                b.seconds[t][i][r] = seconds[i];
            if (r >= 0)
                b.reads[t][r] = (before + after) / 2;
            before = after;
        }
    }
    print(&b, types, n_types);
    return 0;
}
