"""cuda_library: compiles kernels with nvcc into a C++ library."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@local_config_cuda//:defs.bzl", "CUDA_VERSION", "NVCC")
load(":settings.bzl", "BuildSettingInfo")

# A value for target_compatible_with that leaves the target out of //... if there is no CUDA toolkit.
NEEDS_CUDA = select({
    "//tools/build_defs:with_cuda": [],
    "//conditions:default": ["//tools/build_defs:without_cuda"],
})

# Like NEEDS_CUDA, but also leaves the target out if cuDNN's headers are missing.
NEEDS_CUDNN = select({
    "//tools/build_defs:with_cudnn": [],
    "//conditions:default": ["//tools/build_defs:without_cuda"],
})

# Compiles, and writes down what each kernel needs: what ptxas says of registers, stack and spills, and from the PTX the
# compiler's version and the launch bounds. The times that ptxas says are left out, because they differ from run to run.
#
# Without --objdir-as-tempdir, nvcc names its intermediate files after its process number, which may be the same in two
# parallel sandboxes. In a shared /tmp one nvcc would use the files of the other.
_COMPILE = """
nvcc=$1 object=$2 resources=$3
shift 3
messages=$("$nvcc" -o "$object" --objdir-as-tempdir --keep --resource-usage "$@" 2>&1)
status=$?
if [[ $status == 0 ]]; then
  {
    cat "$object".*ptx |
      grep -oE "^// Cuda compilation tools, .*|^[a-z. ]*[.]entry [A-Za-z0-9_$]+|^[.]maxntid [0-9, ]+"
    grep -E "^ptxas info .*(Compiling entry function|Used [0-9]+ registers)|bytes stack frame" <<< "$messages"
  } > "$resources"
fi
rm -f "$object".*
grep -vE "^ptxas info |bytes stack frame|^$" <<< "$messages" >&2
exit $status
"""

def _architecture_flags(architectures):
    flags = []
    for architecture in architectures.split(","):
        number, _, with_ptx = architecture.partition("+")
        if with_ptx not in ["", "ptx"]:
            fail("--//tools/build_defs:cuda_arch=%s: wanted numbers such as 90a or 80+ptx" % architectures)
        code = "[sm_%s,compute_%s]" % (number, number) if with_ptx else "sm_" + number
        flags.append("-gencode=arch=compute_%s,code=%s" % (number, code))
    return flags

def _cuda_library_impl(ctx):
    if not NVCC:
        fail("%s needs nvcc, and there is none in $CUDA_HOME/bin or /usr/local/cuda/bin" % ctx.label)
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    headers = [f for f in ctx.files.srcs if f.extension != "cu"]
    dependencies = cc_common.merge_cc_infos(cc_infos = [d[CcInfo] for d in ctx.attr.deps]).compilation_context

    flags = ctx.actions.args()
    flags.add("-ccbin", cc_common.get_tool_for_action(feature_configuration = features, action_name = "c++-compile"))
    # -fmad=false, because otherwise the compiler decides for each kernel which a * b + c it fuses. Kernels that
    # fuse do so explicitly.
    flags.add_all(["-std=c++20", "-O2", "-fmad=false", "--expt-relaxed-constexpr", "-lineinfo"])
    flags.add_all(_architecture_flags(ctx.attr._arch[BuildSettingInfo].value))
    if ctx.attr._compress[BuildSettingInfo].value:
        flags.add("--compress-mode=size")
    flags.add_all(["-Xcompiler", "-fPIC,-Wall,-fno-omit-frame-pointer"])
    if ctx.var["COMPILATION_MODE"] == "dbg":
        flags.add("-g")
    flags.add_all(dependencies.defines, before_each = "-D")
    flags.add_all(["-I.", "-I" + ctx.bin_dir.path])
    flags.add_all(dependencies.includes, format_each = "-I%s")
    flags.add_all(dependencies.system_includes, before_each = "-isystem")
    flags.add_all(dependencies.quote_includes, format_each = "-I%s")

    objects, resources = [], []
    for source in ctx.files.srcs:
        if source.extension != "cu":
            continue
        object = ctx.actions.declare_file("_objs/%s/%s.o" % (ctx.label.name, source.basename[:-3]))
        used = ctx.actions.declare_file("_objs/%s/%s.resources" % (ctx.label.name, source.basename[:-3]))
        files = ctx.actions.args()
        files.add_all([NVCC, object, used])
        files.add("-c", source)
        ctx.actions.run_shell(
            command = _COMPILE,
            arguments = [files, flags],
            inputs = depset([source] + headers, transitive = [dependencies.headers]),
            tools = toolchain.all_files,
            outputs = [object, used],
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s with nvcc" % source.short_path,
            # The toolkit is not an input of this action. Its version is, so that objects of another toolkit are not
            # reused.
            env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "NVCC_VERSION": CUDA_VERSION},
        )
        objects.append(object)
        resources.append(used)

    linking_context, outputs = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        name = ctx.label.name,
        feature_configuration = features,
        cc_toolchain = toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = depset(objects),
            pic_objects = depset(objects),
        ),
        linking_contexts = [d[CcInfo].linking_context for d in ctx.attr.deps],
        disallow_dynamic_library = True,
        alwayslink = ctx.attr.alwayslink,
    )
    library = outputs.library_to_link
    return [
        DefaultInfo(files = depset([library.pic_static_library or library.static_library])),
        OutputGroupInfo(resources = depset(resources)),
        cc_common.merge_cc_infos(
            direct_cc_infos = [CcInfo(
                compilation_context = cc_common.create_compilation_context(),
                linking_context = linking_context,
            )],
            cc_infos = [d[CcInfo] for d in ctx.attr.deps],
        ),
    ]

cuda_library = rule(
    doc = "Compiles every .cu of srcs with nvcc into one static archive. Headers in srcs are private; headers that " +
          "callers of the kernels include come from deps. Use with target_compatible_with = NEEDS_CUDA. The output " +
          "group `resources` has a file for each .cu: the launch bounds, registers, stack and spills of its kernels.",
    implementation = _cuda_library_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu", ".h"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "alwayslink": attr.bool(default = False),
        "_arch": attr.label(default = "//tools/build_defs:cuda_arch"),
        "_compress": attr.label(default = "//tools/build_defs:cuda_compress"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    incompatible_use_toolchain_transition = True,
)
