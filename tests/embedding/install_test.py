"""Tests tools/install: what libshale.so exports and needs, and that programs outside build against it and train, also
beside other versions of its libraries. run_test.py runs this."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

from installation import OLD, REMOVED, REPLACED, installed
from run_test import MODEL, QUIET, ROOT, WORKSPACE, run, write_job_with_model, write_text

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools"))

from package.elf import Elf  # noqa: E402
from package.private_libraries import SYSTEM, Bundle  # noqa: E402

_TOOLS = ("train", "plan", "calibrate", "generate", "evaluate", "export", "tokenize", "inspect_checkpoint")
_SCRIPTS = ("inspect_run", "launch", "plot_run")
_SOURCES = os.path.join(ROOT, "tests/embedding/c")


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="shale_install.")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.prefix = installed()
        cls.library = os.path.realpath(os.path.join(cls.prefix, "lib/libshale.so"))
        write_text(cls.folder)
        cls.job = os.path.join(cls.folder, "job.textproto")
        with open(os.path.join(WORKSPACE, "job.textproto"), encoding="utf-8") as file, \
                open(cls.job, "w", encoding="utf-8") as copy:
            copy.write(file.read())
        cls.expected = cls.train([os.path.join(cls.prefix, "bin/shale-train")])

    @classmethod
    def train(cls, tool):
        """Trains with the installed tool and returns the exported weights."""
        out = tempfile.mkdtemp(dir=cls.folder)
        run([*tool, f"--job={cls.job}", "--set", MODEL, "--set", f"telemetry.run_folder={out}/run"])
        run([os.path.join(cls.prefix, "bin/shale-export"), f"--run={out}/run", f"--out={out}/exported", "--plain"])
        with open(f"{out}/exported/model.safetensors", "rb") as file:
            return file.read()

    def compiled(self, *flags, name="service"):
        """Compiles a program with what pkg-config says. Returns its path."""
        found = run(["pkg-config", "--cflags", "--libs", "shale"],
                    env={**os.environ, "PKG_CONFIG_PATH": os.path.join(self.prefix, "lib/pkgconfig")})
        program = os.path.join(tempfile.mkdtemp(dir=self.folder), name)
        run(["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", os.path.join(_SOURCES, f"{name}.c"), "-o", program,
             *flags, *shlex.split(found), f"-Wl,-rpath,{self.prefix}/lib"])
        return program

    def assert_trains(self, program):
        out = tempfile.mkdtemp(dir=self.folder)
        printed = run([program, self.job, out])
        self.assertIn("step 20: loss ", printed)
        with open(os.path.join(out, "model.safetensors"), "rb") as file:
            self.assertEqual(file.read(), self.expected)

    def test_the_tools_end_in_the_bits_of_the_build(self):
        self.assertEqual(self.train([os.path.join(ROOT, ".out/bin/tools/train")]), self.expected)

    def test_all_programs_are_installed_and_run(self):
        for name in _TOOLS + _SCRIPTS:
            self.assertIn("--help", run([os.path.join(self.prefix, "bin/shale-" + name), "--help"]))
        run([os.path.join(self.prefix, "bin/shale-launch"), "--processes=2", "--",
             os.path.join(self.prefix, "bin/shale-train"), f"--job={self.job}", "--set", MODEL, "--set",
             f"telemetry.run_folder={self.folder}/launched", "--set", "sharding.ranks=2"])

    def test_files_of_an_earlier_installation_are_replaced(self):
        for name in REMOVED:
            self.assertFalse(os.path.lexists(os.path.join(self.prefix, name)), name)
        for name in REPLACED:
            with open(os.path.join(self.prefix, name), "rb") as file:
                self.assertNotIn(OLD, file.read(), name)

    def test_the_library_exports_the_functions_of_its_headers_and_nothing_else(self):
        declared = set()
        for name in os.listdir(os.path.join(self.prefix, "include")):
            with open(os.path.join(self.prefix, "include", name), encoding="utf-8") as file:
                text = file.read()
            declared |= set(re.findall(r"^SHALE_API [^;(]*?(\w+)\(", text, re.M))
        self.assertIn("shale_trainer_step", declared)
        symbols = run(["nm", "--dynamic", "--defined-only", "--format=posix", self.library])
        self.assertEqual({line.split()[0].split("@")[0] for line in symbols.splitlines()}, declared)

    def test_what_the_programs_need_is_in_the_prefix_or_on_every_system(self):
        folder = os.path.join(self.prefix, "lib/shale")
        copied = set(os.listdir(folder))
        programs = [self.library, *(os.path.join(self.prefix, "bin/shale-" + tool) for tool in _TOOLS),
                    *(os.path.join(folder, name) for name in copied)]
        for path in programs:
            # readelf has a reader of its own. No library of CUDA is allowed, either.
            needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run(["readelf", "--dynamic", "--wide", path])))
            self.assertLessEqual(needed, copied | SYSTEM, path)
        self.assertEqual(Elf(self.library).soname, "libshale.so.0")
        self.assertIn("LICENSE.libdnnl2", os.listdir(os.path.join(self.prefix, "share/doc/shale")))

    def test_a_program_in_c_trains_to_the_bits_of_the_tool(self):
        self.assert_trains(self.compiled())

    def test_a_program_in_c_checks_a_job(self):
        job = write_job_with_model(self.folder)
        self.assertIn("all checks hold", run([self.compiled(name="verify"), job]))

    def test_a_cmake_project_trains_to_the_bits_of_the_tool(self):
        build = os.path.join(self.folder, "cmake")
        run(["cmake", "-S", _SOURCES, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}"])
        run(["cmake", "--build", build])
        self.assert_trains(os.path.join(build, "service"))

    def test_a_program_may_have_other_versions_of_the_libraries(self):
        # The program has a library that calls itself protobuf's, comes before all others, and defines every symbol of
        # protobuf, Abseil, oneDNN, OpenMP and the rest. Whoever uses one of them dies.
        built = os.path.join(ROOT, ".out/bin/tools/package/libshale.so")
        others = os.path.join(self.folder, "others")
        os.makedirs(others)
        assembly = os.path.join(others, "others.s")
        with open(assembly, "w", encoding="utf-8") as file:
            for name in sorted(Bundle([built]).renamed_symbols):
                file.write(f".globl {name}\n.type {name}, @function\n{name}:\n")
            file.write('.byte 0x0f, 0x0b\n.section .note.GNU-stack, "", @progbits\n')
        run(["cc", "-shared", assembly, "-o", f"{others}/libprotobuf.so.32", "-Wl,-soname,libprotobuf.so.32"])
        program = self.compiled("-Wl,--no-as-needed", f"{others}/libprotobuf.so.32", f"-Wl,-rpath,{others}")
        self.assert_trains(program)
        # So does the library as it was linked, before it got libraries of its own.
        os.symlink(built, os.path.join(others, "libshale.so.0"))
        died = subprocess.run([program, self.job, self.folder], env={**os.environ, "LD_LIBRARY_PATH": others},
                              capture_output=True, check=False)
        self.assertLess(died.returncode, 0)


if __name__ == "__main__":
    unittest.main()
