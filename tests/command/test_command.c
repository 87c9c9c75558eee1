/* The spillway command: help, completion, refusals and their texts, and the commands that compute
 * little or nothing (command.cases). Run on a tiny model, a committed golden model with a tokenizer
 * of bytes. Skipped without the command. */
#include "tests/command/cases.h"
#include "tests/command/command_model.h"

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    command_model("command");
    command_limits();
    run_cases("command", NULL);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* a second becomes many */
    CHECK(sh("ulimit -v 6000000; $S tokenize m --text-file /dev/zero") == 2);
    CHECK_MSG(strstr(err, "/dev/zero: found 1 GiB or more"), "%s", err);
#endif
    sh("rm -r %s", folder);
    return check_done();
}
