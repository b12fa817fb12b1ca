"""Says what a kit needs of a machine, finds what the machine has, and compares both before anything runs."""

import os
import re
import subprocess

# The oldest CUDA that a driver must support. The programs link the runtime of CUDA 13.
OLDEST_DRIVER = "13.0"
OLDEST_COMPUTE = "8.0"
# Symbol versions of the C and C++ libraries. A program does not start where the library has an older newest version.
_LIBRARIES = {"GLIBC": "glibc", "GLIBCXX": "libstdc++"}


def numbers(version):
    """Makes versions comparable: "2.36" becomes (2, 36)."""
    return tuple(int(part) for part in version.split("."))


def newest(versions):
    return max(versions, key=numbers, default=None)


def wanted_by(paths):
    """Returns the newest version of each of _LIBRARIES that these programs and libraries want."""
    text = "".join(subprocess.run(["readelf", "--version-info", "--wide", path], capture_output=True, text=True,
                                  check=True).stdout for path in paths)
    found = {name: newest(re.findall(rf"Name: {name}_([\d.]+)", text)) for name in _LIBRARIES}
    return {name: version for name, version in found.items() if version}


def versions_here(folders):
    """Returns the newest version of each of _LIBRARIES that this machine has, without those that cannot be found.
    `folders` is where the loader looks for libstdc++.so.6, in order."""
    found = {}
    try:
        said = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except ValueError:  # Another C library than glibc.
        said = ""
    if glibc := re.search(r"[\d.]+", said):
        found["GLIBC"] = glibc[0]
    path = next((p for p in (os.path.join(f, "libstdc++.so.6") for f in folders) if os.path.exists(p)), None)
    if path:
        with open(path, "rb") as file:
            defined = re.findall(rb"GLIBCXX_(\d[\d.]*)\0", file.read())
        found["GLIBCXX"] = newest(version.decode() for version in defined)
    return found


def lacks_versions(kit, here):
    """Returns in one line which libraries are older than kit.json wants, or "" if none is."""
    old = [f"{_LIBRARIES[name]} with {name}_{version}, found {name}_{here[name]}"
           for name, version in kit.get("needs", {}).items() if name in here and numbers(here[name]) < numbers(version)]
    return f"this system is too old for the kit: wanted {' and '.join(old)}; use a newer one" if old else ""


def code_for(arch, compute):
    """Says which code of a kit of these architectures ("80+ptx,90a") a GPU of this compute capability runs, or returns
    None. Code for 8.0 also runs on 8.6 and 8.9; code for 9.0a on 9.0 alone. From PTX the driver compiles code for any
    newer GPU when a program starts."""
    major, minor = numbers(compute)
    ptx = None
    for one in arch.split(","):
        number, _, with_ptx = one.partition("+")
        code, exact = divmod(int(number.rstrip("a")), 10), number.endswith("a")
        if code == (major, minor) or (not exact and code[0] == major and code[1] <= minor):
            return f"sm_{number}"
        if with_ptx and not exact and code <= (major, minor):
            ptx = f"PTX of compute_{number}, which the driver compiles at every first start"
    return ptx


def lacks_gpu(kit, driver, gpus):
    """Returns in one line why the driver or one of the GPUs cannot run this kit, or "" if all can. `driver` is the
    newest CUDA that the driver supports."""
    if numbers(driver) < numbers(OLDEST_DRIVER):
        return (f"the NVIDIA driver is too old: it supports CUDA {driver}, and this kit needs a driver for CUDA "
                f"{OLDEST_DRIVER} or newer (580 or newer)")
    for ordinal, gpu in enumerate(gpus):
        about = f"GPU {ordinal} ({gpu['name']}, compute capability {gpu['compute']})"
        if numbers(gpu["compute"]) < numbers(OLDEST_COMPUTE):
            return f"{about} is too old: wanted {OLDEST_COMPUTE} or newer; CUDA_VISIBLE_DEVICES can hide it"
        if "arch" in kit and not code_for(kit["arch"], gpu["compute"]):
            return f"{about}: this kit has no code for it, only for {kit['arch']}; pack one with pack --arch"
    return ""
