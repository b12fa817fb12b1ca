#!/usr/bin/env python3
"""Tests the benchmark's own logic: what it measures, which medians form a ratio, and what it reports for a target."""

import contextlib
import io
import json
import os
import statistics
import struct
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock

sys.path.insert(0, "tools")
from bench.train import claims, contestants, main, options, process, table, textproto, turns, workloads
from bench.train.results import Disagreement, Results


def record(contestant, seconds, precision="fp32", workload="llama34m", number=1, **more):
    return {"workload": workload, "precision": precision, "contestant": contestant, "round": number, "seconds": seconds,
            "parameters": 1000, "tokens_per_step": 100, "first_loss": 9.0, "other_cores": 0.0, **more}


def results_of(*records):
    results = Results()
    for one in records:
        results.add(one)
    return results


def value(results, label, precision="fp32", workload="llama34m"):
    claim, = (c for c in claims.of(workload) if c.label.startswith(label))
    return claim.value(results, workload, precision)


class ResultsTest(unittest.TestCase):
    def test_a_median_is_one_over_rounds_of_medians_over_steps(self):
        results = results_of(record("shale", [1, 9, 2], number=1), record("shale", [5, 5, 5], number=2),
                             record("shale", [3, 3, 50], number=3))
        self.assertEqual(results.values("llama34m", "fp32", "shale", "seconds"), [2, 5, 3])
        self.assertEqual(results.median("llama34m", "fp32", "shale"), 3)

    def test_what_was_not_measured_has_no_median(self):
        results = results_of(record("shale", [1]), {**record("matmuls", []), "failed": "no"} | {"seconds": [1]})
        self.assertIsNone(results.median("llama34m", "bf16", "shale"))
        self.assertIsNone(results.median("gpt2_124m", "fp32", "shale"))

    def test_another_number_of_parameters_is_refused(self):
        results = results_of(record("shale", [1]), record("shale", [1], workload="gpt2_124m", parameters=7))
        with self.assertRaisesRegex(Disagreement, "llama34m: torch-best has 1,001 parameters, shale has 1,000"):
            results.add(record("torch-best", [1], precision="bf16", parameters=1001))

    def test_a_file_of_records_reads_back(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "runs.jsonl")
            with open(path, "w", encoding="utf-8") as file:
                for row in ({"info": {"machine": "m"}}, {"note": "n"}, record("shale", [1, 2, 3])):
                    file.write(json.dumps(row) + "\n")
            results = Results()
            results.read(path)
            self.assertEqual((results.info, results.notes), ({"machine": "m"}, ["n"]))
            self.assertEqual(results.median("llama34m", "fp32", "shale"), 2)
            with open(path, "a", encoding="utf-8") as file:
                file.write("{}\n")
            with self.assertRaisesRegex(ValueError, r"runs.jsonl:4: no line of a measurement"):
                Results().read(path)

    def test_contestants_of_former_versions_read_under_their_names_of_today(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "runs.jsonl")
            with open(path, "w", encoding="utf-8") as file:
                for name in ("products", "products-2ranks", "shale-deferred"):
                    file.write(json.dumps(record(name, [1])) + "\n")
            results = Results()
            results.read(path)
            self.assertEqual([one["contestant"] for one in results.records],
                             ["matmuls", "matmuls-2ranks", "shale-no-sync"])

    def test_what_is_measured_again_stands_for_what_was(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in "ab"]
            for path in paths:
                with open(path, "w", encoding="utf-8") as file:
                    for row in (
    record(
        "shale", [1]), {
            **record(
                "matmuls", []), "failed": "no"}, record(
                    "shale", [1], number=2), record(
                        "shale", [4]), record(
                            "matmuls", [3])):
                        file.write(json.dumps(row) + "\n")
            results = Results()
            results.read(paths[0])
            self.assertEqual(results.values("llama34m", "fp32", "shale", "seconds"), [1, 4])
            self.assertEqual(results.failures(), [])
            with open(paths[1], "a", encoding="utf-8") as file:
                file.write(json.dumps({"info": {"commit": "b", "machine": "m"}}) + "\n")
            results.info = {"commit": "a", "machine": "m"}
            results.read(paths[1])  # Records of another call.
            self.assertEqual(results.info, {"commit": "a; b", "machine": "m"})
            self.assertEqual(len(results.of("llama34m", "fp32", "shale", 1)), 2)


