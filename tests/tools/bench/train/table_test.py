#!/usr/bin/env python3
"""Tests the report: verdicts on targets, bounds, and what it tells of disturbances and failures."""

import sys
import unittest

sys.path[:0] = ["tools", "tests/tools/bench/train"]

from bench.train import table  # noqa: E402
from records import record, results_of  # noqa: E402


class TableTest(unittest.TestCase):
    def text(self, *records):
        return table.markdown(results_of(*records))

    def test_each_target_is_met_or_not_or_not_measured(self):
        text = self.text(record("shale", [1.0], peak_rss_bytes=2**30),
                         record("torch-best", [1.2], peak_rss_bytes=2**31))
        self.assertIn("| against PyTorch at its best | 1.200 x | >= 1.08 x | met |", text)
        self.assertIn("| peak RSS against PyTorch at its best | 0.500 x | <= 0.48 x | **not met** |", text)
        self.assertIn("|  | >= 2.3 x | not measured |", text)
        self.assertIn("1 of the 2 targets measured are met.", text)
        self.assertNotIn("gpt2", text)

    def test_an_unmet_target_stands_beside_what_bounds_it(self):
        # Matmuls take 0.375 s, attention 0.125 s, and moving 1 GB at 2 GB/s takes 0.5 s: one second in all.
        matmuls = record("matmuls", [0.375], gflop=150, attention_gflop=50, attention_seconds=0.125,
                         packed_bytes=0.25e9, other_bytes=0.75e9, copy_bytes_per_second=2e9)
        text = self.text(record("shale", [1.6]), record("torch-best", [1.2]), record("torch-installed", [1.8]), matmuls)
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
        matmuls = record("matmuls", [0.375], gflop=150, attention_gflop=50, attention_seconds=0.125,
                         packed_bytes=0.25e9, other_bytes=0.75e9, copy_bytes_per_second=2e9)
        text = self.text(record("shale", [0.98]), record("torch-best", [1.05]), record("torch-installed", [1.8]),
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
        text = self.text(record("shale", [1.0], other_cores=0.8), record("torch-best", [1.0], first_loss=12.0),
                         {"workload": "llama34m", "precision": "fp32", "contestant": "matmuls", "round": 1,
                          "failed": "no disk"})
        self.assertIn("**The machine was busy**: in 1 of 3 measurements", text)
        self.assertIn("torch-best: first loss 12.000, expected about 9.011", text)
        self.assertIn("**Failed**: llama34m fp32 matmuls: no disk", text)

    def test_now_stands_against_before(self):
        more = {"planned_bytes": 2**30, "in_turns": True}
        text = self.text(record("shale", [1.0, 1.1, 1.0, 1.1, 1.0], peak_rss_bytes=2**30, **more),
                         record("shale-before", [2.0, 2.2, 2.2, 2.0, 2.0], peak_rss_bytes=2**31, **more),
                         record("shale-k8", [3.0], peak_rss_bytes=2**30, **more))
        self.assertRegex(text, r"\| shale fp32 \| 1\.0000 \| 2\.0000 \| 0\.500 ± 0\.0\d\d x \| 0\.500 x \| 1\.000 x \|")
        self.assertEqual(text.count("now against before"), 1)
        self.assertNotIn("| shale-k8 fp32 | 3.0000 | ", text.split("medians")[0])
        self.assertNotIn("now against before", self.text(record("shale", [1.0])))


if __name__ == "__main__":
    unittest.main()
