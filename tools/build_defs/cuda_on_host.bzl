"""cc_from_cuda: gives CUDA sources to the C++ compiler."""

def _cc_from_cuda_impl(ctx):
    outputs = []
    for source in ctx.files.srcs:
        output = ctx.actions.declare_file("%s/%s.cc" % (ctx.label.name, source.basename[:-len(".cu")]))
        ctx.actions.write(output, "#include \"%s\"\n" % source.short_path)
        outputs.append(output)
    return [DefaultInfo(files = depset(outputs))]

cc_from_cuda = rule(
    doc = "Generates NAME/x.cc for every x.cu of srcs. It only includes x.cu, so that a cc_library whose srcs are this " +
          "rule compiles x.cu as C++. The .cu files are headers to it: it depends on a library that has them as " +
          "textual_hdrs.",
    implementation = _cc_from_cuda_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"], mandatory = True),
    },
)
