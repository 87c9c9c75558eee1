/* System messages where a template does not expect them: see reader.h.
 *
 * Clients put system messages between other messages. Of the templates that we know, some render
 * such a message where it stands, some move it to the begin (then each turn changes the begin of
 * the prompt, and nothing that was computed is of use), some drop it, some fail. So the template is
 * asked once, with small conversations whose texts are easy to find. */
#include "tools/command/request/reader_parts.h"

#include "tools/command/output/json.h"

#include <string.h>

/* ---- probes ---- */

static const char *role_of(char letter)
{
    return letter == 's' ? "system" : letter == 'u' ? "user" : "assistant";
}

/* The template's text of a conversation with these roles. NULL: the template fails. */
static char *render_roles(const struct request_reader *r, const char *roles)
{
    char *text = NULL;
    size_t bytes;
    json_t *messages = json_array();
    for (size_t i = 0; roles[i]; i++) {
        const struct cli_field fields[] = {
            {"role", json_string(role_of(roles[i]))},
            {"content", json_sprintf("spillway-probe-%zu", i)},
        };
        cli_json_append(&messages, CLI_OBJECT(fields));
    }
    if (!messages || request_render(r, messages, NULL, NULL, NULL, &text, &bytes, NULL))
        text = NULL;
    json_decref(messages);
    return text;
}

/* Whether the text has each message once, in their order. */
static bool has_all(const char *text, const char *roles)
{
    char content[48];
    for (size_t i = 0; roles[i] && text; i++) {
        snprintf(content, sizeof content, "spillway-probe-%zu", i);
        const char *at = strstr(text, content);
        text = at && !strstr(at + 1, content) ? at : NULL;
    }
    return text != NULL;
}

static bool renders(const struct request_reader *r, const char *roles)
{
    char *text = render_roles(r, roles);
    const bool good = text && has_all(text, roles);
    spw_free(text);
    return good;
}

/* Whether the template distinguishes a system message in the middle from one of the user. */
static bool marks_system(const struct request_reader *r)
{
    char *system = render_roles(r, "susau"), *user = render_roles(r, "suuau");
    const bool marks = system && (!user || strcmp(system, user) != 0);
    spw_free(system);
    spw_free(user);
    return marks;
}

void request_reader_probe(struct request_reader *r)
{
    r->habits = (struct request_habits){.is_known = true,
                                        .leads = renders(r, "su"),
                                        .inside = renders(r, "susau") && renders(r, "sus") &&
                                                  marks_system(r),
                                        .repeats = renders(r, "uu")};
    request_takes_effort(r);
}

/* ---- folding ---- */

struct folding {
    const struct request_habits *habits;
    json_t *out;          /* owned: the new messages; NULL: out of memory */
    struct spw_text text; /* of system messages, for the next message of the user */
    bool failed;
};

static bool has_role(const json_t *message, const char *role)
{
    const char *name = json_string_value(json_object_get(message, "role"));
    return name && strcmp(name, role) == 0;
}

static bool is_system(const json_t *message)
{
    return has_role(message, "system") || has_role(message, "developer");
}

/* Adds `content` with an empty line before it. */
static void join(struct spw_text *to, const char *content, size_t bytes)
{
    if (bytes && to->n)
        spw_text_add(to, "\n\n", 2);
    if (bytes)
        spw_text_add(to, content, bytes);
}

static void join_content(struct spw_text *to, const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    join(to, json_string_value(content), json_string_length(content));
}

static void set_content(struct folding *f, json_t *message, const struct spw_text *text)
{
    if (json_object_set_new(message, "content", cli_json_grown(text)))
        f->failed = true;
}

static void add(struct folding *f, json_t *message)
{
    if (json_array_append(f->out, message))
        f->failed = true;
}

static void add_new(struct folding *f, const char *role)
{
    const struct cli_field fields[] = {
        {"role", json_string(role)},
        {"content", cli_json_grown(&f->text)},
    };
    if (json_array_append_new(f->out, CLI_OBJECT(fields)))
        f->failed = true;
    f->text.n = 0;
}

static json_t *last_of(const struct folding *f)
{
    const size_t n = json_array_size(f->out);
    return n ? json_array_get(f->out, n - 1) : NULL;
}

/* The text goes to the end of the message before it, if that is the user's or a tool's result. */
static void append_text(struct folding *f)
{
    struct spw_text both = {0};
    json_t *last = last_of(f);
    if (!f->text.n)
        return;
    if (!has_role(last, "user") && !has_role(last, "tool")) {
        add_new(f, "user");
        return;
    }
    join_content(&both, last);
    join(&both, f->text.text, f->text.n);
    set_content(f, last, &both);
    spw_free(both.text);
    f->text.n = 0;
}

static void add_user(struct folding *f, json_t *message)
{
    json_t *last = last_of(f);
    if (f->text.n) {
        join_content(&f->text, message);
        set_content(f, message, &f->text);
        f->text.n = 0;
    }
    if (f->habits->repeats || !has_role(last, "user")) {
        add(f, message);
        return;
    }
    join_content(&f->text, message);
    append_text(f);
}

/* After an assistant's message the text waits for the user's next one: a result of a call may
 * follow first. */
static void add_system(struct folding *f, json_t *message)
{
    const json_t *last = last_of(f);
    const bool before_result = json_array_size(json_object_get(last, "tool_calls")) > 0;
    if (f->habits->inside && !before_result && !f->text.n) {
        if (json_object_set_new(message, "role", json_string("system")))
            f->failed = true;
        add(f, message);
        return;
    }
    join_content(&f->text, message);
    if (has_role(last, "user") || has_role(last, "tool"))
        append_text(f);
}

static void fold(struct folding *f, const json_t *messages)
{
    size_t i = 0;
    const size_t n = json_array_size(messages);
    for (; i < n && is_system(json_array_get(messages, i)); i++)
        join_content(&f->text, json_array_get(messages, i));
    if (f->habits->leads && f->text.n)
        add_new(f, "system");
    for (; i < n && !f->failed; i++) {
        json_t *message = json_array_get(messages, i);
        if (is_system(message)) {
            add_system(f, message);
        } else if (has_role(message, "user")) {
            add_user(f, message);
        } else {
            if (has_role(message, "assistant"))
                append_text(f);
            add(f, message);
        }
    }
    append_text(f);
}

int request_fold_systems(struct request *x, const struct request_reader *r, json_t *messages,
                         struct request_refusal *why)
{
    SPW_TRY(request_tidy_messages(x, messages, why));
    struct folding f = {.habits = &r->habits, .out = json_array()};
    f.failed = !f.out;
    fold(&f, messages);
    f.failed = f.failed || f.text.failed || json_array_clear(messages) ||
               json_array_extend(messages, f.out);
    json_decref(f.out);
    spw_free(f.text.text);
    return f.failed ? request_refuse_memory(why) : 0;
}
