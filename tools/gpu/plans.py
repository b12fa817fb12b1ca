"""Fits training runs to a GPU: their budget, their plans under it, and the GPU's peak FLOP/s."""

import re
from dataclasses import dataclass

from bench.train import textproto
from gpu import child, expected, store

# What CUDA and its libraries may take of a GPU's memory, and how much more on GPUs since Blackwell, and if NCCL joins
# several GPUs. The engine leaves as much if a job sets no budget (DefaultBudget in
# engine/run/backends/cuda_backend.cc). On an H200 they took 952 MiB; what NCCL and GPUs since Blackwell take is not
# measured yet.
OUTSIDE_BYTES, BLACKWELL_BYTES, NCCL_BYTES = 2 << 30, 1 << 30, 1 << 30
_BLACKWELL = 10  # The major compute capability.
# TFLOP/s of dense matmuls in bf16, by the GPU's whole name: a slice of a GPU (MIG) has another. These are those by
# which the engine states MFU (engine/run/backends/gpu_peaks.cc).
_PEAK_TFLOPS = {
    "NVIDIA A10": 125, "NVIDIA A100-PCIE-40GB": 312, "NVIDIA A100 80GB PCIe": 312, "NVIDIA A100-SXM4-40GB": 312,
    "NVIDIA A100-SXM4-80GB": 312, "NVIDIA A40": 149.7, "NVIDIA B200": 2250, "NVIDIA GB200": 2500,
    "NVIDIA GH200 144G HBM3e": 989.4, "NVIDIA GH200 480GB": 989.4, "NVIDIA GeForce RTX 3090": 71,
    "NVIDIA GeForce RTX 4090": 165.2, "NVIDIA GeForce RTX 5090": 209.5, "NVIDIA H100 80GB HBM3": 989.4,
    "NVIDIA H100 NVL": 835.5, "NVIDIA H100 PCIe": 756, "NVIDIA H200": 989.4, "NVIDIA H200 NVL": 835.5, "NVIDIA L4": 121,
    "NVIDIA L40": 181, "NVIDIA L40S": 362, "NVIDIA RTX 6000 Ada Generation": 364.2, "NVIDIA RTX A6000": 154.8,
}
_UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def budget_bytes(gpu, nccl=False):
    blackwell = int(gpu["compute"].split(".")[0]) >= _BLACKWELL
    return max(0, gpu["bytes"] - OUTSIDE_BYTES - (BLACKWELL_BYTES if blackwell else 0) - (NCCL_BYTES if nccl else 0))


def peak_flops(gpu):
    """Returns the GPU's peak FLOP/s in bf16, or None if it is not known. The engine then measures it for itself."""
    return 1e12 * _PEAK_TFLOPS[gpu["name"]] if gpu["name"] in _PEAK_TFLOPS else None


@dataclass
class Plan:
    """What `plan` says of a training run. A run that was refused has neither bytes nor FLOPs."""
    refused: str = ""       # Why it does not fit, with the plan's figure.
    bytes: int = 0          # A rank's arena.
    token_flops: float = 0  # FLOPs of a token that count for MFU.
    step_tokens: int = 0


def settings(gpu):
    """Returns the settings of all runs on this GPU."""
    return {"memory.budget_bytes": str(budget_bytes(gpu))}


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
        item.expected = item.runs * expected.train(item.plan, peak_flops(kit.gpus[0]), steps)


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
