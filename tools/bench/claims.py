"""The targets, and how each is measured."""

import dataclasses
from typing import Callable

from bench import workloads

_ADAM_BYTES = 16  # Per parameter: master, two moments, gradient, in fp32.


@dataclasses.dataclass(frozen=True)
class Claim:
    label: str
    targets: dict  # By precision.
    at_least: bool  # Or at most.
    measure: Callable  # (lookup) -> number; lookup(contestant, key) is a median. TypeError: one is None.
    unit: str = "x"

    def value(self, results, workload, precision):
        """None: not measured."""
        def lookup(contestant, key="seconds"):
            return results.median(workload, precision, contestant, key)
        try:
            return self.measure(lookup)
        except TypeError:
            return None

    def met(self, value, precision):
        target = self.targets[precision]
        return value >= target if self.at_least else value <= target


def _times_faster(contestant, than):
    return lambda lookup: lookup(than) / lookup(contestant)


def _memory(less_bytes_per_parameter=0):
    def measure(lookup):
        both = less_bytes_per_parameter and less_bytes_per_parameter * lookup("shale", "parameters")
        return (lookup("shale", "peak_rss_bytes") - both) / (lookup("torch-best", "peak_rss_bytes") - both)
    return measure


def _accumulation(lookup):
    # Eight times all but the optimizer, which runs once.
    update = lookup("shale-k8", "update_seconds")
    return lookup("shale-k8") / (8 * (lookup("shale") - update) + update)


_SPEED = [
    Claim("against PyTorch at its best", {"fp32": 1.08, "bf16": 1.35}, True, _times_faster("shale", "torch-best")),
    Claim("against the matrix products alone, B packed", {"fp32": 0.86, "bf16": 0.82}, True,
          _times_faster("shale", "products")),
    Claim("against PyTorch compiled, as installed", {"fp32": 2.3, "bf16": 1.7}, True,
          _times_faster("shale", "torch-installed")),
    Claim("two sharded ranks against FSDP2 over Gloo at its best", {"fp32": 1.3, "bf16": 1.7}, True,
          _times_faster("shale-2ranks", "fsdp2-best")),
]


def _same(label, target, at_least, measure, unit="x"):
    return Claim(label, {precision: target for precision in workloads.PRECISIONS}, at_least, measure, unit)


_FIRST = [
    *_SPEED,
    Claim("peak RSS against PyTorch at its best", {"fp32": 0.48, "bf16": 0.43}, False, _memory()),
    _same("two sharded ranks against one rank of all threads", 0.92, True, _times_faster("shale-2ranks", "shale")),
    _same("from exec to the start of the first step", 0.5, False, lambda lookup: 1.0 * lookup("shale", "start_seconds"), "s"),
    _same("LAYERED against SHARDED (2 ranks, K = 4)", 1.0, True, _times_faster("shale-layered", "shale-sharded")),
    _same("DEFERRED against SHARDED (2 ranks, K = 4)", 1.0, True, _times_faster("shale-deferred", "shale-sharded")),
    _same("time of K = 8 over 8 times K = 1 less the optimizer", 1.02, False, _accumulation),
    _same("time of BLOCK retention over KEEP_ALL", 1.30, False, lambda lookup: lookup("shale-block") / lookup("shale-keep-all")),
]

# Nobody tuned for these.
_OTHERS = [
    *(dataclasses.replace(claim, targets={p: 0.95 * t for p, t in claim.targets.items()}) for claim in _SPEED),
    _same("peak RSS against PyTorch at its best, both less 16 bytes per parameter", 0.5, False, _memory(_ADAM_BYTES)),
]


def of(workload):
    return _FIRST if workload == workloads.FIRST else _OTHERS
