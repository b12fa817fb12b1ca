#!/usr/bin/env python3
"""Tests the structure of the source tree: which package may include which, the width of lines, the words of the specs,
and what the tests of daily work take.

Reads the sources of the checkout that this file lies in, so that Bazel must not cache its result.
"""

import ast
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
sys.path[:0] = [os.path.join(_ROOT, folder) for folder in ("tools/build_defs", "tests/fuzz", "tools/manual/pictures")]

import corpus  # noqa: E402
import draw  # noqa: E402
import test_times  # noqa: E402

_SOURCES = (".h", ".cc", ".cu", ".cuh")
_TOPS = ("engine", "kernels", "sharding")  # The folders whose packages have an entry in _MAY_INCLUDE.
_OTHER_FILES = ("BUILD", ".bzl", ".md", ".txt")  # What these folders hold besides sources.
_COLUMNS, _LINES = 120, 500
_FUNCTION_LINES = 60
# A file of this repository, by its path from the root; placeholders such as tests/TARGET.txt have capital letters.
_NAMED_FILE = (r"(?<![\w/.@-])(?:engine|kernels|sharding|proto|tests|tools)/[a-z0-9_/.-]*(?<!\.pb)"
               r"\.(?:h|cc|cuh?|py|md|proto)\b(?![/-])")
_GENERATED = {"engine/plan/config/job_members.h", "tests/prefix.h", "tests/prefix_engine.h",
              "tests/prefix_optimized.h", "tools/build_defs/prefix.h", "tools/build_defs/prefix_o2.h"}

