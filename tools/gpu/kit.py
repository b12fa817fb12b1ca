"""Defines what items work with: the files and settings of a kit, and the item itself."""

import os
import re
import shutil
import sys
import tarfile
from dataclasses import dataclass, field
from typing import Callable

from gpu import store

# The archive of a kit's programs, in its folder bin.
PROGRAMS = "programs.tar.xz"
# The bench and the train of an earlier commit, which a kit may have beside its own. The names of items that run nothing
# but one of these end with OF_BEFORE.
BENCH_BEFORE, TRAIN_BEFORE, OF_BEFORE = "bench_before", "train_before", "/before"


@dataclass
class Kit:
    root: str
    out: str
    environment: dict   # Environment of the engine's programs.
    plain: dict         # Environment of PyTorch, which brings its own libraries.
    python: object      # A machine.Python.
    gpus: list = field(default_factory=list)  # As in gpus.Gpus. Ranks that have a GPU each use the first ones.
    sanitizer: str = ""
    at_once: int = 1    # Programs that test side by side.
    about: dict = field(default_factory=dict)  # The machine, as strings for people.

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

    def lacks(self, name):
        """Returns why an item that runs this program is skipped, or ""."""
        return "" if self.has(name) else f"the kit has no {name}"

    def job(self, preset):
        return os.path.join(self.root, "jobs", preset + ".textproto")

    def log(self, name):
        return os.path.join(self.out, "logs", re.sub(r"[^A-Za-z0-9._-]+", "-", name) + ".log")

    def visible(self, number):
        """Returns what CUDA_VISIBLE_DEVICES calls a GPU, so that a program sees it alone."""
        shown = [name for name in self.plain.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        return shown[number] if number < len(shown) else str(number)

    def launched(self, processes):
        """Returns how a command begins that tools/launch starts in several processes."""
        return [sys.executable, os.path.join(self.root, "tools", "launch"), f"--processes={processes}", "--"]

    def path(self, *names):
        return os.path.join(self.out, *names)


@dataclass(eq=False)
class Item:
    """One thing that a kit runs. `work(kit, item, seconds)` returns an outcome (outcome.py) within about `seconds`.
    `expected` is an estimate of its seconds: it does not begin where fewer are left. It is stopped after `limit`. An
    item with `skip` is not run, and `skip` says why. If a gate fails, nothing else runs."""
    name: str
    work: Callable
    expected: float
    limit: float = 600
    skip: str = ""
    gate: bool = False
    sampled: bool = False  # Whether clocks, power and temperature are recorded beside it.
    keeps: tuple = ()      # Files in OUT from which a later call resumes. --again removes them.
    job: tuple = ()        # A preset, settings and steps of a training run, which is planned before.
    runs: int = 1          # How often that run starts.
    plan: object = None    # That plan, as in plans.Plan.
