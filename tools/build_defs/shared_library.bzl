"""shared_library: links C++ libraries into one shared library that exports a few functions."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# The repositories whose archives are not position-independent, so that they cannot be part of a shared library.
# Debian's shared libraries of the same names take their place (see system_libs.bzl).
_NOT_POSITION_INDEPENDENT = ["com_google_absl", "com_google_protobuf"]

def _shared_library_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features + ["supports_start_end_lib"],  # bfd has no --start-lib.
    )
    exports = ctx.actions.declare_file(ctx.label.name + ".map")
    ctx.actions.write(exports, "{ global: %s; local: *; };\n" % "; ".join(ctx.attr.exports))

    libraries, flags, shared, inputs = [], [], [], [depset([exports])]
    roots = [dep.label for dep in ctx.attr.deps]
    everything = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    for linker_input in everything.linking_context.linker_inputs.to_list():
        flags += linker_input.user_link_flags
        inputs.append(depset(linker_input.additional_inputs))
        for library in linker_input.libraries:
            archive = library.pic_static_library or library.static_library
            if linker_input.owner.workspace_name in _NOT_POSITION_INDEPENDENT:
                shared.append("-l" + archive.basename[len("lib"):-len(".a")])
            elif linker_input.owner in roots:
                libraries.append(cc_common.create_library_to_link(
                    actions = ctx.actions,
                    feature_configuration = features,
                    cc_toolchain = toolchain,
                    pic_static_library = archive,
                    alwayslink = True,
                ))
            else:
                libraries.append(library)

    linked = cc_common.link(
        actions = ctx.actions,
        name = ctx.label.name[len("lib"):],
        feature_configuration = features,
        cc_toolchain = toolchain,
        linking_contexts = [cc_common.create_linking_context(linker_inputs = depset([cc_common.create_linker_input(
            owner = ctx.label,
            libraries = depset(libraries),
            user_link_flags = depset(flags),
        )]))],
        user_link_flags = [
            # gold exports code of templates that another library also has, whatever the version script says.
            "-fuse-ld=bfd",
            "-Wl,-soname," + ctx.attr.soname,
            "-Wl,--version-script," + exports.path,
            "-Wl,--no-undefined",
            "-Wl,--build-id",  # tools/package/elf.py uses its program header.
            "-Wl,--as-needed",
        ] + shared + ["-lstdc++", "-lm"],
        additional_inputs = depset(transitive = inputs).to_list(),
        output_type = "dynamic_library",
    ).library_to_link
    return [DefaultInfo(files = depset([linked.resolved_symlink_dynamic_library or linked.dynamic_library]))]

shared_library = rule(
    doc = "NAME.so, where NAME begins with `lib`: all code of `deps`, and what it needs. Exports the symbols that " +
          "match `exports`. Needs the shared libraries of the system, under their usual names.",
    implementation = _shared_library_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo], mandatory = True),
        "exports": attr.string_list(doc = "Patterns of a version script.", mandatory = True),
        "soname": attr.string(mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    incompatible_use_toolchain_transition = True,
)
