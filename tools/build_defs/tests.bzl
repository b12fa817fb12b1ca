"""cc_test and cc_library of //tests: compiled fast.

For a test, compilers spend most of their time on parsing GoogleTest, Abseil and the standard library, and on optimizing
code that runs once. So sources begin with a precompiled header and are compiled without optimization, unless the target
says `optimized = True`. Tests that compute a lot say so, and those with kernels, which run on fibers with small stacks.
"""

load(":cc.bzl", "MOST_JOINED", "O1_IF_OPTIMIZED", "PREFIX")
load(":joined_sources.bzl", "join_sources")
load(":sanitizers.bzl", "sanitizer_copts", "with_prefix")

UNOPTIMIZED_COPTS = ["-O0", "-U_FORTIFY_SOURCE"]

# Packages whose tests compile steps and train: headers of the engine take a third of their compile time.
_ENGINE_PREFIX = [
    "tests/engine",
    "tests/engine/cuda",
    "tests/engine/run/calibrate",
    "tests/engine/run/generate",
    "tests/engine/run/train",
    "tests/engine/run/verify",
    "tests/parity",
]

# Flags of sources that begin with //tests:prefix_optimized, and depend on it.
PREFIX_OPTIMIZED_COPTS = O1_IF_OPTIMIZED + ["-include", "tests/prefix_optimized.h"]

def _flags(srcs, deps, copts, optimized):
    """Returns the flags of the sources, and the dependencies to add."""
    if not srcs:
        return copts, []
    if [c for c in copts if c.startswith("-O")]:
        return sanitizer_copts(is_test = True) + copts, []
    if not optimized:
        prefix, level = "//tests:prefix", UNOPTIMIZED_COPTS
        if native.package_name() in _ENGINE_PREFIX:
            prefix += "_engine"
    elif [d for d in deps if d.startswith("@com_google_googletest//")]:
        prefix, level = "//tests:prefix_optimized", O1_IF_OPTIMIZED
    else:
        prefix, level = PREFIX + "_o1", O1_IF_OPTIMIZED
    return with_prefix(prefix, copts, level, is_test = True), [prefix]

def cc_test(name, srcs = [], deps = [], copts = [], optimized = False, tags = [], joined = MOST_JOINED, **kwargs):
    copts, added = _flags(srcs, deps, copts, optimized)
    if "tsan" in tags:
        added = added + ["//tests:sanitizers"]
    srcs, texts, flags = join_sources(name, srcs, joined, True)
    native.cc_test(name = name, srcs = srcs, deps = deps + added + texts, copts = copts + flags, tags = tags, **kwargs)

def cc_library(name, srcs = [], deps = [], copts = [], optimized = False, joined = MOST_JOINED, **kwargs):
    copts, added = _flags(srcs, deps, copts, optimized)
    srcs, texts, flags = join_sources(name, srcs, joined, kwargs.get("testonly", False))
    native.cc_library(name = name, srcs = srcs, deps = deps + added + texts, copts = copts + flags, **kwargs)
