#!/usr/bin/env python3
"""Counts the instructions of the inner loops of our CUDA kernels, for each element, without a GPU.

    tools/bench/instructions.py [--nvcc=/usr/local/cuda/bin/nvcc] [--nvdisasm=nvdisasm] [--arch=90a]

Compiles the kernels as the build does and reads what nvdisasm prints of them. nvdisasm is a part of CUDA's toolkit, and
also a package: pip install nvidia-cuda-nvdisasm. Both that and nvcc are needed; nothing else is.

A number is of one way through a loop, that of whole rows or tiles without caps: the way with the most accesses to
memory, products of matrices and powers of two, without divisions and calls where there is a way around them, and of
such ways the one with the fewest instructions. What stands before and after loops does not count.
"""

import argparse
import collections
import graphlib
import os
import pathlib
import re
import subprocess
import tempfile

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_FLAGS = ["-std=c++20", "-O2", "-fmad=false", "--expt-relaxed-constexpr", "-I."]  # Those of tools/build_defs/cuda.bzl.

# The kinds of instructions, by how their names begin. What has no kind is mostly integers: addresses, comparisons of
# positions, and bf16 made fp32.
_KINDS = {
    "matrices": ("HMMA",),
    "powers, roots": ("MUFU",),
    "memory": ("LDG", "STG"),
    "shared": ("LDS", "STS"),  # And LDSM.
    "fp32": ("FADD", "FMUL", "FFMA", "FMNMX", "FSEL", "FSETP", "FSET"),
    "rounding": ("F2F", "HADD2"),  # And F2FP.
    "half registers": ("PRMT",),
    "shuffles": ("SHFL",),
    "control": ("BRA", "BSSY", "BSYNC", "BAR", "WARPSYNC", "EXIT", "NOP", "BREAK"),
}
_MOST_OF = ("LDG", "STG", "LDS", "STS", "HMMA", "MUFU.EX2")
_AVOIDED = ("MUFU.RCP", "CALL")  # Those of a cap's division and of its exceptional cases.

Case = collections.namedtuple("Case", ["what", "source", "kernel", "loop_has", "unit", "elements"])


def _matrices(products, width):
    """Returns how many scores of a lane one HMMA stands for: it multiplies 16 x 16 x 8 numbers in 32 lanes."""
    return 16 * 16 * 8 / 32 / (products * width)


def _cases():
    loss = r"CrossEntropyKernelINS_8BFloat16ELb1ELi1024ENS\d*_8Uncapped"
    yield Case("loss, read a logit", "cross_entropy", loss, {"LDG.E.128": 4, "STS.128": 4}, "LDG.E.128", 8)
    yield Case("loss, write a gradient", "cross_entropy", loss, {"LDS.128": 1, "STG.E.128": 1}, "STG.E.128", 8)
    for place, width in ((2, 896), (3, 2048), (4, 3584)):
        tile = rf"INS0_4TileINS_8BFloat16ELi{place}ELb1EEELb0E"
        yield Case(f"RMSNorm forward with a sum, an element of {width}", "norm", rf"\d+NormForwardKernel{tile}",
                   {"STG.E.128": 2}, "STG.E.128", 4)
        yield Case(f"RMSNorm backward, an element of {width}", "norm_backward", rf"\d+NormBackwardKernel{tile}",
                   {"STG.E.128": 1}, "STG.E.128", 8)
    for width in (64, 128, 256):
        tiles = rf"INS\d*_\d+\w+TilesILi{width}EEENS_8BFloat16E"
        kernels = [("forward", "attention_matrices", "AttentionForwardMatrixKernel" + tiles, 2),
                   ("d_q", "attention_backward_matrices", "AttentionQueryGradientMatrixKernel" + tiles, 3)]
        if width <= 128:
            kernels += [("d_k and d_v", "attention_backward_matrices", "AttentionKeyGradientMatrixKernel" + tiles, 4)]
        else:
            wide = r"AttentionWideKeyGradientKernelINS\d*_\w+TilesENS_8BFloat16ELNS\w*8GradientE"
            kernels += [("d_k", "attention_backward_matrices", wide + "0", 3),
                        ("d_v", "attention_backward_matrices", wide + "1", 2)]
        for name, source, kernel, products in kernels:
            yield Case(f"attention, {name}, a score of heads of {width}", source, kernel, {"HMMA.16816": 8},
                       "HMMA.16816", _matrices(products, width))


def kind_of(name):
    return next((kind for kind, starts in _KINDS.items() if name.startswith(starts)), "other")


class Block:
    """Instructions that follow one another, and the places of the blocks that may come next."""

    def __init__(self):
        self.names, self.next = [], []


def blocks_of(lines):
    """Returns the blocks of a function, from the lines that nvdisasm prints of it."""
    blocks, places, jumps, open_block = [], {}, [], False
    for line in lines:
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            places[label.group(1)] = len(blocks)
            if open_block:
                blocks[-1].next.append(len(blocks))
            open_block = False
            continue
        found = re.match(r"\s*/\*[0-9a-f]+\*/\s+(@!?U?P\w+\s+)?([A-Z0-9_.]+)([^;]*);", line)
        if not found:
            continue
        predicate, name, operands = found.groups()
        if not open_block:
            blocks.append(Block())
            open_block = True
        blocks[-1].names.append(name)
        target = re.search(r"`\((\.L_x_\d+)\)", operands)
        sometimes = predicate is not None or re.match(r"\s*!?U?P\d", operands) is not None or ".DIV" in name
        if name.startswith("BRA") and target and ".DIV" not in name:
            jumps.append((len(blocks) - 1, target.group(1)))
        if name.startswith(("BRA", "EXIT", "RET")):
            if sometimes:
                blocks[-1].next.append(len(blocks))
            open_block = False
    for block, label in jumps:
        blocks[block].next.append(places[label])
    for block in blocks:
        block.next = sorted({place for place in block.next if place < len(blocks)})
    return blocks


