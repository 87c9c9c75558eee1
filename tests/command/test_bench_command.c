/* `spillway probe` and `bench`, and plans with measured limits: on a tiny model. */
#include "tests/command/cases.h"
#include "tests/command/command_model.h"
#include "tests/command/command_start.h"

#include <math.h>

/* A plan with known limits has the expected time of a token and of a prompt, and the limit that
 * decides it. */
static void test_plan_rates(void)
{
    CHECK_MSG(sh("\"$S\" plan m --context 1000 --device-memory 1MiB") == 0 &&
                  strstr(out, "smallest") && strstr(out, "\nexpected time of a token"),
              "%s%s", out, err);
    CHECK(sh("\"$S\" plan m --context 1000 --json") == 0);
    json_t *j = parse(out);
    double seconds = real(j, "predicted_step.seconds");
    CHECK(seconds > 0);
    CHECK(fabs(real(j, "predicted_tokens_per_second.decode") * seconds - 1) < 1e-9);
    seconds = real(j, "predicted_prompt.seconds");
    CHECK(seconds > 0);
    CHECK(fabs(real(j, "predicted_tokens_per_second.prefill") * seconds / 1000 - 1) < 1e-9);
    CHECK(json_is_string(json_object_get(json_object_get(j, "predicted_step"), "bottleneck")));
    json_decref(j);
}

/* probe does not catch SIGINT: the first one ends it. */
static void test_interrupt_probe(void)
{
    int sink = open("/dev/null", O_WRONLY);
    pid_t pid = start(sink, "probe . --redo");
    usleep(200000); /* it takes more than a second */
    check_kill(pid, SIGINT);
    int status = end_of(pid);
    close(sink);
    CHECK_MSG(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT, "status %x", status);
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    command_model("bench");
    command_limits();
    static const char *const sections[] = {"probe",     "known", "odd names", "ended",
                                           "simulated", "disk",  "full"};
    test_plan_rates();
    for (int i = 0; i < 6 + check_full(); i++)
        run_cases("bench", sections[i]);
    test_interrupt_probe();
    sh("rm -r %s", folder);
    return check_done();
}
