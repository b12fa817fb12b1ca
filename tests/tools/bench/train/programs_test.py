#!/usr/bin/env python3
"""Tests how the output of a contestant becomes a result."""

import os
import sys
import tempfile
import types
import unittest

sys.path.insert(0, "tools")

from bench.train import contestants, process, programs, turns, workloads  # noqa: E402


class ProgramsTest(unittest.TestCase):
    def test_parameters_of_a_plan(self):
        self.assertEqual(programs.parameters_of("memory\n  parameters   34,087,424 in 75 tensors\n"), 34087424)
        with self.assertRaises(process.Failed):
            programs.parameters_of("nothing")

    def test_the_start_ends_where_the_first_step_begins(self):
        lines = [(0.1, "plan"), (1.5, "step   1/18  loss 9.1"), (2.5, "step   2/18  loss 9.0")]
        self.assertAlmostEqual(programs.start_seconds(lines, 1.2), 0.3)

    def test_steps_that_are_timed_as_one(self):
        self.assertEqual(programs.by_groups([1, 2, 3, 4], 1), [1, 2, 3, 4])
        self.assertEqual(programs.by_groups([1, 2, 3, 4], 2), [1.5, 3.5])

    def test_the_optimizer_of_a_trace(self):
        event = {"pid": 0, "cat": "update", "ts": 1000.0, "dur": 500.0}
        trace = {"traceEvents": [event, {**event, "ts": 2000.0}, {**event, "pid": 1, "ts": 9000.0},
                                 {**event, "cat": "forward", "ts": 0.0}, {"ph": "M", "pid": 0}]}
        self.assertAlmostEqual(programs.update_seconds(trace), 1.5e-3)

    def test_pytorch_that_was_killed_is_measured_with_the_allocator_as_installed(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = os.path.join(folder.name, "program")
        place = types.SimpleNamespace(
            threads=2, path=lambda name: os.path.join(folder.name, name), mkl_library=lambda: "",
            python=lambda: "/bin/sh", torch_program=lambda: program, inductor_cache=lambda: "",
            tokens=lambda workload: "", run=lambda commands, name, turn, more: process.run(
                commands, {**os.environ, **more}, folder.name, name, turn))
        with open(program, "w", encoding="utf-8") as file:
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


if __name__ == "__main__":
    unittest.main()
