#!/usr/bin/env python3
"""Tests which contestants take turns."""

import sys
import unittest

sys.path.insert(0, "tools")

from bench.train import contestants  # noqa: E402


class ContestantsTest(unittest.TestCase):
    def test_everybody_is_in_one_set_at_most(self):
        names = [name for together in contestants.SETS for name in together]
        self.assertEqual(len(names), len(set(names)))
        for most in (1, 2, 3, 7):
            parts = contestants.in_sets(list(contestants.ALL), most)
            self.assertLessEqual(max(map(len, parts)), most)
            self.assertEqual(sorted(name for some in parts for name in some), sorted(contestants.ALL))

    def test_twins_stay_together_longest(self):
        some = ["shale", "shale-before", "torch-best", "matmuls", "shale-2ranks", "shale-2ranks-before"]
        self.assertEqual(contestants.in_sets(some, 6), [some])
        self.assertEqual(contestants.in_sets(some, 4), [some[:4], some[4:]])
        self.assertEqual(contestants.in_sets(some, 2), [some[:2], ["torch-best"], ["matmuls"], some[4:]])
        self.assertEqual(contestants.in_sets(some, 1), [[name] for name in some])


if __name__ == "__main__":
    unittest.main()
