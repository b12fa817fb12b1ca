#!/usr/bin/env python3
"""Tests what other projects do with Shale: builds programs outside of the repository, trains, and compares bits.

    tests/embedding/run_test.py [--cuda] [-k PATTERN]

Runs the tests of this file, and those of the other files *_test.py in this folder. --cuda adds a build with the CUDA
backend, for which nvcc compiles all kernels: minutes, the first time.

This file builds a program in another Bazel workspace against @shale. It copies tests/embedding/workspace to a temporary
folder. The program brings a model of its own that a job file can also describe (`model { mlp {} }`), so `train` must
end in the same bits. The first build compiles the engine once more, because the paths of its files
differ. ~/.cache/shale/embedding keeps the outputs, so that later runs take seconds. These are no Bazel tests, because a
Bazel inside of Bazel would share the machine without either of them knowing; `tools/test --all` runs them.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
WORKSPACE = os.path.join(ROOT, "tests/embedding/workspace")
_OUTPUTS = os.path.join(_CACHE, "shale", "embedding")
# Compiler warnings would push the error that matters out of what a failed test shows.
QUIET = ["--noshow_progress", "--ui_event_filters=-info,-warning"]
MODEL = "model={mlp: {embedding: 8 hidden: 32 layers: 2}}"
# What the tests build of this checkout has these flags. tools/test --all has built most of it for one architecture, and
# says so in the environment. Alone, these tests do without nvcc.
_ARCHITECTURES = os.environ.get("SHALE_TEST_CUDA_ARCH")
BUILD_FLAGS = [f"--//tools/build_defs:cuda_arch={_ARCHITECTURES}" if _ARCHITECTURES else
               "--//tools/build_defs:cuda=false"]
INSTALL_FLAG = f"--arch={_ARCHITECTURES}" if _ARCHITECTURES else "--no-cuda"
_WITH_CUDA = "SHALE_TEST_EMBEDDING_WITH_CUDA"  # Set in the environment by --cuda.


def run(command, **options):
    """Runs a command that must succeed. Returns what it printed."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                            **options)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout[-6000:]}")
    return result.stdout


def write_text(folder):
    """Writes the data of job.textproto beside it."""
    with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"the {i % 7} quick brown foxes jump over the lazy dog.\n" for i in range(60))


def write_job_with_model(folder):
    """Writes with_model.textproto: job.textproto with a model, and data whose vocabulary needs no reading."""
    with open(os.path.join(WORKSPACE, "job.textproto"), encoding="utf-8") as file:
        job = file.read().replace('path: "text.txt"', 'path: "text.txt" format: TEXT')
    path = os.path.join(folder, "with_model.textproto")
    with open(path, "w", encoding="utf-8") as file:
        file.write(job + MODEL.replace("model={", "model {") + "\n")
    return path


class EmbeddingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="shale_embedding.")
        cls.addClassCleanup(folder.cleanup)
        cls.workspace = os.path.join(folder.name, "workspace")
        shutil.copytree(WORKSPACE, cls.workspace)
        path = os.path.join(cls.workspace, "WORKSPACE")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace('"SHALE"', f'"{ROOT}"'))
        write_text(cls.workspace)

    def bazel(self, command, *targets, flags=("--@shale//tools/build_defs:cuda=false",)):
        """Builds in the other workspace. Of the flags of this one's .bazelrc it has those that only save time. To save
        more, nothing is optimized but kernels, which choose their own level; that changes no bits."""
        os.makedirs(_OUTPUTS, exist_ok=True)
        return ["bazel", "--max_idle_secs=60", f"--output_base={_OUTPUTS}", command, *flags,
                "--strategy=CppCompile=local", "--strategy=CppArchive=local",
                "--copt=--param=ggc-min-heapsize=1000000", "--copt=-DNDEBUG", "--copt=-g0",
                "--symlink_prefix=out/", *QUIET, *targets]

    def trained(self, name):
        """Trains with the program, and returns the exported weights."""
        folder = os.path.join(self.workspace, name)
        printed = run([os.path.join(self.workspace, "out/bin/service"), "job.textproto", folder], cwd=self.workspace)
        self.assertIn("step 20: loss ", printed)
        with open(os.path.join(folder, "model.safetensors"), "rb") as file:
            return file.read()

    def test_a_program_with_its_own_model_trains_to_the_bits_of_the_tool(self):
        run(self.bazel("build", "//:service"), cwd=self.workspace)
        ours = self.trained("own")

        run(["bazel", "build", "-c", "opt", *BUILD_FLAGS, *QUIET, "//tools:train", "//tools:export"], cwd=ROOT)
        tools = os.path.join(ROOT, ".out/bin/tools")
        theirs = os.path.join(self.workspace, "theirs")
        run([os.path.join(tools, "train"), "--job=job.textproto", "--set", MODEL, "--set",
             f"telemetry.run_folder={theirs}"], cwd=self.workspace)
        exported = os.path.join(self.workspace, "exported")
        run([os.path.join(tools, "export"), f"--run={theirs}", f"--out={exported}", "--plain"])
        with open(os.path.join(exported, "model.safetensors"), "rb") as file:
            self.assertEqual(file.read(), ours)

        # The tool refuses the program's job, which has no model.
        refused = subprocess.run([os.path.join(tools, "train"), "--job=job.textproto"], cwd=self.workspace,
                                 capture_output=True, text=True, check=False)
        self.assertIn("model: missing; give decoder", refused.stderr)

    def test_a_program_says_whether_a_machine_has_room_for_a_job(self):
        run(self.bazel("build", "//:admit"), cwd=self.workspace)
        write_job_with_model(self.workspace)
        plan = json.loads(run(["out/bin/admit", "with_model.textproto"], cwd=self.workspace))
        self.assertEqual(plan["verdict"], "FITS")
        self.assertGreater(plan["memory"]["arena_bytes"], 0)

    @unittest.skipUnless(os.environ.get(_WITH_CUDA), "builds with nvcc for minutes: call with --cuda")
    def test_a_program_with_the_cuda_backend_trains_on_cpus_to_the_same_bits(self):
        run(self.bazel("build", "//:service"), cwd=self.workspace)
        without = self.trained("without_cuda")
        # One architecture is enough to compile and link everything.
        run(self.bazel("build", "//:service", flags=["--@shale//tools/build_defs:cuda=true",
                                                     "--@shale//tools/build_defs:cuda_arch=80"]), cwd=self.workspace)
        self.assertEqual(self.trained("with_cuda"), without)
        # The program has the backend: what it lacks for a job on a GPU is at most a GPU.
        with open(os.path.join(self.workspace, "job.textproto"), encoding="utf-8") as file:
            job = file.read()
        self.assertIn("cpu_matmuls: ONEDNN", job)
        with open(os.path.join(self.workspace, "gpu.textproto"), "w", encoding="utf-8") as file:
            file.write(job.replace("threads_per_rank: 1 cpu_matmuls: ONEDNN", "device: CUDA ranks_per_device: 2"))
        result = subprocess.run([os.path.join(self.workspace, "out/bin/service"), "gpu.textproto", "gpu"],
                                cwd=self.workspace, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            self.assertRegex(result.stderr, "NVIDIA|GPU")

    def test_nothing_but_the_public_target_is_visible(self):
        result = subprocess.run(self.bazel("build", "--nobuild", "//private:graph"), cwd=self.workspace,
                                capture_output=True, text=True, check=False)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("target '@shale//engine/compile/graph:graph' is not visible", result.stderr)


if __name__ == "__main__":
    folder = os.path.dirname(os.path.realpath(__file__))
    if "--cuda" in sys.argv:
        sys.argv.remove("--cuda")
        os.environ[_WITH_CUDA] = "1"
    unittest.main(module=None, argv=[sys.argv[0], "discover", "-s", folder, "-p", "*_test.py", *sys.argv[1:]])
