/* Messages as JSON: see chat_history.h. */
#include "tools/command/chat/chat_history.h"

#include "tools/command/output/output.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>

static const char *role_of(const json_t *messages, size_t i)
{
    const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
    return role ? role : "";
}

/* An unknown role is refused: templates would leave its message out, or print the role. */
static bool known_role(const char *role)
{
    static const char *const roles[] = {"system", "developer", "user",    "assistant",
                                        "tool",   "function",  "ipython", "model"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(role, roles[i]))
            return true;
    return false;
}

/* The content is a text or a list of parts. A message that calls tools needs none. */
static bool has_content(const json_t *m)
{
    const json_t *content = json_object_get(m, "content");
    bool calls =
        json_array_size(json_object_get(m, "tool_calls")) || json_object_get(m, "function_call");
    return json_is_string(content) || json_is_array(content) ||
           (calls && (!content || json_is_null(content)));
}

static int check(const json_t *messages, const char *path)
{
    if (!json_is_array(messages))
        return cli_fail(CLI_REFUSED, "%s: found no JSON list, expected a list of messages", path);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        if (!json_is_object(m))
            return cli_fail(CLI_REFUSED, "%s: message %zu: found no object, expected one", path,
                            i + 1);
        const char *role = json_string_value(json_object_get(m, "role"));
        if (!role || !known_role(role))
            return cli_fail(
                CLI_REFUSED,
                "%s: message %zu: \"role\": found %s%.40s%s, expected system, developer, "
                "user, assistant, tool, function, ipython or model",
                path, i + 1, role ? "'" : "no text", role ? role : "", role ? "'" : "");
        if (!has_content(m))
            return cli_fail(CLI_REFUSED,
                            "%s: message %zu: \"content\": found no text, expected one, or a list "
                            "of parts; only a message with tool_calls needs none",
                            path, i + 1);
    }
    return 0;
}

int cli_history_read(json_t **messages, const char *path)
{
    char *text;
    size_t bytes;
    json_t *list;
    *messages = NULL;
    int code = cli_read_file(path, &text, &bytes);
    if (code)
        return code;
    path = cli_input_name(path);
    code = cli_json_parse(&list, text, bytes, path);
    spw_free(text);
    if (!code)
        code = check(list, path);
    if (code) {
        json_decref(list);
        return code;
    }
    *messages = list;
    return 0;
}

int cli_history_write(json_t *messages, const char *path)
{
    return cli_write_json(path, json_incref(messages));
}

static bool begins_with(const json_t *messages, const json_t *first)
{
    bool same = json_array_size(first) <= json_array_size(messages);
    for (size_t i = 0; same && i < json_array_size(first); i++)
        same = json_equal(json_array_get(messages, i), json_array_get(first, i));
    return same;
}

int cli_history_check_file(const json_t *messages, const json_t *kept, const char *path)
{
    char *text;
    size_t bytes;
    json_t *old = NULL;
    if (access(path, F_OK) != 0)
        return 0;
    int code = cli_read_file(path, &text, &bytes);
    if (code)
        return code;
    int rc = bytes ? spw_json_parse(&old, text, bytes, 0, NULL) : 0;
    spw_free(text);
    const bool is_list = !bytes || json_is_array(old);
    const bool is_own = begins_with(messages, old) || (kept && json_equal(kept, old));
    json_decref(old);
    if (rc == -ENOMEM)
        return cli_fail(CLI_FAILED, "%s: no memory for its JSON", path);
    if (is_list && is_own)
        return 0;
    return cli_fail(CLI_REFUSED, "/save: %s: found %s; give another name, or remove it", path,
                    is_list ? "another conversation" : "a file that is no conversation");
}

const char *cli_history_last_role(const json_t *messages)
{
    size_t n = json_array_size(messages);
    return n > 0 ? role_of(messages, n - 1) : "";
}

static json_t *message(const char *role, const char *text, size_t bytes)
{
    const struct cli_field fields[] = {
        {"role", CLI_JSON(role)},
        {"content", json_stringn(text, bytes)},
    };
    return CLI_OBJECT(fields);
}

/* Says why there is no message of this text. */
static int refuse_text(const char *text, size_t bytes)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t n = 1;
    size_t at = 0;
    for (; at < bytes && n > 0; at += n > 0 ? (size_t)n : 0)
        n = utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at),
                             &c);
    if (n > 0)
        return cli_fail(CLI_FAILED, "out of memory");
    return cli_fail(CLI_REFUSED,
                    "found byte 0x%02x at offset %zu of the text, which is not valid UTF-8; "
                    "convert the text to UTF-8 first",
                    (unsigned char)text[at], at);
}

static int add(json_t *messages, json_t *new_message)
{
    return json_array_append_new(messages, new_message) ? cli_fail(CLI_FAILED, "out of memory") : 0;
}

int cli_history_add(json_t *messages, const char *role, const char *text, size_t bytes)
{
    json_t *m = message(role, text, bytes);
    return m ? add(messages, m) : refuse_text(text, bytes);
}

int cli_history_add_answer(json_t *messages, const struct spw_text *answer,
                           const struct spw_text *reasoning)
{
    const bool has_reasoned = reasoning->n || reasoning->failed;
    const struct cli_field fields[] = {
        {"role", json_string("assistant")},
        {"content", cli_json_grown(answer)},
        {has_reasoned ? "reasoning_content" : NULL, cli_json_grown(reasoning)},
    };
    return add(messages, CLI_OBJECT(fields));
}

void cli_history_cut(json_t *messages, size_t n)
{
    while (json_array_size(messages) > n)
        json_array_remove(messages, json_array_size(messages) - 1);
}

size_t cli_history_before_question(const json_t *messages)
{
    size_t n = json_array_size(messages);
    while (n > 0)
        if (strcmp(role_of(messages, --n), "user") == 0)
            return n;
    return SIZE_MAX;
}

size_t cli_history_before_answer(const json_t *messages)
{
    size_t n = json_array_size(messages);
    while (n > 0 && strcmp(role_of(messages, n - 1), "assistant") == 0)
        n--;
    return n;
}

bool cli_history_has_system(const json_t *messages)
{
    return strcmp(role_of(messages, 0), "system") == 0;
}

int cli_history_set_system(json_t *messages, const char *text)
{
    json_t *m = *text ? message("system", text, strlen(text)) : NULL;
    bool had = cli_history_has_system(messages);
    if (*text && !m)
        return refuse_text(text, strlen(text));
    int failed = 0;
    if (m)
        failed = had ? json_array_set_new(messages, 0, m) : json_array_insert_new(messages, 0, m);
    else if (had)
        failed = json_array_remove(messages, 0);
    return failed ? cli_fail(CLI_FAILED, "out of memory") : 0;
}
