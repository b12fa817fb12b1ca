"""Data of a program."""

import ctypes
import json
from typing import Any, Callable, Iterable, Optional

import numpy as np

from shale import _c

_OUT_OF_DATA = object()
# The parts of a sample, with the type and the number of dimensions of each.
_PARTS = {name: (np.dtype(pointer._type_), 2 if name in ("features", "target_values") else 1)
          for name, pointer in _c.Sample._fields_ if hasattr(pointer, "contents")}


class _Source:
    """What Samples and Stream share. The shapes are those of the first sample."""

    def __init__(self, name, first, vocabulary):
        parts = as_parts(first)
        self.callbacks = _c.Callbacks()
        self._name = name.encode()
        inputs, targets = parts.get("inputs"), parts.get("targets")
        features, values = parts.get("features"), parts.get("target_values")
        if (inputs is None) == (features is None) or (targets is None) == (values is None):
            raise ValueError("a sample has either inputs or features, and either targets or target_values; found "
                             + ", ".join(parts))
        self._shapes = {name: part.shape for name, part in parts.items()}
        self._struct = _c.Data(
            name=self._name, sequence_length=len(inputs if inputs is not None else features),
            vocabulary=vocabulary, features=0 if features is None else features.shape[1],
            target_values=0 if values is None else values.shape[1],
            **{flag: int(flag[len("has_"):] in parts) for flag, _ in _c.Data._fields_ if flag.startswith("has_")})

    def struct(self):
        return ctypes.pointer(self._struct)

    def _write(self, sample, out):
        parts = as_parts(sample)
        shapes = {name: part.shape for name, part in parts.items()}
        if shapes != self._shapes:
            raise ValueError(f"a sample has the shapes {shapes}; those of the first sample are {self._shapes}")
        for name, part in parts.items():
            np.ctypeslib.as_array(getattr(out.contents, name), part.shape)[...] = part


class Samples(_Source):
    """Samples that can be read in any order: a sequence, with len() and [i], or a function of the number and `count`.

    A sample is a pair (inputs, targets), or a dictionary with "inputs" (int [S] tokens) or "features" (float [S, F]),
    "targets" (int [S], -1 where there is none) or "target_values" (float [S, D]), and, if targets have weights,
    "weights" (float [S]). If samples hold several documents (data.packing PACK), "position_ids" (int [S]) gives the
    position of each token in its document: 0 where one begins, and otherwise one more than before. Arrays are of numpy,
    of anything with DLPack, or lists. A sample must depend on nothing but its number: a run resumes with the same
    samples, and has the same ones for any number of ranks. Every token and class lies below `vocabulary`.
    """

    def __init__(self, source, count: Optional[int] = None, *, name: str = "samples", vocabulary: int = 0):
        read: Callable[[int], Any] = source if callable(source) else source.__getitem__
        if count is None and not hasattr(source, "__len__"):
            raise ValueError("count is missing: give the number of samples, because this source has no len()")
        count = len(source) if count is None else count
        if count < 1:
            raise ValueError(f"found {count} samples; give at least one")
        super().__init__(name, read(0), vocabulary)
        self._struct.samples = count

        def call(_, number, out, error):  # pylint: disable=unused-argument
            self._write(read(number), out)

        self._struct.read = self.callbacks.pointer(_c.ReadFunction, call)


class Stream(_Source):
    """Samples that come in order, from an iterable. The job must say data { order: SEQUENTIAL }.

    A run that saves needs their state: `state_dict()` of the iterable returns what `load_state_dict()` takes (the names
    that PyTorch uses), as JSON can hold it. It is asked for after the samples of every step.
    """

    def __init__(self, source: Iterable, *, name: str = "stream", vocabulary: int = 0):
        # The first sample tells the shapes. It is taken from an iterator that restore() may replace.
        self._iterator = iter(source)
        self._state_before_first = source.state_dict() if hasattr(source, "state_dict") else None
        self._peeked = next(self._iterator, _OUT_OF_DATA)
        if self._peeked is _OUT_OF_DATA:
            raise ValueError("the stream has no sample")
        super().__init__(name, self._peeked, vocabulary)
        self._struct.in_order = 1

        def read(_, number, out, error):  # pylint: disable=unused-argument
            sample, self._peeked = self._peeked, _OUT_OF_DATA
            if sample is _OUT_OF_DATA:
                sample = next(self._iterator, _OUT_OF_DATA)
            if sample is _OUT_OF_DATA:
                return _c.OUT_OF_RANGE
            self._write(sample, out)
            return 0

        def save(_, buffer, capacity, used, error):  # pylint: disable=unused-argument
            fresh = self._peeked is not _OUT_OF_DATA
            state = json.dumps(self._state_before_first if fresh else source.state_dict()).encode()
            if len(state) > capacity:
                raise ValueError(f"the state has {len(state)} bytes; at most {capacity} are kept")
            ctypes.memmove(buffer, state, len(state))
            used.contents.value = len(state)

        def restore(_, state, size, error):  # pylint: disable=unused-argument
            source.load_state_dict(json.loads(ctypes.string_at(state, size)))
            self._iterator, self._peeked = iter(source), _OUT_OF_DATA

        self._struct.read = self.callbacks.pointer(_c.ReadFunction, read)
        if hasattr(source, "state_dict") and hasattr(source, "load_state_dict"):
            self._struct.save = self.callbacks.pointer(_c.SaveFunction, save)
            self._struct.restore = self.callbacks.pointer(_c.RestoreFunction, restore)


def as_parts(sample):
    """Returns the arrays of a sample by their names."""
    if not isinstance(sample, dict):
        inputs, targets = sample
        inputs, targets = as_array(inputs), as_array(targets)
        sample = {"features" if inputs.ndim == 2 else "inputs": inputs,
                  "target_values" if targets.ndim == 2 else "targets": targets}
    parts = {}
    for name, part in sample.items():
        if name not in _PARTS:
            raise ValueError(f"a sample has {name!r}; allowed: {', '.join(_PARTS)}")
        dtype, dimensions = _PARTS[name]
        part = as_array(part)
        if part.ndim != dimensions:
            raise ValueError(f"{name} has {part.ndim} dimensions; needed: {dimensions}")
        if dtype == np.int32 and part.dtype.kind not in "iu":
            raise ValueError(f"{name} has the type {part.dtype}; needed: integers")
        parts[name] = part.astype(dtype, copy=False)
    return parts


def as_array(values):
    """Returns values as an array, without a copy where that is possible."""
    if hasattr(values, "__dlpack__") and not isinstance(values, np.ndarray):
        return np.from_dlpack(values)
    return np.asarray(values)
