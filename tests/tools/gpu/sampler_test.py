#!/usr/bin/env python3
"""Tests what the GPU kit records of a GPU beside an item: by NVML, by nvidia-smi, and where there is neither."""

import os
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.path.insert(0, "tools")

from gpu import sampler, tables  # noqa: E402

# Samples of an idle GPU, and then of one that works at its power limit.
_SMI = """#!/bin/sh
case "$1" in *clocks_event*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2;; esac
echo "$@" > {folder}/asked
n=$(cat {folder}/count 2>/dev/null || echo 0); echo $((n + 1)) > {folder}/count
if [ $n -lt 2 ]; then echo "0, 345, 2619, 75.10, 31, 0x0000000000000001"
else echo "100, $((1700 - n)), 2619, 699.50, 61, 0x0000000000000004"; fi
"""
# NVML with one GPU that works. The signatures are those of nvml.h.
_NVML = r"""
#include <string.h>
static int device;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** found) {
  *found = &device;
  return strcmp(bus, "00:01") != 0;
}
int nvmlDeviceGetUtilizationRates(void* d, unsigned* used) { used[0] = 99; used[1] = 5; return d != &device; }
int nvmlDeviceGetClockInfo(void* d, int kind, unsigned* mhz) { *mhz = kind == 1 ? 1500 : 2619; return d != &device; }
int nvmlDeviceGetPowerUsage(void* d, unsigned* milliwatts) { *milliwatts = 700500; return d != &device; }
int nvmlDeviceGetTemperature(void* d, int sensor, unsigned* celsius) { *celsius = 60 + sensor; return d != &device; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void* d, unsigned long long* bits) { *bits = 0x24; return d != &device; }
"""
_PRINT = """
from gpu import sampler
with sampler.Sampler("00:01") as samples: pass
print(samples.summary())
try: sampler._Nvml("other")
except OSError as error: print(error)
"""


class SamplerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for patch in (mock.patch.object(sampler, "_PERIOD_SECONDS", 0.001),
                      mock.patch.dict(os.environ, {"PATH": f"{self.folder}:{os.environ['PATH']}"})):
            patch.start()
            self.addCleanup(patch.stop)

    def smi(self, script=_SMI):
        path = os.path.join(self.folder, "nvidia-smi")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script.format(folder=self.folder))
        os.chmod(path, 0o755)

    def sample(self, count):
        """Samples until nvidia-smi was asked `count` times."""
        deadline = time.monotonic() + 30
        with sampler.Sampler("00:01") as samples:
            while time.monotonic() < deadline and len(samples._samples) < count:
                time.sleep(0.001)
        return samples.summary()

    def test_median_and_extremes_are_those_of_the_time_in_which_the_gpu_works(self):
        self.smi()
        found = self.sample(6)  # The one before them is not kept, and one more is idle.
        self.assertEqual(found["source"], "nvidia-smi")
        self.assertEqual(found["sm_mhz"]["highest"], 1698)
        self.assertEqual(found["sm_mhz"]["lowest"], 1699 - found["samples"])
        self.assertEqual(found["watts"], {"median": 699.5, "lowest": 699.5, "highest": 699.5})
        self.assertEqual((found["celsius"]["highest"], found["memory_mhz"]["median"]), (61, 2619))
        self.assertEqual(found["throttled"], {"power cap": 1.0})
        with open(os.path.join(self.folder, "asked"), encoding="utf-8") as file:
            self.assertIn("clocks_throttle_reasons.active --format=csv,noheader,nounits --id=00:01", file.read())
        self.assertRegex(tables.clocks(found), r"^169\d MHz \(169\d to 1698\), 700 W, 61 C; power cap 100 %$")

    def test_an_idle_gpu_is_told_as_it_is(self):
        self.smi('#!/bin/sh\necho "0, 345, 2619, 75.10, 31, 0x1"\n')
        found = self.sample(1)
        self.assertEqual((found["sm_mhz"]["median"], found["throttled"]), (345, {}))

    def test_nvml_is_asked_first(self):
        subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-o", f"{self.folder}/libnvidia-ml.so.1", "-"],
                       input=_NVML, text=True, check=True)
        said = subprocess.run([sys.executable, "-c", _PRINT], check=True, capture_output=True, text=True,
                              env={**os.environ, "LD_LIBRARY_PATH": self.folder, "PYTHONPATH": "tools"}).stdout
        found, refused = said.splitlines()
        one = lambda value: {"median": value, "lowest": value, "highest": value}
        self.assertEqual(found, repr({"source": "NVML", "samples": 1, "sm_mhz": one(1500), "memory_mhz": one(2619),
                                      "watts": one(700.5), "celsius": one(60),
                                      "throttled": {"power cap": 1.0, "heat": 1.0}}))
        self.assertEqual(refused, "nvmlDeviceGetHandleByPciBusId_v2 returns 1")

    def test_without_either_an_item_goes_on_and_says_why_there_are_no_clocks(self):
        self.smi("#!/bin/sh\necho No devices were found\n")
        with sampler.Sampler("00:01") as samples:
            pass
        self.assertEqual(samples.summary(), {"none": "nvidia-smi says 'No devices were found'"})
        self.assertEqual(tables.clocks(samples.summary()), "nvidia-smi says 'No devices were found'")


if __name__ == "__main__":
    unittest.main()