class ClaimsTest(unittest.TestCase):
    def test_speeds_are_ratios_of_medians(self):
        results = results_of(
    record(
        "shale",
        [2.0]),
        record(
            "torch-best",
            [2.2]),
            record(
                "matmuls",
                [1.8]),
                record(
                    "torch-installed",
                    [5.0]),
                    record(
                        "shale-2ranks",
                        [2.1]),
                        record(
                            "fsdp2-best",
                             [3.15]))
        self.assertAlmostEqual(value(results, "against PyTorch at its best"), 1.1)
        self.assertAlmostEqual(value(results, "against the matmuls"), 0.9)
        self.assertAlmostEqual(value(results, "against PyTorch compiled, as installed"), 2.5)
        self.assertAlmostEqual(value(results, "two sharded ranks against FSDP2"), 1.5)
        self.assertAlmostEqual(value(results, "two sharded ranks against one"), 2.0 / 2.1)

    def test_eight_micro_batches_are_held_against_eight_less_seven_optimizers(self):
        results = results_of(record("shale-8-steps", [1.0]), record("shale-k8", [7.5], update_seconds=0.1))
        self.assertAlmostEqual(value(results, "time of K = 8"), 7.5 / (8 * 0.9 + 0.1))

    def test_what_counts_is_the_median_of_the_rounds(self):
        times = ((1, 1.0, 1.3), (2, 2.0, 2.2), (3, 1.0, 1.0))
        results = results_of(*(record("shale", [one], number=number) for number, one, _ in times),
                             *(record("torch-best", [other], number=number) for number, _, other in times),
                             record("shale", [5.0], number=4))
        claim = claims.of("llama34m")[0]
        for found, wanted in zip(claim.by_round(results, "llama34m", "fp32"), (1.3, 1.1, 1.0), strict=True):
            self.assertAlmostEqual(found, wanted)
        self.assertAlmostEqual(claim.value(results, "llama34m", "fp32"), 1.1)

    def test_turns_say_how_well_a_ratio_close_to_one_is_known(self):
        def turns_record(*arguments, **more):
            return record(*arguments, in_turns=True, **more)

        claim, = (c for c in claims.of("llama34m") if c.label.startswith("NO_SYNC"))
        sharded = [1.00, 1.02, 0.98, 1.01, 0.99, 1.00]
        close = results_of(turns_record("shale-sharded", sharded),
                           turns_record("shale-no-sync", [1.01, 1.00, 1.00, 1.02, 1.00, 1.01]))
        ratios = [a / b for a, b in zip(sharded, [1.01, 1.00, 1.00, 1.02, 1.00, 1.01])]
        self.assertAlmostEqual(claim.error(close, "llama34m", "fp32"), claim.value(close, "llama34m", "fp32") *
                               statistics.stdev(ratios) / statistics.mean(ratios) / 6 ** 0.5)
        self.assertFalse(claim.met(claim.value(close, "llama34m", "fp32"), "fp32"))
        self.assertTrue(claim.undecided(close, "llama34m", "fp32"))
        slower = results_of(turns_record("shale-sharded", sharded),
                            turns_record("shale-no-sync", [1.1 * one for one in sharded]))
        self.assertFalse(claim.undecided(slower, "llama34m", "fp32"))
        few = results_of(turns_record("shale-sharded", sharded[:4]), turns_record("shale-no-sync", [1.01] * 4))
        self.assertIsNone(claim.error(few, "llama34m", "fp32"))
        self.assertFalse(claim.undecided(few, "llama34m", "fp32"))
        more = results_of(*close.records, turns_record("shale-sharded", sharded, number=2),
                          turns_record("shale-no-sync", [1.01] * 6, number=2))
        self.assertLess(claim.error(more, "llama34m", "fp32"), claim.error(close, "llama34m", "fp32"))
        apart = results_of(record("shale-sharded", sharded),
                           record("shale-no-sync", [1.01, 1.00, 1.00, 1.02, 1.00, 1.01]))
        self.assertIsNone(claim.error(apart, "llama34m", "fp32"))
        lone = results_of(*close.records, turns_record("shale-sharded", sharded))
        self.assertIsNone(claim.error(lone, "llama34m", "fp32"))
        self.assertIsNone(claims.of("llama34m")[0].error(close, "llama34m", "fp32"))
        text = table.markdown(close)
        self.assertIn("| 0.995 ± 0.011 x | >= 1 x | undecided |", text)
        self.assertIn("0 of the 1 targets measured are met; undecided: 1.", text)
        self.assertIn("±: two standard errors", text)

    def test_the_error_of_accumulation_is_in_proportion_to_that_of_its_turns(self):
        claim, = (c for c in claims.of("llama34m") if "K = 8" in c.label)
        eight, one = [8.1, 8.2, 8.0, 8.3, 8.1], [1.0, 1.01, 1.0, 1.02, 1.0]
        results = results_of(record("shale-k8", eight, update_seconds=0.02, in_turns=True),
                             record("shale-8-steps", one, in_turns=True))
        ratios = [a / b for a, b in zip(eight, one)]
        self.assertAlmostEqual(claim.value(results, "llama34m", "fp32"), 8.1 / (8 - 0.14))
        self.assertAlmostEqual(claim.error(results, "llama34m", "fp32"), 8.1 / (8 - 0.14) *
                               statistics.stdev(ratios) / statistics.mean(ratios) / 5 ** 0.5)
        unknown = results_of(record("shale-k8", eight, in_turns=True), record("shale-8-steps", one, in_turns=True))
        self.assertIsNone(claim.error(unknown, "llama34m", "fp32"))

    def test_memory_less_what_both_must_hold(self):
        both = [record("shale", [1], workload=w, peak_rss_bytes=26000) for w in workloads.NAMES]
        both += [record("torch-best", [1], workload=w, peak_rss_bytes=56000) for w in workloads.NAMES]
        results = results_of(*both)
        self.assertAlmostEqual(value(results, "peak RSS"), 26 / 56)
        self.assertAlmostEqual(value(results, "peak RSS", workload="gpt2_124m"), 10 / 40)

    def test_the_other_shapes_have_five_percent_less_to_reach(self):
        first, other = claims.of("llama34m")[0], claims.of("qwen2_5_0_5b")[0]
        self.assertEqual(first.label, other.label)
        self.assertAlmostEqual(other.targets["bf16"], 0.95 * first.targets["bf16"])

    def test_a_target_that_is_just_reached_is_met(self):
        for claim in claims.of("llama34m"):
            self.assertTrue(claim.met(claim.targets["fp32"], "fp32"), claim.label)
            worse = -1e-9 if claim.at_least else 1e-9
            self.assertFalse(claim.met(claim.targets["fp32"] + worse, "fp32"), claim.label)

    def test_every_claim_names_contestants_that_exist(self):
        asked = set()
        for claim in claims.of("llama34m") + claims.of("gpt2_124m"):
            for question in (claim.measure, claim.bound):
                with contextlib.suppress(ZeroDivisionError):
                    question(lambda contestant, key="seconds": asked.add(contestant) or 1.0)
        self.assertEqual(asked, {name for name, contestant in contestants.ALL.items() if not contestant.extra})


