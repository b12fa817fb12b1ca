"""The main program of a kit's `run`."""

import argparse
import concurrent.futures
import itertools
import json
import os
import re
import signal
import sys
import tempfile
import time

from gpu import gpus, listing, machine, needs, report, store
from gpu.items import Kit, all_items, skipped

_ABOUT = """\
Runs what this kit holds on the GPUs of this machine: a kernel of each module, the tests, benches of kernels and
collectives, plans and training of every preset by the engine, training by PyTorch's FSDP2, and last the op tests under
compute-sanitizer. What does not fit the first GPU is skipped. Each item's result goes to OUT/report.json and
OUT/report.md before the next begins. Items that have finished, whatever their result, are not run again by a kit of the
same commit: call it again to continue. CUDA's libraries are looked for in CUDA_HOME, where the loader looks, and among
the packages nvidia-* of a Python environment.
"""

_FOOTER = """\
examples:
  ./run                                        everything; takes some hours
  ./run --budget_seconds=540                   what fits into nine minutes; repeat until everything is done
  ./run --only=test --only=train/qwen2_5_3b    items whose names match one of these (regular expressions; see --list)
  ./run --only=torch --again                   runs those items again
  ./run --list --gpu=h100                      what a run on an 80 GB H100 would do; needs no GPU

exit codes: 0 all done, nothing failed; 1 something failed, or there is no GPU; 2 wrong command line; 3 some items are
not done yet; 130 interrupted.
"""


def parse(kit_root, arguments):
    parser = argparse.ArgumentParser(prog="run", description=_ABOUT, epilog=_FOOTER, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="items whose name matches")
    parser.add_argument("--list", action="store_true",
                        help="print each item, its status or why it is skipped, and estimated minutes, and exit")
    parser.add_argument("--gpu", default="", metavar="DESCRIPTION",
                        help="with --list: list for a described machine, instead of this one: a name in "
                             "tools/gpu/gpus.json, or another such file with one machine")
    parser.add_argument("--budget_seconds", type=float, default=float("inf"), metavar="S",
                        help="time limit; an item that is cut restarts in a later call (default: no limit)")
    parser.add_argument("--tests_at_once", type=int, default=max(1, (os.cpu_count() or 1) // 2), metavar="N",
                        help="programs that test side by side (default: half the processors, here %(default)s); all "
                             "else runs alone")
    parser.add_argument("--again", action="store_true", help="run the items of --only again even if they have finished")
    parser.add_argument("--out", default=os.path.join(kit_root, "results"), metavar="FOLDER",
                        help="default: %(default)s")
    parser.add_argument("--python", default="", metavar="PATH",
                        help="a Python with PyTorch (default: the first that is found)")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="training steps that count (default 5)")
    parser.add_argument("--warmup", type=int, default=2, metavar="N", help="those before them (default 2)")
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
    if options.steps < 1 or options.warmup < 0:
        parser.error("--steps wants 1 or more, --warmup 0 or more")
    if options.tests_at_once < 1:
        parser.error("--tests_at_once wants 1 or more")
    return options


def say(text):
    print(text, flush=True)


class _Interrupted(Exception):
    pass


def _interrupt(number, frame):
    raise _Interrupted(signal.Signals(number).name)


def order(items, kept):
    """Returns the unfinished items in order: gates first, and last those that were cut, so that one long item does not
    block the others."""
    return sorted((i for i in items if not kept.finished(i.name)),
                  key=lambda item: (not item.gate, kept.item(item.name).get("cuts", 0)))


def do(kit, item, kept, seconds):
    """Runs one item and stores its outcome. `seconds` is the rest of the budget."""
    if not kept.begin(item.name):
        return
    limit = min(item.limit, seconds)
    try:
        outcome = skipped(item.skip) if item.skip else item.work(kit, item, limit)
    except _Interrupted as interrupted:
        kept.end(item.name, {"status": store.CUT, "about": f"interrupted by {interrupted}"})
        raise
    except Exception as error:  # A failure of one item must not stop the others.
        outcome = {"status": store.FAILED, "about": f"{type(error).__name__}: {error}"}
    if kit.stop.is_set():
        outcome = {"status": store.CUT, "about": "interrupted"}
    if outcome["status"] == "timed out":
        outcome["status"] = store.CUT if limit < item.limit else store.FAILED
    kept.end(item.name, outcome)


