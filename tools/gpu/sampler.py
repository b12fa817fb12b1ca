"""Records a GPU's clocks, power, temperature and throttle reasons while an item runs, by NVML or else by nvidia-smi."""

import ctypes
import statistics
import subprocess
import threading
from dataclasses import dataclass

_PERIOD_SECONDS = 0.2
# A sample counts if kernels ran for this part of the time before it, so that loading a program hides no clock.
_BUSY_PERCENT = 50

# The constants and bits are those of nvml.h.
_SM_CLOCK, _MEMORY_CLOCK, _CORE_TEMPERATURE = 1, 2, 0
_REASONS = {0x4: "power cap", 0x8: "slowdown by hardware", 0x20: "heat", 0x40: "heat (hardware)",
            0x80: "power brake"}
_FIELDS = "utilization.gpu,clocks.sm,clocks.mem,power.draw,temperature.gpu,"
# What throttle reasons are called since driver 535, and before.
_REASONS_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_REASONS_CALLS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_TITLES = ("sm_mhz", "memory_mhz", "watts", "celsius")


@dataclass
class Sample:
    busy: float  # Percent of the time before it in which a kernel ran.
    values: tuple  # As _TITLES names them.
    reasons: int


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Nvml:
    """NVML, which is part of the driver. Raises OSError if it is not here or does not know the GPU."""
    source = "NVML"

    def __init__(self, bus):
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByPciBusId_v2", bus.encode(), ctypes.byref(self._device))
        self._reasons = next(name for name in _REASONS_CALLS if hasattr(self._library, name))

    def _call(self, name, *arguments):
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} returns {code}")

    def _number(self, name, *arguments, kind=ctypes.c_uint):
        value = kind()
        self._call(name, self._device, *arguments, ctypes.byref(value))
        return value.value

    def sample(self):
        used = _Utilization()
        self._call("nvmlDeviceGetUtilizationRates", self._device, ctypes.byref(used))
        values = (self._number("nvmlDeviceGetClockInfo", _SM_CLOCK),
                  self._number("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
                  self._number("nvmlDeviceGetPowerUsage") * 1e-3,
                  self._number("nvmlDeviceGetTemperature", _CORE_TEMPERATURE))
        return Sample(used.gpu, values, self._number(self._reasons, kind=ctypes.c_ulonglong))


class _Smi:
    """nvidia-smi, which takes some 50 ms a call."""
    source = "nvidia-smi"

    def __init__(self, bus, reasons):
        self._command = ["nvidia-smi", f"--query-gpu={_FIELDS}{reasons}", "--format=csv,noheader,nounits",
                         f"--id={bus}"]

    def sample(self):
        said = subprocess.run(self._command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
        try:
            busy, *values, reasons = [field.strip() for field in said.split(",")]
            return Sample(float(busy), tuple(float(value) for value in values), int(reasons, 16))
        except ValueError:
            raise OSError(f"nvidia-smi says {said[:100]!r}") from None


class Sampler:
    """Samples the GPU from `with` on until its block ends. Then summary() tells what it saw. An item never fails for
    want of samples."""

    def __init__(self, bus):
        self._samples, self._error, self._source = [], "", None
        for make in (lambda: _Nvml(bus), *(lambda name=name: _Smi(bus, name) for name in _REASONS_FIELDS)):
            try:
                self._source = make()
                self._source.sample()
                break
            except (OSError, AttributeError, subprocess.SubprocessError) as error:
                self._source, self._error = None, str(error)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        if self._source:
            self._thread.start()
        return self

    def __exit__(self, *error):
        if self._source:
            self._stop.set()
            self._thread.join()

    def _run(self):
        while True:
            try:
                self._samples.append(self._source.sample())
            except (OSError, subprocess.SubprocessError) as error:
                self._error = str(error)
            if self._stop.wait(_PERIOD_SECONDS):
                return

    def summary(self):
        """Returns the median, lowest and highest of each value over the samples in which the GPU worked, or over all if
        it worked in none, and the fraction of them in which each reason kept its clocks down. Without samples it
        returns why there are none."""
        if not self._samples:
            return {"none": self._error or "the item ended at once"}
        counted = [sample for sample in self._samples if sample.busy >= _BUSY_PERCENT] or self._samples
        found = {"source": self._source.source, "samples": len(counted)}
        for title, values in zip(_TITLES, zip(*(sample.values for sample in counted))):
            found[title] = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
        found["throttled"] = {reason: round(sum(bool(sample.reasons & bit) for sample in counted) / len(counted), 3)
                              for bit, reason in _REASONS.items() if any(s.reasons & bit for s in counted)}
        return found
