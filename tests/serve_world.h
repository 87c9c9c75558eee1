/* What tests of the server's protocols share: bodies with ' in place of ", read with a template and
 * a tokenizer of bytes, without a model. */
#ifndef SPW_TESTS_SERVE_WORLD_H
#define SPW_TESTS_SERVE_WORLD_H

#include "tests/job_world.h"
#include "tests/json_text.h"
#include "tools/command/serve/protocol.h"

enum { LONGEST = 4096 };

static inline const struct serve_protocol *protocol_of(const char *path)
{
    for (size_t i = 0; i < serve_n_protocols; i++)
        if (!strcmp(serve_protocols[i]->path, path))
            return serve_protocols[i];
    abort();
}

#define CHAT protocol_of("/v1/chat/completions")
#define COMPLETIONS protocol_of("/v1/completions")
#define RESPONSES protocol_of("/v1/responses")
#define MESSAGES_API protocol_of("/v1/messages")

/* The text with " in the place of each '. It lives until there are two later ones. */
static inline char *quoted(const char *text)
{
    static char texts[2][1 << 14];
    static size_t n;
    char *to = texts[n++ % 2];
    CHECK(strlen(text) < sizeof texts[0]);
    snprintf(to, sizeof texts[0], "%s", text);
    for (char *at = to; (at = strchr(at, '\'')); at++)
        *at = '"';
    return to;
}

/* ---- bodies ---- */

static struct request_refusal why;
static struct serve_wish wish;

/* The body of a client, with ' in place of ". */
static inline int read_body(const struct serve_protocol *p, struct request *x, const char *body)
{
    char *text = quoted(body);
    memset(&why, 0, sizeof why);
    int rc = serve_read(p, x, &wish, text, strlen(text), &reader, LONGEST, &why);
    CHECK_MSG(!rc == !why.message[0] && (!rc || why.status >= 400), "%s: %s", body, why.message);
    return rc;
}

static inline struct request body_of(const struct serve_protocol *p, const char *body)
{
    struct request x;
    int rc = read_body(p, &x, body);
    CHECK_MSG(rc == 0, "%s: %s", body, why.message);
    return x;
}

/* ---- templates ---- */

/* These have no spaces and line breaks, for which the tokenizer has no tokens. */
#define CONTENT                                                                                    \
    "{{ (m.content ~ '') | replace('\\n\\n', '|') | "                                              \
    "replace('\\n', ';') }}"
#define EACH_MESSAGE "{%- for m in messages -%}<{{ m.role }}>" CONTENT "{%- endfor -%}"

static inline void use(const char *text)
{
    use_template(text);
    CHECK(serve_prepare(&reader) == 0);
}

#endif
