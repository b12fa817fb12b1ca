#!/usr/bin/env python3
"""Compares what Shale makes of rows of conversations with what transformers makes of them: text, tokens and masks.

    ~/parity_venv/bin/python tests/parity/check_chat_rows.py --test=.out/bin/tests/engine/text/tokenize_test
    ~/parity_venv/bin/python tests/parity/check_chat_rows.py --test=... --templates=2000
    ~/parity_venv/bin/python tests/parity/check_chat_rows.py --golden

Makes 300 rows from seeds, and gives each to every template in chat_templates and row_templates, with a tokenizer of the
goldens. The test ChatRowsTest reads the cases (CHAT_ROWS_GOLDEN) and wants of each: what apply_chat_template of
transformers returns, or a refusal with a reason; a refusal if transformers raises an exception, or if the text lacks
something that the row says. With --templates it makes so many templates at random (random_templates.py), and gives each
a row. With --golden it writes every tenth row into the golden of that test, with a template each, instead.
"""

import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile

import transformers.utils.chat_template_utils as utils
from tokenizers import Tokenizer
from random_templates import make_template
from transformers import PreTrainedTokenizerFast

_HERE = os.path.dirname(os.path.realpath(__file__))
_GOLDEN = os.path.join(_HERE, "../../tests/engine/text/golden")
_OUT = os.path.join(_GOLDEN, "chat_rows.json")
_TOKENIZERS = {"qwen2": ("<|endoftext|>", "<|endoftext|>"), "llama3": ("<|begin_of_text|>", "<|endoftext|>"),
               "llama2": ("<s>", "</s>"), "mistral": ("<s>", "</s>")}
_DAY = datetime.datetime(2026, 3, 5)
_ROWS = 300
_RANDOM = 150  # Random templates that the golden is made of, as far as transformers takes them.

_TEXTS = ["Hello there", "  Hello\u00a0\u2003 ", "one\r\n\r\ntwo", "\u4f60\u597d \U0001f600", "user", "a", "42", "",
          "<think>\nhm, \"so\"\n</think>\n\nWell.", "<think>why</think>Because.", "x </think> y", "\n\nDone.\n",
          "It's {{ braces }} {% and %} tags", "back\\slash \"quotes\"\ttab", "</s><s>[INST] <|endoftext|>",
          "Pigeons can't do that, can they?", "a\u0301 e\u0308 \ufb01", "line\nline\n  line", "Bonjour le monde"]
_ROLES = ["system", "user", "assistant", "tool", "developer", "ipython", "human", "critic"]


class _Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return _DAY


def _value(rng, depth=0):
    kind = rng.randrange(9 if depth < 2 else 6)
    if kind < 2:
        return rng.choice(_TEXTS)
    if kind < 8:
        return [rng.randrange(-5, 1000), rng.choice([True, False]), None,
                rng.choice([0.1, 1.0, 1e-7, 2.5e20, 1e16, -0.25, 123456789012345678901234])][kind % 4]
    return {rng.choice(["city", "days", "\u00e4 b", "n"]): _value(rng, depth + 1) for _ in range(rng.randrange(3))}


def _call(rng, index):
    arguments = {name: _value(rng) for name in rng.sample(["city", "days", "unit", "q"], rng.randrange(4))}
    if rng.random() < 0.15:
        arguments = json.dumps(arguments)
    call = {"type": "function", "function": {"name": rng.choice(["get_weather", "sum"]), "arguments": arguments}}
    if rng.random() < 0.5:
        call = {"id": f"call_{index}", **call}
    return call


def _tool(rng):
    properties = {name: {"type": rng.choice(["string", "integer"]), "description": rng.choice(_TEXTS)}
                  for name in rng.sample(["city", "days", "unit"], rng.randrange(3))}
    return {"type": "function",
            "function": {"name": rng.choice(["get_weather", "sum"]), "description": rng.choice(_TEXTS),
                         "parameters": {"type": "object", "properties": properties, "required": list(properties)}}}


