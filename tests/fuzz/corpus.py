#!/usr/bin/env python3
"""Packs and unpacks the inputs of the fuzz targets, which lie in tests/fuzz/corpus, one text for each target.

    tests/fuzz/corpus.py list                       # targets, with their numbers of inputs and bytes
    tests/fuzz/corpus.py add TARGET FILE...         # adds inputs, each under the name of its file
    tests/fuzz/corpus.py unpack TARGET FOLDER       # writes each input into a file of this folder, which it creates
    tests/fuzz/corpus.py pack TARGET FOLDER         # writes the text anew from the files of this folder

A text has a line with the name of each input, and below it the bytes, between quotes and in as many lines as wanted.
Quotes stand for themselves; a backslash, the end of a line and bytes that are not printable are escaped as in C.

    two_turns
      "{"role": "user"}\\n"
      "\\377\\000"
"""

import os
import re
import sys

_FOLDER = os.path.join(os.path.dirname(os.path.realpath(__file__)), "corpus")
_COLUMNS = 110  # Of the bytes of a line.
_NAMED = {ord("\\"): "\\\\", ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
_BYTES = {text[1]: byte for byte, text in _NAMED.items()}


def _escaped(byte):
    return _NAMED.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")


def _byte(text):
    return ord(text) if len(text) == 1 else _BYTES[text[1]] if len(text) == 2 else int(text[1:], 8)


def _lines(data):
    """Returns the bytes as lines of the text. A line of the input ends one."""
    lines, line = [], ""
    for byte in data:
        text = _escaped(byte)
        if len(line) + len(text) > _COLUMNS:
            lines.append(line)
            line = ""
        line += text
        if byte == ord("\n"):
            lines.append(line)
            line = ""
    return lines + ([line] if line or not lines else [])


def text_of(inputs):
    """Returns the text of inputs, which are bytes by name."""
    for name in inputs:
        if not re.fullmatch(r"[\w.+-]+", name):
            raise ValueError(f"{name!r}: the name of an input has letters, digits and .+-_ alone")
    return "".join(f"{name}\n" + "".join(f'  "{line}"\n' for line in _lines(data))
                   for name, data in sorted(inputs.items()))


def inputs_of(text):
    """Returns the inputs of a text, bytes by name."""
    inputs, name = {}, None
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.fullmatch(r'  "((?:[^\\]|\\[0-7]{3}|\\[\\nrt])*)"', line):
            if name is None:
                raise ValueError(f"line {number}: bytes without a name")
            inputs[name] += bytes(map(_byte, re.findall(r"\\[0-7]{3}|\\.|.", match[1])))
        elif re.fullmatch(r"[\w.+-]+", line) and line not in inputs:
            name = line
            inputs[name] = b""
        else:
            raise ValueError(f"line {number}: wanted the name of another input or bytes, found {line!r}")
    return inputs


def _path(target):
    return os.path.join(_FOLDER, f"{target}.txt")


def _read(target):
    with open(_path(target), encoding="ascii", newline="\n") as file:
        return inputs_of(file.read())


def _write(target, inputs):
    text = text_of(inputs)
    with open(_path(target), "w", encoding="ascii") as file:
        file.write(text)


def _files(paths):
    inputs = {}
    for path in paths:
        with open(path, "rb") as file:
            inputs[os.path.basename(path)] = file.read()
    return inputs


def _list():
    for name in sorted(os.listdir(_FOLDER)):
        inputs = _read(name[:-len(".txt")])
        print(f"{name[:-len('.txt')]}: {len(inputs)} inputs, {sum(map(len, inputs.values()))} bytes")


def main(words):
    if words == ["list"]:
        _list()
    elif len(words) > 2 and words[0] == "add":
        _write(words[1], {**_read(words[1]), **_files(words[2:])})
    elif len(words) == 3 and words[0] == "unpack":
        os.makedirs(words[2], exist_ok=True)
        for name, data in _read(words[1]).items():
            with open(os.path.join(words[2], name), "wb") as file:
                file.write(data)
    elif len(words) == 3 and words[0] == "pack":
        _write(words[1], _files(os.path.join(words[2], name) for name in os.listdir(words[2])))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
