/* `spillway check-kv` and --kv-gate, through the command (check_kv.cases). */
#include "tests/command/cases.h"
#include "tests/engine/copying_model.h"

int main(void)
{
    const struct copying_model turning = {.quick = 200, .seed = 5};
    if (!command_is_there())
        return CHECK_SKIP;
    open_folder("check_kv");
    command_limits();
    copying_model_write(&turning, in_folder("m"));
    run_cases("check_kv", NULL);
    sh("rm -r %s", folder);
    return check_done();
}
