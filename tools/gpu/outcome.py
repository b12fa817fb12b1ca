"""Makes outcomes of items: {"status", "about", "seconds", "result"}, where status is one of store.py's or TIMED_OUT,
and `about` says why it is not PASSED."""

import json

from gpu import store

TIMED_OUT = "timed out"


def of(ended, result=None, wrong=""):
    """Makes the outcome of a program that ended. `wrong` says why the item failed although the exit code may be 0."""
    outcome = {"status": store.PASSED, "about": "", "seconds": round(ended.seconds, 3)}
    if result is not None:
        outcome["result"] = result
    if ended.timed_out:
        outcome.update(status=TIMED_OUT, about=f"did not end within {ended.seconds:.0f} s: {ended.tail(1)}")
    elif wrong:
        outcome.update(status=store.FAILED, about=wrong)
    elif ended.code != 0 and not ended.enough:
        outcome.update(status=store.FAILED, about=f"ended with {ended.code}: {ended.tail()}")
    return outcome


def of_file(ended, path, read=None):
    """Makes the outcome of a program that writes its result to the file `path`, which read(path) returns."""
    result = (read or read_json)(path)
    return of(ended, result, "" if result or ended.code or ended.timed_out else "it wrote no result")


def skipped(why):
    return {"status": store.SKIPPED, "about": why}


def read_json(path):
    """Returns what the file holds, or None if there is no such file or it holds no JSON."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def read_json_lines(path):
    """Returns the lines that a program wrote before it ended, or None if there is no such file."""
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file.read().split("\n")[:-1]]
    except (OSError, ValueError):
        return None


def needs(program, work):
    """Wraps `work` to be skipped if the kit does not have the program."""
    def unless_lacking(kit, item, seconds):
        lacks = kit.lacks(program)
        return skipped(lacks) if lacks else work(kit, item, seconds)
    return unless_lacking
