/* The emulated driver's errors, devices and memory, and what the tests set: see simt_emulator.h and
 * simt_control.h. */
#include "quant/cuda.cuh"
#include "tests/cuda/simt_driver.h"

#include <sys/mman.h>

enum { MOST_DEVICES = 8, MOST_KERNELS = 256, GRANULE = 512 };
enum { DEFAULT_SHARED_BYTES = 48 << 10 };

/* A run of device memory, or of registered host memory. */
struct range {
    struct range *next;
    char *p;
    size_t bytes;
    int device; /* -1: of the host */
};

struct spw_simt_driver spw_simt_driver = {PTHREAD_MUTEX_INITIALIZER, {}, 0, 0, 0, 0, 0, 0, -1, 0};
static struct range *ranges;
static uint64_t device_bytes[MOST_DEVICES], others_bytes, peak_bytes, registered_bytes;
static uint64_t others_late_bytes;
static bool others_are_late, host_arguments;
static int64_t alloc_countdown = -1, register_countdown = -1, launch_countdown = -1; /* atomic */
static struct {
    const void *kernel;
    int dynamic_bytes;
} attributes[MOST_KERNELS];
static int n_attributes;

static __thread cudaError_t last_error;
static __thread int current_device;
__thread bool spw_simt_in_host_function;

/* ---- errors ---- */

cudaError_t spw_simt_finish(cudaError_t rc)
{
    int lost = __atomic_load_n(&spw_simt_driver.sticky, __ATOMIC_ACQUIRE);
    if (lost)
        rc = (cudaError_t)lost;
    if (rc != cudaSuccess)
        last_error = rc;
    return rc;
}

cudaError_t spw_simt_begin(void)
{
    if (spw_simt_in_host_function)
        spw_simt_fault("a host function calls the runtime");
    return spw_simt_finish(cudaSuccess);
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t rc = spw_simt_finish(last_error);
    last_error = cudaSuccess;
    return rc;
}

cudaError_t cudaPeekAtLastError(void)
{
    return spw_simt_finish(last_error);
}

static const struct {
    cudaError_t rc;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorUnsupportedPtxVersion, "cudaErrorUnsupportedPtxVersion",
     "the provided PTX was compiled with an unsupported toolchain."},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};

const char *cudaGetErrorName(cudaError_t rc)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].rc == rc)
            return errors[i].name;
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t rc)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].rc == rc)
            return errors[i].text;
    return "unknown error";
}

bool spw_simt_counts_down(int64_t *countdown)
{
    if (__atomic_load_n(countdown, __ATOMIC_RELAXED) < 0)
        return false;
    return __atomic_fetch_sub(countdown, 1, __ATOMIC_RELAXED) == 0;
}

/* ---- control ---- */

uint64_t spw_simt_draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t spw_simt_seed(void)
{
    pthread_mutex_lock(&spw_simt_driver.lock);
    uint64_t state = spw_simt_driver.options.seed + 0x1000003u * ++spw_simt_driver.n_seeds;
    pthread_mutex_unlock(&spw_simt_driver.lock);
    return spw_simt_draw(&state);
}

void spw_simt_set(const struct spw_simt_options *o)
{
    if (spw_simt_driver.n_streams || spw_simt_driver.n_events)
        spw_simt_fault("spw_simt_set while streams or events are alive");
    spw_simt_driver.options = o ? *o : spw_simt_options{};
    others_are_late = false;
    others_bytes = peak_bytes = spw_simt_driver.n_seeds = 0;
    alloc_countdown = register_countdown = launch_countdown = spw_simt_driver.lose_countdown = -1;
    spw_simt_driver.n_kernels = spw_simt_driver.n_copies = spw_simt_driver.n_ahead = 0;
    memset(spw_cuda_cards, 0, sizeof spw_cuda_cards); /* the launchers ask about the new card */
    spw_simt_driver.sticky = 0;
    last_error = cudaSuccess;
    current_device = 0;
}

