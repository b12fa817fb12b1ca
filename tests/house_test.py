#!/usr/bin/env python3
"""Tests the structure of the source tree: which package may include which, the width of lines, the words of the specs,
and what the tests of daily work take.

Reads the sources of the checkout that this file lies in, so that Bazel must not cache its result.
"""

import collections
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
import unittest

_ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(_ROOT, "tools/build_defs"))

import test_times  # noqa: E402

sys.path[:0] = [os.path.join(_ROOT, "tests/fuzz"), os.path.join(_ROOT, "tools/manual/pictures")]

import corpus  # noqa: E402
import draw  # noqa: E402

_SOURCES = (".h", ".cc", ".cu", ".cuh")
_TOPS = ("engine", "kernels", "sharding")  # The folders whose packages have an entry in _MAY_INCLUDE.
_OTHER_FILES = ("BUILD", ".bzl", ".md", ".txt")  # What these folders hold besides sources.
_COLUMNS = 120

# Who may include whom. A package may include itself, what is listed here, and, from engine/ on, all of kernels/,
# kernels/device/ and kernels/ops/. engine/manual/packages.md has the same as a picture.
_ENGINE_BASE = {"engine/text", "kernels", "kernels/device", "kernels/ops"}
_MAY_INCLUDE = {
    "kernels/device": {"kernels"},  # The headers without ops: checks, integers.
    "kernels": {"kernels/device", "kernels/ops"},
    "kernels/ops": {"kernels"},  # The headers that no kind of op changes: tensors, Access, update rules.
    "kernels/reference": {"kernels", "kernels/device", "kernels/ops"},
    "kernels/cpu": {"kernels", "kernels/device", "kernels/ops", "kernels/reference"},
    "kernels/cuda": {"kernels", "kernels/device", "kernels/ops", "kernels/reference"},
    "sharding": {"kernels", "sharding/comm"},
    "sharding/comm": {"kernels", "kernels/device"},
    "engine/text": set(),
    "engine/io": _ENGINE_BASE,
    "engine/events": _ENGINE_BASE | {"engine/io", "proto"},
    "engine/optimizer": _ENGINE_BASE,
    "engine/graph": _ENGINE_BASE,
    "engine/model": _ENGINE_BASE | {"engine/graph"},
    "engine/program": _ENGINE_BASE | {"sharding", "sharding/comm"},
    "engine/step": _ENGINE_BASE | {"engine/graph", "engine/optimizer", "engine/program", "sharding"},
    "engine/memory": _ENGINE_BASE | {"engine/program"},
    "engine/runtime": _ENGINE_BASE | {"engine/memory", "engine/program", "kernels/cpu", "kernels/cuda",
                                      "kernels/reference", "sharding", "sharding/comm"},
    "engine/checkpoint": _ENGINE_BASE | {"engine/io", "proto"},
    "engine/data": _ENGINE_BASE | {"engine/io"},
    "engine/launch": _ENGINE_BASE | {"engine/io", "proto", "sharding/comm"},
    "engine/hugging_face": _ENGINE_BASE | {"engine/checkpoint", "engine/io", "engine/model"},
    "engine/tokenize": _ENGINE_BASE | {"engine/data", "engine/hugging_face", "engine/io"},
    "engine/config": _ENGINE_BASE | {"engine/data", "engine/graph", "engine/hugging_face", "engine/model",
                                     "engine/optimizer", "engine/step", "proto"},
    "engine/backends": _ENGINE_BASE | {"engine/config", "engine/io", "engine/runtime", "kernels/cpu", "kernels/cuda",
                                       "sharding/comm"},
    "engine/state": _ENGINE_BASE | {"engine/checkpoint", "engine/graph", "engine/io", "engine/memory", "engine/program",
                                    "engine/runtime", "engine/step", "kernels/cpu", "sharding"},
    "engine/planner": _ENGINE_BASE | {"engine/checkpoint", "engine/config", "engine/graph", "engine/memory",
                                      "engine/model", "engine/optimizer", "engine/program", "engine/step", "sharding"},
    "engine/report": _ENGINE_BASE | {"engine/config", "engine/hugging_face", "engine/memory", "engine/planner",
                                     "engine/program", "engine/step", "proto"},
    "engine/train": _ENGINE_BASE | {"engine/checkpoint", "engine/config", "engine/data", "engine/events",
                                    "engine/generate", "engine/graph", "engine/hugging_face", "engine/io",
                                    "engine/memory", "engine/optimizer", "engine/planner", "engine/program",
                                    "engine/runtime", "engine/state", "engine/step", "engine/tokenize",
                                    "sharding", "sharding/comm"},
    "engine/evaluate": _ENGINE_BASE | {"engine/backends", "engine/checkpoint", "engine/config", "engine/generate",
                                       "engine/graph", "engine/io", "engine/tokenize", "engine/train"},
    "engine/processes": _ENGINE_BASE | {"engine/backends", "engine/checkpoint", "engine/config", "engine/events",
                                        "engine/io", "engine/launch", "engine/planner", "engine/report",
                                        "engine/runtime", "engine/state", "engine/tokenize", "engine/train",
                                        "sharding/comm"},
    "engine/verify": _ENGINE_BASE | {"engine/config", "engine/data", "engine/graph", "engine/model", "engine/planner",
                                     "engine/runtime", "engine/train"},
    "engine": _ENGINE_BASE | {"engine/backends", "engine/checkpoint", "engine/config", "engine/data", "engine/events",
                              "engine/generate", "engine/graph", "engine/hugging_face", "engine/model",
                              "engine/planner", "engine/report", "engine/train", "engine/verify"},  # shale.h alone.
    "engine/c": _ENGINE_BASE | {"engine/backends", "engine/checkpoint", "engine/config", "engine/data", "engine/events",
                                "engine/generate", "engine/graph", "engine/hugging_face", "engine/memory",
                                "engine/model", "engine/planner", "engine/report", "engine/runtime", "engine/tokenize",
                                "engine/train", "engine/verify"},
    "engine/generate": _ENGINE_BASE | {"engine/backends", "engine/checkpoint", "engine/config", "engine/hugging_face",
                                       "engine/io", "engine/memory", "engine/planner", "engine/runtime",
                                       "engine/state", "engine/tokenize"},
}


