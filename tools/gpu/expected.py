"""Estimates how many seconds items take, for --list. An H200 took about as long for tests and to start; the rest was
not measured. The numbers only tell minutes from hours."""

from gpu import plans

START = 3             # A program starts, and loads kernels and libraries.
MODULES = 5
PLAN = 1
TUNE = 120
OPS = 90
SUSTAINED = 60        # What --sustained_seconds adds.
COMM = 90
_CASE = 0.03          # A test case of an op or a device.
_LAW = 5              # A test case of a law of training steps.
_SANITIZED_CASE = 3   # A test case under a tool of compute-sanitizer, which loads kernels lazily.
_LOAD = 15            # The weights of a model are initialized, and its matmuls and attention run once.
_SEARCH = 1200        # torch_fsdp2.py starts no trial after this time.
# The fractions of the peak that steps reach, and the peak of a GPU that is not known.
_ENGINE_RATE, _TORCH_RATE, _UNKNOWN_PEAK = 0.5, 0.4, 100e12


def tests(cases, laws, sanitizer=None):
    return START + cases * (_SANITIZED_CASE if sanitizer else _LAW if laws else _CASE)


def _steps(kit, flops, rate):
    peak = plans.peak_flops(kit.gpus[0]) or _UNKNOWN_PEAK
    return (kit.warmup + kit.steps) * flops / (rate * peak)


def train(kit, plan):
    return START + _LOAD + _steps(kit, plan.step_flops, _ENGINE_RATE)


def torch(kit, plan):
    return _SEARCH + START + _LOAD + _steps(kit, plan.step_flops, _TORCH_RATE)
