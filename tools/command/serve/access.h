/* Who may use the server: a web page of another site may not, although the user's browser can reach
 * the server; and with keys, only who has one. Pure functions over the head of a request. */
#ifndef SPW_TOOLS_COMMAND_SERVE_ACCESS_H
#define SPW_TOOLS_COMMAND_SERVE_ACCESS_H

#include "tools/command/request/request.h"

struct serve_access {
    bool on_loopback;                  /* listens there only: names of hosts are checked */
    struct cli_strings hosts, origins; /* borrowed: --allowed-host, --allowed-origin */
    char **keys;                       /* owned, [n_keys]; none: everybody may ask */
    size_t n_keys;
};
/* Reads a file with a key on each line. An exit code, after a line on stderr. */
int serve_access_read_keys(struct serve_access *a, const char *path);
void serve_access_free(struct serve_access *a);
/* Whether an address that the server listens on can be reached from this machine only. */
bool serve_is_loopback(const char *host);

/* The head of a request; NULL: there is no such line. */
struct serve_head {
    const char *method, *path, *host, *origin, *fetch_site, *content_type, *content_encoding;
    const char *authorization, *api_key;
};
/* 0, or -errno with the reason: 401, 403, 415. `is_public`: needs no key. */
int serve_access_check(const struct serve_access *a, const struct serve_head *h, bool is_public,
                       struct request_refusal *why);

#endif
