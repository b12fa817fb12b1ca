"""Defines items that train: the engine's steps, and a trace of them."""

import json
import os
import re
import shutil
import statistics
import time
from dataclasses import dataclass

from bench.train import textproto, workloads
from gpu import child, outcome, plans, store, traces
from gpu.kit import TRAIN_BEFORE, Item

# Steps that count, and those before them.
STEPS, WARMUP = 5, 2
TRACED_STEPS = 2
# The lines of train's output that tell what libraries it uses and what they took of the GPU's memory.
_ABOUT_LIBRARIES = re.compile(r"in use outside the arenas|were taken after it was checked|cuBLASLt|cuDNN|NCCL|NVRTC")
# Its line on who took the GPUs' memory, in the words of MemoryLedger (engine/run/runtime/local_ranks.h).
_TAKEN = re.compile(r"^memory taken outside the arenas[^:]*: (.*)$", re.MULTILINE)


def train(preset, label="", settings=(), tuned=False, steps=(WARMUP, STEPS), variables=(), skip=""):
    """Returns an item that measures the engine's steps. `steps` has the number of those that warm up, and of those that
    count. `settings` maps fields of the job to values, `variables` is added to the environment. With `tuned`, matmuls
    use the algorithms that the items before it found."""
    name = f"train/{preset}" + (f"/{label}" if label else "")
    return Item(name, outcome.needs("train", _train(preset, dict(settings), tuned, steps, dict(variables))), 0,
                skip=skip, sampled=True, job=(preset, dict(settings), sum(steps)))


def traced(preset, label="", settings=(), before=None):
    """Returns an item that traces steps, and sums their time by op and shape. With `before`, a kit, they are those of
    the program of an earlier commit, and the item is skipped if the kit has none."""
    program = TRAIN_BEFORE if before else "train"
    name = f"trace/{preset}" + (f"/{label}" if label else "")
    return Item(name, outcome.needs(program, _traced(preset, dict(settings), program)), 0,
                skip=before.lacks(program) if before else "", sampled=True,
                job=(preset, dict(settings), WARMUP + TRACED_STEPS))


def tokens(kit, preset):
    """Returns the path of a file of random tokens for the preset, which it writes if there is none."""
    with open(kit.job(preset), encoding="utf-8") as file:
        vocabulary = textproto.parse(file.read())["model"]["decoder"]["vocabulary"]
    return workloads.write_tokens(kit.path("data"), vocabulary)


def command(kit, preset, folder, settings, program="train"):
    """Returns the command by which `program` trains the preset, with the run folder `folder`."""
    values = {**plans.settings(kit.gpus[0]), "data.path": tokens(kit, preset), "telemetry.run_folder": folder,
              **settings}
    return [kit.program(program), f"--job={kit.job(preset)}", "--overwrite", *plans.sets(values)]


def rows(folder):
    """Returns the rows of training steps in a run folder's metrics.jsonl, without an incomplete last line."""
    try:
        lines = store.read(os.path.join(folder, "metrics.jsonl")).split("\n")[:-1]
    except OSError:
        return []
    return [row for row in map(json.loads, lines) if "seconds" in row]


def table(kit):
    """Returns the folder of the table of tuned matmuls, or None if nothing was tuned yet."""
    folder = kit.path("tuning")
    return folder if os.path.isdir(folder) and os.listdir(folder) else None


def with_table(kit, settings, tuned):
    """Returns the settings, with the table of tuned matmuls if it is wanted and there."""
    return {**settings, "runtime.tuning_table": table(kit)} if tuned and table(kit) else settings


@dataclass
class Run:
    """A run that ended: rows of the steps that were wanted, or `failure`, the outcome of an item whose run has not all
    of them. `start_seconds` passed before the first step."""
    ended: child.Ended
    rows: list
    failure: dict
    start_seconds: float


