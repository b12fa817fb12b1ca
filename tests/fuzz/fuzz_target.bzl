"""fuzz_target: runs a parser under libFuzzer, or runs its corpus as a test."""

load("//tools/build_defs:tests.bzl", "UNOPTIMIZED_COPTS")

_FUZZING = "//tests/fuzz:fuzzing"

def fuzz_target(name, deps, data = []):
    """Builds <name>_fuzz from <name>_fuzz.cc, which defines LLVMFuzzerTestOneInput.

    With --config=fuzz the target is a libFuzzer binary, which tools/fuzz runs. Otherwise it is a test that runs every
    input of corpus/<name>.txt once and needs no clang.

    Args:
      name: the prefix of the target, and the name of its text in corpus/.
      deps: the dependencies of <name>_fuzz.cc.
      data: files that inputs of the corpus refer to, by their paths from the root.
    """
    native.cc_test(
        name = name + "_fuzz",
        size = "small",
        srcs = [name + "_fuzz.cc"],
        copts = select({
            _FUZZING: [],
            "//conditions:default": UNOPTIMIZED_COPTS + ["-include", "tests/prefix.h"],
        }),
        args = ["tests/fuzz/corpus/%s.txt" % name],
        data = ["corpus/%s.txt" % name] + data,
        linkopts = select({
            _FUZZING: ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        deps = deps + [":properties"] + select({
            _FUZZING: [],
            "//conditions:default": [
                ":replay_main",
                "//tests:prefix",
            ],
        }),
    )
