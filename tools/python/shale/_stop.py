"""Calls that take long, and how they end early."""

import ctypes
import threading

from shale import _c


class Stop(_c.Handle):
    """Ends calls of other threads: those that were given it, and those that will be, raise Cancelled once any thread
    calls request()."""

    def __init__(self):
        super().__init__("stop")
        _c.call("shale_stop_create", ctypes.byref(self.value))

    def request(self) -> None:
        """Ends the calls soon. It cannot be taken back."""
        _c.call("shale_stop_request", self.value)


def call_until_stopped(stop, name, *arguments, callbacks=()):
    """Does what _c.call does with a function that was given `stop`, but on a thread of its own, so that this thread
    takes part in signals meanwhile: a KeyboardInterrupt requests the stop, waits for the function to return, and goes
    on. A second one does not wait."""
    raised, ended = [], threading.Event()

    def body():
        try:
            _c.call(name, *arguments, callbacks=callbacks)
        except BaseException as exception:  # pylint: disable=broad-except
            raised.append(exception)
        finally:
            ended.set()

    thread = threading.Thread(target=body, name=name)
    try:
        thread.start()
        ended.wait()
    except BaseException:
        stop.request()
        if thread.ident is not None:  # It has begun.
            ended.wait()
        raise
    if raised:
        raise raised[0]
