"""Finds or makes what a measurement needs on this machine: binaries, PyTorch, tokens, a folder to work in."""

import datetime
import glob
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sysconfig
import threading

from bench.train import isa, process, workloads

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
# The programs that are measured: the path below bazel-bin/tools, and the target.
PROGRAMS = {"train": "//tools:train", "bench/matmuls": "//tools/bench:matmuls"}
TORCH = "2.15.0"

# Replaces the function by which MKL decides whether to use AVX-512. MKL's own returns true only on Intel processors.
_MKL_SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


class Missing(Exception):
    """Something is missing on this machine. The message says what to do."""


class Place:
    """Folders and programs, and how processes are started there. `binaries` and `venv` are existing folders. If they
    are empty strings, prepare() makes them under .out/bench. `before` is another build's `train`, or None; `limit` is
    the class of processors that contestants are limited to (isa.py), or None."""

    def __init__(self, threads, binaries="", venv="", before=None, limit=None,
                 folder=os.path.join(ROOT, ".out", "bench")):
        self.threads, self.before, self.limit = threads, before, limit
        self.ended = threading.Event()  # Once it is set, run() ends its processes.
        self._folder = folder
        self._binaries, self._venv = binaries, venv
        self._tokens = {}
        os.makedirs(folder, exist_ok=True)

    def path(self, name):
        return os.path.join(self._folder, name)

    @property
    def logs(self):
        return self.path("logs")

    def binary(self, name):
        return os.path.join(self._binaries, name)

    def python(self):
        return os.path.join(self._venv, "bin", "python")

    @staticmethod
    def torch_program():
        return os.path.join(ROOT, "tools", "parity", "torch_train.py")

    def mkl_library(self):
        return self.path("mkl_avx512.so")

    def inductor_cache(self):
        """Returns the folder of code that torch.compile generated, which depends on the class of processors."""
        return self.path("inductor" + (f"-{self.limit}" if self.limit else ""))

    def empty_job(self):
        """Returns the path of a job file that sets nothing but a name. prepare() writes it."""
        return self.path("empty.textproto")

    def tokens(self, workload):
        if workload.vocabulary not in self._tokens:
            self._tokens[workload.vocabulary] = workloads.write_tokens(self.path("tokens"), workload.vocabulary)
        return self._tokens[workload.vocabulary]

    def environment(self, more=()):
        """Returns the environment of measured processes: ours without the variables that tune threads, memory or
        instructions, plus the limit's and `more`."""
        kept = {name: value for name, value in os.environ.items()
                if not re.match(r"(OMP|GOMP|KMP|MKL|DNNL|ONEDNN|ATEN|MALLOC|TORCH|TORCHINDUCTOR|PYTORCH)_|"
                                rf"(LD_PRELOAD|GLIBC_TUNABLES|PYTHONPATH|{isa.VARIABLE})$", name)}
        return {**kept, **isa.environment(self.limit), **dict(more)}

    def run(self, commands, name, turn, more=()):
        """Runs the commands in parallel, as process.run does, until `ended` is set. `more` adds to the environment."""
        return process.run(commands, self.environment(more), self.logs, name, turn, self.ended)

    def prepare(self, shale, torch):
        """Makes what the engine (`shale`) and PyTorch (`torch`) need. Raises Missing if that is impossible."""
        packages = _missing_for_torch(self._venv) if torch else []
        if shale and not self._binaries:
            packages.append("$(build_packages)")
        if packages:
            _call(["bash", "-c", f"source tools/build_defs/install.sh && install_packages {' '.join(packages)}"])
        if shale:
            self._prepare_binaries()
        if torch:
            self._prepare_torch()

    def _prepare_binaries(self):
        if not self._binaries:
            _call(["bazel", "build", "-c", "opt", "--noshow_progress", "--ui_event_filters=-info",
                   *PROGRAMS.values()])
            self._binaries = os.path.join(_output(["bazel", "info", "-c", "opt", "bazel-bin"]), "tools")
        for name, target in PROGRAMS.items():
            if not os.access(self.binary(name), os.X_OK):
                raise Missing(f"{self.binary(name)} is not there; build it: bazel build -c opt {target}")
        for binary in (self.binary("train"), self.before):
            if self.limit and binary and not isa.is_limited_by_environment(binary):
                raise Missing(f"{binary} cannot be limited to {self.limit}, for it was built before {isa.VARIABLE} "
                              "limited all kernels; leave out --isa, or build a later commit")
        with open(self.empty_job(), "w", encoding="ascii") as file:
            file.write('name: "empty"\n')

    def _prepare_torch(self):
        if not self._venv:
            self._venv = self.path("venv")
            if torch_version(self.python()) != TORCH:
                print(f"Installing torch {TORCH} into {self._venv} (5.6 GB)", flush=True)
                shutil.rmtree(self._venv, ignore_errors=True)
                _call(["python3", "-m", "venv", self._venv])
                _call([self.python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                       f"torch=={TORCH}", "numpy"])
        found = torch_version(self.python())
        if found != TORCH:
            raise Missing(
                f"torch {TORCH} is wanted, {self._venv} has {found or 'none'}; without --venv it is installed")
        source = self.path("mkl_avx512.c")
        with open(source, "w", encoding="ascii") as file:
            file.write(_MKL_SOURCE)
        _call(["gcc", "-shared", "-fPIC", "-o", self.mkl_library(), source])

    def describe(self):
        """Returns date, machine and versions as a dict of strings."""
        info = {"date": datetime.datetime.now().astimezone().isoformat(" ", "minutes"), "machine": _machine(),
                "system": f"{_os_name()}, Linux {platform.release()}",
                "instructions": isa.text(self.limit), "threads": str(self.threads), "commit": _commit(),
                "compiler": _compiler()}
        if self.before:
            info["before"] = f"train with SHA-256 {_digest(self.before)}"
        if self._venv:
            info["torch"] = torch_version(self.python())
        return info