def run(kit, name, preset, settings, steps, seconds, program="train", variables=()):
    """Trains until so many steps are measured, and returns the Run. Log and run folder are named by `name`."""
    folder = kit.path("runs", name.replace("/", "-"))
    shutil.rmtree(folder, ignore_errors=True)
    began, first = time.monotonic(), []

    def enough():  # The final checkpoint is not measured.
        found = rows(folder)
        if found and not first:
            first.append(max(0, time.monotonic() - began - found[0]["seconds"]))
        return len(found) >= steps
    try:
        ended = child.run(command(kit, preset, folder, settings, program), {**kit.environment, **dict(variables)},
                          kit.log(name), seconds, enough, folder=kit.out)
        found = rows(folder)[:steps]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    failure = None
    if len(found) < steps:
        wrong = "" if ended.code or ended.timed_out else f"it printed {len(found)} of {steps} steps"
        failure = outcome.of(ended, None, wrong)
    return Run(ended, found, failure, first[0] if first else None)


def _train(preset, settings, tuned, steps, variables):
    def work(kit, item, seconds):
        made = run(kit, item.name, preset, with_table(kit, settings, tuned), sum(steps), seconds, variables=variables)
        return made.failure or outcome.of(made.ended, {
            **_steps(made.rows, steps[0]), **_said(store.read(kit.log(item.name))),
            "start_seconds": made.start_seconds, "settings": settings, "table": bool(tuned and table(kit))})
    return work


def _traced(preset, settings, program):
    def work(kit, item, seconds):
        folder, path = kit.path("runs", item.name.replace("/", "-")), kit.log(item.name) + ".trace.json"
        shutil.rmtree(folder, ignore_errors=True)
        for old in (path, path + ".txt"):
            store.remove(old)
        steps = {"lr_schedule.steps": str(WARMUP + TRACED_STEPS)}
        made = command(kit, preset, folder, {**settings, **steps}, program)
        made += [f"--trace={path}", f"--trace_first_step={WARMUP + 1}", f"--trace_steps={TRACED_STEPS}"]
        try:
            # The trace is whole as soon as it is there. The checkpoint after it is not wanted.
            ended = child.run(made, kit.environment, kit.log(item.name), seconds, lambda: os.path.exists(path),
                              folder=kit.out)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        trace = outcome.read_json(path)
        store.remove(path)
        result = {**traces.summed(trace, plans.peak_flops(kit.gpus[0])), "settings": settings} if trace else None
        return outcome.of(ended, result, "" if trace or ended.code or ended.timed_out else "it wrote no trace")
    return work


def _steps(found, warmup):
    counted = found[warmup:]
    median = lambda name: statistics.median(row[name] for row in counted)
    return {"seconds": [row["seconds"] for row in counted],
            "first_seconds": found[0]["seconds"],
            "step_seconds": median("seconds"),
            "tokens_per_second": median("tokens_per_second"),
            "mfu": median("mfu"),
            "losses": [row["loss"] for row in found],
            "gradient_norms": [row["grad_norm"] for row in found],
            "peak_bytes_planned": found[-1]["peak_bytes_planned"],
            "peak_bytes_measured": found[-1]["peak_bytes_measured"]}


def _said(text):
    """Returns facts from the output of train: the number of parameters, its lines on CUDA's libraries and the memory
    outside the arenas, and that memory by who took it."""
    found = {}
    parameters = re.search(r"^\s*parameters\s+([\d,]+) in", text, re.MULTILINE)
    if parameters:
        found["parameters"] = int(parameters[1].replace(",", ""))
    if taken := _TAKEN.search(text):
        parts = re.split(r", |; after it was checked: ", taken[1])
        found["taken"] = dict(re.fullmatch(r"(.*) (-?[\d.]+ \w+)", part).groups() for part in parts)
    found["libraries"] = [line.strip() for line in text.splitlines() if _ABOUT_LIBRARIES.search(line)]
    return found