class TableTest(unittest.TestCase):
    def text(self, *records):
        return table.markdown(results_of(*records))

    def test_each_target_is_met_or_not_or_not_measured(self):
        text = self.text(
    record(
        "shale",
        [1.0],
        peak_rss_bytes=2**30),
        record(
            "torch-best",
            [1.2],
             peak_rss_bytes=2**31))
        self.assertIn("| against PyTorch at its best | 1.200 x | >= 1.08 x | met |", text)
        self.assertIn("| peak RSS against PyTorch at its best | 0.500 x | <= 0.48 x | **not met** |", text)
        self.assertIn("|  | >= 2.3 x | not measured |", text)
        self.assertIn("1 of the 2 targets measured are met.", text)
        self.assertNotIn("gpt2", text)

    def test_an_unmet_target_stands_beside_what_bounds_it(self):
        # Matmuls take 0.375 s, attention 0.125 s, and moving 1 GB at 2 GB/s takes 0.5 s: one second in all.
        matmuls = record(
    "matmuls",
    [0.375],
    gflop=150,
    attention_gflop=50,
    attention_seconds=0.125,
    packed_bytes=0.25e9,
    other_bytes=0.75e9,
     copy_bytes_per_second=2e9)
        text = self.text(
    record(
        "shale",
        [1.6]),
        record(
            "torch-best",
            [1.2]),
            record(
                "torch-installed",
                [1.8]),
                 matmuls)
        self.assertIn("| 0.750 x | >= 1.08 x | **not met**, at most: 1.200 x |", text)
        self.assertIn("| 1.125 x | >= 2.3 x | **not met**, out of reach here: 1.800 x |", text)
        self.assertIn("- fp32: 150 GFLOP of matmuls alone in 0.3750 s, those of 50 GFLOP of attention in 0.1250 s",
                      text)
        self.assertIn("and 0.25 GB to pack B and 0.75 GB for all else at 2.0 GB/s", text)
        self.assertIn("copies of memory at their best: 1.0000 s a step.", text)
        # The target against the matmuls alone is not met either, but no engine could reach it.
        self.assertIn("0 of the 3 targets measured are met; out of reach here: 2.", text)

    def test_a_ratio_past_its_bound_says_how_far_that_can_be_trusted(self):
        # These give a lower bound of one second per step.
        matmuls = record(
    "matmuls",
    [0.375],
    gflop=150,
    attention_gflop=50,
    attention_seconds=0.125,
    packed_bytes=0.25e9,
    other_bytes=0.75e9,
     copy_bytes_per_second=2e9)
        text = self.text(
    record(
        "shale",
        [0.98]),
        record(
            "torch-best",
            [1.05]),
            record(
                "torch-installed",
                [1.8]),
                 matmuls)
        self.assertIn("| 1.071 x | >= 1.08 x | **not met**, although beyond its bound: 1.050 x |", text)
        self.assertIn("| 1.837 x | >= 2.3 x | **not met**, out of reach here: 1.800 x |", text)
        self.assertIn("out of reach here: 2.", text)  # Counts the target against the matmuls alone, too.

    def test_two_ranks_have_a_bound_of_their_own(self):
        matmuls = record("matmuls-2ranks", [1.25], gflop=150, attention_gflop=50, attention_seconds=0.25,
                          packed_bytes=0.25e9, other_bytes=0.75e9, copy_bytes_per_second=2e9)
        text = self.text(record("shale-2ranks", [2.5]), record("fsdp2-best", [3.0]), matmuls)
        self.assertIn("| 1.200 x | >= 1.3 x | **not met**, at most: 1.500 x |", text)
        self.assertIn("- fp32, two ranks on half of the threads each: 150 GFLOP of matmuls alone in 1.2500 s", text)

    def test_every_round_is_shown(self):
        text = self.text(record("shale", [1.0]), record("torch-best", [1.2]), record("shale", [1.0], number=2),
                         record("torch-best", [1.0], number=2))
        self.assertIn("| against PyTorch at its best | 1.100 x (1.200, 1.000) | >= 1.08 x | met |", text)
        self.assertIn("are met by the median of the rounds", text)

    def test_a_bound_that_was_not_measured_is_not_told(self):
        text = self.text(record("shale", [1.6]), record("torch-best", [1.2]), record("matmuls", [0.9], gflop=150))
        self.assertIn("| 0.750 x | >= 1.08 x | **not met** |", text)
        self.assertNotIn("Bounds", text)

    def test_disturbance_failures_and_odd_losses_are_told(self):
        text = self.text(record("shale",
    [1.0],
    other_cores=0.8),
    record("torch-best",
    [1.0],
    first_loss=12.0),
    {"workload": "llama34m",
    "precision": "fp32",
    "contestant": "matmuls",
    "round": 1,
     "failed": "no disk"})
        self.assertIn("**The machine was busy**: in 1 of 3 measurements", text)
        self.assertIn("torch-best: first loss 12.000, expected about 9.011", text)
        self.assertIn("**Failed**: llama34m fp32 matmuls: no disk", text)