def do_together(kit, work, items, at_once):
    """Calls work(item) for each item, on `at_once` threads. If this thread is interrupted, stops the kit's programs."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        try:
            for one in [pool.submit(work, item) for item in items]:
                one.result()
        except BaseException:
            kit.stop.set()  # Ends the programs that run, and what waits does not begin.
            raise


def run(kit, items, all_names, kept, deadline, at_once=1):
    """Runs items until all are finished, the time is over, or a gate has failed. Items that share the GPU run side by
    side, `at_once` of them. Returns whether all are finished."""
    waiting = order(items, kept)
    number = {item.name: place for place, item in enumerate(waiting, 1)}

    def begin(item):
        left = deadline - time.monotonic()
        if kit.stop.is_set() or (left < item.least and not item.skip):
            return
        said = f"[{number[item.name]}/{len(waiting)}] {item.name}"
        if not item.shares:
            say(said)
        do(kit, item, kept, left)
        ended = kept.item(item.name)
        about = f": {ended['about']}" if ended.get("about") else ""
        say(f"{said if item.shares else '   '} {ended['status']}{about}")
        with kept.lock:
            write_report(kit, kept, all_names)

    for shares, group in itertools.groupby(waiting, lambda item: item.shares):
        if shares:
            do_together(kit, begin, list(group), at_once)
            continue
        for item in group:
            begin(item)
            if item.gate and kept.item(item.name).get("status") not in (store.PASSED, store.SKIPPED):
                return False
    return all(kept.finished(item.name) for item in items)


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


def write_report(kit, kept, names):
    store.write_durably(kit.path("report.md"), report.Report(kept, names).text())


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
               python=python, gpus=found.all, sanitizer=sanitizer, warmup=options.warmup, steps=options.steps,
               about=machine.describe(found, info.get("arch", ""), libraries, python, bool(options.gpu)))


def main(kit_root, arguments, find=gpus.find):
    """Runs the kit and returns the exit code. Tests replace `find`."""
    options = parse(kit_root, arguments)
    if not options.gpu:
        return run_kit(kit_root, options, find)
    with tempfile.TemporaryDirectory() as folder:  # Nothing of a machine that is only described stays.
        options.out = folder
        return run_kit(kit_root, options, find)


def run_kit(kit_root, options, find):
    deadline = time.monotonic() + options.budget_seconds
    info = kit_info(kit_root)
    try:
        kit = find_kit(kit_root, options, info, find)
        kept = store.Store(kit.out, commit_of(info))
    except (ValueError, OSError) as error:
        print(f"run: {error}", file=sys.stderr)
        return 1
    every = all_items(kit)
    names = [item.name for item in every]
    items = [i for i in every if not options.only or any(re.search(pattern, i.name) for pattern in options.only)]
    if not items:
        print(f"run: --only matches none of: {', '.join(names)}", file=sys.stderr)
        return 2
    if options.list:
        say(listing.text(kit, items, kept))
        return 0
    for item in items if options.again else []:
        kept.forget(item.name)
        for path in item.keeps:
            store.remove(path)
    # Gates run before all other items, and again until they pass: what stopped them may have been mended.
    items = list(dict.fromkeys([*(item for item in every if item.gate), *items]))
    for item in items:
        if item.gate and kept.item(item.name).get("status") == store.FAILED:
            kept.forget(item.name)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    wanted = ", ".join(f"{name}_{version}" for name, version in info.get("needs", {}).items())
    kept.describe({**info, "needs": wanted, **kit.about})
    try:
        done = run(kit, items, names, kept, deadline, options.tests_at_once)
    except _Interrupted as interrupted:
        write_report(kit, kept, names)
        say(f"interrupted by {interrupted}; call it again to continue")
        return 130
    write_report(kit, kept, names)
    for item in items:
        if item.gate and kept.item(item.name).get("status") == store.FAILED:
            print(f"run: nothing else was run, because {item.name} failed: {kept.item(item.name)['about']}",
                  file=sys.stderr)
            return 1
    say(f"report: {kit.path('report.md')}")
    if not done:
        say("not everything is done: call it again to continue")
        return 3
    return 1 if any(kept.item(item.name)["status"] == store.FAILED for item in items) else 0
