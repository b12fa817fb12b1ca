#!/usr/bin/env python3
"""Tests the reader of job files."""

import sys
import unittest

sys.path.insert(0, "tools")

from bench.train import textproto  # noqa: E402


class TextprotoTest(unittest.TestCase):
    def test_fields_of_every_kind(self):
        job = textproto.parse('name: "a b"  # why\nmodel { decoder { width: 512 eps: 1e-6 family: GPT2 tied: true } }')
        self.assertEqual(job, {"name": "a b",
                               "model": {"decoder": {"width": 512, "eps": 1e-6, "family": "GPT2", "tied": True}}})
        textproto.set_path(job, "batch.global_batch", 3)
        self.assertEqual(job["batch"], {"global_batch": 3})

    def test_what_is_wrong_is_named_by_its_line(self):
        for text, wanted in (("a: 1\nb { c: 2", "line 2: the brace after b"),
                             ("a: 1 }", "line 1: a brace closes nothing"),
                             ("a: 1\na: 2", "line 2: a is set twice"), ("a:\n}", "line 1: a has no value"),
                             ("a: 1x", "'1x' is no number"), ("\n[", r"line 2: found '\['")):
            with self.assertRaisesRegex(ValueError, wanted):
                textproto.parse(text)


if __name__ == "__main__":
    unittest.main()
