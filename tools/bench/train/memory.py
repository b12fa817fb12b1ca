"""Defines the rows of `tools/bench_train --only=memory`: what a setting does to the peak RSS and to the time of a step,
in the engine and in PyTorch, side by side. A further setting is one entry of ROWS."""

import dataclasses

from bench.train import workloads as shapes


# The workloads that rows are measured on.
WORKLOADS = ("llama34m", "qwen2_5_0_5b")


@dataclasses.dataclass(frozen=True)
class Row:
    about: str
    settings: dict  # Fields of the job that differ from _ALL, by path.
    against: str = ""  # The row that differs from this one in one setting.
    torch: bool = True  # Whether PyTorch has this setting too.
    workloads: tuple = WORKLOADS
    precisions: tuple = tuple(shapes.PRECISIONS)

# What all rows set: eight sequences of 2,048 tokens, one after the other.
_ALL = {"batch.sequence_length": 2048, "batch.global_batch": 8, "batch.micro_batch": 1,
        "sharding.accumulation": "SHARDED", "activation_checkpointing.preset": "BLOCK"}
# One sequence, without clipping. With several micro-batches, gradients would outlive backward even with IN_BACKWARD.
_ONE_SEQUENCE = {"batch.global_batch": 1, "optimizer.max_gradient_norm": 0, "optimizer.non_finite": "SKIP"}

ROWS = {
    "none": Row("checkpointing NONE, K = 8", {"activation_checkpointing.preset": "NONE"}),
    "block": Row("checkpointing BLOCK, K = 8", {}, against="none"),
    "sqrt": Row("checkpointing BLOCK in SQRT segments, K = 8", {"activation_checkpointing.segments": "SQRT"},
                against="block"),
    "one-piece": Row("checkpointing BLOCK, K = 1 micro-batch of 8 sequences", {"batch.micro_batch": 8},
                     against="block",
                     # PyTorch's logits of 16,384 tokens and 151,936 entries would take 10 GB, several times over.
                     workloads=("llama34m",)),
    "after-backward": Row("one sequence, updated AFTER_BACKWARD", _ONE_SEQUENCE),
    # These two fields are state LEAN. PyTorch has no optimizer with bf16 weights alone and stochastic rounding.
    "lean": Row("one sequence, lean state", {**_ONE_SEQUENCE, "precision.master": "NONE", "optimizer.moments": "BF16"},
                against="after-backward", torch=False, precisions=("bf16",)),
    "in-backward": Row("one sequence, updated IN_BACKWARD", {**_ONE_SEQUENCE, "optimizer.update": "IN_BACKWARD"},
                       against="after-backward"),
}


def contestant(side, row):
    """Returns the name of a row's contestant. `side` is shale or torch."""
    return f"{side}-memory-{row}"


def settings(row):
    return {**_ALL, **ROWS[row].settings}


def tables(results, workload, precisions):
    """Returns the tables of a workload in Markdown, as lists of rows; empty if nothing was measured."""
    beside = [_beside(results, workload, precision, name) for precision in precisions for name in ROWS]
    against = [_against(results, workload, precision, name) for precision in precisions for name in ROWS]
    headed = [(["memory", "shale, GiB", "PyTorch, GiB", "ratio", "shale, s a step", "PyTorch, s a step", "ratio"],
               [row for row in beside if row]),
              (["one setting against another", "shale, peak RSS", "shale, time", "PyTorch, peak RSS", "PyTorch, time"],
               [row for row in against if row])]
    return [(header, rows) for header, rows in headed if rows]


def _medians(results, workload, precision, row, key):
    return [results.median(workload, precision, contestant(side, row), key) for side in ("shale", "torch")]


def _beside(results, workload, precision, row):
    cells = []
    for key, unit, form in (("peak_rss_bytes", 2**30, ".2f"), ("seconds", 1, ".3f")):
        values = _medians(results, workload, precision, row, key)
        cells += ["" if value is None else format(value / unit, form) for value in values]
        cells.append("" if None in values else f"{values[0] / values[1]:.3f} x")
    return [f"{ROWS[row].about}, {precision}", *cells] if any(cells) else []


def _against(results, workload, precision, row):
    than = ROWS[row].against
    if not than:
        return []
    cells = []
    for side in range(2):
        for key in ("peak_rss_bytes", "seconds"):
            value, base = (_medians(results, workload, precision, name, key)[side] for name in (row, than))
            cells.append("" if value is None or base is None else f"{value / base:.3f} x")
    return [f"{ROWS[row].about}, against {ROWS[than].about}, {precision}", *cells] if any(cells) else []