class OptionsTest(unittest.TestCase):
    def refused(self, wanted, *arguments):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as ended:
            options.parse(list(arguments))
        self.assertEqual(ended.exception.code, 2)
        self.assertIn(wanted, said.getvalue())

    def test_names_pick_within_their_kind(self):
        chosen = options.parse(["--only=bf16,shale", "--only=matmuls"])
        self.assertEqual(chosen.workloads, list(workloads.NAMES))
        self.assertEqual((chosen.precisions, chosen.contestants), (["bf16"], ["shale", "matmuls"]))
        self.assertNotIn("torch-eager", options.parse([]).contestants)
        self.assertEqual(options.parse(["--only=torch-eager"]).contestants, ["torch-eager"])

    def test_variants_of_the_engine_run_on_the_first_shape_only(self):
        chosen = options.parse(["--only=shale-k8,shale"])
        plan = [(workload.name, name) for workload, names in main.plan_of(chosen) for name in names]
        self.assertEqual(plan.count(("llama34m", "shale-k8")), 2)
        self.assertEqual({workload for workload, name in plan if name == "shale-k8"}, {"llama34m"})
        self.assertEqual({workload for workload, name in plan if name == "shale"}, set(workloads.NAMES))

    def test_what_is_not_understood_is_refused(self):
        self.refused("found 'shalee'; known are llama34m", "--only=shalee")
        self.refused("found '0'; wanted 1 to 1000", "--rounds=0")
        self.refused("found '3'; wanted an even number", "--threads=3")
        self.refused("found 'a/b'", "--keep=a/b")
        self.refused("unrecognized arguments: --round=2", "--round=2")
        self.refused("give one of them", "--resume=a", "--render=b")

    def test_the_list_names_everything(self):
        for name in (*workloads.NAMES, *workloads.PRECISIONS, *contestants.ALL):
            self.assertIn(name, options.list_text())


