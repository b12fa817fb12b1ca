"""The flags of sources that have a sanitizer, and which sources have them.

A build with a sanitizer compiles what deals with memory, threads and files of others once more. It links that with what
an optimized build has compiled, in the same output folder: packages that only compute programs and reports, and with
AddressSanitizer also those that compute plans, and most tests. ThreadSanitizer has to see how a test shares memory, and
the tests come first in a link, so the copies of templates that it does not see give way to theirs.
"""

_COMMON = ["-O1", "-g1", "-UNDEBUG", "-U_FORTIFY_SOURCE", "-fno-omit-frame-pointer"]

# null, alignment and object-size check every access, which takes a sixth of the compile time. AddressSanitizer finds
# what null and object-size find, and the fuzz configuration, whose targets read the bytes of files, keeps all three.
_ADDRESS = _COMMON + [
    "-fsanitize=address",
    "-fsanitize=undefined",
    "-fno-sanitize-recover=all",
    "-fno-sanitize=vptr,null,alignment,object-size",
    # Containers of Abseil poison their empty places where this macro is defined. They are templates: a copy of their
    # functions that was compiled without AddressSanitizer would write there. So no source has this macro, and ours ask
    # for the next one.
    "-U__SANITIZE_ADDRESS__",
    "-DSHALE_ADDRESS_SANITIZER",
]
_THREAD = _COMMON + ["-fsanitize=thread"]

_WITH_ADDRESS = "//tools/build_defs:with_address_sanitizer"
_WITH_THREAD = "//tools/build_defs:with_thread_sanitizer"
_OTHERS = "//conditions:default"

# What only computes, with the packages below it.
_COMPUTING = [
    "engine/compile",
    "engine/plan/report",
    "tools",
]

# What only computes, but on several threads: has ThreadSanitizer alone.
_COMPUTING_ON_THREADS = [
    "engine/plan/planner",
    "engine/plan/search",
    "engine/plan/time",
]

# The tests that have AddressSanitizer: they hand bytes of anyone to what reads files.
_FUZZING = ["tests/fuzz"]

# The flags of the sanitizer that a build has, and those of what has ThreadSanitizer alone.
SANITIZER_COPTS = select({_WITH_ADDRESS: _ADDRESS, _WITH_THREAD: _THREAD, _OTHERS: []})
THREAD_SANITIZER_COPTS = select({_WITH_THREAD: _THREAD, _OTHERS: []})

def is_below(package, folders):
    """Returns whether a package is one of these folders, or below one."""
    return bool([f for f in folders if package == f or package.startswith(f + "/")])

def _is_left_out(is_test):
    """Returns whether sources of this package have no AddressSanitizer."""
    package = native.package_name()
    return is_below(package, _COMPUTING_ON_THREADS) or (is_test and not is_below(package, _FUZZING))

def sanitizer_copts(is_test):
    """Returns the flags of the sanitizer that a build has, for sources of this package."""
    if is_below(native.package_name(), _COMPUTING):
        return []
    return THREAD_SANITIZER_COPTS if _is_left_out(is_test) else SANITIZER_COPTS

def with_prefix(prefix, copts, level = [], is_test = False):
    """Returns the flags of sources of this package that begin with a precompiled header. They also depend on it.

    Args:
      prefix: its label.
      copts: other flags.
      level: flags of the level of optimization.
      is_test: whether they are sources of tests.
    """
    include = ["-include", prefix[2:].replace(":", "/") + ".h"]
    if is_below(native.package_name(), _COMPUTING):
        return level + include + copts

    # Sources with a sanitizer would need a header that is precompiled as they are. But what a target depends on, all
    # that depend on the target are compiled with, and those without a sanitizer would be compiled anew.
    return sanitizer_copts(is_test) + level + select({
        _WITH_ADDRESS: include if _is_left_out(is_test) else [],
        _WITH_THREAD: [],
        _OTHERS: include,
    }) + copts
