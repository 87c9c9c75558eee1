/* What the two halves of the emulated driver share: simt_runtime.cc (errors, devices, memory, what
 * the tests set) and simt_streams.cc (streams, events, copies, launches). */
#ifndef SPW_TESTS_CUDA_SIMT_DRIVER_H
#define SPW_TESTS_CUDA_SIMT_DRIVER_H

#include "tests/cuda/simt_control.h"
#include "tests/cuda/simt_emulator.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { SPW_SIMT_NAN_BYTE = 0xff };

struct spw_simt_driver {
    pthread_mutex_t lock; /* of what is not atomic; the streams' workers never take it */
    struct spw_simt_options options;
    uint64_t n_streams, n_events, n_seeds;
    uint64_t n_kernels, n_copies, n_ahead; /* atomic */
    int64_t lose_countdown;                /* atomic */
    int sticky;                            /* atomic: what a lost device answers; 0: it is there */
};
extern struct spw_simt_driver spw_simt_driver;
extern __thread bool spw_simt_in_host_function;

/* The answer of a call: remembered as the thread's last error, or a lost device's instead. */
cudaError_t spw_simt_finish(cudaError_t rc);
/* Every call that does something begins so. */
cudaError_t spw_simt_begin(void);

#define SPW_SIMT_BEGIN()                                                                           \
    do {                                                                                           \
        cudaError_t rc_ = spw_simt_begin();                                                        \
        if (rc_ != cudaSuccess)                                                                    \
            return rc_;                                                                            \
    } while (0)

/* Of the calling thread's device: whether there is one. */
cudaError_t spw_simt_check_device(void);
/* Whether the n-th is now. */
bool spw_simt_counts_down(int64_t *countdown);
uint64_t spw_simt_draw(uint64_t *state);
uint64_t spw_simt_seed(void); /* another one for each call */

enum spw_simt_place { PLACE_DEVICE, PLACE_PINNED, PLACE_PAGEABLE, PLACE_ACROSS };

/* Where a run of bytes lies; ACROSS: over the edge of an allocation or a registered range. */
enum spw_simt_place spw_simt_place_of(const void *p, size_t bytes);

/* Whether the card takes such a launch; fills in what a block may have of shared memory. */
cudaError_t spw_simt_check_launch(struct spw_simt_launch *l);
/* Ends the process where an argument points to memory that is not the device's. */
void spw_simt_check_arguments(const struct spw_simt_launch *l);

#endif
