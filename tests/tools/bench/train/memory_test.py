#!/usr/bin/env python3
"""Tests the rows of --only=memory: what they set, where they run, and their tables."""

import sys
import unittest

sys.path[:0] = ["tools", "tests/tools/bench/train"]

from bench.train import contestants, main, memory, options, table, workloads  # noqa: E402
from records import record, results_of  # noqa: E402

_GIB = 2**30


class MemoryTest(unittest.TestCase):
    def test_the_group_stands_for_both_sides_of_every_row(self):
        chosen = options.parse(["--only=memory,fp32"])
        names = [memory.contestant(side, name) for name, row in memory.ROWS.items()
                 for side in (("shale", "torch") if row.torch else ("shale",))]
        self.assertEqual(sorted(chosen.contestants), sorted(names))
        self.assertFalse(set(names) & set(options.parse([]).contestants))
        plan = main.plan_of(chosen)
        self.assertEqual({workload.name for workload, _ in plan}, set(memory.WORKLOADS))
        self.assertFalse([workload.name for workload, some in plan
                          if "torch-memory-one-piece" in some and workload.name != workloads.FIRST])
        # Both sides take turns where memory holds them.
        self.assertIn(["shale-memory-block", "torch-memory-block"],
                      [some for workload, some in plan if workload.name == workloads.FIRST])

    def test_rows_differ_from_what_they_are_compared_with_in_one_setting(self):
        for name, row in memory.ROWS.items():
            if row.against:
                mine, others = memory.settings(name).items(), memory.settings(row.against).items()
                # Lean state is one setting of two fields.
                self.assertEqual(len({path for path, _ in mine ^ others}), 2 if name == "lean" else 1, name)

    def test_lean_state_is_measured_in_bf16_and_not_in_pytorch(self):
        self.assertNotIn("torch-memory-lean", contestants.ALL)
        plan = main.plan_of(options.parse(["--only=memory"]))
        self.assertEqual({workload.precision for workload, some in plan if "shale-memory-lean" in some}, {"bf16"})

    def test_both_sides_get_the_same_job(self):
        for row in [name for name, row in memory.ROWS.items() if row.torch]:
            workload = workloads.Workload("qwen2_5_0_5b", "bf16")
            both = [contestants.ALL[memory.contestant(side, row)] for side in ("shale", "torch")]
            shale, torch = (workload.job(workload.settings(2, more=one.more)) for one in both)
            self.assertEqual(shale, torch)
            self.assertEqual(shale["batch"]["sequence_length"], 2048)
            self.assertEqual(shale["sharding"]["accumulation"], "SHARDED")
        self.assertEqual(torch["optimizer"]["update"], "IN_BACKWARD")

    def test_ratios_stand_side_by_side(self):
        results = results_of(record("shale-memory-none", [2.0], peak_rss_bytes=2 * _GIB),
                             record("torch-memory-none", [4.0], peak_rss_bytes=8 * _GIB),
                             record("shale-memory-block", [3.0], peak_rss_bytes=_GIB))
        text = table.markdown(results)
        self.assertIn("| checkpointing NONE, K = 8, fp32 | 2.00 | 8.00 | 0.250 x | 2.000 | 4.000 | 0.500 x |", text)
        self.assertIn("| checkpointing BLOCK, K = 8, fp32 | 1.00 |  |  | 3.000 |  |  |", text)
        self.assertIn("| checkpointing BLOCK, K = 8, against checkpointing NONE, K = 8, fp32 | 0.500 x | 1.500 x |  |"
                      "  |", text)
        self.assertNotIn("targets", text)
        self.assertNotIn("SQRT", text)

    def test_a_run_without_these_rows_has_no_such_table(self):
        self.assertNotIn("one setting against another", table.markdown(results_of(record("shale", [1.0]))))


if __name__ == "__main__":
    unittest.main()
