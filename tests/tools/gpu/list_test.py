#!/usr/bin/env python3
"""Tests what a GPU kit would do on machines that are only described: what it lists, what it skips and why, and what it
refuses before anything runs."""

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stderr
from unittest import mock

_TOOLS = os.path.abspath("tools")
sys.path[:0] = ["tools", "tests/tools/gpu"]

from fake_kit import KitCase  # noqa: E402
from gpu import gpus, main, needs, orders, plans  # noqa: E402

# A driver with two GPUs. The signatures are those of cuda.h.
_DRIVER = r"""
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return flags; }
int cuDriverGetVersion(int* version) { *version = 13010; return 0; }
int cuDeviceGetCount(int* count) { *count = 2; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = 40 + ordinal; return 0; }
int cuDeviceGetName(char* name, int length, int device) { strncpy(name, device == 40 ? "A" : "B", length); return 0; }
int cuDeviceGetPCIBusId(char* bus, int length, int device) { strncpy(bus, "0:A", length); return device - 40; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = (size_t)device << 30; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? device - 31 : attribute == 76 ? 3 : -1;  // Major and minor compute capability.
  return 0;
}
"""
_ARCH = "80+ptx,90a,100,120"


class ListTest(KitCase):
    def setUp(self):
        super().setUp()
        self.pack()

    def pack(self, **more):
        self.write("kit.json", json.dumps({"commit": "aaa", "arch": _ARCH, **more}))

    def call(self, *arguments):
        made = super().call(*arguments, find=lambda: self.fail("looked for GPUs"))
        self.assertFalse(os.path.exists(self.out))
        return made

    def listed(self, machine, *arguments):
        """Returns the lines that tell about the machine, a map from item to what is said of it, and the last line."""
        code, said = self.call("--list", f"--gpu={machine}", *arguments)
        self.assertEqual(code, 0, said)
        *lines, last = said.splitlines()
        found = dict(re.fullmatch(r"(\S+)  +(.*)", line).groups() for line in lines if "/" in line.split()[0])
        return [line for line in lines if "/" not in line.split()[0]], found, last

    def trained(self, found):
        """Returns the shapes of which presets are trained as they are."""
        shapes = []
        for shape in orders.SHAPES:
            skips = {found[f"train/{shape}_{sequence}/full"].startswith("to skip: it needs ")
                     for sequence in (1024, 4096)}
            self.assertEqual(len(skips), 1, shape)
            shapes += [] if skips.pop() else [shape]
        return shapes

    def test_each_machine_trains_what_fits_it(self):
        for machine, shapes in (("h100", 2), ("a100_40gb", 0), ("h200", 5), ("b200", 5), ("rtx_5090", 0),
                                ("two_kinds", 2)):
            with self.subTest(machine):
                self.assertEqual(self.trained(self.listed(machine, "--order=hours")[1]),
                                 list(orders.SHAPES[:shapes]))

    def test_the_order_for_80_gb_fits_them_and_no_less(self):
        skips = {machine: sum(said.startswith("to skip") for said in self.listed(machine, "--order=h100")[1].values())
                 for machine in ("h100", "h200", "a100_40gb")}
        self.assertEqual(skips, {"h100": 0, "h200": 0, "a100_40gb": 35})

    def test_the_plan_of_an_order_has_seconds_and_tells_where_each_call_ends(self):
        about, found, last = self.listed("h200", "--order=speed")
        self.assertEqual(found["test/ops"], "60 s       85 s  to do")
        # 7 steps of 65,536 tokens at 3.1 GFLOP and 0.4 of 989.4 TFLOP/s, and 9 s to start.
        self.assertRegex(found["train/qwen2_5_0_5b_1024"], r"^ *13 s +\d+ s  to do$")
        ends = [re.fullmatch(r"---- call (\d) ends after (\d+) s", line) for line in about[3:]]
        self.assertEqual([int(end[1]) for end in ends], list(range(1, len(ends) + 1)))
        for end in ends:
            self.assertLessEqual(int(end[2]), 400 if end[1] == "1" else 300)
        self.assertRegex(last, rf"^{len(found)} items: {len(found)} to do in about [\d,]+ s and "
                               rf"{len(ends)} calls, 0 skipped\. Seconds are estimates\.$")
        short = self.listed("h200", "--order=speed", "--budget_seconds=50")
        self.assertEqual(short[1]["test/ops"], "60 s, more than a call of 50 s has")
        self.assertIn("and 1 call,", self.listed("h200", "--order=speed", "--budget_seconds=9999")[2])

    def test_what_is_skipped_says_what_the_plan_needs_and_the_gpu_has(self):
        about, found, _ = self.listed("h100", "--order=speed")
        self.assertEqual(about[:3], [
            "gpus     NVIDIA H100 80GB HBM3, 79.1 GiB, compute capability 9.0, runs sm_90a",
            "driver   for CUDA 13.0",
            "jobs     on GPU 0 alone, with a budget of 77.1 GiB; MFU against 989.4 TFLOP/s"])
        self.assertEqual(found["train/qwen2_5_3b_1024"], "to skip: it needs 98.9 GiB per rank, budget 77.1 GiB")
        self.assertEqual(next(iter(found)), "modules/0")

    def test_a_kit_without_programs_of_an_earlier_commit_skips_what_needs_them(self):
        for name in ("bench_before", "train_before"):
            os.remove(os.path.join(self.root, "bin", name))
        found = self.listed("h200", "--order=speed")[1]
        self.assertEqual(found["turns/qwen2_5_0_5b_1024/steps"], "to skip: the kit has no train_before")
        self.assertEqual(found["trace/qwen2_5_0_5b_1024/pack/before"], "to skip: the kit has no train_before")
        self.assertEqual(found["ops/qwen2_5_3b_1024/rows/before"], "to skip: the kit has no bench_before")
        self.assertEqual(sum(said.startswith("to skip") for said in found.values()), 11)

    # A job that the engine refuses for another reason than memory was tried, and took seconds of a visit to fail.
    def test_a_job_without_a_plan_is_skipped_with_what_plan_says(self):
        self.programs.instead["plan"] = lambda call: call.print("plan: data.packing: nothing begins a document") or 2
        self.assertEqual(self.listed("h200", "--order=speed")[1]["train/qwen2_5_0_5b_1024"],
                         "to skip: it has no plan: plan: data.packing: nothing begins a document")

    def test_blackwell_leaves_more_to_libraries_and_so_does_nccl(self):
        self.assertIn(", with a budget of 175.3 GiB;", self.listed("b200", "--order=nccl")[0][2])
        gpu = {"name": "A", "bytes": 80 << 30, "compute": "9.0"}
        self.assertEqual(plans.budget_bytes(gpu, nccl=True), 77 << 30)

    def test_each_gpu_runs_its_own_code(self):
        for machine, code in (("a100_40gb", "sm_80"), ("h200", "sm_90a"), ("b200", "sm_100"), ("rtx_5090", "sm_120")):
            self.assertTrue(self.listed(machine, "--order=nccl")[0][0].endswith(f", runs {code}"), machine)

    def test_gpus_of_different_kinds_are_each_tried_and_not_measured_together(self):
        _, found, _ = self.listed("two_kinds", "--order=nccl")
        self.assertEqual([name for name in found if name.startswith("modules/")], ["modules/0", "modules/1"])
        for name in ("comm/peers", "comm/nccl", "train/qwen2_5_0_5b_1024/nccl", "train/qwen2_5_0_5b_1024/nccl_windows"):
            self.assertEqual(found[name], "to skip: the GPUs are of different kinds (NVIDIA H100 80GB HBM3, "
                                          "NVIDIA A100-SXM4-40GB); choose those of one kind with CUDA_VISIBLE_DEVICES")
        self.assertTrue(found["comm/in_process"].endswith("to do"))

    def refused(self, wanted, *arguments):
        code, said = self.call("--list", *arguments)
        self.assertEqual((code, said.count("\n")), (1, 1), said)
        self.assertIn(wanted, said)

    def test_a_driver_that_is_too_old_is_one_line(self):
        self.refused("run: the NVIDIA driver is too old: it supports CUDA 12.8, and this kit needs a driver for CUDA "
                     "13.0 or newer (580 or newer)\n", "--gpu=old_driver")

    def test_a_gpu_for_which_the_kit_has_no_code_is_one_line(self):
        self.pack(arch="90a")
        self.refused("run: GPU 0 (NVIDIA B200, compute capability 10.0): this kit has no code for it, only for 90a; "
                     "pack one with pack --arch\n", "--gpu=b200")

    def test_a_system_that_is_too_old_is_one_line_before_all_others(self):
        self.pack(needs={"GLIBC": "2.99", "GLIBCXX": "3.4.9"})
        with mock.patch.object(needs, "versions_here", lambda folders: {"GLIBC": "2.36", "GLIBCXX": "3.4.30"}):
            self.refused("run: this system is too old for the kit: wanted glibc with GLIBC_2.99, found GLIBC_2.36; use",
                         "--gpu=old_driver")

    def test_descriptions_in_files_and_wrong_ones(self):
        path = os.path.join(self.root, "mine.json")
        for text, wanted in (("{", "is not JSON"), ("{}", "found no 'gpus'"), ('{"gpus": [{}]}', "found no 'name'")):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            self.refused(wanted, f"--gpu={path}")
        self.refused("there is no such file, and the known names are h100, a100_40gb, ", "--gpu=mine")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"driver": "13.1", "gpus": [{"name": "NVIDIA L4", "gib": 22.0, "compute": "8.9"}]}, file)
        about, found, _ = self.listed(path, "--order=hours")
        self.assertEqual(about[0], "gpus     NVIDIA L4, 22.0 GiB, compute capability 8.9, runs sm_80")
        self.assertIn("MFU against 121.0 TFLOP/s", about[2])
        self.assertEqual(self.trained(found), [])

    def test_nothing_runs_on_a_machine_that_is_only_described(self):
        said = io.StringIO()
        with redirect_stderr(said), self.assertRaises(SystemExit):
            main.parse(self.root, ["--gpu=h100"])
        self.assertIn("--gpu wants --list", said.getvalue())


