#!/usr/bin/env python3
"""Tests what items of the GPU kit run, what they make of what programs say, and the page and the rates of that."""

import io
import os
import sys
import unittest
from contextlib import redirect_stderr

sys.path[:0] = ["tools", "tests/tools/gpu"]

from bench.train import textproto  # noqa: E402
from fake_kit import KitCase  # noqa: E402
from fake_programs import gtest  # noqa: E402
from gpu import attention, benches, gpus, main, page, rates, store  # noqa: E402

_SMALL = "qwen2_5_0_5b_1024"


class RunTest(KitCase):
    def test_without_a_gpu_it_says_so_in_one_line_and_fails(self):
        def none():
            raise ValueError("no GPU: there is no NVIDIA driver here (libcuda.so.1)")
        code, said = self.call(find=none)
        self.assertEqual((code, said), (1, "run: no GPU: there is no NVIDIA driver here (libcuda.so.1)\n"))
        self.assertFalse(os.path.exists(self.out))

    def outcome_of(self, *shards):
        """Runs test/nccl, whose programs say these cases. Returns its item."""
        said = list(shards)
        self.programs.instead["gpu_tests"] = lambda call: gtest(
            call, {"A.B": "OK"} if "Modules" in call.flags["gtest_filter"] else said.pop(0))
        self.call("--order=nccl", "--only=test/nccl$", "--again")
        return self.items()["test/nccl"]

    def test_cases_are_divided_among_programs_and_counted_together(self):
        item = self.outcome_of({"A.B": "OK", "A.C": "SKIPPED"}, {"A.D": "OK"})
        self.assertEqual((item["status"], item["about"]), ("passed", "1 of 3 skipped"))
        self.assertEqual(item["result"], {"tests": 3, "failed": [], "skipped": 1})
        self.assertEqual([call.environment["GTEST_TOTAL_SHARDS"] for call in self.programs.ran], ["1", "2", "2"])
        self.assertIn("| test/nccl | 2 of 3 | 1 | 0 | 1 s |", self.text("report.md"))

    def test_cases_that_fail_and_those_that_end_their_program_are_named(self):
        item = self.outcome_of({"A.B": "OK"}, {"A.C": "FAILED", "A.D": "FAILED", "A.E": "OK"})
        self.assertEqual(item["about"], "2 of 4 failed: A.C, A.D; the first says: the answer: wanted 42, found 41")
        item = self.outcome_of({"A.B": "OK"}, {"A.C": "OK", "A.D": "RUN"})
        self.assertEqual(item["status"], "failed")
        self.assertRegex(item["about"], r"^A\.D did not end: the program ended with -6")
        self.assertEqual(item["result"], {"tests": 3, "failed": ["A.D"], "skipped": 0})
        self.assertEqual(self.outcome_of({}, {})["about"], "no test ran")

    # Whatever else would run would fail for the same reason, after hours.
    def test_nothing_runs_if_the_kernels_do_not_until_they_do(self):
        def no_code(call):
            call.print("gpu_tests: the kernels of this program do not run on GPU 0 (Fake)")
            return 1
        self.programs.instead["gpu_tests"] = no_code
        code, said = self.call("--order=speed")
        self.assertEqual(code, 1)
        self.assertTrue(said.endswith("run: nothing else was run, because modules/0 failed: ended with 1: gpu_tests: "
                                      "the kernels of this program do not run on GPU 0 (Fake)\n"), said)
        self.assertEqual(self.statuses(), {"modules/0": "failed"})
        del self.programs.instead["gpu_tests"]
        self.assertEqual(self.call("--order=nccl")[0], 0)

    def test_a_kernel_of_each_module_runs_on_each_kind_of_gpu(self):
        kinds = [{"name": name, "bytes": 1 << 36, "compute": "9.0", "bus": ""} for name in ("A", "A", "B")]
        for shown, wanted in ((None, ["0", "2"]), ("7,5,GPU-3", ["7", "GPU-3"])):
            if shown:
                os.environ["CUDA_VISIBLE_DEVICES"] = shown
            self.programs.ran.clear()
            self.call("--order=nccl", "--only=modules", "--again", find=lambda: gpus.Gpus(kinds, "13.0"))
            self.assertEqual([call.environment["CUDA_VISIBLE_DEVICES"] for call in self.programs.ran
                              if call.name == "gpu_tests"], wanted)

    def test_under_compute_sanitizer_modules_load_lazily_and_its_errors_fail_the_item(self):
        def errors(call):
            gtest(call, {"A.B": "OK"})
            call.print("ERROR SUMMARY: 3 errors")
            return 97 if "memcheck" in str(call.program.command) else 0
        self.programs.instead["gpu_tests"] = errors
        self.assertEqual(self.call("--order=speed", "--only=^(mem|race)check")[0], 1)
        self.assertEqual({call.environment.get("CUDA_MODULE_LOADING") for call in self.programs.ran
                          if call.name == "gpu_tests" and call.program.command[1].startswith("--tool")}, {"LAZY"})
        self.assertEqual(self.items()["memcheck/files"]["about"], "memcheck found errors: ERROR SUMMARY: 3 errors")
        self.assertEqual(self.items()["racecheck/files"]["status"], "passed")

    def trains(self, *arguments):
        self.call("--order=speed", *arguments)
        return [call for call in self.programs.ran if call.name == "train"]

    def test_training_rows_change_what_their_names_say_and_only_tuned_ones_use_the_table(self):
        made = {call.sets["telemetry.run_folder"].split("/")[-1]: call for call in self.trains(
            "--only=tune", f"--only=train/({_SMALL}|.*best)")}
        best = "train-qwen2_5_1_5b_1024-best"
        self.assertEqual(set(made), {best, *(f"train-{_SMALL}{row}" for row in
                                             ("", "-earlier", "-free_attention", "-as_peer"))})
        base = made[f"train-{_SMALL}"].sets
        names = ("batch.global_batch", "runtime.graphs", "memory.budget_bytes", "runtime.tuning_table")
        self.assertEqual({name: base.get(name) for name in names},
                         {"batch.global_batch": "64", "runtime.graphs": None, "memory.budget_bytes": str(138 << 30),
                          "runtime.tuning_table": None})
        self.assertEqual(made[best].sets["runtime.tuning_table"], os.path.join(self.out, "tuning"))
        self.assertEqual(made[best].sets["memory.loss_chunk_tokens"], "16384")
        self.assertEqual(made[f"train-{_SMALL}-earlier"].sets["batch.micro_batch"], "16")
        self.assertEqual(made[f"train-{_SMALL}-earlier"].sets["runtime.graphs"], "false")

    def test_steps_that_count_come_after_those_that_warm_up(self):
        self.trains(f"--only=train/{_SMALL}$")
        result = self.items()[f"train/{_SMALL}"]["result"]
        self.assertEqual(result["seconds"], [4.0, 5.0, 6.0, 7.0, 8.0])
        self.assertEqual(result["losses"], [11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0])
        self.assertEqual(result["parameters"], 494032768)
        self.assertEqual(os.listdir(os.path.join(self.out, "runs")), [])
        self.assertIn(f"| {_SMALL} | 160,000 | 55.0 % | 6.000 | 20.0 GiB (planned 30.0) | 11.000 .. 5.000 | 0 s | "
                      "batch.global_batch=64 | ", self.text("report.md"))
        self.assertIn(f"| {_SMALL} | 600 MiB | -64.0 MiB | 0 B |", self.text("report.md"))

    def test_a_run_that_ends_too_early_fails(self):
        self.programs.instead["train"] = lambda call: 0
        self.trains(f"--only=train/{_SMALL}$", f"--only=trace/{_SMALL}$")
        self.assertEqual(self.items()[f"train/{_SMALL}"]["about"], "it printed 0 of 7 steps")
        self.assertEqual(self.items()[f"trace/{_SMALL}"]["about"], "it wrote no trace")

    def test_pytorch_is_compared_with_our_best_row_and_skipped_without_it(self):
        self.call("--order=speed", f"--only=t(rain|orch)/{_SMALL}/?")
        self.assertIn(f"| torch {_SMALL}/16 | 100,000 | 33.0 % | 5.200 | 60.0 GiB | 11.900 .. 11.000 | 1.60 | "
                      "micro-batch 16, ", self.text("report.md"))
        flags = [call.flags for call in self.programs.ran if call.name == "torch_fsdp2.py"]
        self.assertEqual([(f["micro_batch"], f["tokens_per_step"]) for f in flags],
                         [("32", "524288"), ("16", "524288")])

    def test_formats_train_in_bf16_and_with_fp8_matmuls_and_two_ranks_send_gradients_in_both_ways(self):
        self.call("--order=formats", f"--only=train/{_SMALL}", "--budget_seconds=9999")
        sets = {call.sets["telemetry.run_folder"].split(_SMALL + "-")[1]: call.sets for call in self.programs.ran
                if call.name == "train"}
        names = ("precision.matmuls", "precision.fp8_scaling")
        for steps in ("", "_200_steps"):
            self.assertEqual([[sets[row + steps].get(name) for name in names] for row in
                              ("bf16", "fp8", "fp8_blockwise")], [[None, None], ["FP8", None], ["FP8", "BLOCKWISE"]])
        ranks = [sets[f"two_ranks_reduce_{name}"] for name in ("fp32", "bf16")]
        self.assertEqual([row["precision.reduce"] for row in ranks], ["FP32", "BF16"])
        self.assertEqual({row["memory.budget_bytes"] for row in ranks}, {str(69 << 30)})

    def test_two_sides_take_turns_and_stand_beside_each_other_on_the_page(self):
        trained = self.trains(f"--only=turns/{_SMALL}/(steps|attention)")
        every = [call for call in self.programs.ran if "train" in call.name]
        self.assertEqual([call.name for call in every[:4]], ["train_before", "train", "train", "train_before"])
        self.assertEqual([call.sets.get("runtime.cudnn_attention") for call in trained[-2:]], ["true", "false"])
        self.assertEqual(os.listdir(os.path.join(self.out, "runs")), [])
        self.assertIn(f"| {_SMALL}/steps | before to now | 100,000 | 160,000 | 1.600 | 100,000; 100,000 | "
                      "160,000; 160,000 | 8.0000, 8.0000 |\n", self.text("report.md"))
        self.assertIn(f"| {_SMALL}/attention | cudnn to own | 160,000 | 160,000 | 1.000 | 160,000 | ",
                      self.text("report.md"))
        self.trains(f"--only=turns/{_SMALL}/table")
        self.assertEqual(self.items()[f"turns/{_SMALL}/table"]["about"], "no matmul is tuned yet")
        self.programs.ran.clear()
        trained = self.trains(f"--only=t(une|urns)/{_SMALL}($|/table)", "--again")
        self.assertEqual([call.sets.get("runtime.tuning_table") is not None for call in trained],
                         [False, True, True, False])
        self.programs.instead["train_before"] = lambda call: 1
        self.trains(f"--only=turns/{_SMALL}/steps", "--again")
        self.assertRegex(self.items()[f"turns/{_SMALL}/steps"]["about"], "^before: ended with 1")

    def test_ops_and_traces_of_an_earlier_commit_stand_beside_ours_and_have_no_rates(self):
        self.call("--order=speed", f"--only=ops/{_SMALL}/(kernels|attention)", f"--only=trace/{_SMALL}($|/before)")
        text = self.text("report.md")
        self.assertIn(f"| {_SMALL}/kernels | RmsNormForward | [16384, 896] | bf16 | before to after | 10.0 | 10.0 | "
                      "1.00 |\n", text)
        self.assertIn(f"| {_SMALL}/attention | MatMul | 1 x 2 x 3 | bf16 | cudnn to own | ", text)
        self.assertIn(f"| {_SMALL} | RmsNormForward | 0.10 | 0.10 | 1.00 |\n", text)
        own = [call.name for call in self.programs.ran if "--own_attention" in call.arguments]
        self.assertEqual(own, ["bench"])
        self.assertEqual({row["item"] for row in self.rates()["rates"]},
                         {f"trace/{_SMALL}", *(f"ops/{_SMALL}/{label}" for label in (
                             "kernels/after", "attention/cudnn", "attention/own"))})

    def test_rates_of_attention_are_rows_of_the_table_by_which_jobs_take_the_faster(self):
        self.call("--order=speed", f"--only=ops/{_SMALL}/attention")
        date = r"  # NVIDIA H200, \d{4}-\d\d-\d\d, alone\n"
        self.assertRegex(self.text("attention.txt"),
                         f"^shale attention rates 1\n9.0 backward D=64 S=4096 causal: own 200 cudnn 150{date}"
                         f"9.0 backward D=64 S=4096 window=1024: own 300 cudnn 300{date}$")
        self.assertLessEqual({"AttentionBackward own", "AttentionBackward cuDNN", "AttentionForward soft cap own"},
                             {row["op"] for row in self.rates()["rates"]})
        # Rows of other GPUs and rates that were not measured stay, and rows are in the order of their numbers.
        before = ("shale attention rates 1\n# A comment.\n10.0 forward D=64 S=512 all: own 1  # b\n"
                  "9.0 backward D=64 S=4096 causal: cudnn 152 free 307  # a\n")
        self.assertEqual([line.split("  #")[0] for line in
                          attention.merged(before, self.text("attention.txt")).splitlines()],
                         ["shale attention rates 1", "# A comment.",
                          "9.0 backward D=64 S=4096 causal: own 200 cudnn 150 free 307",
                          "9.0 backward D=64 S=4096 window=1024: own 300 cudnn 300",
                          "10.0 forward D=64 S=512 all: own 1"])
        self.assertIn(", alone; free: a\n", attention.merged(before, self.text("attention.txt")))
        with open("tools/tuning/attention.txt", encoding="utf-8") as file:
            table = file.read()
        self.assertEqual(attention.merged(table, table), table)
        self.assertRaises(ValueError, attention.merged, table, "no table")

    def test_a_run_that_resumes_with_other_bits_fails_and_so_does_a_model_that_says_two_things(self):
        self.assertEqual(self.call("--order=verify", "--only=^(resume|generate|evaluate)/")[0], 0)
        self.assertEqual([call.flags.get("resume", "")[-15:] for call in self.programs.ran if call.name == "train"],
                         ["", "step-0000000002", ""])
        self.assertEqual(os.listdir(os.path.join(self.out, "runs")), [])
        said = iter(range(1000))
        self.programs.instead["generate"] = lambda call: call.print(" ".join([str(next(said))] * 64)) or 0

        def other(call):
            call.write(call.sets["telemetry.run_folder"] + "/metrics.jsonl", "".join(
                f'{{"step": {step}, "loss": {next(said)}.5, "grad_norm": 1, "seconds": 1}}\n' for step in range(1, 5)))
            return 0
        self.programs.instead["train"] = other
        self.assertEqual(self.call("--order=verify", "--only=^(resume|generate)/", "--again")[0], 1)
        self.assertIn("steps differ", self.items()[f"resume/{_SMALL}"]["about"])
        self.assertIn("it printed ['", self.items()[f"generate/{_SMALL}"]["about"])

    def test_formats_sweeps_and_nccl_between_processes_are_on_the_page(self):
        self.call("--order=formats", f"--only=formats/{_SMALL}")
        self.call("--order=speed", "--only=sweep")
        self.assertEqual(self.call("--order=nccl", "--budget_seconds=9999", "--only=traffic", "--only=/2$")[0], 0)
        text = self.text("report.md")
        for line in (f"bf16 to e4m3, {_SMALL}: 0 of 65,536 values differ from the exact ones.",
                     f"| {_SMALL} | 16 x 32 x 64 | e4m3 fast | bf16 | 1.0 | 0 |",
                     f"| {_SMALL} | 16 x 32 x 64 | e5m2 | bf16 | no algorithm |  |",
                     f"| {_SMALL} | batch.micro_batch=8 | 150,000 | 50.0 % | 0.500 | 20.0 GiB |",
                     f"| {_SMALL} | batch.micro_batch=32 | it needs more |  |  |  |",
                     "| traffic/4 | as planned | 9 s |"):
            self.assertIn(line + "\n", text)
        self.assertEqual([(row["item"], row["op"], row["rate"]) for row in self.rates()["rates"]
                          if row["item"] in (f"formats/{_SMALL}", "try_nccl/traffic/4")],
                         [("try_nccl/traffic/4", "AllGather between processes of one GPU", (1 << 20) / 1e-3),
                          (f"formats/{_SMALL}", "MatMul", 2 * 16 * 32 * 64 / 1e-6)])
        ranks = [call for call in self.programs.ran if "launch" in str(call.program.command)]
        self.assertEqual([(call.name, call.environment["CUDA_VISIBLE_DEVICES"]) for call in ranks],
                         [("gpu_tests", "0"), ("bench", "0")])
        self.assertIn("--processes=2", ranks[0].program.command)

    def test_conversions_that_are_not_exact_fail_their_item(self):
        self.programs.instead["bench"] = lambda call: call.write(
            call.flags["json"], '{"conversion": "e5m2", "different": 3}\n') or 0
        self.assertEqual(self.call("--order=formats", f"--only=formats/{_SMALL}")[0], 1)
        self.assertEqual(self.items()[f"formats/{_SMALL}"]["about"], "conversions to e5m2 are not exact")

    def test_a_program_that_went_wrong_in_an_unforeseen_way_is_one_failure(self):
        self.programs.instead["bench"] = lambda call: call.write(call.flags["json"], "[") or 0
        self.assertEqual(self.call("--order=nccl", "--only=test/nccl$", "--only=comm/in_process")[0], 1)
        self.assertEqual(self.statuses(), {"modules/0": "passed", "test/nccl": "passed", "comm/in_process": "failed"})

    def test_what_a_kit_or_a_machine_lacks_is_skipped_with_a_reason(self):
        os.remove(os.path.join(self.root, "bin/generate"))
        os.remove(os.path.join(self.root, "../cuda/bin/compute-sanitizer"))
        self.assertEqual(self.call("--order=verify", "--only=generate", "--only=initcheck")[0], 0)
        self.assertEqual({name: item["about"] for name, item in self.items().items() if item["status"] == "skipped"},
                         {f"generate/{_SMALL}": "the kit has no generate",
                          "initcheck/reductions": "there is no compute-sanitizer in CUDA_HOME or on the PATH"})

    def test_rates_have_op_shape_dtype_rate_spread_card_and_clocks(self):
        self.call("--order=speed", f"--only=trace/{_SMALL}$")
        self.call("--order=formats", f"--only=ops/{_SMALL}")
        found = self.rates()
        self.assertEqual((found["format"], found["commit"]), (rates.FORMAT, "unknown"))
        clocks = self.items()[f"trace/{_SMALL}"]["clocks"]
        of_trace = [row for row in found["rates"] if row["item"].startswith("trace/")]
        self.assertEqual(of_trace[0], {
            "op": "MatMul forward", "shape": "16384 x 896 x 4864 nt accumulate", "dtype": "bf16>f32",
            "rate": 1e11 / 2.5e-4, "unit": "FLOP/s",
            "seconds": 2.5e-4, "spread": 0.2, "calls": 2.0, "item": f"trace/{_SMALL}", "card": "NVIDIA H200",
            "clocks": clocks})
        self.assertEqual([of_trace[1][name] for name in ("op", "shape", "dtype", "unit")],
                         ["RmsNormForward forward", "x [16384, 896], rstd [16384]", "bf16", "bytes/s"])
        of_bench = [row for row in found["rates"] if row["item"].startswith("ops/")]
        names = ("op", "shape", "dtype", "rate", "unit", "spread")
        self.assertEqual([tuple(row[name] for name in names) for row in of_bench],
                         [("RmsNormForward", "[16384, 896]", "bf16", 4e7 / 1e-5, "bytes/s", 0.1)] * 2
                         + [("MatMul", "1 x 2 x 3", "bf16", 6.5e9 / 1e-5, "FLOP/s", 0.2)])

    def test_a_trace_is_summed_by_op_and_shape(self):
        self.call("--order=speed", f"--only=trace/{_SMALL}$")
        text = self.text("report.md")
        # Two steps of 701 us: 500 us of matmuls, of which the median takes 250 us, and 100 us of a norm, which shows
        # how fast memory is. The zeros are fewer bytes than the trace says.
        self.assertIn(f"{_SMALL}: 0.7 ms a step, of which the compute stream is busy for 85.7 %. The fastest op moves "
                      "3.00 TB/s.", text)
        self.assertIn("| MatMul | 71.3 % | 0.50 | 400 | 0.00 | 40 % |\n"
                      "| RmsNormForward | 14.3 % | 0.10 |  | 3.00 | 100 % |", text)
        self.assertIn("| forward | 16384 x 896 x 4864 nt accumulate | bf16>f32 | 2 | 250.0 | 400 | 71.3 % |", text)

    def test_wrong_command_lines(self):
        for arguments, wanted in ((["--only=["], "is no regular expression"), (["--again"], "--again wants --only"),
                                  (["--order=fast"], "invalid choice: 'fast'"),
                                  (["--tests_at_once=0"], "--tests_at_once wants 1"), (["--nothing"], "unrecognized")):
            said = io.StringIO()
            with redirect_stderr(said), self.assertRaises(SystemExit) as ended:
                main.parse(self.root, arguments)
            self.assertEqual(ended.exception.code, 2)
            self.assertIn(wanted, said.getvalue())
        self.assertEqual(self.call("--only=nothing")[0], 2)

    def test_ops_gets_the_sizes_of_a_micro_batch(self):
        with open(os.path.join("tools/bench/jobs/gpu/qwen2_5_7b_4096.textproto"), encoding="utf-8") as file:
            flags = benches.sizes_of(textproto.parse(file.read()))
        self.assertEqual(flags, ["--tokens=4096", "--sequence=4096", "--width=3584", "--hidden=18944",
                                 "--vocabulary=152064", "--heads=28", "--kv_heads=4", "--head_width=128",
                                 "--head_tokens=4096", "--parameters=233046016", "--square=8192"])

    def test_an_empty_page_says_what_is_to_do(self):
        text = page.Page(store.Store(self.out, "aaa"), ["a", "b"], "NVIDIA H200", "2026-11-28").text()
        self.assertTrue(text.startswith("# Runs on NVIDIA H200\n\n- date: 2026-11-28\n- machine: NVIDIA H200\n"), text)
        self.assertIn("2 items: 0 passed, 0 failed, 0 skipped, 2 to do.", text)


if __name__ == "__main__":
    unittest.main()
