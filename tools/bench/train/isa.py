"""Limits contestants to the instructions of a class of processors (--isa). All of them are limited alike, by variables
of the environment."""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class _Class:
    flags: tuple  # What /proc/cpuinfo calls the instructions.
    onednn: str  # The class's name in oneDNN 2 (of the engine) and 3 (of PyTorch).
    mkl: str  # Its name in MKL, which multiplies fp32 matrices in PyTorch.
    aten: str  # Its name in PyTorch's own kernels. Also chooses the vectors in code that torch.compile generates.
    gcc: str  # Its name in gcc, which compiles that code. Otherwise it is compiled for the machine that it runs on.
    torch_bf16: bool  # Whether PyTorch multiplies bf16 matrices by vector instructions.


_AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

# From the oldest to the newest, by the names that SHALE_MAX_CPU_ISA has for them (kernels/cpu/instruction_set.h).
_CLASSES = {
    "SSE4": _Class(("sse4_1", "sse4_2"), "SSE41", "SSE4_2", "default", "x86-64-v2", False),
    "AVX2": _Class(("avx2", "fma"), "AVX2", "AVX2", "avx2", "x86-64-v3", False),
    "AVX512": _Class(_AVX512, "AVX512_CORE_VNNI", "AVX512", "avx512", "x86-64-v4", True),
    # There is no further name for gcc, since it does not generate instructions for bf16 on its own.
    "AVX512_BF16": _Class((*_AVX512, "avx512_bf16"), "AVX512_CORE_BF16", "AVX512_E3", "avx512", "x86-64-v4", True),
    "AMX": _Class((*_AVX512, "avx512_bf16", "amx_tile", "amx_bf16"), "AVX512_CORE_AMX", "AVX512_E4", "avx512",
                  "x86-64-v4", True),
}
NAMES = tuple(_CLASSES)
VARIABLE = "SHALE_MAX_CPU_ISA"


def processor():
    """Returns the fields of /proc/cpuinfo for one processor, as a dict; empty if there is no such file."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return dict(re.findall(r"^([^\t:]+?)\s*: (.*)$", file.read(), re.MULTILINE))
    except OSError:
        return {}


def of_this_machine():
    """Returns the names of the classes whose instructions this machine has."""
    flags = processor().get("flags", "").split()
    return [name for name, one in _CLASSES.items() if all(flag in flags for flag in one.flags)]


def environment(name):
    """Returns the variables that limit every contestant to the class; none if the name is None."""
    if not name:
        return {}
    one = _CLASSES[name]
    return {VARIABLE: name, "ONEDNN_MAX_CPU_ISA": one.onednn, "MKL_ENABLE_INSTRUCTIONS": one.mkl,
            "ATEN_CPU_CAPABILITY": one.aten, "TORCHINDUCTOR_CPP_MARCH": one.gcc}


def torch_multiplies_bf16(name):
    """Returns whether PyTorch, limited to the class, multiplies bf16 matrices by vector instructions. It uses plain
    loops otherwise, which took a thousand times as long."""
    return not name or _CLASSES[name].torch_bf16


def is_limited_by_environment(binary):
    """Returns whether a `train` heeds the limit. Builds of earlier commits do not."""
    with open(binary, "rb") as file:
        return VARIABLE.encode() in file.read()


def text(name):
    """Describes the limit for the head of a table."""
    return f"up to {name}, by all contestants (--isa={name})" if name else "all that the processor has"
