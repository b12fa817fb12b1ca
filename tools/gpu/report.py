"""Writes report.md, which presents the results to people."""

import collections

from gpu import store
from gpu.items import PRESETS, SUSTAINED
from gpu.measure import MODES, WITH_NCCL

# The MFU to reach, by shape, as a fraction of the GPU's peak. They were set for an H200.
MFU = {"qwen2_5_0_5b": 0.50, "qwen2_5_1_5b": 0.60, "qwen2_5_3b": 0.65, "qwen2_5_7b": 0.65}
SPEED, MEMORY, KERNELS = 1.2, 0.6, 0.85
# Bytes per parameter that both sides must hold: weights, gradients and two moments, in whatever dtypes.
HELD_BYTES = 16


def _table(titles, rows):
    """Returns a Markdown table."""
    if not rows:
        return "nothing was measured\n"
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def _mark(value, target, at_least=True):
    met = value >= target if at_least else value <= target
    return "met" if met else "**not met**"


class Report:
    """A report on the items `names` of a Store. Uses only results of the store's commit."""

    def __init__(self, kept, names):
        self.kept, self.names = kept, names

    def result(self, name):
        item = self.kept.item(name)
        return item.get("result") if item.get("status") == store.PASSED else None

    def of_status(self, status):
        return [name for name in self.names if self.kept.item(name).get("status") == status]

    def sustained(self):
        """Returns the FLOP/s of a matmul that ran for a minute, or None if it was not measured."""
        found = self.result(f"ops/{SUSTAINED}")
        return (found or {}).get("sustained_bf16") or None

    def text(self):
        parts = ["# GPU report\n", _table(["", ""], list(self.kept.data["machine"].items())), self._summary(),
                 "## Training\n", self._training(), "## Memory-bound kernels\n", self._kernels(),
                 "## Loading of kernels\n", self._loading(), "## Libraries\n", self._libraries(),
                 "## Matmuls and attention\n", self._matmuls(), "## Collectives\n", self._collectives(),
                 self._failures(), self._plans()]
        return "\n".join(part for part in parts if part)

    def _summary(self):
        left = [name for name in self.names if not self.kept.finished(name)]
        former = collections.Counter(self.kept.other(name).get("commit", "unknown")
                                     for name in left if self.kept.other(name))
        counts = {status: len(self.of_status(status)) for status in (store.PASSED, store.FAILED, store.SKIPPED)}
        tests = [self.kept.item(n)["result"]
                                for n in self.names if n.startswith("test/") and self.kept.item(n).get("result")]
        cases, failed = sum(t["tests"] for t in tests), sum(len(t["failed"]) for t in tests)
        return (f"{len(self.names)} items: " + ", ".join(f"{count} {status}" for status, count in counts.items())
                + f", {len(left)} to do. Test cases: {cases - failed} passed, {failed} failed, of which "
                + f"{sum(t['skipped'] for t in tests)} skipped.\n"
                + "".join(f"\nOf the items to do, {count} have results of commit {commit}, which are not shown.\n"
                          for commit, count in former.items()))

    def _training(self):
        rows, sustained = [], self.sustained()
        for preset in PRESETS:
            ours, torch = self.result(f"train/{preset}"), self.result(f"torch/{preset}")
            graphs, plan = self.result(f"train_graphs/{preset}"), self.result(f"plan/{preset}")
            best = max((r for r in (ours, graphs) if r), key=lambda r: r["tokens_per_second"], default=None)
            if plan:
                rows.append([preset, "plan", *[""] * 5, self._planned(plan), "", ""])
            for label, found in (("engine", ours), ("engine, graphs", graphs), ("PyTorch FSDP2", torch)):
                if found:
                    rows.append([preset, label, *self._speed(found, sustained), self._setting(found)])
            if best:
                rows.append([preset, "targets", *self._targets(preset, best, torch)])
        rate = f"A matmul that runs for a minute reaches {sustained * 1e-12:.0f} TFLOP/s.\n" if sustained else ""
        return rate + _table(["preset", "", "tokens/s", "s/step", "MFU", "MFU of sustained", "peak GiB", "planned GiB",
                              "losses", ""], rows)

    @staticmethod
    def _speed(found, sustained):
        peak = found.get("peak_bytes_measured", found.get("max_memory_allocated", 0))
        flops = found.get("peak_flops")  # None if the kit does not know this kind of GPU.
        of_sustained = f"{100 * found['mfu'] * flops / sustained:.1f} %" if sustained and flops else ""
        return [f"{found['tokens_per_second']:,.0f}",
                f"{found['step_seconds']:.3f}",
                f"{100 * found['mfu']:.1f} %" if found["mfu"] else "",
                of_sustained,
                f"{peak / 2**30:.1f}",
                Report._planned(found),
                f"{found['losses'][0]:.3f} .. {found['losses'][-1]:.3f}"]

    @staticmethod
    def _planned(found):
        return f"{found['peak_bytes_planned'] / 2**30:.1f}" if "peak_bytes_planned" in found else ""

    @staticmethod
    def _setting(found):
        if "max_memory_reserved" not in found:
            return ""
        return (f"micro-batch {found['micro_batch']}, checkpointing {found['checkpoint']}, parameters gathered per "
                f"{found['gathered']}, attention {found['attention']}; "
                f"{found['max_memory_reserved'] / 2**30:.1f} GiB reserved")

    @staticmethod
    def _targets(preset, best, torch):
        cells = [""] * 8
        target = MFU.get(preset.rsplit("_", 1)[0])
        if target:
            cells[2] = f"{_mark(best['mfu'], target)}: {100 * target:.0f} %"
        if torch:
            ratio = best["tokens_per_second"] / torch["tokens_per_second"]
            cells[0] = f"{ratio:.2f} x: {_mark(ratio, SPEED)}"
            held = HELD_BYTES * torch["parameters"]
            theirs = torch.get("max_memory_allocated", 0) - held
            if theirs > 0:
                memory = (best["peak_bytes_measured"] - held) / theirs
                cells[4] = f"{memory:.2f} x: {_mark(memory, MEMORY, at_least=False)}"
        return cells

    def _loading(self):
        """Returns tables of time and memory with kernels that are loaded at the start and at their first use, and of
        memory with NCCL."""
        found = {mode.upper(): self.result(f"loading/{mode}") for mode in (*MODES, *WITH_NCCL)}
        found = {name: result for name, result in found.items() if result}
        taken = {name: result.get("taken", {}) for name, result in found.items()}
        takers = dict.fromkeys(taker for of_mode in taken.values() for taker in of_mode)
        return (_table(["CUDA_MODULE_LOADING", "seconds to the first step", "first step", "s/step"],
                       [[mode, f"{r['start_seconds']:.1f}", f"{r['first_seconds']:.3f}", f"{r['step_seconds']:.3f}"]
                        for mode, r in found.items() if mode.lower() in MODES])
                + "\n" + _table(["GPU memory outside the arenas", *found],
                                [[taker, *(taken[mode].get(taker, "") for mode in found)] for taker in takers]))

    def _libraries(self):
        """Returns what the engine says of CUDA's libraries and of the GPU's memory outside the arenas."""
        return _table(["item", "the engine says"],
                      [[name, "<br>".join(result["libraries"])] for name in self.names
                       if name.split("/")[0] in ("loading", "train", "train_graphs")
                       for result in [self.result(name)] if result and result["libraries"]])

    def _benches(self):
        return [(name.split("/", 1)[1], self.result(name)) for name in self.names
                if name.startswith("ops/") and self.result(name)]

    def _kernels(self):
        rows, reached = [], 0
        for name, found in self._benches():
            for r in found["results"]:
                if "of_copy" in r:
                    reached += r["of_copy"] >= KERNELS
                    rows.append([name, r["op"], r["size"], r["act"],
                                 f"{r['seconds'] * 1e6:.1f}",
                                 f"{r['bytes_per_second'] * 1e-9:.0f}",
                                 f"{r['of_copy']:.2f}" + ("" if r["of_copy"] >= KERNELS else " low"),
                                 f"{r['of_large_copy']:.2f}"])
        head = f"{reached} of {len(rows)} reach {KERNELS} of the speed of a copy of the same size.\n\n" if rows else ""
        return head + _table(["bench", "op", "size", "type", "us", "GB/s", "of copy", "of large copy"], rows)

    def _matmuls(self):
        rows = [[name, r["op"], r["size"], r["act"],
                 f"{r['seconds'] * 1e6:.1f}",
                 f"{r['flops_per_second'] * 1e-12:.1f}",
                 f"{r['of_peak']:.2f}",
                 f"{r['flops_per_second'] / self.sustained():.2f}" if self.sustained() else ""]
                for name, found in self._benches() for r in found["results"] if "flops" in r]
        return _table(["bench", "op", "size", "type", "us", "TFLOP/s", "of best", "of sustained"], rows)

    def _collectives(self):
        rows = [[name.split("/", 1)[1], r["collective"], r["dtype"], r["ranks"], f"{r['size_bytes'] / 2**20:.0f}",
                 f"{r['seconds'] * 1e6:.0f}", f"{r['algbw_bytes_per_second'] * 1e-9:.1f}",
                 f"{r['busbw_bytes_per_second'] * 1e-9:.1f}"]
                for name in self.names if name.startswith("comm/") and self.result(name)
                for r in self.result(name)["results"]]
        return _table(["", "collective", "type", "ranks", "MiB", "us", "algbw GB/s", "busbw GB/s"], rows)

    def _failures(self):
        found = [(name, self.kept.item(name)) for name in self.names]
        rows = [[name, item["status"], item["about"].replace("|", "\\|")] for name, item in found if item.get("about")]
        return "## What failed, was skipped, or is unfinished\n\n" + _table(["item", "", "why"], rows) if rows else ""

    def _plans(self):
        found = [(preset, self.result(f"plan/{preset}")) for preset in PRESETS]
        return "".join(f"## Plan of {preset}\n\n```\n{plan['text']}```\n\n" for preset, plan in found if plan)
