#!/usr/bin/env python3
"""Prints what the public headers declare, one declaration on a line, and a struct of plain members on one too. Leaves
out what follows from the rest: overrides, destructors, deleted functions, and comparisons.

    tools/build_defs/public_api.py > engine/public_api.txt

tests/public_api_test.py fails if the committed list is not what this prints, so that no signature changes unnoticed.
Reads C++ as this project writes it, not all of C++.
"""

import os
import re
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_CLOSING = {"(": ")", "{": "}", "[": "]"}
# A member that is no function: its name comes last, or its value.
_MEMBER = re.compile(r"^(?!static |using |enum |struct |class |explicit |template)"
                     r"[^=]*[\w>&*] \w+(?:, \w+)*(?: = .*)?$")
_TYPE = re.compile(r"^(?:template\s*<.*?>\s*)?(class|struct|enum(?: class)?)\s+(\w+)")


def without_comments(text):
    """Removes comments and preprocessor lines, and keeps strings as they are."""
    pattern = r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|//[^\n]*|/\*.*?\*/'
    text = re.sub(pattern, lambda m: " " if m.group(0).startswith("/") else m.group(0), text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)


def end_of(text, begin):
    """Returns the place after the bracket that closes the one at `begin`."""
    depth = 0
    for i in range(begin, len(text)):
        depth += (text[i] in "({[") - (text[i] in ")}]")
        if depth == 0:
            return i + 1
    raise ValueError(f"no {_CLOSING[text[begin]]} for: {text[begin:begin + 80]}")


def one_line(text):
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"([({\[<]) | (?=[)\]}>,;])", lambda m: m.group(1) or "", text)


def declarations(text, scope, access):
    """Yields the public declarations in the body of a namespace or of a class. `scope` is what to write before names.
    `access` is None in a namespace."""
    i, start = 0, 0
    while i < len(text):
        head = text[start:i].strip()
        if text[i] == ":" and head in ("public", "private", "protected"):
            access, i, start = head, i + 1, i + 1
        elif text[i] in "([":
            i = end_of(text, i)
        elif text[i] == ";":
            if access in (None, "public"):
                yield from declaration(head, scope)
            i, start = i + 1, i + 1
        elif text[i] == "{":
            end = end_of(text, i)
            kind = _TYPE.match(head)
            if head.startswith("namespace"):
                name = head[len("namespace"):].strip()
                if name and "internal" not in name:
                    yield from declarations(text[i + 1:end - 1], scope, None)
                i = start = end
            elif kind and "(" not in head:
                if access in (None, "public"):
                    body = text[i + 1:end - 1]
                    if kind.group(1).startswith("enum"):
                        yield f"{scope}{one_line(head)} {{{one_line(body)}}}"
                    else:
                        yield from members(head, kind, body, scope)
                i, start = end, end
                while text[i:i + 1].isspace():
                    i += 1
                if text[i:i + 1] == ";":
                    i = start = i + 1
            elif "(" in head and "=" not in head.rsplit(")", 1)[1]:  # The body of a function.
                if access in (None, "public"):
                    yield from declaration(re.sub(r"\)\s*:(?!:).*$", ")", head, flags=re.S), scope)
                i = start = end
            else:  # An initializer.
                i = end
        else:
            i += 1


def members(head, kind, body, scope):
    """Yields a type with its members: on one line if they are plain, or after it."""
    found = list(declarations(body, "", "private" if kind.group(1) == "class" else "public"))
    if found and all(_MEMBER.match(member) for member in found):
        yield f"{scope}{one_line(head)} {{{'; '.join(found)}}}"
        return
    yield f"{scope}{one_line(head)}"
    for member in found:
        yield f"{scope}{kind.group(2)}: {member}"


def declaration(head, scope):
    is_forward = re.fullmatch(r"(?:enum )?(?:class|struct)\s+\w+(?:\s*:\s*\w+)?", head)
    follows = re.search(r"\boverride$|= delete$|~\w+\(|\boperator==", head) or head.startswith("friend ")
    if head and not is_forward and not follows:
        yield f"{scope}{one_line(head)}"


def macros(text):
    return [f"#define {name}" for name in re.findall(r"^#define (SHALE_\w+\([^)]*\))", text, flags=re.M)
            if "_INNER" not in name and "_CONCAT" not in name and "_IMPL" not in name]


def public_api(root):
    """Returns the list as text."""
    with open(os.path.join(root, "engine/shale.h"), encoding="utf-8") as file:
        headers = re.findall(r'#include "([^"]+)"', file.read()) + ["engine/api/job_processes.h"]
    lines = []
    for header in sorted(headers):
        with open(os.path.join(root, header), encoding="utf-8") as file:
            text = file.read()
        found = macros(text) + list(declarations(without_comments(text), "", None))
        lines += [f"{header}", *(f"  {line}" for line in found), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(public_api(_ROOT))
