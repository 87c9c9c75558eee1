/* made_up_limits FILE DIRECTORY: for tests in the shell. */
#include "tests/command/made_up_limits.h"

int main(int argc, char **argv)
{
    return argc == 3 && write_made_up_limits(argv[1], argv[2]) == 0 ? 0 : 1;
}
