#!/usr/bin/env python3
"""Tests what a round measures, in which order, and what happens when a contestant fails."""

import contextlib
import io
import os
import sys
import tempfile
import types
import unittest
import unittest.mock

sys.path[:0] = ["tools", "tests/tools/bench/train"]

from bench.train import contestants, main, options, process, workloads  # noqa: E402
from records import record, results_of  # noqa: E402


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


class MeasureTest(unittest.TestCase):
    def measured(self, **scripts):
        """Runs shell scripts in turns. Yields the name and the result of each."""
        class Script(contestants.Contestant):
            def __init__(self, text):
                self.text = text

            def run(self, workload, place, steps, warmup, name, turn=None):
                turn.by_step("step", warmup, steps)
                if not self.text:
                    raise OSError("no place")
                process.run([["/bin/sh", "-c", self.text]], dict(os.environ), place, name, turn)
                return {"seconds": turn.seconds}

        before = dict(contestants.ALL)
        self.addCleanup(lambda: (contestants.ALL.clear(), contestants.ALL.update(before)))
        contestants.ALL.update({name: Script(text) for name, text in scripts.items()})
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        chosen = types.SimpleNamespace(steps=None, warmup=None)
        return main._measure_together(chosen, folder.name, types.SimpleNamespace(steps=2, warmup=1), list(scripts))

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


if __name__ == "__main__":
    unittest.main()
