"""The orders of a kit: lists of items, the most valuable first, for visits to a GPU that end at any moment."""

import json
import os

from gpu import benches, expected, nccl, plans, runs, suites, turns
from gpu.gpus import first_of_kinds
from gpu.kit import OF_BEFORE
from gpu.peers import torch, torch_search
from gpu.suites import sanitized, tests
from gpu.training import traced, train

# Presets in the order in which the targets were set for them.
SHAPES = ("qwen2_5_0_5b", "qwen2_5_1_5b", "qwen2_5_3b", "qwen2_5_7b", "llama3_8b")
PRESETS = tuple(f"{shape}_{sequence}" for sequence in (1024, 4096) for shape in SHAPES)
SMALL, SMALL_LONG, MIDDLE, MIDDLE_LONG, LARGE, LARGE_LONG, HUGE, HUGE_LONG = (
    "qwen2_5_0_5b_1024", "qwen2_5_0_5b_4096", "qwen2_5_1_5b_1024", "qwen2_5_1_5b_4096", "qwen2_5_3b_1024",
    "qwen2_5_3b_4096", "qwen2_5_7b_1024", "qwen2_5_7b_4096")
# Adapters of frozen models, for one GPU of 80 GB.
ADAPTER_PRESETS = ("llama3_8b_lora_4096", "qwen2_5_7b_lora_4096")
# The preset whose bench of ops also measures the rate of a matmul that runs for a minute.
SUSTAINED = LARGE

# Settings of steps. 64 sequences of 1,024 tokens, or 32 of 4,096, take a few seconds for all steps of a row.
SHORT, LONG, FEW = ({"batch.global_batch": str(count)} for count in (64, 32, 16))
# What the preset of 0.5B had before: half as many tokens in a micro-batch, and in a chunk of the loss.
NARROW = {"batch.micro_batch": "16", "memory.loss_chunk_tokens": "8192"}
# Losses of so many steps are compared, of 0.5B alone: three times 200 steps of 16,384 tokens take 2 minutes for it, 5
# for 1.5B, 9 for 3B and 20 for 7B.
MANY_STEPS = (2, 198)
MANY = {**FEW, "batch.micro_batch": "16", "lr_schedule.steps": str(sum(MANY_STEPS))}
FLOAT8 = {"precision.matmuls": "FP8"}
BLOCKWISE = {**FLOAT8, "precision.fp8_scaling": "BLOCKWISE"}
FORMATS = {"bf16": {}, "fp8": FLOAT8, "fp8_blockwise": BLOCKWISE}
# Steps before those that count, and those, where a step takes many seconds or has 524,288 tokens.
FEW_STEPS, FEWEST_STEPS = (2, 2), (1, 2)
NO_GRAPHS = {"runtime.graphs": "false"}
# The workspace of attention that a job needs, without what the plan adds where there is room.
TIGHT = {"runtime.attention_workspace_bytes": str(256 << 20)}
FREE = {"runtime.deterministic_attention": "false"}
# What steps of 0.5B had when the first ones were measured on a GPU.
EARLIER = {**NARROW, **NO_GRAPHS, **TIGHT}
WHOLE_CHUNK = {"memory.loss_chunk_tokens": "16384"}
# Attention by cuDNN where it can compute it, and by the engine's own kernels also there, whichever is faster.
CUDNN_ATTENTION, OWN_ATTENTION = ({"runtime.cudnn_attention": value} for value in ("true", "false"))
# Token 3 of the random tokens divides them into documents of some 370 tokens.
PACKED = {"data.packing": "PACK", "data.document_end_token": "3"}
# 16,384 tokens in a micro-batch of 7B, and of adapters.
LARGER = {1024: {"batch.micro_batch": "16"}, 4096: {"batch.micro_batch": "4"}}
EIGHT_BIT = {"optimizer.rule": "ADAMW_8BIT"}
LEAN = {"optimizer.state": "LEAN", "precision.master": "NONE"}
# Token 20 of the random tokens divides them into documents of some 1,200 tokens.
ADAPTERS = {"model.adapter.rank": "16", "optimizer.frozen_weights": "NF4", "data.document_end_token": "20"}
SWEPT = {"activation_checkpointing.preset": ("NONE", "CHEAP"), "batch.micro_batch": ("8", "16", "32"),
         "memory.loss_chunk_tokens": ("8192", "16384"), "runtime.graphs": ("true", "false")}
