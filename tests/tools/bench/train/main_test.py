#!/usr/bin/env python3
"""Tests what a round measures, in which order, and what happens when a contestant fails or somebody interrupts."""

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock

sys.path[:0] = ["tools", "tests/tools/bench/train"]

from bench.train import before, contestants, main, options, process, programs, workloads  # noqa: E402
from records import record, results_of, state_of  # noqa: E402


class PlanTest(unittest.TestCase):
    def test_variants_of_the_engine_run_on_the_first_shape_only(self):
        chosen = options.parse(["--only=shale-k8,shale"])
        plan = [(workload.name, name) for workload, names in main.plan_of(chosen) for name in names]
        self.assertEqual(plan.count(("llama34m", "shale-k8")), 2)
        self.assertEqual({workload for workload, name in plan if name == "shale-k8"}, {"llama34m"})
        self.assertEqual({workload for workload, name in plan if name == "shale"}, set(workloads.NAMES))

    def test_those_compared_take_turns_where_memory_holds_them(self):
        plan = main.plan_of(options.parse(["--only=shale,torch-best,shale-block,bf16"]))
        self.assertEqual([(workload.name, names) for workload, names in plan],
                         [("llama34m", ["shale", "torch-best"]), ("llama34m", ["shale-block"]),
                          ("gpt2_124m", ["shale", "torch-best"]),
                          ("qwen2_5_0_5b", ["shale"]), ("qwen2_5_0_5b", ["torch-best"])])
        # Memory does not hold all seven contestants of the first set, so it is split by the number of ranks.
        plan = main.plan_of(options.parse(["--only=gpt2_124m,bf16"]))
        self.assertEqual([names for _, names in plan], [["shale", "torch-best", "matmuls", "torch-installed"],
                                                        ["shale-2ranks", "matmuls-2ranks", "fsdp2-best"]])

    def test_apart_means_alone(self):
        plan = main.plan_of(options.parse(["--only=shale,torch-best,llama34m,bf16", "--apart"]))
        self.assertEqual([names for _, names in plan], [["shale"], ["torch-best"]])

    def test_one_thread_leaves_out_those_with_two_ranks(self):
        chosen = options.parse(["--threads=1", "--only=llama34m,fp32"])
        names = {name for _, some in main.plan_of(chosen) for name in some}
        self.assertLess({"shale", "torch-best", "matmuls", "shale-k8", "shale-block"}, names)
        self.assertEqual({contestants.ALL[name].ranks for name in names}, {1})
        note, = main.left_out(chosen)
        self.assertRegex(note, "left out in fp32: shale-2ranks, .*: 2 ranks cannot share --threads=1 evenly")
        self.assertEqual(main.left_out(options.parse([])), [])

    def test_pytorch_multiplies_bf16_only_with_vector_instructions(self):
        chosen = options.parse(["--only=llama34m,shale,torch-best"])
        chosen.isa = "AVX2"
        self.assertEqual([(workload.precision, names) for workload, names in main.plan_of(chosen)],
                         [("fp32", ["shale", "torch-best"]), ("bf16", ["shale"])])
        self.assertRegex(main.left_out(chosen)[0], "left out in bf16: torch-best: with --isa=AVX2 PyTorch")

    def test_a_twin_whose_build_lacks_a_field_is_left_out(self):
        chosen = options.parse(["--only=llama34m,bf16,shale-memory-lean,shale-block"])
        chosen.contestants += [before.twin(name) for name in chosen.contestants]
        chosen.before = "binary"
        words = before.Words(os.devnull)
        words.knows = lambda word: word != "moments"
        with unittest.mock.patch.object(before, "words_of", return_value=words):
            names = {name for _, some in main.plan_of(chosen) for name in some}
            self.assertEqual(names, {"shale-block", "shale-block-before", "shale-memory-lean"})
            self.assertEqual(main.left_out(chosen), ["left out in bf16: shale-memory-lean-before: the train of "
                                                     "--before does not know optimizer.moments=BF16"])


