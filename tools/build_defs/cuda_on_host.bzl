"""cc_from_cuda: gives CUDA sources to the C++ compiler."""

def _cc_from_cuda_impl(ctx):
    outputs = []
    for source in ctx.files.srcs:
        output = ctx.actions.declare_file("%s/%s.cc" % (ctx.label.name, source.basename[:-len(".cu")]))
        ctx.actions.write(output, "#include \"%s\"\n" % source.short_path)
        outputs.append(output)
    return [DefaultInfo(files = depset(outputs))]

cc_from_cuda = rule(
    doc = "Generates NAME/x.cc, which only includes x.cu, for every x.cu of srcs. A cc_library whose srcs are this " +
          "rule compiles the .cu files as C++. It needs a dependency that has them as textual_hdrs.",
    implementation = _cc_from_cuda_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"], mandatory = True),
    },
)
