/* The Jinja interpreter: what it prints, the texts of its errors, its limits, and an allocation
 * that fails anywhere. Expected texts are those of jinja2 3.1.6 with Hugging Face's settings; where
 * it is installed, tests/oracle/jinja_differential.py compares with it directly. */
#include "model/text/jinja/jinja.h"
#include "tests/check.h"
#include "tests/command/fixed_now.h"

#include <pthread.h>
#include <string.h>

static const char vars_text[] =
    "{\"s\": \" Hé llo \", \"l\": [3, 1, 2], \"d\": {\"b\": 1, \"a\": [true, null, 2.5]}, "
    "\"msgs\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"tool\"}], \"n\": 7}";

struct rendered {
    int rc;
    char *text; /* spw_free */
    size_t bytes;
    struct spw_error err;
};

static struct rendered render_bytes(const char *source, size_t source_bytes, const char *json)
{
    struct rendered out = {0};
    struct spw_jinja *t = NULL;
    json_t *vars = json_loads(json, JSON_ALLOW_NUL, NULL);
    const struct spw_jinja_input in = {vars, &fixed_now};
    out.rc = spw_jinja_parse(&t, source, source_bytes, "t", &out.err);
    if (!out.rc)
        out.rc = spw_jinja_render(t, &in, &out.text, &out.bytes, &out.err);
    CHECK(!out.rc == !out.err.text[0] && !out.rc == !!out.text);
    spw_jinja_free(t);
    json_decref(vars);
    return out;
}

static struct rendered render(const char *source)
{
    return render_bytes(source, strlen(source), vars_text);
}

/* ---- texts and errors ---- */

