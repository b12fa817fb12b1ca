#!/usr/bin/env python3
"""Runs the benches ops, comm, matmuls, cpu_matmuls, embedding, start_up, sweep, predict and search with tiny sizes.
Checks the form of their output, never a time."""

import json
import os
import re
import subprocess
import tempfile
import unittest

_OPS = os.path.abspath("tools/bench/ops")
_COMM = os.path.abspath("tools/bench/comm")
_LAUNCH = os.path.abspath("tools/launch")
_MATMULS = os.path.abspath("tools/bench/matmuls")
_CPU_MATMULS = os.path.abspath("tools/bench/cpu_matmuls")
_START_UP = os.path.abspath("tools/bench/start_up")
_EMBEDDING = os.path.abspath("tools/bench/embedding")
_SWEEP = os.path.abspath("tools/bench/sweep")
_PREDICT = os.path.abspath("tools/bench/predict")
_SEARCH = os.path.abspath("tools/bench/search")

_JOB = """
name: "small"
model { decoder { family: LLAMA vocabulary: 300 width: 64 layers: 1 heads: 2 hidden: 96 } }
data { path: "not read" format: LLMC }
batch { global_batch: 2 micro_batch: 2 sequence_length: 32 }
activation_checkpointing { preset: NONE }
lr_schedule { steps: 1 }
"""

_SMALL = [
    "--tokens=8", "--sequence=4", "--width=12", "--hidden=10", "--vocabulary=33", "--heads=2", "--kv_heads=1",
    "--head_tokens=3", "--parameters=101", "--square=16", "--cold_mib=1", "--copy_mib=1", "--seconds=0", "--threads=2",
]


class BenchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def call(self, tool, *arguments):
        environment = dict(os.environ, BUILD_WORKING_DIRECTORY=self.folder)
        return subprocess.run([tool, *arguments], cwd="/", env=environment, capture_output=True, text=True, timeout=240,
                              check=False)

    def measured(self, tool, *arguments):
        """Runs the tool with --json. Returns what it printed, and the JSON that it wrote."""
        result = self.call(tool, *arguments, "--json=out.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(os.path.join(self.folder, "out.json"), encoding="utf-8") as file:
            return result.stdout, json.load(file)

    def refused(self, wanted, tool, *arguments):
        result = self.call(tool, *arguments)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertEqual(result.stdout, "")
        self.assertRegex(result.stderr, wanted)

    def rows(self, text, first_title):
        """Returns the rows of the tables whose first column has that title, as lists of cells."""
        rows, inside = [], False
        for line in text.splitlines():
            if not line.startswith("|"):
                inside = False
                continue
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells[0] == first_title:
                inside = True
                columns = len(cells)
            elif inside and not set(line) <= set("|-: "):
                self.assertEqual(len(cells), columns, line)
                rows.append(cells)
        return rows

    def test_a_sweep_has_a_line_for_every_setting(self):
        self.assertEqual(self.call(_SWEEP, "--job=missing").returncode, 1)
        self.refused("wanted FIELD=VALUE", _SWEEP, "--job=job", "--vary=batch.micro_batch")
        for name, text in (("job", _JOB), ("text", "the quick brown fox jumps over the lazy dog\n" * 200)):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        command = [_SWEEP, "--job=job", "--set=data={path: \"text\" format: TEXT tokenizer: \"bytes\"}",
                   "--set=lr_schedule.steps=9", "--set=telemetry.peak_flops=1e15", "--steps=2", "--warm_up=1",
                   "--json=out.json", "--vary=batch.micro_batch=1|0|2",
                   "--vary=activation_checkpointing.preset=NONE|BLOCK"]
        result = self.call(*command)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(os.path.join(self.folder, "out.json"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        self.assertEqual([line["setting"] for line in lines],
                         [f"batch.micro_batch={micro_batch} activation_checkpointing.preset={preset}"
                          for micro_batch in (1, 0, 2) for preset in ("NONE", "BLOCK")])
        for line in lines:
            if "micro_batch=0" in line["setting"]:
                self.assertIn("batch.micro_batch", line["not_measured"])
                continue
            self.assertGreater(line["tokens_per_second"], 0)
            self.assertGreater(line["mfu"], 0)
            self.assertLessEqual(line["least_seconds"], line["seconds"])
            self.assertLessEqual(line["seconds"], line["most_seconds"])
            self.assertEqual(line["planned_bytes"], line["measured_bytes"])
        printed = result.stdout.splitlines()
        self.assertEqual(len(printed), 7)
        self.assertRegex(printed[-1], r"^best: \d+ tok/s  batch.micro_batch=[12] ")
        # What no time is left for is said.
        result = self.call(*command, "--seconds=0.000001")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stdout.count("no time was left"), 6)

    def test_every_op_that_moves_more_than_a_few_numbers_is_measured(self):
        result = self.call(_OPS, *_SMALL, "--list")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("a few numbers each: MeanFactor, FlagNonFinite, CombineTotals, PrepareUpdate, RecordNorm\n",
                      result.stdout)

    def test_ops(self):
        text, written = self.measured(_OPS, *_SMALL)
        rows = self.rows(text, "op")
        self.assertGreater(len(rows), 100)
        self.assertEqual(len(rows), len(written["results"]))
        self.assertRegex(text, r"plain [\d.]+ GB/s, non-temporal stores [\d.]+ GB/s")
        self.assertRegex(text, r"f32 [\d.]+ GFLOP/s; bf16 [\d.]+ GFLOP/s")
        for result in written["results"]:
            self.assertGreater(result["seconds"], 0)
            self.assertGreaterEqual(result["calls"], 1)
            if "flops" in result:
                self.assertLessEqual(result["of_peak"], 1)
            else:
                self.assertGreater(result["of_copy"], 0)

    def test_bytes_count_every_access_once(self):
        _, written = self.measured(_OPS, *_SMALL, "--only=rmsnorm|adamw|sgd|lion|embeddingbackward|accumulate f32")
        moved = {(result["op"], result["act"]): result["bytes"] for result in written["results"]}
        # x, y, weight and rstd. The second also has residual and sum.
        self.assertEqual(moved["RmsNormForward", "bf16"], 2 * (2 * 8 * 12 + 12) + 4 * 8)
        self.assertEqual(moved["RmsNormForward residual", "f32"], 4 * (4 * 8 * 12 + 12 + 8))
        # The gradient is read; weight, m and v are read and written. The update itself has five numbers.
        self.assertEqual(moved["AdamW", "f32"], 28 * 101 + 20)
        self.assertEqual(moved["AdamW f32 masters", "bf16"], 32 * 101 + 20)
        self.assertEqual(moved["AdamW split masters", "bf16"], 28 * 101 + 20)
        # The other rules have other states: one, none, or two of one byte with two scales for the block.
        self.assertEqual(moved["SGD", "f32"], 20 * 101 + 20)
        self.assertEqual(moved["SGD f32 masters", "bf16"], 24 * 101 + 20)
        self.assertEqual(moved["SGD without momentum", "f32"], 12 * 101 + 20)
        self.assertEqual(moved["Lion split masters", "bf16"], 20 * 101 + 20)
        self.assertEqual(moved["Lion lean", "bf16"], 12 * 101 + 20 + 8)
        self.assertEqual(moved["AdamW8Bit", "f32"], 16 * 101 + 2 * 2 * 4 + 20)
        self.assertEqual(moved["Accumulate accumulate", "f32"], 12 * 101)
        # All rows are written. With accumulation, the rows of eight tokens are read and written.
        self.assertEqual(moved["EmbeddingBackward", "f32"], 4 * (8 + 8 * 12 + 33 * 12))
        self.assertEqual(moved["EmbeddingBackward accumulate", "f32"], 4 * (8 + 8 * 12 + 2 * 8 * 12))

    def test_one_type_and_some_ops_and_warm(self):
        text, written = self.measured(_OPS, *_SMALL, "--dtype=bf16", "--only=swiglu", "--warm")
        self.assertEqual([row[0] for row in self.rows(text, "op")], ["SwiGluForward", "SwiGluBackward"])
        self.assertEqual({(result["act"], result["sets"]) for result in written["results"]}, {("bf16", 1)})
        self.assertIn("warm", text)
        self.assertNotIn("Matmuls", text)

    def test_comm(self):
        for device in ("cpu", "gloo", "tcp"):
            with self.subTest(device=device):
                self.check_comm(device)

    def check_comm(self, device):
        text, written = self.measured(_COMM, f"--device={device}", "--ranks=2,3", "--smallest_kib=1", "--largest_kib=4",
                                      "--rounds=1", "--seconds=0")
        self.assertEqual(re.findall(r"### (\d) ranks", text), ["2", "3"])
        self.assertEqual([group["ranks"] for group in written["groups"]], [2, 3])
        self.assertIn(f"### 2 ranks: {written['groups'][0]['about']}\n", text)
        rows = self.rows(text, "collective")
        self.assertEqual(len(rows), 2 * 5 * 2)
        self.assertEqual(len(written["results"]), len(rows))
        for result in written["results"]:
            n = result["ranks"]
            times = 2 if result["collective"] == "AllReduceSum" else 1
            algbw = result["size_bytes"] / result["seconds"]
            self.assertAlmostEqual(result["algbw_bytes_per_second"] / algbw, 1)
            self.assertAlmostEqual(result["busbw_bytes_per_second"] / (algbw * times * (n - 1) / n), 1)
            self.assertEqual(result["size_bytes"] % (64 * n), 0)

    def test_comm_of_processes(self):
        text, written = self.measured(_LAUNCH, "--processes=2", "--", _COMM, "--device=gloo", "--smallest_kib=1",
                                      "--largest_kib=4", "--rounds=1", "--seconds=0")
        self.assertRegex(text, r"### 2 ranks: .* processes on this host, which read one another's memory \(Gloo\)")
        self.assertEqual(len(self.rows(text, "collective")), 5 * 2)
        self.assertEqual(len(written["results"]), 5 * 2)

    def test_matmuls(self):
        with open(os.path.join(self.folder, "job"), "w", encoding="utf-8") as file:
            file.write(_JOB)
        result = self.call(_MATMULS, f"--job={self.folder}/job", "--repeats=3")
        self.assertEqual(result.returncode, 0, result.stderr)
        *passes, last = map(json.loads, result.stdout.splitlines())
        # bench_train detects the end of a pass by these lines.
        self.assertEqual(len(re.findall(r'^\{"pass"', result.stdout, re.MULTILINE)), 3)
        self.assertEqual([one["pass"] for one in passes], [1, 2, 3])
        self.assertEqual(len(last["passes"]), 3)
        self.assertAlmostEqual(sorted(last["passes"])[1] / last["seconds"], 1, places=4)
        # The weights of qkv, out, gate and up, down, and the head are each multiplied with 64 tokens, once forward and
        # twice backward.
        weights = 64 * (192 + 64 + 192 + 96 + 300)
        self.assertAlmostEqual(last["gflop"] * 1e9 / (3 * 2 * 64 * weights), 1)
        self.assertAlmostEqual(sum(shape["gflop"] for shape in last["shapes"]) / last["gflop"], 1)
        self.assertEqual(sum(shape["count"] for shape in last["shapes"]), last["matmuls"])
        # Two matmuls forward and five backward, for 2 sequences x 2 heads of width 32, over half of 32 x 33 pairs of
        # positions.
        self.assertAlmostEqual(last["attention_gflop"] * 1e9 / (7 * 2 * 4 * 32 * 16 * 33), 1)
        # Packed operands are those used as b, in f32: weights once forward and once backward, and the activations in
        # the weights' gradients. Packing reads and writes each element.
        activations = 64 * (2 * 64 + 64 + 96 + 64)
        self.assertEqual(last["packed_bytes"], 2 * 4 * (2 * weights + activations))
        for key in ("attention_seconds", "other_bytes", "copy_bytes_per_second"):
            self.assertGreater(last[key], 0)

        result = self.call(_MATMULS, f"--job={self.folder}/job", "--set=sharding.ranks=2", "--set=batch.micro_batch=1",
                           "--repeats=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        half = json.loads(result.stdout.splitlines()[-1])
        self.assertEqual((last["ranks"], half["ranks"], len(half["passes"])), (1, 2, 1))
        for key in ("gflop", "attention_gflop"):
            self.assertAlmostEqual(half[key] / last[key], 0.5)

    def test_cpu_matmuls(self):
        with open(os.path.join(self.folder, "job"), "w", encoding="utf-8") as file:
            file.write(_JOB)
        for compute in ("FP32", "BF16"):
            result = self.call(_CPU_MATMULS, f"--job={self.folder}/job", f"--set=precision.compute={compute}",
                               "--repeats=1")
            self.assertEqual(result.returncode, 0, result.stderr)
            *shapes, step = self.rows(result.stdout, "m x n x k")
            self.assertEqual(step[0], "a step")
            # The weights of qkv, out, gate and up, down, and the head, forward and twice backward.
            self.assertEqual(sum(int(shape[1]) for shape in shapes), 15)

    def test_embedding(self):
        # tests/embedding has the contestant in Python, which needs numpy and libshale.so.
        with open(os.path.join(self.folder, "job"), "w", encoding="utf-8") as file:
            file.write(_JOB.replace("vocabulary: 300", "").replace("format: LLMC", "").replace("steps: 1", "steps: 9"))
        result = self.call(_EMBEDDING, f"--job={self.folder}/job", "--steps=2", "--warm_up=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("all computed the same losses", result.stdout)
        rows = self.rows(result.stdout, "a step by")
        self.assertEqual([row[0] for row in rows], ["C++", "C", "C++, tokens in memory"])
        self.assertRegex(result.stdout, r"the 2 samples of a step, alone: [\d.]+ us of a file, [\d.]+ us of memory: ")
        result = self.call(_EMBEDDING, f"--job={self.folder}/job", "--steps=20")
        self.assertEqual(result.returncode, 1)
        self.assertIn("the run is over", result.stderr)

    def test_start_up(self):
        rows = []
        job = self.small_job()
        for threads in (1, 3):
            result = self.call(_START_UP, f"--job={job}", f"--set=runtime.threads_per_rank={threads}",
                               "--repetitions=2")
            self.assertEqual(result.returncode, 0, result.stderr)
            rows.append(json.loads(result.stdout))
            self.assertGreaterEqual(rows[-1]["fill"], 0)  # It may be too short for its digits.
        self.assertEqual([row["threads_per_rank"] for row in rows], [1, 3])
        self.assertEqual(rows[0]["state"], rows[1]["state"])

    def small_job(self):
        """Writes a small job, and returns its path."""
        path = os.path.join(self.folder, "job")
        with open(path, "w", encoding="utf-8") as file:
            file.write(_JOB)
        return path

    def test_predict(self):
        result = self.call(_PREDICT, f"--model={self.small_job()}", "--cells=4", "--steps=2")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([row[0] for row in self.rows(result.stdout, "cell")],
                         ["small fp32 W1 K2 SHARDED BLOCK in backward", "small bf16 W1 K2 NO_SYNC BLOCK",
                          "small bf16 W2 processes K1 NONE", "small bf16 W2 processes K2 SHARDED BLOCK in backward"])
        self.assertRegex(result.stdout, r"calibrated: 4 cells, median error [\d.]+ %, \d+ % of them within 10 %")

    def test_search(self):
        result = self.call(_SEARCH, f"--model={self.small_job()}", "--budgets=2", "--rivals=2", "--steps=2")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"## small, [\d.]+ \w+ to [\d.]+ \w+")
        rows = self.rows(result.stdout, "way")
        self.assertEqual([row[4] for row in rows if row[0] == "the search's choice"], ["1.00", "1.00"])
        self.assertIn(len(rows), range(3, 7))
        self.assertRegex(result.stdout, r"at most 1.03 in [012] of 2 cases, the largest [\d.]+\n$")

    def test_matmuls_of_a_job_that_names_no_vocabulary(self):
        with open(os.path.join(self.folder, "job"), "w", encoding="utf-8") as file:
            file.write(_JOB.replace("vocabulary: 300", ""))
        self.refused("--set model.decoder.vocabulary=N", _MATMULS, f"--job={self.folder}/job")

    def test_wrong_command_lines(self):
        self.refused("unknown flag --tokns; did you mean --tokens", _OPS, "--tokns=8")
        self.refused("--tokens=6 is not a multiple of --sequence=4", _OPS, *_SMALL, "--tokens=6")
        self.refused("--heads=3 is not a multiple of --kv_heads=2", _OPS, *_SMALL, "--heads=3", "--kv_heads=2")
        self.refused("--width=12 is not a multiple of --heads=5; give --head_width", _OPS, *_SMALL, "--heads=5")
        self.refused('--dtype: found "f16"; allowed: f32, bf16, both', _OPS, "--dtype=f16")
        self.refused("is no regular expression", _OPS, "--only=[")
        self.refused("matches no op", _OPS, "--only=nothing")
        self.refused('found "1"; a list of numbers from 2 to 64', _COMM, "--ranks=2,1")
        self.refused("--largest_kib=1 is below --smallest_kib=64", _COMM, "--largest_kib=1")
        self.refused("--ranks_per_device=2: ranks of --device=cpu share no GPU unless each is a process", _COMM,
                     "--ranks_per_device=2")

    def test_a_result_that_cannot_be_written(self):
        result = self.call(_COMM, "--ranks=2", "--smallest_kib=1", "--largest_kib=1", "--rounds=1", "--seconds=0",
                           "--json=/nowhere/out.json")
        self.assertEqual(result.returncode, 1)
        self.assertIn("/nowhere/out.json", result.stderr)

    def test_helps(self):
        for tool, flags in [(_OPS, ["--tokens", "--only", "--warm", "--json", "--threads"]),
                            (_COMM, ["--ranks", "--largest_kib", "--json"]),
                            (_MATMULS, ["--job", "--set", "--repeats"]),
                            (_CPU_MATMULS, ["--job", "--set", "--repeats"]),
                            (_EMBEDDING, ["--job", "--steps", "--library"]),
                            (_PREDICT, ["--model", "--cells"]),
                            (_SEARCH, ["--model", "--budgets", "--rivals"])]:
            result = self.call(tool, "--help")
            self.assertEqual(result.returncode, 0)
            for flag in flags:
                self.assertIn(flag, result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
