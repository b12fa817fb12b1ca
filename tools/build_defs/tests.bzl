"""cc_test and cc_library of //tests: compiled fast.

Compilers take most of their time for a test to parse GoogleTest and the standard library, and to optimize code that
runs once. So sources that use GoogleTest begin with a precompiled header (//tests:prefix), and sources are compiled
without optimization, unless the target says `optimized = True`. That is for tests that compute a lot, and for those
with kernels, which run on fibers with small stacks.
"""

UNOPTIMIZED_COPTS = ["-O0", "-U_FORTIFY_SOURCE"]

# For sources that begin with //tests:prefix or with //tests:prefix_optimized, which is a dependency then. gcc warns if
# it cannot use the precompiled form.
_PREFIX_COPTS = UNOPTIMIZED_COPTS + ["-include", "tests/prefix.h", "-Winvalid-pch"]
PREFIX_OPTIMIZED_COPTS = ["-include", "tests/prefix_optimized.h", "-Winvalid-pch"]

def _flags(srcs, deps, copts, optimized):
    """Returns the flags of the sources, and the dependencies to add."""
    uses_googletest = [d for d in deps if d.startswith("@com_google_googletest//")]
    if not srcs or not uses_googletest or [c for c in copts if c.startswith("-O")]:
        return copts if optimized else UNOPTIMIZED_COPTS + copts, []
    if optimized:
        return PREFIX_OPTIMIZED_COPTS + copts, ["//tests:prefix_optimized"]
    return _PREFIX_COPTS + copts, ["//tests:prefix"]

def cc_test(name, srcs = [], deps = [], copts = [], optimized = False, **kwargs):
    copts, added = _flags(srcs, deps, copts, optimized)
    native.cc_test(name = name, srcs = srcs, deps = deps + added, copts = copts, **kwargs)

def cc_library(name, srcs = [], deps = [], copts = [], optimized = False, **kwargs):
    copts, added = _flags(srcs, deps, copts, optimized)
    native.cc_library(name = name, srcs = srcs, deps = deps + added, copts = copts, **kwargs)
