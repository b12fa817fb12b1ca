"""Stand-ins for the programs of a kit, within this process: to `run` they look like the real ones."""

import json
import os

from gpu import child

# What the presets need and compute, by what their names contain: bytes of the arena, and GFLOP a token.
_NEEDS = {"lora": (122000000000, 33.4), "0_5b": (45941271304, 3.1), "1_5b": (64074600456, 9.53),
          "3b": (106198074376, 19.0), "7b": (135443899400, 43.0), "8b": (142033912840, 47.0)}
# Settings that save memory, and what is left with them.
_SAVES, _LEFT = ("batch.micro_batch", "optimizer.state", "optimizer.rule", "optimizer.frozen_weights"), 0.58
_SAID = """  parameters  494,032,768 in 26 units
GPU 0: Fake, 1.2 GiB of 140 GiB in use outside the arenas, by CUDA
memory taken outside the arenas: kernels and other programs {kernels}, matmuls -64.0 MiB; {late}"""
_EVALUATION_LOSS = 11.5
_STREAMS = {0: "compute", 1: "communication"}


def _event(step, ts, duration, name, phase, flops, size, **more):
    return {"ph": "X", "pid": 0, "tid": 0, "ts": ts, "dur": duration, "name": name, "cat": phase,
            "args": {"step": step, "instruction": 1, "bytes": size, "flops": flops, **more}}


def trace():
    """Returns a trace of two steps of a matmul, run twice, a norm, and an op that writes a part of what it names."""
    matmul = {"m": 16384, "n": 896, "k": 4864, "transpose_a": False, "transpose_b": True, "dtype": "bf16",
              "result": "f32", "accumulate": True}
    norm = {"operands": {"x": "bf16[16384, 896]", "rstd": "f32[16384]"}}
    calls = (
        (0, 200.0, "MatMul", "forward", 1e11, 4000, matmul), (300, 300.0, "MatMul", "forward", 1e11, 4000, matmul),
        (600, 100.0, "RmsNormForward", "forward", 0, 3e8, norm),
        (700, 1.0, "ZeroRanges", "backward", 0, 3e8, {"operands": {"x": "f32[75000000]"}}))
    events = [_event(step, 1000 * step + at, duration, *rest, **more)
              for step in (3, 4) for at, duration, *rest, more in calls]
    names = [{"ph": "M", "pid": 0, "tid": tid, "name": "thread_name", "args": {"name": name}}
             for tid, name in _STREAMS.items()]
    return {"traceEvents": events + names}


class FakePrograms:
    """Takes the place of child.run_all. `ran` has the name and flags of each program that ran. `instead` maps a program
    to a function that runs in its place: it gets a _Call and returns an exit code."""

    def __init__(self):
        self.ran, self.instead = [], {}
        self.before = lambda name: None  # Called before each program.

    def run_all(self, programs, seconds, enough=None, folder=None):
        return [self._run(program, enough, folder) for program in programs]

    def _run(self, program, enough, folder):
        command = list(program.command)
        while os.path.basename(command[0]) not in _PROGRAMS:  # Another program starts it, such as Python.
            command.pop(0)
        name = os.path.basename(command[0])
        call = Call(name, command[1:], program, enough, folder)
        self.ran.append(call)
        self.before(name)
        os.makedirs(os.path.dirname(program.log), exist_ok=True)
        with open(program.log, "w", encoding="utf-8") as call.output:
            code = self.instead.get(name, _PROGRAMS[name])(call)
        return child.Ended(-9 if call.was_enough else code, 1.0, False, call.was_enough, program.log)


class Call:
    """One program that runs, with its flags and environment."""

    def __init__(self, name, arguments, program, enough, folder):
        self.name, self.arguments, self.program, self.folder = name, arguments, program, folder
        self.environment, self.enough, self.was_enough, self.output = program.environment, enough, False, None
        self.flags = dict(a[2:].split("=", 1) for a in arguments if a.startswith("--") and "=" in a)
        self.sets = dict(a[6:].split("=", 1) for a in arguments if a.startswith("--set="))

    def print(self, text):
        print(text, file=self.output, flush=True)

    def is_enough(self):
        self.was_enough = self.enough is not None and self.enough()
        return self.was_enough

    def write(self, path, text):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def gtest(call, cases):
    """Prints cases as gtest does: {name: "OK", "FAILED", "SKIPPED" or "RUN" for one that never ends}."""
    for name, how in cases.items():
        call.print(f"[ RUN      ] {name}")
        if how == "FAILED":
            call.print("the answer: wanted 42, found 41")
        if how != "RUN":
            call.print(f"[{how:>9} ] {name} (1 ms)" if how != "FAILED" else f"[  FAILED  ] {name}, where 1 = 2 (1 ms)")
    failed = [name for name, how in cases.items() if how == "FAILED"]
    call.print("".join(f"[  FAILED  ] {name}\n" for name in failed))
    return -6 if "RUN" in cases.values() else 1 if failed else 0


def _gpu_tests(call):
    return gtest(call, {f"Suite.Case{call.environment['GTEST_SHARD_INDEX']}": "OK"})


