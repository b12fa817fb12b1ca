"""cc_library and cc_binary of the engine: as Bazel's, but compiled faster, and in any workspace.

For most sources, gcc spends most of its time on parsing Abseil and the standard library. So sources begin with a
precompiled header (//tools/build_defs:prefix) that has what most of them include. They still include what they use,
because other compilers get an empty header. -Winvalid-pch in .bazelrc makes gcc warn if it cannot use the precompiled
form.

An optimized build compiles with -O1 what does not loop over numbers or bytes. Compiling it takes a quarter less time,
and planning a job about a twentieth more. What does loop over them has the level of the build, or asks for -O2 itself.

A precompiled header is valid for one level of optimization. At another level gcc uses it all the same, and may crash.
So each of these three has one of its own, and sources with another level get none.
"""

load(":joined_sources.bzl", "join_sources")
load(":sanitizers.bzl", "is_below", "sanitizer_copts", "with_prefix")

# How many sources are compiled together. With more, a whole build is faster, and one after a change of a source slower.
MOST_JOINED = 14

PREFIX = "//tools/build_defs:prefix"

# The level of sources that do not loop over numbers or bytes, which begin with //tools/build_defs:prefix_o1.
O1_IF_OPTIMIZED = select({
    "//tools/build_defs:optimized": ["-O1"],
    "//conditions:default": [],
})

# The packages that have this level, and those below them that have not.
_WITH_O1 = ["engine", "tools"]
_WITHOUT_O1 = [
    "engine/files/checkpoint",
    "engine/files/data",
    "engine/files/io",
    "engine/run/generate",
    "engine/run/state",
    "engine/text",
]

# What most sources include, in the engine and in tests.
PREFIX_INCLUDES = [
    "<algorithm>",
    "<array>",
    "<atomic>",
    "<chrono>",
    "<cmath>",
    "<condition_variable>",
    "<cstdint>",
    "<cstring>",
    "<deque>",
    "<filesystem>",
    "<fstream>",
    "<functional>",
    "<limits>",
    "<map>",
    "<memory>",
    "<mutex>",
    "<optional>",
    "<set>",
    "<sstream>",
    "<string>",
    "<thread>",
    "<utility>",
    "<variant>",
    "<vector>",
    "\"absl/status/statusor.h\"",
    "\"absl/strings/match.h\"",
    "\"absl/strings/str_cat.h\"",
    "\"absl/strings/str_format.h\"",
    "\"absl/strings/str_join.h\"",
    "\"absl/strings/str_split.h\"",
    "\"absl/strings/string_view.h\"",
    "\"absl/types/span.h\"",
]

def _copts_elsewhere():
    """Returns what targets need of .bazelrc if another workspace builds them, because Bazel does not read it there.
    -fPIC is a flag of the precompiled header."""
    return [] if native.repository_name() == "@" else ["-std=c++20", "-fPIC"]

def _compile_fast(rule, name, srcs, deps, copts, joined, **kwargs):
    # Flags such as -fopenmp predefine other macros, for which the precompiled form does not hold.
    flags = [c for c in copts if c.startswith("-f") or c.startswith("-O")]
    if srcs and (not flags or flags == ["-O2"]):
        package, level = native.package_name(), []
        if flags:
            prefix = PREFIX + "_o2"
        elif is_below(package, _WITH_O1) and not is_below(package, _WITHOUT_O1):
            prefix, level = PREFIX + "_o1", O1_IF_OPTIMIZED
        else:
            prefix = PREFIX
        copts = with_prefix(prefix, copts, level)
        deps = deps + [prefix]
    elif srcs:
        copts = sanitizer_copts(is_test = False) + copts
    srcs, texts, flags = join_sources(name, srcs, joined, kwargs.get("testonly", False))
    rule(name = name, srcs = srcs, deps = deps + texts, copts = copts + flags + _copts_elsewhere(), **kwargs)

def cc_library(name, srcs = [], deps = [], copts = [], joined = MOST_JOINED, **kwargs):
    """As Bazel's. Compiles up to `joined` sources together: 1 if they cannot share a compilation."""
    _compile_fast(native.cc_library, name, srcs, deps, copts, joined, **kwargs)

def cc_binary(name, srcs = [], deps = [], copts = [], joined = MOST_JOINED, **kwargs):
    """As Bazel's, and compiled as by cc_library."""
    _compile_fast(native.cc_binary, name, srcs, deps, copts, joined, **kwargs)
