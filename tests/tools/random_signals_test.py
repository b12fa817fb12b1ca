#!/usr/bin/env python3
"""Kills, stops or ends jobs of four processes at random moments, and checks what then happens.

    bazel test -c opt //tests/tools:random_signals_test --test_output=all --test_arg=--trials=200
    cd .out/bin && ../../tests/tools/random_signals_test.py --kinds=KILL --trials=200 --seconds=170 --records=FILE

A trial chooses one of five stretches of a run (start, plan, step, save, exit), waits for it, and then for a part of its
length. It draws from the seed and from its own number, so that a run with the same seed and --first goes on where
another one ended; --records keeps both, and sums up all trials in the file.

- KILL kills one process, also process 0. In 99 % of the trials the others have ended within 3 s. Those that name a
  process name that one, and so does the launcher. Nothing is left. The job that is started again ends in the bits of a
  run that nothing disturbed.
- TERM ends the launcher by SIGTERM. In 99 % of the trials all have ended within 25 s, with a checkpoint of their last
  step if they had begun to train.
- STOP stops one process after it has joined the others. In 99 % of the trials they have ended within the heartbeat's
  bound, and name it. Then as KILL.
"""

import argparse
import collections
import glob
import json
import os
import random
import re
import select
import shutil
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import job_in_processes  # pylint: disable=wrong-import-position

_PROCESSES, _STEPS = 4, 40
_JOB = (f"--set=lr_schedule.steps={_STEPS}", "--set=checkpoint={every_steps: 8 keep_last: 2}",
        "--set=telemetry.evaluate_every=0", "--set=telemetry.print_every=1", "--resume=auto")
_MOMENTS = ("start", "plan", "step", "save", "exit")
_HEARTBEAT = 10  # Seconds, as engine/cluster/launch has it by default.
_BOUNDS = {"KILL": 3, "TERM": 25, "STOP": _HEARTBEAT}
_PATIENCE = 60  # Seconds after which a process is said to hang.
_LAUNCHER_SECONDS = 12  # After these the launcher has killed a stopped process of a job that failed.