def _train(call):
    folder, steps = call.sets["telemetry.run_folder"], int(call.sets.get("lr_schedule.steps", 99))
    resumed = int(call.flags["resume"][-10:]) if "resume" in call.flags else 0
    assert os.path.exists(call.sets["data.path"])
    eager = call.environment.get("CUDA_MODULE_LOADING") == "EAGER"
    call.print(_SAID.format(kernels="1.1 GiB" if eager else "600 MiB", late="after it was checked: graphs 0 B"))
    rows, speed = "", 100000.0 if "before" in call.name else 160000.0
    for step in range(resumed + 1, steps + 1):
        rows += json.dumps({"step": step, "loss": 12.0 - step, "grad_norm": 1, "seconds": 1.0 + step,
                            "tokens_per_second": speed, "mfu": 0.55, "peak_bytes_planned": 30 << 30,
                            "peak_bytes_measured": 20 << 30}) + "\n"
        call.write(os.path.join(folder, "metrics.jsonl"), rows)
        if call.is_enough():
            return -9
        if step % int(call.sets.get("checkpoint.every_steps", steps)) == 0:
            os.makedirs(os.path.join(folder, "checkpoints", f"step-{step:010}"))
    if "trace" in call.flags:
        call.write(call.flags["trace"], json.dumps(trace()))
        if call.is_enough():
            return -9
    call.write(os.path.join(folder, "metrics.jsonl"), rows + json.dumps({"step": steps, "evaluation_loss":
                                                                         _EVALUATION_LOSS}) + "\n")
    return 0


def _plan(call):
    needed, flops = next(row for name, row in _NEEDS.items() if name in os.path.basename(call.flags["job"]))
    needed = int(needed * (_LEFT if any(name in call.sets for name in _SAVES) else 1))
    budget = int(call.sets["memory.budget_bytes"])
    if needed > budget:
        call.print(f"plan: needs {needed / 2**30:.1f} GiB per rank, budget {budget / 2**30:.1f} GiB, too little")
        return 2
    call.print(f"  memory  one arena a rank of {needed / 2**30:.1f} GiB ({needed:,} bytes): training uses all\n"
               f"  arithmetic  a step of one rank: forward 1 TFLOP; MFU counts {flops}\n     GFLOP a token")
    return 0


def _tune(call):
    call.write(call.flags["out"] + "Fake_H200.txt", "tuned\n")
    return 0


def _bench(call):
    if call.arguments[0] in ("formats", "sweep"):
        return _bench_lines(call)
    op = {"op": "RmsNormForward", "size": "[16384, 896]", "act": "bf16", "seconds": 1e-5, "best_seconds": 9e-6,
          "bytes": 4e7, "bytes_per_second": 4e12, "of_copy": 0.9, "of_large_copy": 0.8}
    matmul = {"op": "MatMul", "size": "1 x 2 x 3", "act": "bf16", "seconds": 1e-5, "best_seconds": 8e-6, "flops": 6.5e9,
              "bytes": 1e6, "flops_per_second": 6.5e14, "of_peak": 0.9}
    gather = {"collective": "AllGather", "dtype": "bf16", "ranks": 2, "size_bytes": 1 << 20, "seconds": 1e-5,
              "algbw_bytes_per_second": 1e11, "busbw_bytes_per_second": 5e10}
    results = [gather] if call.arguments[0] == "comm" else [op, dict(op, of_copy=0.5), matmul]
    if "--only=^attention" in call.arguments:
        own = "--own_attention" in call.arguments
        attention = dict(matmul, op="AttentionBackward", size="[4, 4096, 14, 64]", flops=3e11,
                         seconds=1.5e-3 if own else 2e-3, kernels="own" if own else "cuDNN")
        results += [attention, dict(attention, op="AttentionBackward window", seconds=1e-3),
                    dict(attention, op="AttentionForward soft cap", kernels="own")]
    sustained = 7.0e14 if "sustained_seconds" in call.flags else 0
    call.write(call.flags["json"], json.dumps({"sustained_bf16": sustained, "results": results}))
    return 0


def _bench_lines(call):
    lines = ({"conversion": "e4m3", "different": 0},
             {"m": 16, "n": 32, "k": 64, "format": "e4m3 fast", "result": "bf16", "seconds": 1e-6,
              "tflops_per_second": 0.065},
             {"m": 16, "n": 32, "k": 64, "format": "e5m2", "result": "bf16", "not_measured": "no algorithm"})
    if call.arguments[0] == "sweep":
        lines = ({"setting": "batch.micro_batch=8", "tokens_per_second": 150000.0, "mfu": 0.5, "seconds": 0.5,
                  "measured_bytes": 20 << 30}, {"setting": "batch.micro_batch=32", "not_measured": "it needs more"})
    call.write(call.flags["json"], "".join(json.dumps(line) + "\n" for line in lines))
    return 0


def _try_nccl(call):
    rows = [{"collective": "AllGather", "bytes": 1 << 20, "a_step": 4.0, "seconds": 1e-3, "fastest_seconds": 9e-4}]
    call.write(call.flags["json"], json.dumps({
        "check": call.arguments[0], "processes": int(call.flags["processes"]), "status": "passed", "seconds": 9.0,
        "about": "as planned", "rows": rows if call.arguments[0] == "traffic" else []}))
    return 0


def _generate(call):
    call.print(" ".join(["3"] * int(call.flags["tokens"])))
    return 0


def _evaluate(call):
    call.write(call.flags["json"], json.dumps({"loss": _EVALUATION_LOSS}))
    return 0


def _torch(call):
    assert "LD_LIBRARY_PATH" not in call.environment
    call.print('noise\n{"trial": {}}')
    call.print(json.dumps({"result": {
        "tokens_per_second": 100000.0, "step_seconds": 5.2, "mfu": 0.33, "losses": [11.9, 11.0],
        "parameters": 494032768, "max_memory_allocated": 60 << 30, "max_memory_reserved": 66 << 30, "micro_batch": 16,
        "checkpoint": "none", "gathered": "step", "attention": "cudnn"}}))
    return 0


_PROGRAMS = {"gpu_tests": _gpu_tests, "train": _train, "plan": _plan, "tune": _tune, "bench": _bench,
             "bench_before": _bench, "train_before": _train, "generate": _generate, "evaluate": _evaluate,
             "torch_fsdp2.py": _torch, "try_nccl": _try_nccl}
