#!/usr/bin/env python3
"""Compares our Jinja interpreter with Python's jinja2 on random templates.

usage: jinja_differential.py TEST_CHAT_TEMPLATE   (the built test_chat_template)

Every round makes a small template out of the statements, expressions, filters, tests and methods that
the interpreter knows, renders it with both over the same variables, and wants the same text, or an error
from both. Exit 77 where jinja2 (3.1) is missing. SPW_SEED repeats a run, SPW_ROUNDS sets its length.
"""
import datetime
import json
import os
import random
import re
import subprocess
import sys
import warnings

try:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("skipped: jinja2 is not installed")
    sys.exit(77)
if not jinja2.__version__.startswith("3.1."):
    print("skipped: jinja2 is", jinja2.__version__, "and not 3.1")
    sys.exit(77)

NOW = datetime.datetime(2024, 7, 26, 12, 34, 56)
VARS = {
    "messages": [{"role": "system", "content": "Be éxact."}, {"role": "user", "content": "  Hi 🦙 there\n", "n": 2},
                 {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {"a": 1, "b": [True, None]}}]},
                 {"role": "user", "content": [{"type": "text", "text": "part"}, {"type": "image"}]}],
    "tools": None, "s": "a b,c  d", "t": "Straße <b>&'\"\\", "e": "", "n": 3, "z": 0, "neg": -7, "f": 2.5, "g": 1e22, "tiny": 1.5e-7,
    "yes": True, "no": False, "nothing": None, "l": [3, 1, 2, 1], "w": ["b", "A", "c", "a"], "mixed": [1, "x", None, 2.0, [1]],
    "d": {"b": 1, "a": {"x": [1, 2]}, "items": "i"}, "o": {"z": "Z", "y": "y"}, "empty": {}, "none_list": [],
    "rows": [{"k": "x", "v": 2, "on": True}, {"k": "Y", "v": 1, "on": False}, {"k": "x", "v": 3}],
}


VARS_TEXT = json.dumps(VARS)

# What ours refuses and Python does not: what its texts say it does not know or do, addresses in a text, integers of
# more than 64 bits.
REFUSED = ["spillway does not", "where a text is made", "64 bits"]

