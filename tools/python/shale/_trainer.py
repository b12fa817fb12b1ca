"""Training."""

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Callable, Iterator, Optional

import numpy as np

from shale import _c
from shale._data import as_array
from shale._job import as_job
from shale._plan import form_number

_RESUME = {"nothing": 0, "latest": 1, "auto": 2}
_RESUME_PATH = 3


@dataclass(frozen=True)
class StepReport:
    """What is known after a step. Bytes are those of one rank."""

    step: int
    tokens: int
    step_tokens: int
    loss: float
    step_weight: float
    gradient_norm: float
    learning_rate: float
    updated: bool
    seconds: float
    tokens_per_second: float
    peak_bytes_planned: int
    peak_bytes_measured: int


@dataclass(frozen=True)
class EvaluationReport:
    step: int
    loss: float
    tokens: int


class Trainer:
    """Trains the model of a job.

        with shale.Trainer(job, checkpoint_folder="checkpoints", resume="auto") as trainer:
            for report in trainer:
                print(report.loss)

    `job` is a Job, or the path of a job file. `model` (Model), `data` and `evaluation_data` (Samples, Stream) are
    needed where the job has none. `resume` is "nothing", "latest", "auto" or the path of a checkpoint. `on_event` gets
    every event as a line of JSON (proto/events.proto), on a thread of the engine.

    A `with` that ends by Ctrl-C (KeyboardInterrupt) saves a checkpoint first, if there is a folder. One thread at a
    time may use a trainer; any thread may call request_stop().
    """

    def __init__(self, job, *, model=None, data=None, evaluation_data=None,
                 checkpoint_folder: Optional[os.PathLike] = None, resume: str = "nothing",
                 on_event: Optional[Callable[[str], None]] = None):
        job = as_job(job, own_model=model is not None)
        self._kept = (model, data, evaluation_data)  # The engine calls them while the trainer lives.
        self._folder = None if checkpoint_folder is None else os.fsencode(checkpoint_folder)
        options = _c.TrainerOptions(checkpoint_folder=self._folder, resume=_RESUME.get(resume, _RESUME_PATH))
        if options.resume == _RESUME_PATH:
            options.resume_path = os.fsencode(resume)
        if model is not None:
            options.model = model.struct()
        if data is not None:
            options.data = data.struct()
        if evaluation_data is not None:
            options.evaluation_data = evaluation_data.struct()
        if on_event is not None:
            self._on_event = _c.EventFunction(lambda _, line: on_event(line.decode()))
            options.on_event = ctypes.cast(self._on_event, ctypes.c_void_p)
        self._handle = _c.Handle("trainer")
        self._call("create", job.handle, ctypes.byref(options), ctypes.byref(self._handle.value))

    def _call(self, name, *arguments):
        callbacks = [kept.callbacks for kept in self._kept if kept is not None]
        _c.call(f"shale_trainer_{name}", *arguments, callbacks=callbacks)

    def step(self) -> StepReport:
        """Runs one optimizer step. Raises FailedPrecondition if all steps are done or a stop was requested."""
        report = _c.StepReport()
        self._call("step", self._handle.value, ctypes.byref(report))
        return _report(report)

    def __iter__(self) -> Iterator[StepReport]:
        """Runs the remaining steps, one for each item. Does not evaluate or save; run() does."""
        while not self.done:
            yield self.step()

    def run(self, on_step: Optional[Callable[[StepReport], object]] = None) -> None:
        """Runs all remaining steps, with the evaluations and checkpoints that the job asks for, and saves at the end if
        there is a folder. Stops after the step for which `on_step` returns True."""
        raised = []

        def call(_, report):
            try:
                return int(on_step(_report(report.contents)) is True) if on_step else 0
            except BaseException as exception:  # pylint: disable=broad-except
                raised.append(exception)
                return 1

        self._call("run", self._handle.value, _c.StepFunction(call), None)
        if raised:
            raise raised[0]

    def evaluate(self, sequences: int) -> EvaluationReport:
        """Returns the loss on the first `sequences` sequences of the evaluation data."""
        report = _c.EvaluationReport()
        self._call("evaluate", self._handle.value, sequences, ctypes.byref(report))
        return EvaluationReport(report.step, report.loss, report.tokens)

    def save(self) -> str:
        """Saves a checkpoint and returns its folder."""
        path, needed = ctypes.create_string_buffer(1 << 16), ctypes.c_size_t()
        self._call("save", self._handle.value, path, len(path), ctypes.byref(needed))
        return os.fsdecode(path.value)

    def request_stop(self) -> None:
        """Makes `done` true after the step that runs now. Any thread may call it."""
        _c.call("shale_trainer_request_stop", self._handle.value)

    def _state(self):
        state = _c.TrainerState()
        _c.call("shale_trainer_get_state", self._handle.value, ctypes.byref(state))
        return state

    @property
    def done(self) -> bool:
        return bool(self._state().done)

    @property
    def steps_done(self) -> int:
        return self._state().steps_done

    @property
    def total_steps(self) -> int:
        return self._state().total_steps

    @property
    def resumed_from(self) -> Optional[int]:
        """The step after which the run resumed; None if it started from scratch."""
        step = self._state().resumed_from_step
        return None if step < 0 else step

    @property
    def job_text(self) -> str:
        """The resolved job: every default is decided."""
        return _c.text_of("shale_trainer_job_text", self._handle.value)

    def plan_text(self, form: str = "text") -> str:
        """Returns the plan of the run, in a form of Plan.text."""
        return _c.text_of("shale_trainer_plan_text", self._handle.value, form_number(form))

    @property
    def parameters(self) -> "Parameters":
        """The trained weights: a mapping from names to arrays, which are read when they are asked for."""
        return Parameters(self._handle.value, self._state().parameter_count)

    def close(self) -> None:
        """Frees the trainer. Does not save."""
        self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, exception, traceback):
        try:
            if kind is not None and issubclass(kind, KeyboardInterrupt) and self._folder is not None:
                self.save()
        finally:
            self.close()


class Parameters(Mapping):
    """The trained weights by name. t.parameters["head.weight"] copies them out, as float32 in the shape of the
    parameter; assigning an array, of numpy or with DLPack, writes them for the next step."""

    def __init__(self, handle, count):
        self._handle = handle
        self._shapes = {}
        for index in range(count):
            parameter = _c.Parameter()
            _c.call("shale_trainer_get_parameter", handle, index, ctypes.byref(parameter))
            self._shapes[parameter.name.decode()] = tuple(parameter.shape[:parameter.dimensions])

    def __getitem__(self, name):
        values = np.empty(self.shape(name), np.float32)
        _c.call("shale_trainer_read_parameter", self._handle, name.encode(), _floats(values), values.size)
        return values

    def __setitem__(self, name, values):
        values = np.ascontiguousarray(as_array(values), np.float32)
        if values.shape != self.shape(name):
            raise ValueError(f"{name} has the shape {self.shape(name)}; found {values.shape}")
        _c.call("shale_trainer_write_parameter", self._handle, name.encode(), _floats(values), values.size)

    def __iter__(self):
        return iter(self._shapes)

    def __len__(self):
        return len(self._shapes)

    def _shape(self, name):
        if name not in self._shapes:
            raise KeyError(name)
        return self._shapes[name]


def _floats(values):
    return values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def _report(report):
    return StepReport(report.step, report.tokens, report.step_tokens, report.loss, report.step_weight,
                      report.gradient_norm, report.learning_rate, bool(report.updated), report.seconds,
                      report.tokens_per_second, report.peak_bytes_planned, report.peak_bytes_measured)
