/* For tools/gpu_check.sh: another process that takes device memory.
 *
 *   gpu_hog LEAVE_BYTES     prints "ready"; after a line from stdin takes all but that much, prints
 *                           "taken N", holds it until stdin ends
 *
 * 0, 77 without a GPU, 1 when the memory could not be taken. */
#include "offload/device/device.h"
#include "tests/check.h"

int main(int argc, char **argv)
{
    const struct spw_device_ops *ops = &spw_device_cuda;
    struct spw_device_options o = {.device_bytes = UINT64_MAX, .host_bytes = UINT64_MAX};
    struct spw_device *d;
    struct spw_error err = {0};
    void *p;
    if (argc != 2)
        return 2;
    if (ops->open(&d, &o, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return CHECK_SKIP;
    }
    printf("ready\n");
    fflush(stdout);
    for (int c = 0; c != '\n' && c != EOF;)
        c = getchar();
    uint64_t leave = strtoull(argv[1], NULL, 0), available = ops->available(d);
    uint64_t bytes = spw_sub_u64(available, leave) / 4096 * 4096;
    int rc = ops->alloc(d, bytes, &p);
    if (!rc) {
        printf("taken %llu\n", (unsigned long long)bytes);
        fflush(stdout);
        while (getchar() != EOF)
            ;
        ops->free(d, p, bytes);
    }
    ops->close(d);
    return rc ? 1 : 0;
}