void spw_simt_fail_alloc_nth(int64_t n)
{
    __atomic_store_n(&alloc_countdown, n, __ATOMIC_RELAXED);
}

void spw_simt_fail_register_nth(int64_t n)
{
    __atomic_store_n(&register_countdown, n, __ATOMIC_RELAXED);
}

void spw_simt_fail_launch_nth(int64_t n)
{
    __atomic_store_n(&launch_countdown, n, __ATOMIC_RELAXED);
}

void spw_simt_lose_device_nth(int64_t n)
{
    __atomic_store_n(&spw_simt_driver.lose_countdown, n, __ATOMIC_RELAXED);
}

void spw_simt_others_take(uint64_t bytes)
{
    pthread_mutex_lock(&spw_simt_driver.lock);
    others_bytes = bytes;
    pthread_mutex_unlock(&spw_simt_driver.lock);
}

void spw_simt_others_take_late(uint64_t bytes)
{
    pthread_mutex_lock(&spw_simt_driver.lock);
    others_late_bytes = bytes;
    others_are_late = true;
    pthread_mutex_unlock(&spw_simt_driver.lock);
}

void spw_simt_allow_host_arguments(int allowed)
{
    host_arguments = allowed;
}

void spw_simt_usage_get(struct spw_simt_usage *out)
{
    pthread_mutex_lock(&spw_simt_driver.lock);
    *out = {};
    for (int i = 0; i < MOST_DEVICES; i++)
        out->device_bytes += device_bytes[i];
    out->device_peak_bytes = peak_bytes;
    out->registered_bytes = registered_bytes;
    out->n_kernels = __atomic_load_n(&spw_simt_driver.n_kernels, __ATOMIC_RELAXED);
    out->n_copies = __atomic_load_n(&spw_simt_driver.n_copies, __ATOMIC_RELAXED);
    out->n_ahead = __atomic_load_n(&spw_simt_driver.n_ahead, __ATOMIC_RELAXED);
    out->n_streams = spw_simt_driver.n_streams;
    out->n_events = spw_simt_driver.n_events;
    for (const struct range *r = ranges; r; r = r->next)
        r->device < 0 ? out->n_registers++ : out->n_blocks++;
    pthread_mutex_unlock(&spw_simt_driver.lock);
}

/* ---- devices ---- */

static int n_devices(void)
{
    return spw_simt_driver.options.n_devices < 0 ? 0
           : spw_simt_driver.options.n_devices   ? spw_simt_driver.options.n_devices
                                                 : 1;
}

static int capability(void)
{
    return spw_simt_driver.options.capability ? spw_simt_driver.options.capability : 80;
}

static uint64_t card_bytes(void)
{
    return spw_simt_driver.options.card_bytes ? spw_simt_driver.options.card_bytes : 1ull << 30;
}

