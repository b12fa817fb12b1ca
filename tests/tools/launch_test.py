#!/usr/bin/env python3
"""Tests jobs in several processes: the same bits as in threads, saves and failures, with tools/launch and without."""

import glob
import json
import os
import random
import re
import runpy
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

_TRAIN = os.path.abspath("tools/train")
_LAUNCH = os.path.abspath("tools/launch")
_EXAMPLE = os.path.abspath("tools/examples/in_processes")
_INSPECT = os.path.abspath("tools/inspect_run")
_RUN = "runs/test"
_JOB = """
name: "test"
model { decoder { family: LLAMA width: 32 layers: 2 heads: 4 } }
data { path: "text.txt" evaluation_fraction: 0.2 }
batch { global_batch: 6 micro_batch: 1 sequence_length: 16 }
sharding { ranks: 4 }
optimizer { learning_rate: 1e-2 }
lr_schedule { steps: 6 }
checkpoint { every_steps: 3 keep_last: 9 }
telemetry { evaluate_every: 4 peak_flops: 1e11 }
runtime { threads_per_rank: 1 cpu_products: ONEDNN }
"""
_ENDLESS = ("--set=lr_schedule.steps=1000000", "--set=telemetry.print_every=1", "--set=checkpoint.every_steps=0",
            "--set=telemetry.evaluate_every=0")
