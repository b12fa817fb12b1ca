"""bundle: copies a library or program with the libraries that it needs, so that it runs anywhere and disturbs nobody.

Shale links Debian's shared Abseil, protobuf, oneDNN, Highway, ISA-L, OpenMP and what these need. A program that embeds
Shale may have other versions of them, linked in any way, also exported by its own executable. Searching the libraries
in another order (RTLD_DEEPBIND) would not keep the two apart: the loader makes some symbols of C++ unique in the
process (STB_GNU_UNIQUE), whatever library asks, and memory of the program's own malloc would be freed by another. So
every copied library gets a name of its own, as does every symbol that it exports.
"""

import os
import subprocess

from package.elf import Elf

# The libraries of every Linux system, which are not copied: those that the wheels of Python may rely on too (PEP 600).
SYSTEM = frozenset((
    "ld-linux-aarch64.so.1", "ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6",
    "libpthread.so.0", "librt.so.1", "libstdc++.so.6", "libz.so.1"))
_SUFFIX = ".shale"  # Tools that print the names of C++ show it as a variant of the function.


class BundleError(Exception):
    pass


class Bundle:
    """The libraries that some programs and libraries need, and the new names of everything."""

    def __init__(self, paths):
        """Reads the files at `paths` and finds what they need, and what that needs in turn."""
        self._roots = [Elf(path) for path in paths]
        self._libraries = {}  # By the name that others need them by.
        kept = set()
        waiting = list(self._roots)
        system = set()
        while waiting:
            elf = waiting.pop()
            for name in elf.needed:
                if name in SYSTEM and name not in system:
                    system.add(name)
                    kept |= Elf(_find(name, elf.path)).exported
                elif name not in SYSTEM and name not in self._libraries:
                    self._libraries[name] = Elf(_find(name, elf.path))
                    waiting.append(self._libraries[name])
        exported = set().union(*(library.exported for library in self._libraries.values())) - kept
        self._symbols = {name: name + _SUFFIX for name in exported}
        self._names = {name: "libshale_" + name.removeprefix("lib") for name in self._libraries}

    @property
    def renamed_symbols(self):
        """The former names of the symbols that get new ones."""
        return self._symbols.keys()

    def libraries(self):
        """Yields the name and the content of each library. They find each other in the same folder."""
        for name, library in self._libraries.items():
            yield self._names[name], self._renamed(library, "$ORIGIN")

    def root(self, index, folder):
        """Returns the content of one of the files that were given. `folder` is where the libraries are, from its own
        folder."""
        return self._renamed(self._roots[index], f"$ORIGIN/{folder}")

    def _renamed(self, elf, runpath):
        return elf.renamed(self._names, self._symbols, runpath)

    def licenses(self):
        """Returns the files with the licenses of the copied libraries, by the name of the Debian package."""
        files = {}
        for library in self._libraries.values():
            package = _package(os.path.realpath(library.path))
            files[package] = f"/usr/share/doc/{package}/copyright"
            if not os.path.exists(files[package]):
                raise BundleError(f"{files[package]}: missing. It is the license of {library.path}, which goes with "
                                  "every copy; reinstall the package with its documentation")
        return files


def _find(name, user):
    """Returns the path of a library, from where the compiler finds libraries."""
    found = subprocess.run([os.environ.get("CC", "cc"), f"-print-file-name={name}"], capture_output=True, text=True,
                           check=True).stdout.strip()
    if not os.path.isabs(found):
        raise BundleError(f"{name}: not found where the compiler looks for libraries; {user} needs it")
    return found


def _package(path):
    """Returns the Debian package that installed a file."""
    for spelling in (path, path.removeprefix("/usr")):
        found = subprocess.run(["dpkg-query", "--search", spelling], capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return found.stdout.split(":")[0]
    raise BundleError(f"{path}: belongs to no Debian package, so that its license is not known")