# How the generator writes each filter, test and method of the table. S, I, E stand for a random string, integer,
# expression. What jinja2 does lazily is used at once: ours does it at once, and an error must not depend on that.
FILTERS = {
    "abs": ["abs"], "capitalize": ["capitalize"], "count": ["count"], "d": ["d(S)"], "default": ["default(E)", "default(E, true)"],
    "dictsort": ["dictsort", "dictsort(by='value')", "dictsort(reverse=true)", "dictsort(true)"], "first": ["first"], "float": ["float"],
    "indent": ["indent", "indent(2, true)", "indent(width=1, blank=true)"], "int": ["int", "int(I)"], "items": ["items | list"],
    "join": ["join", "join(S)", "join(',', attribute='k')"], "last": ["last"], "length": ["length"], "list": ["list", "list | tojson"], "lower": ["lower"],
    "map": ["map('upper') | list", "map(attribute='k') | list", "map(attribute='v', default=9) | list", "map('int') | list", "map('length') | list",
            "map('default', S) | list", "map(attribute='role') | map('upper') | join"],
    "max": ["max", "max(attribute='v')"], "min": ["min"], "reject": ["reject | list", "reject('none') | list"],
    "rejectattr": ["rejectattr('on') | list", "rejectattr('v', 'defined') | list"], "replace": ["replace(S, S)", "replace(S, S, 1)"],
    "reverse": ["reverse | list"], "safe": ["safe"],
    "select": ["select | list", "select('string') | list", "select('odd') | list", "select('equalto', I) | list", "select('in', E) | list"],
    "selectattr": ["selectattr('on') | list", "selectattr('v', 'gt', 1) | list", "selectattr('role', '==', S) | list", "selectattr('content', 'string') | list"],
    "sort": ["sort", "sort(reverse=true)", "sort(attribute='v')", "sort(case_sensitive=true)"], "string": ["string"], "sum": ["sum", "sum(attribute='v')"],
    "title": ["title"], "tojson": ["tojson", "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(sort_keys=true)", "tojson(separators=(',', ':'))"],
    "trim": ["trim", "trim(S)"], "unique": ["unique | list", "unique(attribute='k') | list"], "upper": ["upper"],
}
TESTS = {
    **{name: [name] for name in ["boolean", "callable", "defined", "even", "false", "float", "integer", "iterable", "mapping", "none", "number", "odd",
                                 "sequence", "string", "true", "undefined"]},
    **{name: [f"{name}(I)"] for name in ["ne", "gt", "ge", "le", "greaterthan", "lessthan"]},
    "eq": ["eq(E)"], "equalto": ["equalto I", "equalto(E)"], "lt": ["lt I"], "in": ["in(E)"],
}
OPERATOR_TESTS = {"==", "!=", "<", ">", "<=", ">="}  # only select and the like can name them
METHODS = {
    "capitalize": [""], "endswith": ["S"], "find": ["S"], "join": ["E"], "lower": [""], "lstrip": ["", "S"], "replace": ["S, S", "S, S, 1"], "rfind": ["S"],
    "rsplit": ["none, 1", "S, 1"], "rstrip": ["", "S"], "split": ["", "S", "S, 1"], "splitlines": [""], "startswith": ["S", "(S, S)"], "strip": ["", "S"],
    "title": [""], "upper": [""], "items": [""], "keys": [""], "values": [""], "get": ["S", "S, E"], "format": ["E", "E, E", "a=E, b=E"],
}
# What jinja2 gives a type of its own, and ours a list.
LISTS = {"items", "keys", "values"}
FIELDS = ["", "", "", "0", "1", "a", "b", "c"]
SPECS = ["", "", ":", ":>5", ":<4", ":^6", ":*^7", ":é>3", ":3", ":03", ":.2", ":.2f", ":08.3f", ":d", ":04d", ":s", ":x", ":,", "!r", "!s", ".a", "[0]"]
ITEMS = [".content", ".role", ".k", ".a", ".x", ".missing", ".append(1)", "[I]", "[S]", "[I:]", "[:I]", "[I:I]", "[::-1]", "[::2]", "[I:I:-1]", "[1:-1]",
         ".0", "[-1]"]


def check_names():
    """The names above are those of the interpreter's table."""
    found = {}
    for file in ["of_text", "of_items", "names"]:
        for kinds, name in re.findall(r'^    \{([\w | ]+), "(.*?)",', open(f"model/text/jinja/jinja_{file}.c").read(), re.M):
            for kind in kinds.replace("BOTH", "F | M").replace("D", "M").split(" | "):
                found.setdefault(kind, set()).add(name)
    expected = {"F": set(FILTERS), "T": set(TESTS) | OPERATOR_TESTS, "M": set(METHODS)}
    for kind, names in expected.items():
        if names != found[kind]:
            sys.exit(f"{kind}: the table and this test differ in {sorted(names ^ found[kind])}")


def never_constant(self, eval_ctx=None):
    raise jinja2.nodes.Impossible()


def environment():
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller):
            return caller()

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    # Not optimized, and no slices of constants while compiling: both swallow errors that variables would give.
    jinja2.nodes.Getitem.as_const = never_constant
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, optimized=False,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


