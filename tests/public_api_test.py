#!/usr/bin/env python3
"""Tests that engine/public_api.txt lists the public declarations, so that none changes unnoticed, that the code of
pages is copied from files that tests build or run, and that other repositories see nothing but //engine:shale and
//engine:shale_processes.

Reads the sources of the checkout that this file lies in, so that Bazel must not cache its result.
"""

import difflib
import os
import re
import sys
import unittest

_ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path.insert(0, os.path.join(_ROOT, "tools/build_defs"))

import public_api  # pylint: disable=wrong-import-position


class PublicApiTest(unittest.TestCase):
    def test_the_list_is_what_the_headers_declare(self):
        path = "engine/public_api.txt"
        with open(os.path.join(_ROOT, path), encoding="utf-8") as file:
            listed = file.read()
        difference = difflib.unified_diff(listed.splitlines(), public_api.public_api(_ROOT).splitlines(), path,
                                          "the headers", lineterm="", n=0)
        changed = "\n".join(difference)
        self.assertFalse(changed, f"a public declaration changed. If that is meant, run\n"
                                  f"  tools/build_defs/public_api.py > {path}\n{changed}")
        self.assertLess(listed.count("\n"), 400, "the public interface should stay small: what can be private?")

    def test_declarations_are_found(self):
        text = """
#pragma once
#define SHALE_MACRO(x) \\
  f(x);
namespace shale {
class Forward;
enum class Color : uint8_t { kRed, kBlue };  // { in a comment
// class Commented { int a; };
class A : public B {
 public:
  explicit A(int x = {3}) : x_(x) {}
  ~A();
  int x() const { return x_; }
  struct In { std::string s = "x"; };
  template <class T>
  static absl::StatusOr<T> Make(
      absl::Span<const T> all = {});
 private:
  friend class C;
  int x_;
};
inline constexpr int kFour = 4;
namespace internal { void Hidden(); }
int F(const A& a,
      std::vector<int> b);
}  // namespace shale
"""
        self.assertEqual(list(public_api.declarations(public_api.without_comments(text), "", None)), [
            "enum class Color : uint8_t {kRed, kBlue}",
            "class A : public B",
            "A: explicit A(int x = {3})",
            "A: int x() const",
            'A: struct In {std::string s = "x"}',
            "A: template <class T> static absl::StatusOr<T> Make(absl::Span<const T> all = {})",
            "inline constexpr int kFour = 4",
            "int F(const A& a, std::vector<int> b)",
        ])

    def test_the_pages_show_what_is_built(self):
        pieces = []
        for page in ("embed_cpp.md", "embed_c.md", "embed_python.md", "admission.md", "families.md"):
            with open(os.path.join(_ROOT, "tools/manual", page), encoding="utf-8") as file:
                pieces.append(re.findall(r"```\w+\n(.*?)```", file.read(), re.S))
        built = ""
        for name in ("workspace/WORKSPACE", "workspace/BUILD", "workspace/service.cc", "workspace/admit.cc",
                     "c/service.c", "c/verify.c", "c/CMakeLists.txt", "python/service.py", "python/checks.py",
                     "../../tools/examples/in_processes.cc", "../parity/save_text_part.py"):
            with open(os.path.join(_ROOT, "tests/embedding", name), encoding="utf-8") as file:
                built += file.read()
        self.assertEqual([len(of_page) for of_page in pieces], [5, 3, 3, 1, 1])
        for piece in sum(pieces, []):
            self.assertIn(piece, built, "a page differs from what is built")

    def test_only_two_targets_are_visible_to_other_repositories(self):
        visible = []
        for top in ("engine", "kernels", "proto", "sharding", "tests", "tools"):
            for folder, _, names in os.walk(os.path.join(_ROOT, top)):
                path = os.path.relpath(os.path.join(folder, "BUILD"), _ROOT)
                if "BUILD" not in names:
                    continue
                with open(os.path.join(_ROOT, path), encoding="utf-8") as file:
                    visible += [path] * len(re.findall("//visibility:public", file.read()))
        self.assertEqual(visible, ["engine/BUILD", "engine/BUILD"])


if __name__ == "__main__":
    unittest.main()
