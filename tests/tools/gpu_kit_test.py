#!/usr/bin/env python3
"""Tests the GPU kit without a GPU: what `run` does with programs that succeed, fail, hang or are cut, what `pack`
refuses, and how torch_fsdp2.py searches."""

import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import unittest
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

_TOOLS = os.path.abspath("tools")
sys.path[:0] = [_TOOLS, os.path.join(_TOOLS, "parity")]

import torch_fsdp2  # noqa: E402
from bench.train import textproto, workloads  # noqa: E402
from gpu import child, gpus, items, machine, main, measure, report, store  # noqa: E402

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

_GPUS = gpus.Gpus([{"name": "Fake H200", "bytes": 140 << 30, "compute": "9.0"}], "13.0")


class KitTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.root, self.out = os.path.join(folder.name, "kit"), os.path.join(folder.name, "out")
        for name, code in (("gpu_tests", _GPU_TESTS), ("plan", _PLAN), ("train", _TRAIN), ("bench", _BENCH)):
            self.write("bin/" + name, code)
        self.python = self.write("python", _PYTHON)
        os.makedirs(os.path.join(self.root, "jobs"))
        for preset in ("qwen2_5_0_5b_1024", items.SUSTAINED):
            shutil.copy(os.path.join(_TOOLS, "bench/jobs/gpu", preset + ".textproto"), os.path.join(self.root, "jobs"))
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

    def call(self, *arguments, find=lambda: _GPUS):
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

    def test_without_a_gpu_it_says_so_in_one_line_and_fails(self):
        def none():
            raise ValueError("no GPU: there is no NVIDIA driver here (libcuda.so.1)")
        code, said = self.call(find=none)
        self.assertEqual((code, said), (1, "run: no GPU: there is no NVIDIA driver here (libcuda.so.1)\n"))
        self.assertFalse(os.path.exists(self.out))

    def test_everything_is_done_whatever_fails_and_the_report_tells(self):
        code, said = self.call()
        self.assertEqual(code, 1, said)
        statuses = self.statuses()
        self.assertEqual(statuses["test/Good"], "passed")
        self.assertEqual(statuses["test/All/OpTest"], "failed")
        self.assertEqual(statuses["test/Crash"], "failed")
        self.assertEqual(statuses["memcheck/All/OpTest"], "skipped")
        self.assertEqual(statuses["memcheck/Good"], "skipped")
        self.assertEqual(statuses["tune/qwen2_5_0_5b_1024"], "skipped")
        self.assertEqual(statuses["comm/in_process"], "failed")
        for name in ("plan", "ops", "train", "train_graphs", "torch"):
            self.assertEqual(statuses[name + "/qwen2_5_0_5b_1024"], "passed", self.items()[name + "/qwen2_5_0_5b_1024"])
        text = self.markdown()
        self.assertIn("| test/All/OpTest | failed | 1 of 2 failed: A |", text)
        self.assertIn("| comm/in_process | failed | ended with 7: no luck |", text)
        self.assertIn("Test cases: 3 passed, 1 failed, of which 2 skipped.", text)
        self.assertIn("A matmul that runs for a minute reaches 700 TFLOP/s.", text)
        # 0.55 x 989.4 / 700; (20 GiB - 16 bytes each) / (60 GiB - 16 bytes each); 160,000 / 100,000.
        self.assertIn("| qwen2_5_0_5b_1024 | engine | 160,000 | 6.000 | 55.0 % | 77.7 % | 20.0 | 30.0 |", text)
        self.assertIn("| qwen2_5_0_5b_1024 | plan |  |  |  |  |  | 25.5 |", text)
        self.assertIn("## Plan of qwen2_5_0_5b_1024\n\n```\nPlan of it\n", text)
        self.assertIn("| 1.60 x: met |  | met: 50 % |  | 0.24 x: met |", text)
        self.assertIn("4 of 8 reach 0.85 of the speed of a copy of the same size.", text)
        self.assertIn("Fake H200, 140.0 GiB", text)
        self.assertRegex(text, r"\| EAGER \| [\d.]+ \| 2.000 \| 6.000 \|\n\| LAZY \| [\d.]+ \| 2.000 \| 6.000 \|\n")
        self.assertIn("| GPU memory outside the arenas | EAGER | LAZY |\n| --- | --- | --- |\n"
                      "| kernels and other programs | 1.1 GiB | 600 MiB |\n| matmuls | -64.0 MiB | -64.0 MiB |\n"
                      "| graphs | 0 B | 0 B |\n", text)
        self.assertIn("| loading/lazy | GPU 0: Fake, 1.2 GiB of 140 GiB in use outside the arenas, by CUDA |", text)

    # Whatever else would run would fail for the same reason, after hours.
    def test_nothing_runs_if_the_kernels_do_not_until_they_do(self):
        os.environ["FAKE_WRONG_CODE"] = "1"
        code, said = self.call("--only=test/Good")
        self.assertEqual(code, 1)
        self.assertTrue(said.endswith("run: nothing else was run, because modules/0 failed: ended with 1: gpu_tests: "
                                      "the kernels of this program do not run on GPU 0 (Fake)\n"), said)
        self.assertEqual(self.statuses(), {"modules/0": "failed"})
        del os.environ["FAKE_WRONG_CODE"]
        self.assertEqual(self.call("--only=test/Good")[0], 0)
        self.assertEqual(self.statuses(), {"modules/0": "passed", "test/Good": "passed"})

    def test_a_kernel_of_each_module_runs_on_each_kind_of_gpu(self):
        kinds = [{"name": name, "bytes": 1 << 36, "compute": "9.0"} for name in ("A", "A", "B")]
        for shown, wanted in ((None, "0\n2\n"), ("7,5,GPU-3", "7\nGPU-3\n")):
            if shown:
                os.environ["CUDA_VISIBLE_DEVICES"] = shown
            self.call("--only=modules", "--again", find=lambda: gpus.Gpus(kinds, "13.0"))
            path = os.path.join(self.out, "modules.txt")
            with open(path, encoding="utf-8") as file:
                self.assertEqual(file.read(), wanted)
            os.remove(path)

    def test_under_compute_sanitizer_modules_load_lazily(self):
        self.write("../cuda/bin/compute-sanitizer", """
import os, sys
with open("loading.txt", "a") as file: print(os.environ.get("CUDA_MODULE_LOADING"), file=file)
os.execv(sys.argv[3], sys.argv[3:])
""")
        os.environ["CUDA_HOME"] = os.path.join(self.root, "../cuda")
        self.assertEqual(self.call("--only=^(memcheck|racecheck|test)/Good")[0], 0)
        self.assertEqual(self.statuses(), {name: "passed" for name in
                                           ("modules/0", "test/Good", "memcheck/Good", "racecheck/Good")})
        with open(os.path.join(self.out, "loading.txt"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "LAZY\nLAZY\n")

    def test_steps_that_count_come_after_those_that_warm_up(self):
        self.call("--only=^train/", "--steps=3", "--warmup=1")
        result = self.items()["train/qwen2_5_0_5b_1024"]["result"]
        self.assertEqual(result["seconds"], [3.0, 4.0, 5.0])
        self.assertEqual(result["losses"], [11.0, 10.0, 9.0, 8.0])
        self.assertEqual(result["parameters"], 494032768)
        self.assertEqual(os.listdir(os.path.join(self.out, "runs")), [])

    def test_a_run_that_ends_too_early_fails(self):
        os.environ["FAKE_STEPS"] = "3"
        self.assertEqual(self.call("--only=^train/qwen2_5_0_5b")[0], 1)
        self.assertEqual(self.items()["train/qwen2_5_0_5b_1024"]["about"], "it printed 3 of 7 steps")

    def test_what_has_ended_is_not_run_again_unless_asked(self):
        self.assertEqual(self.call("--only=^test/")[0], 1)
        self.assertEqual(self.ran(), ["Good", "All/OpTest", "Crash"])
        self.assertEqual(self.call("--only=^test/")[0], 1)
        self.assertEqual(len(self.ran()), 3)
        self.assertEqual(self.call("--only=test/Good", "--again")[0], 0)
        self.assertEqual(self.ran()[3:], ["Good"])

    def test_a_plan_that_names_no_arena_fails(self):
        os.environ["FAKE_NO_ARENA"] = "1"
        self.assertEqual(self.call("--only=^plan/qwen2_5_0_5b")[0], 1)
        self.assertEqual(self.items()["plan/qwen2_5_0_5b_1024"]["about"], "it names no arena")

    def pack(self, commit, packed="today"):
        with open(os.path.join(self.root, "kit.json"), "w", encoding="utf-8") as file:
            json.dump({"commit": commit, "packed": packed}, file)

    # Regression: a kit of a later commit in the same folder reported the results of the earlier commit as its own.
    def test_results_count_for_their_commit_alone(self):
        self.pack("aaa")
        self.assertEqual(self.call("--only=test/Good", "--only=^plan/qwen2_5_0_5b")[0], 0)
        self.assertEqual({item["commit"] for item in self.items().values()}, {"aaa"})
        self.pack("bbb")
        self.assertRegex(self.call("--list", "--only=test/Good")[1], r"test/Good +to do \(passed with commit aaa\), ")
        self.assertEqual(self.call("--only=test/Good")[0], 0)
        self.assertEqual(self.ran(), ["Good", "Good"])
        self.assertEqual({name: item["commit"] for name, item in self.items().items()},
                         {"modules/0": "bbb", "test/Good": "bbb", "plan/qwen2_5_0_5b_1024": "aaa"})
        self.assertIn("Of the items to do, 1 have results of commit aaa, which are not shown.", self.markdown())
        self.assertNotIn("| plan |", self.markdown())

    def test_kits_packed_of_changed_files_are_told_apart_by_when(self):
        for packed, wanted in (("noon", ["Good"]), ("noon", ["Good"]), ("one", ["Good", "Good"])):
            self.pack("aaa-dirty", packed)
            self.call("--only=test/Good")
            self.assertEqual(self.ran(), wanted)

    def test_trials_go_on_after_a_cut_and_begin_anew_when_asked(self):
        trials = self.write(os.path.join(self.out, "data/trials-qwen2_5_0_5b_1024.jsonl"), "")
        self.assertEqual(self.call("--only=^torch/qwen2_5_0_5b")[0], 0)
        self.assertTrue(os.path.exists(trials))
        self.assertEqual(self.call("--only=^torch/qwen2_5_0_5b", "--again")[0], 0)
        self.assertFalse(os.path.exists(trials))

    def test_an_item_that_the_budget_cuts_waits_behind_the_others(self):
        os.environ["FAKE_HANG"] = "1"
        self.short_items()
        code, said = self.call("--only=^torch/", "--only=test/Good", "--budget_seconds=1.5")
        self.assertEqual(code, 3, said)
        self.assertEqual(self.statuses()["torch/qwen2_5_0_5b_1024"], "cut")
        self.assertIn("call it again to continue", said)
        code, said = self.call("--only=^torch/", "--budget_seconds=0.1")
        self.assertEqual(code, 3)
        del os.environ["FAKE_HANG"]
        code, said = self.call("--only=^torch/")
        self.assertEqual(code, 0, said)
        self.assertLess(said.index("torch/qwen2_5_3b"), said.index("torch/qwen2_5_0_5b"))

    def short_items(self):
        every = main.all_items

        def short(kit):
            made = every(kit)
            for item in made:
                item.least = 0.2
            return made
        main.all_items = short
        self.addCleanup(lambda: setattr(main, "all_items", every))

    def test_an_interrupted_item_is_cut_and_done_by_a_later_call(self):
        interrupts = [True]

        def work(kit, item, seconds):
            if interrupts.pop():
                os.kill(os.getpid(), signal.SIGTERM)
            return {"status": store.PASSED}
        with mock.patch.object(main, "all_items", lambda kit: [items.Item("a", work)]):
            code, said = self.call()
            self.assertEqual((code, self.statuses()), (130, {"a": "cut"}))
            self.assertIn("interrupted by SIGTERM; call it again to continue", said)
            interrupts.append(False)
            self.assertEqual((self.call()[0], self.statuses()), (0, {"a": "passed"}))

    def test_tests_run_side_by_side_and_all_else_alone(self):
        running, seen = [], []
        both = threading.Barrier(2)

        def work(kit, item, seconds):
            running.append(item.name)
            if item.shares:
                both.wait(timeout=30)  # Breaks if the two tests do not run at once.
            seen.append((item.name, len(running)))
            running.remove(item.name)
            return {"status": store.PASSED}
        made = [items.Item("a", work), items.Item("b", work, shares=True), items.Item("c", work, shares=True),
                items.Item("d", work)]
        with mock.patch.object(main, "all_items", lambda kit: made):
            code, said = self.call("--tests_at_once=2")
        self.assertEqual(code, 0, said)
        self.assertEqual((seen[0], seen[-1]), (("a", 1), ("d", 1)))

    # Regression: an interruption while tests were being started waited for those that ran.
    def test_an_interruption_kills_all_tests_that_run(self):
        begun = threading.Barrier(3)

        def work(kit, item, seconds):
            begun.wait(timeout=30)
            return measure._outcome(child.run(["sleep", "1000"], {}, kit.log(item.name), seconds, kit.stop.is_set))

        def interrupt():
            begun.wait(timeout=30)
            os.kill(os.getpid(), signal.SIGTERM)
        made = [items.Item(name, work, shares=True) for name in "ab"] + [items.Item("c", work, shares=True)]
        with mock.patch.object(main, "all_items", lambda kit: made):
            threading.Thread(target=interrupt).start()
            code, said = self.call("--tests_at_once=2")
        self.assertEqual((code, self.statuses()), (130, {"a": "cut", "b": "cut"}))

    def test_an_item_that_takes_longer_than_it_may_fails(self):
        kept = store.Store(self.out, "aaa")
        kit = items.Kit(root=self.root, out=self.out, environment=dict(os.environ), plain={}, python=None)
        hang = items.Item("hang", lambda k, i, s: measure._outcome(
            child.run(["sleep", "1000"], {}, k.log("hang"), s)), limit=0.3)
        main.do(kit, hang, kept, 1000)
        self.assertEqual(kept.item("hang")["status"], "failed")
        self.assertIn("did not end within 0 s", kept.item("hang")["about"])

    def test_an_item_during_which_everything_ends_twice_is_given_up(self):
        kept = store.Store(self.out, "aaa")
        self.assertTrue(kept.begin("a"))
        self.assertTrue(store.Store(self.out, "aaa").begin("a"))
        kept = store.Store(self.out, "aaa")
        self.assertFalse(kept.begin("a"))
        self.assertEqual(kept.item("a")["status"], "failed")
        self.assertIn("2 times", kept.item("a")["about"])

    def test_a_program_that_went_wrong_in_an_unforeseen_way_is_one_failure(self):
        self.write("bin/bench", "import sys\nopen([a for a in sys.argv if 'json' in a][0][7:], 'w').write('[')")
        self.call("--only=^ops/qwen2_5_0_5b_1024$", "--only=test/Good")
        self.assertEqual(self.statuses(), {"modules/0": "passed", "test/Good": "passed",
                                           "ops/qwen2_5_0_5b_1024": "failed"})

    def test_a_report_that_is_none_is_not_overwritten(self):
        self.write(os.path.join(self.out, "report.json"), "{")
        code, said = self.call()
        self.assertEqual(code, 1)
        self.assertIn("remove it to start over", said)

    def test_the_list_tells_how_each_item_stands(self):
        self.call("--only=test/Good")
        code, said = self.call("--list", "--only=^test")
        self.assertEqual(code, 0)
        self.assertRegex(said, r"test/Good +passed\ntest/All/OpTest +to do, 0\.2 min\n")

    def test_wrong_command_lines(self):
        for arguments, wanted in ((["--only=["], "is no regular expression"), (["--again"], "--again wants --only"),
                                  (["--steps=0"], "--steps wants 1"),
                                  (["--tests_at_once=0"], "--tests_at_once wants 1"), (["--nothing"], "unrecognized")):
            said = io.StringIO()
            with redirect_stderr(said), self.assertRaises(SystemExit) as ended:
                main.parse(self.root, arguments)
            self.assertEqual(ended.exception.code, 2)
            self.assertIn(wanted, said.getvalue())
        self.assertEqual(self.call("--only=nothing")[0], 2)

    def test_programs_are_unpacked_once_and_again_when_the_kit_is_another(self):
        path, unpacked = os.path.join(self.root, "bin/gpu_tests"), os.path.join(self.out, "bin/gpu_tests")
        archive = os.path.join(self.root, "bin", items.PROGRAMS)
        with tarfile.open(archive, "w:xz") as packed:
            packed.add(path, "gpu_tests")
        os.remove(path)
        self.assertEqual(self.call("--only=test/Good")[0], 0)
        before = os.stat(unpacked)
        self.assertEqual(self.call("--only=test/Good", "--again")[0], 0)
        self.assertEqual(os.stat(unpacked).st_ctime_ns, before.st_ctime_ns)
        os.utime(archive, ns=(1, 1))
        self.assertEqual(self.call("--only=test/Good", "--again")[0], 0)
        self.assertNotEqual(os.stat(unpacked).st_ctime_ns, before.st_ctime_ns)

    def test_many_test_cases_are_several_items_and_those_that_fail_on_purpose_are_not_sanitized(self):
        cases = "".join(f"  Case/{i}\\n" for i in range(205))
        laws = "".join(f"  {law}\\n" for law in "ABCDE")
        self.write("bin/gpu_tests", f"print('OpTest.\\n{cases}  ADeathTest\\nOpDeathTest.\\n  A\\nOpLaws.\\n{laws}')")
        kit = items.Kit(root=self.root, out=self.out, environment=dict(os.environ), plain={}, python=None)
        self.assertEqual(items.suites(kit)["OpTest"][204:], ["OpTest.Case/204", "OpTest.ADeathTest"])
        found = items.suites(kit)
        self.assertEqual([item.name for item in items.test_items(kit, found)],
                         ["test/OpTest:1", "test/OpTest:2", "test/OpDeathTest", "test/OpLaws:1", "test/OpLaws:2"])
        self.assertEqual([item.name for item in items.sanitizer_items(kit, found)],
                         ["memcheck/OpTest:1", "memcheck/OpTest:2", "racecheck/OpTest:1", "racecheck/OpTest:2"])

    def test_ops_gets_the_sizes_of_a_micro_batch(self):
        with open(os.path.join(_TOOLS, "bench/jobs/gpu/qwen2_5_7b_4096.textproto"), encoding="utf-8") as file:
            flags = measure.sizes_of(textproto.parse(file.read()))
        self.assertEqual(flags, ["--tokens=4096", "--sequence=4096", "--width=3584", "--hidden=18944",
                                 "--vocabulary=152064", "--heads=28", "--kv_heads=4", "--head_width=128",
                                 "--head_tokens=4096", "--parameters=233046016", "--square=8192"])


class MachineTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def lay(self, name):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w", encoding="utf-8").close()
        return os.path.dirname(path)

    def test_libraries_come_from_cuda_home_then_the_loader_then_python(self):
        home = self.lay("cuda/lib64/libcublasLt.so.13")
        loader = self.lay("usr/libnccl.so.2")
        self.lay("python/nvidia/cu13/lib/libcublasLt.so.13")
        self.lay("python/nvidia/nccl/lib/libnccl.so.2")
        cudnn = self.lay("python/nvidia/cudnn/lib/libcudnn.so.9")
        python = machine.Python("python", [os.path.join(self.folder, "python")])
        found = machine.find_libraries(python, {"CUDA_HOME": os.path.dirname(home)}, {"libnccl.so.2": loader})
        self.assertEqual(found, {"cuBLASLt": home, "NCCL": loader, "cuDNN": cudnn})
        environment = machine.engine_environment({"LD_LIBRARY_PATH": "/mine", "A": "b"}, found, "/kit/lib")
        self.assertEqual(environment["LD_LIBRARY_PATH"].split(":"), ["/kit/lib", cudnn, home, loader, "/mine"])
        self.assertEqual(environment["SHALE_CUDA_LIBRARIES"].split(":"), [cudnn, home, loader])
        self.assertEqual(environment["A"], "b")

    # Regression: the first machine had cuDNN 9.14 where the loader looks, which is too old, and 9.19 beside PyTorch.
    def test_of_several_cudnns_the_newest_is_taken(self):
        old, new = self.lay("usr/libcudnn.so.9"), self.lay("python/nvidia/cudnn/lib/libcudnn.so.9")
        python = machine.Python("python", [os.path.join(self.folder, "python")])
        versions = {old: 91400, new: 91900}
        found = machine.find_libraries(python, {"CUDA_HOME": "/nowhere"}, {"libcudnn.so.9": old},
                                       lambda title, path: versions[os.path.dirname(path)])
        self.assertEqual(found, {"cuDNN": new})
        self.assertEqual(machine.version_of("cuDNN", os.path.join(old, "libcudnn.so.9")), 0)

    def test_interruptions_leave_no_program_behind(self):
        path = os.path.join(self.folder, "pid")

        def interrupt():
            if os.path.exists(path) and os.path.getsize(path) > 0:
                raise KeyboardInterrupt
        with self.assertRaises(KeyboardInterrupt):
            child.run(["sh", "-c", f"echo $$ > {path}; exec sleep 1000"],
                      dict(os.environ), os.path.join(self.folder, "log"), 100, interrupt)
        with open(path, encoding="utf-8") as file, self.assertRaises(ProcessLookupError):
            os.kill(int(file.read()), 0)


class ReportTest(unittest.TestCase):
    def test_an_empty_report_says_what_is_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            text = report.Report(store.Store(folder, "aaa"), ["a", "b"]).text()
        self.assertIn("2 items: 0 passed, 0 failed, 0 skipped, 2 to do.", text)


class PackTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder, self.programs = os.path.join(folder.name, "kit"), os.path.join(folder.name, "programs")
        os.mkdir(self.programs)
        for name in ("gpu_tests", "train", "plan", "tune", "bench"):
            shutil.copy("/bin/true", os.path.join(self.programs, name))

    def pack(self, *arguments):
        return subprocess.run([os.path.join(_TOOLS, "gpu/pack"), self.folder,
                              f"--programs={self.programs}", *arguments], capture_output=True, text=True, check=False)

    def test_a_kit_has_all_that_run_needs(self):
        packed = self.pack("--without=tune")
        self.assertEqual(packed.returncode, 0, packed.stderr)
        self.assertEqual(os.listdir(os.path.join(self.folder, "bin")), [items.PROGRAMS])
        with tarfile.open(os.path.join(self.folder, "bin", items.PROGRAMS)) as programs:
            self.assertEqual(programs.getnames(), ["gpu_tests", "train", "plan", "bench"])
        self.assertEqual(len(os.listdir(os.path.join(self.folder, "jobs"))), len(items.PRESETS))
        for command in ("run", "tools/parity/torch_fsdp2.py"):
            said = subprocess.run([sys.executable, os.path.join(self.folder, command), "--help"],
                                  cwd="/", capture_output=True, text=True, check=False)
            self.assertEqual(said.returncode, 0, said.stderr)
        run = subprocess.run([os.path.join(self.folder, "run")], cwd="/",
                             env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True,
                             check=False)
        self.assertEqual(run.returncode, 1)
        self.assertRegex(run.stderr, r"^run: no GPU: .*\n$")

    def refused(self, wanted, *arguments):
        packed = self.pack(*arguments)
        self.assertEqual(packed.returncode, 1)
        self.assertRegex(packed.stderr, wanted)

    def test_what_is_too_large_is_refused(self):
        shutil.copy("/bin/true", os.path.join(self.programs, "large"))
        with open(os.path.join(self.programs, "section"), "wb") as file:
            file.write(os.urandom(2 << 20))
        subprocess.run(["objcopy", "--add-section", f".large={self.programs}/section", "--set-section-flags",
                        ".large=alloc,readonly", f"{self.programs}/large", f"{self.programs}/plan"], check=True)
        self.refused(r"are more than the 2 that a kit may have \(--most_mib\); bin/programs.tar.xz is the largest",
                     "--most_mib=2")

    def test_onednn_is_refused(self):
        with open(os.path.join(self.programs, "bench"), "ab") as file:
            file.write(b"N4dnnl4impl6memoryE")
        self.refused("bench links oneDNN")

    def test_a_folder_that_is_not_empty_is_refused(self):
        os.makedirs(os.path.join(self.folder, "mine"))
        self.refused("is not empty")

    def test_a_program_that_is_missing_is_named(self):
        os.remove(os.path.join(self.programs, "tune"))
        self.refused("tune")


class SearchTest(unittest.TestCase):
    """Tests the search of torch_fsdp2.py on a simulated machine."""

    def search(self, fits, rate, arguments=()):
        """Searches with `fits` and `rate`, functions of a Configuration. Returns the trials in order, and the best."""
        job = os.path.join(_TOOLS, "bench/jobs/gpu/qwen2_5_3b_1024.textproto")
        options = torch_fsdp2.parse([f"--job={job}", "--ranks=1", *arguments])
        trials = []

        def measure(configuration):
            trials.append(tuple(vars(configuration).values()))
            return {"tokens_per_second": rate(configuration)} if fits(configuration) else {"failed": "out of memory"}
        best = torch_fsdp2.search(options, measure)
        return trials, best and tuple(vars(best).values())

    def test_micro_batches_grow_while_they_gain_and_then_parameters_stay_longer(self):
        trials, best = self.search(lambda c: True, lambda c: min(c.micro_batch, 16) + (c.gathered == "step") + 1)
        self.assertEqual(trials, [(m, "none", "pass", "default") for m in (4, 8, 16, 32)]
                         + [(16, "none", "micro_batch", "default"), (16, "none", "step", "default"),
                            (16, "none", "step", "cudnn")])
        self.assertEqual(best, (16, "none", "step", "default"))

    def test_checkpointing_is_tried_only_for_micro_batches_that_do_not_fit_without(self):
        room = {"none": 8, "selective": 16, "block": 64}
        speed = {"none": 1.0, "selective": 0.9, "block": 0.7}
        trials, best = self.search(lambda c: c.micro_batch <= room[c.checkpoint] and c.gathered == "pass",
                                   lambda c: c.micro_batch ** 0.5 * speed[c.checkpoint])
        self.assertEqual([t[:2] for t in trials[:6]], [(4, "none"), (8, "none"), (16, "none"), (16, "selective"),
                                                       (32, "selective"), (32, "block")])
        self.assertEqual(best[:3], (64, "block", "pass"))

    def test_a_machine_that_is_too_small_for_all(self):
        trials, best = self.search(lambda c: False, lambda c: 0)
        self.assertIsNone(best)
        self.assertEqual([t[:2] for t in trials], [(4, "none"), (4, "selective"), (4, "block")])

    def test_trials_that_are_kept_are_not_run_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path, conditions = os.path.join(folder, "trials.jsonl"), {"torch": "2.9.0"}
            one, two = torch_fsdp2.Configuration(4), torch_fsdp2.Configuration(8)
            with redirect_stdout(io.StringIO()):
                torch_fsdp2.Trials(path, conditions).of(one, lambda: {"tokens_per_second": 5.0, "losses": []})
                with open(path, "a", encoding="utf-8") as file:
                    file.write('{"trial": {"micro_ba')
                trials = torch_fsdp2.Trials(path, conditions)
                self.assertEqual(trials.of(one, self.fail)["tokens_per_second"], 5.0)
                trials.of(two, lambda: {"failed": "out of memory"})
                self.assertEqual(torch_fsdp2.Trials(path, conditions).of(two, self.fail)["failed"], "out of memory")
                other = torch_fsdp2.Trials(path, {"torch": "2.10.0"})
                self.assertEqual(other.of(one, lambda: {"tokens_per_second": 6.0})["tokens_per_second"], 6.0)

    # Regression: a trial that failed once, for whatever reason, was never tried again.
    def test_failures_that_are_not_of_memory_are_tried_again(self):
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
            path, one = os.path.join(folder, "trials.jsonl"), torch_fsdp2.Configuration(4)
            trials = torch_fsdp2.Trials(path, {})
            self.assertEqual(trials.of(one, lambda: {"failed": "rank 0 ended with -9"})["failed"],
                             "rank 0 ended with -9")
            self.assertEqual(trials.last_failure, "rank 0 ended with -9")
            again = torch_fsdp2.Trials(path, {})
            self.assertEqual(again.of(one, lambda: {"tokens_per_second": 5.0})["tokens_per_second"], 5.0)

    def test_trials_are_whole_micro_batches_of_every_candidate(self):
        job = os.path.join(_TOOLS, "bench/jobs/gpu/qwen2_5_3b_1024.textproto")
        for ranks in (1, 3, 4):
            for sequences in (1, 5, 32, 80, 96, 320, 512, 4096):
                options = torch_fsdp2.parse([f"--job={job}", f"--ranks={ranks}",
                                            f"--tokens_per_step={sequences * ranks * 1024}"])
                tokens = torch_fsdp2.search_tokens(options)
                self.assertLessEqual(tokens, options.tokens_per_step)
                for of_a_step in (tokens, options.tokens_per_step):
                    rests = {of_a_step % (m * ranks * 1024) for m in torch_fsdp2.micro_batches(options)}
                    self.assertEqual(rests, {0}, (ranks, sequences))

    def test_every_preset_is_half_a_mebi_of_tokens(self):
        for preset in items.PRESETS:
            with open(os.path.join(_TOOLS, "bench/jobs/gpu", preset + ".textproto"), encoding="utf-8") as file:
                job = textproto.parse(file.read())
            self.assertEqual(job["batch"]["global_batch"] * job["batch"]["sequence_length"], 524288)
            self.assertEqual(job["batch"]["global_batch"] % job["batch"]["micro_batch"], 0)
            self.assertEqual(job["name"], preset)


if __name__ == "__main__":
    unittest.main()