static const struct {
    const char *source, *text;
} cases[] = {
    {"a{% if n %}  \nb{% endif %}\nc", "a  \nbc"},
    {"  {% set x = 1 %}\n  {{ x }}\n{#- c -#}  {%+ if x %} y{% endif +%}\nz", "  1 y\nz"},
    {"{%- raw -%}  {{ x }} {% endraw %}\n|{% raw %}\n{% endraw %}|\n\n", "{{ x }} |\n|\n"},
    {"{% for i in l %}{{ loop.index }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ "
     "loop.previtem }}{{ loop.nextitem }} {% endfor %}",
     "12TrueFalse1 21FalseFalse32 30FalseTrue1 "},
    {"{% for i in l if i > 1 %}{{ loop.length }}{{ i }}{% else %}none{% endfor %}{% for i in l if "
     "i > 9 %}{% else %}none{% endfor %}",
     "2322none"},
    {"{% for i in l %}{% if i == 1 %}{% continue %}{% elif i == 2 %}{% break %}{% endif %}{{ i "
     "}}{% endfor %}",
     "3"},
    {"{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "4231"},
    {"{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x "
     "}}",
     "7"},
    {"{% macro m(a, b='q') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{% set c "
     "= "
     "5 %}{{ m(b=1, a=2) }}{{ [m][0](*[7], b=8) }}",
     "[1q][12][215][785]"},
    {"{% macro m() %}<{{ caller('i') }}>{% endmacro %}{% call(x) m() %}{{ x }}!{% endcall %}",
     "<i!>"},
    {"{% set t %} a {{ n }} {% endset %}[{{ t }}]{% set t | trim | upper %} a {% endset %}[{{ t "
     "}}]{% filter upper %}q{{ n }}{% endfilter %}",
     "[ a 7 ][A]Q7"},
    {"{% generation %}{% set q = 1 %}{{ s | trim }}{% endgeneration %}{{ q }}", "Hé llo"},
    {"{{ [1.0, 1e16, 1.5e-7, 123456789.125, -0.0, 1e22, 0.1 + 0.2, 1e400] }}",
     "[1.0, 1e+16, 1.5e-07, 123456789.125, -0.0, 1e+22, 0.30000000000000004, inf]"},
    {"{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ -7 % 3 }} {{ 7 / 2 }} "
     "{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ true + 1 }}",
     "3 -4 -2 2 3.5 3.0 0.5 2"},
    {"{{ not 1 == 2 }} {{ 1 < 2 < 3 > 2 }} {{ 1 ~ 2 }} {{ 'a' 'b' }}", "True True 12 ab"},
    {"{{ s.strip() }}|{{ s[1:3] }}|{{ s[::-1] }}|{{ s[-3] }}|{{ s.split() }}|{{ s.find('l') }}|{{ "
     "s | length }}|{{ s.upper().title() }}",
     "Hé llo|Hé| oll éH |l|['Hé', 'llo']|4|8| Hé Llo "},
    {"{{ d }}{{ d.items() | list }}{{ d.keys() | list }}{{ d.a[0] }}{{ d['b'] }}{{ d.get('q', 'z') "
     "}}{{ d "
     "| dictsort }}{{ 'a' in d }}",
     "{'b': 1, 'a': [True, None, 2.5]}[('b', 1), ('a', [True, None, 2.5])]['b', "
     "'a']True1z[('a', [True, None, 2.5]), ('b', 1)]True"},
    {"{{ d | tojson }}{{ d | tojson(indent=1) }}{{ s | tojson(ensure_ascii=true) }}{{ {1: 2, none: "
     "[], true: {}} | tojson }}{{ \"\\n\\t\\\"\\\\\\x01\" | tojson }}",
     "{\"b\": 1, \"a\": [true, null, 2.5]}{\n \"b\": 1,\n \"a\": [\n  true,\n  null,\n  2.5\n "
     "]\n}\" H\\u00e9 llo \"{\"1\": {}, \"null\": []}\"\\n\\t\\\"\\\\\\u0001\""},
    {"{{ msgs | map(attribute='content') | list }}{{ msgs | map(attribute='content', default='-') "
     "| join(',') }}{{ msgs | selectattr('content') | list | length }}{{ msgs | rejectattr('role', "
     "'equalto', 'user') | first }}",
     "['x', Undefined]x,-1{'role': 'tool'}"},
    {"{{ ('<' | safe) + '<' }}{{ ('it\\'s' + '<b>' | safe) ~ '<' }}{{ ['\"', \"'\", '\"\\''] }}{{ "
     "'\\u00e9\\t\\x7f' ~ "
     "['\\u00e9\\t\\x7f'] }}",
     "<&lt;it&#39;s<b><['\"', \"'\", '\"\\'']é\t['é\\t\\x7f']"},
    {"{{ undefined_name }}{{ undefined_name is defined }}{{ d.q is defined }}{{ undefined_name | "
     "default('d') }}{{ '' | default('e', true) }}{{ [undefined_name, none] }}",
     "FalseFalsede[Undefined, None]"},
    {"{{ [1, 1.0, true, '1'] | unique | list }}{{ [3, 1] | sort }}{{ ['b', 'A'] | sort }}{{ ['b', "
     "'A'] | sort(case_sensitive=true) }}{{ [1, 2, 3] | sum }}{{ [1, 2] | max }}",
     "[1, '1'][1, 3]['A', 'b']['A', 'b']62"},
    {"{{ ('a', 1)[0] }}{{ (1,) }}{{ () }}{{ [[]] == [()] }}{{ (1, 2) < (1, 3) }}{{ {'a': 1} == "
     "{'a': 1.0} }}{{ {}.items() | list }}",
     "a(1,)()FalseTrueTrue[]"},
    {"{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% set a, b = 'xy' %}{{ "
     "b }}{{ a }}",
     "123yx"},
    {"{{ 'x' if n > 5 else 'y' }}{{ 'x' if n < 5 }}{{ n is odd and n is not even }}{{ n "
     "is number }}{{ d is mapping }}{{ l is iterable }}{{ s is sequence }}",
     "xTrueTrueTrueTrueTrue"},
    {"{{ strftime_now('%d %b %Y') }}{{ range(5, 0, -2) | list }}{{ dict({'b': 2}, a=1) "
     "}}{{ 'abc' | indent(2, true) }}{{ 'a b' | title }}",
     "26 Jul 2024[5, 3, 1]{'b': 2, 'a': 1}  abcA B"},
    {"{{ 'straße ﬁ İ ΑΣ' | upper }}{{ 'ΑΣ İ' | lower }}{{ 'ß' | title }}{{ 'ß'.title() }}{{ 'ß' | "
     "capitalize }}{{ 'éa' | capitalize }}{{ "
     "'🦙x'[0] "
     "}}{{ "
     "'🦙x' | length }}{{ 'a\\u3000b'.split() }}",
     "STRASSE FI İ ΑΣας i̇SSSsSsÉa🦙2['a', 'b']"},
    {"{{ '1_0' | int }}{{ ' 12 ' | int }}{{ 'x' | int(5) }}{{ 'e' | int(7) }}{{ '1.9' | int }}{{ "
     "'1e3' | float }}",
     "10125711000.0"},
    /* What map, select and the like give is a list that is true (in jinja2 it is a generator, which
     * is empty after its one use); keys() and range() are lists. */
    {"{% set p = l | map('string') %}{{ p | join }}|{{ 'y' if p }}{{ 'y' if [] | map('string') "
     "}}{% set k = d.keys() %}{{ k | join }}{{ k | join }}{{ k | length }}{{ 'y' if {}.keys() "
     "}}{% set q = range(2) %}{{ q | join }}{{ q | join }}{{ range(4)[1] }}",
     "312|yybaba201011"},
    {"{{ '{} {{}} {}'.format(n, 'é') }}{{ '{1}{0}{1}'.format('a', 'b') }}{{ '{a}-{b}'.format(b=1, "
     "a=none) }}{{ '[{:>4}][{:*^5}][{:<3}][{:.2}]'.format('é', 'é', 'é', 'éab') }}{{ "
     "'{:03d}{:5}{:.2f}{:08.3f}{:d}{}'.format(7, -7, 2.5, -1.5, true, 2.0) }}",
     "7 {} ébabNone-1[   é][**é**][é  ][éa]007   -72.50-001.50012.0"},
    {"{{ (l | select('odd')) | first }}{{ l | reverse | list }}{{ 'ab' | last }}{{ 'a' in d.keys() "
     "}}{{ [1, 2] | map(attribute='x', default=0) | sum }}{{ msgs | selectattr('role', '==', "
     "'tool') "
     "| list | length }}",
     "3[2, 1, 3]bTrue01"},
    /* A method's name where there is no such key: as in Python, which templates trip over. */
    {"{{ 'm' if d.values }}{{ 'm' if d['keys'] is callable }}{{ d.pop is defined }}", "mmFalse"},
};

static const struct {
    const char *source, *error;
} errors[] = {
    {"{{ 1 +", "t: line 1: found the end of the template, expected }}"},
    {"{% if x %}a", "t: line 1: found the end of the template, expected {% endif %}"},
    {"{% endif %}", "t: line 1: found 'endif', expected a tag that chat templates have"},
    {"{% foo %}", "t: line 1: found 'foo', expected a tag that chat templates have"},
    {"{{ a b }}", "t: line 1: found 'b', expected }}"},
    {"\n{{ 'abc }}", "t: line 2: found a string that does not end"},
    {"{# open", "t: line 1: found the end of the template, expected #}"},
    {"{% raw %}x", "t: line 1: found the end of the template, expected {% endraw %}"},
    {"{{ x | nofilter }}",
     "t: line 1: the template uses the filter 'nofilter', which spillway does not know"},
    {"{{ x is notest }}",
     "t: line 1: the template uses the test 'notest', which spillway does not know"},
    {"{{ l | map('xmlattr') | list }}",
     "t: line 1: the template uses the filter 'xmlattr', which spillway does not know"},
    {"{{ l | select('divisibleby', 2) | list }}",
     "t: line 1: the template uses the test 'divisibleby', which spillway does not know"},
    {"{{ s.zfill(3) }}",
     "t: line 1: 'str object' has no attribute 'zfill', or spillway does not know it"},
    {"{{ d.copy() }}",
     "t: line 1: 'dict object' has no attribute 'copy', or spillway does not know it"},
    {"{{ d.keys() - ['a'] }}", "t: line 1: cannot compute 'list' - 'list'"},
    {"{{ (l | map('string')) + [1] }}", "t: line 1: cannot compute 'generator' + 'list'"},
    {"{{ '{}'.format() }}", "t: line 1: format(): found 0 values for field 0"},
    {"{{ '{a}'.format(1) }}", "t: line 1: format(): the argument 'a' is missing"},
    {"{{ '{} {0}'.format(1) }}", "t: line 1: format(): found fields with and without a number"},
    {"{{ '{}{0.a}'.format(1) }}",
     "t: line 1: format(): found a field with an attribute, an item or a conversion, which "
     "spillway does not do"},
    {"{{ '{'.format(1) }}", "t: line 1: format(): found a field that does not end in '}'"},
    {"{{ '}'.format(1) }}", "t: line 1: format(): found a '}' without a '{'"},
    {"{{ '{:x}'.format(1) }}", "t: line 1: format(): found a format, which spillway does not do"},
    {"{{ '{0.a}'.format(d) }}",
     "t: line 1: format(): found a field with an attribute, an item or a conversion, which "
     "spillway does not do"},
    {"{{ '%s' % n }}", "t: line 1: found % with a str, which spillway does not do"},
    {"{{ ('<' | safe).replace('<', '') }}",
     "t: line 1: found a method with a text to escape, of a string that was marked safe, which "
     "spillway does not do"},
    {"{{ msgs | sort(attribute='role,content') }}",
     "t: line 1: sort: found several attributes, which spillway does not do"},
    {"{{ 2 ** 3 }}", "t: line 1: found '*', expected a value"},
    {"{% with a = 1 %}{% endwith %}",
     "t: line 1: found 'with', expected a tag that chat templates have"},
    {"{% macro m(caller) %}{% endmacro %}",
     "t: line 1: found a parameter called caller, which spillway does not know"},
    {"{{ x.y.z }}", "t: line 1: 'x' is undefined"},
    {"{{ n.x.y }}", "t: line 1: 'int object' has no attribute 'x'"},
    {"{{ l[9].a }}", "t: line 1: list object has no element 9"},
    {"{{ 'a' + 1 }}", "t: line 1: can only concatenate str (not \"int\") to str"},
    {"{{ 1 + 'a' }}", "t: line 1: cannot compute 'int' + 'str'"},
    {"{{ [1] + 'a' }}", "t: line 1: can only concatenate list (not \"str\") to list"},
    {"{{ none + 1 }}", "t: line 1: cannot compute 'NoneType' + 'int'"},
    {"\n\n{{ raise_exception('No \n' ~ n) }}", "t: line 3: No  7"},
    {"{{ x() }}", "t: line 1: 'x' is undefined"},
    {"{{ n() }}", "t: line 1: found a call of 'int', which cannot be called"},
    {"{{ l.append(1) }}", "t: line 1: access to attribute 'append' of 'list' object is unsafe."},
    {"{{ s.__class__.mro() }}",
     "t: line 1: access to attribute '__class__' of 'str' object is unsafe."},
    {"{{ n < 'a' }}", "t: line 1: cannot compute 'int' < 'str'"},
    {"{{ 'a' in 5 }}", "t: line 1: found 'int' after `in`, expected a string, a list or a dict"},
    {"{% for i in 5 %}{% endfor %}", "t: line 1: 'int' object is not iterable"},
    {"{% for a, b in [1] %}{% endfor %}", "t: line 1: 'int' object is not iterable"},
    {"{% for a, b in [(1, 2, 3)] %}{% endfor %}", "t: line 1: found 3 values for 2 names"},
    {"{{ {[]: 1} }}", "t: line 1: found a key that is a 'list', expected a string or a number"},
    {"{{ 1 // 0 }}", "t: line 1: division by zero"},
    {"{{ 9223372036854775807 + 1 }}",
     "t: line 1: the result of + is an integer of more than 64 bits"},
    {"{{ 99999999999999999999 }}",
     "t: line 1: found an integer of more than 64 bits, expected a smaller one"},
    {"{{ l | map('upper') }}", "t: line 1: found a generator where a text is made, expected a "
                               "value (a `| list` missing, or a call's parentheses?)"},
    {"{{ d.items }}",
     "t: line 1: found a method where a text is made, expected a value (a `| list` "
     "missing, or a call's parentheses?)"},
    {"{{ l | map('upper') | tojson }}",
     "t: line 1: Object of type generator is not JSON serializable"},
    {"{% set n.x = 1 %}",
     "t: line 1: found 'int', expected a namespace: only its names can be set"},
    {"{% macro m(a) %}{{ a + 1 }}{% endmacro %}\n{{ m() }}",
     "t: line 1: parameter 'a' was not provided"},
    {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
     "t: line 1: macro 'm': found 2 arguments, expected at most 1"},
    {"{% macro m(a) %}{% endmacro %}{{ m(b=2) }}",
     "t: line 1: macro 'm' takes no argument 'b' by name"},
    {"{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}",
     "t: line 1: macro 'm' takes no argument 'a' by name"},
    {"{% macro m(a) %}{% endmacro %}{% call m(1) %}{% endcall %}",
     "t: line 1: macro 'm' takes no argument 'caller' by name"},
    {"{% for x in l %}{{ loop.cycle(1, 2) }}{% endfor %}",
     "t: line 1: 'loop object' has no attribute 'cycle', or spillway does not know it"},
    {"{% call n() %}{% endcall %}", "t: line 1: found a call of 'int', which cannot be called"},
    {"{{ strftime_now(1) }}", "t: line 1: strftime_now(): found 'int', expected a string"},
    {"{{ range(1000000) }}", "t: line 1: range(): found more than 100000 numbers"},
    {"{{ 'abc'.replace('a') }}", "t: line 1: replace: the argument 'new' is missing"},
    {"{{ s | indent(x=1) }}", "t: line 1: indent: found the argument 'x', which it does not take"},
    {"{{ (1, 2 }}", "t: line 1: found '}', expected ')'"},
    {"{{ ) }}", "t: line 1: found ')', which closes nothing"},
    {"{% break %}", "t: line 1: found 'break' outside of a loop"},
    {"{% include 'x' %}", "t: line 1: found 'include', expected a tag that chat templates have"},
    {"{{ '\\ud800' }}", "t: line 1: found \\ud800 in a string, which is no character"},
    {"{{ a.b = 1 }}", "t: line 1: found '=', expected }}"},
    {"{% set 1 = 2 %}", "t: line 1: found a value, expected a name to assign to"},
    {"{{ f(a=1, 2) }}", "t: line 1: found an argument that must have a name"},
    {"{{ f(*l, *l) }}", "t: line 1: found an argument that must have a name"},
    {"{{ f(a=1, a=2) }}", "t: line 1: found the argument 'a' twice"},
    {"{{ x is defined is none }}",
     "t: line 1: found 'is', expected one test: `is` cannot be chained"},
    {"{{ \x01 }}", "t: line 1: found '?', which no expression has"},
    {"{% macro m(a=1, b) %}{% endmacro %}",
     "t: line 1: found a parameter without a default after one with"},
};

static void test_texts(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rendered r = render(cases[i].source);
        CHECK_MSG(r.text && r.bytes == strlen(cases[i].text) && !strcmp(r.text, cases[i].text),
                  "%s\n  found    %s%s\n  expected %s", cases[i].source, r.text ? r.text : "",
                  r.err.text, cases[i].text);
        spw_free(r.text);
    }
}