/* Per block, with the attribute set: CUDA C++ programming guide, "Compute Capabilities". */
static int most_shared_bytes(void)
{
    int c = capability();
    return (c >= 90 ? 227 : c == 86 || c == 89 ? 99 : c >= 80 ? 163 : 64) << 10;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = spw_simt_driver.options.driver < 0 ? 0
               : spw_simt_driver.options.driver   ? spw_simt_driver.options.driver
                                                  : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

static cudaError_t check_device(int device)
{
    int version = 0;
    cudaDriverGetVersion(&version);
    if (version / 1000 < CUDART_VERSION / 1000) /* "minor version compatibility" */
        return spw_simt_finish(cudaErrorInsufficientDriver);
    if (!n_devices())
        return spw_simt_finish(cudaErrorNoDevice);
    return spw_simt_finish(device < 0 || device >= n_devices() ? cudaErrorInvalidDevice
                                                               : cudaSuccess);
}

cudaError_t spw_simt_check_device(void)
{
    return check_device(current_device);
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 0;
    SPW_SIMT_BEGIN();
    cudaError_t rc = check_device(0);
    if (rc == cudaSuccess)
        *n = n_devices();
    return rc;
}

cudaError_t cudaSetDevice(int device)
{
    SPW_SIMT_BEGIN();
    cudaError_t rc = check_device(device);
    if (rc == cudaSuccess)
        current_device = device;
    return rc;
}

cudaError_t cudaGetDevice(int *device)
{
    SPW_SIMT_BEGIN();
    *device = current_device;
    return check_device(0);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    SPW_SIMT_BEGIN();
    cudaError_t rc = check_device(device);
    if (rc != cudaSuccess)
        return rc;
    *p = {};
    snprintf(p->name, sizeof p->name, "emulated sm_%d", capability());
    p->totalGlobalMem = card_bytes();
    p->sharedMemPerBlock = DEFAULT_SHARED_BYTES;
    p->sharedMemPerBlockOptin = p->sharedMemPerMultiprocessor = (size_t)most_shared_bytes();
    p->major = capability() / 10;
    p->minor = capability() % 10;
    p->multiProcessorCount = 4;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->l2CacheSize = 4 << 20;
    p->asyncEngineCount = 2;
    p->unifiedAddressing = 1;
    p->pciBusID = device + 1;
    return rc;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    cudaDeviceProp p;
    cudaError_t rc = cudaGetDeviceProperties(&p, device);
    if (rc != cudaSuccess)
        return rc;
    switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)p.sharedMemPerBlock;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrIntegrated:
        *value = p.integrated;
        break;
    case cudaDevAttrL2CacheSize:
        *value = p.l2CacheSize;
        break;
    case cudaDevAttrAsyncEngineCount:
        *value = p.asyncEngineCount;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)p.sharedMemPerBlockOptin;
        break;
    }
    return rc;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    SPW_SIMT_BEGIN();
    cudaError_t rc = check_device(device);
    if (rc == cudaSuccess)
        snprintf(text, (size_t)bytes, "0000:%02x:00.0", (unsigned)device + 1);
    return rc;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    SPW_SIMT_BEGIN();
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* ---- memory ---- */

static void add_range(void *p, size_t bytes, int device)
{
    struct range *r = new range{ranges, (char *)p, bytes, device};
    ranges = r;
}

/* Takes the range that begins at p out of the list; NULL: there is none. */
static struct range *take_range(void *p, bool of_host)
{
    for (struct range **at = &ranges; *at; at = &(*at)->next)
        if ((*at)->p == p && ((*at)->device < 0) == of_host) {
            struct range *r = *at;
            *at = r->next;
            return r;
        }
    return NULL;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    *out = NULL;
    SPW_SIMT_BEGIN();
    cudaError_t rc = check_device(current_device);
    if (rc != cudaSuccess || !bytes)
        return rc;
    pthread_mutex_lock(&spw_simt_driver.lock);
    uint64_t *used = &device_bytes[current_device],
             rounded = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    void *p = NULL;
    if (others_are_late)
        others_bytes = others_late_bytes;
    others_are_late = false;
    if (rounded < bytes || *used + others_bytes + rounded > card_bytes() ||
        spw_simt_counts_down(&alloc_countdown) || posix_memalign(&p, 256, bytes)) {
        pthread_mutex_unlock(&spw_simt_driver.lock);
        return spw_simt_finish(cudaErrorMemoryAllocation);
    }
    *used += rounded;
    peak_bytes = *used > peak_bytes ? *used : peak_bytes;
    add_range(p, bytes, current_device);
    pthread_mutex_unlock(&spw_simt_driver.lock);
    memset(p, SPW_SIMT_NAN_BYTE, bytes);
    *out = p;
    return cudaSuccess;
}