# What presets change to fit 80 GB.
IN_80_GB = {"qwen2_5_3b": {1024: {"batch.micro_batch": "8"}, 4096: {"batch.micro_batch": "2"}},
            "qwen2_5_7b": dict.fromkeys((1024, 4096), {**LEAN, "precision.gradient_shards": "BF16"})}

# Cases of gpu_tests.
NO_LAWS = f"-*Laws*:*Nccl*:{suites.MODULES}.*"
NOT_SANITIZED = f"-*DeathTest*:*Laws*:*Nccl*:*Communicator*:StreamOrdered*:*Device*:{suites.MODULES}.*"
LAWS = (
    ("steps", "StepLaws.*:CommunicationLaws.*:LossLaws.*", 45),
    ("optimizers", "AdafactorLaws.*:GroupClippingLaws.*:OptimizerLaws.*:OptimizerGroupLaws.*:UpdateLaws.*:"
                   "GradientShardLaws.*:MuonLaws.*:ReduceLaws.*", 40),
    ("offload", "StateOffloadLaws.*", 15),
    ("graphs", "GraphLaws.*", 15),
    ("jobs", "*/JobLaws.*:*/LiveStateLaws.*", 60),
    ("memory", "MemoryLaws.*", 20),
    ("others", "AdapterLaws.*:FillLaws.*:Float8BlockwiseLaws.*:Float8Laws.*:FrozenLaws.*:LossScaleLaws.*:"
               "PackingLaws.*:TargetWeightLaws.*", 60),
)
# Each kernel file, and a case that runs its kernels. Those of update rules have cases of one form (update_cases.cc).
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "sanitized.json"), encoding="utf-8") as file:
    CASE_OF_FILE = json.load(file)
REDUCTIONS = ("attention.cu", "attention_backward.cu", "attention_backward_matrices.cu", "attention_matrices.cu",
              "cross_entropy.cu", "norm.cu", "norm_backward.cu", "update_*.cu")


def _attention(kit, preset, settings, seconds):
    """Returns items that compare the engine's attention with cuDNN's: alone, and in steps."""
    return [*benches.attention(preset, seconds),
            turns.in_turns(kit, preset, "attention", [turns.Side("cudnn", settings=CUDNN_ATTENTION),
                                                      turns.Side("own", settings=OWN_ATTENTION)], settings)]


def _pairs(kit):
    """Returns items that compare what changed since the first runs on a GPU (tools/bench/results/2026-11-27-h200.md)
    with what was there: steps, what each op takes of them, and kernels alone, by the programs of an earlier commit, if
    the kit has them; and attention by the engine's own kernels with cuDNN's. All fit 80 GB. Heads have 64 elements in
    0.5B, and 128 in larger models."""
    packed = {**SHORT, **PACKED}
    return [
        turns.before_and_now(kit, SMALL, "steps", SHORT, turns=2),
        traced(SMALL, OF_BEFORE[1:], SHORT, before=kit),
        traced(SMALL, settings=SHORT),
        *benches.before_and_after(kit, SMALL, benches.CHANGED, 14, "kernels"),
        *_attention(kit, SMALL_LONG, FEW, 9),
        *_attention(kit, MIDDLE_LONG, FEW, 9),
        turns.before_and_now(kit, SMALL, "pack", packed),
        traced(SMALL, "pack" + OF_BEFORE, packed, before=kit),
        traced(SMALL, "pack", packed),
    ]


