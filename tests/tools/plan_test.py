#!/usr/bin/env python3
"""Tests plan from the command line: every job in tools/jobs, more ranks than this machine has, and what is refused."""

import glob
import json
import os
import resource
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.abspath("tools"))

from gpu import plans  # noqa: E402

_PLAN = os.path.abspath("tools/plan")
_JOBS = os.path.abspath("tools/jobs")
_GPU_JOBS = os.path.abspath("tools/bench/jobs/gpu")


def instrumented():
    """Returns whether the tool was built with a sanitizer, which makes it much slower and needs extra memory."""
    with open(_PLAN, "rb") as tool:
        code = tool.read()
    return b"__asan_init" in code or b"__tsan_init" in code


class PlanTest(unittest.TestCase):
    def call(self, *arguments):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            # No cache of this user, in which the machine's profile may lie.
            environment = dict(os.environ, BUILD_WORKING_DIRECTORY=folder, XDG_CACHE_HOME=folder)
            return subprocess.run([_PLAN, *arguments], cwd="/", env=environment, capture_output=True, text=True,
                                  timeout=120, check=False)

    def plan(self, job, *arguments):
        result = self.call(f"--job={_JOBS}/{job}.textproto", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return " ".join(result.stdout.split())

    def refused(self, wanted, *arguments):
        result = self.call(*arguments)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertRegex(result.stderr, wanted)

    def test_every_job_plans_without_its_data(self):
        jobs = [os.path.splitext(os.path.basename(path))[0] for path in glob.glob(_JOBS + "/*.textproto")]
        self.assertGreaterEqual(len(jobs), 13)
        for job in jobs:
            with self.subTest(job):
                text = self.plan(job)
                self.assertIn("Plan of " + job, text)
                self.assertIn(" one arena a rank of ", text)

    def test_comparisons_and_searches_end_in_time(self):
        job = f"--job={_JOBS}/gpt2_124m.textproto"
        for flags, said in (("--explain", "--explain compared nothing within 0 s; give more"),
                            ("--fit=batch.micro_batch", "--fit found no value within 0 s; give more"),
                            ("--search --machine=h100x8", "--search found nothing that fits within 0 s; give more")):
            result = self.call(job, *flags.split(), "--seconds=0", "--set=memory.budget_bytes=1000000000000")
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn(said, result.stderr)

    def test_jobs_that_measure_a_gpu_fit_one_of_140_gib(self):
        paths = glob.glob(_GPU_JOBS + "/*.textproto")
        self.assertEqual(len(paths), 12)
        for path in paths:
            with self.subTest(path):
                # Plans for the CPU, because a build without the CUDA toolkit can do that, too.
                result = self.call(f"--job={path}", "--set=runtime.device=CPU",
                                   f"--set=memory.budget_bytes={137 << 30}")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("accumulation   SHARDED: ", result.stdout)
                # The GPU kit reads these from the plan.
                read = plans.read(result.stdout)
                self.assertGreater(read.token_flops, 1e9)
                self.assertIn(f"({read.bytes:,} bytes)", " ".join(result.stdout.split()))

    def test_405b_on_16384_ranks_takes_two_seconds_and_a_gibibyte_at_most(self):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = self.plan("llama3_405b")
        self.assertIn("parameters 405,853,388,800 in 128 units", text)
        self.assertIn("16,384 ranks x 1 micro-batch x 1 sequence", text)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not instrumented():
            # CPU time, not wall time, because other tests run in parallel.
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            self.assertLess(seconds, 2)
            self.assertLess(after.ru_maxrss * 1024, 1 << 30)

    def test_more_ranks_than_this_machine_has(self):
        text = self.plan("quickstart", "--ranks=1024")
        self.assertIn("1,024 ranks x 1 micro-batch x 4 sequences, of which 4,080 are masked", text)

    def test_a_job_without_a_budget_is_planned_although_this_machine_is_too_small(self):
        text = self.plan("llama3_8b", "--set=memory.budget_bytes=", "--set=sharding.ranks=1")
        self.assertRegex(text, "This machine is too small for the job: it needs .*"
                               "(fits with|these together do|still too large with) ")
        self.assertIn("budget no limit", text)

    def test_explains(self):
        text = self.plan("quickstart", "--explain")
        for part in ["Where every byte goes",
                     "What attention does not store",
                     "What K micro-batches add",
                     "Which micro-batch would fit",
                     "What the batch makes of the learning rate",
                     "What the optimizer step adds",
                     "What each preset of activation checkpointing saves",
                     "no_sync",
                     "What other strategies would need"]:
            self.assertIn(part, text)

    def test_finds_the_fastest_way_that_fits(self):
        job = f"--job={_JOBS}/quickstart.textproto"
        fields = "--search=batch.micro_batch,activation_checkpointing.preset"
        text = self.plan("quickstart", "--machine=h100x8", fields)
        self.assertRegex(text, r"The fastest way that fits, of \d+ that were compared: a step takes [\d.]+ [mu]?s and ")
        self.assertRegex(text, r"Time against memory: .* step per rank settings [\d.]+ [mu]?s")
        # The settings that it prints give the seconds that it promises.
        result = self.call(job, "--machine=h100x8", fields, "--json")
        found = json.loads(result.stdout)["search"]
        flags = [f"--set={change['path']}={change['value']}" for change in found["best"]["overrides"]]
        self.assertTrue(flags)
        again = json.loads(self.call(job, "--machine=h100x8", *flags, "--json").stdout)
        self.assertAlmostEqual(again["seconds"]["step"], found["best"]["seconds"], delta=1e-9)
        self.assertEqual(again["memory"]["arena_bytes"], found["best"]["arena_bytes"])
        self.assertLess(found["best"]["seconds"], found["own"]["seconds"])
        # A job that leaves these fields to a search is planned as its run decides them.
        names = ",".join(f'"{field}"' for field in fields.split("=")[1].split(","))
        searched = [job, "--machine=h100x8", f"--set=runtime.search=[{names}]"]
        as_run = json.loads(self.call(*searched, "--json").stdout)
        self.assertEqual(as_run["memory"], again["memory"])
        self.assertRegex(as_run["options"]["searched"], r"(?m)^ *batch\.micro_batch +batch\.micro_batch=\d+;")
        self.assertRegex(self.call(*searched).stdout, r"Decided by a search \(runtime\.search\)\n(?s:.*)"
                                                      r"\n *batch\.micro_batch +batch\.micro_batch=\d+;")
        self.assertIn("runtime.search leaves fields to a search", self.call(job, searched[2]).stdout)
        self.refused(r"runtime\.search: found \"lr\"; allowed: ", job, "--set=runtime.search=[\"lr\"]")
        # The job that it writes is that job, and says why.
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            path = os.path.join(folder, "found.textproto")
            self.call(job, "--machine=h100x8", fields, f"--searched_job={path}")
            with open(path, encoding="utf-8") as file:
                self.assertIn("  # plan --search: batch.micro_batch=", file.read())
            written = json.loads(self.call(f"--job={path}", "--machine=h100x8", "--json").stdout)
            self.assertEqual(written["memory"]["arena_bytes"], found["best"]["arena_bytes"])
        self.refused("--searched_job writes what a search found; add --search", job, "--searched_job=found.textproto")
        # What changes the training is listed, and not taken.
        self.assertIn("optimizer.rule=ADAMW_8BIT", [f"{change['path']}={change['value']}" for way in found["changing"]
                                                    for change in way["overrides"]])
        self.assertIn("Changes the training, never taken by itself", text)
        # Its seconds were once those of the CPU's ops at the rates of the GPU.
        self.refused("--machine=h100x8 has device CUDA, and --set gives the job runtime.device CPU", job,
                     "--machine=h100x8", "--set=runtime.device=CPU")
        self.refused(r"--search: found \"optimizer\.rule\"; allowed: sharding\.strategy", job, "--machine=h100x8",
                     "--search=optimizer.rule")
        # The plan, and why the job does not fit, are printed all the same. They were once lost, and with them the JSON.
        too_small = [job, "--machine=h100x8", fields, "--set=memory.budget_bytes=1000000"]
        self.refused("--search: no setting fits; nearest is (?s:.*)plan: needs ", *too_small)
        self.assertIn("Plan of quickstart", self.call(*too_small).stdout)
        written = json.loads(self.call(*too_small, "--json").stdout)
        self.assertEqual(written["verdict"], "DOES_NOT_FIT")
        self.assertIn("--search: no setting fits; nearest is ", "".join(written["remarks"]))

    def test_prints_the_program(self):
        text = self.plan("quickstart", "--dump_program")
        self.assertIn("AllGather", text)
        self.assertIn("AdamW", text)

    def test_a_job_for_gpus_is_planned_without_one(self):
        flags = ["--set=runtime={device: CUDA ranks_per_device: 2}", "--set=memory.budget_bytes=150000000000",
                 "--ranks=4"]
        result = self.call(f"--job={_JOBS}/qwen2_5_0_5b.textproto", *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("library workspace", result.stdout)
        # At most 64 ranks can sum directly from each other's memory.
        self.refused(r"sharding\.ranks: .* at most 64 ranks, and the job has 72",
                     f"--job={_JOBS}/qwen2_5_0_5b.textproto", *flags, "--ranks=72", "--set=batch.global_batch=72")

    def test_predicts_seconds_on_a_machine_that_is_not_here(self):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = self.plan("llama3_405b", "--machine=h100x8", "--hosts=2048", "--json=/dev/null")
        self.assertIn("16,384 ranks x 1 micro-batch", text)
        self.assertRegex(text, r"A step on h100x8, predicted step \d+\.\d s, between .* tokens/s, MFU \d+\.\d %")
        self.assertIn("matmuls and attention", text)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not instrumented():
            self.assertLess(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3)
        result = self.call(f"--job={_JOBS}/quickstart.textproto", "--machine=h200x8", "--json")
        seconds = json.loads(result.stdout)["seconds"]
        self.assertEqual(seconds["machine"], "h200x8")
        self.assertAlmostEqual(sum(part["value"] for part in seconds["limits"]), seconds["step"])
        text = self.plan("quickstart", "--machine=h200x8", "--explain")
        self.assertIn("a step takes", text)
        self.assertIn("The critical path of a step", text)
        self.refused("found .*nowhere.*; wanted|nowhere", f"--job={_JOBS}/quickstart.textproto", "--machine=nowhere")
        self.refused("name one with --machine", f"--job={_JOBS}/quickstart.textproto", "--hosts=2")
        self.refused("--processes: found 9; the job has 2 ranks", f"--job={_JOBS}/quickstart.textproto",
                     "--processes=9")
        self.refused("--processes: found 1 on --hosts=2", f"--job={_JOBS}/quickstart.textproto", "--machine=h100x8",
                     "--hosts=2", "--processes=1")
        self.refused("leave --processes out", f"--job={_JOBS}/quickstart.textproto", "--processes=2",
                     "--fit=sharding.ranks")
        self.refused(r"compute capability 8\.0; GPUs multiply fp8 matrices from 8\.9 on", "--machine=a100x8",
                     f"--job={_JOBS}/llama3_8b.textproto", "--set=precision={compute: BF16 matmuls: FP8}")
        self.refused(r"compute capability 10\.0; cuBLASLt multiplies fp8 matrices with blockwise scales on 9\.0 alone",
                     "--machine=b200x8", f"--job={_JOBS}/llama3_8b.textproto",
                     "--set=precision={compute: BF16 matmuls: FP8 fp8_scaling: BLOCKWISE}")

    def test_says_that_a_profile_does_not_know_the_peak_of_fp8(self):
        settings = ("--set=precision.compute=BF16", "--set=precision.matmuls=FP8")
        with open("tools/machines/h200x8.textproto", encoding="utf-8") as file:
            lines = [line for line in file if not line.startswith("peak_flops_fp8")]
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            path = os.path.join(folder, "machine.textproto")
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(lines)
            self.assertIn("the profile of h200x8 has no peak_flops_fp8",
                          self.plan("quickstart", f"--machine={path}", *settings))
            self.assertNotIn("peak_flops_fp8", self.plan("quickstart", f"--machine={path}"))
        self.assertNotIn("peak_flops_fp8", self.plan("quickstart", "--machine=h200x8", *settings))

    def test_the_script_of_the_page_on_scale(self):
        result = subprocess.run([os.path.abspath("tools/bench/scale.py"), f"--plan={_PLAN}", "--first=1"],
                                capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"\n\| 8,192 \| 2,048 \| [\d.]+ GiB \| [\d.]+ s \| [\d.]+ % \|")

    def test_without_a_machine_says_how_to_get_seconds(self):
        self.assertIn("To predict the seconds of a step, measure this machine once", self.plan("quickstart"))

    def test_name_patterns_that_match_nothing(self):
        job = f"--job={_JOBS}/quickstart.textproto"
        self.refused(r"optimizer\.no_decay\[0\]: \"embeding\*\" matches no parameter of the model; found embedding\.",
                     job, "--set=optimizer.no_decay=embeding*")

    def test_what_does_not_fit_is_refused_with_what_would(self):
        job = f"--job={_JOBS}/quickstart.textproto"
        # The GPU kit reads the part before the comma.
        self.refused(r"needs .* per rank, budget 33\.4 MiB, .* too little; fits with "
                     r".*activation_checkpointing\.preset=", job, "--set=memory.budget_bytes=35000000")

    def test_each_setting_that_is_proposed_goes_with_the_flags_that_were_given(self):
        # optimizer.rule=ADAMW_8BIT was once proposed to jobs that give optimizer.moments, and was then refused.
        job = [f"--job={_JOBS}/quickstart.textproto", "--set=optimizer.moments=FP32",
               "--set=sharding.accumulation=SHARDED", "--set=activation_checkpointing.segment_blocks=1"]
        needs = json.loads(self.call(*job, "--json").stdout)["memory"]["arena_bytes"]
        job.append(f"--set=memory.budget_bytes={needs - 1}")
        refused = json.loads(self.call(*job, "--json").stdout)
        ways = [[f"--set={change['path']}={change['value']}" for change in way["overrides"]]
                for way in refused["refusal"]["ways_out"]]
        self.assertIn(["--set=optimizer.rule=ADAMW_8BIT", "--set=optimizer.moments="], ways)
        for way in ways:
            result = self.call(*job, *way)
            self.assertEqual(result.returncode, 0, result.stderr)
        text = self.plan("quickstart", "--explain", "--set=optimizer.moments=FP32")
        self.assertIn("optimizer.rule=ADAMW_8BIT, optimizer.moments= ", text)

    def test_errors_name_the_flag_that_has_them(self):
        job = f"--job={_JOBS}/quickstart.textproto"
        self.refused(r'--search: found ""; wanted FIELDS, or --search alone', job, "--machine=h100x8", "--search=")
        self.refused(r'--machine: found ""; wanted NAME', job, "--machine=")
        self.refused(r'--machine: no machine "h100x4"; there are a100x8, .*did you mean', job, "--machine=h100x4")
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            path = os.path.join(folder, "job.textproto")
            with open(f"{_JOBS}/quickstart.textproto", encoding="utf-8") as file:
                text = file.read().replace("ranks: 2", "ranks: 3 shard_ranks: 3") + "runtime { ops: REFERENCE }"
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            self.refused(r"^plan: --machine=h100x8: runtime\.device: the REFERENCE ops run on device CPU only",
                         f"--job={path}", "--machine=h100x8")
            self.refused(r"^plan: --set: runtime\.device: the REFERENCE ops run on device CPU only", f"--job={path}",
                         "--set=runtime.device=CUDA")
            for flags, named in ((["--ranks=8"], "--ranks=8"), (["--machine=h100x8", "--hosts=1"], "--hosts=1"),
                                 (["--machine=h100x8", "--hosts=1", "--set=sharding.ranks=8"], "--set")):
                self.refused(rf"(?m)^(plan: )?{named}: sharding\.ranks: groups of 3 cannot divide 8 ranks",
                             f"--job={path}", *flags)
            errors = json.loads(self.call(f"--job={path}", "--machine=h100x8", "--json").stdout)["errors"]
            self.assertEqual([error["source"] for error in errors], ["--machine=h100x8"])

    def test_a_machine_that_is_named_is_not_this_one(self):
        one = ["--machine=h100x8", "--set=sharding.ranks=1"]
        text = self.plan("llama3_8b", *one, "--set=memory.budget_bytes=")
        self.assertIn("The machine h100x8 is too small for the job: it needs ", text)
        self.assertIn("set memory.budget_bytes to plan it with another one.", text)
        # It was once said twice, in other words.
        self.assertNotIn("does not fit h100x8", text)
        self.assertNotIn("This machine", text)
        text = self.plan("llama3_8b", *one, "--set=memory.budget_bytes=1000000000000")
        self.assertIn("The job does not fit h100x8, whose devices have ", text)

    def test_a_group_with_the_rate_of_another_rule(self):
        groups = "--set=optimizer={rule: SGD groups { parameters: \"head*\" rule: LION } }"
        self.assertIn("optimizer.groups[0] (head*) has rule LION and takes the learning rate of the job, 0.003, "
                      "unchanged", self.plan("quickstart", groups))

    def test_a_vocabulary_that_only_missing_data_could_tell(self):
        job = f"--job={_JOBS}/quickstart.textproto"
        self.refused(r"vocabulary.*cannot be read.*--set model\.decoder\.vocabulary=N", job, "--set=data.format=LLMC",
                     "--set=data.path=/nowhere/tokens")

    def test_wrong_command_lines_and_jobs(self):
        self.refused("--job=FILE is required")
        self.refused("No such file", "--job=/nowhere/job.textproto")
        self.refused("did you mean FULL_SHARD", f"--job={_JOBS}/quickstart.textproto", "--set=sharding.strategy=FULL")

    def test_helps(self):
        result = self.call("--help")
        self.assertEqual(result.returncode, 0)
        for flag in ["--job", "--set", "--ranks", "--explain", "--timeline", "--dump_program", "--json[=FILE]",
                     "--proto", "--html", "--memory_snapshot", "--fit", "--machine", "--hosts"]:
            self.assertIn(flag, result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
