"""Lets contestants of --before run: the `train` of another build, for instance of an earlier commit.

A binary holds the descriptors of the job spec, with the names of all fields and values. Here these are looked up, to
tell which settings of today's jobs it does not know.
"""

import functools
import re

from bench.train.programs import Shale

_SUFFIX = "-before"


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
        """Returns whether a field or an enum value has this name in the binary's job spec."""
        # The descriptor is a protobuf message. In all of its messages, `name` has the number 1, and so the tag "\n".
        return b"\n" + bytes([len(word)]) + word.encode() in self._bytes

    def unknown(self, settings):
        """Returns the settings among these that the binary does not know, as "path=value"."""
        return [f"{path}={value}" for path, value in settings.items()
                if not all(self.knows(name) for name in path.split(".")) or (_is_enum(value) and not self.knows(value))]


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
        # A job file of this build may have fields that the other lacks, so the command line sets those of the job.
        return [place.before, f"--job={place.empty_job()}", "--overwrite",
                *(f"--set={path}={value}" for path, value in workload.flat(settings).items())]

    def unknown(self, workload, binary, threads):
        """Returns the settings of its job that the binary does not know."""
        return words_of(binary).unknown(workload.flat(self.settings(workload, threads)))
