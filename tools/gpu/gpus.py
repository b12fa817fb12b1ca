"""Finds the GPUs of this machine, or takes those that a description has."""

import ctypes
import json
import os
from dataclasses import dataclass

# Machines by name. Their memory is what CUDA reports of such GPUs, rounded.
_DESCRIBED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpus.json")
# Attributes of cuDeviceGetAttribute.
_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76


@dataclass
class Gpus:
    """The GPUs of a machine in CUDA's order, each with "name", "bytes", "compute" (its compute capability, "9.0") and
    "bus" (its place on the PCI bus, by which the driver's tools know it), and the newest CUDA that the driver supports
    ("13.0")."""
    all: list
    driver: str


def first_of_kinds(gpus):
    """Returns the number of the first GPU of each kind in a list as in Gpus."""
    names = [gpu["name"] for gpu in gpus]
    return [names.index(name) for name in dict.fromkeys(names)]


def find():
    """Returns the Gpus that the driver shows. Raises ValueError, which says in one line why there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise ValueError("no GPU: there is no NVIDIA driver here (libcuda.so.1)") from None
    code = driver.cuInit(0)
    if code != 0:
        raise ValueError(f"no GPU: the NVIDIA driver does not start (cuInit returns {code})")
    count, version = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetCount(ctypes.byref(count))
    if count.value == 0:
        raise ValueError("no GPU: the NVIDIA driver counts none (CUDA_VISIBLE_DEVICES may hide them)")
    found = []
    for ordinal in range(count.value):
        device, name, size = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
        major, minor, bus = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(32)
        driver.cuDeviceGet(ctypes.byref(device), ordinal)
        driver.cuDeviceGetName(name, 256, device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        driver.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_MAJOR, device)
        driver.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_MINOR, device)
        driver.cuDeviceGetPCIBusId(bus, 32, device)
        found.append({"name": name.value.decode(errors="replace"), "bytes": size.value,
                      "compute": f"{major.value}.{minor.value}", "bus": bus.value.decode()})
    return Gpus(found, f"{version.value // 1000}.{version.value % 1000 // 10}")


def described(description):
    """Returns the Gpus of a machine that is described in gpus.json, by its name there, or in another file of such an
    object. Raises ValueError, which says in one line what is wrong with the description."""
    with open(_DESCRIBED, encoding="utf-8") as file:
        known = json.load(file)
    if description in known:
        machine = known[description]
    elif not os.path.exists(description):
        raise ValueError(f"--gpu={description}: there is no such file, and the known names are {', '.join(known)}")
    else:
        try:
            with open(description, encoding="utf-8") as file:
                machine = json.load(file)
        except ValueError as error:
            raise ValueError(f"--gpu={description} is not JSON: {error}") from None
    try:
        return Gpus([{"name": gpu["name"], "bytes": int(gpu["gib"] * 2**30), "compute": gpu["compute"], "bus": ""}
                     for gpu in machine["gpus"]], machine["driver"])
    except (KeyError, TypeError) as error:
        raise ValueError(f'--gpu={description} wants {{"driver": "13.0", "gpus": [{{"name": .., "gib": .., '
                         f'"compute": "9.0"}}]}}; found no {error}') from None
