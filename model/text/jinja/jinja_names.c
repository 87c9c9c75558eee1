/* Everything that a template can call by name, in one table, and how it is called: see
 * jinja_impl.h. The table holds what the chat templates of public models use (some 450 were read),
 * and what the engines of llama.cpp and transformers.js have for them besides ("other engines"). A
 * name that is not here is an error that says so. */
#include "model/text/jinja/jinja_impl.h"

enum kind { FILTER, TEST, OF_STRING, OF_DICT, FUNCTION, N_KINDS };

#define F(name) spw_jj_f_##name
#define T(name) spw_jj_t_##name
#define M(name) spw_jj_m_##name
#define ROWS(table) table, sizeof(table) / sizeof *(table)

/* clang-format off */
static const struct spw_jj_callable filters[] = {
    /* name, parameters                     what it gives; who uses it */
    {"abs", "", F(abs)},                    /* without its sign; other engines */
    {"capitalize", "", F(capitalize)},      /* "Ab"; OpenChat, SOLAR */
    {"count", "", F(length)},               /* as length; other engines */
    {"d", "default_value=,boolean=", F(default)}, /* as default */
    {"default", "default_value=,boolean=", F(default)}, /* for undefined; Gemma 4, LFM2.5 */
    {"dictsort", "case_sensitive=,by=,reverse=", F(dictsort)}, /* sorted pairs; Gemma 4, Kimi K3 */
    {"first", "", F(first)},                /* first item; Unsloth's Qwen3 */
    {"float", "default=", F(float)},        /* text as a number; other engines */
    {"indent", "width=,first=,blank=", F(indent)}, /* lines moved right; other engines */
    {"int", "default=", F(int)},            /* text as an integer; Jamba */
    {"items", "", F(items)},                /* pairs of a dict; Qwen3-Coder, Llama 3.1 */
    {"join", "d=,attribute=", F(join)},     /* one text of items; Llama 3, Apertus */
    {"last", "", F(last)},                  /* last item; Qwen 3.6, Alpaca */
    {"length", "", F(length)},              /* how many; Qwen3, GLM, Mistral */
    {"list", "", F(list)},                  /* a list of items; Mistral, Gemma 4 */
    {"lower", "", F(lower)},                /* "ab"; Command R7B */
    {"map", "*", F(map)},                   /* an attribute or a filter of each; DeepSeek R1 */
    {"max", "case_sensitive=,attribute=", F(max)}, /* the largest; other engines */
    {"min", "case_sensitive=,attribute=", F(min)}, /* the smallest; other engines */
    {"reject", "*", F(reject)},             /* items that fail a test; Llama 3.1 */
    {"rejectattr", "*", F(rejectattr)},     /* the same by attribute; Mistral, Functionary */
    {"replace", "old,new,count=", F(replace)}, /* text for text; Kimi K3 */
    {"reverse", "", F(reverse)},            /* from last to first; other engines */
    {"safe", "", F(safe)},                  /* `+` escapes beside it; Functionary, Qwen3-Coder */
    {"select", "*", F(select)},             /* items that pass a test; other engines */
    {"selectattr", "*", F(selectattr)},     /* the same by attribute; Mistral, Apriel */
    {"sort", "reverse=,case_sensitive=,attribute=", F(sort)}, /* a sorted list; Ministral 3 */
    {"string", "", F(string)},              /* as text; Kimi K2, LFM2.5 */
    {"sum", "attribute=,start=", F(sum)},   /* added up; other engines */
    {"title", "", F(title)},                /* "Ab Cd"; Jamba, Phi-2 */
    {"tojson", "ensure_ascii=,indent=,separators=,sort_keys=", F(tojson)}, /* JSON; nearly all */
    {"trim", "chars=", F(trim)},            /* without white space around; Llama 3, Gemma */
    {"unique", "case_sensitive=,attribute=", F(unique)}, /* each once; other engines */
    {"upper", "", F(upper)},                /* "AB"; Gemma 4, Command A */
};

