#!/usr/bin/env python3
"""Tests the claims: which medians form a ratio, how well it is known, and whether it meets its target."""

import contextlib
import statistics
import sys
import unittest

sys.path[:0] = ["tools", "tests/tools/bench/train"]

from bench.train import claims, contestants, table, workloads  # noqa: E402
from records import record, results_of  # noqa: E402


def value(results, label, precision="fp32", workload="llama34m"):
    claim, = (c for c in claims.of(workload) if c.label.startswith(label))
    return claim.value(results, workload, precision)


class ClaimsTest(unittest.TestCase):
    def test_speeds_are_ratios_of_medians(self):
        results = results_of(record("shale", [2.0]), record("torch-best", [2.2]), record("matmuls", [1.8]),
                             record("torch-installed", [5.0]), record("shale-2ranks", [2.1]),
                             record("fsdp2-best", [3.15]))
        self.assertAlmostEqual(value(results, "against PyTorch at its best"), 1.1)
        self.assertAlmostEqual(value(results, "against the matmuls"), 0.9)
        self.assertAlmostEqual(value(results, "against PyTorch compiled, as installed"), 2.5)
        self.assertAlmostEqual(value(results, "two sharded ranks against FSDP2"), 1.5)
        self.assertAlmostEqual(value(results, "two sharded ranks against one"), 2.0 / 2.1)

    def test_eight_micro_batches_are_held_against_eight_less_seven_optimizers(self):
        results = results_of(record("shale-8-steps", [1.0]), record("shale-k8", [7.5], update_seconds=0.1))
        self.assertAlmostEqual(value(results, "time of K = 8"), 7.5 / (8 * 0.9 + 0.1))

    def test_what_counts_is_the_median_of_the_rounds(self):
        times = ((1, 1.0, 1.3), (2, 2.0, 2.2), (3, 1.0, 1.0))
        results = results_of(*(record("shale", [one], number=number) for number, one, _ in times),
                             *(record("torch-best", [other], number=number) for number, _, other in times),
                             record("shale", [5.0], number=4))
        claim = claims.of("llama34m")[0]
        for found, wanted in zip(claim.by_round(results, "llama34m", "fp32"), (1.3, 1.1, 1.0), strict=True):
            self.assertAlmostEqual(found, wanted)
        self.assertAlmostEqual(claim.value(results, "llama34m", "fp32"), 1.1)

    def test_turns_say_how_well_a_ratio_close_to_one_is_known(self):
        def turns_record(*arguments, **more):
            return record(*arguments, in_turns=True, **more)

        claim, = (c for c in claims.of("llama34m") if c.label.startswith("NO_SYNC"))
        sharded = [1.00, 1.02, 0.98, 1.01, 0.99, 1.00]
        close = results_of(turns_record("shale-sharded", sharded),
                           turns_record("shale-no-sync", [1.01, 1.00, 1.00, 1.02, 1.00, 1.01]))
        ratios = [a / b for a, b in zip(sharded, [1.01, 1.00, 1.00, 1.02, 1.00, 1.01])]
        self.assertAlmostEqual(claim.error(close, "llama34m", "fp32"), claim.value(close, "llama34m", "fp32") *
                               statistics.stdev(ratios) / statistics.mean(ratios) / 6 ** 0.5)
        self.assertFalse(claim.met(claim.value(close, "llama34m", "fp32"), "fp32"))
        self.assertTrue(claim.undecided(close, "llama34m", "fp32"))
        slower = results_of(turns_record("shale-sharded", sharded),
                            turns_record("shale-no-sync", [1.1 * one for one in sharded]))
        self.assertFalse(claim.undecided(slower, "llama34m", "fp32"))
        few = results_of(turns_record("shale-sharded", sharded[:4]), turns_record("shale-no-sync", [1.01] * 4))
        self.assertIsNone(claim.error(few, "llama34m", "fp32"))
        self.assertFalse(claim.undecided(few, "llama34m", "fp32"))
        more = results_of(*close.records, turns_record("shale-sharded", sharded, number=2),
                          turns_record("shale-no-sync", [1.01] * 6, number=2))
        self.assertLess(claim.error(more, "llama34m", "fp32"), claim.error(close, "llama34m", "fp32"))
        apart = results_of(record("shale-sharded", sharded),
                           record("shale-no-sync", [1.01, 1.00, 1.00, 1.02, 1.00, 1.01]))
        self.assertIsNone(claim.error(apart, "llama34m", "fp32"))
        lone = results_of(*close.records, turns_record("shale-sharded", sharded))
        self.assertIsNone(claim.error(lone, "llama34m", "fp32"))
        self.assertIsNone(claims.of("llama34m")[0].error(close, "llama34m", "fp32"))
        text = table.markdown(close)
        self.assertIn("| 0.995 ± 0.011 x | >= 1 x | undecided |", text)
        self.assertIn("0 of the 1 targets measured are met; undecided: 1.", text)
        self.assertIn("±: two standard errors", text)

    def test_the_error_of_accumulation_is_in_proportion_to_that_of_its_turns(self):
        claim, = (c for c in claims.of("llama34m") if "K = 8" in c.label)
        eight, one = [8.1, 8.2, 8.0, 8.3, 8.1], [1.0, 1.01, 1.0, 1.02, 1.0]
        results = results_of(record("shale-k8", eight, update_seconds=0.02, in_turns=True),
                             record("shale-8-steps", one, in_turns=True))
        ratios = [a / b for a, b in zip(eight, one)]
        self.assertAlmostEqual(claim.value(results, "llama34m", "fp32"), 8.1 / (8 - 0.14))
        self.assertAlmostEqual(claim.error(results, "llama34m", "fp32"), 8.1 / (8 - 0.14) *
                               statistics.stdev(ratios) / statistics.mean(ratios) / 5 ** 0.5)
        unknown = results_of(record("shale-k8", eight, in_turns=True), record("shale-8-steps", one, in_turns=True))
        self.assertIsNone(claim.error(unknown, "llama34m", "fp32"))

    def test_memory_less_what_both_must_hold(self):
        both = [record("shale", [1], workload=w, peak_rss_bytes=26000) for w in workloads.NAMES]
        both += [record("torch-best", [1], workload=w, peak_rss_bytes=56000) for w in workloads.NAMES]
        results = results_of(*both)
        self.assertAlmostEqual(value(results, "peak RSS"), 26 / 56)
        self.assertAlmostEqual(value(results, "peak RSS", workload="gpt2_124m"), 10 / 40)

    def test_the_other_shapes_have_five_percent_less_to_reach(self):
        first, other = claims.of("llama34m")[0], claims.of("qwen2_5_0_5b")[0]
        self.assertEqual(first.label, other.label)
        self.assertAlmostEqual(other.targets["bf16"], 0.95 * first.targets["bf16"])

    def test_a_target_that_is_just_reached_is_met(self):
        for claim in claims.of("llama34m"):
            self.assertTrue(claim.met(claim.targets["fp32"], "fp32"), claim.label)
            worse = -1e-9 if claim.at_least else 1e-9
            self.assertFalse(claim.met(claim.targets["fp32"] + worse, "fp32"), claim.label)

    def test_every_claim_names_contestants_that_exist(self):
        asked = set()
        for claim in claims.of("llama34m") + claims.of("gpt2_124m"):
            for question in (claim.measure, claim.bound):
                with contextlib.suppress(ZeroDivisionError):
                    question(lambda contestant, key="seconds": asked.add(contestant) or 1.0)
        self.assertEqual(asked, {name for name, contestant in contestants.ALL.items() if not contestant.extra})


if __name__ == "__main__":
    unittest.main()
