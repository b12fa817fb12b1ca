"""Runs one program until it ends, until it times out, or until this process is interrupted."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass

_POLL_SECONDS = 0.1


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


def run(command, environment, log, seconds, enough=None, folder=None):
    """Runs the program, with output and errors going to the file `log`. Kills it and all processes that it started
    after `seconds`, when enough() returns true, or when this process is interrupted. Returns an Ended. Raises OSError
    if the program cannot be started."""
    os.makedirs(os.path.dirname(log), exist_ok=True)
    began = time.monotonic()
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, cwd=folder, start_new_session=True)
    timed_out = ended_by_us = False
    try:
        while process.poll() is None:
            timed_out = time.monotonic() - began > seconds
            ended_by_us = not timed_out and enough is not None and enough()
            if timed_out or ended_by_us:
                break
            time.sleep(_POLL_SECONDS)
    finally:
        kill_group(process.pid)
        process.wait()
    return Ended(process.returncode, time.monotonic() - began, timed_out, ended_by_us, log)


def kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
