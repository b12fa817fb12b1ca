"""Training."""

import ctypes
import os
from collections.abc import Mapping
from ctypes import byref
from dataclasses import dataclass
from functools import partial
from typing import Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np

from shale import _c
from shale._data import as_array
from shale._errors import FailedPrecondition, NotFound
from shale._generator import draw
from shale._job import as_job
from shale._plan import form_number
from shale._stop import Listener, call_on_thread

_RESUME = {"nothing": 0, "latest": 1, "auto": 2}
_RESUME_PATH = 3


@dataclass(frozen=True, init=False)
class StepReport(_c.StepReport):
    """What is known after a step. Bytes are those of one rank. Trainers make it.

    It is the struct that the engine fills in, and a member becomes a number of Python when it is asked for. Making all
    of them took longer than the call of the engine.
    """

    step: int
    tokens: int
    step_tokens: int
    loss: float
    step_weight: float
    gradient_norm: float
    learning_rate: float
    updated: bool = property(lambda self: _c.StepReport.updated.__get__(self) != 0)
    seconds: float
    tokens_per_second: float
    peak_bytes_planned: int
    peak_bytes_measured: int
    loss_scale: float  # Of the next step; 0 without precision.compute FP16.
    skips: int  # Steps that loss scaling skipped in a row, up to this one.


