/* See access.h. Why each check is there:
 *
 * Host: a page can give its own name the address 127.0.0.1 (DNS rebinding). Its requests then are
 * of the same origin for the browser, but they still name the page's host.
 * Origin, Sec-Fetch-Site: a page may send a POST to any server; without the right headers in the
 * answer it cannot read the answer, but the work is done by then.
 * Content type: texts and forms are sent without asking first (no preflight).
 * Content encoding: a small body must not become a large one. */
#include "tools/command/serve/access.h"

#include "base/grow.h"
#include "tools/command/input/text.h"

#include <arpa/inet.h>
#include <string.h>

/* ---- hosts ---- */

static bool is_loopback_v4(const char *address)
{
    struct in_addr a;
    return inet_pton(AF_INET, address, &a) == 1 && ntohl(a.s_addr) >> 24 == 127;
}

bool serve_is_loopback(const char *host)
{
    return strcasecmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 || is_loopback_v4(host);
}

/* The name of "NAME", "NAME:PORT", "[ADDRESS]:PORT". False: too long for a name. */
static bool cut_port(char out[256], const char *host)
{
    const bool has_brackets = *host == '[';
    const size_t n = strcspn(host += has_brackets, has_brackets ? "]" : ":");
    if (n >= 256)
        return false;
    memcpy(out, host, n);
    out[n] = '\0';
    return true;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n > m && strcasecmp(text + n - m, end) == 0;
}

static bool is_listed(const struct cli_strings *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcasecmp(list->items[i], name) == 0 || strcmp(list->items[i], "*") == 0)
            return true;
    return false;
}

/* The suffixes are those of names that no public server has. */
static bool is_own_host(const struct serve_access *a, const char *host)
{
    char name[256];
    if (!a->on_loopback || !host || !*host)
        return true;
    return cut_port(name, host) && (serve_is_loopback(name) || strcmp(name, "0.0.0.0") == 0 ||
                                    ends_with(name, ".localhost") || ends_with(name, ".local") ||
                                    ends_with(name, ".internal") || is_listed(&a->hosts, name) ||
                                    is_listed(&a->hosts, host));
}

/* ---- origins ---- */

/* "SCHEME://HOST": a page of this machine, or of the server itself. */
static bool is_own_origin(const char *origin, const char *host)
{
    char name[256];
    const char *at = strstr(origin, "://");
    if (!at || (strncmp(origin, "http://", 7) != 0 && strncmp(origin, "https://", 8) != 0))
        return false;
    at += 3;
    return (host && strcasecmp(at, host) == 0) || (cut_port(name, at) && serve_is_loopback(name));
}

static int check_origin(const struct serve_access *a, const struct serve_head *h,
                        struct request_refusal *why)
{
    if (h->origin) {
        if (is_listed(&a->origins, h->origin) || is_own_origin(h->origin, h->host))
            return 0;
        return request_refuse(why, 403, "forbidden_origin", NULL,
                              "found the Origin '%.200s', which may not use this server; "
                              "--allowed-origin allows it",
                              h->origin);
    }
    if (h->fetch_site && strcmp(h->fetch_site, "cross-site") == 0)
        return request_refuse(why, 403, "forbidden_origin", NULL,
                              "found a request of a page of another site, without its Origin");
    return 0;
}

/* ---- keys ---- */

int serve_access_read_keys(struct serve_access *a, const char *path)
{
    char *text, *rest;
    size_t bytes;
    struct spw_error err = {0};
    int rc = cli_text_read(path, 1 << 20, &text, &bytes, NULL, &err);
    if (rc)
        return cli_fail_error(rc, &err, true);
    for (char *line = strtok_r(text, " \t\r\n", &rest); line && !rc;
         line = strtok_r(NULL, " \t\r\n", &rest)) {
        if (!spw_resize(&a->keys, a->n_keys + 1, sizeof *a->keys) &&
            (a->keys[a->n_keys] = spw_strdup(line)))
            a->n_keys++;
        else
            rc = cli_fail(CLI_FAILED, "out of memory");
    }
    spw_free(text);
    if (!rc && !a->n_keys)
        rc = cli_fail(CLI_REFUSED, "%s: found no key, expected one on each line", path);
    return rc;
}

void serve_access_free(struct serve_access *a)
{
    for (size_t i = 0; i < a->n_keys; i++)
        spw_free(a->keys[i]);
    spw_free(a->keys);
    *a = (struct serve_access){0};
}

/* Its time depends on the length of `given` only. */
static bool is_equal(const char *key, const char *given)
{
    const size_t n = strlen(key), m = strlen(given);
    unsigned difference = n != m;
    for (size_t i = 0; i < m; i++)
        difference |= (unsigned char)key[n ? i % n : 0] ^ (unsigned char)given[i];
    return !difference;
}

static bool has_key(const struct serve_access *a, const struct serve_head *h)
{
    const char *given = h->authorization;
    int n = 0;
    if (given && strncasecmp(given, "Bearer ", 7) == 0)
        given += 7 + strspn(given + 7, " ");
    for (size_t i = 0; i < a->n_keys; i++) /* looks at all keys in any case */
        n += (given && is_equal(a->keys[i], given)) +
             (h->api_key && is_equal(a->keys[i], h->api_key));
    return n || !a->n_keys;
}

/* ---- bodies ---- */

static bool is_json(const char *type)
{
    static const char json[] = "application/json";
    return type && strncasecmp(type, json, sizeof json - 1) == 0 &&
           strchr("; \t", type[sizeof json - 1]);
}

static int check_body(const struct serve_head *h, struct request_refusal *why)
{
    if (strcmp(h->method, "POST") != 0)
        return 0;
    if (!is_json(h->content_type))
        return request_refuse(why, 415, "unsupported_media_type", NULL,
                              "found a body of type '%.100s', expected the header 'Content-Type: "
                              "application/json'",
                              h->content_type ? h->content_type : "");
    if (h->content_encoding && strcasecmp(h->content_encoding, "identity") != 0)
        return request_refuse(why, 415, "unsupported_encoding", NULL,
                              "found Content-Encoding '%.100s', expected a body as it is",
                              h->content_encoding);
    return 0;
}

int serve_access_check(const struct serve_access *a, const struct serve_head *h, bool is_public,
                       struct request_refusal *why)
{
    if (!is_own_host(a, h->host))
        return request_refuse(why, 403, "forbidden_host", NULL,
                              "found the Host '%.200s', which is not this server; --allowed-host "
                              "allows it",
                              h->host);
    SPW_TRY(check_origin(a, h, why));
    if (!is_public && strcmp(h->method, "OPTIONS") != 0 && !has_key(a, h))
        return request_refuse(why, 401, "invalid_api_key", NULL,
                              "found no key of this server, expected 'Authorization: Bearer KEY' "
                              "or 'x-api-key: KEY'");
    return check_body(h, why);
}
