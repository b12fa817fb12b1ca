"""Defines the targets, how each is measured, and what bounds it on this machine."""

import dataclasses
import math
import statistics
from typing import Callable

from bench.train import workloads

_LEAST_TURNS = 5  # With fewer turns there is no standard error.
_ADAM_BYTES = 16  # Per parameter: master, two moments, gradient, in fp32.


@dataclasses.dataclass(frozen=True)
class Claim:
    label: str
    targets: dict  # From precision to number.
    at_least: bool  # Whether the value must be at least the target. Otherwise it must be at most the target.
    measure: Callable  # (lookup) -> number, from medians lookup(contestant, key). Raises TypeError if one is None.
    unit: str = "x"
    bound: Callable = lambda lookup: None  # (lookup) -> the best value that the floor of a step allows, or None.
    # For a ratio close to 1: the two contestants whose ratio, turn by turn, has the same relative scatter as the value.
    turns: tuple = ()

    def by_round(self, results, workload, precision):
        """Returns one value for each round in which it was measured."""
        values = [_ask(self.measure, results, workload, precision, number) for number in results.rounds()]
        return [value for value in values if value is not None]

    def value(self, results, workload, precision):
        """Returns the median of the rounds, or None if nothing was measured. With an odd number of rounds the median
        meets the target if most rounds do."""
        values = self.by_round(results, workload, precision)
        return statistics.median(values) if values else None

    def bound_value(self, results, workload, precision):
        """Returns the bound, or None if it is not known."""
        return _ask(self.bound, results, workload, precision)

    def out_of_reach(self, results, workload, precision):
        """Returns whether a known bound excludes the target. If the value is past the bound, the machine was slower
        when the bound was measured, and the bound is wrong by at least that distance. Then only targets beyond twice
        that distance are out of reach."""
        bound, value = self.bound_value(results, workload, precision), self.value(results, workload, precision)
        if bound is None:
            return False
        off = max(0, value - bound) if value is not None else 0
        return not self.met(bound + 2 * off, precision)

    def error(self, results, workload, precision):
        """Returns the standard error of the value, scaled from that of the ratios of consecutive turns. Returns None if
        there are too few turns."""
        ratios = []
        for number in results.rounds() if self.turns else ():
            over, under = ([record["seconds"] for record in results.of(workload, precision, contestant, number)
                            if record.get("in_turns")] for contestant in self.turns)
            # Rendering several files together merges rounds of the same number. Skips a round that does not have as
            # many turns of the one contestant as of the other.
            if [len(seconds) for seconds in over] == [len(seconds) for seconds in under]:
                ratios += [x / y for a, b in zip(over, under) for x, y in zip(a, b)]
        value = self.value(results, workload, precision)
        if value is None or len(ratios) < _LEAST_TURNS:
            return None
        return value * statistics.stdev(ratios) / statistics.mean(ratios) / math.sqrt(len(ratios))

    def undecided(self, results, workload, precision):
        """Returns whether the target is missed by less than two standard errors of the turns."""
        value, error = self.value(results, workload, precision), self.error(results, workload, precision)
        return error is not None and not self.met(value, precision) and \
            self.met(value + (2 if self.at_least else -2) * error, precision)

    def met(self, value, precision):
        target = self.targets[precision]
        return value >= target if self.at_least else value <= target


def _ask(question, results, workload, precision, number=None):
    def lookup(contestant, key="seconds"):
        return results.median(workload, precision, contestant, key, number)
    try:
        return question(lookup)
    except TypeError:
        return None


def floor_seconds(lookup, matmuls="matmuls"):
    """Returns a lower bound of the seconds of a step, for an engine with these ops and oneDNN's matmuls. It is the sum
    of the medians of: the linear layers' matmuls, measured alone; attention's matmuls, measured alone; and the bytes of
    all other ops, of all collectives and of packing (which those measurements leave out), moved at the speed of the
    best memory copy."""
    moved = lookup(matmuls, "packed_bytes") + lookup(matmuls, "other_bytes")
    return lookup(matmuls) + lookup(matmuls, "attention_seconds") + moved / lookup(matmuls, "copy_bytes_per_second")