def _more_pairs(kit):
    """Returns more of these, of the other presets."""
    return [
        turns.before_and_now(kit, SMALL_LONG, "steps", FEW, turns=2),
        turns.before_and_now(kit, MIDDLE, "steps", SHORT),
        turns.before_and_now(kit, LARGE, "steps", {**SHORT, **IN_80_GB["qwen2_5_3b"][1024]}),
        *_attention(kit, SMALL, SHORT, 9),
        *_attention(kit, MIDDLE, SHORT, 9),
        *(item for preset in (MIDDLE, LARGE, HUGE)
          for item in benches.before_and_after(kit, preset, benches.ROWS, 6, "rows")),
    ]


def _speed(kit):
    files = ":".join(CASE_OF_FILE.values())
    return [
        tests("ops", NO_LAWS, 60),
        *_pairs(kit),
        # 524,288 tokens a step.
        train(SMALL, "as_peer", steps=FEWEST_STEPS),
        torch(kit, SMALL, 32, 512, 60),
        train(SMALL_LONG, "as_peer", steps=FEWEST_STEPS),
        torch(kit, SMALL_LONG, 8, 128, 65),
        # Micro-batches of 4,096 tokens in a sequence have the same matmuls.
        *(benches.tune(preset, 64, seconds) for preset, seconds in ((SMALL, 32), (MIDDLE, 32), (LARGE, 43))),
        turns.library_and_table(kit, SMALL, "table", SHORT, turns=2),
        train(SMALL, settings=SHORT),
        train(SMALL_LONG, settings=LONG),
        train(MIDDLE, "best", {**SHORT, **WHOLE_CHUNK}, tuned=True),
        train(LARGE, settings=SHORT),
        train(LARGE_LONG, settings=FEW),
        *_more_pairs(kit),
        *(turns.library_and_table(kit, preset, "table", settings)
          for preset, settings in ((SMALL_LONG, FEW), (MIDDLE, SHORT), (LARGE, SHORT))),
        turns.in_turns(kit, SMALL, "narrow", [turns.Side("narrow", settings=NARROW), turns.Side("preset")], SHORT),
        train(SMALL, "earlier", {**SHORT, **EARLIER}),
        train(SMALL, "free_attention", {**SHORT, **FREE}),
        train(SMALL_LONG, "tight", {**LONG, **TIGHT}),
        traced(SMALL_LONG, settings=LONG),
        traced(MIDDLE, settings=SHORT),
        torch(kit, SMALL, 16, 512, 60),
        *(sanitized(kit, tool, "files", files, 45) for tool in ("memcheck", "racecheck")),
        benches.sweep(SMALL, SHORT, SWEPT, 100),
    ]


def _nccl(kit):
    ranks, mixed = _several(kit)
    # Each rank has a micro-batch of 8 sequences.
    several = {"sharding.ranks": str(ranks[-1]), "batch.micro_batch": "8",
               "memory.budget_bytes": str(plans.budget_bytes(kit.gpus[0], nccl=True))} if ranks else {}
    return [
        *(suites.in_processes("nccl", "NcclProcesses*", processes, 30) for processes in (2, 4)),
        nccl.check("bits", 2, 75),
        nccl.check("kill", 2, 60),
        nccl.check("traffic", 2, 15),
        nccl.check("resume", 2, 50),
        nccl.check("bits", 4, 110),
        nccl.check("resume", 4, 60),
        nccl.check("traffic", 4, 15),
        nccl.check("refused", 2, 30),
        *(benches.comm_in_processes(processes, 45) for processes in (2, 4)),
        tests("nccl", "*Nccl*-NcclProcesses*", 15),
        benches.comm("in_process", "cuda", [2, 4], 60),
        *([benches.comm("nccl", "nccl", ranks, 60, skip=mixed),
           train(SMALL, "nccl", {**SHORT, **several}, skip=mixed),
           train(SMALL, "nccl_windows", {**SHORT, **several, "runtime.nccl_windows": "true"}, skip=mixed),
           benches.comm("peers", "cuda", ranks, 60, ["--ranks_per_device=1"], skip=mixed)] if ranks else []),
    ]


def _verify(kit):
    reductions = ":".join(CASE_OF_FILE[name] for name in REDUCTIONS)
    return [
        *(tests(f"laws/{name}", chosen, seconds) for name, chosen, seconds in LAWS),
        runs.resume(SMALL, SHORT, 75),
        runs.generate(SMALL, SHORT, 45),
        runs.evaluate(SMALL, SHORT, 45),
        *(sanitized(kit, tool, "reductions", reductions, 30) for tool in ("initcheck", "synccheck")),
    ]


