#!/usr/bin/env python3
"""Writes attention.txt, a table of the rates of attention by cuDNN and by the engine's own kernels in the form of
tools/tuning/attention.txt, by which jobs take the faster of the two. From the root of the project,

    tools/gpu/attention.py RESULTS/attention.txt

puts the rows that a run of the kit measured into that table. It keeps the rates that the run did not measure.
"""

import re
import sys

TABLE = "tools/tuning/attention.txt"
HEAD = "shale attention rates 1"
_DIRECTIONS = {"AttentionForward": "forward", "AttentionBackward": "backward"}
_RATES = {"own": "own", "cuDNN": "cudnn"}  # By whose kernels an op ran, as the bench of ops says it.


def _mask(variant, length):
    """Returns the mask of a variant of the bench of ops, or None if cuDNN does not compute it. A window has a quarter
    of the sequence (tools/bench/ops_cases.cc)."""
    return {"": "causal", "not causal": "all", "window": f"window={-(-length // 4)}"}.get(variant)


def of(kept, names, gpu, date):
    """Returns the text of the table of what the passed bench items among the items `names` of a Store measured on a
    GPU, which has a name and a compute capability."""
    rows = {}
    for name in names:
        item = kept.item(name)
        if not name.startswith("ops/") or name.endswith("/before") or item.get("status") != "passed":
            continue
        for found in item["result"]["results"]:
            op, _, variant = found["op"].partition(" ")
            if op not in _DIRECTIONS or found["act"] != "bf16" or found.get("kernels") not in _RATES:
                continue
            _, length, _, width = map(int, re.findall(r"\d+", found["size"]))
            mask = _mask(variant, length)
            if mask:
                rates, _ = rows.setdefault(f"{gpu['compute']} {_DIRECTIONS[op]} D={width} S={length} {mask}",
                                           ({}, f"{gpu['name']}, {date}, alone"))
                rates[_RATES[found["kernels"]]] = f"{found['flops'] / found['seconds'] * 1e-12:.4g}"
    return _text([], rows)


def merged(table, more):
    """Returns the text of a table with the rates of another. A shape that is in both keeps the rates that only the
    first has, and its comment then says where they come from."""
    comments, rows = _parsed(table)
    for shape, (rates, about) in _parsed(more)[1].items():
        before, source = rows.get(shape, ({}, ""))
        kept = [name for name in before if name not in rates]
        if kept:
            about = f"{about}; {' and '.join(kept)}: {source.rpartition(': ')[2]}"
        rows[shape] = ({**before, **rates}, about)
    return _text(comments, rows)


def _parsed(text):
    """Returns the lines of comments, and {shape: (rates by name, what is said of them)}."""
    lines = text.splitlines()
    if not lines or lines[0] != HEAD:
        raise ValueError(f"no table of rates of attention: its first line is not \"{HEAD}\"")
    rows = {}
    for line in lines[1:]:
        row, _, about = line.partition("#")
        if row.strip():
            shape, _, rates = row.partition(":")
            words = rates.split()
            rows[shape] = (dict(zip(words[::2], words[1::2])), about.strip())
    return [line for line in lines[1:] if line.startswith("#")], rows


def _text(comments, rows):
    in_order = sorted(rows.items(), key=lambda row: [int(word) if word.isdigit() else word
                                                     for word in re.split(r"(\d+)", row[0])])
    lines = [f"{shape}: {' '.join(f'{name} {rates[name]}' for name in ('own', 'cudnn', 'free') if name in rates)}"
             f"  # {about}" for shape, (rates, about) in in_order]
    return "\n".join([HEAD, *comments, *lines, ""])


def main(path):
    with open(path, encoding="utf-8") as file:
        more = file.read()
    with open(TABLE, encoding="utf-8") as file:
        table = file.read()
    with open(TABLE, "w", encoding="utf-8") as file:
        file.write(merged(table, more))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} RESULTS/attention.txt")
    main(sys.argv[1])