/* On a lost device the memory goes too, but the answer is the error. */
cudaError_t cudaFree(void *p)
{
    cudaError_t rc = spw_simt_begin();
    if (!p)
        return rc;
    pthread_mutex_lock(&spw_simt_driver.lock);
    struct range *r = take_range(p, false);
    if (r)
        device_bytes[r->device] -= (r->bytes + GRANULE - 1) / GRANULE * GRANULE;
    pthread_mutex_unlock(&spw_simt_driver.lock);
    if (!r)
        return spw_simt_finish(cudaErrorInvalidValue);
    free(p);
    delete r;
    return rc;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    SPW_SIMT_BEGIN();
    cudaError_t rc = check_device(current_device);
    if (rc != cudaSuccess)
        return rc;
    pthread_mutex_lock(&spw_simt_driver.lock);
    uint64_t used = device_bytes[current_device] + others_bytes;
    *total = card_bytes();
    *available = used < *total ? *total - used : 0;
    pthread_mutex_unlock(&spw_simt_driver.lock);
    return cudaSuccess;
}

static bool overlap(const struct range *r, const void *p, size_t bytes)
{
    return (const char *)p < r->p + r->bytes && r->p < (const char *)p + bytes;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    SPW_SIMT_BEGIN();
    if (!p || !bytes || flags > 15)
        return spw_simt_finish(cudaErrorInvalidValue);
    pthread_mutex_lock(&spw_simt_driver.lock);
    cudaError_t rc =
        spw_simt_counts_down(&register_countdown) ? cudaErrorMemoryAllocation : cudaSuccess;
    for (const struct range *r = ranges; r; r = r->next)
        if (overlap(r, p, bytes))
            rc = cudaErrorHostMemoryAlreadyRegistered;
    if (rc == cudaSuccess) {
        add_range(p, bytes, -1);
        registered_bytes += bytes;
    }
    pthread_mutex_unlock(&spw_simt_driver.lock);
    return spw_simt_finish(rc);
}

cudaError_t cudaHostUnregister(void *p)
{
    cudaError_t rc = spw_simt_begin();
    pthread_mutex_lock(&spw_simt_driver.lock);
    struct range *r = take_range(p, true);
    if (r)
        registered_bytes -= r->bytes;
    pthread_mutex_unlock(&spw_simt_driver.lock);
    if (!r)
        return spw_simt_finish(cudaErrorHostMemoryNotRegistered);
    delete r;
    return rc;
}

enum spw_simt_place spw_simt_place_of(const void *p, size_t bytes)
{
    enum spw_simt_place found = PLACE_PAGEABLE;
    pthread_mutex_lock(&spw_simt_driver.lock);
    for (const struct range *r = ranges; r; r = r->next) {
        if (!overlap(r, p, bytes))
            continue;
        bool inside = (const char *)p >= r->p && (const char *)p + bytes <= r->p + r->bytes;
        found = !inside ? PLACE_ACROSS : r->device < 0 ? PLACE_PINNED : PLACE_DEVICE;
    }
    pthread_mutex_unlock(&spw_simt_driver.lock);
    return found;
}

/* ---- launches ---- */

cudaError_t spw_simt_set_attribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    SPW_SIMT_BEGIN();
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value < 0 || value > most_shared_bytes())
        return spw_simt_finish(cudaErrorInvalidValue);
    pthread_mutex_lock(&spw_simt_driver.lock);
    int i = 0;
    while (i < n_attributes && attributes[i].kernel != kernel)
        i++;
    if (i == MOST_KERNELS)
        spw_simt_fault("more than %d kernels have attributes", MOST_KERNELS);
    n_attributes = i == n_attributes ? i + 1 : n_attributes;
    attributes[i] = {kernel, value};
    pthread_mutex_unlock(&spw_simt_driver.lock);
    return cudaSuccess;
}

static size_t dynamic_allowed(const void *kernel)
{
    size_t bytes = DEFAULT_SHARED_BYTES;
    pthread_mutex_lock(&spw_simt_driver.lock);
    for (int i = 0; i < n_attributes; i++)
        if (attributes[i].kernel == kernel && attributes[i].dynamic_bytes > (int)bytes)
            bytes = (size_t)attributes[i].dynamic_bytes;
    pthread_mutex_unlock(&spw_simt_driver.lock);
    return bytes;
}