def floor_of(results, workload, precision, matmuls):
    """Returns floor_seconds, or None if it was not measured."""
    return _ask(lambda lookup: floor_seconds(lookup, matmuls), results, workload, precision)


def _times_faster(contestant, than):
    return lambda lookup: lookup(than) / lookup(contestant)


def _memory(less_bytes_per_parameter=0):
    def measure(lookup):
        both = less_bytes_per_parameter and less_bytes_per_parameter * lookup("shale", "parameters")
        return (lookup("shale", "peak_rss_bytes") - both) / (lookup("torch-best", "peak_rss_bytes") - both)
    return measure


def _accumulation(lookup):
    # Eight steps of one micro-batch run the optimizer eight times; one step of eight micro-batches runs it once.
    return lookup("shale-k8") / (8 * lookup("shale-8-steps") - 7 * lookup("shale-k8", "update_seconds"))


def _speed(label, targets, contestant, than, matmuls="matmuls"):
    return Claim(label, targets, True, _times_faster(contestant, than),
                 bound=lambda lookup: lookup(than) / floor_seconds(lookup, matmuls))


_SPEED = [
    _speed("against PyTorch at its best", {"fp32": 1.08, "bf16": 1.35}, "shale", "torch-best"),
    _speed("against the matmuls alone, B packed", {"fp32": 0.86, "bf16": 0.82}, "shale", "matmuls"),
    _speed("against PyTorch compiled, as installed", {"fp32": 2.3, "bf16": 1.7}, "shale", "torch-installed"),
    _speed("two sharded ranks against FSDP2 over Gloo at its best", {"fp32": 1.3, "bf16": 1.7}, "shale-2ranks",
           "fsdp2-best", "matmuls-2ranks"),
]


def _same(label, target, at_least, measure, unit="x"):
    return Claim(label, {precision: target for precision in workloads.PRECISIONS}, at_least, measure, unit)


_FIRST = [
    *_SPEED,
    Claim("peak RSS against PyTorch at its best", {"fp32": 0.48, "bf16": 0.43}, False, _memory()),
    _same("two sharded ranks against one rank of all threads", 0.92, True, _times_faster("shale-2ranks", "shale")),
    _same("from exec to the start of the first step", 0.5, False, lambda lookup: 1.0 * lookup("shale", "start_seconds"),
          "s"),
    *(dataclasses.replace(_same(f"{label} against SHARDED (2 ranks, K = 4)", 1.0, True, _times_faster(name,
                                                                                                      "shale-sharded")),
                          turns=("shale-sharded", name))
      for label, name in (("LAYERED", "shale-layered"), ("NO_SYNC", "shale-no-sync"))),
    dataclasses.replace(_same("time of K = 8 over 8 times K = 1 less the optimizer", 1.02, False, _accumulation),
                        turns=("shale-k8", "shale-8-steps")),
    _same("time of checkpointing BLOCK over NONE", 1.30, False,
          lambda lookup: lookup("shale-block") / lookup("shale-keep-all")),
]

def ratio(contestant, than, key="seconds"):
    """Returns a claim without a target, whose value is the ratio of two contestants."""
    return Claim("", {}, False, lambda lookup: lookup(contestant, key) / lookup(than, key), turns=(contestant, than))


# The engine was not tuned for these workloads, so their targets are lower.
_OTHERS = [
    *(dataclasses.replace(claim, targets={p: 0.95 * t for p, t in claim.targets.items()}) for claim in _SPEED),
    _same("peak RSS against PyTorch at its best, both less 16 bytes per parameter", 0.5, False, _memory(_ADAM_BYTES)),
]


def of(workload):
    return _FIRST if workload == workloads.FIRST else _OTHERS
