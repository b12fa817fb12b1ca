"""Admission: whether a machine has room for a job, also for one that somebody else wrote."""

import ctypes
import json
from dataclasses import dataclass
from typing import Dict, List, Optional, Union

from shale import _c
from shale._job import Job, as_texts, overrides_of
from shale._stop import Stop, call_on_thread

_DEVICES = {"CPU": 0, "CUDA": 1}
_VERDICTS = {1: "FITS", 2: "DOES_NOT_FIT", 3: "INVALID"}
_JSON, _PROTO = 1, 2


@dataclass(frozen=True)
class WayOut:
    """Settings with which a job would fit. Bytes are those of one rank."""

    overrides: Dict[str, str]  # For `set` of admit(), plan() and Job.
    arena_bytes: int
    host_bytes: int
    recompute_flops: float  # What one rank then recomputes in one step.
    caveat: str  # What else changes: "the CPU updates". Empty: the training computes the same.


@dataclass(frozen=True)
class Admission:
    """The verdict on a job. Bytes are those of one rank; they are 0 if the job was not planned."""

    verdict: str  # "FITS", "DOES_NOT_FIT" or "INVALID".
    text: str  # The verdict for people. If the job is invalid, a line for each error.
    arena_bytes: int  # What the job needs; if it does not fit, at least.
    host_bytes: int  # What it offloads to host memory.
    ways_out: List[WayOut]  # A job that does not fit would fit with each of them.
    search_ended_early: bool  # The search for them reached the time limit. There may be more.
    message: bytes  # All that is known: a binary shale.proto.Plan (proto/plan.proto).
    json_text: str  # The same as JSON.

    @property
    def fits(self) -> bool:
        return self.verdict == "FITS"

    def json(self) -> dict:
        """Returns what `plan --json` writes, without the program of a step."""
        return json.loads(self.json_text)


def admit(job: Union[str, bytes, Job], *, set=None,  # pylint: disable=redefined-builtin
          model=None, device: str = "CPU", hardware_threads: int = 0, most_ranks: int = 0, budget_bytes: int = 0,
          host_budget_bytes: int = 0, vocabulary: int = 0, seconds: float = 10, memory_bytes: int = 1 << 30,
          job_bytes: int = 16 << 10, stop: Optional[Stop] = None) -> Admission:
    """Says whether a machine has room for a job, without opening a file or a device.

        admission = shale.admit(text, most_ranks=8, budget_bytes=20 << 30)
        if not admission.fits:
            print(admission.text, admission.ways_out)

    `job` is the text of a job, or a binary one, that somebody else may have written; or a Job of this program, which
    `model` (Model) belongs to. A path of a file is neither. `set` overrides fields: {"sharding.ranks": 2}.

    The machine need not be this one. It runs ranks on a `device` ("CPU", "CUDA"), with `hardware_threads` for all of
    them (0: as many as this machine has), has room for `most_ranks` (0: any number), and for each has `budget_bytes`
    for its arena and `host_budget_bytes` for what it offloads (0: no limit). `vocabulary` is that of the data, if the
    job does not say it.

    Whatever the job is, planning takes about `seconds` at most, else DeadlineExceeded is raised, and `memory_bytes`,
    else OutOfMemory, which is also raised for a job of more than `job_bytes`. A job that is invalid, or does not fit,
    raises nothing. A `stop`, or a KeyboardInterrupt, which requests it, ends the call.
    """
    if device not in _DEVICES:
        raise ValueError(f"device is {device!r}; allowed: {', '.join(_DEVICES)}")
    stop = stop or Stop()
    options = _c.AdmissionOptions(device=_DEVICES[device], hardware_threads=hardware_threads, most_ranks=most_ranks,
                                  budget_bytes=budget_bytes, host_budget_bytes=host_budget_bytes,
                                  vocabulary=vocabulary, seconds=seconds, memory_bytes=memory_bytes,
                                  job_bytes=job_bytes, stop=stop.value.value)
    handle = _c.Handle("admission")
    out = (ctypes.byref(options), ctypes.byref(handle.value))
    if isinstance(job, Job):
        planned = job.with_set(set) if set else job
        call_on_thread("shale_admit_job", planned.handle, model.struct() if model else None, *out,
                       callbacks=[model.callbacks] if model else (), stop=stop.request)
    elif model is not None:
        raise ValueError("a model belongs to a Job of this program; found a text")
    elif not isinstance(job, (str, bytes)):
        raise TypeError(f"job is a {type(job).__name__}; allowed: str, bytes, Job")
    else:
        text = job.encode() if isinstance(job, str) else job
        overrides = overrides_of(set)
        call_on_thread("shale_admit", text, len(text), as_texts(overrides), len(overrides), *out, stop=stop.request)
    return _admission(handle.value)


def _admission(handle):
    summary = _c.AdmissionSummary()
    _c.call("shale_admission_get_summary", handle, ctypes.byref(summary))
    ways_out = []
    for index in range(summary.ways_out):
        way = _c.WayOut()
        _c.call("shale_admission_get_way_out", handle, index, ctypes.byref(way))
        texts = [way.overrides[i].decode() for i in range(way.override_count)]
        ways_out.append(WayOut(dict(text.split("=", 1) for text in texts), way.arena_bytes, way.host_bytes,
                               way.recompute_flops, way.caveat.decode()))
    return Admission(_VERDICTS[summary.verdict], _c.text_of("shale_admission_text", handle, 0), summary.arena_bytes,
                     summary.host_bytes, ways_out, bool(summary.search_ended_early),
                     _c.bytes_of("shale_admission_text", handle, _PROTO),
                     _c.text_of("shale_admission_text", handle, _JSON))
