"""Runs programs until they end, until their time is over, or until this process is interrupted."""

import ctypes
import os
import signal
import subprocess
import time
from dataclasses import dataclass

_POLL_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1  # Of prctl.h.
_LIBC = ctypes.CDLL(None)


@dataclass
class Ended:
    code: int  # The exit code as subprocess reports it: -9 if killed by signal 9.
    seconds: float
    timed_out: bool = False
    enough: bool = False  # Whether it was killed because enough() returned true.
    log: str = ""

    def tail(self, lines=3):
        """Returns the last lines of its log, joined into one."""
        try:
            with open(self.log, encoding="utf-8", errors="replace") as file:
                said = [line.strip() for line in file if line.strip()]
        except OSError:
            said = []
        return " | ".join(said[-lines:]) or "it printed nothing"


@dataclass
class Program:
    """A program to run: output and errors go to the file `log`."""
    command: list
    environment: dict
    log: str


def run(command, environment, log, seconds, enough=None, folder=None):
    """Runs one program as run_all does, and returns its Ended."""
    return run_all([Program(command, environment, log)], seconds, enough, folder)[0]


def run_all(programs, seconds, enough=None, folder=None):
    """Runs programs side by side until all have ended. Kills them and all processes that they started after `seconds`,
    when enough() returns true, or when this process is interrupted. Returns an Ended for each. Raises OSError if one
    cannot be started."""
    began = time.monotonic()
    running, ended = [], {}
    timed_out = ended_by_us = False
    try:
        for program in programs:
            running.append(_start(program, folder))
        while True:
            for number, process in enumerate(running):
                if number not in ended and process.poll() is not None:
                    ended[number] = time.monotonic() - began
            if len(ended) == len(running):
                break
            timed_out = time.monotonic() - began > seconds
            ended_by_us = not timed_out and enough is not None and enough()
            if timed_out or ended_by_us:
                break
            time.sleep(_POLL_SECONDS)
    finally:
        for process in running:
            _kill_group(process.pid)
            process.wait()
    whole = time.monotonic() - began
    return [Ended(process.returncode, ended.get(number, whole), timed_out and number not in ended,
                  ended_by_us and number not in ended, program.log)
            for number, (program, process) in enumerate(zip(programs, running))]


def _in_child():
    """Puts a new program into a group of its own, and makes it end when this process does, even if that is killed: what
    ran on would disturb the measurements of the next call."""
    os.setpgid(0, 0)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start(program, folder):
    os.makedirs(os.path.dirname(program.log), exist_ok=True)
    with open(program.log, "w", encoding="utf-8") as output:
        return subprocess.Popen(program.command, env=program.environment, stdin=subprocess.DEVNULL, stdout=output,
                                stderr=subprocess.STDOUT, cwd=folder, preexec_fn=_in_child)


def _kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
