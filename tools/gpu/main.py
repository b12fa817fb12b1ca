"""The main program of a kit's `run`."""

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time

from gpu import archive, calls, gpus, listing, machine, needs, orders, results, store
from gpu.kit import Kit

_ABOUT = """\
Tests and measures on the GPUs of this machine, in orders that are made for short visits: the most valuable item comes
first, and each item's result is on disk before the next begins. A call ends before an item that would not fit its
seconds, says what did not fit, and the next call of the same kit goes on. Results go to OUT: report.md is a page for
people, rates.json has rates of ops for programs, report.json has everything.
"""

_FOOTER = f"""\
orders: {", ".join(orders.ORDERS)}; without --order all of them, one after another

examples:
  ./run --list --order=speed --gpu=h200              the plan, with seconds and where each call ends; needs no GPU
  ./run --order=speed --archive=results.tar.gz       what fits into 400 s, then into 300 s with each call after it
  ./run --order=speed --budget_seconds=600           what fits into ten minutes
  ./run --order=verify --only=laws                   items of the order whose names match (regular expressions)
  ./run --order=speed --only=trace --again           runs those items again

exit codes: 0 all done, nothing failed; 1 something failed, or there is no GPU; 2 wrong command line; 3 some items are
not done yet; 130 interrupted.
"""


