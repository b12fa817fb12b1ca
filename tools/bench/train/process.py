"""Runs the processes of a contestant. Records their time, their memory, and the load of other processes.

Each process leads a process group of its own. A signal to the group also reaches the compilers that PyTorch starts, and
Ctrl-C reaches only this program, which then ends all groups.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import threading
import time


class Failed(Exception):
    """A process failed. The message says which and how."""


class Ended(Exception):
    """The whole measurement must end."""


class Killed(Failed):
    """A process was killed by SIGKILL, as the system does when memory is short."""


@dataclasses.dataclass
class Outcome:
    """The outcome of one process."""
    lines: list  # (seconds since the start, text) of each line of standard output.
    seconds: float
    peak_rss_bytes: int
    cpu_seconds: float


@dataclasses.dataclass
class Group:
    outcomes: list
    other_cores: float  # Cores that other processes kept busy while the group ran, on average.


def busy_seconds():
    """Returns the CPU time of the whole machine since its start, with the time taken by its host; 0 if not known."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def other_cores_now(seconds=1.0):
    """Sleeps, and returns how many cores were busy meanwhile."""
    before = busy_seconds()
    time.sleep(seconds)
    return (busy_seconds() - before) / seconds


class _Process:
    def __init__(self, command, environment, log, on_line):
        self.command = command
        self.log_path = log
        self.on_line = on_line
        self.lines = []
        self.outcome = None
        with open(log, "w", encoding="utf-8") as errors:
            self.started = time.monotonic()
            self.popen = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                          stderr=errors, text=True, errors="replace", process_group=0)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        for line in self.popen.stdout:
            self.lines.append((time.monotonic() - self.started, line.rstrip("\n")))
            self.on_line(self.lines[-1][1])

    def poll(self):
        """Returns whether the process has ended. Then kills the rest of its group, and stores its outcome."""
        if self.outcome is None and os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            seconds = time.monotonic() - self.started
            send(self.popen, signal.SIGKILL)  # Comes before the wait, which frees the number of the group.
            _, status, usage = os.wait4(self.popen.pid, 0)
            # Tells Popen that the process has been waited for.
            self.popen.returncode = os.waitstatus_to_exitcode(status)
            # Does not wait forever, because a process outside the group may keep the pipe open.
            self.thread.join(timeout=5)
            if not self.thread.is_alive():
                self.popen.stdout.close()
            self.outcome = Outcome(self.lines, seconds, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime)
        return self.outcome is not None

    def end(self):
        while not self.poll():
            send(self.popen, signal.SIGKILL)
            time.sleep(0.01)

    def failure(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            said = file.read().strip().splitlines() or [text for _, text in self.lines]
        return (f"{os.path.basename(self.command[0])} ended with {self.popen.returncode}: "
                f"{' | '.join(said[-3:]) or 'it printed nothing'} (see {os.path.relpath(self.log_path)})")


def send(popen, number):
    """Sends a signal to the group of a process that was started by run(), unless the process has been waited for."""
    if popen.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, number)


def run(commands, environment, log_folder, name, turn=None, ended=None, timeout_seconds=7200):
    """Runs the commands in parallel until all have ended. Takes turns with other contestants if `turn` is given
    (turns.py). Raises Failed if one fails or takes too long, and Ended soon after the event `ended` is set; none is
    left running then. Standard error of command I goes to log_folder/name-I.log."""
    os.makedirs(log_folder, exist_ok=True)
    if turn:
        turn.wait()
    busy, seconds = _Sum(busy_seconds), _Sum(time.monotonic)
    processes = []
    try:
        for i, command in enumerate(commands):
            log = os.path.join(log_folder, f"{name}-{i}.log")
            on_line = turn.line if turn and i == 0 else lambda _: None
            processes.append(_Process(command, environment, log, on_line))
        stopped = turn.stopped if turn else threading.Event()
        if turn:
            turn.begin([p.popen for p in processes])
        waiting = list(processes)
        while waiting:
            # Polls rarely enough to take no time from the processes, which run for tenths of seconds or more.
            if stopped.wait(0.02):
                busy.pause()
                seconds.pause()
                turn.next()
                busy.go_on()
                seconds.go_on()
            if ended and ended.is_set():
                raise Ended()
            for process in [p for p in waiting if p.poll()]:
                waiting.remove(process)
                if process.popen.returncode != 0:
                    # A process that lost its killed peer may be seen to end first.
                    killed = [p for p in processes if p.poll() and p.popen.returncode == -signal.SIGKILL]
                    raise Killed(killed[0].failure()) if killed else Failed(process.failure())
            if seconds.so_far() > timeout_seconds:
                raise Failed(f"{name} did not end within {timeout_seconds} s")
    finally:
        for process in processes:
            process.end()
    own = sum(p.outcome.cpu_seconds for p in processes)
    return Group([p.outcome for p in processes], max(0.0, busy.so_far() - own) / seconds.so_far())


class _Sum:
    """Sums up how far a clock advances, except during pauses."""

    def __init__(self, clock):
        self._clock = clock
        self._before = 0.0
        self.go_on()

    def go_on(self):
        self._begin = self._clock()

    def pause(self):
        self._before = self.so_far()

    def so_far(self):
        """Returns the sum. Must not be called during a pause."""
        return self._before + self._clock() - self._begin