static void test_errors(void)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        struct rendered r = render(errors[i].source);
        CHECK_MSG(r.rc && !strcmp(r.err.text, errors[i].error),
                  "%s\n  found    %s%s\n  expected %s", errors[i].source, r.text ? r.text : "",
                  r.err.text, errors[i].error);
        spw_free(r.text);
    }
    struct rendered r = render_bytes("a\xff", 2, "{}");
    CHECK(r.rc == -EINVAL && !strcmp(r.err.text, "t: line 1: found bytes that are not UTF-8"));
    r = render_bytes("{{ x\0 }}", 8, "{}");
    CHECK(r.rc == -EINVAL);
    r = render_bytes("{{ x }}\0{{ x|length }}", 22, "{\"x\": \"a\\u0000b\"}");
    CHECK(!r.rc && r.bytes == 5 &&
          !memcmp(r.text,
                  "a\0b\0"
                  "3",
                  6));
    spw_free(r.text);
}

/* ---- limits ---- */

struct text {
    char *at;
    size_t n;
};

/* `n` times `a`, then `middle`, then `n` times `b`. */
static struct text nested(const char *a, const char *middle, const char *b, size_t n)
{
    struct text t = {malloc((strlen(a) + strlen(b)) * n + strlen(middle) + 1), 0};
    for (size_t i = 0; t.at && i < n; i++)
        t.n += (size_t)sprintf(t.at + t.n, "%s", a);
    t.n += (size_t)sprintf(t.at + t.n, "%s", middle);
    for (size_t i = 0; i < n; i++)
        t.n += (size_t)sprintf(t.at + t.n, "%s", b);
    return t;
}

