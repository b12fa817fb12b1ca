"""What tests of jobs in several processes share: starting them, and reading what they leave."""

import glob
import json
import os
import re
import subprocess
import tempfile
import unittest

TRAIN = os.path.abspath("tools/train")
LAUNCH = os.path.abspath("tools/launch")
RUN = "runs/test"
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
runtime { threads_per_rank: 1 cpu_matmuls: ONEDNN }
"""
ENDLESS = ("--set=lr_schedule.steps=1000000", "--set=telemetry.print_every=1", "--set=checkpoint.every_steps=0",
            "--set=telemetry.evaluate_every=0")


class JobInProcesses(unittest.TestCase):
    """A test with a folder of its own, in which jobs run."""

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
        command = [TRAIN, "--job=job.textproto", *arguments]
        launcher = [LAUNCH, f"--processes={processes}", f"--max_restarts={restarts}", "--"]
        return self.start(name, [*launcher, *command] if processes else command)

    def train(self, *arguments, code=0):
        process = self.launch(*arguments)
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, code, output)
        return output

    def losses(self, name):
        with open(os.path.join(self.place(name), RUN, "metrics.jsonl"), encoding="utf-8") as lines:
            return [line.get("loss") for line in map(json.loads, lines) if "restart" not in line]

    def checkpoints(self, name):
        """Returns the bytes of the shards of every checkpoint, by path. The manifests name the folder of the data."""
        files = {}
        for path in glob.glob(os.path.join(self.place(name), RUN, "checkpoints/*/*")):
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
