/* The list of added tokens of tokenizer.json, with the tokens that other files of the folder name
 * (special_tokens.h), as the fast tokenizers of transformers 5 add them: first the listed tokens,
 * then those with a name and the others, if their text is not in a list. A text that the list has
 * gets the new flags; once special, a token remains special. A new text has the id of the
 * vocabulary, or the next id. */
#include "model/text/tokenizer/tokenizer_json.h"

#include <string.h>

struct merge {
    json_t *added;   /* borrowed: the list, which grows */
    json_t *by_text; /* owned: content -> its object of the list */
    json_t *names;   /* owned: the contents of named tokens */
};

static const char *content_of(const json_t *token)
{
    return json_string_value(json_object_get(token, "content"));
}

static int put(const struct merge *m, const json_t *token)
{
    const char *content = content_of(token);
    if (!*content)
        return 0;
    json_t *old = json_object_get(m->by_text, content);
    bool special =
        json_object_get(m->names, content) || json_is_true(json_object_get(token, "special"));
    bool was_special = json_is_true(json_object_get(old, "special"));
    json_t *fresh = old ? NULL : json_object(), *at = old ? old : fresh;
    int rc = 0;
    if (json_object_set_new(at, "normalized", json_boolean(!special)) ||
        json_object_update(at, (json_t *)token) ||
        json_object_set_new(at, "special", json_boolean(special || was_special)))
        rc = -ENOMEM;
    if (!rc && fresh &&
        (json_object_set(m->by_text, content, fresh) || json_array_append(m->added, fresh)))
        rc = -ENOMEM;
    json_decref(fresh);
    return rc;
}

static int put_all(const struct merge *m, const json_t *tokens, const json_t *known)
{
    json_t *token;
    size_t i;
    json_array_foreach(tokens, i, token)
    {
        if (!json_object_get(known, content_of(token)))
            SPW_TRY(put(m, token));
    }
    return 0;
}

static int put_named(const struct merge *m, json_t *named, const json_t *known)
{
    const char *name;
    json_t *token;
    json_object_foreach(named, name, token)
    {
        if (!json_is_null(token) && !json_object_get(known, content_of(token)))
            SPW_TRY(put(m, token));
    }
    return 0;
}

/* A tokenizer.json that pads has a pad_token, too. */
static int add_pad(const struct spw_special_tokens *s, const json_t *root)
{
    const char *pad =
        json_string_value(json_object_get(json_object_get(root, "padding"), "pad_token"));
    if (s->has_pad || !pad)
        return 0;
    return json_object_set_new(s->named, "pad_token", spw_special_token(pad, true)) ? -ENOMEM : 0;
}

static int take_names(const struct merge *m, json_t *named)
{
    const char *name;
    json_t *token;
    json_object_foreach(named, name, token)
    {
        if (!json_is_null(token) && json_object_set_new(m->names, content_of(token), json_true()))
            return -ENOMEM;
    }
    return 0;
}

/* The tokens of the file itself. With an older tokenizer_config.json they are added once more. */
static int take_own(const struct merge *m, bool old)
{
    json_t *token;
    size_t i;
    json_array_foreach(m->added, i, token)
    {
        const char *content = content_of(token);
        if (content && (json_object_set(m->by_text, content, token) ||
                        (old && json_object_get(m->names, content) &&
                         json_object_set_new(token, "special", json_true()))))
            return -ENOMEM;
    }
    return 0;
}

static int merge(const struct merge *m, const struct spw_special_tokens *s, const json_t *root)
{
    SPW_TRY(add_pad(s, root));
    SPW_TRY(take_names(m, s->named));
    SPW_TRY(take_own(m, s->old));
    SPW_TRY(put_all(m, s->listed, s->old ? m->by_text : NULL));
    json_t *known = json_object(); /* json_copy does not report a failure */
    int rc = json_object_update(known, m->by_text) ? -ENOMEM : put_named(m, s->named, known);
    if (!rc)
        rc = put_all(m, s->extra, known);
    json_decref(known);
    return rc;
}

int spw_tok_merge_added(const struct spw_special_tokens *special, json_t *root)
{
    json_t *added = json_object_get(root, "added_tokens");
    if (!json_is_array(added)) {
        added = json_array();
        if (json_object_set_new(root, "added_tokens", added))
            return -ENOMEM;
    }
    struct merge m = {added, json_object(), json_object()};
    int rc = m.by_text && m.names ? merge(&m, special, root) : -ENOMEM;
    json_decref(m.by_text);
    json_decref(m.names);
    return rc;
}
