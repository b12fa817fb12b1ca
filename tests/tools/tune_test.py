#!/usr/bin/env python3
"""Tests which arguments tools/tune refuses before it uses a GPU."""

import os
import subprocess
import tempfile
import unittest

_TUNE = os.path.abspath("tools/tune")
_JOBS = os.path.abspath("tools/bench/jobs/gpu")


class TuneTest(unittest.TestCase):
    def refused(self, wanted, *arguments):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            with open(os.path.join(folder, "table"), "w", encoding="utf-8") as table:
                table.write("no table\n")
            environment = dict(os.environ, BUILD_WORKING_DIRECTORY=folder, CUDA_VISIBLE_DEVICES="")
            result = subprocess.run([_TUNE, *arguments], cwd="/", env=environment, capture_output=True, text=True,
                                    timeout=120, check=False)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertRegex(result.stderr, wanted)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_a_machine_without_a_gpu(self):
        self.refused("^tune: .*wanted an NVIDIA GPU", f"--job={_JOBS}/qwen2_5_0_5b_1024.textproto", "--out=new")

    def test_a_file_that_is_no_table_is_not_overwritten(self):
        self.refused("^tune: --out: table is not a tuning table: ",
                     f"--job={_JOBS}/qwen2_5_0_5b_1024.textproto", "--out=table")

    def test_a_job_that_is_missing(self):
        self.refused("^tune: ", "--job=missing.textproto", "--out=new")


if __name__ == "__main__":
    unittest.main()
