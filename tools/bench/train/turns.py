"""Lets contestants take turns of one or a few steps: one computes while the others are stopped. That way other load on
the machine disturbs all of them alike. Without turns, a quiet and a busy minute differ by more than the contestants
do."""

import re
import signal
import threading
import time

from bench.train import process


class Rotation:
    """Gives the machine to one member after the other, in the order in which they joined. Thread-safe after the
    joins."""

    def __init__(self):
        self._condition = threading.Condition()
        self._members = []
        self._at = 0
        self._ended = False  # Whether end() was called.

    def join(self):
        """Adds a member and returns its Turn. All members must join before the first one waits."""
        self._members.append(Turn(self))
        return self._members[-1]

    def end(self):
        """Ends the measurement. Members that wait for their turn get process.Ended, now or later."""
        with self._condition:
            self._ended = True
            self._condition.notify_all()

    def wait(self, turn):
        with self._condition:
            self._condition.wait_for(lambda: self._ended or self._members[self._at] is turn)
            if self._ended:
                raise process.Ended()

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
        self._lock = threading.Lock()  # Guards _processes, and whether they are stopped.
        self._processes = []
        self.stopped = threading.Event()
        self.seconds = []  # Seconds per step in each turn after the warm-up.

    def by_step(self, pattern, warmup, turns, each=1):
        """Divides the run into turns. Each line of the first process that matches `pattern` ends a step. The first
        `warmup` steps are one turn, then `turns` turns of `each` steps follow. After the last one the processes run to
        their end. Without this call the whole run is one turn."""
        self._step, self._warmup, self._each, self._last = re.compile(pattern), warmup, each, warmup + turns * each

    def wait(self):
        self._rotation.wait(self)

    def leave(self):
        """Leaves the rotation, at the end or after a failure. May be called more than once."""
        self._rotation.leave(self)

    def begin(self, processes):
        """Registers the processes (subprocess.Popen) right after their start."""
        with self._lock:
            self._processes = processes
            if self.stopped.is_set():  # A line that came before this call set it.
                self._signal(signal.SIGSTOP)

    def line(self, text):
        """Handles one line of the first process. Called in the thread that reads the lines."""
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
        """Lets the other members have their turns, then continues the processes. Call it after `stopped` is set."""
        self._rotation.pass_on()
        self.wait()
        with self._lock:
            self.stopped.clear()
            self._began = time.monotonic()
            self._signal(signal.SIGCONT)

    def _signal(self, number):
        for one in self._processes:
            process.send(one, number)
