/* http.h in a build without libmicrohttpd. */
#include "tools/command/serve/http.h"

int serve_http_open(struct serve_http **out, const struct serve_http_options *o,
                    struct spw_error *err)
{
    (void)o;
    *out = NULL;
    return spw_fail(err, -ENOTSUP,
                    "this build has no server: install libmicrohttpd (Debian's libmicrohttpd-dev) "
                    "and build spillway again");
}

uint16_t serve_http_port(const struct serve_http *h)
{
    (void)h;
    return 0;
}

void serve_http_stop(struct serve_http *h)
{
    (void)h;
}

void serve_http_close(struct serve_http *h)
{
    (void)h;
}
