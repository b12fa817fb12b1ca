#!/usr/bin/env python3
"""Draws the pictures of the manuals into this folder.

    tools/manual/pictures/draw.py                   # from plans.json, run.json and the table of tests/house_test.py
    tools/manual/pictures/draw.py --plan            # first plans the jobs of the pictures, by .out/bin/tools/plan
    tools/manual/pictures/draw.py runs/quickstart   # first takes what run.json has from this run, of tools/quickstart

tests/house_test.py fails if a picture is not what this program draws.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, _FOLDER)

import groups  # noqa: E402
import memory  # noqa: E402
import pipeline  # noqa: E402
import plans  # noqa: E402
import runs  # noqa: E402
import shards  # noqa: E402
import steps  # noqa: E402


def drawings(may_include):
    """Returns the text of each picture by its name. `may_include` is `packages()` of tests/house_test.py."""
    data = plans.read()
    return {"pipeline.svg": str(pipeline.draw(data["quickstart"])), "step.svg": str(steps.draw(data["steps"])),
            "shards.svg": str(shards.draw(data["group"])), "memory.svg": str(memory.draw(data["memory"])),
            "groups.svg": str(groups.draw(may_include)), "run.svg": runs.draw()}


def main(words):
    if len(words) > 1 or words and words[0] != "--plan" and not os.path.isdir(words[0]):
        print(__doc__, file=sys.stderr)
        return 2
    if words == ["--plan"]:
        plans.measure()
    elif words:
        runs.keep(words[0])
    sys.path.insert(0, os.path.join(plans.ROOT, "tests"))
    import house_test  # pylint: disable=import-outside-toplevel
    for name, text in drawings(house_test.packages()).items():
        with open(os.path.join(_FOLDER, name), "w", encoding="utf-8") as file:
            file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
