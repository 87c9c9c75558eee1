/* For tests: what the emulated machine is like and what goes wrong on it. See simt_emulator.h.
 *
 * spw_simt_set comes first or between runs, when no stream, event or device memory is alive. */
#ifndef SPW_TESTS_CUDA_SIMT_CONTROL_H
#define SPW_TESTS_CUDA_SIMT_CONTROL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct spw_simt_options {
    uint64_t seed;       /* of the order of threads, of blocks, and of the delays */
    uint32_t delay_us;   /* at most this long before and after each command; 0: no delays */
    uint64_t card_bytes; /* 0: 1 GiB */
    int n_devices;       /* 0: one; negative: none */
    int capability;      /* 75, 80, ...; 0: 80 */
    int driver;          /* cudaDriverGetVersion; 0: new enough; negative: there is no driver */
    int code;            /* cudaError_t: why no kernel can be loaded; 0: all can */
};

/* NULL: all defaults. Also clears every fault and the sticky error. */
void spw_simt_set(const struct spw_simt_options *o);

/* The n-th call or command from now on (0 = the next) fails, once; n < 0 switches it off. A lost
 * device stays lost: every later call returns the same error, and what is queued is dropped. */
void spw_simt_fail_alloc_nth(int64_t n);
void spw_simt_fail_register_nth(int64_t n);
void spw_simt_lose_device_nth(int64_t n);
void spw_simt_fail_launch_nth(int64_t n); /* the card finds no memory for it */
/* So many bytes of every card belong to somebody else. */
void spw_simt_others_take(uint64_t bytes);
/* The same, but only once the next allocation is asked for: too late for who asked what is free. */
void spw_simt_others_take_late(uint64_t bytes);

/* Kernels of the tests of the emulator itself run on the CPU's arrays; else (the default, which
 * spw_simt_set leaves alone) an argument that points to them ends the process. */
void spw_simt_allow_host_arguments(int allowed);

struct spw_simt_usage {
    uint64_t device_bytes, device_peak_bytes, registered_bytes;
    uint64_t n_kernels, n_copies;                        /* run since spw_simt_set */
    uint64_t n_ahead;                                    /* kernels that started early */
    uint64_t n_streams, n_events, n_blocks, n_registers; /* alive */
};
void spw_simt_usage_get(struct spw_simt_usage *out);

#ifdef __cplusplus
}
#endif

#endif