static bool is_mapped(uintptr_t address)
{
    unsigned char resident;
    return !mincore((void *)(address & ~(uintptr_t)4095), 1, &resident) || errno != ENOMEM;
}

/* Whether it lies in a block of the device, or is its end: of nothing, where nothing is read. */
static bool is_of_device(const char *p)
{
    bool found = false;
    pthread_mutex_lock(&spw_simt_driver.lock);
    for (const struct range *r = ranges; r; r = r->next)
        found = found || (r->device >= 0 && p >= r->p && p <= r->p + r->bytes);
    pthread_mutex_unlock(&spw_simt_driver.lock);
    return found;
}

/* A sanitizer's heap has its blocks right behind round addresses, and so has a pair of numbers of
 * which one is small. Such a pointer is found by builds without one. */
static bool is_ambiguous(uintptr_t address)
{
#if defined(__SANITIZE_ADDRESS__)
    return address >> 44 == 6;
#elif defined(__SANITIZE_THREAD__)
    return address >> 40 == 0x7b;
#else
    return address == 0;
#endif
}

/* A word that is an address of this process is a pointer: a number so large that also points to
 * something is not met by chance. Programs, heaps and stacks lie at 5/8 of the address space and
 * above, the sanitizers' shadows, which would answer to pairs of small numbers, below. */
void spw_simt_check_arguments(const struct spw_simt_launch *l)
{
    const uintptr_t least = (uintptr_t)0x5000 << 32, end = (uintptr_t)1 << 47;
    for (size_t at = 0; at + sizeof least <= l->closure_bytes && !host_arguments;
         at += sizeof least) {
        uintptr_t word;
        memcpy(&word, (const char *)l->closure + at, sizeof word);
        if (word < least || word >= end || word == (uintptr_t)l->kernel ||
            is_of_device((const char *)word))
            continue;
        bool pinned = spw_simt_place_of((const void *)word, 1) == PLACE_PINNED;
        if (pinned || (!is_ambiguous(word) && is_mapped(word)))
            spw_simt_fault(
                "%s:%d: kernel %s: the argument at byte %zu points to %s memory of the host",
                l->file, l->line, l->name, at, pinned ? "pinned" : "pageable");
    }
}

cudaError_t spw_simt_get_attributes(cudaFuncAttributes *out, const void *kernel)
{
    SPW_SIMT_BEGIN();
    cudaError_t rc = check_device(current_device);
    if (rc == cudaSuccess && spw_simt_driver.options.code)
        rc = spw_simt_finish((cudaError_t)spw_simt_driver.options.code);
    if (rc == cudaSuccess)
        out->maxDynamicSharedSizeBytes = (int)dynamic_allowed(kernel);
    return rc;
}

/* As the hardware's limits are: CUDA C++ programming guide, "Compute Capabilities". */
cudaError_t spw_simt_check_launch(struct spw_simt_launch *l)
{
    const dim3 *g = &l->grid, *b = &l->block;
    uint64_t threads = (uint64_t)b->x * b->y * b->z;
    if (!threads || threads > 1024 || b->z > 64)
        return cudaErrorInvalidConfiguration;
    if (!g->x || !g->y || !g->z || g->x > INT32_MAX || g->y > 65535 || g->z > 65535)
        return cudaErrorInvalidConfiguration;
    if (spw_simt_driver.options.code)
        return (cudaError_t)spw_simt_driver.options.code;
    if (spw_simt_counts_down(&launch_countdown))
        return cudaErrorMemoryAllocation;
    size_t allowed = dynamic_allowed(l->kernel);
    bool more = allowed > DEFAULT_SHARED_BYTES;
    l->shared_most = (size_t)(more ? most_shared_bytes() : (int)DEFAULT_SHARED_BYTES);
    return l->shared_bytes > allowed ? cudaErrorInvalidValue : cudaSuccess;
}
