"""Copies what tools/install built to a prefix. See `tools/install --help`."""

import argparse
import glob
import os
import re
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(_ROOT, "tools"))

from package.elf import Elf, ElfError  # noqa: E402
from package.private_libraries import Bundle, BundleError  # noqa: E402

_SCRIPTS = ("inspect_run", "launch", "plot_run")  # Of tools/: they need Python alone.
_HEADERS = "engine/c"
_TEMPLATES = "tools/package/templates"
# Where templates go, from the prefix.
_DEVELOPMENT_FILES = {
    "ShaleConfig.cmake": "lib/cmake/Shale",
    "ShaleConfigVersion.cmake": "lib/cmake/Shale",
    "shale.pc": "lib/pkgconfig",
}


def version(soname):
    """Returns the version of everything that is installed. A library of another SONAME is another major version,
    because programs do not start with it; the minor version is that of the C interface."""
    return f"{soname.rpartition('.')[2]}.{interface_version()}"


def interface_version():
    with open(os.path.join(_ROOT, _HEADERS, "shale.h"), encoding="utf-8") as file:
        return re.search(r"#define SHALE_API_VERSION (\d+)", file.read()).group(1)


class Installation:
    """Files below a prefix. Each appears complete or not at all, and programs that use the former ones keep them."""

    def __init__(self, prefix):
        self.prefix = prefix

    def path(self, name):
        path = os.path.join(self.prefix, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def copy(self, source, name, mode=0o644):
        with open(source, "rb") as file:
            self.write(file.read(), name, mode)

    def write(self, content, name, mode=0o644):
        path = self.path(name)
        with open(path + ".new", "wb") as file:
            file.write(content)
        os.chmod(path + ".new", mode)
        os.replace(path + ".new", path)

    def link(self, target, name):
        path = self.path(name)
        if os.path.lexists(path + ".new"):
            os.remove(path + ".new")
        os.symlink(target, path + ".new")
        os.replace(path + ".new", path)

    def remove_others(self, pattern, kept):
        """Removes the files of an earlier installation that match a pattern and are not kept."""
        for path in glob.glob(os.path.join(glob.escape(self.prefix), pattern)):
            if os.path.relpath(path, self.prefix) not in kept:
                os.remove(path)


def install_programs(to, library, tools):
    """Installs the library, the tools, and the libraries that they need, in lib/shale."""
    bundle = Bundle([library, *tools])
    private = {f"lib/shale/{name}": content for name, content in bundle.libraries()}
    for name, content in private.items():
        to.write(content, name)
    soname = Elf(library).soname
    full = f"lib/{soname}.{interface_version()}"
    to.write(bundle.root(0, "shale"), full)
    to.link(os.path.basename(full), f"lib/{soname}")
    to.link(soname, "lib/libshale.so")
    for i, tool in enumerate(tools, 1):
        to.write(bundle.root(i, "../lib/shale"), f"bin/shale-{os.path.basename(tool)}", 0o755)
    for script in _SCRIPTS:
        to.copy(os.path.join(_ROOT, "tools", script), f"bin/shale-{script}", 0o755)
    installed = [os.path.basename(tool) for tool in tools] + list(_SCRIPTS)
    to.remove_others("bin/shale-*", [f"bin/shale-{name}" for name in installed])
    to.remove_others("lib/shale/libshale_*", private)
    to.remove_others(f"lib/{soname}.*", (full,))
    for package, license_file in bundle.licenses().items():
        to.copy(license_file, f"share/doc/shale/LICENSE.{package}")
    to.copy(os.path.join(_ROOT, "LICENSE"), "share/doc/shale/LICENSE")


def install_development_files(to, soname):
    """Installs what compilers, CMake and pkg-config read."""
    for header in sorted(glob.glob(os.path.join(_ROOT, _HEADERS, "shale*.h"))):
        to.copy(header, f"include/{os.path.basename(header)}")
    for name, folder in _DEVELOPMENT_FILES.items():
        with open(os.path.join(_ROOT, _TEMPLATES, name), encoding="utf-8") as file:
            text = file.read().replace("@VERSION@", version(soname)).replace("@SONAME@", soname)
        to.write(text.encode(), f"{folder}/{name}")


def main(arguments):
    parser = argparse.ArgumentParser(prog="tools/package/main.py", description=__doc__)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--built", required=True, help="the folder .out/bin/tools of the build")
    parser.add_argument("--programs", required=True, metavar="NAME,...", help="those of the build to install")
    options = parser.parse_args(arguments)
    to = Installation(options.prefix)
    library = os.path.join(options.built, "package/libshale.so")
    try:
        install_programs(to, library, [os.path.join(options.built, tool) for tool in options.programs.split(",")])
        install_development_files(to, Elf(library).soname)
    except (BundleError, ElfError, OSError) as error:
        print(f"tools/install: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
