#!/usr/bin/env python3
"""Tests the tools from the command line: a run from its job to generated text, error messages, what it says."""

import glob
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import tools_fixture  # noqa: E402
from tools_fixture import GENERATE as _GENERATE, TRAIN as _TRAIN  # noqa: E402

_EVALUATE = os.path.abspath("tools/evaluate")
_PLAN = os.path.abspath("tools/plan")
_TOKENIZER = os.path.abspath("tests/engine/text/golden/gpt2/tokenizer.json")

_STEP_FIELDS = [
    "step", "tokens", "loss", "grad_norm", "learning_rate", "updated", "seconds", "tokens_per_second", "mfu",
    "peak_bytes_planned", "peak_bytes_measured", "processed_tokens",
]


class ToolsTest(tools_fixture.ToolsFixture):
    def test_verify_checks_a_job_and_leaves_no_run(self):
        result = self.train("--verify")
        output = result.stdout.decode()
        self.assertEqual(result.returncode, 0, output + result.stderr.decode())
        self.assertRegex(output, r"(?m)^  2 ranks +one rank +\S+ +\S+  ok$")
        self.assertRegex(output, r"all checks hold: 13 hold, 0 fail, 0 not run, in \d+s\n$")
        self.assertFalse(os.path.exists(self.path("runs")))
        self.refused("cannot open .*nowhere.txt", "--verify", "--set=data.path=nowhere.txt")
        self.refused("--verify trains nothing; leave out --resume", "--verify", "--resume=auto")

    def test_a_signal_ends_the_checks_and_leaves_no_files(self):
        files = sorted(os.listdir(self.folder))
        # The gradients of this many parameters take longer than the time for all checks, a minute.
        process = subprocess.Popen(
            [_TRAIN, "--job=job.textproto", "--verify", "--set=model.decoder.layers=100",
             "--set=model.decoder.width=8"],
            cwd=self.folder, env={**os.environ, "TMPDIR": self.folder}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while not re.match(rb"  data .* ok", process.stdout.readline()):
            self.assertIsNone(process.poll())
        self.assertEqual(len(glob.glob(self.path("shale_verify_*"))), 1)
        process.send_signal(signal.SIGINT)
        output = process.stdout.read().decode()
        self.assertEqual(process.wait(timeout=60), 130, output)
        self.assertRegex(output, r"(?m)^stopped after \d+ checks?; the others were not run$")
        self.assertEqual(sorted(os.listdir(self.folder)), files)

    def test_a_run_goes_from_its_job_to_text(self):
        result = self.train("--set", "checkpoint.every_steps=5")
        output = result.stdout.decode()
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        self.assertEqual(sorted(os.listdir(self.path("runs/test"))),
                         ["checkpoints", "job.textproto", "last_checkpoint", "metrics.jsonl", "plan.txt"])
        self.assertIn(self.read("runs/test/plan.txt"), output)
        self.assertRegex(output, r"\nstep 12/12  loss \d\.\d{4}  norm \S+  lr \S+  [\d,]+ tok/s  mfu .*  eta 0s\n")
        self.assertRegex(output, r"\nevaluation at step 12  loss ")
        self.assertEqual(re.findall(r"saved runs/test/checkpoints/step-(\d+)  ", output),
                         ["0000000005", "0000000010", "0000000012"])
        self.assertEqual(sorted(os.listdir(self.path("runs/test/checkpoints"))),
                         ["step-0000000010", "step-0000000012"])

        steps = [row for row in self.metrics() if "loss" in row]
        self.assertEqual([row["step"] for row in steps], list(range(1, 13)))
        for row in steps:
            self.assertEqual(list(row), _STEP_FIELDS)
            self.assertEqual(row["tokens"], row["step"] * 4 * 32)
            self.assertEqual(row["peak_bytes_measured"], row["peak_bytes_planned"])
        self.assertLess(steps[-1]["loss"], steps[0]["loss"])
        self.assertEqual([row["step"] for row in self.metrics() if "evaluation_loss" in row], [5, 10, 12])

        # The resolved job trains the same run.
        self.assertIn("vocabulary: 256", self.read("runs/test/job.textproto"))
        again = self.call(_TRAIN, "--job=runs/test/job.textproto", "--set=telemetry.run_folder=again")
        self.assertEqual(again.returncode, 0, again.stderr.decode())
        self.assertEqual([row["loss"] for row in self.metrics("again") if "loss" in row],
                         [row["loss"] for row in steps])

        text = self.call(_GENERATE, "--run=runs/test", "--prompt=The \u20ac", "--tokens=60")
        self.assertEqual(text.returncode, 0, text.stderr.decode())
        self.assertTrue(text.stdout.decode("utf-8").startswith("The \u20ac"))
        self.assertGreater(len(text.stdout.decode()), 20)
        same = self.call(_GENERATE, "--run=runs/test", "--prompt=The \u20ac", "--tokens=60")
        self.assertEqual(text.stdout, same.stdout)
        self.assertEqual(self.call(_GENERATE, "--run=runs/test", "--tokens=5").returncode, 0)

    def test_the_best_checkpoint_is_kept_and_evaluated_and_patience_ends_the_run(self):
        # Steps of this size make the model worse after a while.
        result = self.train("--set=checkpoint={keep_best: true patience: 2 keep_last: 1}",
                            "--set=telemetry.evaluate_every=1", "--set=optimizer.learning_rate=0.5",
                            "--set=data.evaluation_sources=foxes text.txt", "--set=lr_schedule.steps=60")
        output = result.stdout.decode()
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        last = re.search(r"\nended early, after step (\d+) of 60: the evaluation loss was not below (\S+), that of "
                         r"step (\d+), in 2 evaluations \(checkpoint.patience\); the run is in runs/test\n$", output)
        self.assertIsNotNone(last, output)
        self.assertEqual(int(last[1]), int(last[3]) + 2)
        self.assertRegex(output, r"\nevaluation at step 1  loss .*\n  held_out  loss .*\n  foxes  loss ")
        self.assertEqual(sorted(os.listdir(self.path("runs/test/checkpoints"))),
                         [f"step-{int(last[3]):010d}", f"step-{int(last[1]):010d}"])
        rows = {row["step"]: row for row in self.metrics() if "evaluation_loss" in row}
        self.assertEqual(sorted(rows[1]["evaluation_sources"]), ["foxes", "held_out"])

        arguments = ["--run=runs/test", "--data=text.txt", "--json=results.jsonl"]
        for checkpoint, step in (("best", int(last[3])), ("newest", int(last[1]))):
            result = self.call(_EVALUATE, *arguments, "--checkpoint=" + checkpoint)
            self.assertEqual(result.returncode, 0, result.stderr.decode())
            found = json.loads(self.read("results.jsonl"))
            self.assertEqual(found["step"], step)
            self.assertAlmostEqual(found["loss"] / rows[step]["evaluation_sources"]["foxes"], 1, delta=0.2)
            self.assertIn(f"text.txt  loss {found['loss']:.4f}  perplexity ", result.stdout.decode())
        self.assertEqual(self.call(_GENERATE, "--run=runs/test", "--tokens=5", "--checkpoint=best").returncode, 0)

        for wrong, message in ((["--run=runs/test", "--data=nowhere"], "nowhere"),
                               (["--data=text.txt"], "give either --run=FOLDER"),
                               (["--run=runs/test", "--data=text.txt", "--packing=CUTS"], "allowed: CUT, PACK, PAD"),
                               (["--run=runs/test", "--data=text.txt", "--answers=a"], "--answers: no file of --data"),
                               (["--run=runs/none", "--data=text.txt"], "no checkpoint in runs/none"),
                               (["--folder=runs", "--data=text.txt"], "config.json")):
            result = self.call(_EVALUATE, *wrong)
            self.assertEqual(result.returncode, 2, result.stderr.decode())
            self.assertIn(message, result.stderr.decode())

    def test_help_is_complete_and_unknown_flags_are_refused(self):
        for tool, flags in ((_TRAIN, ["--job=FILE", "--set=PATH=VALUE", "--overwrite", "--dump_program",
                                      "--resume=latest|auto|FOLDER",
                                     "--trace=FILE", "--trace_first_step=N", "--trace_steps=N",
                                     "--trace_gb_per_second=X",
                                      "--memory_snapshot=FILE"]),
                            (_GENERATE, ["--run=FOLDER", "--prompt=TEXT", "--tokens=N", "--temperature=X", "--top_k=N",
                                         "--seed=N", "--checkpoint=newest|best"]),
                            (_EVALUATE, ["--run=FOLDER", "--folder=FOLDER", "--data=PATH", "--checkpoint=newest|best",
                                         "--answers=FILE", "--json=FILE"])):
            result = self.call(tool, "--help")
            self.assertEqual(result.returncode, 0)
            for flag in flags + ["Exit codes: 0"]:
                self.assertIn(flag, result.stdout.decode())
            wrong = self.call(tool, "--jobb=x")
            self.assertEqual(wrong.returncode, 2)
            self.assertIn("unknown flag --jobb", wrong.stderr.decode())

    def test_plan_and_train_take_what_was_measured_fastest(self):
        first = self.train("--set=lr_schedule.steps=1")
        self.assertEqual(first.returncode, 0, first.stderr.decode())
        self.assertRegex(first.stdout.decode(), r"\nmatmuls by (ONEDNN|PACKED): PACKED has .* x the speed of ONEDNN in "
                                                r"f32, as measured now on one thread\n")
        cache, = os.listdir(self.path("caches/shale"))
        for cpu_matmuls in ("ONEDNN", "PACKED"):
            self.write("caches/shale/" + cache, cpu_matmuls + "\n")
            trained = self.train("--set=lr_schedule.steps=1", "--overwrite")
            self.assertEqual(trained.returncode, 0, trained.stderr.decode())
            self.assertIn(f"\nmatmuls by {cpu_matmuls}: measured before ", trained.stdout.decode())
            self.assertIn(f"cpu_matmuls: {cpu_matmuls}", self.read("runs/test/job.textproto"))
            planned = self.call(_PLAN, "--job=job.textproto", "--set=lr_schedule.steps=1")
            self.assertEqual(planned.returncode, 0, planned.stderr.decode())
            # Nobody has measured this machine.
            plan, hint, _ = planned.stdout.decode().partition("\nTo predict the seconds ")
            self.assertTrue(hint)
            self.assertTrue(self.read("runs/test/plan.txt").startswith(plan))

    def test_a_resumed_run_keeps_what_computes_its_matmuls(self):
        def resumed(cpu_matmuls, *arguments):
            result = self.train("--set=lr_schedule.steps=3", *arguments)
            self.assertEqual(result.returncode, 0, result.stderr.decode())
            self.assertIn(f"\nmatmuls by {cpu_matmuls}: as the job", result.stdout.decode())

        for cpu_matmuls, other in (("ONEDNN", "PACKED"), ("PACKED", "ONEDNN")):
            run = "--set=telemetry.run_folder=" + cpu_matmuls
            first = self.train("--set=lr_schedule.steps=2", run, "--set=runtime.cpu_matmuls=" + cpu_matmuls)
            self.assertEqual(first.returncode, 0, first.stderr.decode())
            checkpoint = cpu_matmuls + "/checkpoints/step-0000000002"
            resumed(cpu_matmuls, run, "--resume=latest")
            resumed(cpu_matmuls, "--set=telemetry.run_folder=elsewhere-" + cpu_matmuls, "--resume=" + checkpoint)
            resumed(other, "--set=telemetry.run_folder=changed-" + cpu_matmuls, "--resume=" + checkpoint,
                    "--set=runtime.cpu_matmuls=" + other)

    def test_a_trace_tells_when_every_instruction_ran(self):
        plain = self.train("--set=lr_schedule.steps=5", "--set=telemetry.run_folder=plain")
        self.assertEqual(plain.returncode, 0, plain.stderr.decode())
        result = self.train("--set=lr_schedule.steps=5", "--trace=trace.json", "--trace_first_step=2",
                            "--trace_steps=3", "--trace_gb_per_second=20", "--dump_program",
                            "--memory_snapshot=snapshot.pickle")
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        events = json.loads(self.read("trace.json"))["traceEvents"]
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        self.assertEqual(len(names), 8)
        ran = [e for e in events if e["ph"] == "X"]
        self.assertEqual({e["args"]["step"] for e in ran}, {2, 3, 4})
        for thread in names:
            mine = [e for e in ran if (e["pid"], e["tid"]) == thread]
            for earlier, later in zip(mine, mine[1:]):
                self.assertLessEqual(earlier["ts"] + earlier["dur"], later["ts"] + 0.002)
        # Both ranks ran the same instructions, and none of them twice in the same iteration.
        for step in (2, 3, 4):
            issued = [[(e["args"]["instruction"], e["args"].get("micro_batch"), e["name"]) for e in ran
                       if e["pid"] == rank and e["args"]["step"] == step] for rank in (0, 1)]
            self.assertEqual(issued[0], issued[1])
            self.assertEqual(len(issued[0]), len(set(issued[0])))
        # The largest value of the memory counters is the peak of live bytes in the plan.
        with open(self.path("snapshot.pickle"), "rb") as file:
            [planned] = pickle.load(file)["device_traces"]
        live, planned_most = 0, 0
        for event in planned:
            live += {"alloc": event["size"], "free_completed": -event["size"]}.get(event["action"], 0)
            planned_most = max(planned_most, live)
        for rank in (0, 1):
            most = max(sum(e["args"].values()) for e in events if e["ph"] == "C" and e["pid"] == rank)
            self.assertEqual(most, planned_most)
        matmuls = [e["args"] for e in ran if e["name"] == "MatMul"]
        self.assertTrue(matmuls)
        for args in matmuls:
            self.assertEqual(args["flops"], 2 * args["m"] * args["n"] * args["k"])
            self.assertGreater(args["bytes"], 0)
        self.assertRegex(result.stdout.decode(), r"compute +backward +MatMul +\d+ .*(?s:.)*rank 0, mean of 3 steps")
        self.assertIn(self.read("trace.json.txt"), result.stdout.decode())
        self.assertRegex(self.read("trace.json.txt"),
                         r"\nroofline: 20 GB/s.*\nmatmul +m +n +k .*\n(forward|backward) +\d+ ")
        self.assertEqual([row["loss"] for row in self.metrics("plain") if "loss" in row],
                         [row["loss"] for row in self.metrics() if "loss" in row])
        self.draws_the_trace_beside_the_plan()
        none = self.train("--set=lr_schedule.steps=1", "--set=telemetry.run_folder=short", "--trace=none.json")
        self.assertEqual(none.returncode, 0)
        self.assertIn("no trace: the run had no step 3\n", none.stdout.decode())
        unwritable = self.train("--set=telemetry.run_folder=unwritable", "--trace=nowhere/trace.json")
        self.assertEqual(unwritable.returncode, 1)
        self.assertIn("nowhere/trace.json: No such file or directory", unwritable.stderr.decode())
        self.assertTrue(os.path.isdir(self.path("unwritable/checkpoints/step-0000000012")))

    def draws_the_trace_beside_the_plan(self):
        self.write("machine.textproto", 'name: "made up" processor: "none" device: "CPU" origin { source: ESTIMATED } '
                   "devices_per_host: 1 threads: 2 peak_flops_f32: 1e11 peak_flops_bf16: 1e11 "
                   "copy_bytes_per_second: 1e10")
        job, shown = "--job=runs/test/job.textproto", ("--html=plan.html", "--trace=trace.json")
        machine = "--machine=machine.textproto"
        result = self.call(_PLAN, job, machine, *shown)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        self.assertIn("In step 4 of a run the program took ", self.read("plan.html"))
        for flags, wanted in (((machine, *shown, "--set=batch.sequence_length=16"),
                               "--trace: trace.json has a trace of another program: its digest is .*; plan the job "
                               "that was traced"),
                              ((machine, "--trace=trace.json"), "--trace is shown in the page of a plan; add --html"),
                              ((machine, "--html=plan.html", "--trace=trace.json.txt"), "has no JSON"),
                              (shown, "--trace is shown beside predicted seconds")):
            result = self.call(_PLAN, job, *flags)
            self.assertEqual(result.returncode, 2, flags)
            self.assertRegex(result.stderr.decode(), wanted)

    def test_the_program_of_a_step_is_printed_on_request(self):
        result = self.train("--dump_program", "--set=lr_schedule.steps=1")
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        for word in ("AllGather", "ReduceScatter", "MatMul", "blocks.1"):
            self.assertIn(word, result.stdout.decode())

    def test_a_job_for_more_gpus_than_there_are_is_refused_in_one_line(self):
        result = self.train("--set=runtime.device=CUDA", "--set=sharding.ranks=1000")
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertRegex(
            result.stderr.decode(),
            "^train: .*(runs on CPUs alone|wanted an NVIDIA GPU|1000 ranks with 1 on a GPU want 1000 GPUs).*\n$")
        self.assertEqual(result.stdout.decode(), "")

    def test_a_text_that_cannot_be_used_is_refused(self):
        self.refused(r"nowhere\.txt: No such file", "--set=data.path=nowhere.txt")
        self.write("empty.txt", "")
        self.refused(r"empty\.txt.*empty", "--set=data.path=empty.txt")
        self.write("short.txt", "too short")
        self.refused(r"9 tokens found, but one sequence of 32 takes 33|too little is left", "--set=data.path=short.txt")
        self.write("latin1.txt", "caf\u00e9 ".encode("latin-1") * 500)
        self.refused(r"latin1\.txt.*UTF-8", "--set=data.path=latin1.txt", "--set=data.format=TEXT")

    def test_two_runs_share_the_tokens_of_a_text_and_its_size_takes_no_memory(self):
        os.mkdir(self.path("tokenizer"))
        with open(_TOKENIZER, "rb") as tokenizer:
            self.write("tokenizer/tokenizer.json", tokenizer.read())

        def run(text, names):
            """Trains on a text in one process for each name, all at once. Returns what they print, and their memory."""
            processes = []
            for name in names:
                with open(self.path(name + ".out"), "wb") as out:
                    processes.append(subprocess.Popen(
                        [_TRAIN, "--job=job.textproto", "--set=data.tokenizer=tokenizer", "--set=data.path=" + text,
                         "--set=data.evaluation_fraction=0", "--set=telemetry.evaluate_every=0",
                         "--set=telemetry.run_folder=runs/" + name, "--set=lr_schedule.steps=1"],
                        cwd=self.folder, stdout=out, stderr=subprocess.STDOUT))
            peaks = []
            for process, name in zip(processes, names):
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                self.assertEqual(process.returncode, 0, self.read(name + ".out"))
                peaks.append(usage.ru_maxrss * 1024)
            return [self.read(name + ".out") for name in names], peaks

        rows = b'{"prompt": "What is the plural of river?", "completion": " rivers"}\n' * 5000
        with open(self.path("large.jsonl"), "wb") as out:
            for _ in range(100):
                out.write(rows)
        self.write("small.jsonl", rows * 10)
        size = os.path.getsize(self.path("large.jsonl"))
        outputs, large = run("large.jsonl", ["a", "b"])
        self.assertEqual(sorted(re.search(r"; (kept|found) in \S*runs/tokens/", output).group(1) for output in outputs),
                         ["found", "kept"])
        self.assertEqual(len([name for name in os.listdir(self.path("runs/tokens")) if name[0] != "."]), 1)
        self.assertEqual(self.metrics("runs/a")[0]["loss"], self.metrics("runs/b")[0]["loss"])
        _, (small,) = run("small.jsonl", ["c"])
        # Neither the text nor its tokens, which have three quarters as many bytes, are in memory. What a thread has at
        # most are 8 batches of 64 KiB of text, with their rows and tokens.
        self.assertLess(max(large) - small, size / 4 + 4 * 2**20 * os.cpu_count())

    def test_what_does_not_fit_is_refused(self):
        self.refused(r"vocabulary", "--set=model.decoder.vocabulary=100")
        self.refused(r"needs .* budget 10\.0 KiB", "--set=memory.budget_bytes=10240")

    def test_a_run_that_diverges_fails_and_keeps_the_weights_before(self):
        result = self.train("--set=optimizer.learning_rate=1000", "--set=optimizer.weight_decay=1",
                            "--set=lr_schedule.steps=50")
        self.assertEqual(result.returncode, 1, result.stdout.decode())
        self.assertIn("not finite", result.stderr.decode())
        self.assertTrue(os.listdir(self.path("runs/test/checkpoints")))

    def test_events_go_where_the_job_says(self):
        result = self.train("--set=telemetry.sinks.events=events.jsonl",
                            "--set=telemetry.sinks.tensorboard=tensorboard",
                            "--set=telemetry.sinks.prometheus=" + self.path("metrics.prom"))
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        events = [json.loads(line) for line in self.read("runs/test/events.jsonl").splitlines()]
        self.assertEqual(events[0]["event"], "plan_ready")
        self.assertEqual(events[-1]["event"], "finished")
        self.assertEqual([{name: value for name, value in event.items() if name not in ("event", "time")}
                          for event in events if event["event"] in ("step", "evaluation")], self.metrics())
        self.assertIn('shale_step{run="test"} 12\n', self.read("metrics.prom"))
        self.assertEqual(len(os.listdir(self.path("runs/test/tensorboard"))), 1)

    def test_a_place_for_events_that_fails_does_not_fail_the_run(self):
        result = self.train("--set=telemetry.sinks.events=/dev/full")
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        self.assertIn("NOT WRITTEN: events for telemetry.sinks.events: cannot write /dev/full: No space left",
                      result.stdout.decode())
        refused = self.train("--set=telemetry.sinks.events=/dev/null/a", "--overwrite")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("train: telemetry.sinks.events: cannot make folder /dev/null", refused.stderr.decode())

    def test_it_says_what_it_measured_and_what_the_disk_lacks(self):
        with open(self.path("job.textproto"), encoding="utf-8") as job:
            text = job.read().replace("peak_flops: 1e11", "")
        with open(self.path("measured.textproto"), "w", encoding="utf-8") as job:
            job.write(text)
        result = self.call(_TRAIN, "--job=measured.textproto", "--set=checkpoint.keep_last=1000000000000",
                           "--set=lr_schedule.steps=2")
        output = result.stdout.decode()
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
        self.assertRegex(output, rf"(?m)^peak of a rank  [\d.]+ [GT]FLOP/s, measured {time} \(telemetry.peak_flops\)$")
        self.assertRegex(output, r"(?m)^warning: a checkpoint takes [\d.]+ [KM]iB, and the [\d,]+ checkpoints that the "
                         r"run will add [\d.,]+ \w+, but runs/test has [\d.]+ \w+ free; free some, ")
        recorded = self.read("runs/test/job.textproto")
        self.assertRegex(recorded, r"(?m)^  peak_flops: [\d.e+]+$")
        self.assertRegex(recorded, rf'(?m)^  peak_flops_measured: "{time}"$')

    def test_generate_says_what_it_misses(self):
        nowhere = self.call(_GENERATE, "--run=nowhere")
        self.assertEqual(nowhere.returncode, 2)
        self.assertRegex(nowhere.stderr.decode(), r"there is no checkpoint in nowhere/checkpoints")
        self.assertEqual(self.train("--set=lr_schedule.steps=1").returncode, 0)
        token = self.call(_GENERATE, "--run=runs/test", "--prompt_tokens=65,256")
        self.assertEqual(token.returncode, 2)
        self.assertIn("token 256 is outside the model's vocabulary of 256 tokens", token.stderr.decode())
        words = self.call(_GENERATE, "--run=runs/test", "--prompt_tokens=a,b")
        self.assertEqual(words.returncode, 2)
        long = self.call(_GENERATE, "--run=runs/test", "--context=33")
        self.assertEqual(long.returncode, 2)
        self.assertIn("a sequence of 33 tokens is wanted, and the model has 32 positions", long.stderr.decode())
        chat = self.call(_GENERATE, "--run=runs/test", "--chat")
        self.assertEqual(chat.returncode, 2)
        self.assertIn("--chat needs a tokenizer with a chat template", chat.stderr.decode())
        top_p = self.call(_GENERATE, "--run=runs/test", "--top_p=0")
        self.assertEqual(top_p.returncode, 2)
        self.assertIn("top_p is 0; wanted a number above 0", top_p.stderr.decode())

        def generate(*flags):
            result = self.call(_GENERATE, "--run=runs/test", "--prompt=The", "--tokens=40", *flags)
            self.assertEqual(result.returncode, 0, result.stderr.decode())
            return result.stdout.decode()

        # A text that is longer than a sequence, and the same one up to a stop text.
        text = generate("--seed=3")
        stop = next(text[i:i + 2] for i in range(5, 30) if "\0" not in text[i:i + 2])
        self.assertEqual(generate("--seed=3", "--stop=" + stop), text[:text.index(stop, 3)] + "\n")
        # Samples draw with the seeds from that of the first on.
        self.assertEqual(generate("--seed=2", "--samples=2"), f"--- sample 1\n{generate('--seed=2')}"
                         f"--- sample 2\n{text}")
        with open(self.path("runs/test/checkpoints/step-0000000001/MANIFEST"), "r+b") as manifest:
            manifest.seek(60)
            manifest.write(b"?")
        damaged = self.call(_GENERATE, "--run=runs/test")
        self.assertEqual(damaged.returncode, 1)
        self.assertIn("MANIFEST: it is damaged", damaged.stderr.decode())


if __name__ == "__main__":
    unittest.main(verbosity=2)
