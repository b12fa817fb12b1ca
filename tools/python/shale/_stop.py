"""Calls that take long, and how they end early."""

import ctypes
import queue
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


_ENDED = object()


class Listener:
    """Runs a function of Python on the thread that called the engine, although the engine calls it on another one."""

    def __init__(self, function):
        self._function = function
        self._asked, self._answers = queue.SimpleQueue(), queue.SimpleQueue()
        self._gone = False

    def ask(self, *arguments):
        """Returns what the function returns for the arguments, or True if nobody listens any more. For the engine's
        thread."""
        if not self._gone:
            self._asked.put(arguments)
            answer = self._answers.get()
        return True if self._gone else answer

    def listen(self):
        """Calls the function whenever it is asked, until end()."""
        while True:
            arguments = self._asked.get()
            if arguments is _ENDED:
                return
            self._answers.put(self._function(*arguments))

    def end(self):
        self._asked.put(_ENDED)

    def leave(self):
        """Makes ask() return True from now on, also where it waits."""
        self._gone = True
        self._answers.put(True)


def call_on_thread(name, *arguments, callbacks=(), stop=None, listener=None):
    """Does what _c.call does, but on a thread of its own. Python runs handlers of signals on the main thread alone,
    between instructions of Python: with the engine there, a KeyboardInterrupt would be raised where the engine calls
    back, and ctypes drops what is raised outside of the function's `try`.

    An exception on this thread, of a signal's handler or of `listener`, calls `stop`, waits for the engine to return,
    and goes on. A second one does not wait."""
    listener = listener or Listener(None)
    raised, ended = [], threading.Event()

    def body():
        try:
            _c.call(name, *arguments, callbacks=callbacks)
        except BaseException as exception:  # pylint: disable=broad-except
            raised.append(exception)
        finally:
            ended.set()
            listener.end()

    thread = threading.Thread(target=body, name=name)
    try:
        thread.start()
        listener.listen()
    except BaseException:
        listener.leave()
        if stop is not None:
            stop()
        if thread.ident is not None:  # It has begun.
            ended.wait()
        raise
    if raised:
        raise raised[0]
