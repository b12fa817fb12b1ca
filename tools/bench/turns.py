"""Contestants that take turns, a step or a few each: one computes while the others are stopped, so that whatever else the machine
does hits all of them alike. A quiet minute and a busy one differ by more than what is to be told apart."""

import contextlib
import os
import re
import signal
import threading
import time


class Ended(Exception):
    """The whole measurement is to end."""


class Rotation:
    """Passes the machine from one member to the next, in the order in which they joined."""

    def __init__(self):
        self._condition = threading.Condition()
        self._members = []
        self._at = 0
        self._ended = False  # All is to end.

    def join(self):
        """All join before the first one waits."""
        self._members.append(Turn(self))
        return self._members[-1]

    def end(self):
        """Whoever waits gets Ended, and whoever has the machine as soon as it looks at `stopped`."""
        with self._condition:
            self._ended = True
            self._condition.notify_all()
            for member in self._members:
                member.stopped.set()

    def wait(self, turn):
        with self._condition:
            self._condition.wait_for(lambda: self._ended or self._members[self._at] is turn)
            if self._ended:
                raise Ended()

    def pass_on(self):
        with self._condition:
            self._at = (self._at + 1) % len(self._members)
            self._condition.notify_all()

    def leave(self, turn):
        with self._condition:
            if turn not in self._members:
                return
            index = self._members.index(turn)
            del self._members[index]
            if index < self._at:
                self._at -= 1
            self._at %= max(1, len(self._members))
            self._condition.notify_all()


class Turn:
    """One member: its processes, and how long their steps took."""

    def __init__(self, rotation):
        self._rotation = rotation
        self._step = None
        self._each = 1
        self._last = 0
        self._warmup = 0
        self._done = 0
        self._began = 0.0
        self._lock = threading.Lock()  # Guards the processes and whether they are stopped.
        self._processes = []
        self.stopped = threading.Event()
        self.seconds = []  # Of a step, in each turn after `warmup`.

    def by_step(self, pattern, warmup, turns, each=1):
        """A line of the first process that matches ends a step. The first `warmup` steps are one turn, then every `each`
        are one, and the end follows the last. Without this call everything is one turn."""
        self._step, self._warmup, self._each, self._last = re.compile(pattern), warmup, each, warmup + turns * each

    def wait(self):
        self._rotation.wait(self)

    def leave(self):
        """When nothing is left to do, or nothing can be done. Again: nothing happens."""
        self._rotation.leave(self)

    def begin(self, processes):
        """Processes (subprocess.Popen) that have just been started."""
        with self._lock:
            self._processes = processes
            if self.stopped.is_set():  # By a line that came at once.
                self._signal(signal.SIGSTOP)

    def line(self, text):
        """Called for every line of the first process as it comes, in the thread that reads them."""
        if not self._step or not self._step.match(text):
            return
        now = time.monotonic()
        self._done += 1
        if self._done < self._warmup or (self._done - self._warmup) % self._each:
            return
        if self._done > self._warmup:
            self.seconds.append((now - self._began) / self._each)
        if self._done < self._last:
            with self._lock:
                self._signal(signal.SIGSTOP)
                self.stopped.set()

    def next(self):
        """After `stopped`: lets the others have theirs, then goes on."""
        self._rotation.pass_on()
        self.wait()
        with self._lock:
            self.stopped.clear()
            self._began = time.monotonic()
            self._signal(signal.SIGCONT)

    def _signal(self, number):
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):  # It has ended, which whoever waits for it will see.
                    os.kill(process.pid, number)