def api_owners():
    """Returns the package of each public header (engine/api): that of the library whose BUILD names it."""
    owners = {}
    for folder, _, names in os.walk(os.path.join(_ROOT, "engine")):
        if "BUILD" in names:
            with open(os.path.join(folder, "BUILD"), encoding="utf-8") as file:
                for name in re.findall(r'"//engine/api:(\w+\.h)"', file.read()):
                    owners["engine/api/" + name] = os.path.relpath(folder, _ROOT)
    return owners


_API_OWNERS = api_owners()
# What public headers include besides each other, Abseil and the standard library: what completes a type that they pass
# on, such as Job, without making its members public.
_COMPLETING = {
    "engine/checkpoint/base_values.h", "engine/checkpoint/manifest.h", "engine/checkpoint/safetensors.h",
    "engine/checkpoint/shard_header.h", "engine/config/job.h", "engine/data/token_source.h",
    "engine/graph/frozen_weights.h", "engine/graph/graph.h", "engine/hugging_face/copied_files.h", "engine/io/file.h",
    "engine/io/file_system.h", "engine/memory/machine.h", "engine/model/adapter.h", "engine/model/config.h",
    "engine/planner/job_plan.h", "engine/planner/variant.h", "engine/runtime/backend.h", "engine/runtime/host_share.h",
    "engine/tokenize/text_progress.h", "kernels/tensor.h", "sharding/comm/control_plane.h", "sharding/comm/store.h",
}


