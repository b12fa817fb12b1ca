"""Lets contestants of --before run: the `train` of another build, for instance of an earlier commit.

A job's fields and enum values were renamed over time. A binary holds the descriptor of its job.proto, with all of their
names. Here these are looked up, and today's jobs are translated into the words that the binary knows.
"""

import functools
import re

from bench.train.programs import Shale

_SUFFIX = "-before"

# Maps today's fields, which may be messages, to their former paths.
_FIELDS = {"lr_schedule": "schedule", "activation_checkpointing.preset": "memory.retention",
           "sharding.accumulation": "sharding.schedule"}
# Maps today's fields and values to the former values.
_VALUES = {("activation_checkpointing.preset", "NONE"): "KEEP_ALL", ("sharding.accumulation", "NO_SYNC"): "DEFERRED"}


def twin(name):
    """Returns the name of the contestant that is the same as `name`, but of the other build."""
    return name + _SUFFIX


def original(name):
    """Returns the name of the contestant that the contestant of --before is the twin of."""
    return name.removesuffix(_SUFFIX)


class Words:
    """The words of the jobs that a binary understands."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self._bytes = file.read()

    def knows(self, word):
        """Returns whether a field or an enum value has this name in the binary's job.proto."""
        # The descriptor is a protobuf message. In all of its messages, `name` has the number 1, and so the tag "\n".
        return b"\n" + bytes([len(word)]) + word.encode() in self._bytes

    def translated(self, settings):
        """Returns the settings, a dict from path to value, with former words where the binary has those."""
        return {self._path(path): self._value(path, value) for path, value in settings.items()}

    def unknown(self, settings):
        """Returns the settings among these that the binary does not know, as "path=value"."""
        return [f"{path}={value}" for path, value in self.translated(settings).items()
                if not all(self.knows(name) for name in path.split(".")) or (_is_enum(value) and not self.knows(value))]

    def _path(self, path):
        for today, former in _FIELDS.items():
            if (path == today or path.startswith(today + ".")) and self.knows(former.rpartition(".")[2]):
                return former + path.removeprefix(today)
        return path

    def _value(self, path, value):
        former = _VALUES.get((path, value))
        return former if former and self.knows(former) else value


@functools.cache
def words_of(path):
    """Returns the Words of the binary at `path`, which is read once."""
    return Words(path)


def _is_enum(value):
    return isinstance(value, str) and re.fullmatch(r"[A-Z][A-Z0-9_]*", value) is not None


class Before(Shale):
    """The twin of a contestant of the engine: the same training by the binary of --before. Runs only with --before."""

    def __init__(self, twin_of):
        vars(self).update(vars(twin_of))
        self.about, self.extra, self.group = f"{twin_of.about}, by the other build", True, ""

    def command(self, workload, place, settings):
        # The job file has today's words, so the command line sets all of its fields.
        return [place.before, f"--job={place.empty_job()}", "--overwrite",
                *(f"--set={path}={value}" for path, value in _all(workload, place.before, settings).items())]

    def unknown(self, workload, binary, threads):
        """Returns the settings of its job that the binary does not know."""
        return words_of(binary).unknown(workload.flat(self.settings(workload, threads)))


def _all(workload, binary, settings):
    return words_of(binary).translated(workload.flat(settings))
