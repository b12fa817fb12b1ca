"""A kit whose programs are stand-ins, for tests of what `run` does with programs that succeed, fail, or are cut."""

import functools
import io
import json
import os
import shutil
import tempfile
import time
import unittest
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from bench.train import workloads
from fake_programs import FakePrograms
from gpu import child, gpus, machine, main, needs

GPUS = gpus.Gpus([{"name": "NVIDIA H200", "bytes": 140 << 30, "compute": "9.0", "bus": "0:1"}], "13.0")
_BIN = ("gpu_tests", "train", "plan", "tune", "bench", "bench_before", "train_before", "generate",
        "evaluate")


class KitCase(unittest.TestCase):
    """Tests of `run` on a machine with one fake GPU. `call` calls it in this process, `clock` is its time, and
    `programs` are its FakePrograms."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.root, self.out = os.path.join(folder.name, "kit"), os.path.join(folder.name, "out")
        for name in (*(f"bin/{name}" for name in _BIN), "../cuda/bin/compute-sanitizer"):
            self.write(name, "")
            os.chmod(os.path.join(self.root, name), 0o755)
        shutil.copytree("tools/bench/jobs/gpu", os.path.join(self.root, "jobs"))
        self.programs, self.now = FakePrograms(), 1000.0
        python = machine.Python("python", [], "2.11", "13.0")
        for owner, name, value in (
                (child, "run_all", self.programs.run_all), (time, "monotonic", lambda: self.now),
                (workloads, "write_tokens", functools.partial(workloads.write_tokens, count=100)),
                (machine.Python, "find", lambda wanted: python), (machine, "_ldconfig", dict),
                (machine, "_output", lambda command: ""), (needs, "versions_here", lambda folders: {}),
                (os, "fsync", lambda file: None)):
            patch = mock.patch.object(owner, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        patch = mock.patch.dict(os.environ, {"PATH": "", "CUDA_HOME": os.path.join(self.root, "../cuda")}, clear=True)
        patch.start()
        self.addCleanup(patch.stop)

    def write(self, name, text):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def call(self, *arguments, find=lambda: GPUS):
        """Calls `run`. Returns its exit code and what it printed."""
        said, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(said), redirect_stderr(errors):
            code = main.main(self.root, [f"--out={self.out}", "--tests_at_once=2", *arguments], find)
        return code, said.getvalue() + errors.getvalue()

    def items(self):
        with open(os.path.join(self.out, "report.json"), encoding="utf-8") as file:
            return json.load(file)["items"]

    def statuses(self):
        return {name: item["status"] for name, item in self.items().items()}

    def text(self, name):
        with open(os.path.join(self.out, name), encoding="utf-8") as file:
            return file.read()

    def rates(self):
        return json.loads(self.text("rates.json"))
