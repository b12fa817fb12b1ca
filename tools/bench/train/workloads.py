"""Defines the workloads: the jobs of tools/bench/jobs and the tokens, which the engine and PyTorch share."""

import array
import copy
import math
import os
import random

from bench.train import textproto

JOBS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "jobs")

# Default numbers of warm-up steps and of timed steps. A step of the last workload has four micro-batches and takes half
# a minute.
_STEPS = {"llama34m": (3, 9), "gpt2_124m": (2, 5), "qwen2_5_0_5b": (1, 2)}
# How many contestants may be in memory together to take turns, and the average GiB of each.
_TOGETHER = {"llama34m": (7, 2), "gpt2_124m": (4, 4), "qwen2_5_0_5b": (1, 14)}
# Settings that a job has in only one precision.
_ALONE = {
    # With large weights and few tokens it pays to pack most weights once for all micro-batches. fp32 has no memory for
    # that.
    ("qwen2_5_0_5b", "bf16"): {"sharding.accumulation": "LAYERED", "activation_checkpointing.preset": "CHEAP"},
}
NAMES = tuple(_STEPS)
# The workload that the targets were set for. The others show that the results are not special to it.
FIRST = NAMES[0]
PRECISIONS = {"fp32": "FP32", "bf16": "BF16"}

_GPT2 = (20240520, 1, "H")
_LLAMA3 = (20240801, 7, "I")
_HEADER_BYTES = 1024


class Workload:
    """One job file in one precision."""

    def __init__(self, name, precision):
        self.name, self.precision = name, precision
        self.path = os.path.join(JOBS, name + ".textproto")
        with open(self.path, encoding="utf-8") as file:
            self._job = textproto.parse(file.read())
        self.warmup, self.steps = _STEPS[name]
        self.together, self.gib = _TOGETHER[name]
        self.vocabulary = self._job["model"]["decoder"]["vocabulary"]

    def settings(self, threads, ranks=1, micro_batches=None, more=()):
        """Returns the fields that differ from the job file, by path. The ranks share the job's global batch; with
        `micro_batches` each rank has that many micro-batches."""
        batch = self._job["batch"]
        global_batch = batch["global_batch"]
        micro_batch = max(1, batch["micro_batch"] // ranks)
        if micro_batches is not None:
            global_batch = micro_batch * ranks * micro_batches
        # Both precisions have fp32 masters. SPLIT stores the lower halves of the masters beside the bf16 weights.
        master = "SPLIT" if self.precision == "bf16" else "MASTER_FP32"
        return {"precision.compute": PRECISIONS[self.precision],
                "precision.master": master,
                "batch.global_batch": global_batch,
                "batch.micro_batch": micro_batch,
                "sharding.ranks": ranks,
                "runtime.threads_per_rank": threads // ranks,
                **_ALONE.get((self.name, self.precision), {}),
                **dict(more)}

    def job(self, settings):
        """Returns the job with these settings, as a dict."""
        job = copy.deepcopy(self._job)
        for path, value in settings.items():
            textproto.set_path(job, path, value)
        return job

    def flat(self, settings):
        """Returns all fields of the job with these settings, from path to value, as --set takes them."""
        return dict(textproto.flat(self.job(settings)))

    def expected_first_loss(self):
        """Returns the loss of an untrained model."""
        return math.log(self.vocabulary)


def write_tokens(folder, vocabulary, count=1 << 19):
    """Writes a token file of llm.c with tokens below `vocabulary`, the small ones more often, unless it exists. Three
    of four tokens follow from the one before, so that a model has something to learn. Returns its path."""
    path = os.path.join(folder, f"following-{vocabulary}.bin")
    magic, version, code = _GPT2 if vocabulary <= 1 << 16 else _LLAMA3
    if os.path.exists(path) and os.path.getsize(path) == _HEADER_BYTES + count * array.array(code).itemsize:
        return path
    os.makedirs(folder, exist_ok=True)
    source = random.Random(1)
    tokens, place = array.array(code), 0.0  # `place` is even in [0, 1), whether it moves on or is drawn anew.
    for _ in range(count):
        place = (place + 0.381966) % 1 if source.random() < 0.75 else source.random()
        tokens.append(int(vocabulary * place ** 3))
    header = array.array("i", [magic, version, count] + [0] * (_HEADER_BYTES // 4 - 3))
    temporary = path + ".tmp"
    with open(temporary, "wb") as file:
        header.tofile(file)
        tokens.tofile(file)
    os.replace(temporary, path)
    return path