def _dominators(blocks):
    """Returns for each block those through which every way from the first block to it goes, None if there is no way."""
    before = collections.defaultdict(list)
    for i, block in enumerate(blocks):
        for j in block.next:
            before[j].append(i)
    found = [None] * len(blocks)
    found[0], changed = {0}, True
    while changed:
        changed = False
        for i in range(1, len(blocks)):
            known = [found[j] for j in before[i] if found[j] is not None]
            now = set.intersection(*known) | {i} if known else None
            if now != found[i]:
                found[i], changed = now, True
    return found, before


def loops_of(blocks):
    """Returns the loops: for each the place of its first block, and those of all from which it comes back to that."""
    dominators, before = _dominators(blocks)
    for i, block in enumerate(blocks):  # What no way leads to.
        if dominators[i] is None:
            block.next = []
    loops = {}
    for i, block in enumerate(blocks):
        for head in block.next:
            if head not in dominators[i]:
                continue
            body, todo = loops.setdefault(head, {head}), [i]
            while todo:
                at = todo.pop()
                if at not in body:
                    body.add(at)
                    todo += [j for j in before[at] if dominators[j] is not None]
    return loops


def way_through(blocks, head, body, heads):
    """Returns the instructions of an iteration: see the first lines of this file. It goes through inner loops once."""
    def weight(names):
        return (-sum(name.startswith(_AVOIDED) for name in names), sum(name.startswith(_MOST_OF) for name in names),
                -len(names))

    # Of each block the blocks after it, without the ways back.
    after = {i: [j for j in blocks[i].next if j in body and j != head and not (j in heads and i in heads[j])]
             for i in body}
    best = {}  # The instructions from the start of a block to the end of the iteration. Other ways leave the loop.
    for i in graphlib.TopologicalSorter(after).static_order():
        ways = [best[j] for j in after[i] if j in best] + ([[]] if head in blocks[i].next else [])
        if ways:
            best[i] = blocks[i].names + max(ways, key=weight)
    return best.get(head, [])


def functions_of(listing):
    """Returns the lines of each kernel, by its mangled name."""
    functions, current = {}, None
    for line in listing.splitlines():
        if found := re.match(r"\.text\.(\S+):", line):
            current = functions.setdefault(found.group(1), [])
        elif line.lstrip().startswith(".section"):
            current = None
        elif current is not None:
            current.append(line)
    return functions


def has(names, wanted):
    return all(sum(name.startswith(start) for name in names) >= count for start, count in wanted.items())


def count(case, functions):
    """Returns the instructions of each kind for an element of a case."""
    lines = [lines for name, lines in functions.items() if re.search(case.kernel, name)]
    if len(lines) != 1:
        raise SystemExit(f"{case.what}: {len(lines)} kernels match {case.kernel}; wanted one")
    blocks = blocks_of(lines[0])
    loops = loops_of(blocks)
    ways = [way_through(blocks, head, body, loops) for head, body in loops.items()]
    ways = [names for names in ways if has(names, case.loop_has)]
    if not ways:
        raise SystemExit(f"{case.what}: no loop has {case.loop_has}")
    names = min(ways, key=len)
    elements = case.elements * sum(name.startswith(case.unit) for name in names)
    kinds = collections.Counter(kind_of(name) for name in names)
    return elements, {kind: kinds[kind] / elements for kind in [*_KINDS, "other"]}, names


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--nvcc", default="/usr/local/cuda/bin/nvcc")
    parser.add_argument("--nvdisasm", default="nvdisasm")
    parser.add_argument("--arch", default="90a")
    parser.add_argument("--names", action="store_true", help="print how often each instruction is in a loop")
    options = parser.parse_args()
    listings = {}
    print("| loop | elements | all | " + " | ".join([*_KINDS, "other"]) + " |\n" + "|---" * (len(_KINDS) + 4) + "|")
    for case in _cases():
        if case.source not in listings:
            with tempfile.TemporaryDirectory() as folder:
                cubin = os.path.join(folder, "kernels.cubin")
                subprocess.run([options.nvcc, *_FLAGS, f"-arch=sm_{options.arch}", "-cubin", "-o", cubin,
                                f"kernels/cuda/{case.source}.cu"], cwd=_ROOT, check=True)
                listing = subprocess.run([options.nvdisasm, "-c", cubin], check=True, capture_output=True, text=True)
                listings[case.source] = functions_of(listing.stdout)
        elements, kinds, names = count(case, listings[case.source])
        figures = " | ".join(f"{kinds[kind]:.2f}" for kind in [*_KINDS, "other"])
        print(f"| {case.what} | {elements:.0f} | {sum(kinds.values()):.1f} | {figures} |", flush=True)
        if options.names:
            print(sorted(collections.Counter(names).items(), key=lambda item: -item[1]))


if __name__ == "__main__":
    main()
