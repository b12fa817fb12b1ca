#!/usr/bin/env python3
"""Prints the tables of tools/manual/scale.md: steps of Llama 3 70B and 405B on 8 to 16,384 GPUs, as they are planned.

    tools/bench/scale.py [--plan=.out/bin/tools/plan] [--machine=h100x8] [--first=N]

Nothing runs. --first=N prints the table of strategies alone, with the first N rows.
"""

import argparse
import itertools
import json
import re
import subprocess

_GPUS_OF_A_HOST = 8
# The job of each model, and what makes it of that. Adam's moments and masters in 8 and 16 bits: 6 bytes a parameter.
_MODELS = {
    "70B": ["--job=tools/jobs/llama3_8b.textproto", "--set=model.decoder.width=8192", "--set=model.decoder.layers=80",
            "--set=model.decoder.heads=64", "--set=model.decoder.hidden=28672", "--set=batch.sequence_length=8192"],
    "405B": ["--job=tools/jobs/llama3_405b.textproto", "--set=activation_checkpointing.segments=SQRT"],
}
_COMMON = ["--set=precision.master=SPLIT", "--set=optimizer.rule=ADAMW_8BIT", "--set=memory.budget_bytes=75000000000",
           "--set=activation_checkpointing.preset=BLOCK", "--set=batch.micro_batch=1"]


class Planner:
    def __init__(self, program, machine):
        self.program, self.machine = program, machine

    def call(self, model, gpus, *flags):
        command = [self.program, *_MODELS[model], *_COMMON, f"--machine={self.machine}",
                   f"--hosts={-(-gpus // _GPUS_OF_A_HOST)}", *flags]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode not in (0, 2):
            raise SystemExit(f"{' '.join(command)}\n{result.stderr}")
        return result.stdout

    def plan(self, model, gpus, *settings):
        return json.loads(self.call(model, gpus, "--json", *(f"--set={setting}" for setting in settings)))

    def largest_micro_batch(self, model, gpus):
        # With what does not fit, the text is a refusal, on standard error.
        text = self.call(model, gpus, "--fit=batch.micro_batch", f"--set=batch.global_batch={64 * gpus}")
        found = re.search(r"batch\.micro_batch=(\d+)", text)
        return found[1] if found else "none"


def cells(plan):
    """Returns what a row says of a plan: bytes, seconds and shares."""
    seconds = plan["seconds"]
    limits = {part["name"]: part["value"] / seconds["step"] for part in seconds["limits"]}
    busy = {part["name"]: part["value"] / seconds["step"] for part in seconds["busy"]}
    return [f"{plan['memory']['arena_bytes'] / 2**30:.1f} GiB", f"{seconds['step']:.1f} s",
            f"{100 * seconds['mfu']:.1f} %", f"{100 * limits['exposed communication']:.1f} %",
            f"{100 * max(busy['gather'], busy['reduce']):.0f} %"]


_CELLS = ["arena", "step", "MFU", "exposed", "links"]


def table(title, head, rows):
    print(f"\n{title}\n")
    print("| " + " | ".join(head + _CELLS) + " |")
    print("|" + "---|" * (len(head) + len(_CELLS)))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def weak(planner, model, gpu_counts):
    for gpus in gpu_counts:
        settings = [f"batch.global_batch={gpus}"]
        yield [f"{gpus:,}", planner.largest_micro_batch(model, gpus),
               *cells(planner.plan(model, gpus, *settings))]


def strong(planner, model, gpu_counts):
    for gpus in gpu_counts:
        yield [f"{gpus:,}", str(2048 // gpus), *cells(planner.plan(model, gpus, "batch.global_batch=2048"))]


def strategies(planner, model, gpus, tokens):
    for length in tokens:
        for shard_ranks in (gpus, 512, 64, 8):
            settings = [f"batch.global_batch={gpus}", f"batch.sequence_length={length}",
                        f"sharding.shard_ranks={shard_ranks}"]
            yield [f"{length:,}", f"{shard_ranks:,}", *cells(planner.plan(model, gpus, *settings))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", default=".out/bin/tools/plan")
    parser.add_argument("--machine", default="h100x8")
    parser.add_argument("--first", type=int, default=0)
    flags = parser.parse_args()
    planner = Planner(flags.plan, flags.machine)
    for model, gpu_counts in (("70B", [8, 64, 512, 2048, 16384]), ("405B", [64, 512, 2048, 16384])):
        if not flags.first:
            table(f"Llama 3 {model}, one sequence of 8,192 tokens for each GPU", ["GPUs", "largest micro-batch"],
                  weak(planner, model, gpu_counts))
    for model, gpu_counts in (("70B", [64, 256, 512, 1024, 2048]), ("405B", [256, 512, 1024, 2048])):
        if not flags.first:
            table(f"Llama 3 {model}, 2,048 sequences of 8,192 tokens in a step", ["GPUs", "K"],
                  strong(planner, model, gpu_counts))
    rows = strategies(planner, "70B", 2048, [8192, 2048, 512])
    table("Llama 3 70B on 2,048 GPUs, one sequence for each", ["tokens in a sequence", "shard_ranks"],
          itertools.islice(rows, flags.first or None))


if __name__ == "__main__":
    main()