class Maker:
    """One random template. `names` are the variables in scope, with the loop's where there is one."""

    def __init__(self, rng):
        self.rng, self.names, self.loops, self.macros, self.namespaces = rng, [*VARS, "missing", "x"], 0, [], []
        self.soundness = rng.choice([0, 0.5, 0.9, 1])

    def pick(self, *choices):
        return self.rng.choice(choices)

    def string(self):
        text = self.pick("", "a", "b", " ", "ab", "x y", "A-b", "role", "user", ",", "é", "中文", "🦙", "\\n", "it\\'s", "1", "2.5", " 7 ", "<b>")
        return f"'{text}'"

    def integer(self):
        return str(self.pick(0, 1, 2, 3, 5, 10, -1, -2, 100))

    def atom(self):
        kind = self.rng.random()
        if kind < 0.5:
            return self.rng.choice(self.names)
        if kind < 0.7:
            return self.string()
        if kind < 0.85:
            return self.integer()
        return self.pick("1.5", "0.1", "-2.0", "1e3", "true", "false", "none", "[]", "{}", "()", "loop.index" if self.loops else "n",
                         "loop.last" if self.loops else "f", "loop.length" if self.loops else "z", "loop.previtem" if self.loops else "e")

    def call_args(self, depth):
        args = [self.expression(depth) for _ in range(self.rng.randrange(3))]
        return ", ".join(args)

    def form(self, form, depth):
        return re.sub(r"\b[SIE]\b", lambda m: {"S": self.string, "I": self.integer, "E": lambda: self.expression(depth)}[m[0]](), form)

    def method(self, depth):
        if self.rng.random() < 0.3:
            return self.form(self.pick(*ITEMS), depth)
        name = self.pick(*METHODS)
        return f".{name}({self.form(self.pick(*METHODS[name]), depth)})" + (" | list" if name in LISTS else "")

    def template_of_format(self):
        parts = [self.pick("", "x", "é ", "{{", "}}", "{%s%s}" % (self.pick(*FIELDS), self.pick(*SPECS)), "{}") for _ in range(4)]
        return repr("".join(parts) + self.pick("", "", "", "{", "}"))

    def filter(self, depth):
        return self.form(self.pick(*FILTERS[self.pick(*FILTERS)]), depth)

    def test(self, depth):
        return self.form(self.pick(*TESTS[self.pick(*TESTS)]), depth)

    # Expressions of one type, so that most of them can be rendered.

    def some_text(self, depth):
        if depth <= 0 or self.rng.random() < 0.2:
            return self.pick("s", "t", "e", "messages[1].content", "o.z", "rows[0].k", self.string(), self.string())
        depth -= 1
        text, s = lambda: f"({self.some_text(depth)})", self.string
        return self.pick(
            lambda: f"{text()}{self.pick('.strip()', '.lstrip()', '.rstrip()', '.upper()', '.lower()', '.title()', '.capitalize()')}",
            lambda: f"{text()} | {self.pick('upper', 'lower', 'title', 'capitalize', 'trim', 'string', 'safe', 'reverse', 'indent', 'indent(2, true)')}",
            lambda: f"{text()}.{self.pick('strip', 'lstrip', 'rstrip')}({s()})",
            lambda: f"{text()}.replace({s()}, {s()}{self.pick('', ', 1')})", lambda: f"({text()} | replace({s()}, {s()}))",
            lambda: f"({text()})[{self.pick('1:', ':2', '-2:', '::2', '::-1', '1:-1', '-1:0:-1', '5:')}]",
            lambda: f"({text()} + {text()})", lambda: f"({text()} ~ {self.some_number(depth)} ~ {self.some_items(depth)})",
            lambda: f"{self.some_items(depth)} | join({s()})", lambda: f"{self.some_items(depth)} | {self.pick('string', 'tojson', 'tojson(indent=2)')}",
            lambda: f"{self.template_of_format()}.format({self.pick('', 'a=')}{self.expression(depth)}, b={self.expression(depth)})",
            lambda: f"'{{}}{{:5}}{{:>6}}'.format({text()}, {self.some_number(depth)}, {text()})",
            lambda: f"({text()} if {self.some_truth(depth)} else {text()})", lambda: f"{self.pick('d', 'o', 'rows', 'messages')} | tojson",
            lambda: f"({text()} | default({text()}, true))")()

    def some_items(self, depth):
        if depth <= 0 or self.rng.random() < 0.2:
            return self.pick("l", "w", "none_list", "rows", "messages", "[1, 'a', none]", "('x', 'y')", "mixed", "range(4) | list", "d.values() | list")
        depth -= 1
        items, s = lambda: self.some_items(depth), self.string
        return self.pick(
            lambda: f"({self.some_text(depth)}).split({self.pick('', 'none, 1', repr(' '), repr('a'), repr(',') + ', 1')})",
            lambda: f"({self.some_text(depth)}).{self.pick('rsplit()', 'rsplit(none, 1)', 'splitlines()', 'splitlines(true)')}",
            lambda: f"({items()} | list)[{self.pick('1:', ':2', '-2:', '::2', '::-1', '1:-1', '5:')}]", lambda: f"({items()} | list + {items()} | list)",
            lambda: f"(w | {self.pick('sort', 'sort(reverse=true)', 'sort(case_sensitive=true)', 'unique | list', 'reverse | list')})",
            lambda: f"(rows | {self.pick('sort(attribute=', 'map(attribute=', 'selectattr(', 'rejectattr(')}'k') | list)",
            lambda: f"(rows | {self.pick('selectattr', 'rejectattr')}('v', '{self.pick('gt', 'le', 'eq', 'in', '!=', '<', '>', '<=', '>=')}', {self.pick(1, 2, '[1, 3]')}) | list)",
            lambda: f"(messages | map(attribute='{self.pick('role', 'content', 'n', 'tool_calls.0.name')}'{self.pick('', ', default=0')}) | list)",
            lambda: f"({items()} | map('{self.pick('string', 'tojson', 'default', 'upper', 'int', 'trim')}') | list)",
            lambda: f"({items()} | {self.pick('select', 'reject')}('{self.pick('string', 'none', 'defined', 'mapping', 'number', 'iterable')}') | list)",
            lambda: f"({items()} | {self.pick('list', 'reverse | list')})",
            lambda: f"({self.pick('d', 'o')} | {self.pick('items | list', 'dictsort', 'list', 'dictsort(reverse=true)')})", lambda: f"({self.some_text(depth)} | list)",
            lambda: f"[{self.some_text(depth)}, {self.some_number(depth)}, {self.some_truth(depth)}]", lambda: f"({items()} | list * {self.pick(0, 1, 2)})")()

    def some_number(self, depth):
        if depth <= 0 or self.rng.random() < 0.3:
            return self.pick("n", "z", "neg", "f", "g", "tiny", "2", "0.1", "7", "true", "-3", "10.0")
        depth -= 1
        number = lambda: self.some_number(depth)
        return self.pick(
            lambda: f"({number()} {self.pick('+', '-', '*')} {number()})", lambda: f"({number()} {self.pick('/', '//', '%')} {self.pick(2, 3, -2, 0.5, 7)})",
            lambda: f"({self.some_items(depth)} | list | length)", lambda: f"({self.some_text(depth)} | length)", lambda: f"(l | {self.pick('sum', 'max', 'min', 'first', 'last')})",
            lambda: f"({self.some_text(depth)}).{self.pick('find', 'rfind')}({self.string()})", lambda: f"({number()} | {self.pick('abs', 'float', 'int')})",
            lambda: f"({self.some_text(depth)} | {self.pick('int', 'int(7)', 'float')})", lambda: f"(-{self.pick('n', 'f', 'neg')})",
            lambda: "(loop.index0 * loop.revindex)" if self.loops else "(rows | sum(attribute='v'))")()

    def some_truth(self, depth):
        if depth <= 0 or self.rng.random() < 0.2:
            return self.pick("yes", "no", "true", "loop.first" if self.loops else "no", "loop.last" if self.loops else "yes", "missing is defined", "tools")
        depth -= 1
        return self.pick(
            lambda: f"({self.some_number(depth)} {self.pick('==', '!=', '<', '>', '<=', '>=')} {self.some_number(depth)})",
            lambda: f"({self.some_text(depth)} {self.pick('==', '!=', '<', '>', 'in', 'not in')} {self.some_text(depth)})",
            lambda: f"({self.some_text(depth)} {self.pick('in', 'not in')} {self.some_items(depth)})", lambda: f"(not {self.some_truth(depth)})",
            lambda: f"({self.some_truth(depth)} {self.pick('and', 'or')} {self.some_truth(depth)})", lambda: f"({self.some_items(depth)} == {self.some_items(depth)})",
            lambda: f"({self.expression(depth)} is {self.pick('', 'not ')}{self.pick('defined', 'none', 'string', 'number', 'mapping', 'iterable', 'sequence', 'boolean')})",
            lambda: f"({self.some_text(depth)}).{self.pick('startswith', 'endswith')}({self.string()})")()

    def sound(self, depth):
        return self.pick(self.some_text, self.some_text, self.some_items, self.some_number, self.some_truth)(depth)

    def expression(self, depth):
        if self.rng.random() < self.soundness:
            return f"({self.sound(depth)})"
        if depth <= 0 or self.rng.random() < 0.15:
            return self.atom()
        depth -= 1
        kind = self.rng.random()
        e = self.expression
        if kind < 0.2:
            return f"{self.operand(depth)}{self.method(depth)}"
        if kind < 0.45:
            return f"{self.operand(depth)} | {self.filter(depth)}"
        if kind < 0.6:
            op = self.pick("+", "+", "-", "*", "/", "//", "%", "~")
            return f"({self.operand(depth)} {op} {e(depth)})"
        if kind < 0.7:
            op = self.pick("==", "!=", "<", ">", "<=", ">=", "in", "not in")
            return f"({e(depth)} {op} {e(depth)})"
        if kind < 0.78:
            return f"({e(depth)} {self.pick('and', 'or')} {self.pick('', 'not ')}{e(depth)})"
        if kind < 0.86:
            return f"({self.operand(depth)} is {self.pick('', '', 'not ')}{self.test(depth)})"
        if kind < 0.91:
            return f"({e(depth)} if {e(depth)}{self.pick('', ' else ' + e(depth))})"
        if kind < 0.94:
            return "[" + ", ".join(e(depth) for _ in range(self.rng.randrange(4))) + "]"
        if kind < 0.96:
            return "{" + ", ".join(f"{self.pick(self.string(), self.integer())}: {e(depth)}" for _ in range(self.rng.randrange(3))) + "}"
        if kind < 0.97 and self.macros:
            return f"{self.rng.choice(self.macros)}({self.pick(self.call_args(depth), f'*({e(depth)})')})"
        if kind < 0.98:
            return f"range({self.integer()}) | list"
        return self.pick("(%s, %s)" % (e(depth), e(depth)), "dict(a=%s)" % e(depth), "-%s" % self.operand(depth), "not %s" % e(depth),
                         "strftime_now('%d %B %Y')")

    def operand(self, depth):
        text = self.expression(depth)
        return text if text.isidentifier() else f"({text})"

    def tag(self, inside):
        # Some of the ways in which white space may stand around a tag.
        return self.pick("{%", "{%", "{%-", "{%+") + " " + inside + " " + self.pick("%}", "%}", "-%}", "+%}")

    def text(self):
        return self.pick("", "", " ", "\n", "  \n  ", "word", "a\n", "\n\n", "\tx ", "é\n ", "{ ", "# ", "%} ", "\r\n")

    def body(self, depth):
        return "".join(self.text() + self.statement(depth) for _ in range(self.rng.randrange(1, 4))) + self.text()

    def loop(self, depth):
        targets = self.pick(("i", self.expression(2)), ("i", "messages"), ("k, v", "d.items()"), ("k, v", "o|dictsort"), ("i", "range(4)"), ("i", "l"),
                            ("i", "rows"), ("c", "s"))
        condition = self.pick("", "", "", f" if {self.expression(1)}")
        names = self.names
        self.names = names + targets[0].split(", ")
        self.loops += 1
        body = self.body(depth - 1) + self.pick("", "", self.tag(f"if {self.expression(1)}") + self.tag(self.pick("break", "continue")) + self.tag("endif"))
        self.loops -= 1
        self.names = names
        other = self.pick("", "", self.tag("else") + "none")
        return self.tag(f"for {targets[0]} in {targets[1]}{condition}") + body + other + self.tag("endfor")

    def macro(self, depth):
        name = f"m{len(self.macros)}"
        names, loops = self.names, self.loops
        self.names, self.loops = names + ["a", "b"], 0
        body = self.body(depth - 1) + self.pick("", "", "{{ caller() if caller }}")
        self.names, self.loops = names, loops
        self.macros.append(name)
        return self.tag(f"macro {name}(a, b={self.expression(1)})") + body + self.tag("endmacro")

    def statement(self, depth):
        kind = self.rng.random()
        if depth <= 0 or kind < 0.45:
            return self.pick("{{", "{{", "{{-") + " " + self.expression(3) + " " + self.pick("}}", "}}", "-}}")
        if kind < 0.58:
            text = self.tag(f"if {self.expression(2)}") + self.body(depth - 1)
            if self.rng.random() < 0.3:
                text += self.tag(f"elif {self.expression(2)}") + self.body(depth - 1)
            return text + self.pick("", self.tag("else") + self.body(depth - 1)) + self.tag("endif")
        if kind < 0.7:
            return self.loop(depth)
        if kind < 0.78:
            target = self.pick("x", "y", "q", "x")
            value = self.expression(3)
            if target not in self.names:
                self.names = self.names + [target]
            return self.tag(f"set {target} = {value}")
        if kind < 0.82:
            if not self.namespaces:
                self.namespaces.append("ns")
                return self.tag(f"set ns = namespace(p={self.expression(1)})") + "{{ ns.p }}"
            return self.tag(f"set ns.p = {self.expression(2)}") + "{{ ns.p }}"
        if kind < 0.86:
            return self.macro(depth) if not self.loops else ""
        if kind < 0.9:
            return self.tag("set x" + self.pick("", " | trim", " | upper")) + self.body(depth - 1) + self.tag("endset") + "{{ x }}"
        if kind < 0.94:
            return self.tag("filter " + self.pick("upper", "trim", "replace('a', 'b')")) + self.body(depth - 1) + self.tag("endfilter")
        if kind < 0.96 and self.macros:
            return self.tag(f"call {self.rng.choice(self.macros)}({self.call_args(1)})") + "called" + self.tag("endcall")
        return self.pick("{# note #}", "{#- note -#}\n", "{% raw %}{{ x }}{% endraw %}", "{%- raw -%} {% x %} {%- endraw %}", "{% generation %}g{% endgeneration %}")


