"""Writes rates.json: how fast each op ran in each shape, for programs that model the time of a step.

{"format": 1, "commit", "date", "machine", "rates": [{"op", "shape", "dtype", "rate", "unit", "seconds", "spread",
"calls", "item", "card", "clocks"}]}

`rate` is the work of a call divided by its median seconds: FLOP/s where the op computes, bytes/s where it moves memory.
`spread` is (median - fastest) / median of its calls, or null if the fastest is not known. `calls` counts those of one
step, where a step was traced. `op` of attention ends with whose kernels computed it, "own" or "cuDNN". `clocks` are
the clocks, power and temperature beside the item, as sampler.py sums them.
"""

from gpu import store, traces
from gpu.kit import OF_BEFORE

FORMAT = 1
FLOPS, BYTES = "FLOP/s", "bytes/s"


def of(kept, names, card):
    """Returns all rates among the passed items `names` of a Store, as rows of rates.json. Those of an earlier commit's
    programs are left out."""
    found = []
    for name in names:
        item = kept.item(name)
        if item.get("status") != store.PASSED or not item.get("result") or name.endswith(OF_BEFORE):
            continue
        about = {"item": name, "card": card, "clocks": item.get("clocks", {})}
        found += [{**row, **about} for row in _KINDS.get(name.split("/")[0], lambda result: [])(item["result"])]
    return found


def text(kept, names, card, date):
    """Returns the text of rates.json, a rate on each line."""
    head = {"format": FORMAT, "commit": kept.commit, "date": date, "machine": kept.data["machine"]}
    rows = ",\n  ".join(store.dumps(row) for row in of(kept, names, card))
    return store.dumps(head)[:-1] + f',\n "rates": [\n  {rows}\n]}}\n'


def _row(op, shape, dtype, flops, size, seconds, fastest, calls=None):
    work, unit = (flops, FLOPS) if flops else (size, BYTES)
    spread = round(1 - fastest / seconds, 4) if fastest is not None and seconds else None
    return {"op": op, "shape": shape, "dtype": dtype, "rate": work / seconds if seconds else 0, "unit": unit,
            "seconds": seconds, "spread": spread, "calls": calls}


def _kernels(op):
    return f" {op['kernels']}" if op.get("kernels") else ""


def _of_trace(result):
    return [_row(f"{op['op']} {op['phase']}{_kernels(op)}", op["shape"], op["dtype"], op["flops"], op["bytes"],
                 op["seconds"], op["best_seconds"], op["calls"]) for op in result["ops"]
            if op["op"] not in traces.CHOOSE and (op["flops"] or op["bytes"])]


def _of_ops(result):
    return [_row(r["op"] + _kernels(r), r["size"], r["act"], r.get("flops", 0), r.get("bytes", 0), r["seconds"],
                 r.get("best_seconds")) for r in result["results"]]


def _of_collectives(result):
    return [_row(r["collective"], f"{r['ranks']} x {r['size_bytes']}", r["dtype"], 0, r["size_bytes"], r["seconds"],
                 None) for r in result["results"]]


def _of_formats(result):
    return [_row("MatMul", f"{r['m']} x {r['n']} x {r['k']}", f"{r['format']}>{r['result']}",
                 2 * r["m"] * r["n"] * r["k"], 0, r["seconds"], None) for r in result if "seconds" in r]


def _of_nccl(result):
    """Returns the collectives of a job between processes that share a GPU, as its trace has them."""
    return [_row(f"{r['collective']} between processes of one GPU", f"{result['processes']} x {r['bytes']}", "", 0,
                 r["bytes"], r["seconds"], r["fastest_seconds"], r["a_step"])
            for r in result["rows"] if "collective" in r]


# By the first word of an item's name.
_KINDS = {"trace": _of_trace, "ops": _of_ops, "comm": _of_collectives, "formats": _of_formats, "try_nccl": _of_nccl}
