"""Defines items that compare steps of two programs, or with two settings, in turns on one GPU."""

import statistics
import time
from dataclasses import dataclass, field

from gpu import outcome, training
from gpu.kit import TRAIN_BEFORE, Item


@dataclass
class Side:
    """One of the two that are compared: a program and its settings besides those of both, and whether its matmuls use
    the algorithms that the items before it found."""
    name: str
    program: str = "train"
    settings: dict = field(default_factory=dict)
    tuned: bool = False


def in_turns(kit, preset, label, sides, settings=(), turns=1, steps=(1, 3)):
    """Returns an item that trains the preset as each side, `turns` times in turns, each time in a process of its own.
    A second turn begins with the second side, so that a GPU that grows hotter slows both alike. `steps` has
    the number of those that warm up, and of those that count, of each process."""
    skip = next(filter(None, (kit.lacks(side.program) for side in sides)), "")
    return Item(f"turns/{preset}/{label}", _work(preset, sides, dict(settings), turns, steps), 0, skip=skip,
                sampled=True, job=(preset, dict(settings), sum(steps)), runs=turns * len(sides))


def before_and_now(kit, preset, label, settings=(), turns=1):
    """Returns an item that compares the kit's train with that of an earlier commit."""
    return in_turns(kit, preset, label, [Side("before", TRAIN_BEFORE), Side("now")], settings, turns)


def library_and_table(kit, preset, label, settings=(), turns=1, steps=(1, 3)):
    """Returns an item that compares the algorithms of matmuls that the library chooses with those of the table."""
    return in_turns(kit, preset, label, [Side("library"), Side("table", tuned=True)], settings, turns, steps)


def _work(preset, sides, settings, turns, steps):
    def work(kit, item, seconds):
        if any(side.tuned for side in sides) and not training.table(kit):
            return outcome.skipped("no matmul is tuned yet")
        began, found = time.monotonic(), {side.name: [] for side in sides}
        for turn in range(turns):
            for side in sides[::-1] if turn % 2 else sides:
                made = training.run(kit, f"{item.name}-{side.name}-{turn + 1}", preset,
                                    training.with_table(kit, {**settings, **side.settings}, side.tuned), sum(steps),
                                    seconds - (time.monotonic() - began), side.program)
                if made.failure:
                    return {**made.failure, "about": f"{side.name}: {made.failure['about']}"}
                found[side.name].append(made.rows)
        result = {"sides": [{**_summed(found[side.name], steps[0]), "name": side.name, "settings": side.settings}
                            for side in sides], "settings": settings}
        return {**outcome.of(made.ended, result), "seconds": round(time.monotonic() - began, 3)}
    return work


def _summed(runs, warmup):
    """Returns medians over all steps that count, the median speed of each turn, and the losses of the first."""
    counted = [rows[warmup:] for rows in runs]
    steps = [row for rows in counted for row in rows]
    return {"tokens_per_second": statistics.median(row["tokens_per_second"] for row in steps),
            "step_seconds": statistics.median(row["seconds"] for row in steps),
            "of_turns": [statistics.median(row["tokens_per_second"] for row in rows) for rows in counted],
            "peak_bytes": steps[-1]["peak_bytes_measured"],
            "losses": [row["loss"] for row in runs[0]]}
