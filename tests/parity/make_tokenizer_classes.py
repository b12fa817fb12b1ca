#!/usr/bin/env python3
"""Writes engine/text/tokenizer/tokenizer_class_names.cc: the classes of tokenizers that transformers has, and for which
model types it takes them.

    python3 -m venv ~/parity_venv && ~/parity_venv/bin/pip install transformers
    ~/parity_venv/bin/python tests/parity/make_tokenizer_classes.py
"""

import os
import subprocess

import transformers
from transformers.models.auto import tokenization_auto as auto

_OUT = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../engine/text/tokenizer/tokenizer_class_names.cc")
# What reads tokenizer.json as it stands. MistralCommonBackend stands for it where mistral-common is not installed.
_FILE = {"TokenizersBackend", "PythonBackend", "PreTrainedTokenizerFast", "PreTrainedTokenizer", "MistralCommonBackend"}


def without_fast(name):
    return name.removesuffix("Fast")


def class_of(name):
    """Returns the class that transformers takes for a name, or None."""
    found = auto.tokenizer_class_from_name(name)
    return None if found is None else found.__name__


def table(rows):
    return "".join(f'    {{"{left}", "{right}"}},\n' for left, right in rows)


def main():
    types = {}
    for model_type, name in auto.TOKENIZER_MAPPING_NAMES.items():
        if name is not None:
            types.setdefault("" if name in _FILE else without_fast(name), []).append(model_type)
    names = {name for name in auto.TOKENIZER_MAPPING_NAMES.values() if name is not None}
    names |= {name for name in dir(transformers) if "Tokenizer" in name}
    classes = {without_fast(name): without_fast(class_of(name) or name) for name in names}
    classes = {name: found for name, found in classes.items() if name not in _FILE and found not in _FILE}
    text = f"""// Written by tests/parity/make_tokenizer_classes.py with transformers {transformers.__version__}.
#include "engine/text/tokenizer/tokenizer_class.h"

namespace shale {{
namespace {{

constexpr TypesOfClass kTypesArray[] = {{
{table((name, " ".join(sorted(types[name]))) for name in sorted(types))}}};
constexpr ClassName kNamesArray[] = {{
{table(sorted(classes.items()))}}};

}}  // namespace

const absl::Span<const TypesOfClass> kTypesOfClasses = kTypesArray;
const absl::Span<const ClassName> kClassNames = kNamesArray;
const absl::string_view kTypesWithWrongClass =
    "{" ".join(sorted(auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS))}";

}}  // namespace shale
"""
    with open(_OUT, "w", encoding="utf-8") as out:
        out.write(text)
    subprocess.run(["clang-format-14", "-i", _OUT], check=True)


if __name__ == "__main__":
    main()
