/* Times of a machine that is not here: see spw_simulate in runtime/measure.h. The bytes are those
 * of dry runs (dry_run.c), the times those of the roofline (runtime/plan/predict.c). */
#include "runtime/engine/engine.h"

/* The bytes that a prompt and an answer of n_new tokens move. */
static int count(uint64_t moved[SPW_MOVED_COUNT], const char *model, const struct spw_options *o,
                 uint64_t n_prompt, uint64_t n_new, struct spw_error *err)
{
    const struct spw_plan_request request = {.n_prompt = n_prompt, .max_new_tokens = n_new};
    return spw_plan_moved(moved, NULL, NULL, model, o, &request, 1, err);
}

int spw_simulate(struct spw_simulation *out, const char *model, const struct spw_options *o,
                 const struct spw_machine *m, const struct spw_drive *d, uint64_t card_bytes,
                 uint64_t n_prompt, uint64_t n_new, struct spw_error *err)
{
    const struct spw_device_likeness like = {.workers = 1, .available = card_bytes};
    struct spw_options own = *o;
    struct spw_backend gpu;
    struct spw_ops ops;
    uint64_t prompt[SPW_MOVED_COUNT], all[SPW_MOVED_COUNT];
    spw_backend_cuda_dry(&gpu, &ops, &like);
    own.own_backend = &gpu;
    own.machine = m;
    own.drive = d;
    *out = (struct spw_simulation){0};
    SPW_TRY(spw_plan_query(&out->plan, model, &own, err));
    SPW_TRY(count(prompt, model, &own, n_prompt, 1, err));
    SPW_TRY(count(all, model, &own, n_prompt, 1 + n_new, err));
    for (int i = 0; i < SPW_MOVED_COUNT; i++)
        out->plan.decode_moved_bytes[i] = (all[i] - prompt[i]) / n_new;
    spw_predict_step(&out->step, &out->plan, m, d);
    return 0;
}
