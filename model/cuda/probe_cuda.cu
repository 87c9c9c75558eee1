/* Limits of a GPU: see probe_cuda.h.
 *
 * The read kernel takes 16 bytes a thread and load, with eight loads in flight, and keeps only
 * their exclusive or. So a call reads `bytes` bytes and writes nothing: the condition of the write
 * is almost never true, which the compiler cannot know. */
#include "model/cuda/probe_cuda.h"

#include "base/numbers.h"
#include "quant/cuda.cuh"
#include "quant/types.h"

#if !defined(SPW_SIMT_EMULATOR) && __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>
#define HAVE_CUBLASLT 1
#endif

enum { READ_THREADS = 256, READ_BLOCKS = 4096, READ_LOADS = 8 };

static __global__ void k_probe_read(const uint4 *from, size_t n, uint32_t *sink)
{
    spw_grid_wait();
    spw_grid_next();
    size_t thread = (size_t)blockIdx.x * READ_THREADS + threadIdx.x;
    size_t threads = (size_t)gridDim.x * READ_THREADS;
    uint32_t seen = 0;
    for (size_t at = thread; at < n; at += threads * READ_LOADS) {
        uint4 v[READ_LOADS];
#pragma unroll
        for (int k = 0; k < READ_LOADS; k++) {
            size_t i = at + (size_t)k * threads;
            v[k] = i < n ? __ldg(from + i) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int k = 0; k < READ_LOADS; k++)
            seen ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (seen == 0x9e3779b9u)
        *sink = seen;
}

int spw_probe_read_cuda(const void *from, uint64_t bytes, void *sink, spw_stream s)
{
    if ((uintptr_t)from % 16 || bytes % 16)
        return -EINVAL;
    SPW_LAUNCH(k_probe_read, READ_BLOCKS, READ_THREADS, 0, s, (const uint4 *)from,
               (size_t)(bytes / 16), (uint32_t *)sink);
    return spw_cuda_launched();
}

#ifdef HAVE_CUBLASLT

enum { WORKSPACE_BYTES = 32 << 20 };

/* The entry points by name: spw_probe_matrix_open fills them. */
struct spw_probe_matrix {
    void *library;
    uint64_t n;
    size_t element_bytes;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulHeuristicResult_t algorithm;
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatmulDescCreate) product_create;
    decltype(&cublasLtMatmulDescDestroy) product_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) product_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    decltype(&cublasLtMatmul) matmul;
};

template <class F> static bool find(struct spw_probe_matrix *m, F *out, const char *name)
{
    *out = reinterpret_cast<F>(dlsym(m->library, name));
    return *out;
}

/* The library stays loaded until the program ends. What it has loaded onto the device belongs to a
 * context that outlives the probe, and a second probe need not read its hundreds of megabytes
 * again. */
static bool load(struct spw_probe_matrix *m)
{
    char versioned[32];
    snprintf(versioned, sizeof versioned, "libcublasLt.so.%d", CUDART_VERSION / 1000);
    m->library = dlopen(versioned, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return m->library && find(m, &m->create, "cublasLtCreate") &&
           find(m, &m->destroy, "cublasLtDestroy") &&
           find(m, &m->product_create, "cublasLtMatmulDescCreate") &&
           find(m, &m->product_destroy, "cublasLtMatmulDescDestroy") &&
           find(m, &m->product_set, "cublasLtMatmulDescSetAttribute") &&
           find(m, &m->layout_create, "cublasLtMatrixLayoutCreate") &&
           find(m, &m->layout_destroy, "cublasLtMatrixLayoutDestroy") &&
           find(m, &m->preference_create, "cublasLtMatmulPreferenceCreate") &&
           find(m, &m->preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
           find(m, &m->preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
           find(m, &m->heuristic, "cublasLtMatmulAlgoGetHeuristic") &&
           find(m, &m->matmul, "cublasLtMatmul");
}

/* W^T x, both with k contiguous, like a linear layer. Tensor cores are fastest with this layout. */
static bool choose(struct spw_probe_matrix *m, cudaDataType type)
{
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulPreference_t preference;
    size_t workspace = WORKSPACE_BYTES;
    int n_found = 0;
    if (m->create(&m->handle) || m->product_create(&m->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
        m->product_set(m->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) ||
        m->layout_create(&m->layout, type, m->n, m->n, (int64_t)m->n) ||
        m->preference_create(&preference))
        return false;
    bool found = !m->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                    &workspace, sizeof workspace) &&
                 !m->heuristic(m->handle, m->product, m->layout, m->layout, m->layout, m->layout,
                               preference, 1, &m->algorithm, &n_found) &&
                 n_found == 1;
    m->preference_destroy(preference);
    return found;
}

int spw_probe_matrix_open(struct spw_probe_matrix **out, enum spw_dtype dtype, uint64_t n,
                          struct spw_error *err)
{
    *out = NULL;
    struct spw_probe_matrix *m = (struct spw_probe_matrix *)spw_alloc_zero(1, sizeof *m);
    if (!m)
        return spw_fail(err, -ENOMEM, "out of memory for a matrix product");
    m->n = n;
    m->element_bytes = spw_dtype_bytes(dtype);
    if (!load(m) || !choose(m, dtype == SPW_DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF)) {
        bool loaded = m->library;
        spw_probe_matrix_close(m);
        return spw_fail(err, -ENODEV,
                        loaded ? "libcublasLt has no product for this GPU"
                               : "libcublasLt.so.%d is not found; name its folder in "
                                 "LD_LIBRARY_PATH",
                        CUDART_VERSION / 1000);
    }
    *out = m;
    return 0;
}

uint64_t spw_probe_matrix_bytes(const struct spw_probe_matrix *m)
{
    return 3 * m->n * m->n * m->element_bytes + WORKSPACE_BYTES;
}

int spw_probe_matrix_run(struct spw_probe_matrix *m, void *memory, spw_stream s)
{
    uint64_t bytes = m->n * m->n * m->element_bytes;
    char *a = (char *)memory, *b = a + bytes, *c = b + bytes, *workspace = c + bytes;
    float one = 1, zero = 0;
    return m->matmul(m->handle, m->product, &one, a, m->layout, b, m->layout, &zero, c, m->layout,
                     c, m->layout, &m->algorithm.algo, workspace, WORKSPACE_BYTES, s)
               ? -EIO
               : 0;
}

void spw_probe_matrix_close(struct spw_probe_matrix *m)
{
    if (!m)
        return;
    if (m->layout)
        m->layout_destroy(m->layout);
    if (m->product)
        m->product_destroy(m->product);
    if (m->handle)
        m->destroy(m->handle);
    if (m->library)
        dlclose(m->library);
    spw_free(m);
}

#else

int spw_probe_matrix_open(struct spw_probe_matrix **out, enum spw_dtype dtype, uint64_t n,
                          struct spw_error *err)
{
    (void)dtype;
    (void)n;
    *out = NULL;
    return spw_fail(err, -ENODEV, "this spillway was built without cublasLt.h");
}

uint64_t spw_probe_matrix_bytes(const struct spw_probe_matrix *m)
{
    (void)m;
    return 0;
}

int spw_probe_matrix_run(struct spw_probe_matrix *m, void *memory, spw_stream s)
{
    (void)m;
    (void)memory;
    (void)s;
    return -ENODEV;
}

void spw_probe_matrix_close(struct spw_probe_matrix *m)
{
    (void)m;
}
#endif
