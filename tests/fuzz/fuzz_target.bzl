"""fuzz_target: a parser for libFuzzer. fuzz_corpora_test: a test that runs the corpora of all of them."""

load("//tools/build_defs:tests.bzl", "cc_test")

# A source that includes that of a target, under a name of its own for its function, and adds it to those that the test
# of the corpora runs.
_REPLAYED = """cat > $@ <<'END'
#include "tests/fuzz/replay.h"

#define LLVMFuzzerTestOneInput {name}_fuzz
#include "tests/fuzz/{name}_fuzz.cc"
#undef LLVMFuzzerTestOneInput
static const bool {name}_added = shale::testing::AddFuzzTarget("{name}", {name}_fuzz);
END
"""

def fuzz_target(name, deps, data = []):
    """Builds <name>_fuzz from <name>_fuzz.cc, which defines LLVMFuzzerTestOneInput.

    It is a libFuzzer binary, which tools/fuzz builds with --config=fuzz or fuzz_fast, and runs. `fuzz_corpora_test`
    needs no clang.

    Args:
      name: the prefix of the target, and the name of its text in corpus/.
      deps: the dependencies of <name>_fuzz.cc.
      data: files that inputs of the corpus refer to, by their paths from the root.
    """
    native.cc_binary(
        name = name + "_fuzz",
        testonly = True,
        srcs = [name + "_fuzz.cc"],
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = deps + [":properties"],
    )
    native.genrule(
        name = name + "_replayed",
        testonly = True,
        outs = [name + "_replayed.cc"],
        cmd = _REPLAYED.format(name = name),
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name + "_fuzz_source",
        testonly = True,
        data = ["corpus/%s.txt" % name] + data,
        textual_hdrs = [name + "_fuzz.cc"],
        visibility = ["//visibility:private"],
        deps = deps + [":properties"],
    )

def fuzz_corpora_test(name, deps):
    """A test that runs every input of every text in corpus/ once.

    All targets are linked once, and compiled together as sources of tests are (joined_sources.bzl).

    Args:
      name: the name of the test.
      deps: what reads the corpora and calls the targets.
    """
    targets = [path[len("corpus/"):-len(".txt")] for path in native.glob(["corpus/*.txt"])]
    cc_test(
        name = name,
        size = "small",
        srcs = [target + "_replayed.cc" for target in targets],
        deps = deps + [":%s_fuzz_source" % target for target in targets],
    )
