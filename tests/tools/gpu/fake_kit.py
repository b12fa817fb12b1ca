"""A kit whose programs are fakes, for tests of what `run` does with programs that succeed, fail, hang or are cut."""

import functools
import io
import json
import os
import shutil
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from bench.train import workloads
from gpu import child, gpus, items, main

# Stand-ins for the programs of a kit: to `run` they look like the real ones. FAKE_* variables of the environment
# control what they do.
_GPU_TESTS = r"""
import json, os, sys
if "--gtest_list_tests" in sys.argv:
    print("Running main() from main.cc\nGpuModules.\n  A\nGood.\n  A\n  B\nAll/OpTest.  # TypeParam = float\n"
          "  C/0  # GetParam() = 5\nCrash.\n  D")
    sys.exit()
flags = dict(a.split("=", 1) for a in sys.argv[1:])
names = flags["--gtest_filter"].split(":")
suite = names[0].rsplit(".", 1)[0]
if suite == "GpuModules":
    with open("modules.txt", "a") as file: print(os.environ["CUDA_VISIBLE_DEVICES"], file=file)
    if "FAKE_WRONG_CODE" in os.environ: sys.exit("gpu_tests: the kernels of this program do not run on GPU 0 (Fake)")
else:
    with open("ran.txt", "a") as file: print(suite, file=file)
if suite == "Crash": os.abort()
cases = [{"name": "A", "result": "COMPLETED"}, {"name": "B", "result": "SKIPPED"}]
if suite == "All/OpTest": cases[0]["failures"] = [{}]
json.dump({"testsuites": [{"testsuite": cases}]}, open(flags["--gtest_output"][5:], "w"))
sys.exit(suite == "All/OpTest")
"""
_TRAIN = r"""
import json, os, sys, time
sets = dict(a[6:].split("=", 1) for a in sys.argv[1:] if a.startswith("--set="))
assert os.path.exists(sets["data.path"])
print("  parameters  494,032,768 in 26 units\n"
      "GPU 0: Fake, 1.2 GiB of 140 GiB in use outside the arenas, by CUDA\n"
      "memory taken outside the arenas: kernels and other programs", "1.1 GiB," if
      os.environ.get("CUDA_MODULE_LOADING") == "EAGER" else "600 MiB,",
      "matmuls -64.0 MiB; after it was checked: graphs 0 B", flush=True)
folder = sets["telemetry.run_folder"]
os.makedirs(folder)
with open(folder + "/metrics.jsonl", "w") as file:
    for step in range(1, int(os.environ.get("FAKE_STEPS", 99)) + 1):
        print(json.dumps({"step": step, "loss": 12.0 - step, "grad_norm": 1, "seconds": 1.0 + step,
                          "tokens_per_second": 160000.0, "mfu": 0.55, "peak_bytes_planned": 30 << 30,
                          "peak_bytes_measured": 20 << 30}), file=file, flush=True)
if "FAKE_STEPS" not in os.environ: time.sleep(1000)
"""
_PYTHON = r"""
import json, os, sys, time
if sys.argv[1] == "-c":
    print(json.dumps({"paths": os.environ["FAKE_PATHS"].split(":"), "torch": "2.9.0", "cuda": "13.0"}))
    sys.exit()
assert "LD_LIBRARY_PATH" not in os.environ
if "FAKE_HANG" in os.environ: time.sleep(1000)
print('noise\n{"trial": {}}')
print(json.dumps({"result": {"tokens_per_second": 100000.0, "step_seconds": 5.2, "mfu": 0.33, "losses": [11.9, 11.0],
    "parameters": 494032768, "max_memory_allocated": 60 << 30, "max_memory_reserved": 66 << 30, "micro_batch": 16,
    "checkpoint": "none", "gathered": "step", "attention": "cudnn"}}))
"""
_PLAN = r"""
import os, sys
assert sys.argv[1].startswith("--job=")
print("Plan of it\n  memory  one arena a rank of 25.5 GiB (27,433,708,296 bytes): training uses\n  all"
      if "FAKE_NO_ARENA" not in os.environ
      else "Plan of nothing")
"""
_BENCH = r"""
import json, os, sys
if sys.argv[1] == "comm":
    print("no luck")
    sys.exit(7)
flags = dict(a.split("=", 1) for a in sys.argv[2:])
assert os.environ["LD_LIBRARY_PATH"] and os.environ["SHALE_CUDA_LIBRARIES"]
op = {"op": "RmsNormForward", "size": "[16384, 896]", "act": "bf16", "seconds": 1e-5,
      "bytes_per_second": 4e12, "of_copy": 0.9,
      "of_large_copy": 0.8}
matmul = {"op": "MatMul", "size": "1 x 2 x 3", "act": "bf16", "seconds": 1e-5, "flops": 1e9,
           "flops_per_second": 6.5e14,
           "of_peak": 0.9}
json.dump({"sustained_bf16": 7.0e14 if "--sustained_seconds" in flags else 0,
           "results": [op, dict(op, of_copy=0.5), matmul]},
          open(flags["--json"], "w"))
"""

GPUS = gpus.Gpus([{"name": "Fake H200", "bytes": 140 << 30, "compute": "9.0"}], "13.0")


class KitCase(unittest.TestCase):
    """Tests of `run` on a kit whose programs are fakes. `call` calls it in this process."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.root, self.out = os.path.join(folder.name, "kit"), os.path.join(folder.name, "out")
        for name, code in (("gpu_tests", _GPU_TESTS), ("plan", _PLAN), ("train", _TRAIN), ("bench", _BENCH)):
            self.write("bin/" + name, code)
        self.python = self.write("python", _PYTHON)
        os.makedirs(os.path.join(self.root, "jobs"))
        for preset in ("qwen2_5_0_5b_1024", items.SUSTAINED):
            shutil.copy(os.path.join("tools", "bench/jobs/gpu", preset + ".textproto"), os.path.join(self.root, "jobs"))
        self.packages = os.path.join(folder.name, "site-packages")
        self.write("../site-packages/nvidia/cu13/lib/libcublasLt.so.13", "")
        for module, name, value in ((child, "_POLL_SECONDS", 0.01),
                                    (workloads, "write_tokens", functools.partial(workloads.write_tokens, count=1000))):
            patch = mock.patch.object(module, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        environment = {"PATH": os.environ["PATH"], "CUDA_HOME": "/nowhere", "FAKE_PATHS": self.packages}
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(environment)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))

    def write(self, name, code):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!{sys.executable} -IS\n{code}")  # Starts in half the time.
        os.chmod(path, 0o755)
        return path

    def call(self, *arguments, find=lambda: GPUS):
        said, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(said), redirect_stderr(errors):
            code = main.main(self.root, [f"--out={self.out}", f"--python={self.python}", *arguments], find)
        return code, said.getvalue() + errors.getvalue()

    def items(self):
        with open(os.path.join(self.out, "report.json"), encoding="utf-8") as file:
            return json.load(file)["items"]

    def statuses(self):
        return {name: item["status"] for name, item in self.items().items()}

    def markdown(self):
        with open(os.path.join(self.out, "report.md"), encoding="utf-8") as file:
            return file.read()

    def ran(self):
        with open(os.path.join(self.out, "ran.txt"), encoding="utf-8") as file:
            return file.read().split()
