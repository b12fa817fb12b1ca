"""Lists the items of a kit in order: a kernel of each module, tests, plans, benches, how kernels are loaded, training
by the engine and PyTorch, and tests under compute-sanitizer."""

import os
import re
import shutil
import tarfile
import threading
from dataclasses import dataclass, field
from typing import Callable

from bench.train import textproto
from gpu import child, expected, measure, plans, store
from gpu.gpus import first_of_kinds

# Test cases of gpu_tests that do not run under compute-sanitizer: those that fail on purpose, and those of full steps,
# of devices and of collectives. The remaining ones test single ops, whose tensors have separate allocations.
NOT_SANITIZED = re.compile(r"DeathTest|Laws|Nccl|Communicator|StreamOrdered|GpuDevice|DeviceConformance")
# The archive of a kit's programs, in its folder bin.
PROGRAMS = "programs.tar.xz"
SANITIZERS = ("memcheck", "racecheck")
# The suite of gpu_tests that runs a kernel of each module, before anything else.
MODULES = "GpuModules"
# The largest number of test cases in an item: of laws of training steps, which take seconds each, and of others.
# Smaller items would let smaller budgets make progress, but every start of the program takes 3 s on an H100.
LAWS = 4
CASES = 200
# The presets in the order in which they run. The shapes that targets were set for come first.
PRESETS = tuple(f"{shape}_{sequence}" for sequence in (1024, 4096) for shape in
                ("qwen2_5_0_5b", "qwen2_5_1_5b", "qwen2_5_3b", "qwen2_5_7b", "llama3_8b"))
# The preset whose bench of ops also measures the rate of a matmul that runs for a minute.
SUSTAINED = "qwen2_5_3b_1024"


@dataclass
class Kit:
    """The files and settings that items work with."""
    root: str
    out: str
    environment: dict   # Environment of the engine's programs.
    plain: dict         # Environment of PyTorch, which brings its own libraries.
    python: object      # A machine.Python.
    gpus: list = field(default_factory=list)  # As in gpus.Gpus. Ranks that have a GPU each use the first ones.
    sanitizer: str = ""
    warmup: int = 2
    steps: int = 5
    about: dict = field(default_factory=dict)  # The machine, as strings for people.
    stop: threading.Event = field(default_factory=threading.Event)  # Once set, programs that share the GPU are killed.

    def program(self, name):
        """Returns the path that the program has if the kit holds it. Kits hold programs in an archive; this unpacks it
        when a program is first needed."""
        plain, archive = (os.path.join(self.root, "bin", file) for file in (name, PROGRAMS))
        if os.path.exists(plain) or not os.path.exists(archive):
            return plain
        stamp, done = str(os.stat(archive).st_mtime_ns), self.path("bin", "unpacked")
        if not os.path.exists(done) or store.read(done) != stamp:
            self._unpack(archive)
            store.write_durably(done, stamp)
        return self.path("bin", name)

    def _unpack(self, archive):
        shutil.rmtree(self.path("bin"), ignore_errors=True)
        os.makedirs(self.path("bin"))
        with tarfile.open(archive) as programs:
            for program in programs:
                path = self.path("bin", program.name)
                with programs.extractfile(program) as source, open(path, "wb") as target:
                    shutil.copyfileobj(source, target)
                os.chmod(path, 0o755)

    def has(self, name):
        return os.access(self.program(name), os.X_OK)

    def job(self, preset):
        return os.path.join(self.root, "jobs", preset + ".textproto")

    def log(self, name):
        return os.path.join(self.out, "logs", re.sub(r"[^A-Za-z0-9._-]+", "-", name) + ".log")

    def path(self, *names):
        return os.path.join(self.out, *names)


@dataclass(eq=False)
class Item:
    """One thing that a kit runs. `work(kit, item, seconds)` returns {"status", "about", "result", ..}, where status is
    one of store.py's or "timed out". Work does not begin with less than `least` seconds of the budget left, and may
    take at most `limit` seconds. `expected` is an estimate of its seconds. An item with `skip` is not run, and `skip`
    says why. If a gate fails, nothing else runs. Items that share the GPU measure nothing, and may run side by side."""
    name: str
    work: Callable
    least: float = 20
    limit: float = 1800
    keeps: tuple = ()  # Files from which a later call resumes. --again removes them.
    expected: float = 60
    skip: str = ""
    gate: bool = False
    shares: bool = False


def skipped(why):
    return {"status": store.SKIPPED, "about": why}


def needs(program, work):
    """Wraps `work` to be skipped if the kit does not have the program."""
    return lambda kit, item, seconds: work(kit, item, seconds) if kit.has(
        program) else skipped(f"the kit has no {program}")


def suites(kit):
    """Returns the full names of gpu_tests' test cases by suite, or an empty dict if there is no such program or it
    lists nothing."""
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


