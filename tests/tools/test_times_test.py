#!/usr/bin/env python3
"""Tests test_times.py: the table has every test of a run, and a test that is not in it is named."""

import contextlib
import gzip
import io
import json
import os
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, "tools/build_defs")
import test_times


def events(*tests):
    """Returns the events of tests (label, milliseconds, tags)."""
    found = []
    for label, milliseconds, tags in tests:
        found += [{"id": {"targetConfigured": {"label": label}}, "configured": {"tag": tags}},
                  {"id": {"testSummary": {"label": label}},
                   "testSummary": {"totalRunDurationMillis": str(milliseconds)}}]
    return found


class TestTimesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.table, self.events = (os.path.join(folder.name, name) for name in ("table", "events"))

    def run_main(self, mode, *tests):
        with open(self.events, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(event) + "\n" for event in events(*tests))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            return test_times.main([mode, self.table, self.events]), printed.getvalue()

    def test_what_is_written_is_read(self):
        with unittest.mock.patch("test_times.yardstick_seconds", return_value=2.5):
            code, _ = self.run_main("write", ("//tests/b:b_test", 1500, ["all_only"]), ("//tests/a:a_test", 250, []))
        self.assertEqual(code, 0)
        with open(self.table, encoding="utf-8") as file:
            yardstick, times = test_times.read_table(file.read())
        self.assertEqual(yardstick, 2.5)
        self.assertEqual(times, {"//tests/a:a_test": (0.2, True), "//tests/b:b_test": (1.5, False)})

    def test_a_test_that_is_not_in_the_table_is_named(self):
        with open(self.table, "w", encoding="utf-8") as out:
            out.write("yardstick 1\n//tests/a:a_test 0.2 daily\n//tests/gone:gone_test 1 daily\n")
        self.assertEqual(self.run_main("check", ("//tests/a:a_test", 9000, [])), (0, ""))
        code, said = self.run_main("check", ("//tests/a:a_test", 9000, []), ("//tests/b:b_test", 1, []))
        self.assertEqual(code, 1)
        self.assertRegex(said, "^NOT IN .*: //tests/b:b_test; ")

    def test_actions_of_a_profile_are_added_up(self):
        profile = os.path.join(os.path.dirname(self.table), "profile.gz")
        with gzip.open(profile, "wt", encoding="utf-8") as out:
            json.dump({"traceEvents": [
                {"cat": "action processing", "name": "Compiling a.cc", "dur": 1500000},
                {"cat": "action processing", "name": "Compiling b.cc", "dur": 2500000},
                {"cat": "other", "name": "Compiling b.cc", "dur": 1}, {"name": "thread_name"}]}, out)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.assertEqual(test_times.main(["actions", profile]), 0)
        self.assertEqual(printed.getvalue().split(), ["Compiling", "2", "4", "s"])

    def test_the_yardstick_compiles(self):
        self.assertGreater(test_times.yardstick_seconds(times=1), 0)


if __name__ == "__main__":
    unittest.main()
