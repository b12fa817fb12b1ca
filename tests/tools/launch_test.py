#!/usr/bin/env python3
"""Tests jobs in several processes: the same bits as in threads, saves and failures, with tools/launch and without."""

import glob
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import unittest

_TRAIN = os.path.abspath("tools/train")
_LAUNCH = os.path.abspath("tools/launch")
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
            return [line.get("loss") for line in map(json.loads, lines)]

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

    def test_a_job_that_is_started_again_ends_in_the_bits_of_the_undisturbed_one(self):
        arguments = ("--set=lr_schedule.steps=100", "--set=checkpoint={every_steps: 10 keep_last: 2}", "--resume=auto")
        self.train("straight", 0, *arguments)
        process, pids = self.running("again", 2, *arguments, step=25, restarts=1)
        os.kill(pids[1], signal.SIGKILL)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("launch: a process ended with code 137; starting all again (1 of 1)", output)
        self.assertRegex(output, "resuming from runs/test/checkpoints/step-00000000[2-9]0")
        self.expect_same("straight", "again")

    def test_a_signal_to_the_launcher_saves_and_ends_all(self):
        process, _ = self.running("stopped", 3, *_ENDLESS)
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, output)
        step = int(re.search(r"stopped after step (\d+) of 1000000; the run is in runs/test", output)[1])
        self.assertTrue(os.path.isdir(os.path.join(self.place("stopped"), _RUN, f"checkpoints/step-{step:010d}")))

    def test_what_is_wrong_at_the_start_is_said_once(self):
        output = self.train("refused", 3, "--set=data.path=nowhere.txt", code=2)
        self.assertEqual(len(re.findall("process 0: cannot open .*nowhere.txt", output)), 1, output)
        self.assertFalse(os.path.exists(os.path.join(self.place("refused"), "runs/test")))
        output = self.train("refused", 5, code=2)
        self.assertIn("started 5 processes, and the job has 4 ranks", output)
        output = self.train("refused", 2, "--verify", code=2)
        self.assertIn("--verify checks a job in one process, and Shale's launcher started 2", output)

    def by_hand(self, names, *jobs):
        """Starts a process in each place, with the variables that launchers share. Returns its code and output."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [_TRAIN, f"--job={self.place(names[0])}/job.textproto"]
        started = [
            self.start(name, [*command, *job], RANK=str(rank), WORLD_SIZE=str(len(names)), MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(port))
            for rank, (name, job) in enumerate(zip(names, jobs))
        ]
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

    def test_a_process_that_is_killed_before_it_joins_is_named_by_the_launcher(self):
        for victim in (0, 1):
            script = f'[ $SHALE_PROCESS = {victim} ] && kill -9 $$; exec "$@"'
            process = self.start(f"early-{victim}", [
                _LAUNCH, "--processes=2", "--", "sh", "-c", script, "sh", _TRAIN, "--job=job.textproto"
            ])
            output = process.communicate(timeout=60)[0]  # Alone, the other would wait five minutes.
            self.assertEqual(process.returncode, 128 + signal.SIGKILL, output)
            self.assertRegex(output, rf"launch: signal 9 ended process {victim} \(pid \d+\)")

    def test_a_command_that_cannot_start_is_an_error(self):
        process = self.start("nothing", [_LAUNCH, "--processes=2", "--", "./nowhere"])
        self.assertIn("launch: cannot start ./nowhere: No such file", process.communicate(timeout=60)[0])
        self.assertEqual(process.returncode, 2)


if __name__ == "__main__":
    unittest.main()
