"""Shale: a fully sharded training engine whose memory is planned to the byte before a run starts.

    import shale

    plan = shale.plan("job.textproto", ranks=8)
    print(plan.peak_bytes, plan.explain())

    print(shale.verify("job.textproto"))

    with shale.Trainer("job.textproto", checkpoint_folder="checkpoints") as trainer:
        for report in trainer:
            print(report.step, report.loss)

A job is a text of settings (proto/job.proto). Errors are subclasses of ShaleError, whose messages say what was wanted,
what was found and what to do. Calls that take long release the interpreter's lock.
"""

from shale._c import API_VERSION
from shale._admit import Admission, WayOut, admit
from shale._data import Samples, Stream
from shale._errors import (Cancelled, DeadlineExceeded, FailedPrecondition, InvalidJob, NotFound, OutOfMemory,
                           ShaleError)
from shale._export import export, export_adapter
from shale._generator import Generator
from shale._job import Job
from shale._model import Builder, GraphOptions, Model, model
from shale._plan import Plan, plan
from shale._stop import Stop
from shale._trainer import EvaluationReport, StepReport, Trainer
from shale._verify import Check, Verification, verify

__version__ = f"0.{API_VERSION}"  # That of the whole installation: SONAME and C interface.
__all__ = ["Admission", "Builder", "Cancelled", "Check", "DeadlineExceeded", "EvaluationReport", "FailedPrecondition",
           "Generator", "GraphOptions", "InvalidJob", "Job", "Model", "NotFound", "OutOfMemory", "Plan", "Samples",
           "ShaleError", "StepReport", "Stop", "Stream", "Trainer", "Verification", "WayOut", "admit", "export",
           "export_adapter", "model", "plan", "verify"]