# Who may include whom, from the bottom to the top. In engine/, an entry is a group: it stands for all packages in that
# folder, which may include each other, but in no circle, and what is listed.
_KERNELS = {"kernels", "kernels/device", "kernels/ops"}
_ENGINE_BASE = _KERNELS | {"engine/strings"}
_MAY_INCLUDE = {
    "kernels/device": {"kernels"},  # The headers without ops: checks, integers, ranges.
    "kernels": {"kernels/device", "kernels/ops"},
    "kernels/ops": {"kernels"},  # The headers that no kind of op changes: tensors, Access, update rules.
    "kernels/reference": _KERNELS,
    "kernels/cpu": _KERNELS | {"kernels/reference"},
    "kernels/cuda": _KERNELS | {"kernels/reference"},
    "sharding": {"kernels", "sharding/comm"},
    "sharding/comm": {"kernels", "kernels/device"},
    "engine/strings": set(),
    "engine/compile": _ENGINE_BASE | {"sharding", "sharding/comm"},
    "engine/files": _ENGINE_BASE | {"engine/compile", "proto"},
    "engine/text": _ENGINE_BASE | {"engine/files"},
    "engine/plan": _ENGINE_BASE | {"engine/compile", "engine/files", "proto", "sharding"},
    "engine/run": _ENGINE_BASE | {"engine/compile", "engine/files", "engine/plan", "engine/text", "kernels/cpu",
                                  "kernels/cuda", "kernels/reference", "proto", "sharding", "sharding/comm"},
    "engine/cluster": _ENGINE_BASE | {"engine/files", "engine/plan", "engine/run", "engine/text", "proto",
                                      "sharding/comm"},
    # shale.h alone.
    "engine": {"engine/compile", "engine/files", "engine/plan", "engine/run", "engine/text", "kernels", "kernels/ops"},
    "engine/c": _ENGINE_BASE | {"engine/compile", "engine/files", "engine/plan", "engine/run", "engine/text"},
}
# Packages that stay strangers although their groups are not, so that each can be read and tested without the other.
_STRANGERS = {
    ("engine/run/runtime", "engine/run/backends"),  # It walks programs on whatever device it is given.
    ("engine/run/runtime", "kernels/cpu"),
    ("engine/run/runtime", "kernels/cuda"),
    ("engine/run/runtime", "kernels/reference"),
    ("engine/compile/step", "engine/compile/memory"),  # The one writes programs, the other plans any program.
    ("engine/compile/memory", "engine/compile/step"),
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
# What public headers include besides each other, Abseil and the standard library. Each completes a type that its one
# public header passes on, such as Job, without making its members public.
_COMPLETING = {
    "engine/api/backend.h": {"engine/run/runtime/backend.h"}, "engine/api/model.h": {"kernels/dtype.h"},
    "engine/api/checkpoint.h": {"engine/files/checkpoint/manifest.h"}, "engine/api/job.h": {"engine/plan/config/job.h"},
    "engine/api/graph_builder.h": {"engine/compile/graph/graph.h"},
    "engine/api/layers.h": {"kernels/ops/rope.h", "kernels/tensor.h"},
    "engine/api/plan.h": {"engine/plan/planner/job_plan.h", "engine/plan/planner/variant.h"},
}

# What the struct of a job, and the parser of jobs besides, include of what compiles programs and reads files.
_JOB_INCLUDES = {"engine/compile/model/config.h", "engine/compile/optimizer/optimizer.h",
                 "engine/compile/step/options_enums.h", "engine/files/data/data_enums.h"}
_PARSER_INCLUDES = {"engine/compile/model/adapter.h", "engine/files/checkpoint/safetensors.h",
                    "engine/files/hugging_face/config.h", "engine/files/io/file.h"}


def package(path):
    """Returns the folder of a source; of kernels/ and sharding/, the one below which more of the kind lie."""
    if path in _API_OWNERS:
        return _API_OWNERS[path]
    parts = path.split("/")[:-1]
    if parts and parts[0] in ("kernels", "sharding"):
        return "/".join(parts[:2])
    return "/".join(parts) if parts and parts[0] == "engine" else parts[0] if parts else ""


def group(name):
    """Returns what has an entry in _MAY_INCLUDE: of a package of the engine, its group."""
    return "/".join(name.split("/")[:2])


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
        elif other != own and (own, other) in _STRANGERS:
            wrong.append((f"{own} -> {other}", included))
        elif group(other) != group(own) and group(other) not in _MAY_INCLUDE[group(own)]:
            wrong.append((f"{own} -> {other}", included))
    return wrong


def reached(starts, follow):
    """Returns `starts`, and what is reached by going on to `follow(x)` from each x."""
    found, rest = set(), set(starts)
    while rest:
        found |= rest
        rest = {other for one in rest for other in follow(one)} - found
    return found


def levels(arrows):
    """Returns the packages of the keys of `arrows`, by the longest way down: those that include no other, those that
    include those alone, and so on. What is left are packages that include each other in a circle."""
    rest, found = {own: set(others) & set(arrows) - {own} for own, others in arrows.items()}, []
    while True:
        level = sorted(own for own, others in rest.items() if not others & set(rest))
        if not level:
            return found, sorted(rest)
        found.append(level)
        rest = {own: others for own, others in rest.items() if own not in level}


def packages():
    """Returns all packages, from the bottom to the top, each with what it may include. The picture of the manual is
    drawn from it."""
    found = {package(os.path.relpath(os.path.join(folder, name), _ROOT))
             for top in _TOPS for folder, _, names in os.walk(os.path.join(_ROOT, top))
             for name in names if name.endswith(_SOURCES)} - {"engine/api"}
    order = list(_MAY_INCLUDE)
    by_group = sorted(found, key=lambda name: (order.index(group(name)), name))
    return {name: _MAY_INCLUDE[group(name)] for name in by_group}


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


def function_lengths(text):
    """Returns the functions of a C++ source that clang-format has formatted, as pairs: the line where the signature
    begins, and how many lines there are from there to the closing brace. A lambda in a function is part of it."""
    # Comments, literals and lines of the preprocessor may hold braces. Blanks of the same length take their places.
    skipped = (r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
               r"|^[ \t]*#(?:\\\n|[^\n])*")
    text = re.sub(skipped, lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.S | re.M)
    functions, braces, head = [], [], 0  # Of a brace that opens a function, `braces` has the place of its signature.
    for mark in re.finditer("[{};]", text):
        opened = None
        if mark[0] == "{":
            signature = re.sub(r"^\s*(?:(?:public|private|protected):\s*)?", "", text[head:mark.start()])
            declared = re.sub(r"^(?:template <.*?>\s*\n)*\s*", "", signature, flags=re.S)
            opened = "part"  # Of a function, an initializer or an enum.
            if set(braces) <= {"scope"}:
                if re.match(r"(?:inline )?(?:namespace|class|struct|union|extern\s*$)", declared):
                    opened = "scope"
                elif re.search(r"\)(?:.*[^=])?\s$", declared, re.S) and declared.count("(") == declared.count(")"):
                    opened = mark.start() - len(signature)
            braces.append(opened)
        elif mark[0] == "}":
            opened = braces.pop()
            if isinstance(opened, int):
                lines = text.count("\n", opened, mark.start()) + 1
                functions.append((text.count("\n", 0, opened) + 1, lines))
        if set(braces) <= {"scope"} and opened != "part":
            head = mark.end()
    return functions


def python_function_lengths(text):
    """Returns the same of a Python source, from the line of `def` on."""
    return [(node.lineno, node.end_lineno - node.lineno + 1) for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


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


def defined_types(text):
    """Returns the types that a header defines in namespaces, as full names. Types inside of others are left out."""
    types, space = [], ""
    for line in text.split("\n"):
        opened = re.match(r"namespace ([\w:]+) {", line)
        space = opened[1] if opened else space
        found = re.match(r"(?:struct|class|enum class|enum) (\w+)(?: final)?(?: :.*)? {|using (\w+) =", line)
        types += [f"{space}::{found[1] or found[2]}"] if found else []
    return types


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

    def arrows(self):
        """Returns the packages, each with those that it includes."""
        exists, found = set(self.files).__contains__, collections.defaultdict(set)
        for path in self.files:
            if path.endswith(_SOURCES) and path.split("/")[0] in _TOPS:
                found[package(path)] |= {package(file) for file in included_files(path, self.read(path), exists)}
        return found

    def test_arrows_point_down(self):
        wrong = collections.defaultdict(list)
        exists = set(self.files).__contains__
        for path in self.files:
            if not path.endswith(_SOURCES) or path.split("/")[0] not in _TOPS:
                continue
            self.assertIn(group(package(path)), _MAY_INCLUDE, f"{path}: say in tests/house_test.py what it may include")
            for arrow, included in wrong_includes(path, self.read(path), exists):
                wrong[arrow].append(f"{path} includes {included}")
        self.assertFalse(wrong, "\n".join(f"{arrow}: {', '.join(where)}" for arrow, where in wrong.items()))

    def test_a_name_of_a_type_has_one_definition(self):
        places = collections.defaultdict(list)
        for path in self.files:
            if path.endswith((".h", ".cuh")) and path.split("/")[0] in _TOPS:
                for name in defined_types(self.read(path)):
                    places[name].append(path)
        self.assertGreater(len(places), 500)
        self.assertFalse({name: paths for name, paths in places.items() if len(paths) > 1},
                         "the linker takes types of equal names in one namespace for one: rename one of them")
        text = ("namespace a {\nclass C;\nclass D : public C {\n  struct E {};\n};\n}\nnamespace a::b {\n"
                "enum class F : int { kG };\nusing H = int;\ntemplate <>\nstruct I<int> {};\n")
        self.assertEqual(defined_types(text), ["a::D", "a::b::F", "a::b::H"])

    def test_no_package_includes_itself_by_way_of_others(self):
        arrows = {own: others for own, others in self.arrows().items() if own.startswith("engine/")}
        self.assertEqual(levels(arrows)[1], [])
        self.assertEqual(levels({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"d", "x"}}), ([["d"]], ["a", "b", "c"]))

    # Programs parse jobs of strangers, and plan them, without what runs a job. So Job lies low: everything includes it.
    def test_parsing_a_job_depends_on_little(self):
        files = set(self.files)

        def includes(path):
            return included_files(path, self.read(path), files.__contains__) if path in files else []

        def beyond(starts):
            return {path for path in reached(starts, includes) if path.startswith(("engine/compile/", "engine/files/"))}

        parser = {path for path in files if path.startswith("engine/plan/config/") and path.endswith(_SOURCES)}
        parser.remove("engine/plan/config/job_files.cc")  # Reads what a job names.
        self.assertEqual(beyond(["engine/plan/config/job.h"]), _JOB_INCLUDES)
        self.assertEqual(beyond(parser), _JOB_INCLUDES | _PARSER_INCLUDES)
        below = reached(["engine/plan/config"], self.arrows().__getitem__) - {"engine/plan/config"}
        self.assertEqual({group(name) for name in below if name.startswith("engine/")},
                         {"engine/compile", "engine/files", "engine/strings"})
        self.assertFalse(below & {"engine/compile/memory", "kernels/cpu", "kernels/cuda", "kernels/reference"})

    def test_public_headers_include_little_else(self):
        exists = set(self.files).__contains__
        headers = [path for path in self.files if path.startswith("engine/api/") and path.endswith(".h")]
        self.assertLess(len(headers), 20)
        self.assertEqual(sorted(_API_OWNERS), headers, "a public header belongs to the library that defines it")
        included = {path: set(included_files(path, self.read(path), exists)) - set(headers) for path in headers}
        self.assertEqual({path: names for path, names in included.items() if names}, _COMPLETING)

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

    def test_files_that_texts_name_are_there(self):
        missing = [f"{path} names {name}" for path in self.files
                   if not path.startswith(("tests/house_test", "tests/fuzz/corpus/", "tools/bench/results/"))
                   and "/golden/" not in path and "testdata/" not in path
                   for name in sorted(set(re.findall(_NAMED_FILE, self.read(path))) - set(self.files) - _GENERATED)]
        self.assertFalse(missing, "\n".join(missing))
        text = "see engine/a/b_c.h and (tools/x.py), not proto/y.pb.h, tests/TARGET.txt or x/engine/d.h"
        self.assertEqual(re.findall(_NAMED_FILE, text), ["engine/a/b_c.h", "tools/x.py"])

    def test_no_spelling_hides_an_include(self):
        exists = {"engine/compile/step/emit.h", "engine/compile/memory/plan.h", "kernels/cuda/cudnn/x.h"}.__contains__
        for line in ('#include "engine/compile/memory/plan.h"', '#include  "engine/compile/memory/plan.h"',
                     '# include "engine/compile/memory/plan.h"', '#include"engine/compile/memory/plan.h"',
                     '  #\tinclude <engine/compile/memory/plan.h>', '#include "./engine//compile/memory/plan.h"',
                     '#include "../memory/plan.h"', '#include "engine/compile/step/../memory/plan.h"'):
            self.assertEqual(len(wrong_includes("engine/compile/step/compile.cc", f"// x\n{line}\n", exists)), 1, line)
        for line in ('#include "emit.h"', '#include <memory>', '#include "nlohmann/json.hpp"', '#include <sys/stat.h>',
                     '#include "engine/compile/step/emit.h"', '#include "engine/api/graph_builder.h"',
                     '// See #include "engine/compile/memory/plan.h"'):
            self.assertEqual(wrong_includes("engine/compile/step/compile.cc", line, exists), [], line)
        # A name without the package is that of the file beside, which belongs to the package.
        self.assertEqual(included_files("engine/compile/memory/x.cc", '#include "plan.h"', exists),
                         ["engine/compile/memory/plan.h"])
        self.assertEqual(included_files("kernels/cuda/x.cc", '#include "cudnn/x.h"', exists),
                         ["kernels/cuda/cudnn/x.h"])

    def test_sources_have_endings_that_are_read(self):
        unknown = [path for path in self.files
                   if path.split("/")[0] in _TOPS and not path.endswith(_SOURCES + _OTHER_FILES)]
        self.assertFalse(unknown, f"name sources {', '.join(_SOURCES)}: other files are not checked for their includes")

    def test_lines_are_at_most_120_columns_wide_and_files_500_lines_long(self):
        kinds = _SOURCES + (".py", ".bzl", ".proto", ".textproto", "BUILD", ".sh", "tools/test", "tools/quickstart",
                            "tools/fuzz", "tools/install", "tools/bench_tokenize", "tools/launch", "tools/inspect_run",
                            ".slurm", ".yaml")
        wide, long = [], []
        for path in self.files:
            if not path.endswith(kinds) or "/corpus/" in path or "/golden/" in path or "testdata/" in path:
                continue
            # The contents of a raw string are data.
            text = re.sub(r'R"\((.*?)\)"', lambda raw: "\n" * raw.group(0).count("\n"), self.read(path), flags=re.S)
            if text.count("\n") > _LINES and not path.endswith(".textproto"):  # Profiles of machines are tables.
                long.append(path)
            for number, line in enumerate(text.split("\n"), 1):
                if len(line) > _COLUMNS:
                    wide.append(f"{path}:{number}: {len(line)} columns")
        self.assertFalse(wide, "\n".join(wide))
        self.assertFalse(long, f"divide files of more than {_LINES} lines by their subjects")

    # Regression: --help gave what stood in the next line to the value there. protoc ends such a comment with its line.
    def test_comments_behind_a_line_of_a_proto_end_in_it(self):
        wrong = []
        for path in self.files:
            for found in re.finditer(r"^( *)\S.*;  *//.*\n\1 +//", self.read(path) if path.endswith(".proto") else "",
                                     re.MULTILINE):
                wrong.append(f"{path}: write this comment above its line: {found.group(0)}")
        self.assertFalse(wrong, "\n".join(wrong))

    def test_functions_are_at_most_60_lines_long(self):
        lengths = {}
        for path in self.files:
            if path.endswith(_SOURCES):
                lengths[path] = function_lengths(self.read(path))
            elif path.endswith(".py") or self.read(path).startswith("#!/usr/bin/env python3"):
                lengths[path] = python_function_lengths(self.read(path))
        self.assertGreater(sum(map(len, lengths.values())), 10000)
        long = [f"{path}:{line}: {lines} lines" for path, functions in lengths.items()
                for line, lines in functions if lines > _FUNCTION_LINES]
        self.assertFalse(long, f"divide functions of more than {_FUNCTION_LINES} lines:\n" + "\n".join(long))
        text = ('#include "a"\nnamespace a {\n\n// A comment {\ntemplate <class T>\nclass B : C<T> {\n public:\n'
                "  explicit B(int d)\n      : d_{d}, e_({1}) {\n    if (d) {\n    }\n  }\n\n private:\n"
                '  int F() const { return "}"[0] + \'{\'; }\n  int d_{1};\n};\n\nconst int kG[] = {1, (2), 3};\n'
                "template <template <int> class H,\n          class I>\nvoid J(\n    int k) {\n  L([](int m) {\n  });\n"
                '}\nextern "C" {\nint N(void) {\n}\n}\nTEST(O, P) {\n  Q(R"(\n}\n)");\n}\n}  // namespace a\n')
        self.assertEqual(function_lengths(text), [(8, 5), (15, 1), (20, 7), (28, 2), (31, 5)])
        self.assertEqual(python_function_lengths("@a\ndef f():\n    def g(): pass\n\n    return (\n        1)\n"),
                         [(2, 5), (3, 1)])

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
        engine = re.findall(r'^    {"([^"]+)", ([\d.]+)e12,', self.read("engine/run/backends/gpu_peaks.cc"), re.M)
        table = re.search(r"_PEAK_TFLOPS = {(.*?)}", self.read("tools/gpu/plans.py"), re.S)[1]
        self.assertGreater(len(engine), 20)
        self.assertEqual(dict(re.findall(r'"([^"]+)": ([\d.]+)', table)), dict(engine))

    def test_pictures_of_the_manuals_are_as_their_script_draws_them(self):
        for name, text in draw.drawings(packages()).items():
            self.assertEqual(self.read(f"tools/manual/pictures/{name}"), text, f"{name}: run {draw.__file__}")

    def test_corpora_are_as_their_script_writes_them(self):
        texts = [path for path in self.files if path.startswith("tests/fuzz/corpus/")]
        targets = [path for path in self.files if re.fullmatch(r"tests/fuzz/\w+_fuzz\.cc", path)]
        self.assertEqual(sorted(path[len("tests/fuzz/corpus/"):-len(".txt")] for path in texts),
                         sorted(path[len("tests/fuzz/"):-len("_fuzz.cc")] for path in targets))
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
