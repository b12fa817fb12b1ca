"""Jobs."""

import ctypes
import os

from shale import _c
from shale._errors import NotFound


class Job:
    """The settings of a run, read and checked. Never changes.

    Job.load("job.textproto", set={"optimizer.learning_rate": 1e-3}) reads a file, Job.parse(text) a text. A job whose
    program brings the model (`own_model=True`) must describe none.
    """

    def __init__(self, source, name, overrides, own_model):
        self._source, self._name, self._overrides, self._own_model = source, name, overrides, own_model
        self._handle = _c.Handle("job")
        texts = as_texts(overrides)
        flags = _c.MODEL_FROM_PROGRAM if own_model else 0
        if name is None:
            _c.call("shale_job_load", os.fsencode(source), texts, len(overrides), flags,
                    ctypes.byref(self._handle.value))
        else:
            _c.call("shale_job_parse", source.encode(), os.fsencode(name), texts, len(overrides), flags,
                    ctypes.byref(self._handle.value))

    @classmethod
    def load(cls, path, set=None, own_model=False):  # pylint: disable=redefined-builtin
        """Reads the job file at `path`. `set` overrides fields: {"sharding.ranks": 2}."""
        return cls(path, None, overrides_of(set), own_model)

    @classmethod
    def parse(cls, text, name="job", set=None, own_model=False):  # pylint: disable=redefined-builtin
        """Reads a text. `name` stands for it in messages; relative paths in it start at the folder of `name`."""
        return cls(text, name, overrides_of(set), own_model)

    def with_set(self, set):  # pylint: disable=redefined-builtin
        """Returns the same job with further overrides."""
        return Job(self._source, self._name, self._overrides + overrides_of(set), self._own_model)

    @property
    def text(self):
        """The job as text, with every default written out."""
        return _c.text_of("shale_job_text", self._handle.value)

    # A job never changes, so a copy of it may be the job itself.
    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        # The other process may have another working directory.
        name = None if self._name is None else os.path.abspath(self._name)
        source = os.path.abspath(self._source) if name is None else self._source
        text = Job(source, name, self._overrides, self._own_model).text
        return _unpickled, (source, name, self._overrides, self._own_model, text)

    @property
    def handle(self):
        return self._handle.value

    def __repr__(self):
        return f"<shale.Job {self._name or self._source}>"


def _unpickled(source, name, overrides, own_model, text):
    job = Job(source, name, overrides, own_model)
    if job.text != text:
        raise ValueError(f"{name or source} is not the job that was pickled: its file, or a file that it names, has "
                         "changed since; pickle it again")
    return job


def overrides_of(settings):
    """Returns settings, {"sharding.ranks": 2}, as the engine takes them: ["sharding.ranks=2"]."""
    texts = []
    for path, value in (settings or {}).items():
        if isinstance(value, bool):
            value = str(value).lower()
        elif isinstance(value, (list, tuple)):
            value = f"[{', '.join(map(str, value))}]"
        texts.append(f"{path}={value}")
    return texts


def as_texts(overrides):
    """Returns overrides as an array of C."""
    return (ctypes.c_char_p * len(overrides))(*(o.encode() for o in overrides))


def as_job(job, own_model=False):
    """Returns the job itself, or the job file at a path. Raises NotFound for a string that names no file, which may be
    the text of a job."""
    if isinstance(job, Job):
        return job
    if isinstance(job, (str, bytes)) and not os.path.exists(job):
        shown = repr(job if len(job) <= 80 else job[:80]) + ("" if len(job) <= 80 else "...")
        raise NotFound(f"job is {shown}, and no file has this path (from the folder {os.getcwd()}). If it is a path, "
                       "correct it. If it is the text of a job, give shale.Job.parse(text)")
    return Job.load(job, own_model=own_model)
