#!/usr/bin/env python3
"""Tests inspect_checkpoint from the command line: what it shows, what damage it finds, its exit codes."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tools_fixture  # noqa: E402
from tools_fixture import TRAIN as _TRAIN  # noqa: E402

_INSPECT = os.path.abspath("tools/inspect_checkpoint")

_JOB = """
name: "test"
model { decoder { family: LLAMA width: 32 layers: 2 heads: 4 } }
data { path: "text.txt" evaluation_fraction: 0.2 }
batch { global_batch: 4 micro_batch: 1 sequence_length: 32 }
sharding { ranks: 2 }
optimizer { learning_rate: 1e-2 }
lr_schedule { steps: 4 }
checkpoint { every_steps: 2 keep_last: 9 }
telemetry { peak_flops: 1e11 }
"""

_STEP_2 = "runs/test/checkpoints/step-0000000002"
_STEP_4 = "runs/test/checkpoints/step-0000000004"


class InspectCheckpointTest(tools_fixture.ToolsFixture):
    @classmethod
    def setUpClass(cls):
        """Trains once. Every test works on a copy of the runs."""
        cls.trained = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(shutil.rmtree, cls.trained)
        with open(os.path.join(cls.trained, "job.textproto"), "w", encoding="utf-8") as job:
            job.write(_JOB)
        with open(os.path.join(cls.trained, "text.txt"), "w", encoding="utf-8") as text:
            text.write("The quick brown fox jumps over the lazy dog.\n" * 60)
        for arguments in (
                [],
                # "same" repeats the same steps with another sharding. The others train differently.
                ["--set=telemetry.run_folder=runs/same", "--set=sharding.strategy=ZERO1"],
                ["--set=telemetry.run_folder=runs/three", "--set=sharding.ranks=3", "--set=lr_schedule.steps=2",
                 "--set=telemetry.evaluate_every=1", "--set=checkpoint.keep_best=true"],
                ["--set=telemetry.run_folder=runs/split", "--set=precision.compute=BF16",
                 "--set=precision.master=SPLIT", "--set=lr_schedule.steps=2"],
                ["--set=telemetry.run_folder=runs/lean", "--set=precision.compute=BF16",
                 "--set=optimizer.state=LEAN", "--set=lr_schedule.steps=2"],
                ["--set=telemetry.run_folder=runs/masters", "--set=precision.compute=BF16",
                 "--set=lr_schedule.steps=2"],
                ["--set=telemetry.run_folder=runs/grouped", "--set=lr_schedule.steps=1",
                 '--set=optimizer.groups={parameters: "head*" rule: SGD momentum: 0}',
                 '--set=optimizer.groups={parameters: "embedding*" rule: ADAMW_8BIT}'],
                ["--set=telemetry.run_folder=runs/wide", "--set=model.decoder.width=64", "--set=lr_schedule.steps=2"]):
            subprocess.run([_TRAIN, "--job=job.textproto", *arguments], cwd=cls.trained, check=True, timeout=120,
                           stdout=subprocess.DEVNULL)

    def setUp(self):
        super().setUp()
        shutil.copytree(os.path.join(self.trained, "runs"), self.path("runs"))

    def flip(self, name, place, bit=1):
        with open(self.path(name), "r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ bit]))

    def inspect(self, code, checkpoint, *arguments):
        result = self.call(_INSPECT, "--checkpoint=" + checkpoint, *arguments)
        self.assertEqual(result.returncode, code, result.stdout.decode() + result.stderr.decode())
        return result.stdout.decode(), result.stderr.decode()

    def test_it_shows_what_is_in_a_checkpoint(self):
        output, error = self.inspect(0, _STEP_2)
        self.assertEqual(error, "")
        for line in (_STEP_2, "  step        2, 2 updates applied", "  tokens      256",
                     "  samples     8: epoch 0, place 8 of 67", "  tokenizer   bytes",
                     "      width: 32", "files"):
            self.assertIn(line + "\n", output)
        self.assertRegex(output, r"\n  written by  2 ranks, strategy FULL_SHARD, accumulation \w+, values in FP32\n")
        self.assertRegex(output, r"\n  parameters  \d+ of 49,312 elements\n")
        for rank in range(2):
            name = "rank-0000%d-of-00002.shard" % rank
            size = os.path.getsize(self.path(os.path.join(_STEP_2, name)))
            self.assertRegex(output, r"\n  %s +%s  bytes, 1 checksum\n" % (name, format(size, ",")))
        self.assertNotIn("evaluated", output)
        self.assertRegex(self.inspect(0, "runs/three")[0],
                         r"\n  evaluated   after step 2: loss \d\.\d{4}; the lowest: \d\.\d{4} after step [12]\n")
        self.assertIn("values in SPLIT", self.inspect(0, "runs/split")[0])
        self.assertIn("values in BF16", self.inspect(0, "runs/lean", "--verify")[0])

    def test_parameters_have_shapes_and_statistics(self):
        output, _ = self.inspect(0, "runs/test", "--parameters")
        rows = re.findall(r"\n  (\S+) (\[[\d, ]+\]) +(\S+) +(\S+) +(\S+) +(\S+) +(\d+)(?=\n)", output)
        self.assertIn(("embedding.weight", "[256, 32]"), [row[:2] for row in rows])
        for row in rows:
            low, high, mean, rms = map(float, row[2:6])
            self.assertTrue(low <= mean <= high and 0 < rms <= max(-low, high), row)
            self.assertEqual(row[6], "0")

    def test_a_run_folder_means_its_newest_whole_checkpoint(self):
        self.assertTrue(self.inspect(0, "runs/test")[0].startswith(_STEP_4 + "\n"))
        self.flip(_STEP_4 + "/MANIFEST", 100)
        output, _ = self.inspect(0, "runs/test", "--verify")
        self.assertRegex(output, r"^skipped: %s/MANIFEST: it is damaged.*\n%s\n" % (_STEP_4, _STEP_2))

    # Regression: of a run folder it opened the newest checkpoint, although its help promises the newest intact one.
    def test_a_run_folder_means_its_newest_intact_checkpoint(self):
        shard = sorted(os.listdir(self.path(_STEP_4)))[-1]
        self.flip(f"{_STEP_4}/{shard}", 50000, 64)
        output = self.inspect(0, "runs/test")[0]
        self.assertRegex(output, rf"^skipped: {_STEP_4}/{shard} is damaged between bytes .*\n{_STEP_2}\n")

    def test_verify_reads_everything(self):
        output, _ = self.inspect(0, _STEP_4, "--verify")
        size = sum(os.path.getsize(self.path(os.path.join(_STEP_4, "rank-0000%d-of-00002.shard" % r))) for r in (0, 1))
        self.assertRegex(output, r"\nverified %s bytes in [\d.]+ s, [\d.]+ GB/s: every checksum is right\n$" %
                         format(size, ","))

    def test_verify_names_every_damage(self):
        shards = [os.path.join(_STEP_4, "rank-0000%d-of-00002.shard" % rank) for rank in (0, 1)]
        self.flip(shards[0], 50000, 64)
        self.inspect(0, _STEP_4)  # The shards' headers are intact.
        self.flip(shards[1], 100)  # Damages the second shard's header.
        output, error = self.inspect(1, _STEP_4, "--verify")
        for shard in shards:
            self.assertRegex(output, r"(?m)^damaged: %s is damaged between bytes 0 and %d: " %
                             (shard, os.path.getsize(self.path(shard))))
        self.assertIn("DAMAGED in 2 places", output)
        self.assertRegex(error, shards[1] + ": it is damaged")
        self.inspect(1, _STEP_4)
        os.remove(self.path(shards[1]))
        self.assertRegex(self.inspect(1, _STEP_4, "--verify")[0], r"(?m)^damaged: .*%s: No such file" % shards[1])
        self.flip(_STEP_4 + "/MANIFEST", 8)
        self.assertRegex(self.inspect(1, _STEP_4, "--verify")[1], r"MANIFEST: it is damaged")

    def test_compare_sees_the_state_and_not_its_form(self):
        output, _ = self.inspect(0, "runs/test", "--compare=runs/test")
        self.assertRegex(output, r"\nequal: all 147,936 values and states have the same bits\n$")
        # Two ranks with ZeRO-1 and with ZeRO-3 write different files with the same bits.
        output, _ = self.inspect(0, _STEP_4, "--compare=runs/same/checkpoints/step-0000000004")
        self.assertIn("  strategy: FULL_SHARD | ZERO1\n", output)
        self.assertIn("  job: sharding.strategy: FULL_SHARD | ZERO1\n", output)
        self.assertNotIn("another state", output)
        # Split masters have the same values as fp32 masters.
        output, _ = self.inspect(0, "runs/masters", "--compare=runs/split")
        self.assertIn("  values: FP32 | SPLIT\n", output)
        self.assertRegex(output, r"\n  embedding\.weight \[256, 32\] +equal bits +equal bits +equal bits\n")

    def test_compare_takes_lean_state(self):
        output, _ = self.inspect(1, "runs/masters", "--compare=runs/lean")
        self.assertIn("  values: FP32 | BF16\n", output)
        self.assertIn("m (f32), v (f32) | m (bf16), v (bf16)", output)
        self.assertRegex(output, r"\n  head\.weight \[256, 32\] +\S+ \(\S+\) +\S+ \(\S+\) +\S+ \(\S+\)\n")

    def test_compare_shows_the_states_that_a_parameter_has(self):
        output, _ = self.inspect(0, "runs/grouped", "--compare=runs/grouped")
        heading, = re.findall(r"(?m)^largest difference .*$", output)
        states = re.findall(r"\S+ \(\w+\)", heading.split("value")[1])
        self.assertEqual(len(states), len(set(states)), heading)
        self.assertIn("m (f32)", states)
        rows = {name: re.split(r" {2,}", row.strip()) for name, row in re.findall(
            r"(?m)^  (\S+) \[[\d, ]+\](.*(?:equal bits|-)$)", output)}
        self.assertEqual(set(rows["head.weight"][1:]), {"-"})
        self.assertEqual(rows["embedding.weight"].count("equal bits"), 5)  # The value, and m, v and their scales.
        self.assertEqual(rows[min(name for name in rows if name.startswith("blocks"))].count("equal bits"), 3)

    def test_compare_measures_differences(self):
        output, _ = self.inspect(1, _STEP_2, "--compare=runs/three")
        self.assertIn("  ranks: 2 | 3\n", output)
        self.assertRegex(output, r"\n  head\.weight \[256, 32\] +\S+ \(\S+\) +\S+ \(\S+\) +\S+ \(\S+\)\n")
        self.assertRegex(output,
                         r"\nDIFFERENT: [\d,]+ of 147,936 values and states differ, relative difference at most")
        self.inspect(1, _STEP_2, "--compare=runs/three", "--tolerance=1e-12")
        self.inspect(0, _STEP_2, "--compare=runs/three", "--tolerance=2")
        output, _ = self.inspect(1, _STEP_2, "--compare=" + _STEP_4, "--tolerance=1e30")
        self.assertIn("another state\n  step: 2 | 4\n  updates: 2 | 4\n  tokens: 256 | 512\n  samples: 8 | 16\n",
                      output)
        output, _ = self.inspect(1, _STEP_2, "--compare=runs/wide")
        self.assertIn("  parameter embedding.weight: [256, 32] | [256, 64]\n", output)
        self.assertIn("  job: model.decoder.width: 32 | 64\n", output)

    def test_what_is_not_there_is_no_damage(self):
        for arguments, message in ((["nowhere"], "there is no nowhere"),
                                   (["runs/test", "--compare=nowhere"], "there is no nowhere"),
                                   (["runs/test", "--tolerance=1"], "--tolerance belongs to --compare"),
                                   (["runs/test", "--verfy"], "did you mean --verify?")):
            self.assertIn(message, self.inspect(2, *arguments)[1])
        os.makedirs(self.path("empty/checkpoints"))
        self.assertIn("there is no checkpoint in empty/checkpoints", self.inspect(2, "empty")[1])
        self.assertIn("runs/MANIFEST: No such file", self.inspect(1, "runs")[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