def _message(rng, role, index):
    message = {"role": role, "content": rng.choice(_TEXTS)}
    roll = rng.random()
    if roll < 0.04:
        message["content"] = [{"type": "text", "text": rng.choice(_TEXTS)} for _ in range(rng.randrange(1, 3))]
    elif roll < 0.05:
        message["content"] = [{"type": "image"}, {"type": "text", "text": "See."}]
    elif roll < 0.07:
        message["content"] = None
    if role == "assistant":
        if rng.random() < 0.15:
            message["tool_calls"] = [_call(rng, i) for i in range(rng.choice([0, 1, 1, 1, 2]))]
        if rng.random() < 0.15:
            message[rng.choice(["reasoning_content", "thinking", "reasoning"])] = rng.choice(_TEXTS)
        if rng.random() < 0.06:
            message[rng.choice(["train", "weight"])] = rng.choice([0, 1, True, False])
    if role == "tool" and rng.random() < 0.5:
        message.update(name="get_weather", tool_call_id="call_0")
    if rng.random() < 0.04:
        message[rng.choice(["name", "images", "tool_calls", "note"])] = rng.choice([None, "Ann", []])
    return message


def make_row(seed):
    rng = random.Random(seed)
    messages = []
    if rng.random() < 0.4:
        messages.append(_message(rng, "system", 0))
    for i in range(rng.randrange(1, 4)):
        messages += [_message(rng, "user", i), _message(rng, "assistant", i)]
        if rng.random() < 0.25:
            messages.append(_message(rng, "tool", i))
            if rng.random() < 0.6:
                messages.append(_message(rng, "assistant", i))
    if rng.random() < 0.15:
        messages.insert(rng.randrange(len(messages) + 1), _message(rng, rng.choice(_ROLES), 9))
    row = {"messages": messages}
    if rng.random() < 0.3:
        row["tools"] = rng.choice([None, [], [_tool(rng)], [_tool(rng), _tool(rng)]])
    if rng.random() < 0.15:
        row["documents"] = [{"title": "T", "text": rng.choice(_TEXTS)} for _ in range(rng.randrange(3))]
    if rng.random() < 0.15:
        row["chat_template_kwargs"] = rng.choice([{"enable_thinking": False}, {"enable_thinking": True}, {},
                                                  {"eos_token": "!"}, {"bos_token": ""}])
    if rng.random() < 0.2:
        row.update(id=seed, text=None)
    return row


def _squeezed(text):
    return "".join(text.split())


def _said(row):
    """Yields what a row says: strings of messages, tools and documents, without marks that tell things apart."""
    def walk(value, in_arguments):
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            for one in value:
                yield from walk(one, in_arguments)
        elif isinstance(value, dict):
            for name, one in value.items():
                if in_arguments or name not in ("role", "type", "id", "tool_call_id", "index", "name"):
                    yield from walk(one, in_arguments or name == "arguments")
    for part in (row["messages"], row.get("tools"), row.get("documents")):
        yield from walk(part, False)


def expected(row, template, tokenizer):
    """Returns what transformers makes of a row."""
    tokenizer.chat_template = template
    marked = "generation %}" in template.replace("add_generation", "")
    more = {"tools": row.get("tools"), "documents": row.get("documents"), **(row.get("chat_template_kwargs") or {})}
    try:
        text = tokenizer.apply_chat_template(row["messages"], tokenize=False, **more)
        out = tokenizer.apply_chat_template(row["messages"], return_dict=True, return_assistant_tokens_mask=marked,
                                            **more)
    except Exception as error:  # Whatever Jinja raises; the test wants a refusal.
        return {"refused": f"{type(error).__name__}: {error}"[:100]}
    found = {"text": text, "ids": list(out["input_ids"])}
    if marked:
        found["mask"] = list(out["assistant_masks"])
    squeezed = _squeezed(text)
    missing = [said for said in _said(row) if _squeezed(said) not in squeezed and
               _squeezed(json.dumps(said, ensure_ascii=False)[1:-1]) not in squeezed]
    if missing:
        found["missing"] = missing[0]
    return found


