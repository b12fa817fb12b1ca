"""fuzz_target: a parser for libFuzzer. fuzz_corpora_test: a test that runs the corpora of all of them."""

load("//tools/build_defs:tests.bzl", "cc_test")

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
    native.cc_library(
        name = name + "_fuzz_source",
        testonly = True,
        data = ["corpus/%s.txt" % name] + data,
        textual_hdrs = [name + "_fuzz.cc"],
        visibility = ["//visibility:private"],
        deps = deps + [":properties"],
    )

def _replayed_sources_impl(ctx):
    outputs = []
    for unit in range(ctx.attr.units):
        output = ctx.actions.declare_file("%s_%d_of_%d.cc" % (ctx.label.name, unit + 1, ctx.attr.units))
        lines = ["#include \"tests/fuzz/replay.h\"\n"]
        for name in ctx.attr.targets[unit::ctx.attr.units]:
            lines.append("""
#define LLVMFuzzerTestOneInput {name}_fuzz
#include "tests/fuzz/{name}_fuzz.cc"
#undef LLVMFuzzerTestOneInput
static const bool {name}_added = shale::testing::AddFuzzTarget("{name}", {name}_fuzz);
""".format(name = name))
        ctx.actions.write(output, "".join(lines))
        outputs.append(output)
    return [DefaultInfo(files = depset(outputs))]

_replayed_sources = rule(
    doc = "Generates sources that include those of fuzz targets, each with a name of its own for its function.",
    implementation = _replayed_sources_impl,
    attrs = {
        "targets": attr.string_list(mandatory = True),
        "units": attr.int(mandatory = True, doc = "How many sources there are. Each is one compilation."),
    },
)

def fuzz_corpora_test(name, deps, units = 2):
    """A test that runs every input of every text in corpus/ once.

    All targets are compiled together and linked once. So names in their anonymous namespaces must differ.

    Args:
      name: the name of the test.
      deps: what reads the corpora and calls the targets.
      units: how many compilations.
    """
    targets = [path[len("corpus/"):-len(".txt")] for path in native.glob(["corpus/*.txt"])]
    _replayed_sources(
        name = name + "_sources",
        testonly = True,
        targets = targets,
        units = units,
        visibility = ["//visibility:private"],
    )
    cc_test(
        name = name,
        size = "small",
        srcs = [":%s_sources" % name],
        deps = deps + [":%s_fuzz_source" % target for target in targets],
    )
