#!/usr/bin/env python3
"""Draws the pictures of the manuals into this folder.

    tools/manual/pictures/draw.py           # from plans.json and the table of tests/house_test.py
    tools/manual/pictures/draw.py --plan    # first plans the jobs of the pictures anew, by .out/bin/tools/plan

tests/house_test.py fails if a picture is not what this program draws. run.svg is drawn by tools/plot_run.
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
import shards  # noqa: E402
import steps  # noqa: E402


def drawings(may_include):
    """Returns the text of each picture by its name. `may_include` is `packages()` of tests/house_test.py."""
    data = plans.read()
    return {"pipeline.svg": str(pipeline.draw(data["quickstart"])), "step.svg": str(steps.draw(data["steps"])),
            "shards.svg": str(shards.draw(data["group"])), "memory.svg": str(memory.draw(data["memory"])),
            "groups.svg": str(groups.draw(may_include))}


def main(words):
    if words not in ([], ["--plan"]):
        print(__doc__, file=sys.stderr)
        return 2
    if words:
        plans.measure()
    sys.path.insert(0, os.path.join(plans.ROOT, "tests"))
    import house_test  # pylint: disable=import-outside-toplevel
    for name, text in drawings(house_test.packages()).items():
        with open(os.path.join(_FOLDER, name), "w", encoding="utf-8") as file:
            file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
