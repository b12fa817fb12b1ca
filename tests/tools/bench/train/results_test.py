#!/usr/bin/env python3
"""Tests records of measurements: medians, files, and what counts when something is measured again."""

import json
import os
import sys
import tempfile
import unittest

sys.path[:0] = ["tools", "tests/tools/bench/train"]

from bench.train.results import Disagreement, Results  # noqa: E402
from records import record, results_of  # noqa: E402


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
                    for row in (record("shale", [1]), {**record("matmuls", []), "failed": "no"},
                                record("shale", [1], number=2), record("shale", [4]), record("matmuls", [3])):
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


if __name__ == "__main__":
    unittest.main()
