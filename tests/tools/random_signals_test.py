#!/usr/bin/env python3
"""Kills or stops processes of jobs at random moments of start, steps, saves and end, as often as TRIALS says (20):

    bazel test -c opt //tests/tools:random_signals_test --test_env=TRIALS=200 --test_output=all

After a kill, the others have ended within 3 s in 99 % of the trials, the launcher names the process that was killed,
nothing is left, and the job that is started again ends in the bits of a run that nothing disturbed. After SIGTERM, all
have ended within 25 s in 99 % of the trials, with a checkpoint of the last step.
"""

import glob
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import launch_test  # pylint: disable=wrong-import-position

_TRIALS = int(os.environ.get("TRIALS", "20"))
_PROCESSES = 4
_JOB = ("--set=lr_schedule.steps=60", "--set=checkpoint={every_steps: 10 keep_last: 2}",
        "--set=telemetry.evaluate_every=0", "--set=telemetry.print_every=1", "--resume=auto")


def _ended(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except FileNotFoundError:
        return True


class RandomSignalsTest(unittest.TestCase):
    # What that test has for its own cases.
    setUp, place, start = launch_test.LaunchTest.setUp, launch_test.LaunchTest.place, launch_test.LaunchTest.start
    launch, train = launch_test.LaunchTest.launch, launch_test.LaunchTest.train
    checkpoints = launch_test.LaunchTest.checkpoints

    def processes(self, launcher):
        """Returns the pids of a launcher's processes, by number, as soon as all have been started."""
        while True:
            listed = subprocess.run(["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=False)
            pids = [int(pid) for pid in listed.stdout.split()]
            if len(pids) == _PROCESSES or launcher.poll() is not None:
                return sorted(pids)  # They were started in order.
            time.sleep(0.001)

    def trials(self, send):
        """Starts jobs, and lets `send` send a signal to each after a random time. Yields what they left."""
        begin = time.monotonic()
        self.train("straight", _PROCESSES, *_JOB)
        longest = time.monotonic() - begin
        seed = random.randrange(1 << 30)
        print(f"seed {seed}, {_TRIALS} trials, {longest:.2f} s undisturbed", flush=True)
        chance = random.Random(seed)
        for trial in range(_TRIALS):
            shutil.rmtree(self.place("disturbed"))
            launcher = self.launch("disturbed", _PROCESSES, *_JOB)
            pids = self.processes(launcher)
            time.sleep(chance.uniform(0, longest))
            if launcher.poll() is not None:
                continue
            begin = time.monotonic()
            what = send(launcher, pids, chance)
            while not all(map(_ended, pids)):
                time.sleep(0.005)
            seconds = time.monotonic() - begin
            output = launcher.communicate(timeout=60)[0]
            with self.subTest(trial=trial, sent=what, seconds=seconds):
                yield what, launcher, seconds, output

    def newest(self, name):
        files = self.checkpoints(name)
        last = max(os.path.dirname(path) for path in files)
        return {path: content for path, content in files.items() if os.path.dirname(path) == last}

    def report(self, seconds, bound):
        ordered = sorted(seconds)
        p99 = ordered[(len(ordered) * 99 + 99) // 100 - 1]
        print(f"{len(ordered)} signals: median {ordered[len(ordered) // 2]:.2f} s, p99 {p99:.2f} s, "
              f"longest {ordered[-1]:.2f} s", flush=True)
        self.assertLess(p99, bound)

    def test_killed_processes(self):

        def send(_, pids, chance):
            victim = chance.randrange(_PROCESSES)
            os.kill(pids[victim], signal.SIGKILL)
            return victim

        times = []
        for victim, launcher, seconds, output in self.trials(send):
            if launcher.returncode == 0:
                continue  # It had left the job already.
            times.append(seconds)
            self.assertIn(f"launch: signal 9 ended process {victim} (pid ", output)
            for number, culprit in re.findall(r"train, process (\d): process (\d) ", output):
                self.assertEqual(int(culprit), victim, f"process {number} names another one:\n{output}")
            self.train("disturbed", _PROCESSES, *_JOB)
            self.assertTrue(self.newest("disturbed") == self.newest("straight"))
        self.report(times, 3)

    def test_terminated_jobs(self):

        def send(launcher, _, __):
            launcher.send_signal(signal.SIGTERM)

        times = []
        for _, launcher, seconds, output in self.trials(send):
            times.append(seconds)
            stopped = re.search(r"stopped after step (\d+) of 60; ", output)
            if launcher.returncode == 0 or stopped is None:
                # It was over already, or had not begun to train.
                self.assertTrue("done; the run is in" in output or not re.search("^step ", output, re.M), output)
                continue
            saved = glob.glob(os.path.join(self.place("disturbed"), "runs/test/checkpoints/step-*"))
            self.assertEqual(int(max(saved).rsplit("-", 1)[1]), int(stopped[1]))
        self.report(times, 25)


if __name__ == "__main__":
    unittest.main()