# Lets no process listen at a port that the system chooses, as Gloo does.
_NO_NETWORK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
int bind(int file, const struct sockaddr* address, socklen_t size) {
  const int family = address->sa_family;
  const in_port_t port = family == AF_INET ? ((const struct sockaddr_in*)address)->sin_port
                       : family == AF_INET6 ? ((const struct sockaddr_in6*)address)->sin6_port : 1;
  if (port == 0) return errno = ENETDOWN, -1;
  return ((int (*)(int, const struct sockaddr*, socklen_t))dlsym(RTLD_NEXT, "bind"))(file, address, size);
}
"""
_PEER = 3  # The exit code of a process whose job failed in another one.


class LaunchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def place(self, name):
        """Returns a folder with the job and its data. Jobs in different folders have the same paths."""
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            os.makedirs(path)
            with open(os.path.join(path, "job.textproto"), "w", encoding="utf-8") as out:
                out.write(_JOB)
            with open(os.path.join(path, "text.txt"), "w", encoding="utf-8") as out:
                out.write("The quick brown fox jumps over the lazy dog.\n" * 60)
        return path

    def start(self, name, command, **variables):
        place = self.place(name)
        environment = dict(os.environ, XDG_CACHE_HOME=place, **variables)
        environment.pop("BUILD_WORKING_DIRECTORY", None)
        process = subprocess.Popen(command, cwd=place, env=environment, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def launch(self, name, processes, *arguments, restarts=0):
        """Starts a job in so many processes, or in threads if there are none."""
        command = [_TRAIN, "--job=job.textproto", *arguments]
        launcher = [_LAUNCH, f"--processes={processes}", f"--max_restarts={restarts}", "--"]
        return self.start(name, [*launcher, *command] if processes else command)

    def train(self, *arguments, code=0):
        process = self.launch(*arguments)
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, code, output)
        return output

    def losses(self, name):
        with open(os.path.join(self.place(name), _RUN, "metrics.jsonl"), encoding="utf-8") as lines:
            return [line.get("loss") for line in map(json.loads, lines) if "restart" not in line]

    def checkpoints(self, name):
        """Returns the bytes of the shards of every checkpoint, by path. The manifests name the folder of the data."""
        files = {}
        for path in glob.glob(os.path.join(self.place(name), _RUN, "checkpoints/*/*")):
            if path.endswith("MANIFEST"):
                continue
            with open(path, "rb") as file:
                files[os.path.relpath(path, self.place(name))] = file.read()
        return files

    def expect_same(self, name, other):
        self.assertEqual(self.losses(name), self.losses(other))
        first, second = self.checkpoints(name), self.checkpoints(other)
        self.assertEqual(len(first), 8)  # Of four ranks, twice.
        self.assertEqual(first.keys(), second.keys())
        for path, content in first.items():
            self.assertTrue(content == second[path], path)

    def test_processes_train_the_bits_of_threads(self):
        jobs = {
            "fp32": (),
            "bf16": ("--set=precision.compute=BF16",),
            "zero1": ("--set=sharding.strategy=ZERO1", "--set=sharding.accumulation=NO_SYNC"),
            "zero2": ("--set=sharding.strategy=ZERO2", "--set=sharding.accumulation=SHARDED"),
            "ddp": ("--set=sharding.strategy=DDP", "--set=sharding.accumulation=LAYERED"),
            "hybrid": ("--set=sharding.shard_ranks=2", "--set=precision.compute=BF16"),
        }
        for job, arguments in jobs.items():
            self.train(job, 0, *arguments)
            for processes in (2, 4) if job in ("fp32", "bf16") else (3,):
                with self.subTest(job=job, processes=processes):
                    name = f"{job}-{processes}"
                    output = self.train(name, processes, *arguments)
                    self.assertRegex(output, rf"^process 0 of {processes}, .* by Shale's launcher; ")
                    self.assertEqual(output.count("done; the run is in runs/test"), 1)
                    self.expect_same(job, name)

    def test_a_program_of_ones_own_trains_in_processes(self):
        self.train("tool", 0)
        for name, launcher in (("alone", []), ("together", [_LAUNCH, "--processes=3", "--"])):
            command = [*launcher, _EXAMPLE, "job.textproto", f"{_RUN}/checkpoints"]
            process = self.start(name, command)
            output = process.communicate(timeout=120)[0]
            self.assertEqual(process.returncode, 0, output)
            self.assertEqual(self.checkpoints(name), self.checkpoints("tool"))

        # What one process refuses ends the others.
        self.place("wrong")
        with open(os.path.join(self.place("wrong"), "text.txt"), "w", encoding="utf-8") as out:
            out.write("x")
        process = self.start("wrong", [_LAUNCH, "--processes=3", "--", _EXAMPLE, "job.textproto", "checkpoints"])
        output = process.communicate(timeout=120)[0]
        self.assertNotEqual(process.returncode, 0, output)
        self.assertIn("in_processes: process 0: ", output)
        self.assertNotIn("process 0: process 0: ", output)

    def test_a_run_resumes_in_other_processes_and_with_other_ranks(self):
        constant = "--set=lr_schedule.shape=CONSTANT"
        self.train("straight", 0, constant)
        self.train("resumed", 4, constant, "--set=lr_schedule.steps=3")
        self.train("resumed", 2, constant, "--set=lr_schedule.steps=4", "--resume=latest")
        output = self.train("resumed", 0, constant, "--resume=latest")
        self.assertIn("resuming from runs/test/checkpoints/step-0000000004 after step 4", output)
        newest = "runs/test/checkpoints/step-0000000006/"
        shards = {path: content for path, content in self.checkpoints("straight").items()
                  if path.startswith(newest)}
        self.assertEqual(len(shards), 4)
        for path, content in shards.items():
            self.assertTrue(self.checkpoints("resumed")[path] == content, path)
        # With other ranks, sums are in another order.
        output = self.train("resumed", 3, constant, "--resume=latest", "--set=sharding.ranks=5",
                            "--set=lr_schedule.steps=8")
        self.assertIn("resuming from runs/test/checkpoints/step-0000000006 after step 6", output)
        self.assertIn("done; the run is in runs/test", output)

    def test_one_trace_has_the_ranks_of_all_processes(self):
        output = self.train("traced", 3, "--trace=trace.json", "--trace_steps=3")
        self.assertIn("trace: trace.json", output)
        with open(os.path.join(self.place("traced"), "trace.json"), encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        self.assertEqual(glob.glob(os.path.join(self.place("traced"), _RUN, "*trace*")), [])
        meetings = {}  # The events of each collective, which all ranks enter before one leaves it.
        for event in events:
            if event["ph"] == "X" and event["name"].startswith(("AllReduce", "AllGather", "ReduceScatter")):
                args = event["args"]
                key = (args["step"], args["instruction"], args.get("micro_batch"))
                meetings.setdefault(key, []).append(event)
        self.assertGreater(len(meetings), 3)
        for meeting in meetings.values():
            ranks = sorted(event["pid"] for event in meeting)
            self.assertEqual(ranks, sorted([0, 1, 2, 3] * (len(meeting) // 4)))
            if len(meeting) > 4:
                continue  # Several iterations of a loop.
            self.assertLess(max(event["ts"] for event in meeting),
                            min(event["ts"] + event["dur"] for event in meeting) + 0.01)
        results = self.by_hand(["traces"] * 2, ("--trace=trace.json",), ())
        self.assertEqual([code for code, _ in results], [2, 2], results)
        self.assertRegex(results[0][1], 'disagree about the trace: process 0 has "one of 2 steps from step 3", process '
                         '1 has "none"')

    def running(self, name, processes, *arguments, step=2, restarts=0):
        """Starts a job. Returns the launcher and its processes, by number, when it has made so many steps."""
        process = self.launch(name, processes, *arguments, restarts=restarts)
        for line in process.stdout:
            if re.match(f"step +{step}/", line):
                break
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
        pids = [int(pid) for pid in children.stdout.split()]
        self.assertEqual(len(pids), processes)
        return process, sorted(pids, key=lambda pid: self.variable(pid, "SHALE_PROCESS"))

    def variable(self, pid, name):
        with open(f"/proc/{pid}/environ", encoding="utf-8") as environment:
            return int(re.search(rf"{name}=(\d+)", environment.read())[1])

    def test_a_killed_process_ends_the_others_which_name_it(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                process, pids = self.running(f"killed-{victim}", 4, *_ENDLESS)
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
        process, pids = self.running("stopped", 4, *_ENDLESS)
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
        process, pids = self.running(strategy, 4, *_ENDLESS, f"--set=sharding.strategy={strategy}")
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
        result = subprocess.run([_INSPECT, "--run", os.path.join(self.place(name), _RUN)], capture_output=True,
                                text=True, check=True)
        return result.stdout

    def report(self, name, process, *notes, ranks=4, shard_ranks=4, held=811, saved=800):
        """Writes the report of a process. A note is its rank, stream, instruction and times, and maybe an axis."""
        folder = os.path.join(self.place(name), _RUN, "failures/2")
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
            with open(os.path.join(self.place("silent"), _RUN, "job.textproto"), "w", encoding="utf-8") as job:
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
        path = os.path.join(self.place("damaged"), _RUN, "failures/2/process-1.jsonl")
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
        ended = subprocess.run([_INSPECT, "--run", os.path.join(self.place("damaged"), _RUN)], capture_output=True,
                               text=True, check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertRegex(ended.stderr, r"^inspect_run: a report is damaged and left out: .*process-1.jsonl: line 1: ")

    def test_a_job_that_is_started_again_ends_in_the_bits_of_the_undisturbed_one(self):
        arguments = ("--set=lr_schedule.steps=100", "--set=checkpoint={every_steps: 10 keep_last: 2}", "--resume=auto")
        self.train("straight", 0, *arguments)
        process, pids = self.running("again", 2, *arguments, step=25, restarts=1)
        os.kill(pids[1], signal.SIGKILL)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("launch: a process ended with code 137; starting all again (1 of 1)", output)
        self.assertRegex(output, "resuming from runs/test/checkpoints/step-00000000[12]0")
        self.expect_same("straight", "again")
        with open(os.path.join(self.place("again"), _RUN, "metrics.jsonl"), encoding="utf-8") as lines:
            rows = [row for row in map(json.loads, lines) if "restart" in row]
        step = int(re.search(r"resuming from .* after step (\d+)", output)[1])
        cause = f"signal 9 ended process 1 (pid {pids[1]} on {socket.gethostname()})"
        self.assertEqual(rows, [{"step": step, "restart": 1, "cause": cause}])

    def test_a_signal_to_the_launcher_saves_and_ends_all(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            name = f"stopped-{number}"
            process, _ = self.running(name, 3, *_ENDLESS)
            process.send_signal(number)
            output = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 128 + number, output)
            step = int(re.search(r"stopped after step (\d+) of 1,000,000; the run is in runs/test", output)[1])
            self.assertTrue(os.path.isdir(os.path.join(self.place(name), _RUN, f"checkpoints/step-{step:010d}")))

    def test_what_torchrun_and_the_grace_period_ask_for(self):
        path = os.path.join(self.place("cluster"), "error.json")
        command = [_TRAIN, "--job=job.textproto"]
        process = self.start("cluster", [*command, "--set=data.path=nowhere.txt"], TORCHELASTIC_ERROR_FILE=path)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 2, output)
        with open(path, encoding="utf-8") as file:
            message = json.load(file)["message"]
        self.assertRegex(message["message"], "cannot open .*nowhere.txt")
        self.assertGreater(int(message["extraInfo"]["timestamp"]), 0)
        process = self.start("cluster", [*command, "--grace_seconds=0"], TORCHELASTIC_RESTART_COUNT="2")
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertRegex(output, r"warning: a save of \S+ KiB probably takes \S+, and after SIGTERM a process has 0 s")
        with open(os.path.join(self.place("cluster"), _RUN, "metrics.jsonl"), encoding="utf-8") as lines:
            row = json.loads(lines.readline())
        self.assertEqual(row, {"step": 0, "restart": 2, "cause": "torchrun started the job again"})

    def test_the_process_that_fails_is_the_only_one_with_the_exit_code_and_the_error_file_of_a_failure(self):
        place = self.place("culprit")
        arguments = (*_ENDLESS, "--set=data.evaluation_fraction=0")
        files = [os.path.join(place, f"error-{number}.json") for number in range(2)]
        started = self.start_by_hand(["culprit"] * 2, [arguments] * 2, [{"TORCHELASTIC_ERROR_FILE": path}
                                                                        for path in files])
        for line in started[0].stdout:
            if re.match("step +2/", line):
                break
        os.truncate(os.path.join(place, "text.txt"), 0)
        outputs = [process.communicate(timeout=60)[0] for process in started]
        codes = [process.returncode for process in started]
        self.assertEqual(sorted(codes), [1, _PEER], outputs)
        culprit = codes.index(1)
        self.assertRegex(outputs[culprit], rf"train, process {culprit}: .*text.txt changed after it was checked")
        self.assertRegex(outputs[1 - culprit], rf"train, process {1 - culprit}: process {culprit} \(pid "
                         rf"{started[culprit].pid} on .*\) ended the job: .*text.txt")
        self.assertEqual([os.path.exists(path) for path in files], [number == culprit for number in range(2)])
        with open(files[culprit], encoding="utf-8") as file:
            self.assertRegex(json.load(file)["message"]["message"], "text.txt changed after it was checked")

    def test_the_launcher_ends_with_the_code_of_the_culprit(self):
        script = "sleep 0.$SHALE_PROCESS; [ $SHALE_PROCESS = 1 ] && exit 7; exit 3"
        process = self.start("codes", [_LAUNCH, "--processes=3", "--", "sh", "-c", script])
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 7, output)  # Process 0 ended first, but only because of another one.

    def test_what_does_not_end_after_a_signal_is_killed(self):
        launch = runpy.run_path(_LAUNCH)
        self.assertEqual(launch["_SECONDS_TO_END"]["stopped"], (30.0, 2.0))
        launch["_SECONDS_TO_END"]["stopped"] = (1.0, 0.2)
        path = self.place("deaf")
        # Process 0 ends at once, process 1 after it has saved, and process 2 never.
        script = (f"cd {path}; trap 'sleep 0.'$((SHALE_PROCESS * 4))'; touch saved-$SHALE_PROCESS; "
                  "[ $SHALE_PROCESS = 2 ] || exit 143' TERM; touch ready-$SHALE_PROCESS; "
                  "while true; do sleep 0.05; done")
        job = launch["Launch"](0)

        def stop():
            while len(glob.glob(os.path.join(path, "ready-*"))) < 3:
                time.sleep(0.01)
            job.take_signal(signal.SIGTERM, None)

        thread = threading.Thread(target=stop)
        thread.start()
        code = job.run(["bash", "-c", script], [{"SHALE_PROCESS": str(number)} for number in range(3)])
        thread.join()
        self.assertEqual(code, 128 + signal.SIGTERM)
        self.assertEqual(sorted(os.path.basename(name) for name in glob.glob(os.path.join(path, "saved-*"))),
                         ["saved-0", "saved-1", "saved-2"])
        self.assertFalse(job.may_restart(code))

    # Regression: a process that was stopped after it had left the job kept the launcher forever.
    def test_a_process_that_is_stopped_while_others_end_is_continued(self):
        launch = runpy.run_path(_LAUNCH)
        launch["_SECONDS_TO_END"].update(failed=(0.1, 0.1), stopped=(0.3, 0.1), done=(0.3, 0.1))
        launch["Launch"]._continue_stopped.__globals__["_SECONDS_STOPPED"] = 0.1
        stop = "[ $SHALE_PROCESS = %d ] && kill -STOP $$; "
        for script, wanted, may_restart in (
            (stop % 2 + "exit 0", 0, False),  # It had done its part.
            (stop % 0 + "exit 0", 0, False),
            (stop % 2 + "exit $((3 - 2 * SHALE_PROCESS))", 1, True),  # Others have failed; nothing continues it.
            (stop % 2 + "[ $SHALE_PROCESS = 2 ] && exit 5; exit 0", 5, False),
            ("[ $SHALE_PROCESS = 0 ] || exec sleep 60", 0, False)):  # Hangs behind process 0.
            job = launch["Launch"](0)
            code = job.run(["bash", "-c", script], [{"SHALE_PROCESS": str(number)} for number in range(3)])
            self.assertEqual((code, job.may_restart(code)), (wanted, may_restart), script)

    # Regression: every error of a run that starts counted as a wrong job, code 2, which is never started again.
    def test_a_failure_of_the_network_at_the_start_is_started_again(self):
        place = self.place("network")
        source, library = os.path.join(place, "bind.c"), os.path.join(place, "bind.so")
        with open(source, "w", encoding="utf-8") as out:
            out.write(_NO_NETWORK)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        script = f'[ "$SHALE_PROCESS$SHALE_RESTARTS" = 1 ] && export LD_PRELOAD={library}; exec "$@"'
        process = self.start("network", [_LAUNCH, "--processes=2", "--max_restarts=1", "--", "sh", "-c", script, "sh",
                                         _TRAIN, "--job=job.textproto", "--resume=auto"])
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("launch: a process ended with code 1; starting all again (1 of 1)", output)
        self.assertRegex(output, "Network is (down|unreachable)")
        self.assertIn("done; the run is in runs/test", output)

    def test_restarts_that_follow_one_another_wait(self):
        process = self.start("short", [_LAUNCH, "--processes=1", "--max_restarts=2", "--", "sh", "-c", "exit 4"])
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 4)
        self.assertRegex(output, r"all again \(1 of 2\)\n.*all again in 0.5 s \(2 of 2\)\n")

    # Regression: a launcher that was killed left the file with the secret behind; an empty secret let everybody join.
    def test_the_secret_is_in_no_file_and_never_empty(self):
        script = 'echo "$SHALE_TOKEN:$SHALE_TOKEN_FILE"; ls -A'
        process = self.start("secrets", [_LAUNCH, "--processes=1", "--", "sh", "-c", script],
                             TMPDIR=self.place("secrets"))
        self.assertRegex(process.communicate(timeout=60)[0], r"^[0-9a-f]{32}:\njob.textproto\ntext.txt\n$")
        for name in ("SHALE_TOKEN", "SHALE_TOKEN_FILE"):
            process = self.start("empty", [_LAUNCH, "--processes=2", "--", _TRAIN, "--job=job.textproto"], **{name: ""})
            output = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 2, output)
            self.assertIn(f"{name} is set and empty, so everybody could join the job", output)

    def test_what_is_wrong_at_the_start_is_said_once(self):
        output = self.train("refused", 3, "--set=data.path=nowhere.txt", code=2)
        self.assertEqual(len(re.findall("process 0: data.path: cannot open .*nowhere.txt", output)), 1, output)
        self.assertFalse(os.path.exists(os.path.join(self.place("refused"), "runs/test")))
        output = self.train("refused", 5, code=2)
        self.assertIn("started 5 processes, and the job has 4 ranks", output)
        output = self.train("refused", 2, "--verify", code=2)
        self.assertIn("--verify checks a job in one process, and Shale's launcher started 2", output)

    def start_by_hand(self, names, jobs, variables):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [_TRAIN, f"--job={self.place(names[0])}/job.textproto"]
        return [
            self.start(name, [*command, *job], RANK=str(rank), WORLD_SIZE=str(len(names)), MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(port), **own)
            for rank, (name, job, own) in enumerate(zip(names, jobs, variables))
        ]

    def by_hand(self, names, *jobs):
        """Starts a process in each place, with the variables that launchers share. Returns its code and output."""
        started = self.start_by_hand(names, jobs, [{}] * len(names))
        outputs = [process.communicate(timeout=60)[0] for process in started]
        return [(process.returncode, output) for process, output in zip(started, outputs)]

    def test_variables_by_hand_start_a_job_too(self):
        self.train("threads", 0)
        for code, output in self.by_hand(["by-hand"] * 2, (), ()):
            self.assertEqual(code, 0, output)
        self.expect_same("threads", "by-hand")

    def test_processes_must_agree_about_job_and_folder(self):
        results = self.by_hand(["job"] * 2, (), ("--set=optimizer.learning_rate=2e-2",))
        self.assertEqual([code for code, _ in results], [2, 2], results)
        self.assertRegex(results[0][1], "disagree about the job: process 0 has \"learning_rate: 0.01\", process 1 has "
                         "\"learning_rate: 0.02\"; ")
        results = self.by_hand(["ranks"] * 2, (), ("--set=sharding.ranks=8",))
        self.assertEqual([code for code, _ in results], [2, 2], results)
        self.assertRegex(results[0][1], r'process 0 has sharding.ranks "4", process 1 .* has sharding.ranks "8"')
        results = self.by_hand(["here", "there"], (), ())
        self.assertEqual([code for code, _ in results], [2, 2], results)
        self.assertRegex(results[0][1], "process 1: the process on .* does not see the file that process 0 wrote")

    def test_a_process_that_cannot_join_is_named_by_the_others(self):
        for wrong in (0, 1):
            jobs = [("--set=batch.global_batch=no",) if process == wrong else () for process in range(2)]
            results = self.by_hand([f"declined-{wrong}"] * 2, *jobs)
            self.assertEqual(results[wrong][0], 2, results)
            self.assertEqual(results[1 - wrong][0], _PEER, results)
            self.assertRegex(results[1 - wrong][1], rf"process {wrong} \(pid \d+ on .*\) cannot take part: INVALID_ARG"
                             ".*global_batch")

    def certificate(self, name, *signer):
        """Makes a certificate and its key with the program openssl, and returns their paths."""
        paths = [os.path.join(self.folder, name + ending) for ending in (".pem", ".key")]
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                   "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-out", paths[0], "-keyout",
                   paths[1]]
        if signer:
            command += ["-CA", signer[0], "-CAkey", signer[1]]
        subprocess.run(command, check=True, capture_output=True)
        return paths

    def test_certificates_encrypt_the_control_plane(self):
        if shutil.which("openssl") is None:
            self.skipTest("wanted the program openssl")
        authority = self.certificate("authority")
        certificate, key = self.certificate("process", *authority)
        variables = {"SHALE_TLS_CERTIFICATE": certificate, "SHALE_TLS_KEY": key, "SHALE_TLS_AUTHORITY": authority[0]}
        command = [_LAUNCH, "--processes=2", "--", _TRAIN, "--job=job.textproto", "--set=lr_schedule.steps=2"]
        process = self.start("secret", command, **variables)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("done; the run is in runs/test", output)
        variables["SHALE_TLS_KEY"] = authority[1]
        process = self.start("secret", command, **variables)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 2, output)
        self.assertIn(f"the private key in SHALE_TLS_KEY={authority[1]} does not belong to the certificate in "
                      f"SHALE_TLS_CERTIFICATE={certificate}", output)

    def test_a_process_that_is_killed_before_it_joins_is_named_by_the_launcher(self):
        for victim in (0, 1):
            script = f'[ $SHALE_PROCESS = {victim} ] && kill -9 $$; exec "$@"'
            process = self.start(f"early-{victim}", [
                _LAUNCH, "--processes=2", "--", "sh", "-c", script, "sh", _TRAIN, "--job=job.textproto"
            ])
            output = process.communicate(timeout=60)[0]  # Alone, the other would wait five minutes.
            self.assertEqual(process.returncode, 128 + signal.SIGKILL, output)
            self.assertRegex(output, rf"launch: signal 9 ended process {victim} \(pid \d+\)")

    def hosts(self):
        """Makes two hosts: network namespaces that a cable joins, as slow as the machine can make it. Returns what
        stands before a command that runs on each. Skips the test where the machine allows no namespaces."""
        hosts = []
        for number, begin in enumerate((["unshare", "--user", "--map-root-user"], [])):
            command = f"hostname host-{number} && ip link set lo up && echo ready && exec sleep 120"
            unshare = [*(begin or [*hosts[0], "unshare"]), "--net", "--uts", "sh", "-c", command]
            process = self.start("hosts", unshare)
            if process.stdout.readline() != "ready\n":
                self.skipTest("this machine allows no network namespaces")
            hosts.append(["nsenter", f"--target={process.pid}", "--user", "--net", "--uts", "--preserve-credentials"])
        subprocess.run([*hosts[0], "ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns",
                        hosts[1][1].split("=")[1]], check=True)
        for number, on_host in enumerate(hosts):
            subprocess.run([*on_host, "ip", "addr", "add", f"10.77.0.{number + 1}/24", "dev", "cable"], check=True)
            subprocess.run([*on_host, "ip", "link", "set", "cable", "up"], check=True)
            # Not all kernels can delay packets.
            slow = [*on_host, "tc", "qdisc", "add", "dev", "cable", "root"]
            if subprocess.run([*slow, "netem", "delay", "5ms", "rate", "1gbit"], check=False).returncode != 0:
                subprocess.run([*slow, "tbf", "rate", "1gbit", "burst", "1mbit", "latency", "50ms"], check=False)
        return hosts

    def test_two_hosts_notice_a_cut_cable_and_go_on_when_it_is_mended(self):
        os.environ["PATH"] += ":/usr/sbin:/sbin"  # Of ip and tc.
        if not all(map(shutil.which, ("unshare", "nsenter", "ip", "tc"))):
            self.skipTest("wanted unshare, nsenter, ip and tc")
        hosts = self.hosts()

        def start(*arguments):
            return [
                self.start("cable", [*on_host, _LAUNCH, "--processes=2", "--hosts=10.77.0.1,10.77.0.2",
                                     f"--host_index={number}", "--", _TRAIN, "--job=job.textproto",
                                     "--set=lr_schedule.shape=CONSTANT", "--set=telemetry.evaluate_every=0",
                                     *arguments], SHALE_TOKEN="secret") for number, on_host in enumerate(hosts)
            ]

        launches = start("--set=lr_schedule.steps=1000000", "--set=checkpoint={every_steps: 5 keep_last: 2}",
                         "--set=telemetry.print_every=1")
        for line in launches[0].stdout:
            if re.match("step +15/", line):
                break
        subprocess.run([*hosts[0], "ip", "link", "set", "cable", "down"], check=True)
        outputs = [launch.communicate(timeout=60)[0] for launch in launches]
        self.assertRegex(outputs[0], "train, process 0: process [23] .*host-1.* has not been heard from for 8 s")
        self.assertRegex(outputs[1], "train, process 2: process 0 at 10.77.0.1:29400.* has not been heard from for ")
        self.assertNotIn(0, [launch.returncode for launch in launches])

        subprocess.run([*hosts[0], "ip", "link", "set", "cable", "up"], check=True)
        newest = max(glob.glob(os.path.join(self.place("cable"), _RUN, "checkpoints/step-*")))
        last = int(newest.rsplit("-", 1)[1]) + 5
        launches = start(f"--set=lr_schedule.steps={last}", "--resume=auto")
        outputs = [launch.communicate(timeout=60)[0] for launch in launches]
        self.assertEqual([launch.returncode for launch in launches], [0, 0], outputs)
        self.assertIn(f"resuming from runs/test/checkpoints/{os.path.basename(newest)}", outputs[0])
        self.train("no-cable", 0, "--set=lr_schedule.shape=CONSTANT", "--set=telemetry.evaluate_every=0",
                   f"--set=lr_schedule.steps={last}")
        folder = f"runs/test/checkpoints/step-{last:010d}/"
        mended, straight = ({path: content for path, content in self.checkpoints(name).items()
                             if path.startswith(folder)} for name in ("cable", "no-cable"))
        self.assertEqual(len(straight), 4)
        self.assertTrue(mended == straight)

    def test_a_command_that_cannot_start_is_an_error(self):
        process = self.start("nothing", [_LAUNCH, "--processes=2", "--", "./nowhere"])
        self.assertIn("launch: cannot start ./nowhere: No such file", process.communicate(timeout=60)[0])
        self.assertEqual(process.returncode, 2)


if __name__ == "__main__":
    unittest.main()
