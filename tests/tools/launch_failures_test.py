#!/usr/bin/env python3
"""Tests who is named when processes of a job die or stop: by the others, and by inspect_run from their reports."""

import json
import os
import random
import runpy
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from job_in_processes import ENDLESS, RUN, JobInProcesses  # pylint: disable=wrong-import-position

_INSPECT = os.path.abspath("tools/inspect_run")


class LaunchFailuresTest(JobInProcesses):
    def test_a_killed_process_ends_the_others_which_name_it(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                process, pids = self.running(f"killed-{victim}", 4, *ENDLESS)
                os.kill(pids[victim], signal.SIGKILL)
                output = process.communicate(timeout=60)[0]
                self.assertEqual(process.returncode, 128 + signal.SIGKILL, output)
                named = (rf"process 2 \(pid {pids[2]} on .*\) ended without leaving the job" if victim == 2 else
                         "process 0 at .*, which runs the control plane, has ended or cannot be reached any more")
                self.assertIn(f"launch: signal 9 ended process {victim} (pid {pids[victim]})", output)
                for number in set(range(4)) - {victim}:
                    self.assertRegex(output, rf"train, process {number}: {named}")
                for pid in pids:
                    self.assertFalse(os.path.exists(f"/proc/{pid}"))
                report = self.inspect(f"killed-{victim}")
                self.assertIn(f"rank {victim} left no report", report)
                for number in set(range(4)) - {victim}:
                    self.assertRegex(report, rf"process {number} \(pid {pids[number]} on .*\) failed at .* in step ")

    # Regression: the others waited for the stopped one until they were ended, and then wrote no report.
    def test_a_stopped_process_is_named_and_the_others_report(self):
        os.environ["SHALE_HEARTBEAT_SECONDS"] = "3"
        self.addCleanup(os.environ.pop, "SHALE_HEARTBEAT_SECONDS")
        process, pids = self.running("stopped", 4, *ENDLESS)
        os.kill(pids[2], signal.SIGSTOP)
        others = (0, 1, 3)
        while any(os.path.exists(f"/proc/{pids[number]}") for number in others):
            time.sleep(0.02)
        os.kill(pids[2], signal.SIGKILL)
        output = process.communicate(timeout=60)[0]
        report = self.inspect("stopped")
        self.assertIn("rank 2 left no report", report)
        for number in others:
            self.assertRegex(output, rf"train, process {number}: process 2 \(pid {pids[2]} on .*\) has not been heard "
                             r"from for 2\.4 s")
            self.assertRegex(report, rf"process {number} \(pid {pids[number]} on .*\) failed at .* in step ")

    def test_who_dies_before_it_can_report_is_named_by_the_rest(self):
        for strategy, held in (
            ("ZERO1", r"all weights \(ZERO1\), but not what ranks 1, 3 held of the optimizer's state, "),
            ("DDP", "all that ranks 1, 3 held, weights and optimizer state, ")):
            with self.subTest(strategy=strategy):
                self.expect_two_lost(strategy, "the other ranks held " + held)

    def expect_two_lost(self, strategy, held):
        process, pids = self.running(strategy, 4, *ENDLESS, f"--set=sharding.strategy={strategy}")
        os.kill(pids[1], signal.SIGKILL)  # Process 3 then waits for it, and dies instead of saying so.
        os.kill(pids[3], signal.SIGKILL)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 128 + signal.SIGKILL, output)
        for victim in (1, 3):
            self.assertIn(f"launch: signal 9 ended process {victim} (pid {pids[victim]})", output)
        for number in (0, 2):
            self.assertRegex(output, rf"train, process {number}: process [13] \(pid \d+ on .*\) ended without leaving")
        report = self.inspect(strategy)
        self.assertIn("ranks 1, 3 left no report", report)
        self.assertRegex(report, held + r"(as after step \d+|but some may have begun the update of step \d+,)")

    def inspect(self, name):
        result = subprocess.run([_INSPECT, "--run", os.path.join(self.place(name), RUN)], capture_output=True,
                                text=True, check=True)
        return result.stdout

    def report(self, name, process, *notes, ranks=4, shard_ranks=4, held=811, saved=800):
        """Writes the report of a process. A note is its rank, stream, instruction and times, and maybe an axis."""
        folder = os.path.join(self.place(name), RUN, "failures/2")
        os.makedirs(folder, exist_ok=True)
        lines = [{
            "process": process, "pid": 100 + process, "host": "a", "unix_seconds": 9.0, "step": 812, "saved": saved,
            "ranks": ranks, "shard_ranks": shard_ranks, "error": "gone"
        }]
        if held is not None:
            lines[0]["held"] = held
        for rank, stream, instruction, begun, finished, *axis in notes:
            note = {"rank": rank, "stream": stream, "run": 5, "instruction": instruction, "name": "Op",
                    "unit": "blocks.3", "iteration": 1}
            note.update({"begun": begun} if begun else {}, **({"finished": finished} if finished else {}))
            lines.append(dict(note, axis=axis[0]) if axis else note)
        with open(os.path.join(folder, f"process-{process}.jsonl"), "w", encoding="utf-8") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)

    def test_reports_of_a_failure_are_merged_into_who_waits_for_whom(self):
        def clock(seconds):
            return time.strftime("%H:%M:%S", time.localtime(seconds))

        done, stuck = ("reduce", 19, 1.0, 2.0, "shard"), ("reduce", 20, 3.0, None, "shard")
        self.report("late", 0, (0, *done), (0, *stuck), (1, *done), (1, *stuck))
        self.report("late", 1, (2, *done), (2, "compute", 12, None, 2.5), (3, *stuck))
        report = self.inspect("late")
        self.assertIn("failure 2 of ", report)
        self.assertIn(f"process 1 (pid 101 on a) failed at {clock(9)} in step 812: gone\n", report)
        self.assertIn(
            f"rank 2 never entered Op 20 of blocks.3, iteration 1, of step 812; ranks 0, 1, 3 wait in it since "
            f"{clock(3)}; the last that rank 2 finished is Op 12 of blocks.3 at {clock(2.5)}\n", report)
        # Rank 3 has left what the others wait in, and rank 2 is elsewhere.
        self.report("odd", 0, (0, *stuck), (1, *stuck))
        self.report("odd", 1, (2, "reduce", 31, 4.0, None, "shard"), (3, "reduce", 20, 3.0, 3.5, "shard"))
        report = self.inspect("odd")
        self.assertIn(f"rank 2 never entered Op 20 of blocks.3, iteration 1, of step 812; ranks 0, 1 wait in it since "
                      f"{clock(3)}; rank 3 left it; rank 2 is in Op 31 of blocks.3 instead since {clock(4)}\n", report)
        # Only ranks of a row of the mesh wait for each other.
        self.report("mesh", 0, (0, *stuck), (1, *done), (2, *done), (3, *done), shard_ranks=2)
        self.assertIn("rank 1 never entered Op 20 ", self.inspect("mesh"))
        self.report("silent", 0, (0, *stuck), (1, *stuck))
        report = self.inspect("silent")
        self.assertIn("ranks 2, 3 left no report: ", report)
        self.assertIn(f"ranks 0, 1 wait in Op 20 of blocks.3, iteration 1, of step 812 since {clock(3)}; ranks 2, 3 "
                      "left no report", report)
        # What could be kept of the lost ranks' state, and where a restart begins.
        all_of_it = "the other ranks held all that ranks 2, 3 held, weights and optimizer state, "
        after, restart = "as after step 811; ", r"a restart begins at the last checkpoint \(step 800\)"
        for strategy, shard_ranks, kept in (
            ("DDP", 4, all_of_it + after + restart + " all the same"),
            ("ZERO1", 4, r"the other ranks held all weights \(ZERO1\), but not what ranks 2, 3 held of the optimizer's "
             "state, " + after + restart + " all the same"),
            ("FULL_SHARD", 2, all_of_it + after + restart),
            ("FULL_SHARD", 4, "no other rank held the shards of ranks 2, 3; " + restart + "\n")):
            self.report("silent", 0, (0, *done), (1, *done), shard_ranks=shard_ranks)
            with open(os.path.join(self.place("silent"), RUN, "job.textproto"), "w", encoding="utf-8") as job:
                job.write(f"sharding {{\n  ranks: 4\n  strategy: {strategy}\n}}\n")
            self.assertRegex(self.inspect("silent"), kept)
        self.report("silent", 0, (0, *done), (1, *done), shard_ranks=2, held=None, saved=0)
        self.assertIn(
            all_of_it + "but some may have begun the update of step 812, and then hold the state of no one step; a "
            "restart begins at the first step (there is no checkpoint) all the same\n", self.inspect("silent"))
        empty = subprocess.run([_INSPECT, "--run", self.place("empty")], capture_output=True, text=True, check=False)
        self.assertEqual(empty.returncode, 2)
        self.assertIn("holds no report of a failure", empty.stderr)

    # Regression: a damaged report ended in a traceback, and texts of processes reached the terminal as they were.
    def test_damaged_reports_are_named_and_left_out(self):
        self.report("damaged", 0, (0, "reduce", 20, 3.0, None, "shard"))
        self.report("damaged", 1, (1, "reduce", 20, 3.0, None, "shard"))
        path = os.path.join(self.place("damaged"), RUN, "failures/2/process-1.jsonl")
        with open(path, "rb") as file:
            whole = file.read()
        inspect = runpy.run_path(_INSPECT)
        random.seed(7)
        damages = [b"", b"\n", b"{}", b"[]", b"7", b"null", b"\xff\xfe", b"[" * 100000, whole[:-20], whole + b"{",
                   whole.replace(b'"rank": 1', b'"rank": 9'), whole.replace(b'"ranks": 4', b'"ranks": 1e99'),
                   whole.replace(b'"ranks": 4', b'"ranks": 99999999999'), whole.replace(b'"ranks": 4', b'"ranks": 8'),
                   whole.replace(b"9.0", b"1e300"), whole.replace(b"9.0", b"NaN"), whole.replace(b'"a"', b"[]"),
                   whole.replace(b'"instruction"', b'"construction"')]
        for damage in damages:
            self.assertNotEqual(damage, whole)
            with open(path, "wb") as file:
                file.write(damage)
            failure = inspect["Failure"](os.path.dirname(path), "")
            self.assertEqual(([head["process"] for head in failure.heads], len(failure.damaged)), ([0], 1), damage[:60])
            self.assertIn("process-1.jsonl", failure.damaged[0])
            self.assertIn("left no report that can be read", "\n".join(failure.sentences()))
        for _ in range(100):  # Whatever a byte is, there is an answer.
            damage = bytearray(whole)
            damage[random.randrange(len(damage))] = random.randrange(256)
            with open(path, "wb") as file:
                file.write(damage)
            failure = inspect["Failure"](os.path.dirname(path), "")
            self.assertEqual(len(failure.heads) + len(failure.damaged), 2)
            self.assertTrue("\n".join(failure.sentences()).replace("\n", "").isprintable())
        with open(path, "wb") as file:
            file.write(whole.replace(b"gone", rb"\u001b[2J\u202e"))
        said = self.inspect("damaged")
        self.assertIn(r"in step 812: \x1b[2J\u202e", said)
        self.assertTrue(said.replace("\n", "").isprintable())
        with open(path, "wb") as file:
            file.write(b"{")
        ended = subprocess.run([_INSPECT, "--run", os.path.join(self.place("damaged"), RUN)], capture_output=True,
                               text=True, check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertRegex(ended.stderr, r"^inspect_run: a report is damaged and left out: .*process-1.jsonl: line 1: ")


if __name__ == "__main__":
    unittest.main()