static const struct {
    const char *a, *middle, *b;
} deep[] = {
    {"{{ ", "(", ""},
    {"", "{{ -----1 }}", ""},
    {"{% if n %}", "x", "{% endif %}"},
    {"{% for i in l %}", "x", "{% endfor %}"},
    {"(", "{{ 1 }}", ")"},
};

/* Depth in the template's text: a little is good, too much is refused, and nothing overflows. */
static void test_nesting(void)
{
    static const char *const open[] = {"(", "[", "-", "not ", "{1: ", "l[", "n if ", "1 ~ (", "f("};
    static const char *const close[] = {")", "]", "", "", "}", "]", "", ")", ")"};
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        for (size_t n = 10; n <= 100000; n *= 100) {
            struct text inner = nested(open[i], "0", close[i], n);
            struct text whole = nested("{{ ", inner.at, " }}", 1);
            struct rendered r = render_bytes(whole.at, whole.n, vars_text);
            CHECK_MSG(n < 100 || r.rc, "%zu times %s", n, open[i]);
            CHECK_MSG(n > 100 || !strstr(r.err.text, "more than"), "%s: %s", open[i], r.err.text);
            spw_free(r.text);
            free(inner.at);
            free(whole.at);
        }
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        struct text t = nested(deep[i].a, deep[i].middle, deep[i].b, 5000);
        struct rendered r = render_bytes(t.at, t.n, vars_text);
        CHECK(deep[i].b[0] == 0 || deep[i].a[0] == '(' || r.rc);
        spw_free(r.text);
        free(t.at);
    }
    struct text maps = nested("'map', ", "'map'", "", 900);
    struct text mapped = nested("{{ 'a' | map(", maps.at, ") }}", 1);
    struct rendered by_maps = render_bytes(mapped.at, mapped.n, vars_text);
    CHECK_MSG(by_maps.rc == -EINVAL && strstr(by_maps.err.text, "map: found no filter"), "%s",
              by_maps.err.text);
    free(maps.at);
    free(mapped.at);
    struct text chain = nested("{{ 1", "", "", 1), more = nested(" + 1", " }}", "", 5000);
    struct text whole = nested(chain.at, more.at, "", 1);
    struct rendered r = render_bytes(whole.at, whole.n, vars_text);
    CHECK(r.rc == -EINVAL && strstr(r.err.text, "chain of more than"));
    free(chain.at);
    free(more.at);
    free(whole.at);
}