def _large(kit):
    return [
        *(train(HUGE, f"{name}_16k", {**SHORT, **state, **LARGER[1024]}, steps=FEW_STEPS)
          for name, state in (("8bit", EIGHT_BIT), ("lean", LEAN))),
        *(train(HUGE_LONG, f"{name}_16k", {**FEW, **state, **LARGER[4096]}, steps=FEW_STEPS)
          for name, state in (("8bit", EIGHT_BIT), ("lean", LEAN))),
        *(train(preset, settings={**FEW, **LARGER[4096]}, steps=FEW_STEPS) for preset in ADAPTER_PRESETS),
        train(HUGE_LONG, "nf4_pack", {**FEW, **ADAPTERS, "data.packing": "PACK"}, steps=FEW_STEPS),
        train(HUGE_LONG, "nf4_pad", {**FEW, **ADAPTERS, "data.packing": "PAD"}, steps=FEW_STEPS),
        train(LARGE, "state_offload", {**SHORT, "memory.offload_state": "[MOMENTS, MASTERS]"}, steps=FEW_STEPS),
        train(LARGE, "update_on_host", {**SHORT, "optimizer.device": "HOST"}, steps=FEW_STEPS),
        train(HUGE, "lean", {**SHORT, **LEAN}, steps=FEW_STEPS),
        benches.tune(HUGE, 64, 37),
        turns.library_and_table(kit, HUGE, "table", SHORT, steps=(1, 1)),
        benches.tune(HUGE, 64, 87, "16k", {**EIGHT_BIT, **LARGER[1024]}),
        turns.library_and_table(kit, HUGE, "table_16k", {**SHORT, **EIGHT_BIT, **LARGER[1024]}, steps=(1, 1)),
    ]


def _h100(kit):
    """What fits 80 GB. FSDP2 of 7B does not: with fp32 masters it takes 16 bytes for each parameter, 113 GiB."""
    fits = {f"{shape}_{sequence}": IN_80_GB.get(shape, {}).get(sequence, {}) for shape in SHAPES[:4]
            for sequence in (1024, 4096)}
    as_peer = lambda preset: train(preset, "80_gb", fits[preset], steps=FEWEST_STEPS)
    return [
        *_pairs(kit),
        *(item for preset in (SMALL, MIDDLE) for item in _in_formats(preset)),
        *_in_formats(LARGE, "80_gb_", fits[LARGE]),
        as_peer(SMALL),
        torch(kit, SMALL, 16, 512, 60),
        as_peer(MIDDLE),
        torch(kit, MIDDLE, 8, 512, 75, FEWEST_STEPS),
        as_peer(LARGE),
        torch(kit, LARGE, 4, 512, 110, FEWEST_STEPS, gathered="pass"),
        *_in_formats(HUGE, "80_gb_", fits[HUGE]),
        as_peer(HUGE),
        *_more_pairs(kit),
        as_peer(SMALL_LONG),
        torch(kit, SMALL_LONG, 4, 128, 65),
        *(as_peer(preset) for preset in (MIDDLE_LONG, LARGE_LONG, HUGE_LONG)),
        *(train(preset, "80_gb", {**FEW, **LARGER[4096]}, steps=FEW_STEPS) for preset in ADAPTER_PRESETS),
    ]


def _peer(kit):
    """Steps of 524,288 tokens of models above 0.5B, beside FSDP2's in one setting that fits an H200. Parameters of 7B
    are gathered for a pass alone, and it recomputes: without that it takes more than 140 GB."""
    return [
        *(item for preset, micro_batch, seconds in ((MIDDLE, 16, 75), (LARGE, 8, 105))
          for item in (train(preset, "as_peer", steps=FEWEST_STEPS),
                       torch(kit, preset, micro_batch, 512, seconds, FEWEST_STEPS))),
        train(HUGE, "as_peer", steps=FEWEST_STEPS),
        *(torch(kit, HUGE, 4, 512, seconds, FEWEST_STEPS, checkpoint, "pass")
          for checkpoint, seconds in (("selective", 190), ("block", 220))),
    ]


