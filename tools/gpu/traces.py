"""Sums the events of a trace that `train --trace` wrote: time, FLOPs and bytes by op, phase and shape."""

import statistics

# The stream whose time is that of the step. Copies and collectives run beside it.
COMPUTE = "compute"
# Fewer bytes may stay in a cache, whose rate is none of memory.
_LEAST_BYTES = 64 << 20
# Ops that touch only the rows or ranges that they choose of an operand, which a trace counts whole.
CHOOSE = ("ZeroRanges", "EmbeddingForward", "EmbeddingBackward")


def summed(trace, peak_flops=None):
    """Returns {"step_seconds", "busy", "bytes_per_second", "ops"} of rank 0. `busy` is the fraction of the steps in
    which the compute stream worked. Each of `ops` is one op in one phase and shape: its calls in a step, and of one
    call the median and fastest seconds, FLOPs and bytes; `share` is its part of the step, and `of_roofline` the least
    time in which the GPU could move its bytes or do its FLOPs, divided by its own. The longest come first. The GPU
    moves as many `bytes_per_second` as the fastest op of the trace that moves much."""
    events = [event for event in trace["traceEvents"] if event["pid"] == 0]
    streams = {event["tid"]: event["args"]["name"] for event in events
               if event["ph"] == "M" and event["name"] == "thread_name"}
    timed = [event for event in events if event["ph"] == "X"]
    steps = {}
    for event in timed:
        steps.setdefault(event["args"]["step"], []).append(event)
    whole = sum(max(e["ts"] + e["dur"] for e in step) - min(e["ts"] for e in step) for step in steps.values()) * 1e-6
    kinds = {}
    for event in timed:
        kinds.setdefault(_kind(event, streams), []).append(event)
    ops = [_op(kind, calls, whole, len(steps)) for kind, calls in kinds.items()]
    busy = sum(event["dur"] for event in timed if streams.get(event["tid"]) == COMPUTE) * 1e-6
    moves = max((op["bytes"] / op["seconds"] for op in ops if op["bytes"] >= _LEAST_BYTES and op["seconds"]
                 and op["op"] not in CHOOSE), default=0)
    for op in ops:
        least = max(op["bytes"] / moves if moves else 0, op["flops"] / peak_flops if peak_flops else 0)
        least = 0 if op["op"] in CHOOSE else least
        op["of_roofline"] = least / op["seconds"] if op["seconds"] else 0
    return {"step_seconds": whole / max(1, len(steps)), "busy": busy / whole if whole else 0,
            "bytes_per_second": moves, "ops": sorted(ops, key=lambda op: -op["share"])}


def _kind(event, streams):
    args = event["args"]
    return (event["name"], event["cat"], *_shape(args), streams.get(event["tid"], ""), args["flops"], args["bytes"],
            args.get("kernels", ""))


def _shape(args):
    """Returns shape and dtype of an op: "M x N x K" of a matmul, with t for each operand that is transposed, and the
    shapes of all operands of another op. Copies and collectives have none."""
    if "m" in args:
        layout = "".join("t" if args[name] else "n" for name in ("transpose_a", "transpose_b"))
        return (f"{args['m']} x {args['n']} x {args['k']} {layout}" + (" accumulate" if args["accumulate"] else ""),
                f"{args['dtype']}>{args['result']}")
    operands = args.get("operands", {})
    dtypes = [said.split("[")[0] for said in operands.values()]
    return ", ".join(f"{name} [{said.split('[')[1]}" for name, said in operands.items()), dtypes[0] if dtypes else ""


def _op(kind, calls, whole, steps):
    name, phase, shape, dtype, stream, flops, size, kernels = kind
    seconds = [event["dur"] * 1e-6 for event in calls]
    return {"op": name, "phase": phase, "shape": shape, "dtype": dtype, "stream": stream, "kernels": kernels,
            "calls": len(calls) / steps, "seconds": statistics.median(seconds), "best_seconds": min(seconds),
            "flops": flops, "bytes": size, "share": sum(seconds) / whole if whole else 0}
