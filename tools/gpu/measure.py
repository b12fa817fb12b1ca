"""Defines the work of each item: how it runs, and how its output becomes a result."""

import json
import os
import re
import shutil
import statistics
import time

from bench.train import textproto, workloads
from gpu import child, plans, store

# Selects the ops on flat vectors, for runs of the ops bench in f32. Runs in bf16 do not have their f32 forms.
FLAT = "^(sum|sumsquares|accumulate|copy|adamw|adamw8bit|sgd|lion)( |$)"

# The lines of train's output that tell what libraries it uses and what they took of the GPU's memory.
_ABOUT_LIBRARIES = re.compile(r"in use outside the arenas|were taken after it was checked|cuBLASLt|cuDNN|NCCL|NVRTC")
# Its line on who took the GPUs' memory, in the words of MemoryLedger (engine/runtime/memory_ledger.h).
_TAKEN = re.compile(r"^memory taken outside the arenas[^:]*: (.*)$", re.MULTILINE)

_SANITIZER_ERROR = 97
# compute-sanitizer patches every kernel that is loaded, and kernels that a test does not use would cost hours.
_LAZY = {"CUDA_MODULE_LOADING": "LAZY"}
# Names of the items that show what takes memory: the values of CUDA_MODULE_LOADING, and training with NCCL, with its
# settings. Not all GPUs can have windows.
MODES = ("eager", "lazy")
WITH_NCCL = {"nccl": {}, "nccl_windows": {"runtime.nccl_windows": "true"}}
_MOST_SAID = 300  # Characters of a failure's text.


def _outcome(ended, result=None, wrong=""):
    """Makes an outcome of an ended program. `wrong` says why the item failed although the exit code may be 0."""
    outcome = {"status": store.PASSED, "about": "", "seconds": round(ended.seconds, 3)}
    if result is not None:
        outcome["result"] = result
    if ended.timed_out:
        outcome.update(status="timed out", about=f"did not end within {ended.seconds:.0f} s: {ended.tail(1)}")
    elif wrong:
        outcome.update(status=store.FAILED, about=wrong)
    elif ended.code != 0 and not ended.enough:
        outcome.update(status=store.FAILED, about=f"ended with {ended.code}: {ended.tail()}")
    return outcome


def _json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def tests(names, sanitizer=None, variables=()):
    """Returns work that runs these test cases of gpu_tests, under a tool of compute-sanitizer if one is given.
    `variables` is added to the environment."""
    def work(kit, item, seconds):
        path = kit.log(item.name) + ".json"
        store.remove(path)
        before = [kit.sanitizer, f"--tool={sanitizer}", f"--error-exitcode={_SANITIZER_ERROR}"] if sanitizer else []
        command = [*before, kit.program("gpu_tests"), f"--gtest_filter={':'.join(names)}",
                   f"--gtest_output=json:{path}"]
        environment = {**kit.environment, **(_LAZY if sanitizer else {}), **dict(variables)}
        ended = child.run(command, environment, kit.log(item.name), seconds, kit.stop.is_set, folder=kit.out)
        report = _json(path) or {}
        cases = [case for group in report.get("testsuites", []) for case in group.get("testsuite", [])]
        failed = [case for case in cases if case.get("failures")]
        skips = sum(case.get("result") == "SKIPPED" for case in cases)
        result = {"tests": len(cases), "failed": [case["name"] for case in failed], "skipped": skips}
        wrong = ""
        if failed:
            said = " ".join(failed[0]["failures"][0].get("failure", "").split())[:_MOST_SAID]
            wrong = (f"{len(failed)} of {len(cases)} failed: {', '.join(result['failed'][:5])}"
                     + (f"; the first says: {said}" if said else ""))
        elif ended.code == _SANITIZER_ERROR and sanitizer:
            wrong = f"{sanitizer} found errors: {ended.tail(1)}"
        elif ended.code == 0 and not cases:
            wrong = "no test ran"
        outcome = _outcome(ended, result, wrong)
        if outcome["status"] == store.PASSED and skips:
            outcome["about"] = f"{skips} of {len(cases)} skipped"
        return outcome
    return work


def plan(preset):
    """Returns work that plans the preset's training, to find how much GPU memory it needs. It uses no GPU."""
    def work(kit, item, seconds):
        made = plans.plan(kit, preset, seconds)
        if not made.bytes:
            return _outcome(made.ended, None, "" if made.ended.code or made.ended.timed_out else "it names no arena")
        return _outcome(made.ended, {"peak_bytes_planned": made.bytes, "step_flops": made.step_flops,
                                     "text": made.text})
    return work


def tune(preset):
    """Returns work that tunes the preset's matmuls and adds the algorithms to the table that training and benches
    use."""
    def work(kit, item, seconds):
        command = [kit.program("tune"), f"--job={kit.job(preset)}", f"--out={kit.path('tuning.txt')}"]
        return _outcome(child.run(command, kit.environment, kit.log(item.name), seconds, folder=kit.out))
    return work


