#!/usr/bin/env python3
"""Tests count_tests.py: it turns Bazel's events of a run into one line, and counts everything that went wrong."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, "tools/build_defs")
import count_tests

_XML = """<testsuites><testsuite>
  <testcase name="a" status="run" result="completed"/>
  <testcase name="b" status="run" result="completed"/>
  <testcase name="c" status="run" result="skipped"><skipped/></testcase>
  <testcase name="d" status="notrun" result="suppressed"/>%s
</testsuite></testsuites>"""


class CountTestsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.events = []

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def add_result(self, label, status, xml=None):
        outputs = []
        if xml is not None:
            path = self.path(label.strip("/") + " report.xml")
            with open(path, "w", encoding="utf-8") as out:
                out.write(xml)
            outputs = [{"name": "test.xml", "uri": "file://" + path.replace(" ", "%20")}]
        self.events += [
            {"id": {"targetCompleted": {"label": label}}, "completed": {"success": True}},
            {"id": {"testResult": {"label": label}}, "testResult": {"status": status, "testActionOutput": outputs}},
            {"id": {"testSummary": {"label": label}}},
        ]

    def run_main(self, exit_code, cut=""):
        with open(self.path("events"), "w", encoding="utf-8") as out:
            out.write("".join(json.dumps(e) + "\n" for e in self.events) + cut)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            returned = count_tests.main(["run=" + self.path("events") + "=" + str(exit_code)])
        return returned, printed.getvalue().splitlines()

    def test_cases_that_ran_are_counted(self):
        self.add_result("//x:a", "PASSED", _XML % "")
        returned, lines = self.run_main(0)
        self.assertEqual(lines, ["run: 2 passed, 0 failed, 1 skipped.", "2 passed, 0 failed"])
        self.assertEqual(returned, 0)

    def test_failed_cases_are_counted_and_named(self):
        self.add_result("//x:a", "FAILED", _XML % '<testcase name="e"><failure message="no"/></testcase>')
        returned, lines = self.run_main(3)
        self.assertEqual(lines[0], "FAILED (run): //x:a, 1 cases")
        self.assertEqual(lines[-1], "2 passed, 1 failed")
        self.assertEqual(returned, 1)

    def test_a_crash_after_good_cases_fails(self):
        self.add_result("//x:a", "TIMEOUT", _XML % "")
        returned, lines = self.run_main(3)
        self.assertEqual(lines[0], "TIMEOUT (run): //x:a")
        self.assertEqual(lines[-1], "2 passed, 1 failed")
        self.assertEqual(returned, 1)

    def test_a_test_without_a_report_is_one_case(self):
        self.add_result("//x:script", "PASSED")
        self.assertEqual(self.run_main(0)[1][-1], "1 passed, 0 failed")

    def test_a_report_without_cases_adds_none(self):
        # A shard that no test falls into, and a binary whose only test is disabled.
        self.add_result("//x:shard", "PASSED", '<testsuites tests="0"></testsuites>')
        self.add_result("//x:disabled", "PASSED", '<testsuites><testcase name="d" status="notrun"/></testsuites>')
        returned, lines = self.run_main(0)
        self.assertEqual(lines[-1], "0 passed, 0 failed")
        self.assertEqual(returned, 1)

    def test_a_report_that_was_cut_short_fails(self):
        self.add_result("//cut:test", "PASSED", "<testsuites><testsuite>")
        self.add_result("//empty:test", "PASSED", "")
        returned, lines = self.run_main(0)
        for label in ("//cut:test", "//empty:test"):
            self.assertIn(f"UNREADABLE REPORT (run): {label}; if the result is cached, delete the cache", lines)
        self.assertEqual(lines[-1], "0 passed, 2 failed")
        self.assertEqual(returned, 1)

    def test_events_may_hold_bytes_that_are_no_text(self):
        self.add_result("//x:a", "PASSED", _XML % "")
        with open(self.path("events"), "wb") as out:
            out.write(b'{"id": {"progress": {}}, "progress": {"stderr": "\xff\xfe"}}\n')
            out.write("".join(json.dumps(e) + "\n" for e in self.events).encode())
        counts = count_tests.count("run", count_tests._read_events(self.path("events")), 0)
        self.assertEqual((counts.passed, counts.failed), (2, 0))

    def test_what_did_not_build_or_run_fails(self):
        self.add_result("//x:a", "PASSED", _XML % "")
        self.events.append({"id": {"targetCompleted": {"label": "//x:b"}}, "completed": {}})
        self.events.append({"id": {"testSummary": {"label": "//x:c"}}, "testSummary": {"overallStatus": "NO_STATUS"}})
        returned, lines = self.run_main(1)
        self.assertIn("DID NOT BUILD (run): //x:b", lines)
        self.assertIn("DID NOT BUILD (run): //x:c", lines)
        self.assertEqual(lines[-1], "2 passed, 2 failed")
        self.assertEqual(returned, 1)

    def test_a_bazel_that_failed_silently_fails(self):
        self.add_result("//x:a", "PASSED", _XML % "")
        # With exit code 3, the result of the test that failed is missing from the events.
        for exit_code in (1, 3, 37):
            returned, lines = self.run_main(exit_code, cut='{"id": {"testRes')
            self.assertEqual(lines[0], f"FAILED (run): bazel exited with {exit_code}")
            self.assertEqual(lines[-1], "2 passed, 1 failed")
            self.assertEqual(returned, 1)

    def test_no_tests_at_all_is_no_success(self):
        returned, lines = self.run_main(4)
        self.assertEqual(lines[-1], "0 passed, 0 failed")
        self.assertEqual(returned, 1)


if __name__ == "__main__":
    unittest.main()
