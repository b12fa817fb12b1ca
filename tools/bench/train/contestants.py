"""Lists the contestants, and says which of them take turns."""

from bench.train import before, memory
from bench.train.programs import Matmuls, Shale, Torch

_ACCUMULATIONS = "K = 4 micro-batches on two ranks, "

# Listed in the order in which a round runs them.
_TODAY = {
    "shale": Shale("train, one rank with all threads"),
    "torch-best": Torch("PyTorch, blocks compiled, allocator tuned, MKL's AVX-512 path unlocked"),
    "matmuls": Matmuls("the matmuls of the step alone, by oneDNN, operand B packed beforehand"),
    "torch-installed": Torch("the same program as PyTorch is installed", tuned=False),
    "shale-2ranks": Shale("train, two sharded ranks with half of the threads each", ranks=2),
    "shale-2processes": Shale("as shale-2ranks, but each rank is a process, which Gloo joins", ranks=2, processes=2),
    "matmuls-2ranks": Matmuls("the matmuls of two ranks at the same time, with half of the threads each", ranks=2),
    "fsdp2-best": Torch("FSDP2 over Gloo, two processes with half of the threads each, tuned like torch-best", ranks=2),
    "shale-k8": Shale("eight micro-batches to a step, one rank", micro_batches=8, traced=True, first_only=True),
    # Eight steps are timed as one, because a disturbance lengthens that time as it lengthens one long step. The median
    # of eight short steps would hardly show it.
    "shale-8-steps": Shale("eight steps of one micro-batch, timed as one, one rank", each=8, first_only=True),
    "shale-keep-all": Shale("checkpointing NONE, one rank", more={"activation_checkpointing.preset": "NONE"},
                            first_only=True),
    "shale-block": Shale("checkpointing BLOCK, one rank", more={"activation_checkpointing.preset": "BLOCK"},
                         first_only=True),
    **{"shale-" + way.lower().replace("_", "-"): Shale(_ACCUMULATIONS + way, ranks=2, micro_batches=4,
                                                       more={"sharding.accumulation": way}, first_only=True)
       for way in ("SHARDED", "NO_SYNC", "LAYERED")},
    "torch-model": Torch("as torch-best, but the model compiled as a whole, loss included", compiled="model",
                         extra=True),
    "torch-eager": Torch("as torch-best, but nothing compiled", compiled="nothing", extra=True),
}


def _memory_contestants():
    """Yields the names and contestants of --only=memory."""
    for row, about in memory.ROWS.items():
        both = {"shale": Shale(f"memory: {about.about}", more=memory.settings(row))}
        if about.torch:
            both["torch"] = Torch("memory: the same in PyTorch, which returns freed memory to the system",
                                  more=memory.settings(row), returns_memory=True)
        for side, contestant in both.items():
            contestant.extra, contestant.group = True, "memory"
            contestant.only_on, contestant.only_in = about.workloads, about.precisions
            yield memory.contestant(side, row), contestant


_TODAY.update(_memory_contestants())


def _with_twins(names):
    """Returns the names, each contestant of the engine followed by its twin of --before."""
    return [one for name in names
            for one in ((name, before.twin(name)) if isinstance(_TODAY[name], Shale) else (name,))]


ALL = {name: _TODAY[name] if name in _TODAY else before.Before(_TODAY[before.original(name)])
       for name in _with_twins(_TODAY)}

# Sets of contestants that a ratio compares. They take turns, step by step, if memory holds them at the same time.
SETS = [_with_twins(together) for together in (
    ("shale", "torch-best", "matmuls", "torch-installed", "shale-2ranks", "shale-2processes",
     "matmuls-2ranks", "fsdp2-best"),
    ("shale-k8", "shale-8-steps"),
    ("shale-keep-all", "shale-block"),
    ("shale-sharded", "shale-no-sync", "shale-layered"),
    *([memory.contestant(side, row) for side in ("shale", "torch") if memory.contestant(side, row) in _TODAY]
      for row in memory.ROWS))]


def in_sets(names, most):
    """Splits the names, in order, into lists of at most `most` contestants that take turns. Contestants in no set are
    alone. A set that is too large is split into those with one rank and those with two. If that is not enough, only
    twins stay together, and if `most` is 1, nobody does."""
    sets = [[name for name in names if name in together] for together in SETS]
    sets += [[name] for name in names if not any(name in together for together in SETS)]
    parts = []
    for some in sets:
        by_ranks = [[name for name in some if ALL[name].ranks == ranks] for ranks in (1, 2)]
        for part in [some] if len(some) <= most else by_ranks:
            parts += [part] if len(part) <= most else _pairs(part) if most > 1 else [[name] for name in part]
    return [part for part in parts if part]


def _pairs(names):
    """Returns lists of a contestant and its twin, which follows it. The others are alone."""
    pairs = []
    for name in names:
        if pairs and name == before.twin(pairs[-1][-1]):
            pairs[-1].append(name)
        else:
            pairs.append([name])
    return pairs