def _in_formats(preset, label="", settings=()):
    """Returns items that train the preset in bf16, and with fp8 matmuls of both scalings."""
    return [train(preset, label + name, {**SHORT, **dict(settings), **values}, steps=FEW_STEPS)
            for name, values in FORMATS.items()]


def _reduced(kit):
    """Returns items that train on two ranks of one GPU, which send their gradients in fp32 and in bf16."""
    ranks = {**SHORT, **NARROW, "sharding.ranks": "2", "runtime.ranks_per_device": "2",
             "sharding.accumulation": "SHARDED", "memory.budget_bytes": str(plans.budget_bytes(kit.gpus[0]) // 2)}
    return [train(SMALL, f"two_ranks_reduce_{name.lower()}", {**ranks, "precision.reduce": name}, steps=FEW_STEPS)
            for name in ("FP32", "BF16")]


def _formats(kit):
    rates = [item for shape in SHAPES for item in (
        benches.formats(f"{shape}_1024", 30), benches.ops(f"{shape}_1024", "bf16", benches.FLOAT8, 35, "float8"))]
    return [*rates[:2],
            *(train(SMALL, f"{name}_200_steps", {**MANY, **values}, steps=MANY_STEPS)
              for name, values in FORMATS.items()),
            *(item for preset in (SMALL, MIDDLE, LARGE) for item in _in_formats(preset)),
            *_in_formats(HUGE, "8bit_16k_", {**EIGHT_BIT, **LARGER[1024]}),
            *_reduced(kit),
            *rates[2:]]


def _hours(kit):
    """Everything that takes too long for a visit, or tells little for its time."""
    parts, cases = 24, 4000
    each = cases / parts / max(1, kit.at_once) * expected.SANITIZED_CASE
    return [
        *(benches.ops(preset, "bf16", "", 150, more=["--sustained_seconds=60"] if preset == SUSTAINED else [])
          for preset in PRESETS if preset.endswith("_1024")),
        *(benches.ops(preset, "bf16", "attention|rope", 60) for preset in PRESETS if preset.endswith("_4096")),
        *(benches.ops(preset, "f32", benches.FLAT, 90, "flat") for preset in PRESETS if preset.endswith("_1024")),
        *(train(SMALL, f"loading_{mode}", SHORT, variables={"CUDA_MODULE_LOADING": mode.upper()})
          for mode in ("eager", "lazy")),
        *(item for preset in PRESETS for item in (train(preset, "full"), train(preset, "full_no_graphs", NO_GRAPHS),
                                                  torch_search(kit, preset, 1400))),
        *(sanitized(kit, tool, f"all/{part}", NOT_SANITIZED, each, part, parts)
          for tool in ("memcheck", "racecheck") for part in range(1, parts + 1)),
    ]


# In the order in which a run without --order does them.
ORDERS = {"speed": _speed, "nccl": _nccl, "verify": _verify, "large": _large, "h100": _h100, "formats": _formats,
          "peer": _peer, "hours": _hours}


def _several(kit):
    """Returns the numbers of ranks to measure with a GPU each, and why they cannot be measured, or ""."""
    ranks = [n for n in (2, 4, 8) if n <= len(kit.gpus)]
    used = kit.gpus[:ranks[-1] if ranks else 0]
    kinds = [used[number]["name"] for number in first_of_kinds(used)]
    return ranks, (f"the GPUs are of different kinds ({', '.join(kinds)}); choose those of one kind with "
                   "CUDA_VISIBLE_DEVICES" if len(kinds) > 1 else "")


def items(kit, names):
    """Returns the items of these orders, each item once, behind those that run a kernel of each module. Items that
    train are planned."""
    made = [item for name in names for item in ORDERS[name](kit)]
    found = list({item.name: item for item in [*suites.gates(kit, 15), *made]}.values())
    plans.fit(kit, found)
    return found