class WorkloadsTest(unittest.TestCase):
    def test_ranks_share_the_global_batch(self):
        one, two = (workloads.Workload("llama34m", "bf16").settings(2, ranks) for ranks in (1, 2))
        self.assertEqual((one["batch.global_batch"], one["batch.micro_batch"],
                         one["runtime.threads_per_rank"]), (8, 8, 2))
        self.assertEqual((two["batch.global_batch"], two["batch.micro_batch"],
                         two["runtime.threads_per_rank"]), (8, 4, 1))
        self.assertEqual((two["precision.compute"], two["precision.master"]), ("BF16", "SPLIT"))
        fp32 = workloads.Workload("llama34m", "fp32").settings(2)
        self.assertEqual((fp32["precision.compute"], fp32["precision.master"]), ("FP32", "MASTER_FP32"))

    def test_a_precision_may_have_settings_of_its_own(self):
        bf16, fp32 = (workloads.Workload("qwen2_5_0_5b", precision).settings(2) for precision in ("bf16", "fp32"))
        self.assertEqual((bf16["sharding.accumulation"], bf16["activation_checkpointing.preset"]), ("LAYERED", "CHEAP"))
        self.assertNotIn("sharding.accumulation", fp32)
        # An explicit setting overrides that of the precision.
        more = workloads.Workload("qwen2_5_0_5b", "bf16").settings(2, more={"sharding.accumulation": "SHARDED"})
        self.assertEqual(more["sharding.accumulation"], "SHARDED")

    def test_micro_batches_multiply_the_global_batch(self):
        settings = workloads.Workload("llama34m", "fp32").settings(2, 2, 4)
        self.assertEqual((settings["batch.global_batch"], settings["batch.micro_batch"]), (32, 4))

    def test_token_files_are_those_of_llmc(self):
        with tempfile.TemporaryDirectory() as folder:
            for vocabulary, magic, width in ((8192, 20240520, "H"), (151936, 20240801, "I")):
                path = workloads.write_tokens(folder, vocabulary, count=1000)
                with open(path, "rb") as file:
                    data = file.read()
                self.assertEqual(struct.unpack_from("<3i", data)[::2], (magic, 1000))
                tokens = struct.unpack_from(f"<1000{width}", data, 1024)
                self.assertEqual(len(data), 1024 + struct.calcsize(f"<1000{width}"))
                self.assertTrue(all(token < vocabulary for token in tokens))
                before = os.stat(path).st_mtime_ns
                self.assertEqual(workloads.write_tokens(folder, vocabulary, count=1000), path)
                self.assertEqual(os.stat(path).st_mtime_ns, before)


