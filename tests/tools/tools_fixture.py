"""What the tests of the tools share: a job with its data in a folder, and calls of the tools."""

import json
import os
import re
import subprocess
import tempfile
import unittest

TRAIN = os.path.abspath("tools/train")
GENERATE = os.path.abspath("tools/generate")

_JOB = """
name: "test"
model { decoder { family: LLAMA width: 32 layers: 2 heads: 4 } }
data { path: "text.txt" evaluation_fraction: 0.2 }
batch { global_batch: 4 micro_batch: 1 sequence_length: 32 }
sharding { ranks: 2 }
optimizer { learning_rate: 1e-2 }
lr_schedule { steps: 12 }
telemetry { evaluate_every: 5 peak_flops: 1e11 }
"""


class ToolsFixture(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("job.textproto", _JOB)
        self.write("text.txt", "The quick brown fox jumps over the lazy dog.\n" * 60)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "wb") as out:
            out.write(text if isinstance(text, bytes) else text.encode())

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as text:
            return text.read()

    def call(self, tool, *arguments):
        # Imitates `bazel run`: the tool starts in another folder, and BUILD_WORKING_DIRECTORY names the caller's.
        environment = dict(os.environ, BUILD_WORKING_DIRECTORY=self.folder, XDG_CACHE_HOME=self.path("caches"))
        return subprocess.run([tool, *arguments], cwd="/", env=environment, capture_output=True, timeout=120,
                              check=False)

    def train(self, *arguments):
        return self.call(TRAIN, "--job=job.textproto", *arguments)

    def metrics(self, run="runs/test"):
        return [json.loads(line) for line in self.read(run + "/metrics.jsonl").splitlines()]

    def refused(self, wanted, *arguments):
        """Checks that the run does not start, that the message matches `wanted`, and that no run folder remains."""
        result = self.train(*arguments)
        error = result.stderr.decode()
        self.assertEqual(result.returncode, 2, error)
        self.assertRegex(error, wanted)
        self.assertFalse(os.path.exists(self.path("runs/test")), error)

    def start(self, *arguments):
        """Starts a run that would take long. Returns its process once it is in its third step or later."""
        process = subprocess.Popen([TRAIN, "--job=job.textproto", "--set=lr_schedule.steps=1000000", *arguments],
                                   cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        for line in process.stdout:
            if line.lstrip().startswith(b"step") and int(re.search(rb"(\d+)/", line).group(1)) >= 3:
                return process
        self.fail("it ended before its third step")
