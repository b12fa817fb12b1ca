#!/usr/bin/env python3
"""Tests that runs from before the words of the job spec changed stay usable: resumed, verified, generated from.

testdata/before_words is a run folder that the last version with the former words wrote: two ranks, bf16 with SPLIT
masters, six steps, the checkpoint of step 4, and the losses of all steps. Its text is made by _TEXT.
"""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

_TOOLS = os.path.abspath("tools")
_OLD = os.path.abspath("tests/tools/testdata/before_words")
_TEXT = "The quick brown fox jumps over the lazy dog.\n" * 60

_JOB = """
name: "before"
model { decoder { family: LLAMA width: 16 layers: 1 heads: 2 hidden: 32 } }
data { path: "text.txt" }
batch { global_batch: 4 micro_batch: 1 sequence_length: 32 }
sharding { strategy: FULL_SHARD accumulation: SHARDED ranks: 2 }
precision { compute: BF16 master: SPLIT }
activation_checkpointing { preset: BLOCK }
optimizer { learning_rate: 1e-2 }
lr_schedule { steps: 6 }
runtime { threads_per_rank: 1 }
telemetry { peak_flops: 1e11 }
"""


class OldRunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        # The runfiles are links, and a checkpoint must consist of regular files.
        self.run_folder = os.path.join(self.folder, "before_words")
        shutil.copytree(_OLD, self.run_folder)
        self.checkpoint = os.path.join(self.run_folder, "checkpoints", "step-0000000004")
        for name, text in {"text.txt": _TEXT, "job.textproto": _JOB}.items():
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as out:
                out.write(text)

    def call(self, tool, *arguments):
        return subprocess.run([os.path.join(_TOOLS, tool), *arguments], cwd=self.folder, capture_output=True, text=True,
                              timeout=120, check=False)

    def metrics(self, folder):
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as lines:
            return {m["step"]: m for m in map(json.loads, lines)}

    def test_it_is_resumed_where_it_stood(self):
        result = self.call("train", "--job=job.textproto", "--resume=" + self.checkpoint)
        self.assertEqual(result.returncode, 0, result.stderr)
        before, after = self.metrics(self.run_folder), self.metrics(os.path.join(self.folder, "runs/before"))
        self.assertEqual(sorted(after), [5, 6])
        for step in after:
            self.assertEqual(after[step]["tokens"], before[step]["tokens"])
            # Another processor may sum products in another order, which turns single roundings to bf16: 2^-9 of one of
            # hundreds of terms.
            self.assertAlmostEqual(after[step]["loss"], before[step]["loss"], delta=2e-3 * before[step]["loss"])

    def test_another_sharding_resumes_it_too(self):
        result = self.call("train", "--job=job.textproto", "--resume=" + self.checkpoint, "--set", "sharding.ranks=3",
                           "--set", "sharding.strategy=ZERO1", "--set", "sharding.accumulation=NO_SYNC")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_it_is_verified_and_generated_from(self):
        result = self.call("inspect_checkpoint", "--checkpoint=" + self.run_folder, "--verify")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("every checksum is right", result.stdout)
        result = self.call("generate", "--run=" + self.run_folder, "--prompt=The ", "--tokens=8")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_former_words_are_no_difference_from_its_continuation(self):
        result = self.call("train", "--job=job.textproto", "--resume=" + self.checkpoint)
        self.assertEqual(result.returncode, 0, result.stderr)
        result = self.call("inspect_checkpoint", "--checkpoint=" + self.run_folder, "--compare=runs/before")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("  step: 4 | 6\n", result.stdout)
        compared = result.stdout.split("compared with ")[1]
        for renamed in ("strategy", "accumulation", "job: schedule.", "job: lr_schedule.shape",
                        "job: lr_schedule.steps", "job: sharding.strategy", "job: sharding.schedule",
                        "job: sharding.accumulation",
                        "job: memory.retention", "job: activation_checkpointing.preset"):
            self.assertNotIn("\n  " + renamed, compared)

    def test_its_job_is_answered_with_todays_words(self):
        result = self.call("train", "--job=" + os.path.join(self.run_folder, "job.textproto"))
        self.assertEqual(result.returncode, 2)
        for advice in ["retention: no such field", "did you mean activation_checkpointing.preset?",
                       "did you mean lr_schedule, or sharding.accumulation?", "did you mean FULL_SHARD?"]:
            self.assertIn(advice, result.stderr)


if __name__ == "__main__":
    unittest.main()
