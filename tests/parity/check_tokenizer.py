#!/usr/bin/env python3
"""Compares the tokens of tools/tokenize with those of the tokenizers library, for the tokenizer.json of any folder.

    bazel build -c opt //tools:tokenize
    python3 -m venv ~/parity_venv && ~/parity_venv/bin/pip install tokenizers
    ~/parity_venv/bin/python tests/parity/check_tokenizer.py FOLDER... [--in=TEXT]

The documents are those of tokenize_corpus.py, and the lines of the files at --in (a file or a folder with subfolders).
Each is a row of JSON Lines, so special tokens in it are text for both. Names the first document whose tokens differ,
with both lists of tokens, and fails if there is one.
"""

import argparse
import array
import json
import os
import subprocess
import sys
import tempfile

import tokenize_corpus
from tokenizers import Tokenizer

_TOOL = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../.out/bin/tools/tokenize")
_WIDE = 20240801  # The first number of a token file with 32 bits for a token.


def lines_of(path):
    """Returns the lines of a file, or of all files in a folder, without those that are binary."""
    names = [path]
    if os.path.isdir(path):
        names = sorted(os.path.join(folder, name) for folder, _, files in os.walk(path) for name in files)
    lines = []
    for name in names:
        with open(name, "rb") as file:
            contents = file.read()
        if b"\0" not in contents[:8000]:
            lines += contents.splitlines(keepends=True)
    return lines


def tokens_of_tool(folder, texts):
    """Returns the tokens of all texts, one after another."""
    with tempfile.TemporaryDirectory() as place:
        with open(os.path.join(place, "texts.jsonl"), "w", encoding="utf-8") as out:
            for text in texts:
                out.write(json.dumps({"text": text}) + "\n")
        result = subprocess.run([_TOOL, f"--tokenizer={folder}", f"--in={place}/texts.jsonl", f"--out={place}/tokens"],
                                capture_output=True, text=True, check=False)
        if result.returncode != 0:
            sys.exit(f"{folder}: {result.stderr}")
        tokens = []
        for name in sorted(os.listdir(os.path.join(place, "tokens"))):
            with open(os.path.join(place, "tokens", name), "rb") as file:
                contents = file.read()
            wide = int.from_bytes(contents[:4], "little") == _WIDE
            tokens += array.array("i" if wide else "H", contents[1024:]).tolist()
        return tokens


def check(folder, texts):
    """Returns whether all tokens are equal."""
    library = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    library.encode_special_tokens = True
    library.no_truncation()
    library.no_padding()
    found, at = tokens_of_tool(folder, texts), 0
    for text in texts:
        wanted = library.encode(text).ids
        if found[at:at + len(wanted)] != wanted:
            print(f"{folder}: {text!r}\n  library: {wanted}\n  tool:    {found[at:at + len(wanted)]}")
            return False
        at += len(wanted)
    print(f"{folder}: {len(texts)} documents, {at} tokens, {'equal' if at == len(found) else 'too many in the tool'}")
    return at == len(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--in", dest="path", help="more text: a file or a folder")
    flags = parser.parse_args()
    texts = [document.decode(errors="replace")
             for document in tokenize_corpus.documents() + (lines_of(flags.path) if flags.path else [])]
    equal = [check(folder, texts) for folder in flags.folders]
    sys.exit(0 if all(equal) else 1)


if __name__ == "__main__":
    main()
