#!/usr/bin/env python3
"""Writes engine/text/tokenizer/character_tables.cc: the sets of characters by which the tokenizers library splits text.

Asks the library itself for every character, because the Unicode versions of its parts differ:

    python3 -m venv ~/parity_venv && ~/parity_venv/bin/pip install tokenizers
    ~/parity_venv/bin/python tests/parity/make_character_tables.py
"""

import os
import subprocess
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

_OUT = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../engine/text/tokenizer/character_tables.cc")
_CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def kept(pre_tokenizer):
    """Returns the characters that a pre-tokenizer does not remove."""
    found = set()
    for begin in range(0, len(_CODES), 4096):
        text = "".join(map(chr, _CODES[begin:begin + 4096]))
        for piece, _ in pre_tokenizer.pre_tokenize_str(text):
            found.update(map(ord, piece))
    return found


def of_expression(expression):
    return kept(pre_tokenizers.Split(Regex(expression), "removed", invert=True))


def words():
    """Returns the characters beside which the library does not find an added token that must be a single word."""
    tokenizer = Tokenizer(models.BPE(vocab={"<unk>": 0}, merges=[], unk_token="<unk>", fuse_unk=True))
    tokenizer.add_tokens([AddedToken("\u0001x\u0001", single_word=True, normalized=False)])
    text = "".join(f"{chr(code)}\u0001x\u0001 " for code in _CODES if code not in (1, ord("x")))
    ids = tokenizer.encode(text, add_special_tokens=False)
    alone = {begin for token, (begin, _) in zip(ids.ids, ids.offsets) if token == 1}
    found, at = {ord("x")}, 0
    for code in _CODES:
        if code in (1, ord("x")):
            continue
        if at + 1 not in alone:
            found.add(code)
        at += 5
    return found


def not_plain():
    """Returns the characters that NFC can change, or move, or combine with the one before."""
    second = set()
    for code in _CODES:
        decomposed = unicodedata.decomposition(chr(code)).split()
        if len(decomposed) == 2 and not decomposed[0].startswith("<"):
            second.add(int(decomposed[1], 16))
    second |= set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))  # Vowels and final consonants of Hangul.
    nfc = normalizers.NFC()

    def changes(code):
        character = chr(code)
        return (nfc.normalize_str(character) != character or unicodedata.combining(character) != 0 or
                any(nfc.normalize_str(text) != text for text in (f"a{character}\u0334", f"a\u0345{character}")))

    return {code for code in _CODES if code >= 0x80 and (code in second or changes(code))}


def table(name, comment, codes):
    edges = [code for code in range(0x110001) if (code in codes) != (code - 1 in codes)]
    numbers = ", ".join(hex(edge) for edge in edges)
    return (f"// {comment}\nconstexpr uint32_t {name}Array[] = {{{numbers}}};\n"
            f"const absl::Span<const uint32_t> {name} = {name}Array;\n\n")


def main():
    tables = "".join([
        table("kLetterEdges", r"\p{L}", of_expression(r"\p{L}")),
        table("kNumberEdges", r"\p{N}", of_expression(r"\p{N}")),
        table("kSpaceEdges", r"\s", of_expression(r"\s")),
        table("kPunctuationEdges", "What the pre-tokenizer Punctuation takes as punctuation.",
              set(_CODES) - kept(pre_tokenizers.Punctuation("removed"))),
        table("kWordEdges", "What is part of a word beside an added token with single_word.", words()),
        table("kNotPlainEdges", "What NFC can change, move, or combine with the character before.", not_plain()),
    ])
    with open(_OUT, "w", encoding="utf-8") as out:
        out.write(f"""// tests/parity/make_character_tables.py wrote this with tokenizers {tokenizers.__version__}.
//
// A set is written as its edges: the first character in it, the first that is not, the next that is, and so on.
#include "engine/text/tokenizer/character.h"

namespace shale {{

{tables}}}  // namespace shale
""")
    subprocess.run(["clang-format-14", "-i", _OUT], check=True)


if __name__ == "__main__":
    main()