_new_report = partial(StepReport.from_buffer_copy, bytes(_c.StepReport()))


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
    time may use a trainer; any thread may call request_stop(). A process that was forked from this one cannot use it,
    because it has none of its threads: start such processes with multiprocessing's "spawn".
    """

    def __init__(self, job, *, model=None, data=None, evaluation_data=None,
                 checkpoint_folder: Optional[os.PathLike] = None, resume: str = "nothing",
                 on_event: Optional[Callable[[str], None]] = None):
        job = as_job(job, own_model=model is not None)
        self._handle = _c.Handle("trainer")
        self._trainer = self._handle.value
        self._on_event = None
        if on_event is not None:
            self._on_event = _c.EventFunction(lambda _, line: on_event(line.decode()))
        self._keep(model, data, evaluation_data)
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
            options.on_event = ctypes.cast(self._on_event, ctypes.c_void_p)
        self._call("create", job.handle, byref(options), byref(self._trainer))
        # What the calls of every step need. One thread at a time uses a trainer, so one error is enough.
        self._step, self._get_state = _c.bare("shale_trainer_step"), _c.bare("shale_trainer_get_state")
        self._error = _c.Error()
        self._error_reference = byref(self._error)

    def _keep(self, model, data, evaluation_data):
        """Keeps what the engine calls while the trainer lives."""
        self._kept = model, data, evaluation_data
        self._handle.kept = self._kept, self._on_event
        self._callbacks = tuple(kept.callbacks for kept in self._kept if kept is not None)
        self._reads_ahead = not self._callbacks

    def _call(self, name, *arguments, **options):
        call_on_thread(f"shale_trainer_{name}", *arguments, callbacks=self._callbacks, **options)

    def step(self) -> StepReport:
        """Runs one optimizer step. Raises FailedPrecondition if all steps are done or a stop was requested."""
        report = _new_report()
        if not self._reads_ahead:  # The engine calls `data` on the thread that calls it (see call_on_thread).
            self._call("step", self._trainer, byref(report))
            self._reads_ahead = True
            return report
        code = self._step(self._trainer, byref(report), self._error_reference)
        if code != 0 or self._callbacks:
            self._reads_ahead = code == 0
            _c.check(code, self._error, self._callbacks)
        return report

    def __iter__(self) -> Iterator[StepReport]:
        """Runs the remaining steps, one for each item. Does not evaluate or save; run() does."""
        while True:
            try:
                report = self.step()
            except FailedPrecondition:
                if self.done:  # Asked only now, because each call costs what it is called through.
                    return
                raise
            yield report

    def run(self, on_step: Optional[Callable[[StepReport], object]] = None) -> None:
        """Runs all remaining steps, with the evaluations and checkpoints that the job asks for, and saves at the end if
        there is a folder. Stops after the step for which `on_step` returns True, or raises. Ctrl-C (KeyboardInterrupt)
        does the same after the step that runs, and is raised then."""
        listener = Listener(lambda report: on_step is not None and on_step(report) is True)
        call = _c.StepFunction(lambda _, report: int(listener.ask(StepReport.from_buffer_copy(report.contents))))
        self._call("run", self._trainer, call, None, stop=self.request_stop, listener=listener)

    def evaluate(self, sequences: int) -> EvaluationReport:
        """Returns the loss on the first `sequences` sequences of the evaluation data."""
        report = _c.EvaluationReport()
        self._call("evaluate", self._trainer, sequences, byref(report))
        return EvaluationReport(report.step, report.loss, report.tokens)

    def save(self) -> str:
        """Saves a checkpoint and returns its folder."""
        path, needed = ctypes.create_string_buffer(1 << 16), ctypes.c_size_t()
        self._call("save", self._trainer, path, len(path), byref(needed))
        return os.fsdecode(path.value)

    def generate(self, prompt: Sequence[int], count: int, temperature: float = 0.8, top_k: int = 40, seed: int = 1,
                 on_token: Optional[Callable[[int], object]] = None, *, top_p: float = 1, min_p: float = 0,
                 repetition_penalty: float = 1) -> List[int]:
        """Draws tokens with the weights as they are now, without a copy of them, as Generator.generate does. The job
        must plan for it (runtime.generate)."""
        return draw("shale_trainer_generate", self._trainer, prompt, count, on_token, temperature=temperature,
                    top_k=top_k, seed=seed, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty)

    def set_learning_rate(self, rate: Optional[float]) -> None:
        """Sets the learning rate of the next step and of all later ones; None goes back to the job's schedule."""
        _c.call("shale_trainer_set_learning_rate", self._trainer, None if rate is None else ctypes.c_double(rate))

    def set_data(self, data) -> None:
        """Takes the samples of the next step and of all later ones from other Samples or another Stream."""
        former = self._kept
        self._keep(former[0], data, former[2])
        try:
            self._call("set_data", self._trainer, data.struct())
        except BaseException:
            self._keep(*former)
            raise

    def add_metric(self, name: str, value: float) -> None:
        """Adds a value, such as a reward, to the report of the next step, which its event and metrics show."""
        _c.call("shale_trainer_add_metric", self._trainer, name.encode(), value)

    def request_stop(self) -> None:
        """Makes `done` true after the step that runs now. Any thread may call it."""
        _c.call("shale_trainer_request_stop", self._trainer)

    def _state(self):
        state = _c.TrainerState()
        code = self._get_state(self._trainer, byref(state), self._error_reference)
        if code != 0:
            _c.check(code, self._error)
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
        return _c.text_of("shale_trainer_job_text", self._trainer)

    def plan_text(self, form: str = "text") -> str:
        """Returns the plan of the run, in a form of Plan.text."""
        return _c.text_of("shale_trainer_plan_text", self._trainer, form_number(form))

    @property
    def parameters(self) -> "Parameters":
        """The trained weights: a mapping from names to arrays, which are read when they are asked for."""
        return Parameters(self)

    @property
    def optimizer_states(self) -> Dict[str, "Parameters"]:
        """The states that the optimizer keeps for each parameter: optimizer_states["m"]["head.weight"]. A state has the
        parameters whose rule keeps it."""
        names = _c.text_of("shale_trainer_optimizer_states", self._trainer).split("\n")
        return {name: Parameters(self, name) for name in names if name}

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
    """The trained weights by name, or a state of the optimizer. t.parameters["head.weight"] copies the values out, as
    float32 in the shape of the parameter; assigning an array, of numpy or with DLPack, writes them for the next step.
    rows() and set_rows() do the same with some of the rows."""

    def __init__(self, trainer, state=None):
        self._trainer = trainer  # Lives as long as these.
        self._handle = trainer._trainer
        self._state = state
        self._shapes = {}
        for index in range(trainer._state().parameter_count):
            parameter = _c.Parameter()
            _c.call("shale_trainer_get_parameter", self._handle, index, byref(parameter))
            shape = tuple(parameter.shape[:parameter.dimensions])
            if state is not None:
                shape = self._state_shape(parameter.name, shape)
            if shape is not None:
                self._shapes[parameter.name.decode()] = shape

    def _state_shape(self, name, shape):
        """Returns the shape of the state of a parameter: that of the parameter, or one dimension where the state has
        another number of values. None: the parameter has no such state, or is frozen."""
        count = ctypes.c_int64()
        try:
            _c.call("shale_trainer_optimizer_state_count", self._handle, self._state.encode(), name, byref(count))
        except (NotFound, FailedPrecondition):
            return None
        return shape if count.value == int(np.prod(shape, dtype=np.int64)) else (count.value,)

    def __getitem__(self, name):
        return self.rows(name, 0, self.shape(name)[0])

    def __setitem__(self, name, values):
        values = as_array(values)
        if values.shape != self.shape(name):
            raise ValueError(f"{name} has the shape {self.shape(name)}; found {values.shape}")
        self.set_rows(name, 0, values)

    def rows(self, name, begin, count):
        """Returns rows [begin, begin + count) of a parameter."""
        shape = self.shape(name)
        values = np.empty((count, *shape[1:]), np.float32)
        self._call("read", name, begin, values)
        return values

    def set_rows(self, name, begin, values):
        """Writes rows of a parameter from row `begin` on."""
        values = np.ascontiguousarray(as_array(values), np.float32)
        shape = self.shape(name)
        if values.shape[1:] != shape[1:]:
            raise ValueError(f"rows of {name} have the shape {shape[1:]}; found {values.shape[1:]}")
        self._call("write", name, begin, values)

    def _call(self, verb, name, row, values):
        begin = row * int(np.prod(self.shape(name)[1:], dtype=np.int64))
        data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        if self._state is None:
            _c.call(f"shale_trainer_{verb}_parameter", self._handle, name.encode(), begin, data, values.size)
        else:
            _c.call(f"shale_trainer_{verb}_optimizer_state", self._handle, self._state.encode(), name.encode(), begin,
                    data, values.size)

    def __iter__(self):
        return iter(self._shapes)

    def __len__(self):
        return len(self._shapes)

    def shape(self, name):
        """Returns the shape of a parameter without reading it."""
        if name not in self._shapes:
            raise KeyError(name)
        return self._shapes[name]