def _parse_flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", help="the test program")
    parser.add_argument("--golden", action="store_true", help="write the golden of the test")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--templates", type=int, default=0,
                        help="how many random templates, instead of those of folders")
    parser.add_argument("--rows", type=int, default=_ROWS, help="how many rows (default 300)")
    flags = parser.parse_args()
    if flags.golden == bool(flags.test):
        parser.error("give one of --test and --golden")
    if flags.templates:
        flags.rows = flags.templates
    return flags


def _templates(flags):
    """Returns the templates by their names: those of the folders, or random ones."""
    if flags.templates:
        return {f"random_{flags.seed + i}": make_template(flags.seed + i) for i in range(flags.templates)}
    templates = {}
    for folder in ("chat_templates", "row_templates"):
        for file in sorted(os.listdir(os.path.join(_HERE, folder))):
            with open(os.path.join(_HERE, folder, file), encoding="utf-8", newline="") as opened:
                templates[file.split(".")[0]] = opened.read()
    return templates


def _tokenizers():
    tokenizers = {}
    for name, (bos, eos) in _TOKENIZERS.items():
        made = Tokenizer.from_file(os.path.join(_GOLDEN, name, "tokenizer.json"))
        tokenizers[name] = PreTrainedTokenizerFast(tokenizer_object=made, bos_token=bos, eos_token=eos)
    return tokenizers


def _make_cases(flags, templates, tokenizers):
    """Returns the texts of rows, and what transformers makes of them. Of a golden, every tenth row has one template."""
    rows, cases = [], []
    names, of = sorted(templates), sorted(tokenizers)
    step = 10 if flags.golden else 1
    for i in range(0, flags.rows, step):
        row = make_row(flags.seed + i)
        rows.append(json.dumps(row, ensure_ascii=i % 2 == 0))
        chosen = names
        if flags.golden:
            chosen = [names[(i // 10) % len(names)]]
        elif flags.templates:
            chosen = [f"random_{flags.seed + i}"]
        for j, name in enumerate(chosen):
            tokenizer = of[(i // step + j) % len(of)]
            cases.append({"row": len(rows) - 1, "template": name, "tokenizer": tokenizer,
                          **expected(row, templates[name], tokenizers[tokenizer])})
    return rows, cases


def _add_random_templates(rows, cases, templates, tokenizer):
    """Adds random templates, as far as transformers takes them, with a case each."""
    for i in range(_RANDOM):
        template, row = make_template(i), len(rows) * i // _RANDOM
        found = expected(json.loads(rows[row]), template, tokenizer)
        if "text" in found:
            templates[f"random_{i}"] = template
            cases.append({"row": row, "template": f"random_{i}", "tokenizer": "qwen2", **found})


def main():
    flags = _parse_flags()
    utils.datetime = _Clock
    templates, tokenizers = _templates(flags), _tokenizers()
    rows, cases = _make_cases(flags, templates, tokenizers)
    if flags.golden:
        _add_random_templates(rows, cases, templates, tokenizers["qwen2"])
    used = {case["template"] for case in cases}
    golden = {"date": str(_DAY.date()), "templates": {name: templates[name] for name in sorted(used)},
              "tokens": {name: {"bos_token": bos, "eos_token": eos} for name, (bos, eos) in _TOKENIZERS.items()},
              "rows": rows, "cases": cases}
    text = json.dumps(golden, ensure_ascii=False)
    if flags.golden:
        with open(_OUT, "w", encoding="utf-8") as out:
            out.write(text.replace('{"row": ', '\n{"row": ') + "\n")
        return 0
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        test = os.path.abspath(flags.test)
        return subprocess.run([test, "--gtest_filter=ChatRowsTest.*"],
                              env={**os.environ, "CHAT_ROWS_GOLDEN": out.name}, check=False,
                              cwd=os.path.join(_HERE, "../..")).returncode


if __name__ == "__main__":
    sys.exit(main())