def sizes_of(job):
    """Returns the flags of the ops bench for a micro-batch of the job."""
    model, batch = job["model"]["decoder"], job["batch"]
    width, hidden, heads, kv_heads = (model[name] for name in ("width", "hidden", "heads", "kv_heads"))
    head_width = model.get("head_width", width // heads)
    tokens = batch["micro_batch"] * batch["sequence_length"]
    block = (2 * heads + 2 * kv_heads) * head_width * width + 3 * width * hidden
    sizes = {"tokens": tokens, "sequence": batch["sequence_length"], "width": width, "hidden": hidden,
             "vocabulary": model["vocabulary"], "heads": heads, "kv_heads": kv_heads, "head_width": head_width,
             "head_tokens": min(tokens, job["memory"]["loss_chunk_tokens"]), "parameters": block, "square": 8192}
    return [f"--{name}={value}" for name, value in sizes.items()]


def _tuned(kit):
    table = kit.path("tuning.txt")
    return table if os.path.exists(table) else None


def ops(job, dtype, only="", more=()):
    def work(kit, item, seconds):
        path = kit.log(item.name) + ".json"
        store.remove(path)
        command = [kit.program("bench"), "ops", "--device=cuda", *sizes_of(job), f"--dtype={dtype}", f"--json={path}",
                   "--copy_mib=1024", *more]
        command += [f"--only={only}"] if only else []
        command += [f"--tuning_table={_tuned(kit)}"] if _tuned(kit) else []
        ended = child.run(command, kit.environment, kit.log(item.name), seconds, folder=kit.out)
        report = _json(path)
        return _outcome(ended, report, "" if report or ended.code or ended.timed_out else "it wrote no result")
    return work


def comm(device, ranks, *more):
    def work(kit, item, seconds):
        path = kit.log(item.name) + ".json"
        store.remove(path)
        command = [kit.program("bench"), "comm", f"--device={device}", f"--ranks={','.join(map(str, ranks))}",
                   "--smallest_kib=1024", "--largest_kib=262144", f"--json={path}", *more]
        ended = child.run(command, kit.environment, kit.log(item.name), seconds, folder=kit.out)
        report = _json(path)
        return _outcome(ended, report, "" if report or ended.code or ended.timed_out else "it wrote no result")
    return work


def _tokens(kit, preset):
    with open(kit.job(preset), encoding="utf-8") as file:
        vocabulary = textproto.parse(file.read())["model"]["decoder"]["vocabulary"]
    return workloads.write_tokens(kit.path("data"), vocabulary)


def _rows(path):
    """Returns the rows of training steps in a metrics.jsonl, without an incomplete last line."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")[:-1]
    except OSError:
        return []
    return [row for row in map(json.loads, lines) if "seconds" in row]


def train(preset, settings=(), variables=()):
    """Returns work that measures the engine's steps. It kills `train` after enough of them, because the final
    checkpoint is not measured. `variables` is added to the environment."""
    def work(kit, item, seconds):
        folder = kit.path("runs", item.name.replace("/", "-"))
        shutil.rmtree(folder, ignore_errors=True)
        metrics = os.path.join(folder, "metrics.jsonl")
        wanted = kit.warmup + kit.steps
        values = {**plans.settings(kit.gpus[0]), "data.path": _tokens(kit, preset), "telemetry.run_folder": folder,
                  **dict(settings)}
        if _tuned(kit):
            values["runtime.tuning_table"] = _tuned(kit)
        command = [kit.program("train"), f"--job={kit.job(preset)}", "--overwrite", *plans.sets(values)]
        began, first = time.monotonic(), []

        def enough():
            rows = _rows(metrics)
            if rows and not first:
                first.append(max(0, time.monotonic() - began - rows[0]["seconds"]))
            return len(rows) >= wanted
        try:
            ended = child.run(command, {**kit.environment, **dict(variables)}, kit.log(item.name), seconds, enough,
                              folder=kit.out)
            rows = _rows(metrics)[:wanted]
            if len(rows) < wanted:
                wrong = "" if ended.code or ended.timed_out else f"it printed {len(rows)} of {wanted} steps"
                return _outcome(ended, None, wrong)
            return _outcome(ended, {**steps_of(rows, kit.warmup), **_said(store.read(kit.log(item.name))),
                                    "start_seconds": first[0] if first else None,
                                    "first_seconds": rows[0]["seconds"],
                                    "peak_flops": plans.peak_flops(kit.gpus[0])})
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return work


def steps_of(rows, warmup):
    counted = rows[warmup:]
    median = lambda name: statistics.median(row[name] for row in counted)
    return {"seconds": [row["seconds"] for row in counted],
            "step_seconds": median("seconds"),
            "tokens_per_second": median("tokens_per_second"),
            "mfu": median("mfu"),
            "losses": [row["loss"] for row in rows],
            "gradient_norms": [row["grad_norm"] for row in rows],
            "peak_bytes_planned": rows[-1]["peak_bytes_planned"],
            "peak_bytes_measured": rows[-1]["peak_bytes_measured"]}


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


def trials_path(kit, preset):
    return kit.path("data", f"trials-{preset}.jsonl")


def torch(preset):
    """Returns work that measures PyTorch's FSDP2 at its best. It keeps the trials, so that a search that was cut
    resumes where it stopped."""
    def work(kit, item, seconds):
        program = os.path.join(kit.root, "tools", "parity", "torch_fsdp2.py")
        command = [kit.python.path, program, f"--job={kit.job(preset)}", f"--tokens={_tokens(kit, preset)}",
                   "--search", "--ranks=1", f"--trials={trials_path(kit, preset)}", f"--warmup={kit.warmup}",
                   f"--steps={kit.steps}"]
        peak = plans.peak_flops(kit.gpus[0])
        command += [f"--peak_flops={peak:.0f}"] if peak else []
        ended = child.run(command, kit.plain, kit.log(item.name), seconds, folder=kit.out)
        said = [line for line in store.read(kit.log(item.name)).splitlines() if line.startswith('{"result"')]
        if not said:
            return _outcome(ended, None, "" if ended.code or ended.timed_out else "it printed no result")
        result = {**json.loads(said[-1])["result"], "peak_flops": peak}
        if not peak:
            result["mfu"] = None
        return _outcome(ended, result, result.get("failed", ""))
    return work
