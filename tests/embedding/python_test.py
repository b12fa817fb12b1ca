"""Tests the Python package: installs the wheel in a virtual environment, and trains there. run_test.py runs this."""

import glob
import os
import sys
import tempfile
import unittest

from installation import installed
from run_test import BUILD_FLAGS, MODEL, QUIET, ROOT, WORKSPACE, run, write_job_with_model, write_text

_SOURCES = os.path.join(ROOT, "tests/embedding/python")


class PythonTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="shale_python.")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.prefix = installed()
        run([sys.executable, "-m", "venv", os.path.join(cls.folder, "venv")])
        cls.python = os.path.join(cls.folder, "venv/bin/python")
        wheel, = glob.glob(os.path.join(cls.prefix, "share/shale/*.whl"))
        run([cls.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, "auditwheel"])
        cls.wheel = wheel

    def test_the_wheel_runs_where_its_name_says(self):
        said = run([self.python, "-m", "auditwheel", "show", self.wheel])
        platform = os.path.basename(self.wheel).split("-")[-1][:-len(".whl")]
        self.assertIn(f'platform tag: "{platform}"', " ".join(said.split()))

    def test_everything_has_one_version(self):
        # Regression: the wheel said 0.1.0, pkg-config 0.6, and the documentation of CMake 0.1.
        version = run(["pkg-config", "--modversion", "shale"],
                      env={**os.environ, "PKG_CONFIG_PATH": os.path.join(self.prefix, "lib/pkgconfig")}).strip()
        self.assertTrue(os.path.exists(os.path.join(self.prefix, f"lib/libshale.so.{version}")), version)
        self.assertTrue(os.path.basename(self.wheel).startswith(f"shale-{version}-"), self.wheel)
        said = run([self.python, "-c", "import importlib.metadata, shale; "
                    "print(shale.__version__, importlib.metadata.version('shale'))"])
        self.assertEqual(said.split(), [version] * 2)
        with open(os.path.join(ROOT, "tools/manual/embed_c.md"), encoding="utf-8") as file:
            self.assertIn(f"find_package(Shale {version} REQUIRED)", file.read())

    def test_the_package(self):
        run([self.python, os.path.join(_SOURCES, "package_test.py"), os.path.join(self.prefix, "include")],
            cwd=self.folder)
        run([self.python, os.path.join(_SOURCES, "interrupts_test.py")], cwd=self.folder)

    def test_a_program_trains_to_the_bits_of_the_tool(self):
        write_text(self.folder)
        job = os.path.join(self.folder, "job.textproto")
        with open(os.path.join(WORKSPACE, "job.textproto"), encoding="utf-8") as file, \
                open(job, "w", encoding="utf-8") as copy:
            copy.write(file.read())
        weights = os.path.join(self.folder, "model.safetensors")
        self.assertIn("step 20: loss ", run([self.python, os.path.join(_SOURCES, "service.py"), job, self.folder]))
        run([os.path.join(self.prefix, "bin/shale-train"), f"--job={job}", "--set", MODEL, "--set",
             f"telemetry.run_folder={self.folder}/run"])
        run([os.path.join(self.prefix, "bin/shale-export"), f"--run={self.folder}/run", f"--out={self.folder}/exported",
             "--plain"])
        with open(weights, "rb") as own, open(f"{self.folder}/exported/model.safetensors", "rb") as tool:
            self.assertEqual(own.read(), tool.read())
        said = run([self.python, os.path.join(_SOURCES, "checks.py"), job, write_job_with_model(self.folder),
                    self.folder])
        self.assertRegex(said, r"\ATrue \[\]\nTrue .*\n.")

    def test_the_bench_steps_to_the_same_losses_in_python(self):
        run(["bazel", "build", "-c", "opt", *BUILD_FLAGS, *QUIET, "//tools/bench:embedding"], cwd=ROOT)
        printed = run([os.path.join(ROOT, ".out/bin/tools/bench/embedding"), f"--python={self.python}", "--steps=1",
                       "--warm_up=0", f"--library={self.prefix}/lib/libshale.so"], cwd=ROOT)
        self.assertIn("all computed the same losses", printed)
        self.assertIn("\n| Python ", printed)

    def test_training_by_reward_raises_the_reward(self):
        printed = run([self.python, os.path.join(ROOT, "tools/examples/grpo.py"), "--steps=30"])
        first, last = (float(word.rstrip(";")) for word in printed.splitlines()[-1].split() if word[0] == "0")
        self.assertGreater(last, first + 0.1, printed)


if __name__ == "__main__":
    unittest.main()
