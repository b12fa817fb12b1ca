"""Finds what this machine has besides GPUs: CUDA's libraries, compute-sanitizer, a Python with PyTorch."""

import glob
import json
import os
import platform
import re
import shutil
import subprocess
import sys

from gpu import needs

# The libraries that the engine loads at run time: (title, file). Without one of them only its features are missing.
LIBRARIES = (("cuBLASLt", "libcublasLt.so.13"), ("cuDNN", "libcudnn.so.9"), ("NCCL", "libnccl.so.2"),
             ("NVRTC", "libnvrtc.so.13"))

# Functions that return the version of a library. Of such a library the newest that is found is used, because machines
# often have an old one where the loader looks, and a newer one beside PyTorch. It comes first on the path: other
# folders may hold an old one too.
_VERSIONS = {"cuDNN": "cudnnGetVersion"}
_ASK_VERSION = """
import ctypes, sys
function = getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])
function.restype = ctypes.c_size_t
print(function())
"""

_ASK_PYTHON = """
import json, sys
paths = [p for p in sys.path if p]
try:
    import torch
    said = {"torch": torch.__version__, "cuda": torch.version.cuda}
except ImportError:
    said = {}
print(json.dumps({"paths": paths, **said}))
"""


def _output(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


class Python:
    """A Python interpreter and what it can import."""

    def __init__(self, path, paths, torch=None, cuda=None):
        self.path, self.paths, self.torch, self.cuda = path, paths, torch, cuda

    @staticmethod
    def find(wanted=""):
        """Returns the interpreter `wanted` if it is given. Otherwise returns the first with PyTorch among this one and
        those on the PATH, or this one if none has it."""
        candidates = [wanted] if wanted else [sys.executable, *(shutil.which(n) for n in ("python3", "python"))]
        found = []
        for candidate in dict.fromkeys(c for c in candidates if c):
            try:
                said = json.loads(_output([candidate, "-c", _ASK_PYTHON]).strip().splitlines()[-1])
            except (ValueError, IndexError):
                continue
            found.append(Python(candidate, **said))
        return next((p for p in found if p.torch), found[0] if found else Python(sys.executable, sys.path))


def _ldconfig():
    """Returns a map from file name to folder for the libraries that the loader finds without help."""
    tool = shutil.which("ldconfig") or "/sbin/ldconfig"
    pairs = re.findall(r"^\s*(\S+) \(.*\) => (\S+)$", _output([tool, "-p"]), re.MULTILINE)
    return {name: os.path.dirname(path) for name, path in reversed(pairs)}


def _path_of(environment):
    return [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder]


def loader_folders(environment):
    """Returns where the loader looks for libstdc++.so.6."""
    found = _ldconfig().get("libstdc++.so.6")
    return _path_of(environment) + ([found] if found else [])


def version_of(title, path):
    """Returns the version of a library as a number that grows, or 0 if it does not tell or cannot be loaded."""
    said = _output([sys.executable, "-c", _ASK_VERSION, path, _VERSIONS[title]]).strip() if title in _VERSIONS else ""
    return int(said) if said.isdigit() else 0


def find_libraries(python, environment, ldconfig=None, version=version_of):
    """Returns a map from title to folder for those of LIBRARIES that are installed. Looks in CUDA_HOME, in
    LD_LIBRARY_PATH, where the loader looks, and in the nvidia-* packages of `python`. Takes the newest that it finds,
    and of equal ones the first."""
    home = environment.get("CUDA_HOME") or "/usr/local/cuda"
    loader = _ldconfig() if ldconfig is None else ldconfig
    from_path = _path_of(environment)
    packages = [folder for path in python.paths for folder in sorted(
        glob.glob(os.path.join(path, "nvidia", "*", "lib")))]
    found = {}
    for title, file in LIBRARIES:
        folders = [os.path.join(home, "lib64"), *from_path, *([loader[file]] if file in loader else []), *packages]
        here = [folder for folder in folders if os.path.exists(os.path.join(folder, file))]
        if here:
            found[title] = max(here, key=lambda folder: version(title, os.path.join(folder, file)))
    return found


def engine_environment(environment, libraries, own):
    """Returns the environment in which the engine's programs, and the libraries themselves, find these libraries. `own`
    is the kit's folder of libraries."""
    titles = sorted(libraries, key=lambda title: title not in _VERSIONS)
    folders = list(dict.fromkeys(libraries[title] for title in titles))
    ours = {"SHALE_CUDA_LIBRARIES": ":".join(folders)} if folders else {}
    path = ":".join([own, *folders, *_path_of(environment)])
    return {**environment, **ours, "LD_LIBRARY_PATH": path}


def find_sanitizer(environment):
    """Returns the path of compute-sanitizer, or None."""
    home = environment.get("CUDA_HOME") or "/usr/local/cuda"
    places = [os.path.join(home, "bin", "compute-sanitizer"),
              os.path.join(home, "compute-sanitizer", "compute-sanitizer")]
    return next((p for p in places if os.access(p, os.X_OK)), shutil.which("compute-sanitizer"))


def describe(gpus, arch, libraries, python, only_described=False):
    """Describes the machine for the report, as a dict of strings. If its GPUs are only described, this leaves out what
    this machine would say."""
    runs = lambda gpu: needs.code_for(arch, gpu["compute"]) if arch else "unknown code"
    info = {"gpus": "; ".join(f"{gpu['name']}, {gpu['bytes'] / 2**30:.1f} GiB, compute capability {gpu['compute']}, "
                              f"runs {runs(gpu)}" for gpu in gpus.all),
            "driver": f"for CUDA {gpus.driver}"}
    if only_described:
        return info
    fields = "driver_version,clocks.max.sm,clocks.max.mem,power.limit,compute_cap,ecc.mode.current"
    said = _output(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader"]).strip().splitlines()
    info["driver"] += ": " + ("; ".join(said) or "nvidia-smi is not here")
    info["system"] = f"Linux {platform.release()}, {os.cpu_count()} processors, Python {platform.python_version()}"
    info["torch"] = f"{python.torch} (CUDA {python.cuda}), {python.path}" if python.torch else "none"
    for title, file in LIBRARIES:
        folder = libraries.get(title)
        info[title] = os.path.realpath(os.path.join(folder, file)) if folder else "not found"
        if title in _VERSIONS and folder:
            info[title] += f", version {version_of(title, os.path.join(folder, file))}"
    return info
