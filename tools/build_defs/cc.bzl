"""cc_library and cc_binary of the engine: as Bazel's, but compiled faster.

For most sources, gcc spends most of its time on parsing Abseil and the standard library. So sources begin with a
precompiled header (//tools/build_defs:prefix) that has what most of them include. They still include what they use,
because other compilers get an empty header. -Winvalid-pch in .bazelrc makes gcc warn if it cannot use the precompiled
form.
"""

PREFIX_COPTS = ["-include", "tools/build_defs/prefix.h"]
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

def _begin_with_prefix(rule, srcs, deps, copts, **kwargs):
    # Flags such as -fopenmp predefine other macros, for which the precompiled form does not hold.
    if srcs and not [c for c in copts if c.startswith("-f")]:
        copts = PREFIX_COPTS + copts
        deps = deps + [PREFIX]
    rule(srcs = srcs, deps = deps, copts = copts, **kwargs)

def cc_library(srcs = [], deps = [], copts = [], **kwargs):
    _begin_with_prefix(native.cc_library, srcs, deps, copts, **kwargs)

def cc_binary(srcs = [], deps = [], copts = [], **kwargs):
    _begin_with_prefix(native.cc_binary, srcs, deps, copts, **kwargs)
