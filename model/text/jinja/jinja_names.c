/* What a template calls by name, and how it is called: see jinja_impl.h. The tables of
 * jinja_of_text.c, jinja_of_items.c and jinja_tests.c hold what the chat templates of public models
 * use (some 450 were read), and what costs nearly nothing besides. A name that is in none of them
 * is an error that says so. */
#include "model/text/jinja/jinja_impl.h"

const struct callable *spw_jinja_find(unsigned as, const struct string *name)
{
    static const struct callable *const tables[] = {spw_jinja_of_text, spw_jinja_of_items,
                                                    spw_jinja_tests};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct callable *c = tables[i]; c->name; c++)
            if ((c->as & as) && spw_jinja_is_text(name, c->name))
                return c;
    return NULL;
}

/* ---- arguments ---- */

/* The k-th of "name,name=": its length and whether it must be given. NULL after the last. */
static const char *param(const char *params, size_t k, size_t *bytes, bool *needed)
{
    const char *p = params;
    for (; k && p; k--) {
        p = strchr(p, ',');
        p = p ? p + 1 : NULL;
    }
    if (!p || !*p)
        return NULL;
    *bytes = strcspn(p, ",=");
    *needed = p[*bytes] != '=';
    return p;
}

static void bind_named(struct run *r, const struct callable *c, const struct entry *given,
                       struct value *a)
{
    const struct string *name = given->key.u.string;
    size_t bytes, k = 0;
    const char *p;
    bool needed;
    while ((p = param(c->params, k, &bytes, &needed)) &&
           (bytes != name->bytes || memcmp(p, name->at, bytes) != 0))
        k++;
    if (!p)
        spw_jinja_fail(r, "%s: found the argument '%.*s', which it does not take", c->name,
                       (int)spw_min_u64(name->bytes, 64), name->at);
    if (a[k].type != SPW_JINJA_MISSING)
        spw_jinja_fail(r, "%s: found the argument '%.*s' twice", c->name, (int)bytes, p);
    a[k] = given->value;
}

static void bind_all(struct run *r, const struct args *args, struct value *a)
{
    struct list *list = spw_jinja_new_list(r);
    *list = (struct list){.at = args->at, .n = args->n, .room = args->n};
    a[0] = list_value(SPW_JINJA_TUPLE, list);
    a[1] = (struct value){.type = SPW_JINJA_DICT,
                          .u.dict = args->named ? args->named : spw_jinja_new_dict(r)};
}

static void bind(struct run *r, const struct callable *c, const struct args *args, struct value *a)
{
    size_t bytes, n_params = 0;
    const char *p;
    bool needed;
    if (*c->params == '*') {
        bind_all(r, args, a);
        return;
    }
    while (param(c->params, n_params, &bytes, &needed))
        n_params++;
    if (args->n > n_params)
        spw_jinja_fail(r, "%s: found %zu arguments, expected at most %zu", c->name, args->n,
                       n_params);
    if (args->n)
        memcpy(a, args->at, args->n * sizeof *a);
    for (size_t i = 0; args->named && i < args->named->n; i++)
        bind_named(r, c, &args->named->at[i], a);
    for (size_t k = 0; k < n_params; k++) {
        p = param(c->params, k, &bytes, &needed);
        if (needed && a[k].type == SPW_JINJA_MISSING)
            spw_jinja_fail(r, "%s: the argument '%.*s' is missing", c->name, (int)bytes, p);
    }
}

int64_t spw_jinja_want_int(struct run *r, struct value v, const char *what)
{
    if (!is_integer(v))
        spw_jinja_fail(r, "%s: found '%s', expected an integer", what, spw_jinja_type_name(v));
    return integer(v);
}

const struct string *spw_jinja_want_string(struct run *r, struct value v, const char *what)
{
    if (v.type != SPW_JINJA_STRING)
        spw_jinja_fail(r, "%s: found '%s', expected a string", what, spw_jinja_type_name(v));
    return v.u.string;
}

/* ---- calls ---- */

/* jinja2 escapes the texts that a method of a string that was marked safe is given, in some
 * versions and for some methods. */
static bool would_escape(struct value v)
{
    for (size_t i = 0; v.type == SPW_JINJA_STRING && i < v.u.string->bytes; i++)
        if (v.u.string->at[i] && strchr("&<>\"'", v.u.string->at[i]))
            return true;
    return v.type > SPW_JINJA_STRING; /* what join() takes */
}

static struct value call_on_text(struct run *r, const struct callable *c, struct value self,
                                 struct value *a)
{
    self = spw_jinja_to_string(r, self);
    bool markup = self.u.string->markup;
    for (int i = 0; markup && i < SPW_JINJA_MAX_PARAMS; i++)
        if (would_escape(a[i]))
            spw_jinja_fail(r, "found a method with a text to escape, of a string that was marked "
                              "safe, which spillway does not do");
    struct value out = c->run(r, self, a);
    if (out.type == SPW_JINJA_STRING)
        return spw_jinja_mark(r, markup, out);
    for (size_t i = 0; out.type == SPW_JINJA_LIST && i < out.u.list->n; i++)
        out.u.list->at[i] = spw_jinja_mark(r, markup, out.u.list->at[i]);
    return out;
}

static struct value call(struct run *r, const struct callable *c, struct value self,
                         const struct args *args)
{
    struct value a[SPW_JINJA_MAX_PARAMS] = {{.type = SPW_JINJA_MISSING}};
    bind(r, c, args, a);
    if (c->op)
        return bool_value(spw_jinja_compare(r, c->op, self, a[0]));
    if (!c->run)
        return bool_value(c->types >> self.type & 1);
    return c->as & SPW_JINJA_ON_TEXT ? call_on_text(r, c, self, a) : c->run(r, self, a);
}

struct value spw_jinja_call_method(struct run *r, const struct method *m, const struct args *args)
{
    return call(r, m->what, m->self, args);
}

struct value spw_jinja_call_named(struct run *r, unsigned as, const struct string *name,
                                  struct value self, const struct args *args)
{
    const struct callable *c = spw_jinja_find(as, name);
    if (!c)
        spw_jinja_fail(r, "the template uses the %s '%.*s', which spillway does not know",
                       as == SPW_JINJA_TEST ? "test" : "filter", (int)spw_min_u64(name->bytes, 64),
                       name->at);
    return call(r, c, self, args);
}
