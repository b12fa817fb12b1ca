#!/usr/bin/env python3
"""Tests the workloads: their settings by precision and by ranks, and their token files."""

import os
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, "tools")

from bench.train import workloads  # noqa: E402


class WorkloadsTest(unittest.TestCase):
    def test_ranks_share_the_global_batch(self):
        one, two = (workloads.Workload("llama34m", "bf16").settings(2, ranks) for ranks in (1, 2))
        sizes = ("batch.global_batch", "batch.micro_batch", "runtime.threads_per_rank")
        self.assertEqual([one[size] for size in sizes], [8, 8, 2])
        self.assertEqual([two[size] for size in sizes], [8, 4, 1])
        self.assertEqual((two["precision.compute"], two["precision.master"]), ("BF16", "SPLIT"))
        fp32 = workloads.Workload("llama34m", "fp32").settings(2)
        self.assertEqual((fp32["precision.compute"], fp32["precision.master"]), ("FP32", "MASTER_FP32"))

    def test_a_precision_may_have_settings_of_its_own(self):
        bf16, fp32 = (workloads.Workload("qwen2_5_0_5b", precision).settings(2) for precision in ("bf16", "fp32"))
        self.assertEqual((bf16["sharding.accumulation"], bf16["activation_checkpointing.preset"]), ("LAYERED", "CHEAP"))
        self.assertNotIn("sharding.accumulation", fp32)
        # An explicit setting overrides that of the precision.
        more = workloads.Workload("qwen2_5_0_5b", "bf16").settings(2, more={"sharding.accumulation": "SHARDED"})
        self.assertEqual(more["sharding.accumulation"], "SHARDED")

    def test_micro_batches_multiply_the_global_batch(self):
        settings = workloads.Workload("llama34m", "fp32").settings(2, 2, 4)
        self.assertEqual((settings["batch.global_batch"], settings["batch.micro_batch"]), (32, 4))

    def test_token_files_are_those_of_llmc(self):
        with tempfile.TemporaryDirectory() as folder:
            for vocabulary, magic, width in ((8192, 20240520, "H"), (151936, 20240801, "I")):
                path = workloads.write_tokens(folder, vocabulary, count=1000)
                with open(path, "rb") as file:
                    data = file.read()
                self.assertEqual(struct.unpack_from("<3i", data)[::2], (magic, 1000))
                tokens = struct.unpack_from(f"<1000{width}", data, 1024)
                self.assertEqual(len(data), 1024 + struct.calcsize(f"<1000{width}"))
                self.assertTrue(all(token < vocabulary for token in tokens))
                # Where a large token goes on, the next one is always about the same.
                after = [b for a, b in zip(tokens, tokens[1:]) if a > 0.95 * vocabulary]
                most = max(sum(abs(b - c) < 0.01 * vocabulary for b in after) for c in after)
                self.assertGreater(most, 0.6 * len(after))
                before = os.stat(path).st_mtime_ns
                self.assertEqual(workloads.write_tokens(folder, vocabulary, count=1000), path)
                self.assertEqual(os.stat(path).st_mtime_ns, before)


if __name__ == "__main__":
    unittest.main()