class MeasureTest(unittest.TestCase):
    def measured(self, **scripts):
        """Runs shell scripts in turns. Yields the name and the result of each."""
        class Script(programs.Contestant):
            def __init__(self, text):
                self.text = text

            def run(self, workload, place, steps, warmup, name, turn=None):
                turn.by_step("step", warmup, steps)
                if not self.text:
                    raise OSError("no place")
                place.run([["/bin/sh", "-c", self.text]], name, turn)
                return {"seconds": turn.seconds}

        before = dict(contestants.ALL)
        self.addCleanup(lambda: (contestants.ALL.clear(), contestants.ALL.update(before)))
        contestants.ALL.update({name: Script(text) for name, text in scripts.items()})
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        chosen = types.SimpleNamespace(steps=None, warmup=None)
        ended = threading.Event()
        here = types.SimpleNamespace(ended=ended, run=lambda commands, name, turn: process.run(
            commands, dict(os.environ), folder.name, name, turn, ended))
        return main._measure_together(chosen, here, types.SimpleNamespace(steps=2, warmup=1), list(scripts))

    def test_what_an_earlier_call_measured_is_not_measured_again(self):
        chosen = options.parse(["--only=llama34m,fp32,shale,matmuls,shale-keep-all,shale-block", "--rounds=2"])
        results = results_of(record("shale", [1]), record("matmuls", [1]), record("shale-block", [1]),
                             {**record("shale-keep-all", []), "failed": "no"} | {"seconds": [2]})
        del results.records[-1]["seconds"]
        results.info = {"commit": "a", "date": "d", "machine": "m"}
        asked = []

        def measured(chosen, here, workload, names):
            asked.append(names)
            for name in names:
                yield name, {"seconds": [3], "first_loss": 9.0, "other_cores": 0.0}

        log = io.StringIO()
        with unittest.mock.patch.object(main, "_measure_together", measured), \
                unittest.mock.patch.object(process, "other_cores_now", return_value=0.0), \
                contextlib.redirect_stderr(io.StringIO()):
            main._go_on(results, {"commit": "b", "date": "e", "machine": "m"}, log)
            main.measure(chosen, types.SimpleNamespace(tokens=lambda workload: None), results, log)
        # These are measured: the pair of which one had failed, and the second round.
        self.assertEqual(asked, [["shale-keep-all", "shale-block"], ["shale", "matmuls"],
                                 ["shale-keep-all", "shale-block"]])
        self.assertEqual(results.values("llama34m", "fp32", "shale", "seconds"), [1, 3])
        self.assertEqual(results.values("llama34m", "fp32", "shale-block", "seconds"), [3, 3])
        self.assertEqual(results.notes[0], "commit was a, and is b from here on")
        self.assertEqual(results.info["commit"], "a")

    def test_those_that_fail_leave_their_turns_to_the_others(self):
        good = "for i in 1 2 3; do echo step $i; sleep 0.05; done"
        results = dict(self.measured(none="", good=good, bad="echo step 1; sleep 0.05; exit 4"))
        self.assertEqual(len(results["good"]["seconds"]), 2)
        self.assertIn("ended with 4", results["bad"]["failed"])
        self.assertEqual(results["none"]["failed"], "no place")

    def test_whoever_stops_listening_ends_them_all(self):
        # The other two would run for longer than this test may.
        results = self.measured(none="", long="exec sleep 10000", waiting="exec sleep 10000")
        self.assertEqual(next(results)[0], "none")
        results.close()


# A train that ends at no signal but SIGKILL, and has a child. After its first step it has been stopped.
_TRAIN = """#!/bin/sh
# Heeds SHALE_MAX_CPU_ISA.
trap '' INT TERM HUP
sleep 10000 &
echo $! $$ >> "$PIDS"
echo 'step 1/2'
wait
"""


class InterruptTest(unittest.TestCase):
    def test_nothing_that_was_started_lives_on(self):
        for number, flag in ((signal.SIGINT, "--steps=1"), (signal.SIGTERM, "--apart"), (signal.SIGHUP, "--steps=1")):
            with self.subTest(number), tempfile.TemporaryDirectory() as folder:
                self.interrupt(folder, number, flag)

    def interrupt(self, folder, number, flag):
        # A copy works in its own folder.
        shutil.copytree("tools/bench", os.path.join(folder, "tools/bench"))
        for name in ("train", "bench/matmuls"):
            path = os.path.join(folder, "bin", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="ascii") as file:
                file.write(_TRAIN)
            os.chmod(path, 0o700)
        pids = os.path.join(folder, "pids")
        with open(os.path.join(folder, "out"), "w+", encoding="utf-8") as out:
            # Starts it as a shell starts programs in the background: they ignore SIGINT.
            program = subprocess.Popen(
                [sys.executable, os.path.join(folder, "tools/bench/train/main.py"), f"--bin={folder}/bin", flag,
                 "--only=llama34m,fp32,shale,matmuls", "--warmup=1"], env={**os.environ, "PIDS": pids}, stdout=out,
                stderr=out, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
            try:
                wanted = 1 if flag == "--apart" else 2
                while len(self.lines(pids)) < wanted and program.poll() is None:
                    time.sleep(0.01)
                program.send_signal(number)
                code = program.wait()
            finally:
                program.kill()
            out.seek(0)
            said = out.read()
        self.assertEqual(code, 130, said)
        self.assertIn("interrupted before the last round was complete", said)
        started = [pid for line in self.lines(pids) for pid in line.split()]
        self.assertEqual(len(started), 2 * wanted, said)
        # An orphan that was killed may run for a moment, and stay a zombie for a while. A test that waits for one that
        # nobody killed does not end.
        while not {state_of(pid) for pid in started} <= {"", "Z"}:
            time.sleep(0.01)

    def lines(self, path):
        if not os.path.exists(path):
            return []
        with open(path, encoding="ascii") as file:
            return re.findall(r".*\n", file.read())


if __name__ == "__main__":
    unittest.main()
