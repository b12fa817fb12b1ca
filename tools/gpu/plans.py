"""Fits the presets to a GPU: their budget, their plans under it, and the GPU's peak FLOP/s."""

import os
import re
from dataclasses import dataclass

from bench.train import textproto
from gpu import child, store

# What CUDA and its libraries may take of a GPU's memory, and how much more on GPUs since Blackwell, and if NCCL joins
# several GPUs. The engine leaves as much if a job sets no budget (DefaultBudget in engine/runtime/cuda_backend.cc). On
# an H200 they took 952 MiB; what NCCL and GPUs since Blackwell take is not measured yet.
OUTSIDE_BYTES, BLACKWELL_BYTES, NCCL_BYTES = 2 << 30, 1 << 30, 1 << 30
_BLACKWELL = 10  # The major compute capability.
# FLOP/s of dense matmuls in bf16 from NVIDIA's data sheets, by pattern of the GPU's name. The engine knows the first
# two too (NominalPeak in engine/runtime/cuda_backend.cc). The NVL and PCIe forms of H100 and H200 are slower.
_PEAK_FLOPS = ((r"A100", 312e12), (r"H[12]00(?!.*(NVL|PCIe))", 989.4e12), (r"\bB200", 2250e12),
               (r"RTX 5090$", 209.5e12))
_UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def budget_bytes(gpu, nccl=False):
    blackwell = int(gpu["compute"].split(".")[0]) >= _BLACKWELL
    return max(0, gpu["bytes"] - OUTSIDE_BYTES - (BLACKWELL_BYTES if blackwell else 0) - (NCCL_BYTES if nccl else 0))


def peak_flops(gpu):
    """Returns the GPU's peak FLOP/s in bf16, or None if it is not known. The engine then measures it for itself."""
    return next((peak for pattern, peak in _PEAK_FLOPS if re.search(pattern, gpu["name"])), None)


@dataclass
class Plan:
    """What `plan` says of a preset. A preset that was refused has neither bytes nor FLOPs."""
    ended: child.Ended = None
    text: str = ""
    refused: str = ""      # Why it does not fit, with the plan's figure.
    bytes: int = 0         # A rank's arena.
    step_flops: float = 0  # FLOPs of a step that count for MFU.


NONE = Plan()  # Of a kit without `plan`.


def settings(gpu):
    """Returns the settings of all presets on this GPU."""
    peak = peak_flops(gpu)
    return {"memory.budget_bytes": str(budget_bytes(gpu)), **({"telemetry.peak_flops": f"{peak:.0f}"} if peak else {})}


def sets(values):
    return [f"--set={name}={value}" for name, value in values.items()]


def plan(kit, preset, seconds=120):
    """Plans the preset on the first GPU. This uses no GPU."""
    log = kit.log(f"plan/{preset}")
    ended = child.run([kit.program("plan"), f"--job={kit.job(preset)}", *sets(settings(kit.gpus[0]))],
                      kit.environment, log, seconds, folder=kit.out)
    text = store.read(log)
    words = " ".join(text.split())
    if refused := re.search(r"needs .* per rank, budget [^,]*", words):
        return Plan(ended, text, refused=f"it {refused[0]}")
    per_token = re.search(r"MFU counts ([\d.]+) ([KMGTP]?)FLOP a token", words)
    flops = float(per_token[1]) * _UNITS[per_token[2]] * tokens_per_step(kit, preset) if per_token else 0
    return Plan(ended, text, bytes=planned_bytes(text) or 0, step_flops=flops)


def planned_bytes(text):
    """Returns the bytes of a rank's arena from the output of `plan`, or None if it names none."""
    found = re.search(r"one arena a rank of [^(]*\(([\d,]+) bytes\)", " ".join(text.split()))
    return int(found[1].replace(",", "")) if found else None


def tokens_per_step(kit, preset):
    with open(kit.job(preset), encoding="utf-8") as file:
        batch = textproto.parse(file.read())["batch"]
    return batch["global_batch"] * batch["sequence_length"]
