"""Runs one program to its end, or to ours."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass

_POLL_SECONDS = 0.1


@dataclass
class Ended:
    code: int  # As subprocess has it: -9 for killed by signal 9.
    seconds: float
    timed_out: bool = False
    enough: bool = False  # `enough` said so, and it was killed.
    log: str = ""

    def tail(self, lines=3):
        """The last words of its log, on one line."""
        try:
            with open(self.log, encoding="utf-8", errors="replace") as file:
                said = [line.strip() for line in file if line.strip()]
        except OSError:
            said = []
        return " | ".join(said[-lines:]) or "it said nothing"


def run(command, environment, log, seconds, enough=None, folder=None):
    """Output and errors go to the file `log`. After `seconds`, or when enough() is true, the program and all that it
    started are killed; they are also when we are interrupted. Returns an Ended; OSError if it cannot be started."""
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
