"""Fits training runs to a GPU: their budget, their plans under it, and the GPU's peak FLOP/s."""

import re
from dataclasses import dataclass

from bench.train import textproto
from gpu import child, expected, store

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
    """What `plan` says of a training run. A run that was refused has neither bytes nor FLOPs."""
    refused: str = ""       # Why it does not fit, with the plan's figure.
    bytes: int = 0          # A rank's arena.
    token_flops: float = 0  # FLOPs of a token that count for MFU.
    step_tokens: int = 0


def settings(gpu):
    """Returns the settings of all runs on this GPU."""
    peak = peak_flops(gpu)
    return {"memory.budget_bytes": str(budget_bytes(gpu)), **({"telemetry.peak_flops": f"{peak:.0f}"} if peak else {})}


def sets(values):
    return [f"--set={name}={value}" for name, value in values.items()]


def fit(kit, items):
    """Plans the items that train, side by side. This uses no GPU. Sets their plans and the seconds that they are
    expected to take, and skips those that do not fit or that `plan` refuses. Without `plan` in the kit no run is
    planned."""
    training = [item for item in items if item.job]
    if kit.has("plan"):
        child.run_all([_program(kit, item) for item in training], seconds=120, folder=kit.out)
    for item in training:
        preset, values, steps = item.job
        if kit.has("plan"):
            item.plan = read(store.read(_log(kit, item)))
            item.plan.step_tokens = _step_tokens(kit, preset, values)
            item.skip = item.skip or item.plan.refused
        item.expected = expected.train(item.plan, peak_flops(kit.gpus[0]), steps)


def _log(kit, item):
    return kit.log(f"plan/{item.name}")


def _program(kit, item):
    preset, values, _ = item.job
    command = [kit.program("plan"), f"--job={kit.job(preset)}", *sets({**settings(kit.gpus[0]), **values})]
    return child.Program(command, kit.environment, _log(kit, item))


def read(text):
    """Returns the Plan that the output of `plan` tells."""
    words = " ".join(text.split())
    if refused := re.search(r"needs .* per rank, budget [^,]*", words):
        return Plan(refused=f"it {refused[0]}")
    arena = re.search(r"one arena a rank of [^(]*\(([\d,]+) bytes\)", words)
    if not arena:
        return Plan(refused=f"it has no plan: {words[-300:] or 'plan printed nothing'}")
    per_token = re.search(r"MFU counts ([\d.]+) ([KMGTP]?)FLOP a token", words)
    return Plan(bytes=int(arena[1].replace(",", "")),
                token_flops=float(per_token[1]) * _UNITS[per_token[2]] if per_token else 0)


def _batch(kit, preset):
    with open(kit.job(preset), encoding="utf-8") as file:
        return textproto.parse(file.read())["batch"]


def sequence_length(kit, preset):
    return _batch(kit, preset)["sequence_length"]


def _step_tokens(kit, preset, values):
    return int(values.get("batch.global_batch", _batch(kit, preset)["global_batch"])) * sequence_length(kit, preset)
