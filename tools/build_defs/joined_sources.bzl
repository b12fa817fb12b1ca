"""join_sources: compiles several sources of a target in one compilation.

For most sources, compilers spend most of their time on what the headers have: parsing them, and instantiating the same
templates. Sources that are compiled together share this. So names in their anonymous namespaces must differ, which the
compiler checks. --//tools/build_defs:join_sources=false compiles each source by itself; clang does so (see .bazelrc),
and then finds what a source forgot to include.
"""

def _joined_sources_impl(ctx):
    sources = ctx.files.srcs
    units = (len(sources) + ctx.attr.most - 1) // ctx.attr.most
    outputs = []
    for unit in range(units):
        # As many sources in each unit, give or take one.
        begin, end = len(sources) * unit // units, len(sources) * (unit + 1) // units
        output = ctx.actions.declare_file("%s/%s_%d_of_%d.cc" % (ctx.label.name, ctx.attr.unit, unit + 1, units))
        # The owner of a generated source is the rule that generates it.
        names = [(s.owner.package, s.owner.name if s.is_source else s.basename) for s in sources[begin:end]]
        lines = ["#include \"%s/%s\"\n" % name for name in names]
        ctx.actions.write(output, "".join(lines))
        outputs.append(output)
    return [DefaultInfo(files = depset(outputs))]

_joined_sources = rule(
    doc = "Generates sources that only include those of `srcs`, at most `most` each.",
    implementation = _joined_sources_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cc"], mandatory = True),
        "most": attr.int(mandatory = True),
        "unit": attr.string(mandatory = True, doc = "How the names of the generated sources begin."),
    },
)

# In an included file, gcc warns of a class whose base is in an anonymous namespace. It takes the file for a header.
_COPTS = ["-Wno-subobject-linkage"]

def join_sources(name, srcs, most, testonly):
    """Returns what a C++ rule `name` takes for its `srcs`, and adds to its `deps` and `copts`, so that it compiles its
    .cc files in units of at most `most`."""
    sources = [s for s in srcs if s.endswith(".cc")] if type(srcs) == type([]) else []
    if len(sources) < 2 or most < 2:
        return srcs, [], []
    _joined_sources(
        name = name + ".joined",
        srcs = sources,
        most = most,
        unit = name,
        testonly = testonly,
        visibility = ["//visibility:private"],
    )

    # The sources as files that other sources include.
    native.cc_library(
        name = name + ".sources",
        textual_hdrs = sources,
        testonly = testonly,
        visibility = ["//visibility:private"],
    )
    separate = "//tools/build_defs:separate_sources"
    return (
        [s for s in srcs if not s.endswith(".cc")] +
        select({separate: sources, "//conditions:default": [":%s.joined" % name]}),
        [":%s.sources" % name],
        _COPTS,
    )
