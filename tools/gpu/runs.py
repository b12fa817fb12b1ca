"""Defines items that check whole runs: that a run which saves while it trains can be resumed, and that its model
generates and is evaluated as it should be."""

import json
import os
import shutil
import time

from gpu import child, outcome, store, training
from gpu.kit import Item

_STEPS, _RESUMED_AFTER = 4, 2
_TOKENS = 64  # That a prompt is continued by.
# Two evaluations of the same model add their losses in another order.
_TOLERANCE = 1e-6


def resume(preset, settings, seconds):
    """Returns an item that trains with asynchronous saves, resumes from the first of them, and compares the losses and
    norms of the steps after it, which must have the same bits."""
    def work(kit, item, limit):
        began, folders = time.monotonic(), [kit.path("runs", f"resume-{name}") for name in ("first", "second")]
        more = {**settings, "lr_schedule.steps": str(_STEPS), "checkpoint.every_steps": str(_RESUMED_AFTER)}
        try:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            ended = _train(kit, item, preset, folders[0], more, limit)
            if ended.code or ended.timed_out:
                return outcome.of(ended)
            left = limit - (time.monotonic() - began)
            ended = _train(kit, item, preset, folders[1], more, left, _checkpoint(folders[0], _RESUMED_AFTER))
            if ended.code or ended.timed_out:
                return outcome.of(ended)
            first, second = (training.rows(folder) for folder in folders)
        finally:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
        told = lambda rows: [(row["step"], row["loss"], row["grad_norm"]) for row in rows if
                             row["step"] > _RESUMED_AFTER]
        result = {"first": told(first), "resumed": told(second), "step_seconds": [row["seconds"] for row in first]}
        same = len(told(first)) == _STEPS - _RESUMED_AFTER and told(first) == told(second)
        wrong = "" if same else f"steps differ: {told(first)} went on, {told(second)} was resumed"
        return {**outcome.of(ended, result, wrong), "seconds": round(time.monotonic() - began, 3)}
    return Item(f"resume/{preset}", outcome.needs("train", work), seconds, sampled=True)


def generate(preset, settings, seconds):
    """Returns an item that continues a prompt twice by the likeliest tokens, which must be the same."""
    def work(kit, item, limit):
        def ask(folder, left):
            ended = child.run([kit.program("generate"), f"--run={folder}", "--prompt_tokens=1,2,3", "--device=CUDA",
                               f"--tokens={_TOKENS}", "--temperature=0"], kit.environment, kit.log(item.name), left,
                              folder=kit.out)
            return ended, store.read(ended.log).split()

        def check(folder, left):
            ended, first = ask(folder, left)
            if ended.code or ended.timed_out:
                return outcome.of(ended)
            ended, second = ask(folder, left - ended.seconds)
            wrong = "" if first == second and len(first) == _TOKENS else f"it printed {first}, and then {second}"
            return outcome.of(ended, {"tokens": first}, wrong)
        return _with_run(kit, item, preset, settings, limit, check)
    return Item(f"generate/{preset}", outcome.needs("generate", work), seconds)


def evaluate(preset, settings, seconds):
    """Returns an item that evaluates a run on the data on which `train` evaluated it, which must give the same loss."""
    def work(kit, item, limit):
        def check(folder, left):
            path = kit.log(item.name) + ".json"
            store.remove(path)
            ended = child.run([kit.program("evaluate"), f"--run={folder}", f"--data={training.tokens(kit, preset)}",
                               "--loss_only", f"--json={path}", "--device=CUDA"], kit.environment, kit.log(item.name),
                              left, folder=kit.out)
            found = outcome.read_json(path)
            if not found:
                return outcome.of_file(ended, path)
            losses = [json.loads(line)["evaluation_loss"] for line in store.read(
                os.path.join(folder, "metrics.jsonl")).splitlines() if "evaluation_loss" in line]
            close = losses and abs(found["loss"] - losses[-1]) <= _TOLERANCE * abs(losses[-1])
            return outcome.of(ended, {"loss": found["loss"], "of_train": losses[-1:]}, "" if close else
                              f"its loss is {found['loss']}, and train's was {losses[-1:]}")
        try:
            return _with_run(kit, item, preset, settings, limit, check)
        finally:  # No item behind this one uses the run, which takes gigabytes.
            shutil.rmtree(_short_run(kit, preset), ignore_errors=True)
    return Item(f"evaluate/{preset}", outcome.needs("evaluate", work), seconds)


def _train(kit, item, preset, folder, settings, seconds, checkpoint=""):
    made = training.command(kit, preset, folder, settings)
    if checkpoint:
        made = [*(flag for flag in made if flag != "--overwrite"), f"--resume={checkpoint}"]
    return child.run(made, kit.environment, kit.log(f"{item.name}-train"), seconds, folder=kit.out)


def _checkpoint(folder, step):
    return os.path.join(folder, "checkpoints", f"step-{step:010}")


def _short_run(kit, preset):
    return kit.path("runs", f"short-{preset}")


def _with_run(kit, item, preset, settings, seconds, check):
    """Returns check(folder, seconds) of a short run with a checkpoint and an evaluation. Items share the run."""
    began, folder = time.monotonic(), _short_run(kit, preset)
    if not os.path.isdir(_checkpoint(folder, _RESUMED_AFTER)):
        # All of the data is evaluated, as `evaluate` does.
        more = {**settings, "lr_schedule.steps": str(_RESUMED_AFTER), "telemetry.evaluation_sequences": str(1 << 20),
                "data.evaluation_path": training.tokens(kit, preset)}
        ended = _train(kit, item, preset, folder, more, seconds)
        if ended.code or ended.timed_out:
            return outcome.of(ended)
    made = check(folder, seconds - (time.monotonic() - began))
    return {**made, "seconds": round(time.monotonic() - began, 3)}
