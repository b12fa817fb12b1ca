#!/usr/bin/env python3
"""Tests NCCL between processes that share a GPU, and tools/try_nccl, on stand-ins for CUDA and NCCL. As the real one,
this NCCL refuses ranks on one GPU unless the engine sets its environment in every process."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

_TRY = os.path.abspath("tools/try_nccl")
_LAUNCH = os.path.abspath("tools/launch")
_TRAIN, _PLAN, _BENCH = (os.path.abspath(f"tests/tools/{name}_on_stand_in") for name in ("train", "plan", "bench"))
_CASES = os.path.abspath("tests/sharding/comm/nccl/nccl_processes_on_stand_in")
_SMALL = tuple(f"--set={setting}" for setting in (
    "model.decoder.width=16", "model.decoder.layers=1", "model.decoder.heads=2", "batch.sequence_length=8",
    "batch.global_batch=4"))
_NEWER = {"SHALE_TEST_NCCL": "23007"}  # NCCL 2.30.7 lets ranks share a GPU if it is asked to.


class TryNcclTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def call(self, *command, code=0, **variables):
        """Runs a command and returns what it printed."""
        found = subprocess.run(command, env=dict(os.environ, TMPDIR=self.folder, **variables), cwd=self.folder,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280, check=False)
        self.assertEqual(found.returncode, code, found.stdout)
        return found.stdout

    def check(self, name, processes, *arguments, code=0, **variables):
        """Runs a check of try_nccl and returns its result."""
        path = os.path.join(self.folder, "result.json")
        self.call(_TRY, name, f"--processes={processes}", f"--train={_TRAIN}", f"--plan={_PLAN}", f"--json={path}",
                  "--traffic=optimizer.learning_rate=1e-3", *_SMALL, *arguments, code=code, **variables)
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def launch(self, processes, *command, **variables):
        return self.call(_LAUNCH, f"--processes={processes}", "--", *command, **variables)


class Daily(TryNcclTest):
    def test_what_collectives_move_is_what_the_plan_says(self):
        result = self.check("traffic", 2)
        self.assertEqual({row["collective"] for row in result["rows"]},
                         {"AllGather", "ReduceScatterSum", "AllReduceSum"})
        self.assertEqual((result["check"], result["processes"], result["status"]), ("traffic", 2, "passed"))

    def test_processes_on_one_gpu_are_refused_without_the_setting(self):
        said = [row["said"] for row in self.check("refused", 2)["rows"]]
        self.assertIn("Duplicate GPU detected : rank ", said[0])
        self.assertIn("Multiple Ranks are using the same GPU", self.check("refused", 2, **_NEWER)["rows"][0]["said"])

    def test_a_check_that_fails_says_what_was_found(self):
        result = self.check("traffic", 2, "--set=model.decoder.width=15", code=1)
        self.assertEqual(result["status"], "failed")
        self.assertIn("model.decoder.width", result["about"])

    def test_the_setting_is_for_hosts_with_too_few_gpus(self):
        result = self.check("traffic", 2, code=1, SHALE_TEST_GPUS="2")
        self.assertIn("nccl_shares_gpus is for tests on a host with fewer GPUs than ranks, and this one has 2 for 2",
                      result["about"])

    def test_variables_of_the_user_are_kept_and_told(self):
        result = self.check("traffic", 2, code=1, NCCL_HOSTID="mine")
        self.assertRegex(result["about"], "Duplicate GPU detected .*; NCCL_HOSTID, which is mine here, must differ")

    def test_the_budget_is_a_share_of_the_gpu_less_what_each_process_takes(self):
        job = os.path.join(self.folder, "job.textproto")
        with open(job, "w", encoding="utf-8") as file:
            file.write("model { decoder { family: LLAMA width: 16 layers: 1 heads: 2 vocabulary: 9 } } "
                       "data { path: \"none\" } batch { global_batch: 4 sequence_length: 8 } lr_schedule { steps: 1 } "
                       "sharding { ranks: 4 } runtime { device: CUDA ranks_per_device: 4 nccl_shares_gpus: true }")
        self.assertIn("budget 1.0 GiB, of which the plan takes 0.0 % (the GPU's memory, divided by 4 processes, less 3 "
                      "GiB for CUDA and its libraries with NCCL)", " ".join(self.call(_PLAN, f"--job={job}").split()))

    def test_ranks_that_share_a_gpu_are_processes_with_one_rank_each(self):
        result = self.check("traffic", 2, "--set=sharding.ranks=4", "--set=runtime.ranks_per_device=4", code=1)
        self.assertIn("runtime.nccl_shares_gpus: each rank must be a process of its own, and this process holds 2 of 4",
                      result["about"])


class All(TryNcclTest):
    def test_checks(self):
        for processes, variables in ((2, {}), (4, _NEWER)):
            with self.subTest(processes=processes, variables=variables):
                rows = self.check("bits", processes, **variables)["rows"]
                self.assertEqual(len(rows), 5 if processes == 4 else 4)
        self.check("traffic", 4)
        self.check("resume", 2)
        self.check("kill", 2)
        self.check("kill", 3, "--set=batch.global_batch=6")
        self.check("refused", 4)

    def test_cases_that_processes_run_together(self):
        for processes, variables in ((2, {}), (4, _NEWER)):
            output = self.launch(processes, _CASES, **variables)
            self.assertEqual(output.count("[  PASSED  ]"), processes, output)
            self.assertNotIn("FAILED", output)
        self.assertIn("start it with tools/launch", self.call(_CASES))

    def test_the_comm_bench_in_processes(self):
        path = os.path.join(self.folder, "rates.json")
        output = self.launch(2, _BENCH, "comm", "--device=nccl", "--ranks_per_device=2", "--smallest_kib=4",
                             "--largest_kib=64", "--factor=16", "--rounds=2", "--seconds=0.01", f"--json={path}")
        self.assertIn("NCCL 2.28.9 between processes that share a GPU", output)
        with open(path, encoding="utf-8") as file:
            results = json.load(file)["results"]
        self.assertEqual(len(results), 10)  # Five kinds, two sizes.
        self.assertTrue(all(result["ranks"] == 2 and result["busbw_bytes_per_second"] > 0 for result in results))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + (sys.argv[1:] or ["Daily", "All"]))
