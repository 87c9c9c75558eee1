/* Helpers of the tests that drive an engine step by step under the smallest budget that works. */
#ifndef SPW_TESTS_ENGINE_ENGINE_RUN_H
#define SPW_TESTS_ENGINE_ENGINE_RUN_H

#include "runtime/engine/engine.h"
#include "tests/engine/model_run.h"
#include "tests/engine/gguf_folder.h"
#include "tests/engine/tiny_model.h"
#ifdef SPW_SIMT_EMULATOR
#include "tests/cuda/simt_control.h"
#endif

/* The public calls on a backend of the test's choice; NULL: the options choose it. */
static inline int spw_plan_query_on(struct spw_plan_info *out, const struct spw_backend *b,
                                    const char *dir, const struct spw_options *o,
                                    struct spw_error *err)
{
    struct spw_options on = *o;
    on.own_backend = b;
    return spw_plan_query(out, dir, &on, err);
}

static inline int spw_engine_open_on(struct spw_engine **out, const struct spw_backend *b,
                                     const char *dir, const struct spw_options *o,
                                     struct spw_error *err)
{
    struct spw_options on = *o;
    on.own_backend = b;
    return spw_engine_open(out, dir, &on, err);
}

static inline int spw_plan_moved_on(uint64_t moved[SPW_MOVED_COUNT],
                                    struct spw_expert_bytes *experts,
                                    const struct spw_plan_steps *steps, const struct spw_backend *b,
                                    const char *dir, const struct spw_options *o,
                                    const struct spw_plan_request *requests, size_t n,
                                    struct spw_error *err)
{
    struct spw_options on = *o;
    on.own_backend = b;
    return spw_plan_moved(moved, experts, steps, dir, &on, requests, n, err);
}

/* A folder of this process alone, with the model in it. `dir`: the folder, or its GGUF file. */
static inline void run_folder(char dir[128], const struct tiny_model *m, const char *test)
{
    snprintf(dir, 128, "/tmp/spw_%s_%d_%s%llu", test, (int)getpid(), m->family,
             (unsigned long long)m->seed);
    tiny_model_write(m, dir);
    if (m->stored == TINY_QUANTIZED) {
        char file[128];
        snprintf(file, sizeof file, "%.110s" TINY_GGUF, dir);
        gguf_from_folder(dir, file, &(struct gguf_way){.seed = m->seed | 1});
        snprintf(dir, 128, "%.127s", file);
    }
}

static inline void run_ids(int32_t *ids, size_t n, uint32_t vocab, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(check_random(&seed) % vocab);
}

/* Whether what the program is built for is there; else it is skipped. */
static inline bool run_is_there(void)
{
    struct spw_backend b;
    struct spw_error err = {0};
    if (TEST_BACKEND == SPW_BACKEND_CPU || !spw_backend_cuda(&b, 0, &err))
        return true;
    fprintf(stderr, "%s: skipped\n", err.text);
    return false;
}

/* Whether run_lose_device does anything: a real GPU cannot be told to fail. */
static inline bool run_can_lose_device(void)
{
#ifdef SPW_SIMT_EMULATOR
    return true;
#else
    return TEST_BACKEND == SPW_BACKEND_CPU;
#endif
}

/* The n-th command from now on fails, and with it the device. */
static inline void run_lose_device(struct spw_engine *e, int64_t n)
{
    if (TEST_BACKEND == SPW_BACKEND_CPU)
        spw_device_cpu_fail_nth(e->lane.device, n);
#ifdef SPW_SIMT_EMULATOR
    else
        spw_simt_lose_device_nth(n);
#endif
}

/* After the engine was closed: the next one gets a device that works. */
static inline void run_restore_device(void)
{
#ifdef SPW_SIMT_EMULATOR
    spw_simt_set(NULL);
#endif
}

/* Whether the allocation of spw_alloc_fail_nth has failed; none will, then. */
static inline bool run_alloc_failed(void)
{
    for (int i = 0; i < 1 << 20; i++)
        if (spw_alloc_fails())
            return false;
    return true;
}

/* The CPU; or driven as a device is that cannot read the host's memory: every resident block is
 * copied, streamed ones come from packed copies in the host arena. */
