#!/usr/bin/env python3
"""Tests how runs of `train` end and go on: Ctrl-C, full disks, damaged checkpoints, and folders of other runs."""

import os
import resource
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import tools_fixture  # noqa: E402
from tools_fixture import GENERATE as _GENERATE, TRAIN as _TRAIN  # noqa: E402


class RunsTest(tools_fixture.ToolsFixture):
    def test_an_earlier_run_is_kept_unless_it_is_to_be_replaced(self):
        self.assertEqual(self.train("--set=lr_schedule.steps=1").returncode, 0)
        before = self.read("runs/test/job.textproto")
        result = self.train("--set=lr_schedule.steps=2")
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr.decode(), r"runs/test is not empty .*--overwrite")
        # An invalid job does not delete the earlier run, not even with --overwrite.
        self.assertEqual(self.train("--overwrite", "--set=data.path=nowhere").returncode, 2)
        self.assertEqual(self.read("runs/test/job.textproto"), before)
        self.assertEqual(len(self.metrics()), 2)
        self.assertTrue(os.listdir(self.path("runs/test/checkpoints")))
        self.assertEqual(self.train("--overwrite", "--set=lr_schedule.steps=2").returncode, 0)
        self.assertEqual(len(self.metrics()), 3)

    def test_a_folder_that_cannot_be_written_is_refused(self):
        self.write("file", "in the way")
        self.refused(r"telemetry.run_folder: cannot make folder file: Not a directory",
                     "--set=telemetry.run_folder=file/run")

    def test_a_signal_ends_the_run_at_a_step_boundary_with_the_folder_whole(self):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Whoever runs the tests may ignore it, and so would `train`.
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            run = "stopped-%d" % code
            process = self.start("--set=telemetry.run_folder=" + run)
            process.send_signal(number)
            output = process.stdout.read().decode()
            self.assertEqual(process.wait(timeout=60), code, output)
            last = self.metrics(run)[-1]["step"]
            self.assertIn("saved %s/checkpoints/step-%010d  " % (run, last), output)
            self.assertIn(f"stopped after step {last:,} of 1,000,000", output)
            self.assertEqual(sorted(os.listdir(self.path(run))),
                             ["checkpoints", "job.textproto", "last_checkpoint", "metrics.jsonl", "plan.txt"])
            text = self.call(_GENERATE, "--run=" + run, "--tokens=3")
            self.assertEqual(text.returncode, 0, text.stderr.decode())

    def test_a_second_signal_ends_it_at_once(self):
        # A step takes a minute or more: the reference kernels' plain loops are far too slow for this model.
        process = subprocess.Popen(
            [_TRAIN, "--job=job.textproto", "--set=runtime.ops=REFERENCE", "--set=model.decoder.width=1024",
             "--set=batch.sequence_length=256"],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        metrics = self.path("runs/test/metrics.jsonl")
        deadline = time.monotonic() + 60
        while not os.path.exists(metrics):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # Two signals at the same time count as one.
        time.sleep(0.4)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=3), 130)

    def test_a_limit_on_the_size_of_files_is_said_and_kept_to(self):
        for on_failure, failures in (("STOP", 1), ("CONTINUE", 3)):
            run = "limited-" + on_failure
            result = subprocess.run(
                [_TRAIN, "--job=job.textproto", "--set=checkpoint.every_steps=5", "--set=telemetry.run_folder=" + run,
                 "--set=checkpoint.on_failure=" + on_failure],
                cwd=self.folder, capture_output=True, timeout=120, check=False,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)))
            self.assertEqual(result.returncode, 1, result.stderr.decode())
            self.assertRegex(result.stderr.decode(),
                             r"train: cannot save the checkpoint of step \d+: cannot write .*: File too large")
            self.assertEqual(result.stdout.decode().count("NOT SAVED: cannot save the checkpoint of step "), failures)
            checkpoints = self.path(run + "/checkpoints")
            self.assertEqual(os.listdir(checkpoints) if os.path.exists(checkpoints) else [], [])

    def test_a_run_goes_on_from_its_newest_whole_checkpoint(self):
        straight = self.train("--set=telemetry.run_folder=straight")
        self.assertEqual(straight.returncode, 0, straight.stderr.decode())
        auto = ("--set=checkpoint.every_steps=4", "--resume=auto")
        first = self.train("--set=checkpoint.keep_last=9", *auto)
        self.assertEqual(first.returncode, 0, first.stderr.decode())
        self.assertNotIn("resuming", first.stdout.decode())
        with open(self.path("runs/test/checkpoints/step-0000000012/rank-00001-of-00002.shard"), "r+b") as shard:
            shard.seek(-5, os.SEEK_END)
            shard.write(b"!")
        again = self.train("--resume=latest", "--set=checkpoint.keep_last=9")
        output = again.stdout.decode()
        self.assertEqual(again.returncode, 0, again.stderr.decode())
        self.assertRegex(output, r"skipped: \S*step-0000000012/rank-00001-of-00002.shard is damaged between bytes")
        self.assertIn("resuming from runs/test/checkpoints/step-0000000008 after step 8\n", output)
        rows = [[(row["step"], row["tokens"], row["loss"], row["grad_norm"])
                  for row in self.metrics(run) if "loss" in row] for run in ("straight", "runs/test")]
        self.assertEqual(rows[0], rows[1])
        named = "--resume=runs/test/checkpoints/step-0000000004"
        elsewhere = self.train(named, "--set=telemetry.run_folder=branch")
        self.assertEqual(elsewhere.returncode, 0, elsewhere.stderr.decode())
        self.assertIn("\nstep  5/12", elsewhere.stdout.decode())
        # A checkpoint that cannot be resumed from is refused with the reason, and nothing is lost.
        for arguments, reason in (
                (["--resume=nowhere"], r"nowhere/MANIFEST: No such file"),
                ([named], r"in a folder that holds runs/test/checkpoints/step-0000000012, which is not part of "
                 r"this run's history: choose"),
                (["--resume=latest", "--set=model.decoder.layers=3"], r"layers: 2\", the job's model \"layers: 3"),
                (["--resume=latest", "--set=batch.sequence_length=16"], r"sequence_length is 32, the job's 16"),
                (["--resume=latest", "--overwrite"], r"exclude each other"),
                (["--resume=latest", "--set=telemetry.run_folder=fresh"], r"no checkpoint in fresh/checkpoints")):
            result = self.train(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertRegex(result.stderr.decode(), reason)
        self.assertFalse(os.path.exists(self.path("fresh")))
        self.assertEqual(len([row for row in self.metrics() if "loss" in row]), 12)

if __name__ == "__main__":
    unittest.main(verbosity=2)
