"""Makes the tables of the page, each of results of one kind."""

import collections

from gpu import traces

_REACHED = 0.85  # Of the speed of a copy.
_MOST_SHAPES = 25


def table(titles, rows):
    """Returns a Markdown table, or "" without rows."""
    if not rows:
        return ""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def speed(found):
    """Returns the cells of a training run: tokens/s, MFU, seconds of a step, memory, losses."""
    peak = found.get("peak_bytes_measured", found.get("max_memory_allocated", 0))
    planned = found.get("peak_bytes_planned", peak)
    gib = f"{peak / 2**30:.1f} GiB" + (f" (planned {planned / 2**30:.1f})" if planned != peak else "")
    return [f"{found['tokens_per_second']:,.0f}", f"{100 * found['mfu']:.1f} %" if found["mfu"] else "",
            f"{found['step_seconds']:.3f}", gib, f"{found['losses'][0]:.3f} .. {found['losses'][-1]:.3f}"]


def settings(found):
    said = [f"{name}={value}" for name, value in found["settings"].items()]
    return "; ".join([*said, *(["tuned matmuls"] if found.get("table") else [])])


def settings_of_torch(found):
    reserved = f"; {found['max_memory_reserved'] / 2**30:.1f} GiB reserved" if "max_memory_reserved" in found else ""
    return (f"micro-batch {found['micro_batch']}, checkpointing {found['checkpoint']}, parameters gathered per "
            f"{found['gathered']}, attention {found['attention']}{reserved}")


def clocks(found):
    """Returns what a sampler saw, in a few words."""
    if "sm_mhz" not in found:
        return found.get("none", "")
    watts = found["watts"]
    throttled = ", ".join(f"{reason} {100 * part:.0f} %" for reason, part in found["throttled"].items())
    return (f"{found['sm_mhz']['median']:.0f} MHz ({found['sm_mhz']['lowest']:.0f} to "
            f"{found['sm_mhz']['highest']:.0f}), {watts['median']:.0f} W, {found['celsius']['highest']:.0f} C"
            + (f"; {throttled}" if throttled else ""))


def trace(name, found, seen):
    """Returns the tables of a traced run: by op, and by shape of matmul."""
    by_op = collections.defaultdict(lambda: [0, 0.0, 0.0, 0.0, 0.0])
    for op in found["ops"]:
        if op["stream"] == traces.COMPUTE:
            seconds = op["calls"] * op["seconds"]
            values = (op["share"], seconds, op["calls"] * op["flops"], op["calls"] * op["bytes"],
                      seconds * op["of_roofline"])
            by_op[op["op"]] = [sum(pair) for pair in zip(by_op[op["op"]], values)]
    rows = [[op, f"{100 * share:.1f} %", f"{1e3 * seconds:.2f}", f"{flops / seconds * 1e-12:.0f}" if flops else "",
             f"{size / seconds * 1e-12:.2f}", f"{100 * least / seconds:.0f} %"]
            for op, (share, seconds, flops, size, least) in sorted(by_op.items(), key=lambda pair: -pair[1][0])
            if seconds]
    matmuls = [[op["phase"], op["shape"], op["dtype"], f"{op['calls']:.0f}",
                f"{1e6 * op['seconds']:.1f}", f"{op['flops'] / op['seconds'] * 1e-12:.0f}",
                f"{100 * op['share']:.1f} %"]
               for op in found["ops"] if op["op"] == "MatMul" and op["seconds"]]
    return (f"{name}: {1e3 * found['step_seconds']:.1f} ms a step, of which the compute stream is busy for "
            f"{100 * found['busy']:.1f} %. The fastest op moves {found['bytes_per_second'] * 1e-12:.2f} TB/s. "
            f"{clocks(seen)}\n\n"
            + table(["op", "share", "ms a step", "TFLOP/s", "TB/s", "of roofline"], rows) + "\n"
            + table(["matmuls in", "M x N x K", "type", "calls a step", "us", "TFLOP/s", "share"],
                    matmuls[:_MOST_SHAPES]))


def moving(results):
    """Returns the table of ops that are compared with a copy of memory."""
    rows = [[name, r["op"], r["size"], r["act"], f"{r['seconds'] * 1e6:.1f}", f"{r['bytes_per_second'] * 1e-9:.0f}",
             f"{r['of_copy']:.2f}" + ("" if r["of_copy"] >= _REACHED else " low"), f"{r['of_large_copy']:.2f}"]
            for name, r in results if "of_copy" in r]
    reached = sum(r["of_copy"] >= _REACHED for _, r in results if "of_copy" in r)
    head = f"{reached} of {len(rows)} reach {_REACHED} of the speed of a copy of the same size.\n\n" if rows else ""
    return head + table(["bench", "op", "size", "type", "us", "GB/s", "of copy", "of large copy"], rows)


def computing(results, sustained):
    """Returns the table of ops that are compared with the best matmul, and with `sustained`, if it is known: the FLOP/s
    of a matmul that ran for a minute."""
    rows = [[name, r["op"], r["size"], r["act"], f"{r['seconds'] * 1e6:.1f}", f"{r['flops_per_second'] * 1e-12:.1f}",
             f"{r['of_peak']:.2f}", f"{r['flops_per_second'] / sustained:.2f}" if sustained else ""]
            for name, r in results if "flops" in r]
    head = f"A matmul that runs for a minute reaches {sustained * 1e-12:.0f} TFLOP/s.\n\n" if sustained else ""
    return head + table(["bench", "op", "size", "type", "us", "TFLOP/s", "of best", "of sustained"], rows)


def collectives(results):
    rows = [[name, r["collective"], r["dtype"], r["ranks"], f"{r['size_bytes'] / 2**20:.0f}",
             f"{r['seconds'] * 1e6:.0f}", f"{r['algbw_bytes_per_second'] * 1e-9:.1f}",
             f"{r['busbw_bytes_per_second'] * 1e-9:.1f}"] for name, r in results]
    return table(["", "collective", "type", "ranks", "MiB", "us", "algbw GB/s", "busbw GB/s"], rows)


def formats(results):
    """Returns the table of matmuls in several formats, under what conversions gave."""
    said = "".join(f"bf16 to {r['conversion']}, {name}: {r['different']} of 65,536 values differ from the exact ones.\n"
                   for name, r in results if "conversion" in r)
    rows = [[name, f"{r['m']} x {r['n']} x {r['k']}", r["format"], r["result"],
             f"{1e6 * r['seconds']:.1f}" if "seconds" in r else r["not_measured"],
             f"{r['tflops_per_second']:.0f}" if "seconds" in r else ""] for name, r in results if "format" in r]
    return (said and said + "\n") + table(["preset", "M x N x K", "operands", "result", "us", "TFLOP/s"], rows)


def losses(results):
    """Returns the table of the losses of long runs at some of their steps."""
    steps = [1, 10, *range(50, max((len(found) for _, found in results), default=0) + 1, 50)]
    return table(["losses of", *(f"step {step}" for step in steps)],
                 [[name, *(f"{found[step - 1]:.4f}" for step in steps)] for name, found in results])


def sweeps(results):
    rows = [[name, r["setting"], *([f"{r['tokens_per_second']:,.0f}", f"{100 * r['mfu']:.1f} %", f"{r['seconds']:.3f}",
                                    f"{r['measured_bytes'] / 2**30:.1f} GiB"] if "seconds" in r else
                                   [r["not_measured"], "", "", ""])] for name, r in results]
    return table(["preset", "setting", "tokens/s", "MFU", "s/step", "arena"], rows)
