"""Counts test cases in Bazel's build event files and prints "N passed, N failed" as the last line.

usage: count_tests.py NAME=EVENTS=EXIT_CODE...

Takes one argument for each run of `bazel test --build_event_json_file=EVENTS`: a name for the run, the file, and
Bazel's exit code. A test that crashed, timed out or did not build counts as one failed case. So does a run in which
Bazel failed without an event that says where. Exits with 0 only if at least one case passed and none failed.
"""

import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

# Exit codes with which Bazel reports no failure: success, and no tests found. With any other, such as 3 for failed
# tests, at least one failure must be found.
_GOOD_EXIT_CODES = (0, 4)


class Counts:
    def __init__(self):
        self.passed = 0
        self.failed = 0
        self.skipped = 0
        self.complaints = []


def _read_events(path):
    events = []
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    events.append(json.loads(line))
                except ValueError:
                    break  # Bazel was killed while it wrote.
    except OSError:
        pass
    return events


def _count_cases(outputs):
    """Returns (passed, failed, skipped, whether there is a report) from the test's own report, or None if the report is
    not valid XML."""
    passed = failed = skipped = 0
    found = False
    for output in outputs:
        if output.get("name") != "test.xml":
            continue
        path = urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
        try:
            cases = list(ElementTree.parse(path).getroot().iter("testcase"))
        except OSError:
            continue
        except ElementTree.ParseError:
            return None
        found = True
        for case in cases:
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
            elif case.find("skipped") is not None or case.get("result") == "skipped":
                skipped += 1
            elif case.get("status") != "notrun":
                passed += 1
    return passed, failed, skipped, found


def count(name, events, exit_code):
    counts = Counts()
    seen, missing = set(), set()
    for event in events:
        ident = event.get("id", {})
        if "targetCompleted" in ident and not event.get("completed", {}).get("success"):
            if event.get("aborted", {}).get("reason") != "SKIPPED":
                missing.add(ident["targetCompleted"]["label"])
        if "testSummary" in ident:
            missing.add(ident["testSummary"]["label"])
        result = event.get("testResult", {})
        if "testResult" not in ident or "status" not in result:
            continue
        label = ident["testResult"]["label"]
        seen.add(label)
        cases = _count_cases(result.get("testActionOutput", []))
        passed, failed, skipped, found = cases or (0, 0, 0, False)
        if cases is None and result["status"] in ("PASSED", "FLAKY"):
            failed = 1  # How many cases ran is unknown. A full disk leads to this.
            counts.complaints.append(f"UNREADABLE REPORT ({name}): {label}; if the result is cached, delete the cache")
        elif result["status"] not in ("PASSED", "FLAKY") and failed == 0:
            failed = 1  # It crashed or ran out of time.
            counts.complaints.append(f"{result['status']} ({name}): {label}")
        elif failed:
            counts.complaints.append(f"FAILED ({name}): {label}, {failed} cases")
        elif not found:
            passed = 1  # A script, which reports no cases.
        counts.passed += passed
        counts.failed += failed
        counts.skipped += skipped
    for label in sorted(missing - seen):
        counts.failed += 1
        counts.complaints.append(f"DID NOT BUILD ({name}): {label}")
    if exit_code not in _GOOD_EXIT_CODES and counts.failed == 0:
        counts.failed = 1
        counts.complaints.append(f"FAILED ({name}): bazel exited with {exit_code}")
    return counts


def main(arguments):
    passed = failed = 0
    for argument in arguments:
        name, path, exit_code = argument.rsplit("=", 2)
        counts = count(name, _read_events(path), int(exit_code))
        for complaint in counts.complaints:
            print(complaint)
        print(f"{name}: {counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped.")
        passed += counts.passed
        failed += counts.failed
    print(f"{passed} passed, {failed} failed")
    return 0 if passed > 0 and failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