def theirs(env, source):
    try:
        return env.from_string(source).render(**json.loads(VARS_TEXT)), None
    except Exception as e:
        return None, f"{type(e).__name__}: {e}"


def differs(expected, error, answer):
    """None, or why the two cannot both be right."""
    if "error" in answer:
        ours = answer["error"]
        if error is None and not any(reason in ours for reason in REFUSED):
            return f"ours failed: {ours}\n--- theirs\n{expected!r}"
        return None
    if error is not None:
        return f"theirs failed: {error}\n--- ours\n{answer['text']!r}"
    return None if answer["text"] == expected else f"--- theirs\n{expected!r}\n--- ours\n{answer['text']!r}"


def main():
    warnings.simplefilter("ignore")
    check_names()
    seed = int(os.environ.get("SPW_SEED", random.SystemRandom().randrange(1 << 32)))
    rounds = int(os.environ.get("SPW_ROUNDS", 4000 if "SPW_FULL" in os.environ else 1000))
    print(f"SPW_SEED={seed}")
    rng, env, failed = random.Random(seed), environment(), 0
    sources = [Maker(rng).body(rng.choice([0, 0, 1, 3])) for _ in range(rounds)]
    expected = [theirs(env, source) for source in sources]
    questions = "".join(f'{{"template": {json.dumps(source)}, "vars": {VARS_TEXT}}}\n' for source in sources)
    ours = subprocess.run([sys.argv[1], "--serve"], input=questions, stdout=subprocess.PIPE, text=True)
    answers = ours.stdout.split("\n")[:-1]
    if ours.returncode or len(answers) != rounds:
        print(f"exit {ours.returncode} at {sources[min(len(answers), rounds - 1)]!r}")
        return 1
    for source, (text, error), answer in zip(sources, expected, answers):
        why = differs(text, error, json.loads(answer))
        if why and failed < 20:
            print(f"=== {source!r}\n{why}")
        failed += why is not None
    rendered = sum(error is None for _, error in expected)
    print(f"{rounds} templates, {rendered} of them rendered, {failed} differ")
    return failed != 0 or rendered == 0


if __name__ == "__main__":
    sys.exit(main())
