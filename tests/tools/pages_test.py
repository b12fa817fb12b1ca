#!/usr/bin/env python3
"""Tests that every command of README.md, and of the pages under tools/ and engine/, works as it stands.

By default checks each command's flags against the --help of its program. With the argument `run`, runs the commands of
each page in its order, in a folder that looks like a checkout after a build: small texts, jobs and models stand where
the pages say TEXT, JOB and runs/tuned. tests/tools/pages.py lists what no test runs, with the reason.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.abspath("tests/tools"))

import pages  # noqa: E402

_TEXT = "The quick brown fox jumps over the lazy dog, and number {0} of the dogs looks up at the {0} birds.\n"
_JOB = """
name: "job"
model { decoder { family: LLAMA width: 16 layers: 1 heads: 2 } }
data { path: "TEXT" format: TEXT }
batch { global_batch: 4 sequence_length: 16 }
sharding { ranks: 4 }
lr_schedule { steps: 3 }
"""
_SMALLER = [(r"width: \d+", "width: 24"),
            (r"layers: \d+", "layers: 1 max_positions: 4096"), (r"heads: \d+", "heads: 2"),
            (r"steps: 800\n  warmup_steps: 80", "steps: 20\n  warmup_steps: 2")]
# Acts as `bazel run -c opt //tools:PROGRAM -- ARGUMENT...`.
_BAZEL = """#!/bin/bash
[[ $1 $2 $3 =~ ^"run -c opt //tools:"(.*) && $4 == -- ]] || exit 64
exec "${BASH_REMATCH[1]}" "${@:5}"
"""


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Sandbox:
    """A folder that looks like a checkout with built programs, and with the runs that the pages speak of."""

    def __init__(self, root):
        self.root = root
        for name in pages.BUILT:
            for folder in ("bin", ".out/bin/tools"):
                os.makedirs(self.path(folder), exist_ok=True)
                os.symlink(os.path.abspath("tools/" + name), self.path(f"{folder}/{name}"))
        self.write("bin/bazel", _BAZEL)
        os.chmod(self.path("bin/bazel"), 0o755)
        for name in ("jobs", "examples", *pages.SCRIPTS):
            copy = shutil.copytree if os.path.isdir("tools/" + name) else shutil.copy
            os.makedirs(os.path.dirname(self.path("tools/" + name)), exist_ok=True)
            copy(os.path.abspath("tools/" + name), self.path("tools/" + name))
        smaller = read("tools/jobs/quickstart.textproto")
        for pattern, replacement in _SMALLER:
            smaller = re.sub(pattern, replacement, smaller)
        os.remove(self.path("tools/jobs/quickstart.textproto"))
        self.write("tools/jobs/quickstart.textproto", smaller)
        self.write("JOB", _JOB)
        for name, lines in (("TEXT", 300), ("DATA/a.txt", 300), ("texts/a.txt", 3)):
            self.write(name, "".join(_TEXT.format(number) for number in range(lines)))
        self.make_runs()

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def run(self, command):
        """Runs a command and returns its exit code and what it said."""
        environment = {**os.environ, "PATH": self.path("bin") + ":" + os.environ["PATH"], "HOME": self.root,
                       "BUILD_WORKING_DIRECTORY": self.root, "XDG_CACHE_HOME": self.path("caches")}
        ended = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=self.root, env=environment, timeout=300,
                               stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout[-3000:] + ended.stderr

    def must(self, command):
        code, said = self.run(command)
        if code != 0:
            raise AssertionError(f"{command}: {code}\n{said}")

    def make_runs(self):
        """Does what comes before the pages: trains as tools/quickstart, and under other names, and calibrates."""
        self.must("tokenize --train --vocabulary=300 --in=TEXT --out=runs/quickstart_vocabulary")
        self.must("train --job=tools/jobs/quickstart.textproto --set data.path=TEXT --set telemetry.evaluate_every=0 "
                  "--set data.tokenizer=runs/quickstart_vocabulary")
        self.must(".out/bin/tools/export --run=runs/quickstart --out=Qwen2.5-0.5B")
        self.must("cp tools/examples/chats/chat_template.jinja Qwen2.5-0.5B/")
        self.must("tools/examples/chats/make_chats.py --dialogues=50 > test.jsonl")
        tune = ("train --job=tools/examples/chats/tune.textproto --set model.hf_folder=Qwen2.5-0.5B "
                "--set data.path=test.jsonl --set lr_schedule.epochs=2 --set lr_schedule.warmup_steps=1 ")
        self.must(tune + "--set telemetry.evaluate_every=2 --set checkpoint.keep_best=true")
        self.must(tune + "--set name=adapted --set model.adapter.rank=4")
        for name in ("a", "b"):
            self.must(f"train --job=JOB --set name={name}")
        self.must("calibrate --seconds=1")

    def make_room(self, command):
        """Removes what a command is about to write, but for what it goes on with."""
        for out in re.findall(r"--out[= ](\S+)", command):
            shutil.rmtree(self.path(out), ignore_errors=True)
        if pages.program_and_flags(command)[0] in ("train", "launch") and not re.search("--resume|--verify", command):
            job = re.search(r"--job=(\S+)", command).group(1).replace("$PWD/", "")
            name = re.search(r"--set name=(\w+)", command) or re.search(r'name: "(\w+)"', read(self.path(job)))
            shutil.rmtree(self.path("runs/" + name.group(1)), ignore_errors=True)


class PagesTest(unittest.TestCase):
    def test_flags_are_those_of_the_help(self):
        helps = {}
        for page in pages.PAGES:
            for command in pages.commands(read(page)) + pages.inline_commands(read(page)):
                name, flags = pages.program_and_flags(command)
                if name not in [*pages.BUILT, *pages.SCRIPTS]:
                    continue
                if name not in helps:
                    helps[name] = subprocess.run([os.path.abspath("tools/" + name), "--help"], capture_output=True,
                                                 text=True, timeout=60, check=True).stdout
                for flag in flags:
                    self.assertRegex(helps[name], rf"--{flag}\b", f"{page}: {command}")
        self.assertGreaterEqual(len(helps), 10)

    def test_pages_are_short(self):
        lines = {page: read(page).count("\n") for page in pages.PAGES}
        self.assertFalse([page for page in lines if lines[page] >= 250],
                         "divide pages of 250 lines and more by their subjects")
        self.assertLessEqual(lines["README.md"], 120)

    def test_what_is_not_run_is_on_the_pages(self):
        shown = [command for page in pages.PAGES
                 for command in pages.commands(read(page)) + pages.inline_commands(read(page))]
        self.assertGreater(len([command for command in shown if pages.why_not_run(command) is None]), 60)
        for pattern, _ in pages.NOT_RUN:
            self.assertTrue(any(re.match(pattern, command) for command in shown), pattern)

    def test_a_line_that_is_no_command_is_noticed(self):
        page = "Text:\n\n    tools/plot_run runs/a \\\n        --out b.svg  # a comment\n    plam --job=JOB\n"
        with self.assertRaisesRegex(ValueError, "plam --job=JOB"):
            pages.commands(page)
        self.assertEqual(pages.commands(page.replace("plam", "plan")),
                         ["tools/plot_run runs/a \\\n--out b.svg  # a comment", "plan --job=JOB"])


class PagesRunTest(unittest.TestCase):
    def test_commands_run_as_they_stand(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            first = Sandbox(os.path.join(folder, "first"))
            for page in pages.PAGES:
                text = read(page)
                found = [command for command in pages.commands(text) if pages.why_not_run(command) is None]
                if not found:
                    continue
                # Each page has a fresh copy at the same path, because runs record where their models lie.
                kept = first.root + ".kept"
                shutil.copytree(first.root, kept, symlinks=True)
                for command in found:
                    with self.subTest(page=page, command=command):
                        first.make_room(command)
                        code, said = first.run(command)
                        self.assertEqual(code, 0, said)
                shutil.rmtree(first.root)
                os.rename(kept, first.root)


if __name__ == "__main__":
    runs = sys.argv[1:] == ["run"]
    unittest.main(argv=sys.argv[:1], defaultTest="PagesRunTest" if runs else "PagesTest", verbosity=2)
