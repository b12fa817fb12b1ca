"""Defines items that train with PyTorch's FSDP2, with which the engine is compared."""

import json
import os

from gpu import child, outcome, plans, store, training
from gpu.kit import Item

_PROGRAM = os.path.join("tools", "parity", "torch_fsdp2.py")


def torch(kit, preset, micro_batch, sequences, seconds, steps=(training.WARMUP, training.STEPS), checkpoint="none",
          gathered="step"):
    """Returns an item that measures FSDP2 with settings that are known to be good: compiled blocks, PyTorch's choice
    of attention. A step has as many sequences as `sequences` says. `steps` has the number of those that warm up, and of
    those that count. By default parameters stay gathered for the whole step and nothing is computed again; `checkpoint`
    and `gathered` are the program's flags, for models that need less memory."""
    flags = [f"--micro_batch={micro_batch}", f"--checkpoint={checkpoint}", f"--gathered={gathered}",
             f"--tokens_per_step={sequences * plans.sequence_length(kit, preset)}"]
    name = f"torch/{preset}/{micro_batch}" + ("" if checkpoint == "none" else f"/{checkpoint}")
    return Item(name, _work(preset, flags, steps), seconds, skip=_lacks(kit), sampled=True)


def torch_search(kit, preset, seconds):
    """Returns an item that measures FSDP2 at its best. It keeps the trials, so that a search that was cut resumes where
    it stopped."""
    trials = os.path.join("data", f"trials-{preset}.jsonl")
    return Item(f"torch_search/{preset}", _work(preset, ["--search", f"--trials={kit.path(trials)}"],
                                                (training.WARMUP, training.STEPS)), seconds,
                limit=5400, skip=_lacks(kit), sampled=True, keeps=(trials,))


def _lacks(kit):
    return "" if kit.python.torch else f"{kit.python.path} has no PyTorch; name another with --python"


def _work(preset, flags, steps):
    def work(kit, item, seconds):
        peak = plans.peak_flops(kit.gpus[0])
        command = [kit.python.path, os.path.join(kit.root, _PROGRAM), f"--job={kit.job(preset)}", "--ranks=1",
                   f"--tokens={training.tokens(kit, preset)}", f"--warmup={steps[0]}",
                   f"--steps={steps[1]}", *flags, *([f"--peak_flops={peak:.0f}"] if peak else [])]
        ended = child.run(command, kit.plain, kit.log(item.name), seconds, folder=kit.out)
        said = [line for line in store.read(kit.log(item.name)).splitlines() if line.startswith('{"result"')]
        if not said:
            return outcome.of(ended, None, "" if ended.code or ended.timed_out else "it printed no result")
        result = json.loads(said[-1])["result"]
        if not peak:
            result["mfu"] = None
        return outcome.of(ended, result, result.get("failed", ""))
    return work
