#!/usr/bin/env python3
"""Tests the presets, and how torch_fsdp2.py searches for the fastest settings of one."""

import io
import os
import sys
import tempfile
import unittest
from contextlib import redirect_stdout

sys.path[:0] = ["tools", "tools/parity"]

import torch_fsdp2  # noqa: E402
from bench.train import textproto  # noqa: E402
from gpu import orders  # noqa: E402


class SearchTest(unittest.TestCase):
    """Tests the search of torch_fsdp2.py on a simulated machine."""

    def search(self, fits, rate, arguments=()):
        """Searches with `fits` and `rate`, functions of a Configuration. Returns the trials in order, and the best."""
        job = os.path.join("tools/bench/jobs/gpu/qwen2_5_3b_1024.textproto")
        options = torch_fsdp2.parse([f"--job={job}", "--ranks=1", *arguments])
        trials = []

        def measure(configuration):
            trials.append(tuple(vars(configuration).values()))
            return {"tokens_per_second": rate(configuration)} if fits(configuration) else {"failed": "out of memory"}
        best = torch_fsdp2.search(options, measure)
        return trials, best and tuple(vars(best).values())

    def test_micro_batches_grow_while_they_gain_and_then_parameters_stay_longer(self):
        trials, best = self.search(lambda c: True, lambda c: min(c.micro_batch, 16) + (c.gathered == "step") + 1)
        self.assertEqual(trials, [(m, "none", "pass", "default") for m in (4, 8, 16, 32)]
                         + [(16, "none", "micro_batch", "default"), (16, "none", "step", "default"),
                            (16, "none", "step", "cudnn")])
        self.assertEqual(best, (16, "none", "step", "default"))

    def test_checkpointing_is_tried_only_for_micro_batches_that_do_not_fit_without(self):
        room = {"none": 8, "selective": 16, "block": 64}
        speed = {"none": 1.0, "selective": 0.9, "block": 0.7}
        trials, best = self.search(lambda c: c.micro_batch <= room[c.checkpoint] and c.gathered == "pass",
                                   lambda c: c.micro_batch ** 0.5 * speed[c.checkpoint])
        self.assertEqual([t[:2] for t in trials[:6]], [(4, "none"), (8, "none"), (16, "none"), (16, "selective"),
                                                       (32, "selective"), (32, "block")])
        self.assertEqual(best[:3], (64, "block", "pass"))

    def test_a_machine_that_is_too_small_for_all(self):
        trials, best = self.search(lambda c: False, lambda c: 0)
        self.assertIsNone(best)
        self.assertEqual([t[:2] for t in trials], [(4, "none"), (4, "selective"), (4, "block")])

    def test_trials_that_are_kept_are_not_run_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path, conditions = os.path.join(folder, "trials.jsonl"), {"torch": "2.9.0"}
            one, two = torch_fsdp2.Configuration(4), torch_fsdp2.Configuration(8)
            with redirect_stdout(io.StringIO()):
                torch_fsdp2.Trials(path, conditions).of(one, lambda: {"tokens_per_second": 5.0, "losses": []})
                with open(path, "a", encoding="utf-8") as file:
                    file.write('{"trial": {"micro_ba')
                trials = torch_fsdp2.Trials(path, conditions)
                self.assertEqual(trials.of(one, self.fail)["tokens_per_second"], 5.0)
                trials.of(two, lambda: {"failed": "out of memory"})
                self.assertEqual(torch_fsdp2.Trials(path, conditions).of(two, self.fail)["failed"], "out of memory")
                other = torch_fsdp2.Trials(path, {"torch": "2.10.0"})
                self.assertEqual(other.of(one, lambda: {"tokens_per_second": 6.0})["tokens_per_second"], 6.0)

    # Regression: a trial that failed once, for whatever reason, was never tried again.
    def test_failures_that_are_not_of_memory_are_tried_again(self):
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
            path, one = os.path.join(folder, "trials.jsonl"), torch_fsdp2.Configuration(4)
            trials = torch_fsdp2.Trials(path, {})
            self.assertEqual(trials.of(one, lambda: {"failed": "rank 0 ended with -9"})["failed"],
                             "rank 0 ended with -9")
            self.assertEqual(trials.last_failure, "rank 0 ended with -9")
            again = torch_fsdp2.Trials(path, {})
            self.assertEqual(again.of(one, lambda: {"tokens_per_second": 5.0})["tokens_per_second"], 5.0)

    def test_trials_are_whole_micro_batches_of_every_candidate(self):
        job = os.path.join("tools/bench/jobs/gpu/qwen2_5_3b_1024.textproto")
        for ranks in (1, 3, 4):
            for sequences in (1, 5, 32, 80, 96, 320, 512, 4096):
                options = torch_fsdp2.parse([f"--job={job}", f"--ranks={ranks}",
                                            f"--tokens_per_step={sequences * ranks * 1024}"])
                tokens = torch_fsdp2.search_tokens(options)
                self.assertLessEqual(tokens, options.tokens_per_step)
                for of_a_step in (tokens, options.tokens_per_step):
                    rests = {of_a_step % (m * ranks * 1024) for m in torch_fsdp2.micro_batches(options)}
                    self.assertEqual(rests, {0}, (ranks, sequences))

    def test_every_preset_is_half_a_mebi_of_tokens(self):
        for preset in orders.PRESETS:
            with open(os.path.join("tools/bench/jobs/gpu", preset + ".textproto"), encoding="utf-8") as file:
                job = textproto.parse(file.read())
            self.assertEqual(job["batch"]["global_batch"] * job["batch"]["sequence_length"], 524288)
            self.assertEqual(job["batch"]["global_batch"] % job["batch"]["micro_batch"], 0)
            self.assertEqual(job["name"], preset)


if __name__ == "__main__":
    unittest.main()
