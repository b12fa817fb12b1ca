#!/usr/bin/env python3
"""Tests what one call of the GPU kit's `run` does, without a GPU: which programs it runs, and what it reports."""

import io
import os
import sys
import tempfile
import unittest
from contextlib import redirect_stderr

sys.path[:0] = ["tools", "tests/tools/gpu"]

from bench.train import textproto  # noqa: E402
from fake_kit import KitCase  # noqa: E402
from gpu import gpus, items, main, measure, report, store  # noqa: E402


class RunTest(KitCase):
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

    def test_a_plan_that_names_no_arena_fails(self):
        os.environ["FAKE_NO_ARENA"] = "1"
        self.assertEqual(self.call("--only=^plan/qwen2_5_0_5b")[0], 1)
        self.assertEqual(self.items()["plan/qwen2_5_0_5b_1024"]["about"], "it names no arena")

    def test_a_program_that_went_wrong_in_an_unforeseen_way_is_one_failure(self):
        self.write("bin/bench", "import sys\nopen([a for a in sys.argv if 'json' in a][0][7:], 'w').write('[')")
        self.call("--only=^ops/qwen2_5_0_5b_1024$", "--only=test/Good")
        self.assertEqual(self.statuses(), {"modules/0": "passed", "test/Good": "passed",
                                           "ops/qwen2_5_0_5b_1024": "failed"})

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
        with open(os.path.join("tools/bench/jobs/gpu/qwen2_5_7b_4096.textproto"), encoding="utf-8") as file:
            flags = measure.sizes_of(textproto.parse(file.read()))
        self.assertEqual(flags, ["--tokens=4096", "--sequence=4096", "--width=3584", "--hidden=18944",
                                 "--vocabulary=152064", "--heads=28", "--kv_heads=4", "--head_width=128",
                                 "--head_tokens=4096", "--parameters=233046016", "--square=8192"])


class ReportTest(unittest.TestCase):
    def test_an_empty_report_says_what_is_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            text = report.Report(store.Store(folder, "aaa"), ["a", "b"]).text()
        self.assertIn("2 items: 0 passed, 0 failed, 0 skipped, 2 to do.", text)


if __name__ == "__main__":
    unittest.main()
