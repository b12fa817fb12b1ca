#!/usr/bin/env python3
"""Prints the targets that test what differs from a revision, a line each, for tools/test --changed.

usage: changed_tests.py REVISION

The tests of a folder lie in the folder of the same name in tests/. Of a folder without tests of its own, such as
kernels/ops, those of the folder above count. Whatever changed, the structure of the tree is checked.
"""

import os
import subprocess
import sys

# What tests a folder that has no counterpart in tests/.
_ELSEWHERE = {"proto": ("engine/plan/config", "engine/files/checkpoint"), "proto/job": ("engine/plan/config",),
              "tools/build_defs": ("tools",), "tools/jobs": ("tools",)}
_HOUSE = "//tests:house_test"


def folders_of(path):
    """Returns the folders below tests/ whose tests are those of a file."""
    folder = os.path.dirname(path)
    if folder in _ELSEWHERE:
        return _ELSEWHERE[folder]
    folder = folder[len("tests/"):] if folder.startswith("tests/") else folder
    while folder and not os.path.exists(os.path.join("tests", folder, "BUILD")):
        folder = os.path.dirname(folder)
    return (folder,) if folder else ()


def targets_of(paths):
    folders = sorted({folder for path in paths for folder in folders_of(path)})
    return [f"//tests/{folder}:all" for folder in folders] + [_HOUSE] if paths else []


def _lines_of_git(*arguments):
    result = subprocess.run(["git", *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        sys.exit(2)  # git has said why.
    return result.stdout.splitlines()


def main(revision):
    changed = _lines_of_git("diff", "--name-only", revision, "--") + _lines_of_git(
        "ls-files", "--others", "--exclude-standard")
    print("\n".join(targets_of(changed)))


if __name__ == "__main__":
    main(*sys.argv[1:])
