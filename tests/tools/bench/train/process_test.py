#!/usr/bin/env python3
"""Tests how processes are run: their output and memory, and what ends them all."""

import os
import sys
import tempfile
import threading
import unittest

sys.path[:0] = ["tools", "tests/tools/bench/train"]

from bench.train import process  # noqa: E402
from records import state_of  # noqa: E402


class ProcessTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_all(self, *scripts, **more):
        return process.run([["/bin/sh", "-c", script] for script in scripts],
                           dict(os.environ), self.folder.name, "p", **more)

    def test_output_and_memory_of_every_process(self):
        group = self.run_all("echo one; echo two", "echo three")
        self.assertEqual([[text for _, text in outcome.lines] for outcome in group.outcomes],
                         [["one", "two"], ["three"]])
        for outcome in group.outcomes:
            self.assertGreater(outcome.peak_rss_bytes, 0)

    def test_one_that_fails_ends_the_others(self):
        # The other process would run for longer than this test may.
        with self.assertRaisesRegex(process.Failed, "ended with 3: no luck"):
            self.run_all("exec sleep 10000", "echo no luck >&2; exit 3")

    def test_one_that_was_killed_is_told_from_one_that_lost_its_peer(self):
        with self.assertRaisesRegex(process.Killed, "ended with -9"):
            self.run_all("sleep 0.1; exit 3", "kill -9 $$")

    def test_one_that_hangs_is_ended(self):
        with self.assertRaisesRegex(process.Failed, "did not end within 0.1 s"):
            self.run_all("exec sleep 10000", timeout_seconds=0.1)

    def test_no_descendant_outlives_its_process(self):
        group = self.run_all("sleep 10000 & echo $!")
        # What has ended may still be a zombie, for its parent is gone.
        self.assertIn(state_of(group.outcomes[0].lines[0][1]), ("", "Z"))

    def test_the_end_of_the_measurement_ends_all(self):
        ended = threading.Event()
        ended.set()
        with self.assertRaises(process.Ended):
            self.run_all("sleep 10000", "sleep 10000 & wait", ended=ended)


if __name__ == "__main__":
    unittest.main()
