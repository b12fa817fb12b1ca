#!/usr/bin/env python3
"""Tests tools/package: libraries and symbols get new names, and what was renamed still works."""

import ctypes
import os
import stat
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, "tools")

from package import elf, main, private_libraries  # noqa: E402

# A library like those that Shale needs: it calls its own exported functions, also through a table, its symbols have
# versions, and it has thread-local data and a symbol that the loader makes unique in the process.
_INNER = """
#include <cstring>
#include <string>
template <class T> struct Counter { static int count; };
template <class T> int Counter<T>::count = 40;
template struct Counter<int>;
thread_local int local = 2;
extern "C" __attribute__((weak)) int two() { return local; }
extern "C" { int (*table[])() = {two}; }
extern "C" int answer() { return Counter<int>::count + table[0](); }
std::string Name(int n) { return std::string(n, 'x'); }
"""
_OUTER = """
#include <string>
std::string Name(int n);
extern "C" int answer();
extern "C" int api() { return answer() + static_cast<int>(Name(8).size()); }
"""
_PROGRAM = "extern \"C\" int api(); int main() { return api(); }"
# Defines the same names.
_OTHER = """
#include <string>
std::string Name(int n) { return ""; }
extern "C" int answer() { return 1; }
extern "C" int two() { return 1; }
template <class T> struct Counter { static int count; };
template <class T> int Counter<T>::count = 1;
template struct Counter<int>;
"""
_VERSIONS = "INNER_1 { global: two; }; INNER_2 { global: *; } INNER_1;"


class PackageTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def compile(self, name, source, *flags):
        with open(self.path("source.cc"), "w", encoding="utf-8") as file:
            file.write(source)
        subprocess.run(["g++", "-O1", "-fPIC", "-o", self.path(name), self.path("source.cc"), *flags], check=True)
        return self.path(name)

    def write(self, name, content):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as file:
            file.write(content)
        os.chmod(self.path(name), 0o755)
        return self.path(name)

    def inner_and_outer(self):
        with open(self.path("versions"), "w", encoding="utf-8") as file:
            file.write(_VERSIONS)
        inner = self.compile("libinner.so.3", _INNER, "-shared", "-Wl,-soname,libinner.so.3",
                             "-Wl,--version-script," + self.path("versions"))
        outer = self.compile("libouter.so", _OUTER, "-shared", inner, "-Wl,-rpath," + self.folder)
        return inner, outer

    def renamed(self, inner, outer):
        """Writes renamed copies of both to new/, and returns the path of the outer one."""
        libraries = {"libinner.so.3": "libmine.so.3"}
        symbols = {name: name + ".mine" for name in elf.Elf(inner).exported}
        self.write("new/deep/libmine.so.3", elf.Elf(inner).renamed(libraries, symbols, "$ORIGIN"))
        return self.write("new/libouter.so", elf.Elf(outer).renamed(libraries, symbols, "$ORIGIN/deep"))

    def test_renamed_libraries_work_beside_others_of_the_same_names(self):
        inner, outer = self.inner_and_outer()
        new = self.renamed(inner, outer)
        self.assertEqual(ctypes.CDLL(new).api(), 50)
        other = self.compile("libother.so", _OTHER, "-shared")
        program = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).api())"
        for path, wanted in ((new, "50"), (outer, "1")):
            result = subprocess.run([sys.executable, "-c", program, path], env={**os.environ, "LD_PRELOAD": other},
                                    capture_output=True, text=True, check=False)
            self.assertEqual(result.stdout.strip(), wanted, result.stderr)

    def test_a_program_runs_with_renamed_libraries(self):
        inner, outer = self.inner_and_outer()
        program = self.compile("program", _PROGRAM, outer, inner, f"-Wl,-rpath-link,{self.folder}", "-pie")
        self.renamed(inner, outer)
        os.remove(outer)
        new = self.write("new/bin/program", elf.Elf(program).renamed({outer: "libouter.so"}, {}, "$ORIGIN/.."))
        self.assertEqual(subprocess.run([new], check=False).returncode, 50)

    def test_the_names_can_be_read_again(self):
        inner, outer = self.inner_and_outer()
        new = elf.Elf(self.renamed(inner, outer))
        self.assertIn("libmine.so.3", new.needed)
        self.assertEqual(new.runpath, "$ORIGIN/deep")
        self.assertIn("answer.mine", new.imported)
        self.assertIn("api", new.exported)
        library = elf.Elf(self.path("new/deep/libmine.so.3"))
        self.assertEqual(library.soname, "libmine.so.3")
        self.assertEqual(library.exported, {name + ".mine" for name in elf.Elf(inner).exported})
        # Readers that know nothing of this code agree.
        shown = subprocess.run(["readelf", "--dynamic", "--dyn-syms", "--version-info", "--wide", library.path],
                               capture_output=True, text=True, check=True)
        self.assertEqual(shown.stderr, "")
        self.assertRegex(shown.stdout, r" answer\.mine@@INNER_2\n")

    def test_files_that_cannot_be_renamed_are_refused(self):
        text = self.write("text", b"no library")
        with self.assertRaisesRegex(elf.ElfError, "text: no shared library or program of 64 bits"):
            elf.Elf(text)
        with self.assertRaisesRegex(elf.ElfError, "static: statically linked"):
            elf.Elf(self.compile("static", "int main() {}", "-static"))
        bare = self.compile("bare.so", "", "-shared", "-Wl,--build-id=none")
        with self.assertRaisesRegex(elf.ElfError, "bare.so: no program header can be spared; .* -Wl,--build-id"):
            elf.Elf(bare).renamed({}, {}, "$ORIGIN")

    def test_a_bundle_has_what_the_system_may_lack(self):
        inner, outer = self.inner_and_outer()
        with self.assertRaisesRegex(private_libraries.BundleError, "libinner.so.3: not found .*libouter.so needs it"):
            private_libraries.Bundle([outer])
        program = self.compile("libzip.so", _OTHER, "-shared", "-Wl,--no-as-needed", "-l:libgomp.so.1")
        bundle = private_libraries.Bundle([program])
        libraries = dict(bundle.libraries())
        self.assertEqual(list(libraries), ["libshale_gomp.so.1"])
        self.assertIn("GOMP_parallel", bundle.renamed_symbols)
        self.assertNotIn("malloc", bundle.renamed_symbols)
        self.assertEqual(list(bundle.licenses()), ["libgomp1"])

    def test_an_installation_replaces_files_and_leaves_open_ones_alone(self):
        to = main.Installation(self.path("prefix"))
        to.write(b"old", "lib/libshale.so.0.1", 0o755)
        to.link("libshale.so.0.1", "lib/libshale.so.0")
        with open(self.path("prefix/lib/libshale.so.0"), "rb") as still_open:
            to.write(b"new", "lib/libshale.so.0.1")
            to.write(b"newer", "lib/libshale.so.0.2")
            to.link("libshale.so.0.2", "lib/libshale.so.0")
            to.remove_others("lib/libshale.so.0.*", ["lib/libshale.so.0.2"])
            self.assertEqual(still_open.read(), b"old")
        self.assertEqual(sorted(os.listdir(self.path("prefix/lib"))), ["libshale.so.0", "libshale.so.0.2"])
        self.assertEqual(os.readlink(self.path("prefix/lib/libshale.so.0")), "libshale.so.0.2")
        self.assertEqual(stat.S_IMODE(os.stat(self.path("prefix/lib/libshale.so.0.2")).st_mode), 0o644)


if __name__ == "__main__":
    unittest.main()
