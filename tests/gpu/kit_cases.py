"""Checks that the GPU kit's orders name test cases that gpu_tests has, and all laws: reads what
`gpu_tests --gtest_list_tests` prints."""

import fnmatch
import sys

sys.path.insert(0, "tools")

from gpu import orders  # noqa: E402


def main():
    suite, cases = "", []
    for line in sys.stdin:
        if line.startswith("  "):
            cases.append(suite + line.split()[0])
        else:
            suite = line.split()[0] if line.strip() else ""
    laws = [pattern for _, chosen, _ in orders.LAWS for pattern in chosen.split(":")]
    files = [pattern for chosen in orders.CASE_OF_FILE.values() for pattern in chosen.split(":")]
    unknown = [pattern for pattern in (*laws, *files) if not fnmatch.filter(cases, pattern)]
    left_out = [case for case in cases if "Laws." in case
                and not any(fnmatch.fnmatchcase(case, pattern) for pattern in laws)]
    if unknown or left_out:
        sys.exit(f"tools/gpu/orders.py names what gpu_tests has not, {unknown}, or no item has these laws: {left_out}")


main()
