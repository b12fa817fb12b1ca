"""What a kit does, in order: tests, tests under compute-sanitizer, plans, benches, training by the engine and by PyTorch."""

import gzip
import os
import re
import shutil
from dataclasses import dataclass, field
from typing import Callable

from bench import textproto
from gpu import child, measure, store

# Test cases of gpu_tests that do not run under compute-sanitizer: those that fail on purpose, and those of whole steps, of
# devices and of collectives. What is left is of single ops, whose tensors are allocations of their own.
NOT_SANITIZED = re.compile(r"DeathTest|Laws|Nccl|Communicator|StreamOrdered|GpuDevice|DeviceConformance")
SANITIZERS = ("memcheck", "racecheck")
# Test cases of an item, at most: so that a small budget gets somewhere.
CASES = 40
# The order of presets: the shapes that targets were set for come first.
PRESETS = tuple(f"{shape}_{sequence}" for sequence in (1024, 4096) for shape in
                ("qwen2_5_0_5b", "qwen2_5_1_5b", "qwen2_5_3b", "qwen2_5_7b", "llama3_8b"))
# Runs on which the rate of a product sustained for a minute is measured.
SUSTAINED = "qwen2_5_3b_1024"


@dataclass
class Kit:
    """What items work with."""
    root: str
    out: str
    environment: dict   # Of our programs.
    plain: dict         # Of PyTorch, which brings libraries of its own.
    python: object      # A machine.Python.
    gpus: list = field(default_factory=list)
    sanitizer: str = ""
    warmup: int = 2
    steps: int = 5

    def program(self, name):
        """Its path. Kits hold programs compressed; they are unpacked when they are first asked for."""
        plain = os.path.join(self.root, "bin", name)
        packed = plain + ".gz"
        if not os.path.exists(packed):
            return plain
        unpacked = self.path("bin", name)
        stamp = os.stat(packed).st_mtime_ns
        if not os.path.exists(unpacked) or os.stat(unpacked).st_mtime_ns != stamp:
            os.makedirs(os.path.dirname(unpacked), exist_ok=True)
            temporary = unpacked + ".tmp"
            with gzip.open(packed) as source, open(temporary, "wb") as target:
                shutil.copyfileobj(source, target)
            os.chmod(temporary, 0o755)
            os.utime(temporary, ns=(stamp, stamp))
            os.replace(temporary, unpacked)
        return unpacked

    def has(self, name):
        return os.access(self.program(name), os.X_OK)

    def job(self, preset):
        return os.path.join(self.root, "jobs", preset + ".textproto")

    def log(self, name):
        return os.path.join(self.out, "logs", re.sub(r"[^A-Za-z0-9._-]+", "-", name) + ".log")

    def path(self, *names):
        return os.path.join(self.out, *names)


@dataclass
class Item:
    """`work(kit, item, seconds)` returns {"status", "about", "result", ..}; status may be "timed out" besides those of
    store.py. It is not begun with less than `least` seconds left, and may take `limit`."""
    name: str
    work: Callable
    least: float = 20
    limit: float = 1800
    keeps: tuple = ()  # Files from which a later call goes on; --again removes them.


def skipped(why):
    return {"status": store.SKIPPED, "about": why}


def needs(program, work):
    """The work, if the kit has the program."""
    return lambda kit, item, seconds: work(kit, item, seconds) if kit.has(program) else skipped(f"the kit has no {program}")


def suites(kit):
    """Full names of the test cases of gpu_tests by suite; empty: there is no such program, or it lists nothing."""
    if not kit.has("gpu_tests"):
        return {}
    log = kit.log("list of tests")
    child.run([kit.program("gpu_tests"), "--gtest_list_tests"], kit.environment, log, 120)
    found = {}
    with open(log, encoding="utf-8", errors="replace") as file:
        for line in file:
            suite = re.match(r"(\S+)\.(?:\s.*)?$", line)
            case = re.match(r"  (\S+)", line)
            if suite:
                cases = found.setdefault(suite[1], [])
            elif case and found:
                cases.append(f"{list(found)[-1]}.{case[1]}")
    return found


def test_items(kit):
    found = suites(kit)
    if not found:
        return [Item("test", lambda *_: skipped("the kit has no gpu_tests, or it lists none"))]
    items = [item for suite, cases in found.items() for item in _parts("test", suite, cases)]
    for tool in SANITIZERS:
        for suite, cases in found.items():
            items += _parts(tool, suite, [case for case in cases if not NOT_SANITIZED.search(case)], tool)
    return items


def _parts(kind, suite, cases, sanitizer=None):
    """Items of at most CASES test cases: kind/suite, or kind/suite:1, kind/suite:2, ..."""
    parts = [cases[i:i + CASES] for i in range(0, len(cases), CASES)]
    return [Item(f"{kind}/{suite}" + (f":{number}" if len(parts) > 1 else ""), measure.tests(part, sanitizer))
            for number, part in enumerate(parts, 1)]


def all_items(kit):
    items = test_items(kit)
    presets = [preset for preset in PRESETS if os.path.exists(kit.job(preset))]
    items += [Item(f"plan/{preset}", needs("plan", measure.plan(preset)), least=5) for preset in presets]
    items += [Item(f"tune/{preset}", needs("tune", measure.tune(preset)), least=60) for preset in presets]
    for preset in presets:
        with open(kit.job(preset), encoding="utf-8") as file:
            job = textproto.parse(file.read())
        more = ["--sustained_seconds=60"] if preset == SUSTAINED else []
        only = "" if preset.endswith("_1024") else "attention|rope"
        items.append(Item(f"bench_ops/{preset}", needs("bench", measure.bench_ops(job, "bf16", only, more)), least=60))
        if preset.endswith("_1024"):
            items.append(Item(f"bench_ops/{preset}_flat", needs("bench", measure.bench_ops(job, "f32", measure.FLAT))))
    items.append(Item("bench_comm/in_process", needs("bench", measure.bench_comm("cuda", [2, 3, 4]))))
    several = [n for n in (2, 4, 8) if n <= len(kit.gpus)]
    if several:
        items.append(Item("bench_comm/peers", needs("bench", measure.bench_comm("cuda", several, "--ranks_per_device=1"))))
        items.append(Item("bench_comm/nccl", needs("bench", measure.bench_comm("nccl", several))))
    for preset in presets:
        items.append(Item(f"train/{preset}", needs("train", measure.train(preset)), least=90))
        items.append(Item(f"train_graphs/{preset}", needs("train", measure.train(preset, {"runtime.graphs": "true"})), least=90))
        items.append(Item(f"torch/{preset}", measure.torch(preset), least=90, limit=5400,
                          keeps=(measure.trials_path(kit, preset),)))
    return items
