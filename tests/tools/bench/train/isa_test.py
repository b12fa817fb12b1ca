#!/usr/bin/env python3
"""Tests the classes of processors: what a machine has, and what limits contestants to a class."""

import contextlib
import io
import os
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, "tools")

from bench.train import isa, options, place  # noqa: E402

_AVX2 = "sse4_1 sse4_2 avx avx2 fma"
_AVX512 = f"{_AVX2} avx512f avx512bw avx512cd avx512dq avx512vl"


def _machine(flags):
    return unittest.mock.patch.object(isa, "processor", return_value={"flags": flags})


class IsaTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_a_machine_has_a_class_if_it_has_all_of_its_instructions(self):
        for flags, classes in (("", []), ("sse4_1 sse4_2 avx2", ["SSE4"]), (_AVX2, ["SSE4", "AVX2"]),
                               (_AVX512, ["SSE4", "AVX2", "AVX512"]),
                               (_AVX512 + " avx512_bf16 amx_tile", list(isa.NAMES[:-1])),
                               (_AVX512 + " avx512_bf16 amx_tile amx_bf16", list(isa.NAMES))):
            with _machine(flags):
                self.assertEqual(isa.of_this_machine(), classes)

    def test_a_class_that_the_processor_does_not_have_is_refused(self):
        said = io.StringIO()
        with _machine(_AVX2), contextlib.redirect_stderr(said):
            self.assertEqual(options.parse(["--isa=AVX2"]).isa, "AVX2")
            for text in ("AVX512", "AVX3"):
                with self.assertRaises(SystemExit) as ended:
                    options.parse([f"--isa={text}"])
                self.assertEqual(ended.exception.code, 2)
        self.assertIn("this processor does not have AVX512; it has SSE4, AVX2", said.getvalue())
        self.assertIn("found 'AVX3'; known are SSE4, AVX2, AVX512, AVX512_BF16, AMX", said.getvalue())

    def test_the_limit_replaces_what_the_environment_sets(self):
        ours = {"SHALE_MAX_CPU_ISA": "SSE4", "ATEN_CPU_CAPABILITY": "x", "MKL_NUM_THREADS": "3", "HOME": "/home"}
        with unittest.mock.patch.dict(os.environ, ours):
            free = place.Place(2, folder=self.folder)
            self.assertFalse(set(ours) & set(free.environment()) - {"HOME"})
            limited = place.Place(2, limit="AVX2", folder=self.folder)
            found = limited.environment({"OMP_NUM_THREADS": "2"})
        wanted = {"SHALE_MAX_CPU_ISA": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
                  "ATEN_CPU_CAPABILITY": "avx2", "TORCHINDUCTOR_CPP_MARCH": "x86-64-v3", "OMP_NUM_THREADS": "2",
                  "HOME": "/home"}
        self.assertLessEqual(wanted.items(), found.items())
        self.assertNotEqual(free.inductor_cache(), limited.inductor_cache())

    def test_a_build_that_does_not_heed_the_limit_is_refused(self):
        os.mkdir(os.path.join(self.folder, "bench"))
        for name in ("train", "bench/matmuls", "old"):
            with open(os.path.join(self.folder, name), "w", encoding="ascii") as file:
                file.write("" if name == "old" else f"uses {isa.VARIABLE}")
            os.chmod(file.name, 0o700)
        old = os.path.join(self.folder, "old")
        place.Place(2, self.folder, before=old, folder=self.folder).prepare(shale=True, torch=False)
        place.Place(2, self.folder, limit="SSE4", folder=self.folder).prepare(shale=True, torch=False)
        with self.assertRaisesRegex(place.Missing, "old cannot be limited to SSE4"):
            place.Place(2, self.folder, before=old, limit="SSE4", folder=self.folder).prepare(shale=True, torch=False)

    def test_the_head_of_the_table_says_the_class(self):
        self.assertEqual(place.Place(2, limit="AVX2", folder=self.folder).describe()["instructions"],
                         "up to AVX2, by all contestants (--isa=AVX2)")


if __name__ == "__main__":
    unittest.main()
