"""Reads job files: protobuf's text format, as far as tools/bench/jobs uses it (no lists, no escapes)."""

import re

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<name>[A-Za-z_]\w*)|(?P<number>[-+]?[\d.][\w.+-]*)|"(?P<text>[^"\\\n]*)"|(?P<mark>[{}:])""")


def parse(text):
    """Returns a dict of fields: numbers, strings (also for enum values), booleans, and dicts for messages. Raises
    ValueError, which names the line."""
    tokens = list(_tokens(text))
    fields, rest = _message(tokens, 0)
    if rest < len(tokens):
        raise ValueError(f"line {tokens[rest][2]}: a brace closes nothing")
    return fields


def set_path(job, path, value):
    """Sets job["a"]["b"] for "a.b", as --set does."""
    *parents, last = path.split(".")
    for name in parents:
        job = job.setdefault(name, {})
    job[last] = value


def flat(job, parents=()):
    """Yields the path and the value of each field that is no message, as --set takes them: "a.b" for job["a"]["b"]."""
    for name, value in job.items():
        if isinstance(value, dict):
            yield from flat(value, (*parents, name))
        else:
            yield ".".join((*parents, name)), str(value).lower() if isinstance(value, bool) else value


def _tokens(text):
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        line = text.count("\n", 0, at) + 1
        if not match:
            raise ValueError(f"line {line}: found {text[at:at + 12]!r}")
        at = match.end()
        if match.lastgroup:
            yield match.lastgroup, match[match.lastgroup], line


def _message(tokens, at):
    fields = {}
    while at < len(tokens) and tokens[at][1:2] != ("}",):
        kind, name, line = tokens[at]
        if kind != "name" or at + 1 >= len(tokens):
            raise ValueError(f"line {line}: a field was expected, found {name!r}")
        if name in fields:
            raise ValueError(f"line {line}: {name} is set twice")
        _, mark, _ = tokens[at + 1]
        if mark == "{":
            fields[name], at = _message(tokens, at + 2)
            if at >= len(tokens):
                raise ValueError(f"line {line}: the brace after {name} is never closed")
            at += 1
        elif mark == ":" and at + 2 < len(tokens) and tokens[at + 2][0] != "mark":
            fields[name] = _value(*tokens[at + 2])
            at += 3
        else:
            raise ValueError(f"line {line}: {name} has no value")
    return fields, at


def _value(kind, text, line):
    if kind == "name" and text in ("true", "false"):
        return text == "true"
    if kind != "number":
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"line {line}: {text!r} is no number") from None