static const struct spw_jj_callable tests[] = {
    /* name, parameters                     what is asked; who uses it */
    {"boolean", "", T(boolean)},            /* true or false; Gemma 4, Kimi K3 */
    {"callable", "", T(callable)},          /* can be called; other engines */
    {"defined", "", T(defined)},            /* nearly all */
    {"even", "", T(even)},                  /* other engines */
    {"false", "", T(false)},                /* Qwen3, Nemotron Nano */
    {"float", "", T(float)},                /* other engines */
    {"integer", "", T(integer)},            /* other engines */
    {"iterable", "", T(iterable)},          /* can be walked; GLM, Qwen3-Coder */
    {"mapping", "", T(mapping)},            /* a dict; Gemma 4, GLM */
    {"none", "", T(none)},                  /* Mistral, Kimi K2 */
    {"number", "", T(number)},              /* Kimi K3 */
    {"odd", "", T(odd)},                    /* other engines */
    {"sequence", "", T(sequence)},          /* has a length and items; Qwen3-Coder, Gemma 4 */
    {"string", "", T(string)},              /* nearly all */
    {"true", "", T(true)},                  /* EXAONE 4, Qwen 3.6 */
    {"undefined", "", T(undefined)},        /* Mistral, Kimi K3 */
    {"in", "seq", T(in)},                   /* Qwen3-Coder's first */
    {"eq", "b", T(eq)},                     /* as equalto */
    {"equalto", "b", T(eq)},                /* Mistral, Functionary, Llama 3.1 */
    {"==", "b", T(eq)},                     /* this and what follows: other engines */
    {"ne", "b", T(ne)},
    {"!=", "b", T(ne)},
    {"lt", "b", T(lt)},
    {"lessthan", "b", T(lt)},
    {"<", "b", T(lt)},
    {"gt", "b", T(gt)},
    {"greaterthan", "b", T(gt)},
    {">", "b", T(gt)},
    {"le", "b", T(le)},
    {"<=", "b", T(le)},
    {"ge", "b", T(ge)},
    {">=", "b", T(ge)},
};

static const struct spw_jj_callable of_string[] = {
    /* name, parameters                     what it gives; who uses it */
    {"capitalize", "", M(capitalize)},      /* "Ab"; Idefics 3 */
    {"endswith", "suffix,start=,end=", M(endswith)}, /* Qwen3, LFM2.5 */
    {"find", "sub,start=,end=", M(find)},   /* where it begins, or -1; Qwen 3.6 */
    {"join", "iterable", M(join)},          /* one text of items; Python's usual way */
    {"lower", "", M(lower)},                /* "ab"; other engines */
    {"lstrip", "chars=", M(lstrip)},        /* Qwen3, GLM */
    {"replace", "old,new,count=", M(replace)}, /* Falcon, Nemotron Nano */
    {"rfind", "sub,start=,end=", M(rfind)}, /* as find, from the end; Qwen 3.6 */
    {"rsplit", "sep=,maxsplit=", M(rsplit)}, /* other engines */
    {"rstrip", "chars=", M(rstrip)},        /* Qwen3, GLM */
    {"split", "sep=,maxsplit=", M(split)},  /* DeepSeek, Qwen3, MiniMax */
    {"splitlines", "keepends=", M(splitlines)}, /* what indent uses */
    {"startswith", "prefix,start=,end=", M(startswith)}, /* Qwen3, StepFun */
    {"strip", "chars=", M(strip)},          /* Cohere, GLM, MiniMax */
    {"title", "", M(title)},                /* "Ab Cd"; Starling */
    {"upper", "", M(upper)},                /* "AB"; LLaVA */
};

static const struct spw_jj_callable of_dict[] = {
    {"get", "key,default=", M(get)},        /* Kimi, GigaChat, Gemma 4 */
    {"items", "", M(items)},                /* GLM, Mistral, MiniMax */
    {"keys", "", M(keys)},                  /* Qwen3-Coder's first */
    {"values", "", M(values)},              /* other engines */
};