class TextprotoTest(unittest.TestCase):
    def test_fields_of_every_kind(self):
        job = textproto.parse('name: "a b"  # why\nmodel { decoder { width: 512 eps: 1e-6 family: GPT2 tied: true } }')
        self.assertEqual(
    job, {
        "name": "a b", "model": {
            "decoder": {
                "width": 512, "eps": 1e-6, "family": "GPT2", "tied": True}}})
        textproto.set_path(job, "batch.global_batch", 3)
        self.assertEqual(job["batch"], {"global_batch": 3})

    def test_what_is_wrong_is_named_by_its_line(self):
        for text, wanted in (("a: 1\nb { c: 2", "line 2: the brace after b"), ("a: 1 }",
                                                                               "line 1: a brace closes nothing"),
                             ("a: 1\na: 2", "line 2: a is set twice"), ("a:\n}", "line 1: a has no value"),
                             ("a: 1x", "'1x' is no number"), ("\n[", r"line 2: found '\['")):
            with self.assertRaisesRegex(ValueError, wanted):
                textproto.parse(text)


class OutputTest(unittest.TestCase):
    def test_parameters_of_a_plan(self):
        self.assertEqual(contestants.parameters_of("memory\n  parameters   34,087,424 in 75 tensors\n"), 34087424)
        with self.assertRaises(process.Failed):
            contestants.parameters_of("nothing")

    def test_the_start_ends_where_the_first_step_begins(self):
        lines = [(0.1, "plan"), (1.5, "step   1/18  loss 9.1"), (2.5, "step   2/18  loss 9.0")]
        self.assertAlmostEqual(contestants.start_seconds(lines, 1.2), 0.3)

    def test_steps_that_are_timed_as_one(self):
        self.assertEqual(contestants.by_groups([1, 2, 3, 4], 1), [1, 2, 3, 4])
        self.assertEqual(contestants.by_groups([1, 2, 3, 4], 2), [1.5, 3.5])

    def test_the_optimizer_of_a_trace(self):
        event = {"pid": 0, "cat": "update", "ts": 1000.0, "dur": 500.0}
        trace = {"traceEvents": [event, {**event, "ts": 2000.0}, {**event, "pid": 1, "ts": 9000.0},
                                 {**event, "cat": "forward", "ts": 0.0}, {"ph": "M", "pid": 0}]}
        self.assertAlmostEqual(contestants.update_seconds(trace), 1.5e-3)


class ProcessTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_all(self, *scripts, **more):
        return process.run([["/bin/sh", "-c", script] for script in scripts],
                           dict(os.environ), self.folder.name, "p", **more)

    def test_output_and_memory_of_every_process(self):
        group = self.run_all("echo one; echo two", "echo three")
        self.assertEqual([[text for _, text in outcome.lines]
                         for outcome in group.outcomes], [["one", "two"], ["three"]])
        for outcome in group.outcomes:
            self.assertGreater(outcome.peak_rss_bytes, 0)

    def test_one_that_fails_ends_the_others(self):
        # The other process would run for longer than this test may.
        with self.assertRaisesRegex(process.Failed, "ended with 3: no luck"):
            self.run_all("exec sleep 10000", "echo no luck >&2; exit 3")

    def test_one_that_was_killed_is_told_from_one_that_lost_its_peer(self):
        with self.assertRaisesRegex(process.Killed, "ended with -9"):
            self.run_all("sleep 0.1; exit 3", "kill -9 $$")

    def test_pytorch_that_was_killed_is_measured_with_the_allocator_as_installed(self):
        place = types.SimpleNamespace(
            threads=2, logs=self.folder.name, path=lambda name: os.path.join(self.folder.name, name),
            mkl_library=lambda: "", python=lambda: "/bin/sh", torch_program=lambda: self.program,
            tokens=lambda workload: "", environment=lambda more: {**os.environ, **more})
        self.program = os.path.join(self.folder.name, "program")
        with open(self.program, "w", encoding="utf-8") as file:
            file.write("""[ -n "$MALLOC_TOP_PAD_" ] && kill -9 $$
                          echo '{"seconds": [1, 2], "losses": [9, 9], "parameters": 1, "tokens_per_step": 1, '\
                               '"peak_rss_bytes": 5}'
                       """)
        workload = workloads.Workload("qwen2_5_0_5b", "fp32")
        result = contestants.ALL["fsdp2-best"].run(workload, place, 1, 1, "fsdp2-best")
        self.assertEqual((result["seconds"], result["peak_rss_bytes"]), ([2], 10))
        self.assertIn("measured with the one installed", result["remark"])
        with self.assertRaises(process.Killed):
            contestants.ALL["fsdp2-best"].run(workload, place, 1, 1, "fsdp2-best", turns.Rotation().join())

    def test_one_that_hangs_is_ended(self):
        with self.assertRaisesRegex(process.Failed, "did not end within 0.1 s"):
            self.run_all("exec sleep 10000", timeout_seconds=0.1)


