/* The CUDA backend: one row of backend.h. Where the toolkit was not found there is only the
 * refusal. */
#include "runtime/backend.h"

int spw_backend_cuda(struct spw_backend *out, struct spw_error *err)
{
    *out = (struct spw_backend){0};
    return spw_fail(err, -EINVAL,
                    "device cuda: this spillway was built without CUDA; build it where nvcc is "
                    "found, or use --device cpu");
}