def parse(kit_root, arguments):
    parser = argparse.ArgumentParser(prog="run", description=_ABOUT, epilog=_FOOTER, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--order", action="append", default=[], choices=list(orders.ORDERS), metavar="NAME",
                        help="the order to run (repeatable; default: all)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="items whose name matches")
    parser.add_argument("--list", action="store_true",
                        help="print the items in their order, estimated seconds, and where each call ends, and exit")
    parser.add_argument("--gpu", default="", metavar="DESCRIPTION",
                        help="with --list: list for a described machine, instead of this one: a name in "
                             "tools/gpu/gpus.json, or another such file with one machine")
    parser.add_argument("--budget_seconds", type=float, metavar="S",
                        help=f"seconds of this call (default: {calls.FIRST} for the first of an order, {calls.LATER} "
                             "for those after it; no limit without --order, and for hours)")
    parser.add_argument("--archive", default="", metavar="FILE",
                        help="renew this archive (.tar.gz) of the results after each item; if OUT has none, go on from "
                             "those in it")
    parser.add_argument("--tests_at_once", type=int, default=max(1, (os.cpu_count() or 1) // 2), metavar="N",
                        help="programs that test side by side (default: half the processors, here %(default)s); all "
                             "else runs alone")
    parser.add_argument("--again", action="store_true", help="run the items of --only again even if they have finished")
    parser.add_argument("--out", default=os.path.join(kit_root, "results"), metavar="FOLDER",
                        help="default: %(default)s")
    parser.add_argument("--python", default="", metavar="PATH",
                        help="a Python with PyTorch (default: the first that is found)")
    options = parser.parse_args(arguments)
    for pattern in options.only:
        try:
            re.compile(pattern)
        except re.error as error:
            parser.error(f"--only={pattern} is no regular expression: {error}")
    if options.again and not options.only:
        parser.error("--again wants --only")
    if options.gpu and not options.list:
        parser.error("--gpu wants --list: nothing runs on a machine that is only described")
    if options.tests_at_once < 1:
        parser.error("--tests_at_once wants 1 or more")
    return options


def say(text):
    print(text, flush=True)


def kit_info(root):
    """Returns what pack recorded about the kit in kit.json."""
    try:
        with open(os.path.join(root, "kit.json"), encoding="utf-8") as file:
            return json.load(file)
    except OSError:
        return {}


def commit_of(info):
    """Returns a name for the version of this kit's programs: the commit, and the time of packing if files differed from
    it."""
    commit = info.get("commit", "unknown")
    exact = commit != "unknown" and not commit.endswith("-dirty")
    return commit if exact or "packed" not in info else f"{commit}, packed {info['packed']}"


def find_kit(kit_root, options, info, find):
    """Returns the Kit of this machine, or of the described one. Raises ValueError, which says in one line what
    the machine lacks."""
    lacking = needs.lacks_versions(info, needs.versions_here(machine.loader_folders(os.environ)))
    if lacking:
        raise ValueError(lacking)
    found = gpus.described(options.gpu) if options.gpu else find()
    lacking = needs.lacks_gpu(info, found.driver, found.all)
    if lacking:
        raise ValueError(lacking)
    # A described machine has everything that one can install.
    python = machine.Python("python", [], "any") if options.gpu else machine.Python.find(options.python)
    libraries = machine.find_libraries(python, os.environ)
    environment = machine.engine_environment(os.environ, libraries, os.path.join(kit_root, "lib"))
    sanitizer = "compute-sanitizer" if options.gpu else machine.find_sanitizer(os.environ) or ""
    return Kit(root=kit_root, out=os.path.abspath(options.out), environment=environment, plain=dict(os.environ),
               python=python, gpus=found.all, sanitizer=sanitizer, at_once=options.tests_at_once,
               about=machine.describe(found, info.get("arch", ""), libraries, python, bool(options.gpu)))


def main(kit_root, arguments, find=gpus.find):
    """Runs the kit and returns the exit code. Tests replace `find`."""
    options = parse(kit_root, arguments)
    if not options.gpu:
        return run_kit(kit_root, options, find)
    with tempfile.TemporaryDirectory() as folder:  # Nothing of a machine that is only described stays.
        options.out = folder
        return run_kit(kit_root, options, find)


def _named(options, items):
    """Returns the items that --only names."""
    return [item for item in items if any(re.search(pattern, item.name) for pattern in options.only)]


def run_kit(kit_root, options, find):
    began = time.monotonic()
    info = kit_info(kit_root)
    try:
        kit = find_kit(kit_root, options, info, find)
        if options.archive:
            archive.restore(options.archive, kit.out)
        kept = store.Store(kit.out, commit_of(info))
    except (ValueError, OSError) as error:
        print(f"run: {error}", file=sys.stderr)
        return 1
    every = orders.items(kit, options.order or list(orders.ORDERS))
    named = _named(options, every)
    if options.only and not named:
        print(f"run: --only matches none of: {', '.join(item.name for item in every)}", file=sys.stderr)
        return 2
    # Gates run before all other items, and again until they pass: what stopped them may have been mended.
    items = [item for item in every if item.gate or not options.only or item in named]
    budgets = calls.budgets(options.budget_seconds, options.order, items, kept)
    if options.list:
        say(listing.text(kit, items, kept, budgets))
        return 0
    _forget(kit, kept, [*(named if options.again else []), *(item for item in items if item.gate and kept.item(
        item.name).get("status") == store.FAILED)])
    written = results.Results(kit, kept, [item.name for item in every], options.archive)
    kept.describe({**{name: value for name, value in info.items() if name != "needs"}, **kit.about})
    return _run(calls.Call(kit, kept, began, next(budgets), written.write, say), items, written)


def _forget(kit, kept, items):
    """Forgets the results of these items, which run again."""
    for item in items:
        kept.forget(item.name)
        for path in item.keeps:
            store.remove(kit.path(path))


def _run(call, items, written):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, calls.interrupt)
    try:
        left = call.run(items)
    except calls.Interrupted as interrupted:
        say(f"interrupted by {interrupted}; call it again to continue")
        return 130
    finally:
        written.write()
    if call.closed_by:
        print(f"run: nothing else was run, because {call.closed_by} failed: {call.kept.item(call.closed_by)['about']}",
              file=sys.stderr)
        return 1
    say(f"report: {call.kit.path('report.md')}")
    if left:
        say(calls.what_is_left(left))
        return 3
    return 1 if any(call.kept.item(item.name)["status"] == store.FAILED for item in items) else 0
