#!/usr/bin/env python3
"""The table of how long each test takes, from which tests/house_test.py knows what the daily run costs.

usage: test_times.py write TABLE EVENTS    writes the table of a run (`bazel test --build_event_json_file=EVENTS`)
       test_times.py check TABLE EVENTS    prints the tests of a run that the table lacks; if any, ends with 1
       test_times.py actions PROFILE       prints what a run did, and for how many seconds, all cores together (PROFILE:
                                           command.profile.gz in `bazel info output_base`)

The seconds of a test are those of all its shards. Processors differ by a factor of three, so the table also says how
long this machine takes for a yardstick: compiling headers.
"""

import collections
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

# What the yardstick compiles. It never changes, so that tables of different days compare.
_YARDSTICK = "".join(f"#include <{name}>\n" for name in (
    "algorithm", "filesystem", "functional", "map", "memory", "random", "string", "thread", "vector",
    "absl/status/statusor.h", "absl/strings/str_format.h"))
_DAILY, _ALL_ONLY = "daily", "all_only"


def read_table(text):
    """Returns the seconds of the yardstick, and {label: (seconds, whether the test runs daily)}."""
    yardstick, times = None, {}
    for line in text.splitlines():
        words = line.split()
        if not words or words[0] == "#":
            continue
        if words[0] == "yardstick":
            yardstick = float(words[1])
        else:
            label, seconds, when = words
            times[label] = (float(seconds), when == _DAILY)
    return yardstick, times


def times_of(events):
    """Returns {label: (seconds, whether the test runs daily)} of the events of a run."""
    tags, times = {}, {}
    for event in events:
        ident = event.get("id", {})
        if "targetConfigured" in ident:
            tags[ident["targetConfigured"]["label"]] = event.get("configured", {}).get("tag", [])
        if "testSummary" in event:
            label = ident["testSummary"]["label"]
            seconds = int(event["testSummary"].get("totalRunDurationMillis", 0)) / 1000
            times[label] = (seconds, _ALL_ONLY not in tags.get(label, []))
    return times


def _read_events(path):
    """Returns the events of a run; none if Bazel wrote none, of which count_tests.py complains."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def yardstick_seconds(times=5):
    """Returns the median of some measurements."""
    def once(header):
        begin = time.monotonic()
        subprocess.run(["g++", "-std=c++20", "-O2", "-x", "c++-header", "-o", header + ".gch", header], check=True)
        return time.monotonic() - begin

    with tempfile.TemporaryDirectory() as folder:
        header = os.path.join(folder, "yardstick.h")
        with open(header, "w", encoding="utf-8") as out:
            out.write(_YARDSTICK)
        return statistics.median(once(header) for _ in range(times))


def _processor():
    fields = {}
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    return "{model name}, family {cpu family} model {model}".format_map(fields)


def write(table, events):
    times = times_of(_read_events(events))
    with open(table, "w", encoding="utf-8") as out:
        out.write(f"# Seconds of each test, all shards together, on an {_processor()}, {os.cpu_count()} cores.\n"
                  "# tools/test --all --write_times writes this table. tests/house_test.py adds up the daily ones.\n"
                  f"yardstick {yardstick_seconds():.2f}\n")
        for label, (seconds, daily) in sorted(times.items()):
            out.write(f"{label} {seconds:.1f} {_DAILY if daily else _ALL_ONLY}\n")
    return 0


def check(table, events):
    with open(table, encoding="utf-8") as file:
        _, known = read_table(file.read())
    missing = sorted(set(times_of(_read_events(events))) - set(known))
    for label in missing:
        print(f"NOT IN {table}: {label}; add a line with its seconds, or run tools/test --all --write_times")
    return 1 if missing else 0


def actions(profile):
    counts, seconds = collections.Counter(), collections.Counter()
    with gzip.open(profile, "rt", encoding="utf-8") as text:
        for event in json.load(text)["traceEvents"]:
            if event.get("cat") == "action processing":
                kind = event["name"].split()[0]
                counts[kind] += 1
                seconds[kind] += event["dur"] / 1e6
    for kind, taken in seconds.most_common():
        print(f"{kind:14}{counts[kind]:6}{taken:8.0f} s")
    return 0


def main(arguments):
    modes = {("write", 3): write, ("check", 3): check, ("actions", 2): actions}
    mode = modes.get((arguments[0] if arguments else "", len(arguments)))
    if mode is None:
        print(__doc__, file=sys.stderr)
        return 2
    return mode(*arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