def available_gib():
    """Returns how many GiB of memory are available for new processes."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return int(re.search(r"^MemAvailable:\s+(\d+) kB", file.read(), re.MULTILINE)[1]) / 2**20


def torch_version(python):
    """Returns torch's version without the build's suffix, such as "2.15.0"; empty if torch is not installed."""
    folder = os.path.dirname(os.path.dirname(python))
    package = glob.glob(os.path.join(folder, "lib", "python*", "site-packages", "torch", "version.py"))
    if not package:
        return ""
    with open(package[0], encoding="utf-8") as file:
        match = re.search(r"__version__ = '([^'+]*)", file.read())
    return match[1] if match else ""


def _missing_for_torch(venv):
    """Returns the missing Debian packages: those that virtual environments need, and those that torch needs to
    compile."""
    packages = []
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        packages.append("python3-dev")
    if not venv and subprocess.run(["python3", "-c", "import ensurepip, venv"], stderr=subprocess.DEVNULL,
                                   check=False).returncode != 0:
        packages.append("python3-venv")
    return packages


def _call(command):
    try:
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
    except OSError as error:
        raise Missing(f"{command[0]}: {error.strerror}") from None
    if code != 0:
        raise Missing(f"{' '.join(command[:4])} ... failed with {code}")


def _output(command):
    try:
        return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def _commit():
    commit = _output(["git", "rev-parse", "--short=12", "HEAD"]) or "unknown"
    return commit + (" with changes" if _output(["git", "status", "--porcelain", "--untracked-files=no"]) else "")


def _compiler():
    return (_output(["g++", "--version"]).splitlines() or ["unknown"])[0]


def _digest(path):
    """Returns the first 12 hex digits of a file's SHA-256."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:12]


def _os_name():
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _machine():
    """Describes the processor's model, family (which distinguishes generations of the same name), cores, vector units,
    and the memory."""
    fields = isa.processor()
    flags = fields.get("flags", "").split()
    units = [name for flag, name in (("avx2", "AVX2"), ("avx512f", "AVX-512"),
                                     ("avx512_bf16", "bf16"), ("amx_tile", "AMX")) if flag in flags]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (f"{fields.get('model name', platform.processor() or 'unknown')} (family {fields.get('cpu family', '?')}, "
            f"model {fields.get('model', '?')}), {len(os.sched_getaffinity(0))} cores, "
            f"{', '.join(units) or 'no vector units known'}, {memory:.0f} GiB")
