/* Which option of the command sets which member of struct spw_options: see cli_name_options.
 * tools/check_layers.sh checks that every member that a text of the library names has a row, and
 * that the members and options of the rows exist. */
#include "tools/command/options/options.h"

#include <assert.h>
#include <string.h>

static const struct {
    const char *member, *option;
} names[] = {
    {"backend", "--device"},
    {"compute", "--compute"},
    {"context", "--context"},
    {"device_bytes", "--device-memory"},
    {"disk_bytes", "--disk-memory"},
    {"disk_dir", "--disk"},
    {"disk_write_limit", "--disk-write-limit"},
    {"host_bytes", "--host-memory"},
    {"kv", "--kv-dtype"},
    {"on_oom", "--on-oom"},
    {"past_positions", "--allow-long-context"},
    {"precision", "--kv-dtype"},
    {"prefill_chunk", "--prefill-chunk"},
    {"prefix_cache_bytes", "--prefix-cache-size"},
    {"prefix_cache_dir", "--prefix-cache"},
    {"prefix_cache_trusts_others", "--trust-prefix-cache"},
    {"residual_window", "--residual-window"},
};

static const char *option_of(const char *member, size_t n)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i].member) == n && !memcmp(names[i].member, member, n))
            return names[i].option;
    return NULL;
}

void cli_name_options(char *text)
{
    static const char prefix[] = "options.", letters[] = "abcdefghijklmnopqrstuvwxyz_";
    for (char *at = text; (at = strstr(at, prefix));) {
        char *member = at + strlen(prefix), *rest = member + strspn(member, letters);
        const char *option = option_of(member, (size_t)(rest - member));
        bool inside = at > text && (strchr(letters, at[-1]) || strchr("-./", at[-1]));
        if (!option || inside) { /* part of a name of the user */
            at = member;
            continue;
        }
        size_t n = strlen(option);
        assert(n <= (size_t)(rest - at));
        memcpy(at, option, n);
        memmove(at + n, rest, strlen(rest) + 1);
        at += n;
    }
}
