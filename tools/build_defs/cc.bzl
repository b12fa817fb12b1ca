"""cc_library and cc_binary of the engine: as Bazel's, but compiled faster, and in any workspace.

For most sources, gcc spends most of its time on parsing Abseil and the standard library. So sources begin with a
precompiled header (//tools/build_defs:prefix) that has what most of them include. They still include what they use,
because other compilers get an empty header. -Winvalid-pch in .bazelrc makes gcc warn if it cannot use the precompiled
form.

A precompiled header is valid for one level of optimization. At another level gcc uses it all the same, and may crash.
So sources that are always compiled with -O2 have one of their own, and sources with another level get none.
"""

load(":joined_sources.bzl", "join_sources")
load(":sanitizers.bzl", "sanitizer_copts", "with_prefix")

# How many sources are compiled together. With more, a whole build is faster, and one after a change of a source slower.
MOST_JOINED = 14

PREFIX = "//tools/build_defs:prefix"

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
        prefix = PREFIX + ("_o2" if flags else "")
        copts = with_prefix(prefix, copts)
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
