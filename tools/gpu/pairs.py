"""Makes the tables of the page that compare two sides: steps in turns, ops, and traces of steps."""

import collections

from gpu import traces
from gpu.kit import OF_BEFORE
from gpu.tables import table

# The last words of the names of two items that time the same ops: with kernels of an earlier commit and of the kit, and
# attention by cuDNN and by the engine's own kernels.
_SIDES = ((OF_BEFORE, "/after"), ("/cudnn", "/own"))


def turns(results):
    """Returns the table of steps that were measured in turns."""
    rows = []
    for name, found in results:
        first, second = found["sides"]
        of_turns = ["; ".join(f"{speed:,.0f}" for speed in side["of_turns"]) for side in (first, second)]
        rows.append([name, f"{first['name']} to {second['name']}", f"{first['tokens_per_second']:,.0f}",
                     f"{second['tokens_per_second']:,.0f}",
                     f"{second['tokens_per_second'] / first['tokens_per_second']:.3f}", *of_turns,
                     f"{first['losses'][-1]:.4f}, {second['losses'][-1]:.4f}"])
    return table(["steps of", "", "tokens/s of the first", "of the second", "ratio", "turns of the first",
                  "of the second", "last losses"], rows)


def ops(results):
    """Returns the table of ops that two items timed."""
    found = {name: {(r["op"], r["size"], r["act"]): r["seconds"] for r in result["results"]}
             for name, result in results}
    rows = []
    for name, times in found.items():
        for first, second in _SIDES:
            other = found.get(name[:-len(first)] + second, {}) if name.endswith(first) else {}
            rows += [[name[:-len(first)], *key, f"{first[1:]} to {second[1:]}", f"{1e6 * seconds:.1f}",
                      f"{1e6 * other[key]:.1f}", f"{seconds / other[key]:.2f}"]
                     for key, seconds in times.items() if other.get(key)]
    return table(["bench", "op", "size", "type", "", "us of the first", "of the second", "times as fast"], rows)


def by_op(results):
    """Returns the table of the ops of a step, as two traces have them: of an earlier commit's train, and of the
    kit's."""
    found, rows = dict(results), []
    for name, before in found.items():
        if not name.endswith(OF_BEFORE) or name[:-len(OF_BEFORE)] not in found:
            continue
        sums = [_of_ops(before), _of_ops(found[name[:-len(OF_BEFORE)]])]
        for op in sorted({**sums[0], **sums[1]}, key=lambda op: -max(of_step.get(op, 0) for of_step in sums)):
            first, second = (of_step.get(op, 0) for of_step in sums)
            rows.append([name[:-len(OF_BEFORE)], op, f"{1e3 * first:.2f}", f"{1e3 * second:.2f}",
                         f"{first / second:.2f}" if first and second else ""])
    return table(["steps of", "op", "ms of a step before", "now", "times as fast"], rows)


def _of_ops(found):
    """Returns the seconds of each op on the compute stream in a traced step."""
    sums = collections.defaultdict(float)
    for op in found["ops"]:
        if op["stream"] == traces.COMPUTE:
            sums[op["op"]] += op["calls"] * op["seconds"]
    return sums
