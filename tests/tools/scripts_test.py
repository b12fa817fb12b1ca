#!/usr/bin/env python3
"""Tests tools/test, quickstart, fuzz, install and install.sh with stand-ins for the programs that they call: which
calls they make, with which arguments."""

import os
import subprocess
import tempfile
import unittest

_INSTALL = """
build_packages() { :; }
service_packages() { echo httplib; }
install_packages() { echo install_packages $* >> calls; }
say_build_time() { echo "takes time, CUDA: $1"; }
install_cudnn_frontend() { :; }
has_nvidia_driver() { [[ -n ${DRIVER:-} ]]; }
"""
_BAZEL = r"""#!/usr/bin/env python3
import os, sys
if sys.argv[1:] == ["info", "output_base"]: sys.exit(print(os.getcwd()))
with open("calls", "a") as calls: print(*sys.argv[1:], file=calls)
for argument in sys.argv:
    if argument.startswith("--build_event_json_file="): open(argument.split("=", 1)[1], "w").close()
"""
# Writes rows as the trainer does: one per step, and one for the evaluation after the last step. With TRIAL=fails, the
# trial fails; with TRIAL=empty, it writes no rows. With TRAIN=refuses, no run begins.
_TRAIN = r"""#!/usr/bin/env python3
import json, os, sys
sets = dict(b.split("=", 1) for a, b in zip(sys.argv, sys.argv[1:]) if a == "--set")
with open("calls", "a") as calls: print("train", *sys.argv[1:], file=calls)
folder, steps = sets["telemetry.run_folder"], int(sets["lr_schedule.steps"])
if os.environ.get("TRAIN") == "refuses": sys.exit(2)
trial = os.environ.get("TRIAL") if folder.startswith("/") else None
if trial == "fails": sys.exit(1)
os.makedirs(folder)
with open(folder + "/metrics.jsonl", "w") as metrics:
    if trial == "empty": sys.exit(0)
    for step in range(1, steps + 1):
        print(json.dumps({"step": step, "seconds": float(os.environ["SECONDS_PER_STEP"])}), file=metrics)
    print(json.dumps({"step": steps, "evaluation_loss": 5.5, "evaluation_tokens": 7}), file=metrics)
"""


class ScriptsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for name in ("tools/test", "tools/quickstart", "tools/fuzz", "tools/install",
                     "tools/build_defs/changed_tests.py", "tools/build_defs/count_tests.py",
                     "tools/build_defs/test_times.py", "tools/examples/service/build"):
            with open(name, encoding="utf-8") as script:
                self.write(name, script.read())
        self.write("tools/build_defs/install.sh", _INSTALL)
        self.write("tests/embedding/run_test.py", "#!/bin/sh\necho embedding >> calls\n")
        self.write("tests/seconds.txt", "")
        self.write("tools/package/main.py", "import sys\nprint('main.py', *sys.argv[1:], file=open('calls', 'a'))\n")
        self.write("tools/python/make_wheel.py", "")
        self.write("bin/bazel", _BAZEL)
        self.write(".out/bin/tools/train", _TRAIN)
        self.write(".out/bin/tools/generate", "#!/bin/sh\n")
        self.write(".out/bin/tools/tokenize", "#!/bin/bash\necho tokenize $* >> calls; mkdir -p \"${4#--out=}\"\n")

    def write(self, name, text):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def call(self, *command, **environment):
        """Runs a script. Returns its exit code, its output, and the calls of Bazel and train."""
        calls = os.path.join(self.root, "calls")
        open(calls, "w", encoding="utf-8").close()
        path = os.path.join(self.root, "bin") + ":" + os.environ["PATH"]
        ended = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False,
                               env={**os.environ, "PATH": path, "SECONDS_PER_STEP": "0.1", **environment})
        with open(calls, encoding="utf-8") as file:
            self.installed, made = [], []
            for line in file.read().splitlines():
                (self.installed if line.startswith("install_packages") else made).append(line)
        return ended.returncode, ended.stdout + ended.stderr, made

    def test_by_default_there_is_one_optimized_run_and_with_all_three(self):
        code, said, calls = self.call("tools/test")
        self.assertEqual((code, said.splitlines()[-1]), (1, "0 passed, 0 failed"))
        self.assertEqual(len(calls), 1)
        actions = len(os.sched_getaffinity(0)) + 1
        self.assertTrue(calls[0].endswith(" -c opt --//tools/build_defs:cuda=false --build_tests_only "
                                          "--test_tag_filters=-all_only --build_tag_filters=-all_only "
                                          f"--jobs={actions} --local_cpu_resources={actions} //..."), calls)
        with open("/proc/cpuinfo", encoding="utf-8") as processor:
            self.assertEqual("--config=avx2" in calls[0], "avx512bw" not in processor.read())
        _, said, calls = self.call("tools/test", "--all")
        self.assertIn("embedding: 1 passed, 0 failed", said.splitlines())
        self.assertEqual(said.splitlines()[-1], "1 passed, 0 failed")
        self.assertEqual(len(calls), 4)
        self.assertIn(" -c opt --//tools/build_defs:cuda_arch=80+ptx ", calls[0])
        self.assertNotIn("avx2", calls[0])
        self.assertEqual(calls[1], "embedding")
        self.assertIn("--config=asan", calls[2])
        self.assertIn("--config=tsan", calls[3])
        for call in (calls[0], *calls[2:]):
            self.assertIn(f" --jobs={actions} --local_cpu_resources={actions} ", call)
        self.write("tests/embedding/run_test.py", "#!/bin/sh\nexit 1\n")
        code, said, _ = self.call("tools/test", "--all")
        self.assertEqual((code, said.splitlines()[-1]), (1, "0 passed, 1 failed"))

    def test_arguments_are_those_of_one_run(self):
        _, _, calls = self.call("tools/test", "--config=asan", "//tests/engine/...")
        self.assertEqual(len(calls), 1)
        self.assertTrue(calls[0].endswith(" --config=asan //tests/engine/..."), calls)

    def test_changed_runs_the_tests_of_what_differs(self):
        self.write("tests/engine/compile/step/BUILD", "")
        for command in ("init -q", "add .", "-c user.name=a -c user.email=b commit -qm c"):
            subprocess.run(["git", *command.split()], cwd=self.root, check=True)
        code, said, calls = self.call("tools/test", "--changed", "nothing")
        self.assertEqual((code, calls), (2, []), said)
        self.write("engine/compile/step/compile.cc", "")
        _, _, calls = self.call("tools/test", "--changed")
        self.assertEqual(len(calls), 1)
        self.assertTrue(calls[0].endswith(" //tests/engine/compile/step:all //tests:house_test"), calls)

    def test_a_run_whose_cases_cannot_be_counted_fails(self):
        # Regression: the exit code of count_tests.py was discarded, and the cases of the other runs made the sum a
        # success.
        for dies in ('sys.exit(1)', 'sys.exit(print("tsan: 9", end=""))'):
            self.write("tools/build_defs/count_tests.py",
                       f'import sys\nif sys.argv[1].startswith("tsan="): {dies}\nprint("1 passed, 0 failed")\n')
            code, said, _ = self.call("tools/test", "--all")
            self.assertEqual((code, said.splitlines()[-1]), (1, "3 passed, 1 failed"))
            self.assertIn("\nFAILED (tsan): the test cases could not be counted\n", said)

    def test_without_a_cache_nothing_is_fetched(self):
        # Regression: the wheel was unpacked into the root of the repository if the user's cache could not be written.
        for name in ("install.sh", "cudnn_frontend.txt"):
            with open("tools/build_defs/" + name, encoding="utf-8") as file:
                self.write("tools/build_defs/" + name, file.read())
        self.write("cuda/include/cudnn.h", "")
        self.write("cuda/bin/nvcc", "")
        self.write("bin/python3", '#!/bin/sh\necho python3 "$@" >> calls\n')
        self.write("a_file", "")
        before = sorted(os.listdir(self.root) + ["calls"])
        code, said, calls = self.call(
            "bash", "-c", "set -euo pipefail; source tools/build_defs/install.sh; install_cudnn_frontend; echo goes on",
            CUDA_HOME=os.path.join(self.root, "cuda"), XDG_CACHE_HOME=os.path.join(self.root, "a_file"),
            CUDNN_FRONTEND="")
        self.assertEqual(code, 0, said)
        self.assertIn("Could not write to " + os.path.join(self.root, "a_file/shale"), said)
        self.assertIn("\ngoes on\n", said)
        self.assertEqual(calls, ["python3 -m pip --version"])
        self.assertEqual(sorted(os.listdir(self.root)), before)

    def test_help_and_wrong_arguments_run_nothing(self):
        code, said, calls = self.call("tools/test", "--help")
        self.assertEqual((code, calls), (0, []))
        self.assertIn("--all", said)
        code, said, calls = self.call("tools/fuzz", "--help")
        self.assertEqual((code, calls), (0, []))
        self.assertTrue(said.startswith("tools/fuzz [--minutes=N] [target...] "), said)
        self.assertNotIn("#", said)
        code, _, calls = self.call("tools/test", "--all", "//tests/engine/...")
        self.assertEqual((code, calls), (2, []))
        for wrong in ("--minute=3", "--minutes=0", "nothing"):
            code, _, calls = self.call("tools/fuzz", wrong)
            self.assertEqual((code, calls), (2, []))
        code, said, calls = self.call("tools/install", "--help")
        self.assertEqual((code, calls), (0, []))
        self.assertTrue(said.startswith("tools/install --prefix=DIR [--cuda | --no-cuda] [--arch="), said)
        # Regression: this built and trained.
        for script, begin in (("tools/quickstart", "Goes from a fresh Debian 12 to text "),
                              ("tools/examples/service/build", "Builds the example service and its client")):
            for flag in ("--help", "-h"):
                code, said, calls = self.call(script, flag)
                self.assertEqual((code, calls, self.installed), (0, [], []))
                self.assertTrue(said.startswith(begin), said)
                self.assertNotIn("#", said)
        for wrong in (("help",), ("-x",), ("--set", "data.path=mine", "data.path=mine")):
            code, said, calls = self.call("tools/quickstart", *wrong)
            self.assertEqual((code, calls, self.installed), (2, [], []), said)
            self.assertIn(f"tools/quickstart: found {wrong[-1]}; wanted flags of train", said)
        for wrong in ((), ("--prefix",), ("--prefix=/opt/shale", "--nocuda")):
            code, said, calls = self.call("tools/install", *wrong)
            self.assertEqual((code, calls), (2, []))
            self.assertRegex(said, "^tools/install: (--prefix=DIR is missing|unknown argument --nocuda)")

    def test_install_builds_and_copies_to_the_prefix(self):
        programs = "train,plan,calibrate,generate,evaluate,export,tokenize,inspect_checkpoint"
        code, said, calls = self.call("tools/install", "--prefix", "a/b", "--no-cuda", DRIVER="1")
        self.assertEqual(code, 0, said)
        self.assertIn("takes time, CUDA: no", said)
        self.assertTrue(calls[0].startswith("build -c opt --//tools/build_defs:cuda=false "), calls)
        self.assertTrue(calls[0].endswith(" " + " ".join("//tools:" + name for name in programs.split(","))), calls)
        self.assertEqual(calls[1:], [f"main.py --prefix={self.root}/a/b --built=.out/bin/tools --programs={programs}"])
        _, _, calls = self.call("tools/install", "--prefix=/opt/shale", DESTDIR="staging", DRIVER="1")
        self.assertNotIn("cuda", calls[0])
        self.assertEqual(calls[1:], [f"main.py --prefix={self.root}/staging/opt/shale --built=.out/bin/tools "
                                     f"--programs={programs},tune"])

    def test_install_leaves_nvcc_out_where_nothing_could_run_it(self):
        # Regression: nvcc compiled all kernels for minutes where there was a toolkit and no GPU.
        for flags, driver, cuda in (((), "", False), ((), "1", True), (("--cuda",), "", True),
                                    (("--no-cuda",), "1", False), (("--arch=90a",), "", True)):
            _, said, calls = self.call("tools/install", "--prefix=a", *flags, DRIVER=driver)
            self.assertEqual("--//tools/build_defs:cuda=false" not in calls[0], cuda, (flags, driver))
            self.assertEqual("no NVIDIA driver here" in said, not flags and not driver, said)

    def test_the_service_is_built_also_by_a_bazel_that_was_started_before_its_packages_were_there(self):
        # Regression: Bazel ended with success and built nothing.
        found = os.path.join(self.root, "external/cpp_httplib/defs.bzl")
        for have in (None, "True", "False"):
            if have:
                self.write(found, f"HAVE_HTTPLIB = {have}\n")
            code, said, calls = self.call("tools/examples/service/build")
            self.assertEqual(code, 0, said)
            self.assertEqual(self.installed, ["install_packages httplib"])
            self.assertEqual("shutdown" in calls, have == "False", calls)
            self.assertTrue(calls[-1].endswith("//tools/examples/service //tools/examples/service:client"), calls)

    def test_install_refuses_a_prefix_that_it_cannot_write_before_it_builds(self):
        self.write("a_file", "")
        code, said, calls = self.call("tools/install", "--prefix=a_file/shale")
        self.assertEqual((code, calls), (1, []))
        self.assertIn(f"cannot make the folder {self.root}/a_file/shale; give a --prefix that you may write to", said)

    def sets(self, call):
        words = call.split(" ")
        return dict(b.split("=", 1) for a, b in zip(words, words[1:]) if a == "--set")

    def test_quickstart_trains_for_as_many_steps_as_the_time_allows(self):
        for seconds, wanted in (("0.1", "940"), ("1", "400")):
            code, said, calls = self.call("tools/quickstart", SECONDS_PER_STEP=seconds)
            self.assertEqual(code, 0, said)
            self.assertEqual(len(calls), 4)
            sets = self.sets(calls[3])
            self.assertEqual(sets["lr_schedule.steps"], wanted)
            self.assertEqual(sets["lr_schedule.warmup_steps"], str(int(wanted) // 10))
        self.assertEqual(sets["telemetry.run_folder"], "runs/quickstart-2")

    def test_quickstart_makes_a_vocabulary_of_its_text_unless_a_tokenizer_is_given(self):
        _, _, calls = self.call("tools/quickstart", "--set", "data.path=mine")
        self.assertRegex(calls[1], "^tokenize --train --vocabulary=[0-9]+ --in=mine --out=runs/quickstart_vocabulary$")
        for call in calls[2:]:
            self.assertEqual(self.sets(call)["data.tokenizer"], "runs/quickstart_vocabulary")
        _, _, calls = self.call("tools/quickstart", "--set", "data.tokenizer=bytes")
        self.assertEqual(len(calls), 3)
        self.assertEqual(self.sets(calls[2])["data.tokenizer"], "bytes")

    def test_quickstart_leaves_nothing_of_a_run_that_does_not_begin(self):
        # Regression: its vocabulary stayed, and the next run was called quickstart-2.
        code, _, calls = self.call("tools/quickstart", "--set", "no.such=1", TRAIN="refuses")
        self.assertEqual((code, len(calls)), (2, 4), calls)
        self.assertEqual(os.listdir(os.path.join(self.root, "runs")), [])
        code, _, calls = self.call("tools/quickstart")
        self.assertEqual((code, self.sets(calls[3])["telemetry.run_folder"]), (0, "runs/quickstart"))
        # What was there before stays.
        os.makedirs(os.path.join(self.root, "mine_vocabulary"))
        code, _, _ = self.call("tools/quickstart", "--set", "telemetry.run_folder=mine", TRAIN="refuses")
        self.assertEqual(code, 2)
        self.assertEqual(sorted(os.listdir(os.path.join(self.root, "runs"))), ["quickstart", "quickstart_vocabulary"])
        self.assertTrue(os.path.isdir(os.path.join(self.root, "mine_vocabulary")))

    def test_quickstart_trains_even_if_the_trial_tells_nothing(self):
        for trial in ("fails", "empty"):
            code, said, calls = self.call("tools/quickstart", TRIAL=trial)
            self.assertEqual(code, 0, said)
            # If the trial fails, the training says why.
            self.assertEqual("Cannot tell from the trial" in said, trial == "empty")
            self.assertEqual(self.sets(calls[3])["lr_schedule.steps"], "800")

    def test_the_users_number_of_steps_counts(self):
        _, _, calls = self.call("tools/quickstart", "--set", "lr_schedule.steps=50", "--set",
                                "telemetry.run_folder=mine")
        self.assertEqual(len(calls), 3)
        sets = self.sets(calls[2])
        self.assertEqual((sets["lr_schedule.steps"], sets["lr_schedule.warmup_steps"]), ("50", "5"))
        self.assertEqual(sets["telemetry.run_folder"], "mine")

    def test_without_a_driver_it_builds_without_cuda_and_says_so(self):
        _, said, calls = self.call("tools/quickstart")
        self.assertIn("-c opt --//tools/build_defs:cuda=false ", calls[0])
        self.assertIn("no NVIDIA driver", said)
        self.assertIn("takes time, CUDA: no", said)
        _, said, calls = self.call("tools/quickstart", DRIVER="1")
        self.assertNotIn("cuda=false", calls[0] + said)
        self.assertIn("takes time, CUDA: yes", said)


if __name__ == "__main__":
    unittest.main()