static const struct {
    const char *source, *error;
} unbounded[] = {
    {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "levels of calls"},
    {"{% set ns = namespace() %}{% set ns.x = [ns] %}{% for i in range(9999) %}{% set ns.x = "
     "[ns.x] "
     "%}{% endfor %}{{ ns.x | tojson }}",
     "levels of calls"},
    {"{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}"
     "{{ ns.x }}",
     "levels of calls"},
    {"{% set ns = namespace(x=1, y=1) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}"
     "{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
     "levels of calls"},
    {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
     "too many steps"},
    {"{% for a in range(99999) %}{% set x = l * 1000 %}{% endfor %}", "bytes of memory"},
    {"{% set ns = namespace(x='ab') %}{% for a in range(64) %}{% set ns.x = ns.x + ns.x %}"
     "{% endfor %}",
     "bytes of memory"},
    {"{% for a in range(99999) %}{{ s * 999 }}{% endfor %}", "prints more than"},
    {"{{ 'x' * 9223372036854775807 }}", "prints more than"},
    {"{{ d | tojson(indent=999999999) }}", "prints more than"},
    {"{{ range(100001) }}", "range(): found more"},
    {"{{ range(-9223372036854775807, 9223372036854775807) }}", "range(): found more"},
    {"{{ (l * 99999) | sort | length }}", "bytes of memory"},
};

