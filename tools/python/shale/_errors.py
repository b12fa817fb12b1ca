"""The errors of the package."""


class ShaleError(Exception):
    """An error of the engine. `code` is its shale_code (shale.h)."""

    code = 2

    def __init__(self, message, code=None):
        super().__init__(message)
        if code is not None:
            self.code = code


class Cancelled(ShaleError):
    """A call that a Stop ended."""

    code = 1


class InvalidJob(ShaleError, ValueError):
    """A job, an argument or data that the engine cannot use."""

    code = 3


class DeadlineExceeded(ShaleError, TimeoutError):
    """A job whose planning takes longer than admit() gives it."""

    code = 4

    def __str__(self):
        return self.args[0]


class NotFound(ShaleError, FileNotFoundError):
    """A file, a checkpoint or a parameter that does not exist."""

    code = 5

    def __str__(self):
        return self.args[0]


class OutOfMemory(ShaleError, MemoryError):
    """A job that does not fit. The message names overrides with which it would. From admit(): a job that could take
    more memory to plan than it is given."""

    code = 8


class FailedPrecondition(ShaleError, RuntimeError):
    """A call that the state does not allow."""

    code = 9


_BY_CODE = {c.code: c for c in (Cancelled, InvalidJob, DeadlineExceeded, NotFound, OutOfMemory,
                                FailedPrecondition)}


def error_of(code, message):
    """Returns the exception of a shale_code."""
    return _BY_CODE.get(code, ShaleError)(message, code)
