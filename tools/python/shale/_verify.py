"""Checks of a job before a long run."""

import ctypes
import os
from dataclasses import dataclass
from typing import Callable, Iterator, List, Optional

from shale import _c
from shale._errors import Cancelled
from shale._job import as_job
from shale._stop import Stop, call_on_thread

_OUTCOMES = ("holds", "fails", "not run")


@dataclass(frozen=True)
class Check:
    """One check."""

    name: str  # What was compared: "4 micro-batches".
    against: str  # With what: "one batch of 16".
    outcome: str  # "holds", "fails", or "not run": the job has nothing to check, or this machine cannot run it.
    difference: float  # The largest that was found.
    tolerance: float  # The largest that is allowed. 0: all bits must be the same.
    remark: str  # What is to blame, or why the check was not run, or what it covered. May be empty.

    @property
    def passed(self) -> bool:
        """Whether it did not fail."""
        return self.outcome != "fails"


@dataclass(frozen=True)
class Verification:
    """What verify() found. Iterates over the checks."""

    checks: List[Check]
    seconds: float
    text: str  # The table of all checks with their remarks, and what was made smaller than the job.

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.passed for check in self.checks)

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    def __len__(self):
        return len(self.checks)

    def __str__(self):
        return self.text


def verify(job, *, model=None, data=None, seconds: float = 60, on_check: Optional[Callable[[Check], object]] = None,
           temporary_folder: Optional[os.PathLike] = None, stop: Optional[Stop] = None) -> Verification:
    """Checks a job (a Job, or the path of a job file) before a long run, in small trials with its own model, data and
    backend: that gradients, divisions of a step, saves, data and memory are what they should be.

        verification = shale.verify(job, data=samples)
        if not verification.passed:
            print(verification)

    A check that fails raises nothing. `model` (Model) and `data` (Samples, Stream) are those of a Trainer; a Stream is
    no longer at its start afterwards. `seconds` is about how long all checks may take. `on_check` gets each check as it
    ends, on another thread. `temporary_folder` is where a folder is made, and removed again.

    A `stop` ends the checks before the next step, with Cancelled. A KeyboardInterrupt, or an exception of `on_check`,
    requests it, and is raised when the checks have ended.
    """
    job = as_job(job, own_model=model is not None)
    stop = stop or Stop()
    callbacks = [part.callbacks for part in (model, data) if part is not None]
    raised = []

    def call(_, check):
        try:
            if on_check is not None and not raised:
                on_check(_check(check.contents))
        except BaseException as exception:  # pylint: disable=broad-except
            raised.append(exception)
            stop.request()

    options = _c.VerifyOptions(seconds=seconds, stop=stop.value.value)
    options.function = _c.CheckFunction(call)  # Kept with the options while the engine has them.
    options.on_check = ctypes.cast(options.function, ctypes.c_void_p)
    if model is not None:
        options.model = model.struct()
    if data is not None:
        options.data = data.struct()
    if temporary_folder is not None:
        options.temporary_folder = os.fsencode(temporary_folder)
    handle = _c.Handle("verification")
    try:
        call_on_thread("shale_verify", job.handle, ctypes.byref(options), ctypes.byref(handle.value),
                       callbacks=callbacks, stop=stop.request)
    except Cancelled:
        if raised:
            raise raised[0] from None
        raise
    finally:
        for part in callbacks:
            part.take_raised()  # A check has failed because of these, and has said so.
    if raised:  # By the last check, after which nothing was left to end.
        raise raised[0]
    return _verification(handle)


def _verification(handle):
    summary = _c.VerificationSummary()
    _c.call("shale_verification_get_summary", handle.value, ctypes.byref(summary))
    checks = []
    for index in range(summary.checks):
        check = _c.Check()
        _c.call("shale_verification_get_check", handle.value, index, ctypes.byref(check))
        checks.append(_check(check))
    return Verification(checks, summary.seconds, _c.text_of("shale_verification_text", handle.value))


def _check(check):
    return Check(check.name.decode(), check.against.decode(), _OUTCOMES[check.outcome], check.difference,
                 check.tolerance, check.remark.decode("utf-8", "replace"))