class TurnsTest(unittest.TestCase):
    def test_those_compared_take_turns_where_memory_holds_them(self):
        plan = main.plan_of(options.parse(["--only=shale,torch-best,shale-block,bf16"]))
        self.assertEqual([(workload.name, names) for workload, names in plan],
                         [("llama34m", ["shale", "torch-best"]), ("llama34m", ["shale-block"]),
                          ("gpt2_124m", ["shale", "torch-best"]),
                          ("qwen2_5_0_5b", ["shale"]), ("qwen2_5_0_5b", ["torch-best"])])
        # Contestants that no ratio compares are the first to be measured separately.
        plan = main.plan_of(options.parse(["--only=gpt2_124m,bf16"]))
        self.assertEqual([names for _, names in plan], [["shale", "torch-best", "matmuls", "torch-installed"],
                                                        ["shale-2ranks", "matmuls-2ranks", "fsdp2-best"]])

    def test_apart_means_alone(self):
        plan = main.plan_of(options.parse(["--only=shale,torch-best,llama34m,bf16", "--apart"]))
        self.assertEqual([names for _, names in plan], [["shale"], ["torch-best"]])

    def test_everybody_is_in_one_set_at_most(self):
        names = [name for together in contestants.SETS for name in together]
        self.assertEqual(len(names), len(set(names)))
        for most in (1, 2, 3, 7):
            parts = contestants.in_sets(list(contestants.ALL), most)
            self.assertLessEqual(max(map(len, parts)), most)
            self.assertEqual(sorted(name for some in parts for name in some), sorted(contestants.ALL))

    def test_they_follow_each_other_in_order_and_who_leaves_is_passed_over(self):
        rotation = turns.Rotation()
        members = [rotation.join() for _ in range(3)]
        order = []

        def run(number, times):
            members[number].wait()
            for left in range(times, 0, -1):
                order.append(number)
                if left > 1:
                    members[number].next()
            members[number].leave()

        threads = [threading.Thread(target=run, args=(number, times)) for number, times in ((0, 3), (1, 1), (2, 2))]
        for thread in reversed(threads):
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(order, [0, 1, 2, 0, 2, 0])

    def test_the_end_reaches_who_waits(self):
        rotation = turns.Rotation()
        rotation.join()
        second = rotation.join()
        rotation.end()
        with self.assertRaises(turns.Ended):
            second.wait()

    def test_a_step_stops_its_processes_until_the_next_turn(self):
        with tempfile.TemporaryDirectory() as folder:
            turn = turns.Rotation().join()
            turn.by_step(r"step \d", warmup=1, turns=2, each=2)
            stops = []

            def state(pid):
                with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                    return file.read().rsplit(")", 1)[1].split()[0]

            def next_turn(go_on=turn.next):
                pid = turn._processes[0].pid
                while state(pid) != "T":  # A signal takes effect with a delay.
                    time.sleep(0.001)
                stops.append(pid)
                go_on()

            turn.next = next_turn
            script = "for i in 1 2 3 4 5; do sleep 0.1; echo step $i; done; echo end"
            group = process.run([["/bin/sh", "-c", script]], dict(os.environ), folder, "p", turn)
        self.assertEqual(len(stops), 2)
        self.assertEqual(len(turn.seconds), 2)
        self.assertEqual([text for _, text in group.outcomes[0].lines], [f"step {i}" for i in range(1, 6)] + ["end"])

    def test_the_time_of_a_turn_is_that_of_one_of_its_steps(self):
        turn = turns.Rotation().join()
        turn.by_step("step", warmup=0, turns=1, each=2)
        with unittest.mock.patch("time.monotonic", return_value=turn._began + 3):
            for _ in range(2):
                turn.line("step")
        self.assertEqual(turn.seconds, [1.5])

    def measured(self, **scripts):
        """Runs shell scripts in turns. Yields the name and the result of each."""
        class Script(contestants.Contestant):
            def __init__(self, text):
                self.text = text

            def run(self, workload, place, steps, warmup, name, turn=None):
                turn.by_step("step", warmup, steps)
                if not self.text:
                    raise OSError("no place")
                process.run([["/bin/sh", "-c", self.text]], dict(os.environ), place, name, turn)
                return {"seconds": turn.seconds}

        before = dict(contestants.ALL)
        self.addCleanup(lambda: (contestants.ALL.clear(), contestants.ALL.update(before)))
        contestants.ALL.update({name: Script(text) for name, text in scripts.items()})
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        chosen = types.SimpleNamespace(steps=None, warmup=None)
        return main._measure_together(chosen, folder.name, types.SimpleNamespace(steps=2, warmup=1), list(scripts))

    def test_what_an_earlier_call_measured_is_not_measured_again(self):
        chosen = options.parse(["--only=llama34m,fp32,shale,matmuls,shale-keep-all,shale-block", "--rounds=2"])
        results = results_of(record("shale", [1]), record("matmuls", [1]), record("shale-block", [1]),
                             {**record("shale-keep-all", []), "failed": "no"} | {"seconds": [2]})
        del results.records[-1]["seconds"]
        results.info = {"commit": "a", "date": "d", "machine": "m"}
        asked = []

        def measured(chosen, here, workload, names):
            asked.append(names)
            for name in names:
                yield name, {"seconds": [3], "first_loss": 9.0, "other_cores": 0.0}

        log = io.StringIO()
        with unittest.mock.patch.object(main, "_measure_together", measured), \
                unittest.mock.patch.object(process, "other_cores_now", return_value=0.0), \
                contextlib.redirect_stderr(io.StringIO()):
            main._go_on(results, {"commit": "b", "date": "e", "machine": "m"}, log)
            main.measure(chosen, types.SimpleNamespace(tokens=lambda workload: None), results, log)
        # Measured are the pair of which one had failed, and the second round.
        self.assertEqual(asked, [["shale-keep-all", "shale-block"],
                         ["shale", "matmuls"], ["shale-keep-all", "shale-block"]])
        self.assertEqual(results.values("llama34m", "fp32", "shale", "seconds"), [1, 3])
        self.assertEqual(results.values("llama34m", "fp32", "shale-block", "seconds"), [3, 3])
        self.assertEqual(results.notes[0], "commit was a, and is b from here on")
        self.assertEqual(results.info["commit"], "a")

    def test_those_that_fail_leave_their_turns_to_the_others(self):
        good = "for i in 1 2 3; do echo step $i; sleep 0.05; done"
        results = dict(self.measured(none="", good=good, bad="echo step 1; sleep 0.05; exit 4"))
        self.assertEqual(len(results["good"]["seconds"]), 2)
        self.assertIn("ended with 4", results["bad"]["failed"])
        self.assertEqual(results["none"]["failed"], "no place")

    def test_whoever_stops_listening_ends_them_all(self):
        # The other two would run for longer than this test may.
        results = self.measured(none="", long="exec sleep 10000", waiting="exec sleep 10000")
        self.assertEqual(next(results)[0], "none")
        results.close()


if __name__ == "__main__":
    unittest.main()
