"""Runs items in one call of `run`, for as many seconds as the call has."""

import itertools
import signal
import time

from gpu import expected, outcome, sampler, store

# Seconds of the first call of an order, and of each after it. Without an order, and for hours, calls have no limit.
FIRST, LATER = 400, 300
_UNLIMITED = "hours"


class Interrupted(Exception):
    """A signal asked this process to end."""


def interrupt(number, frame):
    raise Interrupted(signal.Signals(number).name)


def budgets(seconds, orders, items, kept):
    """Returns an iterator over the seconds of this call and of those after it. `seconds` is what the caller asks for,
    or None."""
    if seconds is not None:
        return itertools.repeat(seconds)
    if not orders or _UNLIMITED in orders:
        return itertools.repeat(float("inf"))
    begun = any(kept.item(item.name) for item in items if not item.gate)
    return itertools.chain([] if begun else [FIRST], itertools.repeat(LATER))


def fits(item, seconds):
    """Returns whether the item is expected to end within `seconds`. What is skipped takes none."""
    return bool(item.skip) or item.expected + expected.CLOSE <= seconds


def unfinished(items, kept):
    """Returns the unfinished items in order: gates first, and last those that were cut, so that one long item does not
    block the others."""
    return sorted((item for item in items if not kept.finished(item.name)),
                  key=lambda item: (not item.gate, kept.item(item.name).get("cuts", 0)))


def what_is_left(items):
    """Says what a call did not do, for people."""
    to_do = [item for item in items if not item.skip]
    named = ", ".join(f"{item.name} ({item.expected:.0f} s)" for item in to_do)
    return (f"not done, for want of time: {named}: about {sum(item.expected for item in to_do):.0f} s; call it again "
            "to go on, with more --budget_seconds for what is longer than a call")


class Call:
    """One call, of `seconds` from the time `began` on. `after` is called after each item, `say` prints a line."""

    def __init__(self, kit, kept, began, seconds, after, say):
        self.kit, self.kept, self.began, self.seconds, self.after, self.say = kit, kept, began, seconds, after, say
        self.closed_by = ""  # The gate that failed, if one did.

    def run(self, items):
        """Runs items until all are finished, the next would not fit, or a gate has failed. Passes over those that no
        call of this length has time for. Returns those that are not finished. Raises Interrupted."""
        waiting = unfinished(items, self.kept)
        for number, item in enumerate(waiting):
            left = self.began + self.seconds - time.monotonic()
            if not fits(item, left):
                if not fits(item, self.seconds - expected.CALL):
                    continue
                break
            self.say(f"[{number + 1}/{len(waiting)}] {item.name}")
            self._do(item, left - expected.CLOSE)
            ended = self.kept.item(item.name)
            self.say(f"    {ended['status']}" + (f": {ended['about']}" if ended.get("about") else ""))
            self.after()
            if item.gate and ended["status"] not in (store.PASSED, store.SKIPPED):
                self.closed_by = item.name
                break
        return [item for item in waiting if not self.kept.finished(item.name)]

    def _do(self, item, seconds):
        """Runs one item and stores its outcome."""
        if not self.kept.begin(item.name):
            return
        limit = min(item.limit, seconds)
        try:
            made = outcome.skipped(item.skip) if item.skip else self._work(item, limit)
        except Interrupted as interrupted:
            self.kept.end(item.name, {"status": store.CUT, "about": f"interrupted by {interrupted}"})
            raise
        except Exception as error:  # A failure of one item must not stop the others.
            made = {"status": store.FAILED, "about": f"{type(error).__name__}: {error}"}
        if made["status"] == outcome.TIMED_OUT:
            made["status"] = store.CUT if limit < item.limit else store.FAILED
        self.kept.end(item.name, made)

    def _work(self, item, limit):
        if not item.sampled:
            return item.work(self.kit, item, limit)
        with sampler.Sampler(self.kit.gpus[0]["bus"]) as samples:
            made = item.work(self.kit, item, limit)
        return {**made, "clocks": samples.summary()}
