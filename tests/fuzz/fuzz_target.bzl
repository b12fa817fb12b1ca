"""fuzz_target: a parser under libFuzzer, and its corpus as a test."""

_FUZZING = "//tests/fuzz:fuzzing"

def fuzz_target(name, deps, data = []):
    """Builds <name>_fuzz from <name>_fuzz.cc, which defines LLVMFuzzerTestOneInput.

    With --config=fuzz that is a libFuzzer binary (tools/fuzz runs it), otherwise a test that runs every file of
    corpus/<name> once: it needs no clang.

    Args:
      name: of the target and of its folder in corpus/.
      deps: of <name>_fuzz.cc.
      data: files that inputs of the corpus name, by their paths from the root.
    """
    native.cc_test(
        name = name + "_fuzz",
        size = "small",
        srcs = [name + "_fuzz.cc"],
        args = ["tests/fuzz/corpus/" + name],
        data = native.glob(["corpus/" + name + "/**"]) + data,
        linkopts = select({
            _FUZZING: ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        deps = deps + [":properties"] + select({
            _FUZZING: [],
            "//conditions:default": [":replay_main"],
        }),
    )
