#!/usr/bin/env python3
"""Makes the Python wheel of Shale from an installed prefix. tools/install calls it.

    tools/python/make_wheel.py PREFIX FOLDER

Packs tools/python/shale with the libraries of PREFIX/lib into FOLDER/shale-<version>-py3-none-<platform>.whl, and
prints its path. The wheel needs neither a compiler nor Debian's libraries. Its platform says the oldest glibc that it
runs on: at least the largest version of a glibc symbol that the libraries use, and one that comes with the libstdc++
that they need.
"""

import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_PACKAGE = os.path.join(_ROOT, "tools/python/shale")
_TIME = (2020, 1, 1, 0, 0, 0)  # Equal inputs make equal wheels.

# The glibc 2.n of the first systems with GLIBCXX_3.4.k, by k, as auditwheel's policies have it.
_GLIBC_OF_GLIBCXX = {29: 34, 30: 35}

_METADATA = """Metadata-Version: 2.1
Name: shale
Version: {version}
Summary: A fully sharded training engine whose memory is planned to the byte before a run starts
License: {license}
Requires-Python: >=3.8
Requires-Dist: numpy>=1.22
Description-Content-Type: text/markdown

{readme}
"""
_WHEEL = """Wheel-Version: 1.0
Generator: shale
Root-Is-Purelib: false
Tag: py3-none-{platform}
"""


def version(prefix):
    """Returns the version of an installed prefix, which pkg-config says too. The package has the same."""
    with open(os.path.join(prefix, "lib/pkgconfig/shale.pc"), encoding="utf-8") as file:
        return re.search(r"^Version: (.+)$", file.read(), re.M).group(1)


def libraries(prefix):
    """Returns the libraries of an installed prefix as pairs of the path in the wheel and the file."""
    found = [("shale/lib/libshale.so", os.path.join(prefix, "lib/libshale.so"))]
    folder = os.path.join(prefix, "lib/shale")
    found += [(f"shale/lib/shale/{name}", os.path.join(folder, name)) for name in sorted(os.listdir(folder))]
    return found


def oldest_glibc(paths):
    """Returns n of the oldest glibc 2.n that the libraries run on."""
    needed = 31  # Nothing older was tried.
    for path in paths:
        symbols = subprocess.run(["objdump", "-T", path], stdout=subprocess.PIPE, text=True, check=True).stdout
        needed = max([needed, *map(int, re.findall(r"\bGLIBC_2\.(\d+)", symbols))])
        for cxx in map(int, re.findall(r"\bGLIBCXX_3\.4\.(\d+)", symbols)):
            if cxx > max(_GLIBC_OF_GLIBCXX):
                raise ValueError(f"{path} needs GLIBCXX_3.4.{cxx}; add the glibc that comes with it")
            needed = max(needed, _GLIBC_OF_GLIBCXX.get(cxx, 0))
    return needed


def read(path):
    with open(path, "rb") as file:
        return file.read()


def contents(prefix):
    """Yields the path in the wheel and the bytes of every file but those of the metadata."""
    for folder, _, names in sorted(os.walk(_PACKAGE)):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith(".py") or name == "py.typed":
                yield "shale/" + os.path.relpath(path, _PACKAGE), read(path)
    for inside, path in libraries(prefix):
        yield inside, read(path)


def make(prefix, folder):
    """Writes the wheel and returns its path."""
    os.makedirs(folder, exist_ok=True)
    tag = f"manylinux_2_{oldest_glibc([path for _, path in libraries(prefix)])}_{platform.machine()}"
    name = f"shale-{version(prefix)}"
    path = os.path.join(folder, f"{name}-py3-none-{tag}.whl")
    licenses = os.path.join(prefix, "share/doc/shale")
    license_name = read(os.path.join(_ROOT, "LICENSE")).decode().splitlines()[0].strip()
    metadata = {"METADATA": _METADATA.format(version=version(prefix), license=license_name,
                                             readme=read(os.path.join(_ROOT, "README.md")).decode()).encode(),
                "WHEEL": _WHEEL.format(platform=tag).encode(),
                "licenses/LICENSE": read(os.path.join(_ROOT, "LICENSE"))}
    if os.path.isdir(licenses):
        for file in sorted(os.listdir(licenses)):
            metadata[f"licenses/{file}"] = read(os.path.join(licenses, file))
    rows = []
    with zipfile.ZipFile(path + ".part", "w", zipfile.ZIP_DEFLATED) as wheel:
        files = list(contents(prefix)) + [(f"{name}.dist-info/{inside}", data) for inside, data in metadata.items()]
        for inside, data in files:
            info = zipfile.ZipInfo(inside, _TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o755 if ".so" in inside else 0o644) << 16
            wheel.writestr(info, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{inside},sha256={digest},{len(data)}\n")
        rows.append(f"{name}.dist-info/RECORD,,\n")
        wheel.writestr(zipfile.ZipInfo(f"{name}.dist-info/RECORD", _TIME), "".join(rows))
    os.replace(path + ".part", path)
    return path


def main():
    if len(sys.argv) != 3 or "--help" in sys.argv:
        print(__doc__.strip(), file=sys.stderr)
        return 0 if "--help" in sys.argv else 2
    print(make(sys.argv[1], sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