def package(path):
    if path in _API_OWNERS:
        return _API_OWNERS[path]
    parts = path.split("/")[:-1]
    if parts and parts[0] in _TOPS:
        return "/".join(parts[:2])
    return parts[0] if parts else ""


def included_files(path, text, exists):
    """Returns the files of this repository that a source includes, by their paths from the root. Paths that lead
    through ".." are returned as they stand. `exists` says whether there is a file at a path."""
    found = []
    for quote, name in re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', text, re.M):
        beside = os.path.join(os.path.dirname(path), name)
        if ".." in name.split("/"):
            found.append(name)
        elif quote == '"' and exists(beside):  # The compiler looks there first.
            found.append(os.path.normpath(beside))
        elif os.path.normpath(name).split("/")[0] in _TOPS + ("proto", "tools", "tests"):
            found.append(os.path.normpath(name))
    return found


def wrong_includes(path, text, exists):
    """Returns what a source includes and may not, as pairs of an arrow and a file."""
    own = package(path)
    wrong = []
    for included in included_files(path, text, exists):
        other = package(included)
        if ".." in included.split("/"):
            wrong.append((f"{own} -> ..", included))
        elif other != own and other not in _MAY_INCLUDE[own]:
            wrong.append((f"{own} -> {other}", included))
    return wrong