static inline struct spw_backend run_backend(bool reads_host_memory)
{
    struct spw_backend b;
    struct spw_error err = {0};
    if (TEST_BACKEND == SPW_BACKEND_CPU) {
        spw_backend_cpu(&b);
    } else if (spw_backend_cuda(&b, 0, &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    b.reads_host_memory = b.reads_host_memory && reads_host_memory;
    return b;
}

/* The plan that these options must have. */
static inline struct spw_plan_info run_plan_on(const struct spw_backend *b, const char *dir,
                                               const struct spw_options *o)
{
    struct spw_plan_info info;
    struct spw_error err = {0};
    CHECK_MSG(!spw_plan_query_on(&info, b, dir, o, &err), "%s: %s", dir, err.text);
    return info;
}

/* Device memory at the smallest that works (plus `more`), host memory enough. */
static inline void run_tight_on(const struct spw_backend *b, const char *dir, struct spw_options *o,
                                uint64_t more)
{
    o->device_bytes = run_plan_on(b, dir, o).smallest_device_bytes + more;
    o->host_bytes = (uint64_t)1 << 30;
}

static inline void run_tight(const char *dir, struct spw_options *o, uint64_t more)
{
    struct spw_backend b = run_backend(true);
    run_tight_on(&b, dir, o, more);
}

/* Host memory for what lies there beside KV, which goes to the disk of `o`. */
static inline void run_to_disk_on(const struct spw_backend *b, const char *dir,
                                  struct spw_options *o)
{
    o->host_bytes = (uint64_t)1 << 30;
    struct spw_plan_info info = run_plan_on(b, dir, o);
    o->host_bytes = info.host.total - info.host.kv;
    if (o->host_bytes < info.smallest_host_bytes)
        o->host_bytes = info.smallest_host_bytes;
    if (!o->host_bytes)
        o->host_bytes = SPW_NONE;
}

static inline void run_to_disk(const char *dir, struct spw_options *o)
{
    struct spw_backend b = run_backend(true);
    run_to_disk_on(&b, dir, o);
}

/* Reads all events. Returns how many fallbacks there were; *last, which may be NULL, gets the
 * latest one. */
static inline int run_fallbacks(struct spw_engine *e, struct spw_fallback *last)
{
    struct spw_engine_event event;
    int n = 0;
    while (spw_engine_event(e, &event))
        if (event.kind == SPW_ENGINE_FALLBACK) {
            n++;
            if (last)
                *last = event.fallback;
        }
    return n;
}

/* Exits the program on failure: nothing can be tested without an engine. */
static inline struct spw_engine *run_open_on(const struct spw_backend *b, const char *dir,
                                             const struct spw_options *o)
{
    struct spw_engine *e = NULL;
    struct spw_error err = {0};
    if (spw_engine_open_on(&e, b, dir, o, &err)) {
        fprintf(stderr, "%s: %s\n", dir, err.text);
        exit(1);
    }
    CHECK(!e->model.weights->small); /* the device has it */
    return e;
}

static inline struct spw_engine *run_open(const char *dir, const struct spw_options *o)
{
    struct spw_backend b = run_backend(true);
    return run_open_on(&b, dir, o);
}

static inline struct spw_session *run_session(struct spw_engine *e)
{
    struct spw_session *s = NULL;
    struct spw_error err = {0};
    CHECK_MSG(spw_session_open(&s, e, &err) == 0, "%s", err.text);
    return s;
}

/* One session to these tokens; its last logits, or NULL after a failure (a failed check). */
static inline const float *run_to(struct spw_session *s, struct spw_engine *e, const int32_t *ids,
                                  size_t n)
{
    struct spw_error err = {0};
    struct spw_span span = {s, ids, n, 1};
    int rc = spw_sync(e, &span, 1, NULL, NULL, &err);
    CHECK_MSG(rc == 0, "%zu tokens: %s", n, err.text);
    return rc ? NULL : spw_session_logits(s);
}

static inline bool run_same(const float *a, const float *b, uint32_t vocab)
{
    return a && b && memcmp(a, b, vocab * sizeof *a) == 0;
}

/* No peak has passed its budget. */
static inline void run_check_peaks(struct spw_engine *e, const struct spw_options *o,
                                   const char *what)
{
    struct spw_stats s;
    spw_engine_stats(e, &s);
    CHECK_MSG(!o->device_bytes || s.device_peak_bytes <= o->device_bytes, "%s: device peak %llu",
              what, (unsigned long long)s.device_peak_bytes);
    CHECK_MSG(!o->host_bytes || s.host_peak_bytes <= o->host_bytes, "%s: host peak %llu", what,
              (unsigned long long)s.host_peak_bytes);
}

#endif