static void test_unbounded(void)
{
    for (size_t i = 0; i < sizeof unbounded / sizeof *unbounded; i++) {
        struct rendered r = render(unbounded[i].source);
        bool range = !strncmp(unbounded[i].error, "range", 5);
        CHECK_MSG(r.rc == (range ? -EINVAL : -E2BIG) && strstr(r.err.text, unbounded[i].error),
                  "%s: %d %s", unbounded[i].source, r.rc, r.err.text);
        spw_free(r.text);
    }
    char *big = malloc(SPW_JINJA_MAX_SOURCE + 1);
    memset(big, 'x', SPW_JINJA_MAX_SOURCE + 1);
    struct rendered r = render_bytes(big, SPW_JINJA_MAX_SOURCE, "{}");
    CHECK(!r.rc && r.bytes == SPW_JINJA_MAX_SOURCE);
    spw_free(r.text);
    r = render_bytes(big, SPW_JINJA_MAX_SOURCE + 1, "{}");
    CHECK(r.rc == -E2BIG);
    free(big);
}

/* The limits grow with the input: a book passes through a usual template. */
static void test_long_input(void)
{
    static const char source[] = "{% set ns = namespace(t='') %}{% for m in messages %}"
                                 "{% set ns.t = ns.t + '<|' + m.role + '|>' + m.content | trim %}"
                                 "{% endfor %}{{ ns.t | replace('q', 'r') }}";
    enum { N = 200, BYTES = 100000 };
    char *content = malloc(BYTES);
    memset(content, 'x', BYTES - 1);
    content[BYTES - 1] = 'q';
    json_t *messages = json_array();
    for (int i = 0; i < N; i++)
        json_array_append_new(messages,
                              json_pack("{s:s, s:s%}", "role", "user", "content", content, BYTES));
    json_t *vars = json_pack("{s:o}", "messages", messages);
    const struct spw_jinja_input in = {vars, NULL};
    struct spw_jinja *t = NULL;
    struct spw_error err = {0};
    char *text = NULL;
    size_t bytes = 0;
    CHECK(!spw_jinja_parse(&t, source, sizeof source - 1, "t", &err));
    CHECK_MSG(!spw_jinja_render(t, &in, &text, &bytes, &err), "%s", err.text);
    CHECK(bytes == N * (BYTES + strlen("<|user|>")) && text[bytes - 1] == 'r');
    spw_free(text);
    spw_jinja_free(t);
    json_decref(vars);
    free(content);
}

