#!/usr/bin/env python3
"""Tests which settings of a job another build's binary knows."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, "tools")

from bench.train import before, contestants, workloads  # noqa: E402

_SETTINGS = {"lr_schedule.steps": 3, "activation_checkpointing.preset": "NONE", "sharding.accumulation": "NO_SYNC",
             "batch.micro_batch": 4, "data.path": "a/b"}


class BeforeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def binary(self, *words):
        """Returns the path of a file in which these words stand as in the descriptor of a proto."""
        path = os.path.join(self.folder, str(len(os.listdir(self.folder))))
        with open(path, "wb") as file:
            file.write(b"\x00code sharding.segments".join(
                b"\x0a" + bytes([len(word)]) + word.encode() + b"\x18\x01" for word in words))
        return path

    def binary_of(self, settings):
        words = {name for path in settings for name in path.split(".")}
        return self.binary(*words, *(value for value in settings.values() if str(value).isupper()))

    def test_fields_and_values_that_a_build_does_not_know_are_named(self):
        words = before.Words(self.binary_of(_SETTINGS))
        self.assertEqual(words.unknown(_SETTINGS), [])
        self.assertEqual(words.unknown({"activation_checkpointing.segments": "SQRT", "batch.micro_batch": 1}),
                         ["activation_checkpointing.segments=SQRT"])
        self.assertEqual(words.unknown({"sharding.accumulation": "SOME"}), ["sharding.accumulation=SOME"])
        # A path is not taken for an enum value.
        self.assertEqual(words.unknown({"data.path": "a"}), [])

    def test_the_whole_job_is_on_the_command_line(self):
        workload = workloads.Workload("llama34m", "bf16")
        twin = contestants.ALL["shale-2ranks-before"]
        self.assertEqual((twin.ranks, twin.extra, twin.first_only), (2, True, False))
        path = self.binary("lr_schedule")
        place = type("Place", (), {"before": path, "empty_job": staticmethod(lambda: "empty")})
        command = twin.command(workload, place, twin.settings(workload, 2))
        self.assertEqual(command[:3], [path, "--job=empty", "--overwrite"])
        for wanted in ("model.decoder.layers=8", "lr_schedule.shape=CONSTANT", "activation_checkpointing.preset=CHEAP",
                       "sharding.ranks=2", "precision.compute=BF16"):
            self.assertIn("--set=" + wanted, command)
        self.assertEqual(len(command), 3 + len(workload.flat(twin.settings(workload, 2))))


if __name__ == "__main__":
    unittest.main()