static const struct spw_jj_callable functions[] = {
    {"dict", "*", spw_jj_dict},             /* transformers' own example */
    {"namespace", "*", spw_jj_namespace},   /* variables that loops change; nearly all */
    {"raise_exception", "message", spw_jj_raise_exception}, /* transformers'; Mistral, Gemma */
    {"range", "start,stop=,step=", spw_jj_range_of}, /* Gemma 4 */
    {"strftime_now", "format", spw_jj_strftime_now}, /* transformers'; gpt-oss, Apertus */
};
/* clang-format on */

static const struct {
    const struct spw_jj_callable *rows;
    size_t n;
} tables[N_KINDS] = {
    [FILTER] = {ROWS(filters)},  [TEST] = {ROWS(tests)},         [OF_STRING] = {ROWS(of_string)},
    [OF_DICT] = {ROWS(of_dict)}, [FUNCTION] = {ROWS(functions)},
};

static const struct spw_jj_callable *find(enum kind kind, const struct spw_jj_string *name)
{
    const struct spw_jj_callable *rows = tables[kind].rows;
    for (size_t i = 0; i < tables[kind].n; i++)
        if (spw_jj_is_text(spw_jj_constant(name), rows[i].name))
            return &rows[i];
    return NULL;
}

const struct spw_jj_callable *spw_jj_find_method(struct spw_jj_value v,
                                                 const struct spw_jj_string *name)
{
    if (v.type != SPW_JJ_STRING && v.type != SPW_JJ_DICT)
        return NULL;
    return find(v.type == SPW_JJ_STRING ? OF_STRING : OF_DICT, name);
}

const struct spw_jj_callable *spw_jj_find_function(const struct spw_jj_string *name)
{
    return find(FUNCTION, name);
}

static int unknown(struct spw_jj_run *r, const char *what, const struct spw_jj_string *name)
{
    return spw_jj_fail(r, "the template uses the %s '%.*s', which spillway does not know", what,
                       (int)spw_min_u64(name->bytes, 64), name->at);
}

/* ---- arguments ---- */

/* The k-th of "name,name=": its length and whether it must be given. NULL after the last. */
static const char *param(const char *params, size_t k, size_t *bytes, bool *needed)
{
    const char *p = params;
    for (; k; k--) {
        p = strchr(p, ',');
        if (!p)
            return NULL;
        p++;
    }
    if (!*p)
        return NULL;
    *bytes = strcspn(p, ",=");
    *needed = p[*bytes] != '=';
    return p;
}

static int bind_named(struct spw_jj_run *r, const struct spw_jj_callable *c,
                      const struct spw_jj_args *args, struct spw_jj_value *a)
{
    for (size_t i = 0; args->named && i < args->named->n; i++) {
        const struct spw_jj_string *name = args->named->at[i].key.u.string;
        size_t bytes, k = 0;
        const char *p;
        bool needed;
        while ((p = param(c->params, k, &bytes, &needed)))
            if (bytes == name->bytes && !memcmp(p, name->at, bytes))
                break;
            else
                k++;
        if (!p)
            return spw_jj_fail(r, "%s: found the argument '%.*s', which it does not take", c->name,
                               (int)spw_min_u64(name->bytes, 64), name->at);
        if (a[k].type != SPW_JJ_MISSING)
            return spw_jj_fail(r, "%s: found the argument '%.*s' twice", c->name, (int)bytes, p);
        a[k] = args->named->at[i].value;
    }
    return 0;
}

static int bind_all(struct spw_jj_run *r, const struct spw_jj_args *args, struct spw_jj_value *a)
{
    struct spw_jj_list *list = spw_jj_take(&r->arena, sizeof *list);
    if (!list)
        return spw_jj_no_memory(r);
    *list = (struct spw_jj_list){.at = args->at, .n = args->n, .room = args->n};
    a[0] = (struct spw_jj_value){.type = SPW_JJ_TUPLE, .u.list = list};
    a[1] = (struct spw_jj_value){.type = SPW_JJ_DICT, .u.dict = args->named};
    return args->named ? 0 : spw_jj_new_dict(r, SPW_JJ_DICT, &a[1]);
}

