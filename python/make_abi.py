#!/usr/bin/env python3
"""make_abi.py [--check] [CC...]: prints the module spillway._abi, the structs, enumerators and functions of the public
headers for ctypes. The headers are read as the compiler (cc) preprocesses them. With --check it prints a C source, which
compiles only if ctypes gives every member the size and the offset that the compiler gives. Run it in the root of the
sources."""
import ctypes
import re
import subprocess
import sys

HEADERS = ["base/base.h", "runtime/spillway.h", "runtime/plan_query.h", "model/source/source.h",
           "model/text/chat_template.h", "model/text/reasoning.h", "model/text/tokenizer/tokenizer.h"]
PLAIN = {"_Bool": "c_bool", "char": "c_char", "int": "c_int", "unsigned": "c_uint", "float": "c_float",
         "double": "c_double", "size_t": "c_size_t",
         **{f"{sign}int{bits}_t": f"c_{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}}
INCLUDES = "".join(f'#include "{header}"\n' for header in HEADERS)


class Reader:
    """Collects lines of Python; `names` has what they define, for sizes of arrays and for pointers to structs."""

    def __init__(self):
        self.lines, self.names, self.structs = [], {}, []
        for line in ("from ctypes import *", "functions = {}", "SPW_NONE = 2**64 - 1"):
            self.emit(line)

    def emit(self, line):
        """False: the line uses a struct of the system, which nothing here needs, and is left out."""
        try:
            exec(line, self.names)
        except NameError:
            return False
        self.lines.append(line)
        return True

    def enum(self, name, body):
        """Its enumerators, and by the enum's name a table of them."""
        following = 0
        values = {}
        for item in filter(None, map(str.strip, body.split(","))):
            key, _, value = map(str.strip, item.partition("="))
            following = eval(value, self.names) if value else following
            self.emit(f"{key} = {following}")
            values[key] = following
            following += 1
        if name:
            self.emit(f"{name} = {values}")

    def type(self, words, stars):
        """Of a member or an argument: a pointer is typed where its use needs that."""
        base = " ".join(w for w in words.split() if w not in ("const", "struct"))
        plain = PLAIN.get(base) or ("c_int" if base.startswith("enum ") else base)
        if stars == 0:
            return "None" if base == "void" else plain
        if stars == 1 and base == "char" and "const" in words:
            return "c_char_p"
        return f"POINTER({plain})" if stars == 1 and plain in self.names and base != "char" else "c_void_p"

    def arguments(self, text):
        for argument in text.split(","):
            if argument.strip() in ("", "void"):
                continue
            name = re.search(r"(?<=[\s*])\w+\s*(\[\d*\])?$", argument)
            stars = argument.count("*") + argument.count("[")
            yield self.type((argument[:name.start()] if name else argument).replace("*", ""), stars)

    def members(self, name, body):
        """[(member, type, enum)]"""
        depth, begin = 0, 0
        for i, c in enumerate(body):
            depth += (c == "{") - (c == "}")
            if c != ";" or depth:
                continue
            member, begin = body[begin:i].strip(), i + 1
            nested = re.fullmatch(r"(struct|enum)\s*(\w*)\s*\{(.*)\}\s*(\w+)", member, re.S)
            function = re.fullmatch(r"(.*?)\(\s*\*\s*(\w+)\s*\)\s*\((.*)\)", member, re.S)
            if nested and nested[1] == "enum":
                self.enum(nested[2], nested[3])
                yield nested[4], "c_int", ""
            elif nested:
                self.struct(f"{name}_{nested[4]}", nested[3])
                yield nested[4], f"{name}_{nested[4]}", ""
            elif function:
                result = self.type(function[1].replace("*", ""), function[1].count("*"))
                yield function[2], f"CFUNCTYPE({', '.join([result, *self.arguments(function[3])])})", ""
            else:
                words, rest = re.fullmatch(r"((?:const |struct |enum )*\w+(?: const\b)?)\s*(.*)", member, re.S).groups()
                for one in rest.split(","):
                    stars, key, size = re.fullmatch(r"\s*((?:\*|const|\s)*)(\w+)\s*((?:\[.*\])*)", one, re.S).groups()
                    kind = self.type(words, stars.count("*"))
                    for n in re.findall(r"\[(.*?)\]", size):
                        kind = f"{kind} * {eval(n, self.names)}"
                    yield key, kind, words.split()[1] if words.startswith("enum ") else ""

    def struct(self, name, body):
        members = list(self.members(name, body))
        enums = {key: enum for key, _, enum in members if enum}
        fields = ", ".join(f'("{key}", {kind})' for key, kind, _ in members)
        if self.emit(f"class {name}(Structure): _fields_, enums_ = [{fields}], {enums}"):
            self.structs.append(name)

    def function(self, result, name, arguments):
        kind = self.type(result.replace("*", "").replace("extern", ""), result.count("*"))
        self.emit(f'functions["{name}"] = {kind}, [{", ".join(self.arguments(arguments))}]')

    def read(self, text):
        structs = r"\bstruct (spw_\w+)\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*;"
        enums = r"\benum (\w*)\s*\{([^{}]*)\}\s*;"
        callbacks = r"^typedef (\w+) \(\*(spw_\w+)\)\(([^()]*)\);"
        functions = r"^((?:const |struct |enum )*\w+[\s*]+)(spw_\w+)\(([^(){};]*)\)\s*;"
        for found in re.finditer(f"{structs}|{enums}|{callbacks}|{functions}", text, re.M):
            struct, members, enum, values, returns, callback, takes, result, name, arguments = found.groups()
            if struct:
                self.struct(struct, members)
            elif values and "SPW_" in values:
                self.enum(enum, values)
            elif callback:
                self.emit(f"{callback} = CFUNCTYPE({', '.join([self.type(returns, 0), *self.arguments(takes)])})")
            elif name:
                self.function(result, name, arguments)


def check(reader):
    """A struct of a header; what stands inside another struct without a name is checked by its place there."""
    for name in reader.structs:
        kind = reader.names[name]
        if not re.search(rf"\bstruct {name}\s*\{{", reader.text):
            continue
        print(f"_Static_assert(sizeof(struct {name}) == {ctypes.sizeof(kind)}, \"{name}\");")
        for key, *_ in kind._fields_:
            place = getattr(kind, key)
            print(f"_Static_assert(offsetof(struct {name}, {key}) == {place.offset} && sizeof(((struct {name} *)0)->{key})"
                  f" == {place.size}, \"{name}.{key}\");")


def main():
    words = sys.argv[1:]
    checks = words[:1] == ["--check"]
    cc = words[checks:] or ["cc"]
    reader = Reader()
    reader.text = subprocess.run([*cc, "-E", "-P", "-I.", "-xc", "-"], input=INCLUDES, stdout=subprocess.PIPE, text=True,
                                 check=True).stdout
    reader.read(reader.text)
    if checks:
        print(f"#include <stddef.h>\n{INCLUDES}_Static_assert(SPW_NONE == {reader.names['SPW_NONE']}u, \"SPW_NONE\");")
        check(reader)
    else:
        print("\n".join(reader.lines))


main()
