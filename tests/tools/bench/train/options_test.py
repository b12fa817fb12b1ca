#!/usr/bin/env python3
"""Tests the command line of tools/bench_train: what names choose, and what is refused."""

import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.path.insert(0, "tools")

from bench.train import before, contestants, options, workloads  # noqa: E402


class OptionsTest(unittest.TestCase):
    def refused(self, wanted, *arguments):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as ended:
            options.parse(list(arguments))
        self.assertEqual(ended.exception.code, 2)
        self.assertIn(wanted, said.getvalue())

    def test_names_pick_within_their_kind(self):
        chosen = options.parse(["--only=bf16,shale", "--only=matmuls"])
        self.assertEqual(chosen.workloads, list(workloads.NAMES))
        self.assertEqual((chosen.precisions, chosen.contestants), (["bf16"], ["shale", "matmuls"]))
        self.assertNotIn("torch-eager", options.parse([]).contestants)
        self.assertEqual(options.parse(["--only=torch-eager"]).contestants, ["torch-eager"])

    def test_another_build_adds_twins(self):
        with tempfile.TemporaryDirectory() as folder:
            self.refused("train is not there; FOLDER is", f"--before={folder}")
            with open(os.path.join(folder, "train"), "wb"):
                os.chmod(os.path.join(folder, "train"), 0o700)
            flag = f"--before={folder}"
            self.assertEqual(options.parse([flag]).before, os.path.join(folder, "train"))
            twins = [name for name in options.parse([flag]).contestants if name.endswith("-before")]
            self.assertEqual(twins, ["shale-before", "shale-2ranks-before"])
            self.assertEqual(options.parse([flag, "--only=shale-k8,matmuls"]).contestants,
                             ["matmuls", "shale-k8", "shale-k8-before"])
            self.assertIn("shale-memory-lean-before", options.parse([flag, "--only=memory"]).contestants)
        self.refused("found 'shale-before'", "--only=shale-before")

    def test_what_is_not_understood_is_refused(self):
        self.refused("found 'shalee'; known are llama34m", "--only=shalee")
        self.refused("found '0'; wanted 1 to 1000", "--rounds=0")
        self.refused("found '0'; wanted 1 to 1024", "--threads=0")
        self.refused("found 'a/b'", "--keep=a/b")
        self.refused("unrecognized arguments: --round=2", "--round=2")
        self.refused("give one of them", "--resume=a", "--render=b")

    def test_the_list_names_everything(self):
        for name in (*workloads.NAMES, *workloads.PRECISIONS, *contestants.ALL):
            self.assertIn(before.original(name), options.list_text())


if __name__ == "__main__":
    unittest.main()