/* The deepest nesting on the stack of a thread that has little of it. */
static void *deepest(void *unused)
{
    (void)unused;
    test_nesting();
    for (size_t i = 0; i < 4; i++) {
        struct rendered r = render(unbounded[i].source);
        CHECK(r.rc == -E2BIG);
    }
    return NULL;
}

static void test_small_stack(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    const size_t bytes = 4u << 20; /* frames are padded there */
#else
    const size_t bytes = 1u << 20;
#endif
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(!pthread_attr_init(&attributes) && !pthread_attr_setstacksize(&attributes, bytes));
    CHECK(!pthread_create(&thread, &attributes, deepest, NULL));
    CHECK(!pthread_join(thread, NULL));
    pthread_attr_destroy(&attributes);
}

/* ---- allocations ---- */

static void test_allocations(void)
{
    static const char source[] =
        "{% macro m(a, b=2) %}{{ a ~ b }}{{ caller() }}{% endmacro %}{% set x %}{{ l | sort }}"
        "{% endset %}{% call m('é' | upper) %}{{ d | tojson(indent=2) }}{% endcall %}{{ x }}"
        "{{ s.split() | map('upper') | join(',') }}{{ 'x' * "
        "99999 }}"
        "{{ {1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7, 7: 8, 8: 9, 9: 10, 10: 11} | dictsort }}";
    struct rendered good = render(source);
    CHECK_MSG(!good.rc, "%s", good.err.text);
    int64_t n = 0;
    for (bool failed = true; failed; n++) {
        spw_alloc_fail_nth(n);
        struct rendered r = render(source);
        spw_alloc_fail_nth(-1);
        failed = r.rc != 0;
        CHECK_MSG(!failed || r.rc == -ENOMEM, "%d %s", r.rc, r.err.text);
        CHECK(failed || !strcmp(r.text, good.text));
        spw_free(r.text);
        CHECK_MSG(spw_alloc_outstanding() == 1, "allocation %lld leaks", (long long)n);
    }
    CHECK(n > 10);
    spw_free(good.text);
}

int main(void)
{
    test_texts();
    test_errors();
    test_nesting();
    test_unbounded();
    test_long_input();
    test_small_stack();
    test_allocations();
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
