#!/usr/bin/env python3
"""Tests which libraries of a machine the GPU kit uses, and that no program that it runs outlives its time."""

import os
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.path.insert(0, "tools")

from gpu import child, machine  # noqa: E402


class MachineTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def lay(self, name):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w", encoding="utf-8").close()
        return os.path.dirname(path)

    def test_libraries_come_from_cuda_home_then_the_loader_then_python(self):
        home = self.lay("cuda/lib64/libcublasLt.so.13")
        loader = self.lay("usr/libnccl.so.2")
        self.lay("python/nvidia/cu13/lib/libcublasLt.so.13")
        self.lay("python/nvidia/nccl/lib/libnccl.so.2")
        cudnn = self.lay("python/nvidia/cudnn/lib/libcudnn.so.9")
        python = machine.Python("python", [os.path.join(self.folder, "python")])
        found = machine.find_libraries(python, {"CUDA_HOME": os.path.dirname(home)}, {"libnccl.so.2": loader})
        self.assertEqual(found, {"cuBLASLt": home, "NCCL": loader, "cuDNN": cudnn})
        environment = machine.engine_environment({"LD_LIBRARY_PATH": "/mine", "A": "b"}, found, "/kit/lib")
        self.assertEqual(environment["LD_LIBRARY_PATH"].split(":"), ["/kit/lib", cudnn, home, loader, "/mine"])
        self.assertEqual(environment["SHALE_CUDA_LIBRARIES"].split(":"), [cudnn, home, loader])
        self.assertEqual(environment["A"], "b")

    # Regression: the first machine had cuDNN 9.14 where the loader looks, which is too old, and 9.19 beside PyTorch.
    def test_of_several_cudnns_the_newest_is_taken(self):
        old, new = self.lay("usr/libcudnn.so.9"), self.lay("python/nvidia/cudnn/lib/libcudnn.so.9")
        python = machine.Python("python", [os.path.join(self.folder, "python")])
        versions = {old: 91400, new: 91900}
        found = machine.find_libraries(python, {"CUDA_HOME": "/nowhere"}, {"libcudnn.so.9": old},
                                       lambda title, path: versions[os.path.dirname(path)])
        self.assertEqual(found, {"cuDNN": new})
        self.assertEqual(machine.version_of("cuDNN", os.path.join(old, "libcudnn.so.9")), 0)


class ChildTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        patch = mock.patch.object(child, "_POLL_SECONDS", 0.01)
        patch.start()
        self.addCleanup(patch.stop)

    def program(self, script, name="log"):
        return child.Program(["sh", "-c", script], dict(os.environ), os.path.join(self.folder, name))

    def pid(self):
        path = os.path.join(self.folder, "pid")
        if not os.path.exists(path):
            return 0
        with open(path, encoding="utf-8") as file:
            return int(file.read() or 0)

    def runs(self):
        try:
            with open(f"/proc/{self.pid()}/stat", encoding="utf-8") as file:
                return file.read().rsplit(")", 1)[1].split()[0] != "Z"
        except FileNotFoundError:
            return False

    def waits(self):
        return self.program(f"echo $$ > {self.folder}/pid; exec sleep 1000", "waits")

    def assert_ended(self):
        with self.assertRaises(ProcessLookupError):
            os.kill(self.pid(), 0)

    def test_interruptions_leave_no_program_behind(self):
        def interrupt():
            if self.pid():
                raise KeyboardInterrupt
        with self.assertRaises(KeyboardInterrupt):
            child.run_all([self.waits()], 100, interrupt)
        self.assert_ended()

    # Regression: a kit that was killed left its program running, beside those of the next call.
    def test_a_program_ends_with_the_process_that_started_it(self):
        waits = self.waits()
        kit = subprocess.Popen([sys.executable, "-c", f"from gpu import child; child.run({waits.command}, {{}}, "
                                f"{waits.log!r}, 1000)"], env={**os.environ, "PYTHONPATH": "tools"})
        deadline = time.monotonic() + 30
        while not self.pid() and time.monotonic() < deadline:
            time.sleep(0.01)
        kit.kill()
        kit.wait()
        while self.runs() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertLess(time.monotonic(), deadline)

    def test_programs_run_side_by_side_and_those_that_last_too_long_are_killed(self):
        # Each of the two ends only if the other runs too.
        pair = [self.program(f"echo > {self.folder}/{own}; until [ -e {self.folder}/{other} ]; do sleep 0.01; done; "
                             f"echo said; exit {code}", own) for own, other, code in (("a", "b", 0), ("b", "a", 3))]
        ended = child.run_all([*pair, self.waits()], 0.5)
        self.assertEqual([(one.code, one.timed_out, one.tail()) for one in ended],
                         [(0, False, "said"), (3, False, "said"), (-9, True, "it printed nothing")])
        self.assert_ended()

    def test_a_program_ends_when_there_is_enough(self):
        ended = child.run_all([self.waits()], 100, lambda: self.pid() > 0)[0]
        self.assertEqual((ended.enough, ended.timed_out), (True, False))
        self.assert_ended()


if __name__ == "__main__":
    unittest.main()