class DriverTest(unittest.TestCase):
    def test_the_driver_is_asked_for_its_version_and_gpus(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-o", f"{folder}/libcuda.so.1", "-"], input=_DRIVER,
                           text=True, check=True)
            said = subprocess.run([sys.executable, "-c", "from gpu import gpus; print(gpus.find())"], check=True,
                                  env={**os.environ, "LD_LIBRARY_PATH": folder, "PYTHONPATH": _TOOLS},
                                  capture_output=True, text=True).stdout.strip()
        self.assertEqual(said, repr(gpus.Gpus([{"name": "A", "bytes": 40 << 30, "compute": "9.3", "bus": "0:A"},
                                               {"name": "B", "bytes": 41 << 30, "compute": "10.3", "bus": "0:A"}],
                                              "13.1")))


class NeedsTest(unittest.TestCase):
    def test_which_code_a_gpu_runs(self):
        for compute, code in (("8.0", "sm_80"), ("8.9", "sm_80"), ("9.0", "sm_90a"), ("10.3", "sm_100"),
                              ("12.1", "sm_120")):
            self.assertEqual(needs.code_for(_ARCH, compute), code)
        for compute in ("11.0", "13.0"):
            self.assertTrue(needs.code_for(_ARCH, compute).startswith("PTX of compute_80, "))
        self.assertIsNone(needs.code_for(_ARCH, "7.5"))
        self.assertIsNone(needs.code_for("90a", "10.0"))
        self.assertIsNone(needs.code_for("90", "8.0"))

    def test_gpus_that_are_too_old(self):
        old = gpus.Gpus([{"name": "Tesla V100", "bytes": 1 << 35, "compute": "7.0"}], "13.0")
        self.assertIn("GPU 0 (Tesla V100, compute capability 7.0) is too old: wanted 8.0 or newer",
                      needs.lacks_gpu({"arch": _ARCH}, old.driver, old.all))

    def test_versions_are_compared_as_numbers(self):
        kit = {"needs": {"GLIBC": "2.36", "GLIBCXX": "3.4.30"}}
        self.assertEqual(needs.lacks_versions(kit, {"GLIBC": "2.36", "GLIBCXX": "3.4.30"}), "")
        self.assertEqual(needs.lacks_versions(kit, {"GLIBC": "2.100"}), "")
        self.assertEqual(needs.lacks_versions(kit, {"GLIBC": "2.4", "GLIBCXX": "3.4.9"}),
                         "this system is too old for the kit: wanted glibc with GLIBC_2.36, found GLIBC_2.4 and "
                         "libstdc++ with GLIBCXX_3.4.30, found GLIBCXX_3.4.9; use a newer one")

    def test_a_program_that_starts_here_wants_no_more_than_there_is(self):
        wanted = needs.wanted_by([sys.executable])
        self.assertRegex(wanted["GLIBC"], r"^2\.\d+$")
        subprocess.run([sys.executable, "-c", ""], check=True)
        self.assertEqual(needs.lacks_versions({"needs": wanted}, needs.versions_here([])), "")

    def test_only_gpus_whose_peak_is_known_have_one(self):
        for name, peak in (("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA H100 80GB HBM3", 989.4e12),
                           ("NVIDIA H200 NVL", 835.5e12), ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
                           ("NVIDIA B200", 2250e12), ("NVIDIA GeForce RTX 5090", 209.5e12),
                           ("NVIDIA GeForce RTX 5090 Laptop GPU", None), ("NVIDIA T4", None)):
            self.assertEqual(plans.peak_flops({"name": name}), peak, name)


if __name__ == "__main__":
    unittest.main()