def module_items(kit, found):
    """Returns the gates: one for each kind of GPU. `found` is what suites() returned."""
    shown = [name for name in kit.plain.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    visible = lambda number: shown[number] if number < len(shown) else str(number)
    return [Item(f"modules/{number}", measure.tests(found[MODULES], variables={
        "CUDA_VISIBLE_DEVICES": visible(number)}), expected=expected.MODULES, gate=True)
            for number in (first_of_kinds(kit.gpus) if MODULES in found else [])]


def test_items(kit, found):
    if not found:
        return [Item("test", lambda *_: skipped("the kit has no gpu_tests, or it lists none"), expected=0)]
    # Laws come last: they take as long as all others together.
    found = {suite: found[suite] for suite in sorted(found, key=lambda suite: suite.endswith("Laws"))
             if suite != MODULES}
    return [item for suite, cases in found.items() for item in _parts("test", suite, cases)]


def sanitizer_items(kit, found):
    """Returns the items under compute-sanitizer. They come last, because they take hours and measure nothing."""
    skip = "" if kit.sanitizer else "there is no compute-sanitizer in CUDA_HOME or on the PATH"
    return [item for tool in SANITIZERS for suite, cases in found.items() if suite != MODULES
            for item in _parts(tool, suite, [case for case in cases if not NOT_SANITIZED.search(case)], tool, skip)]


def _parts(kind, suite, cases, sanitizer=None, skip=""):
    """Returns items of at most LAWS or CASES test cases each: kind/suite, or kind/suite:1, kind/suite:2, ..."""
    laws = suite.endswith("Laws")
    most = LAWS if laws else CASES
    parts = [cases[i:i + most] for i in range(0, len(cases), most)]
    return [Item(f"{kind}/{suite}" + (f":{number}" if len(parts) > 1 else ""), measure.tests(part, sanitizer),
                 expected=expected.tests(len(part), laws, sanitizer), skip=skip, shares=True)
            for number, part in enumerate(parts, 1)]


def _bench_items(kit, presets):
    items = []
    for preset in presets:
        with open(kit.job(preset), encoding="utf-8") as file:
            job = textproto.parse(file.read())
        sustained = preset == SUSTAINED
        only = "" if preset.endswith("_1024") else "attention|rope"
        work = measure.ops(job, "bf16", only, [f"--sustained_seconds={expected.SUSTAINED}"] if sustained else [])
        items.append(Item(f"ops/{preset}", needs("bench", work), least=60,
                          expected=expected.OPS + (expected.SUSTAINED if sustained else 0)))
        if preset.endswith("_1024"):
            items.append(Item(f"ops/{preset}_flat", needs("bench", measure.ops(job, "f32", measure.FLAT)),
                              expected=expected.OPS))
    return items


def _several(kit):
    """Returns the numbers of ranks to measure with a GPU each, and why they cannot be measured, or ""."""
    ranks = [n for n in (2, 4, 8) if n <= len(kit.gpus)]
    used = kit.gpus[:ranks[-1] if ranks else 0]
    kinds = [used[number]["name"] for number in first_of_kinds(used)]
    return ranks, (f"the GPUs are of different kinds ({', '.join(kinds)}); choose those of one kind with "
                   "CUDA_VISIBLE_DEVICES" if len(kinds) > 1 else "")


def _comm_items(kit):
    comm = lambda name, *arguments, skip="": Item(f"comm/{name}", needs("bench", measure.comm(*arguments)),
                                                  expected=expected.COMM, skip=skip)
    items = [comm("in_process", "cuda", [2, 3, 4])]
    ranks, skip = _several(kit)
    if ranks:
        items += [comm("peers", "cuda", ranks, "--ranks_per_device=1", skip=skip),
                  comm("nccl", "nccl", ranks, skip=skip)]
    return items


def _loading_items(kit, preset, plan):
    """Returns items that train with all kernels loaded at the start, with each loaded at its first use, and with NCCL.
    They show what the engine, CUDA and each library take of the GPU's memory."""
    load = lambda name, settings=(), variables=(), skip="": Item(
        f"loading/{name}", needs("train", measure.train(preset, settings, variables)), least=90,
        expected=expected.train(kit, plan), skip=plan.refused or skip)
    items = [load(mode, variables={"CUDA_MODULE_LOADING": mode.upper()}) for mode in measure.MODES]
    ranks, skip = _several(kit)
    if ranks:
        settings = {"sharding.ranks": str(ranks[-1]),
                    "memory.budget_bytes": str(plans.budget_bytes(kit.gpus[0], nccl=True))}
        items += [load(name, {**settings, **more}, skip=skip) for name, more in measure.WITH_NCCL.items()]
    return items


def _training_items(kit, preset, plan):
    """Returns the items that train a preset. What does not fit is skipped, also PyTorch, which would have nothing to be
    compared with."""
    seconds = expected.train(kit, plan)
    no_torch = "" if kit.python.torch else f"{kit.python.path} has no PyTorch; name another with --python"
    no_engine = plan.refused and f"{plan.refused}, so it would be compared with nothing"
    return [Item(f"train/{preset}", needs("train", measure.train(preset)), least=90, expected=seconds,
                 skip=plan.refused),
            Item(f"train_graphs/{preset}", needs("train", measure.train(preset, {"runtime.graphs": "true"})), least=90,
                 expected=seconds, skip=plan.refused),
            Item(f"torch/{preset}", measure.torch(preset), least=90, limit=5400,
                 keeps=(measure.trials_path(kit, preset),), expected=expected.torch(kit, plan),
                 skip=no_torch or no_engine)]


def all_items(kit):
    found = suites(kit)
    presets = [preset for preset in PRESETS if os.path.exists(kit.job(preset))]
    made = {preset: plans.plan(kit, preset) if kit.has("plan") else plans.NONE for preset in presets}
    items = module_items(kit, found) + test_items(kit, found)
    items += [Item(f"plan/{preset}", needs("plan", measure.plan(preset)), least=5, expected=expected.PLAN,
                   skip=made[preset].refused) for preset in presets]
    items += [Item(f"tune/{preset}", needs("tune", measure.tune(preset)), least=60, expected=expected.TUNE,
                   skip=made[preset].refused) for preset in presets]
    items += _bench_items(kit, presets) + _comm_items(kit)
    if presets:
        items += _loading_items(kit, presets[0], made[presets[0]])
    for preset in presets:
        items += _training_items(kit, preset, made[preset])
    return items + sanitizer_items(kit, found)
