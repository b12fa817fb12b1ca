#!/usr/bin/env python3
"""Tests what `pack` puts into a GPU kit, and what it refuses."""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

_TOOLS = os.path.abspath("tools")
sys.path.insert(0, _TOOLS)

from gpu import kit, orders  # noqa: E402


class PackTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder, self.programs = os.path.join(folder.name, "kit"), os.path.join(folder.name, "programs")
        os.mkdir(self.programs)
        for name in ("gpu_tests", "train", "plan", "tune", "bench", "generate", "evaluate"):
            shutil.copy("/bin/true", os.path.join(self.programs, name))

    def pack(self, *arguments):
        return subprocess.run([os.path.join(_TOOLS, "gpu/pack"), self.folder,
                              f"--programs={self.programs}", *arguments], capture_output=True, text=True, check=False)

    def test_a_kit_has_all_that_run_needs(self):
        earlier = os.path.join(self.programs, "earlier")
        for name in ("train_gpu", "bench/gpu_benches"):
            os.makedirs(os.path.dirname(os.path.join(earlier, name)), exist_ok=True)
            shutil.copy("/bin/true", os.path.join(earlier, name))
        packed = self.pack("--without=tune", f"--before={earlier}")
        self.assertEqual(packed.returncode, 0, packed.stderr)
        self.assertEqual(os.listdir(os.path.join(self.folder, "bin")), [kit.PROGRAMS])
        with tarfile.open(os.path.join(self.folder, "bin", kit.PROGRAMS)) as programs:
            self.assertEqual(programs.getnames(), ["gpu_tests", "train", "plan", "bench", "generate", "evaluate",
                                                   "bench_before", "train_before"])
        self.assertEqual(len(os.listdir(os.path.join(self.folder, "jobs"))),
                         len(orders.PRESETS) + len(orders.ADAPTER_PRESETS))
        for command in ("run", "tools/parity/torch_fsdp2.py"):
            said = subprocess.run([sys.executable, os.path.join(self.folder, command), "--help"],
                                  cwd="/", capture_output=True, text=True, check=False)
            self.assertEqual(said.returncode, 0, said.stderr)
        run = subprocess.run([os.path.join(self.folder, "run")], cwd="/",
                             env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True,
                             check=False)
        self.assertEqual(run.returncode, 1)
        self.assertRegex(run.stderr, r"^run: no GPU: .*\n$")

    def refused(self, wanted, *arguments):
        packed = self.pack(*arguments)
        self.assertEqual(packed.returncode, 1)
        self.assertRegex(packed.stderr, wanted)

    def test_what_is_too_large_is_refused(self):
        shutil.copy("/bin/true", os.path.join(self.programs, "large"))
        with open(os.path.join(self.programs, "section"), "wb") as file:
            file.write(os.urandom(2 << 20))
        subprocess.run(["objcopy", "--add-section", f".large={self.programs}/section", "--set-section-flags",
                        ".large=alloc,readonly", f"{self.programs}/large", f"{self.programs}/plan"], check=True)
        self.refused(r"are more than the 2 that a kit may have \(--most_mib\); bin/programs.tar.xz is the largest",
                     "--most_mib=2")

    def test_onednn_is_refused(self):
        with open(os.path.join(self.programs, "bench"), "ab") as file:
            file.write(b"N4dnnl4impl6memoryE")
        self.refused("bench links oneDNN")

    def test_a_folder_that_is_not_empty_is_refused(self):
        os.makedirs(os.path.join(self.folder, "mine"))
        self.refused("is not empty")

    def test_a_program_that_is_missing_is_named(self):
        self.refused(r"bench/gpu_benches", f"--before={self.programs}")
        shutil.rmtree(self.folder)
        os.remove(os.path.join(self.programs, "tune"))
        self.refused("tune")


if __name__ == "__main__":
    unittest.main()