def flat_continuations(text):
    """Returns the numbers of the lines of a Python source that begin inside a bracket, and there neither where its
    content begins nor at least four columns to the right of the line that opens it."""
    skipped = (tokenize.NL, tokenize.COMMENT, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    flat, open_brackets, row, indent = [], [], 0, 0
    for token, following in zip(tokens, tokens[1:]):
        if token.type in skipped:
            continue
        if token.start[0] > row and not token.line[:token.start[1]].strip():
            indent = token.start[1]
            if open_brackets and token.string not in ")]}":
                opened, content = open_brackets[-1]
                if indent < opened + 4 and indent != content:
                    flat.append(token.start[0])
        row = token.end[0]
        if token.type == tokenize.OP and token.string in "([{":
            open_brackets.append((indent, following.start[1]))
        elif token.type == tokenize.OP and token.string in ")]}":
            open_brackets.pop()
    return flat


def headings(text):
    """Returns the names by which links reach the headings of a page."""
    found = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```", "", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def broken_links(page, read):
    """Returns the links of a page that lead to no file, or to no heading of a page. `read` returns the text of a file,
    and None if there is none."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        path, _, heading = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        text = "" if re.match("[a-z]+:", target) else read(path)
        if text is None or (heading and path.endswith(".md") and heading not in headings(text)):
            broken.append(target)
    return broken


# What the tests of daily work may take together, in times of the yardstick of tools/build_defs/test_times.py.
_DAILY_BUDGET = 145


class HouseTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = []
        for top in ("engine", "sharding", "kernels", "proto", "tests", "tools"):
            for folder, _, names in os.walk(os.path.join(_ROOT, top)):
                cls.files += [os.path.relpath(os.path.join(folder, name), _ROOT) for name in names]
        cls.files = sorted(f for f in cls.files if "__pycache__" not in f) + ["README.md", ".bazelrc", "WORKSPACE"]

    def read(self, path):
        with open(os.path.join(_ROOT, path), encoding="utf-8", errors="replace") as text:
            return text.read()

    def test_arrows_point_down(self):
        wrong = collections.defaultdict(list)
        exists = set(self.files).__contains__
        for path in self.files:
            own = package(path)
            if not path.endswith(_SOURCES) or own in ("tests", "tools"):
                continue
            self.assertIn(own, _MAY_INCLUDE, f"{path}: say in tests/house_test.py what {own} may include")
            for arrow, included in wrong_includes(path, self.read(path), exists):
                wrong[arrow].append(f"{path} includes {included}")
        self.assertFalse(wrong, "\n".join(f"{arrow}: {', '.join(where)}" for arrow, where in wrong.items()))

    def test_public_headers_include_little_else(self):
        exists = set(self.files).__contains__
        headers = [path for path in self.files if path.startswith("engine/api/") and path.endswith(".h")]
        self.assertLess(len(headers), 20)
        self.assertEqual(sorted(_API_OWNERS), headers, "a public header belongs to the library that defines it")
        included = {name for path in headers for name in included_files(path, self.read(path), exists)}
        self.assertEqual(sorted(included - set(headers)), sorted(_COMPLETING))

    def test_examples_use_the_public_headers_alone(self):
        exists = set(self.files).__contains__
        wrong = [f"{path} includes {included}" for path in self.files
                 if path.startswith("tools/examples/") and path.endswith(_SOURCES)
                 for included in included_files(path, self.read(path), exists)
                 if included not in ("engine/shale.h", "engine/api/job_processes.h")
                 and not included.startswith("tools/examples/")]
        self.assertFalse(wrong, "\n".join(wrong))

    def test_links_of_pages_lead_somewhere(self):
        def read(path):
            return self.read(path) if os.path.isfile(os.path.join(_ROOT, path)) else \
                "" if os.path.isdir(os.path.join(_ROOT, path)) else None

        broken = {page: broken_links(page, read) for page in self.files if page.endswith(".md")}
        self.assertGreater(len(broken), 40)
        self.assertFalse({page: links for page, links in broken.items() if links})
        pages = {"a/b.md": "[a](#b) [c](d.md) [e](../f.md#g-h) [i](../f.md#j) [k](https://l)\n## I\n",
                 "f.md": "# G, h\n"}
        self.assertEqual(broken_links("a/b.md", pages.get), ["#b", "d.md", "../f.md#j"])

    def test_no_spelling_hides_an_include(self):
        exists = {"engine/step/emit.h", "engine/memory/plan.h", "kernels/cuda/cudnn/x.h"}.__contains__
        for line in ('#include "engine/memory/plan.h"', '#include  "engine/memory/plan.h"',
                     '# include "engine/memory/plan.h"', '#include"engine/memory/plan.h"',
                     '  #\tinclude <engine/memory/plan.h>', '#include "./engine//memory/plan.h"',
                     '#include "../memory/plan.h"', '#include "engine/step/../memory/plan.h"'):
            self.assertEqual(len(wrong_includes("engine/step/compile.cc", f"// x\n{line}\n", exists)), 1, line)
        for line in ('#include "emit.h"', '#include <memory>', '#include "nlohmann/json.hpp"', '#include <sys/stat.h>',
                     '#include "engine/step/emit.h"', '#include "engine/api/graph_builder.h"',
                     '// See #include "engine/memory/plan.h"'):
            self.assertEqual(wrong_includes("engine/step/compile.cc", line, exists), [], line)
        # A name without the package is that of the file beside, which belongs to the package.
        self.assertEqual(included_files("engine/memory/x.cc", '#include "plan.h"', exists), ["engine/memory/plan.h"])
        self.assertEqual(included_files("kernels/cuda/x.cc", '#include "cudnn/x.h"', exists),
                         ["kernels/cuda/cudnn/x.h"])

    def test_sources_have_endings_that_are_read(self):
        unknown = [path for path in self.files
                   if path.split("/")[0] in _TOPS and not path.endswith(_SOURCES + _OTHER_FILES)]
        self.assertFalse(unknown, f"name sources {', '.join(_SOURCES)}: other files are not checked for their includes")

    def test_lines_are_at_most_120_columns_wide(self):
        kinds = _SOURCES + (".py", ".bzl", ".proto", ".textproto", "BUILD", ".sh", "tools/test", "tools/quickstart",
                            "tools/fuzz", "tools/install", "tools/bench_tokenize", "tools/launch", "tools/inspect_run",
                            ".slurm", ".yaml")
        wide = []
        for path in self.files:
            if not path.endswith(kinds) or "/corpus/" in path or "/golden/" in path or "testdata/" in path:
                continue
            # The contents of a raw string are data.
            text = re.sub(r'R"\((.*?)\)"', lambda raw: "\n" * raw.group(0).count("\n"), self.read(path), flags=re.S)
            for number, line in enumerate(text.split("\n"), 1):
                if len(line) > _COLUMNS:
                    wide.append(f"{path}:{number}: {len(line)} columns")
        self.assertFalse(wide, "\n".join(wide))

    def test_python_inside_brackets_is_indented(self):
        wrong = []
        for path in self.files:
            text = self.read(path)
            if "testdata/" not in path and (path.endswith(".py") or text.startswith("#!/usr/bin/env python3")):
                wrong += [f"{path}:{number}" for number in flat_continuations(text)]
        self.assertFalse(wrong, "\n".join(wrong))
        self.assertEqual(flat_continuations("if a:\n    f(b,\n      c,\n    d)\n    g(\n    e,\n        h)\n"), [4, 6])
        self.assertEqual(flat_continuations("a = [\n    1,\n    {2:\n     3},\n]\nf(b,\n c)\n"), [7])

    def test_the_daily_tests_are_within_their_budget(self):
        yardstick, times = test_times.read_table(self.read("tests/seconds.txt"))
        daily = {label: seconds for label, (seconds, is_daily) in times.items() if is_daily}
        longest = sorted(daily, key=daily.get, reverse=True)[:10]
        self.assertLessEqual(
            sum(daily.values()) / yardstick, _DAILY_BUDGET,
            "make a test shorter, or move what an ordinary change does not break to tools/test --all (tag all_only). "
            "The longest: " + ", ".join(f"{label} {daily[label]} s" for label in longest))

    def test_kits_for_gpus_know_the_peaks_that_the_engine_knows(self):
        engine = re.findall(r'^    {"([^"]+)", ([\d.]+)e12,', self.read("engine/runtime/gpu_peaks.cc"), re.M)
        table = re.search(r"_PEAK_TFLOPS = {(.*?)}", self.read("tools/gpu/plans.py"), re.S)[1]
        self.assertGreater(len(engine), 20)
        self.assertEqual(dict(re.findall(r'"([^"]+)": ([\d.]+)', table)), dict(engine))

    def test_pictures_of_the_manuals_are_as_their_script_draws_them(self):
        for name, text in draw.drawings(_MAY_INCLUDE).items():
            self.assertEqual(self.read(f"tools/manual/pictures/{name}"), text, f"{name}: run {draw.__file__}")

    def test_corpora_are_as_their_script_writes_them(self):
        texts = [path for path in self.files if path.startswith("tests/fuzz/corpus/")]
        self.assertTrue(texts)
        for path in texts:
            text = self.read(path)
            self.assertEqual(corpus.text_of(corpus.inputs_of(text)), text, f"{path}: write it with {corpus.__file__}")
        inputs = {"empty": b"", "bytes": bytes(range(256)) + b"\n\n", "a.b+c-d_e": b'"\\' * 100}
        self.assertEqual(corpus.inputs_of(corpus.text_of(inputs)), inputs)

    def test_sources_are_as_clang_format_has_them(self):
        tool = shutil.which("clang-format-14") or shutil.which("clang-format")
        self.assertIsNotNone(tool, "clang-format is missing; tools/test installs the Debian package clang-format-14")
        sources = [path for path in self.files if path.endswith(_SOURCES) and "testdata/" not in path]
        result = subprocess.run([tool, "--dry-run", "--Werror", *sources], cwd=_ROOT, capture_output=True, text=True,
                                check=False)
        self.assertEqual(result.returncode, 0, "\n".join(result.stderr.splitlines()[:20]))


if __name__ == "__main__":
    unittest.main()