def _ended(process):
    """Whether the process of a pidfd has ended."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))


class Trials(job_in_processes.JobInProcesses):
    """Runs trials in folders of its own."""

    def begin(self):
        """Makes the run that nothing disturbs. Returns how long each moment of it lasts, in seconds."""
        self.setUp()
        os.environ["TMPDIR"] = self.place("temporary")  # Of the launcher's secret.
        since, now = {"launch": time.monotonic()}, "start"
        launcher = self.launch("straight", _PROCESSES, *_JOB)
        for process in self.processes(launcher):
            os.close(process)
        since["start"] = time.monotonic()
        while launcher.poll() is None:
            if self.moment("straight") != now:
                now = self.moment("straight")
                since.setdefault(now, time.monotonic())
            time.sleep(0.001)
        assert launcher.returncode == 0, launcher.stdout.read()
        end = time.monotonic()
        self.straight = self.left_in("straight")
        since["end"] = end
        order = ("launch", "start", "plan", "step", "exit", "end")
        lengths = {name: since.get(after, end) - since.get(name, end) for name, after in zip(order, order[1:])}
        each = lengths["step"] / _STEPS
        return dict(lengths, step=each, save=2 * each)

    def moment(self, name):
        """Returns what a run does now, as far as its folder tells."""
        run = os.path.join(self.place(name), "runs/test")
        if not os.path.isdir(run):
            return "start"
        if glob.glob(os.path.join(run, "checkpoints/.step-*")):
            return "save"
        if os.path.isdir(os.path.join(run, f"checkpoints/step-{_STEPS:010d}")):
            return "exit"
        return "step" if self.rows(name) else "plan"

    def rows(self, name):
        """Returns how many rows the metrics of a run have."""
        try:
            with open(os.path.join(self.place(name), "runs/test/metrics.jsonl"), "rb") as metrics:
                return metrics.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def left_in(self, name):
        """Returns what an ended run has in its folder: the shards of the newest checkpoint, losses and hidden files."""
        shards = self.checkpoints(name)
        last = max(os.path.dirname(path) for path in shards)
        hidden = glob.glob(os.path.join(self.place(name), "runs/test/**/.*"), recursive=True)
        return ({path: content for path, content in shards.items() if os.path.dirname(path) == last},
                self.losses(name), sorted(os.path.basename(path) for path in hidden))

    def processes(self, launcher):
        """Returns a pidfd of each process of a launcher, by number, as soon as all have been started, or none."""
        while launcher.poll() is None:
            try:
                with open(f"/proc/{launcher.pid}/task/{launcher.pid}/children", encoding="ascii") as children:
                    pids = sorted(map(int, children.read().split()))  # They were started in order.
                if len(pids) == _PROCESSES:
                    return list(map(os.pidfd_open, pids))
            except (FileNotFoundError, ProcessLookupError):
                pass  # One has ended already.
            time.sleep(0.001)
        return []

    def await_moment(self, moment, launcher, chance, seconds):
        """Waits for a moment of the disturbed run, and then for a random part of its length."""
        name = "disturbed"
        rows = chance.randrange(1, _STEPS) if moment in ("step", "save") else 0
        while launcher.poll() is None and (self.rows(name) < rows or (
                moment in ("plan", "save", "exit") and self.moment(name) not in (moment, "exit"))):
            time.sleep(0.0005)
        time.sleep(chance.uniform(0, seconds))

    def await_end(self, processes, seconds=_PATIENCE):
        """Waits until the processes of the pidfds have ended. Returns whether they have."""
        deadline = time.monotonic() + seconds
        while not all(map(_ended, processes)):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def left_over(self):
        """Returns what a launch that has ended left behind: processes in its folder, and its secret."""
        place = os.path.realpath(self.place("disturbed"))
        left = [f"a file {name}" for name in os.listdir(self.place("temporary")) if name.startswith("shale")]
        for folder in glob.glob("/proc/[0-9]*"):
            try:
                if os.readlink(os.path.join(folder, "cwd")) == place:
                    left.append(f"process {os.path.basename(folder)}")
            except OSError:
                pass  # It has ended, or is another user's.
        return left

    def trial(self, kind, number, seed, lengths):
        """Makes one trial. Returns its record, whose `wrong` lists what should not have happened."""
        chance = random.Random(f"{seed} {kind} {number}")
        victim = chance.randrange(_PROCESSES)
        moment = _MOMENTS[number % len(_MOMENTS)]
        if kind == "STOP" and moment == "start":
            moment = "plan"  # For one that has not joined yet the others wait five minutes.
        shutil.rmtree(self.place("disturbed"))
        self.place("disturbed")
        launcher = self.launch("disturbed", _PROCESSES, *_JOB)
        whole = os.pidfd_open(launcher.pid)
        processes = [] if kind == "TERM" else self.processes(launcher)
        early = lengths["launch"] if kind == "TERM" and moment == "start" else 0  # The launcher itself starts too.
        self.await_moment(moment, launcher, chance, early + lengths[moment])
        record = {"kind": kind, "seed": seed, "trial": number, "process": victim if processes else None,
                  "moment": self.moment("disturbed"), "wrong": []}
        begin = time.monotonic()
        record["late"] = launcher.poll() is not None or any(map(_ended, processes[victim:victim + 1]))
        if not record["late"]:
            if processes:
                signal.pidfd_send_signal(processes[victim], getattr(signal, f"SIG{kind}"))
            else:
                launcher.send_signal(signal.SIGTERM)
        others = processes[:victim] + processes[victim + 1:] if processes else [whole]
        if not self.await_end(others):
            record["wrong"].append(f"still runs after {_PATIENCE} s")
            launcher.kill()
        record["seconds"] = round(time.monotonic() - begin, 4)
        if kind == "STOP" and not record["late"] and not self.await_end([whole], _LAUNCHER_SECONDS):
            signal.pidfd_send_signal(processes[victim], signal.SIGKILL)  # It had left the job, so nobody else ends it.
            record["late"] = True
        output = launcher.communicate(timeout=_PATIENCE)[0]
        record["code"] = launcher.returncode
        record["wrong"] += [f"{left} is left over" for left in self.left_over()]
        for process in [whole, *processes]:
            os.close(process)
        if not record["late"]:
            (self.check_stopped if kind == "TERM" else self.check_named)(record, output)
        if kind != "TERM":
            self.check_relaunch(record)
        if record["wrong"]:
            record["output"] = output
        self.close_processes()
        return record

    def close_processes(self):
        """Closes what launch() has opened, but keeps the folder."""
        kept = self._cleanups[:1]
        self._cleanups = self._cleanups[1:]
        self.doCleanups()
        self._cleanups = kept

    def check_named(self, record, output):
        """Adds to a record whom the launcher and the other processes named."""
        victim, named = record["process"], 0
        killed = record["kind"] == "KILL"
        if killed and record["code"] != 0 and f"launch: signal 9 ended process {victim} (pid " not in output:
            record["wrong"].append("the launcher does not name it")
        for number, other in re.findall(r"^train, process (\d): process (\d) (?:at|\(pid)", output, re.MULTILINE):
            named += int(other) == victim
            if int(other) != victim:
                record["wrong"].append(f"process {number} names process {other}")
        record["named"] = named
        if not killed and named == 0 and record["code"] != 0:
            record["wrong"].append("no process names it")

    def check_stopped(self, record, output):
        """Adds to a record what SIGTERM has left."""
        stopped = re.search(rf"stopped after step (\d+) of {_STEPS}; ", output)
        if not re.search("^step ", output, re.MULTILINE):
            record["saved"] = None  # It had not begun to train.
        else:
            record["saved"] = int(stopped[1]) if stopped else _STEPS  # Behind the last save it ends without a word.
            path = f"runs/test/checkpoints/step-{record['saved']:010d}"
            if not os.path.isdir(os.path.join(self.place("disturbed"), path)):
                record["wrong"].append(f"there is no {path}")
        if record["code"] not in (0, 128 + signal.SIGTERM, -signal.SIGTERM):
            record["wrong"].append(f"it ended with code {record['code']}")

    def check_relaunch(self, record):
        """Starts the job again, which must end in the bits of the run that nothing disturbed."""
        try:
            self.train("disturbed", _PROCESSES, *_JOB)
            shards, losses, hidden = self.left_in("disturbed")
            for what, equal in (("weights", shards == self.straight[0]), ("losses", losses == self.straight[1]),
                                ("hidden files", hidden == self.straight[2])):
                if not equal:
                    record["wrong"].append(f"started again, it ended with other {what}")
        except (AssertionError, OSError, ValueError) as error:
            record["wrong"].append(f"started again: {error}")


def sum_up(kind, records):
    """Prints what trials of one kind came to. Returns whether all went well."""
    hit = [record for record in records if not record["late"]]
    times = sorted(record["seconds"] for record in hit)
    seeds = ", ".join(sorted({str(record["seed"]) for record in records}))
    print(f"{kind}: {len(records)} trials of seed {seeds}; in {len(records) - len(hit)} the job was over already")
    if not hit:
        return True
    p99 = times[(len(times) * 99 + 99) // 100 - 1]
    print(f"  until the others had ended: p50 {times[len(times) // 2]:.2f} s, p99 {p99:.2f} s, max {times[-1]:.2f} s "
          f"(bound of p99: {_BOUNDS[kind]} s)")
    for what in ("moment", "process", "code", "named"):
        counts = collections.Counter(str(record[what]) for record in hit if record.get(what) is not None)
        if counts:
            print(f"  {what}: " + ", ".join(f"{value}: {count}" for value, count in sorted(counts.items())))
    wrong = [record for record in records if record["wrong"]]
    print(f"  wrong: {len(wrong)}")
    for record in wrong:
        print(f"    trial {record['trial']}, {record['moment']}: {'; '.join(record['wrong'])}")
        print("      " + record.get("output", "").replace("\n", "\n      "))
    return not wrong and p99 < _BOUNDS[kind]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="KILL,TERM,STOP", help="what to try (default: %(default)s)")
    parser.add_argument("--trials", type=int, default=20, help="how many of each kind, with those in --records")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no trial after so long")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="what the trials draw from")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--records", metavar="FILE", help="go on after the trials in this file, and add to it")
    options = parser.parse_args()
    begin = time.monotonic()
    records = []
    if options.records and os.path.exists(options.records):
        with open(options.records, encoding="utf-8") as lines:
            records = list(map(json.loads, lines))
    trials = Trials("begin")
    lengths = trials.begin()
    print(f"four processes, {_STEPS} steps; lasts in seconds: " +
          ", ".join(f"{name} {seconds:.3f}" for name, seconds in lengths.items()), flush=True)
    good = True
    for kind in options.kinds.split(","):
        ours = [record for record in records if record["kind"] == kind]
        seed = ours[-1]["seed"] if ours else options.seed
        for number in range(ours[-1]["trial"] + 1 if ours else options.first, options.first + options.trials):
            if time.monotonic() - begin > options.seconds:
                break
            ours.append(trials.trial(kind, number, seed, lengths))
            if options.records:
                with open(options.records, "a", encoding="utf-8") as out:
                    out.write(json.dumps(ours[-1]) + "\n")
        good = sum_up(kind, ours) and good
    trials.doCleanups()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