static int bind(struct spw_jj_run *r, const struct spw_jj_callable *c,
                const struct spw_jj_args *args, struct spw_jj_value *a)
{
    size_t bytes, n_params = 0;
    const char *p;
    bool needed;
    if (*c->params == '*')
        return bind_all(r, args, a);
    while (param(c->params, n_params, &bytes, &needed))
        n_params++;
    if (args->n > n_params)
        return spw_jj_fail(r, "%s: found %zu arguments, expected at most %zu", c->name, args->n,
                           n_params);
    if (args->n)
        memcpy(a, args->at, args->n * sizeof *a);
    SPW_TRY(bind_named(r, c, args, a));
    for (size_t k = 0; k < n_params; k++) {
        p = param(c->params, k, &bytes, &needed);
        if (needed && a[k].type == SPW_JJ_MISSING)
            return spw_jj_fail(r, "%s: the argument '%.*s' is missing", c->name, (int)bytes, p);
    }
    return 0;
}

int spw_jj_want_int(struct spw_jj_run *r, struct spw_jj_value v, const char *what, int64_t *out)
{
    if (v.type != SPW_JJ_INT && v.type != SPW_JJ_BOOL)
        return spw_jj_fail(r, "%s: found '%s', expected an integer", what, spw_jj_type_name(v));
    *out = v.type == SPW_JJ_INT ? v.u.integer : v.u.boolean;
    return 0;
}

int spw_jj_want_string(struct spw_jj_run *r, struct spw_jj_value v, const char *what,
                       const struct spw_jj_string **out)
{
    if (v.type != SPW_JJ_STRING)
        return spw_jj_fail(r, "%s: found '%s', expected a string", what, spw_jj_type_name(v));
    *out = v.u.string;
    return 0;
}

/* ---- calls ---- */

static int call(struct spw_jj_run *r, const struct spw_jj_callable *c, struct spw_jj_value self,
                const struct spw_jj_args *args, struct spw_jj_value *out)
{
    struct spw_jj_value a[SPW_JJ_MAX_PARAMS] = {{.type = SPW_JJ_MISSING}};
    SPW_TRY(bind(r, c, args, a));
    return c->run(r, self, a, out);
}

int spw_jj_call_function(struct spw_jj_run *r, const struct spw_jj_callable *f,
                         const struct spw_jj_args *args, struct spw_jj_value *out)
{
    return call(r, f, spw_jj_none(), args, out);
}

int spw_jj_call_method(struct spw_jj_run *r, const struct spw_jj_method *m,
                       const struct spw_jj_args *args, struct spw_jj_value *out)
{
    struct spw_jj_value a[SPW_JJ_MAX_PARAMS] = {{.type = SPW_JJ_MISSING}};
    SPW_TRY(bind(r, m->what, args, a));
    if (m->self.type == SPW_JJ_STRING)
        return spw_jj_call_string(r, m->what->run, m->self, a, out);
    return m->what->run(r, m->self, a, out);
}

int spw_jj_call_filter(struct spw_jj_run *r, const struct spw_jj_string *name,
                       struct spw_jj_value self, const struct spw_jj_args *args,
                       struct spw_jj_value *out)
{
    const struct spw_jj_callable *f = find(FILTER, name);
    return f ? call(r, f, self, args, out) : unknown(r, "filter", name);
}

int spw_jj_call_test(struct spw_jj_run *r, const struct spw_jj_string *name,
                     struct spw_jj_value self, const struct spw_jj_args *args, bool *out)
{
    const struct spw_jj_callable *t = find(TEST, name);
    struct spw_jj_value result;
    if (!t)
        return unknown(r, "test", name);
    SPW_TRY(call(r, t, self, args, &result));
    return spw_jj_truth(r, result, out);
}
