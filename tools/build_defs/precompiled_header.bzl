"""precompiled_header: headers that gcc parses once, for many sources. See cc.bzl and tests.bzl."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    outputs = [header]
    dependencies = cc_common.merge_cc_infos(cc_infos = [d[CcInfo] for d in ctx.attr.deps]).compilation_context
    compiler = cc_common.get_tool_for_action(feature_configuration = features, action_name = CPP_COMPILE_ACTION_NAME)
    if "clang" in compiler or "clang" in toolchain.compiler:
        # An empty header makes sources parse what they include themselves, which also shows where an #include is
        # missing.
        ctx.actions.write(header, "")
    else:
        ctx.actions.write(header, "".join(["#include %s\n" % name for name in ctx.attr.includes]))
        precompiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
        outputs.append(precompiled)

        # gcc uses the result only for sources that are compiled with the same flags. See _copts_elsewhere in cc.bzl.
        elsewhere = ["-std=c++20"] if ctx.label.workspace_name else []
        command = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = cc_common.create_compile_variables(
                feature_configuration = features,
                cc_toolchain = toolchain,
                use_pic = True,  # As --force_pic in .bazelrc.
                quote_include_directories = dependencies.quote_includes,
                user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + elsewhere,
            ),
        )
        ctx.actions.run(
            executable = compiler,
            arguments = command + ["-x", "c++-header", "-c", header.path, "-o", precompiled.path],
            env = cc_common.get_environment_variables(
                feature_configuration = features,
                action_name = CPP_COMPILE_ACTION_NAME,
                variables = cc_common.empty_variables(),
            ),
            inputs = depset([header], transitive = [toolchain.all_files, dependencies.headers]),
            outputs = [precompiled],
            mnemonic = "CppPrecompile",
            progress_message = "Precompiling %s" % header.short_path,
        )
    return [
        DefaultInfo(files = depset(outputs)),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset(outputs))),
    ]

precompiled_header = rule(
    doc = "PACKAGE/NAME.h, which includes `includes`, and with gcc its precompiled form. A source uses it if it " +
          "depends on this rule and is compiled with `-include PACKAGE/NAME.h` and the same `copts`.",
    implementation = _precompiled_header_impl,
    attrs = {
        "includes": attr.string_list(doc = "Headers of the system or of `deps`, in <> or \"\"."),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    incompatible_use_toolchain_transition = True,
)
